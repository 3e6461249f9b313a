"""The demo's three steps: it learns, it is deterministic, and its scores have the right sign."""

import dataclasses
import json
import warnings

import pytest
import torch

from slu import SLU
from slu.cli import demo_steps as demo
from slu.cli.demo_steps import DemoSettings, PointSet
from slu.comparing import detect
from slu.errors import CalibrationWarning

SETTINGS = DemoSettings(rank=20, sketch_size=100, seed=0, epochs=30)


@pytest.fixture(scope="module")
def trained():
    return demo.prepare(SETTINGS)


@pytest.fixture(scope="module")
def fitted(trained):
    with warnings.catch_warnings():
        # Of these few digits the held-out ones may all be predicted right.
        warnings.filterwarnings("ignore", "the network may have memorized", CalibrationWarning)
        return demo.fit(trained, SETTINGS)


def test_the_network_learns_and_is_larger_than_its_sketch(trained):
    assert trained.accuracy > 0.96
    assert trained.parameters > 19 * SLU(trained.model, "classification").settings.sketch.size
    assert set(demo.HELD_OUT).isdisjoint(demo.CLASSES)


def test_the_network_follows_the_seed(trained):
    one, two, other = (
        demo.prepare(dataclasses.replace(SETTINGS, epochs=1, seed=seed)).model[1].weight for seed in (0, 0, 1)
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_judging(trained, fitted):
    test, unseen = trained.data.test, trained.data.held_out
    few = dataclasses.replace(
        trained.data,
        test=PointSet(test.images[:40], test.digits[:40]),
        held_out=PointSet(unseen.images[:30], unseen.digits[:30]),
    )
    part = dataclasses.replace(trained, data=few)
    judged = demo.judge(part, fitted)
    assert list(judged.scores) == [
        "SLU combined",
        "SLU variance",
        "SLU relative",
        "SLU fisher",
        "SLU fisher-relative",
        "SLU distance",
        "SLU angle",
        "max logit",
        "entropy",
    ]
    for name, scores in judged.scores.items():
        assert {group: len(values) for group, values in scores.items()} == {"test": 40, "unseen": 30, "turned": 40}
        assert judged.detections[name]["unseen"] == detect(scores["test"], scores["unseen"])
    probabilities = trained.model(few.held_out.images).softmax(1)
    entropy = torch.distributions.Categorical(probs=probabilities).entropy()
    torch.testing.assert_close(judged.scores["entropy"]["unseen"], entropy.detach())
    # Larger is less sure, for the baselines too: unseen classes confuse the network.
    assert judged.detections["max logit"]["unseen"].auroc > 0.8
    assert judged.detections["entropy"]["unseen"].auroc > 0.8

    summary = demo.summary(SETTINGS, part, fitted, judged)
    assert summary == json.loads(json.dumps(summary))
    # A basis, a scale of rows and columns of two matrices, the entries of a small one, and of their biases, and means
    # and covariances of the inputs of three layers, 64, 128 folded to 64, and 64.
    kept = fitted.diagnostics.effective_rank * SETTINGS.sketch_size + (64 + 128) + (128 + 64) + 64 * 8 + 128 + 64 + 8
    assert summary["fit"]["numbers_kept"] == kept + 3 * 64 * 67
    assert (summary["fit"]["passes"], summary["fit"]["rank"], summary["fit"]["sketch_size"]) == (1, 20, 100)
    assert summary["settings"]["rank"] == 20
    told = summary["calibration"]
    assert told["points"] == fitted.calibration.points > 60
    for group, points in judged.sets.items():
        shown = fitted.flag(points.images, false_alarms=0.05, reading="combined").double().mean()
        assert told["flagged"][group] == pytest.approx(float(shown))
