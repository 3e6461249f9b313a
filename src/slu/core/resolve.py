"""From what a user gave to `SLU` to its settings: what was given, checked, and what was left open, settled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from slu.budgets import Amount, Budget, Fixed, parse, shape_for, size_of
from slu.budgets.memory import check_budget, check_fits, free_bytes, numbers_within
from slu.budgets.rule import smallest
from slu.checks import share, whole
from slu.core.distances import MOST_NUMBERS, SHARE, Folding, expected_layers
from slu.core.scales import AUTO, OwnScale, ScaleChoice, choose_scale
from slu.core.settings import Settings
from slu.core.solvers import SOLVERS, Lanczos, Stream
from slu.curvature import CURVATURES
from slu.errors import BudgetError, SettingError, unknown
from slu.gradients import Forward, Network
from slu.likelihoods import Likelihood, resolve
from slu.parameters import Choice, select
from slu.sketches import DEFAULT_SKETCH, SketchSpec, checked
from slu.subspace import ESTIMATORS

USUAL_BUDGET = "3p"
"""What counts where neither rank nor budget is given: the paper's budget."""

LEAST_FLOATS = 50_000
"""But not less than this beside the layers, 200 kB: three copies of a tiny network hold three directions."""

MOST_FLOATS, MOST_SIZE = 150_000, 3000
"""Nor more than this beside the scale and the layers, 0.6 MB: 50 directions and a sketch of 3,000, whose noise is 2.6 %
of a score. With one gradient per input that noise counts. On a network for CIFAR-10 (mean AUROC of three draws): 100
directions of 2,000 numbers have .810, 50 of 2,000 .814, of 3,000 .823, of 4,000 .817; without a sketch 25 to 191
directions have .829 to .815. A longer sketch costs a query more: an encoder of ten million parameters 4.1 forwards at
2,000, 4.5 at 3,000 and 33 at 20,000."""

USUAL_RIDGE = 0.01
"""Beside a hard projection's mean AUROC 0.02 to 0.14 above on CIFAR-10, up to 0.02 below elsewhere."""

_USUAL_SKETCH_SIZE = 1000


def resolve_settings(
    model: nn.Module,
    likelihood: str | Likelihood,
    *,
    rank: int | None,
    sketch_size: int | None,
    budget: Budget | None,
    params: Choice,
    sketch: str | SketchSpec | None,
    solver: str | Stream | Lanczos | None,
    scale: ScaleChoice,
    ridge: float | str,
    curvature: str,
    estimator: str,
    memory: Budget | None,
    forward: Forward | None,
    seed: int,
) -> Settings:
    """The settings from what the user gave to `SLU`.

    Raises:
        SettingError, BudgetError, ModelError: Something that cannot work; the message says what would.
    """
    rank = None if rank is None else whole("the rank", rank)
    sketch_size = None if sketch_size is None else whole("sketch_size", sketch_size)
    network, likelihood = subject(model, likelihood, params, forward, positions=True)
    selection = network.selection
    own_scale = choose_scale(scale, curvature)
    if isinstance(own_scale, OwnScale):
        own_scale = OwnScale(own_scale.scaling.on(selection))
    layers = choose_layers(network, solver, curvature, budget, seed)
    request = SizeRequest(
        rank,
        sketch_size,
        budget,
        sketch=sketch,
        reserved=0 if own_scale is None else own_scale.numbers(size_of(selection, outputs=1)),
        layers=layers.numbers,
        layout=selection.matrices,
    )
    sizes = resolve_sizes(request, selection.count, selection.dtype.itemsize, seed)
    if estimator not in ESTIMATORS:
        raise unknown("estimator", estimator, ESTIMATORS)
    if curvature not in CURVATURES:
        raise unknown("curvature", curvature, CURVATURES)
    gradient_memory = numbers_within(memory, selection)
    own_solver = choose_solver(solver, sizes.rank, curvature)
    settings = Settings(
        network,
        likelihood,
        rank=sizes.rank,
        rank_given=rank is not None,
        sketch=sizes.sketch,
        solver=own_solver,
        scale=own_scale,
        estimator=estimator,
        ridge=choose_ridge(ridge, own_solver, curvature),
        curvature=curvature,
        gradient_memory=gradient_memory,
        seed=whole("the seed", seed),
        layers=layers if sizes.layers else layers.none(),
    )
    if sizes.amount is not None:
        free = free_bytes(selection.device)
        check_budget(sizes.amount, selection.dtype.itemsize, free)
        check_fits(sizes.amount, settings.cost(), free, own_solver.growth(sizes.rank))
    return settings


