"""Of fresh digits a share α is flagged at a rate of α, whatever the reading; on fitted digits calibrated, more.

The network is trained on 500 digits that nothing else uses. Of the other 1,297 each fit takes 400 at random; what is
left is fresh. Splits of it into 199 calibration points and 698 test points are exchangeable, so on average a share of
⌊α (m + 1)⌋ / (m + 1) is flagged, exactly; that of one split has at most the variance α (1 - α) (1 / (m + 2) + 1 / 698).
"""

from functools import cache

import pytest
import torch
from scipy import stats
from torch import nn

from shorthand import paper_slu
from slu import SLU
from slu.core.calibration import Calibration

sklearn = pytest.importorskip("sklearn.datasets")

RATES = (0.01, 0.05, 0.1, 0.2)
FITS, SPLITS, KNOWN = 5, 40, 199  # 200 splits
FAR = ("distance", "angle")
READINGS = ("variance", "relative", "fisher", "fisher-relative", "entropy", "max-logit", *FAR, "combined")
METHODS = {"default": SLU, "paper": paper_slu}
each_method = pytest.mark.parametrize("method", ["default", pytest.param("paper", marks=pytest.mark.slow)])


@cache
def trained():
    """A network, and the digits it was not trained on."""
    digits = sklearn.load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(digits.data, dtype=torch.float32)[order] / 16
    labels = torch.tensor(digits.target)[order]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 10), nn.Tanh(), nn.Linear(10, 10))
    descent = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(100):
        descent.zero_grad()
        nn.functional.cross_entropy(model(images[:500]), labels[:500]).backward()
        descent.step()
    model.zero_grad(set_to_none=True)
    return model.eval(), images[500:]


@cache
def scores(method: str):
    """By fit: the scores of fitted and of fresh points, by reading, and the distances of their layers' inputs."""
    model, images = trained()
    found = []
    for seed in range(FITS):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
        # Every fourth direction that 400 gradients can have: the fitted points are well pinned down.
        score = METHODS[method](model, "classification", rank=100, seed=seed)
        score = score.fit(images[order[:400]], calibration=False)
        both = (images[order[:400]], images[order[400:]])
        found.append([(score.read_all(points), score.read_uncalibrated(points, 1, False)[1]) for points in both])
    return found


@cache
def pvalues(method: str, reading: str, fitted: bool):
    """(200, 698) p-values of fresh points in every split, calibrated on fresh points or on fitted ones."""
    rows = []
    for fit, (seen, fresh) in enumerate(scores(method)):
        for split in range(SPLITS):
            draw = torch.Generator().manual_seed(1000 * fit + split)
            order = torch.randperm(897, generator=draw)
            source, places = (seen, torch.randperm(400, generator=draw)[:KNOWN]) if fitted else (fresh, order[:KNOWN])
            known = {name: values[places] for name, values in source[0].items()}
            calibration = Calibration.of(known, "given", distances=source[1][places])
            standard, distances = calibration.standard, fresh[1][order[KNOWN:]]
            test = {name: values[order[KNOWN:]] for name, values in fresh[0].items()}
            test |= {name: standard.layers.farthest(distances, name) for name in FAR}
            test["combined"] = standard.combined(test)
            rows.append(calibration.pvalue(test[reading], reading))
    return torch.stack(rows)


def distances(values):
    """By rate, how many standard errors the mean share of flagged points is from what it should be."""
    found = {}
    for rate in RATES:
        due = int(rate * (KNOWN + 1) + 1e-9) / (KNOWN + 1)
        error = (due * (1 - due) * (1 / (KNOWN + 2) + 1 / values.shape[1]) / len(values)) ** 0.5
        found[rate] = (float((values <= rate).double().mean()) - due) / error
    return found


@each_method
@pytest.mark.parametrize("reading", READINGS)
def test_false_alarms_come_at_the_rate_asked_for(reading, method):
    """Within 3.3 standard errors, 99.9 % of a normal, at every rate."""
    found = distances(pvalues(method, reading, False))
    assert all(abs(distance) < 3.3 for distance in found.values()), found


@each_method
@pytest.mark.parametrize("reading", ["variance", "fisher", "combined"])
def test_control_calibrated_on_fitted_points_there_are_more(reading, method):
    """The fit pins its own points down, so that fresh ones seem rarer than they are."""
    found = distances(pvalues(method, reading, True))
    assert all(distance > 3.3 for distance in found.values()), found


@each_method
@pytest.mark.parametrize("reading", READINGS)
def test_p_values_of_fresh_points_are_uniform(reading, method):
    """One point of each split, so that they are independent given the fits; the lattice is 1/200 coarse.

    1 % for all readings together: one of so many would be below 1 % by chance in every tenth set of fits.
    """
    one = pvalues(method, reading, False)[:, 0]
    assert stats.kstest(one.numpy(), "uniform").pvalue > 0.01 / len(READINGS)


@pytest.mark.slow
def test_control_p_values_from_fitted_points_are_not_uniform():
    """By a hard projection; a ridge pins the fitted points down less, for which all points of a split are needed."""
    assert stats.kstest(pvalues("paper", "combined", True)[:, 0].numpy(), "uniform").pvalue < 1e-4


def test_points_that_the_fit_holds_out_by_itself_serve():
    """100 of 1,000 points by their content, 297 fresh ones, 8 splits; flagged at 10 % within 3.3 standard errors."""
    model, images = trained()
    flagged, points = [], []
    for seed in range(8):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
        data, fresh = images[order[:1000]], images[order[1000:]]
        score = SLU(model, "classification", rank=60, seed=seed).fit(data)
        flagged.append(score.flag(fresh, false_alarms=0.1, reading="combined").double().mean())
        points.append(score.calibration.points)
    error = (0.09 * (1 / min(points) + 1 / 297) / 8) ** 0.5
    assert abs(float(torch.stack(flagged).mean()) - 0.1) < 3.3 * error
    assert min(points) > 60 and max(points) < 140
