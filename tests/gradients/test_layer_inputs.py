"""The inputs of layers in a forward pass: as computed by hand, once per tensor, and a row per point."""

import pytest
import torch
from torch import nn

from distant import layer_inputs
from oracles import NETWORKS, network
from slu.gradients import LayerInputs, Network
from slu.parameters import select
from watched import POINTS, Calls, assert_layers, recorded, seeded


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_networks_of_the_oracle(kind):
    model, inputs = network(kind)
    expected = {name: torch.from_numpy(each) for name, each in layer_inputs(kind, model, inputs).items()}
    assert_layers(model, inputs, expected)
    assert model.training, "the mode is put back"


def test_linear():
    model, inputs = seeded(lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), POINTS, 5)
    assert_layers(model, inputs, {"0": inputs, "2": (inputs @ model[0].weight.T + model[0].bias).clamp(min=0)})


def test_images_are_averaged_over_places():
    def make():
        return nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Conv2d(3, 4, 2), nn.Flatten(), nn.Linear(16, 3))

    model, inputs = seeded(make, POINTS, 2, 5, 5)
    maps = model[0](inputs).tanh()
    last = model[2](maps).flatten(1)
    assert_layers(model, inputs, {"0": inputs.mean((2, 3)), "2": maps.mean((2, 3)), "4": last})


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.ConvTranspose1d])
def test_signals_have_channels_first(kind):
    def make():
        return nn.Sequential(kind(2, 3, 3), nn.Tanh(), nn.AdaptiveAvgPool1d(2), nn.Flatten(), nn.Linear(6, 3))

    model, inputs = seeded(make, POINTS, 2, 7)
    assert_layers(model, inputs, {"0": inputs.mean(2), "4": model[:4](inputs)})


def test_volumes_and_transposed_images():
    def make():
        return Calls(
            lambda self, x: self.out(self.up(self.deep(x).mean(4)).mean((2, 3))),
            deep=nn.Conv3d(2, 3, 2), up=nn.ConvTranspose2d(3, 4, 2), out=nn.Linear(4, 2),
        )  # fmt: skip

    model, inputs = seeded(make, POINTS, 2, 4, 4, 4)
    middle = model.deep(inputs).mean(4)
    expected = {"deep": inputs.mean((2, 3, 4)), "up": middle.mean((2, 3)), "out": model.up(middle).mean((2, 3))}
    assert_layers(model, inputs, expected)


def test_sequences_are_averaged_over_time():
    def make():
        return Calls(
            lambda self, x: self.out(self.middle(self.into(x).tanh()).mean(1)),
            into=nn.Linear(5, 4), middle=nn.Linear(4, 4), out=nn.Linear(4, 3),
        )  # fmt: skip

    model, inputs = seeded(make, POINTS, 7, 5)
    hidden = model.into(inputs).tanh()
    expected = {"into": inputs.mean(1), "middle": hidden.mean(1), "out": model.middle(hidden).mean(1)}
    assert_layers(model, inputs, expected)


def test_a_module_called_twice_has_the_mean_of_its_calls():
    def make():
        return Calls(
            lambda self, x: self.out(self.twice(self.twice(x).tanh())), twice=nn.Linear(4, 4), out=nn.Linear(4, 3)
        )

    model, inputs = seeded(make, POINTS, 4)
    once = model.twice(inputs).tanh()
    assert_layers(model, inputs, {"twice": (inputs + once) / 2, "out": model.twice(once)})


def test_calls_of_different_shapes_are_left_out():
    def make():
        return Calls(
            lambda self, x: self.out(self.seen(x).mean(1) + self.seen(x[:, :2].flatten(1, 1).mean(1))),
            seen=nn.Linear(4, 4), out=nn.Linear(4, 3),
        )  # fmt: skip

    model, inputs = seeded(make, POINTS, 5, 4)
    assert set(recorded(model, inputs)) == {"out"}
    model._call = lambda self, x: self.out(self.seen(x).mean(1) + 0 * self.seen(x[:1]).mean(1))
    assert set(recorded(model, inputs)) == {"out"}


