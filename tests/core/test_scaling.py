"""SLU in coordinates scaled by the diagonal: the dense formula with both solvers."""

import re

import pytest
import torch

from oracles import LIKELIHOODS, ggn, jacobian, krylov_basis, leading_eigenvectors, network, output_hessian, outputs_of
from shorthand import curvature, paper_slu
from slu import SLU, Checkpoint, DiagonalScale, Lanczos, Stream
from slu.artifacts import read, write
from slu.core.scaling import DenseScaling
from slu.core.solvers.lanczos import ScaledOperator
from slu.errors import BudgetError, DamagedFileError, MismatchError, SettingError
from slu.krylov import start_vector

DAMPING = 0.01
SCALE = DiagonalScale(damping=DAMPING)
SOLVERS = {"lanczos": Lanczos(), "stream": Stream(labels_per_point="all", oversampling=400)}


def method(model, likelihood="classification", solver="lanczos", **settings):
    solver = SOLVERS[solver] if isinstance(solver, str) else solver
    return paper_slu(
        model, likelihood, **{"rank": 6, "sketch": "identity", "scale": SCALE, "solver": solver, **settings}
    )


def dense(model, inputs, likelihood, solver="stream", rank=6):
    """(p,) factors, scaled Jacobians, the space that a solver finds, and the scaled curvature, from the formulas.

    The space is that of the leading eigenvectors, or of as many Lanczos steps from the same start.
    """
    matrix = ggn(model, inputs, likelihood)
    diagonal = matrix.diag()
    factors = (diagonal + DAMPING * diagonal[diagonal > 0].median()).rsqrt()
    scaled = factors[:, None] * matrix * factors
    lanczos = solver == "lanczos"
    basis = krylov_basis(scaled, start_vector(scaled, 0), rank) if lanczos else leading_eigenvectors(scaled, rank)
    return factors, jacobian(model, inputs) * factors, basis, scaled


def outside(rows, basis):
    return (rows - (rows @ basis) @ basis.T).square().sum((1, 2))