def subject(
    model: nn.Module, likelihood: str | Likelihood, params: Choice, forward: Forward | None, *, positions: bool = False
) -> tuple[Network, Likelihood]:
    """The network that is differentiated and what its outputs mean, from what the user gave.

    `positions`: whether its outputs may be those of tokens or pixels.
    """
    return Network(model, select(model, params), forward, positions=positions), resolve(likelihood)


def choose_solver(solver: str | Stream | Lanczos | None, rank: int, curvature: str) -> Stream | Lanczos:
    """The solver from what the user gave: by default one pass, and Lanczos for the Hessian, which has no root.

    Raises:
        SettingError: An unknown name, or a solver that suits neither the rank nor the curvature.
    """
    if solver is None:
        solver = Lanczos() if curvature == "hessian" else Stream()
    if isinstance(solver, str) and solver in SOLVERS:
        solver = SOLVERS[solver]()
    if not isinstance(solver, Stream | Lanczos):
        raise unknown("solver", solver, [*SOLVERS, "Stream(...)", "Lanczos(...)"])
    return solver.for_fit(rank, curvature)


def choose_layers(network: Network, solver: Any, curvature: str, budget: Budget | None, seed: int) -> Folding:
    """The layers whose inputs are kept: none by Lanczos, whose passes do not show them."""
    if solver == "lanczos" or isinstance(solver, Lanczos) or (solver is None and curvature == "hessian"):
        return expected_layers(network, 0, seed)
    selection = network.selection
    allowed = MOST_NUMBERS
    if budget is not None:
        allowed = int(SHARE * parse(budget, selection.count, selection.dtype.itemsize).floats)
    return expected_layers(network, allowed, seed)


def choose_ridge(ridge: Any, solver: Stream | Lanczos, curvature: str) -> float:
    """The ridge that was given, or the usual one; none beside keep=, which knows no eigenvalues, nor for the Hessian.

    A Hessian may have negative eigenvalues, with which α / (|λ| + α) is no posterior variance.

    Raises:
        SettingError: No share, or one that was given beside keep=.
    """
    keeps = isinstance(solver, Lanczos) and solver.keep is not None
    if isinstance(ridge, str) and ridge == AUTO:
        return 0.0 if keeps or curvature == "hessian" else USUAL_RIDGE
    given = share("ridge", ridge)
    if given and keeps:
        raise SettingError("a ridge needs an eigenvalue of every direction, which keep= has not; leave one out")
    return given


@dataclass(frozen=True)
class SizeRequest:
    """What the user said about sizes; None where they said nothing.

    `reserved` numbers of a budget are spoken for, and those of `layers` where they leave enough for the rest; `layout`
    has every tensor's shape as a matrix.
    """

    rank: int | None = None
    sketch_size: int | None = None
    budget: Budget | None = None
    data_rank: int | None = None
    sketch: str | SketchSpec | None = None
    reserved: int = 0
    layers: int = 0
    layout: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Sizes:
    """What it comes to.

    Attributes:
        rank: k.
        sketch: The sketch's spec, checked.
        amount: The budget, where it decided something.
        layers: Whether there is room for the layers.
    """

    rank: int
    sketch: SketchSpec
    amount: Amount | None
    layers: bool = True


