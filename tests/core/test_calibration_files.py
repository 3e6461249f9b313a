"""Calibration in files and checkpoints: it comes back as it was, and where it is missing the file says so."""

import pytest
import torch
from typer.testing import CliRunner

from calibrated import POINTS, SOLVERS, Unsized, problem, slu
from slu import SLU, Checkpoint, SluScore
from slu.artifacts import read, write
from slu.artifacts.stored import inventory
from slu.cli import app
from slu.cli.contents import contents
from slu.core.witness import _of_choice
from slu.errors import CalibrationWarning, DamagedFileError, MismatchError, SettingError


@pytest.mark.parametrize("solver", SOLVERS)
def test_saved_and_loaded(solver, tmp_path):
    model, inputs = problem()
    score = slu(model, scale="diagonal", solver=SOLVERS[solver]).fit(inputs)
    score.save(tmp_path / "net.slu")
    again = SLU.load(tmp_path / "net.slu", model)
    for reading in score.readings:
        values = [each.pvalue(inputs, reading=reading, outputs=1) for each in (again, score)]
        assert torch.equal(*values)
        assert again.threshold(0.1, reading=reading, outputs=1) == score.threshold(0.1, reading=reading, outputs=1)
    assert again.readings == score.readings and again.state.calibration.held_out == score.state.calibration.held_out
    assert score.state.calibration.held_out.threshold == 0.1
    _, tensors = read(tmp_path / "net.slu")
    assert not any(tensor.shape[-1:] == inputs.shape[-1:] for tensor in tensors.values()), "no points in the file"
    off = slu(model).fit(inputs, calibration=False)
    off.save(tmp_path / "off.slu")
    with pytest.raises(SettingError, match="calibration=False"):
        SLU.load(tmp_path / "off.slu", model).pvalue(inputs)


@pytest.mark.parametrize("rule", [None, 0, 1, 2])
def test_points_that_another_rule_held_out_are_not_looked_for(rule, tmp_path):
    """Which they were is not known, so fitted points might be calibrated on, or held out of what is fitted further."""
    model, inputs = problem()
    slu(model).fit(inputs).save(tmp_path / "net.slu")
    header, tensors = read(tmp_path / "net.slu")
    state = header["state"]
    if rule is None:  # as before there was one
        del state["calibration"]["rule"], state["calibration"]["numbers"]
        del state["witness"]["choice of held-out points"]
    else:
        state["calibration"] |= {"rule": rule, "copies": "all"}
        state["witness"]["choice of held-out points"] = [_of_choice(state["calibration"], ())]
    write(tmp_path / "net.slu", tensors, header)
    score = SLU.load(tmp_path / "net.slu", model)
    assert score.calibration is not None and score.state.calibration.held_out == (0.0, ())
    with pytest.raises(SettingError, match="its file is of an earlier version, which chose them otherwise"):
        score.calibrate(inputs, held_out=True)
    with pytest.warns(CalibrationWarning, match="has no calibration any more"):
        score.partial_fit(inputs[:50])
    assert score.state.points == len(inputs) - slu(model).fit(inputs).calibration.points + 50


@pytest.mark.parametrize("edited", [{"held_out": 0.9}, {"held_out": 0.1000001}, {"numbers": None}, {"rule": 0}, {}])
@pytest.mark.parametrize("calibration", [None, False])
def test_which_points_were_held_out_cannot_be_edited(edited, calibration, tmp_path):
    model, inputs = problem()
    score = slu(model).fit(inputs, calibration=calibration)
    score.save(tmp_path / "net.slu")
    header, tensors = read(tmp_path / "net.slu")
    header["state"]["calibration"] |= edited
    if not edited:
        del header["state"]["calibration"]["numbers"]
    write(tmp_path / "net.slu", tensors, header)
    with pytest.raises(DamagedFileError, match=r"choice of held-out points|numbers is missing"):
        SLU.load(tmp_path / "net.slu", model)


EDITS = {
    "one": "choice of held-out points",
    "order": "expected rising numbers above 0",
    "above": "expected rising numbers above 0",
    "zero": "expected rising numbers above 0",
    "missing": "numbers is 30, expected as many as there are in the file",
    "count": "held_out",
    "fewer": "choice of held-out points",
    "more": "choice of held-out points",
    "many": "numbers is 1001, expected a whole number from 0 to 1000",
    "nan": "held_out",
}


@pytest.mark.parametrize("edit", EDITS)
def test_the_numbers_of_held_out_points_cannot_be_edited(edit, tmp_path):
    model, inputs = problem()
    slu(model).fit(inputs).save(tmp_path / "net.slu")
    header, tensors = read(tmp_path / "net.slu")
    numbers = tensors.pop("held_out").clone()
    if edit == "one":
        numbers[0] *= 1 - 1e-12
    elif edit == "order":
        numbers = numbers.flip(0)
    elif edit == "above":
        numbers[-1] = header["state"]["calibration"]["held_out"]
    elif edit in ("nan", "zero"):
        numbers[0] = torch.nan if edit == "nan" else 0.0
    elif edit in ("fewer", "more"):
        numbers = numbers[1:] if edit == "fewer" else torch.cat([numbers[:1], numbers])
    known = {"count": 29, "many": 1001, "missing": 30}
    header["state"]["calibration"]["numbers"] = known.get(edit, len(numbers))
    tensors |= {} if edit == "missing" else {"held_out": numbers}
    if "tensors" in header:
        header["tensors"] = inventory(tensors)
    write(tmp_path / "net.slu", tensors, header)
    with pytest.raises(DamagedFileError, match=EDITS[edit]):
        SLU.load(tmp_path / "net.slu", model)


