"""A training that is interrupted, however it happens, goes on and ends in the same bits."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from slu import Checkpoint
from slu.artifacts import read_newest
from slu.errors import DamagedFileError, MismatchError, StorageError
from slu_experiments.data import Memory
from slu_experiments.models import seeded
from slu_experiments.training import Augmentation, Recipe, train
from slu_experiments.training.descent import Interrupts
from slu_experiments.training.state import Journal

KILLS, SEED = 3, 15
IMAGES = torch.rand(50, 1, 6, 6, generator=torch.Generator().manual_seed(0))
RECIPE = Recipe(epochs=3, batch_size=16, augmentation=Augmentation(scale=(0.7, 1.0)))
STEPS = 3 * 4


def network():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Dropout(0.4), nn.Flatten(), nn.Linear(64, 3)
    )


class Images:
    """Does something when its n-th batch is read; the first read is of the points it is known by."""

    shape = (1, 6, 6)

    def __init__(self, at=None, then=lambda: None):
        self.reads, self._at, self._then = 0, at, then
        self._source = Memory(IMAGES, torch.arange(50) % 3)

    def __len__(self):
        return 50

    def read(self, indices):
        if self.reads == self._at:
            self._then()
        self.reads += 1
        return self._source.read(indices)


def fail():
    raise ConnectionError("the disk went away")


def trained(source=None, recipe=RECIPE, seed=0, **settings):
    model = seeded(network, 0)
    course = train(model, source or Images(), recipe, seed=seed, **settings)
    return model, course


def same(one, other):
    return all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())


@pytest.fixture(scope="module")
def whole():
    return trained()


@pytest.mark.parametrize("at", [1, 2, 4, 5, 11, 12])
def test_a_training_that_failed_goes_on_bit_for_bit(tmp_path, whole, at):
    path = tmp_path / "run"
    with pytest.raises(ConnectionError):
        trained(Images(at, fail), checkpoint=Checkpoint(path, every=0))
    rest = Images()
    model, course = trained(rest, checkpoint=path)
    assert same(model, whole[0]) and course.losses == whole[1].losses
    assert rest.reads == 1 + STEPS - (at - 1), "steps that were written down are not done again"


def test_a_second_training_on_a_checkpoint_is_refused(tmp_path):
    path, refused = tmp_path / "run", []

    def second():
        with pytest.raises(StorageError, match=r"being written by a training, process \d+"):
            trained(checkpoint=path, seed=1)
        refused.append(1)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        trained(Images(3, second), checkpoint=Checkpoint(path, every=0))
    assert refused and not (tmp_path / "run.lock").exists()


def test_without_the_random_state_it_would_differ(tmp_path, whole, monkeypatch):
    """Control: the comparison sees a dropout mask that is not the one due."""
    path = tmp_path / "run"
    with pytest.raises(ConnectionError):
        trained(Images(6, fail), checkpoint=Checkpoint(path, every=0))
    monkeypatch.setattr(torch, "set_rng_state", lambda state: None)
    assert not same(trained(checkpoint=path)[0], whole[0])


@pytest.mark.slow
def test_killed_trainings_end_as_uninterrupted_ones(tmp_path):
    script = Path(__file__).with_name("kill_trainings.py")
    command = [sys.executable, str(script), str(tmp_path), str(SEED), str(KILLS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["different"] == 0
    # Otherwise nothing was tested: most kills hit a running training, and at many different steps.
    assert report["hit"] > KILLS and len(set(report["steps"])) >= 3


def test_ctrl_c_writes_the_step_that_runs_down(tmp_path, whole):
    path = tmp_path / "run"
    press = Images(6, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        trained(press, checkpoint=path)  # the next regular checkpoint would be in a minute
    header, _ = read_newest(path)
    assert (header["place"]["epoch"], header["place"]["step"]) == (1, 2)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert same(trained(checkpoint=path)[0], whole[0])


@pytest.mark.parametrize("last", [False, True])
def test_ctrl_c_while_a_checkpoint_is_written_is_neither_lost_nor_costs_anything(tmp_path, whole, monkeypatch, last):
    note, path = Journal.note, tmp_path / "run"

    def pressed(self, place, **settings):
        note(self, place, **settings)
        if place.epoch == RECIPE.epochs if last else (place.epoch, place.step) == (1, 1):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Journal, "note", pressed)
    with pytest.raises(KeyboardInterrupt):
        trained(checkpoint=path)
    place = read_newest(path)[0]["place"]
    assert (place["epoch"], place["step"]) == ((RECIPE.epochs, 0) if last else (1, 2))
    monkeypatch.undo()
    assert same(trained(checkpoint=path)[0], whole[0])


def test_a_second_ctrl_c_does_not_wait():
    with pytest.raises(KeyboardInterrupt), Interrupts() as noted:
        os.kill(os.getpid(), signal.SIGINT)
        assert noted.asked
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_in_another_thread_it_trains_as_well(whole):
    models = []
    thread = threading.Thread(target=lambda: models.append(trained()[0]))
    thread.start()
    thread.join()
    assert same(models[0], whole[0])


def test_a_finished_training_is_returned(tmp_path, whole):
    path = tmp_path / "run"
    trained(checkpoint=path)
    again = Images()
    model, course = trained(again, checkpoint=path)
    assert again.reads == 1
    assert same(model, whole[0]) and course.losses == whole[1].losses


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"seed": 1}, "seed is 0, here it is 1"),
        ({"recipe": dataclasses.replace(RECIPE, epochs=4)}, "recipe"),
        ({"likelihood": "multilabel"}, "likelihood"),
        ({"source": Memory(IMAGES[:40], torch.arange(40) % 3)}, "points is 50, here it is 40"),
        ({"source": Memory(1 - IMAGES, torch.arange(50) % 3)}, "data"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(tmp_path, settings, what):
    path = tmp_path / "run"
    with pytest.raises(ConnectionError):
        trained(Images(3, fail), checkpoint=Checkpoint(path, every=0))
    before = path.read_bytes()
    with pytest.raises(MismatchError, match=what):
        trained(checkpoint=path, **settings)
    assert path.read_bytes() == before


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
    path = tmp_path / "run"
    trained(checkpoint=path)
    with pytest.raises(MismatchError, match="its model"):
        train(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), Images(), RECIPE, checkpoint=path)


def test_a_damaged_checkpoint_is_named_and_the_one_before_serves(tmp_path, whole):
    path = tmp_path / "run"
    with pytest.raises(ConnectionError):
        trained(Images(8, fail), checkpoint=Checkpoint(path, every=0))
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.warns(UserWarning, match="going on from the one before"):
        assert same(trained(checkpoint=path)[0], whole[0])
    for left in tmp_path.iterdir():
        left.write_bytes(b"nothing")
    with pytest.raises(DamagedFileError, match="delete both"):
        trained(checkpoint=path)


def test_a_folder_that_is_not_there_is_told_before_the_work(tmp_path):
    source = Images(1, fail)
    with pytest.raises(StorageError, match="there is no folder"):
        trained(source, checkpoint=tmp_path / "missing" / "run")
