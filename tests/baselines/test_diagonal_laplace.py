"""DiagonalLaplace against dense float64 formulas and an independent library; its estimate; its file."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

from oracles import LIKELIHOODS, NETWORKS, dense, ggn, jacobian, network, outer_products, read_as, rows_of, targets_for
from shorthand import relative_error, split
from slu import SLU
from slu.artifacts import read, write
from slu.baselines import diagonal_laplace
from slu.baselines.base import check_prior, resolve_prior
from slu.baselines.diagonal_laplace import DiagonalLaplace
from slu.cli import app
from slu.core.protocols import Method, Score
from slu.core.readout import GRADIENT_READINGS
from slu.errors import (
    BudgetError,
    ChangedDataError,
    DamagedFileError,
    DataError,
    MismatchError,
    NumericalError,
    SettingError,
    StorageError,
)
from slu.likelihoods import Multilabel, Regression
from untouched import assert_same, snapshot


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", NETWORKS)
def test_every_reading_is_the_dense_formula(kind, likelihood):
    alpha = 0.1
    model, inputs, queries, _ = dense(kind)
    true = ggn(model, inputs, likelihood).diagonal()
    score = DiagonalLaplace(model, likelihood, prior_precision=alpha).fit(split(inputs, sizes=[5, 7]))
    torch.testing.assert_close(score.diagonal, true, rtol=1e-11, atol=1e-15)
    assert (score.prior_precision, score.points) == (alpha, 12)
    assert score.readings == tuple(GRADIENT_READINGS)
    for reading in GRADIENT_READINGS:
        rows = rows_of(kind, likelihood, reading)
        each, size = (rows.square() / (true + alpha)).sum(-1), rows.square().sum(-1)
        for per_output in (False, True):
            expected, length = (each, size) if per_output else (each.sum(-1), size.sum(-1))
            expected = read_as(reading, expected, length)
            scores = score(queries, reading=reading, per_output=per_output)
            torch.testing.assert_close(scores, expected, rtol=1e-10, atol=1e-15)


def laplace_torch(model: nn.Module, likelihood: str, data: TensorDataset, name: str, **settings):
    """Theirs, fitted: a sum over data, as ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its imports and hooks use what torch deprecates
        laplace = pytest.importorskip("laplace")
        backend = getattr(pytest.importorskip("laplace.curvature"), name)
        theirs = laplace.DiagLaplace(model, likelihood, prior_precision=0.25, backend=backend, **settings)
        theirs.fit(DataLoader(data, batch_size=5))
    return theirs


