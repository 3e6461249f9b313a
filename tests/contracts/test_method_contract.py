"""One suite for every method of the registry: how it is made, fitted, queried, saved and loaded.

Methods run as a user gets them. SLU has nothing but its defaults: scale, ridge, and enough points to be calibrated on
those it holds out, so that its default reading is the combined one. The others are small enough for the tiny networks.
A new method is a row in SMALL. The last tests are controls: methods with a fault that each check must find.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from inspect import signature

import pytest
import torch
from torch import Tensor, nn

import slu
from oracles import network, targets_for
from slu.budgets import Cost
from slu.cli.contents import contents
from slu.comparing.registry import CLASS_LOGITS, MEMBERS, METHODS
from slu.core.protocols import Method, Score
from slu.errors import DataError, MismatchError, NotFiniteWarning, SettingError, StorageError
from stored import scores_again
from untouched import assert_same, snapshot

# Settings beside those of the registry.
SMALL = {
    "SLU": {},
    "SLU lanczos": {"rank": 4},
    "LocalEnsemble": {"rank": 4},
    "LocalEnsemble hessian": {"rank": 4},
    "LowRankLaplace": {"rank": 4},
    "DiagonalLaplace": {},
    "SCOD": {"rank": 2},
    "SWAG": {"rank": 3, "samples": 5},
    "DeepEnsemble": {},
    "Mahalanobis": {},
    "RelativeMahalanobis": {},
    "KNN": {},
    "ViM": {},
    "GradNorm": {},
    "MaxLogit": {},
    "MaxProbability": {},
    "Entropy": {},
    "Energy": {},
}
CLASSES_ONLY = [name for name, entry in METHODS.items() if entry.needs == CLASS_LOGITS]
KEEPS_NOTHING = ["GradNorm", "MaxLogit", "MaxProbability", "Entropy", "Energy"]
NO_DATA = [*KEEPS_NOTHING, "DeepEnsemble"]
TRAIN, BATCH = 240, 48  # from 200 points on SLU holds some out and is calibrated
KINDS = ("mlp", "conv", "encoder")
each_method = pytest.mark.parametrize("name", METHODS)


@dataclass(frozen=True)
class Problem:
    """Two networks of one kind, 240 points to fit on, and 12 to ask about."""

    model: nn.Module
    other: nn.Module
    train: Tensor
    targets: Tensor
    inputs: Tensor
    likelihood: str

    def loader(self, size: int = BATCH) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.train.split(size), self.targets.split(size), strict=True))

    def method(self, name: str, **more):
        """A method of the registry on this problem."""
        entry, settings = METHODS[name], SMALL[name]
        if "likelihood" not in signature(entry.kind).parameters:
            return entry.kind(self.model, **more)
        model = [self.model, self.other] if entry.needs == MEMBERS else self.model
        return entry.kind(model, self.likelihood, **entry.settings, **settings, **more)

    def cast(self, dtype: torch.dtype) -> Problem:
        models = (copy.deepcopy(each).to(dtype) for each in (self.model, self.other))
        return Problem(*models, self.train.to(dtype), self.targets, self.inputs.to(dtype), self.likelihood)


def problem(kind: str = "conv", likelihood: str = "classification") -> Problem:
    model, inputs = network(kind)
    other, _ = network(kind, seed=1)
    train = torch.randn(TRAIN, *inputs.shape[1:], generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return Problem(model, other, train, targets_for(likelihood, TRAIN), inputs, likelihood)


@cache
def fitted(name: str, kind: str = "conv", likelihood: str = "classification"):
    """A problem, a method and its score; one fit for all tests that change none of them."""
    given = problem(kind, likelihood)
    method = given.method(name)
    return given, method, method.fit(given.loader())


def assert_close(values: Tensor, expected: Tensor, reading: str, tolerance: float) -> None:
    """Relatively; the combined reading is a logarithm, with an absolute error instead."""
    torch.testing.assert_close(values, expected, rtol=tolerance, atol=tolerance if reading == "combined" else 0)


def check_scores(score, given: Problem) -> None:
    """One finite score per point, whatever the batches, the order and the other points of its batch."""
    inputs, targets = given.inputs, targets_for(given.likelihood)
    for reading in score.readings:
        whole = score(inputs, reading=reading)
        assert whole.shape == (12,) and whole.dtype == torch.float64
        assert bool(torch.isfinite(whole).all()) and not whole.requires_grad
        assert len(whole.unique()) == 12, "every point the same: such a test of the order could not fail"
        for size in (1, 5, 12):
            pairs = list(zip(inputs.split(size), targets.split(size), strict=True))
            assert_close(score(pairs, reading=reading), whole, reading, 1e-9)
        assert_close(score(inputs.flip(0), reading=reading), whole.flip(0), reading, 1e-9)
        assert_close(score((inputs, targets), reading=reading), whole, reading, 1e-9)


def check_surface(method, score, inputs: Tensor) -> None:
    assert isinstance(method, Method) and isinstance(score, Score)
    assert score.readings
    assert len(set(score.readings)) == len(score.readings)
    assert torch.equal(score(inputs), score(inputs, reading=score.readings[0]))
    with pytest.raises(SettingError, match=score.readings[0]):
        score(inputs, reading="tea leaves")


def check_untouched(method, given: Problem) -> None:
    """A fit and a query leave the models and torch as they were."""
    next(given.model.parameters()).grad = torch.ones_like(next(given.model.parameters()))
    before = [snapshot(each) for each in (given.model, given.other)]
    score = method.fit(given.loader())
    for reading in score.readings:
        score(given.inputs, reading=reading)
    for was, each in zip(before, (given.model, given.other), strict=True):
        assert_same(was, snapshot(each))


def check_memory(method, inputs: Tensor, *, keeps: bool) -> None:
    cost = method.cost(outputs=3, batch=2)
    assert cost.artefact >= 0 and cost.fitting >= cost.artefact and cost.querying >= cost.artefact
    assert (cost.artefact > 0) == keeps
    shown, told = method.cost(batch=inputs), method.cost(outputs=3, batch=len(inputs))
    assert (shown.artefact, shown.passes) == (told.artefact, told.passes)
    assert shown.querying >= told.querying  # of a batch that is shown, gradients in activations are counted as well


def test_every_method_of_the_registry_is_here():
    assert list(SMALL) == list(METHODS)


@each_method
def test_surface(name):
    given, method, score = fitted(name)
    assert isinstance(method, METHODS[name].kind)
    check_surface(method, score, given.inputs)


@pytest.mark.parametrize("kind", KINDS)
def test_slu_is_what_a_user_gets(kind):
    """Control: without hold-out, scale or ridge the rest of this file would test another method."""
    _, method, score = fitted("SLU", kind)
    assert SMALL["SLU"] == {} and METHODS["SLU"].settings == {}
    assert score.calibration is not None and score.readings[0] == "combined"
    assert score.scale is not None and method.settings.ridge > 0
    paper = fitted("SLU lanczos", kind)
    assert paper[2].scale is None and paper[1].settings.ridge == 0
    assert METHODS["SLU lanczos"].reading in paper[2].readings


CASES = [(name, kind, "classification") for name in METHODS for kind in KINDS]
CASES += [
    (name, "mlp", other) for name in METHODS if name not in CLASSES_ONLY for other in ("regression", "multilabel")
]


@pytest.mark.parametrize(("name", "kind", "likelihood"), CASES)
def test_one_score_per_point_finite_in_order_and_of_its_own(name, kind, likelihood):
    given, _, score = fitted(name, kind, likelihood)
    check_scores(score, given)


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"SWAG"}))  # SGD takes one step per batch
def test_fit_does_not_depend_on_the_batches(name):
    given, method, first = fitted(name)
    second = method.fit(given.loader(100))
    for reading in first.readings:
        values, expected = (score(given.inputs, reading=reading) for score in (second, first))
        assert_close(values, expected, reading, 1e-7)


@each_method
def test_one_seed_gives_the_same_numbers(name):
    given, _, first = fitted(name)
    torch.manual_seed(1)  # the seed of the process does not count
    again = given.method(name).fit(given.loader())
    assert torch.equal(again(given.inputs), first(given.inputs))


@each_method
def test_the_model_is_untouched(name):
    given = problem()
    check_untouched(given.method(name), given)


class Interrupted(BaseException):
    """As Ctrl-C: not an Exception."""


@each_method
def test_the_model_is_untouched_after_an_interruption(name):
    given = problem()
    before = snapshot(given.model)

    class Failing:
        def __iter__(self):
            yield given.loader()[0]
            raise Interrupted

    method = given.method(name)
    try:
        score = method.fit(Failing())
    except Interrupted:
        assert_same(before, snapshot(given.model))
        score = method.fit(given.loader())
    with pytest.raises(Interrupted):
        score(Failing())
    assert_same(before, snapshot(given.model))


def test_saved_scores_say_the_same_in_a_fresh_process(tmp_path):
    expected = {}
    for name, entry in METHODS.items():
        for kind in ("mlp", "conv"):
            given, _, score = fitted(name, kind)
            key = f"{entry.kind.__name__}-{kind}-float64-{name}"
            score.save(tmp_path / f"{key}.slu")
            expected[key] = {reading: score(given.inputs, reading=reading).tolist() for reading in score.readings}
    assert scores_again(tmp_path) == expected


@each_method
def test_a_file_names_its_method_and_is_tied_to_its_weights(name, tmp_path):
    given, _, score = fitted(name)
    path, kind = tmp_path / "net.slu", METHODS[name].kind
    score.save(path)
    assert contents(path)["method"] == kind.__name__
    again = kind.load(path, copy.deepcopy(given.model))
    assert type(again) is type(score)
    for reading in score.readings:
        assert torch.equal(again(given.inputs, reading=reading), score(given.inputs, reading=reading))
    changed = copy.deepcopy(given.model)
    with torch.no_grad():
        next(changed.parameters()).view(-1)[0] += 1e-6
    with pytest.raises(MismatchError, match="another network"):
        kind.load(path, changed)
    elsewhere = slu.SLU if kind is not slu.SLU else slu.LocalEnsemble
    with pytest.raises(StorageError, match=kind.__name__):
        elsewhere.load(path, given.model)


@each_method
def test_memory_is_declared(name):
    given, method, _ = fitted(name)
    check_memory(method, given.inputs, keeps=name not in KEEPS_NOTHING)


@each_method
def test_bad_data_are_named(name):
    given, method, score = fitted(name)
    broken, replaced = given.inputs.clone(), given.inputs.clone()
    broken[5].view(-1)[0] = torch.nan
    replaced[5] = given.inputs[4]
    with pytest.warns(NotFiniteWarning, match="1 of 8 points .* batch 1 .* place 1"):
        actual = score([given.inputs[:4], broken[4:8]])
    others = [0, 1, 2, 3, 4, 6, 7]
    assert actual[5] == torch.inf
    assert torch.equal(actual[others], score([given.inputs[:4], replaced[4:8]])[others])
    if name not in NO_DATA:
        loader = given.loader()
        loader[1] = (loader[1][0] * torch.nan, loader[1][1])
        with pytest.raises(DataError, match="batch 1"):
            method.fit(loader)


@each_method
def test_own_forward_is_used_and_needed_to_load(name, tmp_path):
    given, _, plain = fitted(name, "mlp")

    def doubled(model, inputs):
        return 2 * model(2 * inputs["values"])  # of inputs as well, for scores of features

    score = given.method(name, forward=doubled).fit([({"values": given.train}, given.targets)])
    queries = {"values": given.inputs}
    assert not torch.allclose(score(queries), plain(given.inputs))
    score.save(tmp_path / "net.slu")
    kind = METHODS[name].kind
    with pytest.raises(MismatchError, match="forward"):
        kind.load(tmp_path / "net.slu", given.model)
    assert torch.equal(kind.load(tmp_path / "net.slu", given.model, forward=doubled)(queries), score(queries))


class Faulty:
    """A method and its score in one, right but for one fault."""

    def __init__(self, model: nn.Module, fault: str | None) -> None:
        self.model, self.fault, self.calls = model, fault, 0
        self.readings = ("norm", "norm") if fault == "reading twice" else ("norm",)

    def fit(self, loader, *, progress=None):
        if self.fault == "eval mode":
            self.model.eval()
        if self.fault == "weights":
            next(self.model.parameters()).data.mul_(1 + 1e-12)
        if self.fault == "random state":
            torch.rand(1)
        return self

    def cost(self, outputs=None, batch=1):
        return Cost(artefact=8, fitting=4 if self.fault == "peak below what is kept" else 8, querying=8, passes=1)

    def save(self, path): ...

    def __call__(self, data, *, reading="norm", progress=None):
        if reading not in self.readings and self.fault != "any reading":
            raise SettingError("unknown reading; valid are norm")
        batches = data if isinstance(data, list) else [data]
        batches = [each[0] if isinstance(each, tuple) else each for each in batches]
        self.calls += 1
        faults = {
            "batch mean": lambda norms: norms - norms.mean(),
            "sorted": lambda norms: norms.sort().values,
            "constant": torch.ones_like,
            "not finite": lambda norms: norms.where(norms < 3, torch.inf),
            "drift": lambda norms: norms + self.calls,
        }
        change = faults.get(self.fault or "", lambda norms: norms)
        return torch.cat([change(each.flatten(1).norm(dim=1)) for each in batches])


CHECKS = {
    "scores": (lambda method, given: check_scores(method, given), ["batch mean", "sorted", "constant", "not finite"]),
    "surface": (
        lambda method, given: check_surface(method, method, given.inputs),
        ["drift", "reading twice", "any reading"],
    ),
    "untouched": (check_untouched, ["eval mode", "weights", "random state"]),
    "memory": (
        lambda method, given: check_memory(method, given.inputs, keeps=True),
        ["peak below what is kept"],
    ),
}


@pytest.mark.parametrize("check", CHECKS)
def test_a_right_method_passes_each_check(check):
    given = problem()
    CHECKS[check][0](Faulty(given.model, None), given)


@pytest.mark.parametrize(("check", "fault"), [(check, fault) for check in CHECKS for fault in CHECKS[check][1]])
def test_each_check_finds_its_faults(check, fault):
    given = problem()
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        CHECKS[check][0](Faulty(given.model, fault), given)
