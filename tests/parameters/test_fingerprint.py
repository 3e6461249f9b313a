"""Fingerprints: one bit is enough to tell two networks apart, and the difference is said in words."""

import copy

import pytest
import torch
from torch import nn

from oracles import network
from slu.errors import ModelError
from slu.parameters import KnownWeights, difference, fingerprint, summary


@pytest.fixture
def model():
    return network("conv")[0]


def test_an_equal_network_has_no_difference(model):
    original = fingerprint(model)
    assert set(original) == set(model.state_dict())
    assert difference(original, fingerprint(copy.deepcopy(model))) is None
    assert difference(original, fingerprint(model.eval().requires_grad_(False))) is None


def test_each_single_bit_of_the_weights_counts(model):
    before = fingerprint(model)
    weight = model[0].weight.detach()
    for bit in range(0, 64, 9):
        changed = weight.view(torch.int64)
        changed[1, 0, 2, 2] ^= 1 << bit if bit < 63 else -(1 << 63)
        assert difference(before, fingerprint(model)) == "the values of 0.weight have changed"
        changed[1, 0, 2, 2] ^= 1 << bit if bit < 63 else -(1 << 63)
    assert difference(before, fingerprint(model)) is None


@pytest.mark.parametrize("name", ["1.running_mean", "1.num_batches_tracked"])
def test_buffers_count(model, name):
    before = fingerprint(model)
    model.get_buffer(name).add_(1)
    assert difference(before, fingerprint(model)) == f"the values of {name} have changed"


def test_the_difference_in_words(model):
    original = fingerprint(model)
    without = {name: text for name, text in original.items() if not name.startswith("4.")}
    assert difference(original, without) == "4.weight is missing and 1 more"
    assert difference(without, original) == "4.weight is new and 1 more"
    assert difference(fingerprint(model.float()), original) == "0.weight is 3x1x3x3 float64 instead of 3x1x3x3 float32"
    with torch.no_grad():
        for value in model.parameters():
            value.add_(1)
    assert difference(original, fingerprint(model.double())) == "the values of 0.weight have changed and 5 more"


def test_a_wrapped_model_is_recognized(model):
    plain = fingerprint(model)
    wrapped = {f"_orig_mod.{name}": text for name, text in plain.items()}
    assert "every name begins with '_orig_mod.'" in difference(plain, wrapped)
    assert "pass the model wrapped as it was" in difference(wrapped, plain)
    assert difference(plain, dict(list(wrapped.items())[:-1])).startswith("0.weight is missing")
    assert difference({}, plain).startswith("0.weight is new")


def test_a_part_that_is_compiled_on_its_own_is_named(model):
    plain = fingerprint(model)
    compiled = {name.replace("0.", "0._orig_mod."): text for name, text in plain.items()}
    for expected, actual in ((plain, compiled), (compiled, plain)):
        assert difference(expected, actual).startswith(
            "0._orig_mod.weight is of a part that torch.compile wraps in one"
        )
    assert difference(plain, dict(list(compiled.items())[1:])).startswith("0.weight is missing")


def test_a_tied_tensor_counts_once():
    tied = network("tied")[0]
    assert "again.weight" not in fingerprint(tied)
    tied.again.weight = nn.Parameter(tied.into.weight.detach().clone())
    assert difference(fingerprint(network("tied")[0]), fingerprint(tied)) == "again.weight is new"


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(3, dtype=torch.bfloat16),
        torch.tensor(2),
        torch.zeros(0, 3),
        torch.ones(3, dtype=torch.bool),
        torch.ones(3, dtype=torch.complex64),
        torch.arange(12.0).reshape(3, 4).T,
        torch.zeros(3, dtype=torch.float8_e4m3fn),
    ],
    ids=lambda value: str(value.dtype),
)
def test_any_buffer_can_be_described(value):
    module = nn.Module()
    module.register_buffer("value", value)
    first = fingerprint(module)["value"]
    module.register_buffer("value", value.clone())
    assert fingerprint(module)["value"] == first
    assert summary({"value": first})["numbers"] == value.numel()


def test_a_model_without_values_is_refused():
    with pytest.raises(ModelError, match="weight has no values yet; load the weights into the model first"):
        fingerprint(nn.LazyLinear(3))
    with pytest.raises(ModelError, match="weight has no values yet"):
        fingerprint(nn.Linear(2, 3, device="meta"))


def test_the_summary_counts_and_tells_networks_apart(model):
    brief = summary(fingerprint(model))
    assert brief["tensors"] == 9
    assert brief["numbers"] == sum(value.numel() for value in model.state_dict().values())
    assert brief["types"] == ["float64", "int64"]
    again = summary(dict(reversed(fingerprint(model).items())))
    assert again == brief
    model[0].bias.detach()[0] += 1e-12
    assert summary(fingerprint(model))["hash"] != brief["hash"]


class Edges(nn.Module):
    """A layer on a graph, whose edges are a sparse buffer."""

    def __init__(self, edges: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 3))
        self.register_buffer("edges", edges)


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_places_and_numbers_of_a_sparse_buffer_count(layout):
    edges = torch.eye(4)
    model = Edges(edges.to_sparse(layout=layout))
    known, before = KnownWeights(model), fingerprint(model)
    assert before["edges"].startswith("4x4 float32") and known.change(model) is None
    assert fingerprint(Edges(edges.to_sparse(layout=layout))) == before
    for other in (2 * edges, edges.flip(0)):
        changed = Edges(other.to_sparse(layout=layout))
        assert "edges" in str(difference(before, fingerprint(changed))) and "edges" in str(known.change(changed))
    model.edges.values().mul_(3) if layout is not torch.sparse_coo else model.edges._values().mul_(3)
    assert "edges" in str(known.change(model))
