"""Folders of results: written whole or not at all, and refused when they were changed.

A folder has three files: config.json (what was asked for), metrics.json (the results, and the version of the code)
and scores.safetensors (raw numbers, with a checksum over all three). It is filled under another name and
renamed at the end, so a process that is killed leaves no folder under the name of a run.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import slu
import slu_experiments
from slu.artifacts import read, versions, write
from slu.errors import DamagedFileError, SettingError, StorageError

try:
    import resource
except ImportError:  # not on Windows
    resource = None

CONFIG, METRICS, SCORES = "config.json", "metrics.json", "scores.safetensors"
_PARTIAL = ".partial-"


@dataclass(frozen=True)
class Result:
    """One run that is done.

    Attributes:
        folder: Where it lies.
        config: What was asked for.
        metrics: Judgements, seconds, memory; `code` is the version of the code, `made` the day and the machine.
        arrays: Raw numbers by name.
    """

    folder: Path
    config: dict[str, Any]
    metrics: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def name(self) -> str:
        """Of the folder: the hash of the configuration."""
        return self.folder.name


class Store:
    """The results below a folder, `OUT/runs`.

    Args:
        out: The folder that holds runs/ (and weights/, fits/, figures/); made when the first result is written.
    """

    def __init__(self, out: str | Path) -> None:
        self.out = Path(out)
        self.runs = self.out / "runs"

    def find(self, config: Mapping[str, Any]) -> Result | None:
        """The result of a configuration, or None where there is none yet.

        Raises:
            DamagedFileError: There is a folder, but it is not whole; the message names it and the remedy.
        """
        folder = self.runs / name_of(config)
        return self.read(folder) if folder.exists() else None

    def all(self, kind: str | None = None) -> Iterator[Result]:
        """Every result, by name; of one kind of run.

        Raises:
            DamagedFileError: One of them is not whole.
        """
        if not self.runs.is_dir():
            return
        for folder in sorted(self.runs.iterdir()):
            if folder.is_dir() and not folder.name.startswith("."):
                result = self.read(folder)
                if kind is None or result.config.get("kind") == kind:
                    yield result

    def write(
        self, config: Mapping[str, Any], metrics: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None
    ) -> Result:
        """Write a result; one that another process wrote meanwhile stays.

        Raises:
            StorageError: The folder cannot be written.
        """
        folder = self.runs / name_of(config)
        try:
            self.runs.mkdir(parents=True, exist_ok=True)
            self._sweep()
            partial = self.runs / f"{_PARTIAL}{_machine()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
            partial.mkdir()
        except OSError as reason:
            raise _unwritable(folder, reason) from reason
        try:
            texts = {
                CONFIG: json.dumps(json.loads(canonical(config)), indent=1, ensure_ascii=False),
                METRICS: json.dumps(
                    {**metrics, "code": code_version(), "made": made_here()}, indent=1, allow_nan=False
                ),
            }
            for name, text in texts.items():
                with (partial / name).open("w", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
            tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in (arrays or {}).items()}
            write(partial / SCORES, tensors, {"kind": "slu result", "texts": _checksum(texts)})
            self._place(partial, folder)
        except OSError as reason:
            raise _unwritable(folder, reason) from reason
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return self.read(folder)

    def _place(self, partial: Path, folder: Path) -> None:
        try:
            partial.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process was faster, with the same configuration
                raise

    def read(self, folder: Path) -> Result:
        """A folder's content, after every check.

        Raises:
            DamagedFileError: A file is missing, cut or edited, or the folder bears another run's name.
        """
        try:
            texts = {name: (folder / name).read_text(encoding="utf-8") for name in (CONFIG, METRICS)}
            config, metrics = (json.loads(text) for text in texts.values())
            header, tensors = read(folder / SCORES)
        except (OSError, ValueError, StorageError) as reason:
            why = f"{reason.strerror}: {reason.filename}" if isinstance(reason, OSError) else str(reason)
            raise _damaged(folder, why) from reason
        if header.get("texts") != _checksum(texts):
            raise _damaged(folder, f"{CONFIG} or {METRICS} was edited, or comes from another run")
        if folder.name != name_of(config):
            raise _damaged(folder, f"its {CONFIG} belongs into a folder named {name_of(config)}")
        return Result(folder, config, metrics, {name: tensor.numpy() for name, tensor in tensors.items()})

    def _sweep(self) -> None:
        """Remove what processes of this machine that are no more left half-written."""
        own = f"{_PARTIAL}{_machine()}-"  # of another machine's processes, on a disk that is shared, nothing is known
        for folder in self.runs.glob(f"{own}*"):
            writer = folder.name.removeprefix(own).partition("-")[0]
            if writer.isdigit() and not _lives(int(writer)):
                shutil.rmtree(folder, ignore_errors=True)


def _machine() -> str:
    return hashlib.blake2b(platform.node().encode(), digest_size=4).hexdigest()


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _checksum(texts: Mapping[str, str]) -> str:
    state = hashlib.blake2b(digest_size=16)
    for name in sorted(texts):
        state.update(f"{name}\x1f{texts[name]}\x1f".encode())
    return state.hexdigest()


def _damaged(folder: Path, why: str) -> DamagedFileError:
    return DamagedFileError(
        f"the result {folder} is not whole: {why}. Delete that folder and run the same command again"
    )


def _unwritable(folder: Path, reason: OSError) -> StorageError:
    return StorageError(f"the result {folder} could not be written: {reason.strerror or reason}; see --out")


def canonical(config: Mapping[str, Any]) -> str:
    """JSON with sorted keys and no spaces: one text for one configuration.

    Raises:
        SettingError: It holds what JSON has no words for; a NaN, or an object.

    >>> canonical({"b": 1, "a": (2.0, None)})
    '{"a":[2.0,null],"b":1}'
    """
    try:
        return json.dumps(config, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as reason:
        raise SettingError(f"a run's configuration must be plain data: {reason}") from reason


def name_of(config: Mapping[str, Any]) -> str:
    """16 hexadecimal digits.

    >>> name_of({"a": 1, "b": 2}) == name_of({"b": 2, "a": 1}), len(name_of({}))
    (True, 16)
    """
    return hashlib.blake2b(canonical(config).encode(), digest_size=8).hexdigest()


@cache
def code_version() -> dict[str, str]:
    """Versions of what numbers depend on, and a checksum of the source of both packages, more exact than a version."""
    state = hashlib.blake2b(digest_size=8)
    for package in (slu, slu_experiments):
        root = Path(str(package.__file__)).parent
        for path in sorted(root.rglob("*.py")):
            state.update(path.relative_to(root.parent).as_posix().encode() + b"\x1f" + path.read_bytes() + b"\x1f")
    return {**versions(), "source": state.hexdigest()}


def replaced(path: Path, text: str) -> Path:
    """Write a text; an interrupt leaves the file that was there.

    Raises:
        StorageError: It cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as reason:
        raise StorageError(f"{path} could not be written: {reason.strerror or reason}") from reason
    return path


def made_here() -> dict[str, str]:
    """The day, in UTC, and the machine of a run that is written now."""
    day = datetime.now(timezone.utc).date().isoformat()
    return {"date": day, "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}"}


def peak_memory() -> int | None:
    """Bytes that this process held at most so far, whatever ran in it before; None where the system does not tell."""
    if resource is None:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most