# BackPACK's hooks do not stand the in-place ReLU of the convolutional network.
@pytest.mark.parametrize(
    ("kind", "backend"), [("mlp", "BackPackGGN"), ("mlp", "CurvlinopsGGN"), ("conv", "CurvlinopsGGN")]
)
@pytest.mark.parametrize("likelihood", ["classification", "regression"])
def test_it_agrees_with_laplace_torch(kind, likelihood, backend):
    model, inputs, queries, rows = dense(kind)
    targets = targets_for(likelihood)
    noise = 0.5 if likelihood == "regression" else 1.0
    fresh = network(kind)[0].eval()  # a network of its own: it leaves hooks behind
    theirs = laplace_torch(fresh, likelihood, TensorDataset(inputs, targets), backend, sigma_noise=noise)
    ours = DiagonalLaplace(
        model, Regression(noise**2) if likelihood == "regression" else likelihood, prior_precision=0.25
    ).fit((inputs, targets))
    # Their H is that of unit noise; the factor 1/σ² comes in with the posterior.
    torch.testing.assert_close(ours.diagonal, theirs.H / noise**2, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(ours.diagonal + 0.25, theirs.posterior_precision, rtol=1e-10, atol=0)
    variance = theirs.functional_variance(rows).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(ours(queries, per_output=True), variance, rtol=1e-10, atol=0)
    # Control: a mean over data instead of the sum is noticed.
    assert relative_error(ours.diagonal / 12, theirs.H / noise**2) > 0.5


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_the_empirical_fisher_has_the_gradients_at_the_targets(likelihood):
    model, inputs, queries, rows = dense("encoder")
    targets = targets_for(likelihood)
    true = outer_products(model, inputs, targets, likelihood).diagonal()
    method = DiagonalLaplace(model, likelihood, curvature="empirical-fisher", prior_precision=0.1)
    score = method.fit(split(inputs, targets, sizes=[5, 7]))
    torch.testing.assert_close(score(queries), (rows.square() / (true + 0.1)).sum((1, 2)), rtol=1e-9, atol=0)
    with pytest.raises(DataError, match="needs targets"):
        method.fit(inputs)


@pytest.mark.parametrize("settings", [{}, {"curvature": "fisher"}, {"diagonal": "hutchinson", "probes": 3}], ids=str)
def test_any_split_into_batches_gives_the_same(settings):
    model, inputs, queries, _ = dense("conv")
    method = DiagonalLaplace(model, "multilabel", prior_precision=0.1, **settings)
    whole = method.fit(inputs)
    for sizes in ([1] * 12, [5, 7]):
        torch.testing.assert_close(method.fit(split(inputs, sizes=sizes))(queries), whole(queries), rtol=1e-9, atol=0)
    torch.testing.assert_close(whole([inputs[:1], inputs[1:8], inputs[8:]]), whole(inputs), rtol=1e-10, atol=0)


@pytest.mark.parametrize("settings", [{"curvature": "fisher"}, {"diagonal": "hutchinson", "probes": 3}], ids=str)
def test_same_seed_same_scores_and_another_seed_others(settings):
    model, inputs, queries, _ = dense("mlp")
    first, second, other = (
        DiagonalLaplace(model, "classification", seed=seed, **settings).fit(inputs)(queries) for seed in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert not torch.allclose(first, other, rtol=1e-3)


def test_the_estimate_comes_near_with_many_probes():
    """The error of the whole diagonal falls with 1/√probes: from 2 to 128 eightfold, give or take a half."""
    model, inputs, _, _ = dense("mlp")
    true = ggn(model, inputs, "classification").diagonal()
    errors = [
        relative_error(
            DiagonalLaplace(model, "classification", diagonal="hutchinson", probes=probes).fit(inputs).diagonal, true
        )
        for probes in (2, 128)
    ]
    assert 4 < errors[0] / errors[1] < 16


def test_what_becomes_of_negative_entries():
    model, inputs, queries, _ = dense("mlp")
    exact = DiagonalLaplace(model, "classification").fit(inputs)
    clipped, shifted = (
        DiagonalLaplace(model, "classification", diagonal="hutchinson", probes=10, negative=how).fit(inputs)
        for how in ("clip", "shift")
    )
    # The same probes: where clipping left something, shifting added one number to it, that of the worst entry.
    kept = clipped.diagonal > 0
    assert 0 < int((~kept).sum()) < 51
    added = (shifted.diagonal - clipped.diagonal)[kept]
    assert float(added.min()) > 0
    torch.testing.assert_close(added, added[:1].expand_as(added))
    assert float(shifted.diagonal.min()) == 0
    # Which takes it further from the truth, as scores too.
    assert relative_error(clipped.diagonal, exact.diagonal) < relative_error(shifted.diagonal, exact.diagonal)
    assert relative_error(clipped(queries), exact(queries)) < relative_error(shifted(queries), exact(queries))


def test_the_papers_prior_is_that_of_a_mean():
    model, inputs, queries, _ = dense("mlp")
    method = DiagonalLaplace(model, "classification", prior_precision="paper")
    score = method.fit(split(inputs, sizes=[5, 7]))
    assert method.prior_precision == "paper"
    assert score.prior_precision == pytest.approx(1 / (2 * 12 * 0.1**2))
    given = DiagonalLaplace(model, "classification", prior_precision=score.prior_precision).fit(inputs)
    torch.testing.assert_close(score(queries), given(queries), rtol=1e-10, atol=0)


def test_prior_precisions():
    assert check_prior("paper") == "paper"
    assert check_prior(3) == 3.0
    assert resolve_prior(0.5, 7) == 0.5
    assert resolve_prior("paper", 100) == pytest.approx(0.5)
    for value in (0, -1.0, float("nan"), float("inf"), "mean", None, True, [1.0]):
        with pytest.raises(SettingError, match=r"prior_precision must be a finite number above 0, got .*; or 'paper'"):
            check_prior(value)
    for value in (1e308, 1e38, 1e-39):  # scores, which are over it, would vanish or overflow in float32
        with pytest.raises(SettingError, match=r"reciprocal within float32's normal range, got .*; or 'paper'"):
            check_prior(value)


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_limits_of_the_prior(kind):
    model, inputs, queries, rows = dense(kind)
    strong = DiagonalLaplace(model, "classification", prior_precision=1e9).fit(inputs)
    torch.testing.assert_close(1e9 * strong(queries), rows.square().sum((1, 2)), rtol=1e-6, atol=0)
    torch.testing.assert_close(1e9 * strong(queries, reading="relative"), torch.ones(5).double(), rtol=1e-6, atol=0)


def test_pieces_that_are_weighed_in_parts(monkeypatch):
    model, inputs, queries, _ = dense("conv")
    score = DiagonalLaplace(model, "classification").fit(inputs)
    whole = score(queries, per_output=True)
    for numbers in (1, 100):
        monkeypatch.setattr(diagonal_laplace, "_SQUARED", numbers)
        torch.testing.assert_close(score(queries, per_output=True), whole, rtol=1e-12, atol=0)


def test_chosen_parameters_alone():
    model, inputs, queries, _ = dense("mlp")
    names = ["2.weight", "2.bias"]
    true = ggn(model, inputs, "classification", names).diagonal()
    score = DiagonalLaplace(model, "classification", params="2.*").fit(inputs)
    expected = (jacobian(model, queries, names).square() / (true + 1)).sum((1, 2))
    torch.testing.assert_close(score(queries), expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_lower_precision_accumulates_in_single(dtype):
    model, inputs = network("mlp")
    expected = DiagonalLaplace(model, "classification").fit(inputs)(inputs)
    score = DiagonalLaplace(model.to(dtype), "classification").fit(inputs.to(dtype))
    assert score.diagonal.dtype == torch.float32
    scores = score(inputs.to(dtype))
    assert scores.dtype == torch.float32
    assert relative_error(scores, expected) < (1e-5 if dtype == torch.float32 else 0.1)


def test_it_is_a_method_and_its_cost():
    model, inputs, _, _ = dense("mlp")
    method = DiagonalLaplace(model, "classification", budget="1p")
    assert isinstance(method, Method)
    assert isinstance(method.fit(inputs, progress=False), Score)
    cost = method.cost()
    assert (cost.artefact, cost.passes) == (51 * 8, 1)
    assert cost.fitting == cost.querying == 51 * 8 + 2 * 3 * 51 * 8  # three gradients, squared together
    estimated = DiagonalLaplace(model, "classification", diagonal="hutchinson").cost()
    assert (estimated.artefact, estimated.fitting, estimated.passes) == (51 * 8, 4 * 51 * 8, 100)
    assert estimated.querying == cost.querying
    kernel = DiagonalLaplace(network("conv")[0], "classification", diagonal="hutchinson", probes=7).cost()
    assert (kernel.fitting, kernel.passes) == (4 * kernel.artefact + 27 * 8, 7)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"prior_precision": 0}, SettingError, "prior_precision must be a finite number above 0, got 0; or 'paper'"),
        ({"diagonal": "sketched"}, SettingError, "unknown diagonal 'sketched'; valid are 'exact', 'hutchinson'"),
        ({"probes": 10}, SettingError, "settings of diagonal='hutchinson'"),
        ({"negative": "shift"}, SettingError, "settings of diagonal='hutchinson'"),
        ({"diagonal": "hutchinson", "negative": "abs"}, SettingError, "valid are 'clip', 'shift'"),
        ({"diagonal": "hutchinson", "probes": 0}, SettingError, "probes must be at least 1, got 0"),
        ({"diagonal": "hutchinson", "probes": 1.5}, SettingError, r"probes must be a whole number, got 1\.5"),
        ({"curvature": "hessian"}, SettingError, "no sum of squares; use curvature='ggn'"),
        ({"curvature": "hessian", "diagonal": "hutchinson"}, SettingError, "use curvature='ggn'"),
        ({"curvature": "kfac"}, SettingError, "unknown curvature 'kfac'"),
        ({"seed": "one"}, SettingError, "the seed must be a whole number"),
        ({"budget": "0.5p"}, BudgetError, r"DiagonalLaplace keeps at least one: give '1p' or more"),
        ({"budget": "much"}, BudgetError, "much"),
    ],
)
def test_settings_that_cannot_work(settings, error, message):
    with pytest.raises(error, match=message):
        DiagonalLaplace(dense("mlp")[0], "classification", **settings)


