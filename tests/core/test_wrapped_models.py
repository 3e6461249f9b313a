"""A score of a wrapped model is that of the module inside, bit for bit, and leaves its wrappers as they are."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import slu
from slu import SLU, SWAG, DeepEnsemble, DiagonalLaplace, Mahalanobis
from slu.comparing import at_budget, compare, plan
from slu.errors import MismatchError, ModelCallError
from untouched import assert_same, snapshot
from wrapping import WRAPPERS, compiled, compiled_forward, prepared, process_group

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
"""Of torch.compile, where a part of a model is given what another part computed."""

NAMES = ("blocks.0.weight", "blocks.0.bias", "blocks.1.weight", "blocks.1.bias", "norm.weight", "norm.bias",
         "head.weight", "head.bias")  # fmt: skip


class Net(nn.Module):
    """Repeated blocks, which accelerate compiles by regions, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, shift: Tensor | None = None) -> Tensor:
        for block in self.blocks:
            x = block(x).tanh()
        return self.head(self.norm(x if shift is None else x + shift))


def plain(seed: int = 0) -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Net()
        model(torch.randn(100, 8))  # the running statistics are of something
    return model.eval()


def points(count: int = 120, seed: int = 1) -> Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))


def pairs() -> list[tuple[Tensor, Tensor]]:
    return [(points(), torch.arange(120) % 3)]


@pytest.fixture(params=WRAPPERS)
def wrapped(request, tmp_path):
    """The same network in every wrapper."""
    group = process_group(tmp_path) if "istributed" in request.param else nullcontext()
    with group:
        yield WRAPPERS[request.param](plain())


def assert_equal(first, second, inputs):
    for reading in first.readings:
        assert torch.equal(first(inputs, reading=reading), second(inputs, reading=reading))
    assert torch.equal(first.pvalue(inputs), second.pvalue(inputs))
    assert torch.equal(first.flag(inputs, false_alarms=0.5), second.flag(inputs, false_alarms=0.5))


def test_the_score_is_that_of_the_module_inside(wrapped):
    score, expected = SLU(wrapped, "classification").fit(pairs()), SLU(plain(), "classification").fit(pairs())
    assert score.settings.network.selection.names == NAMES
    assert_equal(score, expected, points(seed=2))


def test_a_file_of_the_one_loads_for_the_other(wrapped, tmp_path):
    of_wrapped, of_plain = tmp_path / "wrapped.slu", tmp_path / "plain.slu"
    score = SLU(wrapped, "classification", solver="lanczos", rank=5).fit(pairs())
    score.save(of_wrapped)
    SLU(plain(), "classification", solver="lanczos", rank=5).fit(pairs()).save(of_plain)
    assert_equal(SLU.load(of_wrapped, plain()), score, points(seed=2))
    assert_equal(SLU.load(of_plain, wrapped), score, points(seed=2))
    with pytest.raises(MismatchError, match="values of blocks"):
        SLU.load(of_wrapped, plain(seed=5))


def test_the_wrapped_model_is_left_as_it_is(wrapped):
    inputs = points()
    wrapped.train()
    wrapped(inputs)  # so that there is something compiled
    attributes = [dict(vars(module)) for module in wrapped.modules()]
    before = snapshot(wrapped)
    SLU(wrapped, "classification").fit(pairs())(inputs)
    assert_same(before, snapshot(wrapped))
    for module, own in zip(wrapped.modules(), attributes, strict=True):
        assert vars(module).keys() == own.keys()
        assert all(vars(module)[key] is value for key, value in own.items())
    wrapped(inputs).sum().backward()
    assert all(value.grad is not None for value in wrapped.parameters())


def test_synchronization_of_gradients_stays_off_while_it_is(tmp_path):
    with process_group(tmp_path):
        model = DistributedDataParallel(plain())
        with model.no_sync():
            SLU(model, "classification").fit(pairs())(points())
            assert not model.require_backward_grad_sync
        assert model.require_backward_grad_sync


def test_nothing_is_compiled_and_what_was_compiled_is_not_run():
    graphs, runs = [], []

    def backend(graph, _):
        graphs.append(graph)
        return lambda *values: runs.append(graph) or graph(*values)

    inputs, in_place, parts = points(), plain(), plain()
    in_place.compile(backend=backend)
    parts.head = torch.compile(parts.head, backend=backend)
    for model in (torch.compile(plain(), backend=backend), in_place, parts):
        expected = model(inputs)
        assert runs, "a control: the backend sees a call"
        graphs.clear(), runs.clear()
        assert len(SLU(model, "classification").fit(pairs())(inputs)) == len(inputs)
        assert not graphs and not runs
        assert torch.equal(model(inputs), expected)
        assert runs and not graphs, "the model had to be compiled again"


def test_mixed_precision_of_accelerate_is_left_out():
    """It switches autocast on inside of the forward; a score is in the type of the weights."""
    model, inputs = prepared(plain()), points()
    with torch.autocast("cpu", enabled=False):
        assert not torch.equal(model(inputs), plain()(inputs)), "a control: the forward is in half precision"
    network = SLU(model, "classification").network
    with network.evaluating():
        assert torch.equal(network.outputs(inputs), plain()(inputs))
    assert not torch.equal(model(inputs), plain()(inputs))


