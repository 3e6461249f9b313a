"""Rank and sketch of SLU from what the user gave: sizes, a budget, or nothing."""

from __future__ import annotations

from dataclasses import dataclass

from slu.budgets import (
    Amount,
    Budget,
    Choices,
    Cost,
    Fixed,
    Size,
    Sketched,
    parse,
    shape_for,
    sketched_lanczos,
    sketched_stream,
)
from slu.budgets.memory import check_budget, check_fits, free_bytes
from slu.budgets.rule import smallest
from slu.errors import BudgetError, SettingError
from slu.parameters import Selection
from slu.sketches import DEFAULT_SKETCH, SKETCHES, SketchSpec, checked

USUAL_BUDGET = "3p"
"""What counts where neither rank nor budget is given: the paper's budget."""

LEAST_FLOATS = 50_000
"""But not less than this, 200 kB: three copies of a tiny network hold three directions and tell little."""

_USUAL_SKETCH_SIZE = 1000


@dataclass(frozen=True)
class Asked:
    """What the user said about sizes; None where they said nothing. `reserved` numbers of a budget are spoken for."""

    rank: int | None = None
    sketch_size: int | None = None
    budget: Budget | None = None
    data_rank: int | None = None
    sketch: str | SketchSpec | None = None
    reserved: int = 0


@dataclass(frozen=True)
class Settled:
    """What it comes to.

    Attributes:
        rank: k.
        sketch: The sketch's spec, checked.
        amount: The budget, where it decided something.
        from_budget: Whether the rank was chosen and not given: then it may end early at what the
            data allow.
    """

    rank: int
    sketch: SketchSpec
    amount: Amount | None
    from_budget: bool


def settle(asked: Asked, parameters: int, bytes_each: int, seed: int) -> Settled:
    """Rank and sketch: what was given is kept, a budget sets the rest.

    A rank alone goes with the usual sketch size. Without a rank a budget decides, the usual one
    unless one is given.

    Raises:
        BudgetError: The budget cannot be read or does not hold what was given.
        SettingError: Sizes that cannot work, or an unknown sketch.
    """
    if asked.rank is not None and asked.rank < 1:
        raise SettingError(f"the rank must be at least 1, got {asked.rank}")
    if asked.budget is None and asked.rank is not None:
        spec = _spec(asked.sketch, asked.sketch_size, parameters, seed)
        return _checked(Settled(asked.rank, spec, None, from_budget=False))
    amount = parse(USUAL_BUDGET if asked.budget is None else asked.budget, parameters, bytes_each)
    if asked.budget is None and amount.floats < LEAST_FLOATS:
        amount = parse(LEAST_FLOATS, parameters, bytes_each)
    size = asked.sketch_size
    exact = None
    if isinstance(asked.sketch, SketchSpec):
        size = _spec(asked.sketch, size, parameters, seed).size
        exact = asked.sketch.kind == "identity"
    elif asked.sketch is not None or size is not None:
        kind = _spec(asked.sketch, size, parameters, seed).kind
        exact = kind == "identity"
    fixed = Fixed(asked.rank, size, exact)
    if amount.floats <= asked.reserved:
        raise BudgetError(
            f"the budget {amount.text!r} is {amount.floats:,} numbers, and the scale alone takes {asked.reserved:,}; "
            f"give more, or scale=None; the smallest that fits with the scale is "
            f"{smallest(parameters, fixed, asked.reserved)}"
        )
    amount = Amount(amount.floats - asked.reserved, amount.text, asked.reserved)
    shape = shape_for(amount, parameters, fixed, asked.data_rank)
    if isinstance(asked.sketch, SketchSpec):
        spec = checked(asked.sketch)
    else:
        kind = "identity" if shape.exact else asked.sketch or DEFAULT_SKETCH
        spec = checked(SketchSpec(kind, parameters, shape.sketch_size, seed))
    return _checked(Settled(shape.rank, spec, amount, from_budget=asked.rank is None))


def check_memory(settled: Settled, cost: Cost, selection: Selection, growth: float) -> None:
    """Refuse what a budget decided, where it is beyond the memory that is free; `growth` as for `check_fits`."""
    if settled.amount is not None:
        free = free_bytes(selection.device)
        check_budget(settled.amount, selection.dtype.itemsize, free)
        check_fits(settled.amount, cost, free, growth)


def slu_cost(rank: int, sketch: SketchSpec, size: Size, choices: Choices | None = None) -> Cost:
    """What SLU takes by Lanczos with a checked sketch, which is not built for this."""
    return sketched_lanczos(rank, _sketched(sketch, size), size, choices)


def stream_cost(rank: int, width: int, sketch: SketchSpec, size: Size, rows: int) -> Cost:
    """What SLU takes in one pass, with `rows` gradients a point."""
    return sketched_stream(rank, width, _sketched(sketch, size), size, rows)


def _sketched(sketch: SketchSpec, size: Size) -> Sketched:
    kind = SKETCHES[sketch.kind]
    state = kind.state_bytes_of(sketch, size.bytes_each)
    return Sketched(sketch.size, state, kind.scratch_bytes_of(sketch, size.bytes_each))


def _spec(sketch: str | SketchSpec | None, size: int | None, parameters: int, seed: int) -> SketchSpec:
    if isinstance(sketch, SketchSpec):
        if sketch.parameters != parameters or size not in (None, sketch.size):
            raise SettingError(
                f"the sketch's spec is for {sketch.parameters} parameters and size {sketch.size}; the selection has "
                f"{parameters} and sketch_size is {size}. Leave sketch_size out and take parameters={parameters}"
            )
        return checked(sketch)
    small = parameters <= _USUAL_SKETCH_SIZE
    kind = sketch or ("identity" if size is None and small else DEFAULT_SKETCH)
    if size is None:
        size = parameters if small or kind == "identity" else _USUAL_SKETCH_SIZE
    return checked(SketchSpec(kind, parameters, size, seed))


def _checked(settled: Settled) -> Settled:
    rank, sketch = settled.rank, settled.sketch
    if rank > sketch.parameters:
        raise SettingError(f"rank {rank} is above the number of selected parameters, {sketch.parameters}")
    if rank >= sketch.size and sketch.kind != "identity":
        raise SettingError(
            f"rank {rank} leaves nothing of a sketch of size {sketch.size}; take a sketch_size of at least "
            f"{2 * rank}, or a smaller rank"
        )
    return settled
