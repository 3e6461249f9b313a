"""Other data than those of the run that began a checkpoint are refused, wherever it stopped and however they differ."""

import logging
import os
from pathlib import Path

import pytest
import torch

from calibrated import problem, slu
from slu import Checkpoint, FactoredScale, SluScore
from slu.errors import DataError, MismatchError, SettingError
from slu.subspace import SketchedVectors

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
    with pytest.raises(MismatchError, match=rf"run was begun on other data.*({message}).*Give .*Or name another file"):
        method.fit(data(), calibration=MODES[mode], checkpoint=path)
    assert path.read_bytes() == before, "the run that began it can still go on"
    assert method.fit(list(points().split(30)), calibration=MODES[mode], checkpoint=path).diagnostics.points >= 260


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
    stopped(method, path, "factored", "none")
    unchecked = {"calibration": False, "checkpoint": Checkpoint(path, check_data=False)}
    with caplog.at_level(logging.WARNING):
        first = method.fit(list(others().split(30)), **unchecked)
    assert "not compared" in caplog.text and str(path) in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        again = method.fit([], **unchecked)
    assert "not compared" in caplog.text and torch.equal(again(points()[:7]), first(points()[:7]))
    for data in (points(), others()):  # it is of neither
        with pytest.raises(MismatchError, match="went on with check_data=False, so which data are in it is not known"):
            method.fit(data, calibration=False, checkpoint=path)


def test_a_file_whose_data_were_never_compared_is_not_compared_later(tmp_path):
    path, method = tmp_path / "run", slu(problem()[0], scale=None)
    stopped(method, path, "none", "none")
    with pytest.raises(KeyboardInterrupt):
        loader = Stopped(others().split(30), at=9)
        method.fit(loader, calibration=False, checkpoint=Checkpoint(path, every=0, check_data=False))
    with pytest.raises(MismatchError, match="went on with check_data=False"):
        method.fit(list(others().split(30)), calibration=False, checkpoint=path)


def test_a_fit_that_was_begun_without_comparing_is_of_its_data(tmp_path):
    path, method = tmp_path / "run", slu(problem()[0], scale=None)
    method.fit(points(), calibration=False, checkpoint=Checkpoint(path, check_data=False))
    method.fit(points(), calibration=False, checkpoint=path)
    with pytest.raises(DataError, match="no batch"):
        method.fit([], calibration=False, checkpoint=path)


def test_a_refused_resume_leaves_what_was_resumed(tmp_path):
    """Of a diagonal scale the whole pass is compared, when others were fitted and written already."""
    method, right = slu(problem()[0], scale="diagonal"), list(points().split(30))
    for every in (60.0, 0.0):
        path = tmp_path / f"run {every}"
        stopped(method, path, "diagonal", "none")
        before = path.read_bytes()
        with pytest.raises(MismatchError, match="300 points of the data differ in content"):
            wrong = [*right[:7], *others().split(30)[7:]]
            method.fit(wrong, calibration=False, checkpoint=Checkpoint(path, every=every))
        assert path.read_bytes() == before
        score, expected = (method.fit(right, calibration=False, checkpoint=each) for each in (path, None))
        assert torch.equal(score.state.subspace.basis, expected.state.subspace.basis)


def test_shuffled_data_are_told_the_order_and_other_batches_one_remedy(tmp_path):
    path, method = tmp_path / "run", slu(problem()[0], scale=None)
    stopped(method, path, "none", "none")
    with pytest.raises(MismatchError, match=r"or another order.*shuffle=False, or a generator seeded as in that run"):
        method.fit(list(points().flip(0).split(30)), calibration=False, checkpoint=path)
    with pytest.raises(MismatchError, match="Give batches of which one ends at point 210") as refused:
        method.fit(list(points().split(40)), calibration=False, checkpoint=path)
    assert str(refused.value).count("Give ") == 1 and "check_data" not in str(refused.value)


def test_a_fork_that_fails_writes_no_checkpoint(tmp_path):
    """The lock is not its own."""
    path, inside = tmp_path / "run", os.getpid()

    class Forking:
        def __iter__(self):
            for place, batch in enumerate(points().split(30)):
                if place == 3:
                    child = os.fork()
                    if child == 0:
                        raise KeyboardInterrupt
                    os.waitpid(child, 0)
                    assert not path.exists()
                yield batch

    try:
        slu(problem()[0], scale=None).fit(Forking(), calibration=False, checkpoint=path)
    finally:
        if os.getpid() != inside:
            os._exit(0)
    assert path.exists()


