"""`slu-paper data`: what is known, what is there, getting it."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from local_server import serving
from slu_experiments.cli import app, data
from slu_experiments.data.catalogue import CATALOGUE
from slu_experiments.data.fetching import md5
from tiny_sets import write_idx


@pytest.fixture(autouse=True)
def no_folder(monkeypatch):
    monkeypatch.delenv("SLU_DATA", raising=False)


def run(*arguments):
    plain = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner().invoke(app, ["data", *map(str, arguments)], env=plain)


@pytest.fixture
def upstream(tmp_path, monkeypatch):
    """MNIST of seven images, offered by a server on this machine; returns an empty folder for the data sets."""
    far, near = tmp_path / "far", tmp_path / "near"
    for part in ("train", "test"):
        write_idx(far, part)
    monkeypatch.setenv("no_proxy", "*")
    with serving({f"/{path.name}": path.read_bytes() for path in far.iterdir()}) as server:
        downloads = tuple(
            replace(each, md5=md5(far / Path(each.path).name), urls=(f"{server.url}/{Path(each.path).name}",))
            for each in CATALOGUE["mnist"].downloads
        )
        entry = replace(CATALOGUE["mnist"], downloads=downloads, counts={"train": 7, "test": 7})
        monkeypatch.setitem(CATALOGUE, "mnist", entry)
        yield near


def test_the_list_has_every_set_with_licence_and_home(tmp_path):
    result = run("list", "--data", tmp_path)
    assert result.exit_code == 0
    for entry in CATALOGUE.values():
        assert entry.name in result.output and entry.licence in result.output and entry.home in result.output
    for words in (str(tmp_path), "fmnist-rotated", "cifar10-KIND-SEVERITY", "60,000 train"):
        assert words in result.output


def test_the_list_needs_no_folder_and_says_what_is_here(tmp_path):
    assert "export SLU_DATA" in run("list").output
    write_idx(tmp_path / "kmnist")
    listed = {each["name"]: each for each in json.loads(run("list", "--json", "--data", tmp_path).output)}
    assert list(listed) == list(CATALOGUE)
    assert [listed[name]["here"] for name in ("digits", "kmnist", "mnist")] == ["here", "part", "no"]
    write_idx(tmp_path / "kmnist", "train")
    listed = {each["name"]: each for each in json.loads(run("list", "--json", "--data", tmp_path).output)}
    assert listed["kmnist"]["here"] == "here"


def test_fetch_then_check(upstream):
    result = run("fetch", "mnist", "--data", upstream)
    assert result.exit_code == 0, result.output
    assert "Licence: CC BY-SA 3.0" in result.output and result.output.count("fetched") == 4
    result = run("check", "mnist", "--data", upstream)
    assert result.exit_code == 0
    assert "mnist        whole    train 7, test 7; 4 of 4 checksums fit" in result.output
    assert "1 whole, 0 part, 0 missing, 0 damaged" in result.output
    assert set(json.loads(run("fetch", "mnist", "--json", "--data", upstream).output)["mnist"].values()) == {"here"}


def test_the_folder_may_come_from_the_environment(upstream, monkeypatch):
    monkeypatch.setenv("SLU_DATA", str(upstream))
    assert run("fetch", "mnist").exit_code == 0
    assert json.loads(run("check", "mnist", "--json").output)[0]["state"] == "whole"


def test_damage_ends_with_an_exit_code_and_is_named(upstream):
    run("fetch", "mnist", "--data", upstream)
    path = upstream / "mnist" / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    result = run("check", "--data", upstream)
    assert result.exit_code == 1
    assert "damaged" in result.output and str(path) in result.output and "is cut" in result.output
    assert "1 damaged" in result.output
    assert run("check", "digits", "--data", upstream).exit_code == 0


def test_missing_sets_count_only_where_they_are_named(tmp_path):
    result = run("check", "--data", tmp_path)
    assert result.exit_code == 0 and "0 damaged" in result.output and "slu-paper data fetch NAME" in result.output
    result = run("check", "svhn", "--data", tmp_path)
    assert result.exit_code == 1 and "svhn         missing  train 0 of 73,257, test 0 of 26,032" in result.output
    findings = json.loads(run("check", "digits", "svhn", "--json", "--data", tmp_path).output)
    assert [each["state"] for each in findings] == ["whole", "missing"]


def test_a_folder_that_is_not_there(tmp_path):
    result = run("check", "--data", tmp_path / "nowhere")
    assert result.exit_code == 1 and "there is no folder" in result.stderr
    assert run("list", "--data", tmp_path / "nowhere").exit_code == 0


@pytest.mark.parametrize("command", ["check", "fetch"])
def test_unknown_names_are_answered_in_one_line(command, tmp_path):
    result = run(command, "mnits", "--data", tmp_path)
    assert result.exit_code == 1
    assert result.stderr.startswith("slu-paper: unknown data set 'mnits'; valid are 'digits', 'mnist'")
    assert len(result.stderr.splitlines()) == 1


def test_fetching_without_a_folder_or_into_a_file(tmp_path):
    result = run("fetch", "mnist")
    assert result.exit_code == 1 and "--data" in result.stderr and "SLU_DATA" in result.stderr
    (tmp_path / "file").touch()
    result = run("fetch", "mnist", "--data", tmp_path / "file")
    assert result.exit_code == 1 and "cannot make the folder" in result.stderr


def test_what_cannot_be_fetched_says_how_to_get_it(tmp_path):
    result = run("fetch", "imagenet", "--data", tmp_path)
    assert result.exit_code == 1
    assert "https://www.image-net.org/" in result.stderr and f"{tmp_path}/imagenet/val" in result.stderr
    assert "nothing" in run("fetch", "digits", "--data", tmp_path).output


def test_an_interrupted_fetch_goes_on(upstream, monkeypatch):
    real, calls = data.Megabytes.update, []

    def interrupted(bar, count):
        calls.append(bar)
        if len({id(each) for each in calls}) == 2:
            raise KeyboardInterrupt
        real(bar, count)

    monkeypatch.setattr(data.Megabytes, "update", interrupted)
    result = run("fetch", "mnist", "--data", upstream)
    assert (result.exit_code, result.stderr) == (130, "slu-paper: interrupted\n")
    monkeypatch.setattr(data.Megabytes, "update", real)
    result = run("fetch", "mnist", "--data", upstream)
    assert result.exit_code == 0 and result.output.count("fetched") == 3 and result.output.count("here") == 1


def test_the_bar_moves_a_step_per_megabyte(monkeypatch):
    seen = []

    class Recorder:
        def __init__(self, name, total, done=0):
            seen.append((name, total, done))

        def __enter__(self):
            return self

        def advance(self):
            seen.append("step")

        def __exit__(self, *_):
            seen.append("end")

    monkeypatch.setattr(data, "Bar", Recorder)
    megabyte = 1 << 20
    bar = data.Megabytes("a", megabyte)
    bar.total = 2 * megabyte - 5  # what is left to come
    bar.update(megabyte)
    bar.update(megabyte - 5)
    bar.reset()
    bar.update(bar.total)
    bar.close()
    bar.close()
    unknown = data.Megabytes("b", 0)
    unknown.update(10)
    unknown.close()
    assert seen == [("a, MB", 3, 1), "step", "end", ("b, MB", None, 0), "end"]


def test_help_teaches_and_loads_little():
    for command, words in {"list": "licence", "check": "exit code is 1", "fetch": "goes on where it was"}.items():
        assert words in run(command, "--help").output
    assert "SLU_DATA" in run("check", "--help").output
    code = (
        "import sys; from slu_experiments.__main__ import main\n"
        "sys.argv = ['slu-paper', 'data', '--help']\n"
        "try:\n    main()\nexcept SystemExit as left:\n    assert left.code == 0\n"
        "assert not {'torch', 'sklearn', 'matplotlib', 'PIL', 'pooch', 'slu_experiments.data'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
