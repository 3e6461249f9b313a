"""Output space: what a network's outputs mean, and how much a change of them matters.

A likelihood knows no network. It sees outputs of shape (b, t) and answers four questions about
the loss ℓ as a function of them; `Likelihood` says which, and a user brings their own by
writing an object with these four methods.
"""

from typing import Any

from torch import Tensor

from slu.errors import MismatchError, unknown
from slu.likelihoods.base import Likelihood
from slu.likelihoods.classification import Classification
from slu.likelihoods.multilabel import Multilabel
from slu.likelihoods.regression import Regression

LIKELIHOODS = {"classification": Classification, "regression": Regression, "multilabel": Multilabel}


def resolve(likelihood: str | Likelihood) -> Likelihood:
    """A likelihood from its name in the table, or the user's own object as it is."""
    if isinstance(likelihood, str):
        if likelihood not in LIKELIHOODS:
            raise unknown("likelihood", likelihood, LIKELIHOODS)
        return LIKELIHOODS[likelihood]()
    if not isinstance(likelihood, Likelihood):
        raise unknown("likelihood", likelihood, [*LIKELIHOODS, "an object with the four methods of Likelihood"])
    return likelihood


def describe(likelihood: Likelihood) -> dict[str, Any]:
    """What a header needs to make the likelihood again; one of the user's own has no name in the table."""
    for name, kind in LIKELIHOODS.items():
        if type(likelihood) is kind:
            settings = {key: _plain(value) for key, value in vars(likelihood).items()}
            return {"name": name, "settings": settings}
    return {"name": None, "class": f"{type(likelihood).__module__}.{type(likelihood).__qualname__}"}


def restore(description: dict[str, Any], own: Likelihood | None) -> Likelihood:
    """The likelihood of a description; the user's own where the table does not have it.

    Raises:
        MismatchError: The user's own is missing, or one is given that was not fitted with.
    """
    if description["name"] is not None:
        found = LIKELIHOODS[description["name"]](**description["settings"])
        if own is not None and describe(own) != description:
            raise MismatchError(f"it was fitted with {description}, not with {describe(own)}; leave likelihood= out")
        return found
    if own is None or describe(own) != description:
        raise MismatchError(
            f"it was fitted with a likelihood of its own, {description['class']}; pass that object as likelihood="
        )
    return own


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


__all__ = [
    "LIKELIHOODS",
    "Classification",
    "Likelihood",
    "Multilabel",
    "Regression",
    "describe",
    "resolve",
    "restore",
]
