"""Keys of what examples hold: other values have others, equal ones the same, and what has none is refused by name."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from slu.data.fingerprint import example_keys
from slu.data.structure import Examples
from slu.errors import DataError


def key_of(value: Any) -> int:
    """Of an example that holds it, nested."""
    return int(example_keys(Examples([{"text": "a", "parts": [value]}]), 1))


def of_palette(*colours: tuple[int, ...], mode="RGB", **info: object):
    image = Image.new("P", (2, 2))
    image.putdata([0, 1, 1, 0])
    image.putpalette([number for colour in colours for number in colour], mode)
    image.info |= info
    return image


RED, GREEN, HALF = (255, 0, 0), (0, 255, 0), (0, 255, 0, 127)
GREY = Image.new("L", (2, 2), 1)
OBJECTS = np.empty(2, dtype=object)
OBJECTS[:] = [{"a": 1}, np.ones(2)]
OTHERS = OBJECTS.copy()
OTHERS[1] = np.zeros(2)
UNLIKE = {
    "palettes": [of_palette(RED, GREEN), of_palette(GREEN, RED), of_palette(RED, GREEN, transparency=0)],
    "palettes with alpha": [of_palette((*RED, 1), HALF, mode="RGBA"), of_palette((*RED, 2), HALF, mode="RGBA")],
    "modes of one byte": [Image.new(mode, (2, 2), 1) for mode in ("1", "L", "P")],
    "modes of three": [Image.new(mode, (2, 2), (1, 2, 3)) for mode in ("RGB", "HSV", "YCbCr")],
    "modes of four": [Image.new(mode, (2, 2), (1, 2, 3, 4)) for mode in ("RGBA", "CMYK", "RGBX")],
    "pixels of 16 bits": [Image.new("I;16", (2, 2), each) for each in (1, 256)],
    "dates": [*np.array(["2020-01-01", "2020-01-02", "NaT"], "M8[D]"), np.datetime64("2020-01-01", "ns")],
    "durations": [np.timedelta64(1, unit) for unit in ("Y", "M", "D", "us", "ns")],
    "complex": [torch.tensor([1j]), torch.tensor([[0.0, 1.0]]), torch.tensor([-1j]), 1j, np.complex64(1j)],
    "objects": [OBJECTS, OTHERS, OBJECTS.tolist()],
    "fields": [np.array([(1, 2.0)], dtype=[(one, "i4"), (two, "f8")]) for one, two in (("a", "b"), ("a", "c"))],
    "numbers": [0, 0.0, -0.0, False, "0", b"0", None, float("nan"), np.float16(0), np.array([0.0]), np.uint8(0)],
    "texts": ["\ud800", "\udc00", "\ud800".encode("utf-8", "surrogatepass"), "", "\0", b"\0"],
}


@pytest.mark.parametrize("kind", UNLIKE)
def test_values_that_differ_have_other_keys_and_copies_of_them_the_same(kind):
    """Inside of examples; copies, as a worker of a loader sends them, and read-only or strided arrays."""
    values = UNLIKE[kind]
    keys = [key_of(each) for each in values]
    assert len(set(keys)) == len(values)
    for value, key in zip(values, keys, strict=True):
        copied = value.copy() if isinstance(value, Image.Image) else pickle.loads(pickle.dumps(value))
        assert key_of(copied) == key
        if isinstance(value, np.ndarray):
            strided = np.repeat(value, 2, 0)[::2]
            strided.flags.writeable = False
            assert key_of(strided) == key


@pytest.mark.parametrize("info", [{}, {"transparency": 1}, {"transparency": b"\x05\x80"}])
def test_an_image_that_is_opened_anew_has_the_same_key(info):
    file = io.BytesIO()
    of_palette(RED, GREEN, **info).save(file, "PNG")
    first, again = Image.open(file), Image.open(file)
    again.load()
    assert key_of(first) == key_of(again) == key_of(first.copy()) == key_of(pickle.loads(pickle.dumps(again)))
    assert key_of(first) != key_of(again.convert("RGBA"))


def test_images_without_a_palette_have_the_key_of_their_pixels_and_of_what_is_transparent():
    transparent = GREY.copy()
    transparent.info["transparency"] = 1
    assert key_of(GREY) == key_of(np.asarray(GREY)) != key_of(transparent)


MASKED = np.ma.array([1.0, 2.0], mask=[False, True])
WIDE = np.array([1.0, 2.0], np.longdouble)
ITSELF: list[Any] = []
ITSELF.append(ITSELF)
UNKNOWN = {
    "long doubles": (WIDE, r"holds numbers of float\d+, a type that neither Python nor torch has.*astype\('float64'\)"),
    "one": (WIDE[0], r"holds numbers of float\d+"),
    "complex": (WIDE.astype(np.clongdouble), r"holds numbers of complex\d+.*astype\('complex128'\)"),
    "in objects": (WIDE.astype(object), r"holds numbers of float\d+"),
    "in fields": (np.zeros(1, dtype=[("a", np.longdouble)]), r"holds numbers of float\d+"),
    "masked": (MASKED, r"holds a masked array.*array.filled\(0\)"),
    "masked number": (np.ma.masked, r"holds a masked array"),
    "masked fields": (np.ma.array([(1.0,)], mask=[(True,)], dtype=[("a", "f8")]), r"holds a masked array"),
    "two masked fields": (
        np.ma.array([(1, 2.0)], mask=[(False, True)], dtype=[("a", int), ("b", float)]),
        r"holds a masked array",
    ),
    "one of the two": (
        np.ma.array([(1, 2.0)], mask=[(False, True)], dtype=[("a", int), ("b", float)])[0],
        r"holds a masked array",
    ),
    "masked, that converts": (type("Converts", (), {"__array__": lambda *_, **__: MASKED})(), r"holds a masked array"),
    "itself": (ITSELF, r"a dict, holds itself or lists in lists too deep to be compared"),
    "a set": ({1, 2}, r"holds a set"),
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_what_has_no_key_of_its_own_is_refused_by_name(kind):
    value, words = UNKNOWN[kind]
    with pytest.raises(DataError, match=words):
        key_of(value)


def test_a_masked_array_of_which_nothing_is_masked_is_an_array():
    assert (
        key_of(np.ma.array([1.0, 2.0])) == key_of(np.array([1.0, 2.0])) == key_of(np.ma.array([1.0, 2.0], mask=False))
    )
