"""What the network predicts for the calibration points: the numbers, the verdict and the warning of a fit."""

import json
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from calibrated import problem, slu
from slu import SLU
from slu.cli import app
from slu.core.calibration import Calibration
from slu.core.calibration_state import CalibrationState
from slu.core.trust import Predictions, PredictionSums
from slu.errors import CalibrationWarning
from slu.likelihoods import Multilabel, Regression


def labelled(likelihood, points=300, seed=0):
    """Random targets of a likelihood, for three outputs."""
    draw = torch.Generator().manual_seed(seed)
    if likelihood == "classification":
        return torch.randint(3, (points,), generator=draw)
    if likelihood == "multilabel":
        return torch.randint(2, (points, 3), generator=draw).double()
    return torch.randn(points, 3, generator=draw, dtype=torch.float64)


def by_hand(likelihood, outputs, targets):
    """Accuracy, confidence and loss, from the definitions in NumPy."""
    outputs, targets = outputs.detach().double().numpy(), targets.numpy()
    if likelihood == "regression":
        return None, None, (0.5 * (outputs - targets) ** 2).sum(1).mean()
    if likelihood == "classification":
        chances = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
        right = chances.argmax(1) == targets
        return right.mean(), chances.max(1).mean(), -np.log(chances[np.arange(len(targets)), targets]).mean()
    chances = 1 / (1 + np.exp(-outputs))
    of_target = np.where(targets == 1, chances, 1 - chances)
    return ((chances > 0.5) == targets).mean(), np.maximum(chances, 1 - chances).mean(), -np.log(of_target).mean()


def assert_near(predictions, expected):
    for actual, number in zip((predictions.accuracy, predictions.confidence, predictions.loss), expected, strict=True):
        assert actual == (None if number is None else pytest.approx(number, rel=1e-9))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("likelihood", ["classification", "multilabel", "regression"])
def test_accuracy_confidence_and_loss_are_those_of_the_held_out_points(likelihood, dtype):
    model, inputs = problem(300, dtype=dtype)
    targets = labelled(likelihood)
    score = slu(model, likelihood).fit((inputs, targets))
    apart = [point.inputs for point in score.state.calibration.reservoir.points]
    places = torch.tensor([int((inputs == row).all(1).nonzero()[0, 0]) for row in apart])
    assert len(places) == score.calibration.points >= 19
    found = score.calibration.predictions
    assert found.points == score.calibration.points
    expected = by_hand(likelihood, model(inputs[places]), targets[places])
    for actual, number in zip((found.accuracy, found.confidence, found.loss), expected, strict=True):
        assert actual == (None if number is None else pytest.approx(number, rel=1e-6))
    assert score.calibration.memorized is (None if likelihood == "regression" else False)
    # Control: other points have other numbers.
    other = by_hand(likelihood, model(inputs), targets)
    assert found.loss != pytest.approx(other[2], rel=1e-6)


@pytest.mark.parametrize("likelihood", ["classification", "multilabel", "regression"])
def test_batches_and_kind_of_loader_do_not_matter(likelihood):
    model, inputs = problem(300)
    targets = labelled(likelihood)
    expected = slu(model, likelihood).fit((inputs, targets)).calibration.predictions
    for size in (1, 7, 64):
        batches = list(zip(inputs.split(size), targets.split(size), strict=True))
        for data in (batches, iter(batches)):
            found = slu(model, likelihood).fit(data).calibration.predictions
            assert found.points == expected.points
            assert_near(found, (expected.accuracy, expected.confidence, expected.loss))


