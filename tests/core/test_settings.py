"""SLU with nothing said: scaled, with a ridge, combined where it is calibrated; and what gives way to what is said."""

import pytest
import torch

from calibrated import COMBINED, FAR, combined, held, problem
from distant import farthest, layer_inputs
from oracles import LIKELIHOODS, ggn, jacobian, leading_eigenvectors, measured_directions, network, outputs_of
from scaled import factored_scale
from shorthand import paper_slu
from slu import SLU, DiagonalScale, FactoredScale, Lanczos, Stream
from slu.budgets import shape_for
from slu.core.readout import readings_for
from slu.core.scales import DAMPING
from slu.errors import BudgetError, SettingError
from slu.likelihoods import Classification
from stored import lenet

RIDGE = 0.01
EXACT = {"sketch": "identity", "solver": Stream(labels_per_point="all", oversampling=400)}


def resolved(**settings):
    settled = SLU(network("mlp")[0], "classification", rank=4, **settings).settings
    return settled.scale, settled.ridge


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (FactoredScale(), RIDGE)),
        ({"scale": "auto", "ridge": "auto"}, (FactoredScale(), RIDGE)),
        ({"solver": "lanczos"}, (FactoredScale(), RIDGE)),
        ({"solver": Lanczos(precondition=2)}, (FactoredScale(), RIDGE)),
        ({"curvature": "empirical-fisher"}, (FactoredScale(), RIDGE)),
        ({"scale": None}, (None, RIDGE)),
        ({"ridge": 0.0}, (FactoredScale(), 0.0)),
        ({"scale": None, "ridge": 0.0}, (None, 0.0)),
        # What cannot have one has none, where none was asked for.
        ({"curvature": "hessian"}, (None, 0.0)),
        ({"solver": Lanczos(keep=0.9)}, (FactoredScale(), 0.0)),
        ({"curvature": "hessian", "solver": Lanczos(keep=0.9)}, (None, 0.0)),
        ({"solver": Lanczos(keep=0.9), "ridge": 0.0}, (FactoredScale(), 0.0)),
        ({"scale": DiagonalScale(damping=0.5), "ridge": 0.3}, (DiagonalScale(damping=0.5), 0.3)),
    ],
)
def test_what_is_left_open_gives_way_to_what_is_said(settings, expected):
    assert resolved(**settings) == expected


def test_factors_of_ones_own_are_kept_beside_a_hessian():
    factors = torch.rand(51) + 1
    scale, ridge = resolved(curvature="hessian", scale=factors)
    assert torch.equal(scale.scaling.values, factors.double()) and ridge == 0.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"curvature": "hessian", "scale": "diagonal"}, "its diagonal has no root; leave the scale out"),
        (
            {"solver": Lanczos(keep=0.9), "ridge": RIDGE},
            "a ridge needs an eigenvalue of every direction, which keep= has not",
        ),
        ({"scale": "automatic"}, "'auto', 'factored', 'diagonal'"),
        ({"ridge": "diagonal"}, "ridge must be a number from 0 to 1"),
        ({"ridge": None}, "ridge must be a number from 0 to 1"),
    ],
)
def test_what_is_said_and_cannot_be_is_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        resolved(**settings)


@pytest.mark.parametrize("settings", [{"curvature": "hessian"}, {"solver": Lanczos(keep=0.9)}, {"solver": Lanczos(3)}])
def test_fits_that_must_do_without_work(settings):
    model, inputs = network("mlp")
    score = SLU(model, "classification", rank=6, **settings).fit((inputs, torch.arange(12) % 3))
    assert (score.scale is None) == (settings.get("curvature") == "hessian")
    assert bool((torch.isfinite(score(inputs)) & (score(inputs) >= 0)).all())


