"""Trained networks as files: read where they are there, trained where they are not."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from slu.artifacts import read, write
from slu.errors import MismatchError, SettingError, StorageError, unknown
from slu.seeds import stream
from slu_experiments import data, models
from slu_experiments.training.descent import train
from slu_experiments.training.evaluation import evaluate
from slu_experiments.training.recipes import RECIPES, Recipe


class Trainable(Protocol):
    """What a setting must tell for its network to be trained (`slu_experiments.settings.Setting` does)."""

    @property
    def name(self) -> str: ...
    @property
    def dataset(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def likelihood(self) -> str: ...
    @property
    def mean(self) -> tuple[float, ...]: ...
    @property
    def std(self) -> tuple[float, ...]: ...
    @property
    def recipe(self) -> str: ...


def trained(
    setting: Trainable,
    seed: int,
    folder: str | Path,
    *,
    root: str | Path | None = None,
    epochs: int | None = None,
    subset: int | None = None,
    progress: bool | None = None,
) -> tuple[nn.Module, dict[str, Any]]:
    """A setting's network with its trained weights, from the folder or trained now.

    A training that was interrupted goes on; one that is done is never done again. Weights of another
    recipe, or of a part of the data, have files of their own.

    Args:
        setting: Which data, model and recipe.
        seed: Of the initial weights and the training.
        folder: The weights are in `FOLDER/weights/`; made if missing.
        root: Where the data are; None for SLU_DATA.
        epochs: Instead of the recipe's (see `Recipe.lasting`).
        subset: Learn from this many points only.
        progress: Whether there is a bar; None shows it in a terminal.

    Returns:
        The model in evaluation mode, and the facts of its file's header as plain data: "accuracy" (on
        the test set; None in a regression), "loss", "path", "recipe", "seed", "points", "seconds",
        "threads" and so on; "found" is whether the file was there already.
    """
    recipe = changed(setting, epochs)
    path = weights_path(setting, seed, folder, epochs=epochs, subset=subset)
    model = models.seeded(lambda: recipe.begin(models.build(setting.model)), seed)
    asked = {
        "setting": setting.name,
        "seed": seed,
        "recipe": recipe.plain(),
        "subset": subset,
        "mean": list(setting.mean),
        "std": list(setting.std),
    }
    if path.exists():
        facts = _load(path, model, asked) | {"found": True}
    else:
        facts = _make(path, model, setting, asked, (recipe, root, progress)) | {"found": False}
    return model.eval(), facts | {"path": str(path)}


def changed(setting: Trainable, epochs: int | None = None) -> Recipe:
    """A setting's recipe, with another number of epochs where one is given."""
    if setting.recipe not in RECIPES:
        raise unknown("recipe", setting.recipe, RECIPES)
    recipe = RECIPES[setting.recipe]
    return recipe if epochs is None else recipe.lasting(epochs)


def weights_path(
    setting: Trainable, seed: int, folder: str | Path, *, epochs: int | None = None, subset: int | None = None
) -> Path:
    """Where the weights are, or will be; a changed recipe adds a hash to the name."""
    recipe = changed(setting, epochs)
    name = f"{setting.name}-{seed}"
    if subset is not None or recipe != RECIPES[setting.recipe]:
        text = json.dumps({"recipe": recipe.plain(), "subset": subset}, sort_keys=True)
        name += f"-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"
    return Path(folder) / "weights" / f"{name}.safetensors"


def checkpoint_path(weights: Path) -> Path:
    """Where the training of a file of weights is written down while it runs."""
    return weights.with_suffix(".checkpoint")


def learned_from(setting: Trainable, root: str | Path | None = None, subset: int | None = None) -> data.Source:
    """The points that a setting's network is trained on, normalized: the split's larger part, or some of it."""
    whole = data.open_set(setting.dataset, "train", root)
    places, _ = split(len(whole), changed(setting).share)
    if subset is not None and not 1 <= subset <= len(places):
        raise SettingError(f"a subset has 1 to {len(places)} points of {setting.dataset}, got {subset}")
    return data.Normalized(data.Subset(whole, places[:subset]), setting.mean, setting.std)


def split(points: int, share: float = 0.9, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Places to learn from and places held back; one split for all networks, as in the paper (seed 0).

    >>> learned, held_back = split(10)
    >>> len(learned), len(held_back), sorted(torch.cat([learned, held_back]).tolist()) == list(range(10))
    (9, 1, True)
    """
    order = torch.randperm(points, generator=stream(seed, "training and validation"))
    learned, held_back = order.tensor_split([max(1, int(share * points))])
    return learned, held_back


def _load(path: Path, model: nn.Module, asked: dict[str, Any]) -> dict[str, Any]:
    header, tensors = read(path)
    for key, value in asked.items():
        if header.get(key) != value:
            raise MismatchError(
                f"{path} holds other weights: its {key} is {header.get(key)!r}, asked for is {value!r}. "
                "Move it away to train anew, or name another folder"
            )
    try:
        model.load_state_dict(tensors)
    except RuntimeError as reason:
        raise MismatchError(
            f"{path} holds the weights of another model: {reason}. Move it away to train anew"
        ) from reason
    return header


def _make(
    path: Path,
    model: nn.Module,
    setting: Trainable,
    asked: dict[str, Any],
    how: tuple[Recipe, str | Path | None, bool | None],
) -> dict[str, Any]:
    recipe, root, progress = how
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise StorageError(f"cannot make the folder {path.parent} ({reason.strerror}); name another") from reason
    source = learned_from(setting, root, asked["subset"])
    test = data.Normalized(data.open_set(setting.dataset, "test", root), setting.mean, setting.std)
    checkpoint = checkpoint_path(path)
    course = train(
        model,
        source,
        recipe,
        likelihood=setting.likelihood,
        seed=asked["seed"],
        checkpoint=checkpoint,
        progress=progress,
    )
    tested = evaluate(model, test, setting.likelihood)
    facts = asked | {
        "kind": "weights",
        "dataset": setting.dataset,
        "model": setting.model,
        "likelihood": setting.likelihood,
        "parameters": sum(value.numel() for value in model.parameters()),
        "points": len(source),
        "test_points": tested.points,
        "accuracy": tested.accuracy,
        "loss": tested.loss,
        "losses": course.losses,
        "seconds": course.seconds,
        "threads": torch.get_num_threads(),
        "versions": {"slu": importlib.metadata.version("slu"), "torch": str(torch.__version__)},
    }
    write(path, model.state_dict(), facts)
    for left in checkpoint.parent.glob(f"{checkpoint.name}*"):
        left.unlink(missing_ok=True)
    return facts
