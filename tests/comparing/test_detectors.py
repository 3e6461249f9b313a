"""Detectors of the user's own as rows of a comparison."""

import re

import numpy as np
import pytest
import torch
from sklearn.ensemble import IsolationForest
from torch import nn

from fakes import Formula
from slu import MaxLogit, compare
from slu.comparing.candidates import candidates
from slu.comparing.detectors import detector
from slu.core.protocols import Method, Score
from slu.errors import SettingError, StorageError

DRAW = torch.Generator().manual_seed(0)
TRAIN, INSIDE = torch.randn(60, 4, generator=DRAW), torch.randn(30, 4, generator=DRAW)
DATA = {"train": TRAIN, "inside": list(INSIDE.split(7)), "outside": {"far": 5 * INSIDE}, "resamples": 40}


def norms(inputs):
    """The user's own."""
    return inputs.norm(dim=1)


class Oracle:
    """As the detectors of pytorch-ood: fit, predict, and a call that is predict."""

    def __init__(self, scale=1.0):
        self.scale = scale

    def fit(self, data_loader):
        raise AssertionError("it is fitted before")

    def predict(self, x):
        return self.scale * norms(x)

    def predict_features(self, x):
        return self.predict(x)

    def __call__(self, *args, **kwargs):
        return self.predict(*args, **kwargs)


def test_every_kind_is_a_row_with_the_same_scores():
    board = compare(
        {
            "function": norms,
            "lambda": lambda inputs: norms(inputs),
            "numpy": lambda inputs: np.linalg.norm(inputs.numpy(), axis=1),
            "column": lambda inputs: norms(inputs)[:, None],
            "object": Oracle(),
            "made": lambda: Oracle(),
            "method": Formula(norms),
            "maxlogit": MaxLogit(nn.Linear(4, 3)),
        },
        **DATA,
    )
    assert not [row.failure for row in board if row.failure]
    for name in ("function", "lambda", "numpy", "column", "object", "made", "method"):
        np.testing.assert_allclose(board.scores[name].inside, INSIDE.norm(dim=1), rtol=1e-6)
        assert board[name].judgements["far"].auroc.value == board["method"].judgements["far"].auroc.value
    assert board["function"].reading == "score" and board["function"].cost is None
    assert board["method"].cost is not None
    assert "function" in str(board)
    # Control: another score has another row.
    assert not np.allclose(board.scores["maxlogit"].inside, board.scores["function"].inside)


def test_names():
    assert [each.name for each in candidates([norms, Oracle(), lambda inputs: inputs, Oracle(2.0)])] == [
        "norms", "Oracle", "detector", "Oracle 2",
    ]  # fmt: skip
    assert [each.name for each in candidates(norms)] == ["norms"]
    assert [each.name for each in candidates({"mine": norms})] == ["mine"]


def test_surface():
    method = detector(norms)
    score = method.fit(TRAIN)
    assert isinstance(method, Method) and isinstance(score, Score)
    assert torch.equal(score(INSIDE), score([INSIDE[:9], INSIDE[9:]]))
    assert torch.equal(score((INSIDE, torch.zeros(30))), score(INSIDE))
    assert score(INSIDE).dtype == torch.float64
    with pytest.raises(SettingError, match="unknown reading 'variance'; valid are 'score'"):
        score(INSIDE, reading="variance")
    with pytest.raises(StorageError, match="cannot be saved"):
        score.save("net.slu")


def test_gradients_are_left_on():
    """A detector may differentiate in its inputs; its scores keep no graph."""

    def slopes(inputs):
        inputs = inputs.clone().requires_grad_()
        return torch.autograd.grad(inputs.square().sum(), inputs)[0].norm(dim=1) * inputs.norm(dim=1)

    scores = detector(slopes).fit(TRAIN)(INSIDE)
    assert not scores.requires_grad
    torch.testing.assert_close(scores.float(), 2 * INSIDE.norm(dim=1).square())


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda inputs: inputs, r"gave scores of the shape \(7, 4\) for batch 0; one number per point"),
        (lambda inputs: inputs.sum(), r"the shape \(\) for batch 0"),
        (lambda inputs: norms(inputs)[:3], r"gave 14 scores where other methods gave 30"),
        (lambda inputs: norms(inputs) * float("nan"), "scores are NaN"),
        (lambda inputs: 1 / 0, "division by zero"),
    ],
)
def test_what_goes_wrong_is_in_its_row(function, message):
    board = compare({"mine": function, "a": Formula(norms), "b": Formula(norms)}, **DATA)
    assert not board["a"].failure
    assert re.search(message, str(board["mine"].failure))


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"x": nn.Linear(4, 1)}, "a Linear came where a method is needed"),
        ([IsolationForest()], r"predict of IsolationForest gives labels.*score_samples"),
        ({"x": IsolationForest()}, "larger for less sure"),
        ([Oracle], "the class Oracle came"),
        ([lambda first, second: first], "a function came where .* or a detector"),
        ([lambda: None], "goes into a mapping"),
    ],
)
def test_what_is_no_detector(methods, message):
    with pytest.raises(SettingError, match=message):
        candidates(methods)
