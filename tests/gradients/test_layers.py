"""Gradients layer by layer are those of a plain backward pass for each example, on nets drawn at random."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import awkward
import layered
import misleading
import oracles
from shorthand import all_rows, jacobian_rows, relative_error
from slu.curvature import OutputSpace
from slu.data import Batch
from slu.data.fingerprint import CopyCounter
from slu.gradients import GeneralGradients, Network, PerExampleGradients
from slu.gradients.chunks import MAX_NUMBERS
from slu.gradients.layers import collector, convolution
from slu.likelihoods import resolve
from slu.parameters import select

EXACT = 1e-10
often = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def general_names(gradients: PerExampleGradients, inputs) -> set[str]:
    """What of a batch goes by the general fallback."""
    with gradients._network.evaluating():
        layers = gradients._collector.forward(inputs)
    return set(gradients._network.selection.names) if layers is None else set(layers.general)


def rows_of(gradients, inputs, points: int) -> Tensor:
    with gradients._network.evaluating():
        return jacobian_rows(gradients, inputs, points)


def agrees(model: nn.Module, make, points: list[int], max_numbers: int) -> None:
    """Batches of these sizes one after the other, with the same object."""
    model = model.double().eval()
    gradients = PerExampleGradients(Network(model, select(model)), max_numbers)
    for count in points:
        inputs = make(count)
        inputs = inputs.double() if inputs.is_floating_point() else inputs
        expected = oracles.jacobian(model, inputs)
        # Where a ReLU's derivative jumps, two ways to add up its input may fall on different sides.
        assert relative_error(rows_of(gradients, inputs, count), expected) < EXACT


SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=3)
LIMITS = st.sampled_from([1, 300, MAX_NUMBERS])


@often
@given(net=layered.convolutional(), points=SIZES, max_numbers=LIMITS)
def test_random_convolutional_nets(net, points, max_numbers):
    with torch.random.fork_rng():
        agrees(*net, points, max_numbers)


@often
@given(net=layered.sequential(), points=SIZES, max_numbers=LIMITS)
def test_random_nets_over_sequences(net, points, max_numbers):
    with torch.random.fork_rng():
        agrees(*net, points, max_numbers)


@pytest.mark.parametrize("likelihood", oracles.LIKELIHOODS)
@pytest.mark.parametrize("name", oracles.NETWORKS)
def test_roots_of_every_likelihood(name, likelihood):
    model, inputs = oracles.network(name)
    network = Network(model, select(model))
    expected = oracles.jacobian(model, inputs)
    space = OutputSpace(resolve(likelihood), "ggn", 0)
    with network.evaluating():
        batch = Batch(0, inputs, None)
        outputs = network.outputs(inputs).detach()
        roots = space.roots(outputs, batch, space.numbered(batch, outputs, CopyCounter()))
        actual = all_rows(PerExampleGradients(network), inputs, roots)
    assert relative_error(actual, torch.einsum("bqt,btp->bqp", roots, expected)) < EXACT
    assert relative_error(
        torch.einsum("bqp,bqr->pr", actual, actual), oracles.ggn(model, inputs, likelihood)
    ) < EXACT  # fmt: skip


@pytest.mark.parametrize("name", oracles.NETWORKS)
def test_one_vector_a_sample(name):
    model, inputs = oracles.network(name)
    network = Network(model, select(model))
    vectors = torch.randn(12, 1, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with network.evaluating():
        actual = all_rows(PerExampleGradients(network), inputs, vectors)
    assert relative_error(actual, torch.einsum("bqt,btp->bqp", vectors, oracles.jacobian(model, inputs))) < EXACT


LAYERED = ["custom function", "checkpointed", "in place", "sparse", "recurrent", "attention"]


@pytest.mark.parametrize("name", [*oracles.NETWORKS, *LAYERED])
def test_usual_networks_go_layer_by_layer_altogether(name):
    model, inputs = oracles.network(name) if name in oracles.NETWORKS else awkward.build(name)
    gradients = PerExampleGradients(Network(model, select(model)))
    assert general_names(gradients, inputs) == set()
    actual = rows_of(gradients, inputs, 12)
    for part in model.modules():
        if isinstance(part, nn.Embedding):
            part.sparse = False  # the oracle adds dense gradients
    assert relative_error(actual, oracles.jacobian(model, inputs)) < EXACT


MIXED = {
    "transposed convolution": (
        lambda: nn.Sequential(nn.ConvTranspose1d(6, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(10, 3)),
        {"0.weight"},
    ),
    "weight norm": (
        lambda: nn.Sequential(nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(24, 3))),
        {"1.parametrizations.weight.original0", "1.parametrizations.weight.original1"},
    ),
    "bilinear": (lambda: Bilinear(), {"both.weight"}),
    "by frequency": (lambda: Words(scale_grad_by_freq=True), {"words.weight"}),
}


class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both, self.out = nn.Bilinear(4, 4, 3), nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.out(self.both(inputs[:, 0], inputs[:, 1]))


class Words(nn.Module):
    """Reads words off the signs of its inputs."""

    def __init__(self, **settings) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(3, 4, **settings), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.out(self.words((inputs[..., 0] > 0).long()).mean(1).tanh())


@pytest.mark.parametrize("max_numbers", [MAX_NUMBERS, 30, 1])
@pytest.mark.parametrize("name", MIXED)
def test_what_has_no_formula_goes_the_general_way_and_nothing_else(name, max_numbers):
    build, expected = MIXED[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build().double().eval()
    inputs = misleading.sequences(5)
    gradients = PerExampleGradients(Network(model, select(model)), max_numbers)
    assert general_names(gradients, inputs) == expected
    alone = torch.cat([oracles.jacobian(model, one[None]) for one in inputs])
    assert relative_error(rows_of(gradients, inputs, 5), alone) < EXACT


def test_recurrent_nets_in_single_precision_have_one_fused_step_and_go_the_general_way():
    model, inputs = awkward.build("recurrent")
    expected = oracles.jacobian(model, inputs)
    gradients = PerExampleGradients(Network(model.float(), select(model)))
    assert relative_error(rows_of(gradients, inputs.float(), 12), expected) < 1e-5


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
@pytest.mark.parametrize("name", ["mlp", "conv", "encoder"])
def test_lower_precision_is_close_and_still_layer_by_layer(name, dtype, bound):
    model, inputs = oracles.network(name)
    expected = oracles.jacobian(model.to(dtype).double(), inputs.to(dtype).double())
    gradients = PerExampleGradients(Network(model.to(dtype), select(model)))
    actual = rows_of(gradients, inputs.to(dtype), 12)
    assert actual.dtype == torch.float32
    assert relative_error(actual, expected) < bound
    assert general_names(gradients, inputs.to(dtype)) == set()


def test_bfloat16_rows_are_formed_in_single_precision():
    """A sum over many tokens is as good as its terms; in bfloat16 it would stop growing at 256 of them."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Flatten(), nn.Linear(2000, 1, bias=False)).bfloat16()
    with torch.no_grad():
        model[2].weight.fill_(1.0)
    inputs = torch.ones(3, 2000, 1).bfloat16()
    gradients = PerExampleGradients(Network(model, select(model)))
    with gradients._network.evaluating():
        actual = all_rows(gradients, inputs, torch.ones(3, 1, 1))
    assert torch.equal(actual[:, 0, 0], torch.full((3,), 2000.0))


