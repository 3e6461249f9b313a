"""What a score is judged on: a trained network, data like its own and data unlike them.

`with_far_shifts` adds to a study what no network has seen, whatever its data are: inputs far too large, noise and
constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from slu.seeds import stream

Batches = Sequence[Tensor]

FACTORS = (3, 20)
"""By which the far shifts enlarge inputs."""

NOISE, CONSTANT = "uniform noise", "constant"
FAR = (*(f"times {factor}" for factor in FACTORS), NOISE, CONSTANT)
"""Names of the far shifts, which every study has."""

_BATCH = 100


@dataclass(frozen=True)
class Study:
    """One trained network with everything that a judgement of it needs, as batches of inputs alone.

    Attributes:
        name: Of the kind of network and data.
        seed: Of the training.
        model: In evaluation mode.
        likelihood: As `SLU` takes it.
        quality: How good the network is on test data: {"accuracy": 0.95}, or {"rmse": 0.61}.
        fitted: Training points that every method is fitted on.
        apart: Training points that no method is fitted on, for calibration.
        inside: Test points.
        outside: Points unlike them, by the name of the shift.
        labels: Classes of `fitted`, batch by batch, for methods that use them; empty where there are none.
        members: Makes networks of other seeds for an ensemble with this one, when it is called and not before: they
            may have to be trained. `list`, which makes none, where training takes too long.
        settings: What SLU must know besides, `params` for example.
    """

    name: str
    seed: int
    model: nn.Module
    likelihood: Any
    quality: Mapping[str, float]
    fitted: Batches
    apart: Batches
    inside: Batches
    outside: Mapping[str, Batches]
    labels: Batches = ()
    members: Callable[[], Sequence[nn.Module]] = list
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def labelled(self) -> Sequence[Any]:
        """The batches of `fitted` as a user's loader has them: with classes where there are any."""
        return list(zip(self.fitted, self.labels, strict=True)) if self.labels else self.fitted


def cut(inputs: Tensor) -> list[Tensor]:
    """As batches of a hundred."""
    return list(inputs.split(_BATCH))


def with_far_shifts(study: Study) -> Study:
    """The study with the shifts of `FAR` beside its own; one of its own of the same name stays as it is.

    The test points times 3 and times 20; uniform noise over the range of the fitted data; and points with one
    constant value of that range, drawn for each point. The range is that of each feature of a table (b, d), of each
    channel of an image (b, C, h, w), and of each feature of a sequence (b, T, d). In sequences positions that are zero
    in all features are padding: they stay zero, and do not count for the range.
    """
    low, high = _range(study.fitted)
    noise, constant = stream(study.seed, "far shifts", NOISE), stream(study.seed, "far shifts", CONSTANT)
    far = {f"times {factor}": [factor * inputs for inputs in study.inside] for factor in FACTORS} | {
        NOISE: [_within(low, high, torch.rand(inputs.shape, generator=noise), inputs) for inputs in study.inside],
        CONSTANT: [
            _within(low, high, torch.rand(len(inputs), *[1] * (inputs.dim() - 1), generator=constant), inputs)
            for inputs in study.inside
        ],
    }
    others = {name: batches for name, batches in far.items() if name not in study.outside}
    return replace(study, outside={**study.outside, **others})


def _range(batches: Batches) -> tuple[Tensor, Tensor]:
    """Smallest and largest value of each feature or channel, shaped so that they broadcast over inputs."""
    inputs = torch.cat(list(batches))
    if inputs.dim() == 3:
        values = inputs[inputs.any(-1)]
        return values.amin(0), values.amax(0)
    others = (0, *range(2, inputs.dim()))
    low, high = inputs.amin(others, keepdim=True), inputs.amax(others, keepdim=True)
    return low[0], high[0]


def _within(low: Tensor, high: Tensor, share: Tensor, like: Tensor) -> Tensor:
    """Numbers at these shares of the range, in the shape of the inputs and with their padding."""
    values = (low + share * (high - low)).expand(like.shape)
    return values * like.any(-1, keepdim=True) if like.dim() == 3 else values.contiguous()
