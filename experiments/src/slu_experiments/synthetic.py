"""The paper's synthetic ablation: how far a sketched score is from the truth, by rank and sketch size.

Letters: M = Σ λ_i v_i v_iᵀ (p, p) of rank R, v_i orthonormal; k steps of Lanczos; s rows of the sketch; g a
test gradient of length one with a part of length 1/√2 in span(v), so that its true score is 1/2.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from slu.errors import SettingError
from slu.krylov import Tridiagonal, low_memory, start_vector
from slu.progress import Bar
from slu.seeds import stream
from slu.sketches import Sketch, SketchSpec, build, checked
from slu.subspace import ESTIMATORS, SketchedVectors
from slu_experiments.results import peak_memory
from slu_experiments.running import FORMAT, Place, Work

SHOWN = ("difference", "ratio")
"""The paper's estimator, and ours."""

_TRUE = 0.5
_QUERIES = 30


@final
class LowRank:
    """M by its eigenvectors (R, p) and eigenvalues (R,), never formed.

    Cost: R p numbers.
    """

    def __init__(self, vectors: Tensor, values: Tensor) -> None:
        self._vectors, self._values = vectors, values
        self.shape = (vectors.shape[1], vectors.shape[1])
        self.dtype, self.device = vectors.dtype, vectors.device

    def __matmul__(self, vector: Tensor, /) -> Tensor:
        return self._vectors.T @ (self._values * (self._vectors @ vector))


@dataclass(frozen=True)
class Synthetic:
    """Sketched Lanczos on a matrix with known eigenvectors.

    Attributes:
        parameters: p.
        true_rank: R.
        ranks: Every k.
        sizes: Every s; the exact projection, an infinite sketch, comes on top.
        decay: λ falls geometrically from 1 to this.
        seed: Of the matrix, the start, the sketches and the test gradients.
        sketch: A kind of sketch.

    Cost: about (R + 2 k + 100) p numbers, most of them for the infinite sketch; k products.
    """

    parameters: int = 1_000_000
    true_rank: int = 100
    ranks: tuple[int, ...] = (1, 2, 5, 10, 20, 50, 100)
    sizes: tuple[int, ...] = (200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
    decay: float = 1e-3
    seed: int = 1
    sketch: str = "block_srft"

    def config(self) -> dict[str, Any]:
        """All that decides the numbers."""
        fields = {name: list(each) if isinstance(each, tuple) else each for name, each in vars(self).items()}
        return {"kind": "synthetic", "format": FORMAT, **fields, "queries": _QUERIES}

    def work(self, config: Mapping[str, Any], place: Place) -> Work:
        """The two errors: "rank" (ranks,), of the score without a sketch against the true one; and for each
        estimator (ranks, sizes + 1), of the sketched score against that; the last column has no sketch."""
        del config
        if not 1 <= max(self.ranks) <= self.true_rank < self.parameters or min(self.sizes) < 2:
            raise SettingError(
                f"ranks must lie between 1 and the true rank, that below the parameters, and sizes be 2 or more; got "
                f"{self.ranks}, {self.true_rank}, {self.parameters} and {self.sizes}"
            )
        begin = time.perf_counter()
        vectors = _orthonormal(self.true_rank, self.parameters, self.seed)
        values = torch.logspace(0, float(np.log10(self.decay)), self.true_rank)
        queries = unit_gradients(vectors, _QUERIES, self.seed)
        sketches = [self._sketch(column) for column in range(len(self.sizes) + 1)]
        runs = self._sketched(LowRank(vectors, values), sketches, place)
        errors = {name: np.full((len(self.ranks), len(sketches)), np.nan) for name in SHOWN}
        unsketched = [_scores(runs[-1], rank, queries)["difference"] for rank in self.ranks]
        for column, run in enumerate(runs):
            for row, rank in enumerate(self.ranks):
                for name, scores in _scores(run, rank, queries).items():
                    errors[name][row, column] = float((scores - unsketched[row]).abs().mean())
        errors["rank"] = np.array([float((scores - _TRUE).abs().mean()) for scores in unsketched])
        metrics = {
            "seconds": {"fit": time.perf_counter() - begin},
            "memory": {"parameters": self.parameters, "process_peak": peak_memory()},
        }
        return metrics, errors

    def _sketch(self, column: int) -> Sketch:
        exact = column == len(self.sizes)
        size, kind = (self.parameters, "identity") if exact else (self.sizes[column], self.sketch)
        spec = SketchSpec(kind=kind, parameters=self.parameters, size=size, seed=self.seed)
        return build(checked(spec), device=torch.device("cpu"), dtype=torch.float32)

    def _sketched(self, matrix: LowRank, sketches: Sequence[Sketch], place: Place) -> list[SketchedVectors]:
        """One run of Lanczos, seen through every sketch."""
        steps = max(self.ranks)
        runs = [SketchedVectors(steps, sketch) for sketch in sketches]
        with Bar("lanczos", steps, place.progress) as bar:
            for step in low_memory(matrix, start_vector(matrix, self.seed), steps):
                for vectors in runs:
                    vectors.add(step)
                    count = len(vectors.tridiagonal)
                    if step.following is not None and count == steps:
                        vectors.sketch.accumulate(0, step.following, vectors.rows[count])
                bar.advance()
        return runs


def _scores(whole: SketchedVectors, rank: int, queries: Tensor) -> dict[str, Tensor]:
    """By estimator, of the first steps of a run; NaN where the sketch is too short for them."""
    exact = queries.square().sum(1)
    sketched = torch.stack([whole.sketch @ query for query in queries])
    if rank >= whole.sketch.shape[0]:
        return {name: torch.full_like(exact, float("nan")) for name in SHOWN}
    subspace = _first_steps(whole, min(rank, len(whole.tridiagonal))).subspace()
    energies = subspace.energies(exact, sketched)
    return {name: ESTIMATORS[name](energies, subspace.correction) for name in SHOWN}


def unit_gradients(vectors: Tensor, count: int, seed: int) -> Tensor:
    """(count, p) unit vectors with parts of length 1/√2 in the span of the rows."""
    generator = stream(seed, "test gradients")
    inside = torch.randn(count, len(vectors), generator=generator)
    outside = torch.randn(count, vectors.shape[1], generator=generator)
    outside -= (outside @ vectors.T) @ vectors
    inside, outside = inside / inside.norm(dim=1, keepdim=True), outside / outside.norm(dim=1, keepdim=True)
    return (inside @ vectors + outside).mul_(0.5**0.5)


def _first_steps(whole: SketchedVectors, steps: int) -> SketchedVectors:
    """What the first steps of a run had sketched; the vector after them is there as the next row."""
    first = SketchedVectors(steps, whole.sketch)
    first.rows[:] = whole.rows[: steps + 1]
    kept = whole.tridiagonal
    first.tridiagonal = Tridiagonal(kept.alphas[:steps], kept.betas[:steps], kept.removed[:steps])
    return first


def _orthonormal(rows: int, length: int, seed: int) -> Tensor:
    drawn = torch.randn(rows, length, generator=stream(seed, "eigenvectors"))
    # Random rows this long are nearly orthogonal: two rounds of Cholesky's way are exact to rounding.
    for _ in range(2):
        factor = torch.linalg.cholesky((drawn @ drawn.T).double())
        drawn = torch.linalg.solve_triangular(factor.to(drawn.dtype), drawn, upper=False)
    return drawn
