"""All architectures of the zoo by name, and one of them fitted as a user would fit it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from slu import SLU
from slu.core.score import SluScore
from zoo import images, plain, texts, wrapped
from zoo.entry import Entry

ENTRIES: dict[str, Entry] = {**texts.ENTRIES, **images.ENTRIES, **plain.ENTRIES, **wrapped.ENTRIES}


@dataclass(eq=False)
class Case:
    """A model of the zoo with its data; fitted when the score is first asked for."""

    name: str

    @property
    def entry(self) -> Entry:
        return ENTRIES[self.name]

    @cached_property
    def model(self) -> nn.Module:
        return self.entry.build()

    @cached_property
    def loader(self) -> Iterable[Any]:
        return self.entry.loader(self.model)

    @cached_property
    def batch(self) -> Any:
        """The first batch, as the loader gives it."""
        return next(iter(self.loader))

    @cached_property
    def score(self) -> SluScore:
        return self.fit(self.loader)

    def fit(self, loader: Any) -> SluScore:
        return SLU(self.model, self.entry.likelihood, **self.entry.settings).fit(loader)


def changed(loader: Iterable[Any], change: Callable[[Any], Any]) -> list[Any]:
    """The batches of a loader, each as a user might have made it otherwise; pairs and triples as tuples."""
    batches = [change(batch) for batch in loader]
    return [tuple(batch) if isinstance(batch, list) else batch for batch in batches]


def plain_outputs(model: nn.Module, batch: Any) -> Tensor:
    """(b, t) or (b, P·t) outputs of the model called as its authors would call it; of pixels the classes come last."""
    if isinstance(batch, Mapping):
        outputs = model(**{name: value for name, value in batch.items() if not name.startswith("label")})
    else:
        outputs = model(*batch[:-1])
    outputs = outputs if isinstance(outputs, Tensor) else outputs.logits
    outputs = outputs.movedim(1, -1) if outputs.dim() == 4 else outputs
    return outputs.reshape(len(outputs), -1)


def flat_scores(scores: Any) -> Tensor:
    """The scores that are due, in the order of the points; those of masked positions are NaN and left out."""
    parts = [scores] if isinstance(scores, Tensor) else list(scores)
    return torch.cat([part[~part.isnan()] for part in parts])
