"""SLU in one pass: against the exact eigenspace, in any split, grown, merged, stopped and gone on."""

import pytest
import torch
from torch import nn

from oracles import NETWORKS, ggn, jacobian, leading_eigenvectors, network
from shorthand import paper_slu
from slu import SLU, Checkpoint, Lanczos, Stream
from slu.errors import DataError, MismatchError, NumericalError, SettingError

LIKELIHOODS = ("classification", "regression", "multilabel")


def stream(model, likelihood="classification", labels=1, oversampling=None, **settings):
    solver = Stream(labels, oversampling)
    return paper_slu(model, likelihood, **{"rank": 6, "solver": solver, "sketch": "identity", **settings})


def outside(rows, basis):
    """tr J (I - UUᵀ) Jᵀ of every point, U as columns."""
    return (rows - (rows @ basis) @ basis.T).square().sum((1, 2))


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("size", [12, 5])
def test_all_labels_and_no_sketch_give_the_exact_eigenspace(kind, likelihood, size):
    model, inputs = network(kind)
    p = sum(value.numel() for value in model.parameters())
    score = stream(model, likelihood, "all", p).fit(list(inputs.split(size)))
    curvature = ggn(model, inputs, likelihood)
    expected = outside(jacobian(model, inputs), leading_eigenvectors(curvature, 6))
    torch.testing.assert_close(score(inputs, reading="variance"), expected, rtol=1e-6, atol=1e-9)
    values = torch.linalg.eigvalsh(curvature).flip(0)
    torch.testing.assert_close(torch.from_numpy(score.diagnostics.ritz_values.copy()), values[:6], rtol=1e-8, atol=0)
    assert score.diagnostics.captured == pytest.approx(float(values[:6].sum() / values.sum()))
    assert score.diagnostics.passes == 1 and score.diagnostics.points == 12


def test_control_another_rank_is_another_score():
    model, inputs = network("mlp")
    scores = [stream(model, rank=rank, labels="all").fit(inputs)(inputs) for rank in (5, 6)]
    assert not torch.allclose(*scores, rtol=1e-3)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_sampled_labels_do_not_depend_on_batches_or_order(likelihood):
    model, inputs = network("conv")
    one = stream(model, likelihood).fit(inputs)(inputs)
    for data in (list(inputs.split(5)), list(inputs.split(1)), inputs.flip(0)):
        torch.testing.assert_close(stream(model, likelihood).fit(data)(inputs), one, rtol=1e-7, atol=1e-12)
    assert not torch.allclose(stream(model, likelihood, seed=1).fit(inputs)(inputs), one)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_more_labels_come_closer_to_all_of_them(likelihood):
    """The mean distance to the exact score over eight seeds falls with the labels drawn: 1, 8, 64."""
    model, inputs = network("mlp")
    exact = stream(model, likelihood, "all", 60).fit(inputs)(inputs)

    def error(labels):
        found = [stream(model, likelihood, labels, 60, seed=seed).fit(inputs)(inputs) for seed in range(8)]
        return float(torch.stack([(each - exact).norm() for each in found]).mean() / exact.norm())

    one, eight, many = error(1), error(8), error(64)
    assert many < eight < one
    assert many < 0.6 * one


