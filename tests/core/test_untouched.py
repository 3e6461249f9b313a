"""The user's model is as before: after a fit, after a score, and after an exception in the middle of either."""

import pytest
import torch
from torch import nn

from oracles import network
from slu import SLU
from slu.errors import DataError
from untouched import assert_same, snapshot

each_solver = pytest.mark.parametrize("solver", ["stream", "lanczos"])


@pytest.fixture(params=["encoder", "conv"])
def trained(request):
    """A transformer with dropout and a BatchNorm network, in training mode, one part of it in eval mode."""
    model, inputs = network(request.param)
    list(model.modules())[-1].eval()
    next(model.parameters()).grad = torch.ones_like(next(model.parameters()))
    return model, inputs


@each_solver
def test_fit_and_score_leave_no_trace(trained, solver):
    model, inputs = trained
    before = snapshot(model)
    score = SLU(model, "classification", rank=4, solver=solver).fit(inputs)
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


@each_solver
def test_score_is_that_of_eval_mode(trained, solver):
    model, inputs = trained
    training = SLU(model, "classification", rank=4, solver=solver).fit(inputs)(inputs)
    model.eval()
    evaluated = SLU(model, "classification", rank=4, solver=solver).fit(inputs)(inputs)
    torch.testing.assert_close(evaluated, training, rtol=0, atol=0)


class Failing:
    """A loader that fails in the middle of one pass, the first or a later one."""

    def __init__(self, inputs, how, fails):
        self.inputs, self.how, self.fails, self.passes = inputs, how, fails, 0

    def __iter__(self):
        self.passes += 1
        yield self.inputs
        if self.passes == self.fails:
            yield self.how(self.inputs)
        else:
            yield self.inputs


def _disk(_inputs):
    raise OSError("the disk is gone")


@pytest.mark.parametrize(("solver", "fails"), [("stream", 1), ("lanczos", 1), ("lanczos", 2)])
@pytest.mark.parametrize(
    ("how", "error"), [(_disk, DataError), (lambda inputs: inputs[:0], DataError)], ids=["loader", "empty"]
)
def test_exception_in_the_middle_leaves_no_trace(trained, how, error, solver, fails):
    model, inputs = trained
    before = snapshot(model)
    with pytest.raises(error):
        SLU(model, "classification", rank=4, solver=solver).fit(Failing(inputs, how, fails))
    assert_same(before, snapshot(model))
    score = SLU(model, "classification", rank=4, solver=solver).fit(inputs)  # and it works afterwards
    with pytest.raises(error):
        score(Failing(inputs, how, 1))
    assert_same(before, snapshot(model))
    assert bool(torch.isfinite(score(inputs)).all())


@each_solver
def test_gradients_of_the_model_still_flow_after_a_fit(trained, solver):
    model, inputs = trained
    SLU(model, "classification", rank=4, solver=solver).fit(inputs)
    model.zero_grad()
    nn.functional.cross_entropy(model(inputs), torch.zeros(12, dtype=torch.long)).backward()
    assert all(value.grad is not None for value in model.parameters())
