"""Leading eigenpairs of a network's curvature, and the meter on them, against dense linear algebra."""

from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import eigsh
from torch import Tensor, nn

from oracles import LIKELIHOODS, NETWORKS, ggn, hessian, krylov_basis, largest_angle, network, targets_for
from shorthand import curvature, relative_error, vectors
from slu.baselines.eigenbasis import Spectrum, remainder_meter
from slu.baselines.local_ensemble import LocalEnsemble, LocalEnsembleScore
from slu.errors import DamagedFileError, NumericalError, SettingError
from slu.gradients import Rows
from slu.krylov import start_vector


def eigenbasis_of(model: nn.Module, data, likelihood="classification", **settings) -> LocalEnsembleScore:
    return LocalEnsemble(model, likelihood, **settings).fit(data)


@lru_cache(maxsize=16)
def dense_ggn(kind: str, likelihood: str) -> Tensor:
    model, inputs = network(kind)
    return ggn(model, inputs, likelihood)


def dense_ritz(matrix: Tensor, steps: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Ritz values of the Krylov space and the vectors (p, steps), largest magnitude first."""
    space = krylov_basis(matrix, start_vector(matrix, seed), steps)
    values, small = torch.linalg.eigh(space.T @ matrix @ space)
    order = values.abs().argsort(descending=True)
    return values[order], (space @ small)[:, order]


def assert_orthonormal(rows: Tensor) -> None:
    # Lengths and cosines of p rounded numbers: √p ε, and p is below 700.
    eps = torch.finfo(rows.dtype).eps
    eye = torch.eye(len(rows), dtype=torch.float64)
    assert float((rows.double() @ rows.double().T - eye).abs().max()) < 30 * eps


@pytest.mark.parametrize(("rank", "steps"), [(6, 6), (2, 3), (3, 9)])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", NETWORKS)
def test_ritz_pairs_are_those_of_the_dense_krylov_space(kind, likelihood, rank, steps):
    matrix = dense_ggn(kind, likelihood)
    model, inputs = network(kind)
    eigenbasis = eigenbasis_of(model, inputs, likelihood, rank=rank, steps=steps)
    spectrum, rows = eigenbasis.diagnostics, eigenbasis.basis
    values, wanted = dense_ritz(matrix, steps)
    assert rows.shape == (rank, len(matrix))
    assert_orthonormal(rows)
    assert (spectrum.steps, spectrum.effective_rank, spectrum.passes, spectrum.points) == (steps, rank, steps, 12)
    assert (spectrum.null, spectrum.negative, spectrum.exhausted) == (0, 0, False)
    np.testing.assert_allclose(spectrum.ritz_values, values[:rank], rtol=1e-8)
    assert largest_angle(wanted[:, :rank], rows.T) < 1e-6
    # Each row on its own, up to its sign, and how far it is from an eigenvector.
    residuals = (matrix @ rows.T - rows.T * torch.from_numpy(spectrum.ritz_values)).norm(dim=0)
    np.testing.assert_allclose(spectrum.residuals, residuals, rtol=1e-6, atol=1e-10)
    if steps <= 6:
        assert float(residuals.max()) > 1e-3  # control: they are no eigenvectors yet


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", ["conv", "encoder"])
def test_exhausted_spaces_hold_every_eigenpair(kind, likelihood, dtype):
    matrix = dense_ggn(kind, likelihood)
    model, inputs = network(kind)
    rank = 24 if likelihood == "classification" else 36
    eigenbasis = eigenbasis_of(model.to(dtype), inputs.to(dtype), likelihood, budget="60p")
    values, wanted = torch.linalg.eigh(matrix)
    spectrum = eigenbasis.diagnostics
    assert spectrum.exhausted
    assert spectrum.effective_rank == rank
    assert spectrum.null == spectrum.steps - rank > 0
    assert_orthonormal(eigenbasis.basis)
    # Float32 products of G are off by a few ε ‖G‖; the smallest eigenvalue here is 6e-4 ‖G‖.
    slack = 1e-9 if dtype == torch.float64 else 1e-3
    np.testing.assert_allclose(spectrum.ritz_values, values.flip(0)[:rank], rtol=slack)
    assert largest_angle(wanted[:, -rank:], eigenbasis.basis.T.double()) < slack
    assert float(np.max(spectrum.residuals)) == 0.0


@pytest.mark.parametrize("kind", NETWORKS)
def test_leading_pairs_converge_to_those_of_scipy(kind):
    matrix = dense_ggn(kind, "classification")
    model, inputs = network(kind)
    values, wanted = eigsh(matrix.numpy(), k=3, which="LA")
    eigenbasis = eigenbasis_of(model, inputs, rank=3, steps=20)
    np.testing.assert_allclose(eigenbasis.diagnostics.ritz_values, values[::-1], rtol=1e-9)
    assert largest_angle(torch.from_numpy(wanted.copy()), eigenbasis.basis.T) < 1e-5
    # Control: three steps are not enough.
    early = eigenbasis_of(model, inputs, rank=3).diagnostics.ritz_values
    assert float(np.abs(early / values[::-1] - 1).max()) > 1e-2


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_last_of_as_many_steps_is_little_but_the_start(seed):
    """G moves 18 of 2,043 directions, so a random start lies outside of them but for a share of about 0.009."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model, inputs = nn.Sequential(nn.Linear(30, 60), nn.Tanh(), nn.Linear(60, 3)).double(), torch.randn(6, 30)
    inputs = inputs.double()
    start = start_vector(torch.empty(2043, 2043, dtype=torch.float64), 0)
    last, cured = (
        eigenbasis_of(model, inputs, "regression", rank=3, steps=steps).basis[-1] @ start for steps in (3, 4)
    )
    assert float(last.square()) > 0.95
    assert float(cured.square()) < 0.05


def hessian_of(kind: str) -> tuple[nn.Module, tuple[Tensor, Tensor], Tensor]:
    model, inputs = network(kind)
    targets = targets_for("classification")
    return model, (inputs, targets), hessian(model, inputs, targets, "classification")


@pytest.mark.parametrize("kind", NETWORKS)
def test_negative_curvature_is_kept_or_left_out(kind):
    model, data, matrix = hessian_of(kind)
    values, wanted = dense_ritz(matrix, 14)
    assert float(values[:8].min()) < 0  # there is something to decide
    both = eigenbasis_of(model, data, rank=8, steps=14, curvature="hessian", negative="pinned")
    np.testing.assert_allclose(both.diagnostics.ritz_values, values[:8], rtol=1e-7)
    assert largest_angle(wanted[:, :8], both.basis.T) < 1e-5
    above = eigenbasis_of(model, data, rank=4, steps=14, curvature="hessian", negative="free")
    np.testing.assert_allclose(above.diagnostics.ritz_values, values[values > 0][:4], rtol=1e-7)
    assert largest_angle(wanted[:, values > 0][:, :4], above.basis.T) < 1e-5
    assert both.diagnostics.negative == above.diagnostics.negative == int((values < 0).sum())


def test_the_whole_hessian_is_the_sum_of_its_pairs():
    model, data, matrix = hessian_of("mlp")
    p = len(matrix)
    eigenbasis = eigenbasis_of(model, data, rank=p, steps=p, curvature="hessian", negative="pinned")
    rows = eigenbasis.basis
    again = (rows.T * torch.from_numpy(eigenbasis.diagnostics.ritz_values)) @ rows
    assert relative_error(again, matrix) < 1e-10


def test_a_negative_curvature_alone_leaves_nothing_above_zero():
    """A loss that is concave in the only weight: softplus of a product of the weight's sine."""

    class Sine(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([1.5], dtype=torch.float64))

        def forward(self, inputs):
            return inputs * self.weight.sin()

    data = (torch.ones(2, 1, dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64))
    kept = eigenbasis_of(Sine(), data, "multilabel", rank=1, curvature="hessian", negative="pinned")
    assert kept.diagnostics.ritz_values[0] < 0
    with pytest.raises(NumericalError, match=r"negative in every direction tried: .* use curvature='ggn'"):
        eigenbasis_of(Sine(), data, "multilabel", rank=1, curvature="hessian", negative="free")


def test_the_fishers_labels_are_those_of_the_seed():
    model, inputs = network("mlp")
    seen = []
    for seed in (0, 3):
        spectrum = eigenbasis_of(model, inputs, budget="20p", curvature="fisher", seed=seed).diagnostics
        matrix = curvature(model, inputs, kind="fisher", seed=seed) @ torch.eye(51, dtype=torch.float64)
        assert spectrum.effective_rank == 12  # a label a point; exhausted, so the start vector is forgotten
        np.testing.assert_allclose(spectrum.ritz_values, torch.linalg.eigvalsh(matrix).flip(0)[:12], rtol=1e-8)
        seen.append(spectrum.ritz_values)
    assert float(np.abs(seen[0] / seen[1] - 1).max()) > 1e-2


def test_a_network_without_curvature():
    model, inputs = network("mlp")
    model[2].weight.data.zero_()
    model[2].requires_grad_(False)
    with pytest.raises(NumericalError, match="the curvature is zero in every direction tried"):
        eigenbasis_of(model, inputs, rank=2)


def test_a_single_parameter_is_one_step():
    model = nn.Linear(1, 1, bias=False).double()
    inputs = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    spectrum = eigenbasis_of(model, inputs, "regression", rank=1).diagnostics
    assert (spectrum.steps, spectrum.exhausted, spectrum.passes) == (1, True, 1)
    np.testing.assert_allclose(spectrum.ritz_values, [5.0])
    np.testing.assert_allclose(spectrum.residuals, [0.0])


def test_of_a_repeated_eigenvalue_one_direction_is_found():
    """A linear model for several outputs: G = I ⊗ XᵀX, of which Lanczos sees each eigenvalue once."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(4, 3, bias=False).double()
    inputs = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    spectrum = eigenbasis_of(model, inputs, "regression", rank=12).diagnostics
    assert spectrum.exhausted
    np.testing.assert_allclose(spectrum.ritz_values, torch.linalg.eigvalsh(inputs.T @ inputs).flip(0), rtol=1e-9)


@pytest.mark.parametrize(("rank", "steps", "rows"), [(6, 6, 6), (2, 5, 2), (4, 5, 4)])
def test_no_more_memory_stays_than_the_rank_says(rank, steps, rows):
    model, inputs = network("mlp")
    kept = eigenbasis_of(model, inputs, rank=rank, steps=steps).basis
    assert kept.untyped_storage().nbytes() == rows * kept.shape[1] * 8


def test_a_rank_of_the_budget_ends_at_what_the_data_allow():
    model, inputs = network("conv")
    eigenbasis = eigenbasis_of(model, inputs[:2], budget="100p")
    assert eigenbasis.diagnostics.exhausted
    assert eigenbasis.diagnostics.effective_rank == 4  # two points of three classes
    assert eigenbasis.basis.untyped_storage().nbytes() < 20 * 183 * 8


class Counted:
    """A loader that counts its passes."""

    def __init__(self, *batches):
        self.batches, self.passes = batches, 0

    def __iter__(self):
        self.passes += 1
        return iter(self.batches)


@pytest.mark.parametrize(("kind", "most"), [("ggn", 6), ("fisher", 2), ("empirical-fisher", 2)])
def test_a_rank_that_is_given_and_too_high_is_refused_after_one_pass(kind, most):
    model, inputs = network("mlp")
    loader = Counted((inputs[:2], torch.tensor([0, 1])))
    message = rf"rank {most + 1} is above what the data allow: 2 points of 3 outputs .*\({kind}\) of rank {most} at"
    with pytest.raises(SettingError, match=message):
        eigenbasis_of(model, loader, rank=most + 1, curvature=kind)
    assert loader.passes == 1
    assert eigenbasis_of(model, loader, rank=most, curvature=kind).diagnostics.effective_rank <= most


def test_steps_and_rank_must_fit():
    model, inputs = network("mlp")
    for settings in ({"rank": 4, "steps": 3}, {"rank": 4, "steps": 52}):
        with pytest.raises(SettingError, match=r"between the rank, 4, and the number of selected parameters, 51; got"):
            eigenbasis_of(model, inputs, **settings)
    with pytest.raises(SettingError, match=r"the rank, 5 \(set by the budget; a given rank= may be lower\)"):
        eigenbasis_of(model, inputs, budget="5p", steps=4)
    with pytest.raises(SettingError, match=r"steps must be a whole number, got 3\.5"):
        eigenbasis_of(model, inputs, rank=3, steps=3.5)
    with pytest.raises(SettingError, match="unknown curvature 'gnn'"):
        eigenbasis_of(model, inputs, rank=3, curvature="gnn")


def chunk_of(rows: Tensor, cuts: list[int]) -> Rows:
    """Rows (samples, vectors, p) in pieces, the last first: any order is allowed."""
    ends = [0, *cuts, rows.shape[-1]]
    pieces = iter([(a, rows[..., a:b]) for a, b in pairwise(ends)][::-1])
    return Rows(slice(0, rows.shape[0]), slice(0, rows.shape[1]), pieces)


@pytest.mark.parametrize("cuts", [[], [1], [17, 18, 250], list(range(1, 300))])
def test_the_meter_is_the_formula_whatever_the_pieces(cuts):
    rows = vectors(300, 8).T.reshape(4, 2, 300)
    basis = torch.linalg.qr(vectors(300, 5, seed=1))[0].T.contiguous()
    weights = np.array([1.0, 0.9, 0.5, 0.01, 0.0])
    matrix = torch.eye(300, dtype=torch.float64) - (basis.T * torch.from_numpy(weights)) @ basis
    energy, remainder = remainder_meter(basis, weights)(chunk_of(rows, cuts))
    torch.testing.assert_close(energy, rows.square().sum(-1), rtol=1e-13, atol=0)
    torch.testing.assert_close(remainder, torch.einsum("abp,pq,abq->ab", rows, matrix, rows), rtol=1e-12, atol=0)


def test_the_meter_takes_long_pieces_a_few_columns_at_a_time(monkeypatch):
    rows = vectors(5000, 6).T.reshape(2, 3, 5000)
    basis = torch.linalg.qr(vectors(5000, 5, seed=1))[0].T.contiguous()
    whole = remainder_meter(basis, np.ones(5))(chunk_of(rows, [2000]))
    for numbers in (7, 600, 4321):
        monkeypatch.setattr("slu.baselines.eigenbasis._WIDE", numbers)
        cut = remainder_meter(basis, np.ones(5))(chunk_of(rows, [2000]))
        torch.testing.assert_close(cut, whole, rtol=1e-12, atol=0)


@pytest.mark.parametrize("share", [1e-4, 1e-6, 1e-8])
def test_a_nearly_captured_gradient_keeps_its_score_in_float32(share):
    """Seeds 0 to 4, p = 20,000: what U's rounding leaves is about ε/√p of ‖g‖²; float32 sums leave more than ε."""
    errors, plain = [], []
    for seed in range(5):
        basis = torch.linalg.qr(vectors(20_000, 6, seed=seed))[0].T.contiguous()
        outside = vectors(20_000, 1, seed=seed + 50)[:, 0]
        outside -= basis.T @ (basis @ outside)
        inside = vectors(6, 1, seed=seed + 100)[:, 0] @ basis
        row = (1 - share) ** 0.5 * inside / inside.norm() + share**0.5 * outside / outside.norm()
        single, row = basis.float(), row.float()
        energy, remainder = remainder_meter(single, np.ones(6))(chunk_of(row[None, None], [9000]))[:, 0, 0]
        exact = (row.double() - (row.double() @ basis.T) @ basis).square().sum() / energy
        errors.append(float((remainder / energy / exact - 1).abs()))
        plain.append(float((1 - (single @ row).square().sum() / row.square().sum()) / exact - 1))
    # Five times ε/√p, since the r rows and g add up; float64 sums add nothing to it.
    bound = 5 * torch.finfo(torch.float32).eps / 20_000**0.5
    assert max(errors) < bound / share + 1e-6
    if share <= 1e-6:
        assert max(map(abs, plain)) > 10 * max(errors)  # control: sums in float32


def test_the_meter_is_never_negative():
    basis = torch.linalg.qr(vectors(4000, 40))[0].T.float().contiguous()
    rows = (vectors(40, 30, seed=2).T.float() @ basis)[None]
    assert float((rows.double().square().sum(-1) - (rows.double() @ basis.double().T).square().sum(-1)).min()) < 0
    remainder = remainder_meter(basis, np.ones(40))(chunk_of(rows, []))[1]
    assert float(remainder.min()) == 0.0
    assert float((remainder / rows.double().square().sum(-1)).max()) < 1e-7


def test_a_spectrum_comes_back_from_plain_numbers():
    model, inputs = network("mlp")
    spectrum = eigenbasis_of(model, inputs, rank=3, steps=5).diagnostics
    again = Spectrum.from_plain(spectrum.plain())
    for name, value in vars(spectrum).items():
        assert np.array_equal(value, getattr(again, name))
        assert type(value) is type(getattr(again, name))
    text = str(spectrum)
    assert "effective rank  3 of 5 steps\n" in text
    assert "12 points, 5 passes" in text
    assert f"{spectrum.ritz_values[0]:.4g} down to {spectrum.ritz_values[-1]:.4g}" in text
    assert "the Krylov space was exhausted" in str(eigenbasis_of(model, inputs, budget="60p").diagnostics)


@pytest.mark.parametrize(
    "change",
    [
        {"steps": "many"},
        {"negative": -1},
        {"points": 0},
        {"passes": 10**400},
        {"ritz_values": ["a", 1.0, 1.0]},
        {"ritz_values": [True, 1.0, 1.0]},
        {"residuals": [0.0]},
        {"exhausted": 1},
        {"seconds": None},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_spectrum_that_makes_no_sense(change):
    model, inputs = network("mlp")
    plain = eigenbasis_of(model, inputs, rank=3).diagnostics.plain()
    with pytest.raises(DamagedFileError, match=next(iter(change))):
        Spectrum.from_plain({**plain, **change})
    with pytest.raises(DamagedFileError, match="residuals is missing"):
        Spectrum.from_plain({name: plain[name] for name in plain if name != "residuals"})
