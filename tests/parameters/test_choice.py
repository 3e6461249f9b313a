"""Which parameters a user means: modules, prefixes, "last" and "lora", frozen and quantized ones."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from oracles import Tied
from slu import SLU
from slu.errors import SelectionError
from slu.parameters import select


class Encoder(nn.Module):
    """Twelve layers, so that one name begins another, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(4))
        self.layer = nn.ModuleList(nn.Linear(4, 4) for _ in range(12))
        self.head = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = inputs + self.token
        for layer in self.layer:
            hidden = layer(hidden).tanh()
        return self.head(hidden)


class Adapted(nn.Module):
    """A linear map with an adapter, named as peft names them."""

    def __init__(self) -> None:
        super().__init__()
        self.base_layer = nn.Linear(4, 3).requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(4, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, 3, bias=False)})

    def forward(self, inputs: Tensor) -> Tensor:
        return self.base_layer(inputs) + self.lora_B["default"](self.lora_A["default"](inputs))


@pytest.fixture
def encoder() -> Encoder:
    return Encoder()


HEAD = ("head.0.weight", "head.0.bias", "head.1.weight", "head.1.bias")


@pytest.mark.parametrize(
    ("params", "names"),
    [
        (lambda model: model.head, HEAD),
        (lambda model: model.head[1], HEAD[2:]),
        (lambda model: "head", HEAD),
        (lambda model: "layer.1", ("layer.1.weight", "layer.1.bias")),
        (lambda model: "layer.11", ("layer.11.weight", "layer.11.bias")),
        (lambda model: "head.*.bias", ("head.0.bias", "head.1.bias")),
        (lambda model: "last", HEAD[2:]),
        (lambda model: ["last", model.head[0], "token"], ("token", *HEAD)),
        (lambda model: [lambda name, value: value.shape == (3,), "layer.0.bias"], ("layer.0.bias", "head.1.bias")),
    ],
    ids=["module", "inner module", "prefix", "prefix of a name", "prefix 11", "glob", "last", "list", "predicates"],
)
def test_what_each_choice_means(encoder, params, names):
    assert select(encoder, params(encoder)).names == names


def test_the_whole_model_is_a_module_of_itself(encoder):
    assert select(encoder, encoder).names == select(encoder).names


@pytest.mark.parametrize("choice", ["head", "head.*", "*"])
def test_frozen_parameters_are_left_out(encoder, choice):
    encoder.head[1].requires_grad_(False)
    assert "head.0.bias" in select(encoder, choice).names
    assert not {"head.1.weight", "head.1.bias"} & set(select(encoder, choice).names)
    assert select(encoder, encoder.head).names == HEAD[:2]


def test_last_skips_what_is_frozen(encoder):
    encoder.head[1].weight.requires_grad_(False)
    assert select(encoder, "last").names == ("head.1.bias",)
    encoder.head.requires_grad_(False)
    assert select(encoder, "last").names == ("layer.11.weight", "layer.11.bias")


def test_an_exact_name_and_a_predicate_mean_what_they_say(encoder):
    encoder.requires_grad_(False)
    assert select(encoder, "head.1.bias").names == ("head.1.bias",)
    assert select(encoder, lambda name, value: "head" in name).names == HEAD


def test_the_last_layer_may_be_parametrized_or_tied():
    model = nn.Sequential(nn.Linear(4, 4), parametrizations.weight_norm(nn.Linear(4, 3)))
    names = ("1.bias", "1.parametrizations.weight.original0", "1.parametrizations.weight.original1")
    assert select(model, "last").names == names
    assert select(Tied(), "again").names == ("into.weight", "again.bias")
    tied = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 4), nn.Linear(4, 3, bias=False))
    tied[2].weight = tied[0].weight
    assert select(tied, "last").names == ("0.weight",)
    assert select(tied, tied[2]).names == ("0.weight",)
    assert select(tied, ["0", "2"]).count == 12


def test_lora_chooses_the_adapters():
    model = nn.Sequential(Adapted(), nn.Linear(3, 2))
    assert select(model, "lora").names == ("0.lora_A.default.weight", "0.lora_B.default.weight")
    assert select(model, ["lora", "last"]).names == (*select(model, "lora").names, "1.weight", "1.bias")


