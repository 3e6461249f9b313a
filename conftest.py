"""What every test needs."""

import os
import signal

# The suite runs one process a core; threads of their own, numpy's too, would only wait for each other. Before numpy is
# imported, and for the processes that tests start.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def folder_of_the_examples(request, tmp_path_factory):
    """README's examples write to `folder`; doctests alone have a namespace to put it in."""
    if isinstance(request.node, pytest.DoctestItem):
        request.getfixturevalue("doctest_namespace")["folder"] = str(tmp_path_factory.mktemp("examples"))


def pytest_configure() -> None:
    """Ctrl-C is Ctrl-C also where the tests were started in the background, which ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
