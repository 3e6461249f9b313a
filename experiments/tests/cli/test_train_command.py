"""`slu-paper train` from end to end on the digits: the file, what is told, what is refused, and Ctrl-C."""

import json
import os
import signal

import pytest
import torch
from typer.testing import CliRunner

from slu.artifacts import read, read_newest
from slu_experiments.cli import app
from slu_experiments.training import weights
from slu_experiments.training.state import Journal

DIGITS = ["--dataset", "digits", "--model", "mlp"]


def run(*arguments):
    return CliRunner().invoke(
        app, ["train", *map(str, arguments)], env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    return run(*DIGITS, "--seed", "3", "--epochs", "4", "--out", str(out)), out


def test_it_says_where_the_weights_are_and_how_good(ran):
    result, out = ran
    assert result.exit_code == 0, result.output
    (path,) = (out / "weights").iterdir()
    header, _ = read(path)
    for words in (str(path), f"accuracy {header['accuracy']:.4f}", "seed 3", "4 epochs on 909 points", "17,096"):
        assert words in result.stdout
    assert "in the paper" not in result.stdout  # it has no number for digits
    assert result.stderr == ""  # no bar in a pipe


def test_trained_weights_are_found(ran, monkeypatch):
    monkeypatch.setattr(weights, "train", None)
    result = run(*DIGITS, "--seed", "3", "--epochs", "4", "--out", str(ran[1]))
    assert result.exit_code == 0, result.output
    assert "trained before" in result.stdout


def test_json(ran):
    result = run(*DIGITS, "--seed", "3", "--epochs", "4", "--out", str(ran[1]), "--json")
    facts = json.loads(result.stdout)
    assert facts["found"] and facts["paper_accuracy"] is None and facts["recipe"]["epochs"] == 4
    assert facts["accuracy"] > 0.3 and facts["seed"] == 3


def test_a_subset_and_threads(tmp_path):
    before = torch.get_num_threads()
    few = ["--epochs", "1", "--subset", "40", "--threads", "2"]
    result = run(*DIGITS, *few, "--out", str(tmp_path), "--json")
    facts = json.loads(result.stdout)
    assert (facts["points"], facts["threads"], facts["subset"]) == (40, 2, 40)
    assert torch.get_num_threads() == before


def test_help_teaches():
    text = run("--help").output
    for words in (
        "--dataset",
        "--epochs",
        "--subset",
        "--threads",
        "--data",
        "--out",
        "--json",
        "Ctrl-C",
        "slu-paper score",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dataset", "digits", "--model", "resnet"], "there is no setting for 'digits' with 'resnet'"),
        ([*DIGITS, "--subset", "100000"], "a subset has 1 to 909 points"),
        (["--dataset", "mnist", "--model", "mlp", "--data", "no-such-folder"], "no-such-folder"),
    ],
)
def test_errors_are_one_line(tmp_path, arguments, words):
    result = run(*arguments, "--out", str(tmp_path))
    assert result.exit_code == 1
    assert words in result.stderr and result.stderr.startswith("slu-paper: ")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("wrong", [[], ["--dataset", "digits"], [*DIGITS, "--epochs", "0"]])
def test_wrong_usage(wrong):
    assert run(*wrong).exit_code == 2


def test_ctrl_c_leaves_a_training_that_goes_on(tmp_path, monkeypatch):
    """By the signal that Ctrl-C sends, in the middle of an epoch."""
    note = Journal.note

    def pressed(self, place, **settings):
        note(self, place, **settings)
        if (place.epoch, place.step) == (1, 5):
            os.kill(os.getpid(), signal.SIGINT)

    whole = run(*DIGITS, "--epochs", "3", "--out", tmp_path / "whole", "--json")
    monkeypatch.setattr(Journal, "note", pressed)
    stopped = run(*DIGITS, "--epochs", "3", "--out", tmp_path / "out")
    assert stopped.exit_code == 130, stopped.output
    assert stopped.stderr.endswith("slu-paper: interrupted\n") and "Traceback" not in stopped.stderr
    (left,) = (tmp_path / "out" / "weights").iterdir()
    assert f"{left}; the same command goes on from there" in stopped.stderr
    header, _ = read_newest(left)
    assert (header["place"]["epoch"], header["place"]["step"]) == (1, 6)  # the step that ran was ended first
    monkeypatch.undo()
    again = run(*DIGITS, "--epochs", "3", "--out", tmp_path / "out", "--json")
    paths = [json.loads(each.stdout)["path"] for each in (whole, again)]
    ended, uninterrupted = (read(path)[1] for path in paths)
    assert all(torch.equal(value, uninterrupted[name]) for name, value in ended.items()) and not left.exists()
