"""Settings as data: what the paper ran on what, its numbers, and every method by name."""

from slu_experiments.settings.methods import METHODS, Choice, find_method, usual_methods
from slu_experiments.settings.paper import PAPER, reported
from slu_experiments.settings.table import SETTINGS, Numbers, Reported, Setting, find_setting, setting_of

__all__ = [
    "METHODS",
    "PAPER",
    "SETTINGS",
    "Choice",
    "Numbers",
    "Reported",
    "Setting",
    "find_method",
    "find_setting",
    "reported",
    "setting_of",
    "usual_methods",
]
