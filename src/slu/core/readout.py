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
| max-logit | none | minus the largest output, for classes |
| combined | both | the soft maximum of `VIEWS`, standardized |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from slu.budgets import Cost
from slu.budgets.memory import explain_out_of_memory
from slu.core.directions import ALL, FISHER, JACOBIAN, USUAL, Outputs, chosen
from slu.data import Batch, batch_count, batches, check_finite, is_one_batch
from slu.data.batches import Inputs, map_tensors, tensors
from slu.errors import SettingError, unknown
from slu.gradients import Meter, Network, PerExampleGradients
from slu.likelihoods import Classification, Likelihood
from slu.progress import Bar

_FLOOR = 1e-3  # relative to the smallest positive score of the calibration points


@dataclass(frozen=True)
class Measured:
    """The measurements of a batch, of which the readings are functions.

    Attributes:
        outputs: (b, t).
        rows: By kind of rows, (m, b, q) numbers of a meter.
        scales: By kind, (b, 1): the factor by which its rows were divided before they were measured.
        value: From (m, ...) numbers to gᵀ M g (...).
        standard: Standardizes the readings; None without calibration points.
        per_output: Whether a reading has one value per row, (b, q), or one for their sum, (b,).
    """

    outputs: Tensor
    rows: Mapping[str, Tensor]
    scales: Mapping[str, Tensor]
    value: Callable[[Tensor], Tensor]
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
    """log Σ exp over the standardized views, high if any of them is.

    In a sum one very low view would cancel the others: far from the data the Fisher factor of a network with ReLUs
    vanishes, and the reading "fisher" with it.
    """
    standard = measured.standard
    assert standard is not None  # checked by `check_reading`
    return standard.soft_maximum({name: READINGS[name].score(measured) for name in standard.scales})


def _max_logit(measured: Measured) -> Tensor:
    return -measured.outputs.amax(1, keepdim=measured.per_output).double()


@dataclass(frozen=True)
class Reading:
    """One row of the table.

    Attributes:
        score: From the energies of a batch to its scores; larger means less sure.
        rows: The kinds of rows that must be measured for it.
        outputs: Which rows these are unless `outputs=` says otherwise.
        positive: Whether its logarithm is standardized instead of the score itself.
        classes: Whether it is defined for classes only.
        calibrated: Whether it needs calibration points.
    """

    score: Callable[[Measured], Tensor]
    rows: tuple[str, ...] = ()
    outputs: Outputs = USUAL
    positive: bool = True
    classes: bool = False
    calibrated: bool = False


READINGS = {
    "variance": Reading(lambda measured: measured.open(JACOBIAN), (JACOBIAN,), ALL),
    "relative": Reading(lambda measured: measured.share(JACOBIAN), (JACOBIAN,), ALL),
    "fisher": Reading(lambda measured: measured.open(FISHER), (FISHER,)),
    "fisher-relative": Reading(lambda measured: measured.share(FISHER), (FISHER,)),
    "max-logit": Reading(_max_logit, positive=False, classes=True),
    "combined": Reading(_combined, (JACOBIAN, FISHER), positive=False, calibrated=True),
}
"""Every reading by name; a new one is a function and a row here."""

GRADIENT_READINGS = tuple(name for name, row in READINGS.items() if row.rows and not row.calibrated)
"""Those that every score of gradients has."""

COMBINED = "combined"

VIEWS = (("fisher", "fisher-relative"), ("variance",), ("max-logit",))
"""The combined reading is the soft maximum of these; a view is the sum of its readings over the root of their count."""


def readings_for(likelihood: Likelihood) -> tuple[str, ...]:
    """The readings that exist for a likelihood and need no calibration points."""
    classes = isinstance(likelihood, Classification)
    return tuple(name for name, row in READINGS.items() if not row.calibrated and (classes or not row.classes))


