"""A file that was cut, flipped, edited or made up is refused in words, before memory is taken for it."""

import random

import pytest
import torch
from torch import nn

from slu import SLU
from slu.artifacts import artifact as artefact
from slu.artifacts import read, write
from slu.errors import DamagedFileError, MismatchError, StorageError
from stored import changed, fitted


def test_an_edited_setting(original, path):
    data = path.read_bytes()
    edited = data.replace(b'\\"rank\\": 4', b'\\"rank\\": 3')
    assert edited != data
    path.write_bytes(edited)
    with pytest.raises(DamagedFileError, match="does not fit its content"):
        SLU.load(path, original[0])


def test_cuts_of_every_class(original, path):
    data = path.read_bytes()
    index_end = 8 + int.from_bytes(data[:8], "little")
    lengths = [*range(9), 9, index_end // 2, index_end - 1, index_end, index_end + 1, (index_end + len(data)) // 2]
    for length in [*lengths, len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(DamagedFileError):
            SLU.load(path, original[0])


def test_flipped_bits_are_refused_or_harmless(original, path):
    seed, flips = 12, 2000
    print(f"{flips} flips, seed {seed}")
    model, _, score = original
    data, header = path.read_bytes(), read(path)[0]
    draw = random.Random(seed)
    harmless = 0
    for _ in range(flips):
        harmed = bytearray(data)
        place = draw.randrange(8 * len(data))
        harmed[place // 8] ^= 1 << place % 8
        path.write_bytes(harmed)
        try:
            loaded = SLU.load(path, model)
        except StorageError:
            continue
        harmless += 1
        assert read(path)[0] == header, place
        assert torch.equal(loaded.state.subspace.basis, score.state.subspace.basis), place
        assert loaded.state.subspace.correction == score.state.subspace.correction
    assert harmless < 0.02 * flips


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("settings", "rank"), "four"),
        (("settings", "rank"), 10**9),
        (("settings", "sketch", "size"), 21),
        (("settings", "sketch", "size"), 10**15),
        (("settings", "sketch", "parameters"), 50),
        (("settings", "sketch", "kind"), "quantum"),
        (("settings", "sketch", "options"), {"nonzeros": 10**9}),
        (("settings", "sketch"), 3),
        (("settings", "solver"), "stream"),
        (("settings", "solver", "kind"), "magic"),
        (("settings", "solver", "steps"), 4),
        (("settings", "solver"), None),
        (("settings", "scale", "kind"), None),
        (("settings", "scale", "damping"), -1.0),
        (("settings", "scale"), None),
        (("state", "eigenvalues"), [1.0, 0.5]),
        (("state", "eigenvalues"), None),
        (("state", "convergence"), {"steps": 4}),
        (("state", "convergence"), None),
        (("state", "correction"), None),
        (("state", "trace"), None),
        (("state", "points"), None),
        (("state", "calibration"), None),
        (("state", "calibration", "held_out"), [0.1]),
        (("state", "calibration", "readings"), ["variance"]),
        (("state", "calibration", "standard"), {"fisher": 1.0}),
        (("state",), None),
        (("settings", "nonsense"), 1),
        (("settings", "params"), ["0.weight"]),
        (("settings", "params"), None),
        (("settings", "sketch"), None),
        (("settings",), None),
        (("likelihood",), None),
        (("likelihood", "settings"), {"classes": 3}),
        (("own_forward",), None),
        (("fingerprint",), None),
        (("fingerprint",), [1]),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else str(value),
)
def test_a_header_that_makes_no_sense_though_its_checksum_fits(original, path, keys, value):
    header, tensors = read(path)
    del header["format"]
    write(path, tensors, changed(header, keys, value))
    with pytest.raises(StorageError, match=r"net\.slu") as raised:
        SLU.load(path, original[0])
    assert isinstance(raised.value, DamagedFileError | MismatchError)


@pytest.mark.parametrize("wrong", ["basis", "probe", "both"])
def test_tensors_that_do_not_fit_the_header(original, path, wrong):
    header, tensors = read(path)
    turned = {"basis": tensors["basis"].T, "probe": tensors["probe"][1:]}
    for harmed in ({**tensors, wrong: turned.get(wrong)}, {name: tensors[name] for name in tensors if name != wrong}):
        write(path, {} if wrong == "both" else harmed, header)
        with pytest.raises(DamagedFileError, match=r"net\.slu"):
            SLU.load(path, original[0])


def test_a_sketch_no_one_can_hold_is_refused_before_memory_is_taken(tmp_path):
    model = nn.Linear(400, 500)
    score = fitted(model, torch.randn(4, 400, generator=torch.Generator().manual_seed(0)), sketch_size=20)
    score.save(tmp_path / "net.slu")
    header, tensors = read(tmp_path / "net.slu")
    header["settings"]["sketch"] |= {"kind": "gaussian", "size": 200_000, "options": {}}
    write(tmp_path / "net.slu", tensors, header)
    with pytest.raises(DamagedFileError, match=r"does not fit together: a sketch of size 200000 .* Fit and save anew"):
        SLU.load(tmp_path / "net.slu", model)


@pytest.mark.parametrize(
    ("other", "error", "message"),
    [
        (1.5, MismatchError, r"cannot be drawn again with torch .*named by `slu inspect`, or fit anew"),
        (float("nan"), DamagedFileError, r"probe holds \d+ numbers that are not finite"),
    ],
)
def test_a_sketch_that_is_drawn_differently_is_refused(original, path, other, error, message):
    header, tensors = read(path)
    del header["tensors"]  # as of a file from before it
    write(path, {**tensors, "probe": other * tensors["probe"]}, header)
    with pytest.raises(error, match=message):
        SLU.load(path, original[0])


def test_the_versions_are_in_the_header(path):
    assert read(path)[0]["versions"] == artefact.versions()
    assert set(artefact.versions()) == {"slu", "python", "torch", "numpy", "scipy"}
