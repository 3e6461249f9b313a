"""SLU with calibration points: which are held out, that the fit has not seen them, and what is read by them."""

import pytest
import torch

from calibrated import COMBINED, FAR, SOLVERS, Unsized, combined, former_sum, held, problem, slu, with_distances
from oracles import LIKELIHOODS, ggn, jacobian, leading_eigenvectors, measured_directions, output_hessian, outputs_of
from slu import DiagonalScale, Stream
from slu.core.readout import GRADIENT_READINGS, readings_for
from slu.errors import DataError, SettingError


@pytest.mark.parametrize("scale", [None, "diagonal"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_the_fit_and_its_scale_see_only_what_is_not_held_out(solver, scale):
    model, inputs = problem()
    apart = held(inputs)
    assert 10 < int(apart.sum()) < 40
    method = slu(model, scale=scale, solver=SOLVERS[solver])
    score = method.fit(list(inputs.split(50)))
    alone = method.fit(inputs[~apart], calibration=False)
    for reading in GRADIENT_READINGS:
        torch.testing.assert_close(
            score(inputs, reading=reading), alone(inputs, reading=reading), rtol=1e-6, atol=1e-12
        )
    assert score.diagnostics.points == alone.diagnostics.points == int((~apart).sum())
    for reading in GRADIENT_READINGS:
        expected = alone(inputs[apart], reading=reading, outputs=1).sort().values
        torch.testing.assert_close(score.calibration.scores[reading], expected, rtol=1e-6, atol=1e-12)
    assert score.calibration.source == "held out" and alone.calibration is None
    # Control: with the held-out points in the fit it is another score.
    assert not torch.allclose(method.fit(inputs, calibration=False)(inputs), score(inputs), rtol=1e-4)


def test_a_scale_of_the_first_points_leaves_held_out_ones_out():
    """Of the first points those are in it that are fitted at once, whatever the batches."""
    model, inputs = problem(400)
    first = inputs[:250]  # of which a tenth is more than 19
    score = slu(model, scale=DiagonalScale(points=250)).fit(list(inputs.split(7)))
    rest = first[~held(first)]
    assert 200 < len(rest) < 250
    expected = slu(model, scale="diagonal").fit(rest, calibration=False).scale
    torch.testing.assert_close(score.scale.values, expected.values, rtol=1e-9, atol=0)


@pytest.mark.parametrize("solver", SOLVERS)
def test_batches_order_and_kind_of_loader_do_not_matter(solver):
    model, inputs = problem()
    method = slu(model, solver=SOLVERS[solver])
    one = method.fit(inputs)
    loaders = (
        list(inputs.split(7)),
        Unsized(inputs, 31),
        inputs.flip(0),
        [{"input": part} for part in inputs.split(9)],
    )
    for loader in loaders[:3]:
        other = method.fit(loader)
        for reading in one.readings:
            torch.testing.assert_close(
                other.calibration.scores[reading], one.calibration.scores[reading], rtol=1e-6, atol=1e-6
            )
            torch.testing.assert_close(
                other(inputs, reading=reading), one(inputs, reading=reading), rtol=1e-6, atol=1e-6
            )
    mapped = slu(model, forward=lambda model, tree: model(tree["input"]), solver=SOLVERS[solver]).fit(loaders[3])
    torch.testing.assert_close(mapped({"input": inputs}), one(inputs), rtol=1e-6, atol=1e-9)
    assert mapped.calibration.points == one.calibration.points


def test_another_seed_holds_out_other_points():
    model, inputs = problem()
    scores = [slu(model, seed=seed).fit(inputs).state.calibration.reservoir for seed in (0, 1)]
    first, second = ({point.u for point in pool.points} for pool in scores)
    assert first and second and not first & second


@pytest.mark.parametrize("own", [None, 5])
def test_no_batch_is_larger_than_the_users(own):
    """Activations of more points may be more than there is room for."""
    model, inputs = problem(500)
    sizes = []

    def forward(model, inputs):
        sizes.append(len(inputs))
        return model(inputs)

    data = list(inputs.split(4))
    calibration = None if own is None else list(problem(60, seed=1)[1].split(own))
    score = slu(model, forward=forward).fit(data, calibration=calibration)
    assert score.calibration.points > 20 and max(sizes) == (own or 4)


def test_points_of_ones_own_leave_the_fit_whole():
    model, inputs = problem(300)
    own, rest = inputs[:60], inputs[60:]
    score = slu(model).fit(rest, calibration=list(own.split(7)))
    plain = slu(model).fit(rest, calibration=False)
    for reading in GRADIENT_READINGS:
        assert torch.equal(score(inputs, reading=reading), plain(inputs, reading=reading))
    assert score.calibration.points == 60 and score.calibration.source == "given"
    torch.testing.assert_close(score.calibration.scores["fisher"], plain(own, reading="fisher").sort().values)
    later = plain.calibrate(own)
    torch.testing.assert_close(later.calibration.scores[COMBINED], score.calibration.scores[COMBINED])
    many = slu(model).fit(rest[:50], calibration=problem(1200, seed=1)[1])
    assert many.calibration.points == 1000


def entropy(likelihood, outputs):
    """From the textbook: of the classes, or of every label and summed."""
    if likelihood == "classification":
        return -torch.xlogy(outputs.softmax(1), outputs.softmax(1)).sum(1)
    return -sum(torch.xlogy(prob, prob).sum(1) for prob in (outputs.sigmoid(), 1 - outputs.sigmoid()))


@pytest.mark.parametrize("outputs", [1, "all"])
@pytest.mark.parametrize("scale", [None, "diagonal"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_combined_is_the_dense_formula(likelihood, scale, outputs):
    """Leading eigenvectors of the (scaled) curvature, H from the textbook, standardized on points of one's own."""
    model, inputs = problem(90)
    data, own, fresh = inputs[:40], inputs[40:70], inputs[70:]
    settings = {"ridge": 0.0, "solver": Stream(labels_per_point="all", oversampling=60)}
    score = slu(model, likelihood, scale=scale and DiagonalScale(damping=0.01), **settings).fit(data, calibration=own)
    score = score.calibrate(own, outputs=outputs)
    matrix = ggn(model, data, likelihood)
    diagonal = matrix.diag()
    factors = (diagonal + 0.01 * diagonal[diagonal > 0].median()).rsqrt() if scale else torch.ones_like(diagonal)
    basis = leading_eigenvectors(factors[:, None] * matrix * factors, 5)

    def readings(points):
        rows, predicted = jacobian(model, points) * factors, outputs_of(model, points).detach()
        hessian = output_hessian(likelihood, predicted)
        if outputs == 1:
            directions, values = measured_directions(likelihood, predicted, 1)
            rows, hessian = directions @ rows, values[:, None]
        left = rows - (rows @ basis) @ basis.T
        fisher = torch.einsum("bij,bip,bjp->b", hessian, left, left)
        share = fisher / torch.einsum("bij,bip,bjp->b", hessian, rows, rows)
        values = {"variance": left.square().sum((1, 2)), "fisher": fisher, "fisher-relative": share}
        return values | ({} if likelihood == "regression" else {"entropy": entropy(likelihood, predicted)})

    known, new = with_distances(model, data, (own, readings(own)), (fresh, readings(fresh)))
    torch.testing.assert_close(score(fresh, reading=COMBINED), combined(new, known), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(former_sum(new, known), combined(new, known), rtol=1e-2)
    assert score.readings == (COMBINED, *readings_for(score.settings.likelihood), *FAR)
    assert ("max-logit" in score.readings) == (likelihood == "classification")
    whole = score(fresh, reading=COMBINED)
    torch.testing.assert_close(score(list(fresh.split(3)), reading=COMBINED), whole, rtol=1e-9, atol=1e-9)
    with pytest.raises(SettingError, match="one number per input"):
        score(fresh, reading=COMBINED, per_output=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("outputs", "memory"), [(3, None), (3, 120), (40, None)])
def test_all_readings_at_once_are_those_one_by_one(outputs, memory, dtype):
    """From combined gradients; with room for one gradient at a time, and with many outputs, from twice as many."""
    model, inputs = problem(30, outputs, dtype=dtype)
    score = slu(model, memory=memory, scale="diagonal").fit(inputs, calibration=False)
    together = score.read_all(list(inputs.split(8)))
    rounding = 1e-9 if dtype == torch.float64 else 2e-4
    for reading in GRADIENT_READINGS:
        torch.testing.assert_close(together[reading], score(inputs, reading=reading), rtol=rounding, atol=0)
        assert together[reading].dtype == dtype
    logits = model(inputs).detach().amax(1).double()  # in another batch, which may round otherwise
    torch.testing.assert_close(together["max-logit"], -logits, rtol=rounding, atol=rounding)


def test_pvalues_flags_and_thresholds_agree():
    model, inputs = problem(800)
    score = slu(model).fit(inputs)
    _, fresh = problem(100, seed=3)
    fresh = 2 * fresh
    for reading in (None, *score.readings):
        scores = score(fresh, reading=reading)
        values = score.pvalue(fresh, reading=reading)
        paper = reading in ("variance", "relative")
        known = score.state.calibration.others["all"] if paper else score.calibration
        known = known.scores[reading or score.readings[0]]
        expected = (1 + (known >= scores.double()[:, None]).sum(1)).double() / (1 + len(known))
        assert torch.equal(values, expected) and values.dtype == torch.float64
        for rate in (0.05, 0.2, 0.5):
            flagged = score.flag(fresh, false_alarms=rate, reading=reading)
            assert flagged.dtype == torch.bool
            assert torch.equal(flagged, values <= rate)
            assert torch.equal(flagged, scores > score.threshold(rate, reading=reading))
    assert 0 < int(score.flag(fresh).sum()) < 100
    assert torch.equal(score.flag(list(fresh.split(9))), score.flag(fresh))
    with pytest.raises(SettingError, match="points are needed"):
        score.flag(fresh, false_alarms=1e-4)
    with pytest.raises(
        SettingError, match=r"'fisher-relative', 'entropy', 'max-logit', 'distance', 'angle', 'combined'"
    ):
        score.pvalue(fresh, reading="fishy")


class Never:
    """Data that must not be read."""

    def __iter__(self):
        raise AssertionError("the fit has begun")


@pytest.mark.parametrize("own", [[], torch.full((3, 4), float("nan"), dtype=torch.float64), torch.ones(3, 5).double()])
def test_calibration_points_that_cannot_be_used_are_refused_before_the_fit(own):
    model, inputs = problem(30)
    with pytest.raises((DataError, RuntimeError)) as caught:
        slu(model).fit(Never(), calibration=own)
    assert "the fit has begun" not in str(caught.value)
    score = slu(model).fit(inputs)
    with pytest.raises((DataError, RuntimeError)) as caught:
        score.partial_fit(Never(), calibration=own)
    assert "the fit has begun" not in str(caught.value)
