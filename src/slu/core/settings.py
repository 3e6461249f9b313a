"""Settings that every method takes and checks in the same way."""

from __future__ import annotations

from torch import nn

from slu.errors import ModelError
from slu.gradients import Forward, Network
from slu.likelihoods import Likelihood, resolve
from slu.parameters import Choice, select


def subject(
    model: nn.Module, likelihood: str | Likelihood, params: Choice, forward: Forward | None
) -> tuple[Network, Likelihood]:
    """The network that is differentiated and what its outputs mean, from what the user gave."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"the model must be a torch.nn.Module, got {type(model).__name__}")
    return Network(model, select(model, params), forward), resolve(likelihood)
