"""The recipes: the paper's numbers, how the learning rate moves, what is refused."""

import dataclasses
import json

import pytest
import torch
from torch import nn

from slu.errors import SettingError
from slu_experiments.models import MODELS, seeded
from slu_experiments.training import RECIPES, Augmentation, Recipe
from slu_experiments.training.recipes import INITIAL


@pytest.mark.parametrize("name", ["mnist-mlp", "fmnist-lenet"])
def test_the_small_networks(name):
    recipe = RECIPES[name]
    assert (recipe.optimizer, recipe.epochs, recipe.batch_size, recipe.clip) == ("adam", 50, 128, 1.0)
    assert {recipe.rate(epoch) for epoch in range(50)} == {1e-3}
    assert recipe.augmentation is None and not recipe.weight_decay


def test_the_resnet():
    recipe = RECIPES["cifar10-resnet"]
    assert (recipe.optimizer, recipe.momentum, recipe.weight_decay, recipe.epochs) == ("sgd", 0.9, 1e-4, 200)
    rates = [round(recipe.rate(epoch), 12) for epoch in range(200)]
    assert rates == [0.1] * 120 + [0.01] * 50 + [0.001] * 30
    assert recipe.augmentation == Augmentation(scale=(0.8, 1.0), ratio=(0.9, 1.1), flip=0.5)


def test_the_attention_network():
    recipe = RECIPES["celeba-van"]
    rates = [round(recipe.rate(epoch), 12) for epoch in range(50)]
    assert rates == [1e-3] * 30 + [1e-4] * 12 + [1e-5] * 8
    assert recipe.augmentation is not None and recipe.augmentation.scale == (0.7, 1.0)


def test_swin_warms_up_for_ten_epochs_and_falls_over_sixty():
    recipe = RECIPES["imagenet-swin"]
    rates = [round(recipe.rate(epoch), 12) for epoch in range(70)]
    assert rates[:10] == [round(1e-4 * step, 12) for step in range(1, 11)]
    assert rates[10:] == [1e-3] * 36 + [1e-4] * 15 + [1e-5] * 9


def test_milestones_move_with_the_epochs():
    short = dataclasses.replace(RECIPES["cifar10-resnet"], epochs=10)
    assert [round(short.rate(epoch), 12) for epoch in range(10)] == [0.1] * 6 + [0.01] * 2 + [0.001] * 2


def test_every_setting_of_the_paper_has_a_recipe_and_a_model():
    for name in ("mnist-mlp", "fmnist-lenet", "cifar10-resnet", "celeba-van", "imagenet-swin"):
        assert name in RECIPES and name.partition("-")[2] in MODELS
    assert "digits-mlp" in RECIPES and "digits-mlp" in MODELS


@pytest.mark.parametrize(("points", "kept", "dropped"), [(256, 2, 2), (300, 3, 2), (100, 1, 1)])
def test_batches_of_an_epoch(points, kept, dropped):
    # Fewer points than a batch are never all dropped.
    assert Recipe().batches(points) == kept
    assert Recipe(drop_last=True).batches(points) == dropped


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_a_header(name):
    plain = RECIPES[name].plain()
    assert plain == json.loads(json.dumps(plain))


@pytest.mark.parametrize("initial", INITIAL)
def test_initial_weights_are_flaxs_where_the_recipe_says_so(initial):
    """Biases zero; weights normal, cut off at two deviations, of variance 1/n for n inputs; torch's have a third."""

    def begun():
        return Recipe(initial=initial).begin(
            nn.Sequential(nn.Conv2d(16, 64, 5), nn.Conv2d(64, 8, 1), nn.Linear(300, 90))
        )

    model, again = seeded(begun, seed=0), seeded(begun, seed=0)
    for layer, inputs in zip(model, (16 * 25, 64, 300), strict=True):
        weights = layer.weight.detach()
        # 512 to 27,000 weights: the variance of a sample has a relative deviation of at most sqrt(2 / weights), here
        # three of them. A control: by the inputs without the kernel the first would have 25 times the variance.
        due, few = {"flax": 1.0, "torch": 1 / 3}[initial], 3 * (2 / weights.numel()) ** 0.5
        assert float(weights.var()) * inputs == pytest.approx(due, rel=few)
        if initial == "flax":
            assert not layer.bias.any()
            # Of a standard normal number within ±2 the deviation is .8796; the bound is two of the uncut one's.
            assert float(weights.abs().max()) * inputs**0.5 <= 2 / 0.8796
    assert all(map(torch.equal, model.parameters(), again.parameters()))


