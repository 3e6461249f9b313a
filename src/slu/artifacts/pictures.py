"""Pictures that are written whole or not at all, and the colours they share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from slu.artifacts.replacing import check_writable, replacing, target
from slu.errors import SettingError, StorageError, require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")

# Distinguishable with colour blindness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#8E4FA8", "#B8860B", "#C2437E", "#3C9FD0", "#6B4A2B")
INK, FAINT, BAND = "#222222", "#777777", "#F4F4F4"


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