def test_modules_that_share_one_input_count_once():
    def make():
        return Calls(
            lambda self, x: self.out(self.first(x) * self.second(x) + self.third(x.clone())),
            first=nn.Linear(4, 4), second=nn.Linear(4, 4), third=nn.Linear(4, 4), out=nn.Linear(4, 3),
        )  # fmt: skip

    model, inputs = seeded(make, POINTS, 4)
    mixed = model.first(inputs) * model.second(inputs) + model.third(inputs)
    # A copy is another tensor; which of the modules comes first does not matter.
    assert_layers(model, inputs, {"first": inputs, "third": inputs, "out": mixed})


def test_memory_that_is_used_again_is_not_the_same_input():
    """Temporaries of one size, each freed before the next is made; and one tensor that is changed in place."""

    def make():
        return Calls(
            lambda self, x: self.out(self.c(self.b(self.a(x + 1) * 0 + 2) * 0 + 3)),
            a=nn.Linear(4, 4), b=nn.Linear(4, 4), c=nn.Linear(4, 4), out=nn.Linear(4, 3),
        )  # fmt: skip

    model, inputs = seeded(make, POINTS, 4)
    two, three = (torch.full_like(inputs, value) for value in (2.0, 3.0))
    assert_layers(model, inputs, {"a": inputs + 1, "b": two, "c": three, "out": model.c(three)})

    def changing(self, x):
        x = x * 1
        first = self.a(x)
        x.mul_(2)
        return self.out(first + self.b(x))

    model._call = changing
    expected = {"a": inputs, "b": 2 * inputs, "out": model.a(inputs) + model.b(2 * inputs)}
    del model.c
    with torch.no_grad():  # autograd would refuse the change in place
        values = recorded(model, inputs)
    for name, each in expected.items():
        torch.testing.assert_close(values[name], each.detach(), rtol=1e-12, atol=1e-12)


def test_in_place_activations_do_not_change_what_was_recorded():
    def make():
        return nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))

    model, inputs = seeded(make, POINTS, 4)
    hidden = (inputs @ model[0].weight.T + model[0].bias).clamp(min=0)
    last = (hidden @ model[2].weight.T + model[2].bias).tanh()
    assert_layers(model, inputs, {"0": inputs, "2": hidden, "4": last})

    class Doubling(nn.Linear):
        def forward(self, x):
            return super().forward(x.mul_(2))

    changing, _ = seeded(lambda: nn.Sequential(Doubling(4, 3)), POINTS, 4)
    kept = inputs.clone()
    assert_layers(changing, inputs, {"0": inputs})  # as the module was given it
    assert torch.equal(inputs, kept)


@pytest.mark.parametrize("steps", [3, POINTS])
@pytest.mark.parametrize("batch_first", [True, False])
def test_recurrent_layers(batch_first, steps):
    """Points along the second dimension are no rows per point, also where there are as many steps as points."""

    def call(self, x):
        states, _ = self.lstm(x if batch_first else x.transpose(0, 1))
        return self.out((states if batch_first else states.transpose(0, 1)).mean(1))

    model, inputs = seeded(
        lambda: Calls(call, lstm=nn.LSTM(4, 5, batch_first=batch_first), out=nn.Linear(5, 3)), POINTS, steps, 4
    )
    states = model.lstm(inputs if batch_first else inputs.transpose(0, 1))[0]
    last = (states if batch_first else states.transpose(0, 1)).mean(1)
    expected = {"lstm": inputs.mean(1), "out": last} if batch_first else {"out": last}
    assert_layers(model, inputs, expected)


def test_numbers_of_words_are_not_recorded():
    model, _ = seeded(
        lambda: Calls(lambda self, x: self.out(self.words(x).mean(1)), words=nn.Embedding(9, 4), out=nn.Linear(4, 3))
    )
    inputs = torch.randint(9, (POINTS, 5), generator=torch.Generator().manual_seed(0))
    assert_layers(model, inputs, {"out": model.words(inputs).mean(1)})


def test_a_module_under_two_names_and_tied_weights():
    one, inputs = seeded(lambda: nn.Linear(4, 4), POINTS, 4)
    model = nn.Sequential(one, nn.Tanh(), one, nn.Linear(4, 4).double(), nn.Linear(4, 3).double())
    model[3].weight = one.weight
    once = one(inputs).tanh()
    twice = one(once)
    last = twice @ one.weight.T + model[3].bias
    assert_layers(model, inputs, {"0": (inputs + once) / 2, "3": twice, "4": last})


