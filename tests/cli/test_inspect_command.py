"""`slu inspect`: what a file holds, in words and as JSON, without the network; one line where it is harmed."""

import json
import subprocess
import sys

import pytest
import safetensors.torch
import torch
from torch import nn
from typer.testing import CliRunner

from oracles import network
from shorthand import paper_slu
from slu import SLU, LowRankLaplace
from slu.artifacts import read, write
from slu.artifacts.stored import inventory
from slu.budgets import shown
from slu.cli import app
from slu.core.witness import to_file
from slu.likelihoods import Classification, Regression
from slu.parameters import fingerprint, summary


class Tempered(Classification):
    """One of the user's own."""


def run(*arguments, columns=80):
    environment = {"COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)], env=environment)


@pytest.fixture(scope="module", params=["stream", "lanczos"])
def saved(tmp_path_factory, request):
    model, inputs = network("conv")
    score = SLU(model, Regression(0.25), rank=4, sketch_size=40, seed=3, solver=request.param).fit(
        inputs, checkpoint=tmp_path_factory.mktemp("running") / "run.ckpt"
    )
    path = tmp_path_factory.mktemp("inspect") / "net [bold].slu"
    score.save(path)
    return path, model, score


def test_the_report_says_everything(saved):
    path, model, score = saved
    result = run(path)
    assert result.exit_code == 0, result.output
    text = result.stdout
    weights = summary(fingerprint(model))
    by_solver = {
        "stream": (
            "effective rank  4 of 4",
            "of the curvature's trace",
            "12 points, 1 pass,",
            "stream, labels per point 1, oversampling 4",
            # Twice a mean and a lower triangle of 1 and of 48 numbers.
            "basis 4×40 float64, layers.covariance 2354 float64, layers.mean 98 float64, probe 40 float64",
        ),
        "lanczos": (
            "4 of 4 steps",
            "ghosts",
            "12 points, 4 passes",
            "lanczos, precondition 0",
            "basis 4×40 float64, probe 40 float64",
        ),
    }
    solver = score.settings.header()["solver"]["kind"]
    for words in (
        *by_solver[solver],
        solver,
        str(path),
        "a score of SLU",
        "format 2, checksum fits",
        "regression, noise_variance 0.25",
        "kronecker, 183 numbers to 40, seed 3",
        "ggn",
        "ratio",
        "no: with fewer than 38 points",
        "as the model is called",
        "6 parameter tensors: 0.weight, 0.bias … 4.bias",
        f"9 tensors, {weights['numbers']:,} numbers, float64, int64",
        weights["hash"],
        f"torch {torch.__version__}",
        shown(path.stat().st_size),
    ):
        assert words in text, words
    assert [line for line in text.splitlines() if line and line[0] != " "] == [
        "settings",
        "diagnostics",
        "calibration",
        "network",
        "made with",
    ]
    for line in str(score.diagnostics).splitlines():
        assert f"  {line}" in text
    # However narrow the terminal: nothing is cut or wrapped, so that it can be copied.
    assert run(path, columns=20).stdout == text


def test_json_has_it_all(saved):
    path, model, score = saved
    result = run(path, "--json")
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    assert facts["file"] == str(path)
    assert facts["bytes"] == path.stat().st_size
    assert (facts["kind"], facts["method"], facts["format"]) == ("score", "SLU", 2)
    assert facts["settings"]["rank"] == 4
    assert facts["settings"]["params"] == list(dict(model.named_parameters()))
    assert facts["settings"]["sketch"]["kind"] == "kronecker"
    assert facts["settings"]["sketch"]["layout"] == [[3, 9], [1, 3], [1, 3], [1, 3], [3, 48], [1, 3]]
    assert facts["likelihood"] == {"name": "regression", "settings": {"noise_variance": 0.25}}
    assert facts["own_forward"] is False
    assert facts["state"] == json.loads(json.dumps(to_file(score.settings, score.sketch, score.state)[1]))
    assert facts["weights"] == summary(fingerprint(model))
    assert facts["tensors"]["basis"] == {"shape": [4, 40], "dtype": "float64"}
    assert set(facts["versions"]) == {"slu", "python", "torch", "numpy", "scipy"}


def test_what_is_needed_to_load_is_said(tmp_path):
    model, inputs = network("mlp")
    score = SLU(model, Tempered(), rank=3, forward=lambda module, batch: module(batch)).fit(inputs)
    score.save(tmp_path / "net.slu")
    text = run(tmp_path / "net.slu").stdout
    assert "Tempered, needed to load" in text
    assert "forward         the user's own, needed to load" in text
    assert "4 parameter tensors: 0.weight, 0.bias, 2.weight, 2.bias" in text


@pytest.mark.parametrize(
    ("solver", "done", "rank"), [("stream", "12 points seen", "3 of 3"), ("lanczos", "3 steps done", "3 of 3 steps")]
)
def test_a_checkpoint(tmp_path, solver, done, rank):
    model, inputs = network("mlp")
    SLU(model, "classification", rank=3, solver=solver).fit(inputs, checkpoint=tmp_path / "run.ckpt")
    text = run(tmp_path / "run.ckpt").stdout
    assert f"a checkpoint of SLU, finished, {done}\n" in text
    assert f"effective rank  {rank}\n" in text
    assert summary(fingerprint(model))["hash"] in text


def test_a_checkpoint_of_a_running_fit(tmp_path):
    model, inputs = network("mlp")

    class Failing:
        passes = 0

        def __iter__(self):
            self.passes += 1
            if self.passes > 2:
                raise OSError("the disk is gone")
            yield inputs

    with pytest.raises(Exception, match="the disk is gone"):
        paper_slu(model, "classification", rank=3, solver="lanczos").fit(Failing(), checkpoint=tmp_path / "run.ckpt")
    result = run(tmp_path / "run.ckpt")
    assert result.exit_code == 0, result.output
    assert "a checkpoint of SLU, running, 2 steps done" in result.stdout
    assert "diagnostics" not in result.stdout
    facts = json.loads(run(tmp_path / "run.ckpt", "--json").stdout)
    assert (facts["stage"], facts["steps"], facts["points"]) == ("running", 2, 12)


def test_a_checkpoint_of_a_running_stream(tmp_path):
    """In the middle of its one pass: the points that are in the sum, not steps."""
    model, inputs = network("mlp")

    class Failing:
        def __iter__(self):
            yield from inputs.split(3)[:3]
            raise OSError("the disk is gone")

    with pytest.raises(Exception, match="the disk is gone"):
        paper_slu(model, "classification", rank=3).fit(Failing(), calibration=False, checkpoint=tmp_path / "run.ckpt")
    result = run(tmp_path / "run.ckpt")
    assert result.exit_code == 0, result.output
    assert "a checkpoint of SLU, running, 9 points seen\n" in result.stdout
    assert "steps" not in result.stdout and "diagnostics" not in result.stdout
    facts = json.loads(run(tmp_path / "run.ckpt", "--json").stdout)
    assert (facts["stage"], facts["steps"], facts["points"]) == ("running", None, 9)


def test_a_file_of_ours_that_is_neither(tmp_path):
    write(tmp_path / "f", {}, {"something": "else"})
    result = run(tmp_path / "f")
    assert result.exit_code == 0
    assert "neither a score nor a checkpoint" in result.stdout
    assert "tensors         none" in result.stdout


def one_line(result, *words):
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("slu: ")
    assert result.stderr.count("\n") == 1
    for each in words:
        assert each in result.stderr


def test_errors_are_one_line(saved, tmp_path):
    data = saved[0].read_bytes()
    path = tmp_path / "net.slu"
    one_line(run(path), "there is no file")
    one_line(run(tmp_path), "is a folder")
    path.write_bytes(data[:-1])
    one_line(run(path), "is not a whole slu file", "write it anew")
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    one_line(run(path), "checksum")
    one_line(run(path, "--json"), "checksum")
    path.write_text("no\nlines\nof ours\n")
    one_line(run(path), "is something else")
    safetensors.torch.save_file(nn.Linear(2, 2).state_dict(), path)
    one_line(run(path), "slu did not write it")
    write(path, {}, {"method": "SLU"})
    one_line(run(path), "settings is missing", "Fit and save anew")


def test_help():
    result = run("--help", columns=200)
    assert "FILE" in result.output and "--json" in result.output and "checksum" in result.output


def test_it_runs_as_a_command_and_needs_no_extras(saved):
    code = (
        "import sys; from slu.cli import main\n"
        f"sys.argv = ['slu', 'inspect', {str(saved[0])!r}]\n"
        "try:\n    main()\nexcept SystemExit as left:\n    assert not left.code\n"
        "assert not {'sklearn', 'matplotlib'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "a score of SLU" in done.stdout


HARMED = {
    "a basis with NaN": ("basis", lambda value: value * torch.nan, "basis holds 160 numbers that are not finite"),
    "a basis of zeros": ("basis", torch.zeros_like, "the rows of basis are not orthonormal"),
    "a basis of another width": ("basis", lambda value: value[:, 1:], r"basis is of the shape (4, 39)"),
    "a mean with NaN": ("layers.mean", lambda value: value * torch.nan, "layers.mean holds 98 numbers"),
    "negative variances": ("layers.covariance", torch.neg, "layers.covariance has variances below 0"),
    "a scale of zeros": ("scale", torch.zeros_like, "scale holds 183 numbers that are not finite and above 0"),
    "unsorted scores": (
        "calibration",
        lambda value: value.flip(1),
        "the calibration scores in the file are not sorted",
    ),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A score and a finished checkpoint with every part that a file may have."""
    model, inputs = network("conv")
    inputs = torch.cat([inputs + place for place in range(5)])  # enough to hold some out
    folder = tmp_path_factory.mktemp("whole")
    method = SLU(model, Regression(0.25), rank=4, sketch_size=40, scale="diagonal")
    method.fit(inputs, checkpoint=folder / "run").save(folder / "net.slu")
    return {"net.slu": read(folder / "net.slu"), "run": read(folder / "run")}


@pytest.mark.parametrize("file", ["net.slu", "run"])
@pytest.mark.parametrize("fault", HARMED)
def test_numbers_that_no_fit_writes_are_refused_without_the_network(whole, file, fault, tmp_path):
    header, tensors = whole[file]
    name, harm, words = HARMED[fault]
    tensors = {**tensors, name: harm(tensors[name])}
    header = {**header, "tensors": inventory(tensors)}
    del header["format"]
    write(tmp_path / file, tensors, header)
    result = run(tmp_path / file, columns=400)
    assert result.exit_code == 1 and words in result.output, result.output


@pytest.mark.parametrize("file", ["net.slu", "run"])
def test_a_calibration_that_makes_no_sense_is_refused_without_the_network(whole, file, tmp_path):
    header, tensors = whole[file]
    calibration = {**header["state"]["calibration"], "readings": ["x"]}
    header = {**header, "state": {**header["state"], "calibration": calibration}}
    del header["format"]
    write(tmp_path / file, tensors, header)
    result = run(tmp_path / file, columns=400)
    assert result.exit_code == 1 and "calibration is of the shape" in result.output, result.output


def test_a_baseline_that_is_not_finite_is_refused_without_the_network(tmp_path):
    model, inputs = network("conv")
    LowRankLaplace(model, Regression(0.25), rank=3).fit(inputs).save(tmp_path / "net.slu")
    header, tensors = read(tmp_path / "net.slu")
    (name, *_) = tensors
    tensors = {**tensors, name: tensors[name] * torch.nan}
    del header["format"]
    write(tmp_path / "net.slu", tensors, {**header, "tensors": inventory(tensors)})
    result = run(tmp_path / "net.slu", columns=400)
    assert result.exit_code == 1 and f"{name} holds" in result.output, result.output
