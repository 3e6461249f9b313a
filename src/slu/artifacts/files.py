"""One safetensors file with a JSON header and a checksum over both.

Nothing is ever unpickled. A file appears under its name only when it is complete, so a process that is
killed while writing leaves the old one; a file that was truncated, damaged or edited is refused. Of files
that are written again and again the one before is kept (`write_generation`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from slu.artifacts.layout import bits, dump, parsed, read_index, read_tensors
from slu.artifacts.replacing import check_writable, replacing, target
from slu.errors import DamagedFileError, OutOfMemoryError, StorageError, printable

FORMAT = 2
"""The version of the files written; those of others are refused."""


def write(path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write a file atomically: to a name of its own beside the path, to the disk, then renamed.

    Args:
        path: Where to; its folder must exist. What a link points to is replaced, not the link.
        tensors: On any device; contiguous ones on the CPU are written without a copy.
        header: Anything JSON can hold, and numbers of numpy; finite numbers only.

    Raises:
        StorageError: The path cannot be written, or the header or a tensor's type not be stored.
    """
    _write(path, tensors, header)


def _write(
    path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any], previous: Path | None = None
) -> None:
    check_writable(path)
    path = target(path)
    text = _text(path, header)
    for name, tensor in tensors.items():
        if tensor.is_meta or tensor.layout != torch.strided:
            kind = "on the meta device" if tensor.is_meta else str(tensor.layout).removeprefix("torch.")
            raise StorageError(f"{path} was not written: {name} is {kind}, and only dense tensors with values can be")
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        with replacing(path, previous) as file:
            dump(file, whole, {"slu": text, "checksum": digest(whole, text)})
    except (OSError, ValueError) as reason:
        why = getattr(reason, "strerror", None) or reason
        raise StorageError(f"{path} could not be written: {why}. The file that was there is unchanged") from reason


