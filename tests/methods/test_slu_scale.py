"""SLU in scaled coordinates: the dense formula with both solvers."""

import pytest
import torch

from oracles import ggn, jacobian, leading_eigenvectors, network, output_hessian, outputs_of
from shorthand import curvature
from slu import SLU
from slu.errors import BudgetError, DamagedFileError, SettingError
from slu.methods.scaling import ScaledOperator
from slu.storage import read, write

DAMPING = 0.01
SOLVERS = {
    "lanczos": {"precondition": 6},  # every vector held: no ghosts to blame
    "stream": {"solver": "stream", "labels_per_point": "all", "oversampling": 400},
}


def method(model, likelihood="classification", solver="lanczos", **settings):
    settings = {"rank": 6, "sketch": "identity", "scale": "diagonal", "damping": DAMPING, **SOLVERS[solver], **settings}
    return SLU(model, likelihood, **settings)


def dense(model, inputs, likelihood, rank=None):
    """(p,) factors, scaled Jacobians, and the leading eigenvectors of the scaled curvature, from the formulas."""
    matrix = ggn(model, inputs, likelihood)
    diagonal = matrix.diag()
    factors = (diagonal + DAMPING * diagonal[diagonal > 0].median()).rsqrt()
    scaled = factors[:, None] * matrix * factors
    return factors, jacobian(model, inputs) * factors, leading_eigenvectors(scaled, rank or 6), scaled


def outside(rows, basis):
    return (rows - (rows @ basis) @ basis.T).square().sum((1, 2))


@pytest.mark.parametrize("solver", ["stream"])
@pytest.mark.parametrize("likelihood", ["classification", "regression", "multilabel"])
@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_scores_are_those_of_the_dense_formula(kind, likelihood, solver):
    model, inputs = network(kind)
    score = method(model, likelihood, solver).fit(list(inputs.split(5)))
    factors, rows, basis, _ = dense(model, inputs, likelihood)
    torch.testing.assert_close(score.scale, factors, rtol=1e-9, atol=0)
    torch.testing.assert_close(score(inputs), outside(rows, basis), rtol=1e-6, atol=1e-9)
    share = outside(rows, basis) / rows.square().sum((1, 2))
    torch.testing.assert_close(score(inputs, reading="relative"), share, rtol=1e-6, atol=1e-9)
    hessian = output_hessian(likelihood, outputs_of(model, inputs))
    left = rows - (rows @ basis) @ basis.T
    fisher = torch.einsum("bij,bip,bjp->b", hessian, left, left)
    torch.testing.assert_close(score(inputs, reading="fisher"), fisher, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", ["mlp", "conv", "encoder"])
def test_lanczos_run_to_its_end_is_the_dense_formula(kind):
    """All 24 directions with curvature; two steps more, for the start vector's part outside of them."""
    model, inputs = network(kind)
    scaled = dense(model, inputs, "classification")[3]
    assert int((torch.linalg.eigvalsh(scaled) > 1e-9).sum()) == 24
    score = method(model, rank=26, precondition=26).fit(inputs)
    elsewhere = jacobian(model, inputs + 1) * score.scale
    expected = outside(elsewhere, leading_eigenvectors(scaled, 24))
    torch.testing.assert_close(score(inputs + 1), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("likelihood", ["classification", "regression", "multilabel"])
@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_the_scaled_operator_is_the_dense_product(kind, likelihood):
    model, inputs = network(kind)
    factors, _, _, scaled = dense(model, inputs, likelihood)
    operator = ScaledOperator(curvature(model, inputs, likelihood), factors)
    vector = torch.randn(len(factors), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(operator @ vector, scaled @ vector, rtol=1e-9, atol=1e-12)


def test_control_without_a_scale_it_is_another_score():
    model, inputs = network("mlp")
    one, other = (method(model, solver="stream", scale=scale).fit(inputs)(inputs) for scale in ("diagonal", None))
    assert not torch.allclose(one / one.sum(), other / other.sum(), rtol=0.05)


@pytest.mark.parametrize("unit", [1e-3, 1e4])
def test_another_unit_of_the_loss_changes_no_rank_of_scores(unit):
    """α follows the diagonal: a regression with another noise is the same score in another unit."""
    from slu.likelihoods import Regression

    model, inputs = network("mlp")
    one = method(model, Regression(), "stream").fit(inputs)(inputs)
    other = method(model, Regression(noise_variance=1 / unit), "stream").fit(inputs)(inputs)
    torch.testing.assert_close(other * unit, one, rtol=1e-6, atol=0)


def test_the_first_points_can_stand_for_all():
    model, inputs = network("mlp")
    data = list(inputs.split(4))
    score = method(model, solver="stream", scale_points=5).fit(data)
    torch.testing.assert_close(score.scale, dense(model, inputs[:8], "classification")[0], rtol=1e-9, atol=0)


@pytest.mark.parametrize("solver", SOLVERS)
def test_own_factors_are_used_saved_and_loaded(solver, tmp_path):
    model, inputs = network("mlp")
    found = method(model, solver=solver).fit(inputs)
    own = method(model, solver=solver, scale=found.scale).fit(inputs)
    assert torch.equal(own(inputs), found(inputs))
    for name, score in (("found", found), ("own", own)):
        score.save(tmp_path / name)
        again = SLU.load(tmp_path / name, model)
        assert torch.equal(again(inputs), score(inputs)) and torch.equal(again.scale, score.scale)


def test_a_scale_that_is_missing_from_its_file_is_refused(tmp_path):
    model, inputs = network("mlp")
    method(model, solver="stream").fit(inputs).save(tmp_path / "net.slu")
    header, tensors = read(tmp_path / "net.slu")
    del tensors["scale"]
    write(tmp_path / "net.slu", tensors, {key: value for key, value in header.items() if key != "format"})
    with pytest.raises(DamagedFileError, match="scale"):
        SLU.load(tmp_path / "net.slu", model)


def test_shards_with_one_scale_can_be_merged():
    model, inputs = network("mlp")
    first = method(model, solver="stream").fit(inputs[:6])
    second = method(model, solver="stream", scale=first.scale).fit(inputs[6:])
    assert SLU.merge([first, second])(inputs).shape == (12,)


def test_a_budget_counts_the_scale():
    model, _ = network("mlp")
    p = sum(value.numel() for value in model.parameters())
    plain = SLU(model, "classification", budget="6p")
    scaled = SLU(model, "classification", budget="6p", scale="diagonal")
    assert (plain.rank, scaled.rank) == (6, 5)
    assert scaled.cost().artefact == plain.cost().artefact == 6 * p * 8
    with pytest.raises(BudgetError, match="scale alone"):
        SLU(model, "classification", budget="1p", scale="diagonal")


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"scale": "size"}, "diagonal"),
        ({"scale": torch.ones(3)}, "one finite factor"),
        ({"scale": torch.zeros(51)}, "one finite factor"),
        ({"damping": 0}, "damping"),
        ({"scale_points": 0}, "scale_points"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, match):
    with pytest.raises(SettingError, match=match):
        method(network("mlp")[0], **settings)
