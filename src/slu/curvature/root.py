"""A square root of the curvature, row by row: of a point in output space, and through the network over the data.

Letters: G (p, p) the curvature, a sum over data; a the rows of LᵀJ, with G = Σ a aᵀ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from slu.curvature.misuse import are_probabilities, check_targets
from slu.data.batches import Batch, check_finite
from slu.data.fingerprint import CopyCounter, Fingerprint, example_keys, random_signs, uniforms
from slu.data.structure import Inputs
from slu.errors import ChangedDataError, DataError, NumericalError, unknown
from slu.gradients.chunks import MAX_NUMBERS, Rows
from slu.gradients.layer_inputs import LayerInputs
from slu.gradients.network import Network
from slu.gradients.per_example import ForwardPass, PerExampleGradients, Unformed
from slu.gradients.positions import Grid
from slu.likelihoods import Classification, Likelihood, PerPosition
from slu.parameters import Selection
from slu.processes import ALONE, Processes

_SQUARED = 1 << 18  # numbers squared at a time

# Each kind, and where its labels come from: the model's own prediction, or the data's targets.
CURVATURES = {"ggn": "model", "fisher": "model", "empirical-fisher": "targets", "hessian": "targets"}


class Numbered(NamedTuple):
    """Of a batch, the (b,) keys of all that the curvature depends on, and which copy (b,) of its content each is."""

    keys: Tensor
    copies: Tensor


class OutputSpace:
    """What is computed from a batch's outputs and targets, without derivatives of the network.

    Args:
        likelihood: The loss.
        kind: A curvature of the table.
        seed: For what is drawn, each a function of the seed, of the point's content and of which copy of it it is.
        draws: For the kind "fisher" how many labels per point, one unless given; for "ggn" how many random mixtures of
            the columns of L instead of all columns.
        grid: Where the outputs of inputs are, if they have several positions, as `Network.grid`.
    """

    def __init__(
        self,
        likelihood: Likelihood,
        kind: str,
        seed: int,
        draws: int | None = None,
        grid: Callable[[Inputs, Tensor], Grid | None] = lambda inputs, outputs: None,  # noqa: ARG005
    ) -> None:
        if kind not in CURVATURES:
            raise unknown("curvature", kind, CURVATURES)
        self._likelihood = likelihood
        self._grid = grid
        self.kind = kind
        self.outputs = 0
        self.draws = draws
        self._seed = seed
        self.probabilities = False
        """Whether the outputs of the first batch of classes were probabilities already."""

    def check(self, outputs: Tensor, batch: Batch) -> None:
        """Refuse outputs that are not finite, or of another number per point than before, and targets that none has.

        Raises:
            DataError: The message names the batch, the value and the number of outputs.
        """
        check_finite(outputs.detach(), f"the model's outputs on batch {batch.index}")
        grid, targets, rows = self._grid(batch.inputs, outputs), batch.targets, outputs.detach()
        if grid is not None:  # every position is a point
            rows, targets = rows.reshape(-1, grid.outputs), grid.aligned(targets)
        check_targets(self._likelihood, rows, targets, batch.index)
        if not self.outputs and isinstance(self._likelihood, Classification):
            self.probabilities = are_probabilities(rows)
        if grid is not None:  # inputs may have different numbers of positions
            self.outputs = max(self.outputs, outputs.shape[1])
            return
        if self.outputs not in (0, outputs.shape[1]):
            raise DataError(
                f"batch {batch.index} has {outputs.shape[1]} outputs per point, earlier ones {self.outputs}"
            )
        self.outputs = outputs.shape[1]

    def likelihood(self, outputs: Tensor, batch: Batch) -> Likelihood:
        """Of the outputs of a batch: where they have positions, the sum over those that count."""
        grid = self._grid(batch.inputs, outputs)
        if grid is None:
            return self._likelihood
        return PerPosition(self._likelihood, grid.outputs, grid.with_targets(batch.targets).counted)

    def counted(self, outputs: Tensor, batch: Batch) -> Tensor | None:
        """(b, P) which positions count; None where there are none."""
        grid = self._grid(batch.inputs, outputs)
        return None if grid is None else grid.with_targets(batch.targets).counted

    def numbered(self, batch: Batch, outputs: Tensor, copies: CopyCounter) -> Numbered:
        """The points of a batch, once in a pass; copies are counted where something is drawn for each of them.

        Of labels that the model predicts, targets say at most which positions count.
        """
        other = batch.targets if CURVATURES[self.kind] == "targets" else self.counted(outputs, batch)
        keys = example_keys((batch.inputs, other), len(outputs))
        drawn = self.kind == "fisher" or (self.kind == "ggn" and self.draws is not None)
        return Numbered(keys, copies(keys) if drawn else torch.zeros_like(keys))

    def note(self, seen: Fingerprint, outputs: Tensor, batch: Batch, points: Numbered) -> None:
        """Add a batch to what a pass has seen."""
        seen.add(points.keys, outputs, self.counted(outputs, batch))

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """(b,) losses at the data's targets."""
        if batch.targets is None:
            raise DataError(
                f"curvature={self.kind!r} needs targets, but batch {batch.index} has inputs alone; "
                "use a loader of (inputs, targets), or curvature='ggn'"
            )
        grid, targets = self._grid(batch.inputs, outputs), batch.targets
        if grid is not None:
            targets = grid.aligned(targets)
        return self.likelihood(outputs, batch).loss(outputs, targets)

    def gradients(self, outputs: Tensor, batch: Batch, points: Numbered) -> Tensor:
        """(b, m, t) gradients of the loss in the outputs, at m sampled labels or at the targets, over √m."""
        leaf = outputs.clone().requires_grad_()
        if self.kind != "fisher":
            return torch.autograd.grad(self.loss(leaf, batch).sum(), leaf)[0][:, None]
        gradients, likelihood, grid = [], self.likelihood(outputs, batch), self._grid(batch.inputs, outputs)
        for draw in range(self.draws or 1):
            purpose = f"labels {draw}" if draw else "labels"
            uniform = uniforms(points.keys, outputs.shape[1], self._seed, purpose, points.copies)
            uniform = uniform if grid is None else grid.from_first(uniform)
            losses = likelihood.loss(leaf, likelihood.sample(outputs, uniform))
            gradients.append(torch.autograd.grad(losses.sum(), leaf)[0])
        return torch.stack(gradients, 1) / len(gradients) ** 0.5

    def roots(self, outputs: Tensor, batch: Batch, points: Numbered) -> Tensor:
        """(b, q, t) vectors u with Σ u uᵀ the curvature in the outputs: columns of L, mixtures of them, or gradients.

        A mixture is L ε with random signs ε: E L ε εᵀ Lᵀ = L Lᵀ = H, as for the gradient at a label drawn from the
        model, but ‖L ε‖² has the mean tr H and varies by less than that: only products of different columns do.
        At a confident prediction a drawn label is nearly always the predicted one, with a negligible gradient, and
        rarely another, with a large one: its squared length varies by ten to a hundred times its mean. With two
        classes a mixture is exact.

        Raises:
            DataError: The Hessian of the loss in the parameters has no such root.
        """
        if self.kind == "hessian":
            raise DataError("curvature='hessian' is no sum of squares; use curvature='ggn'")
        if self.kind != "ggn":
            return self.gradients(outputs, batch, points)
        size, count = outputs.shape
        if self.draws is None:
            mixtures = torch.eye(count, dtype=outputs.dtype, device=outputs.device)[:, None].expand(-1, size, -1)
        else:
            purposes = [f"signs {draw}" if draw else "signs" for draw in range(self.draws)]
            signs = [
                random_signs(points.keys, count, self._seed, purpose, outputs.dtype, points.copies)
                for purpose in purposes
            ]
            grid, placed = self._grid(batch.inputs, outputs), [each.to(outputs.device) for each in signs]
            placed = placed if grid is None else [grid.from_first(each) for each in placed]
            mixtures = torch.stack(placed) / self.draws**0.5
        roots = self.likelihood(outputs, batch).factor_product(outputs, mixtures)
        if roots.shape != mixtures.shape:
            raise DataError(
                f"the likelihood's factor_product made {tuple(roots.shape)} of vectors {tuple(mixtures.shape)}; L "
                "takes (..., points, outputs) to the same shape"
            )
        return roots.transpose(0, 1)


