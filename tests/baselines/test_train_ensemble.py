"""Members made by a recipe: each its own, the same for the same seed, and never all alike."""

import functools

import pytest
import torch
from torch import nn

from slu.baselines.deep_ensemble import DeepEnsemble, train_ensemble
from slu.errors import ModelError, SettingError


def test_a_recipe_makes_members_that_differ():
    seeds, states = [], []

    def train(model, seed):
        seeds.append(seed)
        states.append(torch.rand(3))  # as dropout draws
        model.bias.detach().add_(1.0)

    before = torch.get_rng_state()
    networks = train_ensemble(lambda: nn.Linear(4, 3), train, 4, seed=7)
    assert torch.equal(torch.get_rng_state(), before)
    assert len({float(model.weight.detach()[0, 0]) for model in networks}) == 4
    assert len(set(seeds)) == 4 and all(0 <= seed < 2**31 for seed in seeds)
    assert len({float(state[0]) for state in states}) == 4
    again = train_ensemble(lambda: nn.Linear(4, 3), train, 4, seed=7)
    assert all(torch.equal(one.weight, two.weight) for one, two in zip(networks, again, strict=True))
    assert seeds[:4] == seeds[4:] and all(torch.equal(*pair) for pair in zip(states[:4], states[4:], strict=True))
    other = train_ensemble(lambda: nn.Linear(4, 3), train, 4, seed=8)
    assert not torch.isclose(other[0].weight, networks[0].weight).any()
    inputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    assert bool((DeepEnsemble(networks, "classification").fit(inputs)(inputs) > 0).all())


def test_who_gets_the_seed():
    given = []

    def by_name(outputs=3, seed=None):
        given.append(seed)
        return nn.Linear(4, outputs)

    def by_place(number):
        given.append(number)
        return nn.Linear(4, 3)

    def by_keyword(*, seed):
        given.append(seed)
        return nn.Linear(4, 3)

    for factory in (by_name, by_place, by_keyword):
        train_ensemble(factory, lambda model, seed: given.append(seed), 2)
        assert given[0] == given[1] and given[2] == given[3] and None not in given
        given.clear()

    def settings(outputs=3, width=4):
        given.append((outputs, width))
        return nn.Linear(width, outputs)

    train_ensemble(settings, lambda model, seed: None, 2)
    train_ensemble(functools.partial(settings, width=5), lambda model, seed: None, 2)
    assert given == [(3, 4)] * 2 + [(3, 5)] * 2, "an argument with a default is not a place for a seed"


def test_a_trained_network_may_be_returned():
    networks = train_ensemble(lambda: nn.Linear(4, 3), lambda model, seed: nn.Sequential(model), 2)
    assert all(isinstance(model, nn.Sequential) for model in networks)
    networks = train_ensemble(lambda: nn.Linear(4, 3), lambda model, seed: [0.5, 0.1], 2)
    assert all(isinstance(model, nn.Linear) for model in networks), "a list of losses is no network"


def test_recipes_that_cannot_work():
    def fixed():
        torch.manual_seed(0)
        return nn.Linear(4, 3)

    with pytest.raises(ModelError, match=r"members 0 and 1 came out identical.*no fixed seed inside"):
        train_ensemble(fixed, lambda model, seed: None, 3)
    one = nn.Linear(4, 3)
    with pytest.raises(ModelError, match="the same module twice; it must make a new one"):
        train_ensemble(lambda: one, lambda model, seed: None, 2)
    with pytest.raises(ModelError, match=r"must make a torch.nn.Module, got int"):
        train_ensemble(lambda: 3, lambda model, seed: None, 2)
    with pytest.raises(SettingError, match="members must be at least 2, got 1"):
        train_ensemble(lambda: nn.Linear(4, 3), lambda model, seed: None, 1)
