"""Every figure is drawn from stored folders, one colour a method everywhere."""

import numpy as np
import pytest

from fake_results import write_score
from slu.artifacts import FAINT
from slu.comparing import METHODS as REGISTRY
from slu.errors import SettingError, StorageError
from slu_experiments.figures import FIGURES, Request, budget, find_figure, memory, sketching, style
from slu_experiments.results import Store
from slu_experiments.settings import METHODS
from slu_experiments.spectra import Ghosts, Spectrum
from slu_experiments.synthetic import SHOWN

METHODS_SHOWN = ("slu", "lla-d", "le", "de", "max-logit")


def stored(out, figure, request):
    """Results for every run that a figure asks for, with made-up numbers."""
    draws, store = np.random.default_rng(0), Store(out)
    for job in FIGURES[figure].jobs(request):
        config = job.config()
        if config["kind"] == "score":
            fields = {name: getattr(job, name) for name in ("setting", "seed", "budget", "outside", "changed")}
            write_score(out, job.method, float(draws.uniform(0.5, 0.95)), **fields)
        elif isinstance(job, Spectrum):
            arrays = {
                "alphas": np.logspace(3, -3, job.steps) + draws.random(job.steps),
                "betas": draws.random(job.steps),
            }
            store.write(config, {"memory": {}}, arrays)
        elif isinstance(job, Ghosts):
            store.write(config, {"projectors_apart": 0.03}, {"overlaps": draws.uniform(-1, 1, (job.steps, job.steps))})
        else:
            shape = len(config["ranks"]), len(config["sizes"]) + 1
            arrays = {name: draws.random(shape) for name in SHOWN} | {"rank": draws.random(shape[0])}
            arrays["ratio"][0, 0] = np.nan
            store.write(config, {}, arrays)
    return store


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_from_stored_results(tmp_path, name):
    request = Request(
        FIGURES[name].setting, seeds=(1, 2), starts=2, budgets=("3p", "10p"), steps=None, parameters=20_000
    )
    results = FIGURES[name].stored(request, stored(tmp_path, name, request))
    path = tmp_path / f"{name}.png"
    FIGURES[name].draw(results, request, path)
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


def test_the_same_results_give_the_same_bytes(tmp_path):
    results, request = [write_score(tmp_path, "slu", 0.8)], Request("fmnist-lenet")
    for name in ("one.svg", "two.svg"):
        FIGURES["budget"].draw(results, request, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_a_part_of_the_results_is_enough_and_none_is_not(tmp_path):
    request = Request("fmnist-lenet", methods=("slu", "le"), budgets=("3p",))
    with pytest.raises(StorageError, match="slu-paper figure memory --setting fmnist-lenet"):
        FIGURES["memory"].stored(request, Store(tmp_path))
    write_score(tmp_path, "slu", 0.9)
    results = FIGURES["memory"].stored(request, Store(tmp_path))
    assert [result.config["method"] for result in results] == ["slu"]
    FIGURES["memory"].draw(results, request, tmp_path / "x.png")


def drawn(monkeypatch, module, draw, *arguments):
    """The figure instead of a file."""
    figures = []
    monkeypatch.setattr(module, "write_picture", lambda figure, path: figures.append(figure))
    draw(*arguments)
    return figures[0]


def colours(figure):
    handles = figure.legends[0].get_lines()
    return dict(
        zip([text.get_text() for text in figure.legends[0].get_texts()], (h.get_color() for h in handles), strict=True)
    )


def test_a_method_has_one_colour_in_all_figures(tmp_path, monkeypatch):
    results = [write_score(tmp_path, name, 0.6, seed=seed) for name in METHODS_SHOWN for seed in (1, 2)]
    request = Request("fmnist-lenet", methods=METHODS_SHOWN)
    one = colours(drawn(monkeypatch, memory, memory.draw, results, request, tmp_path / "x.png"))
    two = colours(drawn(monkeypatch, budget, budget.draw, results, request, tmp_path / "x.png"))
    methods = {METHODS[name].title: style.colour_of(name) for name in METHODS_SHOWN}
    assert one == two == methods | {"guessing": FAINT}
    assert list(one) == [*methods, "guessing"]


def test_boards_use_the_same_table():
    # The paper's table has SLU by Lanczos alone, under SLU's colour, and two scores of features.
    others = {"RelativeMahalanobis", "ViM", "GradNorm"}
    assert {style.key_of(name) for name in METHODS} == set(REGISTRY) - {"SLU lanczos"} - others


def test_values_land_where_they_belong(tmp_path, monkeypatch):
    results = [write_score(tmp_path, "slu", value, seed=seed) for seed, value in ((1, 0.6), (2, 0.8))]
    figure = drawn(monkeypatch, memory, memory.draw, results, Request("fmnist-lenet"), tmp_path / "x.png")
    line = figure.axes[0].containers[0].lines[0]
    assert line.get_ydata().tolist() == pytest.approx([0.7]) and line.get_xdata()[0] == pytest.approx(2.98, rel=0.1)
    bars = figure.axes[0].containers[0].lines[2][0].get_segments()[0]
    assert bars[:, 1].tolist() == pytest.approx([0.7 - 0.1414, 0.7 + 0.1414], abs=1e-3)


def test_preconditioned_runs_count_held_steps_as_copies(tmp_path, monkeypatch):
    changed = {"rank": 25, "sketch_size": 1000, "precondition": 5}
    results = [write_score(tmp_path, "slu", 0.8, changed=changed, outside=("fmnist-rotated-30",))]
    draw = sketching.draw_preconditioning
    figure = drawn(monkeypatch, sketching, draw, results, Request("fmnist-lenet"), tmp_path / "x.png")
    line = figure.axes[0].containers[0].lines[0]
    assert line.get_xdata().tolist() == pytest.approx([5 + 20 * 1000 / 44_426], abs=1e-5)


def test_sketch_sizes_stay_above_twice_the_rank():
    for name in ("fmnist-lenet", "digits-mlp"):
        for job in sketching.sketch_size_jobs(Request(name)):
            assert job.method == "le" or 2 * job.changed["rank"] <= job.changed["sketch_size"]


def test_missing_sets_are_left_out_of_the_runs():
    request = Request("fmnist-lenet", missing=("fmnist-rotated-15",), methods=("slu",), budgets=("3p",))
    (job,) = memory.jobs(request)
    assert len(job.outside) == 12 and "fmnist-rotated-15" not in job.outside


def test_unknown_figures_and_endings(tmp_path):
    with pytest.raises(SettingError, match="'sketch-size'"):
        find_figure("teaser")
    results = [write_score(tmp_path, "slu", 0.8)]
    with pytest.raises(SettingError, match=r"\.png"):
        FIGURES["memory"].draw(results, Request("fmnist-lenet"), tmp_path / "x.jpg")
