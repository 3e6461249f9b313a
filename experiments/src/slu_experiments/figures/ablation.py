"""The synthetic ablation: rank against sketch size where the truth is known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from slu.artifacts import FAINT, INK, write_picture
from slu.errors import SettingError
from slu_experiments.figures.request import Request
from slu_experiments.figures.style import LABEL, TICK, TITLE, canvas
from slu_experiments.results import Result
from slu_experiments.synthetic import SHOWN, Synthetic

_TITLES = {"difference": "the paper's difference", "ratio": "corrected ratio (ours)"}


def jobs(request: Request) -> list[Synthetic]:
    """One matrix per seed; ranks up to the true one, sizes up to a tenth of the parameters."""
    usual = Synthetic()
    ranks = (*(rank for rank in usual.ranks if rank < request.rank), request.rank)
    sizes = tuple(size for size in usual.sizes if size <= request.parameters // 10)
    if not sizes or request.rank >= request.parameters:
        raise SettingError(
            f"the synthetic matrix needs {10 * min(usual.sizes):,} parameters or more and fewer directions than that; "
            f"got {request.parameters:,} and {request.rank:,}"
        )
    return [
        Synthetic(parameters=request.parameters, true_rank=request.rank, ranks=ranks, sizes=sizes, seed=seed)
        for seed in request.seeds
    ]


def draw(results: Sequence[Result], request: Request, path: Path) -> None:
    """Two heat maps, one per estimator: what too few steps cost, and what the sketch costs on top."""
    del request
    config = results[0].config
    ranks, sizes = config["ranks"], [*map(_short, config["sizes"]), "∞"]
    maps = {
        name: np.mean([result.arrays[name] + result.arrays["rank"][:, None] for result in results], axis=0)
        for name in SHOWN
    }
    worst = max(float(np.nanmax(each)) for each in maps.values())
    figure = canvas(
        1.9 + 1.3 * len(sizes), 1.9 + 0.5 * len(ranks),
        f"Error of the score, by rank and by sketch: p = {config['parameters']:,}, rank {config['true_rank']}",
    )  # fmt: skip
    panels = figure.subplots(1, len(SHOWN), sharey=True, squeeze=False)[0]
    picture = None
    for axes, (name, values) in zip(panels, maps.items(), strict=True):
        picture = axes.imshow(values, cmap="Blues", vmin=0, vmax=worst, aspect="auto", origin="lower")
        axes.set_title(_TITLES[name], fontsize=TITLE, fontweight="bold", color=INK, loc="left")
        axes.set_xticks(range(len(sizes)), sizes)
        axes.set_yticks(range(len(ranks)), map(str, ranks))
        axes.axvline(len(sizes) - 1.5, color="white", linewidth=3)
        axes.tick_params(labelsize=TICK, colors=INK, length=0)
        axes.set_xlabel("sketch size s   (∞: no sketch)", fontsize=LABEL, color=INK)
        for (row, column), value in np.ndenumerate(values):
            lit = np.isfinite(value) and value > 0.6 * worst
            text = f"{value:.2f}".removeprefix("0") if np.isfinite(value) else "–"
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if lit else INK)
        for spine in axes.spines.values():
            spine.set_visible(False)
    panels[0].set_ylabel("Lanczos steps k", fontsize=LABEL, color=INK)
    assert picture is not None
    bar = figure.colorbar(picture, ax=list(panels), shrink=0.9)
    bar.set_label("error of rank + error of sketch", fontsize=LABEL, color=INK)
    bar.ax.tick_params(labelsize=TICK, colors=FAINT)
    write_picture(figure, path)


def _short(size: int) -> str:
    return f"{size // 1000}k" if size % 1000 == 0 else str(size)
