"""What a method holds while it fits and while it answers, in bytes: arithmetic, no tensors.

Letters: p parameters, t outputs, b inputs per query, k rank, s sketch size.

Counted is everything beyond the model itself, a batch of the data and its activations in a plain call. Gradients in the
activations, and what attention keeps beyond a plain call, are counted where an example tells how many there are.
`slu.gradients.chunks` decides how many gradients are formed at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from slu.budgets.size import Size
from slu.gradients.chunks import CHECKED_EXAMPLES, PIECE_NUMBERS, Chunking, check_size, chunking, vmapped_examples
from slu.gradients.layers.convolution import WIDE
from slu.parameters import matrix_shape
from slu.sketches.fourier_pairs import CHUNK, per_position, terms

WORK = 1 << 20
"""Numbers squared, taken to float64, or transformed at a time."""

JOINED = 1 << 23  # numbers of pieces shorter than a block of the sketch that wait to be joined; a block where longer
_SMALL = 1 << 18  # numbers of scaled pieces that wait until all are sketched in one step
_COMPARED = 1 << 18  # numbers of gradients in activations that are compared at a time
_COLUMNS = 1024  # of a sum of sketches, taken to float64 at a time
_HELD_OUT = 10  # one of so many points is not fitted by default, as `slu.core.split` has it


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
        checked: Whether the first batch of a fit was verified before, while the scale was computed.
        block: Of a sketch in blocks their coordinates: shorter pieces wait to be joined. 0 without blocks.
    """

    size: int
    state: int
    scratch: Callable[[int], int]
    scaled: bool = False
    checked: bool = False
    block: int = 0


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
    held = sketch.state + sketch.size * (rank + 1) * each + precondition * p
    product = (5 if hessian else 4) * p + size.kernel * each
    decomposed = 28 * sketch.size * rank if keep else 0
    fitting = held + max(product, 2 * p + max(sketch.scratch(1), decomposed))
    return _sketched(rank, sketch, size, fitting, passes=rank)


