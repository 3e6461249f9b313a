"""LocalEnsemble against dense float64 formulas; its settings, its file, and the model it leaves alone."""

import copy
import json

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from oracles import (
    LIKELIHOODS,
    NETWORKS,
    dense,
    ggn,
    hessian,
    jacobian,
    krylov_basis,
    leading_eigenvectors,
    network,
    outer_products,
    projected_out,
    read_as,
    rows_of,
    targets_for,
)
from shorthand import split
from slu.artifacts import read, write
from slu.baselines.local_ensemble import LocalEnsemble
from slu.baselines.low_rank_laplace import LowRankLaplace
from slu.budgets import Cost
from slu.cli import app
from slu.core.readout import GRADIENT_READINGS
from slu.errors import (
    BudgetError,
    DamagedFileError,
    DataError,
    MismatchError,
    ModelError,
    SettingError,
    StorageError,
)
from slu.krylov import start_vector
from stored import changed
from untouched import assert_same, snapshot


def ritz_vectors(matrix: Tensor, rank: int, steps: int, seed: int = 0) -> Tensor:
    """(p, rank) Ritz vectors of the largest magnitudes in the Krylov space."""
    space = krylov_basis(matrix, start_vector(matrix, seed), steps)
    values, small = torch.linalg.eigh(space.T @ matrix @ space)
    return space @ small[:, values.abs().argsort(descending=True)[:rank]]


def wanted(rows: Tensor, basis: Tensor, reading: str, per_output: bool) -> Tensor:
    score, size = projected_out(rows, basis), rows.square().sum(-1)
    if not per_output:
        score, size = score.sum(-1), size.sum(-1)
    return read_as(reading, score, size)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", NETWORKS)
def test_every_reading_is_the_dense_formula(kind, likelihood):
    model, inputs, queries, _ = dense(kind)
    basis = ritz_vectors(ggn(model, inputs, likelihood), 3, 5)
    score = LocalEnsemble(model, likelihood, rank=3, steps=5).fit(split(inputs, sizes=[5, 7]))
    assert score.readings == tuple(GRADIENT_READINGS)
    for reading in GRADIENT_READINGS:
        rows = rows_of(kind, likelihood, reading)
        for per_output in (False, True):
            scores = score(queries, reading=reading, per_output=per_output)
            torch.testing.assert_close(scores, wanted(rows, basis, reading, per_output), rtol=1e-8, atol=1e-13)
    torch.testing.assert_close(score(queries), score(queries, reading="variance"), rtol=0, atol=0)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", ["mlp", "conv", "encoder"])
def test_with_steps_enough_they_are_the_eigenvectors(kind, likelihood):
    model, inputs, queries, rows = dense(kind)
    rank = 24 if likelihood == "classification" else 36
    score = LocalEnsemble(model, likelihood, rank=rank, steps=44).fit(inputs)
    assert score.diagnostics.exhausted
    basis = leading_eigenvectors(ggn(model, inputs, likelihood), rank)
    torch.testing.assert_close(score(queries), projected_out(rows, basis).sum(-1), rtol=1e-6, atol=1e-10)
    # What the data pin down wholly: the points fitted on.
    assert float(score(inputs, reading="fisher-relative").max()) < 1e-10


def test_the_authors_rank_three_is_two_of_three_steps():
    model, inputs, queries, rows = dense("mlp")
    matrix = ggn(model, inputs, "classification")
    score = LocalEnsemble(model, "classification", rank=2, steps=3).fit(inputs)
    assert score.basis.shape == (2, 51)
    assert score.eigenvalues.shape == (2,)
    scores = score(queries)
    torch.testing.assert_close(scores, projected_out(rows, ritz_vectors(matrix, 2, 3)).sum(-1), rtol=1e-8, atol=0)
    # Control: neither two steps nor three directions are that.
    for other in (ritz_vectors(matrix, 2, 2), ritz_vectors(matrix, 3, 3)):
        assert not torch.allclose(scores, projected_out(rows, other).sum(-1), rtol=1e-3)


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_hessian_with_both_ways_of_its_negative_directions(kind):
    model, inputs, queries, rows = dense(kind)
    targets = targets_for("classification")
    matrix = hessian(model, inputs, targets, "classification")
    space = krylov_basis(matrix, start_vector(matrix, 0), 12)
    values, small = torch.linalg.eigh(space.T @ matrix @ space)
    largest = values.abs().argsort(descending=True)[:6]
    by_name = {}
    for negative, chosen in (("pinned", largest), ("free", torch.arange(11, 5, -1))):
        assert bool((values[chosen] < 0).any()) == (negative == "pinned")  # both ways have work to do
        method = LocalEnsemble(model, "classification", rank=6, steps=12, curvature="hessian", negative=negative)
        score = method.fit((inputs, targets))
        np.testing.assert_allclose(score.eigenvalues, values[chosen], rtol=1e-7)
        expected = projected_out(rows, space @ small[:, chosen]).sum(-1)
        by_name[negative] = score(queries)
        torch.testing.assert_close(by_name[negative], expected, rtol=1e-6, atol=1e-12)
    assert not torch.allclose(by_name["pinned"], by_name["free"], rtol=1e-2)


