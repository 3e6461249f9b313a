"""SWAG: the spread of the weights that SGD passes through, and of their predictions."""

from slu.baselines.swag.swag import SWAG

__all__ = ["SWAG"]
