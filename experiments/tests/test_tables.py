"""The paper's table beside ours, from stored folders alone."""

import csv
import io
import json
from dataclasses import replace

import pytest

from fake_results import write_score
from slu.errors import SettingError, StorageError
from slu_experiments.choosing import Wanted, chosen
from slu_experiments.reproducing import Plan
from slu_experiments.results import Store
from slu_experiments.settings import METHODS, find_setting, reported
from slu_experiments.tables import as_csv, as_markdown, as_plain, as_rich, caption, headings, tabulate, texts

SETTING = find_setting("fmnist-lenet")


def table(out, budget="3p", setting=SETTING, **wanted):
    return tabulate(chosen(Store(out), setting, budget, Wanted(**wanted)), setting, budget, only=wanted.get("methods"))


def row(made, method):
    return next(each for each in made.rows if each.method == method)


def test_mean_and_spread_over_networks(tmp_path):
    for seed, value in enumerate((0.92, 0.94, 0.96), 1):
        write_score(tmp_path, "slu", value, seed=seed)
    made = table(tmp_path)
    cell = row(made, "slu").cells["mnist"]
    assert cell.ours.mean == pytest.approx(0.94) and cell.ours.spread == pytest.approx(0.02) and cell.ours.seeds == 3
    assert str(cell.paper) == "0.94 ± 0.01" and made.seeds == (1, 2, 3)
    assert texts(row(made, "slu"), paper=True)[:3] == ["SLU", "0.940 ± 0.020", "0.94 ± 0.01"]


def test_a_family_is_the_mean_of_its_sets(tmp_path):
    write_score(tmp_path, "slu", lambda name: 0.5 if name == "mnist" else int(name.split("-")[-1]) / 180)
    cells = row(table(tmp_path), "slu").cells
    assert cells["mnist"].ours.mean == 0.5 and cells["mnist"].ours.spread is None
    assert cells["fmnist-rotated"].ours.mean == pytest.approx(sum(range(15, 181, 15)) / 12 / 180)


@pytest.mark.parametrize(("value", "differs"), [(0.97, True), (0.91, True), (0.955, False), (0.925, False)])
def test_differences_beyond_two_spreads_are_marked(tmp_path, value, differs):
    write_score(tmp_path, "slu", lambda name: value if name == "mnist" else 0.74)
    made = table(tmp_path)
    assert made.differing == ([("SLU", "mnist")] if differs else [])
    assert ("0.970 !" in as_markdown(made)) == (value == 0.97)
    assert row(made, "slu").cells["mnist"].differs is differs


def test_without_a_spread_of_the_papers_nothing_is_marked(tmp_path):
    write_score(tmp_path, "de", 0.2, budget="10p")
    assert table(tmp_path, "10p").differing == []


def test_rows_of_the_paper_that_ours_lack(tmp_path):
    write_score(tmp_path, "slu-as-run", 0.9)
    made = table(tmp_path)
    assert [each.method for each in made.rows] == [
        "slu",
        "slu-as-run",
        "lla",
        "lla-d",
        "le",
        "le-h",
        "scod",
        "swag",
        "de",
    ]
    assert row(made, "slu").cells["mnist"].ours is None and row(made, "slu-as-run").cells["mnist"].paper.mean == 0.94
    assert [each.method for each in table(tmp_path, methods=["slu-as-run"]).rows] == ["slu-as-run"]


def test_formats_agree(tmp_path):
    write_score(tmp_path, "slu", 0.9)
    write_score(tmp_path, "max-logit", 0.8)
    made = table(tmp_path)
    plain = json.loads(json.dumps(as_plain(made), allow_nan=False))
    lines = list(csv.DictReader(io.StringIO(as_csv(made))))
    assert len(lines) == len(made.rows) * 2 == len(plain["rows"]) * 2
    first = plain["rows"][0]["auroc"]["mnist"]
    assert float(lines[0]["mean"]) == first["ours"]["mean"] == 0.9 and lines[0]["differs"] == "1" and first["differs"]
    assert as_markdown(made).count("\n| ") == len(made.rows) + 2
    assert as_rich(made).row_count == len(made.rows)
    assert "paper" in headings(made) and "0.886 ± 0.003" in " ".join(caption(made))


