"""Files: what goes in comes out, and nothing that was harmed comes out at all."""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from slu.artifacts import FORMAT, digest, files, read, read_newest, write, write_generation
from slu.artifacts.layout import DTYPES, read_tensors
from slu.cli.contents import contents
from slu.errors import DamagedFileError, StorageError

HEADER = {"words": "ü \x1f \U0001f600", "list": [1, 2.5, None, True], "nested": {"seed": 2**63}}
TENSORS = {"basis": torch.arange(12.0).reshape(3, 4), "probe": torch.tensor([0.5], dtype=torch.float64)}


@pytest.fixture
def path(tmp_path):
    write(tmp_path / "net.slu", TENSORS, HEADER)
    return tmp_path / "net.slu"


def same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert first[name].dtype == second[name].dtype
        assert torch.equal(first[name], second[name])


def parts(path):
    """The index as an object, and the bytes behind it."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def put_together(path, index, rest):
    text = index if isinstance(index, bytes) else json.dumps(index).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + rest)


def test_what_goes_in_comes_out(path):
    header, tensors = read(path)
    assert header == {**HEADER, "format": FORMAT}
    same(tensors, TENSORS)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3, 4)], ids=str)
def test_every_type_and_shape(tmp_path, dtype, shape):
    values = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    write(tmp_path / "f", {"a": values, "b": torch.ones(3)}, {})
    same(read(tmp_path / "f")[1], {"a": values, "b": torch.ones(3)})


def test_tensors_that_do_not_lie_together_or_share_memory(tmp_path):
    whole = torch.arange(24.0, requires_grad=True).reshape(4, 6)
    given = {"columns": whole[:, 1:3], "turned": whole.T, "again": whole, "row": whole[2]}
    write(tmp_path / "f", given, {})
    same(read(tmp_path / "f")[1], {name: value.detach() for name, value in given.items()})
    assert not any(value.requires_grad for value in read(tmp_path / "f")[1].values())


def test_special_numbers_keep_their_bits(tmp_path):
    values = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    write(tmp_path / "f", {"a": values}, {})
    assert read(tmp_path / "f")[1]["a"].numpy().tobytes() == values.numpy().tobytes()


def test_no_tensors(tmp_path):
    write(tmp_path / "f", {}, {})
    assert read(tmp_path / "f") == ({"format": FORMAT}, {})


def test_numbers_of_numpy_and_torch_in_a_header(tmp_path):
    write(tmp_path / "f", {}, {"a": np.int64(3), "b": np.float32(0.5), "c": np.bool_(True), "d": torch.tensor([1, 2])})
    assert read(tmp_path / "f")[0] == {"a": 3, "b": 0.5, "c": True, "d": [1, 2], "format": FORMAT}


@pytest.mark.parametrize(("value", "message"), [(object(), "a object came"), (float("nan"), "not JSON compliant")])
def test_a_header_that_cannot_be_written(tmp_path, value, message):
    with pytest.raises(StorageError, match=f"was not written, its header cannot be: .*{message}"):
        write(tmp_path / "f", {}, {"a": value})
    assert not list(tmp_path.iterdir())


def test_a_type_that_cannot_be_written(tmp_path):
    with pytest.raises(StorageError, match=r"a is torch.complex64; only torch.float64, .* can be stored"):
        write(tmp_path / "f", {"a": torch.zeros(2, dtype=torch.complex64)}, {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("tensor", "why"),
    [(torch.eye(2).to_sparse(), "sparse_coo"), (torch.eye(2, device="meta"), "on the meta device")],
    ids=["sparse", "meta"],
)
def test_a_tensor_that_is_not_dense_or_has_no_values(tmp_path, tensor, why):
    with pytest.raises(StorageError, match=f"was not written: a is {why}, and only dense tensors"):
        write(tmp_path / "f", {"a": tensor}, {})
    assert not list(tmp_path.iterdir())


def test_a_header_nested_too_deep(tmp_path):
    nested = []
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(StorageError, match=r"was not written, its header cannot be: .*recursion"):
        write(tmp_path / "f", {}, {"a": nested})
    assert not list(tmp_path.iterdir())


def test_the_size_of_a_file_that_is_gone_when_it_was_read(path, monkeypatch):
    size = path.stat().st_size

    def read_and_removed(*arguments):
        read = read_tensors(*arguments)
        path.unlink()
        return read

    monkeypatch.setattr(files, "read_tensors", read_and_removed)
    assert contents(path)["bytes"] == size


def test_the_warning_of_a_damaged_file_does_not_reach_a_terminal_unescaped(tmp_path):
    path = tmp_path / "run\n\x1b[2J"
    for count in range(2):
        write_generation(path, {}, {"count": count})
    path.write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="going on from the one before it") as told:
        read_newest(path)
    assert str(told[0].message).isprintable()


def test_it_is_a_safetensors_file_to_the_library(path):
    same(safetensors.torch.load_file(path), TENSORS)
    with safetensors.safe_open(path, framework="pt") as file:
        assert set(file.metadata()) == {"slu", "checksum"}


def test_what_the_library_rewrites_is_read(path):
    with safetensors.safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    safetensors.torch.save_file(safetensors.torch.load_file(path), path, metadata)
    same(read(path)[1], TENSORS)


def test_later_writes_to_the_file_do_not_shine_through(path):
    _, tensors = read(path)
    path.write_bytes(bytes(path.stat().st_size))
    same(tensors, TENSORS)


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.int32), (torch.float16, torch.bfloat16)])
def test_the_digest_sees_names_types_shapes_values_and_text(dtypes):
    zeros = {"a": torch.zeros(4, dtype=dtypes[0])}
    flipped = zeros["a"].clone()
    flipped.view(torch.uint8)[-1] ^= 0x80  # minus zero
    others = [
        {"b": zeros["a"]},
        {"a": torch.zeros(4, dtype=dtypes[1])},
        {"a": torch.zeros(2, 2, dtype=dtypes[0])},
        {"a": flipped},
        {**zeros, "b": torch.zeros(0)},
        {},
    ]
    digests = [digest(each) for each in [zeros, *others]] + [digest(zeros, "text")]
    assert len(set(digests)) == len(digests)
    assert digest(zeros) == digest({"a": torch.zeros(8, dtype=dtypes[0])[::2]})


def test_every_cut_is_refused(path):
    data = path.read_bytes()
    index_end = 8 + int.from_bytes(data[:8], "little")
    classes = {
        "nothing": [0],
        "within the length": range(1, 8),
        "at the length": [8],
        "within the index": range(9, index_end),
        "at the index": [index_end],
        "within the data": range(index_end + 1, len(data) - 1),
        "one byte short": [len(data) - 1],
    }
    assert sorted(length for lengths in classes.values() for length in lengths) == list(range(len(data)))
    for name, lengths in classes.items():
        for length in lengths:
            path.write_bytes(data[:length])
            with pytest.raises(DamagedFileError, match="It was cut, damaged or is something else; write it anew"):
                read(path)
                pytest.fail(f"{name}: {length} of {len(data)} bytes were read")
    path.write_bytes(data + b"\0")
    with pytest.raises(DamagedFileError, match="should have"):
        read(path)


@pytest.mark.parametrize("flips", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_flipped_bits_are_refused_or_harmless(path, flips):
    seed = 20
    print(f"{flips} flips, seed {seed}")
    data = path.read_bytes()
    draw = random.Random(seed)
    refused = 0
    for _ in range(flips):
        harmed = bytearray(data)
        place = draw.randrange(8 * len(data))
        harmed[place // 8] ^= 1 << place % 8
        path.write_bytes(harmed)
        try:
            header, tensors = read(path)
        except StorageError:
            refused += 1
            continue
        assert header == {**HEADER, "format": FORMAT}, place
        same(tensors, TENSORS)
    assert refused > 0.9 * flips


def test_an_edited_header(path):
    data = path.read_bytes()
    assert data.count(b"2.5") == 1
    path.write_bytes(data.replace(b"2.5", b"3.5"))
    with pytest.raises(DamagedFileError, match=r"checksum of .*net.slu does not fit its content: .* edited. Write it"):
        read(path)


def test_an_edited_checksum(path):
    index, rest = parts(path)
    for checksum in ("", "0" * 32, None):
        index["__metadata__"]["checksum"] = checksum
        if checksum is None:
            del index["__metadata__"]["checksum"]
        put_together(path, index, rest)
        with pytest.raises(DamagedFileError, match="checksum"):
            read(path)


def test_a_newer_format_is_called_newer_however_it_counts_its_checksum(path, monkeypatch):
    monkeypatch.setattr(files, "FORMAT", 7)
    write(path, TENSORS, HEADER)
    monkeypatch.undo()
    message = f"net.slu has the format 7, this version of slu reads {FORMAT}; install a newer slu"
    with pytest.raises(StorageError, match=message) as raised:
        read(path)
    assert not isinstance(raised.value, DamagedFileError)
    index, rest = parts(path)
    index["__metadata__"]["checksum"] = "another"
    put_together(path, index, rest)
    with pytest.raises(StorageError, match=message):
        read(path)


@pytest.mark.parametrize("version", [0, -1, "1", True, 1.0, None])
def test_a_format_that_never_was(path, monkeypatch, version):
    monkeypatch.setattr(files, "FORMAT", version)
    write(path, TENSORS, HEADER)
    monkeypatch.undo()
    with pytest.raises(DamagedFileError, match="which never was"):
        read(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", "null", "[" * 100_000], ids=lambda text: text[:5])
def test_a_header_that_is_none(path, text):
    put_together(path, {"__metadata__": {"slu": text, "checksum": digest({}, text)}}, b"")
    with pytest.raises(DamagedFileError, match=r"header of .*net.slu cannot be read"):
        read(path)


def test_a_header_with_half_a_character(path):
    put_together(path, b'{"__metadata__": {"slu": "{\\"format\\": 2, \\"a\\": \\"\\ud800\\"}", "checksum": ""}}', b"")
    with pytest.raises(DamagedFileError, match="checksum"):
        read(path)


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "index",
    [
        {"a": {**ENTRY, "data_offsets": [0, 4]}},
        {"a": {**ENTRY, "data_offsets": [4, 12]}},
        {"a": ENTRY, "b": ENTRY},
        {"a": {**ENTRY, "shape": [-2]}},
        {"a": {**ENTRY, "shape": [2.0]}},
        {"a": {**ENTRY, "shape": [True, 2]}},
        {"a": {**ENTRY, "shape": [10**12], "data_offsets": [0, 4 * 10**12]}},
        {"a": {**ENTRY, "shape": [10**30]}},
        {"a": {**ENTRY, "shape": [2] + [1] * 100}},
        {"a": {**ENTRY, "shape": [1 << 61] * 3 + [0], "data_offsets": [0, 0]}, "b": ENTRY},
        {"a": {**ENTRY, "shape": "2"}},
        {"a": {**ENTRY, "shape": None}},
        {"a": {**ENTRY, "dtype": "C64"}},
        {"a": {**ENTRY, "dtype": ["F32"]}},
        {"a": {"dtype": "F32"}},
        {"a": None},
        {"a": ENTRY, "b": {**ENTRY, "data_offsets": None}},
    ],
    ids=str,
)
def test_an_index_that_does_not_fit_the_file(path, index):
    text = json.dumps({"format": FORMAT})
    put_together(path, {**index, "__metadata__": {"slu": text, "checksum": digest({}, text)}}, bytes(8))
    with pytest.raises(DamagedFileError, match=r"net.slu is not a whole slu file"):
        read(path)


@pytest.mark.parametrize("index", [b"[]", b"3", b"null", b"{", b"\xff\xfe", b'{"__metadata__": 3}', b"[" * 100_000])
def test_an_index_that_is_none(path, index):
    put_together(path, index, b"")
    with pytest.raises(DamagedFileError, match="not a whole slu file"):
        read(path)
    put_together(path, {"__metadata__": {"slu": 3}}, b"")
    with pytest.raises(DamagedFileError, match="not a whole slu file"):
        read(path)


def test_another_programs_files(tmp_path):
    path = tmp_path / "model.safetensors"
    for metadata in (None, {"format": "pt"}):
        safetensors.torch.save_file({"weight": torch.zeros(2, dtype=torch.complex64)}, path, metadata)
        with pytest.raises(StorageError, match="is a safetensors file, but slu did not write it") as raised:
            read(path)
        assert not isinstance(raised.value, DamagedFileError)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    with pytest.raises(DamagedFileError, match="is something else"):
        read(path)


def test_paths_that_cannot_be_read(tmp_path, monkeypatch):
    with pytest.raises(StorageError, match=r"there is no file .*net.slu"):
        read(tmp_path / "net.slu")
    with pytest.raises(StorageError, match="is a folder, not a slu file"):
        read(tmp_path)
    (tmp_path / "net.slu").touch()

    def denied(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(StorageError, match="cannot be read: Permission denied; ask its owner") as raised:
        read(str(tmp_path / "net.slu"))
    assert not isinstance(raised.value, DamagedFileError)


LIMITED = """
import resource, sys
from pathlib import Path
import torch
from slu.errors import StorageError
from slu.artifacts import read