class Changing:
    """Another last batch in every pass."""

    def __init__(self, inputs):
        self.inputs, self.passes = inputs, 0

    def __iter__(self):
        self.passes += 1
        yield self.inputs
        yield self.inputs + self.passes


def test_data_that_cannot_work():
    model, inputs, _, _ = dense("mlp")
    with pytest.raises(DataError, match="gave no batch"):
        DiagonalLaplace(model, "classification").fit([])
    with pytest.raises(ChangedDataError, match="later pass"):
        DiagonalLaplace(model, "classification", diagonal="hutchinson", probes=2).fit(Changing(inputs))
    with pytest.raises(NumericalError, match=r"overflows float32.*model\.double\(\)"):
        DiagonalLaplace(nn.Linear(2, 1), "regression").fit(torch.tensor([[1e20, 1.0]]))


@pytest.mark.parametrize("settings", [{}, {"diagonal": "hutchinson", "probes": 3}], ids=str)
@pytest.mark.parametrize("kind", ["conv", "encoder"])
def test_the_model_is_left_alone(kind, settings):
    model, inputs = network(kind)
    before = snapshot(model)
    method = DiagonalLaplace(model, "classification", **settings)
    method.fit(inputs)(inputs, reading="fisher")
    assert_same(before, snapshot(model))
    with pytest.raises(DataError):
        method.fit([inputs, inputs * float("nan")])
    assert_same(before, snapshot(model))


