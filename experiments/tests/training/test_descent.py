"""Training: it learns, it repeats itself, and it leaves the global random state alone."""

import pytest
import torch
from torch import nn

from slu.errors import DataError, NumericalError
from slu.seeds import fenced, stream
from slu_experiments.data import Memory, Normalized
from slu_experiments.models import MLP, seeded
from slu_experiments.training import Augmentation, Recipe, accuracy, evaluate, split, train

QUICK = Recipe(epochs=2, batch_size=16)


@pytest.fixture
def blobs():
    """Three well separated clouds in the plane."""
    targets = torch.arange(90) % 3
    centres = torch.tensor([[0.0, 3.0], [3.0, 0.0], [-3.0, -3.0]])
    return Memory(centres[targets] + 0.5 * torch.randn(90, 2, generator=stream(0, "blobs")), targets)


def dropout_net():
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 3))


def flat(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def test_it_learns(blobs):
    model = seeded(lambda: MLP((2, 16, 3)), seed=0)
    course = train(model, blobs, Recipe(epochs=40, learning_rate=0.01))
    assert accuracy(model, blobs) == 1.0
    assert len(course.losses) == 40 and course.losses[-1] < 0.2 * course.losses[0]
    assert course.seconds > 0
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_bar_tells_epoch_and_loss_where_it_is_asked_for(blobs, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
    monkeypatch.setenv("COLUMNS", "200")
    course = train(MLP((2, 3)), blobs, QUICK, progress=True)
    told = capsys.readouterr().err
    assert f"epoch 2 of 2, loss {course.losses[-1]:.4f}" in told and "training" in told
    train(MLP((2, 3)), blobs, QUICK)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("likelihood", "targets"),
    [("regression", lambda x: x @ torch.tensor([[1.0, 0.5], [-1.0, 2.0]])), ("multilabel", lambda x: (x > 0).float())],
)
def test_it_learns_other_likelihoods(likelihood, targets):
    inputs = torch.randn(120, 2, generator=stream(0, "inputs"))
    source = Memory(inputs, targets(inputs))
    model = seeded(lambda: MLP((2, 16, 2)), seed=0)
    before = evaluate(model, source, likelihood)
    train(model, source, Recipe(epochs=60, learning_rate=0.02), likelihood=likelihood)
    after = evaluate(model, source, likelihood)
    assert after.loss < 0.2 * before.loss
    assert after.accuracy is None if likelihood == "regression" else after.accuracy > 0.97


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_step_is_the_clipped_gradient_step(optimizer):
    """One epoch of one batch, against the gradient written out."""
    inputs, targets = torch.tensor([[100.0, 0.001], [-80.0, 0.002]]), torch.tensor([0, 1])
    model = seeded(lambda: nn.Linear(2, 2, bias=False), seed=0)
    first = model.weight.detach().clone()
    probabilities = (inputs @ first.T).softmax(1)
    gradient = ((probabilities - torch.eye(2)).T @ inputs / 2).clamp(-0.01, 0.01)
    assert bool((gradient.abs() == 0.01).any()) and bool((gradient.abs() < 0.01).any())
    train(model, Memory(inputs, targets), Recipe(optimizer, 0.1, epochs=1, clip=0.01))
    moved = model.weight.detach() - first
    # Adam's first step has the sign of the gradient and the length of the rate.
    expected = -0.1 * (gradient if optimizer == "sgd" else gradient / (gradient.abs() + 1e-8))
    torch.testing.assert_close(moved, expected, atol=1e-6, rtol=1e-3)


def test_the_rate_of_an_epoch_is_the_recipes():
    """A constant gradient: the loss -y f has slope y whatever f is, so each epoch moves by its rate."""

    class Slope:
        def loss(self, outputs, targets):
            return outputs[:, 0] * targets[:, 0]

        def hessian_product(self, outputs, vectors):
            raise NotImplementedError

        factor_product = sample = hessian_product

    recipe = Recipe("sgd", 0.1, epochs=10, milestones=(0.6, 0.85), batch_size=4)
    model = nn.Linear(1, 1, bias=False)
    first = model.weight.item()
    train(model, Memory(torch.ones(4, 1), torch.ones(4, 1)), recipe, likelihood=Slope())
    assert first - model.weight.item() == pytest.approx(0.1 * 6 + 0.01 * 2 + 0.001 * 2, rel=1e-4)


def test_the_same_seed_gives_the_same_network_whatever_was_drawn_before(blobs):
    trained = []
    for before, seed in ((0, 5), (3, 5), (0, 6)):
        torch.rand(before)
        model = seeded(dropout_net, seed=0)
        train(model, blobs, QUICK, seed=seed)
        trained.append(flat(model))
    assert torch.equal(trained[0], trained[1])
    assert not torch.equal(trained[0], trained[2])


def test_every_epoch_has_an_order_of_its_own(blobs):
    class Watching:
        shape = (2,)

        def __init__(self):
            self.seen = []

        def __len__(self):
            return len(blobs)

        def read(self, indices):
            self.seen.append(indices.tolist())
            return blobs.read(indices)

    source = Watching()
    train(MLP((2, 3)), source, Recipe(epochs=2, batch_size=40, drop_last=True))
    epochs = [source.seen[-4] + source.seen[-3], source.seen[-2] + source.seen[-1]]
    assert all(len(set(epoch)) == 80 for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_channels_last_is_the_same_training_and_comes_back_as_usual():
    images = torch.rand(24, 3, 8, 8, generator=stream(0, "images"))
    source = Memory(images, torch.arange(24) % 3)
    weights = []
    for layout in (False, True):
        model = seeded(
            lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3)), seed=0
        )
        # SGD: Adam makes full steps of gradients that are rounding alone (a bias before a BatchNorm).
        changes = Augmentation(scale=(0.8, 1.0))
        recipe = Recipe("sgd", 0.1, epochs=2, batch_size=8, channels_last=layout, augmentation=changes)
        train(model, source, recipe)
        assert all(value.is_contiguous() for value in model.parameters())
        weights.append(flat(model))
    torch.testing.assert_close(weights[0], weights[1], atol=1e-4, rtol=1e-3)