def test_the_empirical_fisher():
    model, inputs, queries, rows = dense("mlp")
    targets = targets_for("classification")
    basis = ritz_vectors(outer_products(model, inputs, targets, "classification"), 3, 6)
    method = LocalEnsemble(model, "classification", rank=3, steps=6, curvature="empirical-fisher")
    expected = projected_out(rows, basis).sum(-1)
    torch.testing.assert_close(method.fit((inputs, targets))(queries), expected, rtol=1e-7, atol=0)


@pytest.mark.parametrize("sizes", [[12], [1] * 12, [5, 7], [4, 4, 4]])
def test_any_split_into_batches_gives_the_same(sizes):
    model, inputs, queries, _ = dense("conv")
    score = LocalEnsemble(model, "classification", rank=4, steps=6)
    whole, cut = score.fit(inputs), score.fit(split(inputs, sizes=sizes))
    # Sums over data in another order, seen through six steps.
    torch.testing.assert_close(cut(queries), whole(queries), rtol=1e-9, atol=0)
    batches = [inputs[:1], inputs[1:8], inputs[8:]]
    torch.testing.assert_close(whole(batches), whole(inputs), rtol=1e-12, atol=1e-15)
    shown = (whole(data, per_output=True, reading="fisher") for data in (batches, inputs))
    torch.testing.assert_close(*shown, rtol=1e-10, atol=1e-15)


def test_chosen_parameters_only():
    model, inputs, queries, _ = dense("conv")
    names = ["4.weight", "4.bias"]
    basis = ritz_vectors(ggn(model, inputs, "classification", names), 3, 6)
    score = LocalEnsemble(model, "classification", rank=3, steps=6, params="4.*").fit(inputs)
    expected = projected_out(jacobian(model, queries, names), basis).sum(-1)
    torch.testing.assert_close(score(queries), expected, rtol=1e-8, atol=0)


def test_same_seed_same_scores_and_another_seed_others():
    model, inputs, queries, _ = dense("mlp")
    first, second, other = (
        LocalEnsemble(model, "classification", rank=3, seed=seed).fit(inputs)(queries) for seed in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert not torch.allclose(first, other, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_come_in_the_type_of_flat_vectors(dtype):
    model, inputs, queries, _ = dense("mlp")
    narrow = copy.deepcopy(model).to(dtype)
    score = LocalEnsemble(narrow, "classification", rank=4, steps=8).fit(inputs.to(dtype))
    assert score.basis.dtype == torch.float32
    exact = LocalEnsemble(narrow.double(), "classification", rank=4, steps=8).fit(inputs.to(dtype).double())
    wide = {reading: exact(queries.to(dtype).double(), reading=reading) for reading in GRADIENT_READINGS}
    narrow.to(dtype)
    for reading, expected in wide.items():
        scores = score(queries.to(dtype), reading=reading)
        assert scores.dtype == torch.float32
        # bfloat16 has 8 bits, in every product of the network.
        torch.testing.assert_close(scores.double(), expected, rtol=1e-3 if dtype == torch.float32 else 0.1, atol=1e-6)


def test_cost_counts_steps_while_fitting():
    model = dense("mlp")[0]
    copy_of_p = 51 * 8
    plain = LocalEnsemble(model, "classification", rank=2).cost()
    assert plain == LocalEnsemble(model, "classification", budget="2p").cost()
    assert (plain.artefact, plain.fitting, plain.passes) == (2 * copy_of_p, 7 * copy_of_p, 3)
    longer = LocalEnsemble(model, "classification", rank=2, steps=9).cost()
    assert longer == Cost(2 * copy_of_p, 13 * copy_of_p, plain.querying, 9)
    wider = LocalEnsemble(model, "classification", rank=7, steps=9).cost()
    assert wider.fitting == 16 * copy_of_p  # the seven are copied out
    on_hessian = LocalEnsemble(model, "classification", rank=2, curvature="hessian").cost()
    assert on_hessian.fitting == plain.fitting + copy_of_p
    more = LocalEnsemble(model, "classification", rank=2).cost(outputs=6, batch=4)
    assert more.querying > plain.querying and more.fitting == plain.fitting


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"rank": 0}, SettingError, "the rank must be at least 1, got 0"),
        ({"rank": 2.5}, SettingError, "the rank must be a whole number"),
        ({"rank": 52}, SettingError, "rank 52 is above the number of selected parameters, 51"),
        ({"rank": 4, "steps": 3}, SettingError, "steps must lie between the rank, 4, and"),
        ({"rank": 4, "budget": "3p"}, BudgetError, "holds rank 3 of LocalEnsemble, not 4"),
        ({"budget": "0.5p"}, BudgetError, "LocalEnsemble keeps at least one"),
        ({"rank": 2, "curvature": "kfac"}, SettingError, "unknown curvature 'kfac'; valid are 'ggn'"),
        ({"rank": 2, "curvature": "hessian", "negative": "gone"}, SettingError, "'gone'; valid are 'pinned', 'free'"),
        ({"rank": 2, "negative": "free"}, SettingError, "negative='free' is about curvature='hessian'; 'ggn' has no"),
        ({"rank": 2, "seed": "a"}, SettingError, "the seed must be a whole number"),
    ],
)
def test_settings_that_cannot_work(settings, error, message):
    with pytest.raises(error, match=message):
        LocalEnsemble(dense("mlp")[0], "classification", **settings)