@pytest.mark.parametrize("rank", [3, 6])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_scores_are_those_of_the_dense_formula(kind, likelihood, solver, rank):
    """At ranks far below that of the curvature, which is 24 or 36."""
    model, inputs = network(kind)
    score = method(model, likelihood, solver, rank=rank).fit(list(inputs.split(5)))
    factors, rows, basis, _ = dense(model, inputs, likelihood, solver, rank)
    torch.testing.assert_close(score.scale.values, factors, rtol=1e-9, atol=0)
    torch.testing.assert_close(score(inputs, reading="variance"), outside(rows, basis), rtol=1e-6, atol=1e-9)
    share = outside(rows, basis) / rows.square().sum((1, 2))
    torch.testing.assert_close(score(inputs, reading="relative"), share, rtol=1e-6, atol=1e-9)
    hessian = output_hessian(likelihood, outputs_of(model, inputs))
    left = rows - (rows @ basis) @ basis.T
    fisher = torch.einsum("bij,bip,bjp->b", hessian, left, left)
    torch.testing.assert_close(score(inputs, reading="fisher", outputs="all"), fisher, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", ["mlp", "conv", "encoder"])
def test_lanczos_run_to_its_end_is_the_dense_formula(kind, likelihood):
    """All directions with curvature; two steps more, for the start vector's part outside of them."""
    model, inputs = network(kind)
    inputs = torch.cat([inputs[:8], inputs[:4]])  # some points twice: rank 8 t at most, and 12 t steps allowed
    scaled = dense(model, inputs, likelihood)[3]
    values = torch.linalg.eigvalsh(scaled)
    directions = int((values > 1e-9 * values[-1]).sum())
    assert directions == (16 if likelihood == "classification" else 24)
    score = method(model, likelihood, Lanczos(directions + 2), rank=directions + 2).fit(inputs)
    elsewhere = jacobian(model, inputs + 1) * score.scale.values
    expected = outside(elsewhere, leading_eigenvectors(scaled, directions))
    torch.testing.assert_close(score(inputs + 1, reading="variance"), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_the_scaled_operator_is_the_dense_product(kind, likelihood):
    model, inputs = network(kind)
    factors, _, _, scaled = dense(model, inputs, likelihood)
    operator = ScaledOperator(curvature(model, inputs, likelihood), DenseScaling(factors))
    vector = torch.randn(len(factors), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(operator @ vector, scaled @ vector, rtol=1e-9, atol=1e-12)


def test_control_without_a_scale_it_is_another_score():
    model, inputs = network("mlp")
    one, other = (method(model, solver="stream", scale=scale).fit(inputs)(inputs) for scale in (SCALE, None))
    assert not torch.allclose(one / one.sum(), other / other.sum(), rtol=0.05)


@pytest.mark.parametrize("unit", [1e-3, 1e4])
def test_another_unit_of_the_loss_changes_no_rank_of_scores(unit):
    """α follows the diagonal: a regression with another noise is the same score in another unit."""
    from slu.likelihoods import Regression

    model, inputs = network("mlp")
    one = method(model, Regression(), "stream").fit(inputs)(inputs, reading="variance")
    other = method(model, Regression(noise_variance=1 / unit), "stream").fit(inputs)(inputs, reading="variance")
    torch.testing.assert_close(other * unit, one, rtol=1e-6, atol=0)


def test_the_first_points_can_stand_for_all():
    model, inputs = network("mlp")
    expected = dense(model, inputs[:8], "classification")[0]
    for size in (1, 7, 8, 12):
        score = method(model, solver="stream", scale=DiagonalScale(damping=DAMPING, points=8)).fit(
            list(inputs.split(size))
        )
        torch.testing.assert_close(score.scale.values, expected, rtol=1e-9, atol=0)
    assert not torch.allclose(expected, dense(model, inputs, "classification")[0], rtol=1e-2)


class Shifted(torch.nn.Module):
    """Adds to every point something that all share."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, shared, points):
        return self.model(points + shared.sum(0))


def test_the_first_points_are_cut_with_their_targets_and_without_what_all_share():
    model, inputs = network("mlp")
    shared, labels = inputs[:3] / 10, torch.arange(12) % 3
    scales = []
    for size in (1, 7, 12):
        data = [((shared, x), y) for x, y in zip(inputs.split(size), labels.split(size), strict=True)]
        settings = {
            "curvature": "empirical-fisher",
            "scale": DiagonalScale(points=8),
            "solver": Stream(oversampling=400),
        }
        scales.append(method(Shifted(model), **settings).fit(data).scale.values)
    plain = method(model, **settings).fit([(inputs[:8] + shared.sum(0), labels[:8])]).scale.values
    for scale in scales:
        torch.testing.assert_close(scale, plain, rtol=1e-9, atol=0)


@pytest.mark.parametrize("solver", SOLVERS)
def test_own_factors_are_used_saved_and_loaded(solver, tmp_path):
    model, inputs = network("mlp")
    found = method(model, solver=solver).fit(inputs)
    own = method(model, solver=solver, scale=found.scale).fit(inputs)
    assert torch.equal(own(inputs), found(inputs))
    for name, score in (("found", found), ("own", own)):
        score.save(tmp_path / name)
        again = SLU.load(tmp_path / name, model)
        assert torch.equal(again(inputs), score(inputs)) and again.scale == score.scale


def test_a_scale_that_is_missing_from_its_file_is_refused(tmp_path):
    model, inputs = network("mlp")
    method(model, solver="stream").fit(inputs).save(tmp_path / "net.slu")
    header, tensors = read(tmp_path / "net.slu")
    del tensors["scale"]
    write(tmp_path / "net.slu", tensors, {key: value for key, value in header.items() if key != "format"})
    with pytest.raises(DamagedFileError, match="scale"):
        SLU.load(tmp_path / "net.slu", model)


def test_shards_with_one_scale_merge_to_one_fit_with_that_scale():
    model, inputs = network("mlp")
    p = sum(value.numel() for value in model.parameters())
    room = {"solver": "stream", "rank": None, "budget": 37 * p}  # 36 directions and the scale: nothing is cut off
    first = method(model, **room).fit(inputs[:6])
    second = method(model, scale=first.scale, **room).fit(inputs[6:])
    merged, one = SLU.merge([first, second]), method(model, scale=first.scale, **room).fit(inputs)
    elsewhere = inputs + 1
    torch.testing.assert_close(merged(elsewhere), one(elsewhere), rtol=1e-5, atol=1e-9)
    assert merged.scale == first.scale and merged.diagnostics.points == 12
    # The controls: a shard alone, or a scale of all data, is another score.
    assert not torch.allclose(first(elsewhere), one(elsewhere), rtol=1e-2)
    assert not torch.allclose(method(model, **room).fit(inputs)(elsewhere), one(elsewhere), rtol=1e-2)


class Passes:
    """Batches of 3; Ctrl-C in the given pass before its last batch. Counts passes."""

    def __init__(self, inputs, stop=None):
        self.inputs, self.stop, self.count = inputs, stop, 0

    def __iter__(self):
        self.count += 1
        for place, batch in enumerate(self.inputs.split(3)):
            if (self.count, place) == (self.stop, 3):
                raise KeyboardInterrupt
            yield batch


@pytest.mark.parametrize(("solver", "stop", "left"), [("stream", 2, 1), ("lanczos", 4, 4)])
def test_a_fit_that_goes_on_finds_no_scale_anew(solver, stop, left, tmp_path):
    """Of one pass for the scale and the solver's own, 1 or 6, those that were done are not done again."""
    model, inputs = network("conv")
    whole = Passes(inputs)
    expected = method(model, solver=solver).fit(whole, calibration=False)
    assert whole.count == (2 if solver == "stream" else 7)
    with pytest.raises(KeyboardInterrupt):
        method(model, solver=solver).fit(
            Passes(inputs, stop), calibration=False, checkpoint=Checkpoint(tmp_path / "run", every=0)
        )
    rest = Passes(inputs)
    again = method(model, solver=solver).fit(rest, calibration=False, checkpoint=tmp_path / "run")
    assert rest.count == left
    assert again.scale == expected.scale
    assert torch.equal(again.state.subspace.basis, expected.state.subspace.basis)


def test_stopped_while_the_scale_is_found_it_is_found_anew(tmp_path):
    model, inputs = network("conv")
    with pytest.raises(KeyboardInterrupt):
        method(model, solver="stream").fit(Passes(inputs, 1), checkpoint=Checkpoint(tmp_path / "run", every=0))
    rest = Passes(inputs)
    again = method(model, solver="stream").fit(rest, checkpoint=tmp_path / "run")
    assert rest.count == 2
    assert torch.equal(again(inputs), method(model, solver="stream").fit(list(inputs.split(3)))(inputs))


def test_a_checkpoint_with_other_factors_is_refused(tmp_path):
    model, inputs = network("mlp")
    factors = dense(model, inputs, "classification")[0]
    run = {"checkpoint": tmp_path / "run"}
    first = method(model, solver="stream", scale=factors).fit(inputs, **run)
    assert torch.equal(method(model, solver="stream", scale=factors.clone()).fit(inputs, **run)(inputs), first(inputs))
    with pytest.raises(MismatchError, match="its scale is"):
        method(model, solver="stream", scale=2 * factors).fit(inputs, **run)


def test_a_budget_counts_the_scale():
    model, _ = network("mlp")
    p = sum(value.numel() for value in model.parameters())
    plain = SLU(model, "classification", budget="6p", scale=None)
    scaled = SLU(model, "classification", budget="6p", scale="diagonal")
    assert (plain.rank, scaled.rank) == (6, 5)
    assert scaled.cost().artefact == plain.cost().artefact == 6 * p * 8


@pytest.mark.parametrize("settings", [{}, {"rank": 3}, {"sketch": "identity"}, {"sketch_size": 20}, {"sketch": "srft"}])
@pytest.mark.parametrize("budget", ["1p", "0.5p"])
def test_a_budget_that_the_scale_uses_up_is_refused_with_the_smallest_that_fits(budget, settings):
    model, _ = network("mlp")
    with pytest.raises(BudgetError, match=r"scale alone takes 51; .*smallest that fits with the scale") as caught:
        SLU(model, "classification", budget=budget, scale="diagonal", **settings)
    floats, copies = re.search(r"is ([\d,]+) floats \('(.*p)'\)", str(caught.value)).groups()
    floats = int(floats.replace(",", ""))
    for enough in (floats, copies):
        assert SLU(model, "classification", budget=enough, scale="diagonal", **settings).rank >= 1
    with pytest.raises(BudgetError):
        SLU(model, "classification", budget=floats - 1, scale="diagonal", **settings)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"scale": "size"}, "diagonal"),
        ({"scale": torch.ones(3)}, "51 finite numbers"),
        ({"scale": torch.zeros(51)}, "51 finite numbers"),
        ({"curvature": "hessian"}, "no sum of squares"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, match):
    with pytest.raises(SettingError, match=match):
        method(network("mlp")[0], **settings)


def test_factors_of_ones_own_go_with_the_hessian():
    """Its diagonal has no root, but diag(d) H diag(d) is well defined."""
    model, inputs = network("mlp")
    data = [(inputs, torch.arange(12) % 3)]
    factors = dense(model, inputs, "classification")[0]
    score = method(model, scale=factors, curvature="hessian").fit(data)
    plain = method(model, scale=None, curvature="hessian").fit(data)
    assert score.diagnostics.effective_rank == 6
    assert not torch.allclose(score(inputs, reading="relative"), plain(inputs, reading="relative"), rtol=1e-2)


@pytest.mark.parametrize("kind", ["mlp", "conv"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_a_prior_precision_of_ones_own_is_added_as_it_is(likelihood, kind, tmp_path):
    model, inputs = network(kind)
    score = SLU(model, likelihood, rank=5, sketch="identity", scale=DiagonalScale(prior_precision=0.7)).fit(inputs)
    expected = (ggn(model, inputs, likelihood).diag() + 0.7).rsqrt()
    torch.testing.assert_close(score.scale.values, expected, rtol=1e-9, atol=0)
    score.save(tmp_path / "net.slu")
    assert SLU.load(tmp_path / "net.slu", model).settings.scale == DiagonalScale(prior_precision=0.7)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"prior_precision": 1.0, "damping": 0.1}, "one of the two"),
        ({"prior_precision": 0}, "prior_precision must be .* above 0"),
        ({"damping": 0}, "damping must be .* above 0"),
        ({"damping": float("nan")}, "damping"),
        ({"points": 0}, "points must be at least 1"),
    ],
)
def test_a_diagonal_scale_that_makes_no_sense(settings, match):
    with pytest.raises(SettingError, match=match):
        DiagonalScale(**settings)
    with pytest.raises(SettingError, match="its diagonal has no root"):
        SLU(network("mlp")[0], "classification", rank=5, scale=DiagonalScale(points=3), curvature="hessian")
