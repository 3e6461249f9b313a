"""A fit of several processes that was killed goes on to the same numbers; its files say by how many it was begun."""

from pathlib import Path

import pytest
import torch

from processes.resumed import AFTER_LAST_STEP, fitted
from running import needs_processes, run_together
from slu import SLU
from slu.errors import MismatchError
from together import network, points

SCRIPT = Path(__file__).with_name("resumed.py")
KILLS = {
    "stream": ("stream", -1, 1, 9),
    "lanczos": ("lanczos", -1, 0, 30),
    "diagonal": ("diagonal", -1, 1, 15),
    "stream, nothing in the first": ("stream", 0, 1, 20),
    "stream, nothing in the last": ("stream", 1, 0, 20),
    "lanczos, nothing in the first": ("lanczos", 0, 1, 75),
    "lanczos, nothing in the last": ("lanczos", 1, 0, 75),
    "lanczos, after its last step": ("lanczos", -1, 1, AFTER_LAST_STEP),
    "lanczos, after its last step, a part is lost": ("lanczos", -1, 1, AFTER_LAST_STEP),
}
"""The solver, the process without data, the one that is killed, and its batch; a pass has 11 of them, or 22."""

pytestmark = needs_processes


def same(told, expected, *, exactly=True) -> None:
    for each in told:
        assert "error" not in each, each
        for name in ("basis", "pvalue", "scores"):
            rounding = 0 if exactly else 1e-9
            torch.testing.assert_close(each[name], expected[name], rtol=rounding, atol=rounding)


@pytest.mark.slow
@pytest.mark.parametrize("case", KILLS)
def test_killed_and_started_again(case, tmp_path):
    solver, empty, killed, place = KILLS[case]
    first = run_together(SCRIPT, 2, "fitted", tmp_path, solver, empty, killed, place, seconds=120, check=False)
    assert first[killed] is None
    begun = {path.name for path in tmp_path.iterdir() if path.suffix != ".lock"}
    assert {solver, f"{solver}.{1 if empty == 0 else 0}-of-2"} <= begun, begun
    if "lost" in case:  # of a process that could not write: it goes on from the step of the other
        for path in tmp_path.glob("*.1-of-2*"):
            path.unlink()
    other = fitted(0, 1, str(tmp_path), solver, -1)
    assert other["error"] == "MismatchError"
    assert "was begun by 2 processes, and here are 1; start as many" in other["text"]
    assert f"delete it and {tmp_path / solver}.*-of-2* to begin anew" in other["text"]
    for left in (f"{solver}.2-of-3", f"{solver}.2-of-3.previous"):  # of a fit that was begun anew
        (tmp_path / left).touch()
    told = run_together(SCRIPT, 2, "again", tmp_path, solver, empty, seconds=120)
    again, expected = [each["again"] for each in told], told[0]["uninterrupted"]
    same(again, expected)
    assert any(each["continued"] for each in again) and not expected["continued"]
    for each in told:
        assert each["other data"]["error"] == "MismatchError" and "other data" in each["other data"]["text"]
    # It is finished: one file, which one process or three take as well, and compare with their data.
    assert {path.name for path in tmp_path.iterdir()} <= {solver, f"{solver}.previous"}
    same([fitted(0, 1, str(tmp_path), solver, -1)], expected, exactly=False)
    same(run_together(SCRIPT, 3, "fitted", tmp_path, solver, -1, seconds=120), expected, exactly=False)


def test_a_fit_that_went_on_without_comparing_is_not_taken_for_one_of_its_data(tmp_path):
    for told in run_together(SCRIPT.with_name("uncompared.py"), 2, tmp_path, seconds=120):
        assert "stopped" in told["stopped"] and told["went on"] == told["not compared"] == "done"
        assert "went on with check_data=False, so which data are in it is not known" in told["compared"]


@pytest.mark.slow
def test_killed_while_it_calibrates_it_has_every_copy_that_was_held_out(tmp_path):
    """Forty contents, fifty copies of each: every process has numbered its copies for itself."""
    script, path = SCRIPT.with_name("calibrating.py"), tmp_path / "run"
    expected = run_together(script, 2, "none", "in turns", -1)
    assert run_together(script, 2, path, "in turns", 1, seconds=120, check=False)[1] is None
    assert expected[0]["points"] > 150 > 40
    with pytest.raises(MismatchError, match="was begun by 2 processes, and here are 1; start as many"):
        SLU(network(), "classification", rank=8).fit(points(40, "classification").tensors[0], checkpoint=path)
    again = run_together(script, 2, path, "in turns", -1, seconds=120)
    for one, other in zip(again, expected, strict=True):
        assert one["numbers"] == other["numbers"] and not one["missing"]
        torch.testing.assert_close(one["pvalue"], other["pvalue"], rtol=0, atol=0)


def test_a_finished_fit_knows_of_all_its_processes_on_which_side_they_padded(tmp_path):
    for told in run_together(SCRIPT.with_name("sided.py"), 2, tmp_path, seconds=120):
        assert told["begun"] == told["exchanged"] == "done"
        assert told["other side"].startswith("MismatchError: the finished fit")
        assert "padding stands before some of the 80 points of the data in the run that began it" in told["other side"]
        assert (
            "and before none here. Pad on the same side as then (padding_side of a tokenizer), in batches that pad as"
            in (told["other side"])
        )
