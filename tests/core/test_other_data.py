"""Other data than those of the run that began a checkpoint are refused, wherever it stopped and however they differ."""

import logging
from pathlib import Path

import pytest
import torch

from calibrated import problem, slu
from slu import Checkpoint, FactoredScale, SluScore
from slu.errors import DataError, MismatchError

MODES = {"held out": None, "none": False, "given": problem(40, seed=5)[1]}
"""Of the calibration."""

SCALES = {"factored": FactoredScale(points=50), "diagonal": "diagonal", "none": None}


class Stopped:
    """Batches of 30 of 300 points; stops as Ctrl-C does before its eighth in the last pass."""

    def __init__(self, batches, passes=1, at=7):
        self.batches, self.passes, self.at = list(batches), passes, at

    def __iter__(self):
        self.passes -= 1
        for place, batch in enumerate(self.batches):
            if place == self.at and not self.passes:
                raise KeyboardInterrupt
            yield batch


def points(count: int = 300) -> torch.Tensor:
    return problem(count)[1]


def others(count: int = 300) -> torch.Tensor:
    return problem(count, seed=3)[1]


def changed(place: int) -> list[torch.Tensor]:
    """One number of one point is another."""
    inputs = points().clone()
    inputs[place, 0] += 1e-6
    return list(inputs.split(30))


def swapped() -> list[torch.Tensor]:
    first, second, *rest = points().split(30)
    return [second, first, *rest]


RESUMED = {
    "one batch of others": (lambda: [others()[:30]], r"batch 0 of the data has 30 points and other content"),
    "one small batch of others": (lambda: [others()[:5]], "end after 5 points, the run that began it had read 210"),
    "one large batch of others": (lambda: others()[:210], "batch 0 of the data has 210 points and other"),
    "as many others": (lambda: list(others().split(30)), "batch 0 of the data has 30 points and other content"),
    "fewer, the same": (lambda: list(points().split(30))[:5], "end after 150 points, the run that began it had read"),
    "one batch, the same": (lambda: [points()[:30]], "end after 30 points"),
    "one number of the first": (lambda: changed(0), "batch 0 of the data has 30 points"),
    "one number of batch 3": (lambda: changed(100), "batch 3 of the data has 30 points and other content"),
    "one number of the last": (lambda: changed(209), "batch 6 of the data"),
    "another order": (swapped, "batch 0 of the data"),
    "a longer one that begins differently": (lambda: [others()[:30], *points().split(30)], "batch 0 of the data"),
    "a longer one with a batch between": (lambda: [points()[:30], others()[:7], *points()[30:].split(30)], "210"),
    "batches that do not meet": (lambda: list(points().split(40)), "batch 5 here goes on from point 200 to 240"),
    "smaller batches of others": (
        lambda: [*points()[:60].split(15), *others()[60:].split(15)],
        "up to batch 5|batch 5",
    ),
    "all in one": (points, "batch 0 here goes on from point 0 to 300"),
}


@pytest.mark.parametrize(
    ("scale", "mode"), [("factored", "held out"), ("factored", "none"), ("diagonal", "held out"), ("none", "given")]
)
@pytest.mark.parametrize("case", RESUMED)
def test_a_resumed_fit_refuses_other_data(case, scale, mode, tmp_path):
    path, method = tmp_path / "run", slu(problem()[0], scale=SCALES[scale])
    stopped(method, path, scale, mode)
    before = path.read_bytes()
    data, message = RESUMED[case]
    with pytest.raises(MismatchError, match=rf"run was begun on other data.*({message}).*check_data=False"):
        method.fit(data(), calibration=MODES[mode], checkpoint=path)
    assert path.read_bytes() == before, "the run that began it can still go on"
    assert method.fit(list(points().split(30)), calibration=MODES[mode], checkpoint=path).diagnostics.points >= 270


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scale", SCALES)
def test_what_was_not_read_yet_may_be_longer_or_shorter(scale, mode, tmp_path):
    """Nothing of it is in the sums; but a diagonal scale is of all points."""
    for count in (240, 400):
        path, method = tmp_path / f"run {count}", slu(problem()[0], scale=SCALES[scale])
        stopped(method, path, scale, mode)
        data = list(torch.cat([points(), others(100)])[:count].split(30))
        if scale == "diagonal":
            with pytest.raises(MismatchError, match=f"had 300 points in the run that began it, here they have {count}"):
                method.fit(data, calibration=MODES[mode], checkpoint=path)
            continue
        score = method.fit(data, calibration=MODES[mode], checkpoint=path)
        expected = method.fit(data, calibration=MODES[mode])
        assert torch.equal(score.state.subspace.basis, expected.state.subspace.basis)


@pytest.mark.parametrize("size", [10, 15, 70, 210])
def test_other_batches_resume_where_they_meet(size, tmp_path):
    """Somebody who ran out of memory takes smaller batches."""
    path, method = tmp_path / "run", slu(problem()[0], scale=None)
    stopped(method, path, "none", "none")
    score = method.fit(list(points().split(size)), calibration=False, checkpoint=path)
    expected = method.fit(list(points().split(30)), calibration=False)
    torch.testing.assert_close(score(points()), expected(points()))
    assert score.diagnostics.points == 300


@pytest.mark.parametrize("size", [10, 15])
def test_with_points_held_out_other_batches_are_refused(size, tmp_path):
    """Those that were held out for a while are fitted at another time."""
    path, method = tmp_path / "run", slu(problem()[0], scale=None)
    stopped(method, path, "none", "held out")
    with pytest.raises(MismatchError, match="batches of the same size as in that run"):
        method.fit(list(points().split(size)), checkpoint=path)


