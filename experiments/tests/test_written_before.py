"""Results and weights that slu wrote while the experiments were still part of it are read as they were.

fixtures/before_the_move was written by: slu score --setting digits-mlp --method slu --option rank=5 sketch_size=20
--ood digits-held-out --epochs 1 --subset 200 --points 100 --queries 20
"""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slu_experiments.cli import app
from slu_experiments.data import open_set
from slu_experiments.results import Store, name_of
from slu_experiments.running import INSIDE, Place, Run, execute
from slu_experiments.settings import find_setting
from slu_experiments.training import evaluate, trained

FIXTURES = Path(__file__).parent / "fixtures" / "before_the_move"
TRAINING = {"epochs": 1, "subset": 200}
RUN = Run(
    "digits-mlp",
    "slu",
    outside=("digits-held-out",),
    points=100,
    queries=20,
    training=TRAINING,
    changed={"rank": 5, "sketch_size": 20},
)


def test_a_result_is_found_and_not_made_again(monkeypatch):
    monkeypatch.setattr(Run, "work", lambda *_: pytest.fail("it is there"))
    result, made = execute(RUN, Place(FIXTURES))
    assert not made and result.name == "9a4501eb6dbdbbf0" == name_of(RUN.config())
    assert result.metrics["judgements"]["digits-held-out"]["auroc"]["value"] == pytest.approx(0.48)
    assert {name: len(values) for name, values in result.arrays.items()} == {INSIDE: 20, "outside/digits-held-out": 20}
    assert [each.name for each in Store(FIXTURES).all("score")] == [result.name]


def test_weights_are_found_and_are_the_network_they_were(tmp_path):
    model, facts = trained(find_setting("digits-mlp"), 1, FIXTURES, **TRAINING)
    assert facts["found"] and facts["path"].endswith("digits-mlp-1-1db409d6.safetensors")
    again = evaluate(model, open_set("digits", "test"))
    assert (again.points, again.accuracy) == (facts["test_points"], facts["accuracy"])
    assert again.loss == pytest.approx(facts["loss"], rel=1e-6)


def test_a_score_of_the_same_weights_is_the_same(tmp_path):
    """The whole run once more from the stored weights: data, split, fit and scores are what they were."""
    shutil.copytree(FIXTURES / "weights", tmp_path / "weights")
    asked = "score --setting digits-mlp --option rank=5 sketch_size=20 --ood digits-held-out --epochs 1 --subset 200"
    done = CliRunner().invoke(
        app, [*asked.split(" "), "--points", "100", "--queries", "20", "--out", str(tmp_path), "--json"]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["made"]
    (now,), (before,) = list(Store(tmp_path).all()), list(Store(FIXTURES).all())
    assert now.config == before.config
    for name, values in before.arrays.items():
        assert now.arrays[name] == pytest.approx(values, rel=1e-5), name
