"""The fitted state: the only thing that a score of SLU is made from besides its settings, and its way to a file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slu.artifacts import stored
from slu.core.calibration_state import CalibrationState
from slu.core.distances import LayerStatistics
from slu.core.scaling import SCALINGS, Scaling
from slu.core.standard import LAYERED
from slu.parameters import Selection
from slu.sketches import Sketch
from slu.subspace import Convergence, SketchedSubspace

_ARRAYS = ("ritz_values", "residuals", "singular_values")
_CAPTURED = 1e-3  # by which a sum of eigenvalues may be above the trace
_ROUNDING = 1e-6  # of numbers that are computed again


@dataclass(frozen=True, eq=False)
class FittedState:
    """What a fit came to.

    Attributes:
        subspace: Basis in sketch space, eigenvalues, correction.
        points: n, the data points seen.
        passes: Over the data.
        seconds: That the fit took.
        trace: Of the curvature; None after Lanczos, which does not know it.
        scale: By which gradients are multiplied first, or None.
        layers: Mean and covariance of the layers' inputs; None after Lanczos, and where the network has no layers.
        calibration: The calibration points' scores, or why there are none.
    """

    subspace: SketchedSubspace
    points: int
    passes: int
    seconds: float
    trace: float | None = None
    scale: Scaling | None = None
    layers: LayerStatistics | None = None
    calibration: CalibrationState = field(default_factory=CalibrationState)

    def to_file(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain data, from which `from_file` makes the state again."""
        scores, calibration = self.calibration.to_file()
        tensors = {"basis": self.subspace.basis, **scores}
        if self.scale is not None:
            tensors["scale"] = self.scale.values
        kind = None if self.scale is None else self.scale.kind
        of_layers, layers = ({}, None) if self.layers is None else self.layers.to_file()
        return tensors | of_layers, self._facts() | {"calibration": calibration, "scale": kind, "layers": layers}

    @classmethod
    def from_file(
        cls, tensors: Mapping[str, Tensor], plain: Mapping[str, Any], selection: Selection, sketch: Sketch
    ) -> FittedState:
        """What `to_file` gave, on the device and in the type of the selected parameters.

        Raises:
            DamagedFileError: Something is missing, of another kind, not finite, or does not fit to the rest.
        """
        state = cls.unscaled(tensors, plain, sketch.shape[0], selection.device, selection.dtype)
        correction, expected = state.subspace.correction, sketch.correction(len(state.subspace.basis))
        if abs(correction - expected) > _ROUNDING * expected:
            raise stored.wrong("correction", correction, f"{expected!r}, as of the sketch")
        kind = plain["scale"]
        return state if kind is None else replace(state, scale=SCALINGS[kind].stored(tensors["scale"], selection))

    @classmethod
    def unscaled(
        cls, tensors: Mapping[str, Tensor], plain: Mapping[str, Any], sketch_size: int, device: torch.device,
        dtype: torch.dtype,
    ) -> FittedState:  # fmt: skip
        """The same without its scale: what can be read, and checked, without the network and the sketch.

        Raises:
            DamagedFileError: As of `from_file`.
        """
        convergence, kind = stored.field(plain, "convergence"), stored.field(plain, "scale")
        basis = stored.tensor(tensors, "basis", (None, sketch_size)).to(device, dtype)
        values = _eigenvalues(plain, len(basis)) if convergence is None else _ritz_values(plain, len(basis))
        correction = stored.number(plain, "correction", above=0.0)
        stored.check_orthonormal(basis, "basis")
        if kind is not None:
            stored.text(plain, "scale", SCALINGS)
            stored.tensor(tensors, "scale", (None,), above=0.0)
        layers = None if plain.get("layers") is None else stored.table(plain, "layers")
        known = None if layers is None else LayerStatistics.from_file(tensors, layers, device, dtype)
        calibration = CalibrationState.from_file(stored.table(plain, "calibration"), tensors)
        _check_layers(calibration, 0 if known is None else 2 * len(known.names))
        return cls(
            SketchedSubspace(
                basis,
                values,
                correction,
                None if convergence is None else Convergence(**_unplain(_convergence(plain))),
            ),
            points=stored.whole(plain, "points", least=1),
            passes=stored.whole(plain, "passes", least=1),
            seconds=stored.number(plain, "seconds", least=0.0),
            trace=None if convergence is not None else stored.number(plain, "trace", above=0.0),
            layers=known,
            calibration=calibration,
        )

    def numbers(self) -> dict[str, tuple[float, float]]:
        """What differs between two scores, by name, each number with the size that its rounding is measured by."""
        values, calibration = self.subspace.eigenvalues, self.calibration.calibration
        means: dict[str, Any] = {"trace": [self.trace or 0.0]}
        means |= {} if values is None else {"mean eigenvalue": values, "largest eigenvalue": values[:1]}
        scores = {} if calibration is None else calibration.scores
        means |= {f"mean of calibration scores by {name}": each for name, each in scores.items()}
        wide = {name: torch.as_tensor(each, dtype=torch.float64) for name, each in means.items()}
        numbers = {name: (float(each.mean()), float(each.abs().mean())) for name, each in wide.items()}
        return numbers | {"points of the fit": (self.points, 0.0), "directions": (len(self.subspace.basis), 0.0)}

    def diagnostics(self, rank: int) -> Diagnostics:
        """A report for people, of a fit that was asked for `rank` directions."""
        return Diagnostics.of(self._facts(), rank, len(self.subspace.basis))

    def _facts(self) -> dict[str, Any]:
        subspace = self.subspace
        return {
            "correction": subspace.correction,
            "eigenvalues": None if subspace.eigenvalues is None else subspace.eigenvalues.tolist(),
            "trace": self.trace,
            "points": self.points,
            "passes": self.passes,
            "seconds": self.seconds,
            "convergence": None if subspace.convergence is None else _plain(asdict(subspace.convergence)),
        }


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """How a fit went and how far to trust it: a report for people, from which nothing is computed.

    Attributes:
        steps: Lanczos steps taken; after a single pass the directions asked for.
        effective_rank: r, the directions that the score projects out.
        ghosts, null, orthogonality, exhausted, residuals, singular_values: As of `slu.subspace.Convergence`; NaN and
            empty after a single pass, which has none of them.
        ritz_values: (r,) eigenvalues of the curvature, largest magnitude first.
        points, passes, seconds: Of the fit: n, passes over the data, time.
        captured: Of the curvature's trace the share that lies in the subspace; NaN after Lanczos.
    """

    steps: int
    effective_rank: int
    ghosts: int
    null: int
    orthogonality: float
    exhausted: bool
    ritz_values: np.ndarray
    residuals: np.ndarray
    singular_values: np.ndarray
    points: int
    passes: int
    seconds: float
    captured: float

    @classmethod
    def of(cls, facts: Mapping[str, Any], rank: int, effective_rank: int) -> Diagnostics:
        """From what a file says of a fitted state beside its tensors; DamagedFileError where it cannot."""
        of_fit = {
            "points": stored.whole(facts, "points", least=1),
            "passes": stored.whole(facts, "passes", least=1),
            "seconds": stored.number(facts, "seconds", least=0.0),
        }
        if stored.field(facts, "convergence") is not None:
            return cls(effective_rank=effective_rank, captured=math.nan, **of_fit, **_unplain(_convergence(facts)))
        values = _eigenvalues(facts, effective_rank)
        return cls(
            steps=rank,
            effective_rank=effective_rank,
            ghosts=0,
            null=rank - effective_rank,
            orthogonality=math.nan,
            exhausted=False,
            ritz_values=values,
            residuals=np.full(len(values), np.nan),
            singular_values=np.empty(0),
            captured=float(values.sum()) / facts["trace"],
            **of_fit,
        )

    def __str__(self) -> str:
        lines = self._of_one_pass() if math.isfinite(self.captured) else self._of_lanczos()
        passes = f"{self.passes} pass" + ("es" if self.passes != 1 else "")
        lines["data"] = f"{self.points} points, {passes}, {self.seconds:.1f} s"
        return "\n".join(f"{name:<16}{text}" for name, text in lines.items())

    def _of_lanczos(self) -> dict[str, str]:
        converged = int((self.residuals <= 0.01 * np.abs(self.ritz_values)).sum())
        ended = ", the Krylov space was exhausted" if self.exhausted else ""
        return {
            "effective rank": f"{self.effective_rank} of {self.steps} steps{ended}",
            "lost": f"{self.ghosts} ghosts, {self.null} directions without curvature",
            "orthogonality": f"largest cosine {self.orthogonality:.2g} between Lanczos vectors",
            "Ritz values": f"{self.ritz_values[0]:.4g} down to {self.ritz_values[-1]:.4g}, {converged} within 1 %",
        }

    def _of_one_pass(self) -> dict[str, str]:
        return {
            "effective rank": f"{self.effective_rank} of {self.steps}",
            "captured": f"{self.captured:.1%} of the curvature's trace",
            "Ritz values": f"{self.ritz_values[0]:.4g} down to {self.ritz_values[-1]:.4g}",
        }


