"""Score runs as one small file per setting: what tables, figures and the page need of them, and no more.

The file is JSON with one line per run, in the order of budgets, methods and networks, so that a new run is a new line.
Sets are named once, and a run has its AUROC, with the interval over test points, in their order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from slu.errors import DamagedFileError
from slu_experiments.data import expand
from slu_experiments.results import METRICS, Result
from slu_experiments.settings import METHODS, find_setting

FORMAT = 1
_AUROC = 9  # digits: with 10,000 points on either side areas are multiples of 5e-9
_INTERVAL = 5  # digits of the ends of an interval


def file_name(setting: str) -> str:
    """Of the file of a setting.

    >>> file_name("mnist-mlp")
    'runs-mnist-mlp.json'
    """
    return f"runs-{setting}.json"


def as_text(results: Sequence[Result]) -> str:
    """The file's content, from the runs of one setting and kind."""
    first = results[0].config
    scored = {name for result in results for name in result.metrics["judgements"]}
    sets = [name for name in expand(find_setting(first["setting"]).outside) if name in scored]
    sets += sorted(scored - set(sets))
    runs = sorted(_merged(results), key=lambda result: _place(result.config))
    head = {
        "format": FORMAT,
        "setting": first["setting"],
        "points": first["points"],
        "queries": first["queries"],
        "training": first["training"],
        "recipe": first["recipe"],
        "sets": sets,
        "accuracy": {
            str(r.config["seed"]): r.metrics["network"]["accuracy"]
            for r in sorted(runs, key=lambda each: each.config["seed"])
        },
        "code": {r.metrics["code"]["source"]: r.metrics["code"] for r in runs},
        "settings": {f"{r.config['method']} {r.config['budget']}": r.config["settings"] for r in runs},
    }
    lines = [f" {_line(name)}: {_line(value)}," for name, value in head.items()]
    return "\n".join(["{", *lines, ' "runs": [', ",\n".join(f"  {_line(_row(r, sets))}" for r in runs), " ]", "}", ""])


def _merged(results: Iterable[Result]) -> list[Result]:
    """One result per budget, method and network: those of different sets as one."""
    merged: dict[tuple[Any, ...], Result] = {}
    for result in sorted(results, key=lambda each: (len(each.metrics["judgements"]), each.name)):
        key = _place(result.config)
        before = merged[key].metrics["judgements"] if key in merged else {}
        metrics = {**result.metrics, "judgements": {**before, **result.metrics["judgements"]}}
        merged[key] = Result(result.folder, result.config, metrics, {})
    return list(merged.values())


def _place(config: Mapping[str, Any]) -> tuple[Any, ...]:
    return int(config["budget"].rstrip("p")), list(METHODS).index(config["method"]), config["seed"]


def _row(result: Result, sets: Sequence[str]) -> dict[str, Any]:
    judged, metrics = result.metrics["judgements"], result.metrics
    made = metrics.get("made") or {"date": _written_on(result.folder / METRICS), "machine": None}
    return {
        **{name: result.config[name] for name in ("budget", "method", "seed")},
        "auroc": [_area(judged[name]["auroc"]) if name in judged else None for name in sets],
        "fit": round(metrics["seconds"]["fit"], 3),
        "query": round(metrics["seconds"]["score_each"], 7),
        "copies": round(metrics["memory"]["kept_copies"], 6),
        "code": metrics["code"]["source"],
        **made,
    }


def _area(auroc: Mapping[str, float]) -> list[float]:
    return [round(auroc["value"], _AUROC), round(auroc["low"], _INTERVAL), round(auroc["high"], _INTERVAL)]


def _written_on(path: Path) -> str | None:
    """The day of a file: of runs from before they noted their own."""
    return datetime.fromtimestamp(path.stat().st_mtime, timezone.utc).date().isoformat() if path.exists() else None


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def read_runs(path: Path) -> list[Result]:
    """The runs of a file, with as much as it has of their configurations and metrics.

    Raises:
        DamagedFileError: It is no such file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']}, not {FORMAT}")
        return [_result(row, content, path) for row in content["runs"]]
    except (OSError, ValueError, KeyError, TypeError) as reason:
        raise DamagedFileError(
            f"{path} is no file of published runs ({reason!r}); write it again with slu-paper publish"
        ) from reason


def _result(row: Mapping[str, Any], content: Mapping[str, Any], path: Path) -> Result:
    areas = {name: area for name, area in zip(content["sets"], row["auroc"], strict=True) if area is not None}
    config = {
        "kind": "score",
        **{name: content[name] for name in ("setting", "points", "queries", "training", "recipe")},
        **{name: row[name] for name in ("budget", "method", "seed")},
        "settings": content["settings"][f"{row['method']} {row['budget']}"],
        "changed": {},
        "outside": list(areas),
    }
    metrics = {
        "judgements": {
            name: {"auroc": dict(zip(("value", "low", "high"), area, strict=True))} for name, area in areas.items()
        },
        "seconds": {"fit": row["fit"], "score_each": row["query"]},
        "memory": {"kept_copies": row["copies"]},
        "network": {"accuracy": content["accuracy"][str(row["seed"])]},
        "code": content["code"][row["code"]],
        "made": {"date": row["date"], "machine": row["machine"]},
    }
    return Result(path, config, metrics, {})
