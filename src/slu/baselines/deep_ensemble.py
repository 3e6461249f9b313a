"""Deep ensembles: networks trained from different initial weights, and how much their predictions differ."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from slu.artifacts import stored
from slu.artifacts.artifact import Loaded
from slu.baselines.base import Baseline, FittedScore, is_floating
from slu.baselines.predictions import prediction_reader, readings_of
from slu.budgets import Cost, Size
from slu.checks import whole
from slu.data import Batch, check_finite
from slu.errors import DataError, ModelError, SettingError, StorageError
from slu.gradients import Forward, Network
from slu.likelihoods import Likelihood
from slu.parameters import Choice, difference, fingerprint, select, unwrapped
from slu.parameters.wrappers import own_attributes
from slu.seeds import derived_seed, fenced

_PLAIN = (bool, int, float, str, tuple, type(None))
_OF_EVERY_MODULE = set(vars(nn.Module()))


def deep_ensemble_cost(members: int, size: Size) -> Cost:
    """Networks trained one after the other, each with a gradient and Adam's two moments.

    The first of them is the model itself: the others are what is held beside it.
    """
    p = size.parameters * size.bytes_each
    beside = members - 1
    return Cost(beside * p, (beside + 3) * p, beside * p, 0, trainings=members)


@final
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
        """(b, t) outputs, checked: finite, and each point's independent of the rest of the batch."""
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


@final
class DeepEnsemble(Baseline["EnsembleScore"]):
    """How much do the predictions of networks that were trained independently differ?

    Args:
        models: At least two trained modules with the same outputs; they may differ in structure. None
            of them is changed. `train_ensemble` makes such a list.
        likelihood: As of `Baseline`; it decides which readings there are. For regression the variance is
            the predictive variance, less the noise.
        forward: How to call each model, as of `Baseline`.
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
        super().__init__(members[0], likelihood, is_floating if params is None else params, forward)
        others = [Network(model, select(model, is_floating), forward) for model in members[1:]]
        self.members = (Member(self.network), *map(Member, others))
        devices = [str(member.network.selection.device) for member in self.members]
        if len(set(devices)) > 1:
            raise ModelError(f"the members are on {devices}; move them to one device, model.to('{devices[0]}')")

    def _cost(self, size: Size) -> Cost:
        """Bytes beside the first member; `fitting` is the peak of training the members one by one with Adam."""
        return deep_ensemble_cost(len(self.members), size)

    @torch.inference_mode(False)
    def fit(self, loader: Any = None, *, progress: bool | None = None) -> EnsembleScore:
        """Check the members; there is nothing to fit. Where a loader is given, its first batch must suit every member.

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
            with _evaluating(self.members), torch.no_grad():
                batch = next(self.network.batches(loader))
                outputs = [member.outputs(batch, f"member {i}").shape[1] for i, member in enumerate(self.members)]
            if len(set(outputs)) > 1:
                raise DataError(f"the members have {outputs} outputs per point; all members must have the same outputs")
        return EnsembleScore(self)

    @classmethod
    def _restored(cls, loaded: Loaded, model: nn.Module, forward: Forward | None) -> EnsembleScore:
        """The other members are in the file and are called through the first one's module."""
        places = {name.partition("/")[0] for name in loaded.tensors}
        count = stored.whole(loaded.settings, "members", least=2)
        if len(places) != count - 1:
            raise stored.wrong("members", count, f"{len(places) + 1}, by the tensors of the file")
        method = cls([model] * count, loaded.likelihood, forward=forward, params=loaded.settings["params"])
        others = (_stored_member(loaded.tensors, place, method.network) for place in range(1, count))
        method.members = (method.members[0], *others)
        return EnsembleScore(method, loaded.weights)


