"""What `check` makes of sets that are whole, in part, missing or damaged."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from slu.errors import MissingDataError
from slu_experiments import data
from slu_experiments.data.catalogue import CATALOGUE
from slu_experiments.data.checking import DAMAGED, MISSING, PARTLY, WHOLE, check, expected
from slu_experiments.data.cifar import CIFAR10
from slu_experiments.data.fetching import md5
from tiny_sets import write_celeba, write_cifar, write_food, write_idx, write_picture, write_svhn, write_uci


def small(name, root, **counts):
    """An entry as if upstream had exactly what lies below the root."""
    entry = CATALOGUE[name]
    files = {file: md5(root / file) for file in expected(entry) if (root / file).exists()}
    return replace(entry, counts=counts, checksums=files, downloads=())


def test_the_digits_are_always_whole():
    finding = check(CATALOGUE["digits"], None)
    assert (finding.state, finding.counts) == (WHOLE, {"train": 1010, "test": 433, "held-out": 354})


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name != "digits"])
def test_nothing_there(name, tmp_path):
    assert check(CATALOGUE[name], tmp_path).state == MISSING
    assert check(CATALOGUE[name], None).state == MISSING
    (tmp_path / CATALOGUE[name].folder).mkdir(parents=True)
    assert check(CATALOGUE[name], tmp_path).state == MISSING


def test_whole_then_in_part_then_damaged(tmp_path):
    for part in ("train", "test"):
        write_idx(tmp_path / "mnist", part)
    entry = small("mnist", tmp_path, train=7, test=7)
    finding = check(entry, tmp_path)
    assert (finding.state, finding.fitting, finding.compared, finding.remarks) == (WHOLE, 4, 4, ())
    # Readable and as many, but not the same: damage.
    write_idx(tmp_path / "mnist", "test", seed=1)
    finding = check(entry, tmp_path)
    assert (finding.state, finding.fitting) == (DAMAGED, 3)
    assert "t10k-images-idx3-ubyte.gz is not upstream's file" in finding.remarks[0]
    # Fewer than upstream: a part of it.
    write_idx(tmp_path / "mnist", "test", n=5)
    finding = check(entry, tmp_path)
    assert (finding.state, finding.counts) == (PARTLY, {"train": 7, "test": 5})
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").unlink()
    finding = check(entry, tmp_path)
    assert (finding.state, finding.counts) == (PARTLY, {"train": 0, "test": 5})
    (tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz").write_bytes(b"rubbish")
    finding = check(entry, tmp_path)
    assert finding.state == DAMAGED and any("no whole gzip file" in remark for remark in finding.remarks)


def test_one_flipped_bit_of_cifar(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    for part in ("train", "test"):
        write_cifar(folder, CIFAR10[part])
    entry = small("cifar10", tmp_path, train=20, test=4)
    assert check(entry, tmp_path).state == WHOLE
    content = bytearray((folder / "data_batch_3.bin").read_bytes())
    content[5000] ^= 1
    (folder / "data_batch_3.bin").write_bytes(content)
    finding = check(entry, tmp_path)
    assert (finding.state, finding.fitting, finding.compared) == (DAMAGED, 5, 6)


def test_a_known_version_is_called_by_its_name(tmp_path):
    write_svhn(tmp_path / "svhn")
    known = {md5(tmp_path / "svhn" / "test_32x32.mat"): "three digits"}
    finding = check(replace(CATALOGUE["svhn"], versions=known), tmp_path)
    assert finding.state == PARTLY
    assert finding.remarks == ("svhn/test_32x32.mat is not upstream's file: three digits",)


def test_celeba_of_another_size_and_with_pictures_missing(tmp_path):
    values = np.random.default_rng(0).integers(0, 2, (20, 40))
    values[:, 37:] = 0
    write_celeba(tmp_path / "celeba", values)
    entry = replace(small("celeba", tmp_path, faces=20), shape=(3, 12, 10))
    assert check(entry, tmp_path).state == WHOLE
    finding = check(replace(entry, shape=(3, 218, 178)), tmp_path)
    assert finding.state == PARTLY
    assert finding.remarks == ("faces: inputs are 3 × 12 × 10, upstream's 3 × 218 × 178",)
    (tmp_path / "celeba" / "img_align_celeba" / "000011.jpg").unlink()
    finding = check(entry, tmp_path)
    assert finding.state == DAMAGED and "1 of 16 pictures are not there" in finding.remarks[0]


def test_food_imagenet_and_tables(tmp_path):
    write_food(tmp_path / "food-101")
    assert check(replace(CATALOGUE["food101"], counts={"train": 0, "test": 4}), tmp_path).state == WHOLE
    for kind in ("n01440764", "n02980441"):
        write_picture(tmp_path / "imagenet" / "val" / kind / "1.JPEG")
    finding = check(CATALOGUE["imagenet"], tmp_path)
    assert (finding.state, finding.counts) == (PARTLY, {"train": 0, "test": 2})
    write_uci(tmp_path / "UCI_Datasets" / "yacht")
    assert check(small("uci-yacht", tmp_path, rows=10), tmp_path).state == WHOLE
    (tmp_path / "UCI_Datasets" / "yacht" / "data" / "index_train_1.txt").write_text("0\n2\n")
    finding = check(small("uci-yacht", tmp_path, rows=10), tmp_path)
    assert finding.state == DAMAGED and "[3, 10]" in finding.remarks[0]


def test_the_benchmarks_corruptions(tmp_path):
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    np.save(folder / "labels.npy", np.zeros(10, np.uint8))
    for kind in ("fog", "frost"):
        np.save(folder / f"{kind}.npy", np.zeros((10, 32, 32, 3), np.uint8))
    finding = check(CATALOGUE["cifar10-c"], tmp_path)
    assert (finding.state, finding.counts) == (PARTLY, {"corruptions": 2})
    np.save(folder / "snow.npy", np.zeros((10, 32, 32)))
    assert check(CATALOGUE["cifar10-c"], tmp_path).state == DAMAGED


@pytest.mark.data
@pytest.mark.skipif("SLU_DATA" not in os.environ, reason="SLU_DATA does not name the folder of the data sets")
@pytest.mark.parametrize("name", list(CATALOGUE))
def test_every_real_set_is_whole_or_in_part(name):
    from slu_experiments.data.places import folder

    finding = check(CATALOGUE[name], folder())
    assert finding.state != DAMAGED, finding.remarks


@pytest.mark.data
@pytest.mark.skipif("SLU_DATA" not in os.environ, reason="SLU_DATA does not name the folder of the data sets")
@pytest.mark.parametrize("name", data.names())
def test_every_real_set_that_is_there_is_read(name):
    try:
        source = data.open_set(name, "test")
    except MissingDataError as reason:
        pytest.skip(str(reason))
    for places in (torch.arange(4), torch.tensor([len(source) - 1, 0])):
        inputs, targets = source.read(places)
        assert inputs.shape == (len(places), *source.shape) and inputs.dtype == torch.float32
        assert len(targets) == len(places) and inputs.isfinite().all()
        assert name.startswith("uci") or (float(inputs.min()) >= 0 and float(inputs.max()) <= 1)
    assert float(source.read(torch.arange(4))[0].std()) > 0.01
