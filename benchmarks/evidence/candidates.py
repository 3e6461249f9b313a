"""What is judged on a study: SLU by every reading, its combined reading as it was, and what others would use.

Letters: t the outputs of the network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from benchmarks.evidence.study import Batches, Study
from slu import (
    KNN,
    SLU,
    DeepEnsemble,
    DiagonalLaplace,
    Energy,
    Entropy,
    GradNorm,
    Mahalanobis,
    MaxLogit,
    MaxProbability,
    RelativeMahalanobis,
    SluScore,
    ViM,
)
from slu.likelihoods import Classification, Multilabel, resolve

DEFAULT, READING, BEFORE, COMPETITOR, ENSEMBLE = "default", "reading", "before", "competitor", "ensemble"
"""Kinds of rows: SLU's default call; its other readings; its combined reading as it was; methods that need no more
than the trained network and data; and ensembles, which need further trainings."""

SUMMED, THREE_VIEWS = "sum", "three views"
"""The combined reading as it was at first, a sum of fisher and fisher-relative, and then, a soft maximum."""

PAPER = ("variance", "relative")
"""Readings that by default measure every output: t gradients per input."""

MOST_OUTPUTS = 50
"""Where t is larger, all outputs are not measured."""

Scores = dict[str, Tensor]


@dataclass(frozen=True)
class Fitted:
    """A fitted method.

    Attributes:
        kinds: Of its rows, by reading.
        read: From batches to (n,) scores by reading, all of them.
        call: From one batch and a reading to its scores, as a user asks for one; None for rows without a call of
            their own.
    """

    kinds: Mapping[str, str]
    read: Callable[[Batches], Scores]
    call: Callable[[Tensor, str], Tensor] | None


@dataclass(frozen=True)
class Candidate:
    """A method by name, and how it is fitted on its study."""

    method: str
    fit: Callable[[], Fitted]


def candidates(study: Study, *, ensembles: bool = True) -> Iterator[Candidate]:
    """Every method that the study's likelihood has.

    Args:
        study: The network and its data.
        ensembles: Whether there is an ensemble, for which networks may have to be trained.
    """
    slu: list[SluScore] = []  # fitted once for the readings of today and before
    yield Candidate("SLU", partial(_slu, study, slu))
    yield Candidate("SLU before", partial(_before, study, slu))
    likelihood = resolve(study.likelihood)
    classes, labels = isinstance(likelihood, Classification), isinstance(likelihood, Multilabel)
    for kind in (Mahalanobis, RelativeMahalanobis, KNN, ViM, GradNorm) if classes else (Mahalanobis, KNN):
        yield Candidate(kind.__name__, partial(_of_features, kind, study))
    if classes:
        for kind in (MaxLogit, MaxProbability, Energy, Entropy):
            yield Candidate(kind.__name__, partial(_of_outputs, kind, study))
    for name, function in LABEL_SCORES.items() if labels else ():
        yield Candidate(name, partial(_of_labels, function, study))
    yield Candidate("DiagonalLaplace", partial(_laplace, study))
    if ensembles and study.members is not list:
        yield Candidate("DeepEnsemble", partial(_ensemble, study))


def _slu(study: Study, kept: list[SluScore]) -> Fitted:
    """The default fit; its default reading comes first, the paper's also along the leading direction alone."""
    score = SLU(study.model, study.likelihood, seed=study.seed, **study.settings).fit(
        study.fitted, calibration=study.apart, progress=False
    )
    kept.append(score)
    outputs = _outputs(study)
    names = [name for name in score.readings if name not in PAPER or outputs <= MOST_OUTPUTS]
    leading = {f"{name}, leading direction": name for name in PAPER if name in score.readings and outputs > 1}

    def read(batches: Batches) -> Scores:
        scores = score.read_all(batches, readings=names, progress=False)
        scores[names[0]] = score(batches, progress=False)  # the very call that users make
        if leading:
            once = score.read_all(batches, readings=list(leading.values()), outputs=1, progress=False)
            scores |= {row: once[name] for row, name in leading.items()}
        return scores

    def call(batch: Tensor, reading: str) -> Tensor:
        if reading == names[0]:
            return score(batch)
        return (
            score(batch, reading=leading[reading], outputs=1) if reading in leading else score(batch, reading=reading)
        )

    return Fitted({names[0]: DEFAULT} | dict.fromkeys([*names[1:], *leading], READING), read, call)


