"""On real images: a LeNet trained on FashionMNIST tells MNIST apart, and the sketch costs nothing of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.data
@pytest.mark.skipif("SLU_DATA" not in os.environ, reason="SLU_DATA does not name the folder of the data sets")
def test_lenet_on_fashion_mnist_against_mnist():
    command = [sys.executable, "-m", "benchmarks.fashion", "--check", "--epochs", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
