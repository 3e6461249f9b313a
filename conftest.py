"""What every test needs."""

import signal

import pytest
import torch

# The suite runs one process a core; threads of their own would only wait for each other.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def folder_of_the_examples(request, tmp_path_factory):
    """README's examples write to `folder`; doctests alone have a namespace to put it in."""
    if isinstance(request.node, pytest.DoctestItem):
        request.getfixturevalue("doctest_namespace")["folder"] = str(tmp_path_factory.mktemp("examples"))


def pytest_configure() -> None:
    """Ctrl-C is Ctrl-C also where the tests were started in the background, which ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
