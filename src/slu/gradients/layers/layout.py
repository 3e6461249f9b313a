"""Which rows of a layer belong to which sample, found by colouring the samples.

A backward pass is linear: with the outputs of sample i scaled by c_i, the gradient at a row that
belongs to sample i is scaled by c_i as well, and a row on which samples mix is not scaled by any
one number. So two backward passes tell for every row whose it is, whatever the model did between:
batches first, sequences first, windows folded into the batch. The c_i are powers of two, which
floating point multiplies without rounding, so the comparison is sharp in any precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from slu.seeds import stream

_COLOURS = 64
_LOWEST = -32

# Rounding differs where a kernel adds in another order from call to call. The range of float16 is too
# small for gradients that are scaled down.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.02}


@dataclass(frozen=True)
class Layout:
    """Row r belongs to sample (r // inner) mod b.

    Attributes:
        outer, points, inner: The rows as a box: (1, b, m) where samples come first, (m, b, 1) last.
        sure: Whether no other box fits what was seen, and enough was seen to say so.
    """

    outer: int
    points: int
    inner: int
    sure: bool = True

    def take(self, rows: Tensor, samples: slice) -> Tensor:
        """(R, ...) -> (samples, R / b, ...); a view where samples come first."""
        rest = rows.shape[1:]
        if self.outer == 1:
            return rows.reshape(self.points, self.inner, *rest)[samples]
        box = rows.reshape(self.outer, self.points, self.inner, *rest)[:, samples].transpose(0, 1)
        return box.reshape(len(box), self.outer * self.inner, *rest)


def colours(points: int) -> Tensor:
    """(b,) powers of two, all different up to sixty-four samples, without a pattern beyond."""
    drawn = stream(0, "colours")
    blocks = [torch.randperm(_COLOURS, generator=drawn) for _ in range(-(-points // _COLOURS))]
    return 2.0 ** (torch.cat(blocks)[:points].double() + _LOWEST)


def find(plain: Tensor, coloured: Tensor, colours: Tensor) -> Layout | None:
    """The layout of rows from their gradients (R, ...) without and with colours; None where samples mix.

    Cost: a few reads of the gradients.

    Numerics: rows that are zero tell nothing. Where what is left fits several boxes, all of them
    give the same answer for this batch, and `sure` is False; as it is where most samples are silent.
    """
    points, count = len(colours), len(plain)
    if count % points:
        return None
    if points == 1:
        return Layout(1, 1, count)
    if plain.dtype not in _TOLERANCE:
        return None
    found = _ratios(plain.reshape(count, -1), coloured.reshape(count, -1))
    if found is None:
        return None
    ratios, alive = found
    colours = colours.to(ratios.device)
    fitting = [
        box for box in _boxes(count, points) if bool(((_spread(colours, box) == ratios) | ~alive).all())
    ]  # fmt: skip
    if not fitting:
        return None
    heard = int(alive.view(fitting[0]).any(2).any(0).sum())
    return Layout(*fitting[0], sure=len(fitting) == 1 and 2 * heard >= points)


def _ratios(plain: Tensor, coloured: Tensor) -> tuple[Tensor, Tensor] | None:
    """(R,) colours, and which rows have any; None where a row is not scaled by one power of two."""
    tolerance = _TOLERANCE[plain.dtype]
    size, place = plain.abs().max(1, keepdim=True)
    # Below this the lowest colour would leave the range of numbers.
    alive = (size > torch.finfo(plain.dtype).tiny * 2.0 ** (1 - _LOWEST))[:, 0]
    # Relative to the largest of the row, which is the least blurred by rounding.
    safe = torch.where(alive[:, None], plain.gather(1, place), torch.ones_like(size))
    ratio = (coloured.gather(1, place) / safe).double()
    power = 2.0 ** ratio.clamp(2.0**-_COLOURS, 2.0**_COLOURS).log2().round()
    bent = (coloured - plain * power.to(plain.dtype)).abs().amax(1) > tolerance * (size * power)[:, 0]
    if bool((alive & (bent | ~torch.isfinite(coloured).all(1))).any()):
        return None
    return power[:, 0], alive


def _boxes(count: int, points: int) -> Iterator[tuple[int, int, int]]:
    """Samples first, then every other box."""
    each = count // points
    return ((outer, points, each // outer) for outer in range(1, each + 1) if each % outer == 0)


def _spread(colours: Tensor, box: tuple[int, int, int]) -> Tensor:
    outer, _, inner = box
    return colours.repeat_interleave(inner).repeat(outer)
