"""The command: help, version, and errors of one line."""

import importlib.metadata
import subprocess
import sys
import types

import pytest
from typer.testing import CliRunner

from slu import __main__ as entry
from slu.cli import app
from slu.cli import demo_steps as steps
from slu.errors import DataError


def run(*arguments):
    # Wide, so that help is not wrapped.
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})


def raising(error):
    def prepare(settings):
        raise error

    return prepare


def test_help_teaches():
    text = run("--help").output
    assert "larger means less sure" in text
    assert "slu demo" in text
    text = run("demo", "--help").output
    for words in ("--out", "--rank", "--sketch-size", "--seed", "--json", "pip install 'slu[demo]'", "demo.png"):
        assert words in text


def test_without_arguments_there_is_help():
    assert "Usage: slu" in run().output


def test_version():
    result = run("--version")
    assert result.exit_code == 0
    assert result.output == f"slu {importlib.metadata.version('slu')}\n"


def test_an_expected_error_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(steps, "prepare", raising(DataError("there are no digits")))
    result = run("demo", "--out", str(tmp_path))
    assert result.exit_code == 1
    assert result.stderr == "slu: there are no digits\n"
    assert "Traceback" not in result.output


def test_an_interrupt_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(steps, "prepare", raising(KeyboardInterrupt()))
    result = run("demo", "--out", str(tmp_path))
    assert result.exit_code == 130
    assert result.stderr == "slu: interrupted\n"


def test_an_interrupt_while_it_is_imported_is_one_line(monkeypatch, capsys):
    class Slow(types.ModuleType):
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "slu.cli", Slow("slu.cli"))
    with pytest.raises(SystemExit) as left:
        entry.main()
    assert left.value.code == 130
    assert capsys.readouterr().err == "slu: interrupted\n"


def test_a_bug_keeps_its_traceback(monkeypatch, tmp_path):
    monkeypatch.setattr(steps, "prepare", raising(ZeroDivisionError("a bug")))
    assert isinstance(run("demo", "--out", str(tmp_path)).exception, ZeroDivisionError)


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(monkeypatch, tmp_path):
    monkeypatch.setattr(steps, "prepare", raising(AssertionError("too late")))
    (tmp_path / "file").touch()
    result = run("demo", "--out", str(tmp_path / "file"))
    assert result.exit_code == 1
    assert "cannot make the folder" in result.stderr and "--out" in result.stderr


@pytest.mark.parametrize("wrong", [["--rank", "0"], ["--rank", "many"], ["--no-such-option"]])
def test_wrong_usage(wrong):
    assert run("demo", *wrong).exit_code == 2


def test_a_rank_above_the_sketch_is_refused_by_the_method(tmp_path):
    result = run("demo", "--out", str(tmp_path), "--epochs", "1", "--rank", "50", "--sketch-size", "20")
    assert result.exit_code == 1
    assert result.stderr.startswith("slu: rank 50")
    assert len(result.stderr.splitlines()) == 1


def test_asking_for_help_loads_nothing_heavy():
    code = (
        "import sys; from slu.__main__ import main\n"
        "sys.argv = ['slu', 'demo', '--help']\n"
        "try:\n    main()\nexcept SystemExit as left:\n    assert left.code == 0\n"
        "assert not {'torch', 'scipy', 'numpy', 'sklearn', 'matplotlib'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "--sketch-size" in done.stdout
