"""A SWAG that was saved is the same SWAG, for the same network; everything else is refused in words."""

import copy

import pytest
import torch

from oracles import network, targets_for
from shorthand import split
from slu.artifacts import read, write
from slu.baselines.outputs import MaxLogit
from slu.baselines.swag import swag
from slu.baselines.swag.swag import SWAG
from slu.cli.contents import contents
from slu.cli.inspect import _sections
from slu.errors import DamagedFileError, MismatchError, SettingError, StorageError
from slu.likelihoods import Regression

SETTINGS = {"rank": 2, "samples": 3, "collections": 3, "learning_rate": 0.05}


def fitted(kind="conv", likelihood="classification", dtype=torch.float64, **settings):
    model, inputs = network(kind)
    model, inputs = model.to(dtype), inputs.to(dtype)
    name = likelihood if isinstance(likelihood, str) else "regression"
    targets = targets_for(name)
    targets = targets.to(dtype) if targets.is_floating_point() else targets
    score = SWAG(model, likelihood, **{**SETTINGS, **settings}).fit(split(inputs, targets, sizes=[5, 7]))
    return model, inputs, score


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("likelihood", "settings"),
    [
        ("classification", {}),
        (Regression(0.3), {"rank": 1, "params": ["*.weight"]}),
        ("multilabel", {"deviations": "running", "refit_batchnorm": False, "collect_every": 2, "seed": 4}),
        ("classification", {"schedule": "cosine", "batchnorm_batches": 1, "weight_decay": 0.1}),
    ],
    ids=["plain", "diagonal", "authors", "cosine"],
)
def test_everything_comes_back(likelihood, settings, dtype, tmp_path):
    model, inputs, score = fitted("conv", likelihood, dtype, **settings)
    path = tmp_path / "net.slu"
    score.save(path)
    again = SWAG.load(path, copy.deepcopy(model))
    for reading in score.readings:
        assert torch.equal(again(inputs, reading=reading), score(inputs, reading=reading))
    assert again.losses == score.losses
    for name in ("rank", "samples", "descent", "deviations", "refit_batchnorm", "batchnorm_batches", "seed"):
        assert getattr(again.method, name) == getattr(score.method, name)
    assert again.method.network.selection == score.method.network.selection
    again.save(tmp_path / "again.slu")
    first, second = read(path), read(tmp_path / "again.slu")
    assert first[0] == second[0] and all(torch.equal(first[1][name], second[1][name]) for name in first[1])


def test_nothing_of_samples_times_parameters_is_in_the_file(tmp_path):
    _, _, score = fitted("mlp", samples=1000)
    score.save(tmp_path / "net.slu")
    numbers = sum(tensor.numel() for tensor in read(tmp_path / "net.slu")[1].values())
    assert numbers < 5 * 51


def test_a_schedule_of_the_users_own(tmp_path):
    model, inputs, score = fitted(schedule=lambda step: 1 / (1 + step))
    score.save(tmp_path / "net.slu")
    assert read(tmp_path / "net.slu")[0]["settings"]["schedule"] == "own"
    again = SWAG.load(tmp_path / "net.slu", model)
    assert torch.equal(again(inputs), score(inputs))
    with pytest.raises(SettingError, match="a schedule of the user's own, which is not in its file"):
        again.method.fit((inputs, targets_for("classification")))


def test_what_a_file_holds_can_be_shown(tmp_path):
    _, _, score = fitted()
    score.save(tmp_path / "net.slu")
    told = contents(tmp_path / "net.slu")
    assert (told["method"], told["settings"]["collections"]) == ("SWAG", 3)
    sections = _sections(told)
    assert sections["settings"]["deviations"] == "final"
    assert "deviations 2×" in sections[""]["tensors"]


def test_another_networks_and_methods_files(tmp_path):
    model, inputs, score = fitted()
    path = tmp_path / "net.slu"
    score.save(path)
    with pytest.raises(StorageError, match="holds a score of SWAG, MaxLogit cannot load it"):
        MaxLogit.load(path, model)
    with pytest.raises(MismatchError, match=r"not with regression\("):
        SWAG.load(path, model, likelihood="regression")
    with pytest.raises(MismatchError, match="fitted without a forward="):
        SWAG.load(path, model, forward=lambda model, inputs: model(inputs))
    model(inputs)  # in training mode: the running statistics move
    with pytest.raises(MismatchError, match=r"the values of 1.running_mean have changed"):
        SWAG.load(path, model)
    MaxLogit(model).fit().save(path)
    with pytest.raises(StorageError, match="holds a score of MaxLogit, SWAG cannot load it"):
        SWAG.load(path, model)


def test_a_network_trained_further_between_fit_and_save(tmp_path):
    model, inputs, score = fitted("mlp")
    at_the_fit = copy.deepcopy(model)
    expected = score(inputs)
    model[0].weight.detach().add_(0.1)
    score.save(tmp_path / "net.slu")
    with pytest.raises(MismatchError, match=r"the values of 0.weight have changed"):
        SWAG.load(tmp_path / "net.slu", model)
    assert torch.equal(SWAG.load(tmp_path / "net.slu", at_the_fit)(inputs), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header, tensors: header["settings"].pop("rank"), "rank is missing"),
        (lambda header, tensors: header["settings"].update(rank=3), "deviations is of the shape"),
        (lambda header, tensors: header["settings"].update(schedule="linear"), "makes no sense: unknown schedule"),
        (lambda header, tensors: header["settings"].update(colour="red"), "makes no sense"),
        (lambda header, tensors: tensors.pop("mean"), "the list of tensors"),
        (lambda header, tensors: tensors.pop("statistics/1.running_var"), "the list of tensors"),
        (lambda header, tensors: tensors.update(variance=torch.ones(3)), "variance is of the shape"),
        (lambda header, tensors: tensors["variance"].neg_(), "not finite and at least 0"),
        (lambda header, tensors: tensors["mean"].fill_(torch.nan), "mean holds"),
        (lambda header, tensors: tensors["losses"].fill_(torch.inf), "losses holds"),
        (lambda header, tensors: header["settings"].update(samples=2**63), "samples must be at most 1000000"),
        (lambda header, tensors: header["settings"].update(momentum=10**400), "momentum must be a number"),
        (lambda header, tensors: header["settings"].update(weight_decay=10**400), "weight_decay must be a number"),
    ],
    ids=[
        "no rank",
        "another rank",
        "schedule",
        "setting",
        "no mean",
        "no statistics",
        "shape",
        "negative",
        "NaN",
        "inf",
        "samples",
        "momentum",
        "decay",
    ],
)
def test_files_that_do_not_fit_together(change, message, tmp_path):
    model, _, score = fitted()
    path = tmp_path / "net.slu"
    score.save(path)
    header, tensors = read(path)
    del header["tensors"]  # as of files of before
    change(header, tensors)
    write(path, tensors, header)
    with pytest.raises(DamagedFileError, match=message):
        SWAG.load(path, model)


def test_a_damaged_file(tmp_path):
    model, _, score = fitted()
    path = tmp_path / "net.slu"
    score.save(path)
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match="checksum"):
        SWAG.load(path, model)


def test_draws_that_cannot_be_repeated(tmp_path, monkeypatch):
    """As with a version of torch whose generator differs: the statistics in the file would be of other samples."""
    model, _, score = fitted()
    score.save(tmp_path / "net.slu")
    monkeypatch.setattr(swag, "first_draws", lambda seed, dtype: torch.zeros(16, dtype=dtype))
    with pytest.raises(MismatchError, match=r"cannot be drawn again with torch .*; use the version named by"):
        SWAG.load(tmp_path / "net.slu", model)
