"""What works but is probably not meant, and what is refused before the minutes are spent."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from oracles import network
from slu import SLU, Stream
from slu.curvature.misuse import are_probabilities, check_targets
from slu.errors import DataError, MisuseWarning, SettingError
from slu.likelihoods import Classification, Multilabel, Regression

SOLVERS = pytest.mark.parametrize("solver", ["stream", "lanczos"])


@pytest.fixture
def data():
    return torch.randn(60, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def caught(call):
    with warnings.catch_warnings(record=True) as all_of:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in all_of if each.category is MisuseWarning]


@SOLVERS
@pytest.mark.parametrize("scale", [None, "auto", "diagonal"])
def test_probabilities_give_one_warning_with_the_cure(data, solver, scale):
    model = nn.Sequential(network("mlp")[0], nn.Softmax(1))
    fit = SLU(model, "classification", rank=3, solver=solver, scale=scale).fit
    (message,) = caught(lambda: fit(list(data.split(20))))
    assert "sum to 1" in message and "Remove the softmax" in message and ".log()" in message


@pytest.mark.parametrize("last", [nn.Identity(), nn.LogSoftmax(1), nn.Softplus()], ids=["logits", "log", "positive"])
def test_control_logits_and_log_probabilities_give_none(data, last):
    model = nn.Sequential(network("mlp")[0], last)
    assert not caught(lambda: SLU(model, "classification", rank=3).fit(data))


def test_probabilities_of_labels_or_of_a_regression_are_none_of_it(data):
    model = nn.Sequential(network("mlp")[0], nn.Softmax(1))
    assert not caught(lambda: SLU(model, "regression", rank=3).fit(data))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("count", [2, 10, 1000])
def test_rounding_of_every_type_is_allowed_for(dtype, count):
    logits = 3 * torch.randn(64, count, generator=torch.Generator().manual_seed(0))
    assert are_probabilities(logits.to(dtype).softmax(1))
    assert not are_probabilities(logits.to(dtype))
    assert not are_probabilities(1.1 * logits.to(dtype).softmax(1))


BAD = {
    "above": ("classification", lambda t: t.where(t != 2, 3), "batch 1 has a target of 3, but the model has 3 outputs"),
    "below": ("classification", lambda t: t.where(t != 2, -1), "batch 1 has a target of -1, but the model has 3"),
    "label": ("multilabel", lambda t: 2.0 * nn.functional.one_hot(t, 3), "batch 1 has a target of 2, .* 3 outputs"),
    "width": ("regression", lambda t: torch.zeros(len(t), 5), r"batch 1 has targets of the shape \(20, 5\), .* 3 out"),
}


@SOLVERS
@pytest.mark.parametrize("case", BAD)
def test_targets_that_no_output_has_are_refused_with_the_batch_and_the_value(data, case, solver):
    likelihood, spoil, message = BAD[case]
    usual = {"classification": lambda t: t, "multilabel": lambda t: nn.functional.one_hot(t, 3).double()}
    usual["regression"] = lambda t: torch.zeros(len(t), 3).double()
    targets = torch.arange(60) % 3
    loader = [(rows, usual[likelihood](each)) for rows, each in zip(data.split(20), targets.split(20), strict=True)]
    method = SLU(network("mlp")[0], likelihood, rank=3, solver=solver)
    method.fit(loader, calibration=False)
    loader[1] = (loader[1][0], spoil(targets[20:40]))
    with pytest.raises(DataError, match=message):
        method.fit(loader, calibration=False)


@pytest.mark.parametrize(
    ("likelihood", "targets"),
    [
        (Classification(), torch.tensor([0, -100, 2])),
        (Classification(), torch.tensor([0.0, 7.0, 2.0])),
        (Classification(), torch.zeros(3, 2, dtype=torch.long) + 9),
        (Classification(), ["a", "b", "c"]),
        (Classification(), None),
        (Multilabel(), torch.tensor([[0.0, 0.1, 1.0]] * 3)),
        (Regression(), torch.zeros(3)),
        (Regression(), torch.tensor([[1, 2]] * 3)),
    ],
    ids=["ignored", "numbers", "another shape", "texts", "none", "smoothed", "flat", "whole numbers"],
)
def test_control_what_may_be_right_or_is_not_needed_is_not_refused(likelihood, targets):
    check_targets(likelihood, torch.zeros(3, 3), targets, 0)


@pytest.mark.parametrize(
    ("solver", "allowed"), [("stream", 60), (Stream(labels_per_point=2), 120), (Stream(labels_per_point="all"), 180)]
)
def test_a_rank_above_the_points_is_refused_after_the_first_batch(data, solver, allowed):
    """The second batch is never read: it would fail."""

    class Known(Dataset):
        def __len__(self):
            return len(data)

        def __getitem__(self, place):
            if place >= 20:
                raise OSError("read too far")
            return data[place]

    model = nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 3)).double()
    batches = DataLoader(Known(), batch_size=20)
    settings = {"solver": solver, "sketch": "identity", "scale": None}
    with pytest.raises(SettingError, match=rf"rank {allowed + 1} is above .*60 points give {allowed} gradients"):
        SLU(model, "classification", rank=allowed + 1, **settings).fit(batches)
    with pytest.raises(DataError, match="read too far"):  # the control
        SLU(model, "classification", rank=allowed, **settings).fit(batches)


def test_a_generator_is_refused_at_its_end(data):
    model = nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 3)).double()
    with pytest.raises(SettingError, match="60 points give 60 gradients"):
        SLU(model, "classification", rank=61, sketch="identity").fit(iter(data.split(20)), calibration=False)
