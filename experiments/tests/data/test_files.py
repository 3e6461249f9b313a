"""Readers of files of fixed layouts: idx, CIFAR, SVHN, UCI: good ones, cut ones, and wrong ones."""

import gzip

import numpy as np
import pytest
import torch

from slu.errors import DataError, MissingDataError, SettingError
from slu_experiments.data import open_set, stack
from slu_experiments.data.cifar import CIFAR10, CIFAR100
from slu_experiments.data.idx import read_idx
from tiny_sets import idx_bytes, write_cifar, write_idx, write_svhn, write_uci


@pytest.mark.parametrize("name", ["mnist", "fmnist", "kmnist"])
@pytest.mark.parametrize("part", ["train", "test"])
def test_idx(tmp_path, name, part):
    images, labels = write_idx(tmp_path / name, part)
    inputs, marks = stack(open_set(name, part, tmp_path))
    assert np.array_equal(inputs[:, 0].numpy(), (images / 255).astype(np.float32))
    assert marks.dtype == torch.int64 and marks.tolist() == labels.tolist()


def zipped(content):
    """The same bytes at any time: they are part of the tests' names."""
    return gzip.compress(content, mtime=0)


GOOD = zipped(idx_bytes(np.ones((3, 28, 28))))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (GOOD[:-20], "is cut"),
        (GOOD[: len(GOOD) // 2], "is cut"),
        (b"", "is cut|begins with"),
        (b"not gzip at all", "no whole gzip"),
        (GOOD[:30] + b"\xff\x00\xff" + GOOD[33:], "no whole gzip|is cut|longer|begins with"),
        (zipped(b"\x00\x00\x0d" + idx_bytes(np.ones((3, 28, 28)))[3:]), "begins with 00 00 0d 03"),
        (zipped(b"\x01\x00\x08\x01\x00\x00\x00\x01\x05"), "begins with 01"),
        (zipped(idx_bytes(np.ones((3, 28, 28)))[:-1]), "is cut"),
        (zipped(idx_bytes(np.ones((3, 28, 28))) + b"\x00"), "longer than"),
        (zipped(b"\x00\x00\x08\x03" + b"\xff" * 12), "too short to hold"),
        (zipped(idx_bytes(np.ones((3, 28, 27)))), "expected .n, 28, 28"),
        (zipped(idx_bytes(np.ones((4, 28, 28)))), "labels for 4 images"),
    ],
)
def test_damaged_idx_files_say_what_is_wrong_and_what_to_do(tmp_path, content, what):
    write_idx(tmp_path / "mnist", n=3)
    (tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(DataError, match=what) as caught:
        open_set("mnist", "test", tmp_path)
    assert "slu-paper data fetch mnist" in str(caught.value)


def test_an_idx_label_that_is_no_digit(tmp_path):
    write_idx(tmp_path / "mnist", n=3)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(zipped(idx_bytes(np.array([1, 10, 2]))))
    with pytest.raises(DataError, match="a label 10"):
        open_set("mnist", "test", tmp_path)


def test_an_idx_array_may_be_read_alone(tmp_path):
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "x.gz").write_bytes(zipped(idx_bytes(values)))
    assert np.array_equal(read_idx(tmp_path / "x.gz", "mnist"), values)


@pytest.mark.parametrize(
    ("name", "folder", "files", "labels", "classes"),
    [
        ("cifar10", "cifar-10-batches-bin", CIFAR10, 1, 10),
        ("cifar100", "cifar-100-binary", CIFAR100, 2, 100),
    ],
)
def test_cifar(tmp_path, name, folder, files, labels, classes):
    for part in ("train", "test"):
        pixels, marks = write_cifar(tmp_path / folder, files[part], labels=labels, classes=classes)
        source = open_set(name, part, tmp_path)
        assert (len(source), source.shape) == (4 * len(files[part]), (3, 32, 32))
        order = np.random.default_rng(0).permutation(len(source))[:9]  # over the borders of files
        images, targets = source.read(torch.from_numpy(order))
        assert np.array_equal(images.numpy(), (pixels[order] / 255).astype(np.float32))
        assert targets.tolist() == marks[order].tolist()
        assert source.read(torch.arange(0))[0].shape == (0, 3, 32, 32)