SETTINGS = [
    {},
    {"prior_precision": "paper"},
    {"prior_precision": 0.3, "curvature": "fisher", "seed": 4, "params": "2.*"},
    {"diagonal": "hutchinson", "probes": 5, "negative": "shift"},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_saved_score_says_the_same(dtype, settings, tmp_path):
    model, inputs = network("mlp")
    model, inputs = model.to(dtype), inputs.to(dtype)
    score = DiagonalLaplace(model, Multilabel([0.5, 1.0, 2.0]), **settings).fit(inputs)
    score.save(tmp_path / "net.slu")
    again = DiagonalLaplace.load(tmp_path / "net.slu", copy.deepcopy(model))
    for reading in GRADIENT_READINGS:
        assert torch.equal(again(inputs, reading=reading), score(inputs, reading=reading))
    for name in ("prior_precision", "diagonal", "probes", "negative", "curvature", "seed"):
        assert getattr(again.method, name) == getattr(score.method, name)
    assert again.method.network.selection == score.method.network.selection
    assert (again.prior_precision, again.points) == (score.prior_precision, score.points)
    again.save(tmp_path / "again.slu")
    assert read(tmp_path / "again.slu")[0] == read(tmp_path / "net.slu")[0]


def test_a_file_can_be_looked_into(tmp_path):
    model, inputs = network("mlp")
    DiagonalLaplace(model, "classification", prior_precision="paper").fit(inputs).save(tmp_path / "net.slu")
    result = CliRunner().invoke(app, ["inspect", str(tmp_path / "net.slu")], env={"NO_COLOR": "1", "TERM": "dumb"})
    assert result.exit_code == 0, result.output
    for text in ("a score of DiagonalLaplace", "diagonal 51 float64", "points          12", "prior_precision paper"):
        assert text in result.stdout


def test_files_that_make_no_sense(tmp_path):
    path = tmp_path / "net.slu"
    model, inputs = network("mlp")
    DiagonalLaplace(model, "classification").fit(inputs).save(path)
    with pytest.raises(StorageError, match="holds a score of DiagonalLaplace, SLU cannot load it"):
        SLU.load(path, model)
    header, tensors = read(path)
    for change in (
        {"prior_precision": -1.0},
        {"prior_precision": 1e308},
        {"points": 10**400, "prior_precision": "paper"},
        {"diagonal": "sketched"},
        {"probes": 4},
        {"points": 0},
        {"points": "twelve"},
        {"curvature": "hessian"},
        {"nonsense": 1},
    ):
        write(path, tensors, {**header, "settings": {**header["settings"], **change}})
        with pytest.raises(DamagedFileError, match=r"net\.slu"):
            DiagonalLaplace.load(path, model)
    for name in ("points", "prior_precision", "probes", "seed"):  # none has a default in a file
        without = {key: value for key, value in header["settings"].items() if key != name}
        write(path, tensors, {**header, "settings": without})
        with pytest.raises(DamagedFileError, match=f"{name} is missing"):
            DiagonalLaplace.load(path, model)
    del header["tensors"]  # as of files of before
    good = tensors["diagonal"]
    for bad in (good[1:], good[None], -good, good * torch.nan):
        write(path, {"diagonal": bad}, header)
        with pytest.raises(DamagedFileError, match=r"diagonal (is of the shape|holds)"):
            DiagonalLaplace.load(path, model)
    write(path, {}, header)
    with pytest.raises(DamagedFileError, match="diagonal is missing"):
        DiagonalLaplace.load(path, model)
    write(path, tensors, header)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DamagedFileError):
        DiagonalLaplace.load(path, model)
    with pytest.raises(MismatchError, match="another network"):
        write(path, tensors, header)
        DiagonalLaplace.load(path, network("mlp", seed=1)[0])