@pytest.mark.parametrize("seed", range(4))
def test_it_finds_at_least_what_lanczos_finds(seed):
    """Of the energy of the best 20 directions, on inputs whose spectrum falls like i^-2."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 5)).double()
        inputs = torch.randn(200, 30, dtype=torch.float64) / torch.arange(1, 31)
    matrix = ggn(model, inputs, "classification")
    best = float(torch.linalg.eigvalsh(matrix)[-20:].sum())

    def energy(solver):
        method = paper_slu(model, "classification", rank=20, sketch="identity", seed=seed, solver=solver)
        basis = method.fit(inputs).state.subspace.basis
        return float(torch.trace(basis @ matrix @ basis.T)) / best

    exact, lanczos = energy(Stream(labels_per_point="all")), energy("lanczos")
    assert exact > 0.98 and exact > lanczos - 0.005
    # One mixture a point has as many rows as points, a fifth of all columns.
    assert energy("stream") > lanczos - 0.005
    assert energy(Stream(labels_per_point=8)) > 0.97
    control = torch.linalg.qr(torch.randn(len(matrix), 20, dtype=torch.float64, generator=_draw(seed)))[0].T
    assert float(torch.trace(control @ matrix @ control.T)) / best < 0.2


def _draw(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("cuts", [(6, 6), (3, 4, 5), (11, 1)])
def test_a_fit_that_goes_on_is_one_fit_where_nothing_was_cut_off(cuts):
    model, inputs = network("mlp")
    settings = {"rank": 36, "labels": "all", "oversampling": 20}
    one = stream(model, **settings).fit(inputs)
    first, *others = inputs.split(cuts)
    grown = stream(model, **{**settings, "rank": None, "budget": 36 * 51}).fit(first)
    for more in others:
        assert grown.partial_fit(more) is grown
    torch.testing.assert_close(grown(inputs), one(inputs), rtol=1e-5, atol=1e-9)
    assert grown.diagnostics.points == 12


def test_a_fit_that_goes_on_loses_only_what_it_cut_off():
    model, inputs = network("mlp")
    settings = {"rank": 8, "labels": "all"}
    one, first = stream(model, **settings).fit(inputs), stream(model, **settings).fit(inputs[:6])
    alone = first(inputs)
    grown = first.partial_fit(inputs[6:])(inputs)
    assert float((grown - one(inputs)).norm()) < 0.2 * float((alone - one(inputs)).norm())


def test_a_fit_goes_on_with_fewer_points_than_its_rank():
    """Twelve gradients, all kept; then one more at a time, with one fit on all to compare."""
    model, inputs = network("mlp")
    more = inputs[:2] + 1
    settings = {"rank": 12, "oversampling": 60}
    grown = stream(model, **settings).fit(inputs)
    before = grown(inputs)
    grown.partial_fit(more[:1])
    one = stream(model, **settings).fit([inputs, more[:1]])
    torch.testing.assert_close(grown(inputs), one(inputs), rtol=1e-6, atol=1e-9)
    assert not torch.allclose(grown(inputs), before, rtol=1e-3)
    assert grown.partial_fit(more[1:]).diagnostics.points == 14
    with pytest.raises(SettingError, match="1 points give 1 gradients"):
        stream(model, **settings).fit(more[:1])


def test_merged_shards_are_one_fit_where_nothing_was_cut_off():
    model, inputs = network("conv")
    settings = {"labels": "all", "budget": 36 * sum(v.numel() for v in model.parameters()), "rank": None}
    shards = [stream(model, **settings).fit(part) for part in inputs.split([4, 5, 3])]
    merged = SLU.merge(shards)
    torch.testing.assert_close(merged(inputs), stream(model, **settings).fit(inputs)(inputs), rtol=1e-5, atol=1e-9)
    assert merged.diagnostics.points == 12
    assert not torch.allclose(merged(inputs), shards[0](inputs), rtol=1e-2)


def test_a_score_that_grows_says_how_often_a_point_was_read():
    model, inputs = network("mlp")
    score = SLU(model, "classification", rank=4, scale="diagonal").fit(inputs)  # the scale's pass, and the stream's
    assert score.partial_fit(inputs[:6]).diagnostics.passes == 2 and score.diagnostics.points == 18
    once = SLU(model, "classification", rank=4, scale=score.scale).fit(inputs)
    assert once.diagnostics.passes == 1 and SLU.merge([once, score]).diagnostics.passes == 2


def test_merged_shards_lose_only_what_they_cut_off():
    """Of each shard 8 of 18 directions are known; the merged score is far closer to one fit than any shard's."""
    model, inputs = network("mlp")
    settings = {"rank": 8, "labels": "all"}
    one = stream(model, **settings).fit(inputs)(inputs)
    shards = [stream(model, **settings).fit(part) for part in inputs.split(6)]
    merged = SLU.merge(shards)
    alone = min(float((shard(inputs) - one).norm()) for shard in shards)
    assert 0 < float((merged(inputs) - one).norm()) < 0.3 * alone
    turned = SLU.merge(reversed(shards))  # any iterable
    torch.testing.assert_close(turned(inputs), merged(inputs), rtol=1e-7, atol=1e-12)
    assert merged.diagnostics.captured < min(shard.diagnostics.captured for shard in shards)


