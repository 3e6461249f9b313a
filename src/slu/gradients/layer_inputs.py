"""The inputs of a network's layers in a forward pass: one vector per example and layer, averaged over positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from slu.data.structure import Inputs, take, tensors
from slu.gradients.network import Network
from slu.gradients.positions import MOST_GROUPS, Grid, at_middles, at_tiles

_CHANNELS_FIRST = (nn.modules.conv._ConvNd, nn.BatchNorm1d, nn.AdaptiveAvgPool1d)
_WEIGHTED = (nn.Linear, nn.modules.conv._ConvNd, nn.RNNBase)  # also where a parametrization holds the weight
_WIDE = 64
_SLACK = 0.01, 1e-3  # of a value and of the largest one, as of `Network.check_pointwise`


@final
class LayerInputs:
    """A context manager that records the inputs of layers while the network is called once inside of it.

    A layer is a module with a weight of two or more dimensions of its own; embeddings, whose inputs are numbers of
    words, have none to record. Modules that take the same tensor count once. What is computed without modules
    (`torch.nn.functional` on parameters) is not recorded. Positions that a mask leaves out do not count in an average
    (`slu.data.masks`). Without a mask a layer counts only while the input of a point has the same shape: an average
    over more padding would be another number, though the outputs are the same.

    Of a network with outputs at several positions a layer has the vector in the middle of every group of positions
    (`slu.gradients.positions`), if its inputs have the same positions or are a picture; else one, which all share.

    Args:
        network: The network that is called.
        names: Of the modules, as `named_modules` has them; None for all layers, until the first call.
        shapes: By layer, how often it is called and the shape of the input of one point, with -1 for any length; those
            of the first batch where they are not given.

    Attributes:
        names: Of the layers, in the order of their first call; None before it.
        shapes: As above, of the layers that were called.
        values: (b, d) by layer, averaged over positions and calls; of several groups of positions (b·G, d). Set by
            `finish`.
        groups: (b, P) the group of every position, and -1 where it does not count; None without positions.
        counted: (b·G,) which groups have positions that count in a fit; None without positions.

    Cost: a mean over positions per layer. Hooks are removed at the end, also after an exception.
    """

    def __init__(
        self, network: Network, names: Sequence[str] | None = None, shapes: Mapping[str, tuple[int, ...]] | None = None
    ) -> None:
        self._network = network
        self.names: tuple[str, ...] | None = None
        self.shapes: dict[str, tuple[int, ...]] = dict(shapes or {})
        self._modules = {name: module for name, module in network.model.named_modules() if _is_layer(module)}
        self.values: dict[str, Tensor] = {}
        self.groups: Tensor | None = None
        self.counted: Tensor | None = None
        self._positions: tuple[int, ...] = ()
        self._calls: dict[str, list[tuple[tuple[int, ...], Tensor]]] = {}
        self._held: list[tuple[Tensor, int | None]] = []
        self._handles: list[RemovableHandle] = []
        self._verified: set[str] = set()
        if names is not None:
            self.restrict(names)

    def __enter__(self) -> LayerInputs:
        self._calls, self._held, self._positions = {}, [], self._network.positions
        try:
            for name in self._modules if self.names is None else self.names:
                module = self._modules[name]
                self._handles.append(module.register_forward_pre_hook(partial(self._note, name), with_kwargs=True))
        except BaseException:  # Ctrl-C between two of them
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def finish(self, inputs: Inputs, outputs: Tensor, counted: Tensor | None = None) -> None:
        """Set `values` after a call on the inputs that had these outputs; the first time also choose the layers.

        A layer is verified once, on its first batch of several points.

        Args:
            inputs, outputs: Of the call.
            counted: (b, P) which positions count in a fit; by default those of the inputs' mask.

        Cost: then forward passes of up to three single points; and one where the positions were not known before.
        """
        points, grid = len(outputs), self._network.grid(inputs, outputs)
        if grid is not None and not self._expected(grid):
            with torch.no_grad():
                self._network.outputs(inputs, watch=self)
        self.values, self._held = self._averaged(points, grid), []
        self._locate(grid, counted)
        if self.names is None:
            self.restrict(list(self.values))
        new = [name for name in self.values if name not in self._verified]
        if points > 1 and new:
            self._verify(inputs, points, new)
            self._verified.update(new)

    def _expected(self, grid: Grid) -> bool:
        """Whether inputs were pooled for the positions that the outputs turned out to have."""
        tokens = len(grid.shape) == len(self._positions) == 1
        return tokens or grid.shape == self._positions

    def _locate(self, grid: Grid | None, counted: Tensor | None) -> None:
        if grid is None:
            self.groups = self.counted = None
            return
        self.groups = grid.groups
        places = self.groups + grid.count * torch.arange(grid.points, device=self.groups.device)[:, None]
        counts = (self.groups >= 0) & (grid.counted if counted is None else counted)
        self.counted = torch.zeros(grid.points * grid.count, dtype=torch.bool, device=self.groups.device)
        self.counted[places[counts]] = True

    def _verify(self, inputs: Inputs, points: int, new: Sequence[str]) -> None:
        """Leave out those of the new layers whose inputs for some points are others if each of these is alone.

        They have something else than points along their first dimension, or points in another order, or depend on the
        rest of the batch.
        """
        given, together, self.values = self.names or (), self.values, {}
        wrong: set[str] = set()
        for point in sorted({0, points // 2, points - 1}):
            one = take(inputs, slice(point, point + 1), points)
            with torch.no_grad():
                outputs = self._network.outputs(one, watch=self)
            alone = self._averaged(1, self._network.grid(one, outputs))
            for name in new:
                beside = together[name].view(points, -1, together[name].shape[1])
                if name not in alone or not _close(alone[name], beside, point):
                    wrong.add(name)
        self.values = {name: each for name, each in together.items() if name not in wrong}
        self.restrict([name for name in given if name not in wrong])

    def _averaged(self, points: int, grid: Grid | None) -> dict[str, Tensor]:
        """(b·G, d) by layer, of the layers that have a row of the usual shape per point."""
        rows, groups = {}, 1 if grid is None else grid.count
        for name, calls in self._calls.items():
            shapes, values = {(len(calls), *shape) for shape, _ in calls}, [value for _, value in calls]
            usual = self.shapes.setdefault(name, (len(calls), *calls[0][0]))
            sizes = {value.shape[:2] for value in values}
            if shapes == {usual} and (sizes == {(points, groups)} or sizes == {(points, 1)}):
                value = values[0] if len(values) == 1 else torch.stack(values).mean(0)
                rows[name] = value.expand(-1, groups, -1).reshape(points * groups, -1)
        self._calls = {}
        return rows

    def restrict(self, names: Sequence[str], shapes: Mapping[str, tuple[int, ...]] | None = None) -> None:
        """Record these layers alone from now on, as far as the network has them; of these shapes, if given."""
        self.names = tuple(name for name in names if name in self._modules)
        self.shapes.update(shapes or {})

    @torch.no_grad()
    def _note(self, name: str, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        value = next(iter(tensors((args, kwargs))), None)
        if value is None or not _is_dense(value):
            return
        if self.names is None:
            if name not in self._calls and any(_same(value, *other) for other in self._held):
                return
            # Held, because memory that is freed may be given to another tensor.
            self._held.append((value, _version(value)))
        pooled_value = pooled(module, value.detach(), self._network.mask_of_call, self._positions)
        self._calls.setdefault(name, []).append(pooled_value)


def pooled(
    module: nn.Module, value: Tensor, mask: Tensor | None = None, positions: tuple[int, ...] = ()
) -> tuple[tuple[int, ...], Tensor]:
    """The shape of a module's input for one point, -1 for any length, and one vector per group of positions (b, G, d).

    Without groups it is the mean over positions.

    Args:
        module: Which says whether features come last, (b, T, d), or first, (b, C, h, w).
        value: Its input.
        mask: (b, T) which positions count.
        positions: Of the network's outputs; without any there is one group.

    Numerics: at least float32.
    """
    shape = tuple(value.shape[1:])
    value = value.to(torch.promote_types(value.dtype, torch.float32))
    if value.dim() < 3:
        return shape, value.reshape(len(value), 1, -1).clone()  # the module may change it in place
    features_last = isinstance(module, nn.Linear | nn.LayerNorm) or value.dim() == 3
    if features_last and not isinstance(module, _CHANNELS_FIRST):
        value = value.movedim(-1, 1)
    features = value.shape[1]
    if value.dim() == 3:
        known = mask is not None and mask.shape == (len(value), value.shape[2])
        counted = mask if known else None
        if len(positions) == 1:
            return (-1, features), _by_group(value.transpose(1, 2), counted)
        if counted is not None:
            weights = counted.to(value.device, value.dtype)[:, None]
            kept = torch.where(weights > 0, value, 0.0).sum(2) / weights.sum(2).clamp(min=1)
            return (-1, features), kept[:, None]
    tiles = at_tiles(value, positions) if len(positions) > 1 else None
    if tiles is not None:
        return (-1, features), tiles
    return shape, value.flatten(2).mean(2)[:, None]


def _by_group(value: Tensor, counted: Tensor | None) -> Tensor:
    points, positions = value.shape[:2]
    if counted is None and positions <= MOST_GROUPS:
        return value.clone()  # the module may change it in place
    every = torch.ones(points, positions, dtype=torch.bool, device=value.device)
    return at_middles(value, Grid((positions,), 0, points, every if counted is None else counted.to(value.device)))


def expected_sizes(model: nn.Module) -> dict[str, int]:
    """d of every layer by name, read off its weights; for estimates, because only a call shows the inputs."""
    sizes = {}
    for name, module in model.named_modules():
        if _is_layer(module):
            given = [getattr(module, each, None) for each in ("in_features", "in_channels", "input_size")]
            shapes = (value.shape for value in module._parameters.values() if value is not None and value.dim() > 1)
            known = [each for each in given if isinstance(each, int)]
            # Of a module of another kind the weights need not show it: as many as any width holds.
            sizes[name] = known[0] if known else max([_WIDE, *(max(shape[:2]) for shape in shapes)])
    return sizes


def _is_layer(module: nn.Module) -> bool:
    # Scripted modules are called without hooks, and tables with numbers of their rows.
    if isinstance(module, torch.jit.ScriptModule | nn.Embedding | nn.EmbeddingBag):
        return False
    own = module._parameters.values()
    weights = (value is not None and value.is_floating_point() and value.dim() > 1 for value in own)
    return isinstance(module, _WEIGHTED) or any(weights)


def _is_dense(value: Tensor) -> bool:
    """Whether a tensor has rows of numbers that can be averaged."""
    usual = value.layout is torch.strided and not value.is_nested and value.is_floating_point()
    return usual and value.dim() > 1 and value.numel() > 0


def _version(value: Tensor) -> int | None:
    """Counts changes in place; None for a tensor of inference mode, of which torch does not count them."""
    return None if value.is_inference() else value._version


def _same(one: Tensor, other: Tensor, version: int | None) -> bool:
    """Whether two tensors are the same numbers in memory, which were of that version."""
    return (
        one.data_ptr() == other.data_ptr()
        and one.shape == other.shape
        and one.stride() == other.stride()
        and _version(one) == version
    )


def _close(alone: Tensor, together: Tensor, point: int) -> bool:
    share, of_largest = _SLACK
    beside, finite = together[point, : len(alone)], together[together.isfinite()]
    slack = share * beside.abs() + of_largest * (float(finite.abs().max()) if len(finite) else 0.0)
    if alone.shape != beside.shape:
        return False
    known = beside.isfinite()
    return bool(torch.where(known, (alone - beside).abs() <= slack, alone.isfinite() == known).all())
