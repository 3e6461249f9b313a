"""The flat vector: which parameters are in it, in which order, and the way there and back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from oracles import Tied, network
from slu.errors import ModelError, SelectionError
from slu.parameters import select

FIRST = ("0.weight", "0.bias")
SECOND = ("2.weight", "2.bias")


@pytest.fixture
def mlp() -> nn.Module:
    return network("mlp")[0]


@pytest.mark.parametrize(
    ("params", "names"),
    [
        (None, FIRST + SECOND),
        ("2.*", SECOND),
        ("0.bias", ("0.bias",)),
        (["2.bias", "0.*"], (*FIRST, "2.bias")),
        (("*.weight", "0.weight"), ("0.weight", "2.weight")),
        (iter(["2.bias"]), ("2.bias",)),
        (lambda name, value: value.dim() == 1, ("0.bias", "2.bias")),
    ],
    ids=["all", "glob", "name", "several", "found twice", "iterator", "predicate"],
)
def test_choice_is_in_the_order_of_the_module(mlp, params, names):
    assert select(mlp, params).names == names


def test_segments_follow_one_another_without_gaps(mlp):
    selection = select(mlp)
    assert [(part.start, part.stop) for part in selection.segments] == [(0, 24), (24, 30), (30, 48), (48, 51)]
    assert [tuple(part.shape) for part in selection.segments] == [(6, 4), (6,), (3, 6), (3,)]
    assert selection.count == sum(value.numel() for value in mlp.parameters()) == 51


def test_frozen_parameters_are_left_out_unless_they_are_named(mlp):
    mlp[0].requires_grad_(False)
    assert select(mlp).names == SECOND
    assert select(mlp, "*").names == SECOND
    assert select(mlp, list(FIRST)).names == FIRST
    assert select(mlp, lambda name, value: name.startswith("0")).names == FIRST


@pytest.mark.parametrize("name", ["into.weight", "again.weight", ["into.weight", "again.weight"]])
def test_tied_weights_count_once_and_are_found_by_either_name(name):
    assert select(Tied(), name).names == ("into.weight",)
    assert select(Tied()).count == 16 + 4 + 4 + 15


def test_a_literal_name_with_glob_characters_is_found():
    model = nn.ModuleDict({"a[0]": nn.Linear(1, 1)})
    assert select(model, "a[0].bias").names == ("a[0].bias",)


def test_views_share_the_storage_of_the_vector(mlp):
    selection = select(mlp)
    vector = torch.zeros(selection.count)
    selection.views(vector)["2.weight"][1, 2] = 7.0
    assert vector[30 + 6 + 2] == 7.0
    assert vector.count_nonzero() == 1


def test_views_work_on_the_columns_of_a_matrix(mlp):
    selection = select(mlp)
    matrix = torch.arange(2.0 * selection.count).reshape(selection.count, 2)
    assert torch.equal(selection.flatten(selection.views(matrix[:, 1])), matrix[:, 1].double())


def test_values_share_storage_with_the_model_and_carry_no_history(mlp):
    values = select(mlp, "2.*").values(mlp)
    assert values["2.weight"].data_ptr() == mlp[2].weight.data_ptr()
    assert not any(value.requires_grad for value in values.values())


@settings(max_examples=50, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=5), seed=st.integers(0, 99)
)
def test_flatten_and_views_are_inverse(shapes, seed):
    draw = torch.Generator().manual_seed(seed)
    model = nn.ParameterList([nn.Parameter(torch.randn(shape, generator=draw)) for shape in shapes])
    if not any(value.numel() for value in model):
        with pytest.raises(SelectionError, match="hold no numbers"):
            select(model)
        return
    selection = select(model)
    vector = selection.flatten(selection.values(model))
    assert vector.shape == (selection.count,)
    for name, value in model.named_parameters():
        assert torch.equal(selection.views(vector)[name], value)
    back = selection.flatten(selection.views(vector))
    assert torch.equal(back, vector)
    assert back.data_ptr() != vector.data_ptr()


@pytest.mark.parametrize("shape", [(50,), (52,), (51, 1), ()])
def test_views_refuse_another_length(mlp, shape):
    with pytest.raises(SelectionError, match="51 parameters is needed"):
        select(mlp).views(torch.zeros(shape))


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ([torch.float32], torch.float32),
        ([torch.float64], torch.float64),
        ([torch.float16], torch.float32),
        ([torch.bfloat16], torch.float32),
        ([torch.bfloat16, torch.float16], torch.float32),
        ([torch.float16, torch.float64], torch.float64),
    ],
)
def test_vectors_have_the_parameters_type_but_at_least_float32(dtypes, expected):
    model = nn.ParameterList([nn.Parameter(torch.ones(2, dtype=dtype)) for dtype in dtypes])
    selection = select(model)
    assert selection.dtype == expected
    assert selection.flatten(selection.values(model)).dtype == expected


def test_only_selected_parameters_decide_the_type():
    model = nn.ParameterDict({"a": nn.Parameter(torch.ones(2)), "b": nn.Parameter(torch.ones(2).double())})
    assert select(model, "a").dtype == torch.float32


def _frozen() -> nn.Module:
    return nn.Linear(2, 2).requires_grad_(False)


def _with(value: float) -> nn.Module:
    model = nn.Linear(2, 2)
    model.bias.data[1] = value
    return model


def _whole_numbers() -> nn.Module:
    return nn.ParameterDict({"table": nn.Parameter(torch.arange(3), requires_grad=False)})


def _complex() -> nn.Module:
    return nn.ParameterDict({"phase": nn.Parameter(torch.ones(2, dtype=torch.complex64))})


@pytest.mark.parametrize(
    ("model", "params", "error", "message"),
    [
        (_frozen, None, SelectionError, "has 2 parameters but none is trainable: all 2 are frozen"),
        (nn.Tanh, None, SelectionError, "has 0 parameters"),
        (nn.Tanh, "*", SelectionError, "no parameters"),
        (_frozen, [], SelectionError, "empty list"),
        (_frozen, lambda name, value: False, SelectionError, "predicate chose none of the model's 2"),
        (_frozen, "wieght", SelectionError, "'wieght'; near it are weight"),
        (_frozen, ["weight", "head.*"], SelectionError, r"matches 'head\.\*'"),
        (_frozen, [torch.ones(1)], SelectionError, "by a predicate, got a Tensor"),
        (lambda: _with(torch.nan), None, ModelError, "bias holds NaN or infinity"),
        (lambda: _with(-torch.inf), "*", ModelError, "bias holds NaN or infinity"),
        (_whole_numbers, "*", SelectionError, "table is torch.int64"),
        (_complex, "*", SelectionError, "phase is torch.complex64"),
    ],
)
def test_refusals_say_what_is_wrong(model, params, error, message):
    with pytest.raises(error, match=message):
        select(model(), params)


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_lazy_parameter_is_refused_with_the_cure():
    with pytest.raises(ModelError, match=r"0\.weight has no values yet; run one batch"):
        select(nn.Sequential(nn.LazyLinear(2)))


def test_bad_weights_outside_the_selection_do_not_matter():
    assert select(_with(torch.nan), "weight").names == ("weight",)
