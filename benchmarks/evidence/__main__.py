"""Judge SLU and what others would use on trained networks; docs/readings.md rests on it.

    SLU_DATA=... python -m benchmarks.evidence --out FOLDER [--role choose] [--studies digits-mlp ...] [--seeds 1 2 3]
    SLU_DATA=... python -m benchmarks.evidence --out FOLDER --train     networks alone, to be judged later
    SLU_DATA=... python -m benchmarks.evidence --out FOLDER --cost      costs of networks that were judged by --no-cost
    SLU_DATA=... python -m benchmarks.evidence --out FOLDER --again SLU     the others' scores are kept
    python -m benchmarks.evidence --out FOLDER --report docs/results
    SLU_DATA=... python -m benchmarks.evidence --out FOLDER --ways [before new ...] [--studies ...] [--seeds ...]

By default the networks are those of the table in roles.py. They are loaded from FOLDER/weights, or trained and stored
there. The results of a network go to FOLDER/STUDY-SEED.json, its raw scores to FOLDER/scores, and neither is computed
again. --report gathers the results into one JSON, one CSV and one picture, prints tables, and checks what is claimed of
the default (checks.py): the exit code is 1 where a claim does not hold or a network that should judge is missing.

--ways compares ways of fitting and querying SLU by the default reading, on each study's own shifts (ways.py); results
go to FOLDER/ways/STUDY-SEED.json, --report gathers them into one JSON, and the exit code is 1 where a study loses or a
result is missing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks.evidence import checks, report, ways
from benchmarks.evidence.judging import fill_costs, judge_study, read_stored, store
from benchmarks.evidence.roles import ROLES, Network, networks
from benchmarks.evidence.studies import STUDIES, made, sized


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--studies", nargs="+", choices=list(STUDIES))
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--role", choices=list(ROLES), help="only networks of this role")
    parser.add_argument("--points", type=int, help="fitted; by default those of the study (studies.py)")
    parser.add_argument("--queries", type=int, help="per shift; by default those of the study")
    parser.add_argument("--train", action="store_true", help="train the networks that are missing, and judge nothing")
    parser.add_argument("--again", nargs="+", default=[], help="fit these methods again, also of judged networks")
    timing = parser.add_mutually_exclusive_group()
    timing.add_argument("--no-cost", action="store_true", help="time nothing: beside other work it means nothing")
    timing.add_argument("--cost", action="store_true", help="only time queries of networks that were judged already")
    parser.add_argument("--no-ensembles", action="store_true", help="no ensembles, so no members have to be trained")
    parser.add_argument("--ways", nargs="*", choices=list(ways.WAYS), help="compare ways of fitting and querying")
    parser.add_argument("--draws", type=int, default=1, help="fits of each way, with other random numbers each")
    parser.add_argument("--report", type=Path, help="write all results to this folder, and judge nothing")
    return parser.parse_args(arguments)


def chosen(options: argparse.Namespace) -> list[Network]:
    """The networks that are asked for: those with a role, or every study that is named with every seed."""
    every = networks([options.role] if options.role else list(ROLES))
    names = options.studies or list(dict.fromkeys(study for study, _ in every))
    seeds = {name: options.seeds or [seed for study, seed in every if study == name] for name in names}
    return [(name, seed) for name in names for seed in seeds[name]]


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for; returns the exit code."""
    options = parsed(arguments)
    console = Console(width=200)
    if options.ways is not None:
        return compare_ways(options, console)
    if options.report is not None:
        return write_report(options, console)
    options.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for name, seed in chosen(options):
        try:
            run(name, seed, options, console)
        except Exception as error:  # a run over many networks goes on
            failed.append(f"{name} {seed}: {type(error).__name__}: {error}")
            console.print(f"failed: {failed[-1]}", style="red", markup=False)
    console.print(*failed, sep="\n", markup=False)
    return int(bool(failed))


def run(name: str, seed: int, options: argparse.Namespace, console: Console) -> None:
    """One network: trained, judged or timed, as far as that has not been done."""
    path = options.out / f"{name}-{seed}.json"

    def log(line: str) -> None:
        console.print(f"{time.strftime('%H:%M:%S')} {name} {seed}: {line}", style="dim", markup=False, highlight=False)

    judged = path.exists()
    if options.cost and not judged:
        log("not judged yet, so there is nothing to time")
        return
    if judged and not (options.train or options.cost or options.again):
        log("judged already")
        return
    study = made(name, seed, options.out, *sized(name, options.points, options.queries))
    log(", ".join(f"{quality} {value:.4f}" for quality, value in study.quality.items()))
    if options.train:
        return
    ensembles = not options.no_ensembles
    if options.cost:
        result = json.loads(path.read_text(encoding="utf-8"))
        store(fill_costs(study, result, ensembles=ensembles, log=log), None, options.out)
    else:
        stored = read_stored(path, options.again) if judged else None
        result, raw = judge_study(study, cost=not options.no_cost, ensembles=ensembles, log=log, stored=stored)
        store(result, raw, options.out)
        console.print(report.table(result))


def write_report(options: argparse.Namespace, console: Console) -> int:
    """Write the files and print the tables and the checks; returns the exit code."""
    console.print(*report.write(options.out, options.report), sep="\n")
    results = report.results(options.out)
    print(report.summary(results))
    losses = [*checks.missing(results), *checks.misses(results)]
    for title, sentences in {"misses": losses, "behind ensembles": checks.behind_ensembles(results)}.items():
        print(f"\n{title}: {len(sentences)}", *sentences, sep="\n- ")
    return int(bool(losses))


def compare_ways(options: argparse.Namespace, console: Console) -> int:
    """Judge every way on every network that has no result yet, or only report; returns the exit code."""
    folder = options.out / "ways"
    if options.report is None:
        for name, seed in chosen(options):
            make = partial(STUDIES[name], seed, options.out, *sized(name, options.points, options.queries))
            path = folder / f"{name}-{seed}.json"
            ways.judge_ways(make, path, options.ways or list(ways.WAYS), options.draws, console)
    return int(bool(ways.report(folder, options.report, console)))


if __name__ == "__main__":
    sys.exit(main())
