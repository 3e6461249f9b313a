"""Far from the data: networks that grow surer with the distance must not be believed by default.

A classifier of a table with ReLUs or GELUs is asked about its own test points multiplied by 5 and by 20. There the
Fisher factor vanishes, so that the Fisher readings fall; the combined reading must not.
"""

from functools import cache

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from calibrated import former_sum
from slu import SLU

SEEDS = (0, 1, 2)
MORE_SEEDS = tuple(range(8))
TIMES = (5, 20)
LEAST = 0.9
"""Mean AUROC over networks that the default must reach.

Measured on the eight seeds, mean (smallest): ReLU at 5 times the data .911 (.589), at 20 times .999 (.992); GELU .994
(.971) and 1.000 (1.000). So at 5 times not every ReLU network reaches it: seeds 2 and 5 have .852 and .589, where the
variance alone has .927 and .876.
"""


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


def check_enlarged(activation, seeds):
    for times in TIMES:
        values = []
        for seed in seeds:
            score, test = fitted(activation, seed)
            assert score.readings[0] == "combined"
            values.append(auroc(score(test), score(times * test)))
        print(activation.__name__, times, [round(value, 3) for value in values])
        assert np.mean(values) >= LEAST, (times, values)
        if times == 20 or activation is nn.GELU:  # not of every ReLU network at 5 times, see LEAST
            assert min(values) >= LEAST, (times, values)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU])
def test_the_default_tells_enlarged_inputs_from_the_data(activation):
    check_enlarged(activation, SEEDS)
    for seed in SEEDS:
        score, test = fitted(activation, seed)
        assert float(score.flag(20 * test, false_alarms=0.05).float().mean()) > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU])
def test_the_default_tells_enlarged_inputs_of_more_networks(activation):
    check_enlarged(activation, MORE_SEEDS)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU])
def test_control_the_fisher_readings_and_their_sum_fail_there(activation):
    """The mean over the seeds at 20 times the data: below chance, the further away the surer."""
    fisher, summed = [], []
    for seed in SEEDS:
        score, test = fitted(activation, seed)
        known, near, far = (score.read_all(points) for points in (held_out(score), test, 20 * test))
        fisher.append(auroc(near["fisher"], far["fisher"]))
        floors = {name: score.calibration.standard.scales[name].floor for name in ("fisher", "fisher-relative")}
        known, near, far = (
            {name: each[name].double().clamp(min=floor) for name, floor in floors.items()}
            for each in (known, near, far)
        )
        summed.append(auroc(former_sum(near, known), former_sum(far, known)))
    assert np.mean(fisher) < 0.5 and np.mean(summed) < 0.5
    assert max(fisher + summed) < LEAST - 0.2


@pytest.mark.parametrize("likelihood", ["regression", "multilabel"])
def test_without_classes_the_views_that_exist_suffice(likelihood):
    """Seeds 0 to 5, mean (smallest), at 5 times the data: multilabel .961 (.887), with all outputs .985 (.950);
    regression .989 (.968), with all outputs .981 (.957). At 20 times all are above .99.
    """
    values = np.array(
        [
            [auroc(score(test), score(times * test)) for times in TIMES]
            for score, test in (fitted(nn.ReLU, seed, likelihood) for seed in SEEDS)
        ]
    )
    assert values.mean(0).min() >= LEAST and values[:, TIMES.index(20)].min() >= LEAST, values


def held_out(score):
    return torch.cat([batch for batch, _ in score.state.calibration.reservoir.batches()])
