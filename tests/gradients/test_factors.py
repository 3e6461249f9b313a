"""Gradients left as factors are the gradients that are formed: same numbers, same lengths, whatever the batch split."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

import oracles
from slu.gradients import Network, PerExampleGradients
from slu.gradients.chunks import Factors
from slu.parameters import select


class Words(nn.Module):
    """A table of words with padding, an attention layer and a linear layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6, padding_idx=0)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.twice, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, words):
        inside = self.table(words)
        inside = inside + self.attention(inside, inside, inside, need_weights=False)[0]
        return self.head(self.twice(self.twice(inside).tanh()).mean(1))


class Tied(nn.Module):
    """A table of words that also makes the outputs, as in language models: used in two ways, it must be formed."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.middle = nn.Linear(4, 4)

    def forward(self, words):
        return self.middle(self.table(words)).tanh().mean(1) @ self.table.weight.T


class Both(nn.Module):
    """A matrix that is used as it is and transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(5, 4)), nn.Linear(5, 3)

    def forward(self, inputs):
        return self.head(nn.functional.linear((inputs @ self.weight).tanh(), self.weight).tanh())


def seeded(build):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build()


def conv():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.Tanh(), nn.Conv2d(4, 4, 3, groups=2, padding=1), nn.Tanh(),
        nn.Conv2d(4, 5, 1), nn.Conv2d(5, 4, 2, dilation=2), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip


def problems():
    sequence = nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 2))
    return {
        "mlp": (nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), torch.randn(6, 5)),
        "conv": (conv(), torch.randn(6, 2, 6, 6)),
        "conv1d": (sequence, torch.randn(6, 3, 8)),
        "words": (Words(), torch.tensor([[1, 2, 2, 10], [0, 3, 0, 3], [4, 5, 6, 7], [9, 9, 9, 9], [1, 0, 2, 3]])),
        "both ways": (Both(), torch.randn(6, 5)),
        "tied": (Tied(), torch.tensor([[1, 2, 2], [0, 3, 1], [4, 4, 4]])),
    }


UNFORMED = {
    "mlp": {"0.weight": 1, "2.weight": 1},
    "conv": {"0.weight": 9, "4.weight": 9, "5.weight": 1, "7.weight": 1},
    "conv1d": {"0.weight": 6, "3.weight": 1},
    "words": {
        "table.weight": 4, "attention.in_proj_weight": 4, "attention.out_proj.weight": 4, "twice.weight": 8,
        "head.weight": 1,
    },
    "both ways": {"weight": 2, "head.weight": 1},
    "tied": {"middle.weight": 3},
}  # fmt: skip


def formed(factors, rows, table):
    left = nn.functional.one_hot(factors.left, table).double() if factors.of_words else factors.left
    whole = (left[..., :, None] * factors.right[..., None, :]).sum(2)
    return whole.expand(*rows.shape, *whole.shape[2:]).flatten(2)


@pytest.mark.parametrize("memory", [None, 40])
@pytest.mark.parametrize("vectors", [1, 3])
@pytest.mark.parametrize("name", list(UNFORMED))
def test_factors_are_the_gradients(name, vectors, memory):
    """The table of positions shows which parameters have factors; those without are formed as ever."""
    model, inputs = seeded(problems)[name]
    model, inputs = model.double(), inputs.double() if inputs.is_floating_point() else inputs
    selection = select(model)
    network = Network(model, selection)
    asked = {}

    def unformed(start, size):
        asked[start] = size.positions
        return True

    jacobian = oracles.jacobian(model, inputs, list(selection.names))  # (b, t, p)
    drawn = torch.randn(len(inputs), vectors, jacobian.shape[1], generator=torch.Generator().manual_seed(1))
    drawn = drawn.double()
    expected, actual = drawn @ jacobian, torch.full((len(inputs), vectors, selection.count), torch.nan).double()
    limit = {} if memory is None else {"max_numbers": memory, "piece": memory}
    gradients = PerExampleGradients(network, **limit, unformed=unformed)
    with network.evaluating():
        for rows in gradients(inputs, drawn):
            for start, values in rows.pieces:
                actual[rows.examples, rows.vectors, start : start + values.shape[-1]] = values
            for factors in rows.factors:
                whole = formed(factors, rows, 11)
                actual[rows.examples, rows.vectors, factors.start : factors.start + whole.shape[-1]] = whole
                lengths = factors.squared_lengths().expand(rows.shape)
                torch.testing.assert_close(lengths, whole.square().sum(-1), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-10)
    names = {segment.start: segment.name for segment in selection.segments}
    assert {names[start]: positions for start, positions in asked.items()} == UNFORMED[name]


