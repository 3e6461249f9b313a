"""Why an input scores as it does: the numbers are those of the readings, as a table and as a picture."""

import dataclasses
import math
from collections import OrderedDict

import pytest
import torch
from torch import nn

from calibrated import COMBINED, FAR, POINTS, held, problem, slu
from distant import layer_inputs, squared_distances
from oracles import LIKELIHOODS, targets_for
from slu import SLU
from slu.errors import SettingError


@pytest.mark.parametrize("solver", ["stream", "lanczos"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_explanations(likelihood, solver, tmp_path):
    model, inputs = problem()
    score = slu(model, likelihood, solver=solver).fit((inputs, targets_for(likelihood, POINTS)))
    some = inputs[:6]
    told = score.explain(some, outputs=2)
    assert len(told) == 6
    views = [tuple(view) for view in score.calibration.standard.views]
    assert set(told.readings) == {"fisher", "fisher-relative", COMBINED, *(name for view in views for name in view)}
    assert (set(FAR) <= set(told.readings)) == (solver == "stream") == ("variance" not in told.readings)
    for name, values in told.readings.items():
        expected = score(some, reading=name, outputs=1)
        torch.testing.assert_close(values, expected, rtol=1e-9, atol=1e-9)
        below = 100 * (score.calibration.scores[name] < values.double()[:, None]).double().mean(1)
        torch.testing.assert_close(told.percentiles[name], below)
    torch.testing.assert_close(told.pvalues, score.pvalue(some, reading=COMBINED))
    assert tuple(told.views) == tuple(view[0] for view in views)
    heights = torch.stack(list(told.views.values()))
    torch.testing.assert_close(0.5 * (2 * heights).logsumexp(0), told.readings[COMBINED], rtol=1e-9, atol=1e-9)
    assert told.raised_by == tuple(list(told.views)[place] for place in heights.argmax(0).tolist())
    rows = score(some, reading="fisher", per_output=True)
    shares = (rows / rows.sum(1, keepdim=True)).sort(1, descending=True)
    torch.testing.assert_close(told.contributions, shares.values[:, :2], rtol=1e-9, atol=0)
    assert torch.equal(told.outputs, shares.indices[:, :2])
    text = str(told)
    assert f"{told.pvalues[5]:.3g}" in text and f"{score.calibration.points} calibration" in " ".join(text.split())
    assert f"{told.percentiles['fisher'][5]:.1f}" in text
    assert max(map(len, text.splitlines())) <= 110
    told.plot(tmp_path / "why.png")
    assert (tmp_path / "why.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(SettingError, match=r"\.jpg"):
        told.plot(tmp_path / "why.jpg")
    with pytest.raises(SettingError, match="1 to 60 inputs"):
        score.explain(inputs[:61]).plot(tmp_path / "why.png")
    with pytest.raises(SettingError, match="needs calibration points"):
        slu(model, likelihood).fit(inputs[:30]).explain(some).plot(tmp_path / "why.png")


def test_the_layer_that_is_farthest_is_named():
    """By the oracle's distances, standardized on the calibration points."""
    model, inputs = problem(400)
    score = slu(model).fit(inputs)
    own = torch.cat([batch for batch, _ in score.state.calibration.reservoir.batches()])
    fresh = torch.cat([problem(20, seed=3)[1], 4 * problem(20, seed=4)[1]])
    told = score.explain(fresh)
    data, known, new = (layer_inputs("mlp", model, points) for points in (inputs[~held(inputs)], own, fresh))
    logs = [torch.from_numpy(squared_distances(data, points)).log() for points in (known, new)]
    heights = (logs[1] - logs[0].mean(0)) / logs[0].std(0)
    for half, reading in enumerate(FAR):
        farthest = heights[:, 2 * half : 2 * half + 2].argmax(1).tolist()
        assert told.layers[reading] == tuple(("0", "2")[place] for place in farthest)
        assert len(set(told.layers[reading])) == 2, "control: not always the same"
    for place, name in enumerate(told.raised_by):
        if name in FAR:
            assert told.reasons[place].endswith(f", layer {told.layers[name][place]!r}")
        else:
            assert "layer" not in told.reasons[place]
    assert set(told.raised_by) & set(FAR) and set(told.raised_by) - set(FAR), "control: some of each"


@pytest.fixture(scope="module")
def classes():
    """A network that tells by the sign of the first of four columns, in the middle of the data, between two classes."""
    draw = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.cat([torch.eye(4), -torch.eye(4)]))
        model[0].bias.zero_()
        model[2].weight.copy_(torch.tensor([[3.0, 0.1, 0.1, 0.1], [-3.0, 0.1, 0.1, 0.1]]).repeat(1, 2))
        model[2].weight[:, 4] *= -1
        model[2].bias.zero_()
    inputs = torch.randn(1200, 4, generator=draw, dtype=torch.float64)
    assert torch.equal(model(inputs).argmax(1) == 0, inputs[:, 0] > 0)
    return SLU(model, "classification").fit(inputs), inputs


def test_an_input_far_away_is_told_so_with_the_layer(classes):
    score, inputs = classes
    told = score.explain(30 * inputs[:8])
    assert all(name in FAR for name in told.raised_by) and "distance" in told.raised_by
    assert float(told.pvalues.max()) <= 1 / (1 + score.calibration.points) + 1e-12
    for reason in told.reasons:
        assert reason.startswith(("far from the data, layer '", "unusual direction, layer '"))
    assert "far from the data" in str(told)


def test_an_undecided_input_is_told_so(classes):
    """Where the first column is zero both outputs are the same; in all other respects these are usual."""
    score, inputs = classes
    middle, sure = inputs[:40].clone(), inputs[:40].clone()
    middle[:, 0], sure[:, 0] = 0.0, 1.5
    told = score.explain(middle)
    words = {"entropy": "the network is undecided", "fisher": "the prediction is left open"}
    assert set(told.raised_by) <= set(words) and float(told.pvalues.max()) < 0.05
    assert told.reasons == tuple(words[name] for name in told.raised_by)
    # Control: surer inputs are usual, and raised by other views if by any.
    usual = score.explain(sure)
    assert sum(name in words for name in usual.raised_by) < 10 and float(usual.pvalues.median()) > 0.3


def test_views_that_are_no_numbers_are_never_the_highest(classes):
    score, inputs = classes
    told = score.explain(inputs[:3])
    heights = dict(told.views) | {"distance": torch.tensor([math.nan, math.inf, -math.inf], dtype=torch.float64)}
    changed = dataclasses.replace(told, views=heights)
    assert changed.raised_by[1] == "distance" != changed.raised_by[0] and changed.raised_by[2] != "distance"


def test_long_names_of_layers_fit_the_table_and_the_picture(tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    for _ in range(6):
        model = nn.Sequential(OrderedDict(a_module_of_a_long_name=model))
    inputs = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    told = SLU(model, "classification", rank=5).fit(inputs).explain(20 * inputs[:5])
    longest = max(told.reasons, key=len)
    assert len(longest) > 110
    assert max(map(len, str(told).splitlines())) <= 110
    assert "".join(longest.split()) in "".join(_column(str(told), "raised most by")), "nothing is cut off"
    told.plot(tmp_path / "why.png")
    assert (tmp_path / "why.png").read_bytes()[:4] == b"\x89PNG"


def _column(text, title):
    """The words of a column of the table, line by line, without spaces."""
    lines = text.splitlines()
    start = next(line.index(title) for line in lines if title in line)
    end = next(line.index("outputs") for line in lines if title in line)
    return ["".join(line[start:end].split()) for line in lines]
