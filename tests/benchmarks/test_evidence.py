"""The evidence: far shifts, the checks of the default on made-up numbers, and one small study from end to end."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from benchmarks.evidence import __main__ as command
from benchmarks.evidence import checks, judging, report, studies, synthetic
from benchmarks.evidence.candidates import BEFORE, COMPETITOR, DEFAULT, ENSEMBLE, THREE_VIEWS, combined_before, standard
from benchmarks.evidence.roles import CHOOSE, JUDGE, ROLES, networks, role_of
from benchmarks.evidence.study import CONSTANT, FAR, NOISE, Study, with_far_shifts
from torch import nn

from slu import SLU


def study_of(inputs, **fields):
    """A study of a network that is never called; half of the inputs are fitted, the others tested."""
    half = len(inputs) // 2
    fitted, inside = inputs[:half].split(7), inputs[half:].split(5)
    return Study(
        "made-up", 3, nn.Identity(), "classification", {}, fitted, (), inside, fields.pop("outside", {}), **fields
    )


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("inputs", "others"),
    [
        pytest.param(drawn(40, 6) * torch.arange(1.0, 7), (0,), id="table: by feature"),
        pytest.param(
            drawn(40, 3, 5, 4) * torch.tensor([1.0, 10, 100])[:, None, None], (0, 2, 3), id="image: by channel"
        ),
    ],
)
def test_far_shifts_stay_in_the_range_of_the_fitted_data(inputs, others):
    study = with_far_shifts(study_of(inputs))
    assert list(study.outside) == list(FAR)
    fitted, inside = torch.cat(list(study.fitted)), torch.cat(list(study.inside))
    assert torch.equal(torch.cat(list(study.outside["times 3"])), 3 * inside)
    assert torch.equal(torch.cat(list(study.outside["times 20"])), 20 * inside)
    low, high = fitted.amin(others, keepdim=True), fitted.amax(others, keepdim=True)
    for name in (NOISE, CONSTANT):
        values = torch.cat(list(study.outside[name]))
        assert values.shape == inside.shape
        assert ((values >= low - 1e-4) & (values <= high + 1e-4)).all()
        share = (values - low) / (high - low)
        assert share.min() < 0.1 and share.max() > 0.9
        spread = share.flatten(1).std(1)
        assert (spread < 1e-5).all() if name == CONSTANT else (spread > 0.1).all()


def test_padding_of_sequences_stays_zero_and_has_no_part_in_the_range():
    inputs = 5 + drawn(40, 8, 4)
    inputs[:, 5:] = 0
    study = with_far_shifts(study_of(inputs))
    for name in FAR:
        values = torch.cat(list(study.outside[name]))
        assert (values[:, 5:] == 0).all()
        assert (values[:, :5] > 0.5).all()  # with the padding, the range would begin at 0
    assert torch.cat(list(study.outside[CONSTANT]))[:, :5].std(1).max() < 1e-5


def test_far_shifts_follow_from_the_seed_and_replace_nothing():
    own = {"times 3": [torch.zeros(2, 6)]}
    one, again = (with_far_shifts(study_of(drawn(40, 6), outside=own)) for _ in range(2))
    assert one.outside["times 3"] is own["times 3"]
    assert all(torch.equal(a, b) for a, b in zip(one.outside[NOISE], again.outside[NOISE], strict=True))
    other = with_far_shifts(replace(study_of(drawn(40, 6)), seed=4))
    assert not torch.equal(one.outside[NOISE][0], other.outside[NOISE][0])


def test_roles_are_of_known_studies_and_no_network_has_two():
    every = networks()
    assert len(set(every)) == len(every)
    assert {study for study, _ in every} <= set(studies.STUDIES)
    assert role_of("digits-mlp", 1) == CHOOSE and role_of("digits-mlp", 2) == JUDGE and role_of("digits-mlp", 9) == ""


def result(study="far-relu", seed=2, role=JUDGE, **areas):
    """A network whose shifts are "one" and "two"; areas by method, "default" for SLU's."""
    kinds = {"default": DEFAULT, "ensemble": ENSEMBLE}
    rows = [
        {
            "method": "SLU" if name == "default" else name, "reading": "combined", "kind": kinds.get(name, COMPETITOR),
            "auroc": [[value, value, value] for value in pair], "fpr95": [[0.5, 0.4, 0.6]] * 2,
            "mean": sum(pair) / 2, "worst": "one", "cost": None,
        }
        for name, pair in areas.items()
    ]  # fmt: skip
    return {
        "study": study, "seed": seed, "role": role, "quality": {"accuracy": 0.9}, "points": 10, "queries": 10,
        "shifts": ["one", "two"], "errors": {}, "rows": rows,
    }  # fmt: skip


