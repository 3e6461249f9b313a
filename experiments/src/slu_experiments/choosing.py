"""Which results belong together: those of one setting made from the same points, queries and training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slu.errors import SettingError, StorageError
from slu_experiments.results import Result, Store, canonical
from slu_experiments.running import Run
from slu_experiments.settings import METHODS, Setting


@dataclass(frozen=True)
class Wanted:
    """Which results are asked for; what is None is the setting's own, or else whatever there is one of.

    Attributes:
        seeds: Of the networks.
        methods: Names in the table of methods.
        points, queries: Of the fits, and of each set.
        training: What was asked of the training otherwise.
    """

    seeds: Sequence[int] | None = None
    methods: Sequence[str] | None = None
    points: int | None = None
    queries: int | None = None
    training: Mapping[str, int] | None = None

    def takes(self, config: dict[str, Any]) -> bool:
        """Whether a configuration is asked for."""
        asked = [(getattr(self, name), config[name]) for name in ("points", "queries", "training")]
        return (
            (self.seeds is None or config["seed"] in self.seeds)
            and (self.methods is None or config["method"] in self.methods)
            and all(not want or want == came for want, came in asked)
        )

    def kind(self, setting: Setting) -> str:
        """What the results have in common, with the setting's own where nothing is asked for."""
        points = setting.points if self.points is None else self.points
        return _kind({"points": points, "queries": self.queries, "training": dict(self.training or {})})


def chosen(
    store: Store, setting: Setting, budget: str | None, wanted: Wanted, *, changed: bool = False
) -> list[Result]:
    """The score runs of a setting that can stand in one table; those that the code has left behind do not.

    Args:
        store: Where they lie.
        setting: Whose.
        budget: Of which memory; None for every one.
        wanted: What is asked for besides.
        changed: Whether runs of methods with other settings than the table's belong to it.

    Raises:
        StorageError: There are none; the message says how to make them.
        SettingError: There are several kinds, and nothing says which.
    """
    results = [
        result
        for result in store.all("score")
        if result.config["setting"] == setting.name
        and (budget is None or result.config["budget"] == budget)
        and (changed or not result.config["changed"])
        and wanted.takes(result.config)
        and current(result.config)
    ]
    if not results:
        what = f"{setting.name}{'' if budget is None else f' at {budget}'}"
        raise StorageError(
            f"there are no results of {what} below {store.runs} that were asked for; make them with: "
            f"slu-paper reproduce --setting {setting.name}"
        )
    return _of_one_kind(results, setting, wanted)


def current(config: Mapping[str, Any]) -> bool:
    """Whether the tables of methods and recipes still say what they said when a result was made."""
    if config["method"] not in METHODS:
        return False
    same = {name: config[name] for name in ("method", "budget", "training", "changed")}
    now = Run(config["setting"], **same).config()
    return all(
        canonical({name: config.get(name)}) == canonical({name: now[name]})
        for name in ("format", "class", "settings", "reading", "recipe")
    )


def same_run(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two configurations are of one method on one network, of equal points, queries, training and settings."""
    names = ("setting", "budget", "method", "seed", "points", "queries", "training", "recipe", "settings")
    return all(canonical({name: one[name]}) == canonical({name: other[name]}) for name in names)


def _of_one_kind(results: Iterable[Result], setting: Setting, wanted: Wanted) -> list[Result]:
    """Results of the kind that is asked for if there are any, else of the only other kind there is."""
    kinds: dict[str, list[Result]] = {}
    for result in results:
        kinds.setdefault(_kind(result.config), []).append(result)
    asked = wanted.kind(setting)
    if len(kinds) == 1:
        return next(iter(kinds.values()))
    if asked in kinds:
        return kinds[asked]
    raise SettingError(
        f"there are results of {setting.name} of several kinds, which do not belong into one table: "
        f"{'; '.join(sorted(kinds))}. Choose with --points, --queries, --epochs and --subset, or name another --out"
    )


def _kind(config: dict[str, Any]) -> str:
    return canonical({key: config[key] for key in ("points", "queries", "training")})
