"""Specs and what single kinds promise beyond the contract."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from layouts import layout_of
from slu.errors import SettingError
from slu.sketches import DEFAULT_SKETCH, SKETCHES, SketchSpec, build


def test_unknown_kind_names_the_valid_ones() -> None:
    with pytest.raises(SettingError, match=r"unknown sketch 'blok'; valid are .*'block_srft'"):
        build(SketchSpec("blok", 100, 10))


def test_unknown_option_names_the_valid_ones() -> None:
    with pytest.raises(SettingError, match=r"no option 'blok'; its options: 'block'"):
        build(SketchSpec("block_srft", 100, 10, options={"blok": 3}))


@pytest.mark.parametrize("options", [{"block": 0}, {"block": 2.5}])
def test_options_are_whole_numbers(options: dict[str, int]) -> None:
    with pytest.raises(SettingError, match="whole number"):
        SketchSpec("block_srft", 100, 10, options=options)


@pytest.mark.parametrize("p, s", [(0, 1), (10, 0)])
def test_sizes_are_positive(p: int, s: int) -> None:
    with pytest.raises(SettingError, match=">= 1"):
        SketchSpec("hashed", p, s)


def test_too_many_nonzeros() -> None:
    with pytest.raises(SettingError, match="do not fit"):
        build(SketchSpec("hashed", 100, 3, options={"nonzeros": 4}))


@pytest.mark.parametrize("kind", sorted(set(SKETCHES) - {"identity"}))
def test_a_sketch_does_not_lengthen(kind: str) -> None:
    with pytest.raises(SettingError, match='sketch="identity"'):
        build(SketchSpec(kind, 100, 101, layout=layout_of(100)))


@pytest.mark.parametrize("kind", sorted(set(SKETCHES) - {"identity"}))
def test_rank_must_leave_room(kind: str) -> None:
    with pytest.raises(SettingError, match="smaller rank"):
        build(SketchSpec(kind, 100, 20, layout=layout_of(100))).correction(20)


def test_identity_is_exact() -> None:
    sketch = build(SketchSpec("identity", 50, 50))
    v = torch.arange(50.0)
    assert torch.equal(sketch @ v, v) and sketch.state_bytes == 0
    assert sketch.correction(7) == 1 and sketch.correction(50) == 1
    with pytest.raises(SettingError, match="smaller rank"):
        sketch.correction(51)
    with pytest.raises(SettingError, match="keeps all 50"):
        build(SketchSpec("identity", 50, 40))


@pytest.mark.parametrize("kind", sorted({DEFAULT_SKETCH, "block_srft", "hashed"}))
def test_the_filled_spec_survives_json_and_builds_the_same(kind: str) -> None:
    sketch = build(SketchSpec(kind, 3000, 40, seed=5, layout=layout_of(3000)))
    again = build(SketchSpec(**json.loads(json.dumps(dataclasses.asdict(sketch.spec)))))
    assert again.spec == sketch.spec and again.spec.options.keys() == SKETCHES[kind].DEFAULTS.keys()
    v = torch.ones(3000)
    assert torch.equal(sketch @ v, again @ v)


@pytest.mark.parametrize("p, s, block", [(100_000, 1000, 16_384), (5001, 300, 512), (700, 650, 64)])
def test_state_of_block_srft(p: int, s: int, block: int) -> None:
    sketch = build(SketchSpec("block_srft", p, s, options={"block": block}))
    blocks = -(-p // max(block, s))
    assert sketch.state_bytes <= p / 8 + 16 * s * blocks + 1


def test_state_of_shift_and_hashed() -> None:
    p, s = 100_000, 1000
    assert build(SketchSpec("shift", p, s)).state_bytes == p // 8 + 8 * p // s
    assert build(SketchSpec("hashed", p, s, options={"nonzeros": 4})).state_bytes == 4 * (4 * p + p // 8)


def test_hashed_nonzeros() -> None:
    matrix = build(SketchSpec("hashed", 200, 30, options={"nonzeros": 4})) @ torch.eye(200)
    assert torch.equal((matrix != 0).sum(0), torch.full((200,), 4))
    torch.testing.assert_close(matrix.abs().max(0).values, torch.full((200,), 0.5))


@pytest.mark.parametrize("kind", ["srft", "block_srft", "shift"])
def test_at_full_size_an_isometry(kind: str) -> None:
    """s = p, a fast length: nothing is dropped, so lengths are kept, and the correction is 1."""
    sketch = build(SketchSpec(kind, 128, 128))
    matrix = sketch @ torch.eye(128, dtype=torch.float64)
    torch.testing.assert_close(matrix @ matrix.mT, torch.eye(128, dtype=torch.float64))
    assert sketch.correction(30) == pytest.approx(1)
