"""Which of the paper's cells come out again, and why the others do not."""

import pytest

from fake_results import write_score
from slu_experiments.publishing.agreement import (
    PRINTED,
    RUN,
    UNKNOWN,
    accuracy,
    compared,
    differing,
    is_close,
    share,
)
from slu_experiments.settings import Reported, find_setting
from slu_experiments.tables import Measured, tabulate

SETTING = find_setting("fmnist-lenet")


def as_in_paper(mnist, rotated):
    return lambda name: mnist if name == "mnist" else rotated


def test_cells_by_the_formulas_and_as_run(tmp_path):
    results = [
        write_score(tmp_path, "slu", as_in_paper(0.94, 0.74)),  # the paper's
        write_score(tmp_path, "lla", as_in_paper(0.5, 0.70)),  # one far off
        write_score(tmp_path, "lla-as-run", as_in_paper(0.80, 0.70)),  # which the authors' options mend
        write_score(tmp_path, "max-logit", 0.1),  # not in the paper
    ]
    table = tabulate(results, SETTING, "3p")
    printed, run = compared(table, PRINTED), compared(table, RUN)
    assert [(each.method, each.family) for each in printed] == [
        ("slu", "mnist"), ("slu", "fmnist-rotated"), ("lla", "mnist"), ("lla", "fmnist-rotated"),
    ]  # fmt: skip
    assert [each.method for each in run] == ["slu", "slu", "lla-as-run", "lla-as-run"]
    assert share(printed) == 0.75 and share(run) == 1 and share([]) is None
    (far,) = differing(printed)
    assert (far.method, far.family, far.others) == ("lla", "mnist", ["LLA as run"])


def test_the_authors_prior_stands_in_for_a_row_as_run(tmp_path):
    results = [write_score(tmp_path, name, 0.6) for name in ("lla-d", "lla-d-paper-prior")]
    assert {each.method for each in compared(tabulate(results, SETTING, "3p"), RUN)} == {"lla-d-paper-prior"}
    results.append(write_score(tmp_path, "lla-d-as-run", 0.6))
    assert {each.method for each in compared(tabulate(results, SETTING, "3p"), RUN)} == {"lla-d-as-run"}


def test_cells_without_a_spread_of_the_papers_do_not_count(tmp_path):
    table = tabulate([write_score(tmp_path, "de", 0.2, budget="10p")], SETTING, "10p")
    assert compared(table, PRINTED) == []


@pytest.mark.parametrize(
    ("key", "known"),
    [
        ("fmnist-lenet/slu/mnist", True),
        ("fmnist-lenet/slu/*", True),
        ("*/slu/mnist", True),
        ("fmnist-lenet/slu-as-run/mnist", False),
        ("mnist-mlp/slu/mnist", False),
    ],
)
def test_causes_by_setting_method_and_family(tmp_path, key, known):
    table = tabulate([write_score(tmp_path, "slu", as_in_paper(0.5, 0.74))], SETTING, "3p")
    (cell,) = differing(compared(table, PRINTED))
    assert cell.cause({key: "a short training"}) == ("a short training" if known else UNKNOWN)
    assert cell.cause({"*/slu/*": "first", key: "second"}) == "first"


def test_accuracies(tmp_path):
    results = [write_score(tmp_path, method, 0.5, seed=seed) for method in ("slu", "le") for seed in (1, 2)]
    results[0].metrics["network"]["accuracy"] = results[2].metrics["network"]["accuracy"] = 0.90
    assert accuracy(results) == Measured.of([0.90, 0.88])  # one per network, whatever the number of methods
    assert is_close(Measured(0.8955, None, 1), Reported(0.886)) and not is_close(
        Measured(0.897, 0.1, 3), SETTING.accuracy
    )
