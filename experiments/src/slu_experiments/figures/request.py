"""What a figure is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slu_experiments.data import expand
from slu_experiments.running import Run
from slu_experiments.settings import Setting, find_setting


@dataclass(frozen=True)
class Request:
    """What is shown; every figure takes of it what it needs.

    Attributes:
        setting: Name of it.
        seeds: Of the networks.
        outside: Sets or families of them; empty for the figure's own choice.
        budgets: Amounts of memory.
        methods: Names in the table of methods; empty for the figure's own choice.
        missing: Sets that are not on this machine, to be left out.
        points, queries: Of the fits, and of each set; None for the setting's.
        training: What is asked of the training otherwise.
        steps: Lanczos steps; None for the figure's own choice.
        starts: How many random starts of Lanczos.
        parameters, rank: Of the synthetic matrix: p and R.
    """

    setting: str
    seeds: tuple[int, ...] = (1,)
    outside: tuple[str, ...] = ()
    budgets: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    points: int | None = None
    queries: int | None = None
    training: Mapping[str, int] = field(default_factory=dict)
    steps: int | None = None
    starts: int = 5
    parameters: int = 1_000_000
    rank: int = 100

    @property
    def definition(self) -> Setting:
        """The setting of this name."""
        return find_setting(self.setting)

    @property
    def sets(self) -> tuple[str, ...]:
        """Every outside set that is asked for and there, families as their members."""
        wanted = expand(list(self.outside or self.definition.outside))
        return tuple(name for name in wanted if name not in self.missing)

    def common(self, seed: int) -> dict[str, object]:
        """Keywords that every job on a network takes."""
        return {"setting": self.setting, "seed": seed, "points": self.points, "training": dict(self.training)}

    def runs(self, method: str, budget: str) -> list[Run]:
        """A method within a budget, on all sets: one run per network."""
        shared: list[Any] = [self.common(seed) for seed in self.seeds]
        return [Run(**each, method=method, budget=budget, outside=self.sets, queries=self.queries) for each in shared]
