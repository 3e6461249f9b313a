"""What a model returns, and what it raises."""

from __future__ import annotations

import logging
from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import oracles
from slu import SLU
from slu.errors import DataError, ModelCallError, ModelError, OutOfMemoryError
from slu.gradients import GeneralGradients, Network
from slu.gradients.calling import taken
from slu.parameters import select

A, B = torch.ones(2, 3), torch.zeros(2, 3)


class Returns(nn.Module):
    """A network whose outputs are wrapped."""

    def __init__(self, how):
        super().__init__()
        self.layer, self.how = nn.Linear(4, 3), how

    def forward(self, x):
        return self.how(self.layer(x))


def network(model: nn.Module, forward=None) -> Network:
    return Network(model, select(model), forward)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (A, None),
        (SimpleNamespace(logits=A, loss=B), "its .logits"),
        (namedtuple("Heads", ["aux", "logits"])(B, A), "its .logits"),
        ({"aux": B, "logits": A}, "its entry 'logits'"),
        ({"aux": B, "out": A}, "its entry 'out'"),
        ({"name": "x", "first": A, "second": B}, "its first tensor, 'first'"),
        ((A, B), "its first tensor, at place 0"),
        ([None, A, B], "its first tensor, at place 1"),
        ((torch.tensor(0.5), A, B), "its first floating-point tensor with rows, at place 1"),  # a loss before them
        ((A.argmax(1), A), "its first floating-point tensor with rows, at place 1"),
        ({"loss": torch.tensor(0.5), "scores": A}, "its first floating-point tensor with rows, 'scores'"),
    ],
)
def test_the_outputs_in_what_a_model_returns(returned, words):
    tensor, which = taken(returned)
    assert tensor is A and which == words


@pytest.mark.parametrize(
    ("returned", "words"),
    [(None, "NoneType"), ({"a": [1]}, "dict of 'a': list of int"), ((), "tuple of nothing"), ("text", "str")],
)
def test_nothing_to_take_says_what_came(returned, words):
    with pytest.raises(DataError, match=rf"returned {words}, in which no tensor .*forward=lambda"):
        taken(returned)


def test_one_line_says_what_was_taken(caplog):
    net = network(Returns(lambda outputs: {"features": outputs * 2, "logits": outputs}))
    with caplog.at_level(logging.INFO, "slu"):
        outputs = [net.outputs(torch.ones(2, 4)) for _ in range(2)]
    assert torch.equal(outputs[0], net.model.layer(torch.ones(2, 4)))
    assert [record.message for record in caplog.records] == [
        "the model returns dict; its outputs are its entry 'logits'"
    ]


@pytest.mark.parametrize("how", [lambda f: SimpleNamespace(logits=f), lambda f: (f, f.sum(1)), lambda f: {"out": f}])
@pytest.mark.parametrize("solver", ["stream", "lanczos"])
def test_a_score_is_that_of_the_tensor_itself(how, solver):
    inputs = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Returns(how)
    plain = SLU(model.layer, "classification", rank=4, solver=solver).fit(inputs)(inputs)
    assert torch.allclose(SLU(model, "classification", rank=4, solver=solver).fit(inputs)(inputs), plain, rtol=1e-4)


class Fails(nn.Module):
    """Raises on batches whose first number is negative."""

    def __init__(self, reason):
        super().__init__()
        self.layer, self.reason = nn.Linear(4, 3), reason

    def forward(self, x, shift=None):
        if bool((x[:, 0] < 0).any()):
            raise self.reason
        return self.layer(x)


