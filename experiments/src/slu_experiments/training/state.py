"""A training that runs, written down whole: weights, optimizer, place in the data, random state."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn, optim

from slu.artifacts import check_writable, locked, read_newest, write_generation
from slu.core import Checkpoint
from slu.errors import MismatchError, StorageError

_SPARING = 20  # a checkpoint is written only after this many times the time that the last one took


@dataclass
class Place:
    """How far a training is.

    Attributes:
        epoch: Epochs that are done.
        step: Steps done of the one that runs.
        total: The sum of its points' losses so far.
        losses: The mean loss of every epoch done.
        seconds: Spent so far, earlier runs included.
    """

    epoch: int = 0
    step: int = 0
    total: float = 0.0
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0


@final
class Journal:
    """Writes a training down and finds it again; without a path it does nothing.

    Args:
        checkpoint: The file and the seconds between two writings; the one before is kept as `<path>.previous`.
        identity: What the training is, as plain data: a file of another one is refused.
        model, optimizer: Whose state it is.

    Cost: the weights and the optimizer's state on the disk, twice.
    """

    def __init__(
        self,
        checkpoint: str | Path | Checkpoint | None,
        identity: Mapping[str, Any],
        model: nn.Module,
        optimizer: optim.Optimizer,
    ) -> None:
        where = checkpoint if isinstance(checkpoint, Checkpoint | None) else Checkpoint(checkpoint)
        self._path, self._every = (where.path, where.every) if where else (None, 0.0)
        self._identity = dict(identity)
        self._model, self._optimizer = model, optimizer
        self._device = next(model.parameters()).device
        if self._path is not None:
            check_writable(self._path)
        self._written = time.monotonic()

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Inside of the block no other training writes to the same path.

        Raises:
            StorageError: Another does; the message names its process.
        """
        with nullcontext() if self._path is None else locked(self._path, "a training"):
            yield

    def restore(self) -> Place:
        """Put model, optimizer and torch's random state where an earlier run was; a new place where there was none.

        Raises:
            MismatchError: The file belongs to another training.
        """
        stored = None if self._path is None else read_newest(self._path)
        if stored is None:
            return Place()
        header, tensors = stored
        self._refuse_others(header.get("identity", {}))
        self._model.load_state_dict(_below("model", tensors))
        self._optimizer.load_state_dict(
            {**self._optimizer.state_dict(), "state": self._optimizer_state(_below("optimizer", tensors))}
        )
        torch.set_rng_state(tensors["random"])
        if "random on device" in tensors:
            torch.cuda.set_rng_state(tensors["random on device"], self._device)
        return Place(**header["place"])

    def note(self, place: Place, *, now: bool = False) -> None:
        """A step is done: write everything down if the last time is long enough ago."""
        if self._path is None or (not now and time.monotonic() - self._written < self._every):
            return
        begun = time.monotonic()
        try:
            write_generation(self._path, self._tensors(), {"identity": self._identity, "place": vars(place)})
        except StorageError as reason:  # a full disk must not end a training
            warnings.warn(f"the training goes on without a newer checkpoint: {reason}", stacklevel=3)
        self._written = time.monotonic()
        if self._every:  # 0 is after every step, whatever it takes
            self._every = max(self._every, _SPARING * (self._written - begun))

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {f"model/{name}": value for name, value in self._model.state_dict().items()}
        for place, values in self._optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{place}/{name}": value for name, value in values.items() if value is not None}
        tensors["random"] = torch.get_rng_state()
        if self._device.type == "cuda":
            tensors["random on device"] = torch.cuda.get_rng_state(self._device)
        return tensors

    def _optimizer_state(self, tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
        weights = [weight for group in self._optimizer.param_groups for weight in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            place, _, key = name.partition("/")
            weight = weights[int(place)]
            # Laid out as the weight is (channels last, perhaps): a file knows only one layout.
            own = torch.empty_like(weight, dtype=value.dtype).copy_(value) if value.shape == weight.shape else value
            state.setdefault(int(place), {})[key] = own
        return state

    def _refuse_others(self, theirs: Mapping[str, Any]) -> None:
        for key, here in self._identity.items():
            if theirs.get(key) != here:
                raise MismatchError(
                    f"the checkpoint {self._path} belongs to another training: its {key} is {theirs.get(key)!r}, here "
                    f"it is {here!r}. Name another file, or delete it to begin anew"
                )


def _below(folder: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.partition("/")[2]: value for name, value in tensors.items() if name.startswith(f"{folder}/")}
