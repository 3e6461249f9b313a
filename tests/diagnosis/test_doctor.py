"""`doctor`: models that work, every kind of failure with its remedy, and a model left as it was."""

import json
from importlib import import_module

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import slu
from slu.errors import SettingError
from untouched import assert_same, snapshot

module = import_module("slu.diagnosis.doctor")  # the package's attribute of this name is the function

NEEDED = ("model", "parameters", "batch", "call", "finite")


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mlp(outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, outputs))


class Words(nn.Module):
    """A recurrent network over words, which returns a dict."""

    def __init__(self, kind=dict):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.recurrent, self.head = nn.Embedding(10, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 3)
        self.kind = kind

    def forward(self, words):
        hidden = self.recurrent(self.table(words))[0]
        return self.kind(states=hidden, logits=self.head(hidden[:, -1]))


class Applied(nn.Module):
    """Any function of the inputs and a linear layer."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.function = nn.Linear(8, 3), function

    def forward(self, x):
        return self.function(self.layer, x)


def statuses(diagnosis):
    return {check.name: check.status for check in diagnosis.checks}


def test_a_model_that_works():
    batch = drawn(12, 8), torch.arange(12) % 3
    found = slu.doctor(mlp(), batch)
    assert found.ok and not found.skipped
    assert set(statuses(found).values()) == {"ok"} and len(found.checks) == 14
    assert not [check.remedy for check in found.checks if check.remedy]
    assert found["batch"].seen == "inputs: float32 (12, 8); targets: int64 (12,)"
    assert found["call"].seen == "outputs are a tensor: 12 points, 3 outputs per point"
    assert "graph rules for all parameters: 2 Linear" in found["gradients"].seen
    assert "inputs of 2 of 2 layers" in found["layers"].seen
    assert found.facts["selected"] == found.facts["parameters"] == 8 * 16 + 16 + 16 * 3 + 3
    assert found.facts["ways"] == {"graph rules": 195, "vmap": 0, "one by one": 0, "unused": 0}
    assert 0 <= found.facts["relative_error"] < 1e-5
    assert min(found.facts["seconds"][name] for name in ("forward", "query", "fit")) > 0
    assert found.facts["forwards"]["query"] > 0 and found.facts["forwards"]["fit"] > 0
    assert "10,000 points take about" in found["time"].seen


def test_memory_is_that_of_the_plan():
    model, batch = mlp(), drawn(12, 8)
    cost = slu.SLU(model, "classification").cost(batch=batch)
    planned = {"kept": cost.artefact, "fitting": cost.fitting, "querying": cost.querying}
    assert slu.doctor(model, batch).facts["bytes"] == planned


@pytest.mark.parametrize(
    ("likelihood", "targets"),
    [("classification", torch.arange(6) % 3), ("regression", drawn(6, 3)), ("multilabel", torch.ones(6, 3))],
)
def test_every_likelihood(likelihood, targets):
    found = slu.doctor(mlp(), (drawn(6, 8), targets), likelihood=likelihood)
    assert found.ok and found["targets"].seen == f"outputs and targets fit {likelihood}"


def test_a_loader_gives_its_first_batch_and_inputs_their_names():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 3)

        def forward(self, first, second):
            return self.layer(first + second)

    loader = [({"first": drawn(4, 8), "second": drawn(4, 8, seed=1)}, torch.zeros(4, dtype=torch.int64))]
    found = slu.doctor(Two(), loader)
    assert found.ok
    assert found["batch"].seen == "inputs: first float32 (4, 8), second float32 (4, 8); targets: int64 (4,)"


def test_selected_and_frozen_parameters_are_counted():
    model = mlp()
    model[0].requires_grad_(False)
    assert slu.doctor(model, drawn(4, 8))["parameters"].seen == (
        "51 of 195 selected, in 2 tensors; 144 are frozen or not chosen"
    )
    assert slu.doctor(model, drawn(4, 8), params="0.weight").facts["selected"] == 128


def test_outputs_in_a_dict_are_named():
    words = torch.randint(10, (4, 5), generator=torch.Generator().manual_seed(0))
    found = slu.doctor(Words(), words)
    assert found.ok and "outputs are its entry 'logits'" in found["call"].seen


def test_a_layer_without_graph_rule_is_slow_and_says_why():
    words = torch.randint(10, (4, 5), generator=torch.Generator().manual_seed(0))
    found = slu.doctor(Words(), words, forward=lambda model, batch: model(batch)["logits"])
    assert found["gradients"].status == found["speed"].status == "slow" and found.ok
    assert "recurrent (LSTM, 4 tensors): no graph rule for" in found["gradients"].seen
    assert found.facts["ways"]["vmap"] == sum(each.numel() for each in Words().recurrent.parameters())
    assert "not name.startswith(('recurrent.',))" in found["gradients"].remedy
    params = lambda name, _: not name.startswith(("recurrent.",))  # noqa: E731 (the remedy itself)
    cured = slu.doctor(Words(), words, params=params, forward=lambda model, batch: model(batch)["logits"])
    assert cured["gradients"].status == "ok"


class Branching(Words):
    """The same with control flow that depends on the data."""

    def forward(self, words):
        return super().forward(words if int(words.max()) < 100 else words - 100)["logits"]


def test_what_vmap_cannot_do_is_done_one_by_one_and_said():
    words = torch.randint(10, (4, 5), generator=torch.Generator().manual_seed(0))
    found = slu.doctor(Branching(), words)
    assert found.ok and found["gradients"].status == "slow"
    assert "one by one for 84.3% of the parameters" in found["gradients"].seen
    assert "vmap fails: the model failed on a batch" in found["gradients"].seen and len(found["gradients"].seen) < 400
    assert found.facts["ways"]["one by one"] == sum(each.numel() for each in Words().recurrent.parameters())
    assert found.facts["relative_error"] < 1e-5


def test_parameters_that_take_no_part_are_named():
    model = Applied(lambda layer, x: layer(x))
    model.spare = nn.Linear(5, 2)
    found = slu.doctor(model, drawn(4, 8))
    assert found["gradients"].status == "ok" and "unused for 30.8% of the parameters: 1 Linear" in (
        found["gradients"].seen
    )
    assert found.facts["ways"]["unused"] == 12


def test_many_outputs():
    found = slu.doctor(mlp(1200), drawn(4, 8))
    assert found.ok and found["speed"].status == "slow" and "1,200 outputs" in found["speed"].seen
    assert "outputs=1" in found["speed"].remedy


WARNED = {
    "softmax": (nn.Sequential(mlp(), nn.Softmax(1)), "probabilities", "look like probabilities", "log()", {}),
    "sigmoid": (
        nn.Sequential(mlp(), nn.Sigmoid()), "probabilities", "look like probabilities", "logit", {
            "likelihood": "multilabel"
        },
    ),
    "functions": (nn.LayerNorm(8), "layers", "no module has a weight matrix", "nn.Linear", {}),
}  # fmt: skip


@pytest.mark.parametrize("case", WARNED)
def test_warnings(case):
    model, name, seen, remedy, settings = WARNED[case]
    found = slu.doctor(model, drawn(6, 8), **settings)
    assert found.ok and found[name].status == "warning"
    assert seen in found[name].seen and remedy in found[name].remedy


def test_one_point_does_not_show_whether_points_are_independent():
    assert slu.doctor(mlp(), drawn(1, 8))["pointwise"].status == "warning"


def test_a_compiled_model_is_called_as_it_was_written():
    found = slu.doctor(torch.compile(mlp(), backend="eager"), drawn(6, 8))
    assert found.ok and "compiled by torch.compile" in found["model"].seen
    assert found["layers"] == slu.doctor(mlp(), drawn(6, 8))["layers"] and found["layers"].status == "ok"


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_scripted_model_has_no_layers():
    found = slu.doctor(torch.jit.script(mlp()), drawn(6, 8))
    assert found.ok and "scripted by torch.jit" in found["model"].seen
    assert found["call"].seen == "outputs are a tensor: 6 points, 3 outputs per point"
    assert found["layers"].status == "warning" and "scripted" in found["layers"].remedy


def test_layers_that_share_an_input_are_named():
    class Attending(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.head(self.query(x) * self.key(x))

    seen = slu.doctor(Attending(), drawn(6, 8))["layers"].seen
    assert seen.startswith("inputs of 2 of 3 layers") and seen.endswith("same input as another: key")


def broken(value):
    model = mlp()
    model[0].weight.data[0, 0] = value
    return model


@torch.no_grad()
def without_history(layer, x):
    return layer(x)


FAILING = {
    "no module": (lambda x: x, drawn(4, 8), "model", "not a torch.nn.Module", "pass the module", {}),
    "lazy": (nn.LazyLinear(3), drawn(4, 8), "parameters", "no values yet", "run one batch", {}),
    "not finite": (broken(float("nan")), drawn(4, 8), "parameters", "NaN or infinity", "", {}),
    "no such parameter": (mlp(), drawn(4, 8), "parameters", "'head.*'", "near it are", {"params": "head.*"}),
    "frozen": (mlp().requires_grad_(False), drawn(4, 8), "parameters", "none is trainable", "by a predicate", {}),
    "statistics": (
        nn.Sequential(nn.BatchNorm1d(8, track_running_stats=False), mlp()), drawn(4, 8),
        "parameters", "without running statistics", "track_running_stats=True", {},
    ),
    "NaN in the batch": (mlp(), drawn(4, 8) * float("nan"), "batch", "NaN or infinity", "remove or repair", {}),
    "empty batch": (mlp(), drawn(0, 8), "batch", "no points", "leave empty batches out", {}),
    "wrong shape": (mlp(), drawn(4, 9), "call", "cannot be multiplied", "Linear(in_features=8", {}),
    "wrong type": (mlp(), drawn(4, 8).double(), "call", "dtype", "weights are float32 and the inputs float64", {}),
    "whole numbers": (mlp(), torch.ones(4, 8, dtype=torch.int64), "call", "dtype", "and the inputs int64", {}),
    "index": (Words(), torch.full((4, 5), 12), "call", "index out of range", "up to 12, the tables have 10 rows", {}),
    "argument": (mlp(), {"pixels": drawn(4, 8)}, "batch", "'pixels'", "forward=lambda model, batch", {}),
    "no tensor": (
        Applied(lambda layer, x: "text"), drawn(4, 8), "call", "returned str", "", {}
    ),
    "no outputs per point": (Applied(lambda layer, x: layer(x).sum(0)), drawn(4, 8), "call", "rows", "", {}),
    "overflow": (Applied(lambda layer, x: layer(x) / 0), drawn(4, 8), "finite", "4 of 4 points", "model.float()", {}),
    "depends on the batch": (
        Applied(lambda layer, x: layer(x) - layer(x).mean(0)), drawn(4, 8), "pointwise", "rest of its batch", "", {}
    ),
    "no history": (
        Applied(without_history), drawn(4, 8), "gradients", "have no history", "Remove torch.no_grad()", {}
    ),
    "no gradient": (
        Applied(lambda layer, x: (layer(x) - 1e9).relu()), drawn(4, 8), "autograd", "gradient is zero", "double()", {}
    ),
    "reentrant": (
        Applied(lambda layer, x: checkpoint(layer, x.requires_grad_(), use_reentrant=True)), drawn(4, 8),
        "gradients", "reentrant activation checkpoints", "use_reentrant=False", {},
    ),
    "labels outside": (mlp(), (drawn(4, 8), torch.full((4,), 7)), "targets", "a target of 7", "number the classes", {}),
    "targets of another width": (
        mlp(), (drawn(4, 8), drawn(4, 2)), "targets", "the shape (4, 2)", "the columns", {"likelihood": "regression"}
    ),
    "one logit": (mlp(1), drawn(4, 8), "targets", "at least two outputs", "'multilabel'", {}),
}  # fmt: skip


@pytest.mark.parametrize("case", FAILING)
def test_failures_are_reported_with_a_remedy(case):
    model, batch, name, seen, remedy, settings = FAILING[case]
    found = slu.doctor(model, batch, **settings)
    assert not found.ok and found[name].status == "error", str(found)
    assert seen in found[name].seen and remedy in f"{found[name].seen}; {found[name].remedy}"
    assert "\n" not in found[name].seen
    assert bool(found.skipped) == (name in NEEDED)
    if not found.skipped:
        assert found["time"].seen.startswith("not measured")


def test_an_unknown_likelihood_is_the_callers_mistake():
    with pytest.raises(SettingError, match="unknown likelihood"):
        slu.doctor(mlp(), drawn(4, 8), likelihood="clasification")


def test_memory_that_is_not_there(monkeypatch):
    monkeypatch.setattr(module, "free_bytes", lambda device: 1000)
    found = slu.doctor(mlp(), drawn(4, 8))
    assert found["memory"].status == "error" and "1 kB are free" in found["memory"].seen
    assert found["time"].seen.startswith("not measured")


def test_wrong_gradients_would_be_seen(monkeypatch):
    from slu.diagnosis import ways
    from slu.gradients import PerExampleGradients, Rows

    class Wrong(PerExampleGradients):
        def __call__(self, inputs, vectors):
            for rows in super().__call__(inputs, vectors):
                yield Rows(rows.examples, rows.vectors, ((start, 1.1 * piece) for start, piece in rows.pieces))

    monkeypatch.setattr(ways, "PerExampleGradients", Wrong)
    found = slu.doctor(mlp(), drawn(4, 8))
    assert found["autograd"].status == "error" and found.facts["relative_error"] == pytest.approx(0.1, rel=1e-3)
    # Gradients that are missing count as wrong.
    monkeypatch.setattr(Wrong, "__call__", lambda self, inputs, vectors: iter(()))
    assert slu.doctor(mlp(), drawn(4, 8)).facts["relative_error"] == 1


class Interrupted:
    """Counts the calls of a layer; presses Ctrl-C at one of them."""

    def __init__(self):
        self.calls, self.stop = 0, None

    def __call__(self, layer, x):
        self.calls += 1
        if self.calls == self.stop:
            raise KeyboardInterrupt
        return layer(x)


@pytest.mark.parametrize("width", [8, 9])
def test_the_model_and_the_process_are_as_before(width):
    model, batch = Applied(lambda layer, x: nn.functional.dropout(layer(x), training=model.training)), drawn(4, width)
    model.drop = nn.Dropout()
    before, inputs = snapshot(model), batch.clone()
    assert slu.doctor(model, batch).ok == (width == 8)
    assert_same(before, snapshot(model))
    assert torch.equal(inputs, batch)


def test_the_model_is_as_before_after_an_interruption_at_any_call():
    key = Interrupted()
    model, batch = Applied(key), drawn(4, 8)
    before = snapshot(model)
    slu.doctor(model, batch)
    every = key.calls
    for stop in range(1, every, every // 12):
        key.calls, key.stop = 0, stop
        with pytest.raises(KeyboardInterrupt):
            slu.doctor(model, batch)
        assert_same(before, snapshot(model))


def test_as_text_and_as_plain_data():
    found = slu.doctor(nn.Sequential(mlp(), nn.Softmax(1)), (drawn(4, 8), torch.full((4,), 9)))
    text = str(found)
    assert repr(found) == text
    assert max(map(len, text.splitlines())) <= 100
    assert text.splitlines()[-1].startswith("not ok; error: targets; warning: probabilities")
    for check in found.checks:
        assert check.name in text and check.status in ("ok", "slow", "warning", "error")
    plain = json.loads(found.to_json())
    assert plain == json.loads(json.dumps(found.to_dict())) and plain["ok"] is False
    assert plain["checks"][3] == found["call"]._asdict()
    assert set(plain["versions"]) == {"slu", "torch", "python"}
    name, status, seen, remedy = found.checks[0]
    assert (name, status, remedy) == ("model", "ok", "") and seen.startswith("Sequential, 195 parameters in 4 tensors")
    with pytest.raises(KeyError, match="no check 'speeed'"):
        found["speeed"]


def test_wrappers_are_named():
    model = mlp()
    assert "quantized" not in slu.doctor(model, drawn(4, 8))["model"].seen
    model.peft_config = {}
    assert "with adapters of peft" in slu.doctor(model, drawn(4, 8))["model"].seen
    model[0].register_parameter("packed", nn.Parameter(torch.ones(2, dtype=torch.int8), requires_grad=False))
    found = slu.doctor(model, drawn(4, 8))
    assert found["model"].status == "warning" and "quantized" in found["model"].seen
    assert "float model" in found["model"].remedy and found.ok
    assert "wrapped in DataParallel" in slu.doctor(nn.DataParallel(mlp()), drawn(4, 8))["model"].seen
