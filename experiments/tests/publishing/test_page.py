"""The report on made-up runs: what it says, and what it says of what is missing."""

import csv
import io
import json

import pytest

from fake_results import write_score
from slu.errors import DamagedFileError, SettingError, StorageError
from slu_experiments.publishing import BEGIN, END, made_of, report_of, with_headline
from slu_experiments.publishing.advice import headline, seconds, words
from slu_experiments.publishing.agreement import UNKNOWN
from slu_experiments.publishing.page import paper_settings
from slu_experiments.publishing.provenance import command, expected, missing
from slu_experiments.publishing.records import as_text, file_name
from slu_experiments.reproducing import Plan
from slu_experiments.settings import METHODS, find_setting

NETWORKS = (0.0, 0.01, 0.02)  # what is added to every method on a network
AREAS = {"slu": 0.70, "slu-default": 0.80, "lla": 0.60, "lla-d": 0.9, "swag": 0.95, "max-logit": 0.75, "de": 0.5}


def published(folder, results):
    """A report on runs, by way of their file."""
    by_setting = {}
    for result in results:
        by_setting.setdefault(result.config["setting"], []).append(result)
    folder.mkdir(exist_ok=True)
    for name, some in by_setting.items():
        (folder / file_name(name)).write_text(as_text(some), encoding="utf-8")
    return report_of(folder)


def some_runs(out, setting="fmnist-lenet", areas=AREAS, **run):
    """Every method on three networks, with a little noise of its own; the ensemble on one."""
    return [
        write_score(
            out, method, area + more + 0.001 * (seed % 2) * (len(method) % 3), setting=setting, seed=seed, **run
        )
        for method, area in areas.items()
        for seed, more in enumerate(NETWORKS[: 1 if method == "de" else 3], 1)
    ]


@pytest.fixture
def report(tmp_path):
    results = some_runs(tmp_path / "out")
    for result in results:
        if result.config["method"] == "swag":
            result.metrics["memory"]["kept_copies"] = 5.0
    return published(tmp_path / "to", results)


def section(page, title):
    return page.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_the_first_lines_say_what_is_missing(report):
    first = report.page().splitlines()[2]
    wanted = expected(find_setting("fmnist-lenet"))
    assert first.startswith(
        f"**This is a part: there are 19 of {len(wanted)} runs of FashionMNIST, LeNet, and no runs of"
    )
    assert "CIFAR-10, ResNet" in first
    lines = section(report.page(), "What is missing")
    assert (
        "3p, network 1: LE; " not in lines and "all methods but SLU; SLU, combined; LLA; LLA-D; SWAG; DE" not in lines
    )
    assert "10p, networks 1 to 10: every method." in lines and "3p, networks 4 to 10: every method." in lines
    assert "- **MNIST, MLP**: every run." in lines


def test_the_pick_is_the_best_within_the_budget_and_its_cost_is_said(report):
    text = section(report.page(), "Which method would I pick?")
    (row,) = [line for line in text.splitlines() if line.startswith("| FashionMNIST")]
    assert row.startswith("| FashionMNIST, LeNet | 3p | LLA-D | 0.91") and "| 1.00p | 1.5 s | 10 ms |" in row
    assert row.endswith("| 0.710 | 0.811 |")  # SLU, and its default
    assert "- FashionMNIST, LeNet, 3p\n  - **LLA-D**: mean AUROC 0.911 ± 0.010 over 3 networks; keeps 1.00p" in text
    assert "Best of those that keep nothing: max logit, 0.7" in text
    assert "on mnist LLA-D (0.911); on fmnist-rotated LLA-D (0.911)." in text


def test_where_ours_loses(report):
    text = " ".join(words(report.blocks[0]))
    assert "SLU loses to SWAG (-0.25); LLA-D (-0.20); max logit (-0.05)." in text
    assert "SLU, combined (default) loses to SWAG (-0.15); LLA-D (-0.10)." in text
    assert "One network in common with it, so no verdict: DE." in text


def test_a_loss_on_one_family_alone_is_told(tmp_path):
    def steady(mnist, rotated):
        return lambda name: mnist if name == "mnist" else rotated

    results = []
    for seed in (1, 2, 3):
        results.append(write_score(tmp_path, "slu", steady(0.5 + seed / 1000, 0.9), seed=seed))
        results.append(write_score(tmp_path, "le", steady(0.6, 0.6 + seed / 1000), seed=seed))
    text = " ".join(words(published(tmp_path / "to", results).blocks[0]))
    assert "SLU loses to none of 1 other methods; on single families also to LE (on mnist)." in text


