"""How gradients are divided into chunks, as they are formed and as the planner of memory expects them."""

import pytest
import torch
from torch import nn

from oracles import jacobian, network
from slu.budgets import Size, size_for
from slu.budgets.costs import chunks_of
from slu.gradients import GeneralGradients, Network, PerExampleGradients, chunks, squared_lengths
from slu.gradients.layers import BatchSize, LayerForward, activations_of
from slu.parameters import select


class Long(nn.Module):
    """Few parameters and many results: 20 · (4 + 3) an example."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(2, 4).double(), nn.Linear(4, 3).double()

    def forward(self, inputs):
        return self.out(self.into(inputs).tanh()).mean(1)


class Sequences(nn.Module):
    """A recurrent layer, the last state of which is classified."""

    def __init__(self, kind):
        super().__init__()
        self.layers, self.head = kind(5, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, inputs):
        return self.head(self.layers(inputs)[0][:, -1])


def lengths(rows):
    total = torch.zeros(rows.shape, dtype=torch.float64)
    for _, values in rows.pieces:
        total += squared_lengths(values)
    return total


@pytest.mark.parametrize(("share", "groups"), [(3, [3]), (2.9, [2, 1]), (2, [2, 1]), (1.9, [1] * 3), (0.5, [1] * 3)])
def test_no_more_vectors_than_a_piece_of_their_gradients_in_activations(share, groups, monkeypatch):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, inputs = Long(), torch.randn(5, 20, 2, dtype=torch.float64)
    taken, backward = [], LayerForward.backward

    def noted(self, vectors, *rest):
        taken.append(vectors.shape[1])
        return backward(self, vectors, *rest)

    monkeypatch.setattr(LayerForward, "backward", noted)
    monkeypatch.setattr(chunks, "PIECE_NUMBERS", int(share * 5 * 20 * 7))
    net = Network(model, select(model))
    with net.evaluating():
        units = torch.eye(3, dtype=torch.float64).expand(5, 3, 3)
        actual = PerExampleGradients(net).measure(inputs, units, lengths)
    torch.testing.assert_close(actual, jacobian(model, inputs).square().sum(-1))
    assert taken == groups
    assert chunks_of(Size(27, 3, batch=5, activations=140)).vectors == groups[0]


@pytest.mark.parametrize("kind", ["mlp", "conv", "encoder", "tied"])
def test_results_are_counted_as_the_gradients_will_have_them(kind):
    model, inputs = network(kind)
    net = Network(model, select(model))
    with net.evaluating():
        layers = PerExampleGradients(net)._collector.forward(inputs)
        size = activations_of(net, inputs)
        assert size == BatchSize(12, 3, layers.activations, size.widest, layers.factors())
        assert 0 < size.widest <= size.activations


@pytest.mark.parametrize("kind", ["encoder", "gru"])
def test_gradients_in_the_same_memory_are_counted_once(kind):
    """A linear layer of sequences is a product and a sum with the bias: the same gradient in both results."""
    model, inputs = network("encoder") if kind == "encoder" else (Sequences(nn.GRU), torch.randn(4, 7, 5))
    net = Network(model, select(model))
    with net.evaluating():
        layers = PerExampleGradients(net)._collector.forward(inputs)
        places = [(step, 0) for step in layers._plan.steps]
        pulled, _ = layers._recording.pull_back(places, torch.randn_like(layers.outputs))
        held = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in pulled}
        assert layers.activations * pulled[0].element_size() == sum(held.values())
        assert kind == "encoder" or layers.activations < sum(map(torch.numel, pulled))


def fallback_numbers(model, inputs):
    net = Network(model, select(model))
    with net.evaluating():
        return GeneralGradients(net).numbers_of_one(inputs, activations_of(net, inputs).general)


def test_the_fallback_holds_gradients_and_a_copy_where_vmap_joins_those_of_examples():
    model = nn.Sequential(nn.EmbeddingBag(1000, 8), nn.Linear(8, 3))
    assert 2 * 8000 < fallback_numbers(model, torch.randint(0, 1000, (4, 6))) < 2 * 8000 + 100


def test_the_fallback_holds_activations_of_its_own():
    short, long = (fallback_numbers(Sequences(nn.LSTM), torch.randn(4, steps, 5)) for steps in (7, 14))
    assert short < long


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("max_numbers", [1, 400, 2000, 10**6])
@pytest.mark.parametrize("kind", ["mlp", "conv", "encoder", "tied"])
def test_the_planner_expects_the_chunks_that_are_formed(kind, max_numbers, whole):
    model, inputs = network(kind)
    net = Network(model, select(model))
    planned = chunks_of(size_for(net, None, inputs, max_numbers), whole=whole)
    units = torch.eye(3, dtype=torch.float64).expand(12, 3, 3)
    with net.evaluating():
        shapes = {rows.shape for rows in PerExampleGradients(net, max_numbers, whole=whole)(inputs, units)}
    last = 3 % planned.vectors or planned.vectors
    expected = {(planned.examples(vectors), vectors) for vectors in (planned.vectors, last)}
    assert {shape for shape in shapes if any(shape[1] == vectors for _, vectors in expected)} == shapes
    assert {(max(c for c, v in shapes if v == vectors), vectors) for _, vectors in shapes} == expected