def read(path: str | Path, device: torch.device | str = "cpu") -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a file, after every check.

    The tensors do not share memory with the file: later changes of it do not reach them.

    Raises:
        StorageError: No such file, not one of ours, of another format, or the disk failed.
        DamagedFileError: Truncated, damaged or edited.
        OutOfMemoryError: There is no memory for the file's tensors.

    Cost: memory of the file's size, holes included, and of its index (`layout.LONGEST`, `layout.MOST_VALUES`).
    """
    header, tensors, _ = read_sized(path)
    return header, {name: tensor.to(device) for name, tensor in tensors.items()}


def read_sized(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor], int]:
    """What `read` gives, and the bytes of the file that was read: another may have its name since."""
    path = Path(path)
    try:
        with _opened(path) as file:
            index = read_index(file)
            header = _header(path, index.metadata)
            tensors = read_tensors(file, index)
    except OSError as reason:
        raise StorageError(
            f"{path} cannot be read: {reason.strerror or reason}; ask its owner, or name another"
        ) from reason
    except MemoryError as reason:
        raise OutOfMemoryError(f"{path} cannot be read: {reason}. Free that much, or read it elsewhere") from reason
    except (ValueError, RuntimeError) as reason:
        if isinstance(reason, StorageError):
            raise
        raise DamagedFileError(
            f"{path} is not a whole slu file: {reason}. It was cut, damaged or is something else; write it anew"
        ) from reason
    if index.metadata.get("checksum") != digest(tensors, index.metadata["slu"]):
        raise DamagedFileError(
            f"the checksum of {path} does not fit its content: it was damaged or edited. Write it anew"
        )
    return header, tensors, index.whole


def write_generation(
    path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any], *, rotate: bool = True
) -> None:
    """Write a file and keep the one before it as `<path>.previous`; without `rotate` that stays which was there.

    Raises:
        StorageError: It cannot be written; the file at the path is what it was, but where the last renaming failed
            the one before it is gone.
    """
    _write(path, tensors, header, previous=_beside(target(path), "previous") if rotate else None)


def put_back(path: str | Path) -> None:
    """The file before takes the place of the newest."""
    with suppress(OSError):  # it can still be renamed by hand
        _beside(target(path), "previous").replace(target(path))


def remove_parts(path: str | Path) -> None:
    """What processes wrote of a fit that is now whole at the path: `<path>.<rank>-of-<size>`, of however many."""
    whole = target(path)
    part = re.compile(re.escape(whole.name) + r"\.\d+-of-\d+(\.previous)?")
    with suppress(OSError):
        for each in list(whole.parent.iterdir()):
            if part.fullmatch(each.name):
                each.unlink(missing_ok=True)  # another process may have been sooner


def read_newest(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """The newest of the two that is whole, or None where there is none.

    Raises:
        DamagedFileError: There are files, but none is whole.
        StorageError: One cannot be read.
    """
    path = target(path)
    damaged: DamagedFileError | None = None
    for candidate in (path, _beside(path, "previous")):
        if not os.path.lexists(candidate):
            continue
        try:
            stored = read(candidate)
        except DamagedFileError as reason:
            damaged = reason
            continue
        if damaged is not None:
            try:
                # Renamed, or the next `write_generation` would replace the whole one by it.
                path.replace(_beside(path, "damaged"))
            except OSError as reason:
                raise StorageError(f"{damaged}; it could not be renamed: {reason.strerror}. Delete it") from reason
            text = f"{damaged}; going on from the one before it, {candidate}"
            warnings.warn(printable(text, keep=""), stacklevel=2)
        return stored
    if damaged is not None:
        raise DamagedFileError(f"{damaged}. The one before it is damaged too or missing; delete both to start again")
    return None


def _beside(path: Path, which: str) -> Path:
    return path.with_name(f"{path.name}.{which}")


def digest(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """A checksum of names, types, shapes and values, and of a text; any changed bit changes it."""
    state = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        words = f"\x1f{name}\x1f{tensor.dtype}\x1f{tuple(tensor.shape)}\x1f"
        state.update(words.encode(errors="surrogatepass"))
        if tensor.numel():
            state.update(bits(tensor))
    return state.hexdigest()


def _text(path: Path, header: Mapping[str, Any]) -> str:
    try:
        return json.dumps({**header, "format": FORMAT}, allow_nan=False, default=_plain)
    except (TypeError, ValueError, RecursionError) as reason:
        raise StorageError(f"{path} was not written, its header cannot be: {reason}") from reason


def _plain(value: Any) -> Any:
    """Numbers of numpy and torch are as good as Python's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} came, {value!r}; numbers, texts, lists and dicts of them can be stored")


def _opened(path: Path) -> BinaryIO:
    """The file, opened once: a file that replaces it meanwhile is not seen."""
    if os.path.isdir(path):  # noqa: PTH112 (pathlib's raises where a folder above may not be entered)
        raise StorageError(f"{path} is a folder, not a slu file; name a file in it")
    if not os.path.isfile(path):  # noqa: PTH113 (the same; and a pipe would be waited for)
        raise StorageError(f"there is no file {path}")
    return path.open("rb")


def _header(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """The header, read before the checksum is compared: another format may compute it differently."""
    if "slu" not in metadata:
        raise StorageError(f"{path} is a safetensors file, but slu did not write it; name one that `save` wrote")
    try:
        header = parsed(metadata["slu"])
        version = header["format"]
    except (ValueError, TypeError, KeyError) as reason:
        raise DamagedFileError(
            f"the header of {path} cannot be read ({reason}): it was damaged or edited. Write it anew"
        ) from reason
    if type(version) is not int or version < 1:
        raise DamagedFileError(f"the header of {path} has the format {version!r}, which never was. Write it anew")
    if version > FORMAT:
        raise StorageError(f"{path} has the format {version}, this version of slu reads {FORMAT}; install a newer slu")
    if version < FORMAT:
        raise StorageError(
            f"{path} was written by format {version} of slu, this version reads {FORMAT}; fit again, and delete it or "
            "name another file"
        )
    return header
