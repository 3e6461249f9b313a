"""The linearized Laplace approximation with a diagonal curvature: every weight on its own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slu.artifacts import artifact as artefact
from slu.baselines.prior import check_prior, resolve_prior
from slu.budgets import Budget, Cost, size_of
from slu.budgets.memory import explain_out_of_memory
from slu.checks import whole
from slu.core.readings import READINGS
from slu.core.scoring import GradientReader
from slu.core.settings import baseline_cost, settle_rank, subject
from slu.curvature import (
    CURVATURES,
    NEGATIVE,
    Curvature,
    RootRows,
    exact_diagonal,
    hutchinson_diagonal,
    without_negative,
)
from slu.data import batch_count
from slu.errors import DamagedFileError, SettingError, unknown
from slu.gradients import Forward, PerExampleGradients, Pieces
from slu.likelihoods import Likelihood
from slu.parameters import Choice, fingerprint
from slu.progress import Bar

DIAGONALS = ("exact", "hutchinson")
"""Where the diagonal comes from."""

_PROBES = 100
_SQUARED = 1 << 18  # numbers squared and weighed at a time: they stay in the cache


class DiagonalLaplace:
    """How much do the network's outputs vary over weights that explain the data, each moved alone?

    `fit` finds the diagonal d of the curvature G. With α the precision of the weights' prior, the
    posterior's covariance is diag(1/(d + α)), and the score is the variance of the linearized
    outputs under it: Σ over outputs of Σ_i g_i² / (d_i + α), g the rows of J.

    Args:
        model: Any trained module with outputs (b,) or (b, t). It is never changed.
        likelihood: "classification", "regression", "multilabel", or an object of one's own
            with the four methods of `slu.likelihoods.Likelihood`.
        prior_precision: α, a number above 0 that stands beside a curvature *summed* over data: for
            weight decay w beside a mean loss it is n w. "paper" is what the paper's authors ran,
            α = 1/(2 n σ²) with σ = 0.1 and n the points of the fit, which belongs to a mean over data.
        diagonal: "exact", in one pass; or "hutchinson", estimated from products with random signs,
            as the authors have it. The estimate is there to explain their numbers.
        probes: Of "hutchinson": products, each one pass over the data; by default 100. That is 170
            training epochs' worth of gradients where "exact" takes t gradients a point; the authors
            take 10,000. An entry's error falls with 1/√probes and is often above the entry.
        negative: What becomes of negative entries of the estimate, of which the true diagonal has none:
            "clip" sets them to zero. "shift", the authors' way, raises the whole diagonal by the most
            negative entry (on digits an AUROC of 0.92 instead of 0.998).
        curvature: "ggn", "fisher" or "empirical-fisher". The Hessian's diagonal may be negative, which
            is no precision; it is refused.
        params: Which parameters count: None for the trainable ones, names, globs, a predicate.
        forward: How to call the model on the inputs of a batch, forward(model, inputs).
        seed: Of sampled labels and probes.
        budget: Memory for what is kept, to be checked only: the method keeps p numbers, "1p".

    Cost: one pass and t gradients a point; p numbers kept, p and one group of gradients while
    fitting. "hutchinson": a pass a probe, and 4 p numbers while fitting.

    Numerics: see `slu.curvature.exact_diagonal` on long sums. d + α is above zero always.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: str | Likelihood,
        *,
        prior_precision: float | str = 1.0,
        diagonal: str = "exact",
        probes: int | None = None,
        negative: str = "clip",
        curvature: str = "ggn",
        params: Choice = None,
        forward: Forward | None = None,
        seed: int = 0,
        budget: Budget | None = None,
    ) -> None:
        self.network, self.likelihood = subject(model, likelihood, params, forward)
        self.prior_precision = check_prior(prior_precision)
        _check_curvature(curvature)
        self.probes = _settle_probes(diagonal, probes, negative)
        self.diagonal = diagonal
        self.negative = negative
        self.curvature = curvature
        self.seed = whole("the seed", seed)
        if budget is not None:
            settle_rank("DiagonalLaplace", None, budget, self.network.selection)

    def cost(self, outputs: int | None = None, batch: int | Any = 1) -> Cost:
        """Bytes kept, and at the peaks of fitting and querying, beyond the model and activations.

        Args:
            outputs: t; by default as many as the model's last layer seems to have.
            batch: Inputs of a batch, of the data while fitting and of a query; or such a batch itself, by one
                forward pass of which the gradients in its activations are counted too.
        """
        found = baseline_cost("DiagonalLaplace", 1, self.network, outputs, batch)
        if self.probes is None:
            return found
        selection = self.network.selection
        kernel = size_of(selection, 1).kernel * selection.dtype.itemsize
        # The sum, a probe, its product and one batch's gradient, and a convolution's copy.
        return dataclasses.replace(found, fitting=4 * found.artefact + kernel, passes=self.probes)

    @torch.inference_mode(False)
    def fit(self, loader: Any, *, progress: bool | None = None) -> DiagonalLaplaceScore:
        """Find the diagonal; the loader is read once, or once a probe.

        Args:
            loader: Anything that yields `(inputs, targets)` or inputs; or one batch. Targets are
                used by the curvature "empirical-fisher" only.
            progress: Whether to show a bar; by default in a terminal only.

        Raises:
            DataError: Empty, not finite, or of a shape the likelihood cannot take.
            ChangedDataError: Two passes saw different data.
            NumericalError: Squares of gradients overflow.
        """
        self.network.check_weights()
        with explain_out_of_memory("fitting DiagonalLaplace", self.cost, self.network.selection.device):
            found, points = self._exact(loader, progress) if self.probes is None else self._estimate(loader, progress)
        return DiagonalLaplaceScore(self, found, points)

    def _exact(self, loader: Any, progress: bool | None) -> tuple[Tensor, int]:
        factors = RootRows(self.network, self.likelihood, loader, kind=self.curvature, seed=self.seed)
        with Bar("fit", batch_count(loader), progress) as bar:
            return exact_diagonal(factors, self.network.selection, bar.advance), factors.points

    def _estimate(self, loader: Any, progress: bool | None) -> tuple[Tensor, int]:
        assert self.probes is not None
        operator = Curvature(self.network, self.likelihood, loader, kind=self.curvature, seed=self.seed)
        with Bar("fit", self.probes, progress) as bar:
            found = hutchinson_diagonal(operator, self.probes, seed=self.seed, progress=bar.advance)
        return without_negative(found, self.negative), operator.points

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: nn.Module,
        *,
        likelihood: str | Likelihood | None = None,
        forward: Forward | None = None,
    ) -> DiagonalLaplaceScore:
        """A score that was saved, for the very network it was fitted on.

        Args:
            path: What `DiagonalLaplaceScore.save` wrote.
            model: The network, on any device, with the same weights and buffers.
            likelihood: Only where the score was fitted with one of the user's own.
            forward: Only where the score was fitted with one.

        Raises:
            StorageError: No such file, another method's, or a newer format.
            DamagedFileError: Cut, flipped or edited.
            MismatchError: Another network, changed weights, or something of the user's own missing.
        """
        loaded = artefact.load(path, cls.__name__, model, likelihood=likelihood, forward=forward)
        with artefact.sensible(path):
            points = whole("points", loaded.settings.pop("points"), least=1)
            method = cls(model, loaded.likelihood, forward=forward, **loaded.settings)
            found, selection = loaded.tensors["diagonal"], method.network.selection
        if found.shape != (selection.count,) or not bool((found.isfinite() & (found >= 0)).all()):
            raise DamagedFileError(
                f"{path} does not fit together: {selection.count} finite numbers of at least 0 are needed, its "
                f"diagonal is of the shape {tuple(found.shape)} or holds others. Fit and save anew"
            )
        return DiagonalLaplaceScore(method, found.to(selection.device, selection.dtype), points, loaded.weights)