def test_without_calibration_points_the_explanation_says_why():
    model, inputs = problem()
    explanation = slu(model).fit(inputs[:37]).explain(inputs[:2])
    assert set(explanation.readings) == {"fisher", "fisher-relative"} and explanation.pvalues is None
    assert explanation.views == explanation.percentiles == explanation.layers == {}
    assert explanation.raised_by == explanation.reasons == ()
    assert "Not calibrated: with fewer than 38 points" in " ".join(str(explanation).split())


@pytest.mark.parametrize("fail", [2, 6])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("sized", [False, True])
def test_stopped_and_gone_on_to_the_bit(solver, fail, sized, tmp_path):
    model, inputs = problem()

    def loader(fail=None):
        return _Sized(inputs, 30, fail) if sized else Unsized(inputs, 30, fail)

    method = slu(model, solver=SOLVERS[solver])
    expected = method.fit(loader())
    broken = loader(fail) if solver == "stream" else _Later(inputs, 30, fail)
    with pytest.raises(KeyboardInterrupt):
        method.fit(broken, checkpoint=Checkpoint(tmp_path / "run", every=0))
    again = method.fit(loader(), checkpoint=tmp_path / "run")
    finished = method.fit(loader(), checkpoint=tmp_path / "run")
    for score in (again, finished):
        assert torch.equal(score.state.subspace.basis, expected.state.subspace.basis)
        assert score.state.calibration.held_out == expected.state.calibration.held_out
        for reading in expected.readings:
            assert torch.equal(score.calibration.scores[reading], expected.calibration.scores[reading])
            assert torch.equal(score(inputs, reading=reading), expected(inputs, reading=reading))
    with pytest.raises(MismatchError, match="calibration"):
        method.fit(loader(), checkpoint=tmp_path / "run", calibration=False)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("solver", SOLVERS)
def test_stopped_while_calibrating_only_that_is_done_again(solver, own, tmp_path, monkeypatch):
    model, inputs = problem()
    method = slu(model, solver=SOLVERS[solver])
    own = problem(30, seed=1)[1] if own else None

    def fit(**settings):
        return method.fit(list(inputs.split(30)), calibration=own, **settings)

    expected = fit()
    with monkeypatch.context() as patch:
        patch.setattr(SluScore, "read_uncalibrated", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            fit(checkpoint=tmp_path / "run")
    monkeypatch.setattr(type(method.settings.solver), "solve", _interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit(checkpoint=tmp_path / "another")
    for _ in range(2):
        again = fit(checkpoint=tmp_path / "run")
        assert torch.equal(again.state.subspace.basis, expected.state.subspace.basis)
        assert again.state.calibration.held_out == expected.state.calibration.held_out
        for reading in expected.readings:
            assert torch.equal(again.calibration.scores[reading], expected.calibration.scores[reading])


def _interrupted(*_, **__):
    raise KeyboardInterrupt


def test_a_checkpoint_is_calibrated_with_one_estimator(tmp_path):
    """Its scores are not those of another; without calibration the same fit serves both."""
    model, inputs = problem()
    for calibration in (None, False):
        path = tmp_path / f"run {calibration}"
        slu(model).fit(inputs, calibration=calibration, checkpoint=path)
        other = slu(model, estimator="difference")
        if calibration is None:
            with pytest.raises(MismatchError, match="held out, read by ratio"):
                other.fit(inputs, calibration=calibration, checkpoint=path)
        else:
            assert other.fit(inputs, calibration=calibration, checkpoint=path).diagnostics.points == POINTS


class _Sized(Unsized):
    def __len__(self):
        return -(-len(self.inputs) // self.size)


class _Later(Unsized):
    """Stops in its third pass."""

    passes = 0

    def __iter__(self):
        self.passes += 1
        stops, self.fail = self.fail, None if self.passes < 3 else self.fail
        yield from super().__iter__()
        self.fail = stops


def test_what_a_file_and_a_score_say_of_it(tmp_path):
    model, inputs = problem()
    score = slu(model).fit(inputs)
    score.save(tmp_path / "net.slu")
    told = contents(tmp_path / "net.slu")
    assert told["state"]["calibration"]["source"] == "held out" and "calibration" not in told["settings"]
    assert told["tensors"]["calibration"]["shape"] == [len(score.readings), score.calibration.points]
    ran = CliRunner().invoke(app, ["inspect", str(tmp_path / "net.slu")])
    assert f"on {score.calibration.points} points, held out" in ran.output
