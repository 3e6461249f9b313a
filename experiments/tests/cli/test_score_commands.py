"""`slu-paper score`, `table`, `figure` and `reproduce`, end to end on the digits."""

import csv
import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import slu.cli
from fake_results import made_up, write_score
from slu.errors import MissingDataError, NumericalError
from slu_experiments import reproducing, running
from slu_experiments.cli import app
from slu_experiments.cli.shared import spread
from slu_experiments.data import expand
from slu_experiments.publishing.records import as_text, file_name
from slu_experiments.results import Store
from slu_experiments.running import Run

SMALL = ["--epochs", "2", "--points", "80", "--queries", "25"]


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})


def fine(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """A folder that the commands below share, as a user's would be."""
    return tmp_path_factory.mktemp("out")


def score(out, *further):
    words = ["--dataset", "digits", "--model", "mlp", "--ood", "digits-held-out", "digits-rotated-90", "--out", out]
    return fine("score", *words, "--option", "rank=8", "sketch_size=60", *SMALL, *further)


def test_score(out):
    made, again = (json.loads(score(out, "--json")) for _ in range(2))
    assert made["made"] and not again["made"] and again["metrics"] == made["metrics"]
    assert set(made["metrics"]["judgements"]) == {"digits-held-out", "digits-rotated-90"}
    assert made["config"]["settings"] == {
        "rank": 8, "sketch_size": 60, "solver": "lanczos", "scale": None, "ridge": 0.0,
    }  # fmt: skip
    text = score(out)
    auroc = made["metrics"]["judgements"]["digits-held-out"]["auroc"]["value"]
    assert f"{auroc:.3f}" in text and "test accuracy" in text and ", found" in text and made["folder"] in text
    assert (out / "weights").is_dir()


@pytest.fixture(scope="module")
def reproduced(out):
    words = ["reproduce", "--setting", "digits-mlp", "--methods", "le", "max-logit", "--out", out, *SMALL]
    return fine(*words, "--seeds", "1", "2"), words


def test_reproduce_from_nothing_and_again(out, reproduced):
    text, words = reproduced
    assert "4 runs made, 0 found, 0 failed" in text and "LE" in text and "max logit" in text
    shown = json.loads(fine(*words, "--seeds", "1,2", "--json"))
    assert (shown["made"], shown["found"], shown["failures"]) == (0, 4, {})
    assert {row["method"] for row in shown["tables"][0]["rows"]} == {"le", "max-logit"}
    assert len(shown["files"]) == 5 and all(map(str.strip, shown["files"]))
    folders = {str(Path(path).relative_to(out)).partition("/")[0] for path in shown["files"]}
    assert folders == {"tables", "figures"} and all(Path(path).is_file() for path in shown["files"])
    assert {path.suffix for path in (out / "tables").iterdir()} == {".md", ".csv", ".json"}


def test_what_was_published_is_not_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "work", lambda self, config, place: made_up(config, 0.5))
    words = ["reproduce", "--setting", "mnist-mlp", "--methods", "max-logit", "entropy", "--out", tmp_path / "out"]
    for seed in (1, 2):
        write_score(tmp_path / "before", "max-logit", 0.4, setting="mnist-mlp", seed=seed)
    folder = tmp_path / "published"
    folder.mkdir()
    results = list(Store(tmp_path / "before").all("score"))
    (folder / file_name("mnist-mlp")).write_text(as_text(results), encoding="utf-8")
    monkeypatch.setattr(reproducing, "available", lambda setting, *_: (expand(list(setting.outside)), {}))
    text = fine(*words, "--published", folder, "--seeds", "1,2,3")
    assert "4 runs made, 0 found, 2 published before, 0 failed" in text
    assert "2 runs made, 4 found, 0 failed" in fine(*words, "--seeds", "1,2,3"), "without it all are made"
    only = [*words[:4], "max-logit", *words[-2:], "--published", folder, "--json", "--seeds"]
    assert json.loads(fine(*only, "2"))["published"] == 1, "nothing is left to do"
    assert json.loads(fine(*only, "2", "--queries", "25"))["published"] == 0, "those are of another kind"


def test_a_try_replaces_no_table_and_no_figure_of_the_whole(tmp_path, monkeypatch):
    """Whatever results are there already, a table is of its own runs."""
    monkeypatch.setattr(Run, "work", lambda self, config, place: made_up(config, 0.5))
    words = ["reproduce", "--setting", "digits-mlp", "--methods", "max-logit", "--out", tmp_path, "--json"]
    tries = [["--epochs", 2], ["--epochs", 2, "--queries", 25], [], ["--epochs", 2]]
    shown = [json.loads(fine(*words, *each)) for each in tries]
    assert [(each["made"], each["found"]) for each in shown] == [(1, 0), (1, 0), (1, 0), (0, 1)]
    asked = [(each["tables"][0]["queries"], each["tables"][0]["training"]) for each in shown]
    assert asked == [(None, {"epochs": 2}), (25, {"epochs": 2}), (None, {}), (None, {"epochs": 2})]
    files = [[Path(path) for path in each["files"]] for each in shown]
    assert files[3] == files[0] and len({each[0] for each in files}) == 3 and len({each[-1] for each in files}) == 3
    assert files[2][0].name.startswith("digits-mlp-3p-") and all(path.exists() for path in files[2])
    others = json.loads(
        fine("reproduce", "--setting", "digits-mlp", "--methods", "entropy", "--out", tmp_path, "--json")
    )
    assert Path(others["files"][0]) != files[2][0]  # a table of a few methods replaces none of others
    written = files[1][0].read_text(encoding="utf-8")
    assert "epochs 2" in written and "at most 25" in written