class DiagonalLaplaceScore:
    """A fitted score: call it on inputs; larger means less sure. Made by `DiagonalLaplace.fit`.

    It belongs to the weights it was fitted on and calls the model it was given: train that model
    further and the scores mean nothing; fit anew.

    Attributes:
        method: The settings it was fitted with.
        prior_precision: α as a number, also where the setting is "paper".
        diagonal: (p,) of the curvature summed over data, without α; never negative.
        points: n, of the fit.
    """

    def __init__(
        self, method: DiagonalLaplace, diagonal: Tensor, points: int, weights: dict[str, str] | None = None
    ) -> None:
        self.method = method
        self.diagonal = diagonal
        self.points = points
        self.prior_precision = resolve_prior(method.prior_precision, points)
        # Now, not when it is saved: by then the network may have been trained further.
        self._weights = weights or fingerprint(method.network.model)
        gradients = PerExampleGradients(method.network)
        self._read = GradientReader(
            method.network, method.likelihood, gradients, self._energies, lambda measured: measured[1]
        )

    @property
    def readings(self) -> tuple[str, ...]:
        """The names that `reading=` takes; the first is the default."""
        return tuple(READINGS)

    def __call__(
        self, data: Any, *, reading: str = "variance", per_output: bool = False, progress: bool | None = None
    ) -> Tensor:
        """Score one batch, or every batch of a loader in its order.

        Args:
            data: Inputs (a tensor or dict), an (inputs, targets) pair, or a loader of them.
            reading: "variance" (the default), "relative" (that over ‖J‖²: 1/α where the data say
                nothing, and towards 0 where they say everything), "fisher" (of the predicted
                distribution instead of the outputs) or "fisher-relative".
            per_output: One score for each row (output) instead of their trace; by the Fisher readings of a
                classifier, for each label beside the predicted one, which has 0.
            progress: Whether to show a bar for a loader; by default in a terminal only.

        Returns:
            (b,), or (b, t) per output, on the device the inputs came on.

        Cost: t gradients an input, and p operations on each.
        """
        return self._read(data, reading=reading, per_output=per_output, progress=progress, cost=self.method.cost)

    def save(self, path: str | Path) -> None:
        """Write the score to one file, atomically, tied to the exact weights it was fitted on.

        Cost: p numbers and a header.
        """
        method = self.method
        settings = {
            "prior_precision": method.prior_precision,
            "diagonal": method.diagonal,
            "probes": method.probes,
            "negative": method.negative,
            "curvature": method.curvature,
            "seed": method.seed,
            "points": self.points,
        }
        tensors = {"diagonal": self.diagonal}
        artefact.save(
            path, type(method).__name__, method.network, method.likelihood, settings, tensors, weights=self._weights
        )

    def _energies(self, pieces: Pieces, shape: tuple[int, int]) -> Tensor:
        """(2, samples, vectors): ‖g‖² and Σ g²/(d + α) of rows g; each piece is squared and dropped."""
        found = self.diagonal.new_zeros(2, *shape)
        width = max(1, _SQUARED // (shape[0] * shape[1]))
        for start, values in pieces:
            places = self.diagonal[start : start + values.shape[-1]].split(width)
            for place, part in zip(places, values.split(width, -1), strict=True):
                squares = part.square()
                found[0] += squares.sum(-1)
                found[1] += squares.div_(place + self.prior_precision).sum(-1)
            del values  # or it would stay while the next is put together
        return found


def _check_curvature(curvature: str) -> None:
    if curvature not in CURVATURES:
        raise unknown("curvature", curvature, CURVATURES)
    if curvature == "hessian":
        raise SettingError(
            "curvature='hessian' has a diagonal that may be negative, which is no precision, and is no sum of squares; "
            "use curvature='ggn'"
        )


def _settle_probes(diagonal: str, probes: int | None, negative: str) -> int | None:
    """How many probes; None for the exact diagonal."""
    if diagonal not in DIAGONALS:
        raise unknown("diagonal", diagonal, DIAGONALS)
    if negative not in NEGATIVE:
        raise unknown("way with negative entries", negative, NEGATIVE)
    if diagonal == "hutchinson":
        return _PROBES if probes is None else whole("probes", probes, least=1)
    if probes is not None or negative != "clip":
        raise SettingError(
            f"probes={probes} and negative={negative!r} are settings of diagonal='hutchinson'; the exact diagonal "
            "needs no probes and has no negative entries. Leave them out, or add diagonal='hutchinson'"
        )
    return None