def test_what_is_asked_of_it_wrongly():
    model, inputs, queries, _ = dense("mlp")
    with pytest.raises(ModelError, match=r"must be a torch\.nn\.Module"):
        LocalEnsemble("resnet", "classification", rank=2)
    with pytest.raises(SettingError, match="unknown likelihood"):
        LocalEnsemble(model, "klassification", rank=2)
    with pytest.raises(SettingError, match="rank 10 is above what the data allow: 3 points of 3 outputs"):
        LocalEnsemble(model, "classification", rank=10).fit(inputs[:3])
    with pytest.raises(DataError, match="needs targets"):
        LocalEnsemble(model, "classification", rank=2, curvature="hessian").fit(inputs)
    score = LocalEnsemble(model, "classification", rank=2).fit(inputs)
    with pytest.raises(SettingError, match="unknown reading 'varience'; valid are 'variance'"):
        score(queries, reading="varience")


@pytest.mark.parametrize("kind", ["conv", "encoder"])
def test_the_model_is_left_alone(kind):
    model, inputs = network(kind)
    list(model.modules())[-1].eval()
    next(model.parameters()).grad = torch.ones_like(next(model.parameters()))
    targets = targets_for("classification")
    before = snapshot(model)
    score = LocalEnsemble(model, "classification", rank=3, curvature="hessian").fit((inputs, targets))
    score(inputs, reading="fisher")
    assert_same(before, snapshot(model))
    with pytest.raises(DataError):
        LocalEnsemble(model, "classification", rank=3).fit([inputs, inputs * float("nan")])
    with pytest.raises(DataError):
        score([inputs, inputs[:0]])
    assert_same(before, snapshot(model))


@pytest.fixture
def saved(tmp_path):
    model, inputs = network("mlp")
    targets = targets_for("classification")
    method = LocalEnsemble(model, "classification", rank=3, steps=7, curvature="hessian", negative="free", seed=5)
    score = method.fit((inputs, targets))
    score.save(tmp_path / "net.slu")
    return tmp_path / "net.slu", model, inputs, score


def test_a_saved_score_says_the_same(saved, tmp_path):
    path, model, inputs, score = saved
    again = LocalEnsemble.load(path, copy.deepcopy(model))
    for reading in GRADIENT_READINGS:
        for per_output in (False, True):
            shown = [each(inputs, reading=reading, per_output=per_output) for each in (score, again)]
            assert torch.equal(*shown)
    for name in ("rank", "steps", "curvature", "negative", "seed"):
        assert getattr(again.method, name) == getattr(score.method, name)
    assert again.diagnostics.plain() == score.diagnostics.plain()
    assert np.array_equal(again.eigenvalues, score.eigenvalues)
    again.save(tmp_path / "again.slu")
    assert read(tmp_path / "again.slu")[0] == read(path)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["conv", "tied"])
