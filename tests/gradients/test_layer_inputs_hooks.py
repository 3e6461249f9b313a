"""Recording the inputs of layers leaves no trace, and is the same beside gradients; their sizes before any call."""

import pytest
import torch
from torch import nn

from distant import layer_inputs
from oracles import NETWORKS, network
from slu.gradients import LayerInputs, Network, PerExampleGradients
from slu.gradients.layer_inputs import expected_sizes
from slu.parameters import select
from untouched import assert_same, snapshot
from watched import POINTS, assert_layers, recorded, seeded


def hooks(model):
    return sum(len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.modules())


def test_hooks_and_model_are_as_before_also_after_an_exception():
    model, inputs = network("conv")
    net = Network(model, select(model))
    watch = LayerInputs(net)
    before = snapshot(model)
    recorded(model, inputs, watch)
    assert not hooks(model)
    with pytest.raises(RuntimeError), net.evaluating():
        net.outputs(inputs[:, :, :2, :2], watch=watch)
    assert not hooks(model)
    with pytest.raises(KeyboardInterrupt), net.evaluating(), watch:
        assert hooks(model) == 2
        raise KeyboardInterrupt
    assert not hooks(model)
    # The next call begins anew.
    expected = layer_inputs("conv", model, inputs)
    for name, each in recorded(model, inputs, watch).items():
        torch.testing.assert_close(each, torch.from_numpy(expected[name]), rtol=1e-12, atol=1e-12)
    assert_same(before, snapshot(model))


def test_hooks_of_the_users_own_see_and_change_what_they_did():
    model, inputs = network("mlp")
    calls = []
    model[2].register_forward_pre_hook(lambda module, args: calls.append(1) or (2 * args[0],))
    values = recorded(model, inputs)
    hidden = layer_inputs("mlp", model, inputs)["2"]
    torch.testing.assert_close(values["2"], torch.from_numpy(2 * hidden), rtol=1e-12, atol=1e-12)
    assert hooks(model) == 1 and len(calls) == 1 + 3, "the batch, and three points alone"


@pytest.mark.parametrize("kind", NETWORKS)
def test_recorded_beside_gradients_it_is_the_same(kind):
    """In the recorded forward pass of per-example gradients, by graph rules and where memory runs out."""
    model, inputs = network(kind)
    net = Network(model, select(model))
    expected = layer_inputs(kind, model, inputs)
    for gradients in (PerExampleGradients(net), PerExampleGradients(net, max_numbers=1)):
        watch = LayerInputs(net)
        with net.evaluating():
            passed = gradients.forward(inputs, watch)
            watch.finish(inputs, passed.outputs)
        for name, each in expected.items():
            torch.testing.assert_close(watch.values[name], torch.from_numpy(each), rtol=1e-12, atol=1e-12)


def test_inputs_of_a_call_that_ran_out_of_memory_are_let_go():
    model, inputs = network("mlp")
    net = Network(model, select(model))
    watch = LayerInputs(net)
    with net.evaluating():
        net.outputs(inputs, watch=watch)
        held = [tensor for tensor, _ in watch._held]
        outputs = net.outputs(inputs[:3], watch=watch)
        assert held and not any(one is other for one, _ in watch._held for other in held)
        watch.finish(inputs[:3], outputs)
    assert not watch._held and len(watch.values["0"]) == 3


def test_scripted_modules_are_called_without_hooks():
    inner, inputs = seeded(lambda: nn.Linear(4, 4), POINTS, 4)
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        scripted = torch.jit.script(inner)
    model = nn.Sequential(scripted, nn.Linear(4, 3).double())
    assert_layers(model, inputs, {"1": inner(inputs)})


@pytest.mark.parametrize("kind", ["mlp", "conv", "tied"])
def test_sizes_are_known_from_the_weights(kind):
    model, inputs = network(kind)
    expected = expected_sizes(model)
    averaged = {name: each.shape[1] for name, each in recorded(model, inputs).items()}
    assert expected == averaged


def test_expected_sizes_are_no_less_than_those_of_a_call():
    """Where a module is not called, or its weights have other shapes, for estimates of memory."""
    model, inputs = network("encoder")
    expected = expected_sizes(model)
    for name, each in recorded(model, inputs).items():
        assert expected[name] >= each.shape[1]
    assert expected_sizes(nn.LSTM(4, 5)) == {"": 4}
    assert expected_sizes(nn.Sequential(nn.Conv2d(6, 4, 3, groups=2), nn.ReLU())) == {"0": 6}
    assert expected_sizes(nn.ReLU()) == {}


def test_tables_take_nothing_of_a_budget():
    """Their inputs are numbers of rows; a table of 50,000 words must not count as a layer of so many inputs."""
    model = nn.Sequential(nn.Embedding(50_000, 4), nn.Flatten(), nn.Linear(12, 3))
    assert expected_sizes(model) == {"2": 12} and expected_sizes(nn.EmbeddingBag(9, 4)) == {}
