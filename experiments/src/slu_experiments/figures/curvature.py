"""Figures of the curvature itself: how its eigenvalues decay, and the ghosts of low-memory Lanczos."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slu.artifacts import COLOURS, FAINT, INK, write_picture
from slu_experiments.figures.request import Request
from slu_experiments.figures.style import LABEL, TICK, TITLE, canvas, dress, shades
from slu_experiments.results import Result
from slu_experiments.spectra import LEADING, Ghosts, Spectrum, ritz_values

STEPS, GHOST_STEPS = 100, 40
PARTS = (0.25, 0.5, 1.0)
"""Lengths of Lanczos, as shares of the steps taken."""


def spectrum_jobs(request: Request) -> list[Spectrum]:
    """Lanczos from several random starts."""
    shared: list[Any] = [request.common(seed) for seed in request.seeds]
    steps = request.steps or STEPS
    return [Spectrum(**each, start=start, steps=steps) for each in shared for start in range(1, request.starts + 1)]


def draw_spectrum(results: Sequence[Result], request: Request, path: Path) -> None:
    """Ritz values of several lengths of Lanczos; a band of one standard deviation over starts and networks."""
    steps = max(len(result.arrays["alphas"]) for result in results)
    lengths = [max(2, int(part * steps)) for part in PARTS]
    figure = canvas(7.2, 4.4, f"{request.definition.title}: eigenvalues of the curvature")
    axes = figure.subplots()
    largest = 0.0
    for colour, length in zip(shades(COLOURS[0], len(lengths)), lengths, strict=True):
        runs = [each for each in results if len(each.arrays["alphas"]) >= length]
        values = np.array([ritz_values(each.arrays["alphas"], each.arrays["betas"], length) for each in runs])
        largest = max(largest, float(values.max()))
        means, spreads = values.mean(0), values.std(0, ddof=1) if len(values) > 1 else np.zeros(length)
        places = np.arange(1, length + 1)
        axes.plot(places, means, color=colour, linewidth=2, label=f"{length} steps")
        axes.fill_between(places, means - spreads, means + spreads, color=colour, alpha=0.25, linewidth=0)
    axes.set_yscale("log")
    axes.set_ylim(bottom=max(1e-7 * largest, axes.get_ylim()[0]), top=3 * largest)
    dress(axes, "", "place in the order", "Ritz value")
    starts = len({result.config["start"] for result in results})
    networks = len({result.config["seed"] for result in results})
    axes.legend(
        title=f"high-memory Lanczos\n{_counted(starts, 'start')}, {_counted(networks, 'network')}", fontsize=TICK,
        title_fontsize=TICK, frameon=False, labelcolor=INK,
    )  # fmt: skip
    write_picture(figure, path)


def ghost_jobs(request: Request) -> list[Ghosts]:
    """Both ways of Lanczos on one network."""
    shared: Any = request.common(request.seeds[0])
    return [Ghosts(**shared, steps=request.steps or GHOST_STEPS)]


def draw_ghosts(results: Sequence[Result], request: Request, path: Path) -> None:
    """Overlaps of Ritz vectors: rows from high-memory Lanczos, columns from low-memory, both by falling Ritz value."""
    result = results[0]
    overlaps = np.abs(result.arrays["overlaps"])
    figure = canvas(6.6, 6.0)
    axes = figure.subplots()
    picture = axes.imshow(overlaps, cmap="Blues", vmin=0, vmax=1, interpolation="nearest", origin="upper")
    axes.set_title(
        f"{request.definition.title}: {overlaps.shape[1]} steps of Lanczos, ghosts", fontsize=TITLE, fontweight="bold",
        color=INK, loc="left",
    )  # fmt: skip
    axes.set_xlabel("low-memory Ritz vector (by falling Ritz value)", fontsize=LABEL, color=INK)
    axes.set_ylabel("high-memory Ritz vector", fontsize=LABEL, color=INK)
    for axis in (axes.xaxis, axes.yaxis):
        ticks = [0, *range(9, max(overlaps.shape), 10)]
        axis.set_ticks([tick for tick in ticks if tick < max(overlaps.shape)])
        axis.set_ticklabels([str(tick + 1) for tick in axis.get_majorticklocs().astype(int)])
    axes.tick_params(labelsize=TICK, colors=INK)
    bar = figure.colorbar(picture, ax=axes, shrink=0.8)
    bar.set_label(r"overlap $|\langle H_i, L_j\rangle|$", fontsize=LABEL, color=INK)
    difference = result.metrics["projectors_apart"]
    figure.supxlabel(
        "Several columns lit in one row: one direction that was found again.\n"
        f"Distance of the projectors onto the leading {LEADING} principal components: {difference:.2g} (0 to 1).",
        fontsize=TICK, color=FAINT,
    )  # fmt: skip
    write_picture(figure, path)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count != 1 else ''}"
