"""The factored scale against its dense formula: rows and columns of the squares of the stream's own gradients."""

import pytest
import torch
from torch import nn

from oracles import LIKELIHOODS, network, outputs_of
from scaled import damped_product, drawn_rows
from shorthand import all_rows
from slu import SLU, FactoredScale, Lanczos
from slu.core.scales import SquareSums, row_and_column_squares
from slu.core.scaling import DenseScaling
from slu.curvature.root import OutputSpace
from slu.data import Batch
from slu.errors import NumericalError, SettingError
from slu.gradients import Network, PerExampleGradients, Rows
from slu.gradients.chunks import Factors
from slu.likelihoods import Regression, resolve
from slu.parameters import select

DAMPING = 0.01
KINDS = ("mlp", "conv", "encoder", "tied", "words")


class Words(nn.Module):
    """A table of words of which few occur, a norm, and a depthwise convolution."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 4)
        self.norm = nn.LayerNorm(4)
        self.each = nn.Conv1d(4, 4, 3, groups=4)
        self.head = nn.Linear(4, 3)

    def forward(self, words):
        return self.head(self.each(self.norm(self.table(words)).mT).tanh().mean(2))


def problem(kind):
    if kind != "words":
        return network(kind)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Words().double(), torch.randint(0, 15, (12, 6))


def numbers(scale, p):
    return scale.scaled(0, torch.ones(p, dtype=torch.float64))


def fitted(model, data, likelihood="classification", points=100, **settings):
    scale = FactoredScale(points=points, damping=DAMPING)
    return SLU(model, likelihood, rank=4, sketch="identity", scale=scale, **settings).fit(data, calibration=False)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_dense_formula_whatever_the_batches(kind, likelihood):
    model, inputs = problem(kind)
    for points in (7, 100):
        rows = drawn_rows(model, inputs[:points], likelihood)
        expected = damped_product(model, rows.square().sum(0), DAMPING)
        for size in (1, 5, 7, 12):
            score = fitted(model, list(inputs.split(size)), likelihood, points)
            actual = numbers(score.scale, len(expected))
            torch.testing.assert_close(actual, expected, rtol=1e-9, atol=0)
    kept = sum(
        shape[0] + value.numel() // shape[0] if len(shape := [n for n in value.shape if n > 1]) > 1 else value.numel()
        for value in model.parameters()
    )
    assert len(score.scale.values) == kept
    # The control: other points are another scale.
    other = damped_product(model, drawn_rows(model, inputs[7:], likelihood).square().sum(0), DAMPING)
    assert not torch.allclose(other, expected, rtol=0.01)


@pytest.mark.parametrize("curvature", ["fisher", "empirical-fisher"])
@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_its_gradients_are_those_of_the_curvature(kind, curvature):
    model, inputs = problem(kind)
    targets = torch.arange(12) % 3
    score = fitted(model, [(inputs[:5], targets[:5]), (inputs[5:], targets[5:])], curvature=curvature)
    rows = drawn_rows(model, inputs, "classification", curvature, targets)
    expected = damped_product(model, rows.square().sum(0), DAMPING)
    torch.testing.assert_close(numbers(score.scale, len(expected)), expected, rtol=1e-9, atol=0)
    plain = damped_product(model, drawn_rows(model, inputs, "classification").square().sum(0), DAMPING)
    assert not torch.allclose(expected, plain, rtol=0.01)


def test_without_damping_it_has_the_rows_and_columns_of_the_squares():
    """What D is for: its sums over rows and over columns are those of Σ g²."""
    model, inputs = problem("mlp")
    squares = drawn_rows(model, inputs, "classification").square().sum(0)
    scale = SLU(model, "classification", rank=4, sketch="identity", scale=FactoredScale(damping=1e-14)).fit(inputs)
    product = numbers(scale.scale, len(squares)) ** -2
    for part in (slice(0, 24), slice(30, 48)):
        actual, expected = (
            product[part].view(-1, 6 if part.start else 4),
            squares[part].view(-1, 6 if part.start else 4),
        )
        torch.testing.assert_close(actual.sum(0), expected.sum(0), rtol=1e-9, atol=0)
        torch.testing.assert_close(actual.sum(1), expected.sum(1), rtol=1e-9, atol=0)


def test_what_no_data_move_is_finite_and_follows_the_others():
    """A dead input, a dead unit, and a tensor that the outputs do not depend on."""
    model, inputs = problem("mlp")
    model.unused = nn.Linear(3, 2).double()
    forward = lambda called, x: called[2](called[1](called[0](x)))  # noqa: E731
    inputs[:, 1] = 0
    with torch.no_grad():
        model[2].weight[:, 2] = 0  # the third hidden unit reaches no output
    selection = select(model)
    network = Network(model, selection, forward)
    roots = OutputSpace(resolve("classification"), "ggn", 0, draws=1).roots(
        outputs_of(model[:3], inputs).detach(), Batch(0, inputs, None)
    )
    squares = all_rows(PerExampleGradients(network), inputs, roots).square().sum((0, 1))
    score = fitted(model, inputs, forward=forward)
    actual = numbers(score.scale, selection.count)
    torch.testing.assert_close(actual, damped_product(model, squares, DAMPING), rtol=1e-9, atol=0)
    product = actual**-2
    first = product[:24].view(6, 4)
    alive = [0, 1, 3, 4, 5]
    typical = first[alive][:, [0, 2, 3]].median()
    # The median row and column, so up to the spread of both.
    assert 0.05 < float(first[alive, 1].median() / typical) / DAMPING < 20
    assert 0.05 < float(first[2, [0, 2, 3]].median() / typical) / DAMPING < 20
    unused = product[51:]
    torch.testing.assert_close(unused, unused[0].expand_as(unused), rtol=1e-12, atol=0)


@pytest.mark.parametrize("unit", [1e-6, 1e4])
def test_another_unit_of_the_loss_is_the_same_scale_in_another_unit(unit):
    model, inputs = problem("conv")
    one, other = (
        fitted(model, inputs, Regression(noise_variance=noise)).scale.scaled(0, torch.ones(183, dtype=torch.float64))
        for noise in (1.0, 1 / unit)
    )
    torch.testing.assert_close(other * unit**0.5, one, rtol=1e-9, atol=0)


def test_no_curvature_anywhere_is_refused():
    model, inputs = problem("mlp")
    with torch.no_grad():
        for value in model.parameters():
            value.zero_()
        model[2].bias.copy_(torch.tensor([1e4, 0.0, 0.0]))  # sure of the first class, whatever comes
    with pytest.raises(NumericalError, match="zero"):
        fitted(model, inputs)


@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_lanczos_has_the_same_scale_and_no_pass_more(kind):
    model, inputs = problem(kind)
    stream, lanczos = fitted(model, inputs, points=5), fitted(model, inputs, points=5, solver=Lanczos())
    assert stream.scale == lanczos.scale
    assert (stream.diagnostics.passes, lanczos.diagnostics.passes) == (1, 4)
    # The control: d in p numbers is the same fit.
    dense = DenseScaling(numbers(stream.scale, select(model).count))
    same = SLU(model, "classification", rank=4, sketch="identity", scale=dense, solver="lanczos").fit(inputs)
    torch.testing.assert_close(same(inputs), lanczos(inputs), rtol=1e-6, atol=1e-9)


def formed(factors, rows):
    """(c, g, o, i) from the definition of factors."""
    left, right = factors.left, factors.right
    if not left.is_floating_point():
        left = nn.functional.one_hot(left, rows).to(right.dtype)
    vectors = max(left.shape[1], right.shape[1])
    left, right = (each.expand(-1, vectors, -1, -1) for each in (left, right))
    return torch.einsum("cgto,cgti->cgoi", left, right)


def hand_made(table, examples, left, right, positions, o, i, start=0):
    draw = torch.Generator().manual_seed(examples + 10 * positions + o)
    b = torch.randn(examples, left, positions, o, generator=draw, dtype=torch.float64)
    if table:
        b = torch.randint(0, o, (examples, 1, positions), generator=draw)
    a = torch.randn(examples, right, positions, i, generator=draw, dtype=torch.float64)
    return Factors(start, b, a)


@pytest.mark.parametrize("positions", [1, 6])
@pytest.mark.parametrize(
    ("table", "left", "right"),
    [(False, 1, 1), (False, 3, 1), (False, 1, 3), (False, 3, 3), (True, 1, 1), (True, 1, 3)],
)
def test_squares_of_factors_are_those_of_the_formed_gradients(table, left, right, positions, monkeypatch):
    for numbers_at_a_time in (1 << 21, 40):
        monkeypatch.setattr("slu.core.scales.PIECE_NUMBERS", numbers_at_a_time)
        factors = hand_made(table, 4, left, right, positions, 5, 3)
        squares = formed(factors, 5).square().sum((0, 1))
        rows, columns = row_and_column_squares(factors, 5)
        torch.testing.assert_close(rows, squares.sum(1), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(columns, squares.sum(0), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", [(5, 3), (1, 3), (5, 1), (5, 3, 2)])
@pytest.mark.parametrize("table", [False, True])
def test_a_scale_is_the_same_from_factors_and_from_formed_gradients(shape, table):
    """Beside a vector that is always formed, and in pieces that are cut anywhere."""
    model = nn.ParameterDict(
        {"a": nn.Parameter(torch.zeros(4, dtype=torch.float64)), "b": nn.Parameter(torch.zeros(shape).double())}
    )
    selection = select(model)
    o = shape[0]
    factors = hand_made(table, 4, 1 if table else 2, 2, 3, o, selection.segments[1].shape[1:].numel(), start=4)
    vector = torch.randn(4, 2, 4, dtype=torch.float64)
    whole = torch.cat([vector, formed(factors, o).flatten(2)], -1)
    where = slice(0, 4), slice(0, 2)
    unformed = SquareSums(selection)
    unformed.add(Rows(*where, iter([(0, vector)]), [factors]))
    expected = unformed.scaling(DAMPING).values
    for step in (1, 2, 4, 7, whole.shape[-1]):
        sums = SquareSums(selection)
        sums.add(Rows(*where, ((at, whole[..., at : at + step]) for at in range(0, whole.shape[-1], step))))
        torch.testing.assert_close(sums.scaling(DAMPING).values, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    ("settings", "match"),
    [({"damping": 0}, "damping must be .* above 0"), ({"points": 0}, "points must be at least 1")],
)
def test_settings_that_make_no_sense(settings, match):
    with pytest.raises(SettingError, match=match):
        FactoredScale(**settings)
    with pytest.raises(SettingError, match="its diagonal has no root"):
        SLU(network("mlp")[0], "classification", rank=5, scale="factored", curvature="hessian")
