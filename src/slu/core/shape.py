"""Dimensions of a problem."""

from __future__ import annotations

from dataclasses import replace

from slu.budgets import Size
from slu.data import batches
from slu.data.batches import Inputs
from slu.gradients import Network
from slu.gradients.layers import shape_of_results
from slu.gradients.rows import ROOM, is_matrix, neighbours
from slu.parameters import Selection, likely_outputs


def size_of(selection: Selection, outputs: int, batch: int = 1, room: int = ROOM) -> Size:
    """The dimensions that costs depend on."""
    pieces = tuple(group[-1].stop - group[0].start for group in neighbours(selection, is_matrix))
    kernels = [(each.stop - each.start, each.shape[0]) for each in selection.segments if len(each.shape) > 2]
    kernel, channels = max(kernels, default=(0, 0))
    return Size(
        parameters=selection.count,
        outputs=outputs,
        bytes_each=selection.dtype.itemsize,
        pieces=pieces,
        kernel=kernel,
        channels=channels,
        batch=batch,
        room=room,
        tensors=tuple(segment.stop - segment.start for segment in selection.segments),
    )


def size_for(network: Network, outputs: int | None, batch: int | Inputs, room: int = ROOM) -> Size:
    """The same, with as many outputs as the last layer seems to have where none are given.

    Args:
        batch: Inputs of a batch; or a batch as `fit` takes it, or a loader of which the first is taken. Its outputs are
            counted, and of its activations how many gradients in them there will be.

    Cost: arithmetic; with a batch one forward pass.
    """
    if isinstance(batch, int):
        return size_of(network.selection, likely_outputs(network.model) if outputs is None else outputs, batch, room)
    with network.evaluating():
        example = next(iter(batches(batch, network.selection.device)))
        points, found, numbers = shape_of_results(network, example.inputs)
    size = size_of(network.selection, found if outputs is None else outputs, points, room)
    return replace(size, results=-(-numbers // points))
