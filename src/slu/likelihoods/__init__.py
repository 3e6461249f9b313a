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
    if isinstance(likelihood, type) or not isinstance(likelihood, Likelihood):
        raise unknown("likelihood", likelihood, [*LIKELIHOODS, "an object with the four methods of Likelihood"])
    return likelihood


def describe(likelihood: Likelihood) -> dict[str, Any]:
    """What a header needs to make the likelihood again; one of the user's own has no name in the table."""
    for name, kind in LIKELIHOODS.items():
        if type(likelihood) is kind:
            settings = {key: _plain(value) for key, value in vars(likelihood).items()}
            return {"name": name, "settings": settings}
    kind = type(likelihood)
    return {"name": None, "class": kind.__qualname__, "module": kind.__module__}


def restore(description: dict[str, Any], own: Likelihood | None) -> Likelihood:
    """The likelihood of a description; the user's own where the table does not have it.

    One of the user's own is known by the name of its class alone: the module may be `__main__` in the
    script that fits and another where it is loaded, and what is inside the object nobody can compare.

    Raises:
        MismatchError: The user's own is missing, or one is given that was not fitted with.
    """
    name = description["name"]
    if name is None:
        fitted = f"a likelihood of its own, {description['module']}.{description['class']}"
        if own is None:
            raise MismatchError(f"it was fitted with {fitted}; pass that object as likelihood=")
        if describe(own).get("class") != description["class"]:
            raise MismatchError(f"it was fitted with {fitted}, not with {_words(describe(own))}; pass the former")
        return own
    if name not in LIKELIHOODS:
        raise MismatchError(
            f"it was fitted with the likelihood {name!r}, which this version of slu does not have; "
            "install the version that `slu inspect` names"
        )
    if own is not None and describe(own) != description:
        raise MismatchError(
            f"it was fitted with {_words(description)}, not with {_words(describe(own))}; leave likelihood= out"
        )
    return LIKELIHOODS[name](**description["settings"])


def _words(description: dict[str, Any]) -> str:
    """As one would write it: regression(noise_variance=0.5), or the class of the user's own."""
    if description["name"] is None:
        return f"{description['module']}.{description['class']}"
    settings = ", ".join(f"{key}={value!r}" for key, value in description["settings"].items())
    return f"{description['name']}({settings})"


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
