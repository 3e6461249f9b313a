"""A module as a function of its selected parameters, and the state it must be called in."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm

from slu.data import Batch, BatchReader, Signature, batches
from slu.data.masks import position_mask
from slu.data.signature import decoder_inputs, predicts_next
from slu.data.structure import Inputs, lengths, map_leaves, take
from slu.errors import DataError, MismatchError, ModelError, SluError, out_of_memory
from slu.gradients.calling import call, call_error, check_recorded, check_rows, no_history, taken
from slu.gradients.positions import Grid
from slu.parameters import MODEL_IN_USE, KnownWeights, Selection, unwrapped
from slu.parameters.fingerprint import dense_parts
from slu.parameters.wrappers import stand_ins

log = logging.getLogger(__name__)

Forward = Callable[[nn.Module, Inputs], Any]


class _Slot(NamedTuple):
    """Where a module keeps a parameter, a buffer or how it is called, and what stands in while the module is called.

    `name` is that of the parameter or buffer, else "".
    """

    store: dict[str, Any]
    key: str
    name: str
    value: Any
    stand_in: Any


class Network:
    """outputs = f(parameters, inputs); the module's parameters and buffers are never changed.

    The module is called with replacements for its parameters (detached, sharing storage) and its
    buffers (copies), so gradients, flags and buffers of the user's model do not change; and with
    copies of the inputs, so the user's data do not change either. What a module creates or remembers in its own forward
    (a buffer that was None, the length of a table that grew) is left to it.

    Args:
        model: Any module whose outputs are (b,) or (b, t); or, with `positions`, (b, T, C) or (b, C, h, w). Of a
            wrapped one the module inside is called, eagerly where it is compiled.
        selection: The parameters to differentiate in.
        forward: How to call the model on the inputs of a batch; `call` by default.
        positions: Whether outputs at several positions of an input are taken. They come as t = P·C numbers per input,
            position by position, and `grid` says where they are.
    """

    def __init__(
        self, model: nn.Module, selection: Selection, forward: Forward | None = None, *, positions: bool = False
    ) -> None:
        model = unwrapped(model)
        _check_normalization(model)
        self._takes_positions = positions
        self.positions: tuple[int, ...] = ()
        """Of the outputs in the last call, (T,) or (h, w)."""
        self.outputs_per_position: int | None = None
        """C, once the network has been called; None where an input has one vector of outputs."""
        self.mask_of_call: Tensor | None = None
        """Which positions of the inputs count, while the model is called on them; for the watch."""
        self.model = model
        self.selection = selection
        self.own_forward = forward
        self._forward = forward or call
        self._called = False
        signature = None if forward is not None else Signature.of(model)
        bags = any(isinstance(module, nn.EmbeddingBag) for module in model.modules())
        self.reader = BatchReader(
            signature, _dtype(model), bags=bags, causal=predicts_next(model), decoder=decoder_inputs(model)
        )
        """How batches are read: which of their parts the model is called with."""
        self._slots: list[_Slot] | None = None  # while evaluating
        self._differentiable = False  # until outputs with a graph were checked
        self.taken: str | None = None
        """Which part of what the model returns its outputs are, in words; None if all of it, or before a call."""
        self.cache: dict[str, dict[Any, Any]] = {}
        """What is known of how gradients are computed, by `slu.gradients.layers`; it holds no tensors."""

    def parameters(self) -> dict[str, Tensor]:
        """The selected parameters by name, detached."""
        return self.selection.values(self.model)

    def batches(
        self, data: Any, *, once: bool = False, finite: bool = True, purpose: str = "reading", learn: bool = True
    ) -> Iterator[Batch]:
        """The checked batches of some data on the model's device, as `slu.data.batches` gives them.

        `purpose` is what is done with them, in the message of an exception of the model; only a fit may `learn` their
        format.
        """
        self.reader.purpose = purpose
        return batches(data, self.selection.device, once=once, finite=finite, reader=self.reader, learn=learn)

    def outputs(
        self,
        inputs: Inputs,
        parameters: Mapping[str, Tensor] | None = None,
        buffers: Mapping[str, Tensor] | None = None,
        watch: AbstractContextManager[Any] | None = None,
    ) -> Tensor:
        """(b, t) outputs at these parameters and buffers, or at the module's own where none are given.

        Parameters may be given that are not selected. A buffer that is given is used as it is, not
        as a copy: a module that writes to it writes to the caller's. The model is called inside of `watch`, if given.

        Raises:
            DataError: The outputs are not one number or one vector per point.
            ModelCallError: The model raised an exception; one of memory, or of slu, is raised as it is.
            ModelError: Its graph cannot be differentiated in the parameters.
        """
        given = {**(parameters or {}), **(buffers or {})}
        slots = self._slots if self._slots is not None else _slots(self.model, copy_buffers=False)
        try:
            for store, key, name, _, stand_in in slots:
                store[key] = given.get(name, stand_in)
            # A copy, because a model may change its inputs in place, and it is called on them again.
            self.mask_of_call = position_mask(inputs)
            with watch or nullcontext():
                returned = self._forward(self.model, map_leaves(lambda leaf: leaf.clone(), inputs))
        except Exception as reason:
            if isinstance(reason, SluError) or out_of_memory(reason):
                raise
            raise call_error(reason, self.model, inputs, self.reader) from reason
        finally:
            _restore(slots)
        outputs, which = taken(returned)
        if which is not None and self.taken is None:
            self.taken = which
            log.info("the model returns %s; its outputs are %s", type(returned).__name__, which)
        if not self._differentiable and any(value.requires_grad for value in given.values()):
            self._check_graph(outputs, inputs, given)
        return self._rows(outputs, inputs)

    def _check_graph(self, outputs: Tensor, inputs: Inputs, given: Mapping[str, Tensor]) -> None:
        if outputs.grad_fn is not None:
            check_recorded(outputs)
            self._differentiable = True
        elif torch.is_grad_enabled():
            named = self.model.named_parameters()
            every = {name: value.detach().requires_grad_() for name, value in named if value.is_floating_point()}
            if every.keys() <= given.keys():
                raise no_history(outputs)
            # Those that were given may take no part for these inputs, as an expert; some must.
            self.outputs(inputs, every)

    def _rows(self, outputs: Tensor, inputs: Inputs) -> Tensor:
        """(b, t) of what the model returned; of outputs at several positions t = P·C, position by position."""
        if all(length == 1 for length in lengths(inputs)) and outputs.dim() < 2:
            outputs = outputs.reshape(1, -1)  # a model that squeezes its outputs drops the dimension of a single point
        shape = tuple(outputs.shape)
        if not shape:
            raise DataError(
                "the model returned a single number for a batch, (batch, outputs) is needed; return its outputs "
                "instead of a loss, or select them with forward=lambda model, inputs: ..."
            )
        if not self._takes_positions and len(shape) > 2:
            raise DataError(
                f"the model's outputs have the shape {shape}, (batch, outputs) is needed here: outputs for every token "
                "or pixel are scored by SLU alone. Pool them, or select a position, with forward=lambda model, "
                "inputs: ..."
            )
        check_rows(outputs, inputs)
        if len(shape) < 3:
            self._place((), None, shape)
            return outputs.unsqueeze(1) if outputs.dim() == 1 else outputs
        outputs = outputs if len(shape) == 3 else outputs.movedim(1, -1)
        self._place(tuple(outputs.shape[1:-1]), outputs.shape[-1], shape)
        return outputs.flatten(1)

    def _place(self, positions: tuple[int, ...], count: int | None, shape: tuple[int, ...]) -> None:
        """Note where the outputs of a call are; their number at a position must not change."""
        if self._called and count != self.outputs_per_position:
            known = self.outputs_per_position
            before = "one vector per input" if known is None else f"{known} per position"
            raise DataError(f"the model's outputs have the shape {shape}, earlier ones were {before}")
        if not self._called and count is not None:
            read = "(batch, tokens, outputs)" if len(positions) == 1 else "(batch, outputs, height, width)"
            log.info("outputs of the shape %s are read as %s: every position is scored", shape, read)
        self._called, self.positions, self.outputs_per_position = True, positions, count

    def grid(self, inputs: Inputs, outputs: Tensor) -> Grid | None:
        """Where the outputs of the last call are, and which positions count; None for one vector per input."""
        if self.outputs_per_position is None:
            return None
        mask = position_mask(inputs)
        if mask is not None and tuple(mask.shape) != (len(outputs), *self.positions):
            mask = None  # of other positions than those of the outputs
        every = torch.ones(len(outputs), outputs.shape[1] // self.outputs_per_position, dtype=torch.bool)
        mask = every.to(outputs.device) if mask is None else mask.to(outputs.device)
        return Grid(self.positions, self.outputs_per_position, len(outputs), mask)

    def check_weights(self) -> None:
        """Reject weights that are not finite, selected or not, and NaN in buffers; later errors would blame the data.

        Buffers may hold infinity, as masks of attention do.
        """
        with MODEL_IN_USE:
            weights, buffers = dict(self.model.named_parameters()), dict(self.model.named_buffers())
        for name, value in (weights | buffers).items():
            if value.is_meta:
                raise ModelError(f"{name} has no values, it is on the meta device; load the weights first")
            # The largest magnitude is NaN or infinite if any entry is, and takes no copy.
            if not value.is_floating_point() or bool(torch.isfinite(largest := _largest(value.detach()))):
                continue
            if name in weights or bool(largest.isnan()):
                raise ModelError(f"{name} holds NaN or infinity; the network was not trained to finite weights")

    def check_unchanged(self, known: KnownWeights) -> None:
        """Refuse weights or buffers that are not those of the fit.

        Raises:
            MismatchError: The message says what has changed.
        """
        changed = known.change(self.model)
        if changed:
            raise MismatchError(
                f"the network has changed since the score was fitted: {changed}. Load the weights it was fitted on, or "
                "fit anew; score.check_weights = False scores with the network as it is now"
            )

    def check_pointwise(self, inputs: Inputs, outputs: Tensor) -> None:
        """Reject a network if the outputs for a point depend on the rest of its batch, or are random.

        The last point is called alone and compared, loosely enough for half precision.
        """
        points = len(outputs)
        if points < 2:
            return
        alone = self.outputs(take(inputs, slice(points - 1, points), points)).detach()
        beside = outputs[-1:].detach()
        if alone.shape != beside.shape:
            raise ModelError(
                f"the last point of a batch has {alone.shape[1]} outputs if it is called alone, and {beside.shape[1]} "
                "in the batch: they depend on the longest input of a batch. Give outputs of one length, "
                "pad_packed_sequence(..., total_length=inputs.shape[1]) for example"
            )
        slack = 0.01 * beside.abs() + 1e-3 * float(outputs.detach().abs().max())
        if bool(((alone - beside).abs() > slack).any()):
            raise ModelError(
                "a point's outputs depend on the rest of its batch, or on chance: called alone, the last point of a "
                f"batch gave {alone.flatten()[:3].tolist()}, in the batch {beside.flatten()[:3].tolist()} (first "
                "outputs). Look for statistics over the batch, for dropout or noise that ignores eval mode, or for an "
                "input shared by all points, which forward= must supply"
            )

    @contextmanager
    def evaluating(self, *, fused: bool = False) -> Iterator[None]:
        """The state in which the network is a deterministic, differentiable function of each input.

        Eval mode; gradients on; autocast off; kernels with forward-mode derivatives, which fused
        attention lacks. Everything is restored at the end, also after an exception, including
        torch's random state: a loader that shuffles or augments with torch's generator therefore gives
        the same points in every pass. Threads take turns.

        Args:
            fused: Whether attention may be fused all the same, as in a plain call; to compare the memory of both.
        """
        device = self.selection.device
        accelerators = [device] if device.type == "cuda" else []
        with MODEL_IN_USE, ExitStack() as stack:
            modules = list(self.model.modules())
            training = [module for module in modules if module.training]
            fast_path, before = torch.backends.mha.get_fastpath_enabled(), self._slots
            stack.enter_context(torch.random.fork_rng(devices=accelerators))
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            # Without its cache, to which an autocast of the model's own would add the weights with every batch.
            stack.enter_context(torch.autocast(device.type, enabled=False, cache_enabled=False))
            if not fused:
                stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            if any(isinstance(module, nn.RNNBase) for module in modules):
                # cuDNN's recurrent kernels have no derivatives in eval mode.
                stack.enter_context(torch.backends.cudnn.flags(enabled=False))
            try:
                torch.backends.mha.set_fastpath_enabled(False)
                for module in training:
                    module.training = False
                self._slots = _slots(self.model, copy_buffers=True)
                yield
            finally:
                _restore(self._slots or [])  # once more, for an interruption while a call restored them
                self._slots = before
                for module in training:
                    module.training = True
                torch.backends.mha.set_fastpath_enabled(fast_path)


def _restore(slots: list[_Slot]) -> None:
    for store, key, _, value, _ in slots:
        store[key] = value


def _slots(model: nn.Module, *, copy_buffers: bool) -> list[_Slot]:
    """Every place of a parameter or buffer in the module and its submodules, and of what compiles or casts a call.

    Once per module, not per qualified name: a tensor may be an attribute of several modules, and has the name of the
    first, as in `named_parameters`; a module may have several names.
    """
    known: dict[int, tuple[str, Tensor]] = {}
    slots: list[_Slot] = []
    for prefix, module in model.named_modules():
        own = vars(module)
        slots += [_Slot(own, key, "", own[key], plain) for key, plain in stand_ins(module).items()]
        for store, copied in ((module._parameters, False), (module._buffers, copy_buffers)):
            for key, value in store.items():
                if value is None:
                    continue
                if id(value) not in known:
                    stand_in = value.clone() if copied else value.detach()
                    known[id(value)] = (f"{prefix}.{key}" if prefix else key, stand_in)
                slots.append(_Slot(store, key, known[id(value)][0], value, known[id(value)][1]))
    return slots


def _dtype(model: nn.Module) -> torch.dtype | None:
    """Of the first parameter that has floating-point numbers."""
    return next((value.dtype for value in model.parameters() if value.is_floating_point()), None)


def _largest(values: Tensor) -> Tensor:
    values = dense_parts(values)[-1]
    return torch.linalg.vector_norm(values, float("inf")) if values.numel() else values.new_zeros(())


def _check_normalization(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.running_mean is None:
            raise ModelError(
                f"{name or 'the model'} is a {type(module).__name__} without running statistics: its output for one "
                "input depends on the rest of the batch, so no score of one input exists. "
                "Train it with track_running_stats=True, or replace it by GroupNorm"
            )


def pull_back(
    outputs: Tensor,
    leaves: dict[str, Tensor],
    cotangent: Tensor,
    *,
    create_graph: bool = False,
    retain_graph: bool = False,
) -> dict[str, Tensor]:
    """Jᵀ u by parameter names, zero where the outputs do not depend on them; dense, also for sparse embeddings."""
    if not outputs.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    gradients = torch.autograd.grad(
        outputs,
        list(leaves.values()),
        cotangent.to(outputs.dtype),
        create_graph=create_graph,
        retain_graph=retain_graph or create_graph,
        materialize_grads=True,
    )
    return dict(zip(leaves, (grad.to_dense() if grad.is_sparse else grad for grad in gradients), strict=True))
