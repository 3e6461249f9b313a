"""What a score is judged on: a trained network, data like its own and data unlike them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

Batches = Sequence[Tensor]


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
        members: Makes networks of other seeds for an ensemble with this one, when it is called and not before: they
            may have to be trained. Empty where training takes too long.
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
    members: Callable[[], Sequence[nn.Module]] = list
    settings: Mapping[str, Any] = field(default_factory=dict)
