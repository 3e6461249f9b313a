"""What a method holds while it fits and while it answers, in bytes: arithmetic, no tensors.

Letters: p parameters, t outputs, b inputs per query, k rank, s sketch size.

Counted is everything beyond the model itself, a batch of the data and its activations, which are the same for every
method. Gradients in the activations are counted where an example tells how many there are (`Size.activations`). How
many gradients are formed at a time is decided by `slu.gradients.chunks`, which is asked here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from slu.budgets.size import Size
from slu.gradients.chunks import CHECKED_EXAMPLES, PIECE_NUMBERS, Chunking, check_size, chunking, is_matrix
from slu.gradients.layers.convolution import WIDE

WORK = 1 << 20
"""Numbers squared, taken to float64, or transformed at a time."""

_SMALL = 1 << 18  # numbers of scaled pieces that wait until all are sketched in one step
_SQUARED = 1 << 18  # numbers squared at a time in the check of the first batch
_COLUMNS = 1024  # of a sum of sketches, taken to float64 at a time


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
    """What of a sketch costs depend on.

    Attributes:
        size: s.
        state: Its bytes.
        scratch: Bytes that it takes to sketch so many vectors.
        scaled: Whether a scaled copy of every gradient is what is sketched.
    """

    size: int
    state: int
    scratch: Callable[[int], int]
    scaled: bool = False


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
    return _sketched(
        rank, sketch, size, held + max(product, 2 * p + sketch.scratch(1), 2 * p + decomposed), passes=rank
    )


def sketched_stream(rank: int, width: int, sketch: Sketched, size: Size, rows: int) -> Cost:
    """One pass with `rows` gradients per point: their sum with `width` vectors, and what is held beside it.

    That is the gradients in flight and the sketches of the batch before them; in the end a few (width, width) matrices
    or some columns of the sum in float64, or a copy of the directions that are kept.
    """
    width, each = min(width, sketch.size), size.bytes_each
    sums = sketch.size * width * each
    size = replace(size, outputs=rows)
    chunks = chunks_of(size)
    waiting = (size.batch * rows - chunks.vectors * chunks.examples(chunks.vectors)) * sketch.size * each
    small = 8 * width * max(6 * width, width + 2 * min(_COLUMNS, sketch.size))
    ended = max(small, sketch.size * rank * each + 16 * width * rank)
    fitting = max(gradients(size, sketch) + waiting, ended)
    return _sketched(rank, sketch, size, sketch.state + sums + fitting, passes=1)


def _sketched(rank: int, sketch: Sketched, size: Size, fitting: int, passes: int) -> Cost:
    artefact = sketch.size * rank * size.bytes_each
    # A query measures one row per input unless more are asked for.
    query = gradients(replace(size, outputs=1), sketch)
    return Cost(artefact, fitting, artefact + sketch.state + query, passes)


def gradients(size: Size, sketch: Sketched | None = None, *, whole: bool = False) -> int:
    """Bytes of gradients in flight, and of work on them.

    They come in chunks of some inputs and some of the t outputs. The first batch is verified first. Networks whose
    layers have no formulas of their own take a whole gradient instead, as do consumers that ask for it.

    >>> gradients(Size(parameters=1000, outputs=10)) // 4, gradients(Size(parameters=10**8)) // 4
    (20000, 250000000)
    """
    chunks = chunks_of(size, whole=whole)
    # For the vectors that are left in the end, which are fewer, the chunks have more inputs.
    last = size.outputs % chunks.vectors or chunks.vectors
    formed = (_in_flight(size, chunks, vectors, sketch, whole=whole) for vectors in {chunks.vectors, last})
    return max(_verified(size) * size.bytes_each, *formed)


def _verified(size: Size) -> int:
    """Numbers held while the first batch is verified.

    Two gradients in the activations, and one that autograd passes on; beside one of them autograd's gradient in one
    tensor after the other, and rows in it: of a matrix a few, of others whole, with what a convolution copies.
    """
    pulled, few, most = size.batch * size.activations, min(size.batch, CHECKED_EXAMPLES), check_size(size.max_numbers)
    tensors = [(each.stop - each.start, is_matrix(each)) for each in size.segments]
    held = 0
    for numbers, splits in tensors or [(max(size.tensors, default=size.longest), False)]:
        formed = min(most, few * numbers)
        beside = formed + min(_SQUARED, formed) if splits else numbers // 2 + max(numbers, formed)
        held = max(held, numbers + beside)
    return pulled + max(pulled + size.batch * size.widest, held)


def _in_flight(size: Size, chunks: Chunking, vectors: int, sketch: Sketched | None, *, whole: bool) -> int:
    """Bytes where so many vectors are pulled back at a time.

    Their gradients in the activations are held, and a piece of those in the parameters, or whole rows, and those in
    the smallest tensors that are formed ahead. A convolution is formed beside a piece of its unfolded inputs, or
    copied twice. Of a tensor that is not formed the factors are held, scaled or squared, and the products of all its
    positions. Of what was sketched, the part outside the basis is formed in the end.
    """
    each, part, scaled = size.bytes_each, size.part, sketch is not None and sketch.scaled
    rows = vectors * chunks.examples(vectors)
    ahead = size.batch * vectors * sum(chunks.formed_ahead(vectors, size.tensors or size.parts))
    kernel = rows * min(size.kernel, part)
    kernel = min(kernel, PIECE_NUMBERS) + (0 if size.channels * vectors >= WIDE else kernel)
    scratch = 0 if sketch is None else sketch.scratch(rows) // each
    waiting = min(_SMALL, sum(rows * numbers for numbers in size.parts if rows * numbers <= _SMALL))
    work = max(kernel, min(WORK, rows * part), scratch) + (rows * part + waiting if scaled else 0)
    for positions, _, numbers in size.factors:
        step = 0 if sketch is None else min(WORK, 3 * rows * (numbers + positions * sketch.size))
        work = max(work, rows * numbers + max(rows * numbers, 3 * rows * positions**2, step))
    if sketch is not None:
        work = rows * sketch.size + max(work, rows * sketch.size)
    held = rows * size.parameters if whole else 0
    return (held + vectors * size.batch * size.activations + rows * part + ahead + work) * each


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
