"""A fit and its scores with gradients left as factors are those with every gradient formed, to rounding."""

import pytest
import torch
from torch import nn

from oracles import LIKELIHOODS
from slu import SLU
from slu.core.scaling import DenseScaling, FactoredScaling, layout_of, unformed
from slu.gradients import FactorSize
from slu.gradients.layers import collector
from slu.parameters import select
from slu.sketches import SKETCHES, SketchSpec, build


class Encoder(nn.Module):
    """A table of words with padding, places, two attention layers as people write them, and a head."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(40, 16, padding_idx=0)
        self.places = nn.Parameter(0.1 * torch.randn(5, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(16, 4)

    def forward(self, words):
        return self.head(self.encoder(self.table(words) + self.places).mean(1))


def problem(kind, points=60):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        if kind == "mlp":
            model = nn.Sequential(nn.Linear(12, 40), nn.Tanh(), nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 4))
            return model.double(), torch.randn(points, 12).double()
        if kind == "conv":
            model = nn.Sequential(
                nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 24, 3), nn.BatchNorm2d(24),
                nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 4),
            )  # fmt: skip
            model(torch.randn(20, 2, 8, 8))
            return model.double(), torch.randn(points, 2, 8, 8).double()
        return Encoder().double(), torch.randint(0, 40, (points, 5))


@pytest.fixture
def left_as_factors(monkeypatch):
    """How many factors the sketch took: of small networks all that can be, whatever is faster."""
    monkeypatch.setattr("slu.core.scaling.SMALL_TENSOR", 0)
    monkeypatch.setattr("slu.budgets.size.SMALL_TENSOR", 0)
    taken, plain = [], SKETCHES["kronecker"].accumulate_outer

    def counted(self, *rest):
        taken.append(rest[0])
        return plain(self, *rest)

    monkeypatch.setattr(SKETCHES["kronecker"], "accumulate_outer", counted)

    def to(wanted):
        taken.clear()
        monkeypatch.setattr(SKETCHES["kronecker"], "prefers_factors", lambda *_: wanted)
        return taken

    return to


@pytest.mark.parametrize("sizes", [60, 17])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", ["mlp", "conv", "encoder"])
def test_scores_are_those_of_formed_gradients(kind, likelihood, sizes, left_as_factors):
    """The default scale and sketch, in float64, where the sketch takes factors wherever a layer gives them."""
    model, inputs = problem(kind)
    fresh = problem(kind, 80)[1][60:]
    made = {}
    for wanted in (True, False):
        taken = left_as_factors(wanted)
        score = SLU(model, likelihood, rank=6, sketch_size=60).fit(list(inputs.split(sizes)), calibration=inputs[:25])
        assert score.settings.sketch.kind == "kronecker" and isinstance(score.scale, FactoredScaling)
        made[wanted] = {
            (name, outputs): values
            for outputs in (1, "all")
            for name, values in score.read_all(fresh, outputs=outputs).items()
        } | {"": score(fresh), "eigenvalues": torch.from_numpy(score.state.subspace.eigenvalues)}
        assert bool(taken) == wanted, "the control: the other way was taken"
    for name, values in made[False].items():
        # Eigenvectors of the fit turn rounding into up to 1e-7 where eigenvalues are near each other.
        torch.testing.assert_close(made[True][name], values, rtol=1e-6, atol=1e-9, msg=str(name))


ONE = FactorSize(1, False, 0)


def test_without_a_scale_the_sketch_decides_and_a_dense_one_is_of_formed_gradients():
    model, _ = problem("mlp")
    selection = select(model)
    sketch = build(SketchSpec("kronecker", selection.count, 20, layout=selection.matrices))
    exact = build(SketchSpec("block_srft", selection.count, 20))
    first, bias, second = (segment.start for segment in selection.segments[:3])
    assert unformed(None, sketch)(second, ONE) and not unformed(None, sketch)(second, FactorSize(10_000, False, 0))
    assert not unformed(None, exact)(second, ONE)
    assert unformed(DenseScaling(torch.ones(selection.count)), sketch) is None
    layout = layout_of(selection)
    small = FactoredScaling(torch.ones(sum(place.numbers for place in layout)), layout)
    assert not any(unformed(small, sketch)(start, ONE) for start in (first, bias, second)), (
        "matrices below 4,096 numbers"
    )


def test_a_large_matrix_with_a_factored_scale_is_left_as_factors():
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
    selection = select(model)
    sketch = build(SketchSpec("kronecker", selection.count, 100, layout=selection.matrices))
    layout = layout_of(selection)
    scale = FactoredScaling(torch.ones(sum(place.numbers for place in layout)), layout)
    chosen = unformed(scale, sketch)
    starts = [segment.start for segment in selection.segments]
    assert [chosen(start, ONE) for start in (starts[0], starts[2])] == [True, False]
    assert chosen(starts[0], ONE) == sketch.prefers_factors(starts[0], 1)


@pytest.mark.parametrize("sizes", [[40, 40, 40, 3], [40, 1, 40, 17]])
def test_smaller_batches_have_the_plan_of_the_first(sizes, monkeypatch):
    """Points are held out of every batch, so that hardly two are of one size: one plan is made."""
    made, plain = [], collector.make_plan

    def counted(recording):
        made.append(recording.examples)
        return plain(recording)

    monkeypatch.setattr(collector, "make_plan", counted)
    model, inputs = problem("conv", 400)
    batches = inputs.split([*sizes, 400 - sum(sizes)])
    score = SLU(model, "classification", rank=6, sketch_size=60).fit([*batches[:-1], *batches[-1].split(40)])
    assert score.calibration is not None and score.calibration.source == "held out"
    assert made == made[:1]
    expected = score(inputs[:40])
    torch.testing.assert_close(torch.cat([score(inputs[:1]), score(inputs[1:40])]), expected, rtol=1e-9, atol=1e-9)
    assert made == made[:1]
    # The control: inputs of another shape need another plan.
    score(torch.randn(4, 2, 10, 10, dtype=torch.float64))
    assert len(made) == 2


class Sequences(nn.Module):
    """Words of any number, convolved; the largest of each channel is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.kernel, self.head = nn.Embedding(30, 6), nn.Conv1d(6, 5, 3, padding=1), nn.Linear(5, 3)

    def forward(self, words):
        return self.head(self.kernel(self.table(words).transpose(1, 2)).amax(2))


def test_half_of_the_examples_at_half_of_the_length_have_a_plan_of_their_own():
    """Every shape is then half of what it was, as with half of the examples alone."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, words = Sequences().double(), torch.randint(30, (80, 40))
    score = SLU(model, "classification", rank=4).fit([words[:32], words[32:48, :20], words[48:]], calibration=False)
    for points, length in ((16, 20), (8, 10), (4, 5), (16, 30)):
        some = words[:points, :length]
        alone = torch.cat([score(each) for each in some.split(1)])
        torch.testing.assert_close(score(some), alone, rtol=1e-9, atol=1e-12)
