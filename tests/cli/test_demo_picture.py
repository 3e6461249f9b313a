"""The picture is written, whatever the scores look like, and draws on no global state."""

import struct

import numpy as np
import pytest

from slu.cli.demo_picture import Panel, Strip, Thumbnail, draw_scores


def size(path):
    """Width and height from a PNG file's header."""
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", head[16:24])


@pytest.mark.parametrize("spread", [1.0, 0.0])
def test_a_picture_is_written(tmp_path, spread):
    draws = np.random.default_rng(0)
    panels = [
        Panel(f"score {i}", "larger: less sure", [place + spread * draws.normal(size=50) for place in (0, 1, 1)])
        for i in range(2)
    ]
    strip = Strip("surest", [Thumbnail(draws.random((8, 8)), f"{group}", group) for group in (0, 1, 2)])
    draw_scores(tmp_path / "x.png", title="a title", sets=["a", "b", "c"], panels=panels, strips=[strip, strip])
    width, height = size(tmp_path / "x.png")
    assert width > 1000 and height > 800
