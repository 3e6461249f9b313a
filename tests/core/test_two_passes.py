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
    with pytest.raises(ChangedDataError, match=r"had 12 points in the first pass, here they have 8.*scale='factored'"):
        method(model).fit(Shrinking(inputs.split(4), (3, 2)))


def test_a_loader_that_is_used_up_says_what_to_do():
    model, inputs = network("mlp")
    with pytest.raises(DataError, match=r"gave no batch.*for the scale.*scale='factored'"):
        method(model).fit(Shrinking(inputs.split(4), (3, 0)))
    for scale in ("factored", None):
        assert method(model, scale=scale).fit(Shrinking(inputs.split(4), (3,))).diagnostics.points == 12


class Changing:
    """A loader whose points are others in every pass: by so much, and the last or all of them."""

    def __init__(self, inputs, by, first=0):
        self.inputs, self.by, self.first, self.passes = inputs, by, first, 0

    def __iter__(self):
        changed = self.inputs.clone()
        changed[self.first :] += self.passes * self.by
        self.passes += 1
        return iter(changed.split(50))


@pytest.mark.parametrize("calibration", [None, False])
@pytest.mark.parametrize("solver", ["stream", "lanczos"])
@pytest.mark.parametrize(("by", "first"), [(1e-3, 0), (100.0, 0), (1e-3, -1)])
def test_other_points_in_the_second_pass_are_refused(by, first, solver, calibration):
    """All of them or one, an augmentation or other data: the scale would be of others than the directions."""
    model, _ = network("mlp")
    inputs = torch.from_numpy(np.random.default_rng(0).normal(size=(400, 4)))
    with pytest.raises(ChangedDataError, match=r"400 points of the data differ in content.*scale='factored'"):
        method(model, solver=solver).fit(Changing(inputs, by, first), calibration=calibration)
    assert method(model, scale="factored").fit(Changing(inputs, by, first)).diagnostics.passes == 1


def test_another_order_and_other_batches_in_the_second_pass_are_no_matter():
    model, _ = network("mlp")
    inputs = torch.from_numpy(np.random.default_rng(0).normal(size=(400, 4)))
    passes = [inputs.split(50), inputs.flip(0).split(80)]

    class Shuffled:
        def __iter__(self):
            return iter(passes.pop(0))

    score = method(model).fit(Shuffled())
    assert score.diagnostics.points + score.calibration.points == 400 and not passes


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


class Shuffled:
    """Another order in every pass."""

    def __init__(self, inputs, targets):
        self._data, self._draws = (inputs, targets), torch.Generator().manual_seed(0)

    def __iter__(self):
        order = torch.randperm(len(self._data[0]), generator=self._draws)
        return zip(*(each[order].split(50) for each in self._data), strict=True)


@pytest.mark.parametrize(
    "settings",
    [
        {"curvature": "hessian", "solver": "lanczos", "scale": None},
        {"curvature": "empirical-fisher", "solver": "lanczos", "scale": None},
        {"curvature": "empirical-fisher", "scale": "diagonal"},
    ],
)
def test_repeated_inputs_with_other_targets_are_held_out_in_any_order(settings):
    """Which copies are held out does not depend on the order where their targets matter."""
    model, _ = network("mlp")
    random = np.random.default_rng(0)
    inputs, targets = torch.from_numpy(random.normal(size=(100, 4))), torch.from_numpy(random.integers(3, size=800))
    inputs = inputs.repeat(8, 1)
    plain = method(model, **settings).fit((inputs, targets))
    score = method(model, **settings).fit(Shuffled(inputs, targets))
    assert score.calibration.points == plain.calibration.points
    torch.testing.assert_close(score(inputs[:100]), plain(inputs[:100]), rtol=1e-6, atol=0)


def test_the_hessian_has_no_ridge_by_default():
    model, _ = network("mlp")
    assert method(model, curvature="hessian", scale="auto").settings.ridge == 0.0
    assert method(model, curvature="hessian", scale="auto", ridge=0.05).settings.ridge == 0.05
