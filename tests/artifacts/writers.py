"""Run by test_atomic.py in a fresh process, which forks writers, kills some, and looks at what they leave; prints JSON.

One process that has imported torch, and forks: importing it anew for each writer would take minutes.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from slu.artifacts import read, write
from slu.errors import StorageError

NUMBERS = 1 << 19  # 2 MB in float32: writing takes long enough to be killed in the middle


def save(path: Path, writer: int, round_: int) -> None:
    write(path, {"values": torch.full((NUMBERS,), float(writer * 1000 + round_))}, {"writer": writer, "round": round_})


def whole(path: Path) -> list[int]:
    """Who wrote the file, and when; an exception unless every number says the same."""
    header, tensors = read(path)
    expected = float(header["writer"] * 1000 + header["round"])
    assert tensors["values"].shape == (NUMBERS,) and bool((tensors["values"] == expected).all())
    return [header["writer"], header["round"]]


def fork(work) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def partials(path: Path) -> list[str]:
    return sorted(each.name for each in path.parent.iterdir() if each != path)


def killed(path: Path, kills: int, seed: int) -> dict:
    """Kill a writer at random moments; each time the file is whole, and the next save leaves it alone."""
    rounds = 10
    begun = time.perf_counter()
    for round_ in range(rounds):
        save(path, 0, round_)
    usual = (time.perf_counter() - begun) / rounds
    draw = random.Random(seed)
    hit, contents = 0, []
    for number in range(1, kills + 1):

        def work(number=number):
            for round_ in range(1000):
                save(path, number, round_)

        child = fork(work)
        time.sleep(draw.uniform(0, 4 * usual))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        hit += bool(partials(path))
        contents.append(whole(path))
        save(path, 0, number)
        assert not partials(path), partials(path)
        assert whole(path) == [0, number]
    return {"hit": hit, "read": contents, "usual": usual}


def together(path: Path, rounds: int) -> dict:
    """Two processes save to one path while a third reads: it never sees anything but a whole file."""

    def work(writer: int):
        for round_ in range(rounds):
            save(path, writer, round_)

    save(path, 0, 0)
    children = [fork(lambda writer=writer: work(writer)) for writer in (1, 2)]
    codes, seen = {}, set()
    while len(codes) < len(children):
        seen.add(tuple(whole(path)))
        for child in children:
            if child not in codes:
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    codes[child] = os.waitstatus_to_exitcode(status)
    return {"codes": list(codes.values()), "last": whole(path), "seen": len(seen), "left": partials(path)}


def main() -> None:
    torch.set_num_threads(1)
    what, folder, count, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    try:
        result = killed(folder / "net.slu", count, seed) if what == "killed" else together(folder / "net.slu", count)
    except (StorageError, AssertionError) as reason:
        result = {"failed": repr(reason)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