@pytest.mark.parametrize("params", ["2.*", "*.bias", ["0.weight"]])
def test_a_selection_of_parameters(params):
    model, inputs = oracles.network("mlp")
    selection = select(model, params)
    actual = rows_of(PerExampleGradients(Network(model, selection)), inputs, 12)
    assert relative_error(actual, oracles.jacobian(model, inputs, list(selection.names))) < EXACT


def test_measuring_is_the_same_either_way():
    model, inputs = oracles.network("conv")
    network = Network(model, select(model))
    vectors = torch.randn(12, 4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def meter(rows) -> Tensor:
        total = torch.zeros(2, *rows.shape, dtype=torch.float64)
        for start, values in rows.pieces:
            total[0] += values.square().sum(-1)
            total[1] += (values * torch.arange(start, start + values.shape[-1])).sum(-1)
        return total

    with network.evaluating():
        actual = PerExampleGradients(network).measure(inputs, vectors, meter)
        expected = GeneralGradients(network).measure(inputs, vectors, meter)
    assert actual.shape == (2, 12, 4)
    assert relative_error(actual, expected) < EXACT


TURNED = {
    "t": lambda weight: weight.t(),
    "T": lambda weight: weight.T,
    "mT": lambda weight: weight.mT,
    "transposed": lambda weight: weight.transpose(-1, 0),
    "transposed with itself": lambda weight: weight.transpose(1, 1),
    "permuted": lambda weight: weight.permute(-1, -2),
    "permuted to itself": lambda weight: weight.permute(0, 1),
    "as it is": lambda weight: weight,
    "turned twice": lambda weight: weight.t().t(),
    "summed": lambda weight: weight.sum(0).expand(4, 4),
    "cut": lambda weight: torch.cat([half.T for half in weight.split(2)]).view(4, 4) * 1.0,
}


class Turned(nn.Module):
    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.weight = nn.Parameter(torch.randn(4, 4, generator=torch.Generator().manual_seed(0)))

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs @ self.how(self.weight)).tanh().sum(1)[:, :3] + self.how(self.weight)[0, :3]


