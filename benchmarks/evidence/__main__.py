"""Judge every reading on trained networks; docs/readings.md and docs/solvers.md rest on it.

    SLU_DATA=... python -m benchmarks.evidence --out FOLDER [--studies mnist-mlp ...] [--seeds 1 2 3] [--lanczos]
    SLU_DATA=... python -m benchmarks.evidence --out FOLDER --ways [before new ...] [--studies ...] [--seeds ...]
    python -m benchmarks.evidence --out FOLDER [--ways] --report docs/results

Networks are loaded from FOLDER/weights, or trained and stored there. The results of one network go to
FOLDER/STUDY-SEED.json and are not computed again; --report gathers those files into one JSON, one CSV and one picture.

--ways compares ways of fitting and querying SLU by the default reading (ways.py); results go to
FOLDER/ways/STUDY-SEED.json, --report gathers them into one JSON, and the exit code is 1 where a study loses or a
result is missing.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks.evidence import report, ways
from benchmarks.evidence.judging import judge_study
from benchmarks.evidence.studies import STUDIES, made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--studies", nargs="+", default=list(STUDIES), choices=list(STUDIES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--points", type=int, default=2000)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--lanczos", action="store_true", help="also fit by Lanczos, which takes minutes a network")
    parser.add_argument("--ways", nargs="*", choices=list(ways.WAYS), help="compare ways of fitting and querying")
    parser.add_argument("--draws", type=int, default=1, help="fits of each way, with other random numbers each")
    parser.add_argument("--report", type=Path, help="write what is found to this folder, and judge nothing")
    options = parser.parse_args()
    console = Console(width=150)
    if options.ways is not None:
        compare_ways(options, console)
        return
    if options.report is not None:
        console.print(*report.write(options.out, options.report), sep="\n")
        print(report.summary(options.out))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.studies:
        for seed in options.seeds:
            path = options.out / f"{name}-{seed}.json"
            if not path.exists():
                study = made(name, seed, options.out, options.points, options.queries)
                path.write_text(json.dumps(judge_study(study, lanczos=options.lanczos)) + "\n", encoding="utf-8")
            console.print(report.table(json.loads(path.read_text(encoding="utf-8"))))


def compare_ways(options: argparse.Namespace, console: Console) -> None:
    """Judge every way on every network that has no result yet, or only report."""
    folder = options.out / "ways"
    if options.report is None:
        for name in options.studies:
            for seed in options.seeds:
                make = partial(STUDIES[name], seed, options.out, options.points, options.queries)
                path = folder / f"{name}-{seed}.json"
                ways.judge_ways(make, path, options.ways or list(ways.WAYS), options.draws, console)
    sys.exit(int(bool(ways.report(folder, options.report, console))))


if __name__ == "__main__":
    main()
