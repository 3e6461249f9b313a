"""The forward of a fit is described in its file; another one at load is noticed."""

import functools

import pytest
import torch

from oracles import network
from slu import SLU
from slu.artifacts import read, write
from slu.artifacts.artifact import described_forward
from slu.errors import MismatchError, MisuseWarning


def scaled(factor):
    return lambda model, inputs: model(inputs) * factor


def halved(model, inputs):
    """Outputs over two."""
    return model(inputs) / 2.0


class Called:
    def __call__(self, model, inputs):
        return model(inputs).float()


FORWARDS = {
    "function": halved,
    "logits": lambda model, inputs: model(**inputs).logits,
    "first": lambda model, inputs: model(**inputs)[0],
    "second": lambda model, inputs: model(**inputs)[1],
    "first columns": lambda model, inputs: model(inputs)[:, :4],
    "other columns": lambda model, inputs: model(inputs)[:, 4:5],
    "last": lambda model, inputs: model(inputs)[-1],
    "one of two": lambda model, inputs: model(inputs) if len(inputs) in (7, 9) else inputs,
    "one of two others": lambda model, inputs: model(inputs) if len(inputs) in (7, 8) else inputs,
    "two": scaled(2.0),
    "three": scaled(3.0),
    "partial": functools.partial(halved, inputs="x"),
    "object": Called(),
    "method": Called().__call__,
    "thirds": lambda model, inputs: model(inputs) / 3.5,
    "nested": lambda model, inputs: [each.logits for each in model(inputs)],
}


def test_hashes_tell_functions_apart_and_are_the_same_again():
    hashes = {name: described_forward(forward)["hash"] for name, forward in FORWARDS.items()}
    assert hashes["object"] == hashes.pop("method")
    assert len(set(hashes.values())) == len(hashes)
    assert described_forward(scaled(2.0)) == described_forward(scaled(2.0))
    assert None not in hashes.values()


def test_builtins_have_a_name_alone():
    assert described_forward(torch.add)["hash"] is None and "add" in described_forward(torch.add)["name"]


@pytest.fixture
def saved(tmp_path):
    model, inputs = network("mlp")
    inputs = torch.cat([inputs, inputs + 0.5, inputs - 0.5, inputs * 2])
    SLU(model, "classification", rank=2, forward=halved).fit(inputs).save(tmp_path / "a.slu")
    return model, tmp_path / "a.slu"


def test_another_forward_at_load_gives_one_warning_that_names_both(saved):
    model, path = saved
    with pytest.warns(
        MisuseWarning, match=r"fitted with forward=.*halved \(.*loaded with forward=.*scaled.*lambda"
    ) as all_of:
        SLU.load(path, model, forward=scaled(2.0))
    assert len(all_of) == 1
    SLU.load(path, model, forward=halved)  # warnings are errors


def test_names_in_the_file_do_not_reach_a_terminal_unescaped(saved):
    model, path = saved
    header, tensors = read(path)
    header["forward"] = {"name": "a\nb\x1b[2J", "hash": "c\x1b[31m"}
    write(path, tensors, header)
    with pytest.warns(MisuseWarning, match="fitted with forward=") as told:
        SLU.load(path, model, forward=halved)
    assert str(told[0].message).isprintable()


def test_none_where_one_was_used_stays_an_error(saved, tmp_path):
    model, path = saved
    with pytest.raises(MismatchError, match="fitted with a forward="):
        SLU.load(path, model)
    plain = tmp_path / "plain.slu"
    SLU(model, "classification", rank=2).fit(torch.randn(48, 4).double()).save(plain)
    with pytest.raises(MismatchError, match="fitted without a forward="):
        SLU.load(plain, model, forward=halved)
