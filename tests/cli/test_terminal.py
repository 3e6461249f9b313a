"""What reaches a terminal: nothing that it would obey, nothing that it cannot show, and one line where it is gone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from slu import SLU
from slu.artifacts import read, write
from slu.cli import app
from slu.errors import StorageError
from stored import changed, fitted, made

EVIL = "x\x1b[2J\x1b]0;owned\x07\r\x9b1m\u202e\n  checksum fits"
ASCII = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LANG": "C", "LC_ALL": "C"}
needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("terminal") / "net.slu"
    fitted(*made()).save(path)
    return path


def harmless(text: str) -> bool:
    return all(each.isprintable() or each == "\n" for each in text)


def evil_files(saved, tmp_path):
    """Files whose names, texts and values hold control characters, with a checksum that fits."""
    header, tensors = read(saved)
    edits = {
        "tensor": (header, tensors | {EVIL: torch.zeros(1)}),
        "version": (changed(header, ("versions", "torch"), EVIL), tensors),
        "version name": (changed(header, ("versions", EVIL), "1"), tensors),
        "setting": (changed(header, ("settings", EVIL), "1"), tensors),
        "parameter": (changed(header, ("settings", "params"), [EVIL]), tensors),
        "likelihood": (changed(header, ("likelihood", "settings"), {EVIL: EVIL}), tensors),
        "why": (changed(header, ("state", "calibration"), {"why": EVIL}), tensors),
        "method": (changed(header, ("method",), EVIL), tensors),
        "checkpoint": ({"stage": EVIL, "identity": {"method": EVIL, "likelihood": {"name": EVIL}}}, {}),
    }
    for name, (edited, stored) in edits.items():
        path = tmp_path / f"{name}.slu"
        write(path, stored, edited)
        yield path


def test_escape_sequences_of_a_file_are_shown_and_not_obeyed(saved, tmp_path):
    shown = 0
    for path in evil_files(saved, tmp_path):
        result = CliRunner().invoke(app, ["inspect", str(path)], env={"NO_COLOR": "1", "TERM": "dumb"})
        assert harmless(result.output), path
        assert result.output.count("\n  checksum fits") == 0, path
        shown += "x\\x1b[2J" in result.output
        as_json = CliRunner().invoke(app, ["inspect", "--json", str(path)])
        assert harmless(as_json.output), path
        assert as_json.exit_code or ("x\\u001b[2J" in as_json.output and json.loads(as_json.stdout))
    assert shown >= 7


def test_an_error_that_quotes_a_file_is_printable(saved, tmp_path):
    model, _ = made()
    quoted = 0
    for path in evil_files(saved, tmp_path):
        try:
            SLU.load(path, model)
        except StorageError as reason:
            assert harmless(str(reason)), path
            quoted += "x\\x1b[2J" in str(reason)
    assert quoted >= 3


def test_the_names_of_layers_are_printable(monkeypatch):
    def factory():
        model = nn.Module()
        model.add_module("a\x1b[2J", nn.Linear(4, 3))
        model.forward = lambda x: model._modules["a\x1b[2J"](x)
        return model

    def broken():
        raise RuntimeError("b\x1b[2J")

    monkeypatch.setattr(nn, "made_up", factory, raising=False)
    monkeypatch.setattr(nn, "broken", broken, raising=False)
    options = ["--input-shape", "4", "--params", "*weight"]
    for name in ("made_up", "broken"):
        result = CliRunner().invoke(app, ["doctor", f"torch.nn:{name}", *options], env={"NO_COLOR": "1"})
        assert harmless(result.output), result.output
    assert "b\\x1b[2J" in result.output


def command(*arguments, stdout=subprocess.PIPE, **environment):
    return subprocess.run(
        [sys.executable, "-m", "slu", *map(str, arguments)],
        env=os.environ | {"NO_COLOR": "1", "OMP_NUM_THREADS": "1"} | environment,
        stdout=stdout,
        stderr=subprocess.PIPE,
        check=False,
        timeout=300,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect"],
        ["doctor", "--help"],
        ["--help"],
        pytest.param(["demo", "--epochs", "1", "--out"], marks=pytest.mark.slow),
    ],
    ids=["inspect", "doctor", "help", "demo"],
)
def test_under_an_ascii_terminal_what_cannot_be_shown_is_replaced(saved, tmp_path, arguments):
    arguments = {"inspect": [*arguments, saved], "demo": [*arguments, tmp_path]}.get(arguments[0], arguments)
    done = command(*arguments, **ASCII)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode("ascii")
    if arguments[0] == "inspect":
        assert b"basis 4?" in done.stdout


@needs_full
@pytest.mark.parametrize("arguments", [["inspect"], ["--version"], ["doctor", "--help"]], ids=lambda each: each[0])
def test_a_full_disk_is_one_line(saved, arguments):
    with Path("/dev/full").open("wb") as full:
        done = command(*([*arguments, saved] if arguments == ["inspect"] else arguments), stdout=full)
    assert done.returncode == 1
    assert done.stderr == b"slu: the output could not be written: No space left on device\n"


def test_a_pipe_that_nobody_reads_is_no_traceback(saved):
    reading, writing = os.pipe()
    os.close(reading)
    done = command("inspect", saved, stdout=writing)
    os.close(writing)
    assert done.returncode == 1 and b"Traceback" not in done.stderr and done.stderr.count(b"\n") <= 1
