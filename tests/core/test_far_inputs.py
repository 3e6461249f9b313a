"""Far from the data: networks that grow surer with the distance must not be believed by default.

A network for a table is asked about its own test points multiplied by 5 and by 20. With ReLUs or GELUs the Fisher
factor vanishes there, so that the Fisher readings fall; with Tanhs all layers but the first are saturated, and the
outputs as usual. The combined reading must rise.
"""

from functools import cache

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score
from torch import nn

from calibrated import former_sum
from slu import SLU

SEEDS = (0, 1, 2)
MORE_SEEDS = tuple(range(8))
TIMES = (5, 20)
LEAST = 0.95
"""AUROC that the default must reach on every network; measured on the eight seeds are .993 and more."""
CAUGHT = 0.8
"""Share that must be flagged at a rate of false alarms of 5 %; measured are .998 and more."""
RATE = 0.05
FALSE_ALARMS = 0.075
"""Mean share of fresh inputs of the eight seeds that may be flagged at that rate: three standard errors above, with
calibration sets of 110 points and 400 queries 2.2 % each; measured are 4.3 to 6.2 %."""
ACTIVATIONS = (nn.ReLU, nn.GELU, nn.Tanh)
LIKELIHOODS = ("classification", "regression", "multilabel")


@cache
def trained(activation, seed, likelihood="classification"):
    """A table of 8 columns in three overlapping classes, and a network trained on it until it does well."""
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(3, 8)) * 1.5
    labels = draw.integers(0, 3, 1600)
    table = torch.from_numpy(centres[labels] + draw.normal(size=(1600, 8))).float()
    labels = torch.from_numpy(labels)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(8, 32), activation(), nn.Linear(32, 32), activation(), nn.Linear(32, 3)
        )  # fmt: skip
        optimizer = torch.optim.Adam(model.parameters(), 5e-3)
        targets = nn.functional.one_hot(labels, 3).float()
        losses = {
            "classification": lambda outputs, rows: nn.functional.cross_entropy(outputs, labels[rows]),
            "multilabel": lambda outputs, rows: nn.functional.binary_cross_entropy_with_logits(outputs, targets[rows]),
            "regression": lambda outputs, rows: nn.functional.mse_loss(outputs, targets[rows]),
        }
        for _ in range(30):
            for rows in torch.randperm(1200).split(100):
                optimizer.zero_grad()
                losses[likelihood](model(table[rows]), rows).backward()
                optimizer.step()
    right = float((model(table[1200:]).argmax(1) == labels[1200:]).float().mean())
    assert right > 0.85, "trained properly"
    return model.eval(), table[:1200], table[1200:]


@cache
def fitted(activation, seed, likelihood="classification"):
    model, train, test = trained(activation, seed, likelihood)
    return SLU(model, likelihood, seed=seed).fit(list(train.split(200))), test


def auroc(scores, far):
    values = torch.cat([scores, far]).double().numpy()
    return roc_auc_score([0] * len(scores) + [1] * len(far), values)


def check_enlarged(activation, likelihood, seed):
    """Far inputs are told from the data; returns the share of fresh ones that is flagged."""
    score, test = fitted(activation, seed, likelihood)
    assert score.readings[0] == "combined"
    for times in TIMES:
        assert auroc(score(test), score(times * test)) >= LEAST, times
        assert float(score.flag(times * test, false_alarms=RATE).float().mean()) >= CAUGHT, times
    # Control: what is like the data is hardly ever flagged; beta-binomial, 1 % of all 72 networks together.
    points = score.calibration.points
    wanted = int(RATE * (points + 1))
    most = stats.betabinom(len(test), wanted, points + 1 - wanted).ppf(1 - 0.01 / 72)
    flagged = int(score.flag(test, false_alarms=RATE).sum())
    assert flagged <= most
    return flagged / len(test)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_default_tells_enlarged_inputs_from_the_data(activation, seed):
    check_enlarged(activation, "classification", seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("likelihood", LIKELIHOODS[1:])
def test_also_without_classes(likelihood, seed):
    check_enlarged(nn.ReLU, likelihood, seed)


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_default_tells_enlarged_inputs_of_more_networks(activation, likelihood):
    assert np.mean([check_enlarged(activation, likelihood, seed) for seed in MORE_SEEDS]) <= FALSE_ALARMS


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU])
def test_control_the_fisher_readings_and_their_sum_fail_there(activation):
    """The mean over the seeds at 20 times the data: below chance, the further away the surer."""
    fisher, summed = [], []
    for seed in SEEDS:
        score, test = fitted(activation, seed)
        known, near, far = (score.read_all(points) for points in (held_out(score), test, 20 * test))
        fisher.append(auroc(near["fisher"], far["fisher"]))
        floors = {name: 1e-3 * float(known[name].min()) for name in ("fisher", "fisher-relative")}
        known, near, far = (
            {name: each[name].double().clamp(min=floor) for name, floor in floors.items()}
            for each in (known, near, far)
        )
        summed.append(auroc(former_sum(near, known), former_sum(far, known)))
    assert np.mean(fisher) < 0.5 and np.mean(summed) < 0.5
    assert max(fisher + summed) < LEAST - 0.2
    # Nor would anybody be warned.
    for seed in SEEDS:
        score, test = fitted(activation, seed)
        assert float(score.flag(20 * test, false_alarms=0.05, reading="fisher").float().mean()) < 0.1


def held_out(score):
    return torch.cat([batch for batch, _ in score.state.calibration.reservoir.batches()])