def test_a_setting_that_the_paper_does_not_have(tmp_path):
    setting = find_setting("digits-mlp")
    write_score(tmp_path, "slu", 0.9, setting="digits-mlp")
    made = table(tmp_path, setting=setting)
    assert "paper" not in headings(made) and [each.method for each in made.rows] == ["slu"]
    assert len(texts(made.rows[0], paper=False)) == len(headings(made))


def test_a_family_of_which_a_part_is_missing_says_so(tmp_path):
    write_score(tmp_path, "slu", 0.9, outside=("mnist", "fmnist-rotated-15", "fmnist-rotated-30"))
    assert "2 of its 12 sets" in " ".join(caption(table(tmp_path)))


def test_results_of_other_points_do_not_mix(tmp_path):
    write_score(tmp_path, "slu", 0.9, points=100)
    assert row(table(tmp_path), "slu").cells["mnist"].ours.mean == 0.9  # the only kind there is
    write_score(tmp_path, "slu", 0.5, points=200)
    with pytest.raises(SettingError, match="--points"):
        table(tmp_path)
    assert row(table(tmp_path, points=200), "slu").cells["mnist"].ours.mean == 0.5
    write_score(tmp_path, "slu", 0.7)
    assert row(table(tmp_path), "slu").cells["mnist"].ours.mean == 0.7  # the setting's own comes first


def test_runs_with_other_settings_stay_out(tmp_path):
    write_score(tmp_path, "slu", 0.9)
    write_score(tmp_path, "slu", 0.1, changed={"rank": 3})
    assert row(table(tmp_path), "slu").cells["mnist"].ours.mean == 0.9


def test_results_that_the_code_left_behind_stay_out(tmp_path, monkeypatch):
    write_score(tmp_path, "slu", 0.1)
    write_score(tmp_path, "lla", 0.2)
    other = replace(METHODS["slu"], settings=lambda setting, budget: {"rank": 7, "sketch_size": 90})
    monkeypatch.setitem(METHODS, "slu", other)
    assert [each.method for each in table(tmp_path).rows if each.cells["mnist"].ours] == ["lla"]
    write_score(tmp_path, "slu", 0.9)
    assert row(table(tmp_path), "slu").cells["mnist"].ours.mean == 0.9  # not mixed with the old


def test_results_of_another_training_do_not_mix(tmp_path):
    write_score(tmp_path, "slu", 0.1, training={"epochs": 2})
    write_score(tmp_path, "slu", 0.2, training={"epochs": 2}, queries=50)
    with pytest.raises(SettingError, match="--epochs"):
        table(tmp_path)
    assert row(table(tmp_path, training={"epochs": 2}), "slu").cells["mnist"].ours.mean == 0.1
    assert row(table(tmp_path, queries=50), "slu").cells["mnist"].ours.mean == 0.2
    assert "epochs 2" in " ".join(caption(table(tmp_path, queries=50)))


def test_the_papers_spreads_are_printed_as_it_has_them():
    assert str(reported("celeba-van", "3p", "slu", "food101")) == "0.95 ± 0.003"
    assert str(reported("cifar10-resnet", "3p", "lla-d", "svhn")) == "0.55 ± 0.10"
    assert str(reported("mnist-mlp", "3p", "de", "kmnist")) == "0.96 ± 0.00"


def test_ensembles_of_a_plan_share_no_network():
    def seeds(**plan):
        return [run.seed for run in Plan("mnist-mlp", methods=("de",), **plan).runs(("fmnist",))]

    assert seeds() == [1, 4, 7] and seeds(budgets=("10p",)) == [1]  # as the paper has them
    assert seeds(seeds=(2,)) == [2] and seeds(seeds=(1, 2)) == [1] and seeds(budgets=("1p",)) == [1, 3, 5, 7, 9]
    assert [run.seed for run in Plan("mnist-mlp", methods=("slu",), seeds=(3, 4)).runs(("fmnist",))] == [3, 4]


def test_no_results(tmp_path):
    with pytest.raises(StorageError, match="slu-paper reproduce --setting fmnist-lenet"):
        table(tmp_path)
