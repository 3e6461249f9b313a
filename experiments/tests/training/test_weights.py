"""Trained networks as files: found again, never mixed up, and with what they are in their header."""

import dataclasses
import os

import pytest
import torch

from slu import Checkpoint
from slu.artifacts import FORMAT, read
from slu.errors import DamagedFileError, MismatchError, SettingError, StorageError
from slu_experiments import data, models
from slu_experiments.settings import SETTINGS
from slu_experiments.training import RECIPES, checkpoint_path, learned_from, split, trained, weights_path
from slu_experiments.training import weights as module
from slu_experiments.training.recipes import as_flax

SETTING = SETTINGS["digits-mlp"]
SHORT = {"epochs": 2}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("out")
    return folder, *trained(SETTING, 1, folder, **SHORT)


def refuse(*_, **__):
    raise AssertionError("trained again")


def test_the_file_holds_weights_recipe_seed_and_accuracy(made):
    folder, model, facts = made
    path = weights_path(SETTING, 1, folder, **SHORT)
    assert facts["path"] == str(path) and not facts["found"]
    header, tensors = read(path)
    assert header["recipe"] == dataclasses.replace(RECIPES["digits-mlp"], epochs=2).plain()
    assert (header["seed"], header["setting"], header["points"]) == (1, "digits-mlp", 909)
    assert 0.1 < header["accuracy"] == facts["accuracy"] < 1
    assert header["parameters"] == 17_096 and len(header["losses"]) == 2
    assert all(torch.equal(value, tensors[name]) for name, value in model.state_dict().items())
    assert not model.training


def test_the_accuracy_is_that_of_the_test_set(made):
    _, model, facts = made
    inputs, targets = data.stack(data.open_set("digits", "test"))
    assert facts["test_points"] == len(inputs)
    assert facts["accuracy"] == pytest.approx(float((model(inputs).argmax(1) == targets).double().mean()))


def test_it_is_found_again_and_leaves_no_checkpoint(made, monkeypatch):
    folder, model, facts = made
    monkeypatch.setattr(module, "train", refuse)
    again, known = trained(SETTING, 1, folder, **SHORT)
    assert known == facts | {"found": True, "format": FORMAT}
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())
    assert [path.name for path in (folder / "weights").iterdir()] == [weights_path(SETTING, 1, folder, **SHORT).name]


def test_training_begins_with_the_recipes_weights(tmp_path, monkeypatch):
    recipe = dataclasses.replace(RECIPES["digits-mlp"], initial="flax")
    monkeypatch.setitem(module.RECIPES, "digits-mlp", recipe)
    begun = []

    def seen(model, *_, **__):
        begun.append({name: value.detach().clone() for name, value in model.named_parameters()})
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "train", seen)
    with pytest.raises(KeyboardInterrupt):
        trained(SETTING, 1, tmp_path)
    due = models.seeded(lambda: as_flax(models.build("digits-mlp")), 1)
    assert all(torch.equal(value, begun[0][name]) for name, value in due.named_parameters())


def test_names_tell_changed_recipes_apart(tmp_path):
    plain = weights_path(SETTING, 1, tmp_path)
    assert plain == tmp_path / "weights" / "digits-mlp-1.safetensors"
    assert weights_path(SETTING, 1, tmp_path, epochs=RECIPES["digits-mlp"].epochs) == plain
    others = [
        weights_path(SETTING, 1, tmp_path, **changes)
        for changes in ({"epochs": 2}, {"epochs": 3}, {"subset": 50}, {"epochs": 2, "subset": 50})
    ]
    assert len({plain, *others}) == 5
    assert all(path.name.startswith("digits-mlp-1-") for path in others)


def test_it_learns_from_nine_tenths_or_a_subset_of_them():
    whole, few = learned_from(SETTING), learned_from(SETTING, subset=30)
    everything = data.open_set("digits", "train")
    places, _ = split(len(everything))
    assert len(whole) == int(0.9 * len(everything)) and len(few) == 30
    expected, labels = everything.read(places[:30])
    inputs, targets = few.read(torch.arange(30))
    assert torch.equal(inputs, expected) and torch.equal(targets, labels)


def test_an_interrupted_training_goes_on(tmp_path, made, monkeypatch):
    def interrupted(model, source, recipe, *, checkpoint, **rest):
        return real(model, Failing(source), recipe, checkpoint=Checkpoint(checkpoint, every=0), **rest)

    real = module.train
    with monkeypatch.context() as patch:
        patch.setattr(module, "train", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trained(SETTING, 1, tmp_path, **SHORT)
    path = weights_path(SETTING, 1, tmp_path, **SHORT)
    assert checkpoint_path(path).exists() and not path.exists()
    model, facts = trained(SETTING, 1, tmp_path, **SHORT)
    assert all(torch.equal(value, made[1].state_dict()[name]) for name, value in model.state_dict().items())
    assert facts["losses"] == made[2]["losses"]
    assert list(path.parent.iterdir()) == [path]


class Failing:
    """Interrupts when its twelfth batch is read."""

    def __init__(self, source):
        self._source, self._reads = source, 0
        self.shape = source.shape

    def __len__(self):
        return len(self._source)

    def read(self, indices):
        self._reads += 1
        if self._reads == 12:
            raise KeyboardInterrupt
        return self._source.read(indices)


def test_weights_of_another_recipe_under_this_name_are_refused(made, tmp_path):
    folder, *_ = made
    (tmp_path / "weights").mkdir()
    stranger = weights_path(SETTING, 2, tmp_path, **SHORT)
    stranger.write_bytes(weights_path(SETTING, 1, folder, **SHORT).read_bytes())
    with pytest.raises(MismatchError, match="its seed is 1, asked for is 2"):
        trained(SETTING, 2, tmp_path, **SHORT)


def test_weights_of_another_normalization_are_refused(made):
    folder, *_ = made
    other = dataclasses.replace(SETTING, mean=(0.5,), std=(0.2,))
    with pytest.raises(MismatchError, match="its mean is"):
        trained(other, 1, folder, **SHORT)


def test_weights_of_another_model_are_refused(made, tmp_path):
    folder, *_ = made
    larger = dataclasses.replace(SETTING, model="mlp")
    with pytest.raises(MismatchError, match="weights of another model"):
        trained(larger, 1, folder, **SHORT)


def test_damaged_weights_are_named(made, tmp_path):
    folder, *_ = made
    (tmp_path / "weights").mkdir()
    path = weights_path(SETTING, 1, tmp_path, **SHORT)
    path.write_bytes(weights_path(SETTING, 1, folder, **SHORT).read_bytes()[:-9])
    with pytest.raises(DamagedFileError, match=r"digits-mlp-1-.*safetensors"):
        trained(SETTING, 1, tmp_path, **SHORT)


def test_errors(tmp_path):
    with pytest.raises(SettingError, match="a subset has 1 to 909 points of digits, got 910"):
        trained(SETTING, 1, tmp_path, subset=910)
    with pytest.raises(SettingError, match="unknown recipe 'none'"):
        trained(dataclasses.replace(SETTING, recipe="none"), 1, tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot make the folder"):
        trained(SETTING, 1, tmp_path / "file")


@pytest.mark.data
@pytest.mark.skipif("SLU_DATA" not in os.environ, reason="needs the real data sets below SLU_DATA")
def test_one_epoch_on_the_real_mnist(tmp_path):
    _, facts = trained(SETTINGS["mnist-mlp"], 1, tmp_path, epochs=1)
    assert (facts["points"], facts["test_points"]) == (54_000, 10_000)
    assert facts["accuracy"] > 0.88
