"""Files of format 1, as slu wrote them once: each is refused by name, with what to do, and left as it was."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from formulaic import inputs, network
from slu import SLU, MaxLogit
from slu.artifacts import read
from slu.cli import app
from slu.cli.contents import contents
from slu.errors import DamagedFileError, StorageError

FOLDER = Path(__file__).parents[1] / "fixtures" / "format1"
FILES = sorted(path.name for path in FOLDER.iterdir())


def fit(path):
    data = list(inputs("wider", 240).split(60))
    return SLU(network("wider"), "classification", rank=8, sketch_size=60).fit(data, checkpoint=path)


def uses(path):
    """What people do with a file of its kind."""
    if path.suffix == ".ckpt":
        return [read, contents, fit]
    return [read, contents, lambda path: (MaxLogit if "max_logit" in path.name else SLU).load(path, network("wider"))]


def test_scores_and_checkpoints_are_there():
    assert FILES == ["max_logit.slu", "slu_default.slu", "stream_finished.ckpt", "stream_running.ckpt"]


@pytest.mark.parametrize("file", FILES)
def test_it_is_refused_by_name_and_left_alone(file, tmp_path):
    path = tmp_path / file
    shutil.copy(FOLDER / file, path)
    before = path.read_bytes()
    for use in uses(path):
        with pytest.raises(StorageError, match=rf"{file} was written by format 1 .* reads 2; fit again") as raised:
            use(path)
        assert not isinstance(raised.value, DamagedFileError)
    ran = CliRunner().invoke(app, ["inspect", str(path)], env={"COLUMNS": "400"})
    assert ran.exit_code == 1 and "written by format 1 of slu" in ran.output
    assert path.read_bytes() == before


def test_the_advice_works(tmp_path):
    path = tmp_path / "stream_running.ckpt"
    shutil.copy(FOLDER / path.name, path)
    with pytest.raises(StorageError, match="delete it or name another file"):
        fit(path)
    path.unlink()
    assert fit(path).diagnostics.points > 200
