"""Writes golden files: small scores and checkpoints of this version, and in expected.json what they must say for ever.

Not run by the tests. When the format, what a file holds or the keys of points change, run it once from that version
and commit the folder, named for FORMAT and for the VERSION of checkpoints, which are raised first:

    PYTHONPATH=src:tests python tests/golden.py tests/fixtures/golden/2-version-5

The files are compressed, because a running fit keeps room for wide layers. tests/artifacts/test_golden.py reads every
folder there. None is ever written over: a file that a later version cannot read any more stays, and its entry in
expected.json gets "refused": the words of the error that must name it.
"""

import gzip
import json
import sys
import warnings
from pathlib import Path

import torch

from formulaic import inputs, network, queries
from slu import (
    SCOD,
    SLU,
    SWAG,
    Checkpoint,
    DeepEnsemble,
    DiagonalLaplace,
    FactoredScale,
    Lanczos,
    LowRankLaplace,
    Mahalanobis,
    SluScore,
)

NETWORK, POINTS, BATCH = "wider", 240, 40
SOLVERS = {
    "stream": {"rank": 8, "sketch_size": 60, "scale": FactoredScale(points=BATCH)},  # known after one batch
    "lanczos": {"rank": 8, "sketch_size": 60, "solver": Lanczos(precondition=3), "scale": None},
}
BASELINES = {
    LowRankLaplace: {"rank": 6},
    DiagonalLaplace: {},
    SCOD: {"rank": 2},
    SWAG: {"rank": 3, "samples": 3},
    Mahalanobis: {},
    DeepEnsemble: {},
}
STOPPED = {"stream": 4, "lanczos": 20}  # batches read before the fit is interrupted


class Loader:
    """Batches of the same points in each pass; after `stop` of them, Ctrl-C."""

    def __init__(self, stop: int | None = None) -> None:
        self._left = stop

    def __iter__(self):
        for batch in inputs(NETWORK, POINTS).split(BATCH):
            if self._left == 0:
                raise KeyboardInterrupt
            if self._left is not None:
                self._left -= 1
            yield batch


def method(solver: str) -> SLU:
    return SLU(network(NETWORK), "classification", **SOLVERS[solver])


def baseline(kind: type, settings: dict):
    """A fitted score of a method, on the same points with classes; an ensemble has a second network."""
    first, second = network(NETWORK), network(NETWORK)
    with torch.no_grad():
        second[0].weight.mul_(0.5)
    points = inputs(NETWORK, POINTS).split(BATCH), (torch.arange(POINTS) % 3).split(BATCH)
    made = kind([first, second] if kind is DeepEnsemble else first, "classification", **settings)
    return made.fit(list(zip(*points, strict=True)))


def said(score) -> dict:
    """The readings of the queries, and where the score is calibrated its p-values."""
    points = queries(NETWORK)
    told = {"readings": {reading: score(points, reading=reading).tolist() for reading in score.readings}}
    if isinstance(score, SluScore) and score.calibration is not None:
        told |= {"pvalues": score.pvalue(points).tolist(), "threshold": score.threshold(0.1)}
    return told


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # few points, of a network that nobody trained
    expected = {}
    for solver in SOLVERS:
        score = method(solver).fit(Loader())
        score.save(folder / f"{solver}.slu")
        expected[f"{solver}.slu"] = {"method": "SLU", **said(score)}
        for stage, stop in (("running", STOPPED[solver]), ("finished", None)):
            path = folder / f"{solver}_{stage}.ckpt"
            try:
                method(solver).fit(Loader(stop), checkpoint=Checkpoint(path))
            except KeyboardInterrupt:
                assert stage == "running" and path.exists(), "interrupted before the first checkpoint"
            path.with_name(f"{path.name}.previous").unlink(missing_ok=True)
            expected[path.name] = {"solver": solver, "stage": stage, **said(score)}
    for kind, settings in BASELINES.items():
        score = baseline(kind, settings)
        name = f"{kind.__name__}.slu"
        score.save(folder / name)
        expected[name] = {"method": kind.__name__, **said(score)}
    for name in expected:
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes(), mtime=0))
        (folder / name).unlink()
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    print(f"{sum(each.stat().st_size for each in folder.iterdir()):,} bytes in {folder}")


if __name__ == "__main__":
    main()
