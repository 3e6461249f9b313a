"""The fitted score of SLU: settings and a fitted state, and what can be asked of an input."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor

from slu.artifacts import artifact
from slu.checks import one_of
from slu.core.calibration import Calibration
from slu.core.calibration_state import CalibrationState
from slu.core.concerns import DEFAULT_RATE, MOST_POINTS, check_share
from slu.core.directions import ALL, Outputs, check_outputs, check_query
from slu.core.distances import LayerStatistics
from slu.core.explain import Explanation, explain
from slu.core.positions import check_reduction
from slu.core.readout import READINGS, Readout, check_reading, readings_for
from slu.core.report import CostReport, query_cost
from slu.core.scaling import Scaling, sketch_rows, unformed
from slu.core.settings import Settings
from slu.core.solvers import Stream
from slu.core.split import recalibrated, shards, split
from slu.core.standard import COMBINED, LAYERED
from slu.core.state import Diagnostics, FittedState
from slu.core.trust import PredictionSums
from slu.core.witness import to_file
from slu.data import known_points
from slu.errors import SettingError
from slu.gradients import PerExampleGradients, Rows
from slu.parameters import KnownWeights
from slu.processes import Processes, gathering
from slu.sketches import Sketch

_UNCALIBRATED = "fisher"  # the default where there are no calibration points to combine readings by


class SluScore:
    """A fitted score: call it on inputs; larger means less sure. Made by `SLU.fit`.

    It belongs to the weights it was fitted on: after the model was trained further, a query is refused.

    Attributes:
        settings: What it was fitted with.
        state: What the fit came to: basis, eigenvalues, scale, calibration; its points stay in memory, not in a file.
        sketch, readout: S, and what measures the gradients of inputs.
        weights, check_weights: The network's fingerprint; whether a query is refused where that has changed.
    """

    def __init__(
        self, settings: Settings, sketch: Sketch, state: FittedState, *,
        weights: dict[str, str] | None = None, check_weights: bool = True,
    ) -> None:  # fmt: skip
        self.settings, self.sketch, self.state = settings, sketch, state
        self._known = KnownWeights(settings.network.model, weights)  # now: later it may have been trained further
        self.check_weights, self.weights = check_weights, self._known.fingerprint
        network, likelihood, factors = settings.network, settings.likelihood, unformed(state.scale, sketch)
        gradients = PerExampleGradients(network, settings.gradient_memory, unformed=factors)
        self.readout = Readout(network, likelihood, gradients, self._measure, self._open, self._layers, settings.seed)

    @property
    def readings(self) -> tuple[str, ...]:
        """The names that `reading=` takes; the first is the default."""
        scales = () if self.calibration is None else (*self.calibration.standard.scales, COMBINED)
        names = (*readings_for(self.settings.likelihood), *(name for name in (*LAYERED, COMBINED) if name in scales))
        usual = _UNCALIBRATED if self.calibration is None else COMBINED
        return (usual, *(name for name in names if name != usual))

    @property
    def calibration(self) -> Calibration | None:
        """The scores of points that the fit has not seen; None where there are none."""
        return self.state.calibration.calibration

    @property
    def scale(self) -> Scaling | None:
        """By which gradients are multiplied first, or None; `SLU(scale=...)` takes it."""
        return self.state.scale

    @property
    def diagnostics(self) -> Diagnostics:
        """Effective rank, ghosts, orthogonality, Ritz values, residuals, passes, seconds: print it."""
        return self.state.diagnostics(self.settings.rank)

    def save(self, path: str | Path) -> None:
        """Write the score to one file, atomically, tied to the exact weights it was fitted on.

        Cost: s·r numbers and a header; the sketch goes in as its few settings, not as numbers.
        """
        settings, (tensors, state) = self.settings, to_file(self.settings, self.sketch, self.state)
        given = settings.network, settings.likelihood, settings.header(), tensors
        artifact.save(path, "SLU", *given, weights=self.weights, state=state)

    @torch.inference_mode(False)
    def partial_fit(
        self, loader: Any, *, calibration: Any = None, group: Any = None, progress: bool | None = None
    ) -> SluScore:
        """Learn from more data, as if they had been in the fit; changes this score and returns it.

        The result is that of one fit up to what the fit so far had cut off. A scale stays as it was. Calibration
        points are scored anew, for the subspace has moved.

        Args:
            loader: As of `SLU.fit`. Points that the fit would have held out are held out here as well.
            calibration: None to go on as the fit began: with the points it held out and those held out now, or with
                the points it was given; of a loaded score (it warns) only those of this call. Or as of `SLU.fit`.
            group, progress: As of `SLU.fit`; every process has the same score, and its part of the data.

        Raises:
            SettingError: The score was fitted by Lanczos, which knows no more than its subspace.

        Cost: one pass over the new data, and one gradient per calibration point, old and new; memory as for the fit.
        """
        settings, before, processes = self.settings, self.state.calibration, Processes(group)
        progress = progress if processes.rank == 0 else False
        with processes.together("partial_fit"):
            self.check_network()
            if not isinstance(settings.solver, Stream):
                raise SettingError("only a fit with solver='stream' can go on; fit with it, or anew on all data")
            loader, calibration, part = shards(settings, loader, calibration, processes, score=self)
            parts = split(settings, loader, calibration, before=before, processes=processes).prepared()
            state = settings.solver.solve_more(settings, parts.data, self.sketch, self.state, progress, processes, part)
            chosen = parts.chosen()
            # Scores under the subspace before it mean nothing now, whatever happens next.
            self.state = dataclasses.replace(state, calibration=CalibrationState.while_calibrating(chosen.held_out))
            calibration = parts.calibrated(self.read_uncalibrated, chosen, progress)
            self.state = dataclasses.replace(state, calibration=calibration)
            if processes.rank == 0:
                calibration.warn(before, stacklevel=4)
        return self

    @torch.inference_mode(False)
    def calibrate(
        self, loader: Any, *, held_out: bool = False, outputs: Outputs | None = None, group: Any = None,
        progress: bool | None = None,
    ) -> SluScore:  # fmt: skip
        """Calibrate on other points than before, as after merging; changes this score and returns it.

        Args:
            loader: Points like those that will be asked about, none of them in the fit; at most 1,000 are used.
            held_out: Whether it has the data of the fit, with targets that it used: what that held out counts, and a
                warning says how many of these points are missing.
            outputs: Which rows of the points are measured, as of a call; the combined reading measures the same from
                now on. None for those of the calibration so far, one leading direction if there is none.
            group, progress: As of `SLU.fit`.

        Raises:
            SettingError, DataError: Nothing was held out, or none of these points.

        Cost: one pass over the data; as many gradients per calibration point as rows are measured, by default one.
        """
        settings, before, processes = self.settings, self.state.calibration, Processes(group)
        progress = progress if processes.rank == 0 else False
        with processes.together(f"calibrate(held_out={held_out})"):
            self.check_network()
            rows = before.outputs if outputs is None else check_outputs(outputs)
            loader, _, _ = shards(settings, loader, False, processes, score=self, outputs=rows)
            how = {"held_out": held_out, "outputs": rows, "progress": progress, "processes": processes}
            calibration = recalibrated(self.read_uncalibrated, settings, loader, before, **how)
            self.state = dataclasses.replace(self.state, calibration=calibration)
            if processes.rank == 0:
                calibration.warn(stacklevel=4)
        return self

    def pvalue(
        self, data: Any, *, reading: str | None = None, outputs: Outputs | None = None, reduce: str | None = None,
        gather: bool = False, group: Any = None, progress: bool | None = None,
    ) -> Tensor:  # fmt: skip
        """(b,) how rare such a score is: (1 + calibration points at least as unsure) / (1 + all), never 0.

        Of fresh points like those of the calibration a share of at most α comes to at most α, in any batch the same.
        Held-out points are like them if the network does about as well on fresh data as in training.

        Args:
            data, reading, outputs, reduce, gather, group, progress: As of a call. For other rows than the score is
                calibrated with, or reduced positions, the calibration points are first scored in the same way, once.

        Raises:
            SettingError: The score is not calibrated, or was loaded and is calibrated with other rows.
        """
        with gathering("pvalue", gather, group, reading=reading, outputs=outputs, reduce=reduce) as processes:
            calibration, name, rows = self._calibrated(reading, outputs, "a p-value", progress, reduce)
            how = {"reduce": reduce, "progress": progress, "processes": processes}
            read = self._read(data, [name], rows, near=calibration.edges(name).near, **how)
        return calibration.pvalue(read[name][0], name)

    def flag(
        self, data: Any, *, false_alarms: float = DEFAULT_RATE, reading: str | None = None,
        outputs: Outputs | None = None, reduce: str | None = None, gather: bool = False, group: Any = None,
        progress: bool | None = None,
    ) -> Tensor:  # fmt: skip
        """(b,) True: do not trust. Of points like those of the calibration about this share is flagged.

        Args:
            data, reading, outputs, reduce, gather, group, progress: As of `pvalue`.
            false_alarms: The rate; p-values up to it are flagged. At 5 % and above, of which `fit` warns where it has
                too few points for it, none are flagged then but points that are not finite.

        Raises:
            SettingError: As of `pvalue`; or the calibration has too few points for a rate below 5 %.
        """
        asked = {"reading": reading, "outputs": outputs, "reduce": reduce, "false_alarms": false_alarms}
        with gathering("flag", gather, group, **asked) as processes:
            check_share(false_alarms)
            how = {"reduce": reduce, "progress": progress, "processes": processes}
            if self.state.calibration.none_held_out:
                name = self._named(reading)
                return self._read(data, [name], outputs, **how)[name][0].isposinf()
            calibration, name, rows = self._calibrated(reading, outputs, "a flag", progress, reduce)
            edge = calibration.edges(name).deciding(calibration.check_rate(false_alarms))
            scores = self._read(data, [name], rows, near=edge.near, **how)[name][0]
        return (edge.below(scores) > 0) | scores.isposinf()

    def threshold(
        self, false_alarms: float = DEFAULT_RATE, *, reading: str | None = None, outputs: Outputs | None = None,
        reduce: str | None = None,
    ) -> float:  # fmt: skip
        """The score above which `flag` says True, and at it not; within rounding of it `flag` scores inputs alone.

        Raises:
            SettingError: As of `flag`.
        """
        check_share(false_alarms)
        if self.state.calibration.none_held_out:
            check_reading(self._named(reading), self.settings.likelihood, None, per_output=False)
            return math.inf
        calibration, name, _ = self._calibrated(reading, outputs, "a threshold", None, reduce)
        return calibration.threshold(false_alarms, name)

    def explain(self, data: Any, *, outputs: int = 3, progress: bool | None = None) -> Explanation:
        """Why an input scores as it does: print it, or draw it with `plot(path)`.

        Args:
            data: Inputs, as of a call.
            outputs: How many of the outputs that contribute most are named.
            progress: Whether to show a bar for a loader; by default in a terminal only.

        Cost: t + 1 gradients per input: one for the readings and one per output for the contributions.
        """
        state = self.state.calibration
        self.check_network()
        given = self.readout, state.calibration, state.why, state.outputs, data, outputs
        return explain(*given, cost=self.settings.cost, progress=progress)

    def cost_report(self, data: Any) -> CostReport:
        """What the default reading of a batch, of a loader the first, takes layer by layer as measured now; print it.

        Cost: two queries and two forward passes.
        """
        energies = partial(self.state.subspace.stacked, ridge=self.settings.ridge)
        return query_cost(self.readout, self.scale, self.sketch, energies, self.state.calibration.outputs, data)

    @overload
    def __call__(
        self, data: Any, *, reading: str | None = None, outputs: Outputs | None = None, per_output: bool = False,
        return_error: Literal[False] = False, reduce: str | None = None, gather: bool = False, group: Any = None,
        progress: bool | None = None,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def __call__(
        self, data: Any, *, reading: str | None = None, outputs: Outputs | None = None, per_output: bool = False,
        return_error: Literal[True], reduce: str | None = None, gather: bool = False, group: Any = None,
        progress: bool | None = None,
    ) -> tuple[Tensor, Tensor]: ...  # fmt: skip
    def __call__(
        self, data: Any, *, reading: str | None = None, outputs: Outputs | None = None, per_output: bool = False,
        return_error: bool = False, reduce: str | None = None, gather: bool = False, group: Any = None,
        progress: bool | None = None,
    ) -> Tensor | tuple[Tensor, ...]:  # fmt: skip
        """Score one batch, or every batch of a loader in its order.

        Args:
            data: Inputs (a tensor or dict), an (inputs, targets) pair, or a loader of them.
            reading: One of `readings`, as `slu.core.readout` lists them: by default "combined" where the score is
                calibrated, "fisher" where it is not or per output. "variance" is the paper's score.
            outputs: Which rows are measured: a number of leading directions of the likelihood's Hessian H, "all"
                outputs (the exact trace), or `Probes(m)`, random mixtures that are unbiased for it. By default "all"
                for "variance" and "relative", for "combined" what the score is calibrated with, else one direction.
            per_output: One score for each row (output) instead of their trace; by the Fisher readings of a
                classifier, for each label beside the predicted one, which has 0. Measures all outputs.
            return_error: Whether to return (scores, standard errors); with `outputs=Probes(m)`, m at least 2.
            reduce: "max", "mean" or "sum" over the positions of an input that count, where outputs are of tokens or
                pixels; None for the scores of all positions.
            gather: Whether all processes of a group, each with its part of the data, get the scores of all: in the
                order of the sampler and without the copies it adds, of `DistributedSampler` and accelerate's loaders;
                of other data, and of single batches, one process' after the other's, by rank. One may have no data.
            group: Of which processes, as of `SLU.fit`.
            progress: Whether to show a bar for a loader; by default in a terminal only.

        Returns:
            (b,), or (b, t) per output, on the device the inputs came on; with `return_error` two of them. Of tokens or
            pixels (b, *positions), NaN where a position does not count (padding, the target -100). Infinity for a
            point that is not finite, or whose outputs or gradients are not; with a warning. With the ratio estimator
            the trace is formed from summed energies, so it is not exactly the sum of the scores per output.

        Cost: one forward and one backward pass by default, whatever t; m gradients and sketches per input for m
        directions or probes; t with "all". A forward pass alone for "entropy", "max-logit", "distance" and "angle".
        """
        how = {"per_output": per_output, "return_error": return_error, "reduce": reduce}
        with gathering("score", gather, group, reading=reading, outputs=outputs, **how) as processes:
            name = _UNCALIBRATED if reading is None and per_output else self._named(reading)
            read = self._read(data, [name], outputs, **how, progress=progress, processes=processes)
        return read[name] if return_error else read[name][0]

    def read_all(
        self, data: Any, *, readings: Sequence[str] | None = None, outputs: Outputs | None = None,
        return_error: bool = False, gather: bool = False, group: Any = None, progress: bool | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """(b,) scores by reading, all from the same forward pass: what one call per reading gives, up to rounding.

        Args:
            data, outputs, return_error, gather, group, progress: As of a call.
            readings: By default all that need no calibration.

        Cost: t + 1 gradients per input by default, t for the paper's readings and one for the others; with
        `outputs=m` the same m gradients serve all readings.
        """
        asked = {"outputs": outputs, "return_error": return_error}
        with gathering("read_all", gather, group, readings=readings, **asked) as processes:
            names = readings_for(self.settings.likelihood) if readings is None else tuple(map(self._named, readings))
            read = self._read(data, names, **asked, progress=progress, processes=processes)
        return {name: scores if return_error else scores[0] for name, scores in read.items()}

    def read_uncalibrated(
        self, data: Any, outputs: Outputs, progress: bool | None, predicted: PredictionSums | None = None,
        inputs: int | None = None,
    ) -> tuple[dict[str, Tensor], Tensor | None]:  # fmt: skip
        """What calibration points, of so many inputs, are scored by: readings that need none, distances (n, 2 L)."""
        readings = dict.fromkeys(readings_for(self.settings.likelihood), outputs)
        positions = -(-MOST_POINTS // max(1, inputs or known_points(data) or 1))
        return self.readout.uncalibrated(
            data, readings, predicted, positions=positions, cost=self.settings.cost, progress=progress
        )

    def _named(self, reading: str | None) -> str:
        return one_of("reading", self.readings[0] if reading is None else reading, READINGS)

    def _rows(self, reading: str, outputs: Outputs | None) -> Outputs:
        """Which rows are measured for a reading; one that measures none goes with those of the calibration."""
        if outputs is not None:
            return check_outputs(outputs)
        row, calibration = READINGS[reading], self.calibration
        return calibration.outputs if calibration is not None and (row.calibrated or not row.rows) else row.outputs

    def _calibrated(
        self, reading: str | None, outputs: Outputs | None, what: str, progress: bool | None, reduce: str | None = None
    ) -> tuple[Calibration, str, Outputs]:
        """The calibration by which a reading is judged, the reading and its rows."""
        if check_reduction(reduce) is not None:
            by, name, rows = self._calibrated(reading, outputs, what, progress)
            score = partial(self, reading=name, outputs=rows, reduce=reduce, progress=progress)
            with self.settings.network.evaluating():
                return self.state.calibration.reduced(by, name, str(reduce), score), name, rows
        name, state = self._named(reading), self.state.calibration
        rows = self._rows(name, outputs)
        if not READINGS[name].rows or rows == state.outputs:
            return state.required(f"{what} by reading={name!r}"), name, rows
        with self.settings.network.evaluating():  # threads that ask for the same choice score the points once
            return state.by(rows, f"{what} by reading={name!r}", self.read_uncalibrated, progress), name, rows

    def _read(
        self, data: Any, readings: Sequence[str], outputs: Outputs | None, *,
        per_output: bool = False, return_error: bool = False, reduce: str | None = None,
        near: Callable[[Tensor], Tensor] | None = None, progress: bool | None, processes: Processes,
    ) -> dict[str, tuple[Tensor, ...]]:  # fmt: skip
        self.check_network()
        processes.check_close(self.state.numbers, lambda: {"weights": self.weights, **self.settings.header()})
        rows = {name: ALL if per_output else self._rows(name, outputs) for name in readings}
        check_query(rows.values(), outputs, per_output, return_error, reduced=check_reduction(reduce) is not None)
        calibration = self.calibration
        for name in readings:
            if READINGS[name].calibrated and not per_output and rows[name] != getattr(calibration, "outputs", None):
                calibration = self._calibrated(name, outputs, "a score", progress)[0]
        return self.readout(
            data, rows, cost=self.settings.cost, standard=None if calibration is None else calibration.standard,
            per_output=per_output, return_error=return_error, reduce=reduce, near=near,
            progress=progress, processes=processes,
        )  # fmt: skip

    def check_network(self) -> None:
        """Refuse where the weights have changed, if that is to be checked."""
        if self.check_weights:
            self.settings.network.check_unchanged(self._known)

    def _layers(self) -> LayerStatistics | None:
        return self.state.layers

    def _measure(self, rows: Rows) -> Tensor:
        """(4, examples, vectors) energies of rows."""
        return self.state.subspace.stacked(*sketch_rows(rows, self.scale, self.sketch), self.settings.ridge)

    def _open(self, energies: Tensor) -> Tensor:
        """gᵀ M g: the part outside the subspace, by the estimator."""
        return self.state.subspace.outside(energies, self.settings.estimator, self.settings.ridge)
