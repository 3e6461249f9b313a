"""One pass over the data that gives a square root of the curvature, row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from slu.curvature.output_space import OutputSpace
from slu.data.batches import Batch, batches
from slu.data.fingerprint import Fingerprint
from slu.gradients.network import Network
from slu.gradients.per_example import PerExampleGradients
from slu.gradients.rows import ROOM, Rows
from slu.likelihoods import Likelihood


class RootRows:
    """Rows a with G = Σ a aᵀ: of every point the t rows of LᵀJ, random mixtures of them, or one gradient (Fishers).

    Args:
        network: The function to differentiate.
        likelihood: The loss in output space.
        data: A loader of batches, or one batch.
        kind: "ggn", "fisher" or "empirical-fisher", as in `Curvature`.
        seed: For what is drawn.
        draws: Labels a point for the kind "fisher" (one unless given), or mixtures a point for "ggn" instead of all t
            rows, for which G is right on average (`OutputSpace.roots`).
        room: Numbers of gradients that may be in flight.
        whole: Whether the consumer holds the pieces of rows until the last.

    Cost: a forward pass and t gradients a point; as many as draws if given, one for the Fishers.
    """

    def __init__(  # noqa: PLR0913 (five of the eight are keyword-only)
        self,
        network: Network,
        likelihood: Likelihood,
        data: Any,
        *,
        kind: str = "ggn",
        seed: int = 0,
        draws: int | None = None,
        room: int = ROOM,
        whole: bool = False,
    ) -> None:
        self._network = network
        self._space = OutputSpace(likelihood, kind, seed, draws)
        self._data = data
        self._gradients = PerExampleGradients(network, room, whole=whole)
        self.seen = Fingerprint()
        """What the pass has seen so far."""

    @property
    def points(self) -> int:
        """n so far."""
        return self.seen.points

    @property
    def outputs(self) -> int:
        """t, known after the first batch."""
        return self._space.outputs

    @property
    def rank_bound(self) -> int:
        """The rank that the rows so far allow: as many as there were, and at most p."""
        each = self._space.draws or (self.outputs if self._space.kind == "ggn" else 1)
        return min(self.points * each, self._network.selection.count)

    def feed(
        self,
        consumer: Callable[[Rows], None],
        progress: Callable[[], None] | None = None,
        *,
        done: Fingerprint | None = None,
    ) -> None:
        """One pass over the data: every row to the consumer, batch by batch, within a batch in any order.

        Args:
            consumer: Called with a few rows at a time; their pieces are gone once it returns.
            progress: Called after each batch.
            done: What an earlier pass had seen when it stopped: these points come first again, in
                the same batches, and are not differentiated again.

        Raises:
            DataError: Empty, not finite, or of a shape the likelihood cannot take.
            ChangedDataError: The first batches are not those that were seen.
        """
        self.seen = Fingerprint()
        # Not a generator: one that a consumer's exception leaves hanging would not put the network back.
        with self._network.evaluating():
            for batch in batches(self._data, self._network.selection.device):
                going_on = done is not None and self.seen.points < done.points
                outputs = self._compared(batch) if going_on else self._fed(batch, consumer)
                self.seen.add(self._space.keys(batch, len(outputs)), outputs)
                if going_on:
                    self._check_done(done)
                elif progress is not None:
                    progress()

    def _fed(self, batch: Batch, consumer: Callable[[Rows], None]) -> Tensor:
        """The outputs of a batch whose rows went to the consumer; its activations are let go with this call."""
        passed = self._gradients.forward(batch.inputs)
        self._check(passed.outputs, batch)
        for rows in passed.rows(self._space.roots(passed.outputs, batch)):
            consumer(rows)
        return passed.outputs

    def _compared(self, batch: Batch) -> Tensor:
        """The outputs of a batch that was differentiated before."""
        with torch.no_grad():
            outputs = self._network.outputs(batch.inputs)
        self._check(outputs, batch)
        return outputs

    def _check(self, outputs: Tensor, batch: Batch) -> None:
        self._space.check(outputs, batch)
        if not self.seen.points:  # the first batch, or what is left of it
            with torch.no_grad():
                self._network.check_pointwise(batch.inputs, outputs)

    def _check_done(self, done: Fingerprint | None) -> None:
        if done is not None and self.seen.points >= done.points:
            self.seen.check_same(done)
