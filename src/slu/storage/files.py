"""One safetensors file with a JSON header and a checksum over both.

Nothing is ever unpickled. A file appears under its name only when it is complete, so whoever is
killed while writing leaves the old one; a file that was cut, flipped or edited is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from slu.errors import DamagedFileError, StorageError

FORMAT = 1
"""The version of the files written; older ones are read, newer ones refused."""

_SUFFIX = ".partial"


def write(path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write a file atomically: to a name of its own beside the path, to the disk, then renamed.

    Args:
        path: Where to; its folder must exist.
        tensors: On any device; they are written as they are, without a copy on the CPU.
        header: Anything JSON can hold; finite numbers only.

    Raises:
        StorageError: The path cannot be written.
    """
    path = Path(path)
    check_writable(path)
    text = json.dumps({**header, "format": FORMAT}, sort_keys=True, allow_nan=False)
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    partial = path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}{_SUFFIX}")
    _sweep(path)
    try:
        save_file(whole, partial, {"slu": text, "checksum": digest(whole, text)})
        _flush(partial)
        partial.replace(path)
        _flush(path.parent)
    except (OSError, SafetensorError) as reason:
        raise StorageError(f"{path} could not be written: {reason}. What stood there before still does") from reason
    finally:
        partial.unlink(missing_ok=True)


def read(path: str | Path, device: torch.device | str = "cpu") -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a file, after every check.

    Raises:
        StorageError: No such file, not one of ours, or written by a newer version.
        DamagedFileError: Cut, flipped or edited.
    """
    path = Path(path)
    if not path.is_file():
        raise StorageError(f"there is no file {path}")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError, RuntimeError) as reason:
        raise DamagedFileError(
            f"{path} is not a whole slu file ({reason}); it was cut or is something else"
        ) from reason
    if "slu" not in metadata:
        raise StorageError(f"{path} is a safetensors file, but slu did not write it")
    if metadata.get("checksum") != digest(tensors, metadata["slu"]):
        raise DamagedFileError(
            f"the checksum of {path} does not fit its content: it was damaged or edited. Write it anew"
        )
    header = json.loads(metadata["slu"])
    if header["format"] > FORMAT:
        raise StorageError(
            f"{path} has the format {header['format']}, this version of slu reads up to {FORMAT}; install a newer slu"
        )
    return header, {name: tensor.to(device) for name, tensor in tensors.items()}


def check_writable(path: str | Path) -> None:
    """Find out before hours of work, not after, that a path cannot be written."""
    path = Path(path)
    if path.is_dir():
        raise StorageError(f"{path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise StorageError(f"{path} cannot be written: there is no folder {path.parent}; make it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise StorageError(f"{path} cannot be written: no permission in {path.parent}")


def digest(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """A checksum of names, types, shapes and values, and of a text; any changed bit changes it."""
    state = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        state.update(f"\x1f{name}\x1f{tensor.dtype}\x1f{tuple(tensor.shape)}\x1f".encode())
        if tensor.numel():
            bits: Any = tensor.reshape(-1).view(torch.uint8).numpy()  # a buffer, which numpy's stubs do not say
            state.update(bits)
    return state.hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sweep(path: Path) -> None:
    """Remove what killed processes left half-written under this path's name."""
    for left in path.parent.glob(f".{path.name}.*{_SUFFIX}"):
        writer = left.name[len(path.name) + 2 :].partition("-")[0]
        if writer.isdigit() and not _alive(int(writer)):
            left.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