@pytest.mark.parametrize("name", ["cifar10-resnet", "celeba-van"])
def test_a_shorter_training_anneals(name):
    whole = RECIPES[name]
    short = whole.lasting(20)
    rates = [short.rate(epoch) for epoch in range(20)]
    assert rates[:4] == sorted(rates[:4]) and max(rates) == rates[3] == whole.learning_rate
    assert rates[3:] == sorted(rates[3:], reverse=True) and 0 < rates[-1] < 0.01 * whole.learning_rate
    # Weights decay about as much in all: epochs times decay stays.
    assert short.epochs * short.weight_decay == pytest.approx(whole.epochs * whole.weight_decay)
    assert short.plain()["annealed"] and "annealed" not in whole.plain()
    assert short.augmentation == whole.augmentation and short.clip == whole.clip


@pytest.mark.parametrize("epochs", [1, 2, 5])
def test_the_shortest_trainings_have_rates_above_zero(epochs):
    short = RECIPES["cifar10-resnet"].lasting(epochs)
    assert all(0 < short.rate(epoch) <= 0.1 for epoch in range(epochs))
    with pytest.raises(SettingError, match="epochs must be at least 1, got 0"):
        RECIPES["cifar10-resnet"].lasting(0)


def test_adams_penalty_stays():
    assert RECIPES["imagenet-swin"].lasting(20).weight_decay == RECIPES["imagenet-swin"].weight_decay


def test_a_longer_one_and_one_without_milestones_change_in_length_alone():
    assert RECIPES["cifar10-resnet"].lasting(300) == dataclasses.replace(RECIPES["cifar10-resnet"], epochs=300)
    assert RECIPES["mnist-mlp"].lasting(5) == dataclasses.replace(RECIPES["mnist-mlp"], epochs=5)


def test_what_is_usual_is_not_in_a_header():
    assert "initial" not in Recipe().plain() and "autocast" not in Recipe().plain()
    assert Recipe(initial="flax").plain()["initial"] == "flax"


def test_weight_decay_is_an_l2_penalty():
    """One step of each optimizer on a loss without gradient moves the weights by the penalty's gradient alone."""
    for recipe in (Recipe("sgd", 0.1, momentum=0.9, weight_decay=0.5), Recipe("adam", 0.1, weight_decay=0.5)):
        model = nn.Linear(1, 1, bias=False)
        model.weight.data.fill_(2.0)
        optimizer = recipe.prepare(model)
        model.weight.grad = torch.zeros(1, 1)
        optimizer.step()
        # SGD: 2 - 0.1 · 0.5 · 2; Adam's first step has the length of the rate, whatever the gradient.
        assert model.weight.item() == pytest.approx(1.9, abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"initial": "keras"}, "unknown initial 'keras'; valid are 'torch', 'flax'"),
        ({"optimizer": "adamw"}, "unknown optimizer 'adamw'; valid are 'adam', 'sgd'"),
        ({"momentum": 0.9}, "momentum is SGD's"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive"),
        ({"clip": 0.0}, "clip"),
        ({"warmup": -1}, "warmup"),
        ({"share": 1.5}, r"share must be in \(0, 1\]"),
        ({"milestones": (0.9, 0.5)}, "milestones must be rising"),
        ({"milestones": (60,)}, "shares between 0 and 1"),
        ({"milestones": (0.5,), "annealed": True}, "none where it anneals"),
    ],
)
def test_impossible_recipes_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        Recipe(**settings)
