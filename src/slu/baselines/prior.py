"""The prior precision α of the methods that have one: a number, or the rule behind the paper's numbers."""

from __future__ import annotations

from slu.checks import positive
from slu.errors import SettingError

PAPER_SIGMA = 0.1
"""The width of the prior in the paper's rule."""


def check_prior(value: float | str) -> float | str:
    """A prior precision as it may be given: a finite number above 0, or "paper".

    Raises:
        SettingError: Anything else; the message names what is valid.
    """
    if isinstance(value, str) and value == "paper":
        return value
    try:
        return positive("prior_precision", value)
    except SettingError as reason:
        raise SettingError(f"{reason}; or 'paper', for 1/(2 n σ²) with σ = {PAPER_SIGMA}") from None


def resolve_prior(value: float | str, points: int) -> float:
    """α as a number; "paper" is 1/(2 n σ²) with σ = 0.1 and n the number of points fitted on.

    The curvature here is a sum over data, and α stands beside that sum. The authors' rule belongs
    to its mean: beside the sum it is too small by a factor n, which is why their LLA and LE agree.

    >>> round(resolve_prior("paper", points=50_000), 9), resolve_prior(2.0, points=50_000)
    (0.001, 2.0)
    """
    if value == "paper":
        return 1 / (2 * points * PAPER_SIGMA**2)
    return float(value)
