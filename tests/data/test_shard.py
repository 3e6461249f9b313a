"""How processes notice that they read the same points."""

import pytest
import torch

from slu.data.shard import KeySample


def sampled(keys, batch=300):
    sample = KeySample()
    for some in keys.split(batch):
        sample.add(some)
    return sample


def draw(count, seed, among=None):
    generator = torch.Generator().manual_seed(seed)
    if among is not None:
        return draw(among, 99)[torch.randint(among, (count,), generator=generator)]
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator)


@pytest.mark.parametrize("points", [100, 5000])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_share_of_points_that_two_sets_have_in_common(points, share, seed):
    """Exact where all keys are kept; else five standard errors of 1 / (2 √m), m at least 500 keys below both bounds."""
    mine, own = draw(points, seed), draw(points, 100 + seed)
    common = int(share * points)
    theirs = torch.cat([mine[:common], own[common:]])[torch.randperm(points)]
    expected = share if common >= 20 else 0.0
    bound = 0.0 if points < 1024 or share in (0, 1) else 5 / (2 * 500**0.5)
    found = sampled(mine).shared_with(sampled(theirs, 77))
    assert abs(found - expected) <= bound and sampled(theirs, 77).shared_with(sampled(mine)) == found


def test_the_smaller_set_decides():
    mine = draw(5000, 0)
    assert sampled(mine).shared_with(sampled(mine[:200])) == 1
    assert sampled(mine).shared_with(sampled(torch.cat([mine[:150], draw(50, 1)]))) == pytest.approx(0.75, abs=0.25)


def test_points_that_repeat_anyway_say_nothing():
    for among in (4, 64, 500):
        assert sampled(draw(1500, 1, among)).shared_with(sampled(draw(1500, 2, among))) == 0
    for seed in range(8):  # every point twice, dealt out at random
        twice = draw(1000, 5).repeat(2)[torch.randperm(2000, generator=torch.Generator().manual_seed(seed))]
        assert sampled(twice[:1000]).shared_with(sampled(twice[1000:])) == 0
    same = draw(1500, 1, 64)
    assert sampled(same).shared_with(sampled(same[torch.randperm(1500)])) == 1  # as often each: the same data


@pytest.mark.parametrize(("points", "found"), [(4, 0), (5, 1), (12, 1), (20, 1)])
def test_few_points_are_the_same_if_all_are(points, found):
    mine = draw(points, 0)
    assert sampled(mine).shared_with(sampled(mine.flip(0))) == found
    assert sampled(mine).shared_with(sampled(torch.cat([mine[1:], draw(1, 1)]))) == 0
    assert sampled(mine.repeat(2)).shared_with(sampled(mine.repeat(2))) == (points >= 20)
