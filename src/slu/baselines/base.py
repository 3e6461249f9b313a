"""What all baselines share: settings and their checks, costs, files, and how a fitted score is called.

A baseline is two final classes: its settings, a `Baseline`, and what its `fit` returns, a `FittedScore`. The layer
below, `slu.core`, is met here, and by scores of predictions in `predictions`.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from slu.artifacts import artifact as artefact
from slu.artifacts import stored
from slu.budgets import Budget, Cost, Size, parse, size_for, size_of
from slu.budgets.memory import check_budget, check_fits, free_bytes
from slu.checks import positive, whole
from slu.core.directions import ALL
from slu.core.readout import GRADIENT_READINGS, Readout
from slu.core.resolve import USUAL_BUDGET, subject
from slu.curvature import CURVATURES, Curvature, RootRows
from slu.errors import BudgetError, SettingError, unknown
from slu.gradients import Forward, Meter, Network, PerExampleGradients
from slu.likelihoods import Likelihood
from slu.parameters import Choice, KnownWeights, Selection

PAPER_SIGMA = 0.1
"""The width of the prior in the paper's rule."""

_NORMAL = torch.finfo(torch.float32)  # scores are over the prior precision
_OUTPUTS = 10  # outputs assumed where a budget is checked against the free memory before any data are seen


class Reader(Protocol):
    """Scores of one batch or of a loader, (b,), or (b, t) per output; `cost` is for out-of-memory messages."""

    def __call__(
        self, data: Any, *, reading: str, per_output: bool, progress: bool | None, cost: Callable[[], Cost]
    ) -> Tensor: ...


ScoreType = TypeVar("ScoreType", bound="FittedScore[Any]")


class Baseline(ABC, Generic[ScoreType]):
    """Settings of a baseline, checked when they are given; `fit` makes the score.

    Attributes:
        network: The model with its selected parameters.
        likelihood: What the model's outputs mean.

    Arguments with these names mean the same in every baseline:

    Args:
        model: Any trained module with outputs (b,) or (b, t). It is never changed. Of a wrapped one the module inside
            is taken, as of `slu.SLU`.
        likelihood: "classification", "regression", "multilabel", or any object with the four methods of
            `slu.likelihoods.Likelihood`.
        rank: k, the directions kept, each p numbers. Left out, the budget sets it; what the data allow, n·t, ends it
            then, and refuses a rank that is given and above.
        budget: Memory for what is kept: "3p" (copies of the parameters), "2GB", or a whole number of floats. Where
            there is no rank either: "3p".
        prior_precision: α, a number above 0 that is added to a curvature *summed* over data: for weight decay w beside
            a mean loss it is n w. "paper" is what the paper's authors ran, α = 1/(2 n σ²) with σ = 0.1 and n the
            points of the fit. That rule belongs to a mean over data; beside their sum it is too small by n.
        curvature: "ggn", "fisher", "empirical-fisher", and "hessian" where the baseline takes it.
        params: Which parameters count, as of `slu.SLU`: None for the trainable ones.
        forward: How to call the model on the inputs of a batch, forward(model, inputs).
        seed: Of start vectors, test matrices, probes, samples and sampled labels.
    """

    network: Network
    likelihood: Likelihood

    def __init__(self, model: nn.Module, likelihood: str | Likelihood, params: Choice, forward: Forward | None) -> None:
        self.network, self.likelihood = subject(model, likelihood, params, forward)

    def cost(self, outputs: int | None = None, batch: int | Any = 1) -> Cost:
        """Bytes kept, and at the peaks of fitting and querying, beyond the model and activations.

        Args:
            outputs: t; by default as many as the model's last layer seems to have.
            batch: Number of inputs per batch, of the data while fitting and of a query; or such a batch itself: one
                forward pass on it counts the gradients in its activations as well.
        """
        return self._cost(size_for(self.network, outputs, batch))

    @abstractmethod
    def _cost(self, size: Size) -> Cost:
        """The same for a problem of known size."""

    @abstractmethod
    def fit(self, loader: Any, *, progress: bool | None = None) -> ScoreType:
        """The fitted score; the model comes back as it was.

        Args:
            loader: Anything that yields `(inputs, targets)` or inputs, as often as there are passes; or one batch.
                Of the curvatures "hessian" and "empirical-fisher" need the targets.
            progress: Whether to show a bar; by default in a terminal only.

        Raises:
            DataError: Empty, not finite, or of a shape the likelihood cannot take.
            ChangedDataError: Two passes saw different data.
            SettingError: A rank was given and exceeds what the data allow, n·t.
            NumericalError: There is no curvature, or it overflows.
        """

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: nn.Module,
        *,
        likelihood: str | Likelihood | None = None,
        forward: Forward | None = None,
        check_weights: bool = True,
    ) -> ScoreType:
        """A score that was saved, for the network it was fitted on.

        Args:
            path: What the score's `save` wrote.
            model: The network (of an ensemble the first member), on any device, with the same weights and buffers.
            likelihood: Only where the score was fitted with one of the user's own.
            forward: Only where the score was fitted with one.
            check_weights: Whether the values of the weights must be those of the fit, now and in every query.

        Raises:
            StorageError: No such file, another method's, or a newer format.
            DamagedFileError: Cut, flipped or edited.
            MismatchError: Another network, changed weights, or something of the user's own missing.

        Cost: one read of the file and of the weights.
        """
        loaded = artefact.load(
            path, cls.__name__, model, likelihood=likelihood, forward=forward, check_weights=check_weights
        )
        with artefact.sensible(path):
            score = cls._restored(loaded, model, forward)
        score.method.network.reader.format = loaded.reading
        score.check_weights = check_weights
        return score

    @classmethod
    def _of(cls, loaded: artefact.Loaded, model: nn.Module, forward: Forward | None, *, beside: str = "") -> Any:
        """The method with the settings of a file, all of which must be there; one beside them is of the fit."""
        settings = {name: value for name, value in loaded.settings.items() if name != beside}
        for name, each in inspect.signature(cls).parameters.items():
            if each.kind is each.KEYWORD_ONLY and name not in ("forward", "budget"):
                stored.field(settings, name)
        return cls(model, loaded.likelihood, forward=forward, **settings)  # type: ignore[call-arg]

    @classmethod
    @abstractmethod
    def _restored(cls, loaded: artefact.Loaded, model: nn.Module, forward: Forward | None) -> ScoreType:
        """The score from the settings and tensors that its `_stored` gave.

        Raises:
            DamagedFileError: They do not fit together. A missing or wrong setting may raise KeyError, TypeError or
                SettingError as it comes; `load` turns it into a DamagedFileError.
        """


