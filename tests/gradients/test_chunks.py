"""How gradients are divided into chunks, as they are formed and as the planner of memory expects them."""

import pytest
import torch
from torch import nn

from oracles import jacobian, network
from slu.budgets import Size, size_for
from slu.budgets.costs import chunks_of
from slu.gradients import Network, PerExampleGradients, chunks, squared_lengths
from slu.gradients.layers import BatchSize, LayerForward, activations_of
from slu.parameters import select


class Long(nn.Module):
    """Few parameters and many results: 20 · (4 + 3) an example."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(2, 4).double(), nn.Linear(4, 3).double()

    def forward(self, inputs):
        return self.out(self.into(inputs).tanh()).mean(1)


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
