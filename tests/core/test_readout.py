"""All readings from the same gradients, also where only those of a few inputs have room together."""

import pytest
import torch

from oracles import network
from slu import SLU
from slu.core.readout import GRADIENT_READINGS
from slu.gradients import per_example as gradients
from slu.gradients.layers import Opened, shape_of_results


def pulls(monkeypatch):
    """How many vectors are pulled back for how many inputs, as they come."""
    taken, pull = [], Opened.pull

    def noted(self, vectors, *, ahead):
        taken.append(tuple(vectors.shape[:2]))
        return pull(self, vectors, ahead=ahead)

    monkeypatch.setattr(Opened, "pull", noted)
    return taken


def results_of_one(score, inputs):
    """Numbers that the layers give for one input."""
    network = score.settings.network
    with network.evaluating():
        points, _, numbers = shape_of_results(network, inputs)
    return numbers // points


@pytest.mark.parametrize(("inputs_together", "expected"), [(12, [(12, 3)]), (5, [(5, 3), (5, 3), (2, 3)])])
def test_few_inputs_at_a_time_and_no_gradient_twice(inputs_together, expected, monkeypatch):
    model, inputs = network("conv")
    score = SLU(model, "classification", rank=4, sketch="identity").fit(inputs)
    one_by_one = {reading: score(inputs, reading=reading) for reading in GRADIENT_READINGS}
    monkeypatch.setattr(gradients, "PIECE", inputs_together * 3 * results_of_one(score, inputs))
    taken = pulls(monkeypatch)
    found = score.read_all(inputs)
    assert taken == expected
    for reading in GRADIENT_READINGS:
        torch.testing.assert_close(found[reading], one_by_one[reading])


def test_where_hardly_any_come_together_gradients_are_taken_twice(monkeypatch):
    model, inputs = network("conv")
    score = SLU(model, "classification", rank=4, sketch="identity").fit(inputs)
    one_by_one = {reading: score(inputs, reading=reading) for reading in GRADIENT_READINGS}
    monkeypatch.setattr(gradients, "PIECE", 2 * 3 * results_of_one(score, inputs))
    taken = pulls(monkeypatch)
    found = score.read_all(inputs)
    assert sum(points * vectors for points, vectors in taken) >= 2 * 3 * 12
    for reading in GRADIENT_READINGS:
        torch.testing.assert_close(found[reading], one_by_one[reading])
