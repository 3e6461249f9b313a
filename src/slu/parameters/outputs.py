"""A guess at the number of outputs, for plans made before any data are seen."""

from __future__ import annotations

from torch import nn

_USUAL = 10


def likely_outputs(model: nn.Module) -> int:
    """t, read off the last linear or convolutional layer as the module lists them; 10 where there is none.

    Only estimates may rest on it: a forward pass tells for certain, but needs an input.

    >>> likely_outputs(nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 3)))
    3
    """
    found = _USUAL
    for module in model.modules():
        if isinstance(module, nn.Linear):
            found = module.out_features
        elif isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            found = module.out_channels
    return found
