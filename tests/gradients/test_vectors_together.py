"""How many vectors are pulled back together: a piece of gradients in the layers' results at most."""

import pytest
import torch
from torch import nn

from oracles import jacobian, network
from slu.budgets import Size
from slu.budgets.costs import together
from slu.gradients import Network, PerExampleGradients, squared_lengths
from slu.gradients import per_example as gradients
from slu.gradients.layers import Opened, shape_of_results
from slu.parameters import select


class Long(nn.Module):
    """Few parameters and many results: 20 · (4 + 3) a sample."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(2, 4).double(), nn.Linear(4, 3).double()

    def forward(self, inputs):
        return self.out(self.into(inputs).tanh()).mean(1)


def lengths(pieces, shape):
    total = torch.zeros(shape, dtype=torch.float64)
    for _, values in pieces:
        total += squared_lengths(values)
    return total


@pytest.mark.parametrize(("share", "groups"), [(3, [3]), (2.9, [2, 1]), (2, [2, 1]), (1.9, [1] * 3), (0.5, [1] * 3)])
def test_no_more_vectors_than_have_room(share, groups, monkeypatch):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, inputs = Long(), torch.randn(5, 20, 2, dtype=torch.float64)
    taken, pull = [], Opened.pull

    def noted(self, vectors, *, ahead):
        taken.append(vectors.shape[1])
        return pull(self, vectors, ahead=ahead)

    monkeypatch.setattr(Opened, "pull", noted)
    room = int(share * 5 * 20 * 7)
    monkeypatch.setattr(gradients, "PIECE", room)
    net = Network(model, select(model))
    with net.evaluating():
        units = torch.eye(3, dtype=torch.float64).expand(5, 3, 3)
        found = PerExampleGradients(net).measure(inputs, units, lengths)
    torch.testing.assert_close(found, jacobian(model, inputs).square().sum(-1))
    assert taken == groups
    assert together(Size(27, 3, batch=5, results=140, room=room))[0] == groups[0]


@pytest.mark.parametrize("kind", ["mlp", "conv", "encoder", "tied"])
def test_results_are_counted_as_the_gradients_will_have_them(kind):
    model, inputs = network(kind)
    net = Network(model, select(model))
    with net.evaluating():
        opened = PerExampleGradients(net)._layers.open(inputs)
        assert shape_of_results(net, inputs) == (12, 3, opened.numbers)