@pytest.mark.parametrize("how", TURNED)
def test_square_matrices_turned_in_every_way(how):
    model, inputs = Turned(TURNED[how]).double(), misleading.sequences(5)
    gradients = PerExampleGradients(Network(model, select(model)))
    assert relative_error(rows_of(gradients, inputs, 5), oracles.jacobian(model, inputs)) < EXACT
    assert general_names(gradients, inputs) == ({"weight"} if how == "cut" else set())


class Memory:
    """Runs out of memory above some number of examples; remembers the numbers tried."""

    def __init__(self, monkeypatch, limit: int, error: RuntimeError) -> None:
        self.tried: list[int] = []
        real = collector.Recording

        def recording(network: Network, inputs: Tensor, watch=None):
            self.tried.append(len(inputs))
            if len(inputs) > limit:
                raise error
            return real(network, inputs, watch)

        monkeypatch.setattr(collector, "Recording", recording)


FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def test_out_of_memory_halves_the_batch_and_remembers(monkeypatch):
    model, inputs = oracles.network("conv")
    gradients = PerExampleGradients(Network(model, select(model)))
    memory = Memory(monkeypatch, 4, FULL)
    expected = oracles.jacobian(model, inputs)
    assert relative_error(rows_of(gradients, inputs, 12), expected) < EXACT
    assert memory.tried == [12, 6, 3, 3, 3, 3]
    assert relative_error(rows_of(gradients, inputs, 12), expected) < EXACT
    assert memory.tried[6:] == [3, 3, 3, 3]


def test_out_of_memory_with_one_sample_comes_through(monkeypatch):
    model, inputs = oracles.network("mlp")
    memory = Memory(monkeypatch, 0, FULL)
    with pytest.raises(torch.OutOfMemoryError):
        rows_of(PerExampleGradients(Network(model, select(model))), inputs, 12)
    assert memory.tried == [12, 6, 3, 1]


def test_an_error_of_the_model_itself_comes_through():
    model, inputs = oracles.network("mlp")
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        rows_of(PerExampleGradients(Network(model, select(model))), inputs[:, :2], 12)


def test_inputs_may_be_nested_shared_or_no_tensors_at_all():
    model, left = awkward.build("two inputs")
    inputs = {"left": left, "right": left + 1, "scale": torch.tensor(2.0, dtype=torch.float64), "flip": True}
    plain = awkward.build("two inputs")[0]
    plain.forward = lambda both: awkward.TwoInputs.forward(plain, both, both + 1)
    expected = 2 * oracles.jacobian(plain, left).flip(1)
    assert relative_error(rows_of(PerExampleGradients(Network(model, select(model))), inputs, 12), expected) < EXACT


