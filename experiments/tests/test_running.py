"""From a setting, a seed, a method and a budget to a folder of results, on the digits."""

import dataclasses

import numpy as np
import pytest

from slu.comparing import detect
from slu.curvature import Curvature
from slu.errors import MissingDataError, SettingError
from slu_experiments import recorded, running
from slu_experiments.running import Place, Run, available, execute
from slu_experiments.settings import find_setting

QUICK = {
    "training": {"epochs": 3},
    "points": 120,
    "queries": 40,
    "outside": ("digits-held-out", "digits-rotated-90"),
}
SMALL = {"rank": 12, "sketch_size": 100}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("out"), progress=False)


def test_a_run_is_made_once_and_found_again(place, monkeypatch):
    own = {**SMALL, "rank": 7}
    run = Run("digits-mlp", "slu", **QUICK, changed=own)
    result, made = execute(run, place)
    assert made and result.config == run.config()
    monkeypatch.setattr(Run, "work", lambda *_: pytest.fail("it was there"))
    again, made = execute(run, place)
    assert not made and again.metrics == result.metrics
    for other in ({"seed": 2}, {"budget": "10p"}, {"queries": 41}, {"points": 121}, {"changed": {}}):
        assert place.store.find(Run("digits-mlp", "slu", **{**QUICK, "changed": own, **other}).config()) is None


def test_another_normalization_is_another_run():
    setting = find_setting("cifar10-resnet")
    plain = running.recipe_of(setting, {})
    assert plain["mean"] == list(setting.mean)
    assert running.recipe_of(dataclasses.replace(setting, mean=(0.0, 0.0, 0.0)), {}) != plain


def test_metrics_are_those_of_the_stored_scores(place):
    result, _ = execute(Run("digits-mlp", "slu", **QUICK, changed=SMALL), place)
    for name in QUICK["outside"]:
        scores = result.arrays[f"outside/{name}"]
        detection, stored = detect(result.arrays["inside"], scores), result.metrics["judgements"][name]
        assert len(scores) == 40 == result.metrics["outside"][name]
        for metric in ("auroc", "aupr", "fpr95"):
            assert stored[metric]["value"] == pytest.approx(getattr(detection, metric))
            assert stored[metric]["low"] <= stored[metric]["value"] <= stored[metric]["high"]
    memory, parameters = result.metrics["memory"], find_setting("digits-mlp").parameters
    assert memory["parameters"] == parameters
    assert memory["kept_copies"] == pytest.approx(12 * 100 / parameters, rel=0.2)
    assert result.metrics["diagnostics"]["points"] == 120 and result.metrics["seconds"]["fit"] > 0
    assert 0.3 < result.metrics["network"]["accuracy"] <= 1


@pytest.mark.parametrize("method", ["slu", "slu-stream", "slu-scaled"])
def test_all_points_are_fitted_as_in_the_paper(place, method):
    """None is held out for a calibration, though there are enough to."""
    result, _ = execute(Run("digits-mlp", method, **{**QUICK, "points": 250}, changed=SMALL), place)
    assert result.metrics["diagnostics"]["points"] == 250


def test_the_default_is_fitted_on_all_but_what_it_is_calibrated_on(place):
    run = Run("digits-mlp", "slu-default", **{**QUICK, "points": 250})
    result, _ = execute(run, place)
    settings, points = result.config["settings"], result.metrics["diagnostics"]["points"]
    assert settings == {"budget": "3p", "solver": "stream", "scale": "factored", "ridge": 0.01}
    assert (result.config["reading"], result.config["calibrated"]) == ("combined", True)
    assert 200 < points < 250
    assert 2.5 < result.metrics["memory"]["kept_copies"] <= 3
    for name in QUICK["outside"]:
        detection = detect(result.arrays["inside"], result.arrays[f"outside/{name}"])
        assert result.metrics["judgements"][name]["auroc"]["value"] == pytest.approx(detection.auroc)
    # Its scores belong to its estimator and ridge, and so does the fit that was written down.
    for changed in ({"estimator": "residual"}, {"ridge": 0.1}):
        other, made = execute(Run("digits-mlp", "slu-default", **{**QUICK, "points": 250}, changed=changed), place)
        assert made and not np.array_equal(other.arrays["inside"], result.arrays["inside"])


