"""SWAG's moments against plain SGD run by hand, with every setting of the descent."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from descents import by_hand, problem
from oracles import losses, targets_for
from shorthand import relative_error
from slu.baselines.swag.moments import Collector
from slu.baselines.swag.swag import SWAG, swag_cost
from slu.baselines.swag.training import SCHEDULES
from slu.budgets import size_of
from slu.errors import BudgetError, SettingError
from slu.parameters import select


def check_moments(moments, iterates, rank):
    torch.testing.assert_close(moments.mean, iterates.mean(0), rtol=1e-9, atol=1e-13)
    torch.testing.assert_close(moments.variance, iterates.var(0, correction=0), rtol=1e-7, atol=1e-20)
    torch.testing.assert_close(moments.deviations, iterates[-rank:] - iterates.mean(0), rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("kind", ["mlp", "conv", "tied", "noisy"])
@pytest.mark.parametrize("likelihood", ["classification", "regression", "multilabel"])
def test_moments_are_those_of_plain_sgd(kind, likelihood):
    model, _, data = problem(kind, likelihood)
    settings = {"collections": 5, "learning_rate": 0.05}
    score = SWAG(model, likelihood, rank=3, samples=2, **settings).fit(data)
    iterates, _ = by_hand(model, data, likelihood, settings)
    check_moments(score.moments, iterates, 3)
    # The control: one collection more is another Gaussian.
    with pytest.raises(AssertionError):
        check_moments(score.moments, by_hand(model, data, likelihood, settings | {"collections": 6})[0], 3)


@pytest.mark.parametrize(
    ("settings", "factor"),
    [
        ({"collect_every": 2, "collections": 7}, None),
        ({"collect_every": 5, "collections": 4, "momentum": 0.5, "weight_decay": 0.1}, None),
        ({"momentum": 0.0, "collections": 3}, None),
        ({"schedule": "cosine", "collections": 4}, lambda step: (1 + math.cos(math.pi * (step % 3) / 3)) / 2),
        (
            {"schedule": "cosine", "collections": 4, "collect_every": 4},
            lambda step: (1 + math.cos(math.pi * (step % 4) / 4)) / 2,
        ),
        ({"schedule": lambda step: 1 / (1 + step), "collections": 4}, lambda step: 1 / (1 + step)),
        ({"collections": 4, "seed": 3}, None),
    ],
    ids=["every-2", "weight-decay", "no-momentum", "cosine", "cosine-every-4", "own", "seed"],
)
def test_every_setting_of_the_descent(settings, factor):
    model, _, data = problem("noisy")
    model.eval()  # as trained networks come; it is trained in training mode all the same
    settings = {"learning_rate": 0.05, **settings}
    score = SWAG(model, "classification", rank=2, samples=2, **settings).fit(data)
    plain = {key: value for key, value in settings.items() if key != "schedule"}
    iterates, _ = by_hand(model, data, "classification", plain, factor or (lambda step: 1.0))
    check_moments(score.moments, iterates, 2)


def test_a_cycle_ends_at_its_low():
    for cycle in (1, 2, 10):
        factors = [SCHEDULES["cosine"](place, cycle) for place in range(cycle)]
        assert factors[0] == 1 and factors == sorted(factors, reverse=True) and factors[-1] > 0


def test_only_the_chosen_parameters_move():
    model, _, data = problem("mlp")
    names = ["2.weight", "2.bias"]
    score = SWAG(model, "classification", rank=2, samples=2, collections=3, params="2.*").fit(data)
    iterates, _ = by_hand(model, data, "classification", {"collections": 3}, names=names)
    check_moments(score.moments, iterates, 2)
    assert list(score.sample(0)) == names


def test_frozen_parameters_move_where_they_are_chosen():
    model, _, data = problem("mlp")
    expected = SWAG(model, "classification", rank=2, samples=2).fit(data).moments.mean
    frozen = SWAG(
        model.requires_grad_(False), "classification", rank=2, samples=2, params=lambda name, value: True
    ).fit(data)
    assert torch.equal(frozen.moments.mean, expected)
    assert not any(value.requires_grad for value in model.parameters())


def test_running_deviations_begin_with_zero():
    """As in the first implementation: each iterate less the mean up to it."""
    model, _, data = problem("mlp")
    settings = {"collections": 4, "learning_rate": 0.05}
    iterates, _ = by_hand(model, data, "classification", settings)
    running = torch.stack([iterates[i] - iterates[: i + 1].mean(0) for i in range(4)])
    for rank in (4, 3):
        score = SWAG(model, "classification", rank=rank, samples=2, deviations="running", **settings).fit(data)
        torch.testing.assert_close(score.moments.deviations, running[-rank:], rtol=1e-7, atol=1e-13)
        assert bool((score.moments.deviations[0] == 0).all()) == (rank == 4)
    final = SWAG(model, "classification", rank=4, samples=2, **settings).fit(data).moments.deviations
    assert bool((final[0] != 0).all())
    torch.testing.assert_close(final.sum(0), torch.zeros_like(final[0]), rtol=0, atol=1e-14)


def test_single_precision_does_not_cancel():
    """Weights near 1 that differ by 1e-4. The control: mean of squares less squared mean, in float32."""
    model = nn.Linear(50, 4)
    draw = torch.Generator().manual_seed(0)
    iterates = (1 + 1e-4 * torch.randn(20, 204, generator=draw, dtype=torch.float64)).float()
    collector = Collector(select(model), 3, "final", 20)
    for iterate in iterates:
        collector.add(select(model).views(iterate))
    expected = iterates.double().var(0, correction=0)
    assert relative_error(collector.moments().variance, expected) < 1e-2
    assert relative_error((iterates**2).mean(0) - iterates.mean(0) ** 2, expected) > 1


def fit_noisily(seed, state, **more):
    model, inputs, _ = problem("noisy")
    data = TensorDataset(inputs, targets_for("classification"))
    with torch.random.fork_rng():
        torch.manual_seed(state)
        score = SWAG(model, "classification", rank=2, samples=3, collections=3, seed=seed, **more)
        return score.fit(DataLoader(data, batch_size=5, shuffle=True, drop_last=True))(inputs)


def test_one_seed_the_same_numbers_whatever_torchs_state():
    """Dropout, and a loader that shuffles by torch's own state."""
    first = fit_noisily(seed=0, state=1)
    assert torch.equal(fit_noisily(seed=0, state=2), first)
    assert not torch.isclose(fit_noisily(seed=1, state=1), first).any()
    few = fit_noisily(seed=0, state=1, batchnorm_batches=1)
    assert torch.equal(fit_noisily(seed=0, state=2, batchnorm_batches=1), few)