def test_parameters_that_do_not_matter_have_zero_rows():
    model, inputs = oracles.network("mlp")
    model.register_parameter("unused", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    alone = PerExampleGradients(Network(model, select(model, "unused")))
    assert torch.equal(rows_of(alone, inputs, 12), torch.zeros(12, 3, 2, dtype=torch.float64))
    both = rows_of(PerExampleGradients(Network(model, select(model))), inputs, 12)
    assert relative_error(both, oracles.jacobian(model, inputs)) < EXACT


@pytest.mark.parametrize(
    ("max_numbers", "shapes"), [(MAX_NUMBERS, {(12, 3)}), (8 * 51, {(2, 3)}), (5 * 51, {(2, 2), (4, 1)}), (1, {(1, 1)})]
)
def test_rows_come_in_blocks_that_fit_the_limit(max_numbers, shapes):
    """As do the gradients in the layers' results, 108 numbers a vector: for two vectors of the three in 5 · 51."""
    model, inputs = oracles.network("mlp")
    gradients = PerExampleGradients(Network(model, select(model)), max_numbers)
    unit = torch.eye(3, dtype=torch.float64).expand(12, 3, 3)
    with gradients._network.evaluating():
        actual = [(rows.shape, max(values.numel() for _, values in rows.pieces)) for rows in gradients(inputs, unit)]
    assert all(numbers <= max(max_numbers, 51) for _, numbers in actual)
    assert {shape for shape, _ in actual} == shapes


@pytest.mark.parametrize(("piece", "most"), [(10**6, 12), (400, 2), (1, 1)])
def test_inputs_of_convolutions_are_unfolded_a_few_samples_at_a_time(monkeypatch, piece, most):
    """An example has 144 numbers when unfolded; all vectors of it are formed from them at once."""
    model, inputs = oracles.network("conv")
    unfolded: list[int] = []
    real = convolution.F.unfold
    monkeypatch.setattr(
        convolution.F, "unfold", lambda values, *a, **k: (unfolded.append(len(values)), real(values, *a, **k))[1]
    )
    monkeypatch.setattr(convolution, "PIECE_NUMBERS", piece)
    gradients = PerExampleGradients(Network(model, select(model)))
    assert relative_error(rows_of(gradients, inputs, 12), oracles.jacobian(model, inputs)) < EXACT
    assert max(unfolded) == most


class Double(nn.Module):
    """Single precision inside, double outside."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.out = nn.Linear(4, 4), nn.Linear(4, 3).double()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.out(self.inside(inputs.float()).tanh().mean(1).double())


def test_mixed_precision_is_compared_as_coarsely_as_it_is_computed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Double()
    gradients = PerExampleGradients(Network(model, select(model)))
    inputs = misleading.sequences(5)
    assert general_names(gradients, inputs) == set()
    actual = rows_of(gradients, inputs, 5)
    assert actual.dtype == torch.float64
    assert relative_error(actual, oracles.jacobian(model, inputs)) < 1e-6


class Called(TorchDispatchMode):
    """The names of the operations that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


def test_a_norm_of_permuted_inputs_copies_them_when_they_are_read_and_not_before():
    """Held from the forward pass on, the copies of all norms would be in memory at a time."""
    inputs, norm = torch.randn(4, 5, 6, dtype=torch.float64).permute(0, 2, 1), nn.LayerNorm(5).double()
    with Called() as planning:
        formula = convolution.layer_norm(SimpleNamespace(operand=1, node=norm(inputs).grad_fn, shape=(5,)))
    assert "aten::native_layer_norm" in planning.names and "aten::clone" not in planning.names
    with Called() as reading:
        rows = formula.normalized(lambda rows: rows[None])[0]
    assert "aten::clone" in reading.names
    assert relative_error(rows, nn.functional.layer_norm(inputs, (5,)).reshape(-1, 5)) < 1e-9
