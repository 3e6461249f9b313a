"""A score that was saved is the same score, for the same network; everything else is refused in words."""

import copy
import dataclasses
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from oracles import network
from slu import SLU, SketchSpec
from slu.errors import DamagedFileError, MismatchError, SettingError, StorageError
from slu.likelihoods import Classification, Multilabel, Regression
from slu.methods import artefact
from slu.methods.readings import READINGS
from slu.sketches import SKETCHES
from slu.storage import files, read, write

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
LIKELIHOODS = [Classification(), Regression(0.3), Multilabel([1.0, 0.5, 2.0])]


def made(kind="mlp", dtype=torch.float64):
    model, inputs = network(kind)
    return model.to(dtype), inputs.to(dtype)


def fitted(model, inputs, likelihood="classification", **settings):
    return SLU(model, likelihood, **{"rank": 4, **settings}).fit(inputs)


@pytest.fixture(scope="module")
def original():
    model, inputs = made()
    return model, inputs, fitted(model, inputs, sketch="hashed", sketch_size=20)


@pytest.fixture
def path(original, tmp_path):
    original[2].save(tmp_path / "net.slu")
    return tmp_path / "net.slu"


def assert_same(first, second, inputs):
    for reading in READINGS:
        for per_output in (False, True):
            scores = [score(inputs, reading=reading, per_output=per_output) for score in (first, second)]
            assert scores[0].dtype == scores[1].dtype
            assert torch.equal(*scores)
    for field in dataclasses.fields(first.diagnostics):
        before, after = (getattr(score.diagnostics, field.name) for score in (first, second))
        assert type(before) is type(after)
        assert np.array_equal(before, after)
    for name in ("rank", "sketch", "estimator", "precondition", "keep", "curvature", "seed"):
        assert getattr(first.method, name) == getattr(second.method, name)
    assert first.method.network.selection == second.method.network.selection


def round_trip(score, model, inputs, path):
    score.save(path)
    assert_same(score, SLU.load(path, copy.deepcopy(model)), inputs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda each: type(each).__name__)
def test_every_likelihood_and_type_comes_back_bit_for_bit(likelihood, dtype, tmp_path):
    model, inputs = made("conv", dtype)
    score = fitted(model, inputs, likelihood, sketch="shift", sketch_size=40)
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
        {"precondition": 2},
        {"keep": 0.9},
        {"estimator": "difference"},
        {"curvature": "fisher"},
        {"sketch": SketchSpec("hashed", 51, 24, seed=7, options={"nonzeros": 3})},
        {"seed": np.int64(3)},
        {"keep": np.float32(0.75)},
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
        name = f"{kind}-{str(dtype).removeprefix('torch.')}-{sketch}"
        score.save(tmp_path / f"{name}.slu")
        expected[name] = {
            reading: score(inputs, reading=reading).double().tolist() for reading in ("variance", "fisher-relative")
        }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("scores_again.py")), str(tmp_path)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected


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


def test_the_same_weights_in_another_order(original, path):
    """They would be sketched at each other's places."""
    children = layers(original[0])
    turned = Wider({"2": children["2"], "0": children["0"]})
    with pytest.raises(MismatchError, match=r"stand in another order: 0.weight came where 2.weight is now"):
        SLU.load(path, turned)


def test_a_wrapped_network(original, path):
    with pytest.raises(MismatchError, match=r"every name begins with 'module\.'.*pass the module inside"):
        SLU.load(path, nn.DataParallel(original[0]))


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
    monkeypatch.setattr(files, "FORMAT", 2)
    original[2].save(path)
    monkeypatch.undo()
    with pytest.raises(StorageError, match=r"has the format 2, .* install a newer slu"):
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


def test_an_edited_setting(original, path):
    data = path.read_bytes()
    edited = data.replace(b'\\"rank\\": 4', b'\\"rank\\": 3')
    assert edited != data
    path.write_bytes(edited)
    with pytest.raises(DamagedFileError, match="does not fit its content"):
        SLU.load(path, original[0])


