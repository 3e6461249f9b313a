"""What every method would take within a budget, before anything is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn

from slu.artifacts.pictures import printed
from slu.budgets import Amount, Budget, Cost, Size, likely_outputs, shown, size_for, size_of
from slu.budgets.memory import check_budget, free_bytes
from slu.comparing.registry import METHODS, Entry
from slu.core import SLU
from slu.core.resolve import SizeRequest, choose_layers, choose_solver, resolve_sizes
from slu.core.scales import AUTO, choose_scale
from slu.core.settings import fit_cost
from slu.diagnosis.timing import Passes, Timing, duration, first_batch, measure, measure_passes
from slu.errors import BudgetError, SluError
from slu.gradients import Forward, Network
from slu.likelihoods import Likelihood
from slu.parameters import Choice, select

_WIDTH, _TIMED_WIDTH = 80, 100
_POINTS = 10_000  # for which time is told where their number is not known


@dataclass(frozen=True)
class Seconds:
    """How long a method takes.

    Attributes:
        fit: Of a fit to the plan's points; None where it is a training of unknown length.
        query: Of a query of the example.
        measured: Whether the method was tried on the example; otherwise both are estimates from its forward and
            backward passes.
    """

    fit: float | None
    query: float
    measured: bool

    def cells(self) -> list[str]:
        """As a table shows them, estimates with a mark."""
        mark = "" if self.measured else "~"
        return ["-" if each is None else f"{mark}{duration(each)}" for each in (self.fit, self.query)]


@dataclass(frozen=True)
class PlanRow:
    """One method within the budget.

    Attributes:
        method: Its name.
        rank: k; the members of an ensemble; None where there is nothing to choose.
        sketch_size: s, for SLU; equal to p where nothing is sketched.
        cost: Bytes and passes; None where not even the smallest of it fits.
        note: What a reader must know beside the numbers, or why it does not fit.
        seconds: With an example, how long it takes.
    """

    method: str
    rank: int | None
    sketch_size: int | None
    cost: Cost | None
    note: str = ""
    seconds: Seconds | None = None


@dataclass(frozen=True)
class Plan:
    """The result of `plan`: print it for a table, or take rows by name, `plan(model)["SLU"].cost`.

    Attributes:
        budget: As numbers, and as it was written.
        size: Of the problem: parameters, outputs, bytes of a number.
        free: Bytes of memory that are free; None where the system does not tell.
        rows: One for each method.
        points: n, for which the time of a fit is told.
    """

    budget: Amount
    size: Size
    free: int | None
    rows: tuple[PlanRow, ...]
    points: int = _POINTS

    @property
    def timed(self) -> bool:
        """Whether an example was there to take the time with."""
        return any(row.seconds is not None for row in self.rows)

    def __getitem__(self, method: str) -> PlanRow:
        rows = {row.method: row for row in self.rows}
        if method not in rows:
            raise KeyError(f"no method {method!r} in the plan; there are {', '.join(rows)}")
        return rows[method]

    def __iter__(self) -> Iterator[PlanRow]:
        return iter(self.rows)

    def __str__(self) -> str:
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        table.add_column("\nmethod", no_wrap=True)
        for name in ("\nrank", "sketch\nsize", "\nkept", "peak of\nfitting", "peak of\na query", "data\npasses"):
            table.add_column(name, justify="right", no_wrap=True)
        for name in (f"fit of\n{self.points:,}", f"query\nof {self.size.batch:,}") if self.timed else ():
            table.add_column(name, justify="right", no_wrap=True)
        for row in self.rows:
            table.add_row(*self._cells(row))
        return printed([self._head(), table, *self._notes()], _TIMED_WIDTH if self.timed else _WIDTH)

    def _head(self) -> str:
        p, each, floats = self.size.parameters, self.size.bytes_each, self.budget.floats
        free = "" if self.free is None else f"; {shown(self.free)} of memory are free"
        return (
            f"{p:,} parameters ({shown(p * each)}), {self.size.outputs} outputs; "
            f"budget {self.budget.text} = {floats / p:,.3g} copies = {shown(floats * each)}{free}\n"
        )

    def _cells(self, row: PlanRow) -> list[str]:
        cost = row.cost
        times = [] if not self.timed else ["-", "-"] if row.seconds is None else row.seconds.cells()
        if cost is None:
            return [row.method, *"------", *times]
        passes = f"{cost.trainings} trainings" if cost.trainings else f"{cost.passes:,}"
        size = "-" if row.sketch_size is None else f"{row.sketch_size:,}"
        size = "exact" if row.sketch_size == self.size.parameters else size
        rank = "-" if row.rank is None else f"{row.rank:,}"
        peaks = map(self._marked, (cost.fitting, cost.querying))
        return [row.method, rank, size, shown(cost.artefact), *peaks, passes, *times]

    def _marked(self, count: int) -> str:
        return shown(count) + ("!" if self.free is not None and count > self.free else "")

    def _notes(self) -> Iterator[str]:
        inputs = "one input" if self.size.batch == 1 else f"{self.size.batch} inputs"
        yield f"\nPeaks are beside the model, a batch and its activations; a query is of {inputs}."
        if any(row.cost and self.free and max(row.cost.fitting, row.cost.querying) > self.free for row in self.rows):
            yield "! more than is free."
        if self.timed:
            yield "Times are of batches like the example; ~ is an estimate from passes of the network alone."
        yield from (f"{row.note}." for row in self.rows if row.note)


def plan(  # noqa: PLR0913 (six of the eight are keyword-only)
    model: nn.Module,
    budget: Budget | None = None,
    *,
    params: Choice = None,
    outputs: int | None = None,
    points: int | None = None,
    example: Any = None,
    likelihood: str | Likelihood = "classification",
    forward: Forward | None = None,
) -> Plan:
    """What SLU and the paper's low-rank baselines would take within a budget.

    A budget counts what is kept, as the paper does: s·k numbers for SLU, with the rank and sketch
    size by the rule of `slu.budgets.shape_for`; for the others k copies of the parameters. SLU has two rows: as it is
    by default, with its scale, and the paper's, by Lanczos and without a scale ("SLU lanczos"). A fit of SLU that
    calibrates ends with queries: it needs the larger of both peaks, and at most 80 kB more are kept.

    Args:
        model: The network; nothing is computed with it unless there is an example.
        budget: "3p" (copies of the parameters), "2GB", or a whole number of floats; by default what
            `SLU` takes where nothing is given: "3p", at least 50,000 floats, and at most 150,000 beside the scale and
            the layers.
        params: Which parameters count, as for `SLU`.
        outputs: t; by default as many as the model's last layer seems to have. Peaks of queries
            depend on it.
        points: n, without those held out; where it is known, no rank above it is planned for SLU, nor above
            n·t by Lanczos. The time of a fit is told for it, or for 10,000.
        example: A batch as fits and queries will have them, or a loader of which the first is taken. It tells how many
            outputs there are, how many gradients in its activations are held, and how long methods take: SLU is
            fitted to it and asked, for the others passes are counted of which one is measured.
        likelihood, forward: As of `SLU`; with an example.

    >>> print(plan(nn.Linear(99, 10), "3p"))
    1,000 parameters (4 kB), 10 outputs; budget 3p = 3 copies = 12 kB...
    ...

    Raises:
        BudgetError: It cannot be read, nothing of SLU fits in it, or it is beyond what is free.
            The message names what would fit.
    """
    selection = select(model, params)
    if outputs is not None and (isinstance(outputs, bool) or not isinstance(outputs, int) or outputs < 1):
        raise BudgetError(f"the number of outputs must be a whole number of at least 1, got {outputs!r}")
    network = Network(model, selection, forward, positions=True)
    if example is None:
        size = size_of(selection, likely_outputs(network.model) if outputs is None else outputs)
    else:
        size = size_for(network, outputs, example)
    # SLU without a scale fits in the smallest budget: where it does not, nothing of SLU does.
    request = SizeRequest(budget=budget, layout=selection.matrices)
    amount = resolve_sizes(request, size.parameters, size.bytes_each, seed=0).amount
    assert amount is not None  # no rank was given, so a budget decided
    free = free_bytes(selection.device)
    check_budget(amount, size.bytes_each, free)
    rows = [_slu(name, entry, network, request, points, size) for name, entry in METHODS.items() if entry.kind is SLU]
    made = Plan(amount, size, free, (*rows, *_baselines(network, amount, size)), points or _POINTS)
    if example is None:
        return made
    with network.evaluating():
        batch = first_batch(network, example)
    again = [(batch.inputs, batch.targets)]
    passes = measure_passes(network, again)
    slu = partial(SLU, model, likelihood, budget=budget, params=params, forward=forward)
    return replace(made, rows=tuple(_timed(row, made, passes, lambda: measure(slu(), again)) for row in made.rows))


def _timed(row: PlanRow, made: Plan, passes: Passes, tried: Callable[[], Timing]) -> PlanRow:
    """The row with its seconds: SLU is tried, unless it is planned to take more memory than is free."""
    estimate, cost = METHODS[row.method].seconds, row.cost
    if cost is None:
        return row
    if estimate is not None:
        fit, query = estimate(row.rank or 1, made.size.all_rows, passes)
        fit = None if fit is None else fit * cost.passes * made.points / passes.points
        return replace(row, seconds=Seconds(fit, query, measured=False))
    if made.free is not None and max(cost.fitting, cost.querying) > made.free:
        return row
    try:
        timing = tried()
    except SluError as reason:
        return replace(row, note=f"{row.method} could not be tried on the example: {reason}")
    return replace(row, seconds=Seconds(timing.fit_seconds(made.points), timing.query, measured=True))


def _slu(name: str, entry: Entry, network: Network, request: SizeRequest, points: int | None, size: Size) -> PlanRow:
    """SLU with the settings of its row and the budget: as its constructor would have it."""
    solver = entry.settings.get("solver")
    scale = choose_scale(entry.settings.get("scale", AUTO), "ggn")
    # A pass over single gradients gives one direction per point at most, products with G one per output as well.
    data_rank = points if points is None or solver != "lanczos" else points * size.outputs
    layers = choose_layers(network, solver, "ggn", request.budget, seed=0)
    reserved = 0 if scale is None else scale.numbers(size)
    request = replace(request, data_rank=data_rank, reserved=reserved, layers=layers.numbers)
    try:
        sizes = resolve_sizes(request, size.parameters, size.bytes_each, seed=0)
    except BudgetError as reason:
        return PlanRow(name, None, None, None, f"{name}: {reason}")
    chosen = choose_solver(solver, sizes.rank, "ggn")
    kept = layers if sizes.layers else layers.none()
    cost = fit_cost(size, sizes.rank, sizes.sketch, chosen, scale, kept, "ggn")
    return PlanRow(name, sizes.rank, sizes.sketch.size, cost)


def _baselines(network: Network, amount: Amount, size: Size) -> Iterator[PlanRow]:
    planned = {name: entry for name, entry in METHODS.items() if entry.cost is not None}
    if size.over_positions:
        note = f"{', '.join(planned)} take one vector of outputs per input, and none for every token or pixel"
        yield from (PlanRow(name, None, None, None, note if name == list(planned)[-1] else "") for name in planned)
        return
    for name, entry in planned.items():
        assert entry.cost is not None
        rank = 0 if network.outputs_per_position else entry.rank(amount.floats, size.parameters)
        if rank:
            yield PlanRow(name, rank if entry.ranked else None, None, entry.cost(rank, size), entry.plan_note)
        else:  # for the same reason in all of them, which the last row says
            why = "need a budget of at least 1p"
            if network.outputs_per_position:
                why = "take one vector of outputs per input, and this network has one for every token or pixel"
            note = f"{', '.join(planned)} {why}" if name == list(planned)[-1] else ""
            yield PlanRow(name, None, None, None, note)
