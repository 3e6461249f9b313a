"""Output space: what a network's outputs mean, and how much a change of them matters.

A likelihood knows no network. It sees outputs of shape (b, t) and answers four questions about
the loss ℓ as a function of them; `Likelihood` says which, and a user brings their own by
writing an object with these four methods.
"""

from slu.errors import unknown
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


__all__ = ["LIKELIHOODS", "Classification", "Likelihood", "Multilabel", "Regression", "resolve"]
