"""The user's model is as before: after a fit, after a score, and after an exception in the middle of either."""

import pytest
import torch
from torch import nn

from oracles import network
from slu import SLU
from slu.errors import DataError
from untouched import assert_same, snapshot


@pytest.fixture(params=["encoder", "conv"])
def trained(request):
    """A transformer with dropout and a BatchNorm network, in training mode, one part of it in eval mode."""
    model, inputs = network(request.param)
    list(model.modules())[-1].eval()
    next(model.parameters()).grad = torch.ones_like(next(model.parameters()))
    return model, inputs


def test_fit_and_score_leave_no_trace(trained):
    model, inputs = trained
    before = snapshot(model)
    score = SLU(model, "classification", rank=4).fit(inputs)
    assert_same(before, snapshot(model))
    score(inputs)
    score([inputs[:3]], reading="fisher", per_output=True)
    assert_same(before, snapshot(model))


def test_snapshot_sees_a_change(trained):
    """Control: one forward pass in training mode moves buffers or the random state."""
    model, inputs = trained
    before = snapshot(model)
    with torch.random.fork_rng():
        model(inputs)
        after = snapshot(model)
    with pytest.raises(AssertionError):
        assert_same(before, after)


def test_score_is_that_of_eval_mode(trained):
    model, inputs = trained
    training = SLU(model, "classification", rank=4).fit(inputs)(inputs)
    model.eval()
    torch.testing.assert_close(SLU(model, "classification", rank=4).fit(inputs)(inputs), training, rtol=0, atol=0)


class Failing:
    """A loader that is fine in its first pass and fails in the middle of the second."""

    def __init__(self, inputs, how):
        self.inputs, self.how, self.passes = inputs, how, 0

    def __iter__(self):
        self.passes += 1
        yield self.inputs
        if self.passes == 2:
            yield self.how(self.inputs)
        else:
            yield self.inputs


def _disk(_inputs):
    raise OSError("the disk is gone")


@pytest.mark.parametrize(
    ("how", "error"), [(_disk, DataError), (lambda inputs: inputs * float("nan"), DataError)], ids=["loader", "NaN"]
)
def test_exception_in_the_middle_leaves_no_trace(trained, how, error):
    model, inputs = trained
    before = snapshot(model)
    with pytest.raises(error):
        SLU(model, "classification", rank=4).fit(Failing(inputs, how))
    assert_same(before, snapshot(model))
    score = SLU(model, "classification", rank=4).fit(inputs)  # and it works afterwards
    failing = Failing(inputs, how)
    failing.passes = 1
    with pytest.raises(error):
        score(failing)
    assert_same(before, snapshot(model))
    assert bool(torch.isfinite(score(inputs)).all())


def test_gradients_of_the_model_still_flow_after_a_fit(trained):
    model, inputs = trained
    SLU(model, "classification", rank=4).fit(inputs)
    model.zero_grad()
    nn.functional.cross_entropy(model(inputs), torch.zeros(12, dtype=torch.long)).backward()
    assert all(value.grad is not None for value in model.parameters())
