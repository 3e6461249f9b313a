"""A score that was saved is the same score, for the same network; everything else is refused in words."""

import copy
import dataclasses

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from slu import SLU, DiagonalScale, Lanczos, SketchSpec, Stream
from slu.artifacts import files, read, write
from slu.core.readout import GRADIENT_READINGS
from slu.errors import MismatchError, ModelError, SettingError, StorageError
from slu.likelihoods import Classification, Multilabel, Regression
from slu.sketches import SKETCHES
from stored import fitted, made, scores_again

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
LIKELIHOODS = [Classification(), Regression(0.3), Multilabel([1.0, 0.5, 2.0])]


def assert_same(first, second, inputs):
    for reading in GRADIENT_READINGS:
        for per_output in (False, True):
            scores = [score(inputs, reading=reading, per_output=per_output) for score in (first, second)]
            assert scores[0].dtype == scores[1].dtype
            assert torch.equal(*scores)
    for field in dataclasses.fields(first.diagnostics):
        before, after = (getattr(score.diagnostics, field.name) for score in (first, second))
        assert type(before) is type(after)
        assert np.array_equal(before, after, equal_nan=True)
    assert first.settings.header() == second.settings.header()
    assert first.settings.network.selection == second.settings.network.selection


def round_trip(score, model, inputs, path):
    score.save(path)
    assert_same(score, SLU.load(path, copy.deepcopy(model)), inputs)


@pytest.mark.parametrize("solver", ["stream", "lanczos"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda each: type(each).__name__)
def test_every_likelihood_and_type_comes_back_bit_for_bit(likelihood, dtype, solver, tmp_path):
    model, inputs = made("conv", dtype)
    score = fitted(model, inputs, likelihood, sketch="shift", sketch_size=40, solver=solver)
    round_trip(score, model, inputs, tmp_path / "net.slu")


@pytest.mark.parametrize("kind", SKETCHES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_sketch_comes_back_bit_for_bit(kind, dtype, tmp_path):
    model, inputs = made("mlp", dtype)
    size = None if kind == "identity" else 20
    score = fitted(model, inputs, sketch=kind, sketch_size=size, seed=5)
    round_trip(score, model, inputs, tmp_path / "net.slu")


@pytest.mark.parametrize(
    "settings",
    [
        {"params": ["2.*"]},
        {"params": lambda name, value: value.dim() == 1},
        {"solver": "lanczos"},
        {"solver": Stream(labels_per_point="all")},
        {"solver": Stream(labels_per_point=2, oversampling=3)},
        {"scale": DiagonalScale(damping=0.1, points=5)},
        {"scale": DiagonalScale(prior_precision=0.5)},
        {"scale": None},
        {"ridge": 0.0},
        {"solver": Lanczos(precondition=2)},
        {"solver": Lanczos(keep=0.9)},
        {"estimator": "difference"},
        {"curvature": "fisher"},
        {"sketch": SketchSpec("hashed", 51, 24, seed=7, options={"nonzeros": 3})},
        {"seed": np.int64(3)},
        {"solver": Lanczos(keep=np.float32(0.75))},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_every_setting_comes_back(settings, tmp_path):
    model, inputs = made()
    round_trip(fitted(model, inputs, **settings), model, inputs, tmp_path / "net.slu")


def test_a_loaded_score_can_be_saved_again(original, path, tmp_path):
    SLU.load(path, original[0]).save(tmp_path / "again.slu")
    first, second = read(path), read(tmp_path / "again.slu")
    assert first[0] == second[0]
    assert all(torch.equal(first[1][name], second[1][name]) for name in first[1])


def test_a_fresh_process_says_the_same(tmp_path):
    expected = {}
    cases = [(kind, dtype, "block_srft") for kind in ("mlp", "conv") for dtype in DTYPES]
    cases += [("mlp", torch.float32, kind) for kind in ("srft", "hashed", "shift", "gaussian", "rademacher")]
    for kind, dtype, sketch in cases:
        model, inputs = made(kind, dtype)
        score = fitted(model, inputs, sketch=sketch, sketch_size=20)
        name = f"SLU-{kind}-{str(dtype).removeprefix('torch.')}-{sketch}"
        score.save(tmp_path / f"{name}.slu")
        expected[name] = {reading: score(inputs, reading=reading).double().tolist() for reading in score.readings}
    assert scores_again(tmp_path) == expected


def test_saving_leaves_the_model_and_the_random_state_alone(original, path):
    model, _, score = original
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    score.save(path)
    SLU.load(path, model)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


class Wider(nn.Module):
    """The layers of the original under their names, and something more or less."""

    def __init__(self, layers):
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, inputs):
        return self.get_submodule("2")(self.get_submodule("0")(inputs).tanh())


def layers(model):
    return {name: copy.deepcopy(layer) for name, layer in model.named_children()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"2": nn.Linear(6, 4).double()}, "2.weight is 4x6 float64 instead of 3x6 float64"),
        ({"0": nn.Linear(4, 6, bias=False).double()}, "0.bias is missing"),
        ({"3": nn.Linear(1, 1).double()}, "3.weight is new and 1 more"),
        ({"2": nn.Linear(6, 3).double()}, "the values of 2.weight have changed and 1 more"),
        ({"2": nn.Linear(6, 3)}, "2.weight is 3x6 float32 instead of 3x6 float64"),
        ({"3": nn.BatchNorm1d(3, affine=False).double()}, "3.running_mean is new and 2 more"),
    ],
    ids=["shape", "missing", "extra", "values", "type", "buffer"],
)
def test_another_network(original, path, change, message):
    other = Wider({**layers(original[0]), **change})
    with pytest.raises(MismatchError, match=f"net.slu was fitted on another network: {message}. Load the weights"):
        SLU.load(path, other)
    # The control: under the same names with the same weights it is the same network.
    same = Wider(layers(original[0]))
    assert torch.equal(SLU.load(path, same)(original[1]), original[2](original[1]))