def test_losses_are_those_of_the_descent():
    model, _, data = problem("mlp")
    score = SWAG(model, "classification", rank=2, samples=2, collections=8, learning_rate=0.1).fit(data)
    assert len(score.losses) == 8 and score.losses[-1] < score.losses[0]
    first = [losses("classification", model(inputs), targets).mean().item() for inputs, targets in data[:1]]
    one = SWAG(model, "classification", rank=2, samples=2, collect_every=1, collections=2).fit(data)
    assert one.losses[0] == pytest.approx(first[0], rel=1e-12)


def test_half_precision_moves_in_single():
    """Steps of 1e-5 would round away in bfloat16. The control is SGD in bfloat16 itself."""
    model, inputs, _ = problem("mlp")
    model, inputs, targets = model.bfloat16(), inputs.bfloat16(), targets_for("classification")
    settings = {"learning_rate": 1e-5, "collections": 3}
    score = SWAG(model, "classification", rank=2, samples=3, **settings).fit([(inputs, targets)])
    assert score.moments.mean.dtype == torch.float32
    assert float((score.moments.variance > 0).float().mean()) > 0.9
    assert {value.dtype for value in score.sample(0).values()} == {torch.bfloat16}
    iterates, _ = by_hand(model, [(inputs, targets)], "classification", settings)
    assert not bool((iterates.float().var(0) > 0).any())


@pytest.mark.parametrize("how", [{}, {"cache_enabled": True}])
def test_an_autocast_of_the_models_own_follows_the_weights(how):
    """A cache of cast weights that outlives a step would keep those of the first: the control asks for it."""

    def own(model, inputs):
        with torch.autocast("cpu", torch.bfloat16, **how):
            return model(inputs).float()

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(64, 10, generator=generator)
    data = list(zip(inputs.split(16), (inputs[:, 0] > 0).long().split(16), strict=True))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 2))
    plain, cast = (
        SWAG(model, "classification", rank=3, learning_rate=0.1, collections=6, samples=2, forward=forward).fit(data)
        for forward in (None, own)
    )
    # bfloat16 has eight bits, so its rounding is 0.4 %; the loss falls by more than a tenth.
    assert plain.losses[-1] < 0.9 * plain.losses[0]
    worst = max(abs(one / other - 1) for one, other in zip(cast.losses, plain.losses, strict=True))
    assert (worst < 0.01) is not bool(how)


def test_loaders_without_a_length():
    model, inputs, data = problem("mlp")

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(data)

    loader = DataLoader(Stream(), batch_size=None)
    settings = {"rank": 2, "samples": 2, "collections": 3}
    expected = SWAG(model, "classification", **settings).fit(data)
    assert torch.equal(SWAG(model, "classification", **settings).fit(loader)(inputs), expected(inputs))
    with pytest.raises(SettingError, match=r"'cosine' must know how many batches .* give collect_every="):
        SWAG(model, "classification", schedule="cosine", **settings).fit(loader)
    SWAG(model, "classification", schedule="cosine", collect_every=3, **settings).fit(loader)


def test_one_batch_is_data_too():
    model, inputs, _ = problem("mlp")
    targets = targets_for("classification")
    pair = SWAG(model, "classification", rank=2, samples=2, schedule="cosine").fit((inputs, targets))
    assert torch.equal(pair(inputs), SWAG(model, "classification", rank=2, samples=2).fit([(inputs, targets)])(inputs))


def test_rank_and_budget():
    model, _, _ = problem("mlp")
    assert SWAG(model, "classification").rank == 3
    assert SWAG(model, "classification", budget="10p").rank == 10
    assert SWAG(model, "classification", budget="20p").descent.collections == 20
    assert SWAG(model, "classification", rank=2).descent.collections == 10
    with pytest.raises(BudgetError, match="keeps at least one"):
        SWAG(model, "classification", budget="0.5p")


@pytest.mark.parametrize("kind", ["mlp", "conv"])
@pytest.mark.parametrize("rank", [1, 3])
def test_cost_is_what_is_held(kind, rank):
    model, _, data = problem(kind)
    method = SWAG(model, "classification", rank=rank, samples=4)
    score = method.fit(data)
    held = [score.moments.mean, score.moments.variance, score.moments.deviations, *score.statistics.values()]
    cost = method.cost()
    assert cost.artefact == sum(each.numel() * each.element_size() for each in held)
    p = 8 * method.network.selection.count
    assert cost.fitting == cost.artefact + 3 * p and cost.querying == cost.artefact + 2 * p
    assert swag_cost(rank, size_of(method.network.selection, 3)).passes == 10
