"""Counts what came of faults, and prints the counts: refused, the same numbers, or what must never be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from slu.errors import SluError

REFUSED, SAME = "refused", "same numbers"
VALID = "other numbers of a valid file"
OTHER, FOREIGN = "other numbers", "foreign error"


class FaultCounts:
    """Outcomes of faults by kind; `assert_none` fails with those that must never be."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def run(
        self,
        fault: str,
        use: Callable[[], object],
        same: Callable[[object], bool],
        valid: Callable[[object], bool] = lambda _: False,
    ) -> str:
        """Count what `use` comes to; `same` says whether its result is what it is without the fault.

        `valid` says whether another result may be, because the fault makes a file that a fit could have written.
        """
        try:
            result, words = use(), ""
            outcome = SAME if same(result) else VALID if valid(result) else OTHER
        except SluError:
            outcome, words = REFUSED, ""
        except Exception as error:
            outcome, words = FOREIGN, f" {type(error).__name__}: {str(error)[:200]}"
        self.counts[outcome] += 1
        if outcome in (OTHER, FOREIGN):
            self.wrong.append(f"{fault}: {outcome}{words}")
        return outcome

    def __str__(self) -> str:
        shown = [each for each in (REFUSED, SAME, VALID, OTHER, FOREIGN) if each != VALID or self.counts[VALID]]
        counts = ", ".join(f"{self.counts[each]:,} {each}" for each in shown)
        return f"{self.title}: {self.counts.total():,} faults: {counts}"

    def assert_none(self) -> None:
        """Print the counts; fail if a fault was accepted with other numbers or ended in a foreign error."""
        print(self)
        assert not self.wrong, "\n".join([str(self), *self.wrong[:60]])
