"""What a query cost: every tensor is in it once, the parts add up, and it says what was left as factors."""

import re

import pytest
import torch
from torch import nn

from oracles import network
from slu import SLU
from slu.core.report import CostReport, LayerCost


def large():
    """Two matrices that are left as factors, a matrix and biases that are not, and a kernel."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 64, 300), nn.ReLU(),
            nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 10),
        )  # fmt: skip
        return model, torch.randn(50, 1, 8, 8)


@pytest.fixture(scope="module")
def fitted():
    model, inputs = large()
    return SLU(model, "classification", rank=5, sketch_size=200).fit(inputs), model, inputs


def test_every_tensor_is_there_once_and_the_parts_add_up(fitted):
    score, model, inputs = fitted
    report = score.cost_report(inputs[:20])
    sizes = {name: value.numel() for name, value in model.named_parameters()}
    assert sorted(name for layer in report.layers for name in layer.names) == sorted(sizes)
    assert all(layer.numbers == sum(sizes[name] for name in layer.names) for layer in report.layers)
    assert (report.points, report.outputs) == (20, 10)
    steps = [report.forward, report.distances, report.backward, report.subspace]
    steps += [layer.seconds for layer in report.layers]
    assert report.seconds == pytest.approx(sum(steps)) and min(steps) > 0 and report.plain > 0
    assert [layer.seconds for layer in report.layers] == sorted((each.seconds for each in report.layers), reverse=True)


def test_it_says_which_layers_were_left_as_factors(fitted):
    score, _, inputs = fitted
    factors = {name for layer in score.cost_report(inputs[:20]).layers if not layer.formed for name in layer.names}
    assert factors == {"3.weight", "5.weight"}
    model, _ = large()
    formed = SLU(model, "classification", rank=5, sketch_size=200, sketch="block_srft").fit(inputs)
    assert all(layer.formed for layer in formed.cost_report(inputs[:20]).layers)


def test_the_reader_is_told_names_shares_and_what_dominates(fitted):
    score, _, inputs = fitted
    report = score.cost_report(inputs[:20])
    text = str(report)
    for words in (
        "forward pass",
        "distances of layers",
        "backward pass",
        "3.weight",
        "factors, 76,800 numbers",
        "subspace",
        "plain forward",
    ):
        assert words in text, words
    *parts, whole, last = text.splitlines()
    assert last == f"20 inputs, 10 outputs; the {report.dominant} takes the most time"
    shares = [int(re.search(r"(\d+)%$", line)[1]) for line in parts]
    assert abs(sum(shares) - 100) <= len(shares) and whole.endswith("100%")
    assert all(len(line) < 90 for line in text.splitlines())


def test_it_measures_the_rows_that_the_score_is_calibrated_with(fitted):
    score, model, inputs = fitted
    assert score.cost_report(inputs[:20]).rows == 1
    every = SLU(model, "classification", rank=5, sketch_size=200).fit(inputs).calibrate(inputs, outputs=3)
    report = every.cost_report(iter([inputs[:20]]))
    assert report.rows == 3 and "gradients per input: 3" in str(report)


def test_many_layers_are_cut_to_the_costliest():
    layers = tuple(LayerCost((f"layer {place}",), 10, True, 1e-3 * (50 - place)) for place in range(40))
    report = CostReport(8, 3, 1, 1e-3, 2e-3, 1e-4, 3e-3, layers, 4e-3)
    text = str(report)
    assert "layer 0 " in text and "layer 39" not in text and "others" in text
    shown = [float(ms) for ms in re.findall(r"([\d.]+) ms", text)]
    assert sum(shown[:-1]) == pytest.approx(shown[-1], abs=0.005 * len(shown)), "what is not shown is counted"
    assert report.dominant == "layer 0"
    assert CostReport(8, 3, 1, 1e-3, 0.9, 1e-4, 3e-3, layers, 4e-3).dominant == "forward pass"
    assert CostReport(8, 3, 1, 1e-3, 2e-3, 0.9, 3e-3, layers, 4e-3).dominant == "distances of layers"
    assert str(LayerCost(("a", "b", "c"), 3, True, 0.0)) == "a and 2 more"


def test_of_a_loader_the_first_batch_is_measured_and_scores_stay(fitted):
    score, _, inputs = fitted
    before = score(inputs[:7])
    report = score.cost_report([(inputs[:7], torch.zeros(7)), (inputs[7:20], torch.zeros(13))])
    assert report.points == 7
    assert torch.equal(score(inputs[:7]), before)


@pytest.mark.parametrize("memory", [1_000_000, 64_000])
def test_tensors_that_come_in_several_pieces_or_chunks_are_still_one_line(memory):
    """Large matrices are formed a few rows at a time, and with little memory a batch in several chunks."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, inputs = nn.Sequential(nn.Linear(400, 400), nn.Tanh(), nn.Linear(400, 3)), torch.randn(40, 400)
    score = SLU(model, "classification", rank=5, sketch="shift", memory=memory).fit(inputs)
    report = score.cost_report(inputs)
    assert sorted(layer.names for layer in report.layers) == [("0.bias", "2.weight", "2.bias"), ("0.weight",)]
    assert sum(layer.numbers for layer in report.layers) == 400 * 401 + 3 * 401


@pytest.mark.parametrize("kind", ["mlp", "conv", "encoder", "tied"])
def test_networks_of_every_kind(kind):
    model, inputs = network(kind)
    report = SLU(model, "regression", rank=4).fit(inputs).cost_report(inputs)
    assert sum(layer.numbers for layer in report.layers) == sum(value.numel() for value in model.parameters())
