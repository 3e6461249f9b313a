"""The user's model and torch's settings are as before, whatever happened in between."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

import awkward
import oracles
from shorthand import curvature, jacobian_rows, relative_error, split, vectors
from slu.curvature import CURVATURES
from slu.gradients import GeneralGradients, Network, PerExampleGradients
from slu.parameters import select

TARGETS = oracles.targets_for("classification")


def EVERY(name: str, value: nn.Parameter) -> bool:
    """Frozen parameters too, which a glob leaves out."""
    return True


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks")


def build(name: str) -> tuple[nn.Module, Tensor]:
    """A model that was trained: mixed modes, frozen parts, gradients left behind, a hook."""
    model, inputs = oracles.network(name) if name in oracles.NETWORKS else awkward.build(name)
    list(model.children())[-1].eval()
    first, *_, last = model.parameters()
    first.grad = torch.full_like(first, 0.5)
    last.requires_grad_(False)
    model.register_forward_hook(lambda module, args, output: None)
    return model, inputs


def state(model: nn.Module) -> dict[str, object]:
    """Everything that could have been changed, by name; tensors as copies."""
    cuda = torch.backends.cuda
    actual: dict[str, object] = {
        "grad enabled": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "cudnn": (torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
        "attention": (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()),
        "cudnn attention": cuda.cudnn_sdp_enabled(),
        "random state": torch.get_rng_state().clone(),
    }
    for name, module in model.named_modules():
        actual[f"mode of {name}"] = module.training
        actual[f"hooks of {name}"] = [len(getattr(module, kind)) for kind in HOOKS]
        actual[f"names in {name}"] = (list(module._parameters), list(module._buffers), list(module._modules))
    for name, value in model.named_parameters():
        actual[f"value of {name}"] = value.detach().clone()
        actual[f"identity of {name}"] = (id(value), value.data_ptr(), value.is_leaf)
        actual[f"gradient of {name}"] = None if value.grad is None else value.grad.clone()
        actual[f"flag of {name}"] = value.requires_grad
    for name, value in model.named_buffers():
        actual[f"buffer {name}"] = value.clone()
        actual[f"identity of buffer {name}"] = (id(value), value.requires_grad, value.grad_fn is None)
    return actual


def changed(before: dict[str, object], after: dict[str, object]) -> list[str]:
    assert before.keys() == after.keys()
    return [
        name
        for name, old in before.items()
        if not (torch.equal(old, after[name]) if isinstance(old, Tensor) else old == after[name])
    ]


WAYS = {
    "layers": PerExampleGradients,
    "vmap": GeneralGradients,
    "loop": lambda network: GeneralGradients(network, 1),
}


def gradients(model: nn.Module, data, way: str, forward=None) -> None:
    network = Network(model, select(model, EVERY), forward)
    of_samples = WAYS[way](network)
    with network.evaluating():
        for inputs, _ in data:
            jacobian_rows(of_samples, inputs, len(inputs))


WORK = {
    **{
        kind: lambda model, data, forward=None, kind=kind: (
            curvature(model, data, kind=kind, params=EVERY, forward=forward)
            @ vectors(sum(value.numel() for value in model.parameters()), 1)
        )
        for kind in CURVATURES
    },
    **{way: lambda model, data, forward=None, way=way: gradients(model, data, way, forward) for way in WAYS},
}
MODELS = ("conv", "encoder", "tied", "recurrent", "writes buffer", "in place", "weight norm")


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("name", MODELS)
def test_nothing_changes(name, work):
    model, inputs = build(name)
    before = state(model)
    WORK[work](model, split(inputs, TARGETS, sizes=[7, 5]))
    assert changed(before, state(model)) == []


def registered_twice() -> nn.Module:
    """One module under two names: an activation with a weight, and a norm with buffers."""
    bent, norm = nn.PReLU(), nn.BatchNorm1d(4)
    return nn.Sequential(nn.Linear(4, 4), norm, bent, nn.Linear(4, 4), norm, bent, nn.Linear(4, 3)).double()


@pytest.mark.parametrize("work", WORK)
def test_a_module_under_two_names_is_not_changed(work):
    model = registered_twice()
    before = state(model)
    kinds = [type(value) for value in model.parameters()]
    WORK[work](model, split(awkward.build("in place")[1], TARGETS, sizes=[7, 5]))
    assert changed(before, state(model)) == []
    assert [type(value) for value in model.parameters()] == kinds


def test_a_module_under_two_names_has_the_right_rows():
    model = registered_twice()
    network, inputs = Network(model, select(model)), awkward.build("in place")[1]
    with network.evaluating():
        for way in WAYS.values():
            assert relative_error(jacobian_rows(way(network), inputs, 12), oracles.jacobian(model, inputs)) < 1e-12


class Failing:
    """Calls the model, but fails from the second call on, after it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.calls = 0

    def __call__(self, model: nn.Module, inputs: Tensor) -> Tensor:
        self.calls += 1
        outputs = model(inputs)
        if self.calls > 1:
            raise self.error
        return outputs


