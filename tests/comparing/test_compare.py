"""`compare` from end to end: rows, readings, failures, times."""

import logging
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import calibrated
from fakes import COST, Failing, Formula, FormulaScore
from oracles import network
from slu import SLU, Stream
from slu.baselines.local_ensemble import LocalEnsemble
from slu.baselines.outputs import MaxLogit
from slu.budgets import Cost
from slu.budgets.memory import free_bytes
from slu.comparing import compare, detect
from slu.errors import BudgetError, SettingError

NORMAL = torch.Generator().manual_seed(0)
INSIDE = torch.randn(60, 2, generator=NORMAL)
OUTSIDE = torch.randn(50, 2, generator=NORMAL) + 1.5
FAST = {"resamples": 60}


def first(inputs):
    return inputs[:, 0]


def board(methods, **changed):
    asked = {"train": INSIDE, "inside": list(INSIDE.split(20)), "outside": {"far": list(OUTSIDE.split(20))}}
    return compare(methods, **asked | FAST | changed)


def test_numbers_are_those_of_the_scores():
    results = board(
        [Formula(first), Formula(lambda x: x.sum(1), level=1)], outside={"far": OUTSIDE, "near": INSIDE + 0.1}
    )
    assert [row.label for row in results] == ["Formula level 0", "Formula level 1"]
    assert (results.inside, dict(results.outside), results.batch) == (60, {"far": 50, "near": 60}, 20)
    for row, formula in zip(results, (first, lambda x: x.sum(1)), strict=True):
        for name, points in {"far": OUTSIDE, "near": INSIDE + 0.1}.items():
            expected = detect(formula(INSIDE), formula(points))
            judged = row.judgements[name]
            assert (judged.auroc.value, judged.aupr.value, judged.fpr95.value) == (
                expected.auroc,
                expected.aupr,
                expected.fpr95,
            )
            assert judged.auroc.low <= judged.auroc.value <= judged.auroc.high
        assert row.seconds is not None and row.seconds >= 0 and row.milliseconds is not None and row.milliseconds > 0
        assert row.cost == COST and row.failure is None and not row.failures
        assert row.copies(row.cost.artefact) is None  # no network is known
    assert np.array_equal(results.scores["Formula level 0"].inside, first(INSIDE).double().numpy())


def test_real_methods_on_a_network():
    model, inputs = network("mlp")
    methods = [SLU(model, "classification", rank=4), MaxLogit(model)]
    results = compare(methods, train=[(inputs[:6],), (inputs[6:],)], inside=[inputs[:8]], outside=3 * inputs, **FAST)
    slu = methods[0].fit([(inputs[:6],), (inputs[6:],)])
    expected = detect(slu(inputs[:8]), slu(3 * inputs))
    row = results["SLU"]
    assert row.reading == "fisher" and row.judgements["outside"].auroc.value == expected.auroc
    p = sum(parameter.numel() for parameter in model.parameters())
    assert (row.parameters, row.bytes_each) == (p, 8)
    fit, query = methods[0].cost(outputs=3, batch=6), methods[0].cost(outputs=3, batch=8)
    assert row.cost == replace(query, fitting=fit.fitting)
    assert row.copies(row.cost.artefact) == pytest.approx(row.cost.artefact / (8 * p))
    assert row.settings["rank"] == 4
    assert results["MaxLogit"].cost.artefact == 0


@pytest.mark.parametrize(
    ("readings", "held_out"),
    [
        (None, True),
        (["fisher"], False),
        ("variance", False),
        ("combined", True),
        (["combined", "fisher"], True),
        ("all", True),
        (["logit"], True),  # which it has not: its default is taken
    ],
)
def test_points_are_held_out_of_a_fit_only_for_a_reading_that_needs_them(readings, held_out):
    model, inputs = calibrated.problem(300)
    method, some = calibrated.slu(model), inputs[:20]
    results = compare([method], train=inputs, inside=some, outside=3 * some, readings=readings, **FAST)
    fitted = method.fit(inputs, calibration=None if held_out else False)
    for row in results:
        expected = detect(fitted(some, reading=row.reading), fitted(3 * some, reading=row.reading))
        assert row.judgements["outside"].auroc.value == expected.auroc
        assert np.array_equal(results.scores[row.label].inside, fitted(some, reading=row.reading).numpy())
    assert ("combined" in [row.reading for row in results]) == held_out


