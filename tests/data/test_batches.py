"""What counts as data, what is refused, and data that change between passes."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import awkward
import oracles
from shorthand import curvature, split, vectors
from slu.data import BatchReader, batches, check_finite
from slu.data.batches import first_of_all
from slu.data.structure import tensors
from slu.errors import ChangedDataError, DataError, ModelError
from threads import ThreadAsProcess, in_threads

CPU = torch.device("cpu")
X, Y = torch.arange(8.0).reshape(4, 2), torch.arange(4)


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


def listed(data) -> list[tuple[object, object]]:
    return [(batch.inputs, batch.targets) for batch in batches(data, CPU)]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (X, [(X, None)]),
        ((X, Y), [(X, Y)]),
        ((X,), [(X, None)]),
        ({"a": X}, [({"a": X}, None)]),
        (({"a": X}, Y), [({"a": X}, Y)]),
        (((X, X), Y), [((X, X), Y)]),
        ([X, X, X], [(X, None), (X, None), (X, None)]),
        ([(X, Y), [X, Y]], [(X, Y), (X, Y)]),
        ([[X]], [(X, None)]),
        ([{"a": X, "b": None}], [({"a": X, "b": None}, None)]),
        ([(Pair(X, X), Y)], [(Pair(X, X), Y)]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_forms_of_data(data, expected):
    actual = listed(data)
    assert str(actual) == str(expected)
    assert [batch.index for batch in batches(data, CPU)] == list(range(len(expected)))


def test_a_named_tuple_stays_one():
    ((inputs, _),) = listed([(Pair(X, X), Y)])
    assert type(inputs) is Pair


def test_tensors_of_what_cannot_be_built_again():
    packed = nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    assert [tensor.shape for tensor in tensors(({"sequence": packed}, 1))] == [(4, 2), (3,)]


@pytest.mark.parametrize(
    ("data", "one"), [(X, True), ({"a": X}, True), ((X, Y), True), ([X], False), (DataLoader(TensorDataset(X)), False)]
)
def test_a_list_is_a_loader_and_a_tuple_a_batch(data, one):
    assert BatchReader().is_one_batch(data) is one


def test_a_data_loader_can_be_read_again_and_again():
    loader = DataLoader(TensorDataset(X, Y), batch_size=3)
    for _ in range(2):
        assert [len(inputs) for inputs, _ in listed(loader)] == [3, 1]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "no batch"),
        (DataLoader(TensorDataset(X, Y), batch_size=5, drop_last=True), "no batch; .*drop_last=True"),
        ((batch for batch in [(X, Y)]), "generator, which can be read only once; .*Pass a DataLoader"),
        (iter([(X, Y)]), "only once"),
        (3, "got int"),
        (None, "got NoneType"),
        ([(X, X, Y)], r"batch 0 is a tuple of float32 \(4, 2\), .*two ways.*\(\(x, mask\), targets\)"),
        ([(X, Y), []], "batch 1 is a list of 0"),
    ],
    ids=["empty", "drop last", "generator", "iterator", "number", "none", "three", "nothing in a batch"],
)
def test_refusals_say_what_to_do(data, message):
    with pytest.raises(DataError, match=message):
        listed(data)


@pytest.mark.parametrize(
    ("data", "place"),
    [(X[:0], 0), ([X[:0]], 0), ([(X, Y), (X[:0], Y[:0])], 1), ([{"a": X, "b": X}, {"a": X[:0], "b": X[:0]}], 1)],
    ids=["tensor", "list", "behind another", "dict"],
)
def test_a_batch_without_points_is_refused(data, place):
    message = rf"batch {place} has no points, its inputs have the shape \(0, 2\); .* leave empty batches out"
    with pytest.raises(DataError, match=message):
        listed(data)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["inputs", "targets"])
def test_numbers_that_are_not_finite_are_named_by_batch_and_place(bad, where):
    values = X.clone()
    values[2, 1] = bad
    broken = (values, Y) if where == "inputs" else (X, values)
    with pytest.raises(DataError, match=f"the {where} of batch 1 hold NaN or infinity, first at place 2 of it"):
        listed([(X, X), broken])


def test_not_finite_inside_a_dict_a_scalar_or_a_complex_tensor():
    with pytest.raises(DataError, match=r"batch 0 .*place 1"):
        listed({"good": X, "bad": torch.tensor([0.0, torch.nan])})
    with pytest.raises(DataError, match="things hold NaN or infinity;"):
        check_finite([X, torch.tensor(torch.nan)], "things")
    with pytest.raises(DataError, match="place 0"):
        check_finite(torch.tensor([complex(0, torch.nan)]), "things")


@pytest.mark.parametrize("finite", [True, False])
def test_float8_is_refused_with_a_remedy(finite):
    small = X.to(torch.float8_e4m3fn)
    for batch in ({"x": small}, (X, small)):
        with pytest.raises(DataError, match=r"batch 1 has a tensor of float8_e4m3fn.*tensor\.to\(torch\.float16\)"):
            list(batches([(X, X) if isinstance(batch, tuple) else {"x": X}, batch], torch.device("cpu"), finite=finite))


def test_what_the_loader_raises_is_named_by_batch():
    class Broken:
        def __iter__(self):
            yield X, Y
            raise OSError("disk")

    with pytest.raises(DataError, match="failed at batch 1: OSError: disk") as actual:
        listed(Broken())
    assert isinstance(actual.value.__cause__, OSError)


def test_outputs_that_are_not_finite_are_named_by_batch_and_place():
    model, inputs = oracles.network("mlp")
    blows_up = inputs.clone()
    blows_up[3] = 1e308
    operator = curvature(model, [(inputs,), (blows_up,)], forward=lambda called, x: called(x) * x[:, :1] ** 2)
    with pytest.raises(DataError, match="the model's outputs on batch 1 hold NaN or infinity, first at place 3"):
        _ = operator @ vectors(51, 1)


class Varying:
    """A loader whose passes are given one by one; the last is repeated."""

    def __init__(self, *passes: list) -> None:
        self.passes = list(passes)

    def __iter__(self):
        yield from self.passes.pop(0) if len(self.passes) > 1 else self.passes[0]


@pytest.fixture
def points() -> tuple[torch.nn.Module, Tensor]:
    return oracles.network("mlp")


def two_products(model, data, **settings) -> None:
    operator = curvature(model, data, **settings)
    for _ in range(2):
        _ = operator @ vectors(operator.shape[0], 1)


TARGETS = oracles.targets_for("classification")


@pytest.mark.parametrize("kind", ["ggn", "empirical-fisher"])
def test_one_changed_bit_is_noticed(points, kind):
    model, inputs = points
    other = inputs.clone()
    other.view(torch.int64)[7, 2] ^= 1
    with pytest.raises(ChangedDataError, match=r"12 points of a later pass differ in content .*no augmentation"):
        two_products(model, Varying([(inputs, TARGETS)], [(other, TARGETS)]), kind=kind)


def test_changed_targets_matter_only_where_they_are_read(points):
    model, inputs = points
    data = [[(inputs, TARGETS)], [(inputs, TARGETS.roll(1))]]
    two_products(model, Varying(*data), kind="ggn")
    with pytest.raises(ChangedDataError, match="content"):
        two_products(model, Varying(*data), kind="hessian")


def test_dropped_points_are_counted(points):
    model, inputs = points
    with pytest.raises(ChangedDataError, match="first pass over the data saw 12 points, a later one 9"):
        two_products(model, Varying([inputs], [inputs[:9]]))


def test_a_point_drawn_twice_in_place_of_another_is_noticed(points):
    model, inputs = points
    with pytest.raises(ChangedDataError, match="content"):
        two_products(model, Varying([inputs], [torch.cat([inputs[:11], inputs[:1]])]))


def test_another_order_and_other_batches_are_accepted(points):
    model, inputs = points
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    two_products(model, Varying([inputs], split(inputs[order], sizes=[5, 7])))
    two_products(model, DataLoader(TensorDataset(inputs, TARGETS), batch_size=5, shuffle=True))


def test_other_batches_are_accepted_in_float32_too(points):
    model, inputs = points
    operator = curvature(model.float(), Varying([inputs.float()], split(inputs.float(), sizes=[1] * 12)))
    for _ in range(2):
        _ = operator @ vectors(51, 1).float()


@pytest.mark.parametrize("kind", ["ignores eval", "dropout"])
def test_noise_in_eval_mode_is_noticed_in_the_first_batch(kind):
    model, inputs = awkward.build(kind)
    torch.manual_seed(0)  # a mask of so few units may come twice by chance
    with pytest.raises(ModelError, match=r"depend on .*chance.*ignores eval mode"):
        _ = curvature(model, inputs) @ torch.ones(sum(value.numel() for value in model.parameters())).double()


def test_outputs_that_depend_on_the_rest_of_the_batch_are_noticed(points):
    model, inputs = points
    operator = curvature(model, inputs, forward=lambda called, x: called(x - x.mean(0)))
    with pytest.raises(ModelError, match="rest of its batch"):
        _ = operator @ vectors(51, 1)


def test_weights_that_are_trained_meanwhile_are_noticed(points):
    model, inputs = points
    operator = curvature(model, inputs)
    _ = operator @ vectors(51, 1)
    with torch.no_grad():
        model[2].bias += 0.1
    with pytest.raises(ChangedDataError, match="weights that are being trained meanwhile"):
        _ = operator @ vectors(51, 1)


def test_an_empty_batch_among_others_is_refused(points):
    model, inputs = points
    with pytest.raises(DataError, match="batch 1 has no points"):
        _ = curvature(model, [inputs, inputs[:0]]) @ vectors(51, 1)


@pytest.mark.parametrize(
    ("parts", "points", "expected", "whole"),
    [
        ([[8, 8, 8]], 20, [[8, 8, 4]], False),
        ([[8, 8, 8]], 24, [[8, 8, 8]], False),
        ([[8, 8, 8]], 25, [[8, 8, 8]], True),
        ([[8, 8, 8], [8, 8, 8]], 0, [[], []], False),
        ([[8, 8, 8], [8, 8, 8]], 25, [[8, 5], [8, 4]], False),  # even parts: in turn, as a sampler deals out
        ([[100, 100, 98], [3]], 512, [[100, 100, 98], [3]], True),
        ([[100, 100, 98], [3]], 301, [[100, 100, 98], [3]], False),  # whether there are others was not asked
        ([[8, 8, 8], [3], []], 20, [[8, 8, 1], [3], []], False),
        ([[4], [4], [40, 40]], 24, [[4], [4], [16]], False),
        ([[9], [9], [1]], 20, [[9], [9], [1]], True),  # in three rounds
        ([[], []], 5, [[], []], True),
    ],
)
def test_the_first_points_of_all_are_as_many_as_one_process_would_take(parts, points, expected, whole):
    def take(processes: ThreadAsProcess) -> list[int]:
        rank = processes.rank
        rest = iter(parts[rank])
        first, ended = first_of_all(rest, points, int, processes)
        assert ended == whole
        assert [item for item, _, _ in first] == [here for _, here, _ in first]
        assert [item for item, _, _ in first] + list(rest) == parts[rank]  # no more was read, and in order
        return [some for _, _, some in first]

    assert in_threads(take, len(parts)) == expected
    assert sum(map(sum, expected)) == min(points, sum(map(sum, parts)))