@pytest.mark.parametrize("size", [0, 1, 3073 * 4 - 1, 3073 * 4 + 1, 3074 * 4])
def test_a_cut_cifar_file(tmp_path, size):
    write_cifar(tmp_path / "cifar-10-batches-bin", CIFAR10["test"])
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(bytes(size))
    with pytest.raises(DataError, match="expected a multiple of 3,073"):
        open_set("cifar10", "test", tmp_path)


def test_a_cifar_label_that_is_no_class(tmp_path):
    write_cifar(tmp_path / "cifar-10-batches-bin", CIFAR10["test"], classes=200)
    with pytest.raises(DataError, match="expected 0 to 9"):
        open_set("cifar10", "test", tmp_path)


def test_svhn(tmp_path):
    pixels = write_svhn(tmp_path / "svhn")
    images, labels = stack(open_set("svhn", "test", tmp_path))
    assert labels.tolist() == [0, 1, 5]
    assert np.array_equal(images.numpy(), (pixels.transpose(3, 2, 0, 1) / 255).astype(np.float32))


def test_damaged_svhn_files(tmp_path):
    from scipy.io import savemat

    write_svhn(tmp_path / "svhn")
    path = tmp_path / "svhn" / "test_32x32.mat"
    good = path.read_bytes()
    for content in (b"", b"no MATLAB file, but long enough to have a header" * 9, good[:200], good[:-100]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="no whole MATLAB file"):
            open_set("svhn", "test", tmp_path)
    X, y = np.zeros((32, 32, 3, 2), np.uint8), np.ones((2, 1))
    for wrong, what in (
        ({"X": X}, "expected X and y"),
        ({"X": X.astype(float), "y": y}, "float64"),
        ({"X": X[..., :1, :], "y": y}, "expected"),
        ({"X": X, "y": y[:1]}, "1 labels"),
        ({"X": X, "y": 11 * y}, "outside 1 to 10"),
        ({"X": X, "y": 0 * y}, "outside 1 to 10"),
    ):
        savemat(path, wrong)
        with pytest.raises(DataError, match=what):
            open_set("svhn", "test", tmp_path)


def test_uci_tables_and_their_splits(tmp_path):
    table = write_uci(tmp_path / "UCI_Datasets" / "yacht").astype(np.float32)
    features, target = stack(open_set("uci-yacht-1", "test", tmp_path))
    assert np.array_equal(features.numpy(), table[[1]][:, [0, 2]]) and np.array_equal(target.numpy(), table[[1], 1:2])
    features, target = stack(open_set("uci-yacht", "train", tmp_path))
    assert np.array_equal(features.numpy(), table[1:][:, [0, 2]]) and target.shape == (9, 1)
    with pytest.raises(SettingError, match="0 to 1; got 2"):
        open_set("uci-yacht-2", "test", tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "what"),
    [
        ("data.txt", "1 2 3\n4 5\n", "no table of numbers"),
        ("data.txt", "1 2 x\n", "no table of numbers"),
        ("data.txt", "1 2 nan\n", "finite"),
        ("data.txt", "", "is empty"),
        ("n_splits.txt", "1.5\n", "one whole number"),
        ("index_test_0.txt", "10\n", "from 0 to 9"),
        ("index_test_0.txt", "-1\n", "from 0 to 9"),
        ("index_test_0.txt", "3\n3\n", "twice"),
        ("index_features.txt", "0.5\n", "from 0 to 2"),
    ],
)
def test_damaged_uci_tables(tmp_path, file, content, what):
    write_uci(tmp_path / "UCI_Datasets" / "yacht")
    (tmp_path / "UCI_Datasets" / "yacht" / "data" / file).write_text(content)
    with pytest.raises(DataError, match=what):
        open_set("uci-yacht", "test", tmp_path)


FOLDERS = ["mnist", "cifar10", "cifar100", "svhn", "uci-boston", "celeba", "celeba-bald", "food101", "imagenet"]


@pytest.mark.parametrize("name", [*FOLDERS, "imagenet-castle", "mnist-rotated-15", "cifar10-fog-1"])
def test_what_is_missing_is_named_with_the_way_to_get_it(tmp_path, name):
    with pytest.raises(MissingDataError, match=r"is not here.*slu-paper data fetch"):
        open_set(name, "test", tmp_path)
