"""A score and a checkpoint cut at every offset, and with every bit of the index flipped and bits of the tensors.

What is read all the same has the same header and tensors. `make test` flips one bit of every byte of the index and
some of the tensors', `make test-slow` every seventh bit of both files, so at least one of every byte, and `make
test-matrix` every bit.
"""

import os
import random

import pytest
import torch

import faulty
from fault_counts import FaultCounts
from matrix import step
from slu.artifacts import read, read_newest

SEED = 27


@pytest.fixture(scope="module", params=["score", "checkpoint"])
def stored(request, tmp_path_factory):
    """A path, how it is read, and the bytes of a whole file."""
    folder = tmp_path_factory.mktemp("cuts")
    if request.param == "score":
        path = folder / "net.slu"
        faulty.fit("stream").save(path)
    else:
        path = faulty.interrupted("lanczos", folder)
        path.with_name("run.ckpt.previous").unlink()
    use = {"score": read, "checkpoint": read_newest}[request.param]
    return request.param, path, use, path.read_bytes()


def same(came, expected) -> bool:
    return came is not None and came[0] == expected[0] and equal(came[1], expected[1])


def equal(came, expected) -> bool:
    return came.keys() == expected.keys() and all(
        came[name].dtype == expected[name].dtype and torch.equal(came[name], expected[name]) for name in expected
    )


def flip(file, data: bytes, place: int, bits: int) -> None:
    file.seek(place // 8)
    file.write(bytes([data[place // 8] ^ bits]))


def test_cut_at_every_offset(stored):
    kind, path, use, data = stored
    path.write_bytes(data)
    expected = use(path)
    counts = FaultCounts(f"cuts of a {kind}")
    for length in reversed(range(len(data))):
        os.truncate(path, length)
        counts.run(f"{length} bytes", lambda: use(path), lambda came: same(came, expected))
    counts.assert_none()
    assert counts.counts["refused"] == len(data)


@pytest.mark.parametrize("even", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "of every byte"])
def test_flipped_bits(stored, even):
    kind, path, use, data = stored
    path.write_bytes(data)
    expected = use(path)
    index_end = 8 + int.from_bytes(data[:8], "little")
    draw = random.Random(SEED)
    places = range(0, 8 * len(data), step(7))
    if not even:
        places = [8 * place + draw.randrange(8) for place in range(index_end)]
        places += draw.sample(range(8 * index_end, 8 * len(data)), 500)
    counts = FaultCounts(f"flipped bits of a {kind}, seed {SEED}")
    with path.open("r+b", buffering=0) as file:  # in place: making the file anew takes most of the time
        for place in places:
            flip(file, data, place, 1 << place % 8)
            counts.run(f"bit {place}", lambda: use(path), lambda came: same(came, expected))
            flip(file, data, place, 0)
    assert path.read_bytes() == data
    counts.assert_none()
    assert counts.counts["refused"] > 0.98 * len(places)


def test_control_a_changed_number_is_not_the_same(stored):
    _, path, use, data = stored
    path.write_bytes(data)
    header, tensors = use(path)
    name = max(tensors, key=lambda each: tensors[each].numel())
    other = {**tensors, name: tensors[name] + 1}
    assert same((header, tensors), (header, tensors)) and not same((header, other), (header, tensors))
    assert not same(({**header, "format": 1}, tensors), (header, tensors)) and not same(None, (header, tensors))
