"""The fitted score of SLU: a basis in sketch space, and the readings of gradients against it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from slu.artifacts import artifact as artefact
from slu.budgets.memory import explain_out_of_memory
from slu.core.calibrating import Reference, recalibrated, split
from slu.core.calibration import COMBINED, COORDINATES, Calibration
from slu.core.checkpoint import CheckpointedRun
from slu.core.explain import Explanation, explained_inputs
from slu.core.readings import READINGS
from slu.core.scaling import scaled
from slu.core.scoring import GradientReader
from slu.core.solvers.stream import StreamSolver
from slu.core.together import read_together
from slu.errors import SettingError, unknown
from slu.gradients import PerExampleGradients, Pieces, squared_lengths
from slu.parameters import fingerprint
from slu.sketches import Sketch
from slu.subspace import ESTIMATORS, Diagnostics, Energies, SketchedSubspace

if TYPE_CHECKING:
    from slu.core.slu import SLU


_UNCALIBRATED = "fisher"  # the default where there are no calibration points to combine two readings by
_MIXED = 1 << 18  # numbers of gradients combined at a time


class SluScore:
    """A fitted score: call it on inputs; larger means less sure. Made by `SLU.fit`.

    It belongs to the weights it was fitted on and calls the model it was given: train that model
    further and the scores mean nothing; fit anew.

    Attributes:
        method: The settings it was fitted with.
        subspace: The basis in sketch space.
        scale: (p,) factors by which gradients are multiplied first, or None.
        sketch: S.
        weights: The fingerprint of the network.
        reference: What it is calibrated on. The points themselves, at most 1,000, stay in the memory of the process
            that fitted, for `partial_fit` and merging to score them anew; a file has their scores alone.
    """

    def __init__(
        self,
        method: SLU,
        sketch: Sketch,
        subspace: SketchedSubspace,
        *,
        scale: Tensor | None = None,
        weights: dict[str, str] | None = None,
        reference: Reference | None = None,
    ) -> None:
        self.method = method
        self.subspace = subspace
        self.scale = scale
        # Now, not when it is saved: by then the network may have been trained further.
        self.weights = weights or fingerprint(method.network.model)
        self.sketch = sketch
        self.reference = reference or Reference.none("it was put together by hand")
        gradients = PerExampleGradients(method.network, method.room)
        self._read = GradientReader(method.network, method.likelihood, gradients, self._energies, self._estimate)

    @property
    def readings(self) -> tuple[str, ...]:
        """The names that `reading=` takes; the first is the default: "combined" where calibrated, else "fisher"."""
        usual = _UNCALIBRATED if self.calibration is None else COMBINED
        return (usual, *(name for name in READINGS if name != usual))

    @property
    def calibration(self) -> Calibration | None:
        """The scores of points that the fit has not seen; None where there are none."""
        return self.reference.calibration

    @property
    def diagnostics(self) -> Diagnostics:
        """Effective rank, ghosts, orthogonality, Ritz values, residuals, passes, seconds."""
        return self.subspace.diagnostics

    def save(self, path: str | Path) -> None:
        """Write the score to one file, atomically, tied to the exact weights it was fitted on.

        Cost: s·r numbers and a header; the sketch goes in as its few settings, not as numbers.
        """
        method, subspace = self.method, self.subspace
        settings = {
            **method.settings(),
            "correction": subspace.correction,
            "diagnostics": subspace.diagnostics.plain(),
        }
        calibration, settings["calibration"] = self.reference.stored()
        tensors = calibration | {"basis": subspace.basis, "probe": artefact.probe(self.sketch)}
        if self.scale is not None:
            tensors["scale"] = self.scale
        artefact.save(
            path, type(method).__name__, method.network, method.likelihood, settings, tensors, weights=self.weights
        )

    @torch.inference_mode(False)
    def partial_fit(self, loader: Any, *, calibration: Any = None, progress: bool | None = None) -> SluScore:
        """Learn from more data, as if they had been in the fit; changes this score and returns it.

        What the fit so far keeps are its leading directions, so the result is that of one fit up to
        what it had cut off. A scale stays as it was. Calibration points are scored anew, for the
        subspace has moved.

        Args:
            loader: As of `SLU.fit`. Points that the fit would have held out are held out here as well.
            calibration: None to go on as the fit began: with the points it held out and those held out
                now, or with the points it was given. Of a score that was loaded only the points of this
                call are at hand. Otherwise as of `SLU.fit`.
            progress: Whether to show a bar; by default in a terminal only.

        Raises:
            SettingError: The score was fitted by Lanczos, which knows no more than its subspace.

        Cost: one pass over the new data, and t gradients for each calibration point, old and new; memory as
        for the fit.
        """
        method = self.method
        if not isinstance(method.solver, StreamSolver):
            raise SettingError("only a fit with solver='stream' can go on; fit with it, or anew on all data")
        run = CheckpointedRun(None, {})
        parts = split(method.network, loader, calibration, method.seed, self.reference).prepared()
        task = method.task(parts.data, self.sketch, self.scale, run, progress)
        with explain_out_of_memory("fitting SLU", method.cost, method.network.selection.device):
            self.subspace = method.solver.solve(task, before=self.subspace)
        # Scores under the subspace before it mean nothing now, whatever happens next.
        self.reference = Reference.while_calibrating(parts.held_out)
        self.reference = parts.reference(self.read_all, progress)
        return self

    @torch.inference_mode(False)
    def calibrate(self, loader: Any, *, held_out: bool = False, progress: bool | None = None) -> SluScore:
        """Calibrate on other points than before, as after merging; changes this score and returns it.

        Args:
            loader: Points like those that will be asked about, none of them in the fit; where there are more than
                1,000, these are chosen by their content.
            held_out: Whether the loader has the data of the fit: then only points count that it held out.
            progress: Whether to show a bar; by default in a terminal only.

        Raises:
            SettingError: Nothing was held out.
            DataError: None of the points was held out, or there is none.

        Cost: one pass over the data; t gradients for each calibration point, as of `__call__`.
        """
        self.reference = recalibrated(self, loader, held_out, progress)
        return self

    def pvalue(self, data: Any, *, reading: str | None = None, progress: bool | None = None) -> Tensor:
        """(b,) how rare such a score is: (1 + calibration points at least as unsure) / (1 + all), never 0.

        Of fresh points of the calibration points' kind a share of at most α comes to at most α. Held-out points
        of the fit are of that kind for a network that does about as well on fresh data as in training; else
        calibrate on points it was not trained on.

        Args:
            data, reading, progress: As of a call.

        Raises:
            SettingError: The score is not calibrated; the message says why and what to do.
        """
        reading = self._named(reading)
        calibration = self.reference.needed("a p-value")
        return calibration.pvalue(self(data, reading=reading, progress=progress), reading)

    def flag(
        self, data: Any, *, false_alarms: float = 0.05, reading: str | None = None, progress: bool | None = None
    ) -> Tensor:
        """(b,) True: do not trust. Of points like those of the calibration about this share is flagged.

        Args:
            data, reading, progress: As of a call.
            false_alarms: The rate; p-values up to it are flagged.

        Raises:
            SettingError: The score is not calibrated, or on too few points for the rate.
        """
        rate = self.reference.needed("a flag").check_rate(false_alarms)
        return self.pvalue(data, reading=reading, progress=progress) <= rate

    def threshold(self, false_alarms: float = 0.05, *, reading: str | None = None) -> float:
        """The score above which `flag` says True, and at which it does not.

        Raises:
            SettingError: As of `flag`.
        """
        return self.reference.needed("a threshold").threshold(false_alarms, self._named(reading))

    def explain(self, data: Any, *, outputs: int = 3, progress: bool | None = None) -> Explanation:
        """Why an input scores as it does: print it, or draw it with `plot(path)`.

        Args:
            data: Inputs, as of a call.
            outputs: How many of the outputs that contribute most are named.
            progress: Whether to show a bar for a loader; by default in a terminal only.

        Cost: t gradients an input.
        """
        return explained_inputs(self, data, outputs, progress)

    def __call__(
        self, data: Any, *, reading: str | None = None, per_output: bool = False, progress: bool | None = None
    ) -> Tensor:
        """Score one batch, or every batch of a loader in its order.

        Args:
            data: Inputs (a tensor or dict), an (inputs, targets) pair, or a loader of them.
            reading: "variance" (the paper's score), "relative" (that over ‖J‖²: the share the
                data do not pin down, from 0 to 1 up to the sketch's noise), "fisher" (of the
                predicted distribution instead of the outputs), "fisher-relative", or "combined" (the
                last two's logarithms, standardized on calibration points and added; float64). By
                default the last where the score is calibrated, and "fisher" where it is not or per output.
            per_output: One score for each row (output) instead of their trace; by the Fisher readings of a
                classifier, for each label beside the predicted one, which has 0.
            progress: Whether to show a bar for a loader; by default in a terminal only.

        Returns:
            (b,), or (b, t) per output, on the device the inputs came on. With the ratio
            estimator the trace is formed from summed energies, so it is not exactly the sum of
            the scores per output.

        Cost: t gradients and t sketches an input.
        """
        reading = _UNCALIBRATED if reading is None and per_output else self._named(reading)
        if reading == COMBINED:
            if per_output:
                raise SettingError("the combined reading is one number an input; use reading='fisher' per output")
            return self.reference.needed("the combined reading").standard(
                self.read_all(data, readings=COORDINATES, progress=progress)
            )
        return self._read(data, reading=reading, per_output=per_output, progress=progress, cost=self.method.cost)

    def read_all(
        self, data: Any, *, readings: Sequence[str] = tuple(READINGS), progress: bool | None = None
    ) -> dict[str, Tensor]:
        """(b,) scores by reading, all from the same gradients: what one call a reading gives, up to rounding.

        Args:
            data, progress: As of a call.
            readings: Some of the four that need no calibration.

        Cost: t gradients an input; 2 t where there are more than 32 outputs or no room for t gradients.
        """
        for reading in readings:
            if reading not in READINGS:
                raise unknown("reading", reading, READINGS)
        cost = self.method.cost
        return read_together(self._read, data, readings, self._energies_of_both, cost=cost, progress=progress)

    def _named(self, reading: str | None) -> str:
        reading = self.readings[0] if reading is None else reading
        if reading not in (*READINGS, COMBINED):
            raise unknown("reading", reading, (*READINGS, COMBINED))
        return reading

    def _energies_of_both(self, pieces: Pieces, shape: tuple[int, int], mixing: Tensor) -> Tensor:
        """(2, 4, samples, vectors) energies of rows, and of their combinations (samples, vectors, vectors)."""
        basis = self.subspace.basis
        mixing = mixing.to(basis.dtype)
        sketched = basis.new_zeros(*shape, self.sketch.shape[0])
        squared = basis.new_zeros(2, *shape)
        for start, values in scaled(pieces, self.scale):
            squared[0] += squared_lengths(values)
            width = max(1, _MIXED // (shape[0] * shape[1]))
            for part in values.split(width, -1):
                squared[1] += squared_lengths(mixing @ part)
            self.sketch.accumulate(start, values, sketched)
            del values  # or it would stay while the next is put together
        found = self._split(squared[0], sketched)
        return torch.stack([found, self._split(squared[1], mixing @ sketched)])

    def _energies(self, pieces: Pieces, shape: tuple[int, int]) -> Tensor:
        """(4, samples, vectors) energies of rows: each piece is squared and sketched as it comes, and dropped."""
        basis = self.subspace.basis
        sketched = basis.new_zeros(*shape, self.sketch.shape[0])
        squared = basis.new_zeros(shape)
        for start, values in scaled(pieces, self.scale):
            squared += squared_lengths(values)
            self.sketch.accumulate(start, values, sketched)
            del values  # or it would stay while the next is put together
        return self._split(squared, sketched)

    def _split(self, squared: Tensor, sketched: Tensor) -> Tensor:
        """(4, ...) energies of rows that are known by squared length and sketch."""
        found = self.subspace.energies(squared, sketched, self.method.ridge)
        return torch.stack([found.exact, found.captured, found.residual, found.reopened])

    def _estimate(self, energies: Tensor) -> Tensor:
        correction = self.subspace.correction_with(self.method.ridge)
        return ESTIMATORS[self.method.estimator](Energies(*energies), correction)