def test_a_merged_score_is_saved_loaded_and_goes_on(tmp_path):
    model, inputs = network("mlp")
    shards = [stream(model).fit(part) for part in inputs.split(6)]
    merged = SLU.merge(shards)
    merged.save(tmp_path / "net.slu")
    again = SLU.load(tmp_path / "net.slu", model)
    assert torch.equal(again(inputs), merged(inputs))
    torch.testing.assert_close(
        again.partial_fit(inputs + 1)(inputs), merged.partial_fit(inputs + 1)(inputs), rtol=1e-9, atol=0
    )


def test_what_cannot_be_merged_is_named():
    model, inputs = network("mlp")
    one = stream(model).fit(inputs)
    with pytest.raises(MismatchError, match="rank"):
        SLU.merge([one, stream(model, rank=5).fit(inputs)])
    with pytest.raises(MismatchError, match="another network"):
        SLU.merge([one, stream(network("mlp", seed=1)[0]).fit(inputs)])
    with pytest.raises(MismatchError, match="scale"):
        SLU.merge([one, stream(model, scale="diagonal").fit(inputs)])
    lanczos = SLU(model, "classification", rank=4, solver="lanczos").fit(inputs)
    with pytest.raises(SettingError, match="solver='stream'"):
        SLU.merge([lanczos, lanczos])
    for nothing in ([], iter(())):
        with pytest.raises(SettingError, match="merge takes several fitted scores"):
            SLU.merge(nothing)
    with pytest.raises(SettingError, match="at place 0 came a int"):
        SLU.merge([1, 2])
    with pytest.raises(SettingError, match="at place 1 came a SLU"):
        SLU.merge([one, SLU(model, "classification")])
    with pytest.raises(SettingError, match="a list of them; got a SluScore"):
        SLU.merge(one)
    with pytest.raises(SettingError, match="solver='stream'"):
        lanczos.partial_fit(inputs)


@pytest.mark.parametrize(
    ("settings", "solver"),
    [
        ({}, "stream"),
        ({"scale": "diagonal"}, "stream"),
        ({"curvature": "empirical-fisher"}, "stream"),
        ({"curvature": "hessian"}, "lanczos"),
        ({"solver": "stream"}, "stream"),
        ({"solver": "lanczos"}, "lanczos"),
        ({"solver": Lanczos(precondition=2)}, "lanczos"),
        ({"solver": Lanczos(keep=0.9)}, "lanczos"),
        ({"solver": Stream(labels_per_point=2)}, "stream"),
    ],
)
def test_the_stream_is_the_default_but_for_the_hessian(settings, solver):
    model, inputs = network("mlp")
    method = SLU(model, "classification", rank=4, **settings)
    assert method.settings.header()["solver"]["kind"] == solver
    score = method.fit((inputs, torch.arange(12) % 3))
    once_more = int(settings.get("scale") == "diagonal")
    assert method.cost().passes == score.diagnostics.passes == (1 if solver == "stream" else 4) + once_more


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"solver": "magic"}, r"'lanczos', 'Stream\(\.\.\.\)'"),
        ({"solver": Stream}, "unknown solver"),
        ({"curvature": "hessian"}, "lanczos"),
        ({"labels": 2, "curvature": "empirical-fisher"}, "one gradient per point"),
        ({"labels": "all", "curvature": "fisher"}, "curvature='ggn'"),
        ({"solver": Lanczos(precondition=7)}, "between 0 and the rank 6, got 7"),
    ],
)
def test_solvers_that_do_not_suit_the_fit_are_refused(settings, match):
    with pytest.raises(SettingError, match=match):
        stream(network("mlp")[0], **settings)


@pytest.mark.parametrize(
    ("solver", "settings", "match"),
    [
        (Stream, {"labels_per_point": 0}, "at least 1"),
        (Stream, {"labels_per_point": "some"}, "labels_per_point"),
        (Stream, {"oversampling": -1}, "at least 0"),
        (Lanczos, {"keep": 0.9, "precondition": 2}, "one of the two"),
        (Lanczos, {"keep": 0.0}, r"share in \(0, 1\]"),
        (Lanczos, {"keep": 90}, r"share in \(0, 1\]"),
        (Lanczos, {"precondition": 1.5}, "whole number"),
    ],
)
def test_solvers_that_make_no_sense_are_refused_as_they_are_made(solver, settings, match):
    with pytest.raises(SettingError, match=match):
        solver(**settings)


