"""From a recipe for one network to the members of an ensemble."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from slu.checks import whole
from slu.errors import ModelError
from slu.parameters import fingerprint
from slu.seeds import derived_seed, fenced


def train_ensemble(
    factory: Callable[..., nn.Module], train: Callable[[nn.Module, int], Any], members: int, *, seed: int = 0
) -> list[nn.Module]:
    """Networks for a `DeepEnsemble`, each made and trained with a seed of its own.

    Args:
        factory: Makes a network with new weights: `factory(seed)` where it asks for a seed, else
            `factory()`; torch's random state is seeded for it in either case, and put back.
        train: `train(model, seed)` trains a network in place, or returns the trained one. Torch's
            random state is seeded for it too; the order of the data should follow the seed.
        members: How many.
        seed: The members' seeds follow from it; below 2³¹, so that numpy takes them as well.

    Raises:
        ModelError: Not a module, the same module twice, or two members that came out identical.

    >>> found = train_ensemble(lambda: nn.Linear(2, 1), lambda model, seed: None, members=3)
    >>> len(found), bool((found[0].weight == found[1].weight).any())
    (3, False)
    """
    found: list[nn.Module] = []
    prints: dict[str, int] = {}
    for place in range(whole("members", members, least=2)):
        own = derived_seed(seed, "ensemble member", place) % 2**31
        with fenced(own, "initial weights"):
            model = _made(factory, own)
        if not isinstance(model, nn.Module):
            raise ModelError(f"the factory must make a torch.nn.Module, got {type(model).__name__}")
        if any(model is earlier for earlier in found):
            raise ModelError("the factory gave the same module twice; it must make a new one at every call")
        device = next((value.device for value in model.parameters()), None)
        with fenced(own, "training", device=device):
            trained = train(model, own)
        found.append(trained if isinstance(trained, nn.Module) else model)
        same = prints.setdefault(str(sorted(fingerprint(found[-1]).items())), place)
        if same != place:
            raise ModelError(
                f"members {same} and {place} came out identical, so an ensemble of them tells nothing: they had the "
                "same initial weights and the same order of the data. Let the factory draw new weights (no fixed "
                "seed inside), and train() use the seed it is given"
            )
    return found


def _made(factory: Callable[..., Any], seed: int) -> Any:
    """A network; the seed goes to an argument called seed, or to one by place that must be given."""
    try:
        arguments = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some builtin callables do not tell
        return factory()
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if "seed" in arguments and arguments["seed"].kind is not inspect.Parameter.POSITIONAL_ONLY:
        return factory(seed=seed)
    if any(each.kind in by_place and each.default is each.empty for each in arguments.values()):
        return factory(seed)
    return factory()
