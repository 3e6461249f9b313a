"""`slu demo` from end to end, with a short training and a small rank."""

import dataclasses
import json

import pytest
from typer.testing import CliRunner

from slu.cli import app, demo_steps
from slu.cli.demo import marked

FAST = ["--epochs", "8", "--rank", "10", "--sketch-size", "40"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """One run of the command, on a part of the images that are scored."""
    out = tmp_path_factory.mktemp("demo") / "made" / "by [demo]"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_steps, "load_digits", fewer)
        return CliRunner().invoke(app, ["demo", "--json", "--out", str(out), *FAST]), out


def fewer(seed, whole=demo_steps.load_digits):
    data = whole(seed)
    test, unseen = (demo_steps.PointSet(each.images[:60], each.digits[:60]) for each in (data.test, data.held_out))
    return dataclasses.replace(data, test=test, held_out=unseen)


def test_it_succeeds_and_writes_both_files(ran):
    result, out = ran
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in out.iterdir()) == ["demo.json", "demo.png"]
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_json_on_stdout_is_the_file(ran):
    result, out = ran
    found = json.loads(result.stdout)
    assert found == json.loads((out / "demo.json").read_text(encoding="utf-8"))
    assert found["settings"] == {"rank": 10, "sketch_size": 40, "seed": 0, "epochs": 8}
    assert found["training"]["test_accuracy"] > 0.9
    assert set(found["detection"]["SLU variance"]) == {"unseen", "turned"}
    assert set(found["detection"]["entropy"]["unseen"]) == {"auroc", "aupr", "fpr95"}


def test_the_report_is_whole(ran):
    text = ran[0].stderr
    for words in (
        "test accuracy",
        "p = 17,096",
        "1 pass over the data",
        "effective rank 10",
        "copies of p",
        "false alarms",
        "by [demo]",
    ):
        assert words in text
    rows = [line for line in text.splitlines() if line.startswith(("SLU ", "max logit", "entropy"))]
    assert len(rows) == 9
    assert all(len(line) <= 80 for line in rows)
    # Seven columns, and at least one best value in each.
    assert sum(line.count("*") for line in rows) >= 7
    assert "…" not in text


def test_the_best_is_marked_as_it_is_printed():
    shown = marked({"a": 0.12341, "b": 0.12339, "c": 0.5}, min)
    assert shown == {"a": "[bold]0.123*[/bold]", "b": "[bold]0.123*[/bold]", "c": "0.500 "}
    assert marked({"a": 0.1, "b": 0.2}, max)["b"] == "[bold]0.200*[/bold]"
