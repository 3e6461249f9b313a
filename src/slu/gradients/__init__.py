"""The network as a function of its parameters, and per-example gradients."""

from slu.gradients.chunks import Factors, FactorSize, Meter, Pieces, Rows, squared_lengths
from slu.gradients.general import GeneralGradients
from slu.gradients.layer_inputs import LayerInputs
from slu.gradients.network import Forward, Network
from slu.gradients.per_example import ForwardPass, PerExampleGradients, Unformed
from slu.gradients.positions import Grid

__all__ = [
    "FactorSize",
    "Factors",
    "Forward",
    "ForwardPass",
    "GeneralGradients",
    "Grid",
    "LayerInputs",
    "Meter",
    "Network",
    "PerExampleGradients",
    "Pieces",
    "Rows",
    "Unformed",
    "squared_lengths",
]