def test_the_reader_chooses_which_are_formed():
    model, inputs = seeded(problems)["mlp"]
    network = Network(model, select(model))
    first = network.selection.segments[0].start
    gradients = PerExampleGradients(network, unformed=lambda start, size: start != first and size.positions == 1)
    with network.evaluating():
        (rows,) = gradients(inputs, torch.ones(6, 1, 3))
        starts = {factors.start for factors in rows.factors}
        pieces = {start: values.shape[-1] for start, values in rows.pieces}
    assert starts == {42}
    assert pieces == {0: 42, 63: 3}  # what is left of the flat vector beside the second matrix


@pytest.mark.parametrize(("left", "right"), [(1, 1), (3, 1), (1, 3), (3, 3)])
@pytest.mark.parametrize(("positions", "o", "i"), [(1, 5, 3), (1, 1, 4), (2, 9, 8), (9, 5, 3), (40, 2, 2)])
@pytest.mark.parametrize("table", [False, True])
def test_lengths_from_products_of_positions_and_from_the_formed_matrix(table, positions, o, i, left, right):
    """Both ways and the short one of a single position, against the matrix formed entry by entry."""
    draw = torch.Generator().manual_seed(positions + o)
    normal = partial(torch.randn, generator=draw, dtype=torch.float64)
    rows = torch.randint(0, o, (4, 1, positions), generator=draw) if table else normal(4, left, positions, o)
    factors = Factors(0, rows, normal(4, right, positions, i))
    dense = nn.functional.one_hot(rows, o).double() if table else rows
    expected = (dense[..., :, None] * factors.right[..., None, :]).sum(2).square().sum((2, 3))
    torch.testing.assert_close(factors.squared_lengths(), expected, rtol=1e-10, atol=1e-12)


def test_both_ways_are_taken(monkeypatch):
    """Where positions are few their products, where they are many the matrix: the same numbers, other shapes."""
    shapes, product = [], Tensor.__matmul__
    monkeypatch.setattr(Tensor, "__matmul__", lambda a, b: shapes.append(product(a, b).shape[-2:]) or product(a, b))
    for positions, expected in ((2, [(2, 2), (2, 2)]), (3, [(9, 8)]), (9, [(9, 8)])):
        shapes.clear()
        Factors(0, torch.randn(4, 1, positions, 9), torch.randn(4, 1, positions, 8)).squared_lengths()
        assert shapes == expected


@pytest.mark.parametrize("table", [False, True])
def test_lengths_keep_their_accuracy_where_positions_cancel(table):
    """Inputs far from zero, and gradients in the outputs that add up to nearly nothing."""
    draw = torch.Generator().manual_seed(0)
    right = 1000 + torch.randn(20, 1, 6, 64, generator=draw)
    right = right * torch.tensor([1.0, -1.0] * 3)[:, None]  # of a word: positions of opposite sign
    left = torch.randn(20, 1, 6, 64, generator=draw)
    left = torch.zeros(20, 1, 6, dtype=torch.long) if table else left - left.mean(2, keepdim=True)
    right = right if table else right.abs()
    dense = nn.functional.one_hot(left, 64).double() if table else left.double()
    exact = (dense.mT @ right.double()).square().sum((2, 3))
    torch.testing.assert_close(Factors(0, left, right).squared_lengths().double(), exact, rtol=1e-4, atol=0)
    # The control: in float32 the products of positions do not have it.
    lefts = (left[..., None] == left[..., None, :]) if table else left @ left.mT
    assert float((((right @ right.mT) * lefts).sum((2, 3)) / exact - 1).abs().max()) > 1e-3


def test_positions_that_cancel_have_no_negative_length():
    """Two positions with opposite gradients: what is left is rounding, and no length is below zero."""
    left = torch.randn(50, 1, 1, 64, generator=torch.Generator().manual_seed(0))
    right = torch.randn(50, 1, 1, 64, generator=torch.Generator().manual_seed(1))
    factors = Factors(0, torch.cat([left, -left], 2), torch.cat([right, right * (1 + 1e-7)], 2))
    one = Factors(0, left, right).squared_lengths()
    assert bool((factors.squared_lengths() >= 0).all())
    assert float((factors.squared_lengths() / one).max()) < 1e-5