def test_a_default_that_is_good_enough_has_no_misses():
    """0.01 below on the mean of two networks, 0.6 on a shift where a competitor has 0.9."""
    results = [
        result(seed=2, default=(0.60, 0.90), Mahalanobis=(0.90, 0.60)),
        result(seed=3, default=(0.60, 0.90), Mahalanobis=(0.90, 0.64)),
    ]
    assert checks.misses(results) == []


def test_control_a_loss_on_the_mean_is_a_miss():
    results = [
        result(seed=2, default=(0.80, 0.90), KNN=(0.80, 0.90), Energy=(0.5, 0.5)),
        result(seed=3, default=(0.80, 0.90), KNN=(0.84, 0.91), Energy=(0.5, 0.5)),
    ]
    assert checks.misses(results) == ["far-relu: the default has a mean AUROC of 0.850, 0.012 below KNN (0.863)"]


def test_control_a_failure_on_one_shift_is_a_miss_whatever_the_mean():
    results = [result(default=(0.59, 1.0), ViM=(0.71, 0.2), KNN=(0.70, 0.2), Energy=(0.69, 0.2))]
    assert checks.misses(results) == ["far-relu, one: the default has an AUROC of 0.590, ViM 0.710"]
    assert checks.misses([result(default=(0.59, 1.0), KNN=(0.69, 0.2))]) == []


def test_ensembles_and_networks_that_choose_make_no_misses():
    results = [result(default=(0.5, 0.5), ensemble=(0.9, 0.9)), result(seed=1, role=CHOOSE, default=(0, 0), KNN=(1, 1))]
    assert checks.misses(results) == []
    assert len(checks.behind_ensembles(results)) == 3  # the mean and two shifts


def test_a_competitor_is_compared_on_the_networks_that_it_has():
    results = [result(seed=2, default=(0.9, 0.9), KNN=(0.9, 0.9)), result(seed=3, default=(0.7, 0.7))]
    assert checks.misses(results) == []


def test_networks_that_should_judge_and_do_not_are_named():
    failed = result(study="far-relu", seed=2, KNN=(0.9, 0.9)) | {"errors": {"SLU": "no"}}
    sentences = checks.missing([failed])
    assert "far-relu 2: the default has no scores: {'SLU': 'no'}" in sentences
    assert "far-relu 3: not judged yet" in sentences
    assert len(sentences) == len(networks([JUDGE]))


def test_the_combined_reading_as_it_was_is_that_of_standardized_readings():
    apart, values = drawn(50).exp(), drawn(9).exp()
    z = standard("variance", apart)
    assert z(apart).mean().abs() < 1e-12 and abs(float(z(apart).std()) - 1) < 1e-12
    assert torch.allclose(
        z(values), ((values.double().log() - apart.double().log().mean()) / apart.double().log().std())
    )
    assert standard("variance", torch.zeros(5))(torch.zeros(2)).tolist() == [0, 0]
    views = {"fisher": torch.tensor([-20.0, 1.0]), "fisher-relative": torch.tensor([0.0, 1.0])}
    both = combined_before(views | {"variance": torch.tensor([9.0, 0.0])})
    assert both["sum"].tolist() == [-20, 2]
    assert both[THREE_VIEWS][0] == pytest.approx(9) and both[THREE_VIEWS][0] > both[THREE_VIEWS][1]