def test_wins_ties_and_losses_are_counted(report):
    text = section(report.page(), "Does SLU beat the rest at equal memory?")
    rows = text.splitlines()
    assert [line for line in rows if line.startswith("| FashionMNIST")] == [
        "| FashionMNIST, LeNet | 3p | 1 to 3 | the paper's methods "
        "| 1 / 0 / 2, 1 open (2 / 0 / 4, 2 open) | 1 / 0 / 2, 1 open (2 / 0 / 4, 2 open) |",
        "| FashionMNIST, LeNet | 3p | 1 to 3 | scores of outputs and features "
        "| 0 / 0 / 1 (0 / 0 / 2) | 1 / 0 / 0 (2 / 0 / 0) |",
    ]
    lines = list(csv.DictReader(io.StringIO(report.csv()["comparisons.csv"])))
    assert len(lines) == 2 * 5 * 3 and {line["verdict"] for line in lines} == {"win", "loss", ""}
    assert {line["networks"] for line in lines if line["verdict"] == ""} == {"1"}


def test_wins_are_summed_over_budgets_and_settings(tmp_path):
    results = [*some_runs(tmp_path), *some_runs(tmp_path, budget="10p"), *some_runs(tmp_path, "mnist-mlp")]
    page = published(tmp_path / "to", results).page()
    (total,) = [line for line in page.splitlines() if line.startswith("| **all** |  |  | scores of outputs")]
    assert total.endswith("| 0 / 0 / 3 (0 / 0 / 7) | 3 / 0 / 0 (7 / 0 / 0) |")


def test_one_network_gives_no_verdict(tmp_path):
    results = [write_score(tmp_path, name, area) for name, area in AREAS.items()]
    page = published(tmp_path / "to", results).page()
    assert "0 / 0 / 0, 4 open" in page and ": win" not in page and ": loss" not in page
    assert "SLU: no verdict against any other method, for want of a second network." in page


def test_accuracies_beside_the_papers(tmp_path):
    results = [write_score(tmp_path, "slu", 0.5, setting=name) for name in ("mnist-mlp", "fmnist-lenet")]
    text = section(published(tmp_path / "to", results).page(), "Test accuracies")
    assert "| FashionMNIST, LeNet | 1 of the paper's 10 | 0.880 | 0.886 ± 0.003 | yes |" in text
    assert "| MNIST, MLP | 1 of the paper's 10 | 0.880 | 0.952 ± 0.001 | **no** |" in text


def test_cells_that_differ_with_their_causes(tmp_path, report):
    (tmp_path / "to" / "notes.json").write_text(json.dumps({"causes": {"fmnist-lenet/lla/*": "a made-up run"}}))
    text = section(report_of(tmp_path / "to").page(), "Do the paper's numbers come out again?")
    assert "| FashionMNIST, LeNet | 3p | LLA | mnist | 0.61" in text
    lines = text.splitlines()
    unknown, made_up = (
        next(line.partition(". ")[0] for line in lines if line.endswith(cause)) for cause in (UNKNOWN, "a made-up run")
    )
    assert sum(line.startswith(f"{made_up}. ") for line in lines) == 1  # however many cells have it
    assert {line.split(" | ")[2] for line in lines if line.endswith(f"| ({made_up}) |")} == {"LLA"}
    assert sum(line.endswith(f"| ({unknown}) |") for line in lines) > 3
    assert "| FashionMNIST, LeNet | 3p | 1 of 10 (10%) | 1 of 10 (10%) |" in text


def test_tables_name_their_command_and_their_origin(tmp_path):
    results = some_runs(tmp_path / "out", "cifar10-resnet", queries=500, training={"epochs": 40})
    report = published(tmp_path / "to", results)
    words = "slu-paper reproduce --setting cifar10-resnet --budget 3p --seeds 1 2 3 --queries 500 --epochs 40"
    assert command(report.blocks[0]) == words
    text = section(report.page(), "CIFAR-10, ResNet")
    assert f"Made with `{words}`." in text and "Networks trained for 40 epochs; 20" in text and "cores" in text
    assert "source " in text and "commit" not in text
    source = results[0].metrics["code"]["source"]
    notes = {"commits": {source: "abc1234"}, "remarks": {"cifar10-resnet": ["The schedule is a fifth of the paper's."]}}
    (tmp_path / "to" / "notes.json").write_text(json.dumps(notes))
    text = section(report_of(tmp_path / "to").page(), "CIFAR-10, ResNet")
    assert f"commit abc1234, source {source}" in text and "a fifth of the paper's" in text


def test_a_machine_that_runs_do_not_note(tmp_path):
    results = [write_score(tmp_path, "slu", 0.5)]
    results[0].metrics["made"]["machine"] = None
    assert "a machine that is not noted" in published(tmp_path / "to", results).page()
    (tmp_path / "to" / "notes.json").write_text('{"machine": "a borrowed laptop"}')
    assert "; a borrowed laptop; " in report_of(tmp_path / "to").page()


