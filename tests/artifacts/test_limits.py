"""Limits of the index and the header of a file: refused before they take memory, and nothing that we write is."""

import json

import pytest
import torch

from fresh_process import measured, needs_resettable_peak
from slu.artifacts import FORMAT, digest, layout, read, write
from slu.errors import DamagedFileError, OutOfMemoryError, StorageError

TEXT = json.dumps({"format": FORMAT})
METADATA = {"slu": TEXT, "checksum": digest({}, TEXT)}
ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
NUMBERS = torch.tensor([1.0, 2.0])


def put(path, index: str, rest: bytes = b"") -> None:
    path.write_bytes(len(index.encode()).to_bytes(8, "little") + index.encode() + rest)


def whole(**entry) -> str:
    """An index of the tensor a, and the checksum of its two numbers."""
    metadata = {"slu": TEXT, "checksum": digest({"a": NUMBERS}, TEXT)}
    return json.dumps({"__metadata__": metadata, "a": ENTRY | entry})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "net.slu"


def test_control_the_index_is_read_as_it_stands(path):
    put(path, whole(), NUMBERS.numpy().tobytes())
    assert torch.equal(read(path)[1]["a"], NUMBERS)


@pytest.mark.parametrize(
    ("index", "why"),
    [
        (whole().replace('"dtype"', '"dtype": "F32", "dtype"'), "4 keys, of which 1 stood there before"),
        (whole().replace('"a"', '"a": 3, "a"'), "stood there before"),
        (whole().replace('"__metadata__"', '"__metadata__": {}, "__metadata__"'), "stood there before"),
        (whole(data_offsets=[0.0, 8.0]), "not where its shape puts them"),
        (whole(data_offsets=[False, 8]), "not where its shape puts them"),
        (whole(data_offsets=[0, 8.0]), "not where its shape puts them"),
        (whole(more=1).replace("1}", "NaN}"), "NaN is not a finite number"),
        (whole(more=1).replace("1}", "1e999}"), "1e999 is not a finite number"),
        (whole() + 8 * " ", "fewer than 8 spaces after it"),
        (whole() + "\n", "not one JSON object"),
        (" " + whole(), "not one JSON object"),
        ("\ufeff" + whole(), "not one JSON object"),
    ],
    ids=["field twice", "tensor twice", "metadata twice", "floats", "false", "a float", "NaN", "inf", "padding",
         "line", "space before", "mark"],
)  # fmt: skip
def test_an_index_that_json_takes_and_we_do_not(path, index, why):
    put(path, index, NUMBERS.numpy().tobytes())
    with pytest.raises(DamagedFileError, match=why):
        read(path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f'{{"format": {FORMAT}, "format": {FORMAT}}}', "stood there before"),
        (f'{{"format": {FORMAT}, "state": {{"trace": NaN}}}}', "NaN is not a finite"),
        (f'{{"format": {FORMAT}, "state": [-1e400]}}', "-1e400 is not a finite"),
        (f'{{"format": {FORMAT}, "state": {"[" * 100_000}{"]" * 100_000}}}', "nested too deep"),
    ],
    ids=["key twice", "NaN", "inf", "deep"],
)
def test_a_header_that_json_takes_and_we_do_not(path, text, why):
    put(path, json.dumps({"__metadata__": {"slu": text, "checksum": digest({}, text)}}))
    with pytest.raises(DamagedFileError, match=rf"header of .*net.slu cannot be read \(.*{why}.*edited. Write it anew"):
        read(path)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"a": "x" * layout.LONGEST}, "an index of 16,777,.* came, 16,777,216 are the most"),
        ({"a": [0] * layout.MOST_VALUES}, "values came, 1,048,576 are the most"),
    ],
    ids=["long", "many values"],
)
def test_nothing_is_written_that_could_not_be_read(path, header, why):
    with pytest.raises(StorageError, match=f"{why}. The file that was there is unchanged"):
        write(path, {}, header)
    assert not list(path.parent.iterdir())


def test_the_largest_network_that_is_provided_for_is_far_below_the_limits(path):
    """A fingerprint of 23,000 tensors, with names as long as those of a mixture of experts, and their choice."""
    names = [f"model.layers.{place // 384}.mlp.experts.{place % 384}.down_proj.weight" for place in range(23_000)]
    header = {"fingerprint": dict.fromkeys(names, f"torch.float32 (4096, 14336) {'0' * 32}"), "params": names}
    write(path, {}, header)
    assert read(path)[0]["params"] == names
    assert path.stat().st_size < layout.LONGEST / 3


@needs_resettable_peak
def test_what_a_hostile_file_takes_in_memory(tmp_path):
    """In a fresh process. An index takes `LONGEST` twice and 200 bytes per value at most; tensors, their size once."""
    paths = [tmp_path / name for name in ("bomb", "within", "keys", "escaped", "hole", "padding", "tensors")]
    bomb, within, keys, escaped, hole, padding, tensors = paths
    put(bomb, '{"a": [' + "[]," * 13_000_000 + "[]]}")
    put(within, '{"a": [' + "[]," * (layout.LONGEST // 3 - 100) + "[]]}")
    put(keys, "{" + ",".join(f'"{key}":1' for key in range(1_000_000)) + ',"1":2}')
    # Commas that are none before the text of the header is read.
    put(escaped, '{"__metadata__": {"slu": "[' + "[]\\u002c" * 2_000_000 + '[]]"}}')
    size = 256 << 20
    for path in (hole, padding):
        with path.open("wb") as file:
            file.truncate(size)
            file.write((size - 8).to_bytes(8, "little") + b'{"__metadata__": {}}')
    with padding.open("r+b") as file:
        file.write((100_000_000).to_bytes(8, "little"))
    entry = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    put(tensors, json.dumps({"__metadata__": METADATA, "a": entry}))
    with tensors.open("r+b") as file:
        file.truncate(tensors.stat().st_size + size)
    told = dict(zip([path.name for path in paths], measured("measure_files.py", *paths), strict=True))
    print({name: (f"{each['took'] / 1e6:.0f} MB", each["ended"].partition(":")[0]) for name, each in told.items()})
    assert all(each["ended"].startswith("DamagedFileError") for each in told.values()), told
    small = 4 << 20
    assert told["bomb"]["took"] < small and "are the most" in told["bomb"]["ended"]
    assert told["hole"]["took"] < small and told["padding"]["took"] < small
    for name in ("within", "escaped"):
        assert told[name]["took"] < 2 * layout.LONGEST + 2 * small and "values came" in told[name]["ended"]
    assert told["keys"]["took"] < 2 * layout.LONGEST + 200 * layout.MOST_VALUES
    assert 0.99 * size < told["tensors"]["took"] < size + small and "checksum" in told["tensors"]["ended"]


def test_memory_that_is_not_there_is_not_the_files_fault(path, monkeypatch):
    write(path, {"a": NUMBERS}, {})

    def none(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(torch, "empty", none)
    with pytest.raises(OutOfMemoryError, match=r"net.slu cannot be read: a takes 8 bytes of memory. Free that much"):
        read(path)
