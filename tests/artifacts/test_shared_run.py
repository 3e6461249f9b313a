"""Files of a fit by several processes, with one of them played: where they are, and how messages name them."""

import pytest
import torch

from slu.artifacts import read, write
from slu.artifacts.checkpoint import Checkpoint
from slu.artifacts.shared_run import SharedRun
from slu.data import BatchReader, ComparedData
from slu.errors import DamagedFileError, MismatchError, StorageError


class Played:
    """One of two processes, which hears its own words from the other."""

    def __init__(self, rank: int) -> None:
        self.rank, self.size = rank, 2

    def gathered(self, what, value):
        return [value, value]


def shared(path, rank=0, seed=0) -> SharedRun:
    data = ComparedData(torch.ones(4, 3), BatchReader(), len)
    identity = {"method": "SLU", "weights": {}, "seed": seed}
    return SharedRun(Checkpoint(path, every=0), identity, data, None, Played(rank))  # type: ignore[arg-type]


def step():
    return {"sum": torch.ones(3)}, {"passes": 1}


@pytest.fixture
def linked(tmp_path):
    """A path that is a link to another folder's."""
    for name in ("links", "files"):
        (tmp_path / name).mkdir()
    (tmp_path / "links" / "run").symlink_to(tmp_path / "files" / "run")
    return tmp_path / "links" / "run"


def names(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_parts_are_beside_what_a_link_points_to_and_removed_with_the_end(linked):
    files = linked.parents[1] / "files"
    runs = [shared(linked, rank) for rank in (0, 1)]
    for run in runs:
        run.note(step)
    assert names(linked.parent) == {"run"} and linked.is_symlink()
    assert names(files) == {"run", "run.0-of-2", "run.1-of-2"}
    for run in runs[::-1]:
        run.finish(step, calibrated=True)
    assert names(linked.parent) == {"run"} and linked.is_symlink()
    assert names(files) == {"run", "run.previous"}


def test_messages_name_the_file_that_was_given_and_what_to_delete(linked):
    shared(linked, 1).note(step)
    with pytest.raises(MismatchError, match="its seed is 0, here it is 1") as raised:
        shared(linked, 1, seed=1).finished()
    parts = linked.parents[1] / "files" / "run.*-of-2*"
    assert str(raised.value).startswith(f"the checkpoint {linked} belongs to another fit")
    assert str(raised.value).endswith(f"; name another file, or delete it and {parts} to begin anew")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_path_that_cannot_be_written_is_named_and_not_a_part(rank, tmp_path):
    with pytest.raises(StorageError, match=r"none/run cannot be written: there is no folder"):
        shared(tmp_path / "none" / "run", rank)
    with pytest.raises(StorageError, match="is a folder; name a file in it"):
        shared(tmp_path, rank)


def test_the_lock_of_the_whole_is_named(tmp_path):
    with (
        shared(tmp_path / "run").holding(),
        pytest.raises(StorageError, match=r"run is being written by a fit of SLU"),
        shared(tmp_path / "run").holding(),
    ):
        pass
    assert names(tmp_path) == set()


def test_the_finished_file_says_what_all_have_read(tmp_path):
    run = shared(tmp_path / "run")
    list(run._data.checked_batches(torch.device("cpu")))
    run.finish(step, calibrated=True)
    again = shared(tmp_path / "run")
    assert again.finished() is not None
    assert again._expected["data"].points == 8


@pytest.mark.parametrize("field, value", [("processes", "2"), ("processes", None), ("processes", 0), ("state", None)])
def test_edited_fields_of_the_whole_are_refused_by_name(field, value, tmp_path):
    run = shared(tmp_path / "run")
    run.note(step)
    if field == "state":
        run.finish(step, calibrated=True)
    header, tensors = read(tmp_path / "run")
    write(tmp_path / "run", tensors, header | {field: value})
    with pytest.raises(DamagedFileError, match=rf"the checkpoint .*run was edited: {field} is {value!r}"):
        shared(tmp_path / "run").finished()