def test_a_part_that_is_compiled_on_its_own(tmp_path):
    """It is called as it was written, too; its names are those that the model gives."""
    model = plain()
    model.head = compiled(model.head)
    score, expected = SLU(model, "classification").fit(pairs()), SLU(plain(), "classification").fit(pairs())
    assert torch.equal(score(points()), expected(points()))
    score.save(tmp_path / "score.slu")
    with pytest.raises(MismatchError, match=r"head\._orig_mod\.weight is of a part that torch\.compile wraps in one"):
        SLU.load(tmp_path / "score.slu", plain())
    model = plain()
    model.head.compile(backend="eager")  # the remedy
    SLU(model, "classification").fit(pairs()).save(tmp_path / "score.slu")
    assert torch.equal(SLU.load(tmp_path / "score.slu", plain())(points()), expected(points()))


@pytest.mark.parametrize(
    "make",
    [
        lambda model: DiagonalLaplace(model, "classification", params="module.head"),
        lambda model: Mahalanobis(model, "classification", features="module.norm"),
        lambda model: SWAG(model, "classification", rank=2, collect_every=1),
        lambda model: DeepEnsemble([model, nn.DataParallel(compiled(plain(3)))], "classification"),
    ],
    ids=["DiagonalLaplace", "Mahalanobis", "SWAG", "DeepEnsemble"],
)
def test_baselines(make, tmp_path):
    inputs, expected = points(seed=2), make(plain()).fit(pairs())
    for model in (nn.DataParallel(plain()), prepared(plain()), compiled_forward(plain())):
        score = make(model).fit(pairs())
        assert torch.equal(score(inputs), expected(inputs))
        score.save(tmp_path / "score.slu")
        assert torch.equal(type(score.method).load(tmp_path / "score.slu", plain())(inputs), expected(inputs))
        expected.save(tmp_path / "score.slu")
        assert torch.equal(type(score.method).load(tmp_path / "score.slu", model)(inputs), expected(inputs))


WITHOUT_GROUP = [wrap for name, wrap in WRAPPERS.items() if "istributed" not in name]


def test_members_may_be_wrapped_in_different_ways(tmp_path):
    members = [wrap(plain(seed)) for seed, wrap in enumerate(WITHOUT_GROUP)]
    score = DeepEnsemble(members, "classification").fit()
    score.save(tmp_path / "score.slu")
    assert torch.equal(DeepEnsemble.load(tmp_path / "score.slu", plain())(points()), score(points()))


def test_plans_and_comparisons():
    inputs, shift = points(), 3 * points(seed=2)
    models = plain(), nn.DataParallel(compiled(plain()))
    assert str(plan(models[1], "3p")) == str(plan(models[0], "3p"))
    boards = []
    for model in models:
        methods = at_budget(model, "classification", "6p", methods=["SLU", "LocalEnsemble", "KNN"])
        board = compare(methods, train=pairs(), inside=inputs, outside={"far": shift}, progress=False)
        assert all(row.failure is None and row.judgements for row in board.rows)
        boards.append([(row.label, row.judgements, row.cost, row.settings) for row in board.rows])
    assert boards[0] == boards[1]


def test_doctor(wrapped):
    found, expected = slu.doctor(wrapped, pairs()), slu.doctor(plain(), pairs())
    assert found.ok and found["model"].seen.startswith("Net, ")
    same = [check.name for check in found.checks if check.name not in ("model", "time")]
    assert "autograd" in same and [found[name] for name in same] == [expected[name] for name in same]


def test_doctor_names_the_wrappers(tmp_path):
    with process_group(tmp_path):
        seen = slu.doctor(compiled(DistributedDataParallel(prepared(plain()))), pairs())["model"].seen
    for part in ("wrapped in DistributedDataParallel", "compiled by torch.compile", "prepared by accelerate"):
        assert part in seen
    assert "compiled" not in slu.doctor(plain(), pairs())["model"].seen


def test_a_forward_is_given_the_module_inside():
    inputs, given = points(), []

    def forward(model, batch):
        given.append(model)
        return model(batch["x"], shift=batch["shift"])

    model, batch = plain(), {"x": inputs, "shift": torch.zeros_like(inputs)}
    SLU(nn.DataParallel(model), "classification", forward=forward).fit([batch])
    assert all(each is model for each in given)
    method = SLU(nn.DataParallel(model), "classification", forward=lambda model, batch: model.module(batch["x"]))
    with pytest.raises(ModelCallError, match=r"is given the module inside of its wrappers: write model in place of"):
        method.fit([batch])


def test_scores_of_wrapped_and_plain_models_merge():
    """They are fitted on the same weights, also by their names."""
    halves = points()[:60], points()[60:]
    first = SLU(plain(), "classification").fit(halves[0])
    second = SLU(nn.DataParallel(copy.deepcopy(plain())), "classification", scale=first.scale).fit(halves[1])
    assert len(SLU.merge([first, second])(points())) == 120
