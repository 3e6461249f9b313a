"""Why an input scores as it does: which view of it is highest, where it stands among the calibration points, and which
outputs could change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slu.artifacts.pictures import printed
from slu.budgets import Cost
from slu.checks import whole
from slu.core.calibration import Calibration
from slu.core.directions import ALL, FISHER, Outputs
from slu.core.positions import PositionsOf
from slu.core.queries import score_batches
from slu.core.readout import READINGS, Readout, rows_of
from slu.core.standard import ANGLE, COMBINED, DISTANCE
from slu.data import Batch
from slu.errors import SettingError

WIDTH = 110

REASONS = {
    "fisher": "the prediction is left open",
    "fisher-relative": "the prediction is left open",
    "variance": "the outputs could change",
    "entropy": "the network is undecided",
    "max-logit": "the network is undecided",
    DISTANCE: "far from the data",
    ANGLE: "unusual direction",
}
"""What it means that a view is high, by its first reading."""

_LEAST = 0.005  # share of a contribution that is named
_NOTHING = "-"


@dataclass(frozen=True, eq=False)
class Explanation:
    """What stands behind the scores of n inputs; print it, or draw it with `plot(path)`.

    Attributes:
        readings: (n,) by reading: "fisher" and "fisher-relative"; with calibration also the others of the combined
            reading, and that itself. They are of the rows that the score is calibrated with.
        views: (n,) by the first reading of each view, its height above the calibration points' mean in their
            deviations; the combined reading is the soft maximum of these. Empty without calibration.
        percentiles: (n,) by reading, per cent of the calibration points that score less; empty without calibration.
        pvalues: (n,) of the combined reading; None without calibration.
        layers: For "distance" and "angle" the layer that is farthest, of each of the n inputs.
        outputs: (n, q) which outputs contribute most to the trace of "fisher" over all outputs. Of a classifier these
            are labels beside the predicted one, which has no part of its own: how far the prediction could move between
            the two.
        contributions: (n, q) their shares of the contributions of all outputs.
        calibration: What the percentiles are of.
        why: There is no calibration.
    """

    readings: Mapping[str, Tensor]
    views: Mapping[str, Tensor]
    percentiles: Mapping[str, Tensor]
    pvalues: Tensor | None
    layers: Mapping[str, tuple[str, ...]]
    outputs: Tensor
    contributions: Tensor
    calibration: Calibration | None
    why: str = ""

    def __len__(self) -> int:
        return len(self.outputs)

    def __str__(self) -> str:
        return _table(self)

    @property
    def raised_by(self) -> tuple[str, ...]:
        """For each input the view that is highest, by its first reading; empty without calibration."""
        if not self.views:
            return ()
        names, heights = list(self.views), torch.stack(list(self.views.values())).nan_to_num(nan=-torch.inf)
        return tuple(names[place] for place in heights.argmax(0).tolist())

    @property
    def reasons(self) -> tuple[str, ...]:
        """For each input its highest view in words, with the layer where there is one; empty without calibration."""
        return tuple(self._reason(name, place) for place, name in enumerate(self.raised_by))

    def _reason(self, name: str, place: int) -> str:
        layer = f", layer {self.layers[name][place]!r}" if name in self.layers else ""
        return REASONS.get(name, name) + layer

    def plot(self, path: str | Path) -> None:
        """Draw where every input stands among the calibration points, why, and which outputs contribute.

        Args:
            path: Where to, atomically; its ending says what: .png, .svg or .pdf.

        Raises:
            SettingError: Another ending, too many inputs for a picture, or no calibration.
            StorageError: The path cannot be written.
        """
        from slu.core.explain_picture import draw

        if self.calibration is None:
            raise SettingError(f"a picture needs calibration points, and the score has none: {self.why}")
        draw(self, path)


def explain(
    readout: Readout,
    calibration: Calibration | None,
    why: str,
    rows: Outputs,
    data: Any,
    outputs: int,
    *,
    cost: Callable[[], Cost],
    progress: bool | None,
) -> Explanation:
    """The work of `SluScore.explain`: `rows` that the readings are of; `why` there is no calibration, if there is none.

    Cost: t gradients per input for the contributions, and those of the readings.
    """
    count = whole("outputs", outputs, least=1)
    standard = None if calibration is None else calibration.standard
    names = ["fisher", "fisher-relative"]
    if standard is not None:
        names = [*dict.fromkeys([*names, *standard.scales]), COMBINED]
    scales = None if standard is None else standard.layers
    wanted: dict[Outputs, set[str]] = {ALL: {FISHER}}
    wanted.setdefault(rows, set()).update(kind for name in names for kind in rows_of(name, standard))

    def read(batch: Batch) -> list[Tensor]:
        points, measured = readout.measure(batch, wanted, layers=scales is not None, standard=standard)
        if isinstance(points, PositionsOf):
            raise SettingError(
                "explain is of networks with one vector of outputs per input; this one has positions, tokens or "
                "pixels. Read each of its views instead: score(x, reading='fisher'), 'entropy', 'distance', 'angle'"
            )
        each = replace(measured[ALL], per_output=True).open(FISHER)
        distances = measured[rows].distances
        heights = [] if scales is None or distances is None else [scales(distances)]
        return [each, *(READINGS[name].score(measured[rows]) for name in names), *heights]

    def near(scores: Sequence[Tensor]) -> Tensor:
        assert calibration is not None
        return torch.stack([calibration.edges(n).near(each) for n, each in zip(names, scores[1:], strict=False)]).any(0)

    settled = None if calibration is None else near
    parts, *values = score_batches(readout.network, data, read, cost=cost, progress=progress, finite=True, near=settled)
    scores = dict(zip(names, values, strict=False))
    parts = parts.clamp(min=0)
    shares, places = (parts / parts.sum(1, keepdim=True).clamp(min=torch.finfo(parts.dtype).tiny)).topk(
        min(count, parts.shape[1]), dim=1
    )
    known = readout.layers()
    return Explanation(
        readings=scores,
        views={} if standard is None else _views(calibration, scores),
        percentiles={} if calibration is None else {n: calibration.percentile(v, n) for n, v in scores.items()},
        pvalues=None if calibration is None else calibration.pvalue(scores[COMBINED], COMBINED),
        layers={} if scales is None or known is None else _farthest(values[-1], known.names),
        outputs=places,
        contributions=shares,
        calibration=calibration,
        why=why,
    )


def _views(calibration: Calibration | None, scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Heights of the views by their first reading."""
    assert calibration is not None
    standard = calibration.standard
    return dict(zip((view[0] for view in standard.views), standard.standardized(scores), strict=True))