def test_outputs_are_counted_not_guessed():
    model, inputs = network("mlp")

    def fewer(model, inputs):
        return model(inputs)[:, :2]

    every = Stream(labels_per_point="all")  # as many rows as outputs
    method = SLU(model, "classification", rank=2, solver=every, forward=fewer)
    results = compare([method], train=inputs, inside=list(inputs.split(5)), outside=2 * inputs, **FAST)
    expected, guessed = (method.cost(outputs=outputs, batch=12) for outputs in (2, None))
    assert results["SLU"].cost.fitting == expected.fitting != guessed.fitting


def test_costs_are_those_of_the_loaders_batches():
    method = Formula(first, cost=lambda batch: Cost(artefact=1, fitting=10 * batch, querying=100 * batch, passes=3))
    row = board([method], train=list(INSIDE.split(7)), inside=list(INSIDE.split(20)))["Formula"]
    assert row.cost == Cost(artefact=1, fitting=70, querying=2000, passes=3)


@pytest.mark.parametrize("change", ["fitting", "querying"])
@pytest.mark.parametrize(("short", "fits"), [(0, True), (1, False)], ids=["enough", "a byte short"])
def test_a_plan_beyond_what_is_free_is_not_begun(change, short, fits, monkeypatch):
    monkeypatch.setattr("slu.comparing.preflight.free_bytes", lambda device: 9_000_000 - short)
    large = Formula(first, cost=replace(COST, **{change: 9_000_000}))
    results = board({"large": large, "good": Formula(first)})
    assert large.fits == fits and results["good"].failure is None
    assert results["large"].cost == replace(COST, **{change: 9_000_000})
    if fits:
        assert results["large"].failure is None
        return
    failure = results["large"].failure
    assert (failure.stage, failure.kind) == ("planning its memory", "OutOfMemoryError")
    assert re.search(r"9 MB while .*9 MB are free on cpu, so it was not begun. Take a smaller budget", failure.message)


def test_more_than_any_machine_has_is_refused_where_the_system_tells():
    large = Formula(first, cost=replace(COST, fitting=1 << 60))
    if free_bytes(torch.device("cpu")) is None:
        pytest.skip("the system does not tell how much memory is free")
    assert board([large])["Formula"].failure.kind == "OutOfMemoryError" and large.fits == 0


def test_networks_that_are_there_already_need_no_memory(monkeypatch):
    """Their plan is that of training them."""
    monkeypatch.setattr("slu.comparing.preflight.free_bytes", lambda device: 1)
    trained = Formula(first, cost=replace(COST, trainings=3))
    assert board([trained])["Formula"].failure is None
    monkeypatch.setattr("slu.comparing.preflight.free_bytes", lambda device: None)  # not known
    assert board([Formula(first)])["Formula"].failure is None


def test_parameters_of_a_method_that_has_a_model_alone():
    method = Failing(BudgetError("small"), nn.Linear(9, 10).double())
    row = board([method])["Failing"]
    assert (row.parameters, row.bytes_each) == (100, 8)


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        (None, ["Formula", "Other"]),
        ("all", ["Formula, one", "Formula, two", "Other"]),
        (["two"], ["Formula, two", "Other"]),
        ("two", ["Formula, two", "Other"]),
        (["two", "one", "two"], ["Formula, two", "Formula, one", "Other"]),
        (["one"], ["Formula", "Other"]),
    ],
)
def test_readings(readings, expected):
    method = Formula(one=first, two=lambda x: x[:, 1])
    results = board({"Formula": method, "Other": Formula(third=first)}, readings=readings)
    assert [row.label for row in results] == expected
    assert method.fits == 1
    assert [row.reading for row in results][-1] == "third"
    for row in results:
        column = 1 if row.reading == "two" else 0
        assert row.judgements["far"].auroc.value == detect(INSIDE[:, column], OUTSIDE[:, column]).auroc