@dataclass(frozen=True)
class ReadingScale:
    """Standardizes one reading, or its logarithm if it is positive, to mean 0 and deviation 1 on calibration points.

    Attributes:
        mean, deviation: On the calibration points.
        floor: Lower scores are raised to this before the logarithm, because a score can underflow to 0; a thousandth
            of the smallest positive calibration score. None for no logarithm.
    """

    mean: float
    deviation: float
    floor: float | None

    @classmethod
    def of(cls, scores: Tensor, positive: bool) -> ReadingScale:
        """From (m,) scores of calibration points.

        Numerics: float64. If all scores are equal, the deviation is set to 1.
        """
        values, floor = scores.double(), None
        if positive:
            above = values[values > 0]
            floor = max(_FLOOR * float(above.min()) if len(above) else 1.0, torch.finfo(torch.float64).tiny)
            values = values.clamp(min=floor).log()
        mean, deviation = float(values.mean()), float(values.std()) if len(values) > 1 else 0.0
        return cls(mean, deviation if deviation > 1e-12 * max(1.0, abs(mean)) else 1.0, floor)

    def __call__(self, scores: Tensor) -> Tensor:
        """(n,) standardized, float64."""
        values = scores.double()
        values = values if self.floor is None else values.clamp(min=self.floor).log()
        return (values - self.mean) / self.deviation


@dataclass(frozen=True)
class Standard:
    """The views of the combined reading, and the scale of every reading in them.

    Both are stored with a calibration, so that another table of views changes no fitted score.
    """

    scales: Mapping[str, ReadingScale]
    views: Sequence[Sequence[str]] = VIEWS

    @classmethod
    def of(cls, scores: Mapping[str, Tensor]) -> Standard:
        """From (m,) scores of calibration points by reading; readings that are missing are left out of the views."""
        views = [[name for name in view if name in scores] for view in VIEWS]
        names = [name for view in views for name in view]
        scales = {name: ReadingScale.of(scores[name], READINGS[name].positive) for name in names}
        return cls(scales, [view for view in views if view])

    def soft_maximum(self, scores: Mapping[str, Tensor]) -> Tensor:
        """(n,) log Σ exp of the views, float64; scores (n, q) give as many."""
        views = []
        for view in self.views:
            standardized = [self.scales[name](scores[name]) for name in view]
            views.append(sum(standardized[1:], standardized[0]) / math.sqrt(len(view)))
        return torch.stack(torch.broadcast_tensors(*views)).logsumexp(0)


@dataclass(frozen=True)
class Readout:
    """Measures the gradients of every input and computes the readings.

    Attributes:
        network, likelihood: The network that is differentiated, and the likelihood of its outputs.
        gradients: Computes the rows of J.
        meter: Gives m numbers per row, the first of which is ‖g‖². They are quadratic in the row, and additive, because
            they are summed over the rows of an input.
        value: From its (m, ...) numbers to gᵀ M g.
        seed: Of the signs of probes.
    """

    network: Network
    likelihood: Likelihood
    gradients: PerExampleGradients
    meter: Meter
    value: Callable[[Tensor], Tensor]
    seed: int = 0
    _pointwise: set[int] = field(default_factory=set, init=False, repr=False)

    def __call__(
        self,
        data: Any,
        readings: Mapping[str, Outputs],
        *,
        cost: Callable[[], Cost],
        standard: Standard | None = None,
        per_output: bool = False,
        return_error: bool = False,
        progress: bool | None = None,
        watch: Callable[[Likelihood, Any, Tensor], None] | None = None,
    ) -> dict[str, tuple[Tensor, ...]]:
        """By reading its (n,) scores, or (n, t) per output; with `return_error` their standard errors beside them.

        Args:
            data: Inputs, an (inputs, targets) pair, or a loader of them.
            readings: Names of the table, and for each which rows are measured.
            cost: The plan, for the message if memory runs out.
            standard: For readings that need calibration points.
            per_output: Whether to return one score per row instead of one for their sum; for all rows.
            return_error: Whether to return standard errors as well; for probes.
            progress: Whether to show a bar for a loader; by default in a terminal only.
            watch: Called with the likelihood, the targets and the outputs of every batch.

        Cost: a forward pass, and as many gradients per input as `slu.core.directions.chosen` says.
        """
        rows = {name: check_reading(name, self.likelihood, standard, per_output) for name in readings}
        wanted: dict[Outputs, set[str]] = {}
        for name, outputs in readings.items():
            wanted.setdefault(outputs, set()).update(rows[name].rows)

        def score(batch: Batch) -> list[Tensor]:
            measured = self.measure(batch, wanted, standard=standard, per_output=per_output)
            if watch is not None:
                watch(self.likelihood, batch.targets, next(iter(measured.values())).outputs)
            scores = [rows[name].score(measured[outputs]) for name, outputs in readings.items()]
            if not return_error:
                return scores
            errors = [measured[outputs].standard_error(rows[name].score) for name, outputs in readings.items()]
            return [each for pair in zip(scores, errors, strict=True) for each in pair]

        scores = score_batches(self.network, data, score, cost=cost, progress=progress)
        each = 2 if return_error else 1
        return {name: tuple(scores[each * i : each * (i + 1)]) for i, name in enumerate(readings)}

    def measure(
        self,
        batch: Batch,
        wanted: Mapping[Outputs, Collection[str]],
        *,
        standard: Standard | None = None,
        per_output: bool = False,
    ) -> dict[Outputs, Measured]:
        """The energies of a batch, for every choice of rows the kinds that are wanted of it."""
        if not any(wanted.values()):
            with torch.no_grad():
                outputs = self.network.outputs(batch.inputs)
            self._check(batch, outputs)
            return {choice: Measured(outputs, {}, {}, self.value, standard, per_output) for choice in wanted}
        passed = self.gradients.forward(batch.inputs)
        outputs = passed.outputs
        self._check(batch, outputs)
        with torch.no_grad():
            parts = [chosen(self.likelihood, outputs, batch.inputs, *each, self.seed) for each in wanted.items()]
            vectors = [each.vectors for each in parts if each.vectors is not None]
        numbers = passed.measure(vectors[0] if len(vectors) == 1 else torch.cat(vectors, 1), self.meter)
        measured, start = {}, 0
        for choice, part in zip(wanted, parts, strict=True):
            rows, start = part.rows(numbers, start)
            measured[choice] = Measured(outputs, rows, part.scales, self.value, standard, per_output)
        return measured

    def _check(self, batch: Batch, outputs: Tensor) -> None:
        """Reject outputs that are not finite; and, in the first batch of every size, those that are not pointwise.

        That takes another forward pass, so it is not repeated. A tensor shared by all points can be taken for one row
        per point in batches of one size only.
        """
        check_finite(outputs, f"the model's outputs on batch {batch.index}")
        if len(outputs) not in self._pointwise:
            with torch.no_grad():
                self.network.check_pointwise(batch.inputs, outputs)
            self._pointwise.add(len(outputs))