def sketched_stream(rank: int, width: int, sketch: Sketched, size: Size, rows: int) -> Cost:
    """One pass with `rows` gradients per point: their sum with `width` vectors, and what is held beside it.

    That is the gradients in flight and the sketches of the batch before them; in the end a few (width, width) matrices
    or some columns of the sum in float64, or a copy of the directions that are kept. What hold-out leaves of a batch
    may come in larger chunks than the whole batch would: 64 points by 16, 58 by 20, where 21 may be in flight.
    """
    width, each = min(width, sketch.size), size.bytes_each
    sums = sketch.size * width * each
    size = replace(size, outputs=rows)
    fitted = [size, replace(size, batch=size.batch - size.batch // _HELD_OUT)]
    small = 8 * width * max(6 * width, width + 2 * min(_COLUMNS, sketch.size))
    ended = max(small, sketch.size * rank * each + 16 * width * rank)
    flying = max(in_flight(batch, sketch) + _waiting(batch, sketch) for batch in fitted)
    fitting = max(0 if sketch.checked else verified(size), flying, ended)
    return _sketched(rank, sketch, size, sketch.state + sums + fitting, passes=1)


def _waiting(size: Size, sketch: Sketched) -> int:
    """Bytes of the sketches of a batch beside those of a chunk."""
    chunks = chunks_of(size)
    rows = size.batch * size.outputs - chunks.vectors * chunks.examples(chunks.vectors)
    return rows * sketch.size * size.bytes_each


def _sketched(rank: int, sketch: Sketched, size: Size, fitting: int, passes: int) -> Cost:
    artefact = sketch.size * rank * size.bytes_each
    # A query measures one row per input, or group of its positions, unless more are asked for. Vectors over the outputs
    # at all positions are held for some groups at a time, beside those that they are cut out of.
    measured = size.groups_at_once
    vectors = (measured + 2) * size.batch * size.over_positions * size.bytes_each
    query = vectors + gradients(replace(size, outputs=measured), sketch)
    return Cost(artefact, fitting, artefact + sketch.state + query, passes)


def gradients(size: Size, sketch: Sketched | None = None, *, whole: bool = False) -> int:
    """Bytes of gradients in flight, and of work on them, or of the check of the first batch.

    >>> gradients(Size(parameters=1000, outputs=10)) // 4, gradients(Size(parameters=10**8)) // 4
    (20000, 200000000)
    """
    return max(verified(size), in_flight(size, sketch, whole=whole))


def verified(size: Size) -> int:
    """Bytes held while the first batch is verified.

    What attention keeps, and one gradient in the activations; beside it two that autograd passes on and the work of
    comparing them, or its gradient in one tensor after the other and rows in it, of a matrix a few, of others at least
    one.
    """
    pulled, few = size.batch * (size.attention + size.activations), min(size.batch, CHECKED_EXAMPLES)
    most = check_size(size.max_numbers)
    passed = size.batch * size.widest
    held = 2 * passed + 3 * min(_COMPARED, passed)
    for number, shape in enumerate([each.shape for each in size.segments] or [(size.longest,)]):
        numbers = max(1, prod(shape))
        formed = min(most, few * numbers) if len(shape) == 2 else max(1, min(few, most // numbers)) * numbers
        directions = 8 * sum(matrix_shape(shape)) if len(shape) > 1 else 0
        formed += _beside(size, number, formed // numbers) + directions
        held = max(held, passed + numbers + formed)
    return (pulled + held) * size.bytes_each


def in_flight(size: Size, sketch: Sketched | None = None, *, whole: bool = False) -> int:
    """Bytes of gradients in flight, in chunks of some inputs and some of the t outputs, and of work on them."""
    chunks = chunks_of(size, whole=whole)
    # For the vectors that are left in the end, which are fewer, the chunks have more inputs.
    last = size.outputs % chunks.vectors or chunks.vectors
    return max(_pulled_back(size, chunks, vectors, sketch, whole=whole) for vectors in {chunks.vectors, last})


def _pulled_back(size: Size, chunks: Chunking, vectors: int, sketch: Sketched | None, *, whole: bool) -> int:
    """Bytes where so many vectors are pulled back at a time.

    What attention keeps and their gradients in the activations are held, and a piece of those in the parameters, or
    whole rows (also of parameters without a formula, while whose gradients are computed the general fallback holds
    activations of its own), and those in the smallest tensors, formed ahead. Pieces are scaled; small ones wait, to be
    sketched in one step. Of a tensor that is not formed the factors are held, and what they are scaled to. Of what was
    sketched, the part outside the basis is formed in the end.
    """
    each, part, scaled = size.bytes_each, size.part, sketch is not None and sketch.scaled
    rows = vectors * chunks.examples(vectors)
    ahead = size.batch * vectors * sum(chunks.formed_ahead(vectors, size.tensors or size.parts))
    kernel = max(
        (_beside(size, n, rows, vectors) for n in range(len(size.segments)) if n not in size.factors), default=0
    )
    work = max(kernel, min(WORK, rows * part) if sketch is None else sketch.scratch(rows) // each)
    if sketch is not None and sketch.block:
        short = sum(rows * numbers for numbers in size.parts if numbers < sketch.block)
        work += 2 * min(short, max(JOINED, sketch.block)) + (rows * part if scaled else 0)
    elif scaled:
        waiting = sum(rows * numbers for numbers in size.parts if rows * numbers <= _SMALL)
        work += min(_SMALL, waiting) + (rows * part if rows * part > _SMALL else 0)
    for number, factors in size.factors.items():
        held = rows * factors.numbers
        work = max(work, held + max(held if scaled else 0, _of_factors(size, number, rows, sketch)))
    if sketch is not None:
        work = rows * sketch.size + max(work, rows * sketch.size)
    held = size.batch * (size.attention + vectors * size.activations) + (rows * size.parameters if whole else 0)
    general = sum(segment.stop - segment.start for segment in size.segments if segment.name in size.general)
    alone = min(vmapped_examples(size.batch, vectors, general, size.max_numbers), chunks.examples(vectors))
    alone = max(1, alone * vectors)
    # Their pieces are these gradients themselves; a sum of them is compared with autograd's before.
    fallback = max(alone * size.fallback, alone * general + general) if general else 0
    return (held + rows * size.written + max(fallback, alone * general + ahead + work)) * each


def _beside(size: Size, number: int, rows: int, vectors: int = 1) -> int:
    """Numbers that it takes to form so many gradients of a tensor, beside these: none but of kernels.

    A convolution makes two copies of them; where output channels are many a piece of the inputs is unfolded instead.
    """
    shape = size.segments[number].shape if size.segments else ()
    if len(shape) < 3:
        return 0
    # Known after a forward pass; then those without any, of groups, are not unfolded.
    known = size.factored.get(number)
    positions = known.positions if known is not None else 0 if size.activations else 1
    if positions and prod(shape[2:]) == 1:
        return 0
    if positions and (shape[0] * vectors >= WIDE or size.bytes_each == 8):
        unfolded = positions * prod(shape[1:])
        return min(rows // vectors * unfolded, max(PIECE_NUMBERS, unfolded))
    return 2 * rows * prod(shape)


def _of_factors(size: Size, number: int, rows: int, sketch: Sketched | None) -> int:
    """Numbers that it takes to work on the factors of gradients: products of positions, or a step of their sketch.

    Products are in float64, and so are the factors for them, where the gradient is not formed instead. In a step both
    factors at the sketch's frequencies and their product are held, or its sum over positions, thrice.
    """
    (positions, words, held), (o, i) = size.factors[number], matrix_shape(size.segments[number].shape)
    work = 0
    if positions > 1 and words:  # products of one side, and which words differ, a byte each
        work = rows * (2 * positions * i + 9 * positions**2 // 4)
    elif positions > 1:
        products = 2 * positions * (o + i) <= o * i
        work = rows * (2 * (held + 3 * positions**2) if products else o * i)
    if sketch is None:
        return work
    picked = terms((o, i), sketch.size) * sketch.size
    each = 3 * (i + picked) if words else per_position((o, i), sketch.size)
    at_once = min(rows * positions, max(1, CHUNK // each))
    summed = 3 * picked * max(1, at_once // positions)
    return max(work, 2 * at_once * picked + max(summed, at_once * (picked + 3 * (i if words else max(o, i)))))


def chunks_of(size: Size, *, whole: bool = False) -> Chunking:
    """How the gradients of a batch are divided."""
    return chunking(
        batch=size.batch, vectors=size.outputs, parameters=size.parameters, longest=size.longest,
        activations=size.batch * size.activations, max_numbers=size.max_numbers, whole=whole,
    )  # fmt: skip
