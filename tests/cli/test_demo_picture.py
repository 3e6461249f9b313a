"""The picture is written, whatever the scores look like."""

import struct

import pytest
import torch

from slu.cli.demo_picture import draw
from slu.cli.demo_steps import Judged, PointSet


def size(path):
    """Width and height from a PNG file's header."""
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", head[16:24])


@pytest.mark.parametrize("spread", [1.0, 0.0])
def test_a_picture_is_written(tmp_path, spread):
    draws = torch.Generator().manual_seed(0)
    means = {"test": 0, "unseen": 1, "turned": 1}
    sets = {group: PointSet(torch.rand(50, 1, 8, 8, generator=draws), torch.arange(50) % 10) for group in means}
    scores = {
        name: {group: mean + spread * torch.randn(50, generator=draws) for group, mean in means.items()}
        for name in ("SLU combined", "max logit")
    }
    draw(Judged(sets, scores, detections={}), tmp_path / "x.png")
    width, height = size(tmp_path / "x.png")
    assert width > 1000 and height > 800
