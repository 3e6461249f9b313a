"""What a method holds while it fits and while it answers, in bytes: arithmetic, no tensors.

Letters: p parameters, t outputs, b inputs per query, k rank, s sketch size.

Counted is everything beyond the model itself, a batch of the data and its activations: these are
there whatever the method, and no arithmetic on p tells them. Gradients in the activations, which no arithmetic
tells either, are counted where an example tells how many there are (`Size.activations`). How many gradients are formed
at a time is decided by `slu.gradients.chunks`, which is asked here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from slu.budgets.size import Size
from slu.gradients.chunks import CHECKED_EXAMPLES, PIECE_NUMBERS, Chunking, check_size, chunking
from slu.gradients.layers.convolution import WIDE

WORK = 1 << 20
"""Numbers squared, or taken to float64, at a time."""


@dataclass(frozen=True)
class Cost:
    """Bytes beyond the model, a batch and its activations, and passes over the data.

    Attributes:
        artefact: Kept for queries and written to disk.
        fitting: The peak while fitting.
        querying: The peak while scoring, the artefact included.
        passes: Over the data; of training passes the multiple of one training where `trainings`.
        trainings: Networks trained from scratch, for methods that fit by training.
    """

    artefact: int
    fitting: int
    querying: int
    passes: int
    trainings: int = 0


@dataclass(frozen=True)
class Sketched:
    """What of a sketch costs depend on: s, its state, and what it takes to sketch one vector, in bytes."""

    size: int
    state: int
    scratch: int


@dataclass(frozen=True)
class Choices:
    """Settings of SLU that change its memory."""

    precondition: int = 0
    keep: bool = False
    hessian: bool = False


def sketched_lanczos(rank: int, sketch: Sketched, size: Size, choices: Choices | None = None) -> Cost:
    """Sketched Lanczos.

    While a product with the curvature runs: v_{j-1}, v_j, the sum of products and one batch's
    gradient (4 p), a convolution's copy, the k₀ vectors that are held, and s (k + 1) numbers of the sketched basis. At
    other times two vectors of length p, and what a sketch takes, or the basis being combined.
    With `keep` the singular vectors of the sketched basis are found in float64, in 3.5 copies of it.
    """
    choices = choices or Choices()
    p, each = size.parameters * size.bytes_each, size.bytes_each
    basis = sketch.size * (rank + 1) * each
    held = sketch.state + basis + choices.precondition * p
    product = (5 if choices.hessian else 4) * p + size.kernel * each
    decomposed = 28 * sketch.size * rank if choices.keep else 0
    artefact = sketch.size * rank * each
    return Cost(
        artefact=artefact,
        fitting=held + max(product, 2 * p + sketch.scratch, 2 * p + decomposed),
        querying=artefact + sketch.state + gradients(size, sketch),
        passes=rank,
    )


def sketched_stream(rank: int, width: int, sketch: Sketched, size: Size, rows: int) -> Cost:
    """One pass with `rows` gradients per point: their sum with `width` vectors, and the gradients in flight.

    A query is that of sketched Lanczos.
    """
    each = size.bytes_each
    sums = sketch.size * min(width, sketch.size) * each
    artefact = sketch.size * rank * each
    return Cost(
        artefact=artefact,
        fitting=sketch.state + sums + gradients(replace(size, outputs=rows), sketch),
        querying=artefact + sketch.state + gradients(size, sketch),
        passes=1,
    )


def gradients(size: Size, sketch: Sketched | None = None, *, whole: bool = False) -> int:
    """Bytes of gradients in flight, and of work on them.

    They come in chunks of some inputs and some of the t outputs. The first batch is verified, on two backward passes
    and in two copies of the largest tensor and some more, or in a quarter of a piece. Networks whose layers have no
    formulas of their own take a whole gradient instead, as do consumers that ask for it.

    >>> gradients(Size(parameters=1000, outputs=10)) // 4, gradients(Size(parameters=10**8)) // 4
    (20000, 250000000)
    """
    chunks = chunks_of(size, whole=whole)
    # For the vectors that are left in the end, which are fewer, the chunks have more inputs.
    last = size.outputs % chunks.vectors or chunks.vectors
    tensor = max(size.tensors, default=size.longest)
    checked = min(check_size(size.max_numbers), min(size.batch, CHECKED_EXAMPLES) * tensor)
    verified = 2 * size.batch * size.activations + 3 * tensor // 2 + max(tensor, checked)
    formed = (_formed(size, chunks, vectors, sketch, whole=whole) for vectors in {chunks.vectors, last})
    return max(verified * size.bytes_each, *formed)


def _formed(size: Size, chunks: Chunking, vectors: int, sketch: Sketched | None, *, whole: bool) -> int:
    """Bytes where so many vectors are pulled back at a time.

    Their gradients in the activations are held, and a piece of those in the parameters, or whole rows, and those in
    the smallest tensors that are formed ahead. A convolution is formed beside a piece of its unfolded inputs, or
    copied twice; what was sketched is in the end split into the parts inside and outside the basis.
    """
    each, longest = size.bytes_each, size.longest
    rows = vectors * chunks.examples(vectors)
    ahead = size.batch * vectors * sum(chunks.formed_ahead(vectors, size.tensors or size.parts))
    kernel = min(rows * size.kernel, PIECE_NUMBERS) + (0 if size.channels * vectors >= WIDE else rows * size.kernel)
    work = max(kernel, min(WORK, rows * longest)) * each
    if sketch is not None:
        # Several vectors are sketched with the same signs and places, in less than one has to itself.
        scratch = sketch.scratch if rows == 1 else 2 * sketch.scratch // 3
        sketched = rows * sketch.size * each
        work = max(sketched + max(work, scratch), 3 * sketched)
    held = rows * size.parameters if whole else 0
    return (held + vectors * size.batch * size.activations + rows * longest + ahead) * each + work


def piece_bytes(size: Size) -> int:
    """Bytes of one piece of gradients, of which a scaled copy is made where there is a scale."""
    chunks = chunks_of(size)
    return chunks.vectors * chunks.examples(chunks.vectors) * size.longest * size.bytes_each


def chunks_of(size: Size, *, whole: bool = False) -> Chunking:
    """How the gradients of a batch are divided."""
    return chunking(
        batch=size.batch,
        vectors=size.outputs,
        parameters=size.parameters,
        longest=size.longest,
        activations=size.batch * size.activations,
        max_numbers=size.max_numbers,
        whole=whole,
    )


def local_ensemble(rank: int, size: Size, steps: int | None = None, hessian: bool = False) -> Cost:
    """Lanczos with every vector held: one copy a step beside the four of the recurrence (five on the Hessian).

    By default there is one step more than the rank. The directions kept are copied out once the
    vectors of the recurrence are gone.
    """
    p = size.parameters * size.bytes_each
    steps = min(rank + 1, size.parameters) if steps is None else steps
    work = (5 if hessian else 4) * p + size.kernel * size.bytes_each
    copied = rank * p if steps > rank else 0
    return Cost(rank * p, steps * p + max(work, copied), rank * p + gradients(size), steps)


def low_rank_laplace(rank: int, size: Size, steps: int | None = None, hessian: bool = False) -> Cost:
    """The same, and k eigenvalues."""
    found, values = local_ensemble(rank, size, steps, hessian), rank * size.bytes_each
    return Cost(found.artefact + values, found.fitting + values, found.querying + values, found.passes)


def scod(rank: int, size: Size, rows: int | None = None) -> Cost:
    """A randomized decomposition of T vectors (6 k + 4 by default) in one pass, and whole gradients beside."""
    p = size.parameters * size.bytes_each
    kept = rank * p + rank * size.bytes_each
    rows = 6 * rank + 4 if rows is None else rows
    return Cost(kept, rows * p + gradients(size, whole=True), kept + gradients(size), 1)


USUAL_ITERATES = 10
"""Iterates that SWAG collects by default, or as many as its rank where that is more."""


def swag(rank: int, size: Size) -> Cost:
    """Mean, variance and k deviations of weights; SGD's weights, gradient and momentum while fitting.

    A rank of 1 has no low-rank part, so no deviation is kept. A query draws networks one by one: the
    weights and the numbers drawn for them. BatchNorm's statistics, and the passes that find them for
    each sample, come on top.
    """
    p = size.parameters * size.bytes_each
    kept = (rank if rank > 1 else 0) + 2
    return Cost(kept * p, (kept + 3) * p, (kept + 2) * p, max(rank, USUAL_ITERATES))


def diagonal_laplace(_: int, size: Size) -> Cost:
    """One number a parameter, from the gradients of every input."""
    p = size.parameters * size.bytes_each
    return Cost(p, p + gradients(size), p + gradients(size), 1)


def deep_ensemble(members: int, size: Size) -> Cost:
    """Networks trained one after the other, each with a gradient and Adam's two moments.

    The first of them is the model itself: the others are what is held beside it.
    """
    p = size.parameters * size.bytes_each
    beside = members - 1
    return Cost(beside * p, (beside + 3) * p, beside * p, 0, trainings=members)


@dataclass(frozen=True)
class Baseline:
    """A method whose rank is the number of copies of the parameters in the budget, as in the paper.

    Attributes:
        cost: From rank and size.
        ranked: Whether the rank can be chosen; else one copy is what it takes.
        note: What a reader must know beside the numbers.
    """

    cost: Callable[[int, Size], Cost]
    ranked: bool = True
    note: str = ""

    def rank(self, floats: int, parameters: int) -> int:
        """The rank that a budget holds; 0 where it holds none."""
        copies = min(floats // parameters, parameters)
        return copies if self.ranked else min(copies, 1)


BASELINES = {
    "LocalEnsemble": Baseline(local_ensemble),
    "LowRankLaplace": Baseline(low_rank_laplace),
    "SCOD": Baseline(scod, note="SCOD holds T = 6k + 4 vectors while fitting"),
    "SWAG": Baseline(swag, note="SWAG keeps mean and square besides; the paper counts its k deviations alone"),
    "DiagonalLaplace": Baseline(diagonal_laplace, ranked=False),
    "DeepEnsemble": Baseline(deep_ensemble, note="DeepEnsemble's rank is its members, each a training from scratch"),
}
"""Every low-rank baseline of the paper; a new one is a function and a row here."""
