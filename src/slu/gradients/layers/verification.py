"""Backward passes with weighted examples: which rows belong to which example, and whether formulas are right.

A backward pass is linear: with the outputs of example i scaled by c_i, the gradient at a row that
belongs to example i is scaled by c_i as well, and a row on which examples mix is not scaled by any
one number. So two backward passes show for every row which example it belongs to, whatever the layout:
batches first, sequences first, windows folded into the batch. The c_i are powers of two, which
floating point multiplies without rounding, so the comparison is sharp in any precision. In the same way a weighted
sum of per-example gradients is compared with autograd's gradient of the weighted batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from slu.errors import out_of_memory
from slu.gradients.chunks import CHECKED_EXAMPLES, examples_within
from slu.gradients.layers.graph import Recording
from slu.seeds import stream

_SCALES = 64
_LOWEST = -32

# Rounding differs where a kernel adds in another order from call to call. The range of float16 is too
# small for gradients that are scaled down.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.02}

# Rounding adds up through a network, but formulas that are wrong are wrong by far more.
_ROUNDING = {torch.float64: 1e-8, torch.float32: 1e-3}
_COARSE = 0.1

_COMPARED = 1 << 18  # numbers of gradients in a step's result that are compared at a time
_DIRECTIONS = 8
_ROUNDINGS = 16  # by which sums of the same terms may differ


class Forms(Protocol):
    """What is verified; `PlannedGradients` of a recorded batch."""

    def splits(self, name: str) -> bool:
        """Whether gradients in one parameter can be formed a few rows of its first dimension at a time."""
        ...

    def form(
        self, name: str, cotangents: Mapping[int, Sequence[Tensor]], examples: slice, *, rows: slice | None = None
    ) -> Tensor:
        """(c, g, ...) gradients of some examples in one parameter, from gradients in the steps' results."""
        ...


@dataclass(frozen=True)
class Layout:
    """Row r belongs to example (r // inner) mod b.

    Attributes:
        outer, examples, inner: The rows as a box: (1, b, m) where examples come first, (m, b, 1) last.
        unique: Whether no other box fits what was seen, and enough was seen to say so.
    """

    outer: int
    examples: int
    inner: int
    unique: bool = True

    def take(self, rows: Tensor, examples: slice) -> Tensor:
        """(R, ...) -> (examples, R / b, ...); a view where examples come first."""
        rest = rows.shape[1:]
        if self.outer == 1:
            return rows.reshape(self.examples, self.inner, *rest)[examples]
        box = rows.reshape(self.outer, self.examples, self.inner, *rest)[:, examples].transpose(0, 1)
        return box.reshape(len(box), self.outer * self.inner, *rest)