def resolve_sizes(asked: SizeRequest, parameters: int, bytes_each: int, seed: int) -> Sizes:
    """Rank and sketch: what was given is kept, a budget sets the rest.

    A rank alone goes with the usual sketch size. Without a rank a budget decides, the usual one
    unless one is given. A budget that is too small for the layers beside the rest has none of them.

    Raises:
        BudgetError: The budget cannot be read or does not hold what was given.
        SettingError: Sizes that cannot work, or an unknown sketch.
    """
    try:
        return _sizes(asked, parameters, bytes_each, seed)
    except BudgetError:
        if not asked.layers:
            raise
        return replace(_sizes(replace(asked, layers=0), parameters, bytes_each, seed), layers=False)


def _sizes(asked: SizeRequest, parameters: int, bytes_each: int, seed: int) -> Sizes:
    if asked.rank is not None and asked.rank < 1:
        raise SettingError(f"the rank must be at least 1, got {asked.rank}")
    if asked.budget is None and asked.rank is not None:
        spec = _spec(asked, parameters, seed)
        return _checked(Sizes(asked.rank, spec, None))
    amount = parse(USUAL_BUDGET if asked.budget is None else asked.budget, parameters, bytes_each)
    reserved = asked.reserved + asked.layers
    least, most = LEAST_FLOATS + asked.layers, MOST_FLOATS + reserved
    if asked.budget is None and not least <= amount.floats <= most:
        amount = parse(min(max(amount.floats, least), most), parameters, bytes_each)
    size = asked.sketch_size
    if asked.budget is None and amount.floats == most and asked.rank is None:
        size = size or MOST_SIZE
    exact = None
    if isinstance(asked.sketch, SketchSpec):
        size = _spec(asked, parameters, seed).size
        exact = asked.sketch.kind == "identity"
    elif asked.sketch is not None or size is not None:
        kind = _spec(asked, parameters, seed).kind
        exact = kind == "identity"
    fixed = Fixed(asked.rank, size, exact)
    if amount.floats <= reserved:
        raise BudgetError(
            f"the budget {amount.text!r} is {amount.floats:,} numbers, and the scale alone takes {asked.reserved:,}; "
            f"give more, or scale=None; the smallest that fits with the scale is "
            f"{smallest(parameters, fixed, asked.reserved)}"
        )
    amount = Amount(amount.floats - reserved, amount.text, reserved)
    shape = shape_for(amount, parameters, fixed, asked.data_rank)
    if isinstance(asked.sketch, SketchSpec):
        spec = _spec(asked, parameters, seed)
    else:
        kind = "identity" if shape.exact else asked.sketch or DEFAULT_SKETCH
        spec = checked(SketchSpec(kind, parameters, shape.sketch_size, seed, layout=asked.layout))
    return _checked(Sizes(shape.rank, spec, amount))


def _spec(asked: SizeRequest, parameters: int, seed: int) -> SketchSpec:
    sketch, size = asked.sketch, asked.sketch_size
    if isinstance(sketch, SketchSpec):
        if sketch.parameters != parameters or size not in (None, sketch.size):
            raise SettingError(
                f"the sketch's spec is for {sketch.parameters} parameters and size {sketch.size}; the selection has "
                f"{parameters} and sketch_size is {size}. Leave sketch_size out and take parameters={parameters}"
            )
        return checked(replace(sketch, layout=sketch.layout or asked.layout))
    small = parameters <= _USUAL_SKETCH_SIZE
    kind = sketch or ("identity" if size is None and small else DEFAULT_SKETCH)
    if size is None:
        size = parameters if small or kind == "identity" else _USUAL_SKETCH_SIZE
    return checked(SketchSpec(kind, parameters, size, seed, layout=asked.layout))


def _checked(sizes: Sizes) -> Sizes:
    rank, sketch = sizes.rank, sizes.sketch
    if rank > sketch.parameters:
        raise SettingError(f"rank {rank} is above the number of selected parameters, {sketch.parameters}")
    if rank >= sketch.size and sketch.kind != "identity":
        raise SettingError(
            f"rank {rank} leaves nothing of a sketch of size {sketch.size}; take a sketch_size of at least "
            f"{2 * rank}, or a smaller rank"
        )
    return sizes
