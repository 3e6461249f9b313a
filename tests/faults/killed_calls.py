"""Kills a save, or a checkpointed fit, in place of each of its system calls, and looks at what is left; prints JSON.

Usage: killed_calls.py FOLDER save|stream|lanczos STEP. STEP 1 kills at every call, 2 at every second. Run by
test_writers.py in a fresh process, whose forks are killed: importing torch anew for each would take minutes.
"""

import json
import os
import sys
from pathlib import Path

import torch

torch.set_num_threads(1)  # a fork must not inherit a pool of threads

import faulty  # noqa: E402
from failing_calls import KILL, failing  # noqa: E402
from slu.errors import SluError  # noqa: E402


def killed(work, place: int) -> bool:
    """Whether the process that worked was killed at that call."""
    child = os.fork()
    if child == 0:
        try:
            with failing(place, KILL):
                work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def count(work) -> int:
    with failing() as calls:
        work()
    return len(calls.names)


def saves(folder: Path, step: int) -> dict[str, int]:
    """The old file or the new one is whole after each kill, and the next save leaves nothing else."""
    old, new = faulty.fit("lanczos"), faulty.fit("stream")
    before, after = faulty.scores(old), faulty.scores(new)
    path = folder / "net.slu"
    old.save(path)
    told = {"tried": 0, "old": 0, "new": 0, "wrong": 0}
    for place in range(0, count(lambda: new.save(path)), step):
        old.save(path)
        told["tried"] += killed(lambda: new.save(path), place)
        left = faulty.scores(faulty.loaded(path))
        which = "old" if torch.equal(left, before) else "new" if torch.equal(left, after) else "wrong"
        told[which] += 1
        new.save(path)
        told["wrong"] += [each.name for each in folder.iterdir()] != ["net.slu"]
    return told


def fits(folder: Path, step: int, solver: str) -> dict[str, int]:
    """The same call after each kill ends in the same numbers."""
    says = faulty.scores(faulty.fit(solver))
    path = faulty.fresh(folder / "run") / "run.ckpt"
    told = {"tried": 0, "same": 0, "wrong": 0}
    for place in range(0, count(lambda: faulty.fit(solver, path)), step):
        faulty.fresh(path.parent)
        told["tried"] += killed(lambda: faulty.fit(solver, path), place)
        try:
            again = torch.equal(faulty.scores(faulty.fit(solver, path)), says)
        except SluError:
            again = False
        told["same" if again else "wrong"] += 1
    return told


def main() -> None:
    os.fsync = lambda descriptor: None  # a killed process loses nothing that it has written
    folder, what, step = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    print(json.dumps(saves(folder, step) if what == "save" else fits(folder, step, what)))


if __name__ == "__main__":
    main()
