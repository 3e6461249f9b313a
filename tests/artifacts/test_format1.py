"""Files of format 1, as slu wrote them before: scores load and say what they said, checkpoints are refused with advice.

tests/fixtures/format1 has the files, and in expected.json the readings of `queries` that the version that wrote them
gave.
"""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import slu
from formulaic import inputs, network, queries
from slu import SLU, Lanczos, SluScore
from slu.artifacts import read
from slu.artifacts.artifact import upgraded
from slu.cli import app
from slu.cli.contents import contents
from slu.errors import SettingError, StorageError

FOLDER = Path(__file__).parents[1] / "fixtures" / "format1"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
SCORES = sorted(name for name in EXPECTED if EXPECTED[name]["method"] == "SLU")
BASELINES = sorted(set(EXPECTED) - set(SCORES))
CHECKPOINTS = sorted(path.name for path in FOLDER.glob("*.ckpt"))


def loaded(file):
    about = EXPECTED[file]
    kind, model = getattr(slu, about["method"]), network(about["network"])
    calibrated = "combined" in about["readings"]
    with pytest.warns(UserWarning, match="its default is now 'fisher'") if calibrated else nullcontext():
        return kind.load(FOLDER / file, model), queries(about["network"])


def assert_as_written(score, points, readings):
    """To float32's rounding: another machine may add in another order."""
    for reading, expected in readings.items():
        # All outputs were measured then, as they are still by the baselines.
        scores = score(points, reading=reading, **({"outputs": "all"} if isinstance(score, SluScore) else {}))
        torch.testing.assert_close(scores.double(), torch.tensor(expected).double(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("file", SCORES)
def test_a_score_says_what_it_said(file):
    assert read(FOLDER / file)[0]["format"] == 1
    score, points = loaded(file)
    readings = {name: values for name, values in EXPECTED[file]["readings"].items() if name != "combined"}
    assert len(readings) == 4 and set(readings) <= set(score.readings)
    assert_as_written(score, points, readings)
    facts, said = score.diagnostics, EXPECTED[file]["diagnostics"]
    assert (facts.effective_rank, facts.points, facts.passes) == tuple(
        said[key] for key in ("effective_rank", "points", "passes")
    )
    np.testing.assert_array_equal(facts.ritz_values, said["ritz_values"])
    captured = float("nan") if said["captured"] is None else said["captured"]
    assert facts.captured == pytest.approx(captured, rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("file", SCORES)
def test_its_calibration_is_left_out_and_the_score_says_why(file):
    score, points = loaded(file)
    assert score.calibration is None and score.readings[0] == "fisher"
    why = "format 1, .* made of other views" if "combined" in EXPECTED[file]["readings"] else "calibration=False"
    for ask in (lambda: score(points, reading="combined"), lambda: score.pvalue(points), lambda: score.threshold()):
        with pytest.raises(SettingError, match=rf"{why}.*score\.calibrate\(loader\)"):
            ask()
    data = inputs(EXPECTED[file]["network"], 240)
    with pytest.raises(SettingError, match="of an earlier version, which chose them otherwise"):
        score.calibrate(data, held_out=True)
    score.calibrate(data)
    assert score.readings[0] == "combined" and score.calibration.source == "given"
    assert bool(torch.isfinite(score(points)).all())


@pytest.mark.parametrize("file", SCORES)
def test_saved_again_it_is_of_this_format(file, tmp_path):
    score, points = loaded(file)
    score.save(tmp_path / "net.slu")
    assert read(tmp_path / "net.slu")[0]["format"] == 2
    again = SLU.load(tmp_path / "net.slu", score.settings.network.model)
    assert again.settings.header() == score.settings.header()
    for reading in score.readings:
        assert torch.equal(again(points, reading=reading), score(points, reading=reading))


def test_settings_that_moved_are_where_they_belong_now():
    assert loaded("slu_keep.slu")[0].settings.solver == Lanczos(keep=0.9)
    assert loaded("slu_keep.slu")[0].settings.scale is None
    scaled = loaded("slu_lanczos_scaled.slu")[0].settings
    assert scaled.solver == Lanczos(precondition=3)
    assert scaled.scale == slu.DiagonalScale(damping=0.1, points=100)
    stream = loaded("slu_stream_settings.slu")[0].settings
    assert stream.solver == slu.Stream(labels_per_point="all", oversampling=3)
    assert stream.scale == slu.DiagonalScale(prior_precision=0.5) and stream.ridge == 0.1
    own = loaded("slu_own_scale.slu")[0]
    assert own.settings.scale.scaling == own.scale


@pytest.mark.parametrize("file", BASELINES)
def test_a_baseline_says_what_it_said(file):
    about = EXPECTED[file]
    score, points = loaded(file)
    assert tuple(about["readings"]) == score.readings
    assert_as_written(score, points, about["readings"])


@pytest.mark.parametrize("file", CHECKPOINTS)
def test_a_checkpoint_is_refused_with_advice_and_left_alone(file, tmp_path):
    shutil.copy(FOLDER / file, tmp_path / file)
    before = (tmp_path / file).read_bytes()
    solver = {"solver": "lanczos", "scale": None, "ridge": 0.0} if file.startswith("lanczos") else {}
    method = SLU(network("wider"), "classification", rank=8, sketch_size=60, **solver)
    data = list(inputs("wider", 240).split(60))
    with pytest.raises(StorageError, match=rf"{file} was begun by an earlier version of slu \(format 1.*delete it"):
        method.fit(data, checkpoint=tmp_path / file)
    assert (tmp_path / file).read_bytes() == before
    # The advice works.
    (tmp_path / file).unlink()
    assert method.fit(data, checkpoint=tmp_path / file).diagnostics.points > 200


@pytest.mark.parametrize("file", [*SCORES, *BASELINES, *CHECKPOINTS])
def test_inspect_shows_what_is_in_it(file):
    ran = CliRunner().invoke(app, ["inspect", str(FOLDER / file)], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert ran.exit_code == 0, ran.output
    assert "format 1, checksum fits" in ran.output
    facts = contents(FOLDER / file)
    if file in CHECKPOINTS:
        assert facts["kind"] == "checkpoint" and facts["method"] == "SLU"
        stage = file.split("_")[1].removesuffix(".ckpt")
        assert f"a checkpoint of SLU, {stage}" in ran.output
        assert ", 0 steps" not in ran.output and ", 0 points" not in ran.output
    else:
        assert f"a score of {EXPECTED[file]['method']}" in ran.output
    if file in SCORES:
        calibrated = "combined" in EXPECTED[file]["readings"]
        assert ("no: its file is of format 1" if calibrated else "no: it was fitted") in ran.output
        assert f"{EXPECTED[file]['diagnostics']['points']} points" in ran.output


def test_files_from_before_calibration_and_ridge():
    """The first versions wrote neither, nor a prior precision."""
    header, _ = read(FOLDER / SCORES[0])
    for name in ("calibration", "ridge", "prior_precision"):
        header["settings"].pop(name, None)
    now = upgraded(header)
    assert now["settings"]["ridge"] == 0.0 and now["state"]["calibration"]["held_out"] == 0.0
    assert "no calibration" in now["state"]["calibration"]["why"]
    del header["settings"]["diagnostics"]
    with pytest.raises(KeyError):  # control: what every version wrote must be there
        upgraded(header)
