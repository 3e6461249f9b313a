"""One colour and marker a method wherever it is drawn."""

from __future__ import annotations

from slu.artifacts.pictures import COLOURS

MARKERS = ("o", "s", "D", "^", "v", "P")

METHODS: dict[str, tuple[str, str]] = {
    "SLU": (COLOURS[0], "o"),
    "SLU lanczos": ("#1B3A5C", "8"),
    "LowRankLaplace": (COLOURS[1], "s"),
    "DiagonalLaplace": (COLOURS[2], "D"),
    "LocalEnsemble": (COLOURS[3], "^"),
    "LocalEnsemble hessian": (COLOURS[4], "v"),
    "SCOD": (COLOURS[5], "P"),
    "SWAG": (COLOURS[6], "X"),
    "DeepEnsemble": (COLOURS[7], "p"),
    "MaxLogit": ("#444444", "*"),
    "MaxProbability": ("#666666", "<"),
    "Entropy": ("#888888", ">"),
    "Energy": ("#AAAAAA", "h"),
}
"""Colour and marker of every method of slu, by its name in `at_budget`."""
