"""Sketches keep lengths and subspaces, with bounds from theory and controls that must fail."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from layouts import layout_of
from slu.sketches import SKETCHES, Sketch, SketchSpec, build

KINDS = sorted(set(SKETCHES) - {"identity"})
EVEN = ["block_srft", "kronecker", "srft", "gaussian", "rademacher"]
"""Kinds that hold on vectors with a handful of nonzeros."""
SEEDS = range(60)
P, S = 1536, 96


def sketch_rows(sketch: Sketch, rows: Tensor) -> Tensor:
    out = rows.new_zeros(len(rows), sketch.shape[0])
    sketch.accumulate(0, rows, out)
    return out


def options(kind: str) -> dict[str, int]:
    return {"block": 256} if kind == "block_srft" else {}


def spread_rows(count: int, p: int, seed: int) -> Tensor:
    rows = torch.randn(count, p, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return rows / rows.norm(dim=1, keepdim=True)


def squared_lengths(kind: str, rows: Tensor) -> Tensor:
    """‖S v‖² of unit vectors v, (seeds, rows)."""
    p = rows.shape[1]
    return torch.stack(
        [
            sketch_rows(build(SketchSpec(kind, p, S, seed, options(kind), layout_of(p))), rows).square().sum(1)
            for seed in SEEDS
        ]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_are_unbiased_with_the_variance_of_a_random_projection(kind: str) -> None:
    """Var ‖Sv‖² <= 2/s for spread-out v: 1.25 leaves room for 60 draws of 20 correlated vectors."""
    lengths = squared_lengths(kind, spread_rows(20, P, 0))
    sd = (2 / S) ** 0.5
    assert (lengths - 1).square().mean().sqrt() < 1.25 * sd
    # The mean of 60 independent draws: four standard errors, vectors of one draw counted once.
    assert abs(lengths.mean() - 1) < 4 * sd / len(SEEDS) ** 0.5
    # Control: a scale that is wrong by 30 % is seen.
    assert abs(1.3 * lengths.mean() - 1) > 4 * sd / len(SEEDS) ** 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_singular_values_of_a_sketched_subspace(kind: str) -> None:
    """They lie in 1 ± √(r/s) asymptotically (Marchenko-Pastur); 0.12 more at this size."""
    r = 12
    basis = torch.linalg.qr(spread_rows(r, P, 1).mT).Q.mT
    for seed in range(8):
        values = torch.linalg.svdvals(
            sketch_rows(build(SketchSpec(kind, P, S, seed, options(kind), layout_of(P))), basis)
        )
        assert values.min() > 1 - (r / S) ** 0.5 - 0.12
        assert values.max() < 1 + (r / S) ** 0.5 + 0.12


def one_hot(places: Tensor) -> Tensor:
    return torch.zeros(len(places), P, dtype=torch.float64).scatter_(1, places[:, None], 1.0)


def worst(kind: str, basis: Tensor) -> float:
    sketches = [build(SketchSpec(kind, P, S, seed, options(kind), layout_of(P))) for seed in range(12)]
    return min(float(torch.linalg.svdvals(sketch_rows(sketch, basis)).min()) for sketch in sketches)


def test_vectors_with_one_nonzero() -> None:
    """Transforms and dense matrices keep them apart; the control, a hash, drops some of 24 into one."""
    basis = one_hot(torch.randperm(P, generator=torch.Generator().manual_seed(2))[:24])
    assert min(worst(kind, basis) for kind in EVEN) > 0.25
    assert worst("hashed", basis) < 1e-6


def same_place_in_every_block(blocks: int, block: int) -> Tensor:
    return one_hot(torch.arange(blocks) * block + 17)


def test_block_srft_keeps_vectors_at_the_same_place_in_several_blocks() -> None:
    assert worst("block_srft", same_place_in_every_block(6, 256)) > 0.4


def test_control_rows_shared_by_all_blocks_fold_them() -> None:
    """One block's sketch used for every block: six equal columns up to sign, so the bound fails."""
    one = build(SketchSpec("block_srft", 256, S, 0)) @ torch.eye(256, dtype=torch.float64)
    shared = one.repeat(1, 6)
    values = torch.linalg.svdvals(shared @ same_place_in_every_block(6, 256).mT)
    assert values.min() < 1e-6


def residual_share(kind: str, p: int, s: int, r: int) -> tuple[float, float]:
    """The corrected residual of vectors outside the subspace, as a share of the truth; and plain s/(s - r)."""
    means = []
    factor = 1.0
    for seed in range(10):
        sketch = build(SketchSpec(kind, p, p if kind == "identity" else s, seed, options(kind), layout_of(p)))
        rows = spread_rows(r + 40, p, 100 + seed)
        basis = torch.linalg.qr(rows[:r].mT).Q
        outside = rows[r:] - (rows[r:] @ basis) @ basis.mT
        left = torch.linalg.qr(sketch_rows(sketch, basis.mT).mT).Q
        y = sketch_rows(sketch, outside)
        rest = y.square().sum(1) - (y @ left).square().sum(1)
        means.append(float((rest / outside.square().sum(1)).mean()))
        factor = sketch.correction(r)
    size = p if kind == "identity" else s
    mean = sum(means) / len(means)
    return mean * factor, mean * size / (size - r)


@pytest.mark.parametrize("kind", sorted(SKETCHES))
def test_correction_of_the_residual_at_small_p(kind: str) -> None:
    """p = 3 s, r = 0.4 s: the factor (p - r)/p is 0.87, and the bound 2.5 % tells it from 1."""
    corrected, plain = residual_share(kind, 900, 300, 120)
    assert corrected == pytest.approx(1, abs=0.025)
    if kind not in ("gaussian", "rademacher"):  # control: without (p - r)/p the bound fails
        assert plain != pytest.approx(1, abs=0.025)