def dense(model, data, likelihood, rank):
    """From points to their readings.

    D^(-1/2) G D^(-1/2) with D of the squares of one gradient per point (no matrix is large), damped by a thousandth;
    of its leading part G_k the share β (G_k + β I)⁻¹ stays open, with β a hundredth of its trace.
    """
    matrix = ggn(model, data, likelihood)
    factors = factored_scale(model, data, likelihood, DAMPING)
    matrix = factors[:, None] * matrix * factors
    basis = leading_eigenvectors(matrix, rank)
    kept = basis @ basis.T @ matrix @ basis @ basis.T
    prior = RIDGE * kept.trace() * torch.eye(len(matrix), dtype=matrix.dtype)
    middle = prior @ torch.linalg.inv(kept + prior)

    def readings(points):
        outputs = outputs_of(model, points).detach()
        directions, values = measured_directions(likelihood, outputs, 1)
        rows, hessian = directions @ (jacobian(model, points) * factors), values[:, None]
        fisher = torch.einsum("bij,bip,pq,bjq->b", hessian, rows, middle, rows)
        values = {
            "variance": torch.einsum("bip,pq,biq->b", rows, middle, rows),
            "fisher": fisher,
            "fisher-relative": fisher / torch.einsum("bij,bip,bjp->b", hessian, rows, rows),
        }
        if likelihood == "classification":
            values["entropy"] = torch.distributions.Categorical(logits=outputs).entropy()
        elif likelihood == "multilabel":
            values["entropy"] = torch.distributions.Bernoulli(logits=outputs).entropy().sum(1)
        return values

    return readings


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_the_default_is_the_dense_formula(kind, likelihood):
    model, inputs = network(kind)
    data, own, fresh = inputs, inputs.flip(-1) + 0.1, 1.5 * inputs + 0.3
    method = SLU(model, likelihood, rank=6, **EXACT)
    readings = dense(model, data, likelihood, 6)
    layers = [layer_inputs(kind, model, points) for points in (data, own, fresh)]
    known, new = readings(own) | farthest(layers[0], layers[1], layers[1]), readings(fresh) | farthest(*layers)
    expected = combined(new, known)
    score = method.fit(list(data.split(5)), calibration=list(own.split(7)))
    torch.testing.assert_close(score(fresh), expected, rtol=1e-5, atol=1e-6)
    for size in (1, 5):
        torch.testing.assert_close(score(list(fresh.split(size))), score(fresh), rtol=1e-8, atol=1e-9)
    plain = method.fit(data, calibration=False)
    torch.testing.assert_close(plain(fresh), readings(fresh)["fisher"], rtol=1e-6, atol=1e-12)
    # The controls: without a scale or a ridge it is another score.
    for other in ({"scale": None}, {"scale": "diagonal"}, {"ridge": 0.0}):
        scores = SLU(model, likelihood, rank=6, **EXACT, **other).fit(data, calibration=False)(fresh)
        assert not torch.allclose(scores, plain(fresh), rtol=1e-2)


def test_the_default_reading_is_the_first_and_everything_uses_it():
    model, inputs = problem(400)
    fresh = problem(60, seed=3)[1] * 1.5
    score = SLU(model, "classification", rank=5).fit(inputs)
    assert score.readings == (COMBINED, *readings_for(Classification()), *FAR)
    assert torch.equal(score(fresh), score(fresh, reading=COMBINED))
    assert torch.equal(score.pvalue(fresh), score.pvalue(fresh, reading=COMBINED))
    assert torch.equal(score.flag(fresh, false_alarms=0.1), score.flag(fresh, false_alarms=0.1, reading=COMBINED))
    assert score.threshold(0.1) == score.threshold(0.1, reading=COMBINED) != score.threshold(0.1, reading="fisher")
    assert torch.equal(score.explain(fresh).pvalues, score.pvalue(fresh))
    assert not torch.equal(score(fresh), score(fresh, reading="fisher").double())
    plain = SLU(model, "classification", rank=5).fit(inputs, calibration=False)
    assert plain.readings[0] == "fisher" and set(plain.readings) == set(readings_for(Classification()))
    assert torch.equal(plain(fresh), plain(fresh, reading="fisher"))
    assert not torch.equal(plain(fresh), plain(fresh, reading="variance"))
    # Once it is calibrated the combined reading is there, and the default.
    assert plain.calibrate(fresh).readings[0] == COMBINED


def test_per_output_the_default_is_a_reading_that_has_outputs():
    model, inputs = problem()
    score = SLU(model, "classification", rank=5).fit(inputs)
    assert score.readings[0] == COMBINED
    scores = score(inputs[:4], per_output=True)
    assert torch.equal(scores, score(inputs[:4], reading="fisher", per_output=True)) and scores.shape == (4, 3)


@pytest.mark.parametrize("size", [1, 30, 77])
@pytest.mark.parametrize("settings", [{}, {"sketch": "block_srft", "sketch_size": 40}])
def test_the_default_does_not_depend_on_batches_or_order(size, settings):
    model, inputs = problem()
    method = SLU(model, "classification", rank=5, **settings)
    one, fresh = method.fit(inputs), problem(20, seed=1)[1]
    for data in (list(inputs.split(size)), list(inputs.flip(0).split(size))):
        other = method.fit(data)
        assert other.calibration.points == one.calibration.points == int(held(inputs).sum())
        torch.testing.assert_close(other(fresh), one(fresh), rtol=1e-7, atol=1e-8)
    assert not torch.allclose(SLU(model, "classification", rank=5, seed=1, **settings).fit(inputs)(fresh), one(fresh))