@pytest.fixture
def small(monkeypatch):
    """The synthetic study with few points and a short training, the only network that judges."""
    monkeypatch.setattr(synthetic, "LEARNED", 200)
    monkeypatch.setattr(synthetic, "TESTED", 60)
    monkeypatch.setattr(judging, "RESAMPLES", 50)
    monkeypatch.setitem(ROLES, JUDGE, {"far-relu": (2,)})


def test_a_study_from_end_to_end(small, tmp_path, capsys):
    arguments = ["--out", str(tmp_path), "--studies", "far-relu", "--seeds", "2", "--queries", "40"]
    assert command.main([*arguments, "--no-cost"]) == 0
    [network] = report.results(tmp_path)
    assert network["errors"] == {} and network["role"] == JUDGE
    assert {"times 2.5", "shifted mean", *FAR} == set(network["shifts"]) - {"times 5"}
    rows = {(row["method"], row["reading"]): row for row in network["rows"]}
    assert network["rows"][0]["kind"] == DEFAULT
    methods = {"Mahalanobis", "RelativeMahalanobis", "KNN", "ViM", "GradNorm", "MaxLogit", "MaxProbability", "Energy"}
    assert methods | {"SLU", "SLU before", "Entropy", "DiagonalLaplace", "DeepEnsemble"} == {
        method for method, _ in rows
    }
    for row in rows.values():
        assert all(low <= value <= high for value, low, high in row["auroc"] + row["fpr95"])
        assert row["cost"] is None
    scores = np.load(tmp_path / "scores" / "far-relu-2.npz")
    assert scores["Mahalanobis/mahalanobis/apart"].shape == scores["KNN/knn/times 20"].shape == (40,)

    study = studies.made("far-relu", 2, tmp_path, 2000, 40)
    score = SLU(study.model, "classification", seed=2).fit(study.fitted, calibration=study.apart, progress=False)
    default = f"SLU/{score.readings[0]}/times 20"
    assert np.allclose(scores[default], score(study.outside["times 20"], progress=False))

    written = (tmp_path / "far-relu-2.json").stat().st_mtime_ns
    assert command.main(arguments) == 0  # nothing is done again
    assert (tmp_path / "far-relu-2.json").stat().st_mtime_ns == written
    assert command.main([*arguments, "--cost", "--no-ensembles"]) == 0
    costs = {(row["method"], row["reading"]): row["cost"] for row in report.results(tmp_path)[0]["rows"]}
    assert costs["SLU", score.readings[0]] > 1 and costs["DeepEnsemble", "variance"] is None

    assert command.main([*arguments, "--no-cost", "--no-ensembles", "--again", "SLU"]) == 0
    again = report.results(tmp_path)[0]["rows"]
    assert [{**row, "cost": None} for row in again] == network["rows"]
    assert {row["kind"] for row in again if row["cost"] is not None} == {COMPETITOR}

    code = command.main(["--out", str(tmp_path), "--report", str(tmp_path / "report")])
    evidence = json.loads((tmp_path / "report" / "evidence.json").read_text())
    assert code == int(bool(evidence["misses"])) and evidence["missing"] == []
    assert evidence["networks"] == report.results(tmp_path)
    assert evidence["roles"][JUDGE] == {"far-relu": [2]}
    assert (tmp_path / "report" / "evidence.png").stat().st_size > 10_000
    lines = (tmp_path / "report" / "evidence.csv").read_text().splitlines()
    assert len(lines) == 1 + len(rows) * len(network["shifts"])
    assert "| far-relu (1) |" in capsys.readouterr().out


def test_a_method_that_fails_is_reported_and_the_rest_goes_on(small, tmp_path):
    study = studies.made("far-relu", 2, tmp_path, 2000, 40)
    broken = replace(study, labels=[labels + 7 for labels in study.labels], members=list)
    network, raw = judging.judge_study(broken, cost=False, ensembles=True, log=lambda line: None)
    assert list(network["errors"]) == ["Mahalanobis", "RelativeMahalanobis"]
    assert {row.kind for row in raw} == {DEFAULT, "reading", BEFORE, COMPETITOR}