class RootRows:
    """Rows a with G = Σ a aᵀ: of every point the t rows of LᵀJ, random mixtures of them, or one gradient (Fishers).

    Args:
        network: The function to differentiate.
        likelihood: The loss in output space.
        data: A loader of batches, or one batch.
        kind: "ggn", "fisher" or "empirical-fisher", as in `Curvature`.
        seed: For what is drawn.
        draws: Labels per point for the kind "fisher" (one unless given), or mixtures per point for "ggn" instead of
            all t rows, for which G is right on average (`OutputSpace.roots`).
        max_numbers: Of gradients that may be in flight.
        whole: Whether the consumer holds the pieces of a chunk until the last.
        unformed: Which gradients the consumer takes as factors, as of `PerExampleGradients`.
        watch: Records the inputs of layers in the same forward passes; has those of a batch when its rows come.

    Cost: a forward pass and t gradients per point; as many as draws if given, one for the Fishers. Where something is
    drawn, 16 to 32 bytes per distinct point of a pass (`CopyCounter`).
    """

    def __init__(  # noqa: PLR0913 (all but three are keyword-only)
        self,
        network: Network,
        likelihood: Likelihood,
        data: Any,
        *,
        kind: str = "ggn",
        seed: int = 0,
        draws: int | None = None,
        max_numbers: int = MAX_NUMBERS,
        whole: bool = False,
        unformed: Unformed | None = None,
        watch: LayerInputs | None = None,
    ) -> None:
        self._network = network
        self._space = OutputSpace(likelihood, kind, seed, draws, network.grid)
        self._data = data
        self._watch = watch
        self._gradients = PerExampleGradients(network, max_numbers, whole=whole, unformed=unformed)
        self.seen = Fingerprint()
        """What the pass has seen so far."""

    @property
    def points(self) -> int:
        """n so far."""
        return self.seen.points

    @property
    def outputs(self) -> int:
        """t, known after the first batch; of outputs at several positions P·C, of the inputs with most."""
        return self._space.outputs

    @property
    def probabilities(self) -> bool:
        """Whether the outputs of the first batch were probabilities already."""
        return self._space.probabilities

    @property
    def rank_bound(self) -> int:
        """The rank that the rows so far allow: as many as there were, and at most p."""
        return self.rank_allowed(self.points)

    def rank_allowed(self, points: int) -> int:
        """The rank that the rows of so many points allow, once the number of outputs is known."""
        each = self._space.draws or (self.outputs if self._space.kind == "ggn" else 1)
        return min(points * each, self._network.selection.count)

    def feed(
        self,
        consumer: Callable[[Rows], None],
        progress: Callable[[], None] | None = None,
        *,
        done: Fingerprint | None = None,
        compare: bool = True,
    ) -> None:
        """One pass over the data: every row to the consumer, batch by batch, within a batch in any order.

        Args:
            consumer: Called with a chunk of rows at a time; their pieces are valid until it returns.
            progress: Called after each batch.
            done: What an earlier pass had seen when it stopped: the first batches must be the same, and are not
                differentiated again.
            compare: Whether they are compared with it; if not, as many points are left out.

        Raises:
            DataError: Empty, not finite, or of a shape the likelihood cannot take.
            ChangedDataError: The first batches are not those that were seen.
        """
        self.seen, copies = Fingerprint(), CopyCounter()
        # Not a generator: one that a consumer's exception leaves unfinished would not restore the network.
        with self._network.evaluating():
            for batch in self._network.batches(self._data, purpose="fitting"):
                again = done is not None and self.seen.points < done.points
                self._feed(batch, None if again else consumer, copies)
                if done is not None and again and self.seen.points >= done.points:
                    self._reach(done, compare=compare)
                if progress is not None and not again:
                    progress()
        if done is not None and self.seen.points < done.points:
            self._reach(done, compare=compare)

    def _reach(self, done: Fingerprint, *, compare: bool) -> None:
        """What was seen must be what an earlier pass had seen, as far as that came."""
        if not compare:
            if self.seen.points > done.points:
                raise ChangedDataError(
                    f"the run that began it had fitted {done.points} points, and a batch here ends at point "
                    f"{self.seen.points}. Give batches of the same size as in that run"
                )
            self.seen = replace(done)
            return
        if (self.seen.points, self.seen.content) != (done.points, done.content):
            raise ChangedDataError(
                f"the first {self.seen.points} points that are fitted here are not the {done.points} that the run that "
                "began it had fitted; where points are held out, batches of another size are fitted in another order. "
                "Give batches of the same size as in that run"
            )
        self.seen.check_same(done)  # and the network the same as well

    def _feed(self, batch: Batch, consumer: Callable[[Rows], None] | None, copies: CopyCounter) -> None:
        """Rows of a batch to the consumer, if any; its activations are freed on return."""
        if consumer is None:  # it was differentiated before
            with torch.no_grad():
                outputs = self._network.outputs(batch.inputs)
            self._check(outputs, batch)
            points = self._space.numbered(batch, outputs, copies)
        else:
            forward = self._gradients.forward(batch.inputs, self._watch)
            outputs = forward.outputs
            self._check(outputs, batch)
            points = self._space.numbered(batch, outputs, copies)
            if self._watch is not None:
                self._watch.finish(batch.inputs, outputs, self._space.counted(outputs, batch))
            for rows in self._rows(forward, batch, points):
                consumer(rows)
                del rows  # or its gradients in the activations would stay in memory while the next are computed
        self._space.note(self.seen, outputs, batch, points)

    def _rows(self, forward: ForwardPass, batch: Batch, points: Numbered) -> Iterator[Rows]:
        """The rows of a batch; of a network of half precision those of roots of length 1, multiplied afterwards.

        At a confident prediction roots are small, and would underflow in float16 on their way back.
        """
        outputs = forward.outputs
        if outputs.dtype.itemsize >= torch.float32.itemsize:
            yield from forward.rows(self._space.roots(outputs, batch, points))
            return
        roots = self._space.roots(outputs.float(), batch, points)
        lengths = torch.linalg.vector_norm(roots, dim=-1, keepdim=True)
        units = torch.where(lengths > 0, roots / lengths, 0.0).to(outputs.dtype)
        for rows in forward.rows(units):
            yield rows.times(lengths[rows.examples, rows.vectors])

    def _check(self, outputs: Tensor, batch: Batch) -> None:
        self._space.check(outputs, batch)
        if self.seen.points < 2:  # the first batch; of which hold-out may leave a single point, that shows nothing
            with torch.no_grad():
                self._network.check_pointwise(batch.inputs, outputs)


