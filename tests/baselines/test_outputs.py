"""Scores of the outputs alone against scipy and numpy in float64."""

import copy

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import nn

from oracles import NETWORKS, network, outputs_of
from shorthand import split
from slu.artifacts import read
from slu.baselines.outputs import Energy, Entropy, MaxLogit, MaxProbability
from slu.cli.contents import contents
from slu.cli.inspect import _sections
from slu.core.protocols import Method, Score
from slu.errors import DataError, MismatchError, ModelError, SelectionError, SettingError, StorageError
from untouched import assert_same, snapshot

METHODS = {
    MaxLogit: ("max-logit", lambda f: -f.max(1)),
    MaxProbability: ("max-probability", lambda f: 1 - special.softmax(f, axis=1).max(1)),
    Entropy: ("entropy", lambda f: stats.entropy(special.softmax(f, axis=1), axis=1)),
    Energy: ("energy", lambda f: -special.logsumexp(f, axis=1)),
}
each_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)


class Given(nn.Module):
    """Gives its inputs as logits, so that they can be any."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=dtype))

    def forward(self, inputs):
        return self.scale * inputs


@each_method
@pytest.mark.parametrize("kind", NETWORKS)
def test_formulas(method, kind):
    model, inputs = network(kind)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = METHODS[method][1](outputs_of(model, inputs).detach().numpy())
    score = method(model).fit()
    np.testing.assert_allclose(score(inputs), expected, rtol=1e-10)
    for sizes in ([5, 7], [1] * 12):
        np.testing.assert_allclose(score(split(inputs, sizes=sizes)), expected, rtol=1e-10)


@each_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_confident_networks_have_no_ties(method, dtype):
    """Leads from 10 to 600: in float32 π rounds to 1 from 17 on, and plain formulas say 0 for all of these."""
    leads = torch.arange(10, 601, 10).to(dtype)
    outputs = torch.zeros(len(leads), 3, dtype=dtype)
    outputs[:, 1] = leads
    scores = method(Given(dtype)).fit()(outputs)
    assert scores.dtype == torch.float64
    assert len(scores.unique()) == len(leads.unique())
    assert bool((scores.diff()[leads.diff() > 0] < 0).all()), "surer means lower"
    # The control: what the formula of the textbook says of the same outputs.
    plain = 1 - outputs.float().softmax(1).amax(1)
    assert len(plain.unique()) < 5


@pytest.mark.parametrize("lead", [1.0, 30.0, 300.0])
def test_confident_values_are_right(lead):
    """1 - π and the entropy to first order in the others' probabilities, from logarithms."""
    outputs = torch.tensor([[0.0, lead, -2.0]], dtype=torch.float64)
    log_other = special.logsumexp([0.0, -2.0]) - special.logsumexp([0.0, lead, -2.0])
    scores = float(MaxProbability(Given()).fit()(outputs))
    assert np.log(scores) == pytest.approx(log_other, rel=1e-13)
    logs = outputs.numpy()[0] - special.logsumexp(outputs.numpy()[0])
    others = np.array([logs[0], logs[2]])
    expected = -np.exp(others) @ others - (1 - np.exp(log_other)) * np.log1p(-np.exp(log_other))
    assert float(Entropy(Given()).fit()(outputs)) == pytest.approx(expected, rel=1e-12, abs=0)


@each_method
def test_surface_and_cost(method):
    model, inputs = network("mlp")
    made = method(model)
    score = made.fit([inputs[:4], inputs[4:]], progress=False)
    assert isinstance(made, Method) and isinstance(score, Score)
    assert score.readings == (METHODS[method][0],)
    assert torch.equal(score(inputs), score(inputs, reading=score.readings[0]))
    with pytest.raises(SettingError, match=f"unknown reading 'variance'; valid are '{score.readings[0]}'"):
        score(inputs, reading="variance")
    cost = made.cost(outputs=3, batch=5)
    assert (cost.artefact, cost.fitting, cost.querying, cost.passes) == (0, 0, 0, 0)