@pytest.mark.parametrize("stop", [True, False])
def test_another_forward_is_another_fit(stop, tmp_path):
    path, settings = tmp_path / "run", {"scale": None}

    def flipped(model, batch):
        return model(batch.flip(1))

    first = slu(problem()[0], forward=lambda model, batch: model(batch), **settings)
    if stop:
        stopped(first, path, "none", "none")
    else:
        first.fit(points(), calibration=False, checkpoint=path)
    with pytest.raises(MismatchError, match=r"its forward is 'code [0-9a-f]+', here it is 'code "):
        slu(problem()[0], forward=flipped, **settings).fit(points(), calibration=False, checkpoint=path)
    again = slu(problem()[0], forward=lambda model, batch: model(batch), **settings)
    assert again.fit(list(points().split(30)), calibration=False, checkpoint=path).diagnostics.points == 300


@pytest.mark.parametrize("wrong", [{"check_data": "no"}, {"check_data": 0}, {"every": True}, {"every": float("nan")}])
def test_settings_of_another_type_are_refused(wrong):
    with pytest.raises(SettingError, match=f"got {next(iter(wrong.values()))!r}"):
        Checkpoint("run", **wrong)


def test_points_that_are_not_compared_are_those_of_the_sums(tmp_path):
    path, method = tmp_path / "run", slu(problem()[0], scale=None)
    stopped(method, path, "none", "none")
    unchecked = Checkpoint(path, check_data=False)
    assert method.fit(list(others().split(30)), calibration=False, checkpoint=unchecked).diagnostics.points == 300


def test_a_batch_is_not_cut_where_an_earlier_run_stopped(tmp_path):
    """Of 210 points that were fitted, a batch of 40 points has 30: ten others would be lost."""
    path, method = tmp_path / "run", slu(problem()[0], scale=None)
    stopped(method, path, "none", "none")
    with pytest.raises(MismatchError, match=r"fitted 210 points, and a batch here ends at point 240\. Give batches"):
        method.fit(list(others().split(40)), calibration=False, checkpoint=Checkpoint(path, check_data=False))


def test_points_are_not_held_out_of_data_that_are_not_compared(tmp_path):
    """Of an augmentation a resumed fit would hold out others, and be calibrated on points it was fitted on."""
    path, method = tmp_path / "run", slu(problem()[0])
    with pytest.raises(SettingError, match="calibrate on fitted ones; give calibration=False, or a loader of calib"):
        method.fit(points(), checkpoint=Checkpoint(path, check_data=False))
    assert not path.exists()
    for mode in ("none", "given"):
        method.fit(points(), calibration=MODES[mode], checkpoint=Checkpoint(tmp_path / mode, check_data=False))


@pytest.mark.parametrize("mode", ["none", "given"])
def test_fewer_points_than_were_read_are_refused_also_where_they_are_not_compared(mode, tmp_path):
    path, method = tmp_path / "run", slu(problem()[0], scale=None)
    stopped(method, path, "none", mode)
    before = path.read_bytes()
    with pytest.raises(MismatchError, match=r"end after 60 points, the run that began it had read 210\. Give the data"):
        method.fit(others(60), calibration=MODES[mode], checkpoint=Checkpoint(path, check_data=False))
    assert path.read_bytes() == before


def stopped(method, path: Path, scale: str, mode: str) -> None:
    """Leave the checkpoint of a fit that was stopped before the eighth of ten batches."""
    loader = Stopped(points().split(30), passes=2 if scale == "diagonal" else 1)
    with pytest.raises(KeyboardInterrupt):
        method.fit(loader, calibration=MODES[mode], checkpoint=Checkpoint(path, every=0))
    assert path.exists()


@pytest.mark.parametrize("scale", [None, "diagonal"])
def test_a_fit_that_was_stopped_after_its_last_step_holds_out_and_compares_as_any(scale, tmp_path, monkeypatch):
    """There is no step left for which the data would be read."""
    method = slu(problem(1)[0], solver="lanczos", scale=scale, ridge=0.0)
    whole = method.fit(list(points().split(30)))
    for name, data, again in [("same", points(), points()), ("others", points(), others())]:
        path = tmp_path / name
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(SketchedVectors, "subspace", interrupted)
            method.fit(list(data.split(30)), checkpoint=Checkpoint(path, every=0))
        if name == "others":
            with pytest.raises(MismatchError, match="300 points of the data differ in content"):
                method.fit(list(again.split(30)), checkpoint=path)
            continue
        resumed = method.fit(list(again.split(30)), checkpoint=path)
        assert resumed.calibration is not None and resumed.calibration.points == whole.calibration.points >= 19
        assert torch.equal(resumed.pvalue(others()), whole.pvalue(others()))


def interrupted(*_):
    raise KeyboardInterrupt