def test_another_reading_and_other_sets_use_the_same_fit(place, monkeypatch):
    execute(Run("digits-mlp", "slu", **QUICK, changed=SMALL), place)
    fits = sorted((place.out / "fits").rglob("*"))
    monkeypatch.setattr(Curvature, "__matmul__", lambda *_: pytest.fail("fitted again"))
    fisher, made = execute(Run("digits-mlp", "slu-fisher", **QUICK, changed=SMALL), place)
    execute(Run("digits-mlp", "slu", **{**QUICK, "queries": 30}, changed=SMALL), place)
    execute(Run("digits-mlp", "slu", **QUICK, changed={**SMALL, "estimator": "difference"}), place)
    execute(Run("digits-mlp", "slu", **QUICK, changed={**SMALL, "ridge": 0.1}), place)
    assert made and fisher.config["reading"] == "fisher"
    assert fisher.metrics["seconds"]["fit"] >= fisher.metrics["diagnostics"]["seconds"] > 0
    execute(Run("digits-mlp", "slu-as-run", **QUICK, changed={**SMALL, "rank": 11}), place)
    assert sorted((place.out / "fits").rglob("*")) == fits
    for other in ({"changed": {**SMALL, "rank": 13}}, {"seed": 2}, {"points": 121}):  # controls: these need more
        with pytest.raises(pytest.fail.Exception):
            execute(Run("digits-mlp", "slu", **{**QUICK, "changed": SMALL, **other}), place)


def test_an_interrupted_fit_goes_on_and_ends_in_the_same_numbers(place, tmp_path, monkeypatch):
    run = Run("digits-mlp", "slu", **QUICK, changed={**SMALL, "rank": 9})
    other = Place(tmp_path, progress=False)
    whole, _ = execute(run, place)
    add, seen = recorded.SketchedVectors.add, []

    def interrupted(self, step):
        seen.append(step)
        if len(seen) == 6:
            raise KeyboardInterrupt
        add(self, step)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(recorded.SketchedVectors, "add", interrupted)
        execute(run, other)
    assert other.store.find(run.config()) is None and list((tmp_path / "fits").rglob("steps-*"))
    result, made = execute(run, other)
    assert made
    np.testing.assert_array_equal(result.arrays["inside"], whole.arrays["inside"])


@pytest.mark.parametrize("method", ["lla-as-run", "lla-d", "le-h", "scod-as-run", "swag", "de", "entropy"])
def test_every_kind_of_method_runs(place, method):
    changed = {"collections": 3, "samples": 5} if method == "swag" else {}
    result, made = execute(Run("digits-mlp", method, **QUICK, changed=changed), place)
    assert made and set(result.metrics["judgements"]) == set(QUICK["outside"])
    assert np.isfinite(result.arrays["inside"]).all()


def test_the_members_of_an_ensemble_are_the_seeds_from_its_own_on(place, monkeypatch):
    asked = []

    def trained(setting, seed, folder, **options):
        asked.append((seed, options["epochs"]))
        return original(setting, seed, folder, **options)

    original = running.trained
    monkeypatch.setattr(running, "trained", trained)
    execute(Run("digits-mlp", "de", **{**QUICK, "queries": 20}, seed=2), place)
    assert asked == [(2, 3), (3, 3), (4, 3)]


def test_sets_that_are_missing(monkeypatch):
    setting = find_setting("digits-mlp")

    def query(name, *_):
        if "rotated" in name:
            raise MissingDataError(f"{name} is not there")

    monkeypatch.setattr(running, "query_source", query)
    there, missing = available(setting, (), None)
    assert there == ["digits-held-out"] and len(missing) == 12
    with pytest.raises(MissingDataError, match="digits-rotated-90"):
        available(setting, ["digits-held-out", "digits-rotated-90"], None)
    with pytest.raises(MissingDataError, match="no outside set"):
        available(setting, ["digits-rotated"], None)


def test_an_unknown_set_is_refused():
    with pytest.raises(SettingError, match="no-such-set"):
        available(find_setting("digits-mlp"), ["no-such-set"], None)
