"""The models of the zoo, each built and fitted once for the tests of a file."""

from contextlib import nullcontext

import pytest

from wrapping import process_group
from zoo.entries import ENTRIES, Case

NAMES = [pytest.param(name, marks=pytest.mark.slow if entry.slow else ()) for name, entry in ENTRIES.items()]


@pytest.fixture(scope="module", params=NAMES)
def case(request, tmp_path_factory):
    """Every architecture in turn."""
    yield from _case(request.param, tmp_path_factory)


def _case(name, tmp_path_factory):
    group = process_group(tmp_path_factory.mktemp("group")) if name == "distributed" else nullcontext()
    with group:
        yield Case(name)
