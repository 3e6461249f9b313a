"""A ridge by SLU: the dense posterior variance on several networks, by both solvers, in files, and what is refused."""

from itertools import pairwise

import pytest
import torch

from oracles import LIKELIHOODS, ggn, jacobian, leading_eigenvectors, network, output_hessian, outputs_of
from shorthand import paper_slu
from slu import SLU, Lanczos, Stream
from slu.errors import SettingError, StorageError

RANK = 6
EXACT = {"sketch": "identity", "solver": Stream(labels_per_point="all", oversampling=400)}


def method(model, likelihood="classification", **settings):
    return paper_slu(model, likelihood, **{"rank": RANK, **EXACT, **settings})


def left_open(matrix, ridge, rank=RANK):
    """α (G_k + α I)⁻¹ for the leading part G_k of a matrix, with α a share of its trace."""
    basis = leading_eigenvectors(matrix, rank)
    values = (basis * (matrix @ basis)).sum(0)
    alpha = ridge * values.sum()
    kept = (basis * values) @ basis.T
    return alpha * torch.linalg.inv(kept + alpha * torch.eye(len(matrix), dtype=matrix.dtype))


@pytest.mark.parametrize("scale", [None, "diagonal"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_scores_are_those_of_the_dense_formula(kind, likelihood, scale):
    model, inputs = network(kind)
    score = method(model, likelihood, ridge=0.05, scale=scale).fit(list(inputs.split(5)))
    factors = torch.ones(1) if scale is None else score.scale.values
    matrix, rows = ggn(model, inputs, likelihood) * factors[:, None] * factors, jacobian(model, inputs) * factors
    middle = left_open(matrix, 0.05)
    variance = torch.einsum("bip,pq,biq->b", rows, middle, rows)
    torch.testing.assert_close(score(inputs, reading="variance"), variance, rtol=1e-6, atol=1e-9)
    share = variance / rows.square().sum((1, 2))
    torch.testing.assert_close(score(inputs, reading="relative"), share, rtol=1e-6, atol=1e-9)
    hessian = output_hessian(likelihood, outputs_of(model, inputs))
    fisher = torch.einsum("bij,bip,pq,bjq->b", hessian, rows, middle, rows)
    torch.testing.assert_close(score(inputs, reading="fisher", outputs="all"), fisher, rtol=1e-6, atol=1e-9)
    readings = score.read_all(inputs, outputs="all")
    torch.testing.assert_close(readings["fisher"], fisher, rtol=1e-6, atol=1e-9)
    # The control: a hard projection says something else.
    hard = method(model, likelihood, scale=scale).fit(inputs)(inputs, reading="variance")
    assert float(((variance - hard) / variance).min()) > 0.01


def test_lanczos_run_to_its_end_agrees():
    model, inputs = network("mlp")
    settings = {"ridge": 0.05, "sketch": "identity", "rank": 26, "solver": Lanczos(precondition=26)}
    score = paper_slu(model, "classification", **settings).fit(inputs)
    matrix = ggn(model, inputs, "classification")
    rank = score.diagnostics.effective_rank
    rows = jacobian(model, inputs + 1)
    expected = torch.einsum("bip,pq,biq->b", rows, left_open(matrix, 0.05, rank), rows)
    torch.testing.assert_close(score(inputs + 1, reading="variance"), expected, rtol=1e-4, atol=1e-6)


def test_a_larger_ridge_leaves_more_open():
    model, inputs = network("conv")
    scores = [method(model, ridge=ridge).fit(inputs)(inputs) for ridge in (0.0, 0.01, 0.1, 1.0)]
    assert all(bool((low < high).all()) for low, high in pairwise(scores))


def test_it_is_in_the_file(tmp_path):
    model, inputs = network("mlp")
    score = method(model, ridge=0.05).fit(inputs)
    score.save(tmp_path / "a.slu")
    loaded = SLU.load(tmp_path / "a.slu", model)
    assert loaded.settings.ridge == 0.05
    assert torch.equal(loaded(inputs), score(inputs))


def test_a_calibrated_checkpoint_belongs_to_its_ridge(tmp_path):
    model, inputs = network("mlp")
    path = tmp_path / "fit.checkpoint"
    method(model, ridge=0.05).fit(inputs, calibration=inputs + 0.1, checkpoint=path)
    with pytest.raises(StorageError, match="ridge"):
        method(model, ridge=0.1).fit(inputs, calibration=inputs + 0.1, checkpoint=path)


@pytest.mark.parametrize("ridge", [-0.1, 1.5, "much", True, float("nan")])
def test_no_share_is_refused(ridge):
    with pytest.raises(SettingError, match="ridge must be a number from 0 to 1"):
        method(network("mlp")[0], ridge=ridge)


def test_keep_has_no_eigenvalues_for_it():
    with pytest.raises(SettingError, match="keep"):
        SLU(network("mlp")[0], "classification", rank=6, solver=Lanczos(keep=0.9), ridge=0.05)
