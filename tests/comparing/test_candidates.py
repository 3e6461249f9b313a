"""Names of methods, and what may stand where a method is expected."""

import json
from dataclasses import dataclass

import pytest
from torch import nn

from fakes import Formula
from slu import SLU
from slu.baselines.local_ensemble import LocalEnsemble
from slu.comparing.candidates import candidates, names, settings_of
from slu.errors import SettingError

MODEL = nn.Linear(200, 10)


def slu(**settings):
    return SLU(MODEL, "classification", **settings)


@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        ([slu(rank=3)], ["SLU"]),
        ([slu(rank=3), Formula(abs)], ["SLU", "Formula"]),
        ([slu(rank=3), slu(rank=5)], ["SLU rank 3", "SLU rank 5"]),
        ([slu(rank=3), slu(rank=3)], ["SLU", "SLU 2"]),
        ([slu(rank=3), slu(rank=3), slu(rank=4)], ["SLU rank 3", "SLU rank 3 2", "SLU rank 4"]),
        ([slu(rank=3, estimator="residual"), slu(rank=3)], ["SLU residual", "SLU ratio"]),
        # They differ in the rank, so the sketch that came with it is not named.
        ([slu(budget="2p"), slu(budget="3p")], None),
        (
            [slu(rank=3, sketch_size=100), slu(rank=3, sketch_size=200)],
            ["SLU sketch size 100", "SLU sketch size 200"],
        ),
        (
            [LocalEnsemble(MODEL, "classification", rank=2, curvature=kind) for kind in ("ggn", "hessian")],
            ["LocalEnsemble ggn", "LocalEnsemble hessian"],
        ),
    ],
)
def test_names_tell_apart_what_differs_and_nothing_else(methods, expected):
    if expected is None:
        expected = [f"SLU rank {method.rank}" for method in methods]
    assert names(methods) == expected


def test_two_settings_where_one_does_not_do():
    methods = [slu(rank=rank, estimator=kind) for rank in (3, 5) for kind in ("ratio", "residual")]
    labels = names(methods)
    assert len(set(labels)) == 4
    assert all(
        str(method.rank) in name and method.settings.estimator in name
        for method, name in zip(methods, labels, strict=True)
    )


def test_methods_in_every_form():
    one = slu(rank=3)
    assert [(each.name, each.make()) for each in candidates(one)] == [("SLU", one)]
    assert [each.make() for each in candidates((one, one))] == [one, one]
    assert all(each.ready for each in candidates((one, one)))
    listed = candidates({"mine": one, "later": lambda: slu(rank=4)})
    assert [each.name for each in listed] == ["mine", "later"]
    assert listed[0].make() is one and listed[1].make().rank == 4
    assert [each.ready for each in listed] == [True, False]


def test_functions_are_called_when_their_turn_comes():
    def make():
        raise AssertionError("too early")

    (listed,) = candidates({"later": make})
    with pytest.raises(AssertionError):
        listed.make()


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ([], "no method to compare"),
        ({}, "no method to compare"),
        ([SLU], "the class SLU came where a method is needed"),
        ([MODEL], "a Linear came"),
        ([lambda: None], "goes into a mapping"),
        ({"x": 3}, "^an int came.*function without arguments"),
        ({3: slu(rank=3)}, "name must be a text, got 3"),
        ({" ": slu(rank=3)}, "name must be a text"),
        ("SLU", "a str came"),
        (3, "^an int came"),
    ],
)
def test_what_is_no_method_is_refused(methods, message):
    with pytest.raises(SettingError, match=message):
        candidates(methods)


def test_a_fitted_score_is_not_taken_for_a_function():
    score = Formula(abs).fit([nn.Linear(2, 2).weight.detach()])
    with pytest.raises(SettingError, match=r"^a FormulaScore, which is fitted already, came where"):
        candidates({"fitted": score})
    with pytest.raises(SettingError, match="a NoneType came"):
        candidates({"nothing": lambda: None})[0].make()


def test_settings_are_plain_data():
    method = slu(rank=3, sketch_size=100, seed=5)
    plain = settings_of(method)
    assert (plain["rank"], plain["seed"], plain["sketch"]["size"]) == (3, 5, 100)
    assert plain["likelihood"]["name"] == "classification"
    assert "network" not in plain
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    plain = settings_of(LocalEnsemble(MODEL, "classification", rank=2, steps=4, curvature="fisher"))
    assert (plain["rank"], plain["steps"], plain["curvature"], plain["seed"]) == (2, 4, "fisher", 0)


def test_what_is_not_plain_is_left_out():
    @dataclass
    class Nested:
        size: int
        function: object

    class Own:
        def __init__(self):
            self.good, self.bad, self.nested = (1, "a", None), float("nan"), Nested(1, print)
            self._hidden, self.module, self.table = 1, MODEL, {"a": [1.5]}

    assert settings_of(Own()) == {"good": [1, "a", None], "table": {"a": [1.5]}}
