"""Whatever one process cannot do ends all of them, with the same error and soon; and the group can be used again."""

import re
from pathlib import Path

import pytest

from running import needs_processes, run_together

SCRIPT = Path(__file__).with_name("failures.py")
SOON = 15.0
"""Seconds, on a busy machine; the others would have read for 400 times as long as a pass takes."""

ERRORS = {
    "a loader fails": ("DataError", r"process 1 of 2: the loader failed at batch 2: OSError: the disk is gone"),
    "at the first batch": ("DataError", r"process 0 of 2: the loader failed at batch 0: OSError"),
    "not finite": ("NotFiniteError", r"process 1 of 2: the inputs of batch .* hold NaN"),
    "the same data": ("DataError", r"^processes 0 and 1 read the same points: about 100% .*DistributedSampler"),
    "the same data, shuffled, no scale": ("DataError", r"processes 0 and 1 read the same points: about 100%"),
    "no data": ("EmptyDataError", "the loaders of all 2 processes gave no batch"),
    "no calibration points": ("EmptyDataError", "none of the 2 processes has a calibration point"),
    "other settings": ("MismatchError", r"rank is 5 in process 0, in process 1 6"),
    "other weights": ("MismatchError", r"process 1 has other weights or buffers than process 0: the values of 0\.bias"),
    "other exchanges": ("MismatchError", "what is exchanged is 'points' in process 0, in process 1 'scores'"),
    "scores of other data go on": ("MismatchError", r"mean eigenvalue is '[\d.]+' in process 0, in process 1 '"),
    "scores of other data are calibrated": ("MismatchError", "mean eigenvalue is"),
    "another ridge": ("MismatchError", r"ridge is 0\.01 in process 0, in process 1 0\.5"),
    "another estimator": ("MismatchError", r"estimator is 'ratio' in process 0, in process 1 'residual'"),
    "scores of two fits": ("MismatchError", "mean eigenvalue is"),
    "scores of two calibrations": ("MismatchError", "mean of calibration scores by \\w+ is"),
    "scores of two ridges": ("MismatchError", r"ridge is 0\.01 in process 0, in process 1 0\.5"),
    "another epoch": ("DataError", r"^the samplers of processes 0 and 1 have other orders.*'epoch': 0.*'epoch': 1"),
    "points for four": ("DataError", "sampler deals points out to 4 processes, and the group has 2"),
    "calibration points for four": ("DataError", "sampler deals points out to 4 processes, and the group has 2"),
    "queries for four": ("DataError", "sampler deals points out to 4 processes, and the group has 2"),
    "one reads for all": ("DataError", r"DataLoaderDispatcher: .*dispatch_batches=False"),
    "a rank above the data": ("SettingError", "^rank 100 is above what the data allow: 90 points"),
    "a warning of fit is an error": ("ProcessError", "process 0 of 2: CalibrationWarning: .*calibration"),
    "a warning of partial_fit is an error": ("ProcessError", "process 0 of 2: CalibrationWarning: .*calibration"),
}


@pytest.fixture(scope="module")
def outcomes():
    return run_together(SCRIPT, 2, seconds=240)


@needs_processes
@pytest.mark.parametrize("case", ERRORS)
def test_all_end_with_the_same_error(outcomes, case):
    kind, message = ERRORS[case]
    texts = [each[case].get("text") for each in outcomes]
    assert [each[case].get("error") for each in outcomes] == [kind, kind], texts
    assert texts[0] == texts[1]
    assert re.search(message, texts[0]), texts[0]
    assert max(each[case]["seconds"] for each in outcomes) < SOON


@needs_processes
def test_one_that_is_interrupted_ends_the_others(outcomes):
    first, last = (each["interrupted"] for each in outcomes)
    assert last["error"] == "KeyboardInterrupt"
    assert first["error"] == "ProcessError" and "process 1 of 2: KeyboardInterrupt" in first["text"]
    assert first["seconds"] < SOON


@needs_processes
@pytest.mark.parametrize(
    ("case", "other"),
    [
        ("while it waits", "ProcessError"),
        ("in a sum", "ProcessError"),
        ("at the end", None),  # all are done
        ("twice", "ProcessError"),
    ],
)
def test_ctrl_c_where_a_process_waits_ends_it_in_step(outcomes, case, other):
    first, last = (each[f"interrupted {case}"] for each in outcomes)
    assert first["error"] == "KeyboardInterrupt"
    assert last.get("error") == other
    assert other is None or "process 0 of 2: KeyboardInterrupt" in last["text"]
    assert max(first["seconds"], last["seconds"]) < SOON and first["handler"] and last["handler"]


@needs_processes
def test_ctrl_c_of_all_ends_all(outcomes):
    assert [each["both interrupted"]["error"] for each in outcomes] == ["KeyboardInterrupt"] * 2
    assert max(each["both interrupted"]["seconds"] for each in outcomes) < SOON


@needs_processes
def test_afterwards_the_group_fits_also_with_a_process_without_data(outcomes):
    assert outcomes[0]["sound"]["points"] == outcomes[1]["sound"]["points"] > 50
    assert outcomes[0]["sound"]["sum"] == outcomes[1]["sound"]["sum"]
    assert outcomes[0]["sound, tiny"]["points"] == outcomes[1]["sound, tiny"]["points"] == 7


@needs_processes
def test_the_first_process_warns_for_all(outcomes):
    assert [each["sound, tiny"]["warnings"] for each in outcomes] == [1, 0]
    assert [each["sound, calibrated on few"]["warnings"] for each in outcomes] == [2, 0]
