"""What a method holds while it fits and while it answers, in bytes: arithmetic, no tensors.

Letters: p parameters, t outputs, b inputs a query, k rank, s sketch size.

Counted is everything beyond the model itself, a batch of the data and its activations: these are
there whatever the method, and no arithmetic on p knows them. Gradients in the activations, which no arithmetic
knows either, are counted where an example tells how many there are (`Size.results`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

WORK = 1 << 20
"""Numbers squared, or taken to float64, at a time."""

PIECE = 1 << 21
"""Numbers of gradients that are formed at once, where the room is not less and a single row not more.

So many gradients in the layers' results are held at once as well, or those for one output."""

_WIDE = 256  # output channels times vectors from which the inputs of convolutions are unfolded
_CHECKED = 16  # inputs of the first batch that are looked at


@dataclass(frozen=True)
class Size:
    """The dimensions of a problem that costs depend on.

    Attributes:
        parameters: p.
        outputs: t.
        bytes_each: Bytes of a number of the vectors of length p.
        pieces: Lengths of the parameter tensors, in order; empty for one of length p. A query
            works on a piece at a time.
        kernel: Numbers of the largest convolution kernel, of which the CPU's convolutions hold a
            reordered copy while they are differentiated; 0 without convolutions.
        channels: Its output channels: where these are many the inputs are unfolded instead, and gradients of
            single inputs are not copied.
        batch: b, inputs of a batch, of the data while fitting and of a query.
        room: Numbers of gradients that may be in flight; one gradient in a piece always may.
        tensors: Lengths of the single tensors; those below a certain length are joined to pieces.
        results: Numbers that the layers give for one input; 0 where nobody has told. With them the gradients
            in them are counted, and how many outputs they are found for together.
    """

    parameters: int
    outputs: int = 10
    bytes_each: int = 4
    pieces: tuple[int, ...] = ()
    kernel: int = 0
    channels: int = 0
    batch: int = 1
    room: int = 1 << 26
    tensors: tuple[int, ...] = ()
    results: int = 0


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
    """One pass with `rows` gradients a point: their sum with `width` vectors, and as many gradients as the room allows.

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

    They come piece by piece: as many of the t gradients of as many inputs together as the room allows,
    but at least one (`_formed`). The first batch is checked, on two backward passes and in two copies of the
    largest tensor and some more, or in a quarter of a piece. Networks whose layers have no formulas of their own
    take a whole gradient instead, as do those who ask for it.

    >>> gradients(Size(parameters=1000, outputs=10)) // 4, gradients(Size(parameters=10**8)) // 4
    (20000, 250000000)
    """
    vectors, samples = together(size, whole=whole)
    held = vectors * samples * size.parameters * size.bytes_each if whole else 0
    # Of what is left in the end there are fewer, and of these more inputs come together.
    last = size.outputs % vectors or vectors
    tensor = max(size.tensors, default=_largest(size))
    looked_at = min(min(size.room, PIECE) // 4, min(size.batch, _CHECKED) * tensor)
    checked = 2 * size.batch * size.results + 3 * tensor // 2 + max(tensor, looked_at)
    return max(checked * size.bytes_each, *(held + _formed(size, each, sketch) for each in {vectors, last}))


def _formed(size: Size, vectors: int, sketch: Sketched | None) -> int:
    """Bytes where so many vectors are pulled back together.

    Their gradients in the layers' results are held, and a piece of those in the parameters. Where that
    is not the whole batch, those in the smallest tensors are formed for all of it at once, in as much room
    again. A convolution is formed beside a piece of its unfolded inputs, or copied twice; what was sketched is in the
    end split into the parts inside and outside the basis.
    """
    largest, each, room = _largest(size), size.bytes_each, min(size.room, PIECE)
    samples = _even(size.batch, max(1, room // largest // vectors))
    rows = vectors * samples
    small = 0
    for tensor in sorted(size.tensors or size.pieces):
        if samples == size.batch or small + size.batch * vectors * tensor > room:
            break
        small += size.batch * vectors * tensor
    kernel = min(rows * size.kernel, PIECE) + (0 if size.channels * vectors >= _WIDE else rows * size.kernel)
    work = max(kernel, min(WORK, rows * largest)) * each
    if sketch is not None:
        # Several vectors are sketched with the same signs and places, in less than one has to itself.
        scratch = sketch.scratch if rows == 1 else 2 * sketch.scratch // 3
        sketched = rows * sketch.size * each
        work = max(sketched + max(work, scratch), 3 * sketched)
    return (vectors * size.batch * size.results + rows * largest + small) * each + work


def together(size: Size, *, whole: bool = False) -> tuple[int, int]:
    """How many gradients of how many inputs come together: a piece of them, or no more than the room holds in full."""
    most = min(size.room, PIECE) // _largest(size)
    most = max(1, min(most, size.room // size.parameters) if whole else most)
    results = size.batch * size.results
    vectors = _even(size.outputs, most if results == 0 else max(1, min(most, min(size.room, PIECE) // results)))
    return vectors, _even(size.batch, most // vectors)


def piece(size: Size) -> int:
    """Bytes of one piece of gradients, of which a scaled copy is made where there is a scale."""
    vectors, samples = together(size)
    return vectors * samples * _largest(size) * size.bytes_each


def _even(count: int, most: int) -> int:
    """At most so many at a time, about equally many each time."""
    return -(-count // -(-count // most))


def _largest(size: Size) -> int:
    return max(size.pieces, default=size.parameters)
