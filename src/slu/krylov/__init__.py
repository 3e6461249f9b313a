"""Lanczos' recurrence as a stream of steps; it sees nothing of a matrix but its products."""

from slu.krylov.lanczos import (
    Operator,
    State,
    Step,
    Tridiagonal,
    high_memory,
    low_memory,
    preconditioned,
    resumed,
    start_vector,
)

__all__ = [
    "Operator",
    "State",
    "Step",
    "Tridiagonal",
    "high_memory",
    "low_memory",
    "preconditioned",
    "resumed",
    "start_vector",
]
