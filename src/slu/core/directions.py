"""Which rows of an input are measured: the leading directions of H, all outputs, or random mixtures of them.

Letters: J (t, p) the Jacobian of an input, H = L Lᵀ (t, t), u the leading directions of H with eigenvalues λ, ε signs.

| outputs | rows of kind jacobian | rows of kind fisher | gradients per input |
|---|---|---|---|
| m | uᵀ J | √λ uᵀ J: the same gradients, with λ raised so that they add up to tr H | m |
| "all" | J | Lᵀ J | t for each kind |
| Probes(m) | εᵀ J / √m | (L ε)ᵀ J / √m | m for each kind |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from slu.artifacts import stored
from slu.checks import whole
from slu.errors import SettingError
from slu.likelihoods import Likelihood, leading

JACOBIAN, FISHER = "jacobian", "fisher"
"""The two kinds of rows: those of J, and those of Lᵀ J."""

ALL = "all"

USUAL = 1
"""How many leading directions are measured where nothing else is said."""


@dataclass(frozen=True)
class Probes:
    """Measure random mixtures of an input's rows instead of all: unbiased for their sum, with a standard error.

    The signs are drawn from the content of the input and the seed of the score, so a score is the same in every batch.

    Args:
        count: m, how many mixtures per input; at least 2 for a standard error.

    Cost: m gradients per input for each kind of rows that a reading needs, whatever t.
    """

    count: int

    def __post_init__(self) -> None:
        whole("the number of probes", self.count, least=1)


Outputs: TypeAlias = int | str | Probes
"""How many leading directions of H, "all" outputs, or probes."""


def check_outputs(outputs: Any) -> Outputs:
    """A choice as a user gave it."""
    if isinstance(outputs, Probes) or outputs == ALL or (type(outputs) is int and outputs > 0):
        return outputs
    try:
        return whole("outputs", outputs, least=1)
    except SettingError:
        raise SettingError(
            f"outputs={outputs!r} is not a choice of rows: give how many leading directions (1 or more), 'all', or "
            "Probes(m) for m random mixtures"
        ) from None


def check_query(
    rows: Collection[Outputs], outputs: Outputs | None, per_output: bool, return_error: bool, *, reduced: bool
) -> None:
    """Refuse what does not go together in a query.

    Args:
        rows: What is measured for each of its readings.
        outputs: What the user chose, or None.
        per_output, return_error, reduced: What is to be returned.

    Raises:
        SettingError: Rows that are chosen per output, or an error of what has none.
    """
    if per_output and outputs not in (None, ALL):
        raise SettingError(f"per_output=True measures all outputs, got outputs={outputs!r}; leave one of them out")
    if return_error and reduced:
        raise SettingError("return_error=True is of single positions; leave reduce= or return_error out")
    if return_error and not all(isinstance(each, Probes) and each.count > 1 for each in rows):
        raise SettingError(
            f"return_error=True needs at least 2 probes, got outputs={outputs!r}; pass outputs=slu.Probes(8)"
        )


def to_plain(outputs: Outputs) -> Any:
    """For a header."""
    return {"probes": outputs.count} if isinstance(outputs, Probes) else outputs


def from_plain(plain: Any) -> Outputs:
    """What `to_plain` gave; DamagedFileError where it cannot have."""
    if isinstance(plain, dict):
        return Probes(stored.whole(plain, "probes", least=1))
    return ALL if plain == ALL else stored.whole({"outputs": plain}, "outputs", least=1)


@dataclass(frozen=True)
class Chosen:
    """The rows of a batch that are measured, and how the energies of each kind come from them.

    Attributes:
        vectors: (b, q, t), for rows uᵀJ; None if no kind is wanted.
        places: By kind its rows among the q.
        weights: By kind (b, rows), squared; missing if all are 1.
        scales: By kind (b, 1), the factor by which its rows were divided.
    """

    vectors: Tensor | None
    places: Mapping[str, slice]
    weights: Mapping[str, Tensor]
    scales: Mapping[str, Tensor]

    def rows(self, numbers: Tensor, start: int) -> tuple[dict[str, Tensor], int]:
        """By kind its numbers (m, b, rows), from those of several choices (m, b, …); and where the next one begins."""
        rows = {}
        for kind, place in self.places.items():
            rows[kind] = numbers[..., start + place.start : start + place.stop]
            if kind in self.weights:
                rows[kind] = rows[kind] * self.weights[kind].to(numbers.dtype)
        return rows, start + (0 if self.vectors is None else self.vectors.shape[1])

    def of(self, taken: Callable[[Tensor], Tensor]) -> Chosen:
        """The weights and scales of some of the points, which were measured."""
        weights = {kind: taken(each) for kind, each in self.weights.items()}
        return replace(self, weights=weights, scales={kind: taken(each) for kind, each in self.scales.items()})


def chosen(
    likelihood: Likelihood, outputs: Tensor, draw: Callable[[int], Tensor], choice: Outputs, kinds: Collection[str]
) -> Chosen:
    """The rows of a batch for one choice.

    Args:
        likelihood, outputs: Of the points, (b, t).
        draw: (b, count) numbers in (0, 1) that belong to the points, for the signs of probes.
        choice, kinds: Which rows.

    Cost: of the table above; b q t numbers.

    Numerics: rows of a confident network are tiny, and squares of them would underflow: the largest is divided out and
    kept as a scale. Where λ itself has underflowed, the rows have the weight 1 and the scale 0.
    """
    if not kinds:
        return Chosen(None, {}, {}, {})
    if isinstance(choice, int):
        return _leading_rows(likelihood, outputs, choice, kinds)
    mixtures = None if isinstance(choice, str) else _signs(outputs, draw, choice.count)
    parts = {kind: row_vectors(likelihood, outputs, kind, mixtures) for kind in sorted(kinds)}
    vectors = torch.cat([each for each, _ in parts.values()], 1)
    count = vectors.shape[1] // len(parts)
    places = {kind: slice(count * i, count * (i + 1)) for i, kind in enumerate(parts)}
    return Chosen(vectors, places, {}, {kind: scale for kind, (_, scale) in parts.items()})


def _leading_rows(likelihood: Likelihood, outputs: Tensor, count: int, kinds: Collection[str]) -> Chosen:
    own = getattr(likelihood, "leading", None)
    directions, roots = leading(likelihood, outputs, count) if own is None else own(outputs, count)
    largest = roots.amax(1, keepdim=True)
    shares = torch.where(largest > 0, roots / largest, 1.0).square()  # of λ, relative to the largest
    trace = getattr(likelihood, "trace", None)
    total = largest * shares.sum(1, keepdim=True).sqrt() if trace is None else trace(outputs).sqrt()[:, None]
    scales = {JACOBIAN: torch.ones_like(largest), FISHER: total}
    weights = {}
    if roots.shape[1] > 1 and FISHER in kinds:
        weights[FISHER] = shares / shares.sum(1, keepdim=True)
    every = slice(0, directions.shape[1])
    return Chosen(directions, dict.fromkeys(sorted(kinds), every), weights, {kind: scales[kind] for kind in kinds})


def _signs(outputs: Tensor, draw: Callable[[int], Tensor], count: int) -> Tensor:
    """(m, b, t) random signs over √m that belong to the points and not to the batch."""
    points, size = outputs.shape
    drawn = draw(count * size).view(points, count, size)
    return (drawn - 0.5).sign().to(outputs).transpose(0, 1) / count**0.5


def row_vectors(
    likelihood: Likelihood, outputs: Tensor, kind: str, mixtures: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Vectors v (b, q, t) such that the rows vᵀJ are measured, and the scale (b, 1) by which they were divided.

    Args:
        likelihood, outputs: Of the network, (b, t).
        kind: JACOBIAN for v = ε, FISHER for v = L ε.
        mixtures: ε (q, b, t); None for the t unit vectors.

    Numerics: as of `chosen`: where L has underflowed (logits that differ by hundreds, far from the data), the rows of
    J are used with the scale 0, so that the share is that of J instead of 0.
    """
    points, count = outputs.shape
    if mixtures is None:
        unit = torch.eye(count, dtype=outputs.dtype, device=outputs.device)
        mixtures = unit[:, None].expand(count, points, count)
    if kind == JACOBIAN:
        return mixtures.transpose(0, 1), torch.ones_like(outputs[:, :1])
    vectors = likelihood.factor_product(outputs, mixtures).transpose(0, 1)
    scale = vectors.abs().amax((1, 2), keepdim=True)
    known = scale > 0
    vectors = torch.where(known, vectors / scale.where(known, torch.ones_like(scale)), mixtures.transpose(0, 1))
    return vectors, scale[:, 0]
