"""Likelihoods in a header: described, made again, or asked for."""

import json

import pytest
import torch

from slu.errors import MismatchError
from slu.likelihoods import LIKELIHOODS, Classification, Multilabel, Regression, describe, resolve, restore


class Mine(Classification):
    """One of the user's own."""


class Theirs(Classification):
    """Another."""


EXAMPLES = [Classification(), Regression(0.1), Regression(), Multilabel(), Multilabel([0.1, 1 / 3, 7.0])]


def again(likelihood):
    """A description after its way through a file."""
    return json.loads(json.dumps(describe(likelihood), allow_nan=False))


def test_every_likelihood_has_an_example():
    assert {type(each) for each in EXAMPLES} == set(LIKELIHOODS.values())


@pytest.mark.parametrize("likelihood", EXAMPLES, ids=lambda each: str(describe(each)))
def test_one_of_the_table_is_made_again_with_its_settings(likelihood):
    restored = restore(again(likelihood), None)
    assert type(restored) is type(likelihood)
    outputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.equal(restored.hessian_product(outputs, outputs), likelihood.hessian_product(outputs, outputs))
    assert describe(restored) == describe(likelihood)
    # What was fitted with may be given all the same.
    assert describe(restore(again(likelihood), likelihood)) == describe(likelihood)


@pytest.mark.parametrize(
    ("fitted", "given", "message"),
    [
        ("classification", Regression(), r"with classification\(\), not with regression\(noise_variance=1.0\)"),
        (Regression(0.5), Regression(0.25), r"noise_variance=0.5\), not with regression\(noise_variance=0.25\)"),
        (Multilabel([1, 2]), Multilabel(), r"weights=\[1.0, 2.0\]\), not with multilabel\(weights=None\)"),
        ("classification", Mine(), r"not with .*test_describe.Mine; leave likelihood= out"),
        (Mine(), Theirs(), r"of its own, .*test_describe.Mine, not with .*Theirs; pass the former"),
        (Mine(), Classification(), r"test_describe.Mine, not with classification\(\); pass the former"),
        (Mine(), None, r"test_describe.Mine; pass that object as likelihood="),
    ],
)
def test_another_one_is_refused(fitted, given, message):
    with pytest.raises(MismatchError, match=message):
        restore(again(resolve(fitted)), given)


def test_the_users_own_is_known_by_its_class():
    mine = Mine()
    assert restore(again(mine), mine) is mine
    # The script that fits calls its module __main__.
    assert restore({**again(mine), "module": "__main__"}, mine) is mine


def test_one_of_a_later_version():
    with pytest.raises(MismatchError, match="likelihood 'poisson', which this version of slu does not have; install"):
        restore({"name": "poisson", "settings": {}}, None)