def test_cuts_of_every_class(original, path):
    data = path.read_bytes()
    index_end = 8 + int.from_bytes(data[:8], "little")
    lengths = [*range(9), 9, index_end // 2, index_end - 1, index_end, index_end + 1, (index_end + len(data)) // 2]
    for length in [*lengths, len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(DamagedFileError):
            SLU.load(path, original[0])


def test_flipped_bits_are_refused_or_harmless(original, path):
    seed, flips = 12, 2000
    print(f"{flips} flips, seed {seed}")
    model, _, score = original
    data, header = path.read_bytes(), read(path)[0]
    draw = random.Random(seed)
    harmless = 0
    for _ in range(flips):
        harmed = bytearray(data)
        place = draw.randrange(8 * len(data))
        harmed[place // 8] ^= 1 << place % 8
        path.write_bytes(harmed)
        try:
            found = SLU.load(path, model)
        except StorageError:
            continue
        harmless += 1
        assert read(path)[0] == header, place
        assert torch.equal(found.subspace.basis, score.subspace.basis), place
        assert found.subspace.correction == score.subspace.correction
    assert harmless < 0.02 * flips


def change(header, *keys, value=None):
    """The header with one entry changed, or without it."""
    header = copy.deepcopy(header)
    place = header
    for key in keys[:-1]:
        place = place[key]
    if value is None:
        del place[keys[-1]]
    else:
        place[keys[-1]] = value
    return header


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("settings", "rank"), "four"),
        (("settings", "rank"), 10**9),
        (("settings", "sketch", "size"), 21),
        (("settings", "sketch", "size"), 10**15),
        (("settings", "sketch", "parameters"), 50),
        (("settings", "sketch", "kind"), "quantum"),
        (("settings", "sketch", "options"), {"nonzeros": 10**9}),
        (("settings", "sketch"), 3),
        (("settings", "diagnostics"), {"steps": 4}),
        (("settings", "diagnostics", "effective_rank"), 3),
        (("settings", "nonsense"), 1),
        (("settings", "params"), ["0.weight"]),
        (("settings", "params"), None),
        (("settings", "correction"), None),
        (("settings", "sketch"), None),
        (("settings",), None),
        (("likelihood",), None),
        (("likelihood", "settings"), {"classes": 3}),
        (("own_forward",), None),
        (("fingerprint",), None),
        (("fingerprint",), [1]),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else str(value),
)
def test_a_header_that_makes_no_sense_though_its_checksum_fits(original, path, keys, value):
    header, tensors = read(path)
    del header["format"]
    write(path, tensors, change(header, *keys, value=value))
    with pytest.raises(StorageError, match=r"net\.slu") as raised:
        SLU.load(path, original[0])
    assert isinstance(raised.value, DamagedFileError | MismatchError)


@pytest.mark.parametrize("wrong", ["basis", "probe", "both"])
def test_tensors_that_do_not_fit_the_header(original, path, wrong):
    header, tensors = read(path)
    turned = {"basis": tensors["basis"].T, "probe": tensors["probe"][1:]}
    for changed in ({**tensors, wrong: turned.get(wrong)}, {name: tensors[name] for name in tensors if name != wrong}):
        write(path, {} if wrong == "both" else changed, header)
        with pytest.raises(DamagedFileError, match=r"net\.slu"):
            SLU.load(path, original[0])


def test_a_sketch_no_one_can_hold_is_refused_before_memory_is_taken(tmp_path):
    model = nn.Linear(400, 500)
    score = fitted(model, torch.randn(3, 400, generator=torch.Generator().manual_seed(0)), sketch_size=20)
    score.save(tmp_path / "net.slu")
    header, tensors = read(tmp_path / "net.slu")
    header["settings"]["sketch"] |= {"kind": "gaussian", "size": 200_000, "options": {}}
    write(tmp_path / "net.slu", tensors, header)
    with pytest.raises(
        DamagedFileError, match=r"does not fit together: .* a sketch of size 200000 .* Fit and save anew"
    ):
        SLU.load(tmp_path / "net.slu", model)


@pytest.mark.parametrize("other", [1.5, float("nan")])
def test_a_sketch_that_is_drawn_differently_is_refused(original, path, other):
    header, tensors = read(path)
    write(path, {**tensors, "probe": other * tensors["probe"]}, header)
    with pytest.raises(MismatchError, match=r"cannot be drawn again with torch .*named by `slu inspect`, or fit anew"):
        SLU.load(path, original[0])


def test_diagnostics_that_are_not_finite_can_be_saved(original):
    found = original[2].diagnostics
    odd = dataclasses.replace(found, orthogonality=float("nan"), residuals=np.array([1.0, np.inf, np.nan]))
    again = type(odd).from_plain(json.loads(json.dumps(odd.plain(), allow_nan=False)))
    assert np.isnan(again.orthogonality)
    assert np.array_equal(again.residuals, [1.0, np.nan, np.nan], equal_nan=True)


def test_the_versions_are_in_the_header(path):
    assert read(path)[0]["versions"] == artefact.versions()
    assert set(artefact.versions()) == {"slu", "python", "torch", "numpy", "scipy"}
