"""The factored scale against its dense formula: rows and columns of layers' factors, or of squares of gradients."""

import pytest
import torch
from torch import nn

from oracles import LIKELIHOODS, network, outputs_of
from scaled import drawn_roots, drawn_rows, factored, factored_scale, kept_as, layer_factors
from shorthand import all_rows
from slu import SLU, FactoredScale, Lanczos
from slu.core.scaling import DenseScaling
from slu.errors import NumericalError, SettingError
from slu.gradients import Network, PerExampleGradients
from slu.likelihoods import Regression
from slu.parameters import select

DAMPING = 0.01
SMALL = 20
"""Numbers of a small tensor in these tests, whose networks are tiny."""


class Words(nn.Module):
    """A table of words of which few occur and one is padding, attention, a norm, and a depthwise convolution."""

    def __init__(self, positions=3):
        super().__init__()
        self.table = nn.Embedding(20, 6, padding_idx=3)
        self.places = nn.Parameter(torch.randn(positions, 6))
        self.asks, self.keys, self.values = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.each = nn.Conv1d(6, 6, 3, groups=6, padding=1)
        self.head = nn.Linear(6, 3)

    def forward(self, words):
        vectors = self.table(words) + self.places
        weights = (self.asks(vectors) @ self.keys(vectors).mT).softmax(-1)
        vectors = self.norm(vectors + weights @ self.values(vectors))
        return self.head(self.each(vectors.mT).tanh().mean(2))


class Pictures(nn.Sequential):
    """Kernels of many positions, which are formed, and of few, with strides, padding and a kernel of one position."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.Tanh(),
            nn.Conv2d(4, 12, 3, stride=2, dilation=2, padding=1),
            nn.Tanh(),
            nn.Conv2d(12, 10, 1),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(40, 3),
        )


def problem(kind):
    if kind not in ("words", "pictures"):
        return network(kind)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "words":
            return Words().double(), torch.randint(0, 15, (12, 3))
        return Pictures().double(), torch.randn(12, 1, 6, 6).double()


KEPT = {
    "mlp": {"0.weight": "factors", "2.weight": "entries"},
    "conv": {"0.weight": "formed", "4.weight": "factors"},
    "tied": {"into.weight": "entries", "out.weight": "entries"},
    "pictures": {"0.weight": "formed", "2.weight": "factors", "4.weight": "factors", "7.weight": "factors"},
    "words": {
        "table.weight": "factors",
        "places": "entries",
        "asks.weight": "factors",
        "keys.weight": "factors",
        "values.weight": "formed",
        "each.weight": "entries",
        "head.weight": "entries",
    },
}
"""How the networks' matrices are kept with SMALL; vectors have their entries."""


@pytest.fixture(autouse=True)
def small_tensors(monkeypatch):
    """Most tensors of these tests would be kept entry by entry."""

    def to(numbers):
        monkeypatch.setattr("slu.core.scaling.SMALL_TENSOR", numbers)
        monkeypatch.setattr("slu.budgets.size.SMALL_TENSOR", numbers)

    to(SMALL)
    return to


def numbers(scale, p):
    return scale.scaled(0, torch.ones(p, dtype=torch.float64))


def fitted(model, data, likelihood="classification", points=100, **settings):
    scale = FactoredScale(points=points, damping=DAMPING)
    return SLU(model, likelihood, rank=4, sketch="identity", scale=scale, **settings).fit(data, calibration=False)


