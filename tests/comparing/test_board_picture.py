"""The picture of a board: there, whole, and showing every row."""

import sys

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread

from fakes import Failing, Formula
from slu.comparing import compare
from slu.comparing.board_picture import _MARKERS, COLOURS, _figure, _limits, _style, _ticks
from slu.errors import BudgetError, SettingError, SluError, StorageError

NORMAL = torch.Generator().manual_seed(0)
INSIDE, FAR = (torch.randn(60, 2, generator=NORMAL) + shift for shift in (0.0, 1.5))


LONG = "corruption number {} with a long name, or one_without_any_place_to_break_it_$y$"


def make(count=2, methods=None, name="set_{} $y$", **settings):
    methods = methods or {
        "good $x_1$": Formula(lambda x: x.sum(1)),
        "odd": Formula(one=lambda x: x[:, 0], two=lambda x: -x[:, 1]),
        "broken": Failing(BudgetError("small")),
    }
    sets = {name.format(place): FAR + 0.2 * place for place in range(count)}
    return compare(methods, train=INSIDE, inside=INSIDE, outside=sets, readings="all", resamples=40, **settings)


@pytest.fixture(scope="module")
def board():
    return make()


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts] + [text.get_text() for text in figure.texts]


@pytest.mark.parametrize("metric", ["auroc", "aupr", "fpr95"])
def test_a_png_with_something_on_it(board, metric, tmp_path):
    path = tmp_path / "board.png"
    board.plot(path, metric=metric)
    image = imread(path)[..., :3]
    assert image.shape[0] > 300 and image.shape[1] > 900
    assert 0.02 < np.mean(image.min(-1) < 0.95) < 0.9  # neither blank nor full
    colour = np.array([int(COLOURS[0][place : place + 2], 16) / 255 for place in (1, 3, 5)])
    assert (np.abs(image - colour).max(-1) < 0.02).any()
    assert list(tmp_path.iterdir()) == [path]


def test_svg_and_pdf(board, tmp_path):
    board.plot(tmp_path / "board.SVG")
    assert "<svg" in (tmp_path / "board.SVG").read_text()
    board.plot(tmp_path / "board.pdf")
    assert (tmp_path / "board.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_same_board_gives_the_same_file(board, ending, tmp_path):
    paths = [tmp_path / f"{place}.{ending}" for place in range(2)]
    for path in paths:
        board.plot(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("name", ["set_{} $y$", LONG], ids=["short", "long"])
@pytest.mark.parametrize("count", [1, 6])
def test_every_row_and_set_is_drawn(count, name):
    board = make(count, name=name)
    figure = _figure(board, "auroc")
    shown = texts(figure)
    for row in board:
        assert row.label in shown
        for judged in row.judgements.values():
            assert f"{judged.auroc.value:.3f}" in shown
    assert {"".join(name.split()) for name in board.outside} <= {"".join(text.split()) for text in shown}
    assert shown.count(" failed") == count
    drawn = [line for axes in figure.axes for line in axes.lines if line.get_marker() in _MARKERS]
    assert len(drawn) == 3 * count
    values = sorted(float(line.get_xdata()[0]) for line in drawn)
    assert values == sorted(judged.auroc.value for row in board for judged in row.judgements.values())


def test_intervals_are_drawn_where_they_are(board):
    figure = _figure(board, "aupr")
    spans = {
        tuple(map(float, line.get_xdata()))
        for axes in figure.axes
        for line in axes.lines
        if len(set(line.get_xdata())) > 1
    }
    for row in board:
        for judged in row.judgements.values():
            assert (judged.aupr.low, judged.aupr.high) in spans


@pytest.mark.parametrize("name", ["set_{} $y$", LONG], ids=["short", "long"])
@pytest.mark.parametrize("count", [1, 7])
def test_nothing_is_drawn_outside_the_page_or_over_another(count, name):
    figure = _figure(make(count, name=name), "auroc")
    FigureCanvasAgg(figure).draw()
    renderer = figure.canvas.get_renderer()
    page = figure.bbox
    boxes = [text.get_window_extent(renderer) for axes in figure.axes for text in axes.texts if text.get_text().strip()]
    boxes += [text.get_window_extent(renderer) for text in figure.texts]
    for box in boxes:
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= page.x1 + 1 and box.y1 <= page.y1 + 1
    for place, one in enumerate(boxes):
        for two in boxes[place + 1 :]:
            wide = min(one.x1, two.x1) - max(one.x0, two.x0)
            high = min(one.y1, two.y1) - max(one.y0, two.y0)
            assert wide <= 1 or high <= 1


def test_the_line_of_guessing_does_not_cross_a_failure(board):
    """Where a row failed its text stands on the row's own ground, above the line."""
    figure = _figure(board, "auroc")
    failed = [text for axes in figure.axes for text in axes.texts if text.get_text() == " failed"]
    lines = [line for axes in figure.axes for line in axes.lines if line.get_linestyle() == "--"]
    assert failed and lines
    for text in failed:
        ground = text.get_bbox_patch()
        assert ground.get_alpha() in (None, 1) and ground.get_facecolor()[3] == 1
        assert text.get_zorder() > max(line.get_zorder() for line in lines)


def test_a_method_keeps_its_colour_and_a_reading_its_marker(board):
    good, one, two = (_style(board, row) for row in board.rows[:3])
    assert one[0] == two[0] != good[0] and one[1] != two[1]
    many = make(methods={f"m{place}": Formula(lambda x: x[:, 0]) for place in range(12)})
    styles = {_style(many, row) for row in many}
    assert len(styles) == 12


def test_scales():
    assert _ticks(0.2, 1.02) == [0.25, 0.5, 0.75, 1.0]
    assert _ticks(0.95, 1.01) == [0.96, 0.98, 1.0]
    assert _ticks(-0.02, 1.02) == [0.0, 0.25, 0.5, 0.75, 1.0]
    perfect = make(1, {"perfect": Formula(lambda x: x[:, 0] * (x[:, 0] > 5) + 9.0 * (len(x) == 60))})
    low, high = _limits(perfect, "auroc")
    assert low < 0.5 < high  # a single point gets a margin on both sides


def test_refusals(board, tmp_path):
    for name in ("board.jpg", "board"):
        with pytest.raises(SettingError, match=r"\.png, \.svg, \.pdf"):
            board.plot(tmp_path / name)
    with pytest.raises(SettingError, match="unknown metric 'f1'"):
        board.plot(tmp_path / "board.png", metric="f1")
    with pytest.raises(StorageError, match="no folder"):
        board.plot(tmp_path / "none" / "board.png")
    assert not list(tmp_path.iterdir())


def test_matplotlib_is_asked_for_by_name(board, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SluError, match="drawing a picture needs the package 'matplotlib'"):
        board.plot(tmp_path / "board.png")