def test_a_reading_that_nobody_has_is_told():
    results = board([Formula(one=first)], readings=["one", "tow"])
    assert results.notes == ("No method here has the reading 'tow'",) and "'tow'" in str(results)


@pytest.mark.parametrize("readings", [[], "", [3], 3])
def test_bad_readings_are_refused(readings):
    with pytest.raises(SettingError, match="readings must be names"):
        board([Formula(first)], readings=readings)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BudgetError("too small"), "BudgetError"),
        (torch.OutOfMemoryError("CUDA out of memory"), "OutOfMemoryError"),
        (MemoryError(), "OutOfMemoryError"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "OutOfMemoryError"),
        (ZeroDivisionError("a mistake\n in the code"), "ZeroDivisionError"),
    ],
)
def test_a_failing_method_says_why_and_the_rest_goes_on(error, kind, caplog):
    with caplog.at_level(logging.INFO, logger="slu"):
        results = board({"bad": Failing(error), "good": Formula(first)})
    failure = results["bad"].failure
    assert failure.stage == "fitting" and failure.kind == kind
    assert failure.message == (" ".join(str(error).split()) or "no message")
    assert results["bad"].judgements == {} and results["bad"].cost == COST  # planned before it failed
    assert results["good"].judgements["far"].auroc.value == detect(first(INSIDE), first(OUTSIDE)).auroc
    assert results.leaders["auroc"]["far"] == ("good",)
    # A mistake in somebody's code is logged with its traceback; a refusal is not a mistake.
    (record,) = [record for record in caplog.records if record.name.startswith("slu")]
    assert (record.exc_info is not None) == (kind == "ZeroDivisionError")
    assert record.levelno == (logging.WARNING if kind == "ZeroDivisionError" else logging.INFO)


