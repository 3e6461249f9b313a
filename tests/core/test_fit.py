"""What SLU takes as model and data: loaders, batches, dicts, types, subsets; order and splits do not matter."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from oracles import ggn, jacobian, krylov_basis, leading_eigenvectors, network, projected_out
from shorthand import paper_slu
from slu import SLU, Lanczos, Stream
from slu.core.readout import GRADIENT_READINGS
from slu.krylov import start_vector

# Sampled labels belong to a sample as it is given: the same numbers in a dict are another sample.
EXACT = {
    "all labels": Stream(labels_per_point="all", oversampling=60),
    "lanczos": Lanczos(),
}
WAYS = {"default": None, **EXACT}
in_exact_ways = pytest.mark.parametrize("fitted", EXACT, indirect=True)


def basis_of(matrix, rank, way):
    """The space that a way of fitting finds without a sketch."""
    return (
        krylov_basis(matrix, start_vector(matrix, 0), rank) if way == "lanczos" else leading_eigenvectors(matrix, rank)
    )


def calibrating(inputs):
    """Calibration points: twelve are too few to hold some out."""
    return 1.3 * inputs.flip(1)


@pytest.fixture(params=WAYS)
def fitted(request):
    """A score as a user gets it, calibrated, and its inputs."""
    model, inputs = network("mlp")
    scale = "diagonal" if request.param in EXACT else "auto"
    score = SLU(model, "classification", rank=5, solver=WAYS[request.param], scale=scale).fit(
        inputs, calibration=calibrating(inputs)
    )
    assert score.readings[0] == "combined" and score.scale is not None and score.settings.ridge > 0
    return score, inputs


def refit(score, data, calibration, model=None, **settings):
    """The same way of fitting on other data."""
    same = {"rank": 5, "solver": score.settings.solver, "scale": score.settings.scale}
    method = SLU(model or score.settings.network.model, "classification", **same, **settings)
    return method.fit(data, calibration=calibration)


def assert_close(actual, expected):
    """The combined reading is standardized: its numbers are of size one, and may be near 0."""
    torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-7)


def loader(inputs, size, shuffle=False):
    data = TensorDataset(inputs, torch.zeros(len(inputs)))
    return DataLoader(data, size, shuffle=shuffle, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("size", [1, 5, 12])
def test_query_batches_do_not_matter_and_order_is_kept(fitted, size):
    score, inputs = fitted
    whole = score(inputs)
    # vmap over other batch sizes may take other kernels: rounding only.
    torch.testing.assert_close(score(loader(inputs, size)), whole, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(score(list(inputs.split(size))), whole, rtol=1e-10, atol=1e-10)
    assert float((whole[1:] - whole[:-1]).abs().min()) > 1e-6  # the control: another order would show
    torch.testing.assert_close(score(inputs.flip(0)), whole.flip(0), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("size", [1, 5, 7])
@pytest.mark.parametrize("shuffle", [False, True])
def test_fit_does_not_depend_on_batches_or_order(fitted, size, shuffle):
    score, inputs = fitted
    other = refit(score, loader(inputs, size, shuffle), loader(calibrating(inputs), size, shuffle))
    assert_close(other(inputs), score(inputs))


@pytest.mark.parametrize(
    "form", ["pair", "list of pairs", "list of tensors", "list of one-tuples", "floats as targets"]
)
def test_targets_are_ignored(fitted, form):
    score, inputs = fitted
    targets = torch.randint(3, (12,), generator=torch.Generator().manual_seed(0))
    data = {
        "pair": (inputs, targets),
        "list of pairs": [(inputs[:7], targets[:7]), [inputs[7:], targets[7:]]],
        "list of tensors": [inputs[:7], inputs[7:]],
        "list of one-tuples": [(inputs[:7],), (inputs[7:],)],
        "floats as targets": [(inputs, torch.rand(12, 9, generator=torch.Generator().manual_seed(1)))],
    }[form]
    assert_close(refit(score, data, (calibrating(inputs), targets))(data), score(inputs))


@pytest.mark.parametrize("way", EXACT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_type_of_the_model_is_the_type_of_the_score(dtype, way):
    model, inputs = network("conv")
    settings = {"rank": 4, "sketch": "identity", "solver": EXACT[way], "scale": "diagonal"}
    own = calibrating(inputs)
    reference = SLU(model, "classification", **settings).fit(inputs, calibration=own).read_all(inputs)
    score = SLU(model.to(dtype), "classification", **settings).fit(inputs.to(dtype), calibration=own.to(dtype))
    assert score.state.subspace.basis.dtype == score.scale.values.dtype == dtype
    for reading in GRADIENT_READINGS:
        scores = score(inputs.to(dtype), reading=reading)
        assert scores.dtype == dtype
        # Four steps amplify rounding by the ratio of neighbouring Ritz values: 1e-3 is ample for float32.
        rounding = 1e-3 if dtype == torch.float32 else 1e-12
        torch.testing.assert_close(scores.double(), reference[reading], rtol=rounding, atol=0)
    assert score(inputs.to(dtype)).dtype == torch.float64  # standardized logarithms


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_scored_as_in_float32(way, half):
    """Weights and inputs that half precision holds exactly: what is left is the rounding of activations."""
    model, inputs = network("mlp")
    model, inputs = model.to(half), inputs.to(half)
    own = calibrating(inputs)
    settings = {"rank": 3, "solver": WAYS[way]}
    score = SLU(model, "classification", **settings).fit(inputs, calibration=own)
    # The same bits in, so that the same mixtures of labels are drawn.
    settings["forward"] = lambda called, batch: called(batch.float())
    reference = SLU(copy.deepcopy(model).float(), "classification", **settings).fit(inputs, calibration=own)
    for reading in score.readings:
        scores, expected = score(inputs, reading=reading), reference(inputs, reading=reading)
        assert scores.dtype == expected.dtype
        torch.testing.assert_close(scores, expected, rtol=0.1, atol=0.1 if reading in ("combined", "max-logit") else 0)


def test_scores_come_back_where_the_inputs_were(fitted):
    score, inputs = fitted
    assert score(inputs).device == inputs.device
    assert score([inputs]).device == torch.device("cpu")


def test_no_graph_hangs_on_the_score(fitted):
    score, inputs = fitted
    scores = score(inputs.clone().requires_grad_())
    assert not scores.requires_grad
    torch.testing.assert_close(scores, score(inputs))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_may_be_switched_off_outside(fitted, mode):
    score, inputs = fitted
    with mode():
        inside = refit(score, inputs, calibrating(inputs))
        first = inside(inputs.clone())
    assert not inside.state.subspace.basis.is_inference()  # such a tensor could not be used everywhere
    assert_close(first.clone(), score(inputs))
    assert_close(inside(inputs), score(inputs))


@pytest.mark.parametrize("way", EXACT)
@pytest.mark.parametrize("squeeze", [True, False])
def test_regression_with_one_output(squeeze, way):
    model, inputs = network("mlp", outputs=1)
    wrapped = nn.Sequential(model, nn.Flatten(0)) if squeeze else model
    score = paper_slu(wrapped, "regression", rank=4, solver=EXACT[way]).fit(inputs)
    scores = score(inputs, reading="variance")
    assert scores.shape == (12,)
    assert score(inputs, per_output=True).shape == (12, 1)
    basis = basis_of(ggn(model, inputs, "regression"), 4, way)
    wanted = projected_out(jacobian(model, inputs), basis).sum(-1)
    torch.testing.assert_close(scores, wanted, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("way", EXACT)
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("2.*", ["2.weight", "2.bias"]),
        (["0.bias", "2.weight"], ["0.bias", "2.weight"]),
        (lambda name, value: value.dim() == 2, ["0.weight", "2.weight"]),
    ],
    ids=["glob", "names", "predicate"],
)
def test_subset_of_parameters(choice, names, way):
    model, inputs = network("mlp")
    score = paper_slu(model, "classification", rank=4, params=choice, solver=EXACT[way]).fit(inputs)
    matrix = ggn(model, inputs, "classification", names)
    assert score.settings.network.selection.count == len(matrix)
    wanted = projected_out(jacobian(model, inputs, names), basis_of(matrix, 4, way)).sum(-1)
    torch.testing.assert_close(score(inputs, reading="variance"), wanted, rtol=1e-7, atol=1e-12)


def test_frozen_parameters_do_not_count_unless_named():
    model, inputs = network("mlp")
    model[0].requires_grad_(False)
    assert SLU(model, "classification", rank=4).network.selection.names == ("2.weight", "2.bias")
    SLU(model, "classification", rank=4, params=["0.weight", "2"]).fit(inputs)
    assert not model[0].weight.requires_grad


class Keywords(nn.Module):
    """Takes keywords and returns a dict, as many libraries' models do."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, left, right):
        return {"logits": self.model(torch.cat([left, right], 1))}


