"""One colour a method wherever it is drawn, and pictures that are written whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from slu.comparing.extras import require
from slu.errors import SettingError, StorageError
from slu.storage.replacing import check_writable, replacing, target

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Told apart by colour-blind eyes.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#8E4FA8", "#B8860B", "#C2437E", "#3C9FD0", "#6B4A2B")
MARKERS = ("o", "s", "D", "^", "v", "P")
FORMATS = (".png", ".svg", ".pdf")
INK, FAINT, BAND = "#222222", "#777777", "#F4F4F4"

METHODS: dict[str, tuple[str, str]] = {
    "SLU": (COLOURS[0], "o"),
    "SLU lanczos": ("#1B3A5C", "8"),
    "LowRankLaplace": (COLOURS[1], "s"),
    "DiagonalLaplace": (COLOURS[2], "D"),
    "LocalEnsemble": (COLOURS[3], "^"),
    "LocalEnsemble hessian": (COLOURS[4], "v"),
    "SCOD": (COLOURS[5], "P"),
    "SWAG": (COLOURS[6], "X"),
    "DeepEnsemble": (COLOURS[7], "p"),
    "MaxLogit": ("#444444", "*"),
    "MaxProbability": ("#666666", "<"),
    "Entropy": ("#888888", ">"),
    "Energy": ("#AAAAAA", "h"),
}
"""Colour and marker of every method of slu, by its name in `at_budget`."""


def write_picture(figure: Figure, path: str | Path) -> None:
    """Write a picture, atomically; the path's ending says in which format, and the same picture gives the same bytes.

    Raises:
        SettingError: Another ending than .png, .svg and .pdf.
        StorageError: The path cannot be written.
    """
    ending = checked_ending(path)
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(ending)
    try:
        with replacing(target(path)) as file, rc_context({"svg.hashsalt": "slu"}):
            figure.savefig(file, format=ending[1:], dpi=160, metadata=metadata)
    except OSError as reason:
        raise StorageError(f"{path} could not be written: {reason.strerror or reason}") from reason


def checked_ending(path: str | Path) -> str:
    """The ending of a picture's path, once it is known that the picture can be drawn and written there."""
    ending = Path(path).suffix.lower()
    if ending not in FORMATS:
        raise SettingError(f"{path} ends in {ending!r}; a picture can be written as {', '.join(FORMATS)}")
    require("matplotlib", "drawing a picture")
    check_writable(path)
    return ending
