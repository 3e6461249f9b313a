"""SWAG: a Gaussian over the weights that SGD passes through, and the variance of their predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from slu.artifacts import stored
from slu.artifacts.artifact import Loaded
from slu.baselines.base import Baseline, FittedScore, settle_rank
from slu.baselines.predictions import prediction_reader, readings_of
from slu.baselines.swag.batchnorm import refit, repeated, statistics_of
from slu.baselines.swag.moments import DEVIATIONS, Collector, Moments, first_draws
from slu.baselines.swag.training import SCHEDULES, Descent, Schedule, copied, descend, typed
from slu.budgets import Budget, Cost, Size
from slu.budgets.memory import explain_out_of_memory
from slu.checks import positive, whole
from slu.core.queries import outputs_of
from slu.data import Batch, batch_count, check_finite
from slu.errors import MismatchError, SettingError, unknown
from slu.gradients import Forward, Network
from slu.likelihoods import Likelihood
from slu.parameters import Choice
from slu.progress import Bar

USUAL_ITERATES = 10
"""Iterates collected by default, or as many as the rank where that is more."""

_LARGEST = torch.finfo(torch.float32).max
_MOST_SAMPLES = 10**6  # with more a query would not end
_BUFFER = "statistics/"  # before the names of BatchNorm's buffers in a file


def swag_cost(rank: int, size: Size) -> Cost:
    """Mean, variance and k deviations of weights; SGD's weights, gradient and momentum while fitting.

    A rank of 1 has no low-rank part, so no deviation is kept. A query draws networks one by one: the weights and the
    numbers drawn for them. BatchNorm's statistics, and the passes that find them for each sample, are not included.
    """
    p = size.parameters * size.bytes_each
    kept = (rank if rank > 1 else 0) + 2
    return Cost(kept * p, (kept + 3) * p, (kept + 2) * p, max(rank, USUAL_ITERATES))


@final
class SWAG(Baseline["SwagScore"]):
    """How much do the predictions of networks differ that SGD passes through near the trained one?

    `fit` continues SGD from the trained weights, on a copy of the model, and collects iterates.
    Their mean, their variance (a diagonal) and the last k of them (a low rank) make a Gaussian over
    weights. A query draws networks from it, the same ones every time, and compares their outputs.

    To do what the authors of Sketched Lanczos ran: `rank=3, collections=3, collect_every=1000` (100 on
    small data), `momentum=0.99, deviations="running", refit_batchnorm=False`, everything else as it
    is. Their multilabel loss is also a mean over the t labels: there `learning_rate=1e-3 / t`.

    Args:
        model, params, forward: As of `Baseline`.
        likelihood: As of `Baseline`; its mean loss over a batch is what SGD minimises.
        rank: k, the deviations kept. With 1 the spread of a single one is not defined, and the
            diagonal stands alone (SWAG-Diagonal). Left out, as many as the budget holds.
        budget: "3p" (the default) for three deviations, "2GB", or a whole number of floats; mean and
            variance, which do not grow with k, come on top as in the paper's count.
        samples: Networks drawn for a query, at most a million.
        learning_rate, momentum, weight_decay: Of SGD. Scores follow the learning rate closely: one
            like that of the end of the training is the usual choice.
        schedule: "constant", "cosine" (one cycle per collection, collected at its low), or a function
            from the step, counted from 0, to a factor of the learning rate.
        collect_every: Batches from one collected iterate to the next; None for once per epoch.
        collections: How many iterates; at least k. By default 10, or k where that is more.
        deviations: "final" for those from the mean of all iterates; "running" for those from the
            mean at each one's time, of which the first is always zero.
        refit_batchnorm: Whether BatchNorm's statistics are computed again for every sampled network; if
            not, all of them use those that SGD left.
        batchnorm_batches: Of how many batches; None for all.
        seed: Of the samples, of dropout, and of a loader that shuffles by torch's random state.

    Cost: `collections` epochs of training (or collect_every · collections batches), and with BatchNorm
    one forward pass over the data per sample. An iterate counts as one pass in `cost`. Holds (k + 5) p
    numbers while fitting, keeps (k + 2) p.

    Numerics: see `Collector` on cancellation; half-precision weights move and are drawn in float32.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: str | Likelihood,
        *,
        rank: int | None = None,
        budget: Budget | None = None,
        samples: int = 50,
        learning_rate: float = 1e-3,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        schedule: Schedule = "constant",
        collect_every: int | None = None,
        collections: int | None = None,
        deviations: str = "final",
        refit_batchnorm: bool = True,
        batchnorm_batches: int | None = None,
        params: Choice = None,
        forward: Forward | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(model, likelihood, params, forward)
        self.rank = settle_rank("SWAG", rank, budget, self.network.selection, swag_cost)
        self.samples = whole("samples", samples, least=2, most=_MOST_SAMPLES)
        if not callable(schedule) and schedule not in SCHEDULES:
            raise unknown("schedule", schedule, [*SCHEDULES, "a function from the step to a factor"])
        if deviations not in DEVIATIONS:
            raise unknown("deviations", deviations, DEVIATIONS)
        if collections is None:
            collections = max(self.rank, USUAL_ITERATES)
        elif whole("collections", collections, least=2) < self.rank:
            raise SettingError(
                f"{collections} collections cannot give {self.rank} deviations; raise collections= or lower rank="
            )
        self.descent = Descent(
            learning_rate=positive("learning_rate", learning_rate),
            momentum=_at_least_0("momentum", momentum, below=1.0),
            weight_decay=_at_least_0("weight_decay", weight_decay),
            schedule=schedule,
            collect_every=None if collect_every is None else whole("collect_every", collect_every, least=1),
            collections=int(collections),
            seed=whole("the seed", seed),
        )
        self.deviations = deviations
        self.refit_batchnorm = bool(refit_batchnorm)
        self._sets = self.samples if self.refit_batchnorm else 1  # of BatchNorm's statistics
        self.batchnorm_batches = (
            None if batchnorm_batches is None else whole("batchnorm_batches", batchnorm_batches, least=1)
        )
        self.seed = self.descent.seed
        self._forward = forward

    def _cost(self, size: Size) -> Cost:
        cost, statistics = swag_cost(self.rank, size), statistics_of(self.network.model)
        kept = self._sets * sum(value.numel() * value.element_size() for value in statistics.values())
        whole_passes = self.samples if statistics and self.refit_batchnorm and self.batchnorm_batches is None else 0
        return dataclasses.replace(
            cost,
            artefact=cost.artefact + kept,
            fitting=cost.fitting + kept,
            querying=cost.querying + kept,
            passes=self.descent.collections + whole_passes,
        )

    @torch.inference_mode(False)
    def fit(self, loader: Any, *, progress: bool | None = None) -> SwagScore:
        """Continue the training on a copy, and collect iterates; see `Baseline.fit`.

        The loader must yield targets, and may shuffle and augment.

        Raises:
            DataError: No targets, empty, not finite, or of a shape the likelihood cannot take.
            NumericalError: The loss or the weights left the finite numbers, or no weight moved.
            ModelError: The model cannot be copied, or the loss does not depend on its copy.
        """
        self.network.check_weights()
        selection = self.network.selection
        with explain_out_of_memory("fitting SWAG", self.cost, selection.device):
            copy = Network(copied(self.network), selection, self._forward)
            copy.reader = self.network.reader  # which remembers the format for queries
            collector = Collector(selection, self.rank, self.deviations, self.descent.collections)
            with Bar("fit", self.descent.steps(batch_count(loader, copy.reader)), progress) as bar:
                losses = descend(copy, self.likelihood, self.descent, loader, collector.add, bar.advance)
            moments = collector.moments()
            statistics = self._statistics(copy, moments, loader, progress)
        return SwagScore(self, moments, statistics, losses)

    def _statistics(self, copy: Network, moments: Moments, loader: Any, progress: bool | None) -> dict[str, Tensor]:
        """(samples, …) statistics of BatchNorm, or (1, …) where all samples share what SGD left."""
        statistics = repeated(copy.model, self._sets)
        if not statistics or not self.refit_batchnorm:
            return statistics
        # Whatever else SGD left in buffers, a query has the user's.
        originals = dict(self.network.model.named_buffers())
        for name, buffer in copy.model.named_buffers():
            buffer.copy_(originals[name])
        with Bar("BatchNorm", self.samples, progress) as bar:
            for index in range(self.samples):
                weights = typed(moments.sample(copy.selection, self.seed, index), copy)
                into = {name: value[index] for name, value in statistics.items()}
                refit(copy, loader, weights, into, most=self.batchnorm_batches, seed=self.seed)
                bar.advance()
        return statistics

    @classmethod
    def _restored(cls, loaded: Loaded, model: nn.Module, forward: Forward | None) -> SwagScore:
        """A schedule of the user's own is not in the file: the score does not need it, but its method cannot fit."""
        if stored.text(loaded.settings, "schedule") == "own":
            loaded.settings["schedule"] = _lost_schedule
        method = cls._of(loaded, model, forward)
        selection, shapes = method.network.selection, _shapes(method)
        if loaded.tensors.keys() != shapes.keys():
            raise stored.wrong("the list of tensors", sorted(loaded.tensors), str(sorted(shapes)))
        tensors = {name: _checked(loaded.tensors, name, shape, selection.dtype) for name, shape in shapes.items()}
        draws = tensors.pop("draws")
        if not torch.allclose(first_draws(method.seed, selection.dtype), draws, atol=1e-4):
            raise MismatchError(
                f"the weight samples of this file cannot be drawn again with torch {torch.__version__}; "
                "use the version named by `slu inspect`, or fit anew"
            )
        losses = tensors.pop("losses").tolist()
        parts = (tensors.pop(name) for name in ("mean", "variance", "deviations"))
        moments = Moments(*parts).to(selection.device)
        statistics = {name.removeprefix(_BUFFER): value.to(selection.device) for name, value in tensors.items()}
        return SwagScore(method, moments, statistics, losses, loaded.weights)


