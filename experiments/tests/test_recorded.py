"""Fits of recorded Lanczos vectors are the fits themselves, whatever was recorded before."""

import time

import pytest
import torch
from torch import nn

import slu
from slu.artifacts import write
from slu.curvature import Curvature
from slu.errors import DataError, MismatchError, SettingError
from slu_experiments.recorded import fit_recorded, recordable

WAYS = {
    "short": {"rank": 6, "sketch_size": 40},
    "longer, another sketch": {"rank": 11, "sketch_size": 60, "sketch": "srft", "estimator": "difference"},
    "as run": {"rank": 9, "sketch_size": 50, "solver": slu.Lanczos(keep=0.9)},
}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 3))


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(60, 5, generator=generator), torch.randint(3, (60,), generator=generator)
    return list(zip(inputs.split(17), targets.split(17), strict=True))


def method(model, likelihood="classification", **settings):
    return slu.SLU(model, likelihood, scale=None, ridge=0.0, seed=4, **{"solver": "lanczos", **settings})


@pytest.fixture
def products(monkeypatch):
    """Counts the products with the curvature; the one of number `fails` raises."""
    counted = {"count": 0, "fails": 0}
    product = Curvature.__matmul__

    def counting(self, vector):
        counted["count"] += 1
        if counted["count"] == counted["fails"]:
            raise KeyboardInterrupt
        return product(self, vector)

    monkeypatch.setattr(Curvature, "__matmul__", counting)
    return counted


@pytest.mark.parametrize("likelihood", ["classification", "multilabel"])
def test_scores_are_those_of_a_fit_and_products_are_taken_once(model, data, tmp_path, products, likelihood):
    queries = torch.randn(20, 5, generator=torch.Generator().manual_seed(2))
    if likelihood == "multilabel":
        data = [(inputs, nn.functional.one_hot(targets, 3).float()) for inputs, targets in data]
    for settings in WAYS.values():
        own = method(model, likelihood, **settings)
        before = products["count"]
        recorded = fit_recorded(own, data, tmp_path, progress=False)
        taken = products["count"] - before
        fitted = own.fit(data, calibration=False)
        for reading in ("variance", "fisher"):
            assert torch.equal(recorded(queries, reading=reading), fitted(queries, reading=reading))
        assert recorded.diagnostics.points == 60 and recorded.diagnostics.passes == own.rank
        assert (
            taken
            == {"short": 6, "longer, another sketch": 5, "as run": 0}[
                next(name for name, each in WAYS.items() if each is settings)
            ]
        )


def test_another_start_gives_other_scores(model, data, tmp_path):
    queries = torch.randn(20, 5, generator=torch.Generator().manual_seed(2))
    one = fit_recorded(method(model, **WAYS["short"]), data, tmp_path, progress=False)
    other = slu.SLU(model, "classification", scale=None, ridge=0.0, solver="lanczos", seed=5, **WAYS["short"])
    assert not torch.allclose(one(queries), other.fit(data, calibration=False)(queries))


def test_what_was_interrupted_goes_on(model, data, tmp_path, products):
    queries = torch.randn(20, 5, generator=torch.Generator().manual_seed(2))
    own = method(model, **WAYS["longer, another sketch"])
    products["fails"] = 5
    with pytest.raises(KeyboardInterrupt):
        fit_recorded(own, data, tmp_path, progress=False)
    products["count"] = products["fails"] = 0
    recorded = fit_recorded(own, data, tmp_path, progress=False)
    assert products["count"] == 11 - 4
    assert torch.equal(recorded(queries), own.fit(data, calibration=False)(queries))
    assert [path.suffix for path in (tmp_path / "ggn-low-memory").iterdir()] == [".safetensors"] * 2


def test_a_space_that_is_exhausted_stays_so(model, tmp_path, products):
    data = [(torch.ones(4, 5), torch.zeros(4, dtype=torch.long))]  # one input, three outputs: rank 2
    own = method(model, rank=8, sketch_size=40)
    first = fit_recorded(own, data, tmp_path, progress=False)
    taken = products["count"]
    again = fit_recorded(own, data, tmp_path, progress=False)
    assert products["count"] == taken < 8
    queries = torch.randn(5, 5)
    assert torch.equal(first(queries), again(queries))


def test_a_rank_that_the_data_do_not_allow_is_refused_after_one_product(model, tmp_path, products):
    data = [(torch.randn(2, 5), torch.tensor([0, 1]))]
    for own in (method(model, rank=8, sketch_size=40), slu.LocalEnsemble(model, "classification", rank=8, seed=4)):
        before = products["count"]
        with pytest.raises(SettingError, match="rank 8 is above"):
            fit_recorded(own, data, tmp_path, progress=False)
        assert products["count"] == before + 1


def test_vectors_of_other_parameters_and_of_other_points_are_refused(model, data, tmp_path):
    fit_recorded(slu.LocalEnsemble(model, "classification", rank=2, params=["0.weight"]), data, tmp_path)
    with pytest.raises(MismatchError, match="of other parameters"):
        fit_recorded(slu.LocalEnsemble(model, "classification", rank=2, params=["2.weight"]), data, tmp_path)
    others = [(inputs + 1, targets) for inputs, targets in data]
    for changed in (data[:1], others):
        with pytest.raises(DataError, match="must see the same points"):
            fit_recorded(slu.LocalEnsemble(model, "classification", rank=5, params=["0.weight"]), changed, tmp_path)


