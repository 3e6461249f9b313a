"""Of what a table was made and with which command, and which runs are still missing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from slu.errors import SettingError
from slu_experiments.data import expand
from slu_experiments.publishing.blocks import Block
from slu_experiments.reproducing import Plan
from slu_experiments.results import Result, canonical
from slu_experiments.running import recipe_of
from slu_experiments.settings import METHODS, Setting, usual_methods
from slu_experiments.settings.methods import resolved

NOTES = "notes.json"
_FEW = 6  # names that are listed rather than counted


@dataclass(frozen=True)
class Notes:
    """What no run knows of itself, written by hand.

    Attributes:
        causes: Why cells differ from the paper's, by setting/method/family; * fits anything.
        commits: Of the code, by the checksum of its source that runs note.
        machine: That of runs which do not note their own.
        remarks: Lines under a setting's heading, by its name.
        figures: What is said of further pictures in the folder, by names of files.
    """

    causes: Mapping[str, str] = field(default_factory=dict)
    commits: Mapping[str, str] = field(default_factory=dict)
    machine: str | None = None
    remarks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    figures: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Notes:
        """Those beside the published runs; nothing is noted where there is no such file.

        Raises:
            SettingError: It is not what such a file has.
        """
        path = folder / NOTES
        if not path.exists():
            return cls()
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as reason:
            raise SettingError(
                f"{path} is not as expected ({reason}); it is a JSON object with any of "
                f"{', '.join(each.name for each in fields(cls))}"
            ) from reason


def command(block: Block) -> str:
    """The command that makes the runs of a table."""
    config = block.results[0].config
    words = ["slu-paper reproduce --setting", block.setting.name, "--budget", block.budget]
    words += ["--seeds", *map(str, block.seeds)]
    points = None if config["points"] == block.setting.points else config["points"]
    asked = {"points": points, "queries": config["queries"], **config["training"]}
    words += [f"--{name} {value}" for name, value in asked.items() if value is not None]
    return " ".join(words)


def origin(block: Block, notes: Notes) -> list[str]:
    """How, with what and when the runs of a block were made."""
    made = [result.metrics["made"] for result in block.results]
    dates = sorted({each["date"] for each in made if each["date"]})
    machines = sorted({each["machine"] or notes.machine or "a machine that is not noted" for each in made})
    unusual = [name for name in block.methods if name not in usual_methods(block.setting)]
    epochs = block.results[0].config["recipe"]["epochs"]
    further = f", and again with `--methods {' '.join(unusual)}`" if unusual else ""
    days = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "date not noted"
    return [
        f"Made with `{command(block)}`{further}.",
        f"Networks trained for {epochs} epochs; {days}; {'; '.join(machines)}; "
        f"{'; '.join(_versions(block.results, notes))}.",
    ]


def _versions(results: Iterable[Result], notes: Notes) -> list[str]:
    by_source = {result.metrics["code"]["source"]: result.metrics["code"] for result in results}
    texts = []
    for source, code in sorted(by_source.items()):
        commit = f"commit {notes.commits[source]}, " if source in notes.commits else ""
        others = ", ".join(f"{name} {code[name]}" for name in ("slu", "torch", "python") if name in code)
        texts.append(f"{commit}source {source} ({others})")
    return texts


def expected(setting: Setting) -> set[tuple[str, str, int]]:
    """(budget, method, network) of every run of a setting, on as many networks as the paper has."""
    runs = Plan(setting.name, budgets=tuple(setting.budgets)).runs(())
    return {(run.budget, run.method, run.seed) for run in runs}


def present(results: Iterable[Result]) -> set[tuple[str, str, int]]:
    """(budget, method, network) of runs."""
    return {tuple(result.config[name] for name in ("budget", "method", "seed")) for result in results}


def missing(setting: Setting, results: Sequence[Result]) -> list[str]:
    """Networks, methods and sets that are not there, and rows that the code has changed since; a line each."""
    wanted, runs = expected(setting), present(results)
    lines = []
    for budget in setting.budgets:
        groups: dict[tuple[str, ...], list[int]] = {}
        due = {seed: [m for b, m, s in wanted if (b, s) == (budget, seed)] for seed in setting.seeds}
        for seed, methods in due.items():
            lacking = [name for name in METHODS if name in methods and (budget, name, seed) not in runs]
            what = () if len(lacking) == len(methods) else tuple(lacking)
            if lacking:
                groups.setdefault(what, []).append(seed)
        for what, seeds in sorted(groups.items(), key=lambda group: group[1]):
            names = _named(what, due[seeds[0]]) if what else "every method"
            lines.append(f"{budget}, network{'s' if len(seeds) > 1 else ''} {listed(seeds)}: {names}.")
    scored = {name for result in results for name in result.metrics["judgements"]}
    unscored = [name for name in expand(list(setting.outside)) if name not in scored]
    lines += [f"Sets that nothing was judged on: {', '.join(unscored)}."] if unscored else []
    changed = sorted({_row_name(result.config) for result in results if _has_changed(setting, result.config)})
    lines += [f"The code has changed the settings since of {', '.join(changed)}."] if changed else []
    return lines


def _named(lacking: Sequence[str], due: Sequence[str]) -> str:
    titles = [METHODS[name].title for name in lacking]
    present = [METHODS[name].title for name in METHODS if name in due and name not in lacking]
    if len(titles) > _FEW >= len(present):
        return f"all methods but {'; '.join(present)}"
    return "; ".join(titles)


def _row_name(config: Mapping[str, Any]) -> str:
    return f"{METHODS[config['method']].title} at {config['budget']}"


def _has_changed(setting: Setting, config: Mapping[str, Any]) -> bool:
    now = resolved(setting, config["method"], config["budget"], {})
    recipe = recipe_of(setting, config["training"])
    return (canonical(now), canonical(recipe)) != (canonical(config["settings"]), canonical(config["recipe"]))


def listed(numbers: Sequence[int]) -> str:
    """Numbers with runs of them as "from to".

    >>> listed([1, 2, 3, 5, 7, 8]), listed([4])
    ('1 to 3, 5, 7, 8', '4')
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    few = 2
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > few else ", ".join(map(str, run)) for run in runs)
