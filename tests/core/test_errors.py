"""Everything that cannot work is refused with a message that says what came and what to do."""

import pytest
import torch
from torch import nn

from oracles import network
from shorthand import paper_slu
from slu import SLU, Lanczos, SketchSpec, errors
from slu.core.readout import READINGS
from slu.curvature import CURVATURES
from slu.likelihoods import LIKELIHOODS
from slu.sketches import SKETCHES
from slu.subspace import ESTIMATORS


@pytest.fixture
def mlp():
    return network("mlp")


@pytest.mark.parametrize(
    ("setting", "value", "valid"),
    [
        ("likelihood", "clasification", LIKELIHOODS),
        ("likelihood", 3, LIKELIHOODS),
        ("sketch", "tile", SKETCHES),
        ("estimator", "rato", ESTIMATORS),
        ("curvature", "gnn", CURVATURES),
    ],
)
def test_unknown_names_are_refused_with_the_valid_ones(mlp, setting, value, valid):
    settings = {"likelihood": "classification", "rank": 2} | {setting: value}
    with pytest.raises(errors.SettingError, match=f"unknown {setting} {value!r}") as caught:
        SLU(mlp[0], **settings)
    assert all(repr(name) in str(caught.value) for name in valid)


def test_unknown_reading_is_refused_with_the_valid_ones(mlp):
    model, inputs = mlp
    score = SLU(model, "classification", rank=2).fit(inputs)
    with pytest.raises(errors.SettingError, match="unknown reading 'varience'") as caught:
        score(inputs, reading="varience")
    assert all(repr(name) in str(caught.value) for name in READINGS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "at least 1, got 0"),
        ({"rank": 60}, r"rank 60 is above the number of selected parameters, 51"),
        ({"rank": 20, "sketch": "hashed", "sketch_size": 20}, r"sketch of size 20; take a sketch_size of at least 40"),
        ({"rank": 5, "solver": Lanczos(precondition=6)}, "between 0 and the rank 5, got 6"),
        ({"rank": 5, "solver": Lanczos(precondition=-1)}, "between 0 and the rank 5, got -1"),
        ({"rank": 5, "sketch": SketchSpec("hashed", 50, 20)}, "take parameters=51"),
    ],
)
def test_settings_that_cannot_work(mlp, settings, message):
    with pytest.raises(errors.SettingError, match=message):
        SLU(mlp[0], "classification", **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 37, "sketch": "identity", "solver": "lanczos"}, r"rank 37 .*12 points of 3 outputs .*36 at most"),
        ({"rank": 13, "sketch": "identity"}, r"rank 13 .*12 points give 12 gradients.*labels_per_point"),
        ({"rank": 5, "sketch_size": 100}, r"size 100 is longer than the 51 parameters"),
        ({"rank": 5, "sketch": "identity", "sketch_size": 40}, "keeps all 51 numbers"),
    ],
)
def test_settings_that_the_fit_refuses(mlp, settings, message):
    model, inputs = mlp
    with pytest.raises(errors.SettingError, match=message):
        SLU(model, "classification", **settings).fit(inputs)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ([], "empty list"),
        ("3.*", r"matches '3\.\*'; near it are"),
        (lambda name, value: False, "predicate chose none"),
    ],
)
def test_no_parameters_selected(mlp, params, message):
    with pytest.raises(errors.SelectionError, match=message):
        SLU(mlp[0], "classification", rank=2, params=params)


def test_everything_frozen(mlp):
    with pytest.raises(errors.SelectionError, match="none is trainable"):
        SLU(mlp[0].requires_grad_(False), "classification", rank=2)


def test_batchnorm_without_running_statistics():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False))
    with pytest.raises(errors.ModelError, match=r"1 is a BatchNorm1d without running statistics.*GroupNorm"):
        SLU(model, "classification", rank=2)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite(mlp, bad):
    model, _ = mlp
    model[2].bias.data[1] = bad
    with pytest.raises(errors.ModelError, match=r"2\.bias holds NaN or infinity"):
        SLU(model, "classification", rank=2)


