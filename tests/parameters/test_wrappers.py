"""The module inside of wrappers, which of its parameters are meant by names with a prefix, and sharded models."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from slu import SLU, Mahalanobis, doctor
from slu.errors import ModelError, SelectionError, SettingError
from slu.parameters import select, unwrapped
from slu.parameters.wrappers import is_compiled, peeled, possible_names, stand_ins
from wrapping import WRAPPERS, compiled, process_group


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


@pytest.fixture
def group(tmp_path):
    with process_group(tmp_path):
        yield


@pytest.mark.parametrize("name", WRAPPERS)
def test_the_module_inside_is_found(name, group):
    model = plain()
    assert unwrapped(WRAPPERS[name](model)) is model


def test_a_model_without_wrappers_is_itself():
    model = plain()
    assert list(peeled(model)) == [model] and unwrapped(model) is model and not is_compiled(model)
    assert not any(stand_ins(module) for module in model.modules())


def test_an_attribute_that_a_module_takes_from_its_own_model_is_no_wrapper():
    """As peft's models do, which pass on what they do not have."""

    class Passing(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = compiled(plain())

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.base, name)

    model = Passing()
    assert isinstance(model._orig_mod, nn.Sequential)
    assert unwrapped(model) is model


def test_what_is_no_module():
    with pytest.raises(ModelError, match=r"must be a torch\.nn\.Module, got str"):
        unwrapped("model.pt")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ("module.2.weight", ("2.weight",)),
        ("module._orig_mod.2", ("2.weight", "2.bias")),
        ("2", ("2.weight", "2.bias")),
        ("_orig_mod.*.bias", ("0.bias", "2.bias")),
        ("module", ("0.weight", "0.bias", "2.weight", "2.bias")),
        ("last", ("2.weight", "2.bias")),
        (["module.0.bias", "2.bias"], ("0.bias", "2.bias")),
        (lambda name, value: name == "2.weight", ("2.weight",)),
    ],
)
def test_parameters_by_names_with_and_without_the_prefix(params, names):
    model = plain()
    for each in (nn.DataParallel(compiled(model)), model):
        assert select(each, params).names == names


def test_parameters_by_modules_of_either():
    model = plain()
    wrapped = nn.DataParallel(compiled(model))
    for given in (wrapped, model):
        assert select(given, wrapped).names == select(given, model).names == select(given).names
        assert select(given, wrapped.module).names == select(given).names
        assert select(given, model[2]).names == select(given, compiled(model[2])).names == ("2.weight", "2.bias")
    with pytest.raises(SelectionError, match="not part of the model"):
        select(wrapped, nn.DataParallel(plain()))


def test_a_module_of_the_model_that_has_the_name_of_a_prefix_goes_first():
    model = nn.Module()
    model.module, model.weight = nn.Linear(2, 2), nn.Parameter(torch.ones(2))
    assert select(model, "module.weight").names == ("module.weight",)
    assert select(nn.DataParallel(model), "module.weight").names == ("module.weight",)
    assert select(nn.DataParallel(model), "module.module.bias").names == ("module.bias",)
    assert select(nn.DataParallel(model), "module").names == ("module.weight", "module.bias")


def test_a_name_that_is_not_there_is_shown_as_it_came():
    with pytest.raises(SelectionError, match=r"matches 'module\.5\.weight'; near it are .*2\.weight"):
        select(nn.DataParallel(plain()), "module.5.weight")
    with pytest.raises(SettingError, match=r"got 'module\.5'; it has 3"):
        Mahalanobis(nn.DataParallel(plain()), "classification", features="module.5")


def test_no_name_is_not_the_whole_model():
    with pytest.raises(SelectionError, match="the module ''"):
        select(nn.DataParallel(plain()), "")


def test_a_prefix_is_one_of_whole_names():
    assert list(possible_names("modules.module")) == ["modules.module"]
    assert list(possible_names("a.module.b")) == ["a.module.b"] and list(possible_names("module")) == ["module", ""]
    assert list(possible_names("_orig_mod.module.a"))[-1] == "a"


def test_the_library_imports_nothing_distributed_and_no_accelerate():
    names = ("torch.distributed.fsdp", "torch.distributed.tensor", "torch._dynamo", "accelerate")
    script = (
        "import sys, torch; from torch import nn; before = set(sys.modules); from slu.parameters import unwrapped; "
        "unwrapped(nn.DataParallel(nn.Linear(2, 2))); "
        f"print([name for name in {names} if name in set(sys.modules) - before])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "[]"


def sharded_fully(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=init_device_mesh("cpu", (1,)))


def sharded_partly(model: nn.Sequential) -> nn.Module:
    sharded_fully(model[2])
    return compiled(model)


def gathered(model: nn.Module) -> nn.Module:
    """After a call the outermost module has plain parameters, until the next backward pass."""
    sharded_fully(model)(torch.zeros(2, 4))
    assert all(type(value) is nn.Parameter for value in model.parameters())
    return model


def flat(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


def tensor_parallel(model: nn.Module) -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    return parallelize_module(model, init_device_mesh("cpu", (1,)), {"0": ColwiseParallel()})


SHARDED = {
    "fully_shard": (sharded_fully, r"it is of the class FSDPSequential \(FSDP\)"),
    "of a part": (sharded_partly, r"module 2 is of the class FSDPLinear \(FSDP\)"),
    "gathered": (gathered, r"it is of the class FSDPSequential \(FSDP\)"),
    "compiled and gathered": (
        lambda model: gathered(compiled(model)),
        r"it is of the class FSDPOptimizedModule \(FSDP\)",
    ),
    "FSDP1": (flat, r"it is of the class FullyShardedDataParallel \(FSDP\)"),
    "tensor parallel": (tensor_parallel, r"0\.weight is a DTensor"),
}


ONE_PROCESS = pytest.mark.filterwarnings("ignore:.*NO_SHARD")


@ONE_PROCESS
@pytest.mark.parametrize("kind", SHARDED)
def test_a_sharded_model_is_refused_with_the_reason_and_the_remedy(kind, group, tmp_path):
    shard, seen = SHARDED[kind]
    SLU(plain(), "classification").fit(torch.randn(40, 4)).save(tmp_path / "score.slu")
    model = shard(plain())
    refused = rf"sharded over processes: {seen}\. .*whole parameters.*full_state_dict=True.*load_state_dict\(weights\)"
    for use in (
        lambda: SLU(model, "classification"),
        lambda: SLU.load(tmp_path / "score.slu", model),
        lambda: Mahalanobis(model, "classification"),
        lambda: select(model),
    ):
        with pytest.raises(ModelError, match=refused):
            use()
    found = doctor(model, torch.zeros(4, 4))
    assert not found.ok and "sharded over processes" in found["model"].seen


@ONE_PROCESS
@pytest.mark.parametrize("kind", SHARDED)
def test_the_remedy_has_the_score_of_the_plain_model(kind, group):
    """In a group of one process; tests/core/test_sharded_models.py has two."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    original, copy, inputs = plain(), plain(), torch.randn(40, 4)
    expected = SLU(original, "classification").fit(inputs)(inputs)
    model = SHARDED[kind][0](original)
    copy.load_state_dict(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)))
    assert torch.equal(SLU(copy, "classification").fit(inputs)(inputs), expected)