def test_remarks_and_pictures_of_what_has_no_score_runs(tmp_path):
    published(tmp_path / "to", [write_score(tmp_path, "slu", 0.5)])
    notes = {"remarks": {"imagenet-swin": ["Fitted in an hour."]}, "figures": {"ghosts.png": "Directions found twice."}}
    (tmp_path / "to" / "notes.json").write_text(json.dumps(notes))
    page = report_of(tmp_path / "to").page()
    assert section(page, "ImageNet, SWIN").strip() == "Fitted in an hour."
    assert section(page, "Further figures").strip() == "![ghosts.png](ghosts.png)\n\nDirections found twice."


def test_missing_sets_and_rows_of_changed_settings(tmp_path, monkeypatch):
    setting = find_setting("fmnist-lenet")
    results = [write_score(tmp_path, "slu", 0.5, outside=("mnist",))]
    lines = missing(setting, results)
    assert any(line.startswith("Sets that nothing was judged on: fmnist-rotated-15, ") for line in lines)
    assert not any("changed" in line for line in lines)
    results[0].config["settings"] = {"rank": 3}
    assert "The code has changed the settings since of SLU at 3p." in missing(setting, results)


def test_nothing_is_missing_when_every_run_is_there(tmp_path):
    setting = find_setting("celeba-van")
    first = write_score(tmp_path, "slu", 0.5, setting="celeba-van")
    runs = Plan("celeba-van", budgets=("3p", "10p")).runs(())
    results = [type(first)(first.folder, run.config(), first.metrics, {}) for run in runs]
    assert missing(setting, results) == []
    assert missing(setting, results[1:]) == ["3p, network 1: SLU."]


def test_only_the_papers_settings_are_published():
    names = [setting.name for setting in paper_settings()]
    assert names == ["mnist-mlp", "fmnist-lenet", "cifar10-resnet", "celeba-van", "imagenet-swin"]


def test_the_headline(tmp_path, report):
    lines = headline(report.blocks)
    assert lines[0] == "|  | FashionMNIST, LeNet |"
    assert lines[2].startswith("| SLU's default | 0.81") and lines[2].endswith("(3.00p) |")
    assert lines[3].startswith("| SLU as in the paper | 0.71") and lines[3].endswith("(2.98p) |")
    assert lines[4].startswith("| best of the paper's others | SWAG 0.96") and lines[4].endswith("(5.00p) |")
    assert lines[5].startswith("| max logit | 0.7") and lines[5].endswith("(0.00p) |")
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == (7 if "knn" in METHODS else 6)
    text = f"# A\n\n{BEGIN}\nold\n{END}\n\nmore\n"
    new = with_headline(text, report)
    assert (
        new.startswith(f"# A\n\n{BEGIN}\n|  | Fashion") and new.endswith(f"kept.\n{END}\n\nmore\n") and "old" not in new
    )
    assert with_headline(new, report) == new
    with pytest.raises(SettingError, match="headline: begin"):
        with_headline("no markers", report)


def test_a_page_is_stable(tmp_path, report):
    assert made_of(report) == made_of(report_of(tmp_path / "to"))


def test_folders_without_runs_and_notes_that_are_none(tmp_path, report):
    with pytest.raises(StorageError, match="slu-paper publish --out"):
        report_of(tmp_path / "nowhere")
    for text in ("[1]", "{", '{"reasons": {}}'):
        (tmp_path / "to" / "notes.json").write_text(text)
        with pytest.raises(SettingError, match=r"notes\.json is not as expected"):
            report_of(tmp_path / "to")


def test_times_in_two_digits():
    assert [seconds(each) for each in (0.0, 2e-5, 0.0123, 1.0, 59.6, 3600)] == [
        "0 ms", "0.02 ms", "12 ms", "1 s", "60 s", "1 h",
    ]  # fmt: skip


def test_a_network_that_was_only_measured_has_its_table(report, tmp_path):
    folder = tmp_path / "to"
    content = {"title": "SLU's default", "command": "measure --it", "made": {"date": "2026-01-02", "machine": "a box"}}
    path = folder / "cost-imagenet-swin-default.json"
    path.write_text(json.dumps({**content, "measured": {"parameters": 196517106, "query / forward": 2.3456}}))
    again = report_of(folder)
    text = section(again.page(), "ImageNet, SWIN")
    assert "| parameters | 196,517,106 |" in text and "| query / forward | 2.35 |" in text
    assert "`measure --it`; 2026-01-02; a box." in text
    assert "ImageNet, SWIN" in section(again.page(), "What is missing")
    path.write_text("{}")
    with pytest.raises(DamagedFileError, match=r"cost-imagenet-swin-default\.json"):
        report_of(folder)
