"""Methods compared over networks: wins, ties and losses against scipy's paired interval."""

import numpy as np
import pytest
from scipy.stats import ttest_rel

from fake_results import write_score
from slu_experiments.publishing.blocks import LOSS, TIE, WIN, Block, student
from slu_experiments.settings import find_setting

SETTING = find_setting("fmnist-lenet")


def block(out, values, **run):
    """A block of made-up runs: values[method] has one AUROC, or function of the set, per network."""
    results = [
        write_score(out, method, value, seed=seed, **run)
        for method, each in values.items()
        for seed, value in enumerate(each, 1)
    ]
    return Block(results, SETTING, "3p")


@pytest.mark.parametrize("networks", [2, 3, 10])
@pytest.mark.parametrize(("shift", "noise"), [(0.1, 0.01), (0.0, 0.05), (-0.1, 0.02), (0.01, 0.03)])
def test_the_interval_is_that_of_a_paired_t_test(networks, shift, noise):
    draws = np.random.default_rng(networks)
    one = draws.uniform(0.4, 0.6, networks)
    two = one - shift + noise * draws.standard_normal(networks)
    middle, interval = student(list(one - two))
    expected = ttest_rel(one, two).confidence_interval(0.95)
    assert middle == pytest.approx((one - two).mean(), abs=1e-8)
    assert interval == pytest.approx((expected.low, expected.high), abs=1e-8)


def test_verdicts(tmp_path):
    values = {
        "slu": (0.70, 0.72, 0.71),
        "le": (0.60, 0.63, 0.61),  # below on each network by about as much
        "lla": (0.60, 0.73, 0.80),  # below and above
        "scod": (0.80, 0.81, 0.805),
        "swag": (0.70, 0.72, 0.71),  # the same
        "de": (0.90,),  # one network
    }
    made = block(tmp_path, values)
    contests = {each.other: each for each in made.contests("slu", made.others)}
    verdicts = {other: each.verdict for other, each in contests.items()}
    assert verdicts == {"le": WIN, "lla": TIE, "scod": LOSS, "swag": TIE, "de": None}
    assert contests["de"].networks == 1 and contests["de"].difference == pytest.approx(-0.2)
    assert contests["swag"].interval == (0, 0)
    expected = ttest_rel(values["slu"], values["scod"]).confidence_interval(0.95)
    assert contests["scod"].interval == pytest.approx((expected.low, expected.high), abs=1e-8)


def test_pairing_decides_where_networks_differ_more_than_methods(tmp_path):
    """Control: an interval of unpaired means would tell nothing here."""
    made = block(tmp_path, {"slu": (0.5, 0.7, 0.9), "le": (0.49, 0.688, 0.889)})
    assert made.contest("slu", "le").verdict == WIN
    assert made.contest("le", "slu").verdict == LOSS


def test_families_count_as_one_set_each(tmp_path):
    made = block(tmp_path, {"slu": [lambda name: 0.9 if name == "mnist" else 0.5]})
    assert made.standing("slu").auroc.mean == pytest.approx(0.7)
    assert made.family_values("slu", "fmnist-rotated") == pytest.approx([0.5])


def test_methods_are_compared_on_the_sets_and_networks_they_share(tmp_path):
    def rising(name):
        return 0.4 if name == "mnist" else int(name.split("-")[-1]) / 180

    results = [write_score(tmp_path, "slu", rising, seed=seed) for seed in (1, 2)]
    results += [write_score(tmp_path, "le", 0.3, seed=seed, outside=("fmnist-rotated-90",)) for seed in (2, 3)]
    made = Block(results, SETTING, "3p")
    contest = made.contest("slu", "le")
    assert contest.networks == 1 and contest.difference == pytest.approx(0.5 - 0.3) and contest.verdict is None
    assert made.contest("slu", "le", "mnist") is None and made.contest("slu", "scod") is None
    assert made.standing("le") is None  # not judged on every set, so not ranked
    assert [each.family for each in made.contests("slu", ["le"], by_family=True)] == ["fmnist-rotated"]


def test_what_keeps_more_than_the_budget_is_not_within_it(tmp_path):
    made = block(tmp_path, {"slu": (0.6,), "swag": (0.9,), "max-logit": (0.5,)})
    for result in made.results:
        if result.config["method"] == "swag":
            result.metrics["memory"]["kept_copies"] = 5.0
    assert [each.method for each in made.standings] == ["swag", "slu", "max-logit"]
    assert [each.method for each in made.within()] == ["slu", "max-logit"]


def test_other_budgets_stay_out(tmp_path):
    results = [write_score(tmp_path, "slu", value, budget=budget) for budget, value in (("3p", 0.6), ("10p", 0.8))]
    assert Block(results, SETTING, "10p").standing("slu").auroc.mean == pytest.approx(0.8)


def test_readings_of_slu_are_no_opponents(tmp_path):
    made = block(tmp_path, {"slu": (0.6,), "slu-fisher": (0.9,), "slu-default": (0.5,), "entropy": (0.5,)})
    assert made.others == ["entropy"]