class Stop(BaseException):
    """As Ctrl-C."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, Stop])
def test_an_interrupt_ends_everything(error):
    with pytest.raises(error):
        board([Failing(error()), Formula(first)])


def test_a_method_that_cannot_be_made_has_a_row():
    model, inputs = network("mlp")
    makers = {
        "small": lambda: LocalEnsemble(model, "classification", budget="0.5p"),
        "odd": lambda: LocalEnsemble(model, "telepathy"),
        "none": lambda: None,
        "fine": lambda: MaxLogit(model),
    }
    results = compare(makers, train=inputs, inside=inputs, outside=2 * inputs, **FAST)
    kinds = [row.failure.kind if row.failure else None for row in results]
    assert kinds == ["BudgetError", "SettingError", "SettingError", None]
    assert results["small"].failure.stage == "being made" and "0.5p" in results["small"].failure.message
    assert results["small"].cost is None


def nan_outside(inputs):
    return torch.where(inputs.abs().amax(1) > 2.5, torch.nan, inputs[:, 0])


def test_nan_scores_fail_where_they_are():
    inside, far, near = INSIDE.clamp(-2, 2), OUTSIDE + 3, OUTSIDE.clamp(-2, 2)
    results = board([Formula(nan_outside), Formula(first)], inside=inside, outside={"far": far, "near": near})
    row = results.rows[0]
    assert row.failure is None and list(row.judgements) == ["near"]
    assert row.failures["far"].kind == "DataError" and "far scores are NaN" in row.failures["far"].message
    assert results.leaders["auroc"]["far"] == ("Formula 2",)
    results = board([Formula(nan_outside)], inside=far, outside=near)
    assert results.rows[0].failure.stage == "scoring the inside points" and results.inside == 0
    assert "failed" in str(results)


def test_infinite_scores_have_a_place():
    results = board([Formula(lambda x: torch.where(x[:, 0] > 1.5, torch.inf, x[:, 0]))])
    assert (
        results.rows[0].judgements["far"].auroc.value
        == detect(INSIDE[:, 0].clamp(max=1.5), OUTSIDE[:, 0].clamp(max=1.5)).auroc
    )


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        (lambda x: x, r"one number per point.*got shape \(60, 2\)"),
        (lambda x: x[1:, 0], "gave 57 scores where other methods gave 60: either the method.*or the loader.*drop_last"),
    ],
)
def test_one_score_a_point(formula, message):
    results = board({"odd": Formula(formula), "one": Formula(first), "two": Formula(first)})
    assert results["odd"].failure.stage == "scoring the inside points"
    assert re.search(message, results["odd"].failure.message)
    assert results.inside == 60 and results["one"].failure is None


def test_another_number_of_outside_points_fails_there_alone():
    odd = Formula(lambda x: x[:, 0] if len(x) == 60 else x[1:, 0])
    results = board({"odd": odd, "one": Formula(first), "two": Formula(first)}, inside=INSIDE, outside=OUTSIDE)
    assert results["odd"].failure is None and "gave 49" in results["odd"].failures["outside"].message
    assert dict(results.outside) == {"outside": 50}


class Breaks:
    """A loader that fails after its first batch."""

    def __iter__(self):
        yield OUTSIDE[:20]
        raise OSError("the disk is gone")


def test_a_loader_that_fails_on_the_way_fails_its_set_alone():
    results = board([Formula(first)], outside={"broken": Breaks(), "far": OUTSIDE})
    row = results.rows[0]
    assert "failed at batch 1: OSError: the disk is gone" in row.failures["broken"].message
    assert "far" in row.judgements and dict(results.outside) == {"broken": 0, "far": 50}
    assert "the disk is gone" in " ".join(str(results).split())


def test_a_method_without_a_cost_or_a_reading_fails():
    results = board({"costless": Formula(first, cost=None), "good": Formula(first), "readingless": Formula()})
    assert results["costless"].failure.kind == "TypeError" and "slu.budgets.Cost" in results["costless"].failure.message
    assert "names no reading" in str(results["readingless"].failure)
    assert results["good"].failure is None


def test_labels_are_never_the_same():
    methods = {"a": Formula(one=first, two=first), "a, two": Formula(one=first)}
    results = board(methods, readings=["one", "two"])
    assert [row.label for row in results] == ["a, one", "a, two", "a, two (2)"]
    assert results["a, two (2)"].method == "a, two" and len(results.scores) == 3


def test_the_seed_decides_and_nothing_else():
    one, two, other = (board([Formula(first)], seed=seed) for seed in (0, 0, 1))
    assert one.rows[0].judgements == two.rows[0].judgements
    assert one.rows[0].judgements["far"].auroc != other.rows[0].judgements["far"].auroc
    beside = board([Formula(first), Formula(lambda x: x.sum(1), level=1)], outside={"new": INSIDE, "far": OUTSIDE})
    assert beside.rows[0].judgements["far"] == one.rows[0].judgements["far"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"resamples": 39}, "resamples must be at least 40, got 39"),
        ({"resamples": 100.0}, "resamples must be a whole number"),
        ({"seed": "x"}, "the seed must be a whole number"),
        ({"outside": {}}, "no outside set"),
    ],
)
def test_settings_are_checked_first(settings, message):
    method = Formula(first)
    with pytest.raises(SettingError, match=message):
        board([method], **settings)
    assert method.fits == 0


def test_progress_says_who_is_at_work(capsys):
    board({"mine": Formula(first)}, progress=True)
    assert "compare: mine (1 of 1)" in capsys.readouterr().err
    board({"mine": Formula(first)})
    assert capsys.readouterr() == ("", "")


class Slow:
    """Takes five seconds to fit and 20 ms a point, by a clock of its own."""

    def __init__(self):
        self.clock = 100.0

    def fit(self, loader, *, progress=None):
        self.clock += 5

        def score(inputs):
            self.clock += 0.02 * len(inputs)
            return inputs[:, 0]

        return FormulaScore({"slow": score})

    def cost(self, outputs=None, batch=1):
        self.clock += 1000  # planning is not fitting
        return COST


def test_times_are_those_of_fit_and_score(monkeypatch):
    method = Slow()
    monkeypatch.setattr("slu.comparing.runs.time.perf_counter", lambda: method.clock)
    row = board([method], outside={"far": OUTSIDE, "near": INSIDE, "broken": Breaks()})["Slow"]
    assert row.seconds == pytest.approx(5)
    assert row.milliseconds == pytest.approx(20)
    assert "broken" in row.failures  # its points and seconds are not counted