def example_scales(examples: int) -> Tensor:
    """(b,) powers of two, all different up to sixty-four examples, without a pattern beyond."""
    drawn = stream(0, "colours")
    blocks = [torch.randperm(_SCALES, generator=drawn) for _ in range(-(-examples // _SCALES))]
    return 2.0 ** (torch.cat(blocks)[:examples].double() + _LOWEST)


def find_layout(plain: Tensor, scaled: Tensor, scales: Tensor) -> Layout | None:
    """The layout of rows from their gradients (R, ...) without and with scales; None where examples mix.

    Cost: a few reads of the gradients.

    Numerics: rows that are zero are no evidence. Where the others fit several boxes, all of them
    give the same result for this batch, and `unique` is False; as it is where most examples have zero rows only.
    """
    examples, count = len(scales), len(plain)
    if count % examples:
        return None
    if examples == 1:
        return Layout(1, 1, count)
    if plain.dtype not in _TOLERANCE:
        return None
    scaling = _row_scales(plain.reshape(count, -1), scaled.reshape(count, -1))
    if scaling is None:
        return None
    row_scales, nonzero = scaling
    scales = scales.to(row_scales.device)
    each = count // examples
    boxes = ((outer, examples, each // outer) for outer in range(1, each + 1) if each % outer == 0)  # examples first
    fitting = [
        box for box in boxes if bool(((scales.repeat_interleave(box[2]).repeat(box[0]) == row_scales) | ~nonzero).all())
    ]
    if not fitting:
        return None
    with_gradient = int(nonzero.view(fitting[0]).any(2).any(0).sum())
    return Layout(*fitting[0], unique=len(fitting) == 1 and 2 * with_gradient >= examples)


def _row_scales(plain: Tensor, scaled: Tensor) -> tuple[Tensor, Tensor] | None:
    """(R,) scales, and which rows are not zero; None where a row is not scaled by one power of two.

    A few rows at a time: the work takes several copies of them.
    """
    step = examples_within(_COMPARED, plain.shape[1])
    parts: list[tuple[Tensor, Tensor]] = []
    for some in zip(plain.split(step), scaled.split(step), strict=True):
        part = _scales_of(*some)
        if part is None:
            return None
        parts.append(part)
    powers, nonzero = zip(*parts, strict=True)
    return torch.cat(powers), torch.cat(nonzero)


def _scales_of(plain: Tensor, scaled: Tensor) -> tuple[Tensor, Tensor] | None:
    """As `_row_scales`, of some rows."""
    tolerance = _TOLERANCE[plain.dtype]
    size, place = plain.abs().max(1, keepdim=True)
    # Below this the lowest scale would leave the range of numbers.
    nonzero = (size > torch.finfo(plain.dtype).tiny * 2.0 ** (1 - _LOWEST))[:, 0]
    # Relative to the largest of the row, which is the least blurred by rounding.
    safe = torch.where(nonzero[:, None], plain.gather(1, place), torch.ones_like(size))
    ratio = (scaled.gather(1, place) / safe).double()
    power = 2.0 ** ratio.clamp(2.0**-_SCALES, 2.0**_SCALES).log2().round()
    mixed = (scaled - plain * power.to(plain.dtype)).abs().amax(1) > tolerance * (size * power)[:, 0]
    if bool((nonzero & (mixed | ~torch.isfinite(scaled).all(1))).any()):
        return None
    return power[:, 0], nonzero


def agree(difference: Tensor, length: float, dtypes: Iterable[torch.dtype]) -> bool:
    """Whether a sum of gradients formed in two ways differs by rounding alone.

    Args:
        difference: Of the two sums.
        length: The summed lengths of the terms: what rounding is relative to.
        dtypes: That were computed in; the coarsest of them counts.
    """
    rounding = max(_ROUNDING.get(dtype, _COARSE) for dtype in dtypes)
    return float(difference.norm()) <= rounding * length  # never where it is not finite


def verify(
    recording: Recording,
    vectors: Tensor,
    gradients: Mapping[int, Tensor],
    parameters: Mapping[str, set[int]],
    planned: Forms,
    *,
    dtype: torch.dtype,
    numbers: int,
) -> dict[str, bool]:
    """Whether per-example gradients add up to autograd's gradient of the batch, by parameter.

    Some examples are weighted, each by a different number, and the others by zero, so that a gradient assigned
    to the wrong example is detected. A parameter in which no weighted example has a gradient is left out.

    Args:
        recording: The batch.
        vectors: (b, t) over its outputs.
        gradients: By step, those of Σ u·f in its result for these vectors.
        parameters: Those to verify, each with the steps that its gradients come from.
        planned: What is verified.
        dtype: Of what it forms.
        numbers: That it forms at a time; or, of a parameter that does not split, one row.

    Cost: one backward pass of the batch, and one row of at most sixteen examples; autograd's gradient of one parameter
    is held, and so many numbers of rows in it.

    Numerics: compared in a few random directions, to rounding relative to the sum of the lengths of
    the examples' gradients, or of what these are sums of where it cancels: a bias of keys before a softmax
    has gradients of rounding alone. Weights are powers of two, so the gradients in the steps'
    results are the same on either side, and only what is made of them is rounded differently.
    """
    weights, weighted_examples = _weights(len(vectors))
    check = _Check(gradients, parameters, planned, dtype, numbers, weights.to(vectors.device), weighted_examples)
    if parameters:
        weighted = vectors * check.weights.to(vectors.dtype)[:, None]
        recording.visit_parameter_gradients(list(parameters), weighted, check.visit)
    return check.verdicts


@dataclass(frozen=True)
class _Check:
    """Compares the gradients of a weighted batch in one parameter after the other; the arguments of `verify`."""

    gradients: Mapping[int, Tensor]
    parameters: Mapping[str, set[int]]
    planned: Forms
    dtype: torch.dtype
    numbers: int
    weights: Tensor
    examples: range
    verdicts: dict[str, bool] = field(default_factory=dict)

    def visit(self, name: str, summed: Tensor) -> None:
        """Compare autograd's gradient of the weighted batch with the rows."""
        try:
            self._compare(name, summed)
        except RuntimeError as reason:  # of a step that cannot be pulled back for several examples at once
            if out_of_memory(reason):
                raise
            self.verdicts[name] = False

    def _compare(self, name: str, summed: Tensor) -> None:
        steps = self.parameters[name]
        gradients = {step: self.gradients[step] for step in steps}
        project = _Directions(summed, self.dtype)
        formed, length = self._sum(name, gradients, summed.shape, project)
        left = (project(summed) - formed) / _DIRECTIONS**0.5
        if length == 0 and not bool(left.any()):
            return
        dtypes = (summed.dtype, *(each.dtype for each in gradients.values()))
        right = agree(left, length, dtypes)
        if not right:  # is no more left than rounding of the terms that were added up?
            sizes = {step: each.abs() for step, each in gradients.items()}
            _, length = self._sum(name, sizes, summed.shape, project)
            right = float(left.norm()) <= _ROUNDINGS * max(torch.finfo(dtype).eps for dtype in dtypes) * length
        self.verdicts[name] = right

    def _sum(
        self, name: str, gradients: Mapping[int, Tensor], shape: torch.Size, project: _Directions
    ) -> tuple[Tensor, float]:
        """The weighted sum of the examples' gradients, projected, and the sum of their lengths."""
        listed = {step: [each] for step, each in gradients.items()}
        at_once, parts = examples_within(self.numbers, shape.numel()), [None]
        if shape.numel() > self.numbers and self.planned.splits(name):
            step = examples_within(self.numbers, shape.numel() // shape[0])
            parts = [slice(row, min(row + step, shape[0])) for row in range(0, shape[0], step)]
        none = torch.zeros((), dtype=self.dtype, device=self.weights.device)
        total, length = none, 0.0
        for start in self.examples[::at_once]:
            examples = slice(start, min(start + at_once, self.examples.stop))
            weights, squared = self.weights[examples].to(self.dtype), none
            for part in parts:
                rows = self.planned.form(name, listed, examples, rows=part)[:, 0]
                total = total + weights @ project(rows, part)
                squared = squared + torch.linalg.vector_norm(rows.reshape(len(rows), -1), dim=1).square()
                del rows  # or it would be held while the next is formed
            length += float((weights.abs() * squared.sqrt()).sum())
        return total, length


def _weights(examples: int) -> tuple[Tensor, range]:
    """(b,) powers of two of either sign for some consecutive examples, zero for the others; and which these are.

    They are near to one, so that no example is lost in the rounding of another.
    """
    drawn = stream(0, "weights of a check")
    few = min(examples, CHECKED_EXAMPLES)
    powers = torch.randint(-1, 3, (few,), generator=drawn)
    signs = torch.randint(2, (few,), generator=drawn) * 2 - 1
    weights = torch.zeros(examples, dtype=torch.float64)
    first = int(torch.randint(examples - few + 1, (), generator=drawn))
    weights[first : first + few] = signs * 2.0 ** powers.double()
    return weights, range(first, first + few)


class _Directions:
    """xᵀ M y of matrices M for a few random x and y: no copy of M, and as long as M on average."""

    def __init__(self, like: Tensor, dtype: torch.dtype) -> None:
        self._shape = (like.shape[0] if like.dim() > 1 else 1, -1)
        self._dimensions = like.dim()
        self._dtype = dtype
        drawn = stream(0, "directions")
        sizes = [self._shape[0], like.numel() // max(1, self._shape[0])]
        self._left, self._right = (
            torch.randn(_DIRECTIONS, size, generator=drawn, dtype=dtype).to(like.device) for size in sizes
        )

    def __call__(self, matrices: Tensor, part: slice | None = None) -> Tensor:
        """(..., *shape) -> (..., directions); of a part, some rows of the first dimension, its share of them."""
        lead = matrices.shape[: matrices.dim() - self._dimensions]
        if part is None:
            flat, left = matrices.reshape(*lead, *self._shape), self._left
        else:
            flat, left = matrices.flatten(len(lead) + 1), self._left[:, part]
        return ((left @ flat.to(self._dtype)) * self._right).sum(-1)
