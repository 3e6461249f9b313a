"""Kills fits at random moments and resumes them; run in a process of its own by test_slu_checkpoint.

Usage: kill_fits.py FOLDER SEED KILLS. Prints one JSON line: how many kills hit a running fit, how many
resumed fits differ from the uninterrupted one, and how many steps were done before each kill.

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

from slu import SLU, Checkpoint  # noqa: E402
from slu.storage import read_newest  # noqa: E402


def method() -> SLU:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 48), torch.nn.Tanh(), torch.nn.Linear(48, 3))
    return SLU(model, "classification", rank=24, sketch_size=120, precondition=4)


def data() -> list[torch.Tensor]:
    return list(torch.randn(120, 8, generator=torch.Generator().manual_seed(1)).split(40))


def child(path: Path) -> int:
    process = os.fork()
    if process == 0:
        try:
            score = method().fit(data(), checkpoint=Checkpoint(path, every=0.0))
            score.save(path.with_suffix(".slu"))
        finally:
            os._exit(0)
    return process


def seconds_alone(path: Path) -> float:
    begun = time.monotonic()
    os.waitpid(child(path), 0)
    return time.monotonic() - begun


def main() -> None:
    folder, seed, kills = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    draw = random.Random(seed)
    expected = method().fit(data()).subspace.basis
    typical = seconds_alone(folder / "alone.ckpt")
    hit, different, steps = 0, 0, []
    for index in range(kills):
        path = folder / f"{index}.ckpt"
        process = child(path)
        time.sleep(draw.uniform(0, typical))
        os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        hit += os.WIFSIGNALED(status)
        newest = read_newest(path)
        steps.append(0 if newest is None else len(newest[0].get("alphas", [])))
        again = method().fit(data(), checkpoint=path)
        different += not torch.equal(again.subspace.basis, expected)
        saved = path.with_suffix(".slu")
        if saved.exists():
            loaded = SLU.load(saved, again.method.network.model)
            different += not torch.equal(loaded.subspace.basis, expected)
    print(json.dumps({"hit": hit, "different": different, "steps": steps}))


if __name__ == "__main__":
    main()