def test_a_name_of_the_model_wins_over_a_word():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.lora, self.end = nn.Linear(2, 2), nn.Parameter(torch.ones(2)), nn.Linear(2, 2)

    assert select(Named(), "last").names == ("last.weight", "last.bias")
    assert select(Named(), "lora").names == ("lora",)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (nn.Linear(4, 3), "is a Linear that is not part of the model, a copy perhaps; .*'head'"),
        (nn.Tanh(), "not part of the model"),
        ("lora", r"begins with 'lora_'.*29 parameters 29 are trainable \(token, layer.0.weight, .* and 26 more\)"),
        ("encoder", "no parameter or module is called or matches 'encoder'; near it are"),
        ("heads", "near it are head"),
        (7, "by a predicate, got a int; give a module"),
        ([7], "by a predicate, got a int; give a module"),
    ],
)
def test_what_cannot_be_meant_is_refused(encoder, params, message):
    with pytest.raises(SelectionError, match=message):
        select(encoder, params)


@pytest.mark.parametrize(
    ("params", "count"), [("head", 4), ("head.1.*", 2), ("last", 29), (None, 29), (lambda model: model.head, 4)]
)
def test_all_frozen_is_said_with_the_count_and_the_cure(encoder, params, count):
    encoder.requires_grad_(False)
    params = params(encoder) if callable(params) else params
    with pytest.raises(SelectionError, match=rf"{count} are frozen \(requires_grad=False\).*requires_grad_\(True\)"):
        select(encoder, params)


def test_a_module_without_parameters_is_refused():
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    for choice in (model[1], "1"):
        with pytest.raises(SelectionError, match="has no parameters; choose one that has"):
            select(model, choice)


@pytest.fixture
def packed() -> nn.Module:
    """torch's own quantization of the linear layers; the convolution stays."""
    model = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(4, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear})


@pytest.mark.parametrize("choice", [None, "2", "2.weight", lambda model: model[2]])
def test_packed_weights_are_refused_with_the_cause(packed, choice):
    choice = choice(packed) if callable(choice) else choice
    with pytest.raises(SelectionError, match=r"quantized.*packed.*Fit on the float model"):
        select(packed, choice)
    assert select(packed, "0").names == ("0.weight", "0.bias")


class Int8Params(nn.Parameter):
    """As bitsandbytes has them: a parameter of whole numbers."""


def test_integer_parameters_are_refused_with_the_cause():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
    model[1].weight = Int8Params(torch.ones(2, 2, dtype=torch.int8), requires_grad=False)
    assert select(model).names == ("0.weight", "0.bias")  # as adapters beside quantized weights
    for choice in ("1.weight", lambda name, value: True):
        with pytest.raises(SelectionError, match=r"1.weight is torch.int8 \(Int8Params\), quantized.*float model"):
            select(model, choice)
    for choice in ("1", model[1], "1.*"):
        with pytest.raises(SelectionError, match=r"1 are quantized or whole numbers \(1.weight is torch.int8"):
            select(model, choice)


class Packed(Tensor):
    """A float to the outside and whole numbers inside, as torchao's tensors."""

    @staticmethod
    def __new__(cls, whole: Tensor) -> Packed:
        return Tensor._make_wrapper_subclass(cls, whole.shape, dtype=torch.float32)

    def __init__(self, whole: Tensor) -> None:
        self.whole = whole

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["whole"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Packed(inner["whole"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return cls(args[0].whole)


def test_a_tensor_of_packed_whole_numbers_is_refused_whatever_type_it_claims():
    model = nn.Linear(2, 2)
    model.weight = nn.Parameter(Packed(torch.ones(2, 2, dtype=torch.int8)), requires_grad=False)
    with pytest.raises(SelectionError, match=r"weight is torch.float32 \(Packed\), quantized"):
        select(model, "weight")


def test_a_score_of_a_module_is_loaded_by_its_names(encoder, tmp_path):
    inputs = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    score = SLU(encoder, "classification", params=encoder.head, rank=4).fit(inputs, calibration=False)
    score.save(tmp_path / "score.slu")
    encoder.head.requires_grad_(False)  # names in a file are exact
    loaded = SLU.load(tmp_path / "score.slu", encoder)
    assert loaded.settings.network.selection.names == HEAD
    assert torch.equal(loaded(inputs), score(inputs))


@pytest.mark.parametrize("predicate", [lambda name: True, lambda: True, lambda a, b, c: True])
def test_a_predicate_of_other_arguments_is_refused_with_the_right_ones(encoder, predicate):
    with pytest.raises(SelectionError, match=r"predicate takes \(.*\), and is called with two.*lambda name, parameter"):
        select(encoder, predicate)


def test_an_error_inside_a_predicate_is_its_own(encoder):
    with pytest.raises(TypeError, match="can only concatenate"):
        select(encoder, lambda name, parameter: name + 1)
