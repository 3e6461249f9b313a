"""One stream for every purpose."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from slu.seeds import derived_seed, stream

PURPOSES = [
    (0,),
    (1,),
    (-1,),
    (0, "signs"),
    (1, "signs"),
    (0, "rows"),
    (0, "signs", 1),
    (0, "signs", 11),
    (0, "signs", 1, 1),
    (0, "a", "b"),
    (0, "ab"),
]


@pytest.mark.parametrize("purpose", PURPOSES, ids=str)
def test_a_purpose_gives_the_same_numbers_again(purpose):
    assert torch.equal(torch.rand(5, generator=stream(*purpose)), torch.rand(5, generator=stream(*purpose)))


@pytest.mark.parametrize(("one", "other"), list(combinations(PURPOSES, 2)), ids=str)
def test_two_purposes_give_different_numbers(one, other):
    assert derived_seed(*one) != derived_seed(*other)
    assert not torch.equal(torch.rand(5, generator=stream(*one)), torch.rand(5, generator=stream(*other)))


def test_seeds_fit_every_generator():
    seeds = [derived_seed(seed, "x") for seed in range(1000)]
    assert min(seeds) >= 0
    assert max(seeds) < 2**63
    assert len(set(seeds)) == 1000


def test_streams_of_neighbouring_seeds_are_unrelated():
    draws = torch.stack([torch.randn(2000, generator=stream(seed, "start")) for seed in range(8)])
    correlation = torch.corrcoef(draws) - torch.eye(8)
    assert correlation.abs().max() < 5 / 2000**0.5


def test_any_whole_number_is_a_seed():
    assert derived_seed(np.int64(3), "x") == derived_seed(3, "x")
    assert 0 <= derived_seed(2**80, "x") < 2**63


def test_streams_leave_the_global_random_state_alone():
    before = torch.get_rng_state()
    torch.rand(5, generator=stream(0, "x"))
    assert torch.equal(before, torch.get_rng_state())


def test_derived_seeds_never_change():
    # Stored files hold seeds, not numbers: other values would give them other sketches.
    assert derived_seed(0, "sketch", "signs") == 3261301338614006853