def test_weights_are_told_by_inspect(out, reproduced):
    (path, *_) = sorted((out / "weights").glob("digits-mlp-1-*.safetensors"))
    text = CliRunner().invoke(slu.cli.app, ["inspect", str(path)]).stdout
    assert "the weights of a trained network" in text and "digits-mlp" in text and "epochs 2" in text
    content = json.loads(CliRunner().invoke(slu.cli.app, ["inspect", str(path), "--json"]).stdout)
    assert (
        content["kind"] == "weights" and content["training"]["seed"] == 1 and 0 < content["training"]["accuracy"] <= 1
    )


def test_missing_sets_are_told_in_a_log_too(tmp_path, monkeypatch):
    monkeypatch.delenv("SLU_DATA", raising=False)
    result = run("score", "--setting", "digits-mlp", "--ood", "digits-held-out", "mnist", "--out", tmp_path, *SMALL)
    assert result.exit_code == 1 and "SLU_DATA" in result.stderr and not list(tmp_path.iterdir())

    def without(name, *rest):
        if name == "digits-rotated-30":
            raise MissingDataError("not on this machine")
        return real(name, *rest)

    real = running.query_source
    monkeypatch.setattr(running, "query_source", without)
    words = ["reproduce", "--setting", "digits-mlp", "--methods", "max-logit", "--out", tmp_path, *SMALL]
    result = run(*words, "--json")
    assert result.exit_code == 0 and "without digits-rotated-30: not on this machine" in result.stderr
    assert list(json.loads(result.stdout)["missing"]) == ["digits-rotated-30"]
    # The figure asks for all sets; what was scored without one is found all the same.
    words = ["figure", "budget", "--setting", "digits-mlp", "--methods", "max-logit", "--budgets", "3p", "--stored"]
    drawn = json.loads(fine(*words, "--out", tmp_path, *SMALL, "--json"))
    assert len(drawn["runs"]) == 1


def test_table(out, reproduced):
    words = ["table", "--setting", "digits-mlp", "--out", out]
    text = fine(*words)
    assert "digits-rotated (mean)" in text and "networks 1, 2" in text and "±" in text
    plain = json.loads(fine(*words, "--json"))
    lines = list(csv.DictReader(io.StringIO(fine(*words, "--format", "csv"))))
    assert float(lines[0]["mean"]) == plain["rows"][0]["auroc"][lines[0]["outside"]]["ours"]["mean"]
    assert fine(*words, "--format", "markdown").startswith("**digits, MLP, 3p**")
    assert [row["method"] for row in json.loads(fine(*words, "--json", "--methods", "le"))["rows"]] == ["le"]


def test_a_wide_table_is_not_cut(tmp_path):
    write_score(tmp_path, "slu", 0.5, setting="cifar10-resnet", outside=("svhn", "cifar100"))
    result = CliRunner().invoke(
        app, ["table", "--setting", "cifar10-resnet", "--out", str(tmp_path)], env={"COLUMNS": "60", "TERM": "dumb"}
    )
    assert "0.54 ± 0.02" in result.stdout and "…" not in result.stdout and "0.500 !" in result.stdout


@pytest.mark.parametrize(
    ("name", "further"),
    [
        ("ghosts", ["--steps", 6]),
        ("spectrum", ["--steps", 6, "--starts", 2]),
        ("synthetic", ["--parameters", 3000, "--rank", 4]),
        ("sketch-size", ["--steps", 4]),
        ("preconditioning", ["--steps", 3]),
        ("budget", ["--methods", "le", "--budgets", "3p", "--stored"]),
        ("memory", ["--methods", "le", "max-logit", "--budgets", "1p", "3p"]),
    ],
)
def test_every_figure(out, reproduced, name, further):
    words = ["figure", name, "--setting", "digits-mlp", "--out", out, "--picture", out / f"{name}.png", *further]
    drawn = json.loads(fine(*words, *SMALL, "--json"))
    assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG") and drawn["runs"]
    again = json.loads(fine(*words, *SMALL, "--json", "--stored"))
    assert again["runs"] == drawn["runs"]


