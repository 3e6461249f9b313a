"""Small networks and scores that tests save, damage and load."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from oracles import network
from slu import SLU


def made(kind="mlp", dtype=torch.float64):
    model, inputs = network(kind)
    return model.to(dtype), inputs.to(dtype)


def lenet():
    """A LeNet of 44,426 parameters for images of 28 × 28."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(256, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10),
    )  # fmt: skip


def fitted(model, inputs, likelihood="classification", **settings):
    """SLU as a user gets it: scaled, with a ridge, calibrated, on points of their own as there are few."""
    return SLU(model, likelihood, **{"rank": 4, **settings}).fit(inputs, calibration=0.7 * inputs)


def changed(header: dict, keys: tuple[str, ...], value: object) -> dict:
    """The header with one entry changed, or without it where the value is None."""
    header = copy.deepcopy(header)
    place = header
    for key in keys[:-1]:
        place = place[key]
    if value is None:
        del place[keys[-1]]
    else:
        place[keys[-1]] = value
    return header


def scores_again(folder):
    """What every score saved in a folder says of the oracles' inputs in a fresh process, by name and reading."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "core" / "scores_again.py"), str(folder)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
