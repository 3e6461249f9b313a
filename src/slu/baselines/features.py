"""Features of a network, which are the inputs of one of its layers, and what all methods that score by them share.

A method of features is one final class, a `FeatureMethod`, that says which tensors it keeps and how it scores a batch
by them; its fit, reading, files and loading are here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from slu.artifacts import stored
from slu.artifacts.artifact import Loaded
from slu.baselines.base import Baseline, FittedScore, is_floating
from slu.budgets.memory import explain_out_of_memory
from slu.core.queries import score_batches
from slu.data import Batch, Fingerprint, ReadAhead, batch_count, check_finite, check_repeatable
from slu.data.fingerprint import example_keys
from slu.data.structure import Inputs, take, tensors
from slu.errors import DataError, ModelError, SettingError, unknown
from slu.gradients import Forward, Network
from slu.gradients.layer_inputs import pooled
from slu.likelihoods import Classification, Likelihood
from slu.parameters.wrappers import possible_names
from slu.progress import Bar

WIDTH = -1
"""Stands for d, the width of the features, in shapes."""

_WIDTHS = ("in_features", "in_channels", "num_features")
_USUAL_WIDTH = 512
_REMEDY = "name the module whose inputs are the features: features='module.name'"


@dataclass(frozen=True)
class Features:
    """One batch: (b, d) features and (b, t) outputs in float64."""

    values: Tensor
    outputs: Tensor
    batch: Batch


@final
class Layer:
    """One module of a network; its inputs are the features.

    Positions are averaged: (b, T, d) over T, images (b, C, h, w) over h and w. So are the calls of a module that is
    called several times.

    Args:
        network: The network that is called.
        name: Of the module, "" for the model itself.
    """

    def __init__(self, network: Network, name: str) -> None:
        self.network = network
        self.name = name
        self.module = network.model.get_submodule(name)

    def __call__(self, batch: Batch) -> Features:
        """Features and outputs of a batch; the network must be in evaluation mode.

        Raises:
            DataError: Outputs or features are not finite.
            ModelError: The module is not called, or its inputs are not one vector per point.

        Cost: one forward pass.
        """
        calls, outputs = self._called(batch.inputs)
        check_finite(outputs, f"the model's outputs on batch {batch.index}")
        values = self._pooled(calls, len(outputs))
        check_finite(values, f"the features on batch {batch.index}, inputs of {self.words},")
        with torch.no_grad():
            self.network.check_pointwise(batch.inputs, outputs)
        return Features(values.double(), outputs.double(), batch)

    @property
    def words(self) -> str:
        """The module as messages name it."""
        return f"the module {self.name!r}" if self.name else "the model itself"

    def check_points(self, inputs: Inputs) -> None:
        """Refuse inputs of the module whose first dimension is not that of points: it must be 1 for a point alone.

        There may be as many positions as points in a batch, so that its shape does not tell.
        """
        _, outputs = self._called(inputs)
        calls, _ = self._called(take(inputs, slice(0, 1), len(outputs)))
        self._pooled(calls, 1)

    def _called(self, inputs: Inputs) -> tuple[list[Tensor], Tensor]:
        """The inputs of the module at each of its calls, and the outputs of the network."""
        calls: list[Tensor] = []

        def note(_: nn.Module, args: Any, kwargs: Any) -> None:
            # A copy, because the module may change its inputs in place.
            calls.extend(tensor.detach().clone() for tensor in tensors((args, kwargs))[:1])

        with torch.no_grad(), ExitStack() as stack:
            stack.callback(self.module.register_forward_pre_hook(note, with_kwargs=True).remove)
            outputs = self.network.outputs(inputs)
        if not calls:
            raise ModelError(f"{self.words} is not called with a tensor while the model is; {_REMEDY}")
        return calls, outputs

    def _pooled(self, calls: list[Tensor], points: int) -> Tensor:
        """(b, d), averaged over positions and calls."""
        shapes = list(dict.fromkeys(tuple(call.shape) for call in calls))
        if len(shapes) > 1:
            raise ModelError(
                f"{self.words} is called {len(calls)} times for one batch, with inputs of the shapes {shapes}; "
                f"features are inputs of one shape: {_REMEDY}"
            )
        if not shapes[0] or shapes[0][0] != points:
            raise ModelError(
                f"the inputs of {self.words} have the shape {shapes[0]} for {points} points; features need one row "
                f"per point: {_REMEDY}"
            )
        _, means = pooled(self.module, torch.stack(calls).mean(0) if len(calls) > 1 else calls[0])
        return means[:, 0]


def last_linear(network: Network, inputs: Inputs) -> Layer:
    """The linear layer that gives the outputs: of those with as many outputs as the network the last one called.

    One whose result is the network's outputs, number by number, goes before others.

    Raises:
        ModelError: There is none.
    """
    linear = {name: module for name, module in network.model.named_modules() if isinstance(module, nn.Linear)}
    called: list[tuple[str, Tensor]] = []

    def note(name: str, _: nn.Module, __: Any, result: Tensor) -> None:
        called.append((name, result.clone()))

    with torch.no_grad(), ExitStack() as stack:
        for name, module in linear.items():
            stack.callback(module.register_forward_hook(partial(note, name)).remove)
        outputs = network.outputs(inputs)
    suitable = [(name, each) for name, each in called if each.dim() > 1 and each.shape[-1] == outputs.shape[1]]
    equal = [name for name, result in suitable if result.shape == outputs.shape and torch.equal(result, outputs)]
    names = equal or [name for name, _ in suitable]
    if not names:
        raise ModelError(
            f"the model has {outputs.shape[1]} outputs and no nn.Linear that was called has as many ({len(called)} "
            f"calls of {len(linear)} layers were seen), so the layer that gives them is not known; {_REMEDY}"
        )
    return Layer(network, names[-1])


@final
class FeatureData:
    """A loader as features: each iteration is one pass over it.

    Attributes:
        layer: The module whose inputs are the features.
        points: n, after a pass.
    """

    def __init__(self, network: Network, loader: Any, features: str | None, bar: Bar) -> None:
        self._network, self._bar = network, bar
        self._data, self._fingerprint = ReadAhead(loader, network.reader), None
        first = (
            self._data.first(2, network.selection.device, lambda inputs: len(network.outputs(inputs))).checked[0].inputs
        )
        self.layer = last_linear(network, first) if features is None else Layer(network, features)
        self.layer.check_points(first)

    def __iter__(self) -> Iterator[Features]:
        """The features of every batch.

        Raises:
            ChangedDataError: A later pass saw other data.
        """
        seen = Fingerprint()
        for batch in self._network.batches(self._data):
            features = self.layer(batch)
            seen.add(example_keys(batch.inputs, len(features.outputs)), features.outputs)
            yield features
            self._bar.advance()
        if self._fingerprint is not None:
            seen.check_same(self._fingerprint)
        self._fingerprint = seen

    @property
    def points(self) -> int:
        """n, of the last pass."""
        return 0 if self._fingerprint is None else self._fingerprint.points


class FeatureMethod(Baseline["FeatureScore"]):
    """A score of the features of an input; the classes derived from it say which.

    Args:
        model, likelihood, forward: As of `Baseline`.
        features: Name of the module whose inputs are the features, as in `model.named_modules()`; None for the linear
            layer that gives the outputs, which is found when the method is fitted. Positions are averaged, see `Layer`.

    Cost: one forward pass per input.

    Numerics: features are taken to float64.
    """

    reading: ClassVar[str]
    passes: ClassVar[int] = 1
    kept: ClassVar[dict[str, tuple[int | None, ...]]]
    """Shapes of the tensors that are kept, by name: WIDTH for d, None for a size that is free."""
    stored: ClassVar[tuple[str, ...]] = ()
    """Names of the settings beside `features`."""

    def __init__(
        self, model: nn.Module, likelihood: str | Likelihood, features: str | None, forward: Forward | None
    ) -> None:
        # Nothing is differentiated in the parameters, so frozen ones count as well; the selection gives the device.
        super().__init__(model, likelihood, is_floating, forward)
        self.features = features
        if features is None:
            return
        names = [name for name, _ in self.network.model.named_modules(remove_duplicate=False) if name]
        known = [name for name in possible_names(features) if name in names] if isinstance(features, str) else []
        if not known:
            last = ", ".join(map(repr, names[-8:])) or "none"
            raise SettingError(
                f"features must be None or the name of a module of the model, got {features!r}; it has {len(names)}, "
                f"the last are {last}. model.named_modules() lists them"
            )
        self.features = known[0]

    @abstractmethod
    def _state(self, data: FeatureData) -> dict[str, Tensor]:
        """What is kept of the data."""

    @abstractmethod
    def _score(self, state: Mapping[str, Tensor], layer: Layer, batch: Batch) -> Tensor:
        """(b,) scores in float64."""

    @torch.inference_mode(False)
    def fit(self, loader: Any, *, progress: bool | None = None) -> FeatureScore:
        """The fitted score. See `Baseline.fit`.

        Raises:
            ModelError: There is no layer to take features from, or these are not one vector per point; name another
                with `features=`.
        """
        name, network = type(self).__name__, self.network
        network.check_weights()
        if self.passes > 1:
            check_repeatable(loader, f"{name} reads them {self.passes} times")
        count = batch_count(loader, network.reader)
        work = explain_out_of_memory(f"fitting {name}", self.cost, network.selection.device)
        bar = Bar("fit", None if count is None else count * self.passes, progress)
        with work, network.evaluating(), bar:
            data = FeatureData(network, loader, self.features, bar)
            return FeatureScore(self, data.layer, self._state(data))

    @classmethod
    def _restored(cls, loaded: Loaded, model: nn.Module, forward: Forward | None) -> FeatureScore:
        settings = {key: loaded.settings[key] for key in (*cls.stored, "features")}
        method = cls(model, loaded.likelihood, forward=forward, **settings)  # type: ignore[call-arg, misc]
        device = method.network.selection.device
        layer = Layer(method.network, stored.text(loaded.settings, "layer"))
        if layer.name != method.features and (method.features is not None or not isinstance(layer.module, nn.Linear)):
            raise stored.wrong("layer", layer.name, "the module that features= names, or the last nn.Linear")
        width, state = layer.module.in_features if isinstance(layer.module, nn.Linear) else None, {}
        for name, sizes in cls.kept.items():
            shape = [width if size == WIDTH else size for size in sizes]
            state[name] = stored.tensor(loaded.tensors, name, shape, method._dtype).to(device)
            width = state[name].shape[-1] if width is None else width
        method._check_state(state)
        return FeatureScore(method, layer, state, loaded.weights)

    @property
    def _dtype(self) -> torch.dtype:
        """Of what is kept."""
        return torch.float64

    def _check_state(self, state: Mapping[str, Tensor]) -> None:
        """Refuse finite numbers of a file that a fit does not come to."""

    def _width(self) -> int:
        """d, read off the module; of the last linear layer where no module is named. Only for estimates."""
        modules = list(self.network.model.modules()) if self.features is None else []
        linear = [module for module in modules if isinstance(module, nn.Linear)]
        module = linear[-1] if linear else self.network.model.get_submodule(self.features or "")
        return next((each for name in _WIDTHS if isinstance(each := getattr(module, name, None), int)), _USUAL_WIDTH)

    def _check_classes(self) -> None:
        """Refuse outputs that are no logits of classes."""
        if not isinstance(self.likelihood, Classification):
            raise SettingError(
                f"{type(self).__name__} needs outputs that are logits of classes, the likelihood is "
                f"{type(self.likelihood).__name__}; pass 'classification' if they are, or use Mahalanobis or KNN"
            )


@final
class FeatureScore(FittedScore[FeatureMethod]):
    """The score made by `fit` of a method of features; its one reading is the method's. Scores are float64.

    Attributes:
        layer: The module whose inputs are the features.
        state: What is kept, tensors by the names of the method's `kept`.

    Cost: one forward pass per input.
    """

    def __init__(
        self, method: FeatureMethod, layer: Layer, state: dict[str, Tensor], weights: dict[str, str] | None = None
    ) -> None:
        super().__init__(method, self._scores, (method.reading,), weights)
        self.layer = layer
        # In the order of rows as in a file, so that products round alike after loading.
        self.state = {name: tensor.contiguous() for name, tensor in state.items()}

    def _scores(self, data: Any, *, reading: str, per_output: bool, **how: Any) -> Tensor:
        if reading != self.method.reading:
            raise unknown("reading", reading, self.readings)
        if per_output:
            raise SettingError(f"per_output=True is not for {reading!r}, which belongs to all outputs; leave it out")

        def score(batch: Batch) -> list[Tensor]:
            return [self.method._score(self.state, self.layer, batch)]

        return score_batches(self.method.network, data, score, **how)[0]

    def _stored(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return self._settings("features", *self.method.stored) | {"layer": self.layer.name}, self.state


def check_logits(outputs: Tensor) -> None:
    """Refuse a single output, for which a softmax is always 1."""
    if outputs.shape[1] < 2:
        raise DataError(
            "logits of at least two classes are needed, the model has one output per point; stack a single logit f as "
            "(0, f) with forward=, or use Mahalanobis or KNN"
        )
