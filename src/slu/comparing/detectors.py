"""A detector of the user's own as a method, so that it is one more row of a comparison.

A detector is a function from the inputs of a batch to one score per point, larger for less sure; or an object with
`predict`, as those of pytorch-ood, fitted before. Nothing of it is fitted here, and its memory is not known: a
board shows none.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from slu.budgets import Cost
from slu.data import BatchReader, batches
from slu.errors import DataError, SettingError, StorageError, unknown

READING = "score"


class Predictor(Protocol):
    """An object that gives scores by `predict`, as the detectors of pytorch-ood."""

    def predict(self, x: Any, /) -> Any:
        """(b,) scores of the inputs of a batch; larger means less sure."""
        ...


@final
class Detector:
    """A detector with the interface of a method.

    Args:
        function: From the inputs of a batch to (b,) or (b, 1) scores.
        name: Of its row.
    """

    def __init__(self, function: Callable[[Any], Any], name: str) -> None:
        self._function = function
        self._name = name

    @property
    def name(self) -> str:
        """Of its row."""
        return self._name

    def fit(self, loader: Any, *, progress: bool | None = None, reader: BatchReader | None = None) -> DetectorScore:
        """The score; nothing is fitted, and the loader is not read.

        `reader` says what the inputs of a batch are: beside a network, those that the network is called with.
        """
        del loader, progress
        return DetectorScore(self._function, reader)

    def cost(self, outputs: int | None = None, batch: int = 1) -> Cost:
        """Nothing that is known of."""
        del outputs, batch
        return Cost(artefact=0, fitting=0, querying=0, passes=0)


@final
class DetectorScore:
    """The score of a `Detector`, with one reading. Batches are passed to it on the device they come on."""

    readings = (READING,)

    def __init__(self, function: Callable[[Any], Any], reader: BatchReader | None = None) -> None:
        self._function, self._reader = function, reader

    def __call__(self, data: Any, *, reading: str = READING, progress: bool | None = None) -> Tensor:
        """(b,) scores of one batch or of a loader, in its order."""
        del progress
        if reading != READING:
            raise unknown("reading", reading, self.readings)
        read = batches(data, None, once=True, reader=self._reader)
        return torch.cat([self._scores(batch.inputs, batch.index) for batch in read])

    def _scores(self, inputs: Any, index: int) -> Tensor:
        scores = torch.as_tensor(self._function(inputs)).detach().cpu()
        if scores.dim() == 2 and scores.shape[1] == 1:
            scores = scores[:, 0]
        if scores.dim() != 1:
            raise DataError(
                f"the detector gave scores of the shape {tuple(scores.shape)} for batch {index}; one number per point "
                "is needed, larger for less sure"
            )
        return scores.double()

    def save(self, path: str | Path) -> None:
        """Refused: what a function is made of is not known."""
        raise StorageError(f"a detector of your own cannot be saved to {path}; save what it is made of yourself")


def detector(value: Any, name: str | None = None) -> Detector | None:
    """The method that a value stands for if it is a detector; None if it is none.

    A function without arguments is none: it makes a method. Neither is a module: the network itself is a likelier
    mistake than a module that gives scores.

    Raises:
        SettingError: An estimator of scikit-learn, of which `predict` gives labels.
    """
    if isinstance(value, type | nn.Module):
        return None
    own = getattr(value, "__name__", type(value).__name__)
    name = str(name or ("detector" if own == "<lambda>" else own))
    predict = getattr(value, "predict", None)
    if callable(predict):
        if hasattr(value, "get_params"):
            raise SettingError(
                f"predict of {own} gives labels, as of all estimators of scikit-learn; pass a function that gives "
                "scores, larger for less sure: lambda inputs: -estimator.score_samples(inputs)"
            )
        return Detector(predict, name)
    return Detector(value, name) if callable(value) and _takes_inputs(value) else None


def _takes_inputs(function: Callable[..., Any]) -> bool:
    """Whether a function must be given one argument, and one is enough."""
    try:
        arguments = signature(function)
    except (TypeError, ValueError):  # some builtin functions have no signature
        return True
    try:
        arguments.bind(None)
    except TypeError:
        return False
    try:
        arguments.bind()
    except TypeError:
        return True
    return False
