"""`slu doctor`: networks from the user's modules, the exit codes, and failures of one line."""

import json
import subprocess
import sys
from importlib import invalidate_caches
from itertools import count

import pytest
from typer.testing import CliRunner

from slu.cli import app

NUMBER = count()

SOURCE = """
from torch import nn


def image():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 5))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(50, 8), nn.Linear(8, 3)

    def forward(self, words):
        return self.head(self.table(words).mean(1))


instance = image()
number = 3


def failing():
    raise ValueError("there are no\\nweights here")


def text():
    return "no network"
"""


def run(*arguments):
    environment = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner().invoke(app, ["doctor", *map(str, arguments)], env=environment)


@pytest.fixture
def networks(tmp_path, monkeypatch):
    """The name of a module in the current folder, a new one for each test."""
    name = f"networks_of_test_{next(NUMBER)}"
    (tmp_path / f"{name}.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    invalidate_caches()
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["image", "instance"])
def test_a_network_that_works(networks, name):
    result = run(f"{networks}:{name}", "--input-shape", "3,2,2", "--batch", 6)
    assert result.exit_code == 0, result.output
    assert "float32 (6, 3, 2, 2)" in result.stdout and result.stdout.splitlines()[-1].startswith("ok")


def test_words_parameters_and_json(networks):
    result = run(
        f"{networks}:Words", "--input-shape", 7, "--dtype", "int64", "--high", 50, "--params", "head.*", "--json"
    )
    assert result.exit_code == 0, result.output
    plain = json.loads(result.stdout)
    assert plain["ok"] and plain["facts"]["selected"] == 27 and plain["facts"]["points"] == 8
    assert {check["name"]: check["status"] for check in plain["checks"]}["call"] == "ok"


def test_a_network_that_fails_is_exit_code_1(networks):
    result = run(f"{networks}:Words", "--input-shape", 7, "--dtype", "int64", "--high", 5000)
    assert result.exit_code == 1
    text = " ".join(result.stdout.split())
    assert "index out of range" in text and "the tables have 50 rows" in text
    assert not json.loads(run(f"{networks}:image", "--input-shape", 3, "--json").stdout)["ok"]


def test_another_likelihood(networks):
    result = run(f"{networks}:image", "--input-shape", 12, "--likelihood", "regression", "--dtype", "float64")
    assert result.exit_code == 1 and "weights are float32" in result.stdout
    result = run(f"{networks}:image", "--input-shape", 12, "--likelihood", "regression")
    assert result.exit_code == 0 and "the outputs fit regression" in result.stdout


@pytest.mark.parametrize(
    ("place", "shape", "message"),
    [
        ("{}:image", "3,x", "'3,x' is no shape"),
        ("{}:image", "0", "'0' is no shape"),
        ("{}", "3", "has no colon"),
        ("{}:nothing", "3", "has no nothing; it has nn, image"),
        ("{}:number", "3", "gave int; a torch.nn.Module is needed"),
        ("{}:text", "3", "gave str; a torch.nn.Module is needed"),
        ("no_such_module_at_all:net", "3", "no module no_such_module_at_all"),
    ],
)
def test_wrong_usage_is_exit_code_2(networks, place, shape, message):
    result = run(place.format(networks), "--input-shape", shape)
    assert result.exit_code == 2 and message in result.stderr
    assert "Traceback" not in result.output


def test_options_that_do_not_exist(networks):
    assert run(f"{networks}:image").exit_code == 2
    assert run(f"{networks}:image", "--input-shape", 12, "--dtype", "int3").exit_code == 2
    assert run(f"{networks}:image", "--input-shape", 12, "--likelihood", "poisson").exit_code == 2


def test_errors_in_the_users_module_are_one_line_with_the_place(networks, tmp_path):
    result = run(f"{networks}:failing", "--input-shape", 3)
    assert result.exit_code == 1 and len(result.stderr.splitlines()) == 1
    line = SOURCE.splitlines().index('    raise ValueError("there are no\\nweights here")') + 1
    assert f"calling {networks}:failing() failed: ValueError: there are no weights here" in result.stderr
    assert f"{networks}.py:{line}" in result.stderr
    (tmp_path / "broken_at_import.py").write_text("import not_installed_anywhere\n", encoding="utf-8")
    invalidate_caches()
    result = run("broken_at_import:net", "--input-shape", 3)
    assert result.exit_code == 1 and len(result.stderr.splitlines()) == 1
    assert "importing broken_at_import failed: ModuleNotFoundError" in result.stderr
    assert "broken_at_import.py:1" in result.stderr


def test_help_teaches_and_its_example_runs():
    text = run("--help").output
    for words in ("--input-shape", "--params", "--high", "--json", "slu.doctor(model, batch)", "exit code"):
        assert words in text
    assert "slu doctor torch.nn:PReLU --input-shape 10" in text
    done = subprocess.run(
        [sys.executable, "-m", "slu", "doctor", "torch.nn:PReLU", "--input-shape", "10"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "10 outputs per point" in done.stdout
