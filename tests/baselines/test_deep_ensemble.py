"""Ensembles against numpy's formulas; files that need the first member alone."""

import copy

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import nn

from awkward import WritesBuffer
from oracles import NETWORKS, network, outputs_of
from shorthand import split
from slu.artifacts import read, write
from slu.baselines.deep_ensemble import DeepEnsemble
from slu.baselines.predictions import READINGS
from slu.cli.contents import contents
from slu.cli.inspect import _sections
from slu.errors import DamagedFileError, DataError, MismatchError, ModelError, SettingError, StorageError
from slu.likelihoods import Classification
from untouched import assert_same, snapshot


def members(kind="conv", count=3, dtype=torch.float64):
    models = [network(kind, seed)[0].to(dtype) for seed in range(count)]
    return models, network(kind)[1].to(dtype)


def stacked(models, inputs):
    """(m, b, t) outputs, as numpy."""
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        return np.stack([outputs_of(model, inputs).detach().numpy() for model in models])


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("count", [2, 5])
def test_formulas(kind, count):
    models, inputs = members(kind, count)
    outputs = stacked(models, inputs)
    score = DeepEnsemble(models, "classification").fit()
    np.testing.assert_allclose(score(inputs, per_output=True), np.var(outputs, axis=0), rtol=1e-9)
    np.testing.assert_allclose(score(inputs), np.var(outputs, axis=0).sum(1), rtol=1e-9)
    probability = special.softmax(outputs, axis=-1)
    total = stats.entropy(probability.mean(0), axis=-1)
    expected = total - stats.entropy(probability, axis=-1).mean(0)
    np.testing.assert_allclose(score(inputs, reading="entropy"), total, rtol=1e-10)
    np.testing.assert_allclose(score(inputs, reading="mutual-information"), expected, rtol=1e-8)
    for sizes in ([5, 7], [11, 1]):
        for reading in score.readings:
            scores = score(split(inputs, sizes=sizes), reading=reading)
            torch.testing.assert_close(scores, score(inputs, reading=reading), rtol=1e-9, atol=0)


def test_multilabel_and_regression():
    models, inputs = members("mlp", 4)
    outputs = stacked(models, inputs)
    score = DeepEnsemble(models, "multilabel").fit(inputs)
    probability = np.stack([special.expit(outputs), special.expit(-outputs)], -1)
    total = stats.entropy(probability.mean(0), axis=-1)
    expected = (total - stats.entropy(probability, axis=-1).mean(0)).sum(-1)
    np.testing.assert_allclose(score(inputs, reading="mutual-information"), expected, rtol=1e-8)
    np.testing.assert_allclose(score(inputs, reading="entropy"), total.sum(-1), rtol=1e-10)
    score = DeepEnsemble(models, "regression").fit(inputs)
    assert score.readings == ("variance",)
    np.testing.assert_allclose(score(inputs), np.var(outputs, axis=0).sum(1), rtol=1e-9)
    with pytest.raises(SettingError, match=r"'entropy' needs predicted probabilities, .* valid are 'variance'"):
        score(inputs, reading="entropy")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["conv", "encoder"])
def test_identical_members_score_exactly_zero(kind, dtype):
    models, inputs = members(kind, 1, dtype)
    same = [models[0], copy.deepcopy(models[0]), models[0]]
    score = DeepEnsemble(same, "classification").fit(inputs)
    for reading in ("variance", "mutual-information"):
        assert bool((score(inputs, reading=reading) == 0).all())
    assert bool((score(inputs, reading="entropy") > 0).all())
    # The control: one weight of one member a little off.
    list(same[1].parameters())[-1].detach()[0] += 0.1
    assert bool((score(inputs) > 0).all())


def test_members_of_different_structure():
    models, inputs = members("mlp", 1)
    torch_state = torch.Generator().manual_seed(0)
    other = nn.Linear(4, 3).double()
    with torch.no_grad():
        other.weight.copy_(torch.randn(3, 4, generator=torch_state))
    both = [models[0], other]
    score = DeepEnsemble(both, "classification").fit(inputs)
    np.testing.assert_allclose(score(inputs), np.var(stacked(both, inputs), axis=0).sum(1), rtol=1e-9)


def test_a_forward_of_the_users_own():
    models, inputs = members("mlp", 2)
    score = DeepEnsemble(models, "classification", forward=lambda model, inputs: 2 * model(inputs)).fit()
    torch.testing.assert_close(score(inputs), 4 * DeepEnsemble(models, "classification").fit()(inputs))


def test_frozen_members_are_as_good():
    models, inputs = members("mlp", 2)
    expected = DeepEnsemble(models, "classification").fit()(inputs)
    frozen = [model.requires_grad_(False) for model in models]
    assert torch.equal(DeepEnsemble(nn.ModuleList(frozen), "classification").fit()(inputs), expected)