def test_one_changed_bit_of_one_weight(original, path):
    model = copy.deepcopy(original[0])
    model[0].weight.detach().view(torch.int64)[3, 1] ^= 1
    with pytest.raises(MismatchError, match=r"the values of 0.weight have changed"):
        SLU.load(path, model)


def test_a_changed_buffer(tmp_path):
    model, inputs = made("conv")
    fitted(model, inputs).save(tmp_path / "net.slu")
    model(inputs)  # in training mode: the running statistics move
    with pytest.raises(MismatchError, match=r"the values of 1.running_mean have changed"):
        SLU.load(tmp_path / "net.slu", model)


@pytest.mark.parametrize(("field", "error"), [("method", StorageError), ("params", MismatchError)])
def test_a_name_of_the_file_stays_in_the_line_of_the_error(tmp_path, field, error):
    model, inputs = nn.Linear(3, 2), torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    SLU(model, "classification", rank=2).fit(inputs).save(tmp_path / "net.slu")
    header, tensors = read(tmp_path / "net.slu")
    if field == "method":
        header["method"] = "a\nslu: all is well"
    else:
        header["settings"]["params"][0] = "a\nslu: all is well"
    write(tmp_path / "net.slu", tensors, header)
    with pytest.raises(error, match="all is well") as raised:
        SLU.load(tmp_path / "net.slu", model)
    assert "\n" not in str(raised.value)


def test_the_same_weights_in_another_order(original, path):
    """They would be sketched at each other's places."""
    children = layers(original[0])
    turned = Wider({"2": children["2"], "0": children["0"]})
    with pytest.raises(MismatchError, match=r"stand in another order: 0.weight came where 2.weight is now"):
        SLU.load(path, turned)


def test_a_network_inside_of_a_module_of_the_users_own(original, path):
    with pytest.raises(MismatchError, match=r"every name begins with 'network\.'.*pass the module inside"):
        SLU.load(path, Wider({"network": original[0]}))


def test_a_network_trained_further_between_fit_and_save(tmp_path):
    model, inputs = made()
    at_the_fit = copy.deepcopy(model)
    score = fitted(model, inputs)
    model[0].weight.detach().add_(0.1)
    score.save(tmp_path / "net.slu")
    with pytest.raises(MismatchError, match=r"the values of 0.weight have changed"):
        SLU.load(tmp_path / "net.slu", model)
    assert SLU.load(tmp_path / "net.slu", at_the_fit).diagnostics.steps == 4


