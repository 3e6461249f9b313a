"""SCOD's file: what is saved, loaded, looked into and refused; a likelihood of the user's own."""

import copy

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from oracles import (
    network,
)
from shorthand import relative_error
from slu import SLU
from slu.artifacts import read, write
from slu.baselines.scod import SCOD
from slu.cli import app
from slu.core.readout import GRADIENT_READINGS
from slu.errors import (
    DamagedFileError,
    MismatchError,
    StorageError,
)
from slu.likelihoods import Classification, Multilabel


class Warm(Classification):
    """A likelihood of the user's own: a softmax at another temperature."""

    def hessian_product(self, outputs, vectors):
        return super().hessian_product(outputs / 2, vectors) / 4

    def factor_product(self, outputs, vectors, *, transpose=False):
        return super().factor_product(outputs / 2, vectors, transpose=transpose) / 2


@pytest.mark.parametrize("factor", ["exact", "hessian"])
def test_a_likelihood_of_the_users_own(factor, tmp_path):
    model, inputs = network("mlp")
    score = SCOD(model, Warm(), rank=2, factor=factor).fit(inputs)
    plain = SCOD(model, "classification", rank=2, factor=factor).fit(inputs)
    assert relative_error(score(inputs), plain(inputs)) > 0.1
    score.save(tmp_path / "net.slu")
    with pytest.raises(MismatchError, match="pass that object as likelihood="):
        SCOD.load(tmp_path / "net.slu", model)
    assert torch.equal(SCOD.load(tmp_path / "net.slu", model, likelihood=Warm())(inputs), score(inputs))


SETTINGS = [
    {},
    {"prior_precision": "paper", "sketch_rows": 30},
    {"prior_precision": 0.3, "curvature": "fisher", "seed": 4, "params": "2.*"},
    {"factor": "hessian", "rank": None, "budget": "2p"},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_saved_score_says_the_same(dtype, settings, tmp_path):
    model, inputs = network("mlp")
    model, inputs = model.to(dtype), inputs.to(dtype)
    score = SCOD(model, Multilabel([0.5, 1.0, 2.0]), **{"rank": 3, **settings}).fit(inputs)
    score.save(tmp_path / "net.slu")
    again = SCOD.load(tmp_path / "net.slu", copy.deepcopy(model))
    for reading in GRADIENT_READINGS:
        assert torch.equal(again(inputs, reading=reading), score(inputs, reading=reading))
    for name in ("rank", "sketch_rows", "prior_precision", "factor", "curvature", "seed"):
        assert getattr(again.method, name) == getattr(score.method, name)
    assert again.method.network.selection == score.method.network.selection
    assert (again.prior_precision, again.points) == (score.prior_precision, score.points)
    assert np.array_equal(again.eigenvalues, score.eigenvalues)
    again.save(tmp_path / "again.slu")
    assert read(tmp_path / "again.slu")[0] == read(tmp_path / "net.slu")[0]


def test_a_file_can_be_looked_into(tmp_path):
    model, inputs = network("mlp")
    SCOD(model, "classification", rank=3).fit(inputs).save(tmp_path / "net.slu")
    result = CliRunner().invoke(app, ["inspect", str(tmp_path / "net.slu")], env={"NO_COLOR": "1", "TERM": "dumb"})
    assert result.exit_code == 0, result.output
    for text in ("a score of SCOD", "basis 3×51 float64", "points          12", "sketch_rows     22"):
        assert text in result.stdout


def test_files_that_make_no_sense(tmp_path):
    path = tmp_path / "net.slu"
    model, inputs = network("mlp")
    SCOD(model, "classification", rank=3).fit(inputs).save(path)
    with pytest.raises(StorageError, match="holds a score of SCOD, SLU cannot load it"):
        SLU.load(path, model)
    header, tensors = read(path)
    for change in (
        {"prior_precision": -1.0},
        {"rank": 2},
        {"rank": 10**9},
        {"rank": "three"},
        {"sketch_rows": 3},
        {"factor": "root"},
        {"points": 0},
        {"curvature": "hessian"},
        {"nonsense": 1},
    ):
        write(path, tensors, {**header, "settings": {**header["settings"], **change}})
        with pytest.raises(DamagedFileError, match=r"net\.slu"):
            SCOD.load(path, model)
    for name in tensors:
        for bad in (tensors[name][1:], tensors[name][None], tensors[name][:0], -tensors["eigenvalues"], None):
            write(path, {**tensors, name: bad} if bad is not None else {"other": tensors[name]}, header)
            with pytest.raises(DamagedFileError, match=r"net\.slu"):
                SCOD.load(path, model)
    write(path, tensors, header)
    damaged = bytearray(path.read_bytes())
    damaged[-20] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(DamagedFileError):
        SCOD.load(path, model)
    write(path, tensors, header)
    with pytest.raises(MismatchError, match="another network"):
        SCOD.load(path, network("mlp", seed=1)[0])