def exact_diagonal(
    factors: RootRows,
    selection: Selection,
    progress: Callable[[], None] | None = None,
    processes: Processes = ALONE,
) -> Tensor:
    """diag(G) (p,) = Σ a², elementwise, over all points and all columns of L: one pass over the data.

    Args:
        factors: Where the rows come from; after this it knows the number of points.
        selection: The parameters that the rows are of.
        progress: Called after each batch.
        processes: Those that share the data; the sum is over all of them.

    Raises:
        DataError: As `RootRows.feed`.
        NumericalError: A sum overflowed.

    Cost: one pass; t gradients per point (one for the Fishers). p numbers beside the gradients in
    flight, which are squared a megabyte at a time and added in place.

    Numerics: every term is positive, so nothing cancels. The relative error after m additions (chunks, not rows) is
    at most m·ε and mostly about √m·ε: 4e-5 for half a million in float32; the worst case, equal terms that round to
    the same side, has 1 % after a million. Either is far below what a diagonal leaves out of G, so no compensated
    sum of p more numbers is kept. Squares below 1e-38 vanish in float32, far below any prior precision.
    """
    total = torch.zeros(selection.count, dtype=selection.dtype, device=selection.device)

    def add(rows: Rows) -> None:
        for start, squares in summed_squares(rows):
            total[start : start + len(squares)] += squares

    factors.feed(add, progress)
    processes.add_up([total])
    return check_finite_diagonal(total)


def summed_squares(rows: Rows) -> Iterator[tuple[int, Tensor]]:
    """Σ g² (m,) over the formed rows g of a chunk, some coordinates at a time, with the first of them."""
    width = max(1, _SQUARED // (rows.shape[0] * rows.shape[1]))
    for start, values in rows.pieces:
        for first in range(0, values.shape[-1], width):
            yield start + first, values[..., first : first + width].square().sum((0, 1))
        del values  # or it would be held while the next is formed


def check_finite_diagonal(diagonal: Tensor) -> Tensor:
    # The largest magnitude is NaN or infinite if any entry is, and takes no copy.
    if not bool(torch.isfinite(torch.linalg.vector_norm(diagonal, float("inf")))):
        raise NumericalError(
            f"the diagonal of the curvature overflows {str(diagonal.dtype).removeprefix('torch.')}: squares of "
            "gradients do not fit. Look for points with extreme inputs, or fit the model in float64: model.double()",
            partial=diagonal,
        )
    return diagonal
