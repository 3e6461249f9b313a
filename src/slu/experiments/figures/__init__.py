"""Pictures: the demo's histograms, and the paper's figures, drawn from folders of results alone."""

from slu.experiments.figures.catalogue import FIGURES, Figure, find_figure
from slu.experiments.figures.histograms import Panel, Strip, Thumbnail, draw_scores
from slu.experiments.figures.request import Request

__all__ = ["FIGURES", "Figure", "Panel", "Request", "Strip", "Thumbnail", "draw_scores", "find_figure"]
