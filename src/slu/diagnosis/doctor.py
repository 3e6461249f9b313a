"""`doctor`: a model and a batch, checked in the order in which a fit and a query would use them."""

from __future__ import annotations

import platform
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from slu.budgets import shown
from slu.budgets.memory import free_bytes
from slu.core import SLU
from slu.curvature import OutputSpace
from slu.data.batches import Batch
from slu.data.masks import IGNORE_INDEX
from slu.diagnosis import ways
from slu.diagnosis.diagnosis import ERROR, OK, SLOW, WARNING, Check, Diagnosis
from slu.diagnosis.remedies import Scene, explained
from slu.diagnosis.subject import count, described, described_model, is_quantized
from slu.diagnosis.timing import Timing, duration, first_batch, measure
from slu.gradients import Forward, Grid, Network
from slu.likelihoods import Classification, Likelihood, Multilabel, resolve
from slu.parameters import Choice, select, unwrapped

_SUM = 1e-3  # by which probabilities may miss 1, in half precision as well
_WRONG = {torch.float64: 1e-6, torch.float32: 1e-2}  # relative errors of gradients above rounding
_COARSE = 0.1
_MANY_OUTPUTS = 1000
_SPOKEN = 10_000  # points, in the sentence about time
_FEW = 2
_MOST_NAMED = 4  # modules in a line of code
_NO_HISTORY = "no torch.no_grad() or detach() in forward, and checkpoint(..., use_reentrant=False)"
_NO_USE = "with others it also tells whether the points were memorized; curvature='empirical-fisher' needs them"
_NO_GRADIENT = "call model.double() first, or give other points; look for units that are never active"


def doctor(
    model: nn.Module,
    batch: Any,
    *,
    likelihood: str | Likelihood = "classification",
    params: Choice = None,
    forward: Forward | None = None,
) -> Diagnosis:
    """Try everything that a fit and a query do with a model, on one batch, and say what to change.

    What the model does wrong is reported, not raised; the first error ends what depends on it. The model and the
    process are left as they were, also after Ctrl-C.

    Args:
        model: The network.
        batch: A batch as the loader of the fit gives it, targets included if there are any; or the loader.
        likelihood, params, forward: As of `SLU`.

    Returns:
        A `Diagnosis`: print it, or read `ok`, `checks`, `facts`, `to_json()`.

    Raises:
        SettingError: An unknown likelihood.

    >>> diagnosis = doctor(nn.Linear(4, 3), torch.zeros(8, 4))
    >>> diagnosis.ok, diagnosis["call"].seen
    (True, 'outputs are a tensor: 8 points, 3 outputs per point')

    Cost: about thirty forward passes, a fit to this batch and a few queries; memory as a fit.
    """
    return _Examination(model, batch, resolve(likelihood), params, forward).run()


Finding = tuple[str, str, str]
"""Status, what was seen, and the remedy."""