def _farthest(heights: Tensor, names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """By reading the farthest layer of every input, from (n, 2 L) heights."""
    halves = heights.nan_to_num(nan=-torch.inf).tensor_split(2, 1)
    return {
        reading: tuple(names[place] for place in half.argmax(1).tolist())
        for reading, half in zip((DISTANCE, ANGLE), halves, strict=True)
    }


def _table(explanation: Explanation) -> str:
    from rich import box
    from rich.table import Table

    shown = [name for name in explanation.percentiles or explanation.readings if name != COMBINED]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("input", *(["p-value"] if explanation.pvalues is not None else []), *map(_heading, shown)):
        table.add_column(name, justify="right", no_wrap=True)
    if explanation.views:
        table.add_column("raised most by", min_width=30, overflow="fold")
    table.add_column("outputs", min_width=16, overflow="fold")
    for place in range(len(explanation)):
        table.add_row(*_row(explanation, shown, place))
    return printed([table, "", _note(explanation)], WIDTH)


def _heading(reading: str) -> str:
    return reading.replace("fisher-relative", "fisher-\nrelative").replace("max-logit", "max-\nlogit")


def _row(explanation: Explanation, shown: list[str], place: int) -> list[str]:
    outputs = zip(explanation.outputs[place].tolist(), explanation.contributions[place].tolist(), strict=True)
    named = ", ".join(f"{output} ({share:.0%})" for output, share in outputs if share >= _LEAST) or _NOTHING
    if explanation.pvalues is None:
        return [str(place), *(f"{explanation.readings[name][place]:.3g}" for name in shown), named]
    percentiles = (f"{explanation.percentiles[name][place]:.1f}".replace("nan", _NOTHING) for name in shown)
    return [str(place), f"{explanation.pvalues[place]:.3g}", *percentiles, explanation.reasons[place], named]


def _note(explanation: Explanation) -> str:
    if explanation.calibration is None:
        return (
            "fisher: how much the prediction could change. fisher-relative: of that, the share that the data do not "
            f"determine. Not calibrated: {explanation.why}."
        )
    points, source = explanation.calibration.points, explanation.calibration.source
    return (
        f"By reading, the per cent of {points:,} calibration points ({source}) that score less; the p-value is of the "
        "combined reading, which is the soft maximum of the views. Raised most by: the highest view, whether or not it "
        "is high. Outputs: those that contribute most to how much the prediction could change."
    )
