"""ViM against the formulas of the paper in numpy and scikit-learn's covariance, as the authors' code has it."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.covariance import EmpiricalCovariance
from torch import nn

from featured import head, last_inputs, points_for
from oracles import NETWORKS, network
from shorthand import split
from slu import ViM
from slu.errors import ChangedDataError, ModelError, NumericalError, SettingError


@pytest.fixture(autouse=True)
def _seeded():
    """Weights of networks that are made here."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def authors(weight, bias, known, asked, dimension):
    """The score of the authors' code: the covariance of scikit-learn about the offset, eigenvectors by numpy."""
    offset = -np.linalg.pinv(weight) @ bias
    fitted = EmpiricalCovariance(assume_centered=True).fit(known - offset)
    values, vectors = np.linalg.eig(fitted.covariance_)
    others = vectors.T[np.argsort(-values)[dimension:]].T
    logits = known @ weight.T + bias
    alpha = logits.max(-1).mean() / np.linalg.norm((known - offset) @ others, axis=-1).mean()
    outside = np.linalg.norm((asked - offset) @ others, axis=-1) * alpha
    return outside - logsumexp(asked @ weight.T + bias, axis=-1)


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("dimension", [None, 1, 3])
def test_against_the_authors(kind, dimension):
    model, inputs, targets, queries = points_for(kind)
    layer = head(kind, model)
    weight, bias = (each.detach().numpy() for each in (layer.weight, layer.bias))
    known, asked = (last_inputs(kind, model, each).numpy() for each in (inputs, queries))
    score = ViM(model, "classification", dimension=dimension).fit(split(inputs, targets, sizes=[40, 1, 49]))
    expected = authors(weight, bias, known, asked, dimension or known.shape[1] // 2)
    np.testing.assert_allclose(score(queries), expected, rtol=1e-8)
    np.testing.assert_allclose(score(list(queries.split(5))), expected, rtol=1e-8)
    wrong = authors(weight, bias, known, asked, (dimension or known.shape[1] // 2) - 1)  # the control
    assert not np.allclose(score(queries), wrong, rtol=1e-3)


def test_a_layer_without_bias():
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3, bias=False)).double()
    inputs = points_for("mlp")[1]
    known = model[:2](inputs).detach().numpy()
    weight = model[2].weight.detach().numpy()
    score = ViM(model, "classification").fit(inputs)
    np.testing.assert_allclose(score(inputs), authors(weight, np.zeros(3), known, known, 3), rtol=1e-8)
    assert not score.state["offset"].any()


def test_the_mean_of_both_parts_is_the_same():
    """What α is for, on the data of the fit."""
    model, inputs, _, _ = points_for("conv")
    state = ViM(model, "classification").fit(inputs).state
    known = last_inputs("conv", model, inputs)
    outside = ((known - state["offset"]) @ state["residual"].T).norm(dim=1) * state["alpha"]
    logits = head("conv", model)(known).detach()
    torch.testing.assert_close(outside.mean(), logits.amax(1).mean())
    residual = state["residual"]
    torch.testing.assert_close(residual @ residual.T, torch.eye(len(residual)).double())


def test_few_points_have_a_smaller_space():
    """Of 12 points in 48 features half would hold all of them."""
    model, inputs, _, queries = points_for("conv")
    score = ViM(model, "classification").fit(inputs[:12])
    assert score.state["residual"].shape == (48 - 6, 48)
    assert bool(torch.isfinite(score(queries)).all())
    with pytest.raises(NumericalError, match=r"principal space of dimension 24.*take dimension= below the rank"):
        ViM(model, "classification", dimension=24).fit(inputs[:12])


def test_what_is_refused():
    model, inputs, _, _ = points_for("mlp")
    for dimension, message in ((0, "at least 1, got 0"), (1.5, "a whole number")):
        with pytest.raises(SettingError, match=f"dimension must be {message}"):
            ViM(model, "classification", dimension=dimension)
    with pytest.raises(SettingError, match="dimension=6 leaves nothing of 6 features outside"):
        ViM(model, "classification", dimension=6).fit(inputs)
    with pytest.raises(ModelError, match=r"'0' has 6 outputs and the model 3"):
        ViM(model, "classification", features="0").fit(inputs)

    def lowered(model, inputs):
        return model(inputs) - 100

    with pytest.raises(NumericalError, match=r"largest logits average -\d+.*must be positive. Add a constant"):
        ViM(model, "classification", forward=lowered).fit(inputs)


def test_data_that_change_are_refused():
    model, _ = network("mlp")

    class Augmented:
        def __init__(self):
            self.passes = 0

        def __iter__(self):
            self.passes += 1
            yield points_for("mlp")[1] + self.passes

    with pytest.raises(ChangedDataError, match="differ in content"):
        ViM(model, "classification").fit(Augmented())
