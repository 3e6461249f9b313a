"""Every system call of a save, a load, a checkpointed fit and its resume fails once, with each error.

Refused by an error of ours, or the same numbers as without the fault; a save that fails leaves the old file. `make
test` tries one error per call, and of the fits some calls. `make test-matrix` tries every call, with every error the
first and the last time that a line of ours makes it, and `make test-slow` every seventh of these faults: the first call
of a line has eight of them, so that every line is tried, and the eight errors take turns.
"""

import os
from collections.abc import Iterator

import pytest
import torch

import faulty
from failing_calls import ERRORS, Calls, failing
from fault_counts import FaultCounts
from matrix import spread
from slu.errors import StorageError

every_error = pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["one error", "every error"]
)


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """What is on the disk after a loss of power is not tested here, and waiting for it takes most of the time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def traced(use) -> Calls:
    """The calls that are made without a fault."""
    with failing() as calls:
        use()
    return calls


def faults(calls: Calls, every: bool, step: int = 1) -> Iterator[tuple[int, str]]:
    """Places of calls, and errors for each."""
    sites = list(zip(calls.names, calls.lines, strict=True))
    first = {site: place for place, site in reversed([*enumerate(sites)])}
    last = {site: place for place, site in enumerate(sites)}
    for place in range(0, len(sites), step):
        all_of_them = every and place in (first[sites[place]], last[sites[place]])
        yield from ((place, error) for error in (ERRORS if all_of_them else [ERRORS[place % len(ERRORS)]]))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Two scores, the file of the first in a folder of its own, and what both say."""
    folder = tmp_path_factory.mktemp("saved")
    old, new = faulty.fit("lanczos"), faulty.fit("stream")
    old.save(folder / "net.slu")
    return folder, new, faulty.scores(old), faulty.scores(new)


@every_error
def test_save(saved, tmp_path, every):
    folder, new, says_old, says_new = saved
    path = tmp_path / "run" / "net.slu"
    before = (folder / "net.slu").read_bytes()

    def begin() -> None:
        faulty.fresh(path.parent, folder)
        (path.parent / ".net.slu.0123abcd.partial").touch()  # left by a killed process

    begin()
    calls = traced(lambda: new.save(path))
    names = calls.names
    assert {"open a file", "file.write", "file.close", "fsync", "replace", "flock", "listdir", "fchmod"} <= set(names)
    counts = FaultCounts("calls of save")
    for place, error in spread(faults(calls, every), 7 if every else 1):
        begin()

        def save(place=place, error=error):
            try:
                with failing(place, error):
                    new.save(path)
            except StorageError:
                assert path.read_bytes() == before, "what every error of a save says"
                raise
            return faulty.scores(faulty.loaded(path))

        counts.run(f"{names[place]} {place} {error}", save, lambda came: torch.equal(came, says_new))
        new.save(path)
        assert [each.name for each in path.parent.iterdir()] == ["net.slu"], (names[place], error)
    counts.assert_none()
    assert not torch.equal(says_old, says_new), "control"
    assert counts.counts["refused"] > 5 and counts.counts["same numbers"] > 5


def test_load(saved):
    folder, _, says, _ = saved
    names = traced(lambda: faulty.loaded(folder / "net.slu")).names
    assert {"open a file", "file.read", "file.readinto", "file.close", "fstat"} <= set(names)
    counts = FaultCounts("calls of load")
    for place, name in enumerate(names):
        for error in ERRORS:

            def load(place=place, error=error):
                with failing(place, error):
                    return faulty.loaded(folder / "net.slu")

            counts.run(f"{name} {place} {error}", load, lambda came: torch.equal(faulty.scores(came), says))
    counts.assert_none()


@every_error
@pytest.mark.parametrize("solver", faulty.SOLVERS)
@pytest.mark.parametrize("begun", [False, True], ids=["fit", "resume"])
def test_checkpointed_fit(tmp_path, solver, begun, every):
    before = None
    if begun:
        (tmp_path / "before").mkdir()
        before = faulty.interrupted(solver, tmp_path / "before").parent
    says = faulty.scores(faulty.fit(solver))
    path = faulty.fresh(tmp_path / "run", before) / "run.ckpt"
    calls = traced(lambda: faulty.fit(solver, path))
    names = calls.names
    assert {"open a file", "file.write", "fsync", "replace"} <= set(names) and len(names) > 40
    counts = FaultCounts(f"calls of a {'resumed' if begun else 'checkpointed'} fit, {solver}")
    step = 1 if every else max(1, len(names) // 12)
    for place, error in spread(faults(calls, every, step), 7 if every else 1):
        faulty.fresh(tmp_path / "run", before)

        def run(place=place, error=error):
            with failing(place, error):
                return faulty.fit(solver, path)

        fault = f"{names[place]} {place} {error}"
        counts.run(fault, run, lambda came: torch.equal(faulty.scores(came), says))
        assert torch.equal(faulty.scores(faulty.fit(solver, path)), says), f"going on after {fault}"
    counts.assert_none()


def test_control_the_calls_fail_where_they_are_told_to(saved, tmp_path):
    folder, new, *_ = saved
    path = faulty.fresh(tmp_path / "run", folder) / "net.slu"
    names = traced(lambda: new.save(path)).names
    with pytest.raises(StorageError, match="Disk quota exceeded"), failing(names.index("fsync"), "EDQUOT") as calls:
        new.save(path)
    assert calls.names[: names.index("fsync") + 1] == names[: names.index("fsync") + 1]