def test_it_takes_no_forward_pass_of_its_own():
    model, inputs = problem(300)
    calls = []

    def forward(model, inputs):
        calls.append(len(inputs))
        return model(inputs)

    counts = []
    for data in (inputs, (inputs, labelled("classification"))):
        calls.clear()
        slu(model, forward=forward).fit(data)
        counts.append(list(calls))
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("likelihood", "targets"),
    [
        ("classification", None),
        ("classification", torch.zeros(300, 3)),
        ("classification", torch.full((300,), -100)),
        ("multilabel", torch.zeros(300)),
        ("regression", torch.zeros(300, 2, dtype=torch.long)),
        ("classification", ["cat"] * 300),
    ],
)
def test_targets_that_are_missing_or_of_another_kind_leave_it_unknown(likelihood, targets):
    model, inputs = problem(300)
    score = slu(model, likelihood).fit(inputs if targets is None else (inputs, targets))
    assert score.calibration.predictions is None and score.calibration.memorized is None
    assert "accuracy" not in str(score.calibration)
    assert not bool(score.flag(inputs).all())


def test_a_likelihood_of_the_users_own_and_losses_that_overflow_are_unknown():
    class Own(Regression):
        pass

    class Stranger:
        loss = hessian_product = factor_product = sample = None

    watch = PredictionSums()
    watch(Stranger(), torch.zeros(3), torch.zeros(3, 2))
    assert watch.predictions() is None
    watch(Own(), torch.zeros(3, 2), torch.full((3, 2), 1e200, dtype=torch.float64))
    assert watch.predictions() is None


def test_weighted_labels_count_alike_in_all_but_the_loss():
    outputs, targets = torch.tensor([[2.0, -1.0]]), torch.tensor([[1.0, 1.0]])
    watch = PredictionSums()
    watch(Multilabel([4.0, 1.0]), targets, outputs)
    found = watch.predictions()
    assert (found.accuracy, found.points) == (0.5, 1)
    each = [np.log1p(np.exp(-2.0)), np.log1p(np.exp(1.0))]
    assert found.loss == pytest.approx((4 * each[0] + each[1]) / 2, rel=1e-6)


@pytest.mark.parametrize(
    ("accuracy", "confidence", "points", "expected"),
    [
        (1.0, 1.0, 100, True), (0.995, 0.97, 100, True), (0.99, 0.999, 100, False), (None, None, 100, False),
        # 0.96¹⁰⁰ is 1.7 %, 0.95¹⁰⁰ 0.6 %; 199 of 200 right at 0.96 have 0.3 %, at 0.969 1.4 %.
        (1.0, 0.96, 100, False), (1.0, 0.95, 100, True), (1.0, 0.95, 50, False), (0.98, 0.9, 100, True),
        (0.995, 0.96, 200, True), (0.995, 0.969, 200, False),
        # Errors beside what is said: a third is 0.05 at 0.85, which is not passed however many points there are.
        (0.951, 0.85, 1000, True), (0.949, 0.85, 1000, False), (1.0, 0.84, 1000, False), (1.0, 0.25, 100, False),
    ],
)  # fmt: skip
def test_the_rule(accuracy, confidence, points, expected):
    predictions = Predictions(accuracy, confidence, 0.1, points)
    assert predictions.memorized is expected
    scores = {name: torch.rand(100, generator=torch.Generator().manual_seed(0)) for name in ("fisher", "variance")}
    held, given = (Calibration.of(scores, source, predictions=predictions) for source in ("held out", "given"))
    assert held.memorized is (None if accuracy is None else expected) and given.memorized is None
    assert ("memorized" in str(held)) is expected and "memorized" not in str(given)
    assert list(CalibrationState(held, "").concerns()) == (["memorized"] if expected else [])
    assert not CalibrationState(given, "").concerns()


def trained(epochs, seed=0):
    """A network trained on 500 points whose labels are a noisy function of them: for long it knows them by heart."""
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(1500, 6, generator=draw)
    labels = (inputs[:, :3] + torch.randn(1500, 3, generator=draw)).argmax(1)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 100), nn.Tanh(), nn.Linear(100, 3))
    descent = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(epochs):
        descent.zero_grad()
        nn.functional.cross_entropy(model(inputs[:500]), labels[:500]).backward()
        descent.step()
    descent.zero_grad(set_to_none=True)
    return model, inputs, labels


@pytest.fixture(scope="module")
def overfitted():
    return trained(300, seed=1)


def caught(call):
    """What a call returns, and its warnings."""
    with warnings.catch_warnings(record=True) as those:
        warnings.simplefilter("always")
        return call(), those


