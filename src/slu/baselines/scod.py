"""SCOD (Sharma, Azizan and Pavone, 2021): a low-rank posterior from one randomized pass over the data."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from slu.artifacts import artifact as artefact
from slu.baselines.eigenbasis import remainder_meter
from slu.baselines.prior import check_prior, resolve_prior
from slu.budgets import Budget, Cost, size_for
from slu.budgets.costs import scod
from slu.budgets.memory import explain_out_of_memory
from slu.checks import whole
from slu.core.readings import READINGS
from slu.core.scoring import GradientReader
from slu.core.settings import settle_rank, subject
from slu.curvature import CURVATURES, RootRows
from slu.data import batch_count
from slu.errors import DamagedFileError, SettingError, unknown
from slu.gradients import Forward, PerExampleGradients
from slu.likelihoods import Likelihood
from slu.parameters import Choice, fingerprint
from slu.progress import Bar
from slu.seeds import derived_seed
from slu.sketches import DEFAULT_SKETCH, SKETCHES, SketchSpec, build, checked
from slu.subspace import SinglePass

FACTORS = ("exact", "hessian")
"""What stands for the square root of the output Hessian in the sketch."""


class SCOD:
    """How much does the predicted distribution vary over weights that explain the data as well?

    `fit` sketches the curvature G = Σ (LᵀJ)ᵀ (LᵀJ) with two random test matrices in a single pass, and finds
    leading eigenvectors U and eigenvalues Λ from the sketch. With α the precision of the weights'
    prior, the score is the trace of LᵀJ (U Λ Uᵀ + α I)⁻¹ JᵀL = (‖LᵀJ‖² - Σ w_i ‖LᵀJ u_i‖²) / α with
    w_i = λ_i/(λ_i + α).

    Other ways to write it. SCOD's authors have the covariance as ½ (G + I/(2 ε²))⁻¹: α = 1/(2 ε²) and half
    of this score, which leaves every ranking as it is. The sketching paper writes the norm of
    (I - U W Uᵀ) Jᵀ, W = diag(w), without L: its square is ‖J‖² - Σ (1 - (1 - w_i)²) ‖J u_i‖², where reading
    "variance" times α is ‖J‖² - Σ w_i ‖J u_i‖². The two agree outside the subspace; inside of it what is
    left is weighed by (1 - w_i)² = α²/(λ_i + α)² there, by α/(λ_i + α) here, both near zero where λ_i is
    above α.

    Args:
        model: Any trained module with outputs (b,) or (b, t). It is never changed.
        likelihood: "classification", "regression", "multilabel", or an object of one's own
            with the four methods of `slu.likelihoods.Likelihood`.
        rank: k, directions kept, each p numbers. Left out, the budget sets it; what the data allow,
            n·t, ends it then, and refuses a rank that is given and above.
        budget: Memory for what is kept: "3p" (copies of the parameters), "2GB", or a whole number
            of floats. Where there is no rank either: "3p". Fitting holds far more.
        sketch_rows: T, the vectors of length p held while fitting, by default 6 k + 4; a third of them
            find the range of G, the rest how it acts there. The eigenvectors are truer the more. At
            least 2 k + 6: below, the expected error has no bound. From p on nothing is sketched.
        prior_precision: α, a number above 0 that stands beside a curvature *summed* over data: for
            weight decay w beside a mean loss it is n w. "paper" is α = 1/(2 n σ²) with σ = 0.1, n the
            points of the fit, which belongs to a mean over data.
        factor: "exact" sketches with L, the square root of the Hessian H in the outputs. "hessian" is
            what the sketching paper's authors ran, H in place of L, so that Σ Jᵀ H² J is sketched:
            confident points count for even less. The score itself has the true L either way.
        curvature: "ggn", "fisher" or "empirical-fisher". The Hessian is no sum of squares; it is refused.
        params: Which parameters count: None for the trainable ones, names, globs, a predicate.
        forward: How to call the model on the inputs of a batch, forward(model, inputs).
        seed: Of test matrices and sampled labels.

    Cost: one pass and t gradients a point, each sketched twice and 2 T p operations. While fitting T p
    numbers (22 p for rank 3), two sketches of p/8 bytes, and one group of gradients; kept are k p.

    Numerics: see `slu.subspace.SinglePass`. The test matrices are "block_srft" sketches: all but
    p/4 bytes of them is drawn from seeds, and unlike hashes they reach directions with a handful of
    nonzero entries, such as a bias.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: str | Likelihood,
        *,
        rank: int | None = None,
        budget: Budget | None = None,
        sketch_rows: int | None = None,
        prior_precision: float | str = 1.0,
        factor: str = "exact",
        curvature: str = "ggn",
        params: Choice = None,
        forward: Forward | None = None,
        seed: int = 0,
    ) -> None:
        self.network, self.likelihood = subject(model, likelihood, params, forward)
        self.prior_precision = check_prior(prior_precision)
        _check_kinds(factor, curvature)
        self.rank = settle_rank("SCOD", rank, budget, self.network.selection)
        self.rank_from_budget = rank is None
        self.sketch_rows = _check_rows(sketch_rows, self.rank)
        self.factor = factor
        self.curvature = curvature
        self.seed = whole("the seed", seed)

    def cost(self, outputs: int | None = None, batch: int | Any = 1) -> Cost:
        """Bytes kept, and at the peaks of fitting and querying, beyond the model and activations.

        Args:
            outputs: t; by default as many as the model's last layer seems to have.
            batch: Inputs of a batch, of the data while fitting and of a query; or such a batch itself, by one
                forward pass of which the gradients in its activations are counted too.
        """
        specs, size = self._tests(), size_for(self.network, outputs, batch)
        found = scod(self.rank, size, sum(spec.size for spec in specs))
        state = sum(SKETCHES[spec.kind].state_bytes_of(spec, size.bytes_each) for spec in specs)
        return dataclasses.replace(found, fitting=found.fitting + state)

    @torch.inference_mode(False)
    def fit(self, loader: Any, *, progress: bool | None = None) -> ScodScore:
        """Find directions and eigenvalues; the loader is read once.

        Args:
            loader: Anything that yields `(inputs, targets)` or inputs; or one batch. Targets are
                used by the curvature "empirical-fisher" only.
            progress: Whether to show a bar; by default in a terminal only.

        Raises:
            DataError: Empty, not finite, or of a shape the likelihood cannot take.
            SettingError: The rank exceeds what the data allow, n·t.
            NumericalError: There is no curvature, or it overflows.
        """
        selection = self.network.selection
        self.network.check_weights()
        sketched = _HessianAsFactor(self.likelihood) if self.factor == "hessian" else self.likelihood
        factors = RootRows(self.network, sketched, loader, kind=self.curvature, seed=self.seed, whole=True)
        with (
            explain_out_of_memory("fitting SCOD", self.cost, selection.device),
            Bar("fit", batch_count(loader), progress) as bar,
        ):
            tests = (build(spec, device=selection.device, dtype=selection.dtype) for spec in self._tests())
            held = SinglePass(*tests)
            factors.feed(lambda rows: held.add(rows.pieces), bar.advance)
            eigenvalues, basis = held.leading(self._allowed(factors))
        return ScodScore(self, eigenvalues, basis, factors.points)

    def _tests(self) -> tuple[SketchSpec, SketchSpec]:
        """The test matrices: a third of T rows for the range, the rest for the action; or both the identity."""
        p, rows = self.network.selection.count, self.sketch_rows
        if rows >= p:
            return SketchSpec("identity", p, p), SketchSpec("identity", p, p)
        first = max(self.rank + 2, (rows - 1) // 3)
        sizes = {"range": first, "corange": rows - first}
        specs = [
            checked(SketchSpec(DEFAULT_SKETCH, p, size, derived_seed(self.seed, "scod", name)))
            for name, size in sizes.items()
        ]
        return specs[0], specs[1]

    def _allowed(self, factors: RootRows) -> int:
        """The rank, refused where it was given and the data cannot carry it."""
        bound = factors.points * (factors.outputs if self.curvature == "ggn" else 1)
        if self.rank > bound and not self.rank_from_budget:
            raise SettingError(
                f"rank {self.rank} is above what the data allow: {factors.points} points of {factors.outputs} outputs "
                f"give a curvature ({self.curvature}) of rank {bound} at most. Lower the rank or fit on more points"
            )
        return min(self.rank, bound)

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: nn.Module,
        *,
        likelihood: str | Likelihood | None = None,
        forward: Forward | None = None,
    ) -> ScodScore:
        """A score that was saved, for the very network it was fitted on.

        Args:
            path: What `ScodScore.save` wrote.
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
            values, basis = loaded.tensors["eigenvalues"], loaded.tensors["basis"]
        selection = method.network.selection
        shapes = tuple(values.shape), tuple(basis.shape)
        if shapes != ((len(basis),), (len(basis), selection.count)) or not 1 <= len(basis) <= method.rank:
            raise DamagedFileError(
                f"{path} does not fit together: a rank of {method.rank} and {selection.count} parameters are in its "
                f"header, eigenvalues and basis of the shapes {shapes} in the file. Fit and save anew"
            )
        if not bool((values.isfinite() & (values > 0)).all()):
            raise DamagedFileError(f"the eigenvalues in {path} cannot be: {values.tolist()}. Fit and save anew")
        basis = basis.to(selection.device, selection.dtype)
        return ScodScore(method, values.double().numpy(), basis, points, loaded.weights)


class ScodScore:
    """A fitted score: call it on inputs; larger means less sure. Made by `SCOD.fit`.

    It belongs to the weights it was fitted on and calls the model it was given: train that model
    further and the scores mean nothing; fit anew.

    Attributes:
        method: The settings it was fitted with.
        prior_precision: α as a number, also where the setting is "paper".
        basis: (r, p) orthonormal rows, r at most the rank.
        eigenvalues: (r,) of the curvature summed over data, largest first, in float64.
        points: n, of the fit.
    """

    def __init__(
        self,
        method: SCOD,
        eigenvalues: np.ndarray,
        basis: Tensor,
        points: int,
        weights: dict[str, str] | None = None,
    ) -> None:
        self.method = method
        self.eigenvalues = eigenvalues
        self.basis = basis
        self.points = points
        self.prior_precision = resolve_prior(method.prior_precision, points)
        # Now, not when it is saved: by then the network may have been trained further.
        self._weights = weights or fingerprint(method.network.model)
        meter = remainder_meter(basis, eigenvalues / (eigenvalues + self.prior_precision))
        gradients = PerExampleGradients(method.network)
        self._read = GradientReader(method.network, method.likelihood, gradients, meter, self._variance)

    @property
    def readings(self) -> tuple[str, ...]:
        """The names that `reading=` takes; the first is the default."""
        return ("fisher", *(name for name in READINGS if name != "fisher"))

    def __call__(
        self, data: Any, *, reading: str = "fisher", per_output: bool = False, progress: bool | None = None
    ) -> Tensor:
        """Score one batch, or every batch of a loader in its order.

        Args:
            data: Inputs (a tensor or dict), an (inputs, targets) pair, or a loader of them.
            reading: "fisher" (the default, SCOD's own), "variance" (of the outputs instead of the
                predicted distribution, as in the sketching paper), "relative" (that over ‖J‖²) or
                "fisher-relative".
            per_output: One score for each row instead of their trace: an output's, or a column's of L.
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
            "sketch_rows": method.sketch_rows,
            "prior_precision": method.prior_precision,
            "factor": method.factor,
            "curvature": method.curvature,
            "seed": method.seed,
            "points": self.points,
        }
        tensors = {"basis": self.basis, "eigenvalues": torch.from_numpy(self.eigenvalues)}
        artefact.save(
            path, type(method).__name__, method.network, method.likelihood, settings, tensors, weights=self._weights
        )

    def _variance(self, measured: Tensor) -> Tensor:
        return measured[1] / self.prior_precision


