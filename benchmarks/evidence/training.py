"""Networks of the studies: read from the folder of weights, or trained and stored there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from slu.artifacts import read, write
from slu_experiments.data import Source
from slu_experiments.models import seeded
from slu_experiments.training import Recipe, evaluate, train


@dataclass(frozen=True)
class Trainable:
    """A kind of network and how it learns.

    Attributes:
        build: Makes it.
        recipes: How it learns, one after the other.
        learned: Opens the points that it learns from.
        tested: Opens the points that its accuracy is measured on.
        likelihood: Whose loss is minimized.
    """

    build: Callable[[], nn.Module]
    recipes: Sequence[Recipe]
    learned: Callable[[], Source]
    tested: Callable[[], Source]
    likelihood: str = "classification"

    def trained(self, name: str, seed: int, folder: Path) -> tuple[nn.Module, float]:
        """The network in evaluation mode, and its accuracy on the test set.

        Args:
            name: Of its file in folder/weights, together with the seed.
            seed: Of its initial weights and its training.
            folder: Of the evidence. A training that was interrupted goes on from the checkpoints in it.
        """
        model = seeded(self.build, seed)
        path = folder / "weights" / f"{name}-{seed}.safetensors"
        if path.exists():
            header, tensors = read(path)
            model.load_state_dict(tensors)
            return model.eval(), header["accuracy"]
        path.parent.mkdir(parents=True, exist_ok=True)
        learned = self.learned()
        for stage, recipe in enumerate(self.recipes):
            checkpoint = path.with_suffix(f".checkpoint-{stage}")
            train(model, learned, recipe, likelihood=self.likelihood, seed=seed, checkpoint=checkpoint)
        accuracy = evaluate(model, self.tested(), self.likelihood).accuracy
        assert accuracy is not None  # classes and labels are right or wrong
        write(path, model.state_dict(), {"accuracy": accuracy, "seed": seed})
        return model, accuracy


def shuffled(indices: Tensor, seed: int) -> Tensor:
    """The indices in a random order that depends on the seed alone."""
    return indices[torch.randperm(len(indices), generator=torch.Generator().manual_seed(seed))]
