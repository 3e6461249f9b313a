"""The check that a plan is right: gradients of single samples add up to those of the batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from slu.gradients.layers.forming import Formed
from slu.gradients.layers.plan import Plan, Probe
from slu.gradients.layers.recording import Recording
from slu.gradients.rows import agree, out_of_memory, squared_lengths
from slu.seeds import stream

_DIRECTIONS = 8
_ROUNDINGS = 16  # by which sums of the same terms may differ

MOST_LOOKED_AT = 16
"""Samples of a batch; of more, `layout` has seen which rows are whose."""


def judged(
    recording: Recording, plan: Plan, probe: Probe, formed: Formed, *, names: Sequence[str], room: int
) -> dict[str, bool]:
    """Whether the gradients of single samples in some parameters add up to what autograd says of the batch.

    With some samples weighted, each by a number of its own, and no others, so that a gradient given
    to the wrong sample shows. Of a parameter in which these have no gradient at all nothing can be said,
    whatever the other samples have: it is left out.

    Cost: one backward pass of the batch, and one row of at most sixteen samples; the gradient of one parameter is held,
    and a row in it, or `room` numbers.

    Numerics: compared in a few random directions, to rounding relative to the sum of the lengths of
    the samples' gradients, or of what these are sums of where it cancels: a bias of keys before a softmax
    has gradients of rounding alone. Weights are powers of two, so the gradients in the steps'
    results are the same on either side, and only what is made of them is rounded apart.
    """
    check = _Check(recording, plan, probe, formed, room)
    if names:
        recording.pull_to_leaves(names, probe.vectors * check.weights.to(probe.vectors.dtype)[:, None], check.look)
    return check.verdicts


class _Check:
    """Looks at the gradients of a batch in one parameter after the other."""

    def __init__(self, recording: Recording, plan: Plan, probe: Probe, formed: Formed, room: int) -> None:
        self.weights = _weights(recording.points).to(recording.outputs.device)
        self._samples = torch.nonzero(self.weights).flatten().tolist()
        self.verdicts: dict[str, bool] = {}
        self._plan = plan
        self._plain = probe.plain
        self._formed = formed
        self._room = room

    def look(self, name: str, summed: Tensor) -> None:
        """Compare what autograd says of the weighted batch with the rows."""
        try:
            self._compare(name, summed)
        except RuntimeError as reason:  # of a step that cannot be pulled back for several samples at once
            if out_of_memory(reason):
                raise
            self.verdicts[name] = False

    def _compare(self, name: str, summed: Tensor) -> None:
        steps = {site.step for site, _ in self._plan.terms[name]}
        seen = _Directions(summed, self._formed.dtype)
        left, length = seen(summed), 0.0
        together = max(1, self._room // max(1, summed.numel()))
        for rows, weights in self._rows(name, {step: self._plain[step] for step in steps}, together):
            left = left - weights @ seen(rows)
            length += _length(rows, weights)
            del rows
        left = left / _DIRECTIONS**0.5
        if length == 0 and not bool(left.any()):
            return
        dtypes = (summed.dtype, *(self._plain[step].dtype for step in steps))
        self.verdicts[name] = agree(left, length, dtypes) or self._cancels(name, left, dtypes, together)

    def _cancels(self, name: str, left: Tensor, dtypes: Iterable[torch.dtype], together: int) -> bool:
        """Whether no more is left than rounding of the terms that were added up."""
        sizes = {site.step: self._plain[site.step].abs() for site, _ in self._plan.terms[name]}
        length = 0.0
        for rows, weights in self._rows(name, sizes, together):
            length += _length(rows, weights)
            del rows
        return float(left.norm()) <= _ROUNDINGS * max(torch.finfo(dtype).eps for dtype in dtypes) * length

    def _rows(self, name: str, cotangents: Mapping[int, Tensor], together: int) -> Iterator[tuple[Tensor, Tensor]]:
        """(c, ...) gradients of some samples after the others, and their weights."""
        listed = {step: [each] for step, each in cotangents.items()}
        first, stop = self._samples[0], self._samples[-1] + 1
        for start in range(first, stop, together):
            samples = slice(start, min(start + together, stop))
            yield self._formed.gradient(name, listed, samples)[:, 0], self.weights[samples].to(self._formed.dtype)


def _length(rows: Tensor, weights: Tensor) -> float:
    return float((weights.abs() * squared_lengths(rows.reshape(len(rows), -1)).sqrt()).sum())


def _weights(points: int) -> Tensor:
    """(b,) powers of two of either sign, near to one, for some samples that stand together; zero for the others.

    Near to one, so that no sample is lost in the rounding of another.
    """
    drawn = stream(0, "weights of a check")
    few = min(points, MOST_LOOKED_AT)
    powers = torch.randint(-1, 3, (few,), generator=drawn)
    signs = torch.randint(2, (few,), generator=drawn) * 2 - 1
    weights = torch.zeros(points, dtype=torch.float64)
    first = int(torch.randint(points - few + 1, (), generator=drawn))
    weights[first : first + few] = signs * 2.0 ** powers.double()
    return weights


class _Directions:
    """xᵀ M y of matrices M for a few random x and y: no copy of M, and as long as M on average."""

    def __init__(self, like: Tensor, dtype: torch.dtype) -> None:
        self._shape = (like.shape[0] if like.dim() > 1 else 1, -1)
        self._dimensions = like.dim()
        self._dtype = dtype
        drawn = stream(0, "directions")
        sizes = [self._shape[0], like.numel() // max(1, self._shape[0])]
        self._left, self._right = (
            torch.randn(_DIRECTIONS, size, generator=drawn, dtype=torch.float64).to(like.device, dtype)
            for size in sizes
        )

    def __call__(self, matrices: Tensor) -> Tensor:
        """(..., *shape) -> (..., directions)."""
        lead = matrices.shape[: matrices.dim() - self._dimensions]
        flat = matrices.reshape(*lead, *self._shape).to(self._dtype)
        return ((self._left @ flat) * self._right).sum(-1)