class Masked(nn.Module):
    """A layer that mixes the earlier of its inputs, by a mask in a buffer, as attention does."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))

    def forward(self, inputs):
        weights = (inputs[:, :, None] * inputs[:, None] + self.mask).softmax(-1)
        return self.inner((weights @ inputs[:, :, None]).squeeze(-1))


def test_buffers_may_hold_infinity_and_not_nan(tmp_path):
    torch.manual_seed(0)
    model, inputs = Masked(), torch.randn(50, 4)
    score = SLU(model, "classification", rank=2).fit(inputs)
    score.save(tmp_path / "net.slu")
    assert torch.equal(SLU.load(tmp_path / "net.slu", model)(inputs), score(inputs))
    model.mask[0, 0] = torch.nan
    with pytest.raises(errors.ModelError, match="mask holds NaN"):
        SLU(model, "classification", rank=2).fit(inputs)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_data_that_are_not_finite_name_the_batch_and_the_place(mlp, bad):
    model, inputs = mlp
    score = SLU(model, "classification", rank=2).fit(inputs)
    spoiled = inputs.clone()
    spoiled[9, 2] = bad
    for call in (SLU(model, "classification", rank=2).fit, score.calibrate, score.explain):
        with pytest.raises(errors.DataError, match=r"inputs of batch 2 hold NaN or infinity, first at place 1"):
            call(list(spoiled.split(4)))


class Broken(nn.Module):
    """Gives a shape or a value that nothing can use, from the second batch on."""

    def __init__(self, model, how):
        super().__init__()
        self.model, self.how = model, how

    def forward(self, inputs):
        outputs = self.model(inputs)
        return self.how(outputs, inputs)


def test_outputs_that_are_not_finite_name_the_batch(mlp):
    model, inputs = mlp
    fine = SLU(model, "classification", rank=2).fit(inputs)
    spoiled = inputs.clone()
    spoiled[5, 0] = 1e6
    broken = Broken(model, lambda outputs, inputs: outputs / (inputs[:, :1] < 1e5))
    assert bool(torch.isfinite(fine(inputs)).all())
    with pytest.raises(errors.DataError, match="outputs on batch 1 hold NaN or infinity"):
        SLU(broken, "classification", rank=2).fit(list(spoiled.split(4)))
    score = SLU(broken, "classification", rank=2).fit(inputs)
    with pytest.raises(errors.DataError, match="outputs on batch 1 hold NaN or infinity"):
        score.explain(list(spoiled.split(4)))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (lambda outputs, _: outputs.sum(), r"a single number for a batch, \(batch, outputs\) is needed"),
        (lambda outputs, _: outputs[:, :1], r"at least two outputs.*'multilabel'"),
        (lambda outputs, _: outputs[:, 0], r"at least two outputs.*'multilabel'"),
        (lambda outputs, _: ("outputs", 3), r"returned tuple of str, int, .*forward="),
    ],
    ids=["a loss", "one output", "1-d", "a tuple"],
)
def test_outputs_of_a_shape_that_cannot_be_scored(mlp, how, message):
    model, inputs = mlp
    with pytest.raises(errors.DataError, match=message):
        SLU(Broken(model, how), "classification", rank=2).fit(inputs)


@pytest.mark.parametrize("empty", [[], torch.utils.data.DataLoader([])], ids=["list", "DataLoader"])
def test_empty_loader(mlp, empty):
    model, inputs = mlp
    score = SLU(model, "classification", rank=2).fit(inputs)
    for call in (score, SLU(model, "classification", rank=2).fit):
        with pytest.raises(errors.DataError, match="gave no batch"):
            call(empty)


def test_generator_can_be_read_only_once(mlp):
    model, inputs = mlp
    with pytest.raises(errors.DataError, match="read only once"):
        SLU(model, "classification", rank=2, solver="lanczos").fit(batch for batch in [inputs])


class Changing:
    """A loader that gives something else in its second pass."""

    def __init__(self, *passes):
        self.passes, self.count = passes, 0

    def __iter__(self):
        self.count += 1
        return iter([self.passes[min(self.count, len(self.passes)) - 1]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda inputs: inputs[:11], "saw 12 points, a later one 11"),
        (lambda inputs: inputs + 1e-6, "differ in content"),
        (lambda inputs: torch.cat([inputs[:11], inputs[:1]]), "differ in content"),
    ],
    ids=["fewer points", "augmented", "one drawn twice"],
)
def test_data_that_change_between_passes(mlp, change, message):
    model, inputs = mlp
    method = paper_slu(model, "classification", rank=3, solver="lanczos")
    with pytest.raises(errors.ChangedDataError, match=message):
        method.fit(Changing(inputs, change(inputs)))
    # The control: another order is the same data.
    assert method.fit(Changing(inputs, inputs.flip(0))).diagnostics.passes == 3


@pytest.mark.parametrize("solver", ["stream", "lanczos"])
def test_network_without_curvature(mlp, solver):
    model, inputs = mlp
    constant = Broken(model, lambda outputs, _: outputs * 0)
    with pytest.raises(errors.NumericalError, match="zero in every direction"):
        SLU(constant, "classification", rank=3, solver=solver).fit(inputs)


@pytest.mark.parametrize("error", [errors.SettingError, errors.SelectionError, errors.ModelError, errors.DataError])
def test_errors_are_what_a_caller_would_guess(error):
    assert issubclass(error, errors.SluError)
    assert issubclass(error, ValueError)


def test_batches_without_points_are_refused(mlp):
    model, inputs = mlp
    score = SLU(model, "classification", rank=2).fit(inputs)
    empty = [inputs[:0], [inputs[:0]], [inputs, inputs[:0]]]
    for solver in ("stream", "lanczos"):
        for data in empty:
            with pytest.raises(errors.DataError, match=r"batch [01] has no points, .*leave empty batches out"):
                SLU(model, "classification", rank=2, solver=solver).fit(data)
    for call in (score, score.partial_fit):
        for data in empty:
            with pytest.raises(errors.DataError, match=r"batch [01] has no points"):
                call(data)
    # Something that all points share is there, the points are not.
    shared = SLU(model, "classification", rank=2, forward=lambda model, pair: model(pair["points"] + pair["shared"][0]))
    with pytest.raises(errors.DataError, match="0 rows of outputs"):
        shared.fit({"points": inputs[:0], "shared": inputs[:1]})
