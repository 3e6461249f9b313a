"""Which layer's inputs are the features, how they are pooled, and that hooks are gone whatever happens."""

import pytest
import torch
from torch import nn

import awkward
from featured import HEADS, Tokens, last_inputs
from oracles import NETWORKS, Encoder, network
from slu import KNN, GradNorm, Mahalanobis, RelativeMahalanobis, ViM
from slu.baselines.features import Layer, last_linear
from slu.data import Batch
from slu.errors import DataError, ModelError, SettingError
from slu.gradients import Network
from slu.parameters import select
from untouched import assert_same, snapshot


@pytest.fixture(autouse=True)
def _seeded():
    """Weights of networks that are made here."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


METHODS = [Mahalanobis, RelativeMahalanobis, KNN, ViM, GradNorm]
each_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)


def layer_of(model, inputs, name=None):
    whole = Network(model, select(model, None))
    with whole.evaluating():
        return last_linear(whole, inputs) if name is None else Layer(whole, name)


def features_at(model, inputs, name=None):
    layer = layer_of(model, inputs, name)
    with layer.network.evaluating():
        return layer(Batch(0, inputs, None)).values


def draws(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_layer_that_gives_the_outputs(kind):
    model, inputs = network(kind)
    assert layer_of(model, inputs).name == HEADS[kind]
    expected = last_inputs(kind, model, inputs)
    torch.testing.assert_close(features_at(model, inputs), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(features_at(model, inputs, HEADS[kind]), expected, rtol=1e-10, atol=1e-12)


class TwoHeads(nn.Module):
    """The outputs come from `main`, and an auxiliary head is called after it."""

    def __init__(self, auxiliary=3):
        super().__init__()
        self.auxiliary, self.main = nn.Linear(4, auxiliary), nn.Linear(4, 3)

    def forward(self, inputs):
        outputs = self.main(inputs)
        self.auxiliary(inputs.tanh())
        return outputs


@pytest.mark.parametrize("auxiliary", [3, 7])
def test_an_auxiliary_head_is_passed_over(auxiliary):
    model, inputs = TwoHeads(auxiliary).double(), draws(6, 4)
    assert layer_of(model, inputs).name == "main"


def test_what_follows_the_layer_may_be_anything():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.LogSoftmax(1)).double()
    assert layer_of(model, draws(6, 4)).name == "2"


def test_positions_are_averaged():
    tokens, images = draws(6, 5, 4), draws(6, 1, 8, 8)
    torch.testing.assert_close(features_at(Tokens().double(), tokens), tokens.mean(1))
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    ).double()
    maps = model[0](images).detach()
    # The input of a module that changes it in place is what came, not what it became.
    torch.testing.assert_close(features_at(model, images, "1"), maps.mean((2, 3)))
    assert float(features_at(model, images, "1").min()) < 0 <= float(features_at(model, images, "2").min())
    torch.testing.assert_close(features_at(model, images, "2"), features_at(model, images))
    signal = nn.Sequential(nn.Conv1d(2, 4, 3), nn.Conv1d(4, 3, 3), nn.Flatten(), nn.Linear(15, 3)).double()
    assert features_at(signal, draws(6, 2, 9), "1").shape == (6, 4)


def test_several_calls_of_one_shape_are_averaged():
    model, inputs = network("tied")
    calls = torch.stack([inputs, model.into(inputs).tanh()])
    torch.testing.assert_close(features_at(model, inputs, "into"), calls.mean(0).detach())


class Shapes(nn.Module):
    """A layer that is called on the tokens and on their mean; positions first; a layer that is never called."""

    def __init__(self):
        super().__init__()
        self.twice, self.first, self.never, self.head = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, tokens):
        both = self.twice(tokens).mean(1) + self.twice(tokens.mean(1)) + self.first(tokens.transpose(0, 1)).mean(0)
        return self.head(both)[:, :3]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("twice", r"'twice' is called 2 times .*\(6, 5, 4\), \(6, 4\).*features='module.name'"),
        ("first", r"\(5, 6, 4\) for 6 points; features need one row"),
        ("never", r"'never' is not called.*features='module.name'"),
        (None, r"the model has 3 outputs and no nn.Linear .* as many .*features='module.name'"),
    ],
)
def test_what_is_refused_names_the_remedy(name, message):
    model, tokens = Shapes().double(), draws(6, 5, 4)
    before = snapshot(model)
    with pytest.raises(ModelError, match=message):
        features_at(model, tokens, name)
    assert_same(before, snapshot(model))
    assert features_at(model, tokens, "head").shape == (6, 4)  # the remedy


def test_positions_in_the_place_of_points_are_refused():
    """As many positions as points in the first batch: the shapes agree, a point alone does not."""
    model = Shapes().double()
    with pytest.raises(ModelError, match=r"\(2, 1, 4\) for 1 points; features need one row per point"):
        Mahalanobis(model, "regression", features="first").fit([draws(2, 2, 4), draws(20, 2, 4)])


def test_no_linear_layer():
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double()
    images = draws(40, 1, 6, 6)
    with pytest.raises(ModelError, match=r"no nn.Linear .* \(0 calls of 0 layers"):
        KNN(model, "classification").fit(images)
    assert KNN(model, "classification", features="2").fit(images)(images).shape == (40,)


@each_method
@pytest.mark.parametrize("name", ["", "tail", 3])
def test_a_name_that_is_no_module(method, name):
    model, _ = network("mlp")
    with pytest.raises(SettingError, match=r"name of a module .* the last are '0', '1', '2'"):
        method(model, "classification", features=name)


@each_method
def test_features_of_another_layer(method, tmp_path):
    model = Encoder().double()
    tokens = draws(60, 5, 8)
    if method in (ViM, GradNorm):
        with pytest.raises(SettingError, match=r"needs the weights .* is a TransformerEncoder; name the former"):
            method(model, "classification", features="encoder")
    name = "head" if method in (ViM, GradNorm) else "encoder.layers.0.linear1"
    score = method(model, "classification", features=name).fit(tokens)
    plain = method(model, "classification").fit(tokens)
    assert torch.equal(score(tokens), plain(tokens)) == (name == "head")
    score.save(tmp_path / "net.slu")
    again = method.load(tmp_path / "net.slu", model)
    assert again.method.features == again.layer.name == name
    assert torch.equal(again(tokens), score(tokens))


@each_method
def test_hooks_are_gone_after_an_error_of_the_model(method):
    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.calls, self.fails = nn.Linear(4, 3), 0, False

        def forward(self, inputs):
            outputs = self.head(inputs)
            if self.fails:
                raise RuntimeError("no luck")
            return outputs

    model, inputs = Failing().double(), draws(40, 4)
    score = method(model, "classification").fit(inputs)
    before = snapshot(model)
    model.fails = True
    for work in (lambda: method(model, "classification").fit(inputs), lambda: score(inputs)):
        with pytest.raises(RuntimeError, match="no luck"):
            work()
        assert_same(before, snapshot(model))


@each_method
@pytest.mark.parametrize(
    "kind", ["in place", "changes inputs", "writes buffer", "recurrent", "attention", "weight norm"]
)
def test_awkward_networks(method, kind):
    model, inputs = awkward.build(kind)
    before, given = snapshot(model), inputs.clone()
    score = method(model, "classification").fit(inputs)
    whole = score(inputs)
    torch.testing.assert_close(score(list(inputs.split(5))), whole, rtol=1e-8, atol=1e-10)
    assert bool(torch.isfinite(whole).all()) and torch.equal(inputs, given)
    assert_same(before, snapshot(model))


@each_method
def test_networks_that_are_no_function_of_one_input_are_refused(method):
    model, inputs = awkward.build("ignores eval")
    with pytest.raises(ModelError, match="depend on the rest of its batch, or on chance"):
        method(model, "classification").fit(inputs)


@each_method
def test_several_inputs(method):
    model, inputs = awkward.build("two inputs")
    plain = {"left": inputs, "right": inputs.cos(), "scale": torch.tensor(2.0).double()}
    score = method(model, "classification").fit(plain)
    part = {"left": inputs[:5], "right": inputs[:5].cos(), "scale": torch.tensor(2.0).double()}
    torch.testing.assert_close(score(part), score(plain)[:5], rtol=1e-8, atol=1e-10)
    assert score.layer.name == "out"


@each_method
def test_settings_and_readings(method):
    model, inputs = network("mlp")
    score = method(model, "classification").fit(draws(60, 4))
    with pytest.raises(SettingError, match="belongs to all outputs"):
        score(inputs, per_output=True)
    assert score.readings == (method.reading,)
    frozen = method(model.requires_grad_(False), "classification").fit(draws(60, 4))
    assert torch.equal(frozen(inputs), score(inputs))


@pytest.mark.parametrize("method", [RelativeMahalanobis, ViM, GradNorm])
@pytest.mark.parametrize("likelihood", ["regression", "multilabel"])
def test_classes_are_needed(method, likelihood):
    model, _ = network("mlp")
    with pytest.raises(SettingError, match=rf"{method.__name__} needs .* logits of classes.*use Mahalanobis or KNN"):
        method(model, likelihood)


@pytest.mark.parametrize("method", [Mahalanobis, RelativeMahalanobis, ViM, GradNorm])
def test_one_output_is_no_class(method):
    model, inputs = network("mlp", outputs=1)
    with pytest.raises(DataError, match=r"one output per point; stack a single logit f as \(0, f\)"):
        method(model, "classification").fit(inputs)


@each_method
def test_data_can_be_read_once_unless_two_passes_are_needed(method):
    model, _ = network("mlp")
    inputs = draws(60, 4)
    if method is ViM:
        with pytest.raises(DataError, match="ViM reads them 2 times"):
            method(model, "classification").fit(iter(inputs.split(20)))
        return
    whole = method(model, "classification").fit(inputs)
    once = method(model, "classification").fit(iter(inputs.split(20)))
    torch.testing.assert_close(once(inputs), whole(inputs), rtol=1e-9, atol=1e-12)


@each_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_other_types(method, dtype):
    """Rounded features give nearly the same scores, in float64: their order is kept up to near ties."""
    model, queries = network("mlp")
    inputs = draws(200, 4)
    exact = method(model, "classification").fit(inputs)(queries)
    rough = method(model.to(dtype), "classification").fit(inputs.to(dtype))(queries.to(dtype))
    assert rough.dtype == torch.float64
    assert float(torch.corrcoef(torch.stack([exact, rough]))[0, 1]) > (0.9999 if dtype == torch.float32 else 0.95)
