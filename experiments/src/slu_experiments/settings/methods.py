"""Every method by name: which class it is, and with which settings for a setting and a budget.

A choice is plain data, so a result's configuration holds all of it. Those that end in "-as-run" have the
options that do what the paper's authors ran, where that differs from the mathematics:

- SLU keeps the leading 90 % of noisy directions, and subtracts instead of correcting.
- LLA and LE take as many products as they have copies, and keep int(0.9 k) directions.
- LLA and SCOD have a prior precision that belongs to a mean over data, beside a sum.
- SCOD's factor of the Hessian is the Hessian itself.
- LLA-D estimates its diagonal from random signs, and lifts all of it by its most negative entry.
- SWAG collects by batches, with deviations from a running mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from slu.errors import unknown
from slu_experiments.settings.table import Setting
from slu_experiments.training import RECIPES

Settings = Callable[[Setting, str], dict[str, Any]]

SUBSAMPLE, EVERYTHING, MEMBERS = "subsample", "everything", "members"
"""What a method is made from: points of a subsample, all training batches, or several networks."""


@dataclass(frozen=True)
class Choice:
    """One row of the table.

    Attributes:
        name: As it is typed.
        title: As it is printed.
        kind: The name of the class in `slu`.
        settings: The class' keywords, of the setting and the budget.
        paper: The paper's row it stands beside; None where it has none.
        reading: How the score is read; None for the method's default.
        fitted_on: SUBSAMPLE, EVERYTHING or MEMBERS.
        usual: Whether `slu-paper reproduce` takes it without being asked.
        logits: Whether it reads outputs as logits of classes.
        calibrated: For SLU, whether points are held out of the fit to calibrate on; the paper fits all.
    """

    name: str
    title: str
    kind: str
    settings: Settings
    paper: str | None = None
    reading: str | None = None
    fitted_on: str = SUBSAMPLE
    usual: bool = True
    logits: bool = False
    calibrated: bool = False

    @property
    def as_run(self) -> bool:
        """Whether it follows the authors' code where that departs from the mathematics."""
        return self.name.endswith("-as-run")


def _slu(**own: Any) -> Settings:
    """The paper's sizes, coordinates and projection, and its solver unless another is named."""

    def settings(setting: Setting, budget: str) -> dict[str, Any]:
        numbers = setting.numbers(budget)
        paper = {"solver": "lanczos", "scale": None, "ridge": 0.0}
        return {"rank": numbers.rank, "sketch_size": numbers.sketch_size, **paper, **own}

    return settings


def _scaled(setting: Setting, budget: str) -> dict[str, Any]:
    """The diagonal is a copy of the parameters; what is left goes to the sketch, where a copy can be left."""
    numbers = setting.numbers(budget)
    share = max(numbers.copies - 1, 1) / numbers.copies
    options = {"solver": "stream", "scale": "diagonal", "ridge": 0.0}
    return {"rank": max(1, int(share * numbers.rank)), "sketch_size": numbers.sketch_size, **options}


def _default(setting: Setting, budget: str) -> dict[str, Any]:
    """What SLU does where only a budget is given, written out: a result must hold all that decides it."""
    from slu.core import USUAL_RIDGE

    del setting
    return {"budget": budget, "solver": "stream", "scale": "factored", "ridge": USUAL_RIDGE}


def _ranked(**own: Any) -> Settings:
    return lambda setting, budget: {"rank": setting.numbers(budget).copies, **own}


