"""Runs on one network at once: each is as alone, and one that fails harms no other."""

import numpy as np
import pytest

from slu.comparing import read_shared
from slu.errors import NumericalError, StorageError
from slu_experiments import sharing
from slu_experiments.results import Store
from slu_experiments.running import Fitted, Place, Run, execute
from slu_experiments.sharing import execute_all

QUICK = {
    "training": {"epochs": 3},
    "points": 120,
    "queries": 40,
    "outside": ("digits-held-out", "digits-rotated-90"),
}
SMALL = {"rank": 12, "sketch_size": 100}
CHANGED = {"slu": SMALL, "slu-as-run": SMALL, "slu-fisher": SMALL, "swag": {"collections": 3, "samples": 5}}
METHODS = ("slu", "slu-as-run", "slu-fisher", "slu-default", "lla", "lla-d", "le-h", "scod", "swag", "de", "max-logit")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A place with trained networks."""
    place = Place(tmp_path_factory.mktemp("out"), progress=False)
    execute(Run("digits-mlp", "de", **QUICK), place)
    return place.out / "weights"


@pytest.fixture
def place(weights, tmp_path):
    (tmp_path / "weights").symlink_to(weights)
    return Place(tmp_path, progress=False)


@pytest.fixture
def shared(monkeypatch):
    """How many scores were read at once, call by call."""
    counts = []

    def counted(scores, *rest, **how):
        counts.append(len(scores))
        return read_shared(scores, *rest, **how)

    monkeypatch.setattr(sharing, "read_shared", counted)
    return counts


def runs_of(*methods):
    return [Run("digits-mlp", each, **QUICK, changed=CHANGED.get(each, {})) for each in methods]


def outcomes(runs, place):
    told = []
    return list(execute_all(runs, place, told.append)), told


def test_each_run_is_as_alone(place, weights, tmp_path_factory, shared):
    runs = runs_of(*METHODS)
    done, told = outcomes(runs, place)
    assert told == ["scores of 6 methods"] and shared == [6, 6, 6]
    assert {run.method for run, *_ in done} == set(METHODS) and all(made for *_, made in done)
    other = tmp_path_factory.mktemp("alone")
    (other / "weights").symlink_to(weights)
    for run, result, _ in done:
        alone, _ = execute(run, Place(other, progress=False))
        assert result.config == alone.config and result.metrics["seconds"]["score_each"] > 0
        for name, scores in alone.arrays.items():
            np.testing.assert_allclose(result.arrays[name], scores, rtol=1e-4, err_msg=f"{run.method} {name}")
    again, told = outcomes(runs, place)
    assert not any(made for *_, made in again) and not told


def test_a_run_is_asked_for_when_the_one_before_is_fitted(place, monkeypatch):
    order, fit = [], Run.fit

    def noted(self, *rest):
        order.append(f"fit {self.method}")
        return fit(self, *rest)

    def asked():
        for run in runs_of("lla", "le"):
            order.append(f"ask {run.method}")
            yield run

    monkeypatch.setattr(Run, "fit", noted)
    list(execute_all(asked(), place, order.append))
    assert order == ["ask lla", "fit lla", "ask le", "fit le", "scores of 2 methods"]


@pytest.mark.parametrize("limit", ["MOST_SECONDS", "MOST_BYTES"])
def test_no_more_wait_than_may_be_lost(place, monkeypatch, shared, limit):
    monkeypatch.setattr(sharing, limit, 0)
    done, told = outcomes(runs_of("lla", "le"), place)
    assert [made for *_, made in done] == [True, True] and not told and not shared


def test_one_alone_is_read_alone(place, shared):
    ((_, _, made),), told = outcomes(runs_of("lla"), place)
    assert made and not told and not shared


def test_one_that_cannot_be_scored_harms_no_other(place, monkeypatch):
    def refused(*_, **__):
        raise NumericalError("one of them")

    scored = Fitted.scored
    monkeypatch.setattr(sharing, "read_shared", refused)
    monkeypatch.setattr(
        Fitted, "scored", lambda self, place: (refused if self.config["method"] == "le" else scored)(self, place)
    )
    done, _ = outcomes(runs_of("lla", "le", "scod"), place)
    assert [(run.method, made) for run, _, made in done] == [("lla", True), ("le", False), ("scod", True)]
    assert str(done[1][1]) == "one of them"


def test_one_that_cannot_be_written_harms_no_other(place, monkeypatch):
    write = Store.write

    def full(self, config, *rest):
        if config["method"] == "le":
            raise StorageError("the disk is full")
        return write(self, config, *rest)

    monkeypatch.setattr(Store, "write", full)
    done, _ = outcomes(runs_of("lla", "le", "scod", "max-logit"), place)
    assert {run.method: made for run, _, made in done} == {"lla": True, "le": False, "scod": True, "max-logit": True}