def test_an_overfitted_network_is_told_once_with_the_cure_and_rightly(overfitted, tmp_path):
    model, inputs, labels = overfitted
    train = (inputs[:500], labels[:500])
    score, told = caught(lambda: SLU(model, "classification").fit(train))
    assert [each.category for each in told] == [CalibrationWarning] and told[0].filename == __file__
    text = str(told[0].message)
    for words in ("accuracy 1.000, mean confidence 0.9", f"on {score.calibration.points} training points held out",
                  "flagged more often", "calibration=val_loader"):  # fmt: skip
        assert words in text
    assert score.calibration.memorized is True and "memorized" in str(score.calibration)
    # It is true: of fresh points far more than a twentieth are flagged; and the cure works.
    assert float(score.flag(inputs[1000:]).double().mean()) > 0.1
    cured, told = caught(
        lambda: SLU(model, "classification").fit(train, calibration=(inputs[500:1000], labels[500:1000]))
    )
    assert not told and cured.calibration.memorized is None and cured.calibration.predictions.accuracy < 0.9
    assert float(cured.flag(inputs[1000:]).double().mean()) < 0.1
    # Saved, loaded and asked: not again.
    score.save(tmp_path / "net.slu")
    again, told = caught(lambda: SLU.load(tmp_path / "net.slu", model))
    assert not told and again.calibration.predictions == score.calibration.predictions
    assert again.calibration.memorized is True
    ran = CliRunner().invoke(app, ["inspect", str(tmp_path / "net.slu")], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert str(score.calibration.predictions) in ran.output


def test_control_a_network_that_is_not_overfitted_is_left_in_peace():
    model, inputs, labels = trained(10)
    score, told = caught(lambda: SLU(model, "classification").fit((inputs[:500], labels[:500])))
    assert not told and score.calibration.memorized is False
    assert 0.5 < score.calibration.predictions.accuracy < 0.95
    assert float(score.flag(inputs[500:]).double().mean()) < 0.1


def test_without_targets_nothing_is_told(overfitted):
    model, inputs, _ = overfitted
    score, told = caught(lambda: SLU(model, "classification").fit(inputs[:500]))
    assert not told and score.calibration.memorized is None


def test_what_is_done_later_tells_it_where_it_was_not_known(overfitted, tmp_path):
    model, inputs, labels = overfitted
    train, more = (inputs[:400], labels[:400]), (inputs[400:500], labels[400:500])
    method = SLU(model, "classification", scale=None)
    score, told = caught(lambda: method.fit(train, checkpoint=tmp_path / "run"))
    assert len(told) == 1
    again, told = caught(lambda: method.fit(train, checkpoint=tmp_path / "run"))
    assert len(told) == 1 and again.calibration.predictions == score.calibration.predictions
    _, told = caught(lambda: score.partial_fit(more))
    assert not told and score.calibration.memorized
    _, told = caught(lambda: score.calibrate((inputs[500:600], labels[500:600])))
    assert not told and not score.calibration.memorized
    _, told = caught(lambda: score.calibrate([train, more], held_out=True))
    assert len(told) == 1 and told[0].filename == __file__
    with pytest.warns(CalibrationWarning, match="memorized"):
        again = method.fit(train)
    merged, told = caught(lambda: SLU.merge([score, again]))
    assert len(told) == 1 and told[0].filename == __file__ and merged.calibration.memorized


def test_files_from_before_load_without_it():
    scores = {name: torch.rand(30, generator=torch.Generator().manual_seed(0)) for name in ("fisher", "variance")}
    made = Calibration.of(scores, "held out", predictions=Predictions(0.9, 0.8, 0.3, 30))
    tensors, plain = made.to_file()
    plain = json.loads(json.dumps(plain, allow_nan=False))
    assert Calibration.from_file(tensors["calibration"], plain).predictions == made.predictions
    del plain["predictions"]
    before = Calibration.from_file(tensors["calibration"], plain)
    assert before.predictions is None and before.memorized is None and before.points == 30