@pytest.mark.parametrize("kind", KEPT)
def test_the_networks_have_tensors_of_every_kind(kind):
    """Of what the other tests are about: small tensors, factors, and gradients that are formed, in one network."""
    model, inputs = problem(kind)
    factors = layer_factors(model, inputs, "classification")
    kept = kept_as(model, factors, SMALL)
    assert {name: kept[name] for name in KEPT[kind]} == KEPT[kind]
    assert {kept[name] for name in kept if name not in KEPT[kind]} <= {"entries"}
    # The factors from the hooks are right: they add up to autograd's gradients.
    rows = drawn_rows(model, inputs, "classification")
    for segment in select(model).segments:
        if segment.name in factors:
            formed = torch.einsum("cto,cti->coi", *factors[segment.name]).flatten(1)
            torch.testing.assert_close(formed, rows[:, segment.start : segment.stop], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("small", [0, SMALL, 60, 4096])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", KEPT)
def test_it_is_the_dense_formula_whatever_the_batches(kind, likelihood, small, small_tensors):
    small_tensors(small)
    model, inputs = problem(kind)
    for points in (7, 100):
        expected = factored_scale(model, inputs[:points], likelihood, DAMPING, small)
        for size in (1, 5, 12):
            score = fitted(model, list(inputs.split(size)), likelihood, points)
            actual = numbers(score.scale, len(expected))
            torch.testing.assert_close(actual, expected, rtol=1e-9, atol=0)
    kinds = kept_as(model, {}, small)
    assert len(score.scale.values) == sum(
        value.numel() if kinds[name] == "entries" else value.shape[0] + value[0].numel()
        for name, value in model.named_parameters()
    )
    # The control: other points are another scale.
    other = factored_scale(model, inputs[7:], likelihood, DAMPING, small)
    assert not torch.allclose(other, expected, rtol=0.01)


@pytest.mark.parametrize("kind", ["mlp", "pictures", "words"])
def test_control_rows_and_columns_of_squares_are_another_scale(kind):
    """Without the factors the oracle is another one, so the tests above see which of the two was taken."""
    model, inputs = problem(kind)
    rows = drawn_rows(model, inputs, "classification")
    of_factors = factored(model, rows, layer_factors(model, inputs, "classification"), DAMPING, SMALL)
    assert not torch.allclose(factored(model, rows, {}, DAMPING, SMALL), of_factors, rtol=0.01)


@pytest.mark.parametrize("curvature", ["fisher", "empirical-fisher"])
@pytest.mark.parametrize("kind", ["mlp", "pictures", "words"])
def test_its_gradients_are_those_of_the_curvature(kind, curvature):
    model, inputs = problem(kind)
    targets = torch.arange(12) % 3
    score = fitted(model, [(inputs[:5], targets[:5]), (inputs[5:], targets[5:])], curvature=curvature)
    expected = factored_scale(model, inputs, "classification", DAMPING, SMALL, curvature=curvature, targets=targets)
    torch.testing.assert_close(numbers(score.scale, len(expected)), expected, rtol=1e-9, atol=0)
    assert not torch.allclose(expected, factored_scale(model, inputs, "classification", DAMPING, SMALL), rtol=0.01)


@pytest.mark.parametrize("kind", ["mlp", "pictures", "words"])
def test_without_damping_it_has_the_total_of_the_squares(kind, small_tensors):
    """Whether a tensor is kept as entries, or by rows and columns of factors or of squares: Σ D = Σ ‖g‖²."""
    small_tensors(0)
    model, inputs = problem(kind)
    squares = drawn_rows(model, inputs, "classification").square().sum(0)
    scale = SLU(model, "classification", rank=4, sketch="identity", scale=FactoredScale(damping=1e-14)).fit(inputs)
    product = numbers(scale.scale, len(squares)) ** -2
    kinds = kept_as(model, layer_factors(model, inputs, "classification"), 0)
    compared = set()
    for segment in select(model).segments:
        here = slice(segment.start, segment.stop)
        if not bool(squares[here].sum() > 1e-20):
            continue  # a softmax does not see it
        torch.testing.assert_close(product[here].sum(), squares[here].sum(), rtol=1e-9, atol=0)
        if kinds[segment.name] == "formed":  # then the rows and the columns are those of the squares too
            actual, expected = (each[here].view(segment.shape[0], -1) for each in (product, squares))
            torch.testing.assert_close(actual.sum(0), expected.sum(0), rtol=1e-9, atol=0)
            torch.testing.assert_close(actual.sum(1), expected.sum(1), rtol=1e-9, atol=0)
        compared.add(kinds[segment.name])
    assert {"entries", "factors"} <= compared


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_is_no_gradient(dtype):
    """A softmax over keys does not see their bias: what its gradient rounds to must not be scaled up."""
    model, inputs = problem("words")
    selection = select(model.to(dtype))
    scale = fitted(model, inputs).scale.scaled(0, torch.ones(selection.count, dtype=dtype))
    by_name = {segment.name: scale[segment.start : segment.stop] for segment in selection.segments}
    assert bool((by_name["keys.bias"] == by_name["keys.bias"][0]).all())
    rows = drawn_rows(model, inputs, "classification")
    bias = next(segment for segment in selection.segments if segment.name == "keys.bias")
    rounded = rows[:, bias.start : bias.stop]
    assert 0 < float(rounded.abs().max()) < 1e-5
    assert float((rounded * by_name["keys.bias"]).abs().max()) < 1e-3


def test_padding_takes_no_share_of_the_words(small_tensors):
    """However long the padding: the words that occur have the D that they have without it."""
    small_tensors(0)

    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(30, 40, padding_idx=3)
            self.head = nn.Linear(40, 3)

        def forward(self, words):
            return self.head(self.table(words).sum(1).tanh())

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Bag().double()
        words = torch.randint(4, 30, (12, 2))
        with torch.no_grad():
            model.table.weight[3] = 0.0
        padded = torch.cat([words, torch.full((12, 8), 3)], 1)
    targets = torch.arange(12) % 3  # random mixtures would be drawn from the bits of the words
    short, long = (
        numbers(fitted(model, (each, targets), curvature="empirical-fisher").scale, select(model).count)
        for each in (words, padded)
    )
    torch.testing.assert_close(long, short, rtol=1e-9, atol=0)


def test_what_no_data_move_is_finite_and_follows_the_others():
    """A dead input, a dead unit, and a tensor that the outputs do not depend on."""
    model, inputs = problem("mlp")
    model.unused = nn.Linear(7, 5).double()
    forward = lambda called, x: called[2](called[1](called[0](x)))  # noqa: E731
    inputs[:, 1] = 0
    with torch.no_grad():
        model[2].weight[:, 2] = 0  # the third hidden unit reaches no output
    selection = select(model)
    roots = drawn_roots(outputs_of(model[:3], inputs), inputs, "classification")[:, None]
    rows = all_rows(PerExampleGradients(Network(model, selection, forward)), inputs, roots)[:, 0]
    factors = layer_factors(model[:3], inputs, "classification")
    assert kept_as(model, factors, SMALL)["0.weight"] == "factors"
    score = fitted(model, inputs, forward=forward)
    actual = numbers(score.scale, selection.count)
    torch.testing.assert_close(actual, factored(model, rows, factors, DAMPING, SMALL), rtol=1e-9, atol=0)
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
@pytest.mark.parametrize("kind", ["pictures", "words"])
def test_another_unit_of_the_loss_is_the_same_scale_in_another_unit(kind, unit):
    model, inputs = problem(kind)
    one, other = (
        numbers(fitted(model, inputs, Regression(noise_variance=noise)).scale, select(model).count)
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


@pytest.mark.parametrize(
    ("settings", "match"),
    [({"damping": 0}, "damping must be .* above 0"), ({"points": 0}, "points must be at least 1")],
)
def test_settings_that_make_no_sense(settings, match):
    with pytest.raises(SettingError, match=match):
        FactoredScale(**settings)
    with pytest.raises(SettingError, match="its diagonal has no root"):
        SLU(network("mlp")[0], "classification", rank=5, scale="factored", curvature="hessian")


def test_first_points_without_curvature_are_named():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, inputs = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(900, 4)
    inputs[:600] = 1e6 + inputs[:600]  # far away in one direction, where the network is sure of one class
    with pytest.raises(NumericalError, match=r"first 512 points: shuffle .*FactoredScale\(points="):
        SLU(model, "classification", rank=4).fit(list(inputs.split(100)), calibration=False)
    score = SLU(model, "classification", rank=4, scale=FactoredScale(points=900)).fit(list(inputs.split(100)))
    assert score(inputs[600:]).isfinite().all()
