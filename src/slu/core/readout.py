"""The score of an input: the energies of its gradients, computed once, and the readings as functions of them.

Letters: J (t, p) the Jacobian of an input, L (t, t) with H = L Lᵀ the output factor, u a direction in output space, g a
row of J or of Lᵀ J, or a mixture of rows. For every row g the squared length ‖g‖² and the part gᵀ M g that the data do
not determine (the open part) are measured, with a (p, p) matrix M that depends on the method. Which rows these are is
the choice `outputs=` (`slu.core.directions`). A reading is a pure function of these energies and the outputs:

| reading | rows | score |
|---|---|---|
| variance | J: the change of the outputs | the open part: the paper's score |
| relative | J | the open part over ‖g‖²: the share that the data do not determine |
| fisher | Lᵀ J: the change of the predicted distribution | the open part |
| fisher-relative | Lᵀ J | its share |
| entropy | none | of the prediction, for classes and labels |
| max-logit | none | minus the largest output, for classes |
| distance | none | the soft maximum over layers of how far their inputs are from the data's (`slu.core.distances`) |
| angle | none | the same for the inputs' directions, whatever their lengths |
| combined | both | the soft maximum of `VIEWS`, standardized |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from slu.budgets import Cost
from slu.core.directions import ALL, FISHER, JACOBIAN, USUAL, Outputs, chosen
from slu.core.distances import LayerStatistics, watched_distances
from slu.core.positions import Points, PositionsOf, points_of, spread
from slu.core.queries import score_batches
from slu.core.standard import ANGLE, COMBINED, DISTANCE, LAYERED, Standard
from slu.data import Batch, check_finite
from slu.errors import SettingError, unknown
from slu.gradients import LayerInputs, Meter, Network, PerExampleGradients
from slu.likelihoods import Classification, Likelihood
from slu.processes import ALONE, Processes

_MOST_NUMBERS = 1 << 31  # of vectors in output space


@dataclass(frozen=True)
class Measured:
    """The measurements of a batch, of which the readings are functions.

    Attributes:
        outputs: (b, t) of inputs, or of positions of inputs.
        rows: By kind of rows, (m, b, q) numbers of a meter.
        scales: By kind, (b, 1): the factor by which its rows were divided before they were measured.
        value: From (m, ...) numbers to gᵀ M g (...).
        likelihood: Of the outputs.
        distances: (b, 2 L) squared distances of the layers' inputs; None where they are not measured.
        standard: Standardizes the readings; None without calibration points.
        per_output: Whether a reading has one value per row, (b, q), or one for their sum, (b,).
    """

    outputs: Tensor
    rows: Mapping[str, Tensor]
    scales: Mapping[str, Tensor]
    value: Callable[[Tensor], Tensor]
    likelihood: Likelihood
    distances: Tensor | None = None
    standard: Standard | None = None
    per_output: bool = False
    _values: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False, repr=False)

    def open(self, kind: str) -> Tensor:
        """gᵀ M g: the part that the data do not determine."""
        scale, (value, _) = self.scales[kind], self._value(kind)
        return value * (scale if self.per_output else scale[:, 0]).to(value.dtype).square()

    def share(self, kind: str) -> Tensor:
        """gᵀ M g / ‖g‖²: the open part as a share."""
        value, squared = self._value(kind)
        # A zero gradient has no open part.
        return torch.where(squared > 0, value / squared, torch.zeros_like(value))

    def standard_error(self, score: Callable[[Measured], Tensor]) -> Tensor:
        """(b,) standard errors of a reading of q independent rows, by the jackknife.

        For a sum over the rows this is the spread of their values over √q; for other functions, such as a share, it
        agrees with the delta method to first order.
        """
        first = next(iter(self.rows.values()), None)
        if first is None:
            return torch.zeros_like(score(self))
        count = first.shape[-1]
        without = {
            kind: (rows.sum(-1, keepdim=True) - rows) * (count / (count - 1)) for kind, rows in self.rows.items()
        }
        values = score(replace(self, rows=without, per_output=True))
        return values.std(-1, correction=0) * (count - 1) ** 0.5

    def _value(self, kind: str) -> tuple[Tensor, Tensor]:
        """gᵀ M g and ‖g‖² before the scale, computed once for all readings."""
        if kind not in self._values:
            numbers = self.rows[kind] if self.per_output else self.rows[kind].sum(-1)
            self._values[kind] = self.value(numbers), numbers[0]
        return self._values[kind]


def _combined(measured: Measured) -> Tensor:
    standard = measured.standard
    assert standard is not None  # checked by `check_reading`
    return standard.combined({name: READINGS[name].score(measured) for name in standard.scales})


def _max_logit(measured: Measured) -> Tensor:
    return -measured.outputs.amax(1, keepdim=measured.per_output).double()


def _entropy(measured: Measured) -> Tensor:
    entropy = getattr(measured.likelihood, "entropy")(measured.outputs)  # noqa: B009 (checked by `exists`)
    return entropy[:, None] if measured.per_output else entropy


def _farthest(name: str, measured: Measured) -> Tensor:
    standard, distances = measured.standard, measured.distances
    assert standard is not None and standard.layers is not None and distances is not None  # as above
    farthest = standard.layers.farthest(distances, name)
    return farthest[:, None] if measured.per_output else farthest


@dataclass(frozen=True)
class Reading:
    """One row of the table.

    Attributes:
        score: From the energies of a batch to its scores; larger means less sure.
        rows: The kinds of rows that must be measured for it; for the combined reading at most.
        outputs: Which rows these are unless `outputs=` says otherwise.
        positive: Whether its logarithm is standardized instead of the score itself.
        exists: Whether it is defined for a likelihood.
        calibrated: Whether it needs calibration points.
        layers: Whether it needs the distances of layers.
    """

    score: Callable[[Measured], Tensor]
    rows: tuple[str, ...] = ()
    outputs: Outputs = USUAL
    positive: bool = True
    exists: Callable[[Likelihood], bool] = lambda likelihood: True  # noqa: ARG005
    calibrated: bool = False
    layers: bool = False


READINGS = {
    "variance": Reading(lambda measured: measured.open(JACOBIAN), (JACOBIAN,), ALL),
    "relative": Reading(lambda measured: measured.share(JACOBIAN), (JACOBIAN,), ALL),
    "fisher": Reading(lambda measured: measured.open(FISHER), (FISHER,)),
    "fisher-relative": Reading(lambda measured: measured.share(FISHER), (FISHER,)),
    "entropy": Reading(_entropy, exists=lambda likelihood: hasattr(likelihood, "entropy")),
    "max-logit": Reading(_max_logit, positive=False, exists=lambda each: isinstance(each, Classification)),
    DISTANCE: Reading(partial(_farthest, DISTANCE), positive=False, calibrated=True, layers=True),
    ANGLE: Reading(partial(_farthest, ANGLE), positive=False, calibrated=True, layers=True),
    COMBINED: Reading(_combined, (JACOBIAN, FISHER), positive=False, calibrated=True),
}
"""Every reading by name; a new one is a function and a row here."""

GRADIENT_READINGS = tuple(name for name, row in READINGS.items() if row.rows and not row.calibrated)
"""Those that every score of gradients has."""


def readings_for(likelihood: Likelihood) -> tuple[str, ...]:
    """The readings that exist for a likelihood and need no calibration points."""
    return tuple(name for name, row in READINGS.items() if not row.calibrated and row.exists(likelihood))


@dataclass(frozen=True)
class Readout:
    """Measures the gradients of every input and computes the readings.

    Attributes:
        network, likelihood: The network that is differentiated, and the likelihood of its outputs.
        gradients: Computes the rows of J.
        meter: Gives m numbers per row, the first of which is ‖g‖². They are quadratic in the row, and additive, because
            they are summed over the rows of an input.
        value: From its (m, ...) numbers to gᵀ M g.
        layers: Gives the statistics of the layers' inputs, or None.
        seed: Of the signs of probes.
    """

    network: Network
    likelihood: Likelihood
    gradients: PerExampleGradients
    meter: Meter
    value: Callable[[Tensor], Tensor]
    layers: Callable[[], LayerStatistics | None] = lambda: None
    seed: int = 0
    _pointwise: set[int] = field(default_factory=set, init=False, repr=False)
    _watches: dict[tuple[str, ...], LayerInputs] = field(default_factory=dict, init=False, repr=False)

    def __call__(
        self,
        data: Any,
        readings: Mapping[str, Outputs],
        *,
        cost: Callable[[], Cost],
        standard: Standard | None = None,
        per_output: bool = False,
        return_error: bool = False,
        reduce: str | None = None,
        near: Callable[[Tensor], Tensor] | None = None,
        progress: bool | None = None,
        processes: Processes = ALONE,
    ) -> dict[str, tuple[Tensor, ...]]:
        """By reading its (n,) scores, or (n, t) per output; with `return_error` their standard errors beside them.

        Of outputs at several positions (n, *positions) and (n, *positions, C).

        Args:
            data: Inputs, an (inputs, targets) pair, or a loader of them.
            readings: Names of the table, and for each which rows are measured.
            cost: The plan, for the message if memory runs out.
            standard: For readings that need calibration points.
            per_output: Whether to return one score per row instead of one for their sum; for all rows.
            return_error: Whether to return standard errors as well; for probes.
            reduce: How the scores of an input's positions become one; None for all of them.
            near: Which scores of the first reading are so close to a step that the input is scored again alone.
            progress, processes: As of `score_batches`.

        Cost: a forward pass, and as many gradients per input as `slu.core.directions.chosen` says.
        """
        rows = {name: check_reading(name, self.likelihood, standard, per_output) for name in readings}
        wanted = _wanted(readings, standard)
        far = standard is not None and standard.layers is not None and any(row.calibrated for row in rows.values())

        def score(batch: Batch) -> list[Tensor]:
            points, measured = self.measure(batch, wanted, layers=far, standard=standard, per_output=per_output)
            scores = [rows[name].score(measured[outputs]) for name, outputs in readings.items()]
            # An overflow of sums; infinitely far is a score, and a layer that is not reached has none.
            due = [points.by_input(each) for name, each in zip(readings, scores, strict=True) if name not in LAYERED]
            check_finite([each.nan_to_num(torch.nan, 0.0) for each in due], f"scores of batch {batch.index}")
            if return_error:
                errors = [measured[outputs].standard_error(rows[name].score) for name, outputs in readings.items()]
                scores = [each for pair in zip(scores, errors, strict=True) for each in pair]
            return [spread(each, points, reduce) for each in scores]

        again = None if near is None else lambda parts: near(parts[0]).reshape(len(parts[0]), -1).any(1)
        how = {"cost": cost, "progress": progress, "processes": processes}
        scores = score_batches(self.network, data, score, near=again, **how)
        each = 2 if return_error else 1
        return {name: tuple(scores[each * i : each * (i + 1)]) for i, name in enumerate(readings)}

    def uncalibrated(
        self,
        data: Any,
        readings: Mapping[str, Outputs],
        predicted: Callable[[Likelihood, Any, Tensor], None] | None,
        *,
        positions: int,
        cost: Callable[[], Cost],
        progress: bool | None,
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """What points are calibrated by: (n,) scores by reading, and (n, 2 L) squared distances of layers' inputs.

        `predicted` is called with the likelihood, the targets and the outputs of every batch. Of outputs at several
        positions so many of every input, drawn by chance, are the points.
        """
        wanted, far = _wanted(readings, None), self.layers() is not None

        def score(batch: Batch) -> list[Tensor]:
            points, measured = self.measure(batch, wanted, layers=far, sample=positions)
            scores = [READINGS[name].score(measured[outputs]) for name, outputs in readings.items()]
            first = next(iter(measured.values()))
            if predicted is not None:
                predicted(self.likelihood, _targets(batch, points), first.outputs)
            return scores if first.distances is None else [*scores, first.distances]

        columns = score_batches(self.network, data, score, cost=cost, progress=progress, finite=True)
        return dict(zip(readings, columns, strict=False)), columns[-1] if far else None

    def measure(
        self,
        batch: Batch,
        wanted: Mapping[Outputs, Collection[str]],
        *,
        layers: bool = False,
        standard: Standard | None = None,
        per_output: bool = False,
        sample: int | None = None,
    ) -> tuple[Points, dict[Outputs, Measured]]:
        """The points of a batch and their energies, for every choice of rows the kinds that are wanted of it.

        Args:
            batch: The inputs.
            wanted: Kinds of rows by choice.
            layers: Whether the distances of the layers' inputs are measured as well.
            standard, per_output: Of the result.
            sample: How many positions of an input are the points, where its outputs have positions; None for all.
        """
        known = self.layers() if layers else None
        watch = None if known is None else self._watching(known)
        if not any(wanted.values()):
            with torch.no_grad():
                outputs = self.network.outputs(batch.inputs, watch=watch)
            distances = self._checked(batch, outputs, known, watch)
            points = points_of(self.network, batch, outputs, self.seed, sample)
            distances = None if distances is None else points.taken(distances)
            outputs = points.taken(points.outputs)
            blank = Measured(outputs, {}, {}, self.value, self.likelihood, distances, standard, per_output)
            return points, dict.fromkeys(wanted, blank)
        passed = self.gradients.forward(batch.inputs, watch)
        distances = self._checked(batch, passed.outputs, known, watch)
        points = points_of(self.network, batch, passed.outputs, self.seed, sample)
        _check_all(wanted, points.outputs)
        with torch.no_grad():
            parts = [chosen(self.likelihood, points.outputs, points.draw, *each) for each in wanted.items()]
        numbers = points.measure(passed, parts, self.meter)
        of_inputs = numbers.movedim(0, -1).flatten(1)
        of_inputs = of_inputs if sample else of_inputs.reshape(len(passed.outputs), -1)
        check_finite(of_inputs, f"gradients of the model on batch {batch.index}")
        distances = None if distances is None else points.taken(distances)
        outputs = points.taken(points.outputs)
        measured, start = {}, 0
        for choice, part in zip(wanted, parts, strict=True):
            of_points = part.of(points.taken)
            rows, start = of_points.rows(numbers, start)
            measured[choice] = Measured(
                outputs, rows, of_points.scales, self.value, self.likelihood, distances, standard, per_output
            )
        return points, measured

    def _checked(
        self, batch: Batch, outputs: Tensor, layers: LayerStatistics | None, watch: LayerInputs | None
    ) -> Tensor | None:
        """The distances of the layers, if any, of outputs that are finite and, where that is not known yet, pointwise.

        That takes another forward pass in the first batch of every size. A tensor shared by all points can be taken for
        one row per point in batches of one size only.
        """
        check_finite(outputs, f"the model's outputs on batch {batch.index}")
        if len(outputs) not in self._pointwise:
            with torch.no_grad():
                self.network.check_pointwise(batch.inputs, outputs)
            self._pointwise.add(len(outputs))
        if layers is None or watch is None:
            return None
        return watched_distances(layers, watch, batch.inputs, outputs)

    def _watching(self, layers: LayerStatistics) -> LayerInputs:
        if layers.names not in self._watches:
            self._watches[layers.names] = LayerInputs(self.network, layers.names, layers.folding.shape_of)
        return self._watches[layers.names]


def _targets(batch: Batch, points: Points) -> Any:
    """Of the points, where the targets have one for each."""
    if not isinstance(points, PositionsOf):
        return batch.targets
    targets = points.grid.aligned(batch.targets)
    return None if targets is None else points.taken(targets)


def _check_all(wanted: Mapping[Outputs, Collection[str]], outputs: Tensor) -> None:
    """Refuse all rows where their vectors alone would not fit into any memory."""
    numbers = outputs.numel() * outputs.shape[1]
    if wanted.get(ALL) and numbers > _MOST_NUMBERS:
        raise SettingError(
            f"outputs='all' takes {outputs.shape[1]:,} rows for each of {len(outputs):,} points, {numbers:,} numbers "
            "of vectors in output space alone; pass outputs=1 or outputs=Probes(m)"
        )


def _wanted(readings: Mapping[str, Outputs], standard: Standard | None) -> dict[Outputs, set[str]]:
    """By choice of rows the kinds that the readings need."""
    wanted: dict[Outputs, set[str]] = {}
    for name, outputs in readings.items():
        wanted.setdefault(outputs, set()).update(rows_of(name, standard))
    return wanted


def rows_of(reading: str, standard: Standard | None) -> set[str]:
    """The kinds of rows that a reading needs; the combined one those of its views."""
    names = standard.scales if reading == COMBINED and standard is not None else [reading]
    return {kind for name in names for kind in READINGS[name].rows}


def check_reading(name: str, likelihood: Likelihood, standard: Standard | None, per_output: bool) -> Reading:
    """The row of a reading, or a SettingError if it is not available."""
    row = READINGS.get(name)
    if row is None:
        raise unknown("reading", name, READINGS)
    if not row.exists(likelihood):
        raise SettingError(f"reading={name!r} is not defined for the likelihood {type(likelihood).__name__}")
    if per_output and (row.calibrated or not row.rows):
        raise SettingError(f"reading={name!r} is one number per input; use reading='fisher' per output")
    if row.calibrated and standard is None:
        raise SettingError(f"reading={name!r} needs calibration points; call score.calibrate(loader) first")
    if row.layers and (standard is None or name not in standard.scales):
        raise SettingError(
            f"reading={name!r} needs statistics of layers' inputs, of which this score has none that vary over its "
            "calibration points: it was fitted by Lanczos, by an earlier version or within a budget that left no room "
            "for them, or the model is compiled or scripted, or has no layers; fit the plain model with solver='stream'"
        )
    return row
