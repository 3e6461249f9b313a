"""Outputs and targets that are probably not what the likelihood takes them for."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from slu.data.masks import IGNORE_INDEX
from slu.errors import DataError, MisuseWarning
from slu.likelihoods import Classification, Likelihood, Multilabel, Regression


def check_targets(likelihood: Likelihood, outputs: Tensor, targets: Any, index: int) -> None:
    """Refuse targets that the outputs do not have; those of another kind than the likelihood takes are not looked at.

    Raises:
        DataError: A class that is no output (but for -100, which marks points without one), a label outside of 0 to 1,
            or targets of another width.
    """
    if not isinstance(targets, Tensor) or targets.is_complex() or not len(targets):
        return
    points, count = outputs.shape
    if isinstance(likelihood, Classification):
        if targets.shape != (points,) or targets.is_floating_point() or targets.dtype is torch.bool:
            return
        wrong = ((targets < 0) & (targets != IGNORE_INDEX)) | (targets >= count)
        if bool(wrong.any()):
            raise DataError(
                f"batch {index} has a target of {int(targets[wrong][0])}, but the model has {count} outputs, for the "
                f"classes 0 to {count - 1}; number the classes from 0, mark points without one by {IGNORE_INDEX}, or "
                "check that the model is the one for these data"
            )
    elif isinstance(likelihood, Multilabel) and targets.numel() == outputs.numel():
        wrong = (targets < 0) | (targets > 1)
        if bool(wrong.any()):
            raise DataError(
                f"batch {index} has a target of {targets[wrong][0].item():g}, but each of the {count} outputs of "
                "'multilabel' is the logit of one label, whose targets are 0 or 1; for numbers use 'regression'"
            )
    elif isinstance(likelihood, Regression) and targets.is_floating_point() and targets.dim() == 2:
        _check_width(targets, outputs, index)


def _check_width(targets: Tensor, outputs: Tensor, index: int) -> None:
    if len(targets) == len(outputs) and targets.shape[1] != outputs.shape[1]:
        raise DataError(
            f"batch {index} has targets of the shape {tuple(targets.shape)}, but the model has {outputs.shape[1]} "
            "outputs; 'regression' needs a target for every output: choose the columns, or check the model"
        )


def are_probabilities(outputs: Tensor) -> bool:
    """Whether every row has no negative number and the sum 1, up to rounding; of a single output that says nothing."""
    if outputs.shape[1] < 2:
        return False
    slack = 4 * torch.finfo(outputs.dtype).eps  # every number is rounded relative to itself
    return bool((outputs >= 0).all()) and bool(((outputs.double().sum(1) - 1).abs() <= slack).all())


def warn_of_probabilities() -> None:
    """Say that outputs look like those of a softmax."""
    warnings.warn(
        "the outputs of every point of the first batch are at least 0 and sum to 1, as if they were probabilities "
        "already; 'classification' takes logits, and another softmax over them leaves hardly any difference. Remove "
        "the softmax from the model, or take its logarithm: forward=lambda model, inputs: model(inputs).log()",
        MisuseWarning,
        stacklevel=5,
    )
