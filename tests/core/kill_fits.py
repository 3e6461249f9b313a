"""Kills fits at random moments and resumes them; run in a process of its own by test_slu_checkpoint.

Usage: kill_fits.py FOLDER SEED KILLS SOLVER. Prints one JSON line: how many kills hit a running fit, how many
resumed fits differ from the uninterrupted one, and how much was done before each kill, in steps of Lanczos
or points of the stream.

Children are forks of one process, so that torch is imported once; they do not outlive it.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

torch.set_num_threads(1)  # a fork must not inherit a pool of threads

from slu import SLU, Checkpoint, FactoredScale, Lanczos  # noqa: E402
from slu.artifacts import read_newest  # noqa: E402
from slu.core.state import FittedState  # noqa: E402

# Both with some thirty moments at which a checkpoint is written; the stream also keeps its scale.
SETTINGS = {
    "lanczos": {"solver": Lanczos(precondition=4), "scale": None},
    "stream": {"solver": "stream", "scale": FactoredScale(points=40)},
}
BATCH = {"lanczos": 40, "stream": 4}


def method(solver: str) -> SLU:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 48), torch.nn.Tanh(), torch.nn.Linear(48, 3))
    return SLU(model, "classification", rank=24, sketch_size=120, **SETTINGS[solver])


def data(solver: str) -> list[torch.Tensor]:
    return list(torch.randn(120, 8, generator=torch.Generator().manual_seed(1)).split(BATCH[solver]))


def amount(path: Path) -> int:
    """Steps or points that the newest checkpoint holds."""
    newest = read_newest(path)
    if newest is None:
        return 0
    header = newest[0]
    return len(header["alphas"]) if "alphas" in header else header.get("data", {}).get("points", 0)


def same(one: FittedState, other: FittedState) -> bool:
    """Whether basis and statistics of layers, which Lanczos has not, are equal to the bit."""
    if one.layers is None or other.layers is None:
        return one.layers is other.layers and torch.equal(one.subspace.basis, other.subspace.basis)
    pairs = ((each.subspace.basis, each.layers.mean, each.layers.covariance) for each in (one, other))
    return all(torch.equal(*pair) for pair in zip(*pairs, strict=True))


def child(path: Path, solver: str) -> int:
    process = os.fork()
    if process == 0:
        try:
            score = method(solver).fit(data(solver), checkpoint=Checkpoint(path, every=0.0))
            score.save(path.with_suffix(".slu"))
        finally:
            os._exit(0)
    return process


def seconds_alone(path: Path, solver: str) -> float:
    begun = time.monotonic()
    os.waitpid(child(path, solver), 0)
    return time.monotonic() - begun


def main() -> None:
    folder, seed, kills, solver = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    draw = random.Random(seed)
    expected = method(solver).fit(data(solver)).state
    # The shortest of three: on a busy machine a single one may take so long that most kills come too late.
    typical = min(seconds_alone(folder / f"alone{index}.ckpt", solver) for index in range(3))
    hit, different, done = 0, 0, []
    for index in range(kills):
        path = folder / f"{index}.ckpt"
        process = child(path, solver)
        time.sleep(draw.uniform(0, typical))
        os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        hit += os.WIFSIGNALED(status)
        done.append(amount(path))
        again = method(solver).fit(data(solver), checkpoint=path)
        different += not same(again.state, expected)
        saved = path.with_suffix(".slu")
        if saved.exists():
            loaded = SLU.load(saved, again.settings.network.model)
            different += not same(loaded.state, expected)
    print(json.dumps({"hit": hit, "different": different, "done": done}))


if __name__ == "__main__":
    main()