def check_reading(name: str, likelihood: Likelihood, standard: Standard | None, per_output: bool) -> Reading:
    """The row of a reading, or a SettingError if it is not available."""
    row = READINGS.get(name)
    if row is None:
        raise unknown("reading", name, READINGS)
    if row.classes and not isinstance(likelihood, Classification):
        raise SettingError(f"reading={name!r} is for classification; the likelihood is {type(likelihood).__name__}")
    if per_output and (row.calibrated or not row.rows):
        raise SettingError(f"reading={name!r} is one number per input; use reading='fisher' per output")
    if row.calibrated and standard is None:
        raise SettingError(f"reading={name!r} needs calibration points; call score.calibrate(loader) first")
    return row


def score_batches(
    network: Network,
    data: Any,
    score: Callable[[Batch], Sequence[Tensor]],
    *,
    cost: Callable[[], Cost],
    progress: bool | None,
) -> list[Tensor]:
    """The scores of one batch, or of every batch of a loader in its order.

    Args:
        network: The network, called in evaluation mode.
        data: Inputs, an (inputs, targets) pair, or a loader of them.
        score: Scores of one batch, a few tensors (b, ...); its inputs are detached.
        cost: The plan, for the message if memory runs out.
        progress: Whether to show a bar for a loader; by default in a terminal only.

    Returns:
        On the device of the inputs for one batch; on the CPU for a loader.
    """
    scores: list[Sequence[Tensor]] = []
    one = is_one_batch(data)
    work = explain_out_of_memory("scoring", cost, network.selection.device)
    with work, network.evaluating(), Bar("score", batch_count(data), False if one else progress) as bar:
        for batch in batches(data, network.selection.device, once=True):
            # Inputs that require gradients would keep a graph alive with every score.
            scores.append(score(Batch(batch.index, map_tensors(Tensor.detach, batch.inputs), batch.targets)))
            bar.advance()
    device = next((tensor.device for tensor in tensors(data)), torch.device("cpu")) if one else torch.device("cpu")
    return [torch.cat(parts).to(device) for parts in zip(*scores, strict=True)]


def outputs_of(network: Network, inputs: Inputs, index: int) -> Tensor:
    """(b, t) outputs of a batch, detached; rejected if not finite, or dependent on the rest of the batch."""
    with torch.no_grad():
        outputs = network.outputs(inputs)
        check_finite(outputs, f"the model's outputs on batch {index}")
        network.check_pointwise(inputs, outputs)
    return outputs
