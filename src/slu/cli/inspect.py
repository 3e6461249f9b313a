"""`slu inspect`: what is in a file, and whether it is whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from slu.errors import printable

_LABEL = 16


def inspect(
    file: Annotated[
        Path,
        typer.Argument(help="Written by `score.save`, a checkpoint of `fit` or `slu-paper train`.", metavar="FILE"),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show what a saved score holds; the network is not needed.

    The file is read and its checksum compared, as when it is loaded. Shown are the settings and
    diagnostics of the fit, which weights it belongs to, and the versions it was made with. Of a
    network that `slu-paper train` trained: its data, recipe, seed and accuracy.
    """
    from rich.console import Console

    from slu.artifacts.artifact import sensible
    from slu.cli.contents import contents

    facts = contents(file)
    with sensible(file):
        text, sections = (json.dumps(facts, indent=2), {}) if as_json else ("", _sections(facts))
    if as_json:
        typer.echo(text)
        return
    console = Console(highlight=False, soft_wrap=True)
    for title, lines in sections.items():
        if title:
            console.print(f"\n[bold]{title}[/bold]")
        for name, text in lines.items():
            # Names of files and layers may hold brackets, which are no markup.
            label = printable(name, keep="")
            console.print(f"  {label:<{max(_LABEL, len(label) + 1)}}{printable(text, keep='')}", markup=False)


def _sections(facts: dict[str, Any]) -> dict[str, dict[str, str]]:
    sections = {"": _file(facts)}
    if facts["kind"] == "weights":
        sections["training"] = _training(facts["training"])
    if facts["kind"] in ("other", "weights"):
        return sections
    sections["settings"] = _settings(facts)
    if facts["state"]:
        from slu.artifacts import stored
        from slu.core.state import Diagnostics

        effective_rank = stored.field(facts["tensors"], "basis")["shape"][0]
        diagnostics = Diagnostics.of(facts["state"], facts["settings"]["rank"], effective_rank)
        sections["diagnostics"] = _lines(str(diagnostics))
        plain = stored.table(facts["state"], "calibration")
        kept = facts["tensors"].get("calibration", {"shape": [0]})["shape"][-1]
        source = stored.text(plain, "source") if "source" in plain else None
        calibrated = f"no: {stored.text(plain, 'why')}" if source is None else f"on {kept:,} points, {source}"
        sections["calibration"] = {"calibrated": calibrated}
        if plain.get("predictions"):
            from slu.core.trust import Predictions

            predictions = Predictions.from_plain(stored.table(plain, "predictions"))
            sections["calibration"]["network"] = str(predictions)
    if facts.get("spectrum"):
        from slu.baselines.eigenbasis import Spectrum

        sections["spectrum"] = _lines(str(Spectrum.from_plain(facts["spectrum"])))
    sections["network"] = _network(facts)
    if "versions" in facts:
        sections["made with"] = {"versions": ", ".join(f"{name} {text}" for name, text in facts["versions"].items())}
    return sections


def _file(facts: dict[str, Any]) -> dict[str, str]:
    from slu.budgets import shown

    steps = facts.get("steps")
    done = f"{facts.get('points', 0):,} points seen" if steps is None else f"{steps} steps done"
    kinds = {
        "score": f"a score of {facts.get('method')}",
        "checkpoint": f"a checkpoint of {facts.get('method')}, {facts.get('stage')}, {done}",
        "weights": "the weights of a trained network",
        "other": "neither a score nor a checkpoint that this version knows",
    }
    tensors = [f"{name} {'×'.join(map(str, each['shape']))} {each['dtype']}" for name, each in facts["tensors"].items()]
    return {
        "file": facts["file"],
        "holds": kinds[facts["kind"]],
        "size": f"{shown(facts['bytes'])}, format {facts['format']}, checksum fits",
        "tensors": ", ".join(tensors) or "none",
    }


def _training(header: dict[str, Any]) -> dict[str, str]:
    """What a file of weights says of itself; empty settings of the recipe are left out."""
    names = ("model", "dataset", "setting", "seed", "parameters", "points", "accuracy", "loss")
    lines = {name: f"{header[name]:,}" if isinstance(header[name], int) else str(header[name]) for name in names}
    recipe = {name: value for name, value in header["recipe"].items() if value not in (None, False, 0, [])}
    return lines | {"recipe": ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in recipe.items())}


def _settings(facts: dict[str, Any]) -> dict[str, str]:
    lines = {"likelihood": _likelihood(facts["likelihood"])}
    if sketch := facts["settings"].get("sketch"):
        options = "".join(f", {key} {value:,}" for key, value in sketch["options"].items())
        size = f"{sketch['kind']}, {sketch['parameters']:,} numbers to {sketch['size']:,}"
        lines["sketch"] = f"{size}{options}, seed {sketch['seed']}"
    lines |= {name: _setting(value) for name, value in facts["settings"].items() if name not in ("params", "sketch")}
    lines["forward"] = "the user's own, needed to load" if facts["own_forward"] else "as the model is called"
    return lines


def _setting(value: Any) -> str:
    """A setting in words; those of a solver or a scale follow its kind: stream, labels per point 1."""
    if not isinstance(value, dict):
        return "none" if value is None else str(value)
    own = [f"{name.replace('_', ' ')} {each}" for name, each in value.items() if name != "kind" and each is not None]
    return ", ".join([value["kind"], *own])


def _likelihood(description: dict[str, Any]) -> str:
    if description["name"] is None:
        return f"the user's own {description['module']}.{description['class']}, needed to load"
    settings = ", ".join(f"{key} {value}" for key, value in description["settings"].items() if value is not None)
    return f"{description['name']}{', ' if settings else ''}{settings}"


def _lines(text: str) -> dict[str, str]:
    return {line[:_LABEL].rstrip(): line[_LABEL:] for line in text.splitlines()}


def _network(facts: dict[str, Any]) -> dict[str, str]:
    weights, chosen = facts["weights"], facts["settings"].get("params", [])
    few = ", ".join(chosen) if len(chosen) <= 4 else f"{', '.join(chosen[:2])} … {chosen[-1]}"
    return {
        "selected": f"{len(chosen)} parameter tensors: {few}",
        "fitted on": f"{weights['tensors']} tensors, {weights['numbers']:,} numbers, {', '.join(weights['types'])}",
        "fingerprint": weights["hash"],
    }
