"""What `slu data` says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from slu.experiments.data.checking import Finding
    from slu.experiments.data.entries import Entry

_NAME, _STATE = 13, 9


def tell_places(root: Path | None) -> None:
    """Where the data sets are looked for."""
    where = (
        f"data sets below {root}" if root else "no folder of data sets is named: use --data or export SLU_DATA=FOLDER"
    )
    typer.echo(where)
    typer.echo("")


def tell_entry(entry: Entry, here: str) -> None:
    """A set as upstream has it, in two lines."""
    typer.echo(f"{entry.name:<{_NAME}}{here:<{_STATE}}{entry.title}: {_counts(entry.counts)}; {entry.what}")
    typer.echo(f"{'':<{_NAME + _STATE}}licence: {entry.licence}; {entry.home}")


def tell_shifts() -> None:
    """The sets that are made from others."""
    from slu.experiments.data.corruptions import KINDS
    from slu.experiments.data.opening import families

    typer.echo("\nmade from these as they are read")
    for family, members in families().items():
        few = ", ".join(members) if len(members) <= 3 else f"{members[0]}, {members[1]} … {members[-1]}"
        typer.echo(f"  {family:<20}{len(members)} sets: {few}")
    typer.echo(f"  cifar10-KIND-SEVERITY for severities 1 to 5 and the kinds {', '.join(KINDS)}")
    typer.echo("  uci-NAME-SPLIT for another split of a table than the first")


def tell_finding(entry: Entry, finding: Finding) -> None:
    """What was found of a set, and below it what differs from upstream."""
    parts = ", ".join(
        f"{part} {found:,}" if found == entry.counts[part] else f"{part} {found:,} of {entry.counts[part]:,}"
        for part, found in (finding.counts or dict.fromkeys(entry.counts, 0)).items()
    )
    sums = f"; {finding.fitting} of {finding.compared} checksums fit" if finding.compared else ""
    typer.echo(f"{finding.name:<{_NAME}}{finding.state:<{_STATE}}{parts}{sums}")
    for remark in finding.remarks:
        typer.echo(f"{'':<{_NAME + _STATE}}{remark}")


def tell_total(findings: Sequence[Finding], root: Path | None) -> None:
    """How many sets are in which state, and what to do about the rest."""
    from slu.experiments.data.checking import MISSING, STATES

    states = [finding.state for finding in findings]
    total = ", ".join(f"{states.count(state)} {state}" for state in STATES)
    typer.echo(f"\n{total}; below {root or 'no folder: name one with --data or SLU_DATA'}")
    if MISSING in states:
        typer.echo("get what is missing with: slu data fetch NAME; `slu data list` has licences and addresses")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {part}" for part, count in counts.items())
