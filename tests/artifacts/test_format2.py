"""Files of format 2 from before the distances of layers: their combined reading was another, and stays what it was.

tests/fixtures/format2 has the files, and in expected.json the readings of `queries` by one direction, p-values and
thresholds that the version that wrote them gave: the soft maximum, at a temperature of 1, of the Fisher readings, the
variance and for classes the largest logit.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from formulaic import inputs, network, queries
from slu import SLU
from slu.artifacts import read
from slu.cli import app
from slu.errors import SettingError

FOLDER = Path(__file__).parents[1] / "fixtures" / "format2"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
each_file = pytest.mark.parametrize("file", sorted(EXPECTED))


def loaded(file, path=None):
    about = EXPECTED[file]
    model = network(about["network"])
    return SLU.load(path or FOLDER / file, model), queries(about["network"])


def test_files_of_two_and_of_three_views_are_there():
    kinds = [(about["network"], about["likelihood"], len(about["readings"])) for about in EXPECTED.values()]
    assert len(kinds) == 3 and {readings for *_, readings in kinds} == {5, 6}
    assert {path.name for path in FOLDER.glob("*.slu")} == set(EXPECTED)


@each_file
def test_every_number_is_what_it_was(file):
    """To float32's rounding: another machine may add in another order. P-values count, and are the same."""
    assert read(FOLDER / file)[0]["format"] == 2 and "layers" not in read(FOLDER / file)[0]["state"]
    score, points = loaded(file)
    about = EXPECTED[file]
    for reading, expected in about["readings"].items():
        scores = score(points, reading=reading, outputs=1)
        torch.testing.assert_close(scores.double(), torch.tensor(expected).double(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(score(points), score(points, reading="combined", outputs=1), rtol=0, atol=0)
    assert score.pvalue(points).tolist() == pytest.approx(about["pvalues"], abs=1e-12)
    # 4 R above the calibration score, which it was before scores that are equal up to rounding tied.
    assert score.threshold(0.1) == pytest.approx(about["threshold"], rel=1e-5)
    assert score.flag(points, false_alarms=0.1).tolist() == [value <= 0.1 + 1e-12 for value in about["pvalues"]]


@each_file
def test_its_combined_reading_by_the_former_formula(file):
    """log Σ exp of the views, from the file's own readings, means and deviations."""
    score, points = loaded(file)
    plain = read(FOLDER / file)[0]["state"]["calibration"]
    z = {}
    for name, scale in plain["standard"].items():
        values = score(points, reading=name, outputs=1).double().numpy()
        values = values if scale["floor"] is None else np.log(np.maximum(values, scale["floor"]))
        z[name] = (values - scale["mean"]) / scale["deviation"]
    views = [sum(z[name] for name in view) / np.sqrt(len(view)) for view in plain["views"]]
    former = torch.from_numpy(np.log(np.exp(views).sum(0)))
    torch.testing.assert_close(score(points), former, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(0.5 * torch.from_numpy(np.log(np.exp(2 * np.array(views)).sum(0))), former, atol=1e-3)


@each_file
def test_it_has_no_distances_and_says_so(file):
    score, points = loaded(file)
    assert score.state.layers is None and not {"distance", "angle"} & set(score.readings)
    for reading in ("distance", "angle"):
        with pytest.raises(SettingError, match=rf"{reading}.* an earlier version"):
            score(points, reading=reading)
    # What needs neither calibration nor layers is there all the same; its p-values are not.
    if EXPECTED[file]["likelihood"] != "regression":
        assert bool((score(points, reading="entropy") > 0).all())
        with pytest.raises(SettingError, match="entropy"):
            score.pvalue(points, reading="entropy")


@each_file
def test_its_explanations_are_of_the_former_views(file, tmp_path):
    score, points = loaded(file)
    told = score.explain(points)
    assert set(told.views) == {view[0] for view in score.calibration.standard.views} and told.layers == {}
    torch.testing.assert_close(torch.stack(list(told.views.values())).logsumexp(0), score(points), rtol=1e-6, atol=1e-6)
    assert set(told.raised_by) <= {"fisher", "variance", "max-logit"}
    assert max(map(len, str(told).splitlines())) <= 110
    told.plot(tmp_path / "why.png")


@each_file
def test_saved_again_it_says_the_same(file, tmp_path):
    score, points = loaded(file)
    score.save(tmp_path / "net.slu")
    again, _ = loaded(file, tmp_path / "net.slu")
    for reading in score.readings:
        assert torch.equal(again(points, reading=reading), score(points, reading=reading))
    assert torch.equal(again.pvalue(points), score.pvalue(points)) and again.calibration.standard.temperature == 1.0


@each_file
def test_calibrated_or_fitted_further_it_has_the_views_of_today_that_need_no_layers(file):
    score, points = loaded(file)
    data = inputs(EXPECTED[file]["network"], 240)
    before = score(points)
    with pytest.raises(SettingError, match="of an earlier version, which chose them otherwise"):
        score.calibrate(data, held_out=True)
    score.calibrate(data)
    usual = {"fisher", "fisher-relative", "variance", "entropy"}
    assert usual - {"entropy"} <= set(score.calibration.standard.scales) <= usual
    assert not torch.allclose(score(points), before, atol=1e-3)
    score.partial_fit(data + 0.5)
    assert score.state.layers is None, "the first points' inputs are not known"


@each_file
def test_inspect_shows_it(file):
    ran = CliRunner().invoke(app, ["inspect", str(FOLDER / file)], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert ran.exit_code == 0, ran.output
    assert "format 2, checksum fits" in ran.output and "a score of SLU" in ran.output
