"""Inputs that repeat: every copy has signs and labels of its own, so that the curvature is right for them too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import oracles
from shorthand import curvature, paper_slu, relative_error, split, vectors
from slu import Checkpoint, Lanczos, Stream
from slu.curvature import RootRows, root
from slu.gradients import Network, Rows
from slu.likelihoods import resolve
from slu.parameters import select

DISTINCT, COPIES = 8, 400


def repeated(copies: int = COPIES) -> tuple[nn.Module, Tensor, Tensor]:
    """A network, distinct inputs, and copies of these, one after another."""
    model, inputs = oracles.network("mlp")
    return model, inputs[:DISTINCT], inputs[:DISTINCT].repeat(copies, 1)


def summed(
    model: nn.Module, data, kind: str = "ggn", seed: int = 0, *, positions: bool = False, draws: int = 1
) -> Tensor:
    """(p, p) Σ a aᵀ over rows with so many mixtures, or labels, per point."""
    network = Network(model, select(model), positions=positions)
    total = torch.zeros(network.selection.count, network.selection.count, dtype=torch.float64)

    def consumer(rows: Rows) -> None:
        whole = torch.cat([values for _, values in rows.pieces], -1).flatten(0, 1)
        total.add_(whole.T @ whole)

    RootRows(network, resolve("classification"), data, kind=kind, seed=seed, draws=draws).feed(consumer)
    return total


@pytest.fixture
def same_for_all_copies(monkeypatch):
    """The control: numbers that depend on content alone."""
    monkeypatch.setattr(root, "CopyCounter", lambda: torch.zeros_like)
    monkeypatch.setattr("slu.curvature.products.CopyCounter", lambda: torch.zeros_like)


# Relative errors of a sum of 400 independent draws per input: about 1/√400 times that of one, which is of order 1.
BOUND = 0.15


@pytest.mark.parametrize("kind", ["ggn", "fisher"])
def test_the_curvature_of_many_copies_is_that_of_all_labels(kind):
    model, inputs, many = repeated()
    expected = COPIES * oracles.ggn(model, inputs, "classification")
    actual = summed(model, split(many, sizes=[1000, 1200, 1000]), kind)
    assert relative_error(actual, expected) < BOUND
    assert torch.linalg.matrix_rank(actual) == torch.linalg.matrix_rank(expected) == 2 * DISTINCT


@pytest.mark.parametrize("kind", ["ggn", "fisher"])
def test_control_the_same_numbers_for_all_copies_are_noticed(kind, same_for_all_copies):
    model, inputs, many = repeated()
    actual = summed(model, many, kind)
    assert relative_error(actual, COPIES * oracles.ggn(model, inputs, "classification")) > 2 * BOUND
    assert torch.linalg.matrix_rank(actual) == DISTINCT


SEEDS = range(60)


def spread(kind: str, copies: int) -> tuple[float, float]:
    """Over seeds: how far the mean of Ĝ v is from G v in standard errors, and the variance of Ĝ v."""
    model, inputs, many = repeated(copies)
    vector = vectors(51, 1)[:, 0]
    actual = torch.stack([summed(model, many, kind, seed) @ vector for seed in SEEDS])
    variance = actual.var(0).sum()
    expected = copies * oracles.ggn(model, inputs, "classification") @ vector
    return float((actual.mean(0) - expected).norm() / (variance / len(SEEDS)).sqrt()), float(variance)


# The mean: as in test_fisher_labels.py. The variance of a sum of ten independent draws is ten times that of one, and of
# ten equal ones a hundred times; each variance is estimated within about a fifth.
MEAN, COUNT = 3.0, 10


@pytest.mark.parametrize("kind", ["ggn", "fisher"])
def test_copies_are_independent_and_right_on_average(kind):
    one, many = spread(kind, 1), spread(kind, COUNT)
    assert max(one[0], many[0]) < MEAN
    assert 0.5 < many[1] / (COUNT * one[1]) < 2


@pytest.mark.parametrize("kind", ["ggn", "fisher"])
def test_control_equal_draws_vary_by_more(kind, same_for_all_copies):
    one, many = spread(kind, 1), spread(kind, COUNT)
    assert many[1] / (COUNT * one[1]) == pytest.approx(COUNT)


@pytest.mark.parametrize("kind", ["ggn", "fisher"])
def test_order_and_batches_do_not_matter(kind):
    model, _, many = repeated(6)
    expected = summed(model, many, kind)
    order = torch.randperm(len(many), generator=torch.Generator().manual_seed(0))
    for data in (many.flip(0), list(many.split(7)), list(many[order].split(1)), list(many[order].split(20))):
        assert relative_error(summed(model, data, kind), expected) < 1e-12
    # Control: of another seed it is another matrix.
    assert relative_error(summed(model, many, kind, seed=1), expected) > 1e-2


class PaddedTagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(20, 6), nn.Linear(6, 4)

    def forward(self, input_ids, attention_mask):
        return self.head(self.words(input_ids).tanh())


@pytest.mark.parametrize("draws", [1, 2, 3])
@pytest.mark.parametrize("kind", ["ggn", "fisher"])
def test_nor_does_the_padding_of_tokens(kind, draws):
    torch.manual_seed(0)
    model = PaddedTagger().double()
    texts = [torch.randint(1, 20, (3 + 5 * place % 7,)) for place in range(24)]

    def batches(size, side="right"):
        for some in (texts[place : place + size] for place in range(0, len(texts), size)):
            ids = nn.utils.rnn.pad_sequence(some, batch_first=True, padding_side=side)
            yield {"input_ids": ids, "attention_mask": (ids > 0).long()}

    padded = [batches(1), batches(5), batches(24), batches(5, "left"), batches(24, "left")]
    every = [summed(model, list(each), kind, positions=True, draws=draws) for each in padded]
    assert max(relative_error(each, every[0]) for each in every) < 1e-12
    assert relative_error(summed(model, list(batches(5)), kind, seed=1, positions=True, draws=draws), every[0]) > 1e-2


@pytest.mark.parametrize("kind", ["ggn", "fisher"])
def test_several_draws_are_independent_and_right_on_average(kind):
    """The error of m draws is 1/√m times that of one, and their mean is the curvature: 200 draws, as 200 copies."""
    model, inputs, _ = repeated(1)
    expected = oracles.ggn(model, inputs, "classification")
    errors = [relative_error(summed(model, inputs, kind, draws=draws), expected) for draws in (1, 200)]
    assert errors[1] < BOUND < errors[0]


def test_products_have_the_labels_of_the_rows_in_any_number_of_columns():
    model, _, many = repeated(20)
    operator = curvature(model, list(many.split(33)), kind="fisher")
    expected = summed(model, many, "fisher")
    identity = torch.eye(51, dtype=torch.float64)
    assert relative_error(operator @ identity, expected) < 1e-12
    assert relative_error(operator @ identity[:, 3], expected[:, 3]) < 1e-12, "in every pass the same"


@pytest.mark.parametrize("solver", [Stream(), Lanczos()], ids=["stream", "lanczos"])
def test_scores_of_a_fit_are_those_of_all_labels(solver):
    """By the score's own formula, in a rank that one mixture per distinct input does not reach."""
    model, _, many = repeated()
    queries = torch.randn(30, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def score(solver, curvature):
        method = paper_slu(model, "classification", rank=12, sketch_size=51, solver=solver, curvature=curvature)
        return method.fit(many, calibration=False)(queries, reading="variance")

    expected = score(Stream(labels_per_point="all"), "ggn")
    actual = score(solver, "ggn" if isinstance(solver, Stream) else "fisher")
    assert relative_error(actual, expected) < 0.1


class _Loader:
    """Batches, and Ctrl-C after some of them."""

    def __init__(self, inputs: Tensor, stop: int | None = None) -> None:
        self._inputs, self._left = inputs, stop

    def __iter__(self):
        for batch in self._inputs.split(40):
            if self._left is not None:
                self._left -= 1
                if self._left < 0:
                    raise KeyboardInterrupt
            yield batch


@pytest.mark.parametrize("kind", ["ggn", "fisher"])
def test_a_resumed_fit_is_the_same_to_the_bit(kind, tmp_path):
    model, _, many = repeated(50)
    method = paper_slu(model, "classification", rank=12, sketch_size=40, curvature=kind, solver="stream")
    expected = method.fit(_Loader(many), calibration=False)
    where = Checkpoint(tmp_path / "run", every=0)
    with pytest.raises(KeyboardInterrupt):
        method.fit(_Loader(many, 6), calibration=False, checkpoint=where)
    actual = method.fit(_Loader(many), calibration=False, checkpoint=where)
    assert torch.equal(actual.state.subspace.basis, expected.state.subspace.basis)
    assert (actual.state.subspace.eigenvalues == expected.state.subspace.eigenvalues).all()


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(20, 6), nn.Linear(6, 4)

    def forward(self, tokens):
        return self.head(torch.tanh(self.words(tokens)))


@pytest.mark.parametrize("kind", ["ggn", "fisher"])
def test_copies_of_which_other_positions_count_are_no_copies(kind):
    """Their rows differ, so that the order in which they came would decide which has which signs."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, tokens = Tagger().double(), torch.randint(0, 20, (6, 5)).repeat(2, 1)
        targets = torch.randint(0, 4, (12, 5))
    targets[:6, :3] = targets[6:, 3:] = -100
    forwards = summed(model, [(tokens, targets)], kind, positions=True)
    backwards = summed(model, [(tokens.flip(0), targets.flip(0))], kind, positions=True)
    assert relative_error(backwards, forwards) < 1e-14
