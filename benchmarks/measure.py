"""What a user pays for the default call, measured in a fresh process: the functions behind `cost` and `growth`.

Units: a fit is measured in forward and backward passes over the same points and batches (cross entropy, the gradient of
every parameter), a query in forward passes of its batch. Both the work and its unit are run in turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.networks import SUBJECTS, Subject, mlp, parameters, rows_and_columns
from benchmarks.timing import Ratio, clock_name, ratio, ratios, reset_peak, seconds, serve, status
from slu import SLU, SluScore

POINTS = 5000
Pairs = Sequence[tuple[Tensor, Tensor]]


def train_pass(model: nn.Module, batches: Pairs) -> Callable[[], None]:
    """The unit of fitting: the gradients of one epoch, without an optimizer."""

    def run() -> None:
        for inputs, targets in batches:
            model.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(inputs), targets).backward()
        model.zero_grad(set_to_none=True)

    return run


def forward_pass(model: nn.Module, inputs: Tensor) -> Callable[[], None]:
    """The unit of a query."""

    def run() -> None:
        with torch.no_grad():
            model(inputs)

    return run


def network(name: str, rounds: int, points: Sequence[int], batches: Sequence[int]) -> dict[str, Any]:
    """Fit, queries and numbers kept of one of the subjects.

    The fit is over `points[-1]` points; with two sizes its time at 5,000 points is the line through both.
    """
    subject = SUBJECTS[name]
    model = subject.network()
    fitting, score = _fit_ratios(subject, model, points, rounds)
    inputs = subject.draw(max(batches))
    queries = {str(batch): asdict(_query(score, model, inputs[:batch], rounds)) for batch in batches}
    return {
        "parameters": parameters(model),
        "clock": clock_name(),
        **fitting,
        "query": queries,
        "kept": kept(score, model),
    }


def _fit_ratios(
    subject: Subject, model: nn.Module, points: Sequence[int], rounds: int
) -> tuple[dict[str, Any], SluScore]:
    method = SLU(model, "classification")
    data = subject.batches(points[-1])
    parts = [data if size == points[-1] else subject.batches(size) for size in points]
    score = method.fit(parts[0], progress=False)  # warms up
    unit = train_pass(model, data)
    unit()
    times: list[list[float]] = []
    for _ in range(rounds):
        times.append([seconds(unit), *(seconds(partial(method.fit, part, progress=False)) for part in parts)])
    measured = Ratio.of([each[-1] / each[0] for each in times])
    result = {
        "points": list(points),
        "fit seconds": [statistics.median(each[1 + place] for each in times) for place in range(len(points))],
        "unit seconds per point": statistics.median(each[0] for each in times) / points[-1],
        "fit as measured": asdict(measured),
    }
    if len(points) == 1:
        return result | {"fit": asdict(measured)}, score
    few, many = points
    slopes = [(each[2] - each[1]) / (many - few) for each in times]
    whole = [each[1] + slope * (POINTS - few) for each, slope in zip(times, slopes, strict=True)]
    extrapolated = Ratio.of([fit / (each[0] * POINTS / many) for fit, each in zip(whole, times, strict=True)])
    line = {"a": statistics.median(fit - slope * POINTS for fit, slope in zip(whole, slopes, strict=True))}
    return result | {"fit": asdict(extrapolated), "line": line | {"b": statistics.median(slopes)}}, score


def _query(score: SluScore, model: nn.Module, inputs: Tensor, rounds: int) -> Ratio:
    return ratio(lambda: score(inputs), forward_pass(model, inputs), rounds=2 * rounds + 1)


def kept(score: SluScore, model: nn.Module) -> dict[str, int]:
    """Numbers in the file beyond the basis and the calibration points' scores, beside what a factored scale needs."""
    tensors, _ = score.state.to_file()
    scores, _ = score.state.calibration.to_file()
    beyond = sum(value.numel() for name, value in tensors.items() if name != "basis" and name not in scores)
    return {"basis": tensors["basis"].numel(), "beyond": beyond, "rows + columns": rows_and_columns(model)}


@dataclass(frozen=True)
class Generated:
    """Random batches made as they are read, so that the data takes no memory; the same at every reading."""

    subject: Subject
    points: int

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            for start in range(0, self.points, self.subject.batch):
                count = min(self.subject.batch, self.points - start)
                yield self.subject.draw(count), torch.randint(10, (count,))

    def __len__(self) -> int:
        return -(-self.points // self.subject.batch)


def peak(name: str, points: int) -> dict[str, float]:
    """Bytes of a default fit at its peak beyond the network and one batch's activations; run it with pinned malloc."""
    small = Subject(mlp(64), SUBJECTS["LeNet"].draw, 32, (256,), 1, False)
    SLU(small.network(), "classification").fit(Generated(small, 256), progress=False)  # libraries and thread pools
    subject = SUBJECTS[name]
    model = subject.network()
    inputs = subject.draw(subject.batch)
    before = reset_peak()
    kept_graph = model(inputs)
    activations = status("VmHWM") - before
    del kept_graph, inputs
    method = SLU(model, "classification")
    before = reset_peak()
    time = seconds(lambda: method.fit(Generated(subject, points), progress=False))
    return {
        "parameters": parameters(model),
        "points": points,
        "seconds": round(time, 3),
        "activations": activations,
        "peak": status("VmHWM") - before,
        "2sk": 2 * 4 * method.settings.rank * method.settings.sketch.size,
    }


def outputs(
    subject: str | int, counts: Sequence[int], batches: Sequence[int], rounds: int, points: int = 512
) -> list[dict[str, Any]]:
    """The query of networks with more and more outputs: one of the subjects by its name, or an MLP of that width.

    All are asked in turns, so that their ratios to the first, each in forward passes of its own network, are of one
    state of the machine.
    """
    base = SUBJECTS["LeNet"]
    made = SUBJECTS[subject] if isinstance(subject, str) else Subject(mlp(subject), base.draw, base.batch, (), 1, False)
    models = {count: made.network(count) for count in counts}
    scores = {
        count: SLU(model, "classification").fit(made.batches(points, count), progress=False)
        for count, model in models.items()
    }
    inputs = made.draw(max(batches))
    rows = [{"outputs": count, "parameters": parameters(model), "query": {}} for count, model in models.items()]
    for batch in batches:
        some = inputs[:batch]
        works = [(partial(scores[count], some), forward_pass(models[count], some)) for count in counts]
        taken = ratios(works, rounds=2 * rounds + 1)
        for row, own in zip(rows, taken, strict=True):
            row["query"][str(batch)] = asdict(Ratio.of(own))
            over_first = [one / first for one, first in zip(own, taken[0], strict=True)]
            row.setdefault("over the first", {})[str(batch)] = asdict(Ratio.of(over_first))
    for row in rows:
        row["seconds"] = seconds(partial(scores[row["outputs"]], inputs), 3)
    return rows


def size(width: int, points: int, rounds: int) -> dict[str, Any]:
    """Fit and query of an MLP of that width."""
    subject = Subject(mlp(width), SUBJECTS["LeNet"].draw, 32, (points,), rounds, False)
    model = subject.network()
    fitting, score = _fit_ratios(subject, model, [points], rounds)
    return {
        "parameters": parameters(model),
        **fitting,
        "query": asdict(_query(score, model, subject.draw(32), rounds)),
        "kept": kept(score, model),
    }


MEASURES = {"network": network, "peak": peak, "outputs": outputs, "size": size}

if __name__ == "__main__":
    serve(MEASURES)
