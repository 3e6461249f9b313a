"""The fitted score of SLU: a basis in sketch space, and the readings of gradients against it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from slu.curvature import Pieces, SampleGradients, squared_lengths
from slu.errors import SettingError
from slu.methods import artefact
from slu.methods.checkpoint import CheckpointedRun
from slu.methods.memory import explained
from slu.methods.readings import READINGS
from slu.methods.scaling import scaled
from slu.methods.scoring import GradientReader
from slu.methods.stream_solver import StreamSolver
from slu.parameters import fingerprint
from slu.sketches import Sketch
from slu.subspace import ESTIMATORS, Diagnostics, Energies, SketchedSubspace

if TYPE_CHECKING:
    from slu.methods.slu import SLU


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
    """

    def __init__(
        self,
        method: SLU,
        sketch: Sketch,
        subspace: SketchedSubspace,
        *,
        scale: Tensor | None = None,
        weights: dict[str, str] | None = None,
    ) -> None:
        self.method = method
        self.subspace = subspace
        self.scale = scale
        # Now, not when it is saved: by then the network may have been trained further.
        self.weights = weights or fingerprint(method.network.model)
        self.sketch = sketch
        gradients = SampleGradients(method.network, method.room)
        self._read = GradientReader(method.network, method.likelihood, gradients, self._energies, self._estimate)

    @property
    def readings(self) -> tuple[str, ...]:
        """The names that `reading=` takes; the first is the default."""
        return tuple(READINGS)

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
        tensors = {"basis": subspace.basis, "probe": artefact.probe(self.sketch)}
        if self.scale is not None:
            tensors["scale"] = self.scale
        artefact.save(
            path, type(method).__name__, method.network, method.likelihood, settings, tensors, weights=self.weights
        )

    @torch.inference_mode(False)
    def partial_fit(self, loader: Any, *, progress: bool | None = None) -> SluScore:
        """Learn from more data, as if they had been in the fit; changes this score and returns it.

        What the fit so far keeps are its leading directions, so the result is that of one fit up to
        what it had cut off. A scale stays as it was.

        Raises:
            SettingError: The score was fitted by Lanczos, which knows no more than its subspace.

        Cost: one pass over the new data; memory as for the fit.
        """
        method = self.method
        if not isinstance(method.solver, StreamSolver):
            raise SettingError("only a fit with solver='stream' can go on; fit with it, or anew on all data")
        run = CheckpointedRun(None, {})
        task = method.task(loader, self.sketch, self.scale, run, progress)
        with explained("fitting SLU", method.cost(), method.network.selection.device):
            self.subspace = method.solver.solve(task, before=self.subspace)
        return self

    def __call__(
        self, data: Any, *, reading: str = "variance", per_output: bool = False, progress: bool | None = None
    ) -> Tensor:
        """Score one batch, or every batch of a loader in its order.

        Args:
            data: Inputs (a tensor or dict), an (inputs, targets) pair, or a loader of them.
            reading: "variance" (the paper's score), "relative" (that over ‖J‖²: the share the
                data do not pin down, from 0 to 1 up to the sketch's noise), "fisher" (of the
                predicted distribution instead of the outputs) or "fisher-relative".
            per_output: One score for each row (output) instead of their trace.
            progress: Whether to show a bar for a loader; by default in a terminal only.

        Returns:
            (b,), or (b, t) per output, on the device the inputs came on. With the ratio
            estimator the trace is formed from summed energies, so it is not exactly the sum of
            the scores per output.

        Cost: t gradients and t sketches an input.
        """
        return self._read(data, reading=reading, per_output=per_output, progress=progress, cost=self.method.cost())

    def _energies(self, pieces: Pieces, shape: tuple[int, int]) -> Tensor:
        """(3, samples, vectors) energies of rows: each piece is squared and sketched as it comes, and dropped."""
        basis = self.subspace.basis
        sketched = basis.new_zeros(*shape, self.sketch.shape[0])
        squared = basis.new_zeros(shape)
        for start, values in scaled(pieces, self.scale):
            squared += squared_lengths(values)
            self.sketch.accumulate(start, values, sketched)
            del values  # or it would stay while the next is put together
        found = self.subspace.energies(squared, sketched)
        return torch.stack([found.exact, found.captured, found.residual])

    def _estimate(self, energies: Tensor) -> Tensor:
        return ESTIMATORS[self.method.estimator](Energies(*energies), self.subspace.correction)
