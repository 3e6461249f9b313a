"""One suite for every public method: how it is made, fitted, asked, saved and loaded.

A new method is a row in METHODS.
"""

from __future__ import annotations

import inspect

import pytest
import torch

import slu
from oracles import network, targets_for
from slu.artifacts.contents import contents
from slu.core.protocols import Method, Score
from slu.errors import DataError, MismatchError, SettingError, StorageError
from stored import scores_again
from untouched import assert_same, snapshot

OUTPUTS_ONLY = ("MaxLogit", "MaxProbability", "Entropy", "Energy")


def of(name, **settings):
    """Makes a method on the first of two models, with its own settings and more."""
    return lambda model, _, likelihood="classification", **more: getattr(slu, name)(
        model, likelihood, **settings, **more
    )


def class_of(name):
    """A method in the table, by its class and perhaps a way to fit it."""
    return name.split()[0]


def ensemble(model, other, likelihood="classification", **more):
    return slu.DeepEnsemble([model, other], likelihood, **more)


# Each method, small enough for the tiny networks.
METHODS = {
    "SLU": of("SLU", rank=4),
    "SLU by Lanczos": of("SLU", rank=4, solver="lanczos"),
    "LocalEnsemble": of("LocalEnsemble", rank=4),
    "LowRankLaplace": of("LowRankLaplace", rank=4),
    "DiagonalLaplace": of("DiagonalLaplace"),
    "SCOD": of("SCOD", rank=2),
    "SWAG": of("SWAG", rank=3, samples=5),
    "DeepEnsemble": ensemble,
} | {name: lambda model, _, name=name, **more: getattr(slu, name)(model, **more) for name in OUTPUTS_ONLY}

KINDS = ("mlp", "conv", "encoder")
each_method = pytest.mark.parametrize("name", METHODS)


def problem(kind: str = "conv", likelihood: str = "classification"):
    model, inputs = network(kind)
    other, _ = network(kind, seed=1)
    return model, other, inputs, targets_for(likelihood)


def loader(inputs, targets, size: int):
    return list(zip(inputs.split(size), targets.split(size), strict=True))


@pytest.fixture
def fitted(name):
    model, other, inputs, targets = problem()
    method = METHODS[name](model, other)
    return method, method.fit(loader(inputs, targets, 4)), model, inputs


def test_every_public_method_is_here():
    """Control: a method that is exported but not tested would pass unnoticed."""
    classes = {name for name in slu.__all__ if inspect.isclass(getattr(slu, name))} - {"Method"}
    assert {name for name in classes if hasattr(getattr(slu, name), "fit")} == set(map(class_of, METHODS))


@each_method
def test_face(name, fitted):
    method, score, _, inputs = fitted
    assert isinstance(method, Method) and isinstance(score, Score)
    assert score.readings
    assert len(set(score.readings)) == len(score.readings)
    assert torch.equal(score(inputs), score(inputs, reading=score.readings[0]))


CASES = [(name, kind, "classification") for name in METHODS for kind in KINDS]
CASES += [
    (name, "mlp", other) for name in METHODS if name not in OUTPUTS_ONLY for other in ("regression", "multilabel")
]


@pytest.mark.parametrize(("name", "kind", "likelihood"), CASES)
def test_a_score_a_point_finite_in_order_and_of_its_own(name, kind, likelihood):
    model, other, inputs, targets = problem(kind, likelihood)
    more = {} if name in OUTPUTS_ONLY else {"likelihood": likelihood}
    score = METHODS[name](model, other, **more).fit(loader(inputs, targets, 5))
    for reading in score.readings:
        whole = score(inputs, reading=reading)
        assert whole.shape == (12,) and whole.dtype == torch.float64
        assert bool(torch.isfinite(whole).all()) and not whole.requires_grad
        assert len(whole.unique()) == 12, "every point the same: such a test of the order could not fail"
        # Batch, loader of any split, order and company: a point's score is its own.
        for size in (1, 5, 12):
            torch.testing.assert_close(score(loader(inputs, targets, size), reading=reading), whole, rtol=1e-9, atol=0)
        torch.testing.assert_close(score(inputs.flip(0), reading=reading), whole.flip(0), rtol=1e-9, atol=0)
        torch.testing.assert_close(score((inputs, targets), reading=reading), whole, rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"SWAG"}))  # SGD takes a step a batch
def test_fit_does_not_depend_on_the_batches(name):
    model, other, inputs, targets = problem()
    first, second = (METHODS[name](model, other).fit(loader(inputs, targets, size)) for size in (12, 5))
    for reading in first.readings:
        torch.testing.assert_close(first(inputs, reading=reading), second(inputs, reading=reading), rtol=1e-7, atol=0)


