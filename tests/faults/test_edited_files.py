"""Every field and every tensor of a file replaced by hostile values, with a checksum that fits.

Each is refused by an error of slu, or the file gives the numbers that it gives without the fault. `make test-slow`
tries every fifth edit of a header, so that each field has three or four values and each value every fifth field, and of
the tensors all; `make test-matrix` tries all edits.
"""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import edited
from fault_counts import FaultCounts
from matrix import step
from slu import SLU, Checkpoint, DiagonalScale, FactoredScale, Lanczos, LowRankLaplace, Probes
from slu.artifacts import read, write
from slu.cli import app
from slu.cli.contents import contents
from slu.comparing.registry import MEMBERS, METHODS
from slu.errors import DamagedFileError, SettingError

# What one header says differently of a fit that could have been: nothing else in the file contradicts it. Such a
# setting gives other numbers, which are those of the setting.
OTHER_FITS = {
    "DiagonalLaplace": ("settings.prior_precision",),
    "LowRankLaplace": ("settings.prior_precision", "settings.spectrum.ritz_values"),
    "SCOD": ("settings.prior_precision",),
    "KNN": ("settings.neighbours",),
}


EVERY = step(5)  # no field has a multiple of five edits: 18, or 19 where it is a dict


@pytest.fixture(autouse=True)
def in_memory(monkeypatch):
    """Files that a test writes by the thousand need not reach the disk; and what is read may warn."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def network(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(5, 70), nn.Tanh(), nn.Linear(70, 60), nn.Tanh(), nn.Linear(60, 3))


def data(points=60, seed=1):
    return torch.randn(points, 5, generator=torch.Generator().manual_seed(seed))


MODEL, QUERIES = network(), 2 * data(6, seed=2)
SETTINGS = {
    "stream, factored": {"scale": FactoredScale(points=20)},
    "Lanczos, diagonal": {"solver": Lanczos(precondition=2), "scale": DiagonalScale(points=20)},
}


def slu(**settings):
    return SLU(MODEL, "classification", **{"rank": 4, "sketch_size": 40, **settings})


def fitted(**settings):
    """A score calibrated on points that it held out; p-values are known by two choices of rows."""
    score = slu(**settings).fit(list(data().split(20)))
    score.pvalue(QUERIES, reading="fisher", outputs=Probes(2))
    return score


def numbers(score):
    """Scores, p-values and a threshold of a fixed batch."""
    scores = [score(QUERIES).double(), score(QUERIES, reading="variance").double(), score.pvalue(QUERIES)]
    return torch.cat([*scores, torch.tensor([score.threshold(0.1)], dtype=torch.float64)])


def all_numbers(score):
    """Also p-values by other rows; and after the points that the fit held out were found again, -1 if they are not."""
    more = [numbers(score), score.pvalue(QUERIES, reading="fisher", outputs=Probes(2))]
    try:
        return torch.cat([*more, score.calibrate(data(), held_out=True).pvalue(QUERIES)])
    except SettingError:
        return torch.cat([*more, torch.full((len(QUERIES),), -1.0, dtype=torch.float64)])


def same_as(expected):
    return lambda result: bool(torch.allclose(result, expected, rtol=1e-5, atol=0.0))


@dataclass
class Faults:
    """Edits of one file, and what comes of each."""

    path: Path
    counts: FaultCounts
    use: Any
    expected: torch.Tensor

    def __post_init__(self) -> None:
        self.header, self.tensors = read(self.path)
        assert same_as(self.expected)(self.use()), "the file as it was written"

    def run(self, values=edited.VALUES, *, known=(), every=EVERY, skipped=()):
        for place, (fault, path, header) in enumerate(edited.headers(self.header, values)):
            name = ".".join(map(str, path))
            if not place % every and path[:1] not in [(each,) for each in skipped]:
                self._try(fault, self.tensors, header, name.startswith(tuple(known)) if known else False)
        for fault, _, tensors in edited.tensors(self.tensors):
            self._try(fault, tensors, self.header, False)

    def run_believed(self, *, witnessed):
        """Tensors that the inventory agrees with; without a witness valid ones may give other, finite numbers."""
        for fault, _, tensors in edited.tensors(self.tensors):
            finite = not fault.endswith(("NaN", "inf"))
            write(self.path, tensors, edited.believed(self.header, tensors))
            same = same_as(self.expected) if finite else lambda _: False
            valid = (lambda result: bool(result.isfinite().all())) if finite and not witnessed else lambda _: False
            self.counts.run(f"{fault}, in the header as well", self.use, same, valid)

    def _try(self, fault, tensors, header, known):
        write(self.path, tensors, header)
        self.path.with_name(f"{self.path.name}.previous").unlink(missing_ok=True)
        self.counts.run(fault, self.use, same_as(self.expected), lambda _: known)


def saved(score, tmp_path):
    score.save(tmp_path / "net.slu")
    return tmp_path / "net.slu"


def test_some_fields_of_a_score(tmp_path):
    """The fast part: fewer values, and of these every fifth."""
    score = fitted()
    path = saved(score, tmp_path)
    faults = Faults(path, FaultCounts("a score, some"), lambda: all_numbers(SLU.load(path, MODEL)), all_numbers(score))
    faults.run(edited.FEW, every=5)
    faults.counts.assert_none()


@pytest.mark.slow
@pytest.mark.parametrize("kind", SETTINGS)
def test_a_score(tmp_path, kind):
    score = fitted(**SETTINGS[kind])
    path, counts = saved(score, tmp_path), FaultCounts(f"a score, {kind}")
    faults = Faults(path, counts, lambda: all_numbers(SLU.load(path, MODEL)), all_numbers(score))
    faults.run()
    faults.run_believed(witnessed=True)
    faults.counts.assert_none()


@pytest.mark.slow
def test_a_score_of_an_earlier_version(tmp_path):
    """Without inventory and witness: no foreign error, and nothing that is not finite; other numbers may be valid."""
    score = fitted()
    path = saved(score, tmp_path)
    header, tensors = read(path)
    del header["tensors"], header["state"]["witness"]
    write(path, tensors, header)

    def use():
        result = numbers(SLU.load(path, MODEL))
        assert bool(result.isfinite().all())
        return result

    faults = Faults(path, FaultCounts("a score without a witness"), use, numbers(score))
    faults.run()
    print(faults.counts)
    foreign = [each for each in faults.counts.wrong if "foreign" in each]
    assert not foreign, "\n".join(foreign)


def baseline_faults(tmp_path, name):
    entry = METHODS[name]
    small = {"LocalEnsemble": {"rank": 3}, "LowRankLaplace": {"rank": 3}, "SCOD": {"rank": 2}}
    settings = entry.settings | small.get(name.split()[0], {"SWAG": {"rank": 3, "samples": 3}}.get(name, {}))
    model = [MODEL, network(1)] if entry.needs == MEMBERS else MODEL
    targets = torch.arange(60) % 3
    outputs = name in ("MaxLogit", "MaxProbability", "Entropy", "Energy")
    method = entry.kind(model) if outputs else entry.kind(model, "classification", **settings)
    score = method.fit(list(zip(data().split(20), targets.split(20), strict=True)))
    path = saved(score, tmp_path)
    counts = FaultCounts(f"a baseline, {name}")
    return Faults(path, counts, lambda: entry.kind.load(path, MODEL)(QUERIES).double(), score(QUERIES).double())


BASELINES = [name for name in METHODS if not name.startswith("SLU")]


@pytest.mark.parametrize("name", BASELINES)
def test_tensors_of_a_baseline_that_its_header_agrees_with(tmp_path, name):
    faults = baseline_faults(tmp_path, name)
    faults.run_believed(witnessed=False)
    faults.counts.assert_none()


@pytest.mark.slow
@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline(tmp_path, name):
    faults = baseline_faults(tmp_path, name)
    faults.run(known=OTHER_FITS.get(name.split()[0], ()), skipped=("fingerprint", "versions", "tensors"))
    faults.counts.assert_none()


class Stopping:
    """Batches of several passes, of which so many can be read."""

    def __init__(self, batches, left):
        self.batches, self.left = batches, left

    def __iter__(self):
        for batch in self.batches:
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            yield batch


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["running", "finished"])
@pytest.mark.parametrize("kind", SETTINGS)
def test_a_checkpoint(tmp_path, kind, stage):
    path = tmp_path / "run"
    batches, points = list(data().split(10)), data(30, seed=3)

    def fit():
        settings = {"rank": 4, **SETTINGS[kind]}
        return numbers(slu(**settings).fit(batches, calibration=points, checkpoint=Checkpoint(path, every=0)))

    expected = fit()
    if stage == "running":
        path.unlink()
        path.with_name("run.previous").unlink()
        with pytest.raises(KeyboardInterrupt):
            interrupted = Stopping(batches, 4 if kind.startswith("stream") else 16)
            slu(**SETTINGS[kind]).fit(interrupted, calibration=points, checkpoint=Checkpoint(path, every=0))
    header, tensors = read(path)
    assert header["stage"] == stage

    faults = Faults(path, FaultCounts(f"a checkpoint, {kind}, {stage}"), fit, expected)
    faults.header, faults.tensors = header, tensors
    faults.run(skipped=("identity", "tensors"))
    faults.counts.assert_none()


def write_some(file, path):
    """Write a file of a kind that `slu inspect` shows."""
    batches, points = list(data().split(20)), data(30, seed=3)
    if file == "score":
        fitted().save(path)
    elif file == "baseline":
        LowRankLaplace(MODEL, "classification", rank=3).fit(batches).save(path)
    elif file == "weights":
        texts = {"kind": "weights", "model": "mlp", "dataset": "digits", "setting": "digits-mlp"}
        numbers = {"seed": 1, "parameters": 5, "points": 60, "accuracy": 0.9, "loss": 0.3}
        recipe = {"optimizer": "adam", "epochs": 5, "milestones": [0.5], "clip": None}
        write(path, {"a": torch.zeros(5)}, {**texts, **numbers, "recipe": recipe, "versions": {"slu": "1"}})
    elif file == "checkpoint":
        slu().fit(batches, calibration=points, checkpoint=path)
    else:
        with pytest.raises(KeyboardInterrupt):
            some = Stopping(list(data().split(10)), 4)
            slu(scale=FactoredScale(points=20)).fit(some, calibration=points, checkpoint=Checkpoint(path, every=0))


@pytest.mark.parametrize("every", [13, pytest.param(EVERY, marks=pytest.mark.slow)], ids=["some", "more"])
@pytest.mark.parametrize("file", ["score", "baseline", "weights", "checkpoint", "running checkpoint"])
def test_inspecting(tmp_path, file, every):
    """Contents and the command: an error of slu, or what the file holds."""
    path = tmp_path / "net.slu"
    write_some(file, path)
    header, tensors = read(path)
    counts = FaultCounts(f"inspecting a {file}")

    def use():
        try:
            contents(path)
        finally:
            done = CliRunner().invoke(app, ["inspect", str(path)])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code

    assert use() == 0, "the file as it was written"
    for place, (fault, _, changed) in enumerate(edited.headers(header, edited.FEW)):
        if not place % every:
            write(path, tensors, changed)
            counts.run(fault, use, lambda code: code in (0, 1))  # shown, or refused in a line
    counts.assert_none()


@pytest.mark.parametrize("file", ["checkpoint", "running checkpoint"])
def test_inspecting_does_not_show_an_edited_checkpoint_as_whole(tmp_path, file):
    path = tmp_path / "run"
    write_some(file, path)
    header, tensors = read(path)
    name = next(name for name, value in tensors.items() if value.is_floating_point() and value.numel())
    write(path, {**tensors, name: tensors[name] + 1.0}, header)
    with pytest.raises(DamagedFileError, match=f"{name} are not those that were saved"):
        contents(path)
    if file == "running checkpoint":
        write(path, tensors, {**header, "data": {**header["data"], "outputs": 1.5}})
        with pytest.raises(DamagedFileError, match=r"step is .* the digest of the fields beside it"):
            contents(path)
    assert CliRunner().invoke(app, ["inspect", str(path)]).exit_code == 1
    write(path, tensors, header)
    contents(path)