class _Examination:
    """The checks in order; what one of them learns is used by those after it."""

    network: Network
    batch: Batch
    outputs: Tensor
    grid: Grid | None
    method: SLU

    def __init__(
        self, model: nn.Module, data: Any, likelihood: Likelihood, params: Choice, forward: Forward | None
    ) -> None:
        self.model, self.data, self.likelihood = model, data, likelihood
        self.params, self.forward = params, forward
        self.checks: list[Check] = []
        self.facts: dict[str, Any] = {}
        self.slow: list[str] = []

    def run(self) -> Diagnosis:
        steps: dict[str, Callable[[], Finding]] = {
            "model": self.see_model,
            "parameters": self.see_parameters,
            "batch": self.read_batch,
            "call": self.call,
            "finite": self.see_finite,
            "pointwise": self.call_alone,
            "probabilities": self.see_probabilities,
            "targets": self.fit_targets,
            "gradients": self.differentiate,
            "autograd": self.compare,
            "layers": self.record_layers,
            "speed": self.see_speed,
            "memory": self.plan_memory,
            "time": self.take_time,
        }
        needed = ("model", "parameters", "batch", "call", "finite")  # without these nothing can be differentiated
        names = list(steps)
        for place, (name, step) in enumerate(steps.items()):
            try:
                status, seen, remedy = step()
            except Exception as error:
                status, (seen, remedy) = ERROR, self._explained(error)
            self.checks.append(Check(name, status, seen, remedy))
            if status == ERROR and name in needed:
                return self._diagnosis(names[place + 1 :])
        return self._diagnosis([])

    def _diagnosis(self, skipped: list[str]) -> Diagnosis:
        versions = {"slu": version("slu"), "torch": torch.__version__, "python": platform.python_version()}
        return Diagnosis(tuple(self.checks), tuple(skipped), self.facts, versions)

    def _explained(self, error: Exception) -> tuple[str, str]:
        batch = getattr(self, "batch", None)
        return explained(error, Scene(self.model, None if batch is None else batch.inputs))

    def see_model(self) -> Finding:
        """What it is."""
        if not isinstance(self.model, nn.Module):
            seen = f"an object of {type(self.model).__name__}, not a torch.nn.Module"
            return ERROR, seen, "pass the module itself, and forward= to call it another way"
        seen = described_model(self.model)
        self.model = unwrapped(self.model)
        self.facts["parameters"] = count(self.model)
        if is_quantized(self.model):
            return WARNING, seen, "fit on the float model: packed integer weights have no gradients"
        return OK, seen, ""

    def see_parameters(self) -> Finding:
        """Which are selected; the network that is differentiated is made here."""
        selection = select(self.model, self.params)
        self.network = Network(self.model, selection, self.forward, positions=True)
        named = dict(self.model.named_parameters())
        frozen = sum(each.numel() for name, each in named.items() if name not in selection.names)
        self.facts["selected"] = selection.count
        left = f"; {frozen:,} are frozen or not chosen" if frozen else ""
        return OK, f"{selection.count:,} of {count(self.model):,} selected, in {len(selection.names)} tensors{left}", ""

    def read_batch(self) -> Finding:
        """How it is read."""
        with self.network.evaluating():
            self.batch = first_batch(self.network, self.data)
        targets = "none" if self.batch.targets is None else described(self.batch.targets)
        return OK, f"inputs: {described(self.batch.inputs)}; targets: {targets}", ""

    def call(self) -> Finding:
        """Which tensor is taken of what the model returns, and how many outputs that is."""
        with self.network.evaluating(), torch.no_grad():
            self.outputs = self.network.outputs(self.batch.inputs)
            self.grid = self.network.grid(self.batch.inputs, self.outputs)
        points, outputs = self.outputs.shape
        where = ""
        if self.grid is not None:
            self.grid = self.grid.with_targets(self.batch.targets)
            outputs, self.outputs = self.grid.outputs, self.outputs.detach()
            self.facts["positions"] = self.grid.positions
            where = f" at each of {' × '.join(map(str, self.grid.shape))} positions"
        self.facts |= {"points": points, "outputs": outputs}
        what = self.network.taken or "a tensor"
        return OK, f"outputs are {what}: {points} points, {outputs} outputs per point{where}", ""

    def see_finite(self) -> Finding:
        """Whether weights and outputs are."""
        self.network.check_weights()
        bad = int((~self.outputs.isfinite()).flatten(1).any(1).sum())
        if bad:
            remedy = "look at these points; in half precision call model.float() first, outputs may overflow"
            return ERROR, f"the outputs of {bad} of {len(self.outputs)} points hold NaN or infinity", remedy
        return OK, "weights and outputs are finite", ""

    def call_alone(self) -> Finding:
        """Whether a point's outputs depend on the rest of its batch."""
        if len(self.outputs) < _FEW:
            return WARNING, "not seen: the batch has one point", "give a batch of several points"
        with self.network.evaluating(), torch.no_grad():
            self.network.check_pointwise(self.batch.inputs, self.outputs)
        return OK, "a point alone has the same outputs as in the batch", ""

    def see_probabilities(self) -> Finding:
        """Whether the outputs are probabilities where logits are needed."""
        outputs = self.outputs.float().view(-1, self.facts["outputs"])
        within = bool((outputs >= 0).all() and (outputs <= 1 + _SUM).all())
        alike, remedy = False, ""
        if isinstance(self.likelihood, Classification):
            alike = within and bool(((outputs.sum(1) - 1).abs() < _SUM).all())
            remedy = f"leave the softmax out, or {self._with_forward('clamp(min=1e-30).log()')}"
        elif isinstance(self.likelihood, Multilabel):
            alike = within
            remedy = f"leave the sigmoid out, or {self._with_forward('logit(eps=1e-6)')}"
        if alike:
            return WARNING, "the outputs look like probabilities; logits are needed", remedy
        return OK, "the outputs do not look like probabilities", ""

    def _with_forward(self, method: str) -> str:
        """How to apply a method of tensors to the outputs: as code where a model takes a tensor and returns one."""
        plain = isinstance(self.batch.inputs, Tensor) and self.network.taken is None and self.forward is None
        if plain:
            return f"forward=lambda model, batch: model(batch).{method}"
        return f"apply .{method} to the outputs in {'forward=' if self.forward is None else 'your forward'}"

    def fit_targets(self) -> Finding:
        """Whether outputs and targets are what the likelihood needs; a default fit can do without targets."""
        outputs, targets, kind = self.outputs.float(), self.batch.targets, type(self.likelihood).__name__.lower()
        space = OutputSpace(self.likelihood, "ggn", seed=0, grid=lambda *_: self.grid)
        likelihood = space.likelihood(outputs, self.batch)
        likelihood.hessian_product(outputs, torch.zeros_like(outputs))
        space.check(outputs, self.batch)
        if not isinstance(targets, Tensor):
            return OK, f"no targets; the outputs fit {kind}", ""
        left = ""
        if self.grid is None and targets.shape == (len(outputs),) and not targets.is_floating_point():
            known = targets != IGNORE_INDEX
            outputs, targets = outputs[known], targets[known]
            left = "" if bool(known.all()) else f"; {int((~known).sum())} points have none ({IGNORE_INDEX})"
        try:
            if len(targets):
                likelihood.loss(outputs, targets)
        except Exception as error:
            seen = f"{' '.join(str(error).split())}. The targets are {described(targets)}, outputs {described(outputs)}"
            return WARNING, f"a default fit leaves the targets out: {seen}", _NO_USE
        return OK, f"outputs and targets fit {kind}{left}", ""

    def differentiate(self) -> Finding:
        """By which way."""
        with self.network.evaluating():
            by_module, reorders = ways.find_ways(self.network, self.batch.inputs)
        self.facts["ways"] = ways.facts_of(by_module)
        if reorders:
            self.slow.append("rows may be reordered by the data, so every batch takes two backward passes more")
        fallback = [way for way in by_module if way.way in (ways.VMAP, ways.LOOP)]
        if all(way.way == ways.UNUSED for way in by_module):
            return ERROR, "the outputs do not depend on the selected parameters, as autograd records it", _NO_HISTORY
        if not fallback:
            return OK, ways.described_ways(by_module), ""
        self.slow.append(f"the fallback differentiates {sum(way.parameters for way in fallback):,} parameters")
        names = tuple(f"{way.module}." for way in fallback)
        remedy = f"params=lambda name, _: not name.startswith({names!r}) leaves them out; results are right either way"
        few = "." not in names and len(names) <= _MOST_NAMED and len(fallback) < len(by_module)
        return SLOW, ways.described_ways(by_module), remedy if few else ""

    def compare(self) -> Finding:
        """Per-example gradients with those of plain autograd."""
        with self.network.evaluating():
            error = ways.autograd_error(self.network, self.batch.inputs)
        if error != error:
            return ERROR, "every gradient is zero: the network is sure beyond the range of numbers", _NO_GRADIENT
        self.facts["relative_error"] = error
        seen = f"per-example gradients of two examples differ from plain autograd by {error:.1e}, relative"
        if error > _WRONG.get(self.outputs.dtype, _COARSE):
            return ERROR, seen, "report this as a bug of slu, with the model"
        return OK, seen, ""

    def record_layers(self) -> Finding:
        """Whose inputs are recorded for the distances."""
        with self.network.evaluating():
            recorded, missing = ways.recorded_layers(self.network, self.batch.inputs)
        self.facts["layers"] = recorded
        if not recorded:
            why, remedy = ways.why_no_layers(self.model)
            return WARNING, f"no layer's inputs are recorded, so 'distance' and 'angle' are missing: {why}", remedy
        few = f"{', '.join(missing[:_MOST_NAMED])}{' …' if len(missing) > _MOST_NAMED else ''}"
        left = f"; not recorded, or with the same input as another: {few}" if missing else ""
        return (
            OK,
            f"inputs of {len(recorded)} of {len(recorded) + len(missing)} layers are recorded for the distances{left}",
            "",
        )

    def see_speed(self) -> Finding:
        """What will take long."""
        outputs, remedy = self.facts["outputs"], ""
        if outputs >= _MANY_OUTPUTS:
            self.slow.append(f"readings 'variance' and 'relative' measure all {outputs:,} outputs (the default one)")
            remedy = "score(x, reading='variance', outputs=1)"
        if self.grid is not None and self.grid.count > 1:
            groups, positions = self.grid.count, self.grid.positions
            self.slow.append(f"a score takes {groups} gradients per input, for {positions} positions")
        return (SLOW, "; ".join(self.slow), remedy) if self.slow else (OK, "nothing takes longer than usual", "")

    def plan_memory(self) -> Finding:
        """Bytes by plan, against what is free."""
        self.method = SLU(self.model, self.likelihood, params=self.params, forward=self.forward)
        cost = self.method.cost(batch=[(self.batch.inputs, self.batch.targets)])
        self.facts["bytes"] = {"kept": cost.artefact, "fitting": cost.fitting, "querying": cost.querying}
        kept, fitting, querying = map(shown, (cost.artefact, cost.fitting, cost.querying))
        seen = f"{kept} kept, peak of a fit {fitting}, of a query {querying}, beside the model and activations"
        free = free_bytes(self.network.selection.device)
        if free is not None and max(cost.fitting, cost.querying) > free:
            return (
                ERROR,
                f"{seen}; {shown(free)} are free",
                "use smaller batches, or SLU(..., memory='64MB', budget=...)",
            )
        return OK, seen, ""

    def take_time(self) -> Finding:
        """Of one query and one fit, by trying both."""
        if any(check.status == ERROR for check in self.checks):  # a fit would fail, for a reason that is listed
            return WARNING, "not measured, because of an error above", ""
        timing = measure(self.method, [(self.batch.inputs, self.batch.targets)])
        forward, query, fit = timing.passes.forward, timing.query, timing.fit
        self.facts["seconds"] = {"forward": forward, "query": query, "fit": fit, "start": timing.start}
        self.facts["forwards"] = {"query": query / forward, "fit": fit / forward}
        return OK, _spoken(timing), ""


def _spoken(timing: Timing) -> str:
    fit, query = timing.fit_seconds(_SPOKEN), timing.query_seconds(_SPOKEN)
    passes = timing.passes
    return (
        f"a batch of {passes.points}: forward {duration(passes.forward)}, query {duration(timing.query)} "
        f"({timing.query / passes.forward:.1f} forwards), fit {duration(timing.fit)} "
        f"({timing.fit / passes.forward:.1f} forwards); {_SPOKEN:,} points take about {duration(fit)} to fit and "
        f"{duration(query)} to score"
    )