@each_method
def test_one_seed_the_same_numbers(name):
    model, other, inputs, targets = problem()
    scores = [METHODS[name](model, other).fit(loader(inputs, targets, 4))(inputs) for _ in range(2)]
    assert torch.equal(*scores)


@each_method
def test_the_model_is_untouched(name):
    model, other, inputs, targets = problem()
    next(model.parameters()).grad = torch.ones_like(next(model.parameters()))
    before = [snapshot(each) for each in (model, other)]
    score = METHODS[name](model, other).fit(loader(inputs, targets, 4))
    for reading in score.readings:
        score(inputs, reading=reading)
    for was, each in zip(before, (model, other), strict=True):
        assert_same(was, snapshot(each))


class Interrupted(BaseException):
    """As Ctrl-C: not an Exception."""


@each_method
def test_the_model_is_untouched_after_an_interruption(name):
    model, other, inputs, targets = problem()
    before = snapshot(model)

    class Failing:
        def __iter__(self):
            yield inputs[:4], targets[:4]
            raise Interrupted

    method = METHODS[name](model, other)
    try:
        score = method.fit(Failing())
    except Interrupted:
        assert_same(before, snapshot(model))
        score = method.fit(loader(inputs, targets, 4))
    with pytest.raises(Interrupted):
        score(Failing())
    assert_same(before, snapshot(model))


def test_saved_scores_say_the_same_in_a_fresh_process(tmp_path):
    expected = {}
    for name, make in METHODS.items():
        for kind in ("mlp", "conv"):
            model, other, inputs, targets = problem(kind)
            score = make(model, other).fit(loader(inputs, targets, 4))
            key = f"{class_of(name)}-{kind}-float64-{name}"
            score.save(tmp_path / f"{key}.slu")
            expected[key] = {reading: score(inputs, reading=reading).tolist() for reading in score.readings}
    assert scores_again(tmp_path) == expected


@each_method
def test_a_file_is_told_and_tied_to_its_weights(name, fitted, tmp_path):
    method, score, model, inputs = fitted
    path = tmp_path / "net.slu"
    score.save(path)
    assert contents(path)["method"] == class_of(name)
    again = type(method).load(path, model)
    for reading in score.readings:
        assert torch.equal(again(inputs, reading=reading), score(inputs, reading=reading))
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1e-6
    with pytest.raises(MismatchError, match="another network"):
        type(method).load(path, model)
    elsewhere = slu.SLU if class_of(name) != "SLU" else slu.LocalEnsemble
    with pytest.raises(StorageError, match=class_of(name)):
        elsewhere.load(path, model)


@each_method
def test_memory_is_declared(name, fitted):
    cost = fitted[0].cost(outputs=3, batch=2)
    assert cost.artefact >= 0 and cost.fitting >= cost.artefact and cost.querying >= cost.artefact
    assert (cost.artefact == 0) == (name in OUTPUTS_ONLY)
    shown, told = fitted[0].cost(batch=fitted[3]), fitted[0].cost(outputs=3, batch=len(fitted[3]))
    assert (shown.artefact, shown.passes) == (told.artefact, told.passes)
    assert shown.querying >= told.querying  # of a batch that is shown gradients in activations are counted as well


@each_method
def test_an_unknown_reading_names_those_there_are(name, fitted):
    _, score, _, inputs = fitted
    with pytest.raises(SettingError, match=score.readings[0]):
        score(inputs, reading="tea leaves")


@each_method
def test_bad_data_are_named(name, fitted):
    method, score, _, inputs = fitted
    broken = inputs.clone()
    broken[5].view(-1)[0] = torch.nan
    with pytest.raises(DataError, match="batch 1"):
        score([inputs[:4], broken[4:8]])
    if name not in (*OUTPUTS_ONLY, "DeepEnsemble"):
        targets = targets_for("classification")
        with pytest.raises(DataError, match="batch 1"):
            method.fit(loader(broken, targets, 4))


@each_method
def test_own_forward_is_used_and_needed_to_load(name, tmp_path):
    model, other, inputs, targets = problem("mlp")

    def doubled(model, inputs):
        return 2 * model(inputs["values"])

    data = [({"values": inputs}, targets)]
    score = METHODS[name](model, other, forward=doubled).fit(data)
    plain = METHODS[name](model, other).fit([(inputs, targets)])
    assert not torch.allclose(score(data), plain(inputs))
    score.save(tmp_path / "net.slu")
    method = getattr(slu, class_of(name))
    with pytest.raises(MismatchError, match="forward"):
        method.load(tmp_path / "net.slu", model)
    assert torch.equal(method.load(tmp_path / "net.slu", model, forward=doubled)(data), score(data))
