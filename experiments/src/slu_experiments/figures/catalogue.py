"""Every figure by name: which runs it needs, and how it is drawn from their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slu.errors import StorageError, unknown
from slu_experiments.figures import ablation, budget, curvature, memory, sketching
from slu_experiments.figures.request import Request
from slu_experiments.results import Result, Store, canonical


@dataclass(frozen=True)
class Figure:
    """One row of the table.

    Attributes:
        name: As it is typed.
        about: What it shows, in one line.
        setting: The one it is drawn for unless another is asked for.
        jobs: The runs it needs.
        draw: From their results to a picture.
    """

    name: str
    about: str
    setting: str
    jobs: Callable[[Request], Sequence[Any]]
    draw: Callable[[Sequence[Result], Request, Path], None]

    def stored(self, request: Request, store: Store) -> list[Result]:
        """The results that are there already; where some outside sets are missing, those of the others.

        Raises:
            StorageError: None of them is.
        """
        wanted = [job.config() for job in self.jobs(request)]
        exact = [store.find(config) for config in wanted]
        lacking = any(each is None and config["kind"] == "score" for config, each in zip(wanted, exact, strict=True))
        scored = list(store.all("score")) if lacking else []
        either = (each or _nearest(config, scored) for config, each in zip(wanted, exact, strict=True))
        results = [each for each in either if each is not None]
        if not results:
            raise StorageError(
                f"none of the runs that the figure {self.name!r} needs is below {store.runs}; make them with: "
                f"slu-paper figure {self.name} --setting {request.setting}"
            )
        return results


def _nearest(wanted: Mapping[str, Any], scored: Sequence[Result]) -> Result | None:
    """The run that differs in nothing but the outside sets it lacks; of several, the one that lacks fewest."""
    sets = set(wanted.get("outside", ()))

    def alike(config: Mapping[str, Any]) -> bool:
        same = canonical({**config, "outside": []}) == canonical({**wanted, "outside": []})
        return same and sets > set(config["outside"])

    return max(
        (each for each in scored if alike(each.config)), key=lambda each: len(each.config["outside"]), default=None
    )


_ALL = (
    Figure("memory", "AUROC against the memory kept, by method", "fmnist-lenet", memory.jobs, memory.draw),
    Figure(
        "sketch-size", "AUROC by rank and sketch size of SLU", "fmnist-lenet", sketching.sketch_size_jobs,
        sketching.draw_sketch_size,
    ),
    Figure(
        "preconditioning", "AUROC by high-memory steps before the sketched ones", "fmnist-lenet",
        sketching.preconditioning_jobs, sketching.draw_preconditioning,
    ),
    Figure(
        "synthetic", "rank against sketch size where the truth is known", "digits-mlp", ablation.jobs, ablation.draw,
    ),
    Figure(
        "spectrum", "how the curvature's eigenvalues decay", "fmnist-lenet", curvature.spectrum_jobs,
        curvature.draw_spectrum,
    ),
    Figure(
        "ghosts", "what low-memory Lanczos finds again and again", "mnist-lenet", curvature.ghost_jobs,
        curvature.draw_ghosts,
    ),
    Figure("budget", "AUROC on every outside set, by budget", "fmnist-lenet", budget.jobs, budget.draw),
)  # fmt: skip

FIGURES: dict[str, Figure] = {figure.name: figure for figure in _ALL}
"""By name; a new figure is a row here."""


def find_figure(name: str) -> Figure:
    """A figure by its name."""
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    return FIGURES[name]