def test_autocast_learns_in_bfloat16_and_keeps_weights_in_their_type():
    images = torch.rand(48, 3, 8, 8, generator=stream(0, "images"))
    source = Memory(images, torch.arange(48) % 3)
    weights, losses = [], []
    for autocast in (False, True):
        model = seeded(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 3)), seed=0)
        course = train(model, source, Recipe("sgd", 0.1, epochs=4, batch_size=8, autocast=autocast))
        assert {value.dtype for value in model.parameters()} == {torch.float32}
        weights.append(flat(model))
        losses.append(torch.tensor(course.losses))
    assert not torch.equal(*weights)
    # A product's relative rounding is 2 ** -9 in bfloat16; a few of them lie between an image and the loss.
    torch.testing.assert_close(losses[1], losses[0], atol=0, rtol=0.02)


def test_augmentation_changes_what_is_learned():
    source = Memory(torch.rand(24, 1, 4, 4, generator=stream(0, "images")), torch.arange(24) % 3)
    weights = []
    for augmentation in (None, Augmentation(scale=(0.5, 1.0))):
        model = seeded(lambda: MLP((16, 3)), seed=0)
        train(model, source, Recipe(epochs=1, augmentation=augmentation))
        weights.append(flat(model))
    assert not torch.equal(*weights)


def test_float64_models_stay_float64(blobs):
    model = seeded(lambda: MLP((2, 3)).double(), seed=0)
    train(model, blobs, QUICK)
    assert flat(model).dtype == torch.float64


def test_the_global_random_state_is_left_alone_even_after_an_error(blobs):
    state = torch.get_rng_state()
    train(seeded(dropout_net, seed=0), blobs, QUICK)
    with pytest.raises(KeyError), fenced(0, "test"):
        torch.rand(1)
        raise KeyError
    assert torch.equal(torch.get_rng_state(), state)


def test_accuracy_counts_in_batches_and_keeps_the_mode(blobs):
    model = seeded(dropout_net, seed=0).train()
    whole = accuracy(model, blobs)
    assert accuracy(model, blobs, batch_size=7) == whole
    assert model.training
    inputs, targets = blobs.read(torch.arange(len(blobs)))
    with torch.no_grad():
        assert whole == pytest.approx(float((model.eval()(inputs).argmax(1) == targets).double().mean()))


def test_a_loss_that_is_not_finite_stops_the_training(blobs):
    class Broken:
        shape = (2,)

        def __len__(self):
            return 90

        def read(self, indices):
            inputs, targets = blobs.read(indices)
            return inputs / 0 * 0, targets

    model = MLP((2, 3))
    with pytest.raises(NumericalError, match="the training loss is nan in epoch 1"):
        train(model, Broken(), QUICK)
    assert not model.training and all(value.grad is None for value in model.parameters())


def test_targets_that_do_not_fit_are_refused(blobs):
    with pytest.raises(DataError, match="class indices must lie in 0 to 1"):
        train(MLP((2, 2)), blobs, QUICK)


def test_normalizing_is_by_channel():
    images = torch.rand(5, 3, 2, 2, generator=stream(0, "images"))
    source = Normalized(Memory(images, torch.zeros(5).long()), (0.1, 0.2, 0.3), (1.0, 2.0, 4.0))
    normalized, _ = source.read(torch.arange(5))
    for channel, (mean, std) in enumerate(((0.1, 1.0), (0.2, 2.0), (0.3, 4.0))):
        torch.testing.assert_close(normalized[:, channel], (images[:, channel] - mean) / std)
    assert source.shape == (3, 2, 2) and len(source) == 5
    plain, _ = Normalized(Memory(images, torch.zeros(5).long())).read(torch.arange(5))
    assert torch.equal(plain, images)


@pytest.mark.parametrize(("mean", "std"), [((0.1, 0.2), (1.0,)), ((), (0.0,))])
def test_impossible_normalizations_are_refused(mean, std):
    with pytest.raises(DataError):
        Normalized(Memory(torch.zeros(1, 3, 2, 2), torch.zeros(1).long()), mean, std)


def test_the_split_is_one_for_all():
    learned, held_back = split(1000)
    assert (len(learned), len(held_back)) == (900, 100)
    assert sorted([*learned.tolist(), *held_back.tolist()]) == list(range(1000))
    assert torch.equal(learned, split(1000)[0]) and not torch.equal(learned, split(1000, seed=1)[0])
