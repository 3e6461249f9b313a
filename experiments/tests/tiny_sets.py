"""Data sets of a few points, laid out as upstream does."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

ATTRIBUTES = [f"Trait_{i}" for i in range(37)] + ["Bald", "Mustache", "Eyeglasses"]


def draws(seed=0):
    return np.random.default_rng(seed)


def idx_bytes(values: np.ndarray) -> bytes:
    head = bytes((0, 0, 8, values.ndim)) + b"".join(size.to_bytes(4, "big") for size in values.shape)
    return head + values.astype(np.uint8).tobytes()


def write_idx(folder: Path, part="test", n=7, seed=0):
    """Images and labels of MNIST's layout; returns both."""
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = draws(seed).integers(0, 256, (n, 28, 28)), np.arange(n) % 10
    prefix = {"train": "train", "test": "t10k"}[part]
    for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
        (folder / f"{prefix}-{kind}-ubyte.gz").write_bytes(gzip.compress(idx_bytes(values)))
    return images, labels


def write_cifar(folder: Path, files, per_file=4, labels=1, classes=10, seed=0):
    """Files of CIFAR's records; returns the pixels (n, 3, 32, 32) and the labels."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels, marks = [], []
    for number, file in enumerate(files):
        records = draws(seed + number).integers(0, 256, (per_file, labels + 3072)).astype(np.uint8)
        records[:, :labels] = draws(seed).integers(0, classes, (per_file, labels))
        (folder / file).write_bytes(records.tobytes())
        pixels.append(records[:, labels:].reshape(-1, 3, 32, 32))
        marks.append(records[:, labels - 1])
    return np.concatenate(pixels), np.concatenate(marks)


def write_svhn(folder: Path, part="test", labels=(10, 1, 5)):
    folder.mkdir(parents=True, exist_ok=True)
    pixels = draws().integers(0, 256, (32, 32, 3, len(labels))).astype(np.uint8)
    savemat(folder / f"{part}_32x32.mat", {"X": pixels, "y": np.array(labels, np.uint8)[:, None]}, do_compression=True)
    return pixels


def write_picture(path: Path, size=(12, 10), seed=0):
    """A PNG, whatever the name says, so that its pixels come back as they are; (h, w, 3)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = draws(seed).integers(0, 256, (*size, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(path, "PNG")
    return pixels


def write_celeba(folder: Path, values: np.ndarray, size=(12, 10)):
    """Faces with these attributes, (n, 40) of 0 and 1."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{i + 1:06}.jpg" for i in range(len(values))]
    lines = [str(len(values)), " ".join(ATTRIBUTES) + " "]
    lines += [
        f"{name} {' '.join(f'{2 * value - 1:2}' for value in row)}" for name, row in zip(names, values, strict=True)
    ]
    (folder / "list_attr_celeba.txt").write_text("\n".join(lines) + "\n")
    return np.stack([write_picture(folder / "img_align_celeba" / name, size, i) for i, name in enumerate(names)])


def write_food(folder: Path, classes=("pie", "salad"), each=2, size=(20, 30)):
    (folder / "meta").mkdir(parents=True, exist_ok=True)
    (folder / "meta" / "classes.txt").write_text("\n".join(classes) + "\n")
    lines = [f"{kind}/{number}" for kind in classes for number in range(each)]
    (folder / "meta" / "test.txt").write_text("\n".join(lines) + "\n")
    for seed, line in enumerate(lines):
        write_picture(folder / "images" / f"{line}.jpg", size, seed)


def write_uci(folder: Path, rows=10, splits=2):
    """A table of rows with two features and a target between them; split i tests on row i."""
    below = folder / "data"
    below.mkdir(parents=True, exist_ok=True)
    table = np.round(draws().normal(size=(rows, 3)), 4)
    np.savetxt(below / "data.txt", table, fmt="%.4f")
    (below / "n_splits.txt").write_text(f"{splits}\n")
    (below / "index_features.txt").write_text("0\n2\n")
    (below / "index_target.txt").write_text("1\n")
    for split in range(splits):
        (below / f"index_test_{split}.txt").write_text(f"{split}.0\n")
        (below / f"index_train_{split}.txt").write_text("\n".join(str(i) for i in range(rows) if i != split) + "\n")
    return table


def make_tar(path: Path, files, mode="w:gz", extra=()):
    """A tar with these contents by name, and further members."""
    with tarfile.open(path, mode) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for member in extra:
            tar.addfile(member)
