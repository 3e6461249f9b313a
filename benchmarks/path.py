"""The path of a default fit and of a default query through the files of slu, in the order of first entry.

What a newcomer passes who follows `fit(loader)` of a default SLU and `score(x)`, calibration included; the constructor,
which checks settings, is traced on its own. All are run once before, so that imports and what is made only once do not
count; then every call is recorded (`sys.setprofile`). A file counts if one of its functions ran; bodies of modules and
classes do not count.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import slu

ROOT = Path(slu.__file__).parent
POINTS, BATCH = 320, 32


@dataclass
class Trace:
    """The calls of functions of one package.

    Attributes:
        root: The package's folder.
        files: Those with a function that ran, in the order of first entry, relative to the root.
        functions: The functions that ran.
        depth: The most frames of the package that were on the stack at once.
    """

    root: Path
    files: list[str] = field(default_factory=list)
    functions: set[CodeType] = field(default_factory=set)
    depth: int = 0
    _known: dict[CodeType, bool] = field(default_factory=dict)

    def record(self, work: Callable[[], object]) -> None:
        """Run a piece of work; another profiler that is on is off meanwhile."""
        before = sys.getprofile()
        sys.setprofile(self._entered)
        try:
            work()
        finally:
            sys.setprofile(before)

    def _entered(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not self._counts(frame.f_code):
            return
        if frame.f_code not in self.functions:
            self.functions.add(frame.f_code)
            name = str(Path(frame.f_code.co_filename).relative_to(self.root))
            if name not in self.files:
                self.files.append(name)
        depth, above = 0, frame
        while above is not None:
            depth += self._counts(above.f_code)
            above = above.f_back
        self.depth = max(self.depth, depth)

    def _counts(self, code: CodeType) -> bool:
        known = self._known.get(code)
        if known is None:
            # Bodies of modules and classes have no fast locals.
            function = bool(code.co_flags & inspect.CO_OPTIMIZED)
            known = self._known[code] = function and Path(code.co_filename).is_relative_to(self.root)
        return known


def lenet() -> nn.Sequential:
    """Two convolutions and two linear layers for images of 1×12×12."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.Tanh(), nn.Flatten(),
        nn.Linear(54, 16), nn.Tanh(), nn.Linear(16, 5),
    )  # fmt: skip


def traced() -> dict[str, Trace]:
    """The traces of a default constructor, fit and query, on random images."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, images = lenet(), torch.randn(POINTS, 1, 12, 12)
        labels = torch.randint(5, (POINTS,))
    loader = DataLoader(TensorDataset(images, labels), BATCH)

    def made() -> slu.SLU:
        return slu.SLU(model, "classification")

    method = made()
    score = method.fit(loader)
    score(images[:8])
    if score.calibration is None:
        raise RuntimeError(f"the default fit on {POINTS} points is not calibrated, so it is not what a user runs")
    traces = {"constructor": Trace(ROOT), "fit": Trace(ROOT), "query": Trace(ROOT)}
    traces["constructor"].record(made)
    traces["fit"].record(lambda: method.fit(loader))
    traces["query"].record(lambda: score(images[:8]))
    return traces


def main() -> None:
    """Print both paths."""
    for what, trace in traced().items():
        print(f"{what}: {len(trace.files)} files of slu, {len(trace.functions)} functions, depth {trace.depth}")
        for name in trace.files:
            print(f"  {name}")


if __name__ == "__main__":
    main()