def test_another_methods_file(original, path):
    class Other(SLU):
        pass

    with pytest.raises(StorageError, match="holds a score of SLU, Other cannot load it; see `slu inspect`"):
        Other.load(path, original[0])
    write(path, {}, {"stage": "running"})
    with pytest.raises(StorageError, match="holds no score, SLU cannot load it"):
        SLU.load(path, original[0])


def test_files_of_other_programs_and_no_file(original, path):
    with pytest.raises(StorageError, match="there is no file"):
        SLU.load(path.with_name("none.slu"), original[0])
    safetensors.torch.save_file(original[0].state_dict(), path)
    with pytest.raises(StorageError, match="slu did not write it"):
        SLU.load(path, original[0])


def test_a_newer_format(original, path, monkeypatch):
    monkeypatch.setattr(files, "FORMAT", 3)
    original[2].save(path)
    monkeypatch.undo()
    with pytest.raises(StorageError, match=r"has the format 3, .* install a newer slu"):
        SLU.load(path, original[0])


class Tempered(Classification):
    """One of the user's own."""


def test_a_likelihood_of_the_users_own(tmp_path):
    model, inputs = made()
    path = tmp_path / "net.slu"
    score = fitted(model, inputs, Tempered())
    score.save(path)
    with pytest.raises(MismatchError, match=r"net.slu: it was fitted with .*Tempered; pass that object as likelihood="):
        SLU.load(path, model)
    with pytest.raises(MismatchError, match="not with classification"):
        SLU.load(path, model, likelihood="classification")
    assert_same(score, SLU.load(path, model, likelihood=Tempered()), inputs)


def test_a_likelihood_that_was_not_fitted_with(original, path):
    model, inputs, score = original
    with pytest.raises(MismatchError, match=r"not with regression\(.*; leave likelihood= out"):
        SLU.load(path, model, likelihood="regression")
    with pytest.raises(SettingError, match="unknown likelihood 'klassification'"):
        SLU.load(path, model, likelihood="klassification")
    assert_same(score, SLU.load(path, model, likelihood="classification"), inputs)


def test_a_forward_of_the_users_own(original, path, tmp_path):
    model, inputs = made()

    def half(module, batch):
        return module(0.5 * batch)

    score = fitted(model, inputs, forward=half)
    score.save(tmp_path / "own.slu")
    with pytest.raises(MismatchError, match=r"own.slu was fitted with a forward= of its own; pass the same function"):
        SLU.load(tmp_path / "own.slu", model)
    assert_same(score, SLU.load(tmp_path / "own.slu", model, forward=half), inputs)
    with pytest.raises(MismatchError, match=r"net.slu was fitted without a forward=; leave it out"):
        SLU.load(path, original[0], forward=half)


class OnGraph(nn.Module):
    """Mixes its weights by a buffer."""

    def __init__(self, edges):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 12).reshape(4, 3))
        self.register_buffer("edges", edges)

    def forward(self, inputs):
        return inputs @ (self.edges @ self.weight)


def test_a_sparse_buffer_is_a_buffer(tmp_path):
    edges = torch.eye(4) + torch.eye(4).flip(0)
    inputs = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    dense, sparse = (
        SLU(OnGraph(each), "classification", rank=4, sketch_size=12).fit(inputs) for each in (edges, edges.to_sparse())
    )
    torch.testing.assert_close(sparse(inputs), dense(inputs), rtol=1e-4, atol=1e-4)
    sparse.save(tmp_path / "net.slu")
    again = SLU.load(tmp_path / "net.slu", OnGraph(edges.to_sparse()))
    assert torch.equal(again(inputs), sparse(inputs))
    with pytest.raises(MismatchError, match="edges"):
        SLU.load(tmp_path / "net.slu", OnGraph((2 * edges).to_sparse()))
    with pytest.raises(ModelError, match="edges holds NaN"):
        SLU(OnGraph((edges * torch.nan).to_sparse()), "classification", rank=4, sketch_size=12).fit(inputs)
