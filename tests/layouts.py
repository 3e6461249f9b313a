"""Shapes of tensors that hold a given number of parameters, for sketches that must know them."""

from __future__ import annotations

from math import isqrt


def layout_of(parameters: int) -> tuple[tuple[int, int], ...]:
    """A kernel, a bias, a matrix, one of three rows, a small one, and the rest as a vector: most sizes are odd.

    The first matrices have 0.4 p numbers each: from p = 10 s on they are large for a sketch of size s.
    """
    share = 2 * parameters // 5
    o = max(1, isqrt(share // 9))
    side = max(1, isqrt(share))
    wanted = [(o, 9 * (share // (9 * o))), (1, o), (side, share // side), (3, parameters // 30), (7, 9), (1, 1)]
    layout: list[tuple[int, int]] = []
    left = parameters
    for o, i in wanted:
        if 0 < o * i <= left:
            layout.append((o, i))
            left -= o * i
    return (*layout, (1, left)) if left else tuple(layout)
