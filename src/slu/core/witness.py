"""A fitted state on its way to a file and back, with numbers that show whether its parts belong together.

Ranges of single values cannot tell a valid one from the one that was fitted. So a file also has a probe, the sketch of
one fixed vector, and a witness: what the pure part of a score makes of fixed energies, inputs of layers, scores and
outputs. Both are computed again from what was read, and a file in which they are others is refused.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slu.artifacts import stored
from slu.core.calibration import Calibration
from slu.core.directions import ALL, Probes
from slu.core.distances import LayerStatistics
from slu.core.settings import Settings
from slu.core.state import FittedState
from slu.errors import DamagedFileError, MismatchError, NumericalError
from slu.gradients.layer_inputs import expected_sizes
from slu.likelihoods import Likelihood, describe
from slu.parameters import Selection
from slu.seeds import derived_seed, stream
from slu.sketches import Sketch, SketchSpec, build
from slu.subspace import ESTIMATORS, Energies

_CHUNK = 1 << 20  # numbers of the probe made at a time
_LATER = ("basis", "scale")  # parts that files of before do not have
_ROUNDING, _SMALL = 1e-5, 1e-8  # of a witness on another machine, of itself and of the largest number beside it

log = logging.getLogger(__name__)


def to_file(
    settings: Settings, sketch: Sketch, state: FittedState, *, estimated: bool = True
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and plain data of a state, with probe and witness.

    A checkpoint belongs to fits with any ridge and estimator, so that its witness is of the state alone.

    Raises:
        NumericalError: `from_file` would refuse them.
    """
    tensors, plain = state.to_file()
    try:
        FittedState.from_file(tensors, plain, settings.network.selection, sketch)
    except DamagedFileError as reason:
        words = str(reason).removesuffix(". Fit and save anew")
        raise NumericalError(f"the fit itself went wrong: {words}. Look for extreme inputs, and fit anew") from reason
    return tensors | {"probe": probe(sketch)}, plain | {"witness": witness(settings, state, plain, estimated)}


def from_file(
    tensors: Mapping[str, Tensor], plain: Mapping[str, Any], settings: Settings, sketch: Sketch
) -> FittedState:
    """What `to_file` gave to a checkpoint of a fit with these settings; DamagedFileError where it cannot have."""
    state = FittedState.from_file(tensors, plain, settings.network.selection, sketch)
    check_state(settings, state, plain, estimated=False)
    return state


def check_state(settings: Settings, state: FittedState, plain: Mapping[str, Any], *, estimated: bool = True) -> None:
    """Refuse a state that is not the one whose witness is in the file, or is of another rank or other layers.

    Raises:
        DamagedFileError: Naming the part that differs.
    """
    if len(state.subspace.basis) > settings.rank:
        raise stored.wrong("rank", settings.rank, f"at least {len(state.subspace.basis)}, the directions in the file")
    if (settings.scale is None) != (state.scale is None):
        raise stored.wrong("scale", state.scale and state.scale.kind, "one exactly where the settings have one")
    names = () if state.layers is None else state.layers.names
    if unknown := set(names) - expected_sizes(settings.network.model).keys():
        raise stored.wrong("names", sorted(unknown), "layers of the network")
    if "witness" not in plain:
        log.info("the file has no witness: an earlier version wrote it, and only ranges of its numbers are checked")
        return
    said, known = stored.table(plain, "witness"), witness(settings, state, plain, estimated)
    known = {name: known[name] for name in known if name in said or name not in _LATER}
    if said.keys() != known.keys():
        raise stored.wrong("witness", sorted(said), f"the parts {sorted(known)}, as of the state")
    for name, here in known.items():
        there = stored.numbers(said, name, len(here), unknown=True)
        expected, came = (torch.tensor(each, dtype=torch.float64).nan_to_num(0.0) for each in (there, _nan(here)))
        allowed = _ROUNDING * came.abs() + _SMALL * came.abs().max()
        if not bool(((expected - came).abs() <= allowed).all()):
            raise DamagedFileError(
                f"the numbers in the file do not belong together: those of the {name} give {_shown(here)}, and gave "
                f"{_shown(there)} when it was saved. Fit and save anew"
            )


def witness(
    settings: Settings, state: FittedState, plain: Mapping[str, Any], estimated: bool
) -> dict[str, list[float | None]]:
    """What the pure part of the score makes of fixed numbers, by part; None for NaN.

    `plain` is the state's own, in which also stands what is not read of a file of another rule.
    """
    values = state.subspace.eigenvalues
    subspace = [state.subspace.correction, *([] if values is None else values.tolist())]
    parts: dict[str, list[float]] = {"basis": [_summed(state.subspace.basis)]}
    parts |= {} if state.scale is None else {"scale": [_summed(state.scale.values, Tensor.log)]}
    parts |= {"subspace": subspace, "seed": [derived_seed(settings.seed, "witness") / 2**63]}
    if estimated:
        parts["estimator"] = _open_part(state, settings.ridge, settings.estimator)
    if state.layers is not None:
        parts["layers"] = _of_layers(state.layers)
    calibration = state.calibration
    if calibration.calibration is not None:
        for place, each in enumerate((calibration.calibration, *calibration.others.values())):
            parts[f"calibration {place}"] = list(_of_calibration(each))
    if {"copies", "numbers"} & plain["calibration"].keys():  # not in files of earlier versions
        parts["choice of held-out points"] = [_of_choice(plain["calibration"], calibration.held_out.numbers)]
    if describe(settings.likelihood)["name"] is not None:
        parts["likelihood"] = _of_likelihood(settings.likelihood)
    return {name: [None if each != each else each for each in part] for name, part in parts.items()}