def test_a_figure_has_a_usual_place(tmp_path):
    text = fine("figure", "synthetic", "--parameters", 3000, "--rank", 4, "--out", tmp_path)
    assert (tmp_path / "figures" / "synthetic.png").exists() and "figures/synthetic.png" in text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["score", "--setting", "digits-mlp", "--method", "magic"], "unknown method 'magic'"),
        (["score", "--setting", "digits-cnn"], "unknown setting 'digits-cnn'"),
        (["score", "--dataset", "digits"], "--setting fmnist-lenet"),
        (["score", "--setting", "digits-mlp", "--ood", "moon"], "'moon'"),
        (["score", "--setting", "digits-mlp", "--budget", "lots"], "no whole number of copies"),
        (["score", "--setting", "digits-mlp", "--option", "rank"], "name=value"),
        (["score", "--setting", "digits-mlp", "--option", "rnk=3"], "unknown setting of SLU 'rnk'; valid are 'rank'"),
        (["score", "--setting", "digits-mlp", "--method", "le", "--option", "sketch=srft"], "unknown setting of LE"),
        (["table", "--setting", "digits-mlp"], "slu-paper reproduce --setting digits-mlp"),
        (["table", "--setting", "digits-mlp", "--format", "xml"], "unknown format 'xml'"),
        (["figure", "teaser"], "unknown figure 'teaser'"),
        (["figure", "ghosts", "--stored"], "slu-paper figure ghosts"),
        (["figure", "synthetic", "--parameters", "1000", "--rank", "4"], "2,000 parameters or more"),
        (["figure", "synthetic", "--parameters", "3000", "--rank", "3000"], "fewer directions"),
        (["figure", "ghosts", "--picture", "ghosts.bmp"], ".png, .svg, .pdf"),
        (["reproduce", "--setting", "digits-mlp", "--budget", "lots"], "no whole number of copies"),
        (["reproduce", "--setting", "digits-mlp", "--methods", "magic"], "unknown method 'magic'"),
    ],
)
def test_errors_are_one_line(tmp_path, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    result = run(*words)
    assert result.exit_code == 1 and told in result.stderr and len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("slu-paper: ") and not result.stdout
    assert not list(tmp_path.rglob("*.safetensors"))  # nothing was trained for it


def test_a_damaged_result_is_named(tmp_path):
    result = write_score(tmp_path, "slu", 0.5, setting="digits-mlp")
    (result.folder / "metrics.json").unlink()
    told = run("table", "--setting", "digits-mlp", "--out", tmp_path)
    assert told.exit_code == 1 and str(result.folder) in told.stderr and "Delete that folder" in told.stderr


def test_one_failing_method_does_not_stop_the_others(tmp_path, monkeypatch):
    fit = Run.fit

    def failing(self, config, *where):
        if self.method == "le":
            raise NumericalError("not finite")
        return fit(self, config, *where)

    monkeypatch.setattr(Run, "fit", failing)
    words = ["reproduce", "--setting", "digits-mlp", "--methods", "le", "lla", "max-logit", "--out", tmp_path, *SMALL]
    result = run(*words, "--json")
    assert result.exit_code == 1 and "LE, 3p, network 1: not finite" in result.stderr
    shown = json.loads(result.stdout)
    assert shown["made"] == 2 and list(shown["failures"]) == ["LE, 3p, network 1"]
    monkeypatch.setattr(Run, "fit", fit)
    assert "1 runs made, 2 found, 0 failed" in fine(*words)


def test_an_interrupt_says_how_to_go_on(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "work", interrupted)
    result = run("reproduce", "--setting", "digits-mlp", "--methods", "max-logit", "--out", tmp_path, *SMALL)
    assert result.exit_code == 130 and "the same command goes on" in result.stderr


@pytest.mark.parametrize("command", ["score", "table", "figure", "reproduce"])
def test_help_teaches(command):
    text = run(command, "--help").output
    assert "--setting" in text and "--json" in text and "OUT/runs" in text


def test_shell_completion_is_offered():
    assert "--install-completion" in run("--help").output


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("slu-paper table --setting f", ["fmnist-lenet"]),
        ("slu-paper score --method le-", ["le-as-run", "le-converged", "le-h", "le-h-as-run"]),
        ("slu-paper figure sp", ["spectrum"]),
        ("slu-paper data fetch cifar100", ["cifar100"]),
    ],
)
def test_names_are_completed(line, expected):
    env = {"_SLU_PAPER_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    assert CliRunner().invoke(app, [], prog_name="slu-paper", env=env).stdout.split() == expected


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--ood", "a", "b", "--seed", "1"], ["--ood", "a", "--ood", "b", "--seed", "1"]),
        (["--ood=a,b", "c"], ["--ood", "a", "--ood", "b", "--ood", "c"]),
        (["name", "--seed", "1", "--ood", "x"], ["name", "--seed", "1", "--ood", "x"]),
        (["--ood"], ["--ood"]),
        (["--ood", "--seed", "1"], ["--ood", "--seed", "1"]),
        (["--ood", "rank=[1,2]"], ["--ood", "rank=[1,2]"]),
    ],
)
def test_options_of_several_values(args, expected):
    assert spread(args, {"--ood"}) == expected
