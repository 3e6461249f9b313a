"""Kills trainings at random moments and resumes them; run in a process of its own by test_resume.

Usage: kill_trainings.py FOLDER SEED KILLS. Prints one JSON line: how many kills hit a running training, how
many resumed trainings differ from the uninterrupted one, and how many steps were done before each kill.

Children are forks of one process, so that torch is imported once; they do not outlive it.
"""

import json
import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn

torch.set_num_threads(1)  # a fork must not inherit a pool of threads

from slu import Checkpoint  # noqa: E402
from slu.artifacts import read_newest  # noqa: E402
from slu.errors import StorageError  # noqa: E402
from slu_experiments.data import Memory  # noqa: E402
from slu_experiments.models import seeded  # noqa: E402
from slu_experiments.training import Augmentation, Recipe, train  # noqa: E402

IMAGES = torch.rand(70, 3, 10, 10, generator=torch.Generator().manual_seed(1))
STEPS = 4 * 5
RECIPES = {
    "sgd": Recipe(
        "sgd",
        0.05,
        momentum=0.9,
        weight_decay=1e-3,
        epochs=4,
        batch_size=16,
        milestones=(0.5,),
        augmentation=Augmentation(scale=(0.6, 1.0), ratio=(0.9, 1.1)),
        channels_last=True,
    ),
    "adam": Recipe(epochs=4, batch_size=16, warmup=2, augmentation=Augmentation(scale=(0.6, 1.0))),
}


def network() -> nn.Module:
    """With running statistics and draws of its own."""
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Dropout(0.3), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(288, 4))


def run(kind: str, path: Path) -> tuple[dict, dict]:
    """Train to the end; everything that is in the last checkpoint: weights, optimizer, random state, losses."""
    source = Memory(IMAGES, torch.arange(70) % 4)
    train(seeded(network, 0), source, RECIPES[kind], seed=3, checkpoint=Checkpoint(path, every=0.0))
    stored = read_newest(path)
    assert stored is not None
    header, tensors = stored
    header["place"].pop("seconds")
    return header, tensors


def same(one: tuple[dict, dict], other: tuple[dict, dict]) -> bool:
    equal = one[1].keys() == other[1].keys() and all(torch.equal(value, other[1][key]) for key, value in one[1].items())
    return equal and one[0] == other[0]


def child(kind: str, path: Path) -> int:
    process = os.fork()
    if process == 0:
        try:
            run(kind, path)
        finally:
            os._exit(0)
    return process


def steps_of(path: Path) -> int:
    newest = read_newest(path)
    return 0 if newest is None else newest[0]["place"]["epoch"] * 5 + newest[0]["place"]["step"]


def wait_for(path: Path, step: int, process: int) -> None:
    """Until so many steps are written down, or the process has ended (it stays there to be waited for)."""
    ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while os.waitid(os.P_PID, process, ended) is None:
        with suppress(StorageError):  # the file just changed its name
            if steps_of(path) >= step:
                return
        time.sleep(0.001)


def main() -> None:
    folder, seed, kills = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    draw = random.Random(seed)
    hit, different, steps = 0, 0, []
    for kind, recipe in RECIPES.items():
        expected = run(kind, folder / f"{kind}-alone")
        assert recipe.batches(len(IMAGES)) * recipe.epochs == STEPS
        for index in range(kills):
            path = folder / f"{kind}-{index}"
            process = child(kind, path)
            # Not after a time, which depends on how busy the machine is, but a little after a step.
            wait_for(path, draw.randrange(STEPS - 4), process)
            time.sleep(draw.uniform(0, 0.01))
            os.kill(process, signal.SIGKILL)
            _, status = os.waitpid(process, 0)
            hit += os.WIFSIGNALED(status)
            steps.append(steps_of(path))
            different += not same(run(kind, path), expected)
    print(json.dumps({"hit": hit, "different": different, "steps": steps}))


if __name__ == "__main__":
    main()
