"""What every sketch is built from and can do, and what does not depend on its kind.

A sketch is a sum over segments of coordinates: S v = Σ S[:, a:b] v[a:b]. The public methods check
shapes, cut the segment into pieces that stay in the cache, and call the kind for each piece.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from slu.errors import SettingError

PIECE = 1 << 17
"""Numbers in one piece (rows times coordinates): 0.5 MB in float32, so temporaries stay in cache."""


@dataclass(frozen=True)
class SketchSpec:
    """The whole description of a sketch S of shape (s, p): equal specs give equal numbers.

    >>> SketchSpec("hashed", parameters=10_000, size=100).filled({"nonzeros": 1}).options
    {'nonzeros': 1}

    Attributes:
        kind: A name from the table of sketches.
        parameters: p, the length of the vectors that are sketched.
        size: s, the length of a sketched vector.
        seed: The user's seed; each purpose draws from its own stream of it.
        options: Whole numbers that only this kind knows; what is left out takes the kind's default.
        layout: (o, i) of every tensor seen as a matrix, in the order of the flat vector; only "kronecker" needs it.
    """

    kind: str
    parameters: int
    size: int
    seed: int = 0
    options: Mapping[str, int] = field(default_factory=dict, hash=False)
    layout: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        for name, value in (("parameters", self.parameters), ("size", self.size)):
            if not isinstance(value, int) or value < 1:
                raise SettingError(f"a sketch needs {name} >= 1, got {value!r}")
        if not hasattr(self.seed, "__index__"):
            raise SettingError(f"the seed of a sketch must be a whole number, got {self.seed!r}")
        for name, value in self.options.items():
            if not isinstance(value, int) or value < 1:
                raise SettingError(f"option {name!r} of sketch {self.kind!r} is {value!r}; give a whole number >= 1")
        for shape in self.layout:
            if len(shape) != 2 or not all(isinstance(n, int) and n >= 0 for n in shape):
                raise SettingError(f"the layout has an entry {shape!r}; give a pair of whole numbers (o, i) per tensor")
        object.__setattr__(self, "layout", tuple((o, i) for o, i in self.layout))  # lists, where it was read from JSON
        count = sum(o * i for o, i in self.layout)
        if self.layout and count != self.parameters:
            raise SettingError(
                f"the matrices of the layout have {count} numbers, and the sketch is for {self.parameters} parameters; "
                "give (o, i) of every selected tensor, once"
            )

    def filled(self, defaults: Mapping[str, int]) -> SketchSpec:
        """This spec with every option of its kind present; an option the kind does not know fails."""
        for name in self.options:
            if name not in defaults:
                valid = ", ".join(map(repr, defaults)) or "none"
                raise SettingError(f"sketch {self.kind!r} has no option {name!r}; its options: {valid}")
        return replace(self, options={**defaults, **self.options})


class Sketch(ABC):
    """A random linear map S of shape (s, p) with E‖Sv‖² = ‖v‖², and its exact adjoint.

    Concrete kinds are final. They set the class attributes, draw their state in `__init__` (on the
    CPU, from named streams, then moved), and implement `_add` and `_rows` for one piece of
    coordinates whose inner borders are multiples of `grain`.

    Cost: a piece of about max(`piece`, grain) numbers is worked on at a time; the temporaries are
    a few times that, never p floats (the whole-vector transform "srft" has grain p).
    Numerics: computed in the dtype of `into` or `vector`; half precision should come with a
    float32 `into`.
    """

    DEFAULTS: ClassVar[Mapping[str, int]] = {}
    ORTHOGONAL_ROWS: ClassVar[bool] = True

    def __init__(self, spec: SketchSpec, device: torch.device, dtype: torch.dtype) -> None:
        self.spec = self.checked(spec)
        self.device = device
        self.dtype = dtype
        self.grain = 1
        self.piece = PIECE
        self.padded = 1  # numbers that a row takes, however short the segment
        self.block = self.block_of(self.spec)

    @classmethod
    def checked(cls, spec: SketchSpec) -> SketchSpec:
        """The spec with its defaults filled in and without a layout, if this kind can be built from it."""
        if spec.size > spec.parameters:
            raise SettingError(
                f"sketch {spec.kind!r} of size {spec.size} is longer than the {spec.parameters} parameters "
                'it should shorten; use sketch="identity" (exact) or a smaller sketch size'
            )
        return replace(spec.filled(cls.DEFAULTS), layout=())

    @property
    def shape(self) -> tuple[int, int]:
        """(s, p)."""
        return self.spec.size, self.spec.parameters

    @property
    def state_bytes(self) -> int:
        """Bytes that the sketch holds as long as it lives."""
        return self.state_bytes_of(self.spec, self.dtype.itemsize)

    @classmethod
    @abstractmethod
    def state_bytes_of(cls, spec: SketchSpec, bytes_each: int = 4) -> int:
        """The same from a checked spec, before anything is built; `bytes_each` of the sketch's dtype."""

    @classmethod
    def scratch_bytes_of(cls, spec: SketchSpec, bytes_each: int = 4) -> int:
        """About the bytes it takes to sketch one vector, besides state and result."""
        return 6 * min(2 * PIECE, spec.parameters) * bytes_each

    @classmethod
    def scratch_of_rows(cls, spec: SketchSpec, rows: int, unformed: Collection[int], bytes_each: int = 4) -> int:
        """The same for several vectors; `unformed` are the numbers of tensors that come as factors instead."""
        del unformed
        # Several vectors are sketched with the same signs and places, in less than one has to itself.
        return cls.scratch_bytes_of(spec, bytes_each) * (3 if rows == 1 else 2) // 3

    @classmethod
    def block_of(cls, spec: SketchSpec) -> int:
        """Coordinates of a block, as all of which a shorter segment costs; 0 where there are no blocks."""
        del spec
        return 0

    @abstractmethod
    def _add(self, start: int, values: Tensor, into: Tensor) -> None:
        """into (rows, s) += S[:, start:start+m] values (rows, m), in the dtype of `into`."""

    @abstractmethod
    def _rows(self, start: int, stop: int, vector: Tensor) -> Tensor:
        """Rows start:stop of Sᵀ applied to vector (rows, s): (rows, stop - start)."""

    def accumulate(self, start: int, values: Tensor, into: Tensor) -> None:
        """Add the sketch of the coordinates start, start + 1, … to `into`.

        Args:
            start: The first coordinate in the flat vector of p parameters.
            values: (..., m), the coordinates start:start+m of one or many vectors.
            into: (..., s), changed in place; the same leading dimensions, the dtype of the work.
        """
        s, m = self.spec.size, values.shape[-1]
        self._check(start, start + m)
        if into.shape != (*values.shape[:-1], s):
            raise SettingError(
                f"`into` has shape {tuple(into.shape)}; values of shape {tuple(values.shape)} "
                f"need {(*values.shape[:-1], s)}"
            )
        if values.numel() == 0:
            return
        flat = values.reshape(-1, m)
        out = into.view(-1, s) if into.is_contiguous() else into.reshape(-1, s)
        for rows, a, b in self._pieces(flat.shape[0], start, start + m):
            self._add(a, flat[rows, a - start : b - start], out[rows])
        if not into.is_contiguous():  # reshape copied
            into.copy_(out.view(into.shape))

    def accumulate_pieces(self, pieces: Sequence[tuple[int, Tensor]], into: Tensor) -> None:
        """The same for several pieces, each with its first coordinate; those within one block are joined.

        They are of one type and do not overlap; `into` is contiguous.
        """
        ordered = sorted(pieces, key=lambda piece: piece[0])
        while ordered:
            (start, values), count = ordered[0], 1
            stop = start + values.shape[-1]
            while self.block and count < len(ordered) and ordered[count][0] // self.block <= (stop - 1) // self.block:
                stop = max(stop, ordered[count][0] + ordered[count][1].shape[-1])  # some have no numbers
                count += 1
            if count > 1:
                values = values.new_zeros(*values.shape[:-1], stop - start)
                for first, part in ordered[:count]:
                    values[..., first - start : first - start + part.shape[-1]] = part
            self.accumulate(start, values, into)
            del ordered[:count]

    def prefers_factors(self, start: int, positions: int, words: bool = False) -> bool:
        """Whether a gradient of the matrix at `start`, of so many positions, is sketched faster from its factors.

        `words`: whether the left factors are rows of a table by their number.
        """
        del start, positions, words
        return False

    @classmethod
    def prefers_factors_of(cls, spec: SketchSpec, number: int, positions: int, words: bool = False) -> bool:
        """The same for a tensor by its number in the layout of a checked spec, before anything is built."""
        del spec, number, positions, words
        return False

    def accumulate_outer(self, start: int, left: Tensor, right: Tensor, into: Tensor) -> None:
        """Add the sketch of the matrix Σ_τ left_τ right_τᵀ at `start` to `into`; here it is formed."""
        self.accumulate(start, (left.mT @ right).flatten(-2), into)

    def spread(self, start: int, stop: int, vector: Tensor) -> Tensor:
        """Rows start:stop of Sᵀ `vector`: (..., s) -> (..., stop - start), the exact adjoint."""
        s = self.spec.size
        self._check(start, stop)
        if vector.shape[-1] != s:
            raise SettingError(f"the adjoint takes vectors of length s = {s}, got {vector.shape[-1]}")
        flat = vector.reshape(-1, s)
        out = vector.new_empty(flat.shape[0], stop - start)
        for rows, a, b in self._pieces(flat.shape[0], start, stop):
            out[rows, a - start : b - start] = self._rows(a, b, flat[rows])
        return out.view(*vector.shape[:-1], stop - start)

    def __matmul__(self, v: Tensor) -> Tensor:
        """S v for v of shape (p,) or (p, c)."""
        p = self.spec.parameters
        if v.ndim not in (1, 2) or v.shape[0] != p:
            raise SettingError(f"S @ v takes v of shape ({p},) or ({p}, c), got {tuple(v.shape)}")
        out = v.new_zeros(*v.shape[1:], self.spec.size)
        self.accumulate(0, v.mT if v.ndim == 2 else v, out)
        return out.mT if v.ndim == 2 else out

    @property
    def T(self) -> Adjoint:
        """The adjoint as an operator of shape (p, s)."""
        return Adjoint(self)

    def correction(self, rank: int) -> float:
        """The factor c of the residual in sketch space: E c·‖(I - P) S x‖² = ‖x‖² for x outside.

        P projects onto the r sketched directions that span S U. These are r of s dimensions, and so
        contain a share r/s of any noise: s/(s - r). Where S Sᵀ = (p/s) I, the sketch of x is also smaller,
        because S U takes r of the p dimensions: (p - r)/p. With s = p this gives exactly 1.

        Numerics: `tests/statistical/test_embedding.py` checks each kind's factor at small p,
        where the two differ. For "hashed" and "shift" S Sᵀ is (p/s) I only if s divides p: at p = 1.5 s
        and r = 0.4 s the factor is 4.5 % low, from p = 3 s on it is right to 0.5 %.
        """
        s, p = self.shape
        if not 0 <= rank < s:
            raise SettingError(
                f"{rank} directions leave nothing of a sketch of size {s}; "
                "take a sketch size of at least twice the rank, or a smaller rank"
            )
        return s / (s - rank) * ((p - rank) / p if self.ORTHOGONAL_ROWS else 1.0)

    def _check(self, start: int, stop: int) -> None:
        p = self.spec.parameters
        if not 0 <= start <= stop <= p:
            raise SettingError(f"coordinates {start}:{stop} are not within the {p} parameters")

    def _pieces(self, rows: int, start: int, stop: int) -> Iterator[tuple[slice, int, int]]:
        """Cut rows × coordinates into pieces of about `piece` numbers, at multiples of the grain."""
        grain = self.grain
        some = min(rows, max(1, self.piece // max(self.padded, min(grain, max(stop - start, 1)))))
        step = max(1, self.piece // max(some, 1) // grain) * grain
        for top in range(0, rows, max(some, 1)):
            a = start
            while a < stop:
                b = min(stop, (a // step + 1) * step)
                yield slice(top, top + some), a, b
                a = b


class Adjoint:
    """Sᵀ as an operator: shape (p, s), dtype, device, and `@` for (s,) and (s, c).

    Cost: that of `Sketch.spread`; nothing is stored.
    Numerics: the transpose of the very matrix S, not of a redrawn one.
    """

    def __init__(self, sketch: Sketch) -> None:
        self.T = sketch
        self.shape = sketch.shape[::-1]
        self.dtype = sketch.dtype
        self.device = sketch.device

    def __matmul__(self, v: Tensor) -> Tensor:
        """Sᵀ v for v of shape (s,) or (s, c)."""
        p, s = self.shape
        if v.ndim not in (1, 2) or v.shape[0] != s:
            raise SettingError(f"Sᵀ @ v takes v of shape ({s},) or ({s}, c), got {tuple(v.shape)}")
        return self.T.spread(0, p, v.mT if v.ndim == 2 else v).movedim(-1, 0)


class PackedSigns:
    """n random signs in n/8 bytes.

    Unpacking looks up each byte in a table of 256 rows of eight signs: one small copy per eight
    numbers, where shifting and masking would take several passes.

    Cost: n/8 bytes; unpacking m signs about two copies of them, in cache.
    Numerics: the signs are exactly ±1 in every dtype.
    """

    def __init__(self, count: int, generator: torch.Generator, device: torch.device) -> None:
        size = self.state_bytes_of(count)
        self.bits = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator).to(device)
        bit = torch.arange(256)[:, None].bitwise_right_shift(torch.arange(8)) & 1
        self.table = (1 - 2 * bit).to(torch.float32).to(device)

    @staticmethod
    def state_bytes_of(count: int) -> int:
        """Bytes of the bits of `count` signs; the table of 8 KB is not counted."""
        return (count + 7) // 8

    def unpack(self, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        """The signs start:stop as numbers, (stop - start,)."""
        first = start // 8
        codes = self.bits[first : (stop + 7) // 8].int()
        signs = self.table.to(dtype).index_select(0, codes).view(-1)
        return signs[start - 8 * first : stop - 8 * first]
