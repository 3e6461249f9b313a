"""Training a network: reproducible from the seed, and resumed after an interrupt."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, final

import torch
from torch import Tensor, nn, optim

from slu.artifacts import digest
from slu.core import Checkpoint
from slu.errors import NumericalError
from slu.likelihoods import Likelihood, describe, resolve
from slu.progress import Bar
from slu.seeds import fenced, stream
from slu_experiments.data import Source
from slu_experiments.training.augmentation import apply
from slu_experiments.training.recipes import Recipe, by_autocast
from slu_experiments.training.state import Journal, Place

_PROBES = 16  # points by which data are known again


@dataclass(frozen=True)
class Course:
    """How a training went.

    Attributes:
        losses: The mean loss of each epoch.
        seconds: What it took.
    """

    losses: list[float]
    seconds: float


def train(
    model: nn.Module,
    source: Source,
    recipe: Recipe,
    *,
    likelihood: str | Likelihood = "classification",
    seed: int = 0,
    checkpoint: str | Path | Checkpoint | None = None,
    progress: bool | None = False,
) -> Course:
    """Minimise the mean loss of a likelihood, in place; the model is left in evaluation mode.

    The order of the points, what is done to images and the model's own draws (dropout) follow from
    the seed. With a checkpoint, a training that was killed goes on where it was written down, and
    ends in the very weights that it would have had; Ctrl-C writes it down first.

    Args:
        model: Gives outputs (b, t).
        source: The points, as the model takes them.
        recipe: How.
        likelihood: Whose loss; its name, or an object.
        seed: Of everything random.
        checkpoint: A file, or a Checkpoint; about every minute, the state of the training is in it.
        progress: Whether there is a bar; None shows it in a terminal.

    Returns:
        How it went, earlier runs included.

    Raises:
        NumericalError: The loss left the finite numbers; `partial` holds the losses so far.
        MismatchError: The checkpoint belongs to another training.
        StorageError: Another training writes to it.

    Cost: beside the model its gradient and the optimizer's state, one batch, and a few numbers per point.
    """
    optimizer = recipe.prepare(model)
    run = _Run(model, source, recipe, resolve(likelihood), seed)
    steps = recipe.batches(len(source))
    journal = Journal(checkpoint, run.identity(), model, optimizer)
    alone = journal.holding()
    with alone, fenced(seed, "training", device=run.like.device), run.laid_out(), Interrupts() as interrupts:
        place = journal.restore()
        begun = time.monotonic() - place.seconds
        with Bar("training", recipe.epochs * steps, progress, done=place.epoch * steps + place.step) as bar:
            while place.epoch < recipe.epochs:
                for _ in run.epoch(optimizer, place):
                    place.seconds = time.monotonic() - begun
                    bar.advance(_told(place, recipe))
                    stop = interrupts.asked  # looked at once: what comes while it is written waits for the next step
                    journal.note(place, now=stop or place.epoch == recipe.epochs)
                    if stop:
                        raise KeyboardInterrupt
        if interrupts.asked:  # after the last step
            raise KeyboardInterrupt
    return Course(place.losses, place.seconds)


class _Run:
    """One training: the steps, and what they depend on."""

    def __init__(self, model: nn.Module, source: Source, recipe: Recipe, likelihood: Likelihood, seed: int) -> None:
        self._model, self._source, self._recipe = model, source, recipe
        self._likelihood, self._seed = likelihood, seed
        self.like = next(model.parameters())

    @contextmanager
    def laid_out(self) -> Iterator[None]:
        """The model as it is trained; afterwards in evaluation mode, without gradients, laid out as usual."""
        if self._recipe.channels_last:
            _lay_out(self._model, torch.channels_last)
        self._model.train()
        try:
            yield
        finally:
            self._model.zero_grad(set_to_none=True)
            self._model.eval()
            if self._recipe.channels_last:
                _lay_out(self._model, torch.contiguous_format)

    def identity(self) -> dict[str, Any]:
        """What this training is, so that a checkpoint of another one is seen."""
        few = torch.linspace(0, len(self._source) - 1, min(_PROBES, len(self._source))).long()
        inputs, targets = self._source.read(few)
        shapes = {name: list(value.shape) for name, value in self._model.state_dict().items()}
        return {
            "recipe": self._recipe.plain(),
            "seed": self._seed,
            "likelihood": describe(self._likelihood),
            "points": len(self._source),
            "data": digest({"inputs": inputs, "targets": targets}),
            "model": shapes,
        }

    def epoch(self, optimizer: optim.Optimizer, place: Place) -> Iterator[None]:
        """Go through what is left of an epoch; hands over after every step, with the place moved on.

        The order and the changes of the images are drawn for the whole epoch: a training that goes on in
        the middle of it draws the same.
        """
        points, recipe, epoch = len(self._source), self._recipe, place.epoch
        steps = recipe.batches(points)
        order = torch.randperm(points, generator=stream(self._seed, "training order", epoch))
        drawn = recipe.augmentation.draw(points, self._seed, epoch) if recipe.augmentation else None
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(epoch)
        seen = sum(map(len, order.split(recipe.batch_size)[:steps]))
        for chosen in order.split(recipe.batch_size)[place.step : steps]:
            place.total += self._step(optimizer, chosen, None if drawn is None else drawn[chosen])
            place.step += 1
            if not math.isfinite(place.total):
                raise NumericalError(
                    f"the training loss is {place.total} in epoch {epoch + 1}; lower the learning rate "
                    f"({recipe.rate(epoch)}) or look for inputs that are not finite",
                    partial=place.losses,
                )
            if place.step == steps:
                place.losses.append(place.total / seen)
                place.epoch, place.step, place.total = epoch + 1, 0, 0.0
            yield

    def _step(self, optimizer: optim.Optimizer, chosen: Tensor, drawn: Tensor | None) -> float:
        inputs, targets = self._source.read(chosen)
        inputs = inputs.to(self.like) if inputs.is_floating_point() else inputs.to(self.like.device)
        if drawn is not None:
            inputs = apply(inputs, drawn)
        if self._recipe.channels_last:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad(set_to_none=True)
        outputs = by_autocast(self._model, inputs) if self._recipe.autocast else self._model(inputs)
        loss = self._likelihood.loss(outputs, targets.to(self.like.device)).mean()
        loss.backward()
        if self._recipe.clip is not None:
            nn.utils.clip_grad_value_(self._model.parameters(), self._recipe.clip)
        optimizer.step()
        return loss.item() * len(chosen)


def _lay_out(model: nn.Module, layout: torch.memory_format) -> None:
    for weight in model.parameters():
        if weight.dim() == 4:
            weight.data = weight.data.contiguous(memory_format=layout)


def _told(place: Place, recipe: Recipe) -> str:
    mean = place.total / (place.step * recipe.batch_size) if place.step else place.losses[-1]
    return f"epoch {min(place.epoch + 1, recipe.epochs)} of {recipe.epochs}, loss {mean:.4f}"


@final
class Interrupts:
    """Within it the first Ctrl-C is only noted, in `asked`; a second one interrupts at once, as always.

    Signals reach Python's main thread alone: in any other, and where they are handled already,
    nothing is changed.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            signal.default_int_handler(number, frame)
        self.asked = True
