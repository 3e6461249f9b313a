"""What a method holds while it fits and while it answers, in bytes: arithmetic, no tensors.

Letters: p parameters, t outputs, b inputs per query, k rank, s sketch size.

Counted is everything beyond the model itself, a batch of the data and its activations, which are the same for every
method. Gradients in the activations are counted where an example tells how many there are (`Size.activations`). How
many gradients are formed at a time is decided by `slu.gradients.chunks`, which is asked here.
"""

from __future__ import annotations

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


def sketched_lanczos(
    rank: int, sketch: Sketched, size: Size, *, precondition: int = 0, keep: bool = False, hessian: bool = False
) -> Cost:
    """Sketched Lanczos, by the settings of SLU that change its memory.

    While a product with the curvature runs: v_{j-1}, v_j, the sum of products and one batch's
    gradient (4 p), a convolution's copy, the k₀ vectors that are held, and s (k + 1) numbers of the sketched basis. At
    other times two vectors of length p, and what a sketch takes, or the basis being combined.
    With `keep` the singular vectors of the sketched basis are found in float64, in 3.5 copies of it.
    """
    p, each = size.parameters * size.bytes_each, size.bytes_each
    basis = sketch.size * (rank + 1) * each
    held = sketch.state + basis + precondition * p
    product = (5 if hessian else 4) * p + size.kernel * each
    decomposed = 28 * sketch.size * rank if keep else 0
    return _sketched(rank, sketch, size, held + max(product, 2 * p + sketch.scratch, 2 * p + decomposed), passes=rank)


def sketched_stream(rank: int, width: int, sketch: Sketched, size: Size, rows: int) -> Cost:
    """One pass with `rows` gradients per point: their sum with `width` vectors, and the gradients in flight."""
    sums = sketch.size * min(width, sketch.size) * size.bytes_each
    return _sketched(rank, sketch, size, sketch.state + sums + gradients(replace(size, outputs=rows), sketch), passes=1)


def _sketched(rank: int, sketch: Sketched, size: Size, fitting: int, passes: int) -> Cost:
    artefact = sketch.size * rank * size.bytes_each
    # A query measures one row per input unless more are asked for.
    query = gradients(replace(size, outputs=1), sketch)
    return Cost(artefact, fitting, artefact + sketch.state + query, passes)


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
