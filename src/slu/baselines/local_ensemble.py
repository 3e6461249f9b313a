"""Local ensembles: what is left of an input's gradient outside the leading eigenvectors of the curvature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slu.artifacts import artifact as artefact
from slu.baselines.eigenbasis import Eigenbasis, Spectrum, find, remainder_meter, settle_search, stored
from slu.budgets import Budget, Cost, size_for
from slu.budgets.costs import local_ensemble
from slu.core.readings import READINGS
from slu.core.scoring import GradientReader
from slu.core.settings import subject
from slu.errors import SettingError, unknown
from slu.gradients import Forward, PerExampleGradients
from slu.likelihoods import Likelihood
from slu.parameters import Choice, fingerprint

# What becomes of directions of negative curvature, and whether they may be kept.
NEGATIVE = {"pinned": True, "free": False}


class LocalEnsemble:
    """How much could the network's answer change in directions that its loss does not feel?

    `fit` finds leading eigenvectors U of the curvature G by Lanczos with every vector held. The
    score is the trace of J (I - U Uᵀ) Jᵀ: what `SLU` estimates through a sketch, exactly, for a
    rank that costs one copy of the parameters each.

    Args:
        model: Any trained module with outputs (b,) or (b, t). It is never changed.
        likelihood: "classification", "regression", "multilabel", or an object of one's own
            with the four methods of `slu.likelihoods.Likelihood`.
        rank: Directions kept, each p numbers. Left out, the budget sets it; what the data allow,
            n·t, ends it then, and refuses a rank that is given and above.
        budget: Memory for what is kept: "3p" (copies of the parameters), "2GB", or a whole number
            of floats. Where there is no rank either: "3p".
        steps: Lanczos steps, each one pass over the data; by default one more than the rank. Of the
            space that they span, the Ritz vectors with the largest |Ritz value| are kept: more
            steps make them truer eigenvectors. With no more steps than the rank the last of them is
            hardly anything but the random start vector (cosine 0.9999 for a LeNet at rank 3). What
            the paper's authors run as "rank 3" is rank=2, steps=3: they keep int(0.9 · 3) of their
            vectors.
        curvature: "ggn", "fisher", "empirical-fisher" or "hessian". The Hessian is a sum over
            data as the others are; the authors' is a sum of batch means, which has the same
            eigenvectors where batches are of one size.
        negative: What becomes of directions in which a Hessian is negative. "pinned": the loss
            changes there as well, only downwards, so such weights are not free to move; the largest
            magnitudes are kept, whatever their sign. "free": as the authors have it, the
            algebraically largest Ritz values are kept, negative ones never.
        params: Which parameters count: None for the trainable ones, names, globs, a predicate.
        forward: How to call the model on the inputs of a batch, forward(model, inputs).
        seed: Of start vector and sampled labels.

    Cost: `steps` passes over the data, each about 5/3 of a training epoch's gradients. While
    fitting (steps + 4) p numbers and one batch's activations, one p more on the Hessian; where steps
    are more than the rank at least (steps + rank) p. Kept are rank · p.

    Numerics: see `slu.baselines.eigenbasis.find` on directions without curvature, and
    `remainder_meter` on why the score's sums are taken in float64.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: str | Likelihood,
        *,
        rank: int | None = None,
        budget: Budget | None = None,
        steps: int | None = None,
        curvature: str = "ggn",
        negative: str = "pinned",
        params: Choice = None,
        forward: Forward | None = None,
        seed: int = 0,
    ) -> None:
        self.network, self.likelihood = subject(model, likelihood, params, forward)
        if negative not in NEGATIVE:
            raise unknown("way with negative curvature", negative, NEGATIVE)
        self.search = settle_search(
            "LocalEnsemble",
            self.network.selection,
            rank=rank,
            budget=budget,
            steps=steps,
            curvature=curvature,
            keeps_negative=curvature == "hessian" and NEGATIVE[negative],
            seed=seed,
        )
        self.rank, self.steps = self.search.rank, self.search.steps
        self.curvature, self.seed = self.search.curvature, self.search.seed
        if curvature != "hessian" and negative != "pinned":
            raise SettingError(
                f"negative={negative!r} is about curvature='hessian'; {curvature!r} has no negative directions: "
                "leave it out"
            )
        self.negative = negative

    def cost(self, outputs: int | None = None, batch: int | Any = 1) -> Cost:
        """Bytes kept, and at the peaks of fitting and querying, beyond the model and activations.

        Args:
            outputs: t; by default as many as the model's last layer seems to have.
            batch: Inputs of a batch, of the data while fitting and of a query; or such a batch itself, by one
                forward pass of which the gradients in its activations are counted too.
        """
        size = size_for(self.network, outputs, batch)
        return local_ensemble(self.rank, size, self.steps, self.curvature == "hessian")

    @torch.inference_mode(False)
    def fit(self, loader: Any, *, progress: bool | None = None) -> LocalEnsembleScore:
        """Find the directions; the loader is read `steps` times.

        Args:
            loader: Anything that yields `(inputs, targets)` or inputs, again and again; or one
                batch. Targets are used by the curvatures "hessian" and "empirical-fisher" only.
            progress: Whether to show a bar; by default in a terminal only.

        Raises:
            DataError: Empty, not finite, or of a shape the likelihood cannot take.
            ChangedDataError: Two passes saw different data.
            SettingError: The rank exceeds what the data allow, n·t.
            NumericalError: There is no curvature, or with negative="free" none that is positive.
        """
        found = find(self.search, self.network, self.likelihood, loader, cost=self.cost, progress=progress)
        return LocalEnsembleScore(self, found)

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: nn.Module,
        *,
        likelihood: str | Likelihood | None = None,
        forward: Forward | None = None,
    ) -> LocalEnsembleScore:
        """A score that was saved, for the very network it was fitted on.

        Args:
            path: What `LocalEnsembleScore.save` wrote.
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
            spectrum = loaded.settings.pop("spectrum")
            method = cls(model, loaded.likelihood, forward=forward, **loaded.settings)
            found = stored(path, spectrum, loaded.tensors, method.search, method.network.selection)
        return LocalEnsembleScore(method, found, loaded.weights)


class LocalEnsembleScore:
    """A fitted score: call it on inputs; larger means less sure. Made by `LocalEnsemble.fit`.

    It belongs to the weights it was fitted on and calls the model it was given: train that model
    further and the scores mean nothing; fit anew.

    Attributes:
        method: The settings it was fitted with.
        basis: (r, p) orthonormal rows, the directions that the data pin down.
        eigenvalues: (r,) their curvatures (Ritz values), signed, in float64.
        diagnostics: Steps, effective rank, Ritz values, residuals, passes, seconds.
    """

    def __init__(self, method: LocalEnsemble, found: Eigenbasis, weights: dict[str, str] | None = None) -> None:
        self.method = method
        self.basis: Tensor = found.vectors
        self.eigenvalues: np.ndarray = found.spectrum.ritz_values
        self.diagnostics: Spectrum = found.spectrum
        # Now, not when it is saved: by then the network may have been trained further.
        self._weights = weights or fingerprint(method.network.model)
        meter = remainder_meter(found.vectors, np.ones_like(self.eigenvalues))
        gradients = PerExampleGradients(method.network)
        self._read = GradientReader(method.network, method.likelihood, gradients, meter, lambda measured: measured[1])

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
            reading: "variance" (the default), "relative" (that over ‖J‖², from 0 to 1), "fisher" (of
                the predicted distribution instead of the outputs) or "fisher-relative".
            per_output: One score for each row (output) instead of their trace; by the Fisher readings of a
                classifier, for each label beside the predicted one, which has 0.
            progress: Whether to show a bar for a loader; by default in a terminal only.

        Returns:
            (b,), or (b, t) per output, on the device the inputs came on; never negative.

        Cost: t gradients an input, and 2 r p operations on each.
        """
        found = self._read(data, reading=reading, per_output=per_output, progress=progress, cost=self.method.cost)
        return found.to(self.method.network.selection.dtype)

    def save(self, path: str | Path) -> None:
        """Write the score to one file, atomically, tied to the exact weights it was fitted on.

        Cost: r p numbers and a header.
        """
        method = self.method
        settings = {
            "rank": method.rank,
            "steps": method.steps,
            "curvature": method.curvature,
            "negative": method.negative,
            "seed": method.seed,
            "spectrum": self.diagnostics.plain(),
        }
        tensors = {"basis": self.basis}
        artefact.save(
            path, type(method).__name__, method.network, method.likelihood, settings, tensors, weights=self._weights
        )
