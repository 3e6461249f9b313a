"""The two kinds of a fitted scale against d as one dense vector, at every cut of the coordinates."""

import weakref
from itertools import pairwise

import pytest
import torch
from torch import nn

from oracles import NETWORKS, network
from slu.core.scaling import DenseScaling, FactoredScaling, layout_of, sketch_rows
from slu.core.solvers.lanczos import ScaledOperator
from slu.errors import SettingError
from slu.gradients import Rows
from slu.parameters import select
from slu.sketches import SKETCHES, SketchSpec, build
from slu.sketches.srft import half_spectrum

SMALL = 13


class Shapes(nn.Module):
    """Tensors of every form that is, or is not, a matrix."""

    def __init__(self):
        super().__init__()
        shapes = [(3, 5), (5,), (), (1, 16), (16, 1), (2, 3, 3), (4, 1, 3), (1, 1), (2, 1, 1, 1), (7, 2), (2, 3)]
        self.all = nn.ParameterList([nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for shape in shapes])


@pytest.fixture(autouse=True)
def small_tensors(monkeypatch):
    """Matrices of fewer numbers are kept entry by entry: of these tiny ones some."""
    monkeypatch.setattr("slu.core.scaling.SMALL_TENSOR", SMALL)


def drawn(model, seed=0):
    selection = select(model)
    count = sum(place.numbers for place in layout_of(selection))
    values = torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5
    return FactoredScaling(values, layout_of(selection)), selection


def expanded(scaling, selection):
    """d (p,) from the definition: of every tensor, by its own shape."""
    whole, at = [], 0
    for segment in selection.segments:
        sizes = [size for size in segment.shape if size != 1]
        n = segment.stop - segment.start
        if len(sizes) < 2 or n < SMALL:
            whole.append(scaling.values[at : at + n])
            at += n
        else:
            o, i = sizes[0], n // sizes[0]
            whole.append(torch.outer(scaling.values[at : at + o], scaling.values[at + o : at + o + i]).flatten())
            at += o + i
    assert at == len(scaling.values)
    return torch.cat(whole)


def models():
    return {"shapes": Shapes(), **{kind: network(kind)[0] for kind in NETWORKS}}


