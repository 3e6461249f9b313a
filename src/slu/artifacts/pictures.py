"""What pictures and printed tables share: colours, rows, and that a picture is written whole or not at all."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slu.artifacts.replacing import check_writable, replacing, target
from slu.errors import SettingError, StorageError, require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import RenderableType

FORMATS = (".png", ".svg", ".pdf")

# Distinguishable with colour blindness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#8E4FA8", "#B8860B", "#C2437E", "#3C9FD0", "#6B4A2B")
INK, FAINT, BAND = "#222222", "#777777", "#F4F4F4"


def printed(parts: Sequence[RenderableType], width: int) -> str:
    """Tables and paragraphs below each other, as plain text."""
    from rich.console import Console

    to = io.StringIO()
    console = Console(file=to, width=width, color_system=None, markup=False, highlight=False, emoji=False)
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in to.getvalue().splitlines())


def striped(axes: Axes, rows: int) -> Axes:
    """The axes with so many rows, every second on a band, and without a frame."""
    axes.set_ylim(rows - 0.5, -0.5)
    for position in range(0, rows, 2):
        axes.axhspan(position - 0.5, position + 0.5, color=BAND, zorder=0, linewidth=0)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return axes


def write_picture(figure: Figure, path: str | Path) -> None:
    """Write a picture atomically, in the format of the path's ending; the same picture gives the same bytes.

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
    """The ending of a picture's path, after checking that a picture can be drawn and written there."""
    ending = Path(path).suffix.lower()
    if ending not in FORMATS:
        raise SettingError(f"{path} ends in {ending!r}; a picture can be written as {', '.join(FORMATS)}")
    require("matplotlib", "drawing a picture")
    check_writable(path)
    return ending