ERRORS = [ValueError("broken data"), KeyboardInterrupt(), torch.OutOfMemoryError("out of memory")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("name", ["conv", "encoder", "writes buffer"])
def test_nothing_changes_when_it_fails_midway(name, work, error):
    model, inputs = build(name)
    before = state(model)
    with pytest.raises(type(error)):
        WORK[work](model, split(inputs, TARGETS, sizes=[7, 5]), Failing(error))
    assert changed(before, state(model)) == []


def test_control_plain_training_code_is_noticed():
    model, inputs = build("conv")
    before = state(model)
    model.train()
    torch.rand(1)
    torch.nn.functional.cross_entropy(model(inputs), TARGETS).backward()
    names = changed(before, state(model))
    for expected in ("mode of 4", "gradient of 0.weight", "buffer 1.running_mean", "random state"):
        assert expected in names


def test_control_inside_the_state_is_another_one():
    model, _ = build("encoder")
    before = state(model)
    with Network(model, select(model)).evaluating():
        names = changed(before, state(model))
    assert {"mode of ", "fast path", "attention"} <= set(names)
    assert changed(before, state(model)) == []


@pytest.mark.parametrize("fast_path", [True, False])
@pytest.mark.parametrize("cudnn", [True, False])
def test_settings_of_the_user_come_back_as_they_were(fast_path, cudnn):
    model, inputs = build("recurrent")
    old = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        with torch.backends.cudnn.flags(enabled=cudnn), torch.autocast("cpu", dtype=torch.bfloat16):
            before = state(model)
            WORK["ggn"](model, [(inputs, TARGETS)])
            assert changed(before, state(model)) == []
    finally:
        torch.backends.mha.set_fastpath_enabled(old)


def test_an_autocast_of_the_models_own_keeps_no_copies_of_its_weights():
    """In the cache of an outer autocast they would stay, batch after batch, until all of the data are read."""
    model, inputs = build("mlp")
    seen = []

    def own(called, x):
        with torch.autocast("cpu", torch.bfloat16):
            seen.append(torch.is_autocast_cache_enabled())
            return called(x)

    network = Network(model, select(model), own)
    assert torch.is_autocast_cache_enabled()
    with network.evaluating():
        network.outputs(inputs)
    assert seen and not any(seen) and torch.is_autocast_cache_enabled()


CONTEXTS = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("kind", CURVATURES)
@pytest.mark.parametrize("name", ["mlp", "encoder"])
def test_products_are_the_same_inside_the_contexts_of_the_user(context, kind, name):
    model, inputs = oracles.network(name)
    model, inputs = model.float(), inputs.float()  # float64 would be left alone by autocast
    columns = vectors(select(model).count, 2).float()
    expected = curvature(model, (inputs, TARGETS), kind=kind) @ columns
    with CONTEXTS[context]():
        here = inputs * 1.0  # made inside: an inference tensor in inference mode
        actual = curvature(model, (here, TARGETS), kind=kind) @ (columns * 1.0)
        assert torch.equal(actual, expected)
        assert not actual.requires_grad


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("way", WAYS)
def test_rows_are_the_same_inside_the_contexts_of_the_user(context, way):
    model, inputs = oracles.network("mlp")
    expected = oracles.jacobian(model, inputs)
    network = Network(model.float(), select(model))
    with CONTEXTS[context](), network.evaluating():
        actual = jacobian_rows(WAYS[way](network), inputs.float(), 12)
        assert relative_error(actual, expected) < 1e-5


def test_a_module_that_writes_in_eval_mode_writes_to_a_copy():
    model, inputs = awkward.build("writes buffer")
    seen = []
    network = Network(model, select(model), lambda called, x: [called(x), seen.append(float(called.calls))][0])
    with network.evaluating():
        network.outputs(inputs)
        network.outputs(inputs)
    assert seen == [1.0, 2.0]  # it did write
    assert float(model.calls) == 0.0
    assert torch.equal(model.latest, torch.zeros(5, dtype=torch.float64))


@pytest.fixture
def changing() -> tuple[nn.Module, nn.Module, Tensor]:
    """A model that changes its inputs in place, the same without, and inputs."""
    model, inputs = awkward.build("changes inputs")
    plain = awkward.build("in place")[0]
    plain.middle = torch.tanh
    plain.load_state_dict(model.state_dict())
    return model, plain, inputs


@pytest.mark.parametrize("kind", CURVATURES)
def test_a_model_that_changes_its_inputs_changes_no_data_and_no_product(changing, kind):
    model, plain, inputs = changing
    before = inputs.clone()
    expected = curvature(plain, ((inputs - 1) / 2, TARGETS), kind=kind) @ vectors(43)
    if kind == "fisher":  # its labels hang on the content of the data
        expected = curvature(plain, inputs, kind=kind, forward=lambda called, x: called((x - 1) / 2)) @ vectors(43)
    assert relative_error(curvature(model, (inputs, TARGETS), kind=kind) @ vectors(43), expected) < 1e-12
    assert torch.equal(inputs, before)


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_changes_its_inputs_changes_no_data_and_no_row(changing, way):
    model, plain, inputs = changing
    before = inputs.clone()
    network = Network(model, select(model))
    with network.evaluating():
        actual = jacobian_rows(WAYS[way](network), inputs, 12)
    assert relative_error(actual, oracles.jacobian(plain, (inputs - 1) / 2)) < 1e-12
    assert torch.equal(inputs, before)


@pytest.mark.parametrize("context", [nullcontext, torch.no_grad, torch.inference_mode])
def test_parameters_can_be_trained_afterwards(context):
    model, inputs = oracles.network("conv")
    with context():
        WORK["ggn"](model, [(inputs, TARGETS)])
    torch.nn.functional.cross_entropy(model(inputs), TARGETS).backward()
    assert all(value.grad is not None for value in model.parameters())