pages = int(Path("/proc/self/statm").read_text().split()[0])
room = pages * resource.getpagesize() + (64 << 20)
resource.setrlimit(resource.RLIMIT_AS, (room, room))
try:  # the control: the limit holds
    torch.empty(1 << 28)
    print("no limit")
except RuntimeError:
    pass
for path in sys.argv[1:]:
    try:
        read(path)
        print("read", path)
    except StorageError as reason:
        assert "not a whole slu file" in str(reason), reason
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the size of the process from /proc")
def test_no_number_in_a_file_makes_it_take_more_memory_than_the_file_has(tmp_path):
    text = json.dumps({"format": FORMAT})
    metadata = {"slu": text, "checksum": ""}
    paths = [tmp_path / str(number) for number in range(6)]
    huge = {"dtype": "F32", "shape": [1 << 30], "data_offsets": [0, 1 << 32]}
    put_together(paths[0], {"__metadata__": metadata, "a": huge}, bytes(64))
    put_together(paths[1], {"__metadata__": metadata, "a": {**huge, "data_offsets": [0, 64]}}, bytes(64))
    many = {f"a{number}": {"dtype": "U8", "shape": [1 << 26], "data_offsets": [0, 1 << 26]} for number in range(40)}
    put_together(paths[2], {"__metadata__": metadata, **many}, bytes(64))
    for path, length in zip(paths[3:], (1 << 33, (1 << 63) - 1, (1 << 64) - 1), strict=True):
        path.write_bytes(length.to_bytes(8, "little") + b"{}" + bytes(64))
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *map(str, paths)], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