@pytest.mark.parametrize("call", [4, 5, 6, 7, 8, 9])
def test_an_interrupt_between_two_steps_leaves_whole_ones(model, data, tmp_path, monkeypatch, call):
    """Of the clock's calls some are between a product and the note of it, some beside the writing."""
    queries = torch.randn(20, 5, generator=torch.Generator().manual_seed(2))
    own, calls = slu.LocalEnsemble(model, "classification", rank=9, seed=4), []

    def interrupted():
        calls.append(0)
        if len(calls) == call:
            raise KeyboardInterrupt
        return float(len(calls))

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(time, "monotonic", interrupted)
        fit_recorded(own, data, tmp_path, progress=False)
    assert torch.equal(fit_recorded(own, data, tmp_path, progress=False)(queries), own.fit(data)(queries))


@pytest.mark.parametrize("call", [1, 2, 5])
def test_what_an_interrupt_leaves_to_be_written_again_replaces_it(model, data, tmp_path, monkeypatch, call):
    queries = torch.randn(20, 5, generator=torch.Generator().manual_seed(2))
    own, calls = slu.LocalEnsemble(model, "classification", rank=9, seed=4), []

    def interrupted(*given):
        calls.append(write(*given))
        if len(calls) == call:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("slu_experiments.recorded.EVERY", -1.0)
        patch.setattr("slu_experiments.recorded.write", interrupted)
        fit_recorded(own, data, tmp_path, progress=False)
    assert len(calls) == call + 1
    assert torch.equal(fit_recorded(own, data, tmp_path, progress=False)(queries), own.fit(data)(queries))


def test_a_fit_without_a_product_has_the_time_of_those_that_were_recorded(model, data, tmp_path, monkeypatch):
    product = Curvature.__matmul__
    monkeypatch.setattr(Curvature, "__matmul__", lambda self, vector: (time.sleep(0.02), product(self, vector))[1])
    for own in (slu.LocalEnsemble(model, "classification", rank=4, seed=4), method(model, **WAYS["short"])):
        for _ in range(2):
            assert fit_recorded(own, data, tmp_path, progress=False).diagnostics.seconds > 5 * 0.02


@pytest.mark.parametrize("held", [False, True])
def test_vectors_that_are_written_one_by_one_are_the_same(model, data, tmp_path, monkeypatch, held):
    monkeypatch.setattr("slu_experiments.recorded.EVERY", -1.0)
    queries = torch.randn(20, 5, generator=torch.Generator().manual_seed(2))
    ranks = (4, 9)
    for rank in ranks:
        if held:
            own = slu.LocalEnsemble(model, "classification", rank=rank, seed=4)
            fitted = own.fit(data)
        else:
            own = method(model, rank=rank, sketch_size=40)
            fitted = own.fit(data, calibration=False)
        assert torch.equal(fit_recorded(own, data, tmp_path, progress=False)(queries), fitted(queries))
    folder = next(tmp_path.iterdir())
    assert len(list(folder.iterdir())) == max(ranks) + held  # LE takes one step more than its rank


def test_a_held_space_that_is_exhausted_is_that_of_the_fit(model, tmp_path, products):
    data = [(torch.ones(4, 5), torch.zeros(4, dtype=torch.long))]
    own = slu.LocalEnsemble(model, "classification", rank=2, steps=8, seed=4)
    queries, fitted = torch.randn(5, 5), own.fit(data)
    for due in (fitted.diagnostics.steps, 0):
        before = products["count"]
        recorded = fit_recorded(own, data, tmp_path, progress=False)
        assert products["count"] - before == due < 8
        assert recorded.diagnostics.exhausted and torch.equal(recorded(queries), fitted(queries))


def test_which_methods_can_be_recorded(model):
    assert recordable(method(model, rank=3))
    assert not recordable(method(model, rank=3, solver=slu.Lanczos(precondition=1)))
    assert not recordable(slu.SLU(model, "classification"))
    assert recordable(slu.LocalEnsemble(model, "classification", rank=2))
    assert not recordable(slu.SCOD(model, "classification", rank=2))
    assert not recordable(slu.LocalEnsemble(model, "classification", budget="3p"))  # which the data may lower


def test_local_ensembles_and_laplace_approximations_share_their_vectors(model, data, tmp_path, products):
    queries = torch.randn(20, 5, generator=torch.Generator().manual_seed(2))
    ways = [
        (slu.LocalEnsemble(model, "classification", rank=2, seed=4), 3),
        (slu.LowRankLaplace(model, "classification", rank=2, seed=4), 0),
        (slu.LowRankLaplace(model, "classification", rank=5, steps=9, prior_precision="paper", seed=4), 6),
        (slu.LocalEnsemble(model, "classification", rank=5, steps=7, seed=4), 0),
        (slu.LocalEnsemble(model, "classification", rank=4, curvature="hessian", negative="free", seed=4), 5),
        (method(model, **WAYS["short"]), 6),  # not those that were held
    ]
    for own, due in ways:
        before = products["count"]
        recorded = fit_recorded(own, data, tmp_path, progress=False)
        assert products["count"] - before == due
        fitted = own.fit(data, **({"calibration": False} if isinstance(own, slu.SLU) else {}))
        assert torch.equal(recorded(queries), fitted(queries))
        assert recorded.diagnostics.passes == fitted.diagnostics.passes
        assert recorded.diagnostics.points == 60


def test_held_vectors_that_were_interrupted_go_on(model, data, tmp_path, products):
    queries = torch.randn(20, 5, generator=torch.Generator().manual_seed(2))
    own = slu.LocalEnsemble(model, "classification", rank=12, seed=4)
    products["fails"] = 6
    with pytest.raises(KeyboardInterrupt):
        fit_recorded(own, data, tmp_path, progress=False)
    products["count"] = products["fails"] = 0
    recorded = fit_recorded(own, data, tmp_path, progress=False)
    assert products["count"] == 13 - 5
    assert torch.equal(recorded(queries), own.fit(data)(queries))