@pytest.mark.parametrize("reason", [ValueError("odd\nlines"), KeyError("k"), RuntimeError(""), AssertionError()])
@pytest.mark.parametrize("solver", ["stream", "lanczos"])
def test_an_exception_of_the_model_names_the_batch_and_its_inputs(reason, solver):
    good, bad = torch.rand(3, 4), torch.rand(5, 4) - 2
    method = SLU(Fails(reason), "classification", rank=2, solver=solver)
    with pytest.raises(ModelCallError) as caught:
        method.fit([good, good, bad])
    first = str(reason).partition("\n")[0]
    cause = f"{type(reason).__name__}: {first}" if first else type(reason).__name__
    assert str(caught.value) == f"the model failed on batch 2 while fitting, called with x=float32 (5, 4): {cause}"
    assert caught.value.__cause__ is reason and isinstance(caught.value, ModelError | RuntimeError)
    with pytest.raises(ModelCallError, match="on batch 1 while scoring, "):
        method.fit(list(torch.rand(40, 4).split(10)))([good, bad])


def test_inputs_are_named():
    class Two(nn.Module):
        def forward(self, user, item):
            return user @ item

    net = network(nn.Sequential(nn.Linear(1, 1), Two()))
    net = Network(Two(), net.selection)
    with pytest.raises(
        ModelCallError, match=r"on a batch, called with user=float32 \(2, 3\), item=int64 \(2,\): Runtime"
    ):
        net.outputs((A, torch.ones(2, dtype=torch.long)))
    with pytest.raises(ModelCallError, match=r"called with user=float32 \(2, 3\), item=NoneType: TypeError"):
        net.outputs({"user": A, "item": None})


def test_errors_of_memory_and_of_slu_are_not_wrapped():
    for reason in (torch.OutOfMemoryError("x"), RuntimeError("can't allocate memory"), DataError("mine")):
        with pytest.raises(type(reason)) as caught:
            network(Fails(reason)).outputs(-torch.ones(2, 4))
        assert caught.value is reason
    with pytest.raises(OutOfMemoryError):
        SLU(Fails(MemoryError()), "classification", rank=2).fit(-torch.ones(20, 4))


def words() -> nn.Module:
    return nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("model", "inputs", "hint"),
    [
        (nn.Linear(4, 3), torch.ones(2, 4, dtype=torch.float64), "weights are float32 and the inputs float64"),
        (nn.Linear(4, 3).bfloat16(), torch.ones(2, 4), "weights are bfloat16 and the inputs float32"),
        (nn.Linear(4, 3), torch.ones(2, 4, dtype=torch.int8), "weights are float32 and the inputs int8: convert"),
        (nn.Linear(4, 3), torch.ones(2, 4, dtype=torch.complex64), "inputs complex64: .*view_as_real"),
        (nn.Conv2d(1, 2, 3), torch.ones(2, 1, 4, 4, dtype=torch.uint8), "inputs uint8: .*x.to\\(torch.float32\\)"),
        (nn.Conv2d(1, 2, 3), torch.ones(2, 1, 4, 4, dtype=torch.float64), "weights are float32 and the inputs float64"),
        (words(), torch.tensor([[1, 10]]), "integer inputs go up to 10, the tables have 10 rows"),
        (words(), torch.ones(2, 2), "An embedding takes whole numbers .*ids.long"),
    ],
)
def test_known_causes_have_a_remedy(model, inputs, hint):
    with pytest.raises(ModelCallError, match=hint):
        network(model).outputs(inputs)


def test_whole_numbers_among_the_weights_are_named():
    model = nn.Linear(4, 3)
    model.weight = nn.Parameter(torch.ones(3, 4, dtype=torch.int8), requires_grad=False)
    with pytest.raises(ModelCallError, match=r"Integer \(quantized\) weights"):
        network(model).outputs(torch.ones(2, 4))


@pytest.mark.parametrize(
    "reason",
    [
        KeyError("Character"), OSError("no file checkpoint.pt"), KeyError("device_id"), ValueError("int8 or device"),
        IndexError("list index out of range"), RuntimeError("quantized?"),
    ],
)  # fmt: skip
def test_words_of_other_errors_are_no_causes(reason):
    with pytest.raises(ModelCallError) as caught:
        network(Fails(reason)).outputs(-torch.ones(2, 4))
    assert caught.value.hint is None