@in_exact_ways
def test_dict_inputs_and_forward(fitted):
    score, inputs = fitted
    model = Keywords(score.settings.network.model)
    data, own = ({"left": each[:, :1], "right": each[:, 1:]} for each in (inputs, calibrating(inputs)))
    other = refit(score, data, own, model, forward=lambda model, inputs: model(**inputs)["logits"])
    assert_close(other(data), score(inputs))
    assert_close(other([(data, None), (data, None)]), score([inputs, inputs]))


@in_exact_ways
def test_several_inputs_in_a_tuple(fitted):
    score, inputs = fitted

    class Places(Keywords):
        def forward(self, left, right):
            return super().forward(left, right)["logits"]

    model = Places(score.settings.network.model)
    data, own = ([((each[:, :1], each[:, 1:]), torch.zeros(12))] for each in (inputs, calibrating(inputs)))
    assert_close(refit(score, data, own, model)(data), score(inputs))


def test_default_sketch_is_exact_for_small_models_and_a_thousand_for_others():
    small, large = (SLU(model, "classification", rank=2) for model in (network("mlp")[0], nn.Linear(200, 10)))
    assert (small.settings.sketch.kind, small.settings.sketch.size) == ("identity", 51)
    assert (large.settings.sketch.kind, large.settings.sketch.size) == ("kronecker", 1000)
