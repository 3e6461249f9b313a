"""Training: it learns, it repeats itself, and it leaves the global random state alone."""

import pytest
import torch
from torch import nn

from slu.errors import DataError, NumericalError, SettingError
from slu.experiments.models import MLP
from slu.experiments.randomness import seeded
from slu.experiments.training import accuracy, train
from slu.methods.random_state import fenced
from slu.seeds import stream


@pytest.fixture
def blobs():
    """Three well separated clouds in the plane."""
    targets = torch.arange(90) % 3
    centres = torch.tensor([[0.0, 3.0], [3.0, 0.0], [-3.0, -3.0]])
    return centres[targets] + 0.5 * torch.randn(90, 2, generator=stream(0, "blobs")), targets


def dropout_net():
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 3))


def test_it_learns(blobs):
    model = seeded(lambda: MLP((2, 16, 3)), seed=0)
    seen = []
    losses = train(model, *blobs, epochs=40, learning_rate=0.01, progress=lambda *told: seen.append(told))
    assert accuracy(model, *blobs) == 1.0
    assert losses[-1] < 0.2 * losses[0]
    assert seen == list(enumerate(losses, start=1))
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_same_seed_gives_the_same_network_whatever_was_drawn_before(blobs):
    trained = []
    for before, seed in ((0, 5), (3, 5), (0, 6)):
        torch.rand(before)
        model = seeded(dropout_net, seed=0)
        train(model, *blobs, epochs=2, batch_size=16, seed=seed)
        trained.append(nn.utils.parameters_to_vector(model.parameters()))
    assert torch.equal(trained[0], trained[1])
    assert not torch.equal(trained[0], trained[2])


def test_the_global_random_state_is_left_alone_even_after_an_error(blobs):
    state = torch.get_rng_state()
    train(seeded(dropout_net, seed=0), *blobs, epochs=1)
    with pytest.raises(KeyError), fenced(0, "test"):
        torch.rand(1)
        raise KeyError
    assert torch.equal(torch.get_rng_state(), state)


def test_accuracy_counts_in_batches_and_keeps_the_mode(blobs):
    inputs, targets = blobs
    model = seeded(dropout_net, seed=0).train()
    whole = accuracy(model, inputs, targets)
    assert accuracy(model, inputs, targets, batch_size=7) == whole
    assert model.training
    with torch.no_grad():
        assert whole == pytest.approx(float((model.eval()(inputs).argmax(1) == targets).double().mean()))


@pytest.mark.parametrize(
    "settings", [{"epochs": 0}, {"epochs": 1, "batch_size": 0}, {"epochs": 1, "learning_rate": float("nan")}]
)
def test_impossible_settings_are_refused(blobs, settings):
    with pytest.raises(SettingError, match="epochs and batch_size"):
        train(MLP((2, 3)), *blobs, **settings)


def test_data_that_do_not_fit_are_refused(blobs):
    inputs, targets = blobs
    for bad in ((inputs, targets[1:]), (inputs[:0], targets[:0]), (inputs, targets[:, None])):
        with pytest.raises(DataError, match="expected n ≥ 1 inputs"):
            accuracy(MLP((2, 3)), *bad)


def test_a_loss_that_is_not_finite_stops_the_training(blobs):
    inputs, targets = blobs
    with pytest.raises(NumericalError, match="the training loss is nan in epoch 1"):
        train(MLP((2, 3)), inputs / 0 * 0, targets, epochs=3)