def test_a_type_that_the_inputs_do_not_have_is_not_blamed_on_them():
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.layer = nn.Embedding(10, 4), nn.Linear(4, 3)

        def forward(self, ids):
            return self.layer(self.words(ids).mean(1).double())

    with pytest.raises(ModelCallError, match="dtype") as caught:
        network(Wide()).outputs(torch.ones(2, 5, dtype=torch.long))
    assert caught.value.hint is None


def test_a_single_point_is_told_how_to_be_a_batch():
    inputs, classes = torch.randn(40, 4, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3
    method = SLU(nn.Linear(4, 3), "classification", rank=2)
    score = method.fit(inputs)
    for use in (lambda: score(inputs[0]), lambda: method.fit(list(zip(inputs, classes, strict=True)))):
        with pytest.raises(DataError, match=r"gave 3 rows .*\(4,\).*x\[None\]; .*DataLoader"):
            use()
    assert torch.allclose(score(inputs[0][None]), score(inputs)[:1], rtol=1e-4)


@pytest.mark.parametrize("settings", [{}, {"solver": "lanczos"}, {"scale": None}], ids=str)
def test_outputs_without_history_are_refused_as_such(settings):
    inputs = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    for how, words_of in ((torch.detach, "have no history: .*no_grad"), (lambda f: f.argmax(1), "are int64, .*logits")):
        with pytest.raises(ModelError, match=words_of):
            SLU(Returns(how), "classification", rank=2, **settings).fit(inputs)


def test_selected_parameters_that_take_no_part_for_some_inputs_are_no_lack_of_history():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x):
            return self.one(x) if bool((x[:, 0] > 0).all()) else self.other(x)

    model = Experts()
    net = Network(model, select(model, "one"))
    leaves = {name: value.requires_grad_() for name, value in net.parameters().items()}
    assert not net.outputs(-torch.ones(2, 4), leaves).requires_grad
    assert net.outputs(torch.ones(2, 4), leaves).requires_grad


def test_devices_are_named():
    class Elsewhere(Fails):
        def forward(self, x):
            return self.layer(x.to("meta"))

    with pytest.raises(
        ModelCallError, match="inputs are on cpu and the weights on cpu; move tensors that the model makes"
    ):
        network(Elsewhere(None)).outputs(A.new_ones(2, 4))


def test_inference_tensors_in_a_model_are_named_and_in_data_are_copied():
    with torch.inference_mode():
        kept, inputs = torch.ones(4), torch.rand(30, 4)

    class Keeps(Fails):
        def forward(self, x):
            return self.layer(x * kept)

    with pytest.raises(ModelCallError, match="made in inference mode"):
        network(Keeps(None)).outputs(torch.ones(2, 4).requires_grad_())
    score = SLU(nn.Linear(4, 3), "classification", rank=2).fit(inputs)
    assert torch.equal(score(inputs), score(inputs.clone()))


def test_vmap_that_the_model_refuses_still_falls_back():
    """Control flow by data: vmap cannot read the numbers, a loop can."""

    class Branches(Fails):
        def forward(self, x):
            return self.layer(x) * (2 if float(x.sum()) > 0 else 1)

    net, inputs = network(Branches(None)), torch.rand(5, 4)
    gradients = GeneralGradients(net)
    rows = list(gradients(inputs, torch.eye(3).expand(5, 3, 3)))
    assert len(rows) == 15 and gradients.failure is not None


@pytest.mark.parametrize("reentrant", [True, False])
def test_reentrant_checkpointing_is_refused_with_its_remedy(reentrant):
    model, inputs = oracles.network("mlp")

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.rest = model[0], model[1:]

        def forward(self, x):
            return checkpoint(self.rest, self.first(x), use_reentrant=reentrant)

    method = SLU(Checkpointed(), "classification", rank=2)
    if reentrant:
        with pytest.raises(ModelError, match=r"reentrant activation checkpoints.*use_reentrant=False"):
            method.fit(inputs)
    else:
        expected = SLU(model, "classification", rank=2).fit(inputs)(inputs)
        assert torch.allclose(method.fit(inputs)(inputs), expected, rtol=1e-6)
