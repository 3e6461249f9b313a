"""The result of `doctor`: print it, or read its checks and figures."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

OK, SLOW, WARNING, ERROR = "ok", "slow", "warning", "error"

_WIDTH = 100
_NAME, _STATUS = 15, 9


class Check(NamedTuple):
    """One thing that was checked.

    Attributes:
        name: Of the check.
        status: "ok", "slow" (works, and takes longer than it could), "warning" (scores may not mean what they
            should) or "error" (a fit or a query would fail).
        seen: What was seen.
        remedy: What to change, a line of code where possible; empty where nothing has to, or where it is in the message
            that was seen.
    """

    name: str
    status: str
    seen: str
    remedy: str = ""


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What `doctor` saw of a model and a batch; print it, for an issue for example.

    Attributes:
        checks: In the order in which they were made.
        skipped: Names of the checks that could not be made after an error.
        facts: Figures for programs: parameters, outputs, ways of differentiation, bytes, seconds.
        versions: Of slu, torch and Python.
    """

    checks: tuple[Check, ...]
    skipped: tuple[str, ...]
    facts: Mapping[str, Any]
    versions: Mapping[str, str]

    @property
    def ok(self) -> bool:
        """Whether a fit and a query work: no check is an error."""
        return all(check.status != ERROR for check in self.checks)

    def __getitem__(self, name: str) -> Check:
        """The check of that name."""
        known = {check.name: check for check in self.checks}
        if name not in known:
            raise KeyError(f"no check {name!r} was made; there are {', '.join(known)}")
        return known[name]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "ok": self.ok,
            "checks": [check._asdict() for check in self.checks],
            "skipped": list(self.skipped),
            "facts": dict(self.facts),
            "versions": dict(self.versions),
        }

    def to_json(self) -> str:
        """The same as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        lines = []
        for name, status, seen, remedy in self.checks:
            lines += _column(f"{name:<{_NAME}}{status:<{_STATUS}}", seen)
            if remedy:
                lines += _column("", f"do: {remedy}")
        if self.skipped:
            lines += _column(f"{'not checked':<{_NAME}}{'':<{_STATUS}}", ", ".join(self.skipped))
        made_with = ", ".join(f"{name} {text}" for name, text in self.versions.items())
        return "\n".join([*lines, f"{self._verdict()} ({made_with})"])

    __repr__ = __str__

    def _verdict(self) -> str:
        by_status = {status: [c.name for c in self.checks if c.status == status] for status in (ERROR, WARNING, SLOW)}
        parts = [f"{status}: {', '.join(names)}" for status, names in by_status.items() if names]
        return f"{'ok' if self.ok else 'not ok'}{'; ' if parts else ''}{'; '.join(parts)}"


def _column(head: str, text: str) -> list[str]:
    """Text beside a head, wrapped; code is not broken inside of a word."""
    indent = " " * (_NAME + _STATUS)
    return textwrap.wrap(
        " ".join(text.split()),
        _WIDTH,
        initial_indent=head or indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
