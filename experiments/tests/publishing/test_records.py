"""Small files of runs: nothing that tables need is lost, and they stay small."""

import json
import os
from datetime import datetime, timezone
from zlib import crc32

import pytest

from fake_results import write_score
from slu.errors import DamagedFileError
from slu_experiments.publishing.records import as_text, file_name, read_runs
from slu_experiments.results import METRICS, Result
from slu_experiments.settings import METHODS, find_setting
from slu_experiments.tables import as_csv, as_markdown, as_plain, tabulate

SETTING = find_setting("fmnist-lenet")


def uneven(seed, method):
    """An AUROC per set with more digits than anyone prints, as 10,000 by 10,000 points give it."""
    return lambda name: crc32(f"{seed} {method} {name}".encode()) % (2 * 10**8) / (2 * 10**8)


@pytest.fixture
def results(tmp_path):
    return [
        write_score(tmp_path, method, uneven(seed, method), seed=seed, budget=budget)
        for method in ("slu", "le", "max-logit", "slu-default")
        for budget in ("10p", "3p")
        for seed in (2, 1)
    ]


def published(results, path):
    path.write_text(as_text(results), encoding="utf-8")
    return read_runs(path)


@pytest.mark.parametrize("budget", ["3p", "10p"])
def test_tables_of_the_file_are_those_of_the_runs(results, tmp_path, budget):
    again = published(results, tmp_path / file_name("fmnist-lenet"))
    raw, rebuilt = (
        tabulate([each for each in some if each.config["budget"] == budget], SETTING, budget)
        for some in (results, again)
    )
    assert as_markdown(rebuilt) == as_markdown(raw) and as_csv(rebuilt) == as_csv(raw)
    assert as_plain(rebuilt) == as_plain(raw)


def test_a_line_per_run_in_a_fixed_order(results, tmp_path):
    text = as_text(results)
    assert text == as_text(list(reversed(results)))
    assert text == as_text(results) and json.loads(text)["setting"] == "fmnist-lenet"
    rows = json.loads(text)["runs"]
    assert [row["budget"] for row in rows] == ["3p"] * 8 + ["10p"] * 8
    order = [(row["method"], row["seed"]) for row in rows[:8]]
    assert order == [(name, seed) for name in METHODS for seed in (1, 2) if name in {m for m, _ in order}]
    lines = [line for line in text.splitlines() if line.startswith("  {")]
    assert [json.loads(line.rstrip(",")) for line in lines] == rows


def test_runs_of_different_sets_become_one_line(tmp_path):
    one = write_score(tmp_path, "slu", 0.7, outside=("mnist",))
    two = write_score(tmp_path, "slu", 0.6, outside=("fmnist-rotated-15", "fmnist-rotated-30"))
    (both,) = published([one, two], tmp_path / "x.json")
    areas = {name: judged["auroc"]["value"] for name, judged in both.metrics["judgements"].items()}
    assert areas == {"mnist": 0.7, "fmnist-rotated-15": 0.6, "fmnist-rotated-30": 0.6}


def test_sets_that_a_run_lacks_stay_out(tmp_path):
    results = [write_score(tmp_path, "slu", 0.7), write_score(tmp_path, "le", 0.6, outside=("mnist",))]
    slu, le = published(results, tmp_path / "x.json")
    assert len(slu.metrics["judgements"]) == 13 and list(le.metrics["judgements"]) == ["mnist"]


def test_day_and_machine(tmp_path):
    result = write_score(tmp_path, "slu", 0.7)
    (again,) = published([result], tmp_path / "x.json")
    assert again.metrics["made"] == result.metrics["made"] and "cores" in again.metrics["made"]["machine"]
    before = Result(result.folder, result.config, {**result.metrics}, {})  # of a run from before these were noted
    del before.metrics["made"]
    noon = datetime(2026, 3, 4, 12, tzinfo=timezone.utc).timestamp()
    os.utime(result.folder / METRICS, (noon, noon))
    (again,) = published([before], tmp_path / "x.json")
    assert again.metrics["made"] == {"date": "2026-03-04", "machine": None}


def test_all_networks_and_methods_of_a_setting_stay_well_below_a_mebibyte(tmp_path):
    setting = find_setting("mnist-mlp")
    first = write_score(tmp_path, "slu", lambda name: 0.123456785, setting="mnist-mlp")
    results = [
        Result(first.folder, {**first.config, "method": method, "budget": budget, "seed": seed}, first.metrics, {})
        for method in METHODS
        for budget in ("3p", "10p")
        for seed in setting.seeds
    ]
    assert len(results) >= 500
    assert len(as_text(results).encode()) < 2**19


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 2}', '{"format": 1, "runs": [{}]}'])
def test_another_file_is_refused(tmp_path, text):
    path = tmp_path / "runs-x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DamagedFileError, match=r"runs-x\.json is no file of published runs.*slu-paper publish"):
        read_runs(path)
