"""The registry: every row is complete, and its arithmetic of what methods hold is right."""

import inspect

import pytest

import slu
from slu.budgets import Size
from slu.budgets.costs import WORK
from slu.comparing.registry import METHODS

P = 10_000_000
SIZE = Size(P, outputs=10, parts=(P // 4,) * 4)
PLANNED = {name: entry for name, entry in METHODS.items() if entry.cost is not None}


def test_every_public_method_has_a_row():
    """Control: a method that is exported but not registered would be missing from plans, boards and contracts."""
    classes = [getattr(slu, name) for name in slu.__all__ if inspect.isclass(getattr(slu, name))]
    methods = {each for each in classes if hasattr(each, "fit") and not getattr(each, "_is_protocol", False)}
    assert {entry.kind for entry in METHODS.values()} == methods


def test_names_begin_with_the_class_and_say_more_only_for_settings():
    for name, entry in METHODS.items():
        assert name.split()[0] == entry.kind.__name__
        assert (" " in name) == bool(entry.settings)


def test_one_colour_and_marker_per_method():
    for looks in ([entry.colour for entry in METHODS.values()], [entry.marker for entry in METHODS.values()]):
        assert len(set(looks)) == len(METHODS)


def test_a_budget_holds_whole_copies_of_the_parameters():
    assert [METHODS["SCOD"].rank(floats, 100) for floats in (99, 100, 399, 10**6)] == [0, 1, 3, 100]
    assert [METHODS["DiagonalLaplace"].rank(floats, 100) for floats in (99, 100, 399)] == [0, 1, 1]


def test_double_precision_takes_twice():
    wide = Size(P, 10, bytes_each=8, parts=SIZE.parts)
    for baseline in PLANNED.values():
        one, two = baseline.cost(3, SIZE), baseline.cost(3, wide)
        assert (two.artefact, two.fitting, two.querying) == (2 * one.artefact, 2 * one.fitting, 2 * one.querying)


@pytest.mark.parametrize(
    ("name", "artefact", "fitting", "passes"),
    [
        ("LocalEnsemble", 3, 8, 4),
        ("LowRankLaplace", 3, 8, 4),
        ("SCOD", 3, 22 + 1 + 1 / 4 + WORK / P, 1),
        ("SWAG", 5, 8, 10),
        ("DiagonalLaplace", 1, 1 + 2 / 4, 1),
        ("DeepEnsemble", 2, 5, 0),
    ],
)
def test_baselines_in_copies_of_the_parameters(name, artefact, fitting, passes):
    cost = PLANNED[name].cost(3, SIZE)
    assert cost.artefact / 4 / P == pytest.approx(artefact, rel=1e-6)
    assert cost.fitting / 4 / P == pytest.approx(fitting, rel=1e-6)
    assert cost.passes == passes
    assert cost.querying >= cost.artefact


def test_every_baseline_holds_more_for_more():
    for baseline in PLANNED.values():
        if baseline.ranked:
            one, two = baseline.cost(2, SIZE), baseline.cost(3, SIZE)
            assert one.artefact < two.artefact and one.fitting < two.fitting and one.querying < two.querying
