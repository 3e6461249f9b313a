"""Names, objects and everything else."""

from __future__ import annotations

import pytest

from slu.errors import SettingError
from slu.likelihoods import LIKELIHOODS, resolve


@pytest.mark.parametrize(("name", "kind"), LIKELIHOODS.items())
def test_a_name_of_the_table_gives_its_likelihood(name, kind):
    assert type(resolve(name)) is kind


@pytest.mark.parametrize("wrong", ["Classification", "softmax", None, 3, object()])
def test_anything_else_is_refused_with_every_valid_name(wrong):
    with pytest.raises(SettingError) as error:
        resolve(wrong)
    assert all(repr(name) in str(error.value) for name in LIKELIHOODS)
    assert repr(wrong) in str(error.value)