def test_a_rank_beyond_the_gradients_is_refused():
    model, inputs = network("mlp")
    with pytest.raises(SettingError, match="12 points give 12 gradients"):
        stream(model, rank=13).fit(inputs)
    assert stream(model, rank=13, labels=2).fit(inputs).diagnostics.effective_rank <= 13


def test_a_network_without_curvature_is_refused():
    model = nn.Sequential(nn.Linear(4, 3))
    with torch.no_grad():
        for value in model.parameters():
            value.zero_()
        model[0].bias[0] = 1e4  # so sure that nothing is left
    with pytest.raises(NumericalError, match="zero in every direction"):
        SLU(model, "classification", rank=2, solver=Stream(labels_per_point="all")).fit(torch.randn(6, 4))


class Loader:
    """Batches of 3; stops as Ctrl-C does before one of them."""

    def __init__(self, inputs, fail=None):
        self.inputs, self.fail, self.read = inputs, fail, 0

    def __iter__(self):
        for place, batch in enumerate(self.inputs.split(3)):
            if place == self.fail:
                raise KeyboardInterrupt
            self.read += 1
            yield batch


@pytest.mark.parametrize("fail", [1, 2, 3])
@pytest.mark.parametrize("scale", [None, "diagonal"])
def test_stopped_and_gone_on_to_the_bit(fail, scale, tmp_path):
    model, inputs = network("conv")
    expected = stream(model, scale=scale).fit(Loader(inputs))
    broken = Loader(inputs, fail) if scale is None else FailsLater(inputs, fail)
    with pytest.raises(KeyboardInterrupt):
        stream(model, scale=scale).fit(broken, checkpoint=Checkpoint(tmp_path / "run", every=0))
    again = stream(model, scale=scale).fit(Loader(inputs), checkpoint=tmp_path / "run")
    assert torch.equal(again.state.subspace.basis, expected.state.subspace.basis)
    assert torch.equal(again(inputs), expected(inputs))
    assert again.diagnostics.points == 12


class FailsLater(Loader):
    """The first pass, for the scale, goes well."""

    def __init__(self, inputs, fail):
        super().__init__(inputs)
        self.later = fail

    def __iter__(self):
        yield from super().__iter__()
        self.fail = self.later


def test_a_finished_checkpoint_returns_with_its_scale(tmp_path):
    model, inputs = network("mlp")
    first = stream(model, scale="diagonal").fit(inputs, checkpoint=tmp_path / "run")
    again = stream(model, scale="diagonal").fit(Loader(inputs), checkpoint=tmp_path / "run")
    assert torch.equal(again(inputs), first(inputs))


def test_other_data_at_the_beginning_are_refused(tmp_path):
    model, inputs = network("mlp")
    with pytest.raises(KeyboardInterrupt):
        stream(model).fit(Loader(inputs, 2), calibration=False, checkpoint=Checkpoint(tmp_path / "run", every=0))
    with pytest.raises(MismatchError, match="other data"):
        stream(model).fit(Loader(inputs + 1), calibration=False, checkpoint=tmp_path / "run")


def test_an_interruption_inside_a_batch_leaves_the_batch_before(tmp_path):
    model, inputs = network("mlp")
    calls = 0

    def forward(model, batch):
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return model(batch)

    expected = stream(model, forward=lambda model, batch: model(batch)).fit(Loader(inputs))
    with pytest.raises(KeyboardInterrupt):
        stream(model, forward=forward).fit(Loader(inputs), checkpoint=Checkpoint(tmp_path / "run", every=0))
    calls = 10
    again = stream(model, forward=forward).fit(Loader(inputs), checkpoint=tmp_path / "run")
    assert torch.equal(again.state.subspace.basis, expected.state.subspace.basis)


def test_empty_data_are_refused():
    model, _ = network("mlp")
    with pytest.raises(DataError, match="no batch"):
        stream(model).fit([])


@pytest.mark.parametrize("memory", [None, 60, "1MB"])
def test_a_limit_of_memory_changes_no_number(memory):
    model, inputs = network("conv")
    scores = [stream(model, memory=limit).fit(inputs)(inputs) for limit in (None, memory)]
    torch.testing.assert_close(*scores, rtol=1e-9, atol=0)