def _lanczos_as_run(**own: Any) -> Settings:
    def settings(setting: Setting, budget: str) -> dict[str, Any]:
        steps = setting.numbers(budget).copies
        return {"rank": max(1, 9 * steps // 10), "steps": steps, **own}

    return settings


def _converged(setting: Setting, budget: str) -> dict[str, Any]:
    rank = setting.numbers(budget).copies
    return {"rank": rank, "steps": rank + 17}


def _swag(setting: Setting, budget: str) -> dict[str, Any]:
    statistics = {} if setting.swag_statistics is None else {"batchnorm_batches": setting.swag_statistics}
    return {"rank": setting.numbers(budget).copies, **statistics, **_as_trained(setting)}


def _as_trained(setting: Setting) -> dict[str, Any]:
    """SWAG goes on with the training by autocast where that was by it."""
    return {"autocast": True} if RECIPES[setting.recipe].autocast else {}


def _swag_as_run(setting: Setting, budget: str) -> dict[str, Any]:
    rank = setting.numbers(budget).copies
    return {
        "rank": rank,
        "collections": rank,
        "collect_every": setting.swag_interval,
        "momentum": 0.99,
        "deviations": "running",
        "refit_batchnorm": False,
        # Their multilabel loss is a mean over labels too.
        "learning_rate": 1e-3 / (37 if setting.likelihood == "multilabel" else 1),
        **_as_trained(setting),
    }


def _fixed(**own: Any) -> Settings:
    def settings(setting: Setting, budget: str) -> dict[str, Any]:
        del setting, budget
        return dict(own)

    return settings


def _neighbours(setting: Setting, budget: str) -> dict[str, Any]:
    """All points of the fit, whatever the budget."""
    del budget
    return {"neighbours": 50, "points": setting.points or 10_000}


def _members(setting: Setting, budget: str) -> dict[str, Any]:
    return {"members": max(2, setting.numbers(budget).copies)}


_PRIOR = {"prior_precision": "paper"}
_PROBES = {"diagonal": "hutchinson", "probes": 10_000, **_PRIOR}
_AUTHORS_SLU = {"sketch": "srft", "keep": 0.9, "estimator": "difference"}

_ALL = (
    Choice("slu", "SLU", "SLU", _slu(), "slu", "variance"),
    Choice("slu-as-run", "SLU as run", "SLU", _slu(**_AUTHORS_SLU), "slu", "variance"),
    Choice("slu-fisher", "SLU, fisher", "SLU", _slu(), None, "fisher"),
    Choice("slu-relative", "SLU, relative", "SLU", _slu(), None, "relative", usual=False),
    Choice("slu-stream", "SLU, one pass", "SLU", _slu(solver="stream"), None, "variance", usual=False),
    Choice("slu-scaled", "SLU scaled, fisher", "SLU", _scaled, None, "fisher", usual=False),
    Choice("slu-default", "SLU, combined", "SLU", _default, None, "combined", calibrated=True),
    Choice("lla", "LLA", "LowRankLaplace", _ranked(), "lla", "variance"),
    Choice("lla-as-run", "LLA as run", "LowRankLaplace", _lanczos_as_run(**_PRIOR), "lla", "variance"),
    Choice("lla-d", "LLA-D", "DiagonalLaplace", _fixed(), "lla-d", "variance"),
    Choice("lla-d-paper-prior", "LLA-D, paper's prior", "DiagonalLaplace", _fixed(**_PRIOR), "lla-d", "variance"),
    Choice(
        "lla-d-as-run", "LLA-D as run", "DiagonalLaplace", _fixed(negative="shift", **_PROBES), "lla-d", "variance",
        usual=False,
    ),
    Choice(
        "lla-d-probes", "LLA-D, probes, clipped", "DiagonalLaplace", _fixed(**_PROBES), "lla-d", "variance",
        usual=False,
    ),
    Choice("le", "LE", "LocalEnsemble", _ranked(), "le", "variance"),
    Choice("le-as-run", "LE as run", "LocalEnsemble", _lanczos_as_run(), "le", "variance"),
    Choice("le-converged", "LE, converged", "LocalEnsemble", _converged, "le", "variance", usual=False),
    Choice("le-h", "LE-H", "LocalEnsemble", _ranked(curvature="hessian"), "le-h", "variance"),
    Choice(
        "le-h-as-run", "LE-H as run", "LocalEnsemble", _lanczos_as_run(curvature="hessian", negative="free"), "le-h",
        "variance",
    ),
    Choice("scod", "SCOD", "SCOD", _ranked(), "scod", "variance"),
    Choice("scod-as-run", "SCOD as run", "SCOD", _ranked(factor="hessian", **_PRIOR), "scod", "variance"),
    Choice("scod-fisher", "SCOD, its own reading", "SCOD", _ranked(), None, "fisher", usual=False),
    Choice("swag", "SWAG", "SWAG", _swag, "swag", "variance", EVERYTHING),
    Choice("swag-as-run", "SWAG as run", "SWAG", _swag_as_run, "swag", "variance", EVERYTHING),
    Choice("de", "DE", "DeepEnsemble", _members, "de", "variance", MEMBERS),
    Choice("max-logit", "max logit", "MaxLogit", _fixed(), logits=True),
    Choice("max-probability", "max probability", "MaxProbability", _fixed(), logits=True),
    Choice("entropy", "entropy", "Entropy", _fixed(), logits=True),
    Choice("energy", "energy", "Energy", _fixed(), logits=True),
    Choice("mahalanobis", "Mahalanobis", "Mahalanobis", _fixed(ridge=1e-6)),
    Choice("knn", "KNN", "KNN", _neighbours),
)  # fmt: skip

METHODS: dict[str, Choice] = {choice.name: choice for choice in _ALL}
"""By name, in the order of tables; a new method is a row here."""


def find_method(name: str) -> Choice:
    """A method by its name."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def usual_methods(setting: Setting) -> list[str]:
    """Those that suit the setting's outputs and take no extraordinary time."""
    classes = setting.likelihood == "classification"
    return [choice.name for choice in _ALL if choice.usual and (classes or not choice.logits)]


def resolved(setting: Setting, method: str, budget: str, changed: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a method in a setting at a budget, with what was asked otherwise."""
    return {**find_method(method).settings(setting, budget), **changed}