@final
class SwagScore(FittedScore[SWAG]):
    """The score made by `SWAG.fit`; for its readings see `slu.baselines.predictions`.

    The samples go into a file as a seed.

    Attributes:
        moments: Mean, variance and deviations of the weights, in the selection's order.
        statistics: BatchNorm's buffers by name, (samples, …), or (1, …) shared by all samples.
        losses: The mean training loss before each collected iterate.

    Cost: one forward pass per sample and input; every batch draws the samples anew, p normal numbers
    each, so large batches are cheaper.
    """

    def __init__(
        self,
        method: SWAG,
        moments: Moments,
        statistics: dict[str, Tensor],
        losses: list[float],
        weights: dict[str, str] | None = None,
    ) -> None:
        self.moments = moments
        self.statistics = statistics
        self.losses = losses
        read = prediction_reader(method.network, method.likelihood, self._members)
        super().__init__(method, read, readings_of(method.likelihood), weights)

    def sample(self, index: int) -> dict[str, Tensor]:
        """The selected parameters of the index-th network that is drawn, by name; the same at every call."""
        network = self.method.network
        return typed(self.moments.sample(network.selection, self.method.seed, index), network)

    def _stored(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        descent = self.method.descent
        settings = {
            **vars(descent),
            "schedule": descent.schedule if isinstance(descent.schedule, str) else "own",
            **self._settings("rank", "samples", "deviations", "refit_batchnorm", "batchnorm_batches"),
        }
        tensors = {
            **vars(self.moments),
            "draws": first_draws(self.method.seed, self.moments.mean.dtype),
            "losses": torch.tensor(self.losses, dtype=torch.float64),
            **{_BUFFER + name: value for name, value in self.statistics.items()},
        }
        return settings, tensors

    def _members(self, batch: Batch) -> Iterator[Tensor]:
        network = self.method.network
        outputs_of(network, batch.inputs, batch.index)  # for its checks
        for index in range(self.method.samples):
            buffers = {name: value[index % len(value)] for name, value in self.statistics.items()}
            outputs = network.outputs(batch.inputs, self.sample(index), buffers)
            check_finite(outputs, f"the outputs of weight sample {index} on batch {batch.index}")
            yield outputs


def _shapes(method: SWAG) -> dict[str, tuple[int, ...]]:
    """Of the tensors in a file, by name."""
    p, statistics = method.network.selection.count, statistics_of(method.network.model)
    kept = method.rank if method.rank > 1 else 0
    shapes: dict[str, tuple[int, ...]] = {"mean": (p,), "variance": (p,), "deviations": (kept, p)}
    shapes |= {"draws": tuple(first_draws(0, torch.float32).shape), "losses": (method.descent.collections,)}
    return shapes | {f"{_BUFFER}{name}": (method._sets, *value.shape) for name, value in statistics.items()}


def _checked(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of a file; variances are at least 0. Types of buffers are the model's own."""
    kind = torch.float64 if name == "losses" else None if name.startswith(_BUFFER) else dtype
    return stored.tensor(tensors, name, shape, kind, least=0.0 if name.endswith(("variance", "running_var")) else None)


def _at_least_0(name: str, value: Any, below: float = _LARGEST) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= cast(float, value) < below:
        raise SettingError(f"{name} must be a number of at least 0 and below {below:g}, got {value!r}")
    return float(value)


def _lost_schedule(_: int) -> float:
    raise SettingError(
        "this score was fitted with a schedule of the user's own, which is not in its file; "
        "to fit again, make a SWAG with schedule=your function"
    )
