"""Golden files of every format: they load for ever and say what they said, or are refused by name.

tests/golden.py wrote them, with the numbers in expected.json. Those of format 1, and of format 2 before the distances
of layers, have tests of their own, because they say more than that.
"""

import gzip
import json
import warnings
from pathlib import Path

import pytest
import torch

import slu
from formulaic import network
from golden import NETWORK, SOLVERS, Loader, method, said
from slu.artifacts import FORMAT, read
from slu.artifacts.checkpoint import VERSION
from slu.cli.contents import contents
from slu.errors import CalibrationWarning, StorageError

FIXTURES = Path(__file__).parents[1] / "fixtures"
EXPECTED = {
    path.parent / name: about
    for path in sorted(FIXTURES.glob("golden/*/expected.json"))
    for name, about in json.loads(path.read_text()).items()
}
MOST_BYTES = 600_000


def by_name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def unpacked(path: Path, folder: Path) -> Path:
    """The file as it was written, for a test to use."""
    to = folder / path.name
    to.write_bytes(gzip.decompress(path.with_name(f"{path.name}.gz").read_bytes()))
    return to


def agrees(score, about: dict) -> None:
    """To float32's rounding: another machine may add in another order. P-values count, and are the same."""
    told = said(score)
    assert told["readings"].keys() >= about["readings"].keys()
    for reading, expected in about["readings"].items():
        came = torch.tensor(told["readings"][reading]).double()
        torch.testing.assert_close(came, torch.tensor(expected).double(), rtol=1e-5, atol=1e-6)
    if "pvalues" in about:
        assert told["pvalues"] == pytest.approx(about["pvalues"], abs=1e-12)
        # 4 R above the calibration score, which it was before scores that are equal up to rounding tied.
        assert told["threshold"] == pytest.approx(about["threshold"], rel=1e-5)


def test_the_format_has_scores_and_checkpoints(tmp_path):
    """A new format begins with its golden files: see tests/golden.py."""
    facts = [contents(unpacked(path, tmp_path)) for path in EXPECTED]
    kinds = {(each["kind"], each.get("stage")) for each in facts if each["format"] == FORMAT}
    assert kinds == {("score", None), ("checkpoint", "running"), ("checkpoint", "finished")}


def test_checkpoints_of_this_version_continue(tmp_path):
    """Of every solver a running and a finished one: a new version begins with its golden files too."""
    continued = set()
    for path, about in EXPECTED.items():
        if "solver" in about and "refused" not in about:
            assert read(unpacked(path, tmp_path))[0]["version"] == VERSION, f"{by_name(path)} is of an earlier version"
            continued.add((about["solver"], about["stage"]))
    assert continued == {(solver, stage) for solver in SOLVERS for stage in ("running", "finished")}


def test_which_points_were_held_out_is_known_of_scores_of_this_version_alone(tmp_path):
    """Those of before chose them by other keys, or do not have their numbers."""
    known = set()
    for path, about in EXPECTED.items():
        if about.get("method") == "SLU":
            score = slu.SLU.load(unpacked(path, tmp_path), network(NETWORK))
            assert score.calibration is not None
            known |= {path.parent.name} if score.state.calibration.held_out.threshold > 0 else set()
    assert known == {f"{FORMAT}-version-{VERSION}"}


def test_every_golden_file_has_its_numbers_and_they_are_small():
    stored = {path.with_suffix("") for path in FIXTURES.glob("golden/*/*") if path.name != "expected.json"}
    assert stored == set(EXPECTED) and len(stored) >= 8
    assert sum(path.stat().st_size for path in FIXTURES.rglob("*") if path.is_file()) < MOST_BYTES


@pytest.mark.parametrize("path", EXPECTED, ids=by_name)
def test_it_says_what_it_said_or_is_refused_by_name(path, tmp_path, caplog):
    about = EXPECTED[path]
    used = unpacked(path, tmp_path)
    before = used.read_bytes()

    def scored():
        if "method" in about:
            return getattr(slu, about["method"]).load(used, network(NETWORK))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CalibrationWarning)  # few points, of a network that nobody trained
            return method(about["solver"]).fit(Loader(), checkpoint=used)

    if "refused" in about:
        with pytest.raises(StorageError, match=about["refused"]) as raised:
            scored()
        assert path.name in str(raised.value)
        assert used.read_bytes() == before
    else:
        with caplog.at_level("INFO", logger="slu"):
            agrees(scored(), about)
        if "solver" in about:  # or a fit that began anew would say the same
            words = {"running": "continuing from the checkpoint", "finished": "is a finished fit"}[about["stage"]]
            assert words in caplog.text


@pytest.mark.parametrize("path", [path for path in EXPECTED if "method" in EXPECTED[path]], ids=by_name)
def test_control_other_numbers_are_seen(path, tmp_path):
    about = json.loads(json.dumps(EXPECTED[path]))
    next(iter(about["readings"].values()))[0] *= 1.001
    with pytest.raises(AssertionError):
        agrees(getattr(slu, about["method"]).load(unpacked(path, tmp_path), network(NETWORK)), about)


def test_control_running_checkpoints_have_something_to_go_on_from(tmp_path):
    running = [path for path in EXPECTED if EXPECTED[path].get("stage") == "running"]
    assert len(running) >= 2
    for path in running:
        facts = contents(unpacked(path, tmp_path))
        assert facts["stage"] == "running" and (facts["points"] or facts["steps"])
