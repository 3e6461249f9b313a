"""The table of studies by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.evidence import faces, images, regressions, synthetic, tables
from benchmarks.evidence.study import Study, with_far_shifts


def _text_study(seed: int, folder: Path, points: int, queries: int) -> Study:
    """Loaded on demand: it needs packages that nothing else does."""
    from benchmarks.evidence import text

    return text.study(seed, folder, points, queries)


STUDIES: dict[str, Callable[[int, Path, int, int], Study]] = {
    **{name: partial(images.image_study, name) for name in images.KINDS},
    images.NEAR: images.near_study,
    "digits-mlp": images.digit_study,
    "text-minilm": _text_study,
    faces.NAME: faces.face_study,
    **{name: partial(tables.table_study, name) for name in tables.TABLES},
    **{name: partial(synthetic.far_study, name) for name in synthetic.ACTIVATIONS},
    **{name: partial(regressions.regression_study, name) for name in regressions.TABLES},
}
"""From a seed, the folder of the evidence, and numbers of points and queries to a study."""


SIZES = {"text-minilm": (700, 200), "cifar10-resnet": (1000, 200)}
"""Points that are fitted and queries per shift, where they are not the usual ones: few texts, and a slow network."""

_USUAL_SIZE = (2000, 300)


def sized(name: str, points: int | None = None, queries: int | None = None) -> tuple[int, int]:
    """Points and queries of a study, or those that are given instead."""
    usual = SIZES.get(name, _USUAL_SIZE)
    return usual[0] if points is None else points, usual[1] if queries is None else queries


def made(name: str, seed: int, folder: Path, points: int, queries: int) -> Study:
    """A study of the table with its far shifts; its network is read from the folder, or trained."""
    return with_far_shifts(STUDIES[name](seed, folder, points, queries))
