"""Runs that look at the curvature itself: how its eigenvalues decay, and what low-memory Lanczos makes of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from slu.curvature import Curvature
from slu.gradients import Network
from slu.krylov import Step, Tridiagonal, high_memory, low_memory, start_vector
from slu.likelihoods import resolve
from slu.parameters import select
from slu.progress import Bar
from slu_experiments.points import FIT_BATCH, Batches, fit_source
from slu_experiments.results import peak_memory
from slu_experiments.running import FORMAT, Place, Work, networks, recipe_of
from slu_experiments.settings import find_setting

LEADING = 10
"""Of how many principal components the two projectors of `Ghosts` are compared, as in the paper."""


@dataclass(frozen=True)
class Spectrum:
    """High-memory Lanczos on a network's curvature, from one random start.

    Attributes:
        setting: Name of it.
        seed: Of the network.
        start: Seed of the start vector.
        steps: k; what k' < k steps would have found follows from the same numbers.
        points: Of the curvature; None for the setting's.
        training: What is asked of the training otherwise.

    Cost: k passes over the points; (k + 3) p numbers.
    """

    setting: str
    seed: int = 1
    start: int = 1
    steps: int = 100
    points: int | None = None
    training: Mapping[str, int] = field(default_factory=dict)

    def config(self) -> dict[str, Any]:
        """All that decides the numbers."""
        return {"kind": "spectrum", "start": self.start, **_shared(self)}

    def work(self, config: Mapping[str, Any], place: Place) -> Work:
        """T, as its diagonal and what stands beside it."""
        curvature, metrics = _curvature(config, place)
        begin = time.perf_counter()
        with Bar("lanczos", self.steps, place.progress) as bar:
            steps = high_memory(curvature, start_vector(curvature, self.start), self.steps)
            tridiagonal = Tridiagonal.of(_watched(steps, bar))
        metrics["seconds"] = {"fit": time.perf_counter() - begin}
        metrics["memory"]["process_peak"] = peak_memory()
        return metrics, {"alphas": np.array(tridiagonal.alphas), "betas": np.array(tridiagonal.betas)}


@dataclass(frozen=True)
class Ghosts:
    """High- and low-memory Lanczos from one start, and how their Ritz vectors overlap.

    Attributes:
        setting, seed, start, steps, points, training: As of `Spectrum`.

    Cost: 2 k passes over the points; 2 k p numbers.
    """

    setting: str = "mnist-lenet"
    seed: int = 1
    start: int = 1
    steps: int = 40
    points: int | None = None
    training: Mapping[str, int] = field(default_factory=dict)

    def config(self) -> dict[str, Any]:
        """All that decides the numbers."""
        return {"kind": "ghosts", "start": self.start, **_shared(self)}

    def work(self, config: Mapping[str, Any], place: Place) -> Work:
        """Overlaps (k, k) of high-memory Ritz vectors (rows) with low-memory ones, and both spectra."""
        curvature, metrics = _curvature(config, place)
        begin = time.perf_counter()
        first = start_vector(curvature, self.start)
        with Bar("lanczos", 2 * self.steps, place.progress) as bar:
            high, high_values = _ritz(_watched(high_memory(curvature, first.clone(), self.steps), bar))
            low, low_values = _ritz(_watched(low_memory(curvature, first.clone(), self.steps), bar))
        metrics["seconds"] = {"fit": time.perf_counter() - begin}
        metrics["memory"]["process_peak"] = peak_memory()
        metrics["projectors_apart"] = projector_distance(
            high * torch.from_numpy(high_values)[:, None], low * torch.from_numpy(low_values)[:, None]
        )
        overlaps = (high / high.norm(dim=1, keepdim=True)) @ (low / low.norm(dim=1, keepdim=True)).T
        return metrics, {"overlaps": overlaps.numpy(), "high": high_values, "low": low_values}


def ritz_values(alphas: np.ndarray, betas: np.ndarray, steps: int) -> np.ndarray:
    """What the first steps of a run knew, largest first.

    >>> ritz_values(np.array([2.0, 1.0]), np.array([0.0, 0.0]), 2).tolist()
    [2.0, 1.0]
    """
    values = eigh_tridiagonal(alphas[:steps], betas[: steps - 1], eigvals_only=True)
    return np.flip(np.asarray(values)).copy()


def projector_distance(first: Tensor, second: Tensor, leading: int = LEADING) -> float:
    """‖Π₁ - Π₂‖ of the projectors onto the leading principal components of two sets of rows.

    For spaces of one dimension it is the sine of the largest angle between them.
    """
    bases = [torch.linalg.svd(rows, full_matrices=False)[2][:leading] for rows in (first, second)]
    cosines = torch.linalg.svdvals(bases[0] @ bases[1].T)
    return float((1 - cosines.min().clamp(max=1).square()).clamp(min=0).sqrt())


def _ritz(steps: Iterator[Step]) -> tuple[Tensor, np.ndarray]:
    """Ritz vectors (k, p) in float64, one per row, and values, largest first."""
    tridiagonal, vectors = Tridiagonal(), []
    for step in steps:
        tridiagonal.add(step)
        vectors.append(step.vector.cpu().double())
    values, combinations = tridiagonal.eigh()
    return torch.from_numpy(combinations.T.copy()) @ torch.stack(vectors), values


def _watched(steps: Iterator[Step], bar: Bar) -> Iterator[Step]:
    for step in steps:
        yield step
        bar.advance()


def _shared(job: Spectrum | Ghosts) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "setting": job.setting,
        "seed": job.seed,
        "training": dict(job.training),
        "recipe": recipe_of(find_setting(job.setting), job.training),
        "steps": job.steps,
        "points": job.points or find_setting(job.setting).points,
    }


def _curvature(config: Mapping[str, Any], place: Place) -> tuple[Curvature, dict[str, Any]]:
    setting = find_setting(config["setting"])
    models, facts = networks(setting, config["seed"], place, config["training"])
    source, innermost = fit_source(setting, config["points"], place.data), config["recipe"]["channels_last"]
    loader = Batches(source, FIT_BATCH, hold=True, channels_last=innermost)
    network = Network(models[0], select(models[0], None), None)
    metrics: dict[str, Any] = {"network": facts, "memory": {"parameters": network.selection.count}}
    return Curvature(network, resolve(setting.likelihood), loader), metrics