@pytest.mark.parametrize("kind", ["shapes", *NETWORKS])
def test_pieces_are_scaled_at_every_cut(kind, monkeypatch):
    scaling, selection = drawn(models()[kind])
    d, p = expanded(scaling, selection), selection.count
    values = torch.randn(2, 3, p, dtype=torch.float64)
    cuts = [(a, b) for a in range(p) for b in range(a + 1, p + 1)]
    step = max(1, len(cuts) // 2000)  # all of the small ones
    for expanded_at_a_time in (1 << 18, 5):
        monkeypatch.setattr("slu.core.scaling._EXPANDED", expanded_at_a_time)
        for a, b in cuts[::step]:
            torch.testing.assert_close(
                scaling.scaled(a, values[..., a:b]), values[..., a:b] * d[a:b], rtol=1e-14, atol=0
            )


@pytest.mark.parametrize("kind", ["shapes", *NETWORKS])
def test_sides_are_those_of_the_matrix(kind):
    """Multiplied into the two factors of a gradient, they scale the matrix that these make."""
    scaling, selection = drawn(models()[kind])
    d = expanded(scaling, selection)
    for segment in selection.segments:
        sides, of_segment = scaling.sides(segment.start), d[segment.start : segment.stop]
        matrix = len([size for size in segment.shape if size != 1]) > 1 and len(of_segment) >= SMALL
        assert (sides is not None) == matrix
        if sides is None:
            continue
        rows, columns = sides
        o = segment.shape[0]
        assert (len(rows), len(columns)) == (o, len(of_segment) // o)
        torch.testing.assert_close(torch.outer(rows, columns).flatten(), of_segment, rtol=1e-14, atol=0)


def test_a_dense_scale_has_no_sides():
    scaling = DenseScaling(torch.rand(51, dtype=torch.float64) + 0.5)
    assert not scaling.factored and scaling.sides(0) is None
    values = torch.randn(2, 7, dtype=torch.float64)
    assert torch.equal(scaling.scaled(3, values), values * scaling.values[3:10])


@pytest.mark.parametrize("kind", NETWORKS)
def test_operators_and_sketches_are_the_dense_ones(kind):
    model, _ = network(kind)
    scaling, selection = drawn(model)
    d, p = expanded(scaling, selection), selection.count
    matrix = torch.randn(p, p, dtype=torch.float64)
    matrix, vector = matrix @ matrix.T, torch.randn(p, dtype=torch.float64)
    before = vector.clone()
    expected = d * (matrix @ (d * vector))
    for scale in (scaling, DenseScaling(d)):
        torch.testing.assert_close(ScaledOperator(matrix, scale) @ vector, expected, rtol=1e-10, atol=1e-10)
        assert torch.equal(vector, before)
    sketch = SKETCHES["gaussian"](SketchSpec("gaussian", p, 8, 0), selection.device, selection.dtype)
    gradients = torch.randn(2, 3, p, dtype=torch.float64)
    pieces = ((start, gradients[..., start : start + 7]) for start in range(0, p, 7))
    squared, sketched = sketch_rows(Rows(slice(0, 2), slice(0, 3), pieces), scaling, sketch)
    torch.testing.assert_close(squared, (gradients * d).square().sum(-1))
    whole = torch.zeros(2, 3, 8, dtype=torch.float64)
    sketch.accumulate(0, gradients * d, whole)
    torch.testing.assert_close(sketched, whole)


@pytest.mark.parametrize("scaling", [None, "dense"])
@pytest.mark.parametrize(("kind", "most", "due"), [
    ("srft", 1 << 24, 1), ("srft", 220, 6), ("block_srft", 1 << 24, 4), ("block_srft", 300, 8), ("hashed", 220, 0),
])  # fmt: skip
def test_short_pieces_are_joined_to_a_transform_per_block(kind, most, due, scaling, monkeypatch):
    """Of gradients in the order of a backward pass, each formed in the place of the one before.

    30 pieces of 42 numbers: all may wait for each other, or as many as a block, or seven.
    """
    monkeypatch.setattr("slu.core.scaling.JOINED", most)
    p, size = 210, 8
    sketch = build(SketchSpec(kind, p, size, 0, {"block": 64} if kind == "block_srft" else {}), dtype=torch.float64)
    scale = None if scaling is None else DenseScaling(torch.rand(p, dtype=torch.float64) + 0.5)
    gradients = torch.randn(2, 3, p, dtype=torch.float64)
    buffer, transformed, noted = torch.empty(2, 3, 7, dtype=torch.float64), [], []

    def pieces():
        for start in reversed(range(0, p, 7)):
            buffer.copy_(gradients[..., start : start + 7])
            yield start, buffer

    def transform(x):
        transformed.append(1 if x.dim() == 2 else x.shape[1])  # blocks
        return half_spectrum(x)

    monkeypatch.setattr("slu.sketches.srft.half_spectrum", transform)
    rows = Rows(slice(0, 2), slice(0, 3), pieces())
    squared, sketched = sketch_rows(rows, scale, sketch, lambda pieces, _: noted.extend(pieces))
    count, wanted = sum(transformed), gradients if scale is None else gradients * scale.values
    torch.testing.assert_close(squared, wanted.square().sum(-1))
    torch.testing.assert_close(sketched, torch.stack([(sketch @ each.T).T for each in wanted]))
    assert count == due
    assert {start for start, _ in noted} == set(range(0, p, 7))


def test_a_piece_of_whole_blocks_goes_alone_and_one_above_the_limit_too(monkeypatch):
    monkeypatch.setattr("slu.core.scaling.JOINED", 10)
    sketch = build(SketchSpec("block_srft", 300, 8, 0, {"block": 64}), dtype=torch.float64)
    gradients, given = torch.randn(1, 2, 300, dtype=torch.float64), []
    cuts = [0, 20, 40, 200, 260, 300]  # lengths 20, 20, 160, 60, 40; two rows, so 64 numbers are 32 coordinates
    accumulate = type(sketch).accumulate
    noting = lambda self, start, values, into: (given.append(start), accumulate(self, start, values, into))  # noqa: E731
    monkeypatch.setattr(type(sketch), "accumulate", noting)
    pieces = ((a, gradients[..., a:b]) for a, b in pairwise(cuts))
    _, sketched = sketch_rows(Rows(slice(0, 1), slice(0, 2), pieces), None, sketch)
    monkeypatch.undo()
    torch.testing.assert_close(sketched[0], (sketch @ gradients[0].T).T)
    # The second does not fit beside the first; the third is more than a block, the others more than the limit.
    assert given == [0, 40, 20, 200, 260]


def test_small_pieces_are_freed_before_factors_are_read(monkeypatch):
    made, scaled = [], DenseScaling.scaled

    def noted(self, start, values):
        result = scaled(self, start, values)
        made.append(weakref.ref(result))
        return result

    def factors():
        assert made and all(each() is None for each in made)
        yield from ()

    monkeypatch.setattr(DenseScaling, "scaled", noted)
    sketch = SKETCHES["gaussian"](SketchSpec("gaussian", 21, 8, 0), torch.device("cpu"), torch.float64)
    pieces = ((start, torch.randn(2, 3, 7, dtype=torch.float64)) for start in range(0, 21, 7))
    rows = Rows(slice(0, 2), slice(0, 3), pieces, factors())
    sketch_rows(rows, DenseScaling(torch.ones(21, dtype=torch.float64)), sketch)
    assert len(made) == 3


def test_equal_is_of_one_kind_with_the_same_numbers():
    scaling, selection = drawn(network("mlp")[0])
    assert scaling == FactoredScaling(scaling.values.clone(), scaling.layout)
    assert scaling != drawn(network("mlp")[0], seed=1)[0]
    dense = DenseScaling(expanded(scaling, selection))
    assert dense == DenseScaling(dense.values.clone()) and dense != scaling and scaling != dense
    assert dense != DenseScaling(2 * dense.values) and scaling is not None and scaling != None  # noqa: E711


def test_stored_numbers_come_back_in_the_type_of_the_network_or_are_refused():
    scaling, selection = drawn(network("mlp")[0])
    single = select(network("mlp")[0].float())
    for given in (scaling, DenseScaling(expanded(scaling, selection))):
        assert type(given).stored(given.values, selection) == given
        assert given.on(single).values.dtype == torch.float32
        with pytest.raises(SettingError, match=rf"must be {len(given.values)} finite numbers above 0"):
            type(given).stored(given.values[:-1], selection)
        with pytest.raises(SettingError, match="zero, negative or not finite"):
            type(given).stored(given.values * torch.nan, selection)
    with pytest.raises(SettingError, match="other shapes"):
        scaling.on(select(network("conv")[0]))
