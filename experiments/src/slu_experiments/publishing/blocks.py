"""The runs of one setting at one budget, and comparisons of methods over networks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean, stdev

from slu_experiments.data import expand
from slu_experiments.results import Result
from slu_experiments.settings import METHODS, Setting
from slu_experiments.tables import Measured

OURS = ("slu", "slu-as-run", "slu-default")
"""The paper's score by its mathematics and as its authors ran it, and the library's default."""

WIN, TIE, LOSS = "win", "tie", "loss"
_CONFIDENCE = 0.95
_NOISE = 9  # digits of a difference; beyond them is rounding
_OVER = 1.05  # copies of a method may be above the budget by a few numbers per direction


@dataclass(frozen=True)
class Standing:
    """What a method reaches at what cost: AUROC, mean over families; copies kept; seconds to fit and per query."""

    method: str
    auroc: Measured
    copies: float
    fit: float
    query: float


@dataclass(frozen=True)
class Contest:
    """One method against another on the networks that both were run on.

    Attributes:
        ours, other: Methods.
        family: Of sets; None for the mean over families.
        networks: How many.
        difference: In AUROC, ours minus the other; mean over networks.
        interval: Student's, at 95 %, of the mean of paired differences; None for one network.
    """

    ours: str
    other: str
    family: str | None
    networks: int
    difference: float
    interval: tuple[float, float] | None

    @property
    def verdict(self) -> str | None:
        """A win where the interval is above 0, a loss where it is below; None where one network does not tell."""
        if self.interval is None:
            return None
        low, high = self.interval
        return WIN if low > 0 else LOSS if high < 0 else TIE


def student(differences: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    """Mean of paired differences, and its interval at 95 % where there are two or more.

    >>> student([0.1]), student([0.2, 0.2, 0.2])
    ((0.1, None), (0.2, (0.2, 0.2)))
    """
    from scipy.stats import t

    middle = round(mean(differences), _NOISE)
    if len(differences) == 1:
        return middle, None
    wide = float(t.ppf((1 + _CONFIDENCE) / 2, len(differences) - 1)) * stdev(differences) / math.sqrt(len(differences))
    return middle, (round(middle - wide, _NOISE), round(middle + wide, _NOISE))


class Block:
    """The runs of a setting at a budget, by method, network and set.

    Args:
        results: Of one setting and kind; those of other budgets are left out.
        setting, budget: Which.
    """

    def __init__(self, results: Iterable[Result], setting: Setting, budget: str) -> None:
        self.setting, self.budget = setting, budget
        self.results = [result for result in results if result.config["budget"] == budget]
        self._areas: dict[str, dict[int, dict[str, float]]] = {}
        for result in self.results:
            areas = {name: judged["auroc"]["value"] for name, judged in result.metrics["judgements"].items()}
            seeds = self._areas.setdefault(result.config["method"], {})
            seeds.setdefault(result.config["seed"], {}).update(areas)

    @property
    def title(self) -> str:
        """As it is printed."""
        return f"{self.setting.title}, {self.budget}"

    @property
    def methods(self) -> list[str]:
        """Those that were run, in the order of the table of methods."""
        return [name for name in METHODS if name in self._areas]

    @property
    def seeds(self) -> list[int]:
        """Networks that any method was run on."""
        return sorted({seed for seeds in self._areas.values() for seed in seeds})

    @cached_property
    def families(self) -> dict[str, list[str]]:
        """The setting's families, each with those of its sets that any method was judged on."""
        scored = {name for seeds in self._areas.values() for areas in seeds.values() for name in areas}
        judged = {family: [name for name in expand([family]) if name in scored] for family in self.setting.outside}
        return {family: sets for family, sets in judged.items() if sets}

    @cached_property
    def standings(self) -> list[Standing]:
        """Methods that were judged on every set, the best first."""
        ranked = []
        for method in self.methods:
            sets = {name for each in self.families.values() for name in each}
            values = [self._mean(areas, self.families) for areas in self._areas[method].values() if sets <= set(areas)]
            if values:
                ranked.append(self._standing(method, Measured.of(values)))
        return sorted(ranked, key=lambda each: -each.auroc.mean)

    def _standing(self, method: str, auroc: Measured) -> Standing:
        metrics = [result.metrics for result in self.results if result.config["method"] == method]
        return Standing(
            method,
            auroc,
            copies=mean(each["memory"]["kept_copies"] for each in metrics),
            fit=mean(each["seconds"]["fit"] for each in metrics),
            query=mean(each["seconds"]["score_each"] for each in metrics),
        )

    def standing(self, method: str) -> Standing | None:
        """Of one method, if it was judged on every set."""
        return next((each for each in self.standings if each.method == method), None)

    def within(self) -> list[Standing]:
        """Those that keep no more than the budget, the best first."""
        most = _OVER * self.setting.numbers(self.budget).copies
        return [each for each in self.standings if each.copies <= most]

    def family_values(self, method: str, family: str) -> list[float]:
        """AUROC of a method on a family, the mean over its sets: one value per network that has them all."""
        sets = self.families[family]
        return [
            self._mean(areas, {family: sets}) for areas in self._areas.get(method, {}).values() if {*sets} <= {*areas}
        ]

    def contest(self, ours: str, other: str, family: str | None = None) -> Contest | None:
        """Two methods compared on the networks and sets that both have; None where there is no such.

        Args:
            ours, other: Methods.
            family: Of sets; None for the mean over families.
        """
        one, two = self._areas.get(ours, {}), self._areas.get(other, {})
        seeds = sorted(set(one) & set(two))
        shared = set.intersection(*({*each[seed]} for each in (one, two) for seed in seeds)) if seeds else set()
        wanted = self.families if family is None else {family: self.families.get(family, [])}
        sets = {name: [each for each in members if each in shared] for name, members in wanted.items()}
        sets = {name: members for name, members in sets.items() if members}
        if not sets:
            return None
        differences = [self._mean(one[seed], sets) - self._mean(two[seed], sets) for seed in seeds]
        return Contest(ours, other, family, len(seeds), *student(differences))

    def contests(self, ours: str, others: Iterable[str], *, by_family: bool = False) -> Iterator[Contest]:
        """One method against others, over families or on each of them."""
        for other in others:
            for family in self.families if by_family else (None,):
                contest = self.contest(ours, other, family)
                if contest is not None:
                    yield contest

    @property
    def others(self) -> list[str]:
        """The methods that were run and are not SLU in any form."""
        return [name for name in self.methods if METHODS[name].kind != "SLU"]

    @staticmethod
    def _mean(areas: dict[str, float], families: dict[str, list[str]]) -> float:
        """Over families, of the mean over the sets of each."""
        return mean(mean(areas[name] for name in sets) for sets in families.values())