def _summed(tensor: Tensor, of: Callable[[Tensor], Tensor] = Tensor.clone) -> float:
    """A sum with a weight for every place, of a part of the numbers at a time."""
    total = 0.0
    for place, some in enumerate(tensor.detach().reshape(-1).split(_CHUNK)):
        places = torch.arange(place * _CHUNK, place * _CHUNK + len(some), dtype=torch.float64)
        total += float(of(some.double().cpu()) @ places.cos_())
    return total


def _open_part(state: FittedState, ridge: float, estimator: str) -> list[float]:
    """How open each direction is, and the open part of a vector by the estimator."""
    openness = state.subspace.openness(ridge).double().cpu()
    squares = torch.arange(1.0, 1.0 + len(openness), dtype=torch.float64) / len(openness)
    one = torch.ones((), dtype=torch.float64)
    energies = Energies(3 * one, squares.sum(), one, squares @ openness)
    value = ESTIMATORS[estimator](energies, state.subspace.correction_with(ridge))
    return [float(value), *openness.tolist()]


def _of_layers(layers: LayerStatistics) -> list[float]:
    """Distances of inputs that depend on the layer's name, and the shapes of inputs that count."""
    sizes = zip(layers.names, layers.folding.sizes, strict=True)
    drawn = {name: torch.randn(1, size, generator=stream(0, "witness", name)) for name, size in sizes}
    distances = layers.distances({name: each.to(layers.mean.device) for name, each in drawn.items()}, 1)
    shapes = [float(each) for shape in layers.folding.shapes for each in shape]
    return [*distances[0].clamp(min=1e-300).log().tolist(), *shapes]


def _of_calibration(calibration: Calibration) -> Iterator[float]:
    """Scores 0 and others by reading, standardized and combined; what p-values come from, by reading; the rows."""
    standard, outputs = calibration.standard, calibration.outputs
    names = sorted(standard.scales)
    fixed = {name: torch.tensor([0.0, 1.0 + place], dtype=torch.float64) for place, name in enumerate(names)}
    for name in names:
        yield from standard.scales[name](fixed[name]).tolist()
    yield from standard.standardized(fixed).flatten().tolist()
    yield from standard.combined(fixed).tolist()
    if standard.layers is not None:
        distances = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, len(standard.layers.scales))
        yield from standard.layers(distances).flatten().tolist()
    yield from (float(calibration.scores[name].mean()) for name in sorted(calibration.scores))
    yield from (math.log(calibration.rounding[name]) for name in sorted(calibration.rounding))
    yield float(-outputs.count if isinstance(outputs, Probes) else 0 if outputs == ALL else outputs)


def _of_choice(plain: Mapping[str, Any], numbers: tuple[float, ...] | None) -> float:
    """A number that is another one for any other threshold, points or rule: each is exact in a file."""
    known = float(plain["held_out"]), plain.get("copies", numbers), plain.get("rule")  # of rule 2 which copies count
    return derived_seed(0, "witness", repr(known)) / 2**63


def _of_likelihood(likelihood: Likelihood) -> list[float]:
    """Its output factor, applied to a fixed vector."""
    weights = getattr(likelihood, "weights", None)
    outputs = torch.arange(3 if weights is None else len(weights), dtype=torch.float64).sin()[None]
    return likelihood.factor_product(outputs, 1 + outputs.square())[0].tolist()


def _nan(values: list[float | None]) -> list[float]:
    return [torch.nan if each is None else each for each in values]


def _shown(values: Any) -> str:
    return stored.short([None if each is None else float(f"{each:.6g}") for each in values])


def probe(sketch: Sketch) -> Tensor:
    """S applied to one fixed vector: shows whether a sketch drawn anew is the one that was fitted with."""
    total = torch.zeros(sketch.shape[0], dtype=sketch.dtype, device=sketch.device)
    for start in range(0, sketch.shape[1], _CHUNK):
        stop = min(start + _CHUNK, sketch.shape[1])
        values = torch.arange(start, stop, dtype=torch.float64).cos().to(sketch.device, sketch.dtype)
        sketch.accumulate(start, values, total)
    return total


def stored_sketch(path: str | Path, spec: SketchSpec, tensors: Mapping[str, Tensor], selection: Selection) -> Sketch:
    """The sketch of a file, drawn again.

    Raises:
        DamagedFileError: It is of another size than tensors and parameters; memory is taken for it only after that.
        MismatchError: Its draws differ from those of the fit, as another version's might.
    """
    basis, shown = (tuple(stored.field(tensors, name).shape) for name in ("basis", "probe"))
    if len(basis) != 2 or not basis[0] or basis[1] != spec.size or shown != (spec.size,):
        raise DamagedFileError(
            f"{path} does not fit together: a sketch of size {spec.size} is in its header, a basis of the shape "
            f"{basis} and a probe of the shape {shown} in the file. Fit and save anew"
        )
    if spec.parameters != selection.count:
        raise stored.wrong("the parameters of the sketch", spec.parameters, f"{selection.count}, those selected")
    sketch = build(spec, device=selection.device, dtype=selection.dtype)
    expected = stored.tensor(tensors, "probe", shown)
    drawn = probe(sketch).cpu().to(expected.dtype)
    if not float((drawn - expected).norm()) <= 1e-3 * float(expected.norm()):
        raise MismatchError(
            f"the random numbers of the sketch in {path} cannot be drawn again with torch {torch.__version__}; "
            "use the version named by `slu inspect`, or fit anew"
        )
    return sketch
