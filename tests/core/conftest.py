"""A fitted score, and the file it was saved to."""

import pytest

from stored import fitted, made


@pytest.fixture(scope="module")
def original():
    model, inputs = made()
    return model, inputs, fitted(model, inputs, sketch="hashed", sketch_size=20)


@pytest.fixture
def path(original, tmp_path):
    original[2].save(tmp_path / "net.slu")
    return tmp_path / "net.slu"
