"""Mahalanobis and its relative against dense float64 formulas and scikit-learn's covariances."""

import numpy as np
import pytest
import torch
from sklearn.covariance import EmpiricalCovariance
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import nn

from featured import last_inputs, points_for
from oracles import NETWORKS, network, outputs_of, targets_for
from shorthand import split
from slu import Mahalanobis, RelativeMahalanobis
from slu.errors import DataError, NumericalError, SettingError


@pytest.fixture(autouse=True)
def _seeded():
    """Weights of networks that are made here."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


RIDGE = 1e-6


def gaussian(features, ridge=RIDGE):
    """The covariance about 0 with its ridge, and so the inverse, from the definition."""
    covariance = features.T @ features / len(features)
    return np.linalg.inv(covariance + ridge * np.trace(covariance) / len(covariance) * np.eye(len(covariance)))


def dense(features, classes, queries, ridge=RIDGE):
    """Both scores, one point and one class at a time."""
    means = {c: features[classes == c].mean(0) for c in np.unique(classes)}
    within = gaussian(np.stack([row - means[c] for row, c in zip(features, classes, strict=True)]), ridge)
    overall = features.mean(0)
    background = gaussian(features - overall, ridge)
    nearest = np.array([min((q - m) @ within @ (q - m) for m in means.values()) for q in queries])
    return nearest, nearest - np.array([(q - overall) @ background @ (q - overall) for q in queries])


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("labelled", [True, False])
def test_formulas(kind, labelled):
    model, inputs, targets, queries = points_for(kind)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        predicted = outputs_of(model, inputs).argmax(1)
    assert bool((predicted != targets).any()), "else it could not be told which of them is used"
    classes = (targets if labelled else predicted).numpy()
    known, asked = (last_inputs(kind, model, each).numpy() for each in (inputs, queries))
    data = split(inputs, targets, sizes=[40, 1, 49]) if labelled else list(inputs.split(35))
    for method, expected in zip((Mahalanobis, RelativeMahalanobis), dense(known, classes, asked), strict=True):
        score = method(model, "classification").fit(data)
        np.testing.assert_allclose(score(queries), expected, rtol=1e-6)
        np.testing.assert_allclose(score(split(queries, sizes=[5, 7])), score(queries), rtol=1e-10)


@pytest.mark.parametrize("likelihood", ["regression", "multilabel"])
@pytest.mark.parametrize("kind", ["mlp", "encoder"])
def test_without_classes_there_is_one_mean(kind, likelihood):
    model, inputs, _, queries = points_for(kind)
    known, asked = (last_inputs(kind, model, each).numpy() for each in (inputs, queries))
    expected, _ = dense(known, np.zeros(len(known)), asked)
    score = Mahalanobis(model, likelihood).fit([(inputs, targets_for(likelihood, len(inputs)))])
    assert score.state["means"].shape[0] == 1
    np.testing.assert_allclose(score(queries), expected, rtol=1e-6)


@pytest.mark.parametrize("kind", ["mlp", "tied"])
def test_against_scikit_learn(kind):
    """Its empirical covariance of features less their class means; its discriminant analysis has the same one."""
    model, inputs, targets, queries = points_for(kind)
    known, asked = (last_inputs(kind, model, each).numpy() for each in (inputs, queries))
    analysis = LinearDiscriminantAnalysis(solver="lsqr", store_covariance=True).fit(known, targets.numpy())
    fitted = EmpiricalCovariance(assume_centered=True).fit(known - analysis.means_[targets.numpy()])
    distances = [fitted.mahalanobis(asked - mean) for mean in analysis.means_]
    score = Mahalanobis(model, "classification", ridge=1e-12).fit((inputs, targets))
    np.testing.assert_allclose(score(queries), np.min(distances, 0), rtol=1e-6)
    np.testing.assert_allclose(fitted.covariance_, analysis.covariance_, rtol=1e-9)
    whole = EmpiricalCovariance().fit(known)
    relative = RelativeMahalanobis(model, "classification", ridge=1e-12).fit((inputs, targets))
    np.testing.assert_allclose(relative(queries), np.min(distances, 0) - whole.mahalanobis(asked), rtol=1e-5, atol=1e-8)
    # Control: the covariance of all points is another one, and would be seen.
    wrong = np.min([whole.mahalanobis(asked - mean + whole.location_) for mean in analysis.means_], 0)
    assert not np.allclose(score(queries), wrong, rtol=0.01)


def test_means_are_what_they_should_be():
    model, inputs, targets, _ = points_for("mlp")
    known = last_inputs("mlp", model, inputs)
    state = Mahalanobis(model, "classification").fit((inputs, targets)).state
    for c in range(3):
        torch.testing.assert_close(state["means"][c], known[targets == c].mean(0))
    root = state["whitening"]
    centred = known - state["means"][targets]
    covariance = centred.T @ centred / len(known)
    torch.testing.assert_close(root.T @ covariance @ root, torch.eye(6).double(), rtol=0, atol=1e-3)


def test_singular_covariances_have_a_ridge():
    """Fewer points than features, and a feature that is constant on the data: what leaves their space is far."""
    model = nn.Linear(20, 3).double()
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(15, 20, generator=draw, dtype=torch.float64)
    inputs[:, 3] = 1.0
    inside, outside = inputs[:5] * 1.01, inputs[:5].clone()
    inside[:, 3], outside[:, 3] = 1.0, 1.5
    score = Mahalanobis(model, "regression").fit(inputs)
    assert bool(torch.isfinite(score(outside)).all())
    assert float(score(outside).min()) > 1000 * float(score(inside).max())
    coarse = Mahalanobis(model, "regression", ridge=1.0).fit(inputs)
    assert float(coarse(outside).max()) < float(score(outside).min())  # what the ridge is for
    expected, _ = dense(inputs.numpy(), np.zeros(15), outside.numpy(), ridge=1.0)
    np.testing.assert_allclose(coarse(outside), expected, rtol=1e-9)


def test_means_far_from_zero_do_not_cancel():
    model, draw = nn.Linear(4, 3).double(), torch.Generator().manual_seed(0)
    inputs = torch.randn(80, 4, generator=draw, dtype=torch.float64)
    near = Mahalanobis(model, "regression").fit(inputs)(inputs[:9])
    far = Mahalanobis(model, "regression").fit([*(inputs + 1e6).split(30)])((inputs + 1e6)[:9])
    torch.testing.assert_close(far, near, rtol=1e-7, atol=0)
    # The control: second moments about 0 lose it.
    plain = (inputs + 1e6).T @ (inputs + 1e6) / 80 - torch.outer((inputs + 1e6).mean(0), (inputs + 1e6).mean(0))
    centred = inputs - inputs.mean(0)
    assert not torch.allclose(plain, centred.T @ centred / 80, rtol=1e-5)


def test_far_points_are_far_and_classes_that_never_came_have_no_mean():
    model, inputs, targets, queries = points_for("mlp")
    targets = targets.clamp(max=1)
    score = Mahalanobis(model, "classification").fit((inputs, targets))
    assert score.state["means"].shape[0] == 2
    assert float(score(inputs).median()) < float(score(20 * queries).median())


def test_what_is_refused():
    model, inputs = network("mlp")
    for method in (Mahalanobis, RelativeMahalanobis):
        for ridge in (0, -1.0, float("nan"), "much"):
            with pytest.raises(SettingError, match="ridge must be a finite number above 0"):
                method(model, "classification", ridge=ridge)
        with pytest.raises(DataError, match="one class index per point"):
            method(model, "classification").fit((inputs, targets_for("regression")))
        with pytest.raises(DataError, match="class indices must lie in 0 to 2"):
            method(model, "classification").fit((inputs, torch.arange(12)))
        with pytest.raises(NumericalError, match=r"features of 12 points in \d classes do not vary within classes"):
            method(model, "classification").fit((inputs[:1].expand(12, 4), torch.zeros(12, dtype=torch.int64)))
    with pytest.raises(NumericalError, match="fit on more points per class"):
        Mahalanobis(model, "classification").fit((inputs[:3], torch.arange(3)))