MethodType = TypeVar("MethodType", bound=Baseline[Any])


class FittedScore(ABC, Generic[MethodType]):
    """A fitted score: call it on inputs; larger means less sure.

    It belongs to the weights it was fitted on and calls the model it was given: after further training its scores
    would mean nothing, and a query is refused.

    Scores made of gradients have the readings "variance" (of the linearized outputs), "relative" (that over ‖J‖²),
    "fisher" (of the predicted distribution instead of the outputs) and "fisher-relative". Those of several networks'
    predictions are in the table of `slu.baselines.predictions`.

    Attributes:
        method: The settings it was fitted with.
        readings: The names that `reading=` takes; the first is the default.
        check_weights: Whether a query is refused where the weights have changed, as of `slu.SluScore`.

    Args:
        method, readings: Its attributes.
        read: Computes the scores.
        weights: Fingerprint of the weights where it is known, as on loading.
    """

    def __init__(
        self, method: MethodType, read: Reader, readings: tuple[str, ...], weights: dict[str, str] | None = None
    ) -> None:
        self.method = method
        self.readings = readings
        self._read = read
        # Taken now, not on saving: by then the network may have been trained further.
        self._known = KnownWeights(method.network.model, weights)
        self.check_weights = True

    def __call__(
        self, data: Any, *, reading: str | None = None, per_output: bool = False, progress: bool | None = None
    ) -> Tensor:
        """Score one batch, or every batch of a loader in its order.

        Args:
            data: Inputs (a tensor or dict), an (inputs, targets) pair, or a loader of them.
            reading: A name from `readings`; None for the first of them. The class says what they mean.
            per_output: One score per output instead of their sum, where the reading is such a sum. The Fisher
                readings of a classifier give one per label beside the predicted one, which has 0.
            progress: Whether to show a bar for a loader; by default in a terminal only.

        Returns:
            (b,), or (b, t) per output, on the device the inputs came on. Scores made of gradients have the model's
            type, at least float32; those made of predictions are float64.

        Cost: t gradients per input for scores made of gradients; else one forward pass per input and network.
        """
        name = self.readings[0] if reading is None else reading
        self.check_network()
        return self._read(data, reading=name, per_output=per_output, progress=progress, cost=self.method.cost)

    @property
    def readout(self) -> Readout | None:
        """What measures its gradients; None for scores made of predictions."""
        return getattr(self._read, "readout", None)

    def check_network(self) -> None:
        """Refuse where the weights have changed, if that is to be checked."""
        if self.check_weights:
            self.method.network.check_unchanged(self._known)

    def save(self, path: str | Path) -> None:
        """Write the score to one file, atomically, tied to the exact weights it was fitted on.

        Cost: a header and the numbers that `cost().artefact` counts.
        """
        method = self.method
        settings, tensors = self._stored()
        artefact.save(
            path,
            type(method).__name__,
            method.network,
            method.likelihood,
            settings,
            tensors,
            weights=self._known.fingerprint,
        )

    @abstractmethod
    def _stored(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Settings and tensors of the file; `Baseline._restored` reads them."""

    def _settings(self, *names: str) -> dict[str, Any]:
        """Settings of the method by name."""
        return {name: getattr(self.method, name) for name in names}


@dataclass(frozen=True)
class GradientReader:
    """Reads tr J M Jᵀ for some (p, p) matrix M, in the type of the selected parameters.

    Cost: t gradients per input, each measured once.
    """

    readout: Readout

    def __call__(self, data: Any, *, reading: str, **how: Any) -> Tensor:
        if reading not in GRADIENT_READINGS:
            raise unknown("reading", reading, GRADIENT_READINGS)
        return self.readout(data, {reading: ALL}, **how)[reading][0].to(self.readout.network.selection.dtype)


def gradient_reader(method: Baseline[Any], meter: Meter, precision: float = 1.0) -> GradientReader:
    """The reader of a method.

    Args:
        method: Has the network and the likelihood.
        meter: Measures rows g of J as ‖g‖² and `precision` · gᵀ M g.
        precision: What the second number is divided by.
    """
    gradients = PerExampleGradients(method.network)
    return GradientReader(
        Readout(method.network, method.likelihood, gradients, meter, lambda numbers: numbers[1] / precision)
    )


def copies_held(floats: int, parameters: int) -> int:
    """How many copies of the parameters a budget holds, at most one per parameter; the rank, as the paper counts."""
    return min(floats // parameters, parameters)


def settle_rank(
    method: str,
    rank: int | None,
    budget: Budget | None,
    selection: Selection,
    cost: Callable[[int, Size], Cost],
    *,
    most: int | None = None,
) -> int:
    """The rank of a method that keeps k copies of the parameters: given, or as many as a budget holds.

    Without either the budget is the usual one of SLU, so that methods compared by default keep the same. `most` is the
    largest rank that a budget sets; None for no bound.

    Raises:
        BudgetError: It cannot be read, holds less than one copy or than the rank given, or is more than is free.
        SettingError: A rank that is no whole number of at least 1, or above p.
    """
    if rank is not None:
        rank = whole("the rank", rank, least=1)
        if rank > selection.count:
            raise SettingError(f"rank {rank} is above the number of selected parameters, {selection.count}")
        if budget is None:
            return rank
    amount = parse(USUAL_BUDGET if budget is None else budget, selection.count, selection.dtype.itemsize)
    held = copies_held(amount.floats, selection.count)
    held = held if most is None else min(held, most)
    if rank is not None and rank > held:
        raise BudgetError(
            f"the budget {amount.text!r} holds rank {held} of {method}, not {rank}; leave one of the two out"
        )
    if held < 1:
        raise BudgetError(
            f"the budget {amount.text!r} is {amount.floats / selection.count:.2g} copies of the {selection.count:,} "
            f"parameters; {method} keeps at least one: give '1p' or more, or choose fewer parameters with params="
        )
    free = free_bytes(selection.device)
    check_budget(amount, selection.dtype.itemsize, free)
    check_fits(amount, cost(rank or held, size_of(selection, _OUTPUTS)), free)
    return rank or held


def allowed_rank(method: Any, rows: Curvature | RootRows) -> int:
    """The rank of a method, at most what the data allow, known once all were seen; a SettingError if given above."""
    if method.rank > rows.rank_bound and not method.rank_from_budget:
        raise SettingError(
            f"rank {method.rank} is above what the data allow: {rows.points} points of {rows.outputs} outputs give a "
            f"curvature ({method.curvature}) of rank {rows.rank_bound} at most. Lower the rank or fit on more points"
        )
    return min(method.rank, rows.rank_bound)


def check_curvature(curvature: str, hessian: str | None = None) -> None:
    """Refuse an unknown curvature; and the Hessian where `hessian` says why it cannot be used."""
    if curvature not in CURVATURES:
        raise unknown("curvature", curvature, CURVATURES)
    if curvature == "hessian" and hessian is not None:
        raise SettingError(f"curvature='hessian' {hessian}; use curvature='ggn'")


def check_prior(value: float | str) -> float | str:
    """A prior precision as it may be given: a number above 0, not so extreme that scores vanish, or "paper"."""
    if isinstance(value, str) and value == "paper":
        return value
    try:
        prior = positive("prior_precision", value)
        if not _NORMAL.tiny <= 1 / prior <= _NORMAL.max:
            raise SettingError(f"prior_precision must have a reciprocal within float32's normal range, got {value!r}")
        return prior
    except SettingError as reason:
        raise SettingError(f"{reason}; or 'paper', for 1/(2 n σ²) with σ = {PAPER_SIGMA}") from None


def resolve_prior(value: float | str, points: int) -> float:
    """α as a number; "paper" is 1/(2 n σ²) with σ = 0.1 and n the number of points fitted on.

    >>> round(resolve_prior("paper", points=50_000), 9), resolve_prior(2.0, points=50_000)
    (0.001, 2.0)
    """
    if value == "paper":
        return 1 / (2 * points * PAPER_SIGMA**2)
    return float(value)


def is_floating(_: str, value: nn.Parameter) -> bool:
    """A choice of parameters for methods that differentiate nothing: frozen ones as well, all that are no integers."""
    return value.is_floating_point()
