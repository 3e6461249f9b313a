"""Run by test_planner_peaks.py in a fresh process: what a fit and a query take, planned and measured, as JSON."""

import ctypes
import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from measure_peak import reset_peak, status

import slu
from networks import NETWORKS, OUTPUTS


def make(name: str, model: torch.nn.Module, settings: dict):
    """Settings come as JSON, which has no solver but its name: the stream's own setting stands beside it."""
    own = dict(settings)
    if "labels_per_point" in own:
        own["solver"] = slu.Stream(labels_per_point=own.pop("labels_per_point"))
    return getattr(slu, name)(model, "classification", **own)


def labelled(model: torch.nn.Module, *batches: torch.Tensor) -> list:
    """Inputs with targets: one per input, or one for each of its positions."""
    with torch.no_grad():
        shape = model.eval()(batches[0][:1]).shape[1:]
    positions = shape[:-1] if len(shape) == 2 else shape[1:]
    labels = [(torch.arange(len(inputs)) % OUTPUTS).view(-1, *[1] * len(positions)) for inputs in batches]
    return [(inputs, each.expand(-1, *positions).clone()) for inputs, each in zip(batches, labels, strict=True)]


def drawn(like: torch.Tensor, points: int) -> torch.Tensor:
    """So many different points, so that the data have the rank that is asked for."""
    shape = (points, *like.shape[1:])
    return torch.randn(shape) if like.is_floating_point() else torch.randint(0, int(like.max()) + 1, shape)


def calibrated(score: Any, data: list) -> Any:
    """The score as a default fit leaves it: only calibrated, here on two points, does it record layers' inputs."""
    if isinstance(score, slu.SluScore) and score.calibration is None and score.state.layers is not None:
        score.calibrate([tuple(each[:2] for each in data[0])])
    return score


def trim() -> None:
    """Give freed memory back to the kernel, or what comes next would use it without being seen."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def activations(model: torch.nn.Module, inputs: torch.Tensor) -> int:
    """Bytes in memory of all that autograd keeps of a forward pass.

    By the kernel's account: of a workspace that a step reserves, as of an LSTM, hardly a third is ever touched.
    """
    trim()
    before = status("VmRSS")
    outputs = model.eval()(inputs)
    kept = status("VmRSS") - before
    del outputs
    return kept


def main(kind: str, parameters: int, hold: int, settings: dict) -> None:
    """`hold` vectors of length p are held besides while fitting: the control."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    # The same kind, small: thread pools, kernels and plans of the transforms are there from now on.
    small, inputs = NETWORKS[kind](200_000)
    name, batch = settings.pop("method", "SLU"), settings.pop("batch", 2)
    batches = settings.pop("batches", 1)
    warming = settings
    if name == "SLU":
        kept = {key: settings[key] for key in ("sketch", "solver", "labels_per_point", "scale") if key in settings}
        warming = {"rank": 2, "sketch_size": 5000, **kept} if batches == 1 else settings
    # Of several batches, as many and with the same settings: products of large matrices leave their buffers behind.
    points = [inputs] if batches == 1 else [drawn(inputs, batch) for _ in range(batches)]
    # Of few points many would be held out, and the batches that are fitted be smaller than those of the plan.
    calibration = {"calibration": False} if name == "SLU" and batch * batches < 200 else {}
    known = labelled(small, *points)
    warm = calibrated(make(name, small, warming).fit(known, **calibration), known)
    warm(inputs)  # as many as below: one point alone takes a shorter way, and the rest would be mapped in later
    del warm, small

    model, inputs = NETWORKS[kind](parameters)
    data = labelled(model, *(drawn(inputs, batch) for _ in range(batches)))
    inputs = data[0][0]
    method = make(name, model, settings)
    trim()
    before, mapped = reset_peak(), status("RssFile")
    held = [torch.ones(method.network.selection.count) for _ in range(hold)]
    score = method.fit(data, progress=False, **calibration)
    # Pages of libraries that are mapped in meanwhile, before the peak or after it: how many depends on the kernel.
    fitting, late_fitting = status("VmHWM") - before, max(0, status("RssFile") - mapped)
    del held
    calibrated(score, data)
    for known in method.network.cache.values():
        known.clear()  # a score that is loaded in another process checks its first batch, and the plan counts that
    reset_peak()
    score(inputs)
    querying, late_querying = status("VmHWM") - before, max(0, status("RssFile") - mapped)
    # Only now: their forward passes would leave memory behind that the fit could use.
    uncounted = activations(model, inputs)
    planned = method.cost(batch=inputs)
    found = {
        "p": method.network.selection.count,
        "fitting": [planned.fitting, fitting - uncounted, late_fitting],
        "querying": [planned.querying, querying - uncounted, late_querying],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]))
