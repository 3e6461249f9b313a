"""What to change: whole messages, and code that works when it is followed."""

import pytest
import torch
from torch import nn

from slu import SLU, doctor
from slu.errors import SluError
from wrapping import prepared


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


class Masked(nn.Module):
    """Takes one input or two."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 3)

    def forward(self, x, mask=None):
        return self.layer(x if mask is None else x * mask)


@pytest.mark.parametrize(
    ("model", "batch", "settings", "name"),
    [
        (Masked(), (drawn(4, 8), drawn(4, 8)), {}, "batch"),
        (mlp(), drawn(4, 8), {"params": "0.wieght"}, "parameters"),
        (mlp(), (drawn(4, 8), torch.full((4,), 7)), {}, "targets"),
    ],
    ids=["two ways", "typo", "labels"],
)
def test_the_message_of_an_error_of_slu_is_shown_whole(model, batch, settings, name):
    with pytest.raises(SluError) as raised:
        SLU(model, "classification", **settings).fit(batch)
    found = doctor(model, batch, **settings)
    assert found[name] == (name, "error", str(raised.value), "")


@pytest.mark.parametrize(
    "wrap", [lambda model: model, nn.DataParallel, prepared], ids=["plain", "parallel", "prepared"]
)
def test_a_missing_input_is_named_behind_wrappers(wrap):
    class Two(Masked):
        def forward(self, first, second):
            return self.layer(first + second)

    model = wrap(Two())
    remedy = doctor(model, drawn(4, 8))["call"].remedy
    assert "forward(first, second): give ((first, second), targets)" in remedy
    assert doctor(model, ((drawn(4, 8), drawn(4, 8)), None)).ok  # the remedy
    assert doctor(model, {"first": drawn(4, 8), "second": drawn(4, 8)}).ok


def test_a_wrong_call_inside_of_the_model_is_not_taken_for_its_own():
    class Wrong(Masked):
        def __init__(self):
            super().__init__()
            self.inner = Masked()

        def forward(self, x):
            return self.inner(x, x, x)

    found = doctor(Wrong(), drawn(4, 8))
    assert "takes from 2 to 3" in found["call"].seen and "give (" not in found["call"].remedy


def test_targets_that_a_default_fit_does_without_are_no_error():
    inputs, classes = drawn(40, 8), torch.arange(40) % 3
    some = torch.where(torch.arange(40) < 5, -100, classes)
    found = doctor(mlp(), (inputs, some))
    assert found.ok and found["targets"] == (
        "targets", "ok", "outputs and targets fit classification; 5 points have none (-100)", ""
    )  # fmt: skip
    assert doctor(mlp(), (inputs, torch.full((40,), -100)))["targets"].status == "ok"
    one_hot = nn.functional.one_hot(classes).float()
    found = doctor(mlp(), (inputs, one_hot))
    assert found.ok and found["targets"].status == "warning" and "one class index per point" in found["targets"].seen
    for targets in (some, one_hot):
        SLU(mlp(), "classification", rank=2).fit((inputs, targets))


class Likely(nn.Module):
    """Gives probabilities, in a dict."""

    def __init__(self):
        super().__init__()
        self.inner = mlp()

    def forward(self, x):
        return {"out": self.inner(x).softmax(1)}


def test_the_remedy_for_probabilities_is_code_only_where_the_code_works():
    found = doctor(nn.Sequential(mlp(), nn.Softmax(1)), drawn(6, 8))["probabilities"]
    forward = eval(found.remedy.partition("forward=")[2])
    cured = doctor(nn.Sequential(mlp(), nn.Softmax(1)), drawn(6, 8), forward=forward)
    assert cured.ok and cured["probabilities"].status == "ok"
    found = doctor(Likely(), {"x": drawn(6, 8), "labels": torch.arange(6) % 3})["probabilities"]
    assert found.status == "warning" and found.remedy.endswith(
        "apply .clamp(min=1e-30).log() to the outputs in forward="
    )