@pytest.mark.parametrize("kind", ["conv", "encoder"])
def test_the_members_are_untouched_also_after_an_exception(kind):
    models, inputs = members(kind, 3)
    models[1].eval()
    before = [snapshot(model) for model in models]
    score = DeepEnsemble(models, "classification").fit(inputs)
    score(inputs)
    with pytest.raises(DataError, match="batch 1"):
        score([inputs, inputs[:0]])
    for was, model in zip(before, models, strict=True):
        assert_same(was, snapshot(model))


def test_cost_is_what_is_held_beside_the_first():
    models, _ = members("mlp", 4)
    cost = DeepEnsemble(models, "classification").cost()
    p = 51 * 8
    assert (cost.artefact, cost.querying, cost.fitting, cost.trainings) == (3 * p, 3 * p, 6 * p, 4)
    assert DeepEnsemble(models, "classification", params="2.*").cost().artefact == 3 * 21 * 8


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_files_need_the_first_member_alone(kind, dtype, tmp_path):
    models, inputs = members(kind, 3, dtype)
    score = DeepEnsemble(models, "classification").fit(inputs)
    score.save(tmp_path / "net.slu")
    first = copy.deepcopy(models[0])
    before = snapshot(first)
    again = DeepEnsemble.load(tmp_path / "net.slu", first)
    for _ in range(2):
        for reading in READINGS:
            assert torch.equal(again(inputs, reading=reading), score(inputs, reading=reading))
    assert_same(before, snapshot(first))
    again.save(tmp_path / "again.slu")
    saved, resaved = read(tmp_path / "net.slu"), read(tmp_path / "again.slu")
    assert saved[0] == resaved[0] and all(torch.equal(saved[1][name], resaved[1][name]) for name in saved[1])
    assert again.method.cost() == score.method.cost()


def test_buffers_that_are_written_in_eval_mode(tmp_path):
    """What one call writes must not reach the next."""
    models, inputs = members("mlp", 1)
    models = [WritesBuffer().double() for _ in range(2)]
    score = DeepEnsemble(models, "classification").fit(inputs)
    score.save(tmp_path / "net.slu")
    again = DeepEnsemble.load(tmp_path / "net.slu", models[0])
    first = again(inputs)
    assert torch.equal(again(inputs), first)
    again.save(tmp_path / "again.slu")
    tensors, later = read(tmp_path / "net.slu")[1], read(tmp_path / "again.slu")[1]
    assert all(torch.equal(tensors[name], later[name]) for name in tensors)


def test_what_a_file_holds_can_be_shown(tmp_path):
    models, _ = members("mlp", 2)
    DeepEnsemble(models, "classification").fit().save(tmp_path / "net.slu")
    told = contents(tmp_path / "net.slu")
    assert (told["method"], told["settings"]["members"]) == ("DeepEnsemble", 2)
    assert _sections(told)["settings"]["members"] == "2"


class Scaled(nn.Module):
    """The same tensors under the same names whatever its settings."""

    def __init__(self, scale=1.0, act=torch.tanh):
        super().__init__()
        self.layer, self.scale, self.act = nn.Linear(4, 3).double(), scale, act

    def forward(self, inputs):
        return self.scale * self.act(self.layer(inputs))


@pytest.mark.parametrize(
    ("first", "other", "where"),
    [
        (nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 3)), "the module itself"),
        (nn.Sequential(nn.Linear(4, 3), nn.Tanh()), nn.Sequential(nn.Linear(4, 3), nn.ReLU()), "1"),
        (nn.Sequential(nn.Linear(4, 3)), nn.Sequential(nn.Linear(4, 3, bias=False)), "0"),
        (nn.Sequential(nn.LeakyReLU(0.1), nn.Linear(4, 3)), nn.Sequential(nn.LeakyReLU(), nn.Linear(4, 3)), "0"),
        (Scaled(1.0), Scaled(2.0), "the module itself"),
        (Scaled(act=torch.tanh), Scaled(act=torch.relu), "the module itself"),
    ],
    ids=["depth", "activation", "bias", "setting", "attribute", "function"],
)
def test_members_of_different_structure_cannot_be_saved(first, other, where, tmp_path):
    """Weights of the one in the code of the other would be another network."""
    score = DeepEnsemble([first, other], "classification").fit()
    with pytest.raises(StorageError, match=rf"member 1 is built differently from the first \(see {where}\).*yourself"):
        score.save(tmp_path / "net.slu")
    assert not (tmp_path / "net.slu").exists()
    # The control: modes and hooks are no structure.
    same = copy.deepcopy(first).eval()
    same.register_full_backward_hook(lambda *_: None)
    DeepEnsemble([first, same], "classification").fit().save(tmp_path / "net.slu")


