"""The fitted state: every field goes into a file and comes back, by one way that save, load and checkpoints share."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from calibrated import problem, slu
from slu import SLU, Lanczos, Stream
from slu.artifacts import read, read_newest
from slu.core.calibration_state import CalibrationState
from slu.core.distances import LayerStatistics
from slu.core.scaling import DenseScaling
from slu.core.state import Diagnostics, FittedState
from slu.errors import DamagedFileError, SettingError
from slu.sketches import SketchSpec, build
from slu.subspace import Convergence, SketchedSubspace

SOLVERS = {
    "stream": Stream(),
    "lanczos": Lanczos(),
    "preconditioned": Lanczos(precondition=3),
    "keep": Lanczos(keep=0.9),
}


def fitted(solver="stream", scale="diagonal", calibration=None):
    model, inputs = problem()
    return slu(model, solver=SOLVERS[solver], scale=scale).fit(inputs, calibration=calibration), inputs


def through_a_file(state):
    """What comes back when the plain data went through JSON, as in a header."""
    tensors, plain = state.to_file()
    return FittedState.from_file(
        tensors, json.loads(json.dumps(plain, allow_nan=False)), selection(), sketch(len(tensors["basis"].T))
    )


def sketch(size=51):
    return build(SketchSpec("identity", size, size), dtype=torch.float64)


def selection(dtype=torch.float64):
    return slu(problem(dtype=dtype)[0]).settings.network.selection


def same(first, second):
    """Whether two values of any field are equal, arrays and NaN included; a reservoir is never written."""
    if dataclasses.is_dataclass(first):
        names = [field.name for field in dataclasses.fields(first) if field.compare and field.name != "reservoir"]
        return type(first) is type(second) and all(same(getattr(first, n), getattr(second, n)) for n in names)
    if isinstance(first, torch.Tensor | np.ndarray):
        return type(first) is type(second) and first.dtype == second.dtype and np.array_equal(first, second, True)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    return first == second or (first != first and second != second)


@pytest.mark.parametrize("calibration", [None, False])
@pytest.mark.parametrize("scale", [None, "factored", "diagonal"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_every_field_comes_back(solver, scale, calibration):
    score, inputs = fitted(solver, scale, calibration)
    again = through_a_file(score.state)
    for field in dataclasses.fields(FittedState):
        assert same(getattr(score.state, field.name), getattr(again, field.name)), field.name
    assert (again.scale is None) == (scale is None)
    assert (again.calibration.calibration is None) == (calibration is False)
    assert (again.trace is None) == (again.subspace.convergence is not None) == (solver != "stream")
    assert (again.subspace.eigenvalues is None) == (solver == "keep")
    assert (again.layers is not None) == (solver == "stream")
    assert again.calibration.reservoir is None, "points are never written"
    before = {reading: score(inputs[:7], reading=reading) for reading in score.readings}
    score.state = again
    assert all(torch.equal(score(inputs[:7], reading=reading), before[reading]) for reading in before)


def test_the_comparison_sees_every_field():
    """The control: a state that differs in one field is not the same."""
    state = fitted()[0].state
    others = {
        "subspace": dataclasses.replace(state.subspace, correction=1 + 1e-12),
        "points": 1,
        "passes": 9,
        "seconds": 1e9,
        "trace": state.trace * (1 + 1e-15),
        "scale": DenseScaling(state.scale.values + 1e-12),
        "layers": dataclasses.replace(state.layers, mean=state.layers.mean + 1e-12),
        "calibration": CalibrationState(None, "it was not calibrated"),
    }
    assert set(others) == {field.name for field in dataclasses.fields(FittedState)}
    for name, value in others.items():
        changed = through_a_file(dataclasses.replace(state, **{name: value}))
        assert not same(changed, state), name


@pytest.mark.parametrize("solver", SOLVERS)
def test_save_and_checkpoint_write_the_same_state(solver, tmp_path):
    model, inputs = problem()
    score = slu(model, solver=SOLVERS[solver]).fit(inputs, checkpoint=tmp_path / "run")
    score.save(tmp_path / "net.slu")
    tensors, plain = score.state.to_file()
    header, saved = read(tmp_path / "net.slu")
    newest = read_newest(tmp_path / "run")
    assert newest is not None
    del header["state"]["witness"]["estimator"]  # a checkpoint belongs to fits with any
    assert header["state"] == newest[0]["state"]
    assert {key: header["state"][key] for key in header["state"] if key != "witness"} == json.loads(json.dumps(plain))
    assert saved.keys() == newest[1].keys() == {*tensors, "probe"}
    assert all(torch.equal(saved[name], newest[1][name]) for name in tensors)
    resumed = slu(model, solver=SOLVERS[solver]).fit(inputs, checkpoint=tmp_path / "run")
    assert same(resumed.state, SLU.load(tmp_path / "net.slu", model).state)


def test_on_another_type_numbers_are_those_of_the_selection():
    score, _ = fitted()
    moved = FittedState.from_file(*score.state.to_file(), selection(torch.float32), sketch())
    assert moved.subspace.basis.dtype == moved.scale.values.dtype == torch.float32
    torch.testing.assert_close(moved.scale.values.double(), score.scale.values, rtol=1e-6, atol=0)
    assert moved.layers.mean.dtype == moved.layers.covariance.dtype == torch.float32
    assert same(moved.subspace.eigenvalues, score.state.subspace.eigenvalues), "eigenvalues stay float64"
    assert same(moved.calibration, score.state.calibration)


def test_what_does_not_fit_together_is_refused(monkeypatch):
    state = fitted()[0].state
    tensors, plain = state.to_file()
    with pytest.raises(DamagedFileError, match=r"eigenvalues is .* expected a list of 5"):
        FittedState.from_file(tensors, plain | {"eigenvalues": plain["eigenvalues"][:4]}, selection(), sketch())
    with pytest.raises(SettingError, match=r"51 parameters must be 51 .* got the shape \(50,\)"):
        FittedState.from_file(tensors | {"scale": tensors["scale"][:-1]}, plain, selection(), sketch())
    with monkeypatch.context() as patched:
        patched.setattr("slu.core.scaling.SMALL_TENSOR", 0)
        with pytest.raises(SettingError, match=r"51 parameters must be 28 .* got the shape \(51,\)"):
            FittedState.from_file(tensors, plain | {"scale": "factored"}, selection(), sketch())
    with pytest.raises(DamagedFileError, match="scale is missing"):
        FittedState.from_file({"basis": tensors["basis"]}, plain, selection(), sketch())
    with pytest.raises(DamagedFileError, match="layers is '0 distances', expected the 4 that are calibrated"):
        FittedState.from_file(tensors, plain | {"layers": None}, selection(), sketch())
    without = {key: plain[key] for key in plain if key != "layers"}
    uncalibrated = {"calibration": {"why": "it was not", "held_out": 0.0}}
    kept = {name: tensors[name] for name in tensors if not name.startswith("calibration")}
    assert FittedState.from_file(kept, without | uncalibrated, selection(), sketch()).layers is None
    for harmed in (
        {name: each for name, each in tensors.items() if name != "layers.mean"},
        tensors | {"layers.covariance": tensors["layers.covariance"][1:]},
        tensors | {"layers.mean": torch.full_like(tensors["layers.mean"], math.nan)},
    ):
        with pytest.raises(DamagedFileError, match=r"layers\.(mean|covariance) "):
            FittedState.from_file(harmed, plain, selection(), sketch())
    for name in without:
        with pytest.raises(DamagedFileError, match=f"{name} is missing"):
            FittedState.from_file(tensors, {key: plain[key] for key in plain if key != name}, selection(), sketch())
    with pytest.raises(DamagedFileError, match="basis is missing"):
        FittedState.from_file({}, plain, selection(), sketch())


def test_layers_are_read_once(monkeypatch):
    state, calls, read = fitted()[0].state, [], LayerStatistics.from_file
    monkeypatch.setattr(LayerStatistics, "from_file", lambda *given: calls.append(given) or read(*given))
    assert through_a_file(state).layers is not None and len(calls) == 1


def test_a_report_of_lanczos_that_is_not_finite_can_be_saved():
    nothing = np.array([1.0, np.inf, np.nan])
    convergence = Convergence(4, 1, 0, math.nan, False, nothing, nothing, np.ones(4))
    state = FittedState(SketchedSubspace(torch.eye(3), np.ones(3), 1.0, convergence), points=9, passes=4, seconds=1.0)
    again = through_a_file(state)
    assert math.isnan(again.subspace.convergence.orthogonality)
    assert np.array_equal(again.subspace.convergence.residuals, [1.0, np.nan, np.nan], equal_nan=True)
    assert "largest cosine nan" in str(again.diagnostics(rank=4))


def test_diagnostics_are_made_from_settings_and_state_and_decide_nothing():
    score, inputs = fitted()
    facts, state = score.diagnostics, score.state
    assert (facts.steps, facts.effective_rank, facts.null, facts.ghosts) == (5, 5, 0, 0)
    assert (facts.points, facts.passes, facts.seconds) == (state.points, state.passes, state.seconds)
    assert facts.captured == pytest.approx(state.subspace.eigenvalues.sum() / state.trace)
    assert np.array_equal(facts.ritz_values, state.subspace.eigenvalues)
    assert "of the curvature's trace" in str(facts) and "2 passes" in str(facts)
    before = score(inputs)
    facts.ritz_values[:] = 0.0  # a copy
    assert torch.equal(score(inputs), before)
    lanczos = fitted("keep")[0]
    report, convergence = lanczos.diagnostics, lanczos.state.subspace.convergence
    assert (report.steps, report.effective_rank) == (convergence.steps, len(lanczos.state.subspace.basis)) == (5, 4)
    for name in ("ghosts", "null", "orthogonality", "exhausted", "ritz_values", "residuals", "singular_values"):
        assert same(getattr(report, name), getattr(convergence, name)), name
    assert math.isnan(report.captured) and "4 of 5 steps" in str(report)


def test_diagnostics_of_a_file_are_those_of_its_score(tmp_path):
    for solver in SOLVERS:
        score, _ = fitted(solver)
        score.save(tmp_path / "net.slu")
        header, tensors = read(tmp_path / "net.slu")
        assert same(
            Diagnostics.of(header["state"], header["settings"]["rank"], len(tensors["basis"])), score.diagnostics
        )
