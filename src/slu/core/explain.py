"""Why an input scores as it does: how much its prediction could change, how much of that is open, and where."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from slu.checks import whole
from slu.core.calibration import COMBINED, COORDINATES, Calibration
from slu.core.explain_picture import draw
from slu.core.scoring import score_batches
from slu.core.together import row_energies
from slu.data import Batch
from slu.errors import SettingError

if TYPE_CHECKING:
    from slu.core.score import SluScore

WIDTH = 110
_NOTHING = "-"


@dataclass(frozen=True, eq=False)
class Explanation:
    """What stands behind the scores of n inputs; print it, or draw it with `plot(path)`.

    Attributes:
        magnitude: (n,) how much the prediction could change: the reading "fisher".
        share: (n,) which share of that change the data do not pin down: "fisher-relative".
        combined: (n,) both, standardized and added; None without calibration.
        percentiles: (n,) by reading, per cent of the calibration points that score less; empty without calibration.
        pvalues: (n,) of the combined reading; None without calibration.
        outputs: (n, q) which outputs contribute most to the magnitude. Of a classifier these are labels beside the
            predicted one, which has no part of its own: how far the prediction could move between the two.
        contributions: (n, q) their shares of the contributions of all outputs.
        calibration: What the percentiles are of.
        why: There is no calibration.
    """

    magnitude: Tensor
    share: Tensor
    combined: Tensor | None
    percentiles: dict[str, Tensor]
    pvalues: Tensor | None
    outputs: Tensor
    contributions: Tensor
    calibration: Calibration | None
    why: str = ""

    def __len__(self) -> int:
        return len(self.magnitude)

    def __str__(self) -> str:
        return _table(self)

    def plot(self, path: str | Path) -> None:
        """Draw where every input stands among the calibration points, and which outputs contribute.

        Args:
            path: Where to, atomically; its ending says what: .png, .svg or .pdf.

        Raises:
            SettingError: Another ending, too many inputs for a picture, or no calibration.
            StorageError: The path cannot be written.
        """
        if self.calibration is None:
            raise SettingError(f"a picture needs calibration points, and the score has none: {self.why}")
        draw(self, path)


def explained_inputs(score: SluScore, data: Any, outputs: int, progress: bool | None) -> Explanation:
    """For `SluScore.explain`."""
    count = whole("outputs", outputs, least=1)
    reader, calibration = score._read, score.calibration

    def read(batch: Batch) -> Tensor:
        energies, scale = row_energies(reader, batch, {True}, score._energies_of_both)
        each = energies[True]
        rows = reader.finished(each, scale.expand(-1, each.shape[-1]), relative=False)
        both = [reader.finished(each.sum(-1), scale[:, 0], relative) for relative in (False, True)]
        return torch.cat([torch.stack(both, 1), rows], 1)

    found = score_batches(score.method.network, data, read, cost=score.method.cost, progress=progress)
    scores: dict[str, Tensor] = dict(zip(COORDINATES, found[:, :2].unbind(1), strict=True))
    rows = found[:, 2:].clamp(min=0)
    top, places = (rows / rows.sum(1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)).topk(
        min(count, rows.shape[1]), dim=1
    )
    if calibration is not None:
        scores[COMBINED] = calibration.standard(scores)
    return Explanation(
        magnitude=scores["fisher"],
        share=scores["fisher-relative"],
        combined=scores.get(COMBINED),
        percentiles={} if calibration is None else {n: calibration.percentile(v, n) for n, v in scores.items()},
        pvalues=None if calibration is None else calibration.pvalue(scores[COMBINED], COMBINED),
        outputs=places,
        contributions=top,
        calibration=calibration,
        why=score.reference.why,
    )


def _table(found: Explanation) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("input", "magnitude", "per cent\nbelow", "share", "per cent\nbelow", "combined", "per cent\nbelow"):
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    table.add_column("p-value", justify="right", no_wrap=True, vertical="bottom")
    table.add_column("outputs that contribute most", vertical="bottom", overflow="fold")
    for place in range(len(found)):
        table.add_row(*_row(found, place))
    text = io.StringIO()
    console = Console(file=text, width=WIDTH, color_system=None, markup=False, highlight=False)
    console.print(table)
    console.print("")
    console.print(_note(found))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _row(found: Explanation, place: int) -> list[str]:
    def below(reading: str) -> str:
        return f"{found.percentiles[reading][place]:.1f}" if found.percentiles else _NOTHING

    outputs = zip(found.outputs[place].tolist(), found.contributions[place].tolist(), strict=True)
    return [
        str(place),
        f"{found.magnitude[place]:.3g}",
        below("fisher"),
        f"{found.share[place]:.3f}",
        below("fisher-relative"),
        _NOTHING if found.combined is None else f"{found.combined[place]:+.2f}",
        below(COMBINED),
        _NOTHING if found.pvalues is None else f"{found.pvalues[place]:.3g}",
        ", ".join(f"{output} ({share:.0%})" for output, share in outputs if share > 0),
    ]


def _note(found: Explanation) -> str:
    what = (
        "Magnitude: how much the prediction could change (fisher). Share: of that, what the data do not pin down "
        "(fisher-relative). Combined: their standardized logarithms, added; the p-value is its."
    )
    if found.calibration is None:
        return f"{what} Not calibrated: {found.why}."
    return f"{what} Per cent below: of {found.calibration.points:,} calibration points ({found.calibration.source})."
