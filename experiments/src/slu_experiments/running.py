"""From a setting, a seed, a method and a budget to a folder of results."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from torch import nn

from slu.comparing import RESAMPLES, Scored, checked_scores, judge_all
from slu.core import Method, Score
from slu.errors import MissingDataError
from slu.parameters import fingerprint
from slu_experiments.building import build, members_of, refuse_unfit
from slu_experiments.data import Source, expand
from slu_experiments.points import (
    FIT_BATCH,
    QUERY_BATCH,
    TRAIN_BATCH,
    Batches,
    fit_source,
    query_source,
)
from slu_experiments.recorded import fit_recorded, recordable
from slu_experiments.results import Result, Store, name_of, peak_memory
from slu_experiments.settings import Setting, find_method, find_setting
from slu_experiments.settings.methods import EVERYTHING, MEMBERS, resolved
from slu_experiments.training import learned_from, trained
from slu_experiments.training.weights import changed as changed_recipe

FORMAT = 1
INSIDE = "inside"


@dataclass(frozen=True)
class Place:
    """Where data come from and results go to, and how much is told: nothing that changes a number.

    Attributes:
        out: The folder with weights/, fits/ and runs/.
        data: The folder of the data sets; None takes SLU_DATA.
        progress: Whether to show bars; None shows them in a terminal.
    """

    out: Path
    data: str | None = None
    progress: bool | None = None

    @property
    def store(self) -> Store:
        """The results."""
        return Store(self.out)


Work: TypeAlias = tuple[dict[str, Any], dict[str, np.ndarray]]
"""Metrics and arrays, as a result holds them."""


class Job(Protocol):
    """Something that ends in a folder of results."""

    def config(self) -> dict[str, Any]:
        """All that decides the numbers, as plain data; its hash names the folder."""
        ...

    def work(self, config: Mapping[str, Any], place: Place) -> Work:
        """The metrics and arrays."""
        ...


@dataclass(frozen=True)
class Run:
    """One method on one network.

    Attributes:
        setting, method: Names in their tables.
        seed: Of the network, and of the method's draws.
        budget: "3p", "10p" or another number of copies.
        outside: Sets, or families of them; empty for all of the setting's.
        points: Of the fit; None for the setting's.
        queries: Test points of each set, at most; None for all.
        training: What is asked of the training otherwise: epochs, subset.
        changed: Keywords of the method that replace those of the table.
    """

    setting: str
    method: str
    seed: int = 1
    budget: str = "3p"
    outside: tuple[str, ...] = ()
    points: int | None = None
    queries: int | None = None
    training: Mapping[str, int] = field(default_factory=dict)
    changed: Mapping[str, Any] = field(default_factory=dict)

    def config(self) -> dict[str, Any]:
        """All that decides the numbers, as plain data; its hash names the folder.

        Raises:
            SettingError: A name that is in no table, or a method that does not suit: said before any training.
        """
        setting, choice = find_setting(self.setting), find_method(self.method)
        refuse_unfit(choice, setting, self.changed)
        return {
            "kind": "score",
            "format": FORMAT,
            "setting": self.setting,
            "seed": self.seed,
            "training": dict(self.training),
            "recipe": recipe_of(setting, self.training),
            "method": self.method,
            "class": choice.kind,
            "settings": resolved(setting, self.method, self.budget, self.changed),
            "changed": dict(self.changed),
            "reading": choice.reading,
            "calibrated": choice.calibrated,
            "budget": self.budget,
            "points": self.points or setting.points,
            "queries": self.queries,
            "outside": expand(list(self.outside or setting.outside)),
            "resamples": RESAMPLES,
        }

    def work(self, config: Mapping[str, Any], place: Place) -> Work:
        """Fit and score.

        Cost: training the network (or networks) unless the folder holds them; one fit, which for SLU goes
        on from a checkpoint; one scoring of every set. The fit's points are held if they fit into a gigabyte.
        """
        count = members_of(config)
        fitted = self.fit(config, place, networks(find_setting(self.setting), self.seed, place, self.training, count))
        return fitted.work(*fitted.scored(place))

    def fit(self, config: Mapping[str, Any], place: Place, loaded: Networks) -> Fitted:
        """Fit the method on networks, of which a single one is the first."""
        setting = find_setting(self.setting)
        method = build(config, loaded.models, setting.likelihood, self.seed)
        begin = time.perf_counter()
        score = _fit(method, setting, config, place)
        return Fitted(config, method, score, loaded, time.perf_counter() - begin)


class Networks(NamedTuple):
    """Trained networks, and what is known of the first."""

    models: list[nn.Module]
    facts: dict[str, Any]


@dataclass(frozen=True)
class Fitted:
    """A run after its fit, which took so many seconds."""

    config: Mapping[str, Any]
    method: Any
    score: Any
    loaded: Networks
    seconds: float

    def scored(self, place: Place) -> tuple[Scored, float]:
        """The scores of every set, and the seconds that each took."""
        reading = self.config["reading"] or self.score.readings[0]

        def scores(name: str) -> np.ndarray:
            data = Batches(queries_of(name, self.config, place), QUERY_BATCH)
            return checked_scores(self.score(data, reading=reading, progress=place.progress), name)

        begin = time.perf_counter()
        scored = Scored(scores(dataset_of(self.config)), {name: scores(name) for name in self.config["outside"]})
        return scored, (time.perf_counter() - begin) / points_of(scored)

    def work(self, scored: Scored, seconds: float) -> Work:
        """The metrics and arrays of scores that took so long each."""
        model, facts = self.loaded.models[0], self.loaded.facts
        judged = judge_all([scored], resamples=self.config["resamples"], seed=0)[0][0]
        diagnostics = _diagnostics(self.score)
        metrics = {
            "judgements": {name: asdict(each) for name, each in judged.items()},
            "inside": len(scored.inside),
            "outside": {name: len(each) for name, each in scored.outside.items()},
            # A fit that was resumed, or done for another reading, knows the time of all of it.
            "seconds": {
                "fit": max(self.seconds, (diagnostics or {}).get("seconds", 0.0)),
                "score": seconds * points_of(scored),
                "score_each": seconds,
            },
            "memory": {**_memory(self.method, model), "process_peak": peak_memory()},
            "network": {**facts, "fingerprint": fingerprint(model)},
            "diagnostics": diagnostics,
        }
        return metrics, {INSIDE: scored.inside, **{f"outside/{name}": each for name, each in scored.outside.items()}}


def recipe_of(setting: Setting, training: Mapping[str, int]) -> dict[str, Any]:
    """How the network of a run is trained, as plain data: another recipe or normalization, other results."""
    recipe = changed_recipe(setting, training.get("epochs")).plain()
    return recipe | ({"mean": list(setting.mean), "std": list(setting.std)} if setting.mean else {})


def available(setting: Setting, wanted: Sequence[str], data: str | None) -> tuple[list[str], dict[str, str]]:
    """The members of families that are on this machine, and why the others are not.

    A set that was asked for by its own name must be there; of a family, and of the setting's own sets
    where nothing was asked for, what there is.

    Raises:
        MissingDataError: A set that was named is missing, or every one is.
    """
    there, missing = [], {}
    for name in expand(list(wanted or setting.outside)):
        try:
            query_source(name, setting, 1, data)
            there.append(name)
        except MissingDataError as reason:
            if name in wanted:
                raise
            missing[name] = str(reason)
    if not there:
        raise MissingDataError(f"no outside set of {setting.name} is on this machine: {next(iter(missing.values()))}")
    return there, missing


def execute(job: Job, place: Place) -> tuple[Result, bool]:
    """The result of a job: stored, or made now.

    Returns:
        It, and whether it was made now.

    Raises:
        SluError: What the data, the training or the method refuse.
    """
    config = job.config()
    stored = place.store.find(config)
    if stored is not None:
        return stored, False
    metrics, arrays = job.work(config, place)
    return place.store.write(config, metrics, arrays), True


def networks(setting: Setting, seed: int, place: Place, training: Mapping[str, int], count: int = 1) -> Networks:
    """Trained networks of the seeds from this one on."""
    made = [
        trained(setting, seed + step, place.out, root=place.data, progress=place.progress, **training)
        for step in range(count)
    ]
    known = ("accuracy", "loss", "points", "test_points", "seconds", "recipe", "subset")
    return Networks([model for model, _ in made], {key: made[0][1].get(key) for key in known})


def _fit(method: Any, setting: Setting, config: Mapping[str, Any], place: Place) -> Score:
    choice = find_method(config["method"])
    if choice.logits or choice.fitted_on == MEMBERS:
        return method.fit(None, progress=place.progress)  # there is nothing to fit
    innermost = config["recipe"]["channels_last"]
    if choice.fitted_on == EVERYTHING:
        learned = learned_from(setting, place.data, config["training"].get("subset"))
        loader = Batches(learned, TRAIN_BATCH, hold=True, channels_last=innermost)
        return method.fit(loader, progress=place.progress)
    source = fit_source(setting, config["points"], place.data)
    loader = Batches(source, FIT_BATCH, hold=True, channels_last=innermost)
    if not choice.calibrated and recordable(method):
        return fit_recorded(method, loader, _recording(method, config, place), progress=place.progress)
    if choice.kind != "SLU":
        return method.fit(loader, progress=place.progress)
    # As the paper does, every point is fitted, unless the row is one that is calibrated.
    calibration = None if choice.calibrated else False
    return method.fit(loader, calibration=calibration, checkpoint=_fit_file(config, place), progress=place.progress)


def _recording(method: Any, config: Mapping[str, Any], place: Place) -> Path:
    """Where the Lanczos vectors of a network, its points and a seed lie, for all fits that begin with them."""
    names = ("setting", "seed", "training", "recipe", "points", "format")
    decides = {name: config[name] for name in names} | {"weights": fingerprint(method.network.model)}
    decides["parameters"] = list(method.network.selection.names)
    return place.out / "fits" / f"{name_of(decides)}-lanczos"


def _fit_file(config: Mapping[str, Any], place: Place) -> Path:
    """Where a fit of SLU is written down: one for all readings and outside sets of it."""
    unrelated = ("method", "reading", "outside", "queries", "resamples", "budget", "changed", "class", "kind")
    decides = {key: value for key, value in config.items() if key not in unrelated}
    # How a subspace is read does not change it, but what it is calibrated with.
    reads = () if config["calibrated"] else ("estimator", "ridge")
    decides["settings"] = {key: value for key, value in config["settings"].items() if key not in reads}
    folder = place.out / "fits"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name_of(decides)}.safetensors"


def dataset_of(config: Mapping[str, Any]) -> str:
    """The set that the network of a run was trained for."""
    return find_setting(config["setting"]).dataset


def queries_of(name: str, config: Mapping[str, Any], place: Place) -> Source:
    """The points of a set that a run scores."""
    return query_source(name, find_setting(config["setting"]), config["queries"], place.data)


def points_of(scored: Scored) -> int:
    """How many were scored."""
    return len(scored.inside) + sum(map(len, scored.outside.values()))


def _memory(method: Method, model: nn.Module) -> dict[str, Any]:
    cost = method.cost(batch=QUERY_BATCH)
    parameters = sum(each.numel() for each in model.parameters())
    each = next(model.parameters()).dtype.itemsize
    return {
        "kept": cost.artefact,
        "kept_copies": cost.artefact / (parameters * each),
        "fitting": cost.fitting,
        "querying": cost.querying,
        "parameters": parameters,
    }


def _diagnostics(score: Any) -> dict[str, Any] | None:
    """The fields of a report as plain data; JSON has no NaN, for which None stands."""
    diagnostics: Any = getattr(score, "diagnostics", None)
    if diagnostics is None:
        return None
    plain = {name: np.asarray(value).tolist() for name, value in vars(diagnostics).items()}
    return {name: _finite(value) for name, value in plain.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