def test_members_trained_further_between_fit_and_save(tmp_path):
    models, _ = members("mlp", 2)
    at_the_fit = copy.deepcopy(models[0])
    score = DeepEnsemble(models, "classification").fit()
    models[1][0].weight.detach().add_(0.1)
    with pytest.raises(StorageError, match=r"member 1 is not what it was at the fit: the values of 0.weight"):
        score.save(tmp_path / "net.slu")
    score = DeepEnsemble(models, "classification").fit()
    models[0][0].weight.detach().add_(0.1)
    score.save(tmp_path / "net.slu")
    with pytest.raises(MismatchError, match=r"the values of 0.weight have changed"):
        DeepEnsemble.load(tmp_path / "net.slu", models[0])
    DeepEnsemble.load(tmp_path / "net.slu", at_the_fit)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header, tensors: tensors.pop("1/0.weight"), "1/0.weight is missing"),
        (lambda header, tensors: tensors.update({"2/1.running_var": torch.ones(2)}), "2/1.running_var is of the shape"),
        (lambda header, tensors: header["settings"].update(members=4), "members is 4, expected 3"),
        (
            lambda header, tensors: header["settings"].update(members=2**63),
            "members is 922.*, expected 3",
        ),
        (lambda header, tensors: tensors["1/0.weight"].view(-1)[:1].fill_(torch.nan), "1/0.weight holds 1 numbers"),
        (lambda header, tensors: header["settings"].update(members=1), "members is 1, expected a whole number from 2"),
        (lambda header, tensors: header["settings"].pop("members"), "members is missing"),
    ],
    ids=["missing", "shape", "more", "far more", "NaN", "one", "setting"],
)
def test_files_that_do_not_fit_together(change, message, tmp_path):
    models, _ = members("conv", 3)
    path = tmp_path / "net.slu"
    DeepEnsemble(models, "classification").fit().save(path)
    header, tensors = read(path)
    del header["tensors"]  # as of files of before
    change(header, tensors)
    write(path, tensors, header)
    with pytest.raises(DamagedFileError, match=message):
        DeepEnsemble.load(path, models[0])


def test_a_likelihood_of_the_users_own(tmp_path):
    class Tempered(Classification):
        pass

    models, inputs = members("mlp", 2)
    score = DeepEnsemble(models, Tempered()).fit()
    assert score.readings == ("variance",)
    score.save(tmp_path / "net.slu")
    with pytest.raises(MismatchError, match="pass that object as likelihood="):
        DeepEnsemble.load(tmp_path / "net.slu", models[0])
    assert torch.equal(DeepEnsemble.load(tmp_path / "net.slu", models[0], likelihood=Tempered())(inputs), score(inputs))


def test_what_is_refused():
    models, inputs = members("mlp", 2)
    with pytest.raises(SettingError, match="one model is no ensemble; pass a list of at least two"):
        DeepEnsemble(models[0], "classification")
    with pytest.raises(SettingError, match="at least two members, got 1"):
        DeepEnsemble(models[:1], "classification")
    with pytest.raises(SettingError, match="must be a list of modules, got int"):
        DeepEnsemble(3, "classification")
    with pytest.raises(ModelError, match=r"member 1 must be a torch.nn.Module, got str"):
        DeepEnsemble([models[0], "net"], "classification")
    with pytest.raises(SettingError, match="unknown likelihood 'clasification'"):
        DeepEnsemble(models, "clasification")
    with pytest.raises(SettingError, match="unknown reading 'varience'"):
        DeepEnsemble(models, "classification").fit()(inputs, reading="varience")
    more = [models[0], network("mlp", outputs=4)[0]]
    with pytest.raises(DataError, match=r"the members have \[3, 4\] outputs per point"):
        DeepEnsemble(more, "classification").fit(inputs)
    with pytest.raises(DataError, match=r"member 2 of the ensemble gave outputs of the shape \(12, 4\)"):
        DeepEnsemble(more, "classification").fit()(inputs)
    method = DeepEnsemble(models, "classification")
    models[1][2].bias.detach()[1] = float("nan")
    with pytest.raises(ModelError, match=r"member 1 of the ensemble: 2\.bias holds NaN"):
        method.fit()
    models[1][2].bias.detach()[1] = 0.0
    score = method.fit()
    models[1][2].bias.detach()[1] = float("inf")
    with pytest.raises(DataError, match="the outputs of member 1 on batch 0 hold NaN or infinity"):
        score(inputs)
