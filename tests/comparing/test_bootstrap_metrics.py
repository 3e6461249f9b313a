"""Metrics of many resamples at once, against scikit-learn and against the resamples written out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from slu.comparing.bootstrap import InsideOrder, OutsideOrder, Scored, resampled_metrics, resamples
from slu.comparing.metrics import detect

SCORES = st.lists(st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0, np.inf]), min_size=1, max_size=10).map(np.array)
RNG = np.random.default_rng


def metrics(inside, outside, counts_inside, counts_outside):
    """(3, r), from counts (n, r) and (m, r)."""
    order = InsideOrder(inside)
    return OutsideOrder(order, outside).metrics(order.below(counts_inside), counts_outside)


def written_out(scores, counts):
    return np.repeat(scores, counts.astype(int))


def drawn(points, seed):
    return RNG(seed).multinomial(points, np.full(points, 1 / points), size=5).T.astype(float)


@given(SCORES, SCORES, st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_a_resample_is_judged_as_if_it_were_written_out(inside, outside, seed):
    one, two = drawn(len(inside), seed), drawn(len(outside), seed + 1)
    values = metrics(inside, outside, one, two)
    for place in range(5):
        expected = detect(written_out(inside, one[:, place]), written_out(outside, two[:, place]))
        assert values[:, place] == pytest.approx([expected.auroc, expected.aupr, expected.fpr95], abs=1e-12)


@pytest.mark.parametrize("digits", [1, 6], ids=["many ties", "few ties"])
@pytest.mark.parametrize(("n", "m"), [(300, 200), (1, 50), (50, 1), (7, 7)])
def test_against_scikit_learn_with_weights(n, m, digits):
    rng = RNG(n + m)
    inside, outside = rng.normal(size=n).round(digits), (rng.normal(size=m) + 0.7).round(digits)
    one, two = drawn(n, 0), drawn(m, 1)
    values = metrics(inside, outside, one, two)
    labels, scores = np.repeat([0, 1], [n, m]), np.concatenate([inside, outside])
    for place in range(5):
        weights = np.concatenate([one[:, place], two[:, place]])
        assert values[0, place] == pytest.approx(roc_auc_score(labels, scores, sample_weight=weights), abs=1e-12)
        expected = average_precision_score(labels, scores, sample_weight=weights)
        assert values[1, place] == pytest.approx(expected, abs=1e-12)


def test_every_point_once_is_the_point_value():
    inside, outside = RNG(0).normal(size=40).round(1), RNG(1).normal(size=30).round(1)
    expected = detect(inside, outside)
    values = metrics(inside, outside, np.ones((40, 1)), np.ones((30, 1)))[:, 0]
    assert values == pytest.approx([expected.auroc, expected.aupr, expected.fpr95], abs=1e-12)


def test_constant_scores_are_guessing_in_every_resample():
    values = metrics(np.zeros(6), np.zeros(2), drawn(6, 0), drawn(2, 1))
    assert np.array_equal(values, np.repeat([[0.5], [0.25], [1.0]], 5, axis=1))


def test_counts_are_resamples_of_the_right_size():
    blocks = list(resamples(30, {"a": 20, "b": 7}, 120, seed=0))
    inside = np.concatenate([block.inside for block in blocks], axis=1)
    assert inside.shape == (30, 120)
    assert (inside.sum(0) == 30).all() and (inside >= 0).all()
    for name, points in {"a": 20, "b": 7}.items():
        counts = np.concatenate([block.outside[name] for block in blocks], axis=1)
        assert counts.shape == (points, 120) and (counts.sum(0) == points).all()


def test_every_point_is_drawn_alike():
    """The mean count of a point over 3,000 resamples is 1 within 5 of its standard errors, √((1 - 1/n)/3000)."""
    counts = np.concatenate([block.inside for block in resamples(25, {}, 3000, seed=3)], axis=1)
    error = np.sqrt((1 - 1 / 25) / 3000)
    assert np.abs(counts.mean(1) - 1).max() < 5 * error
    # Multinomial: two points' counts correlate by -1/(n - 1); were columns alike, or points, by 1.
    assert np.cov(counts).diagonal() == pytest.approx(np.full(25, 1 - 1 / 25), rel=0.2)
    assert len({column.tobytes() for column in counts.T}) == 3000


def test_resamples_depend_on_seed_and_name_and_on_nothing_else():
    def first(**changed):
        asked = {"inside": 30, "outside": {"a": 20}, "count": 60, "seed": 0} | changed
        return next(iter(resamples(**asked)))

    assert np.array_equal(first().inside, first(outside={"b": 3, "a": 20}, count=200).inside)
    assert np.array_equal(first().outside["a"], first(outside={"b": 20, "a": 20}).outside["a"])
    assert not np.array_equal(first().inside, first(seed=1).inside)
    both = first(outside={"a": 20, "b": 20}).outside
    assert not np.array_equal(both["a"], both["b"])
    # Fewer resamples are the first of more.
    few = np.concatenate([block.inside for block in resamples(30, {}, 70, 0)], axis=1)
    many = np.concatenate([block.inside for block in resamples(30, {}, 200, 0)], axis=1)
    assert np.array_equal(few, many[:, :70])


def test_scores_meet_the_same_resamples_whoever_is_beside_them():
    rng = RNG(5)
    scored = [Scored(rng.normal(size=50), {"a": rng.normal(size=40), "b": rng.normal(size=30)}) for _ in range(3)]
    paired = resampled_metrics(scored, count=80, seed=0)
    alone = resampled_metrics([Scored(scored[1].inside, {"b": scored[1].outside["b"]})], count=80, seed=0)
    assert np.array_equal(paired[1]["b"], alone[0]["b"])
    assert paired[1]["b"].shape == (3, 80)
    # Two scores of one order get the very same numbers.
    doubled = Scored(2 * scored[0].inside, {"a": 2 * scored[0].outside["a"]})
    assert np.array_equal(resampled_metrics([scored[0], doubled], count=80, seed=0)[1]["a"], paired[0]["a"])
    assert resampled_metrics([], count=80, seed=0) == []