def test_other_types_and_budgets_come_back(kind, dtype, tmp_path):
    model, inputs = network(kind)
    model, inputs = model.to(dtype), inputs.to(dtype)
    # Of the budget the data allow fewer directions than it holds.
    score = LocalEnsemble(model, "multilabel", budget="30p", params="*weight").fit(inputs[:2])
    score.save(tmp_path / "net.slu")
    again = LocalEnsemble.load(tmp_path / "net.slu", model)
    assert torch.equal(again(inputs), score(inputs))
    assert again.basis.shape == (score.diagnostics.effective_rank, score.method.network.selection.count)


def test_another_network_and_another_methods_file(saved, tmp_path):
    path, model, inputs, _ = saved
    with pytest.raises(StorageError, match="holds a score of LocalEnsemble, LowRankLaplace cannot load it"):
        LowRankLaplace.load(path, model)
    with pytest.raises(MismatchError, match="leave likelihood= out"):
        LocalEnsemble.load(path, model, likelihood="regression")
    with pytest.raises(MismatchError, match="fitted without a forward="):
        LocalEnsemble.load(path, model, forward=lambda module, batch: module(batch))
    LocalEnsemble(model, "classification", rank=2, forward=lambda module, batch: module(batch)).fit(inputs).save(path)
    with pytest.raises(MismatchError, match="with a forward= of its own"):
        LocalEnsemble.load(path, model)
    model[0].weight.detach().view(torch.int64)[3, 1] ^= 1
    with pytest.raises(MismatchError, match=r"the values of 0.weight have changed"):
        LocalEnsemble.load(path, model)


def test_a_network_trained_further_between_fit_and_save(saved):
    path, model, _, score = saved
    at_the_fit = copy.deepcopy(model)
    model[0].weight.detach().add_(0.1)
    score.save(path)
    with pytest.raises(MismatchError, match=r"the values of 0.weight have changed"):
        LocalEnsemble.load(path, model)
    assert LocalEnsemble.load(path, at_the_fit).diagnostics.steps == 7


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("settings", "rank"), "three"),
        (("settings", "rank"), 2),
        (("settings", "steps"), 2),
        (("settings", "negative"), "gone"),
        (("settings", "nonsense"), 1),
        (("settings", "spectrum"), None),
        (("settings", "spectrum", "effective_rank"), 2),
        (("settings", "spectrum", "ritz_values"), [1.0, 2.0]),
        (("settings", "spectrum", "ritz_values"), [1.0, 2.0, "x"]),
        (("settings", "spectrum", "ritz_values"), [3.0, 2.0, -1.0]),
        (("settings", "spectrum", "points"), None),
        (("settings", "params"), ["0.weight"]),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else str(value),
)
def test_a_header_that_makes_no_sense(saved, keys, value):
    path, model, _, _ = saved
    header, tensors = read(path)
    write(path, tensors, changed(header, keys, value))
    with pytest.raises(StorageError, match=r"net\.slu") as raised:
        LocalEnsemble.load(path, model)
    assert isinstance(raised.value, DamagedFileError | MismatchError)


def test_tensors_that_do_not_fit_and_a_flipped_bit(saved):
    path, model, _, _ = saved
    header, tensors = read(path)
    del header["tensors"]  # which would refuse them first
    whole = path.read_bytes()
    for basis in (tensors["basis"].T, tensors["basis"][:2], tensors["basis"][:, :40]):
        write(path, {"basis": basis}, header)
        with pytest.raises(DamagedFileError, match=r"basis is of the shape .*, expected \(3, 51\)"):
            LocalEnsemble.load(path, model)
    write(path, {}, header)
    with pytest.raises(DamagedFileError, match="basis is missing"):
        LocalEnsemble.load(path, model)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DamagedFileError, match="does not fit its content"):
        LocalEnsemble.load(path, model)
    path.write_bytes(whole[:-8])
    with pytest.raises(DamagedFileError):
        LocalEnsemble.load(path, model)


def test_inspect_shows_the_file(saved):
    path = saved[0]
    result = CliRunner().invoke(app, ["inspect", str(path)], env={"NO_COLOR": "1", "TERM": "dumb"})
    assert result.exit_code == 0, result.output
    assert "a score of LocalEnsemble" in result.stdout
    assert "basis 3×51 float64" in result.stdout
    shown = CliRunner().invoke(app, ["inspect", str(path), "--json"])
    assert json.loads(shown.stdout)["settings"]["negative"] == "free"
