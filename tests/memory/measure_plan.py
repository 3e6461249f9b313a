"""Run by test_planner_peaks.py in a fresh process: what a fit and a query take, planned and measured, as JSON."""

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from measure_peak import reset_peak, status
from networks import NETWORKS, OUTPUTS

import slu


def make(name: str, model: torch.nn.Module, settings: dict):
    return getattr(slu, name)(model, "classification", **settings)


def labelled(inputs: torch.Tensor) -> list:
    return [(inputs, torch.arange(len(inputs)) % OUTPUTS)]


def activations(model: torch.nn.Module, inputs: torch.Tensor) -> int:
    """Bytes of all that the linear layers give for a batch."""
    found = 0

    def count(_module, _inputs, outputs) -> None:
        nonlocal found
        found += outputs.numel() * outputs.element_size() if isinstance(outputs, torch.Tensor) else 0

    leaves = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    handles = [module.register_forward_hook(count) for module in leaves]
    with torch.no_grad():
        model(inputs)
    for handle in handles:
        handle.remove()
    return found


def main(kind: str, parameters: int, hold: int, settings: dict) -> None:
    """`hold` vectors of length p are held besides while fitting: the control."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    # The same kind, small: thread pools, kernels and plans of the transforms are there from now on.
    small, inputs = NETWORKS[kind](200_000)
    name, batch = settings.pop("method", "SLU"), settings.pop("batch", 2)
    warming = settings
    if name == "SLU":
        kept = {key: settings[key] for key in ("sketch", "solver", "labels_per_point") if key in settings}
        warming = {"rank": 2, "sketch_size": 5000, **kept}
    warm = make(name, small, warming).fit(labelled(inputs))
    warm(inputs[:1])
    del warm, small

    model, inputs = NETWORKS[kind](parameters)
    inputs = inputs[torch.arange(batch) % len(inputs)]
    method = make(name, model, settings)
    planned = method.cost(OUTPUTS, batch)
    before = reset_peak()
    held = [torch.ones(method.network.selection.count) for _ in range(hold)]
    score = method.fit(labelled(inputs), progress=False)
    fitting = status("VmHWM") - before
    del held
    reset_peak()
    score(inputs)
    querying = status("VmHWM") - before
    if batch > 4:  # counted by nobody: what the layers gave, and the gradients in it for every output
        querying -= (1 + OUTPUTS) * activations(model, inputs)
    found = {
        "p": method.network.selection.count,
        "fitting": [planned.fitting, fitting],
        "querying": [planned.querying, querying],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]))
