"""The paper's figures, drawn from folders of results alone."""

from slu_experiments.figures.catalogue import FIGURES, Figure, find_figure
from slu_experiments.figures.request import Request

__all__ = ["FIGURES", "Figure", "Request", "find_figure"]
