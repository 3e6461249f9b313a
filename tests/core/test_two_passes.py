"""A diagonal scale reads the data twice: loaders that cannot be; and points far from the data."""

import numpy as np
import pytest
import torch

from oracles import LIKELIHOODS, network
from slu import SLU, Probes
from slu.core.directions import FISHER, row_vectors
from slu.errors import ChangedDataError, DataError


class Shrinking:
    """A loader that gives fewer batches in every pass, down to none."""

    def __init__(self, batches, passes):
        self._batches, self._passes = batches, list(passes)

    def __iter__(self):
        return iter(self._batches[: self._passes.pop(0)])


def method(model, **settings):
    return SLU(model, "classification", **{"rank": 4, "sketch": "identity", "scale": "diagonal", **settings})


def test_a_second_pass_over_fewer_points_is_refused():
    model, inputs = network("mlp")
    with pytest.raises(ChangedDataError, match="the scale is of 12 points, the subspace of 8"):
        method(model).fit(Shrinking(inputs.split(4), (3, 2)))


def test_a_loader_that_is_used_up_says_what_to_do():
    model, inputs = network("mlp")
    with pytest.raises(DataError, match=r"for the scale, read 12 points.*scale='factored'"):
        method(model).fit(Shrinking(inputs.split(4), (3, 0)))
    for scale in ("factored", None):
        assert method(model, scale=scale).fit(Shrinking(inputs.split(4), (3,))).diagnostics.points == 12


def test_other_points_of_an_augmentation_are_no_matter():
    model, inputs = network("mlp")

    class Augmented:
        def __init__(self):
            self.passes = 0

        def __iter__(self):
            self.passes += 1
            return iter((inputs + 0.01 * self.passes).split(4))

    loader = Augmented()
    assert method(model).fit(loader).diagnostics.points == 12
    assert loader.passes == 2


def test_other_points_are_held_out_of_every_pass_of_an_augmentation():
    """Which are held out goes by content, so their number changes from pass to pass; that of all points does not."""
    model, inputs = network("mlp")
    draw = np.random.default_rng(0)
    base = draw.normal(size=(400, inputs.shape[1]))

    class Augmented:
        def __iter__(self):
            noisy = torch.from_numpy(base + 0.01 * draw.normal(size=base.shape))
            return iter(noisy.split(50))

    for _ in range(4):
        score = method(model).fit(Augmented())
        assert score.diagnostics.points + score.calibration.points == 400


@pytest.mark.parametrize("likelihood", [each for each in LIKELIHOODS if each != "regression"])
def test_far_from_the_data_the_open_share_does_not_fall_to_nothing(likelihood):
    """Where probabilities underflow there is nothing left of the Fisher factor, and the outputs stand for it."""
    model, inputs = network("mlp")
    model, inputs = model.float(), inputs.float()
    score = SLU(model, likelihood, rank=4, sketch="identity").fit(inputs)
    last = [each for each in model.modules() if isinstance(each, torch.nn.Linear)][-1]
    score.check_weights = False
    with torch.no_grad():
        last.weight *= 1e4
    score.check_weights = False
    model.eval()
    with torch.no_grad():
        lost = row_vectors(score.settings.likelihood, model(inputs), FISHER)[1][:, 0] == 0
    assert bool(lost.any())
    for outputs in (1, 2, "all", Probes(3)):
        far = score(inputs, reading="fisher-relative", outputs=outputs)
        torch.testing.assert_close(score.read_all(inputs, outputs=outputs)["fisher-relative"], far)
        share = score(inputs, reading="relative", outputs=outputs)
        assert bool((score(inputs, reading="fisher", outputs=outputs)[lost] == 0).all())
        assert bool((far > 0).all())
        if outputs != 2:  # of two directions the first alone may have an eigenvalue in float64
            torch.testing.assert_close(far[lost], share[lost])


def test_the_hessian_has_no_ridge_by_default():
    model, _ = network("mlp")
    assert method(model, curvature="hessian", scale="auto").settings.ridge == 0.0
    assert method(model, curvature="hessian", scale="auto", ridge=0.05).settings.ridge == 0.05