@final
class _HessianAsFactor:
    """A likelihood whose square root is taken to be H itself, as the sketching paper's authors have it."""

    def __init__(self, likelihood: Likelihood) -> None:
        self._own = likelihood

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._own.loss(outputs, targets)

    def hessian_product(self, outputs: Tensor, vectors: Tensor) -> Tensor:
        return self._own.hessian_product(outputs, vectors)

    def factor_product(self, outputs: Tensor, vectors: Tensor, *, transpose: bool = False) -> Tensor:
        del transpose  # H is symmetric
        return self._own.hessian_product(outputs, vectors)

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        return self._own.sample(outputs, uniform)


def _check_kinds(factor: str, curvature: str) -> None:
    if curvature not in CURVATURES:
        raise unknown("curvature", curvature, CURVATURES)
    if curvature == "hessian":
        raise SettingError("curvature='hessian' is no sum of squares that could be sketched; use curvature='ggn'")
    if factor not in FACTORS:
        raise unknown("factor", factor, FACTORS)
    if factor == "hessian" and curvature != "ggn":
        raise SettingError(
            f"factor='hessian' stands for the factor of the GGN; curvature={curvature!r} is made of gradients and has "
            "none. Leave one of the two out"
        )


def _check_rows(rows: int | None, rank: int) -> int:
    """T. Expected errors are bounded where the range has two rows above the rank, and the action two above it."""
    if rows is None:
        return 6 * rank + 4
    rows = whole("sketch_rows", rows)
    if rows < 2 * rank + 6:
        raise SettingError(
            f"sketch_rows must be at least 2·rank + 6, {2 * rank + 6} for rank {rank}, got {rows}; "
            f"left out it is 6·rank + 4, {6 * rank + 4}"
        )
    return rows
