"""Folders of results: whole or absent, found again, and refused when harmed."""

import os
import subprocess
import sys

import numpy as np
import pytest

from slu.errors import DamagedFileError, SettingError, StorageError
from slu_experiments import results
from slu_experiments.results import Store, canonical, name_of

CONFIG = {"kind": "test", "rank": 3, "outside": ["a", "b"], "share": 0.5, "none": None}
METRICS = {"auroc": 0.75}
ARRAYS = {"inside": np.array([1.0, np.inf]), "outside/a": np.arange(3, dtype=np.float32)}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "out")


@pytest.fixture
def result(store):
    return store.write(CONFIG, METRICS, ARRAYS)


def test_what_is_written_is_found_again(store, result):
    assert result.name == name_of(CONFIG) == result.folder.name
    again = store.find({**dict(reversed(CONFIG.items()))})
    assert again is not None and again.config == CONFIG and again.metrics["auroc"] == 0.75
    assert {"slu", "torch", "source"} <= set(again.metrics["code"])
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(again.arrays[name], array)
        assert again.arrays[name].dtype == array.dtype


def test_another_configuration_has_another_folder(store, result):
    assert store.find({**CONFIG, "rank": 4}) is None
    other = store.write({**CONFIG, "rank": 4}, {}, {})
    assert other.folder != result.folder and not other.arrays
    assert [each.name for each in store.all()] == sorted([result.name, other.name])
    assert list(store.all("something else")) == []


def test_nothing_is_there_before_the_first(store):
    assert store.find(CONFIG) is None and list(store.all()) == [] and not store.out.exists()


def test_a_configuration_is_plain_data():
    assert canonical({"b": (1, 2), "a": "ä"}) == '{"a":"ä","b":[1,2]}'
    for wrong in (float("nan"), object()):
        with pytest.raises(SettingError, match="plain data"):
            name_of({"x": wrong})


def cut(path):
    path.write_bytes(path.read_bytes()[:-3])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def edit(path):
    path.write_text(path.read_text().replace("0.75", "0.95").replace('"rank": 3', '"rank": 9'))


@pytest.mark.parametrize("name", [results.CONFIG, results.METRICS, results.SCORES])
@pytest.mark.parametrize("harm", [os.remove, cut, flip, edit])
def test_a_harmed_folder_is_named_with_a_remedy(store, result, name, harm):
    if harm is edit and name == results.SCORES:
        return  # not a text
    harm(result.folder / name)
    for ask in (lambda: store.find(CONFIG), lambda: list(store.all())):
        with pytest.raises(DamagedFileError, match=r"Delete that folder and run the same command again") as caught:
            ask()
        assert str(result.folder) in str(caught.value)


def test_a_renamed_folder_is_refused(store, result):
    result.folder.rename(result.folder.with_name("0" * 16))
    with pytest.raises(DamagedFileError, match=result.name):
        list(store.all())


def test_a_failed_write_leaves_nothing(store, monkeypatch):
    def fail(*_):
        raise StorageError("the disk is full")

    monkeypatch.setattr(results, "write", fail)
    with pytest.raises(StorageError, match="full"):
        store.write(CONFIG, METRICS, ARRAYS)
    assert list(store.runs.iterdir()) == []


def test_killed_while_writing_leaves_no_result(store):
    code = (
        "import os, sys; from slu_experiments import results; from slu_experiments.results import Store\n"
        "results.write = lambda *_: os._exit(9)\n"
        "Store(sys.argv[1]).write({'a': 1}, {}, {})\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(store.out)], timeout=120)
    assert done.returncode == 9
    left = list(store.runs.iterdir())
    assert len(left) == 1 and left[0].name.startswith(".partial-")  # the kill came in the middle
    assert store.find({"a": 1}) is None and list(store.all()) == []
    store.write(CONFIG, METRICS, ARRAYS)
    assert [each.name for each in store.runs.iterdir()] == [name_of(CONFIG)]  # swept


def test_what_a_living_process_or_another_machine_is_writing_is_not_swept(store):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    own = results._machine()
    names = {f"{own}-{os.getpid()}": True, f"{own}-{dead.pid}": False, f"00000000-{dead.pid}": True}  # kept?
    places = {store.runs / f".partial-{name}-00000000": kept for name, kept in names.items()}
    for place in places:
        place.mkdir(parents=True)
    store.write(CONFIG, METRICS, ARRAYS)
    assert {place: place.exists() for place in places} == places


def test_the_first_of_two_writers_stays(store, result):
    again = store.write(CONFIG, {"auroc": 0.1}, {})
    assert again.metrics["auroc"] == 0.75 and again.arrays
    assert [each.name for each in store.runs.iterdir()] == [result.name]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="could not be written"):
        Store(tmp_path / "file").write(CONFIG, METRICS, ARRAYS)
