"""A fit by several processes is that of one on all data, to rounding: every reading, p-value and flag."""

import json
from pathlib import Path

import pytest

from running import needs_processes, run_together

SCRIPT = Path(__file__).with_name("fits.py")
COPIES = Path(__file__).with_name("copies.py")
ROUNDING = 1e-8
"""Sums are in float64 and added in another order; distances square the condition of a covariance, at most 1e4."""

ALL = {
    "a sampler, points held out": (2, 27, 301, "sampler", "held out"),
    "a sampler, more points than the scale's": (2, 15, 701, "sampler", "held out", "stream", "targets", "lanczos"),
    "three points in each but the first": (3, 24, 301, "few last", "held out"),
    "three uneven parts, given points": (3, 24, 250, "cut", "given"),
    "three uneven parts, no calibration": (3, 18, 200, "cut", "none"),
}
"""How many processes, how many fits, and what `fits.py` is told: every solver unless some are named."""
ONE_SOLVER = {
    "a batch sampler, which adds a copy": (9, 301, "batch sampler", "held out", "stream"),
    "accelerate, which adds copies": (9, 205, "accelerate", "given", "stream"),
    "three points in the last": (9, 301, "few last", "held out", "stream"),
    "three points in the last, no calibration": (3, 301, "few last", "none", "stream"),
}


def check(found, fits):
    for rank, compared in enumerate(found):
        assert len(compared) == fits
        worst = {
            (fit, name): value for fit, each in compared.items() for name, value in each.items() if not value < ROUNDING
        }
        assert not worst, (rank, worst)


@needs_processes
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if place else ()) for place, case in enumerate(ALL)]
)
def test_equal_to_one_process(case):
    processes, fits, *settings = ALL[case]
    found = run_together(SCRIPT, processes, json.dumps([settings]), seconds=240)
    check([each for (each,) in found], fits)


@pytest.fixture(scope="module")
def by_one_solver():
    """One run for all of them, since a start takes seconds."""
    return run_together(SCRIPT, 2, json.dumps([settings for _, *settings in ONE_SOLVER.values()]), seconds=240)


@needs_processes
@pytest.mark.parametrize("case", ONE_SOLVER)
def test_equal_to_one_process_however_points_are_dealt(by_one_solver, case):
    place = list(ONE_SOLVER).index(case)
    check([each[place] for each in by_one_solver], ONE_SOLVER[case][0])


@needs_processes
def test_two_inputs_of_which_one_process_has_none():
    """Held-out points of both are sent as the model takes them; the score of all reads what that of one does."""
    for found in run_together(SCRIPT.with_name("two_inputs.py"), 2, seconds=120):
        assert max(found["differences"].values()) < ROUNDING
        assert found["format"] == found["format of one"] and found["format"]["inputs"] is not None


@needs_processes
def test_copies_that_another_process_fitted_are_not_taken_for_held_out():
    """Every process numbers its own: the second copy in all data was the first of the other process."""
    for found in run_together(COPIES, 2, seconds=120):
        held = found["held out"]
        assert len(held) > len(set(held)), "some points that both have are held out"
        assert found["again, by both"] == found["again, by one"] == held
        alone, again = found["held out by one"], found["of one, by both"]
        assert found["of one, by one"] == alone
        # A second copy of all is the first of its process, and in none of them the second.
        assert set(again) < set(alone) and 19 < len(again) == len(set(again))
