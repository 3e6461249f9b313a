"""Output space: the loss as a function of a network's outputs (b, t), its Hessian and the factor of it.

A likelihood knows no network. A user's own is any object with the four methods of `Likelihood`; it may also have
`leading(outputs, count)` as those of this package, if products with H are not the best way to it.
"""

from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from slu.errors import MismatchError, unknown
from slu.likelihoods.classification import Classification
from slu.likelihoods.leading import leading
from slu.likelihoods.multilabel import Multilabel
from slu.likelihoods.positions import PerPosition
from slu.likelihoods.regression import Regression


@runtime_checkable
class Likelihood(Protocol):
    """What a loss ℓ does in output space; b points, t outputs, H = ∇²ℓ = L Lᵀ at each point.

    `outputs` is (b, t). `vectors` is (..., b, t): the last two dimensions belong to the outputs,
    leading ones are batch dimensions. All four methods are pure functions of tensors, so
    they work in any floating type and on any device. H must not depend on the target, which
    holds for every loss that is the negative logarithm of an exponential family.
    """

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(b,) losses, one per point, differentiable in the outputs; never their mean."""
        ...

    def hessian_product(self, outputs: Tensor, vectors: Tensor) -> Tensor:
        """H u for every vector u."""
        ...

    def factor_product(self, outputs: Tensor, vectors: Tensor, *, transpose: bool = False) -> Tensor:
        """L u, or Lᵀ u, for every vector u."""
        ...

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        """Targets drawn from the model's own prediction; `uniform` is (b, t) numbers in (0, 1).

        The gradients of the loss at such targets have H as the mean of their outer products.
        The caller provides the randomness, so that a point's target does not depend on its batch.
        """
        ...


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
            plain = {key: each.tolist() if isinstance(each, Tensor) else each for key, each in vars(likelihood).items()}
            return {"name": name, "settings": plain}
    kind = type(likelihood)
    return {"name": None, "class": kind.__qualname__, "module": kind.__module__}


def restore(description: dict[str, Any], own: Likelihood | None) -> Likelihood:
    """The likelihood of a description; the user's own where the table does not have it.

    One of the user's own is recognized by the name of its class alone: the module may be `__main__` in the
    script that fits and another where it is loaded, and the object's attributes cannot be compared.

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


__all__ = [
    "LIKELIHOODS",
    "Classification",
    "Likelihood",
    "Multilabel",
    "PerPosition",
    "Regression",
    "describe",
    "leading",
    "resolve",
    "restore",
]
