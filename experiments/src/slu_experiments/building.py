"""From a configuration to the method, with settings as its class takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

from torch import nn

import slu
from slu.core import Method
from slu.errors import SettingError, unknown
from slu_experiments.settings import Choice, Setting, find_method
from slu_experiments.settings.methods import MEMBERS
from slu_experiments.training import by_autocast

_GIVEN = ("model", "models", "likelihood", "seed")  # what a run gives to every method, besides its settings

# Settings of one solver or scale of SLU, which a configuration holds beside the others, and the object that takes them.
_GROUPED = {
    "precondition": ("solver", "precondition"),
    "keep": ("solver", "keep"),
    "labels_per_point": ("solver", "labels_per_point"),
    "oversampling": ("solver", "oversampling"),
    "damping": ("scale", "damping"),
    "prior_precision": ("scale", "prior_precision"),
    "scale_points": ("scale", "points"),
}
_GROUPS = {
    "stream": slu.Stream,
    "lanczos": slu.Lanczos,
    "factored": slu.FactoredScale,
    "diagonal": slu.DiagonalScale,
}


def build(config: Mapping[str, Any], models: Sequence[nn.Module], likelihood: str, seed: int) -> Method:
    """The method of a configuration, on a network (or, for an ensemble, on several)."""
    choice, settings = find_method(config["method"]), dict(config["settings"])
    kind: Any = getattr(slu, choice.kind)
    try:
        if choice.fitted_on == MEMBERS:
            settings.pop("members")
            return kind(list(models), likelihood, **settings)
        if choice.logits:
            return kind(models[0], **settings)
        if kind is slu.SLU:
            settings = grouped(settings)
            if "sketch_size" in settings:  # stored results that name no sketch have this one
                settings.setdefault("sketch", "block_srft")
        if settings.pop("autocast", False):
            settings["forward"] = by_autocast
        drawn = {"seed": seed} if "seed" in signature(kind).parameters else {}
        return kind(models[0], likelihood, **drawn, **settings)
    except TypeError as reason:
        raise SettingError(f"{choice.title} does not take these settings: {reason}") from reason


def grouped(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of SLU as its constructor takes them: those of a solver or a scale alone inside that object.

    >>> grouped({"rank": 3, "solver": "lanczos", "keep": 0.9})
    {'rank': 3, 'solver': Lanczos(precondition=0, keep=0.9)}
    """
    own = {name: value for name, value in settings.items() if name not in _GROUPED}
    for group in ("solver", "scale"):
        inside = {_GROUPED[name][1]: settings[name] for name in settings if _GROUPED.get(name, ("",))[0] == group}
        if inside:
            own[group] = _GROUPS[own.get(group, "diagonal")](**inside)
    return own


def refuse_unfit(choice: Choice, setting: Setting, changed: Mapping[str, Any]) -> None:
    """Refuse a method that does not suit a setting, or changes of what it does not have."""
    if choice.logits and setting.likelihood != "classification":
        raise SettingError(f"{choice.title} reads logits of classes; this network's outputs are {setting.likelihood}")
    taken = [name for name in signature(getattr(slu, choice.kind)).parameters if name not in _GIVEN]
    taken += ["members"] if choice.fitted_on == MEMBERS else []
    taken += list(_GROUPED) if choice.kind == "SLU" else []
    taken += ["autocast"] if choice.kind == "SWAG" else []
    for name in changed:
        if name not in taken:
            raise unknown(f"setting of {choice.title}", name, taken)


def members_of(config: Mapping[str, Any]) -> int:
    """How many networks a configuration needs."""
    return int(config["settings"].get("members", 1)) if find_method(config["method"]).fitted_on == MEMBERS else 1
