"""`slu-paper publish`: from folders of results to files, and again from the files alone."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fake_results import write_score
from slu_experiments.cli import app
from slu_experiments.publishing import BEGIN, END


def run(*arguments):
    return CliRunner().invoke(app, ["publish", *map(str, arguments)], env={"COLUMNS": "200", "NO_COLOR": "1"})


def files(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return {Path(path).name: Path(path) for path in json.loads(result.stdout)["files"]}


@pytest.fixture
def out(tmp_path):
    for seed in (1, 2):
        for method, value in (("slu", 0.6), ("slu-default", 0.8), ("max-logit", 0.7)):
            write_score(tmp_path / "out", method, value + seed / 100, seed=seed)
    write_score(tmp_path / "out", "slu", 0.5, setting="digits-mlp")  # not the paper's
    return tmp_path / "out"


def test_from_results_and_again_from_the_files(out, tmp_path):
    to = tmp_path / "new" / "folder"
    made = files("--out", out, "--to", to)
    names = {"runs-fmnist-lenet.json", "README.md", "fmnist-lenet-3p.csv", "comparisons.csv"}
    assert set(made) == names | {"fmnist-lenet-memory.png", "fmnist-lenet-budget.png"}
    before = {name: path.read_bytes() for name, path in made.items()}
    (to / "README.md").write_text("edited")
    (out / "runs").rename(tmp_path / "elsewhere")
    again = files("--stored", "--to", to, "--out", out)
    assert set(again) == set(made) - {"runs-fmnist-lenet.json"}
    assert {name: path.read_bytes() for name, path in made.items()} == before


def test_settings_without_results_are_told_and_their_files_stay(out, tmp_path):
    to = tmp_path / "to"
    files("--out", out, "--to", to)
    kept = (to / "runs-fmnist-lenet.json").read_bytes()
    write_score(tmp_path / "other", "slu", 0.4, setting="mnist-mlp")
    result = run("--out", tmp_path / "other", "--to", to)
    assert result.exit_code == 0 and "no results of fmnist-lenet" in result.stderr
    assert (to / "runs-fmnist-lenet.json").read_bytes() == kept
    page = (to / "README.md").read_text(encoding="utf-8")
    assert "## MNIST, MLP" in page and "## FashionMNIST, LeNet" in page


def test_runs_that_were_published_before_stay_if_they_belong_to_the_new_ones(out, tmp_path):
    """Those of another machine, on which the results are not; made again, they are replaced."""
    to = tmp_path / "to"
    path = files("--out", out, "--to", to)["runs-fmnist-lenet.json"]
    before = json.loads(path.read_text(encoding="utf-8"))["runs"]
    for seed, value in ((2, 0.5), (3, 0.55)):
        write_score(tmp_path / "new", "slu", value, seed=seed)
    assert files("--out", tmp_path / "new", "--to", to)["runs-fmnist-lenet.json"] == path
    content = json.loads(path.read_text(encoding="utf-8"))
    rows = {(row["method"], row["seed"]): row for row in content["runs"]}
    assert len(content["runs"]) == len(before) + 1 and set(content["accuracy"]) == {"1", "2", "3"}
    for row in before:
        assert (rows[row["method"], row["seed"]] == row) == ((row["method"], row["seed"]) != ("slu", 2))
    write_score(tmp_path / "quick", "slu", 0.4, queries=500)
    result = run("--out", tmp_path / "quick", "--to", to)
    assert result.exit_code == 0 and "6 runs of runs-fmnist-lenet.json are left out" in " ".join(result.stderr.split())
    assert len(json.loads(path.read_text(encoding="utf-8"))["runs"]) == 1


def test_kinds_of_runs_are_chosen_per_setting(out, tmp_path):
    to, quick = tmp_path / "to", {"training": {"epochs": 40}, "queries": 500}
    write_score(out, "slu", 0.4, setting="cifar10-resnet", **quick)
    write_score(out, "slu", 0.3, setting="cifar10-resnet", training={"epochs": 2})
    result = run("--out", out, "--to", to)
    assert result.exit_code == 1 and "of several kinds" in result.stderr
    words = ["--setting", "cifar10-resnet", "--epochs", 40, "--queries", 500]
    made = files("--out", out, "--to", to, *words)
    content = json.loads(made["runs-cifar10-resnet.json"].read_text(encoding="utf-8"))
    assert (content["training"], content["queries"], len(content["runs"])) == ({"epochs": 40}, 500, 1)


def test_the_headline_goes_into_a_file(out, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"above\n{BEGIN}\n{END}\nbelow\n", encoding="utf-8")
    made = run("--out", out, "--to", tmp_path / "to", "--readme", readme)
    text = readme.read_text(encoding="utf-8")
    assert made.exit_code == 0 and "| SLU's default | 0.815" in text
    assert text.startswith("above\n") and text.endswith(f"{END}\nbelow\n")


def test_errors(out, tmp_path):
    none = run("--out", tmp_path / "empty", "--to", tmp_path / "to")
    assert none.exit_code == 1 and "slu-paper reproduce" in none.stderr
    stored = run("--stored", "--to", tmp_path / "to")
    assert stored.exit_code == 1 and "there are no published runs" in stored.stderr
    both = run("--stored", "--queries", 500, "--to", tmp_path / "to")
    assert both.exit_code == 1 and "--stored collects nothing" in both.stderr
    other = run("--setting", "digits-mlp", "--out", out, "--to", tmp_path / "to")
    assert other.exit_code == 1 and "mnist-mlp" in other.stderr and not list((tmp_path / "to").iterdir())
    absent = run("--out", out, "--to", tmp_path / "to", "--readme", tmp_path / "absent.md")
    assert absent.exit_code == 1 and "absent.md" in absent.stderr and "two markers" in absent.stderr


def test_help_teaches():
    text = run("--help").stdout
    assert "slu-paper publish --out slu-results --to docs/results/paper" in text.replace("\n", " ").replace("  ", " ")
    assert "notes.json" in text and "causes" in text