@final
class EnsembleScore(FittedScore[DeepEnsemble]):
    """The score made by `DeepEnsemble.fit`; for its readings see `slu.baselines.predictions`.

    A file has the parameters and buffers of all members but the first, so `load` needs the first alone. `save`
    raises StorageError for a member of another structure than the first, or one trained since the fit.

    Cost: one forward pass per member and input.
    """

    def __init__(self, method: DeepEnsemble, weights: dict[str, str] | None = None) -> None:
        self._predictions = prediction_reader(method.network, method.likelihood, self._outputs)
        super().__init__(method, self._evaluated, readings_of(method.likelihood), weights)
        # Taken now as well: by the time it is saved a member may have been trained further.
        others = {id(each.network.model): each.network.model for each in method.members[1:] if each.parameters is None}
        self._others = {key: fingerprint(model) for key, model in others.items()}

    def _evaluated(self, data: Any, **how: Any) -> Tensor:
        with _evaluating(self.method.members[1:]):
            return self._predictions(data, **how)

    def _stored(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        first, *others = self.method.members
        tensors: dict[str, Tensor] = {}
        for place, member in enumerate(others, 1):
            if member.parameters is None:
                _check_structure(place, first.network.model, member.network.model)
                differs = difference(self._others[id(member.network.model)], fingerprint(member.network.model))
                if differs:
                    raise StorageError(f"member {place} is not what it was at the fit: {differs}; call fit() again")
            tensors |= {f"{place}/{name}": value for name, value in member.state().items()}
        return {"members": len(self.method.members)}, tensors

    def _outputs(self, batch: Batch) -> Iterator[Tensor]:
        for place, member in enumerate(self.method.members):
            yield member.outputs(batch, f"member {place}")


def _modules(models: Any) -> list[nn.Module]:
    if isinstance(models, nn.Module) and not isinstance(models, nn.ModuleList):
        raise SettingError("one model is no ensemble; pass a list of at least two: [first, second, …]")
    try:
        members = list(models)
    except TypeError:
        raise SettingError(f"the models must be a list of modules, got {type(models).__name__}") from None
    for place, model in enumerate(members):
        if not isinstance(model, nn.Module):
            raise ModelError(f"member {place} must be a torch.nn.Module, got {type(model).__name__}")
    if len(members) < 2:
        raise SettingError(f"an ensemble has at least two members, got {len(members)}; `train_ensemble` makes them")
    return members


def _stored_member(tensors: Mapping[str, Tensor], place: int, network: Network) -> Member:
    """A member with parameters and buffers from a file, to be called through the first one's module."""

    def of(name: str, own: Tensor, *, finite: bool) -> Tensor:
        return stored.tensor(tensors, f"{place}/{name}", own.shape, own.dtype, finite=finite).to(own.device)

    parameters = {name: of(name, own, finite=True) for name, own in network.model.named_parameters()}
    buffers = {name: of(name, own, finite=False) for name, own in network.model.named_buffers()}  # masks hold infinity
    return Member(network, parameters, buffers)


@contextmanager
def _evaluating(members: Sequence[Member]) -> Iterator[None]:
    """Evaluation mode for every module of an ensemble, restored at the end."""
    with ExitStack() as stack:
        for network in {id(member.network): member.network for member in members}.values():
            stack.enter_context(network.evaluating())
        yield


def _check_structure(place: int, first: nn.Module, other: nn.Module) -> None:
    """Refuse a member that the first one's code cannot stand for: files hold weights alone."""
    mine, yours = _structure(first), _structure(other)
    if mine != yours:
        where = next((name for name in (*mine, *yours) if mine.get(name) != yours.get(name)), "")
        raise StorageError(
            f"member {place} is built differently from the first (see {where or 'the module itself'}), and a file "
            "holds weights alone, which are put into the first. Save the members' weights yourself, and make the "
            "ensemble from the list of models again"
        )


def _structure(model: nn.Module) -> dict[str, Any]:
    """For every module its class, its settings and functions, and the shapes of its tensors, by name."""
    structure: dict[str, Any] = {}
    for name, module in model.named_modules():
        own = {key: value for key, value in own_attributes(module).items() if key not in _OF_EVERY_MODULE}
        settings = {key: repr(value) for key, value in own.items() if isinstance(value, _PLAIN)}
        functions = {key: getattr(value, "__qualname__", None) for key, value in own.items() if callable(value)}
        tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        shapes = {key: (value.shape, value.dtype) for key, value in tensors}
        structure[name] = (type(module), settings, functions, shapes)
    return structure


def train_ensemble(
    factory: Callable[..., nn.Module], train: Callable[[nn.Module, int], Any], members: int, *, seed: int = 0
) -> list[nn.Module]:
    """Networks for a `DeepEnsemble`, each made and trained with a seed of its own.

    Args:
        factory: Makes a network with new weights: `factory(seed)` where it asks for a seed, else
            `factory()`; torch's random state is seeded for it in either case, and put back.
        train: `train(model, seed)` trains a network in place, or returns the trained one. Torch's
            random state is seeded for it too; the order of the data should follow the seed.
        members: How many.
        seed: The members' seeds follow from it; below 2³¹, so that numpy takes them as well.

    Raises:
        ModelError: Not a module, the same module twice, or two members that came out identical.

    >>> networks = train_ensemble(lambda: nn.Linear(2, 1), lambda model, seed: None, members=3)
    >>> len(networks), bool((networks[0].weight == networks[1].weight).any())
    (3, False)
    """
    networks: list[nn.Module] = []
    prints: dict[str, int] = {}
    for place in range(whole("members", members, least=2)):
        own = derived_seed(seed, "ensemble member", place) % 2**31
        with fenced(own, "initial weights"):
            model = _made(factory, own)
        if not isinstance(model, nn.Module):
            raise ModelError(f"the factory must make a torch.nn.Module, got {type(model).__name__}")
        if any(model is earlier for earlier in networks):
            raise ModelError("the factory returned the same module twice; it must make a new one at every call")
        device = next((value.device for value in model.parameters()), None)
        with fenced(own, "training", device=device):
            trained = train(model, own)
        networks.append(trained if isinstance(trained, nn.Module) else model)
        same = prints.setdefault(str(sorted(fingerprint(unwrapped(networks[-1])).items())), place)
        if same != place:
            raise ModelError(
                f"members {same} and {place} came out identical, so an ensemble of them measures nothing: they had the "
                "same initial weights and the same order of the data. Let the factory draw new weights (no fixed "
                "seed inside), and train() use the seed it is given"
            )
    return networks


def _made(factory: Callable[..., Any], seed: int) -> Any:
    """A network; the seed goes to an argument called seed, or to one by place that must be given."""
    try:
        arguments = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some builtin callables have no signature
        return factory()
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if "seed" in arguments and arguments["seed"].kind is not inspect.Parameter.POSITIONAL_ONLY:
        return factory(seed=seed)
    if any(each.kind in by_place and each.default is each.empty for each in arguments.values()):
        return factory(seed)
    return factory()
