"""Values of a file: a wrong one is named, with what was expected, and no name forges a line of the message."""

import pytest
import torch

from slu.artifacts import stored
from slu.errors import DamagedFileError

FORGED = "a\nslu: all is well"


@pytest.mark.parametrize(
    "read",
    [
        lambda: stored.field({}, FORGED),
        lambda: stored.whole({FORGED: None}, FORGED),
        lambda: stored.tensor({}, FORGED, (2,)),
        lambda: stored.tensor({FORGED: torch.zeros(3)}, FORGED, (2,)),
        lambda: stored.tensor({FORGED: torch.full((2,), torch.nan)}, FORGED, (2,)),
        lambda: stored.check_inventory({"tensors": {FORGED: {}}}, {}),
        lambda: stored.check_inventory(
            {"tensors": stored.inventory({FORGED: torch.ones(2)})}, {FORGED: torch.zeros(2)}
        ),
        lambda: stored.check_inventory({"tensors": stored.inventory({FORGED: torch.ones(2)})}, {FORGED: torch.ones(3)}),
    ],
    ids=["missing", "wrong", "no tensor", "shape", "not finite", "inventory", "numbers", "another shape"],
)
def test_a_name_of_a_file_stays_in_its_line(read):
    with pytest.raises(DamagedFileError, match="all is well") as raised:
        read()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"length": 2}, "a list of 2 finite numbers"),
        ({"least": 2}, "a list of at least 2 finite numbers"),
        ({}, "a list of finite numbers"),
    ],
)
def test_how_many_numbers_are_expected(how, said):
    with pytest.raises(DamagedFileError, match=f"expected {said}"):
        stored.numbers({"a": [1.0, "x"]}, "a", **how)