def _before(study: Study, kept: Sequence[SluScore]) -> Fitted:
    """The combined reading as it was in two forms, from the same fit; one gradient per input."""
    [score] = kept
    names = [name for name in ("fisher", "fisher-relative", "variance", "max-logit") if name in score.readings]
    read_raw = partial(score.read_all, readings=names, outputs=1, progress=False)
    standardize = {name: standard(name, values) for name, values in read_raw(study.apart).items()}

    def read(batches: Batches) -> Scores:
        return combined_before({name: standardize[name](values) for name, values in read_raw(batches).items()})

    return Fitted(dict.fromkeys((SUMMED, THREE_VIEWS), BEFORE), read, None)


def standard(name: str, apart: Tensor) -> Callable[[Tensor], Tensor]:
    """Standardizes a reading to mean 0 and deviation 1 on the scores of `apart`; by logarithms, but for max-logit.

    A score can underflow to 0, so scores are raised to a thousandth of the smallest positive one of `apart`.
    """
    if name == "max-logit":
        transform: Callable[[Tensor], Tensor] = torch.Tensor.double
    else:
        positive = apart[apart > 0].double()
        floor = max(1e-3 * float(positive.min()) if len(positive) else 1.0, torch.finfo(torch.float64).tiny)
        transform = lambda values: values.double().clamp(min=floor).log()  # noqa: E731
    mean, deviation = transform(apart).mean(), transform(apart).std()
    deviation = deviation if deviation > 1e-12 * max(1.0, float(mean.abs())) else torch.ones_like(deviation)
    return lambda values: (transform(values) - mean) / deviation


def combined_before(z: Mapping[str, Tensor]) -> Scores:
    """The sum of two standardized readings, and the soft maximum of three views; without max-logit, of two."""
    summed = z["fisher"] + z["fisher-relative"]
    views = [summed / math.sqrt(2), z["variance"], *([z["max-logit"]] if "max-logit" in z else [])]
    return {SUMMED: summed, THREE_VIEWS: torch.stack(views).logsumexp(0)}


def _method(score: Any, kind: str, readings: Sequence[str]) -> Fitted:
    """A fitted method of the library by some of its readings."""
    return Fitted(
        dict.fromkeys(readings, kind),
        lambda batches: {name: score(batches, reading=name, progress=False) for name in readings},
        lambda batch, reading: score(batch, reading=reading),
    )


def _of_features(kind: Callable[..., Any], study: Study) -> Fitted:
    score = kind(study.model, study.likelihood).fit(study.labelled, progress=False)
    return _method(score, COMPETITOR, score.readings)


def _of_outputs(kind: Callable[..., Any], study: Study) -> Fitted:
    score = kind(study.model).fit(study.fitted)
    return _method(score, COMPETITOR, score.readings)


def _laplace(study: Study) -> Fitted:
    score = DiagonalLaplace(study.model, study.likelihood, **study.settings).fit(study.fitted, progress=False)
    return _method(score, COMPETITOR, ("variance", "fisher"))


def _ensemble(study: Study) -> Fitted:
    score = DeepEnsemble([study.model, *study.members()], study.likelihood).fit()
    return _method(score, ENSEMBLE, score.readings)


# What the scores of class logits become for several labels, each a question of its own (Wang et al., 2021, of
# MaxLogit and JointEnergy).
LABEL_SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "MaxLogit": lambda f: -f.amax(1),
    "JointEnergy": lambda f: -softplus(f).sum(1),
    "Entropy": lambda f: -(f.sigmoid() * logsigmoid(f) + (-f).sigmoid() * logsigmoid(-f)).sum(1),
}


def _of_labels(function: Callable[[Tensor], Tensor], study: Study) -> Fitted:
    @torch.no_grad()
    def call(batch: Tensor, _: str = "labels") -> Tensor:
        return function(study.model(batch).double())

    return Fitted({"labels": COMPETITOR}, lambda batches: {"labels": torch.cat([call(each) for each in batches])}, call)


@torch.no_grad()
def _outputs(study: Study) -> int:
    """t."""
    return study.model(study.inside[0][:2]).shape[1]
