"""LowRankLaplace against dense float64 formulas and an independent library; the limits of its prior; its file."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

from oracles import LIKELIHOODS, NETWORKS, dense, ggn, hessian, krylov_basis, network, read_as, rows_of, targets_for
from shorthand import relative_error, split
from slu.artifacts import read, write
from slu.baselines.local_ensemble import LocalEnsemble
from slu.baselines.low_rank_laplace import LowRankLaplace
from slu.cli import app
from slu.core.protocols import Method, Score
from slu.core.readout import GRADIENT_READINGS
from slu.errors import BudgetError, DamagedFileError, DataError, SettingError, StorageError
from slu.krylov import start_vector
from untouched import assert_same, snapshot


def low_rank(matrix: Tensor, rank: int, steps: int, seed: int = 0) -> Tensor:
    """U Λ Uᵀ (p, p) of the largest positive Ritz values in the Krylov space."""
    space = krylov_basis(matrix, start_vector(matrix, seed), steps)
    values, small = torch.linalg.eigh(space.T @ matrix @ space)
    vectors = space @ small[:, -rank:]
    return (vectors * values[-rank:].clamp(min=0)) @ vectors.T


def covariance(precision: Tensor, alpha: float) -> Tensor:
    return torch.linalg.inv(precision + alpha * torch.eye(len(precision), dtype=torch.float64))


def variance(rows: Tensor, matrix: Tensor) -> Tensor:
    """(b, t) of the rows (b, t, p)."""
    return torch.einsum("bip,pq,biq->bi", rows, matrix, rows)


@pytest.mark.parametrize(
    ("kind", "likelihood", "alpha"),
    [(kind, likelihood, 1.0) for kind in NETWORKS for likelihood in LIKELIHOODS]
    + [("conv", "classification", 0.01), ("mlp", "regression", 30.0)],
)
def test_every_reading_is_the_dense_formula(kind, likelihood, alpha):
    model, inputs, queries, _ = dense(kind)
    matrix = covariance(low_rank(ggn(model, inputs, likelihood), 3, 6), alpha)
    method = LowRankLaplace(model, likelihood, rank=3, steps=6, prior_precision=alpha)
    score = method.fit(split(inputs, sizes=[5, 7]))
    assert score.prior_precision == alpha
    assert score.readings == tuple(GRADIENT_READINGS)
    for reading in GRADIENT_READINGS:
        rows = rows_of(kind, likelihood, reading)
        each, size = variance(rows, matrix), rows.square().sum(-1)
        for per_output in (False, True):
            expected, length = (each, size) if per_output else (each.sum(-1), size.sum(-1))
            expected = read_as(reading, expected, length)
            scores = score(queries, reading=reading, per_output=per_output)
            torch.testing.assert_close(scores, expected, rtol=1e-8, atol=1e-13)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_with_every_direction_it_is_the_whole_curvature(kind, likelihood):
    model, inputs, queries, rows = dense(kind)
    rank = 24 if likelihood == "classification" else 36
    score = LowRankLaplace(model, likelihood, rank=rank, steps=44, prior_precision=0.5).fit(inputs)
    assert score.diagnostics.exhausted
    expected = variance(rows, covariance(ggn(model, inputs, likelihood), 0.5))
    torch.testing.assert_close(score(queries, per_output=True), expected, rtol=1e-9, atol=0)
    # Control: a direction less is noticed.
    fewer = LowRankLaplace(model, likelihood, rank=3, steps=44, prior_precision=0.5).fit(inputs)
    assert relative_error(fewer(queries), expected.sum(-1)) > 1e-2


@pytest.mark.parametrize(("likelihood", "rank"), [("classification", 24), ("regression", 36)])
@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_it_agrees_with_laplace_torch(kind, likelihood, rank):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its imports use what torch deprecates
        laplace = pytest.importorskip("laplace")
        backend = pytest.importorskip("laplace.curvature").CurvlinopsGGN
    model, inputs, queries, _ = dense(kind)
    targets = targets_for(likelihood)
    theirs = laplace.Laplace(
        network(kind)[0].eval(),  # a network of its own: it leaves hooks behind
        likelihood,
        subset_of_weights="all",
        hessian_structure="full",
        prior_precision=0.25,  # it is rounded to float32 there; this one is not
        backend=backend,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
        theirs.fit(DataLoader(TensorDataset(inputs, targets), batch_size=5))
        expected = theirs._glm_predictive_distribution(queries)[1].diagonal(dim1=1, dim2=2)
    score = LowRankLaplace(model, likelihood, rank=rank, steps=44, prior_precision=0.25).fit((inputs, targets))
    # Theirs goes through a Cholesky factor of the inverse; the dense formula above holds to 1e-9.
    torch.testing.assert_close(score(queries, per_output=True), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_weak_prior_gives_the_local_ensemble(kind):
    model, inputs, queries, _ = dense(kind)
    ensemble = LocalEnsemble(model, "classification", rank=4, steps=8).fit(inputs)(queries)
    errors = []
    for alpha in (1e-2, 1e-5, 1e-8):
        score = LowRankLaplace(model, "classification", rank=4, steps=8, prior_precision=alpha).fit(inputs)
        errors.append(relative_error(alpha * score(queries), ensemble))
    # What is left of a direction is α/(λ + α): in proportion to α.
    assert errors[0] > 100 * errors[1] > 0
    assert errors[1] > 100 * errors[2]


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_strong_prior_leaves_the_length_of_the_gradient(kind):
    model, inputs, queries, rows = dense(kind)
    score = LowRankLaplace(model, "classification", rank=4, prior_precision=1e9).fit(inputs)
    torch.testing.assert_close(1e9 * score(queries), rows.square().sum((1, 2)), rtol=1e-6, atol=0)


def test_the_papers_prior_is_that_of_a_mean_and_nearly_gives_the_local_ensemble():
    model, _, queries, _ = dense("mlp")
    inputs = torch.randn(400, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    method = LowRankLaplace(model, "classification", rank=2, steps=3, prior_precision="paper")
    score = method.fit(split(inputs, sizes=[150, 250]))
    assert method.prior_precision == "paper"
    assert score.prior_precision == pytest.approx(1 / (2 * 400 * 0.1**2))
    given = LowRankLaplace(model, "classification", rank=2, steps=3, prior_precision=score.prior_precision)
    torch.testing.assert_close(score(queries), given.fit(inputs)(queries), rtol=1e-9, atol=0)
    ensemble = LocalEnsemble(model, "classification", rank=2, steps=3).fit(inputs)(queries)
    # α/(λ + α) of each direction is all that differs, and with the α of a sum there is n times as much of it.
    share = score.prior_precision / (score.eigenvalues.min() + score.prior_precision)
    error = relative_error(score.prior_precision * score(queries), ensemble)
    assert error < share < 1e-2
    right = LowRankLaplace(model, "classification", rank=2, steps=3, prior_precision=400 * score.prior_precision)
    assert relative_error(400 * score.prior_precision * right.fit(inputs)(queries), ensemble) > 100 * error


@pytest.mark.parametrize("kind", NETWORKS)
def test_negative_directions_of_the_hessian_are_left_to_the_prior(kind):
    model, inputs, queries, rows = dense(kind)
    targets = targets_for("classification")
    matrix = hessian(model, inputs, targets, "classification")
    score = LowRankLaplace(model, "classification", rank=12, steps=12, curvature="hessian").fit((inputs, targets))
    spectrum = score.diagnostics
    assert spectrum.negative > 2
    assert spectrum.effective_rank == 12 - spectrum.negative == len(score.eigenvalues)
    assert float(score.eigenvalues.min()) > 0
    # All twelve, with those below zero clipped to it.
    expected = variance(rows, covariance(low_rank(matrix, 12, 12), 1.0)).sum(-1)
    torch.testing.assert_close(score(queries), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("sizes", [[12], [1] * 12, [5, 7]])
def test_any_split_into_batches_gives_the_same(sizes):
    model, inputs, queries, _ = dense("encoder")
    method = LowRankLaplace(model, "multilabel", rank=4, steps=6, prior_precision=0.1)
    whole, cut = method.fit(inputs), method.fit(split(inputs, sizes=sizes))
    torch.testing.assert_close(cut(queries), whole(queries), rtol=1e-8, atol=0)
    torch.testing.assert_close(whole([inputs[:1], inputs[1:8], inputs[8:]]), whole(inputs), rtol=1e-10, atol=0)


def test_same_seed_same_scores_and_another_seed_others():
    model, inputs, queries, _ = dense("mlp")
    first, second, other = (
        LowRankLaplace(model, "classification", rank=3, seed=seed).fit(inputs)(queries) for seed in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert not torch.allclose(first, other, rtol=1e-3)


def test_it_is_a_method_and_its_cost():
    model, inputs, _, _ = dense("mlp")
    method = LowRankLaplace(model, "classification", rank=2, steps=9)
    assert isinstance(method, Method)
    assert isinstance(method.fit(inputs, progress=False), Score)
    ensemble = LocalEnsemble(model, "classification", rank=2, steps=9).cost()
    for name in ("artefact", "fitting", "querying"):
        assert getattr(method.cost(), name) == getattr(ensemble, name) + 2 * 8
    assert method.cost().passes == 9


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"prior_precision": 0}, SettingError, "prior_precision must be a finite number above 0, got 0"),
        ({"prior_precision": float("inf")}, SettingError, "prior_precision must be a finite number above 0"),
        ({"prior_precision": "authors"}, SettingError, "got 'authors'; or 'paper'"),
        ({"steps": 1}, SettingError, "steps must lie between the rank, 2, and"),
        ({"budget": "1p"}, BudgetError, "holds rank 1 of LowRankLaplace, not 2"),
        ({"curvature": "kfac"}, SettingError, "unknown curvature 'kfac'"),
    ],
)
def test_settings_that_cannot_work(settings, error, message):
    with pytest.raises(error, match=message):
        LowRankLaplace(dense("mlp")[0], "classification", **{"rank": 2, **settings})


def test_the_model_is_left_alone():
    model, inputs = network("conv")
    before = snapshot(model)
    score = LowRankLaplace(model, "classification", rank=3).fit(inputs)
    score(inputs, reading="fisher")
    with pytest.raises(DataError):
        LowRankLaplace(model, "classification", rank=3).fit([inputs, inputs * float("nan")])
    assert_same(before, snapshot(model))


@pytest.mark.parametrize("prior", [0.3, "paper"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_saved_score_says_the_same(dtype, prior, tmp_path):
    model, inputs = network("mlp")
    model, inputs = model.to(dtype), inputs.to(dtype)
    score = LowRankLaplace(model, "classification", rank=3, steps=5, prior_precision=prior, seed=4).fit(inputs)
    score.save(tmp_path / "net.slu")
    again = LowRankLaplace.load(tmp_path / "net.slu", copy.deepcopy(model))
    for reading in GRADIENT_READINGS:
        assert torch.equal(again(inputs, reading=reading), score(inputs, reading=reading))
    for name in ("rank", "steps", "curvature", "prior_precision", "seed"):
        assert getattr(again.method, name) == getattr(score.method, name)
    assert again.prior_precision == score.prior_precision
    assert np.array_equal(again.eigenvalues, score.eigenvalues)
    again.save(tmp_path / "again.slu")
    assert read(tmp_path / "again.slu")[0] == read(tmp_path / "net.slu")[0]
    result = CliRunner().invoke(app, ["inspect", str(tmp_path / "net.slu")], env={"NO_COLOR": "1", "TERM": "dumb"})
    assert result.exit_code == 0, result.output
    assert "a score of LowRankLaplace" in result.stdout


def test_files_that_make_no_sense(tmp_path):
    path = tmp_path / "net.slu"
    model, inputs = network("mlp")
    LowRankLaplace(model, "classification", rank=3).fit(inputs).save(path)
    with pytest.raises(StorageError, match="holds a score of LowRankLaplace, LocalEnsemble cannot load it"):
        LocalEnsemble.load(path, model)
    header, tensors = read(path)
    spectrum = header["settings"]["spectrum"]
    for change in (
        {"prior_precision": -1.0},
        {"prior_precision": "authors"},
        {"prior_precision": 1e308},
        {"steps": 2},
        {"spectrum": None},
        {"spectrum": {**spectrum, "ritz_values": spectrum["ritz_values"][::-1]}},
        {"spectrum": {**spectrum, "ritz_values": [*spectrum["ritz_values"][:2], True]}},
        {"spectrum": {**spectrum, "residuals": [10**400, 0.0, 0.0]}},
        {"spectrum": {**spectrum, "steps": 10**400}},
        {"spectrum": {**spectrum, "ritz_values": [2.0, 1.0, -1.0]}},
        {"spectrum": {**spectrum, "effective_rank": 0, "ritz_values": [], "residuals": []}},
    ):
        write(path, tensors, {**header, "settings": {**header["settings"], **change}})
        with pytest.raises(DamagedFileError, match=r"net\.slu"):
            LowRankLaplace.load(path, model)
    del header["tensors"]  # as of files of before
    basis = tensors["basis"]
    for changed, message in (
        (basis[:, 1:], "basis is of the shape"),
        (basis.double() if basis.dtype == torch.float32 else basis.float(), "basis is of the shape"),
        (basis * torch.nan, "not finite"),
        (2 * basis, "not orthonormal"),
        (0 * basis, "not orthonormal"),
    ):
        write(path, {"basis": changed}, header)
        with pytest.raises(DamagedFileError, match=message):
            LowRankLaplace.load(path, model)
