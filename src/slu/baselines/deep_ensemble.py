"""Deep ensembles: networks trained from different beginnings, and how far apart their predictions are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slu.artifacts import artifact as artefact
from slu.baselines.predictions import PredictionReader, readings_of
from slu.budgets import Cost
from slu.checks import whole
from slu.core.settings import baseline_cost
from slu.data import Batch, batches, check_finite
from slu.errors import DamagedFileError, DataError, ModelError, SettingError, StorageError
from slu.gradients import Forward, Network
from slu.likelihoods import Likelihood, resolve
from slu.parameters import Choice, difference, fingerprint, select

_PLAIN = (bool, int, float, str, tuple, type(None))
_OF_EVERY_MODULE = set(vars(nn.Module()))


@dataclass(frozen=True)
class Member:
    """One network of an ensemble: a module of its own, or the first one's with other weights.

    Attributes:
        network: The module.
        parameters, buffers: What stands in for the module's own; None for its own.
    """

    network: Network
    parameters: dict[str, Tensor] | None = None
    buffers: dict[str, Tensor] | None = None

    def outputs(self, batch: Batch, name: str) -> Tensor:
        """(b, t) outputs, checked: finite, and each point's its own."""
        # A copy of buffers, because there are modules that write to them in eval mode too.
        buffers = None if self.buffers is None else {key: value.clone() for key, value in self.buffers.items()}
        outputs = self.network.outputs(batch.inputs, self.parameters, buffers)
        check_finite(outputs, f"the outputs of {name} on batch {batch.index}")
        if self.parameters is None:
            self.network.check_pointwise(batch.inputs, outputs)
        return outputs

    def state(self) -> dict[str, Tensor]:
        """Every parameter and buffer by name."""
        model = self.network.model
        own = {name: value.detach() for name, value in (*model.named_parameters(), *model.named_buffers())}
        return own | (self.parameters or {}) | (self.buffers or {})