def test_the_default_is_saved_and_loaded_as_what_it_came_to(tmp_path):
    model, inputs = problem()
    score = SLU(model, "classification", rank=5).fit(inputs, checkpoint=tmp_path / "run")
    score.save(tmp_path / "net.slu")
    again, method = SLU.load(tmp_path / "net.slu", model), SLU(model, "classification", rank=5)
    assert again.settings.header() == score.settings.header() == method.settings.header()
    assert (again.settings.scale, again.settings.ridge) == (FactoredScale(), RIDGE)
    assert again.scale == score.scale and again.readings == score.readings
    assert torch.equal(again(inputs), score(inputs)) and torch.equal(again.pvalue(inputs), score.pvalue(inputs))
    # A finished checkpoint is that of the same fit with everything said.
    said = SLU(model, "classification", rank=5, scale="factored", ridge=RIDGE).fit(inputs, checkpoint=tmp_path / "run")
    assert torch.equal(said(inputs), score(inputs))


def test_the_papers_score_is_another():
    model, inputs = problem()
    paper = paper_slu(model, "classification", rank=5).fit(inputs, calibration=False)
    assert paper.scale is None and paper.settings.ridge == 0.0
    basis = paper.state.subspace.basis
    rows = jacobian(model, inputs[:9])
    left = (rows - rows @ basis.T @ basis).square().sum((1, 2))
    torch.testing.assert_close(paper(inputs[:9], reading="variance"), left, rtol=1e-8, atol=1e-12)


def test_a_budget_pays_for_the_scale_and_the_layers_first():
    # Two matrices by rows and columns; the kernels and the last matrix, which are small, and the biases by entries.
    kept = (120 + 256) + (84 + 120) + (150 + 2_400 + 840) + (6 + 16 + 120 + 84 + 10)
    # Mean and lower triangle of the layers' inputs, 1, 6, and three folded to 64, and of their directions.
    layers = 2 * sum(w + w * (w + 1) // 2 for w in (1, 6, 64, 64, 64))
    for scale, of_scale in (("auto", kept), ("diagonal", 44_426), (None, 0)):
        method = SLU(lenet(), "classification", scale=scale)
        shape = shape_for(3 * 44_426 - of_scale - layers, 44_426)
        assert (method.rank, method.settings.sketch.size) == (shape.rank, shape.sketch_size)
        numbers = shape.rank * shape.sketch_size + of_scale + layers
        assert method.cost().artefact == 4 * numbers <= 4 * 3 * 44_426
        assert method.cost().passes == (2 if scale == "diagonal" else 1)
    # Lanczos knows no layers.
    plain = SLU(lenet(), "classification", scale=None, solver="lanczos")
    assert (plain.rank, plain.settings.sketch.size) == (141, 945)
    with pytest.raises(BudgetError, match=r"88,852 numbers beside the scale's 44,426.*rank=98 would fit"):
        SLU(lenet(), "classification", budget="3p", rank=300, scale="diagonal")
    with pytest.raises(BudgetError, match=r"the scale alone takes 44,426; give more, or scale=None"):
        SLU(lenet(), "classification", budget="0.9p", scale="diagonal")
    named = r"smallest that fits is 45,227 floats \('1\.02p'\)"
    with pytest.raises(BudgetError, match=named):
        SLU(lenet(), "classification", budget=45_226, scale="diagonal")
    assert SLU(lenet(), "classification", budget="1.02p", scale="diagonal").rank == 1
    with pytest.raises(BudgetError, match=r"a budget of 244,426 floats"):
        SLU(lenet(), "classification", budget="3p", rank=200, sketch_size=1000, scale="diagonal")
    with pytest.raises(BudgetError, match=r"smallest budget is 88,852 floats \('2\.00p'\)"):
        SLU(lenet(), "classification", budget="1.5p", sketch="identity", scale="diagonal")
    with pytest.raises(BudgetError, match=r"the scale alone takes 4,206; .*the smallest that fits .* is 5,007 floats"):
        SLU(lenet(), "classification", budget=4_206)
    assert SLU(lenet(), "classification", budget=5_007).rank == 1