@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_is_recorded_by_its_queries(batch_first):
    def call(self, x):
        x = x if batch_first else x.transpose(0, 1)
        mixed, _ = self.attention(x, key=x * 2, value=x * 3)
        return self.out((mixed if batch_first else mixed.transpose(0, 1)).mean(1))

    def make():
        return Calls(call, attention=nn.MultiheadAttention(4, 2, batch_first=batch_first), out=nn.Linear(4, 3))

    model, inputs = seeded(make, POINTS, 5, 4)
    x = inputs if batch_first else inputs.transpose(0, 1)
    mixed = model.attention(x, x * 2, x * 3)[0]
    last = (mixed if batch_first else mixed.transpose(0, 1)).mean(1)
    assert_layers(model, inputs, {"attention": inputs.mean(1), "out": last} if batch_first else {"out": last})


def test_inputs_given_by_name_are_recorded():
    model, inputs = seeded(
        lambda: Calls(lambda self, x: self.out(input=self.into(input=x)), into=nn.Linear(4, 4), out=nn.Linear(4, 3)),
        POINTS,
        4,
    )
    assert_layers(model, inputs, {"into": inputs, "out": model.into(inputs)})


class Functional(nn.Module):
    """Matrices without a module of their own, and others below the module that is called."""

    def __init__(self):
        super().__init__()
        self.matrices = nn.ParameterList([nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(3, 4))])

    def forward(self, inputs):
        return nn.functional.linear(nn.functional.linear(inputs, self.matrices[0]).tanh(), self.matrices[1])


def test_what_is_computed_without_modules_is_not_recorded():
    model, inputs = seeded(Functional, POINTS, 4)
    assert_layers(model, inputs, {})


def test_a_module_with_a_matrix_of_its_own_is_a_layer():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.matrix = nn.Parameter(torch.randn(4, 3))

        def forward(self, inputs):
            return inputs @ self.matrix

    model, inputs = seeded(Own, POINTS, 4)
    assert_layers(model, inputs, {"": inputs})
    weighted, inputs = seeded(lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))), POINTS, 4)
    assert_layers(weighted, inputs, {"0": inputs})


def test_layers_that_depend_on_the_rest_of_the_batch_are_left_out():
    def call(self, x):
        beside = self.batch(x - x.mean(0))
        return self.out(x) + 0 * beside

    model, inputs = seeded(lambda: Calls(call, batch=nn.Linear(4, 3), out=nn.Linear(4, 3)), POINTS, 4)
    assert_layers(model, inputs, {"out": inputs})
    # Control: what depends on the point alone stays.
    model._call = lambda self, x: self.out(x) + 0 * self.batch(x - x.mean(1, keepdim=True))
    assert set(recorded(model, inputs)) == {"out", "batch"}


def test_one_point_is_a_batch():
    model, inputs = network("mlp")
    watch = LayerInputs(Network(model, select(model)))
    for size in (1, 12, 1, 5):
        values = recorded(model, inputs[:size], watch)
        expected = layer_inputs("mlp", model, inputs[:size])
        assert set(values) == {"0", "2"}
        for name, each in values.items():
            torch.testing.assert_close(each, torch.from_numpy(expected[name]), rtol=1e-12, atol=1e-12)


def test_a_layer_that_is_not_called_is_missing_that_time():
    """Of a network that takes a branch; the rest is there."""

    def call(self, x):
        return self.out(x) + (self.side(x + 1) if float(x.sum()) > 0 else 0)

    model, inputs = seeded(lambda: Calls(call, side=nn.Linear(4, 3), out=nn.Linear(4, 3)), POINTS, 4)
    inputs = inputs.abs()
    watch = LayerInputs(Network(model, select(model)), ["side", "out", "gone"])
    assert watch.names == ("side", "out")
    assert set(recorded(model, inputs, watch)) == {"side", "out"}
    assert set(recorded(model, -inputs, watch)) == {"out"}
    assert set(recorded(model, inputs, watch)) == {"side", "out"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_averaged_in_float32(dtype):
    """2,049 positions with a 1 each: a sum in half precision would stop before."""
    model = nn.Sequential(nn.Linear(2, 3)).to(dtype)
    net = Network(model, select(model), lambda model, x: model(x).mean(1))
    inputs = torch.ones(3, 2049, 2, dtype=dtype)
    watch = LayerInputs(net)
    values = recorded(model, inputs, watch)
    assert values["0"].dtype == torch.float32 and torch.equal(values["0"], torch.ones(3, 2))