def test_a_batch_that_was_read_but_not_fitted_may_be_mended(tmp_path):
    """Such as one on which the model fails: it is in no sum."""
    inputs, calls = points(), []

    def forward(model, batch):
        calls.append(len(batch))
        if len(calls) == 5:
            raise KeyboardInterrupt
        return model(batch)

    method, path = slu(problem()[0], scale=None, forward=forward), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        method.fit(list(inputs.split(100)), calibration=False, checkpoint=Checkpoint(path, every=0))
    mended = [*inputs[:100].split(100), *others(200).split(100)]
    assert method.fit(mended, calibration=False, checkpoint=path).diagnostics.points == 300


FINISHED = {
    "others": (others, "300 points of the data differ in content"),
    "one number": (lambda: changed(299), "300 points of the data differ in content"),
    "fewer": (lambda: points()[:299], "had 300 points in the run that began it, here they have 299"),
    "more": (lambda: torch.cat([points(), others(1)]), "here they have 301"),
    "one batch of others": (lambda: [others()[:30]], "here they have 30"),
    "one twice for another": (lambda: torch.cat([points()[:299], points()[:1]]), "differ in content"),
}


@pytest.mark.parametrize(
    ("solver", "mode", "calibrating"),
    [
        ("stream", "held out", False),
        ("stream", "none", False),
        ("stream", "given", False),
        ("stream", "held out", True),
        ("stream", "given", True),
        ("lanczos", "held out", False),
        ("lanczos", "given", True),
    ],
)
@pytest.mark.parametrize("case", FINISHED)
def test_a_finished_fit_refuses_other_data(case, mode, solver, calibrating, tmp_path, monkeypatch):
    path, method = tmp_path / "run", slu(problem()[0], solver=solver)
    with monkeypatch.context() as patch:
        if calibrating:
            patch.setattr(SluScore, "read_uncalibrated", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                method.fit(points(), calibration=MODES[mode], checkpoint=path)
        else:
            method.fit(points(), calibration=MODES[mode], checkpoint=path)
    data, message = FINISHED[case]
    with pytest.raises(MismatchError, match=rf"run was begun on other data.*{message}.*check_data=False"):
        method.fit(data(), calibration=MODES[mode], checkpoint=path)
    if mode == "given":
        with pytest.raises(MismatchError, match="the calibration points had 40 points in the run that began it"):
            method.fit(points(), calibration=MODES[mode][:39], checkpoint=path)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    shuffled = method.fit(list(points()[order].split(17)), calibration=MODES[mode], checkpoint=path)
    expected = method.fit(points(), calibration=MODES[mode])
    assert torch.equal(shuffled.state.subspace.basis, expected.state.subspace.basis)
    torch.testing.assert_close(shuffled(points()[:7]), expected(points()[:7]))


@pytest.mark.parametrize("stage", ["running", "calibrating"])
@pytest.mark.parametrize("solver", ["stream", "lanczos"])
def test_other_calibration_points_are_refused(solver, stage, tmp_path, monkeypatch):
    path, method, data = tmp_path / "run", slu(problem()[0], solver=solver, scale=None), list(points().split(30))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        loader = data
        if stage == "calibrating":
            patch.setattr(SluScore, "read_uncalibrated", _interrupted)
        else:
            loader = Stopped(data, passes=1 if solver == "stream" else 3)
        method.fit(loader, calibration=MODES["given"], checkpoint=Checkpoint(path, every=0))
    before = path.read_bytes()
    with pytest.raises(MismatchError, match="40 points of the calibration points differ in content"):
        method.fit(data, calibration=others(40), checkpoint=path)
    assert path.read_bytes() == before
    score, expected = (method.fit(data, calibration=MODES["given"], checkpoint=each) for each in (path, None))
    assert torch.equal(score.pvalue(points()), expected.pvalue(points()))


def _interrupted(*_, **__):
    raise KeyboardInterrupt


def test_other_targets_are_other_data(tmp_path):
    """The calibration says by them whether the network has memorized its data."""
    path, method, targets = tmp_path / "run", slu(problem()[0]), torch.zeros(300, dtype=torch.long)
    method.fit((points(), targets), checkpoint=path)
    method.fit((points(), targets.clone()), checkpoint=path)
    with pytest.raises(MismatchError, match="differ in content"):
        method.fit((points(), targets + 1), checkpoint=path)


def test_data_that_are_not_compared_are_logged(tmp_path, caplog):
    path, method = tmp_path / "run", slu(problem()[0], scale=FactoredScale(points=50))
    stopped(method, path, "factored", "held out")
    unchecked = Checkpoint(path, check_data=False)
    with caplog.at_level(logging.WARNING):
        first = method.fit(list(others().split(30)), checkpoint=unchecked)
    assert "not compared" in caplog.text and str(path) in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        again = method.fit([], checkpoint=unchecked)
    assert "not compared" in caplog.text and torch.equal(again(points()[:7]), first(points()[:7]))
    with pytest.raises(DataError, match="no batch"):
        method.fit([], checkpoint=path)


def test_points_that_are_not_compared_are_those_of_the_sums(tmp_path):
    """Of an augmentation other points are held out, so other numbers of them are skipped."""
    for count in (300, 60):
        path, method = tmp_path / f"run {count}", slu(problem()[0], scale=None)
        stopped(method, path, "none", "held out")
        score = method.fit(list(others(count).split(30)), checkpoint=Checkpoint(path, check_data=False))
        assert 180 <= score.diagnostics.points <= 290


def stopped(method, path: Path, scale: str, mode: str) -> None:
    """Leave the checkpoint of a fit that was stopped before the eighth of ten batches."""
    loader = Stopped(points().split(30), passes=2 if scale == "diagonal" else 1)
    with pytest.raises(KeyboardInterrupt):
        method.fit(loader, calibration=MODES[mode], checkpoint=Checkpoint(path, every=0))
    assert path.exists()