class DeepEnsemble:
    """How far apart are the predictions of networks that were trained independently?

    Args:
        models: At least two trained modules with the same outputs; they may differ in structure. None
            of them is changed. `train_ensemble` makes such a list.
        likelihood: As for `SLU`; it decides which readings there are. For regression the variance is
            the predictive variance, less the noise.
        forward: How to call each model on the inputs of a batch, forward(model, inputs).
        params: Which parameters of the first member `cost` counts; None for all.

    Cost: the members themselves: (m - 1) p numbers beside the first one.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        likelihood: str | Likelihood,
        *,
        forward: Forward | None = None,
        params: Choice = None,
    ) -> None:
        members = _modules(models)
        self.likelihood = resolve(likelihood)
        self.network = Network(members[0], select(members[0], _floating if params is None else params), forward)
        others = [Network(model, select(model, _floating), forward) for model in members[1:]]
        self.members = (Member(self.network), *map(Member, others))
        devices = [str(member.network.selection.device) for member in self.members]
        if len(set(devices)) > 1:
            raise ModelError(f"the members lie on {devices}; move them to one device, model.to('{devices[0]}')")

    def cost(self, outputs: int | None = None, batch: int | Any = 1) -> Cost:
        """Bytes beside the first member; `fitting` is the peak of training the members one by one with Adam."""
        return baseline_cost("DeepEnsemble", len(self.members), self.network, outputs, batch)

    @torch.inference_mode(False)
    def fit(self, loader: Any = None, *, progress: bool | None = None) -> EnsembleScore:
        """Check the members; there is nothing to fit.

        Args:
            loader: Where one is given, its first batch must suit every member.
            progress: There is nothing to show; every method takes it.

        Raises:
            ModelError: Weights that are not finite, or outputs that depend on the rest of the batch.
            DataError: Members with different numbers of outputs.
        """
        del progress
        for place, member in enumerate(self.members):
            try:
                member.network.check_weights()
            except ModelError as reason:
                raise ModelError(f"member {place} of the ensemble: {reason}") from None
        if loader is not None:
            self._check(loader)
        return EnsembleScore(self)

    def _check(self, loader: Any) -> None:
        found: list[int] = []
        with _evaluating(self.members), torch.no_grad():
            for batch in batches(loader, self.network.selection.device):
                found = [member.outputs(batch, f"member {i}").shape[1] for i, member in enumerate(self.members)]
                break
        if len(set(found)) > 1:
            raise DataError(f"the members have {found} outputs a point; members must answer the same question")

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: nn.Module,
        *,
        likelihood: str | Likelihood | None = None,
        forward: Forward | None = None,
    ) -> EnsembleScore:
        """A score that was saved; arguments and errors as of `SLU.load`.

        Args:
            path: What `EnsembleScore.save` wrote.
            model: The first member, with the same weights and buffers; the others are in the file and
                are called through it.
            likelihood: Only where the score was made with one of the user's own.
            forward: Only where the score was made with one.

        Cost: a read of the file and of the weights; (m - 1) p numbers.
        """
        loaded = artefact.load(path, cls.__name__, model, likelihood=likelihood, forward=forward)
        with artefact.sensible(path):
            count = whole("members", loaded.settings["members"], least=2)
            method = cls([model] * count, loaded.likelihood, forward=forward, params=loaded.settings["params"])
        stored = [_stored(path, loaded.tensors, place, method.network) for place in range(1, count)]
        method.members = (method.members[0], *stored)
        return EnsembleScore(method)


class EnsembleScore:
    """A score that is ready: call it on inputs; larger means less sure. Made by `DeepEnsemble.fit`.

    Attributes:
        method: The members.
    """

    def __init__(self, method: DeepEnsemble) -> None:
        self.method = method
        # Now, not when it is saved: by then a member may have been trained further.
        models = {id(member.network.model): member.network.model for member in method.members}
        self._weights = {key: fingerprint(model) for key, model in models.items()}
        self._read = PredictionReader(method.network, method.likelihood, self._outputs)

    @property
    def readings(self) -> tuple[str, ...]:
        """The names that `reading=` takes; the first is the default."""
        return readings_of(self.method.likelihood)

    def __call__(
        self, data: Any, *, reading: str = "variance", per_output: bool = False, progress: bool | None = None
    ) -> Tensor:
        """Score one batch, or every batch of a loader in its order.

        Args:
            data: Inputs (a tensor or dict), an (inputs, targets) pair, or a loader of them.
            reading: "variance" (of the outputs, summed); for classification and multilabel also
                "mutual-information" and "entropy": see `slu.baselines.predictions`.
            per_output: The variance of each output instead of their sum.
            progress: Whether to show a bar for a loader; by default in a terminal only.

        Returns:
            (b,), or (b, t) per output, in float64 on the device the inputs came on.

        Cost: a forward pass a member and input.
        """
        with _evaluating(self.method.members[1:]):
            return self._read(data, reading=reading, per_output=per_output, progress=progress, cost=self.method.cost)

    def save(self, path: str | Path) -> None:
        """Write the score to one file, atomically, tied to the exact weights of the first member.

        The other members' parameters and buffers are in the file, so `load` needs the first alone.

        Raises:
            StorageError: A member of another structure than the first, or trained since the fit.

        Cost: a read of all weights; (m - 1) p numbers and the buffers.
        """
        first, *others = self.method.members
        tensors: dict[str, Tensor] = {}
        for place, member in enumerate(others, 1):
            if member.parameters is None:
                _check_structure(place, first.network.model, member.network.model)
                differs = difference(self._weights[id(member.network.model)], fingerprint(member.network.model))
                if differs:
                    raise StorageError(f"member {place} is not what it was at the fit: {differs}; call fit() again")
            tensors |= {f"{place}/{name}": value for name, value in member.state().items()}
        method = self.method
        artefact.save(
            path,
            type(method).__name__,
            method.network,
            method.likelihood,
            {"members": len(method.members)},
            tensors,
            weights=self._weights[id(method.network.model)],
        )

    def _outputs(self, batch: Batch) -> Iterator[Tensor]:
        for place, member in enumerate(self.method.members):
            yield member.outputs(batch, f"member {place}")


def _modules(models: Any) -> list[nn.Module]:
    if isinstance(models, nn.Module) and not isinstance(models, nn.ModuleList):
        raise SettingError("one model is no ensemble; pass a list of at least two: [first, second, …]")
    try:
        found = list(models)
    except TypeError:
        raise SettingError(f"the models must be a list of modules, got {type(models).__name__}") from None
    for place, model in enumerate(found):
        if not isinstance(model, nn.Module):
            raise ModelError(f"member {place} must be a torch.nn.Module, got {type(model).__name__}")
    if len(found) < 2:
        raise SettingError(f"an ensemble has at least two members, got {len(found)}; `train_ensemble` makes them")
    return found


def _floating(_: str, value: nn.Parameter) -> bool:
    return value.is_floating_point()


def _stored(path: str | Path, tensors: Mapping[str, Tensor], place: int, network: Network) -> Member:
    """A member whose parameters and buffers are in a file, to be called through the first one's module."""
    parts: list[dict[str, Tensor]] = []
    for named in (dict(network.model.named_parameters()), dict(network.model.named_buffers())):
        part: dict[str, Tensor] = {}
        for name, value in named.items():
            found = tensors.get(f"{place}/{name}")
            if found is None or (found.shape, found.dtype) != (value.shape, value.dtype):
                raise DamagedFileError(
                    f"{path} does not fit together: {name} of member {place} is missing or of another shape than the "
                    "first member's. Save anew"
                )
            part[name] = found.to(value.device)
        parts.append(part)
    return Member(network, *parts)


def _evaluating(members: Sequence[Member]) -> ExitStack:
    """Eval mode for every module of an ensemble, put back in the end."""
    stack = ExitStack()
    with stack:
        for network in {id(member.network): member.network for member in members}.values():
            stack.enter_context(network.evaluating())
        return stack.pop_all()


def _check_structure(place: int, first: nn.Module, other: nn.Module) -> None:
    """The first member's code must compute what the other's does, with the other's weights."""
    if first is other:
        return
    mine, yours = _structure(first), _structure(other)
    if mine != yours:
        where = next((name for name in (*mine, *yours) if mine.get(name) != yours.get(name)), "")
        raise StorageError(
            f"member {place} is built otherwise than the first (see {where or 'the module itself'}), and a file holds "
            "weights alone, which are put into the first. Save the members' weights yourself, and make the ensemble "
            "from the list of models again"
        )


def _structure(model: nn.Module) -> dict[str, Any]:
    """For every module its class, its settings and functions, and the shapes of its tensors, by name."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        own = {key: value for key, value in vars(module).items() if key not in _OF_EVERY_MODULE}
        settings = {key: repr(value) for key, value in own.items() if isinstance(value, _PLAIN)}
        functions = {key: getattr(value, "__qualname__", None) for key, value in own.items() if callable(value)}
        tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        shapes = {key: (value.shape, value.dtype) for key, value in tensors}
        found[name] = (type(module), settings, functions, shapes)
    return found
