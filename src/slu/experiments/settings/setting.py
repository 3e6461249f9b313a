"""What an experiment is made of: a data set, a network, the sets it is judged on and the memory it may keep."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from slu.errors import BudgetError

_COPIES = re.compile(r"([1-9][0-9]*)p")


@dataclass(frozen=True)
class Reported:
    """A number that the paper reports, with its standard deviation over networks; None where it gives none."""

    mean: float
    spread: float | None = None

    def __str__(self) -> str:
        if self.spread is None:
            return f"{self.mean:.2f}"
        # Two digits, or three where the paper has three.
        return f"{self.mean:.2f} ± {f'{self.spread:.3f}'.removesuffix('0')}"


@dataclass(frozen=True)
class Numbers:
    """What a budget means for each method.

    Attributes:
        rank, sketch_size: k and s of SLU.
        copies: Of the parameters: the baselines' rank, and the members of an ensemble.
    """

    rank: int
    sketch_size: int
    copies: int


@dataclass(frozen=True)
class Setting:
    """One block of the paper's table, or one of ours.

    Attributes:
        name: As it is typed.
        title: As it is printed.
        dataset, model: Names in the tables of data sets and of networks.
        likelihood: Of the network's outputs.
        parameters: p.
        mean, std: By which every image is normalized, one number a channel; empty for pixels as they
            are, in [0, 1].
        recipe: Name of the training recipe.
        outside: The families of sets that the network was not trained for; the table's columns.
        budgets: By name, what the paper (or we) took for it.
        accuracy: On the test set, as the paper reports it.
        seeds: Of the networks in the paper.
        subsample: Points of the train set that methods are fitted on, of which a tenth is held back;
            None for all.
        swag_interval: Batches from one iterate of SWAG to the next, as the authors ran it.
    """

    name: str
    title: str
    dataset: str
    model: str
    likelihood: str
    parameters: int
    recipe: str
    outside: tuple[str, ...]
    budgets: Mapping[str, Numbers]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    accuracy: Reported | None = None
    seeds: tuple[int, ...] = (1,)
    subsample: int | None = 10_000
    swag_interval: int = 1000
    notes: tuple[str, ...] = field(default=())

    @property
    def points(self) -> int | None:
        """n of a fit: nine tenths of the subsample, as the authors have it; None for every point."""
        return None if self.subsample is None else 9 * self.subsample // 10

    def numbers(self, budget: str) -> Numbers:
        """What a budget means: the table's row, or for other multiples of p the sketch of the next smaller one.

        Raises:
            BudgetError: Not a whole number of copies, "5p"; or too little for one direction.

        >>> from slu.experiments.settings import SETTINGS
        >>> SETTINGS["fmnist-lenet"].numbers("3p"), SETTINGS["fmnist-lenet"].numbers("5p").rank
        (Numbers(rank=132, sketch_size=1000, copies=3), 222)
        """
        if budget in self.budgets:
            return self.budgets[budget]
        found = _COPIES.fullmatch(budget)
        if found is None:
            raise BudgetError(
                f"the budget {budget!r} is no whole number of copies of the parameters; {self.name} has "
                f"{', '.join(self.budgets)}, others are written like '5p'"
            )
        copies = int(found[1])
        smaller = [each for each in self.budgets.values() if each.copies <= copies]
        size = (smaller or list(self.budgets.values()))[-1 if smaller else 0].sketch_size
        rank = copies * self.parameters // size
        if rank < 1:
            raise BudgetError(f"the budget {budget!r} is too small for one direction of {size:,} numbers; raise it")
        return Numbers(rank, size, copies)
