"""P-values do not depend on the batch, the order or the place of an input in memory: bit for bit, also with ties."""

import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

from matrix import step
from slu import SLU
from slu.core.rounding import Edges, measured_rounding
from slu.core.standard import ReadingScale

FEW, MANY = 1500, 10_000
SIZES = (7, 64, 256)


def network(kind, dtype):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "mlp":
            model, shape = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3)), (6,)
        else:
            layers = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(96, 3)
            model, shape = nn.Sequential(*layers), (1, 8, 8)
    return model.to(dtype), shape


def mixed(count, shape, dtype, seed):
    """Half of the points are binary inputs of which there are few; the others are continuous."""
    draw = torch.Generator().manual_seed(seed)
    repeated = (torch.rand(12, *shape, generator=torch.Generator().manual_seed(99)) < 0.5).to(dtype)
    points = torch.randn(count, *shape, generator=draw, dtype=torch.float64).to(dtype)
    places = torch.randint(12, (count,), generator=draw)
    return torch.where(torch.arange(count).view(-1, *[1] * len(shape)) % 2 == 0, points, repeated[places])


def fitted(kind, dtype, points=4000):
    model, shape = network(kind, dtype)
    inputs = mixed(points, shape, dtype, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SLU(model, "classification", rank=8).fit(list(inputs.split(100))), shape


def in_parts(ask, queries, size):
    return torch.cat([ask(part) for part in queries.split(size)])


def check_the_same(ask, queries, alone):
    """In batches of several sizes, shuffled, and for some points alone."""
    expected = ask(queries)
    for size in SIZES:
        assert torch.equal(in_parts(ask, queries, size), expected), size
    order = torch.randperm(len(queries), generator=torch.Generator().manual_seed(5))
    assert torch.equal(in_parts(ask, queries[order], 100), expected[order])
    places = order[:alone]
    assert torch.equal(torch.cat([ask(queries[place : place + 1]) for place in places.tolist()]), expected[places])
    return expected


def plain_pvalues(score, reading="combined"):
    """The control: c ≥ s compared as it is, without a tolerance and without scoring anything again."""
    known = score.calibration.scores[reading]
    return lambda points: 1 - torch.searchsorted(known, score(points, reading=reading).double()).double() / len(known)


def differing(ask, queries):
    return max(int((in_parts(ask, queries, size) != ask(queries)).sum()) for size in (1, *SIZES))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_a_pvalue_is_the_same_in_every_batch(kind, dtype):
    score, shape = fitted(kind, dtype)
    queries = mixed(FEW, shape, dtype, 1)
    pvalues = check_the_same(score.pvalue, queries, 150)
    assert len(pvalues.unique()) > 100, "continuous points have many p-values"
    if dtype == torch.float32:  # in float64 some machines round every row alike in all batches
        assert differing(plain_pvalues(score), queries[:300]), "control"
    expected = score(queries) > score.threshold(0.2)
    assert torch.equal(score.flag(queries, false_alarms=0.2), pvalues <= 0.2)
    assert int((expected != (pvalues <= 0.2)).sum()) <= 1, "away from the threshold it agrees"
    loader = score.pvalue(list(queries.split(33)))
    assert torch.equal(loader, pvalues)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "dtype"), [("mlp", torch.float32)], ids=str)
def test_thousands_of_pvalues_are_the_same_alone_and_in_every_batch(kind, dtype):
    score, shape = fitted(kind, dtype)
    queries = mixed(MANY // step(5), shape, dtype, 1)
    check_the_same(score.pvalue, queries, len(queries))


@pytest.mark.parametrize("reading", ["fisher", "variance", "entropy", "max-logit", "distance"])
def test_other_readings(reading):
    score, shape = fitted("mlp", torch.float32, 1500)
    check_the_same(lambda points: score.pvalue(points, reading=reading), mixed(300, shape, torch.float32, 1), 60)


def test_control_without_scoring_again_or_without_a_tolerance_batches_decide():
    """Calibrated on the queries themselves in batches of 13: without the tolerance rounding decides every tie."""
    score, shape = fitted("conv", torch.float32)
    queries = mixed(400, shape, torch.float32, 1)
    score.calibrate(list(queries.split(13)))
    check_the_same(score.pvalue, queries, 100)
    assert differing(plain_pvalues(score), queries) > 50
    # The tolerance alone leaves scores at an edge: shift the edges onto the queries' scores.
    values = score(queries).double()
    edges = Edges.of(values - 4e-7 * values.abs(), positive=False, rounding=1e-7 * float(values.abs().mean()))
    unsettled = lambda points: edges.below(score(points))  # noqa: E731
    assert differing(unsettled, queries)


def test_how_many_are_scored_again():
    """Few of continuous points, none of those that tie with a calibration point."""
    score, shape = fitted("mlp", torch.float32)
    near = score.calibration.edges("combined").near(score(mixed(FEW, shape, torch.float32, 1)))
    assert float(near[::2].double().mean()) < 0.1 and not bool(near[1::2].any())


@pytest.mark.parametrize("positive", [True, False])
def test_edges_by_their_definition(positive):
    draw = torch.Generator().manual_seed(0)
    known = (torch.rand(50, generator=draw, dtype=torch.float64) - (0.0 if positive else 0.5)).sort().values
    unit = torch.maximum(known.abs(), known[0] if positive else known.abs().mean())
    edges = Edges.of(known, positive, 1e-3)
    scores = torch.linspace(-0.6, 1.1, 3001, dtype=torch.float64)
    expected = (scores[:, None] > known + 4e-3 * unit).sum(1).double()
    assert torch.equal(edges.below(scores), expected)
    expected = ((scores[:, None] - known - 4e-3 * unit).abs() <= 2e-3 * unit).any(1)
    assert torch.equal(edges.near(scores), expected) and bool(expected.any()) and not bool(expected.all())
    odd = torch.tensor([torch.nan, torch.inf, -torch.inf])
    assert edges.below(odd)[1:].tolist() == [50, 0] and bool(edges.below(odd)[0].isnan())
    assert not bool(edges.near(odd).any())


def test_the_rounding_is_four_times_the_largest_difference_and_never_nothing():
    scores = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    assert float(measured_rounding(scores, torch.tensor([1.0, 2.002]).double(), True, 1e-9)) == pytest.approx(
        4e-3, 1e-2
    )
    assert float(measured_rounding(scores, scores[:2], True, 1e-9)) == 4e-9
    assert float(measured_rounding(scores, scores[:0], True, 1e-9)) == 1e-9


def test_scores_that_differ_by_rounding_alone_have_no_scale():
    noise = torch.rand(40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for values, positive in ((1 + 1e-7 * noise, True), (-3 + 1e-7 * noise, False)):
        assert ReadingScale.of(values, positive, rounding=1e-6) is None
        assert ReadingScale.of(values, positive) is not None, "control"


def test_it_is_kept_in_a_file_and_an_older_one_has_that_of_float32(tmp_path):
    score, _ = fitted("mlp", torch.float64, 600)
    score.save(tmp_path / "net.slu")
    again = SLU.load(tmp_path / "net.slu", score.settings.network.model)
    assert again.calibration.rounding == score.calibration.rounding and set(again.calibration.rounding) == set(
        score.calibration.scores
    )
    assert score.calibration.rounding["combined"] < 1e-10
    older = replace(again.calibration, rounding={})
    assert older.threshold(0.2, "fisher") == pytest.approx(score.threshold(0.2, reading="fisher"), rel=1e-5)
    assert older.threshold(0.2, "fisher") > score.threshold(0.2, reading="fisher")