def _eigenvalues(plain: Mapping[str, Any], count: int) -> np.ndarray:
    """Of a single pass: above 0, largest first, and together at most the trace."""
    values, trace = np.array(stored.numbers(plain, "eigenvalues", count)), stored.number(plain, "trace", above=0.0)
    if not (values > 0).all() or (np.diff(values) > 0).any() or values.sum() > (1 + _CAPTURED) * trace:
        raise stored.wrong(
            "eigenvalues", values.tolist(), f"numbers above 0, largest first, of at most {trace:g} in all"
        )
    return values


def _ritz_values(plain: Mapping[str, Any], count: int) -> np.ndarray | None:
    """Of Lanczos; None where `keep` mixed the directions."""
    values = stored.field(plain, "eigenvalues")
    return None if values is None else np.array(stored.numbers(plain, "eigenvalues", count))


def _convergence(plain: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says of the convergence of Lanczos; a report, from which nothing is computed."""
    said = stored.table(plain, "convergence")
    steps = stored.whole(said, "steps", least=1)
    counts = {name: stored.whole(said, name, most=steps) for name in ("ghosts", "null")}
    lists = {name: stored.items(said, name) for name in _ARRAYS}
    for name in _ARRAYS:
        stored.numbers(said, name, len(lists["ritz_values"] if name == "residuals" else lists[name]), unknown=True)
    if not lists["ritz_values"]:
        raise stored.wrong("ritz_values", [], "at least one")
    if (orthogonality := said.get("orthogonality")) is not None:
        stored.number(said, "orthogonality")
    exhausted = stored.truth(said, "exhausted")
    return {"steps": steps, **counts, **lists, "orthogonality": orthogonality, "exhausted": exhausted}


def _check_layers(state: CalibrationState, distances: int) -> None:
    """Refuse a calibration in a file whose state has so many distances, where it is of others."""
    every = () if state.calibration is None else (state.calibration, *state.others.values())
    for standard in [each.standard for each in every]:
        scales = [] if standard.layers is None else standard.layers.scales
        if (scales or set(LAYERED) & standard.scales.keys()) and (len(scales) != distances or not scales):
            raise stored.wrong("layers", f"{distances} distances", f"the {len(scales)} that are calibrated")


def _unplain(convergence: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `Convergence` from what `_plain` gave; None comes back as NaN."""
    arrays = {name: _array(convergence[name]) for name in _ARRAYS}
    (orthogonality,) = _array([convergence["orthogonality"]]).tolist()
    return {**convergence, **arrays, "orthogonality": orthogonality}


def _array(values: Any) -> np.ndarray:
    """Numbers from what `_plain` gave; None comes back as NaN."""
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _plain(value: Any) -> Any:
    """Plain numbers and lists, for a header, which holds finite numbers only: None for the others."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