@each_method
def test_one_score_belongs_to_all_outputs(method):
    model, inputs = network("mlp")
    with pytest.raises(SettingError, match="belongs to all outputs"):
        method(model).fit()(inputs, per_output=True)


@each_method
def test_files(method, tmp_path):
    model, inputs = network("conv")
    score = method(model).fit()
    path = tmp_path / "net.slu"
    score.save(path)
    assert read(path)[1] == {}
    again = method.load(path, copy.deepcopy(model))
    assert torch.equal(again(inputs), score(inputs))
    told = contents(path)
    assert told["method"] == method.__name__ and told["kind"] == "score"
    assert _sections(told)[""]["tensors"] == "none"
    other = MaxLogit if method is not MaxLogit else Energy
    with pytest.raises(StorageError, match=f"holds a score of {method.__name__}, {other.__name__} cannot load it"):
        other.load(path, model)
    model(inputs)  # in training mode: the running statistics move
    with pytest.raises(MismatchError, match=r"the values of 1.running_mean have changed"):
        method.load(path, model)


def test_a_network_trained_further_between_fit_and_save(tmp_path):
    model, _ = network("mlp")
    at_the_fit = copy.deepcopy(model)
    score = MaxLogit(model).fit()
    model[0].bias.detach().add_(1)
    score.save(tmp_path / "net.slu")
    with pytest.raises(MismatchError, match=r"the values of 0.bias have changed"):
        MaxLogit.load(tmp_path / "net.slu", model)
    MaxLogit.load(tmp_path / "net.slu", at_the_fit)


def test_a_forward_of_the_users_own(tmp_path):
    model, inputs = network("mlp")

    def doubled(model, inputs):
        return 2 * model(inputs)

    score = MaxLogit(model, forward=doubled).fit()
    torch.testing.assert_close(score(inputs), 2 * MaxLogit(model).fit()(inputs), rtol=1e-12, atol=0)
    score.save(tmp_path / "net.slu")
    with pytest.raises(MismatchError, match="pass the same function as forward="):
        MaxLogit.load(tmp_path / "net.slu", model)
    assert torch.equal(MaxLogit.load(tmp_path / "net.slu", model, forward=doubled)(inputs), score(inputs))


@each_method
def test_the_model_is_untouched(method):
    model, inputs = network("encoder")
    before = snapshot(model)
    score = method(model).fit(inputs)
    score(inputs)
    assert_same(before, snapshot(model))
    with pytest.raises(DataError, match="batch 1"):
        score([inputs, inputs[:0]])
    assert_same(before, snapshot(model))


@each_method
def test_frozen_networks_are_as_good(method):
    model, inputs = network("mlp")
    trainable = method(model).fit()(inputs)
    assert torch.equal(method(model.requires_grad_(False)).fit()(inputs), trainable)


@each_method
def test_one_output_is_refused_with_a_remedy(method):
    model, inputs = network("mlp", outputs=1)
    message = r"at least two classes, the model has one output .* \(0, f\) with forward="
    with pytest.raises(DataError, match=message):
        method(model).fit(inputs)
    score = method(model).fit()
    with pytest.raises(DataError, match=message):
        score(inputs)

    def stacked(model, inputs):  # the remedy
        logit = model(inputs)
        return torch.cat([torch.zeros_like(logit), logit], 1)

    assert method(model, forward=stacked).fit(inputs)(inputs).shape == (12,)


def test_what_is_refused():
    with pytest.raises(ModelError, match=r"must be a torch.nn.Module, got int"):
        MaxLogit(3)
    with pytest.raises(SelectionError, match="none of the model's 0 parameters"):
        MaxLogit(nn.ReLU())
    model, inputs = network("mlp")
    score = MaxLogit(model).fit()
    model[2].bias.detach()[0] = float("nan")
    with pytest.raises(MismatchError, match=r"the values of 2\.bias have changed"):
        score(inputs)
    score.check_weights = False
    with pytest.raises(DataError, match="outputs on batch 0 hold NaN"):
        score(inputs)
    with pytest.raises(ModelError, match=r"2\.bias holds NaN or infinity"):
        MaxLogit(model)
