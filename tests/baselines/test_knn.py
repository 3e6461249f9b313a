"""KNN against scikit-learn's nearest neighbours and plain differences."""

import copy

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize
from torch import nn

import slu.baselines.knn
from featured import last_inputs, points_for
from oracles import NETWORKS, network
from slu import KNN
from slu.errors import SettingError


@pytest.fixture(autouse=True)
def _seeded():
    """Weights of networks that are made here."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def expected(known, asked, neighbours):
    fitted = NearestNeighbors(n_neighbors=neighbours, algorithm="brute").fit(normalize(known))
    return fitted.kneighbors(normalize(asked))[0][:, -1]


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("neighbours", [None, 1, 7, 90])
def test_against_scikit_learn(kind, neighbours):
    model, inputs, _, queries = points_for(kind)
    known, asked = (last_inputs(kind, model, each).numpy() for each in (inputs, queries))
    score = KNN(model, "classification", neighbours=neighbours).fit(list(inputs.split(40)))
    right = expected(known, asked, neighbours or 50)
    np.testing.assert_allclose(score(queries), right, rtol=1e-9)
    np.testing.assert_allclose(score(list(queries.split(5))), right, rtol=1e-9)
    # Controls: another neighbour, and features that are not normalized.
    assert not np.allclose(score(queries), expected(known, asked, {90: 89}.get(neighbours, (neighbours or 50) + 1)))
    plain = NearestNeighbors(n_neighbors=neighbours or 50).fit(known).kneighbors(asked)[0][:, -1]
    assert not np.allclose(score(queries), plain, rtol=0.01)


def test_fewer_points_than_neighbours():
    model, inputs, _, queries = points_for("mlp")
    score = KNN(model, "regression").fit(inputs[:20])
    known, asked = (last_inputs("mlp", model, each).numpy() for each in (inputs[:20], queries))
    np.testing.assert_allclose(score(queries), expected(known, asked, 20), rtol=1e-9)
    with pytest.raises(SettingError, match=r"neighbours=21 is above the 20 points of the fit; lower it"):
        KNN(model, "regression", neighbours=21).fit(inputs[:20])


def test_points_are_chosen_by_content_and_seed():
    model, inputs, _, queries = points_for("mlp")
    settings = {"points": 30, "neighbours": 5}
    kept = KNN(model, "classification", **settings).fit(inputs).state["points"]
    assert kept.shape == (30, 6)
    order = torch.randperm(90, generator=torch.Generator().manual_seed(1))
    for data in (list(inputs.split(7)), inputs[order], list(inputs[order].split(31))):
        torch.testing.assert_close(KNN(model, "classification", **settings).fit(data).state["points"], kept)
    other = KNN(model, "classification", **settings, seed=1).fit(inputs)
    assert not torch.allclose(other.state["points"], kept)
    # They are points of the data, and every one at most once.
    known = torch.nn.functional.normalize(last_inputs("mlp", model, inputs), dim=1)
    places = torch.cdist(kept, known).argmin(1)
    torch.testing.assert_close(known[places], kept)
    assert len(places.unique()) == 30
    np.testing.assert_allclose(other(queries).numpy() > 0, True)


def test_queries_in_pieces(monkeypatch):
    model, inputs, _, queries = points_for("encoder")
    whole = KNN(model, "classification").fit(inputs)(queries)
    monkeypatch.setattr(slu.baselines.knn, "_PRODUCTS", 200)  # two queries at a time
    torch.testing.assert_close(KNN(model, "classification").fit(inputs)(queries), whole, rtol=1e-12, atol=0)


def test_small_distances_do_not_cancel():
    """A step of 1e-9 beside a point of the data; a distance from products of float64 is 0 or 1e-8 there."""
    model, inputs, _, _ = points_for("mlp")
    linear = nn.Linear(6, 3).double()
    points = last_inputs("mlp", model, inputs)
    score = KNN(linear, "classification", neighbours=1).fit(points)
    assert float(score(points).max()) < 1e-15
    direction = torch.nn.functional.normalize(torch.randn(90, 6, generator=torch.Generator().manual_seed(0)).double())
    near = torch.nn.functional.normalize(points) + 1e-9 * direction
    known = torch.nn.functional.normalize(points)
    right = (torch.nn.functional.normalize(near) - known).norm(dim=1)
    torch.testing.assert_close(score(near), right, rtol=1e-5, atol=0)
    products = (2 - 2 * (torch.nn.functional.normalize(near) * known).sum(1)).clamp(min=0).sqrt()  # the control
    assert not torch.allclose(products, right, rtol=0.1, atol=0)


def test_float32_points_take_half():
    model, inputs, _, queries = points_for("mlp")
    exact = KNN(copy.deepcopy(model), "classification").fit(inputs)
    half = KNN(model.float(), "classification").fit(inputs.float())
    assert (exact.state["points"].dtype, half.state["points"].dtype) == (torch.float64, torch.float32)
    torch.testing.assert_close(half(queries.float()), exact(queries), rtol=1e-5, atol=0)


def test_small_features_have_a_direction(tmp_path):
    """Points that are kept have length 1, or 0, which a file is checked for."""
    model = nn.Sequential(nn.Identity(), nn.Linear(3, 2)).double()
    inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)).double()
    score = KNN(model, "classification", neighbours=2).fit(1e-30 * inputs)
    expected = KNN(model, "classification", neighbours=2).fit(inputs)(inputs)
    torch.testing.assert_close(score(inputs), expected)
    score.save(tmp_path / "net.slu")
    assert torch.equal(KNN.load(tmp_path / "net.slu", model)(inputs), score(inputs))


def test_no_direction():
    """Features that are all 0 stay 0, at a distance of 1 from every point."""
    model = nn.Linear(4, 3).double()
    points = torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(
        KNN(model, "classification").fit(points)(torch.zeros(2, 4).double()), torch.ones(2).double()
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"neighbours": 0}, "neighbours must be at least 1, got 0"),
        ({"neighbours": 2.5}, "neighbours must be a whole number"),
        ({"points": 0}, "points must be at least 1"),
        ({"neighbours": 20, "points": 10}, "neighbours=20 is above points=10"),
        ({"seed": "x"}, "the seed must be a whole number"),
    ],
)
def test_what_is_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        KNN(network("mlp")[0], "classification", **settings)


@pytest.mark.parametrize("seed", range(3))
def test_inputs_that_repeat_are_as_frequent_among_the_points_kept(seed):
    """Drawn by content alone, all copies of one input would be kept, and none of another."""
    model, inputs, _, _ = points_for("mlp")
    many = inputs[:4].repeat(250, 1)
    kept = KNN(model, "classification", points=200, seed=seed).fit(list(many.split(64))).state["points"]
    distinct, counts = kept.unique(dim=0, return_counts=True)
    assert len(distinct) == 4 and int(counts.sum()) == 200
    assert int((counts - 50).abs().max()) < 5 * (200 * 0.25 * 0.75 * 0.8) ** 0.5  # of 200 drawn of 1,000
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
    again = KNN(model, "classification", points=200, seed=seed).fit(list(many[order].split(30))).state["points"]
    assert torch.equal(again.unique(dim=0, return_counts=True)[1], counts)
