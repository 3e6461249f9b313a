"""Names of data sets: which there are, what families hold, and what is refused."""

import pytest
import torch

from slu.errors import MissingDataError, SettingError
from slu_experiments import data
from slu_experiments.data.catalogue import CATALOGUE
from tiny_sets import write_idx


def test_every_name_is_once_in_the_list_and_names_something():
    names = data.names()
    assert len(set(names)) == len(names)
    assert {"mnist", "fmnist-rotated-30", "cifar10-fog-5", "digits-held-out", "imagenet-castle", "uci-yacht"} <= set(
        names
    )
    assert data.expand(names) == names
    assert set(CATALOGUE) - {"cifar10-c"} <= set(names)


@pytest.mark.parametrize("name", data.names())
def test_every_name_is_opened_or_missed_in_an_empty_folder(name, tmp_path):
    """And never unknown."""
    if name.startswith("digits"):
        assert len(data.open_set(name, "test", tmp_path)) in (433, 354)
    else:
        with pytest.raises(MissingDataError, match="slu-paper data fetch"):
            data.open_set(name, "test", tmp_path)


def test_families():
    assert data.expand(["digits-rotated"]) == [f"digits-rotated-{angle}" for angle in range(15, 181, 15)]
    assert len(data.expand(["cifar10-corrupted"])) == 14
    assert len(data.expand(["imagenet-held-out"])) == 10
    assert data.expand(["mnist", "celeba-held-out", "mnist"]) == ["mnist", *data.families()["celeba-held-out"]]
    assert data.expand(["uci-protein-4"]) == ["uci-protein-4"]
    for family in data.families():
        assert data.expand([family]) == list(data.families()[family])
        with pytest.raises(SettingError, match="is a family of sets"):
            data.open_set(family, "test")


@pytest.mark.parametrize(
    "name", ["mnits", "", "digits-rotated-7", "cifar10-fog-6", "cifar10-rain-1", "uci-moon", "uci-moon-1"]
)
def test_unknown_names_are_answered_with_those_there_are(name):
    for ask in (lambda: data.open_set(name, "test"), lambda: data.expand([name])):
        with pytest.raises(SettingError, match=f"unknown data set '{name}'; valid are .*'mnist'.*rotated"):
            ask()


def test_parts():
    with pytest.raises(SettingError, match="unknown part 'valid'; valid are 'train', 'test'"):
        data.open_set("mnist", "valid")
    for name in ("digits-held-out", "celeba-bald", "cifar10-fog-1"):
        with pytest.raises(SettingError, match="has no part 'train'"):
            data.open_set(name, "train", "anywhere")


def test_the_folder_comes_from_the_argument_or_the_environment(tmp_path, monkeypatch):
    write_idx(tmp_path / "mnist")
    monkeypatch.delenv("SLU_DATA", raising=False)
    with pytest.raises(MissingDataError, match=r"folder of the data sets is not known.*SLU_DATA"):
        data.open_set("mnist", "test")
    monkeypatch.setenv("SLU_DATA", "")
    with pytest.raises(MissingDataError, match="folder of the data sets is not known"):
        data.open_set("mnist", "test")
    monkeypatch.setenv("SLU_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(MissingDataError, match=r"there is no folder .*nowhere"):
        data.open_set("mnist", "test")
    assert len(data.open_set("mnist", "test", tmp_path)) == 7
    monkeypatch.setenv("SLU_DATA", str(tmp_path))
    assert len(data.open_set("mnist", "test")) == 7


def test_digits_are_those_of_the_demo():
    from slu_experiments.data import digits

    loaded = digits.load()
    for part, images, labels in (
        ("train", loaded.train_images, loaded.train_labels),
        ("test", loaded.test_images, loaded.test_labels),
    ):
        inputs, targets = data.stack(data.open_set("digits", part))
        assert torch.equal(inputs, images) and torch.equal(targets, labels)
    turned, _ = data.stack(data.open_set("digits-rotated-90", "test"))
    assert torch.equal(turned, digits.rotated(loaded.test_images))
    assert data.stack(data.open_set("digits-held-out", "test"))[1].unique().tolist() == [8, 9]


def test_the_catalogue_says_everything():
    for entry in CATALOGUE.values():
        assert entry.title and entry.what and entry.licence and entry.home and entry.counts
        assert not entry.folder or entry.downloads or entry.by_hand, f"nobody could get {entry.name}"
        for each in entry.downloads:
            assert len(each.md5) == 32 and int(each.md5, 16) >= 0
            assert each.urls or entry.by_hand
            assert each.path.startswith(f"{entry.folder}/") or each.unpacks_to == entry.folder
        for file in entry.checksums:
            assert file.startswith(f"{entry.folder}/")
