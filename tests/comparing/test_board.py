"""The board: rows by name, tables, differences, JSON."""

import copy
import json
import math
from dataclasses import FrozenInstanceError, asdict, replace

import pytest
import torch

from fakes import COST, Failing, Formula
from slu.budgets import Cost
from slu.comparing import Estimate, compare, detect
from slu.errors import BudgetError, SettingError, StorageError

NORMAL = torch.Generator().manual_seed(0)
INSIDE, FAR, NEAR = (torch.randn(80, 3, generator=NORMAL) + shift for shift in (0.0, 2.0, 0.3))
METRICS = ("auroc", "aupr", "fpr95")


def parted(x):
    """Best on the far points; ties; infinite for some."""
    return torch.where(x[:, 0] > 3, torch.inf, x.sum(1).round(decimals=1))


def make(count=2, **methods):
    methods = methods or {
        "sum": Formula(parted),
        "near": Formula(lambda x: parted(x) + 1e-3 * x[:, 0]),
        "one": Formula(first=lambda x: x[:, 0], second=lambda x: x[:, 1]),
        "constant": Formula(lambda x: torch.zeros(len(x))),
        "broken": Failing(BudgetError("the budget '0.5p' is 0.5 copies of the 1,000 parameters")),
    }
    sets = {f"set {place}": (FAR, NEAR)[place % 2] for place in range(count)}
    return compare(methods, train=INSIDE, inside=[INSIDE], outside=sets, readings=["first", "second"], resamples=100)


@pytest.fixture(scope="module")
def board():
    return make()


def test_rows_by_label_and_name(board):
    assert [row.label for row in board] == ["sum", "near", "one, first", "one, second", "constant", "broken"]
    assert board["one, second"].reading == "second" and board["sum"].method == "sum"
    for name in ("one", "nobody"):
        with pytest.raises(KeyError, match="there are sum, near, one, first"):
            board[name]
    alone = make(only=Formula(first=lambda x: x[:, 0], rest=lambda x: x[:, 1]))
    assert alone["only"] is alone.rows[0]
    assert alone["only"].label == "only"


def test_a_board_does_not_change(board):
    with pytest.raises(FrozenInstanceError):
        board.seed = 3
    with pytest.raises(FrozenInstanceError):
        board.rows[0].label = "other"
    assert copy.deepcopy(board) == board
    assert (
        asdict(board.rows[0])["judgements"]["set 0"]["auroc"]["value"] == board.rows[0].judgements["set 0"].auroc.value
    )


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_table_is_complete_and_fits_a_page(count):
    results = make(count)
    text = str(results)
    assert max(map(len, text.splitlines())) <= 110 and "…" not in text
    words = [
        "AUROC",
        "AUPR",
        "(more is better)",
        "FPR95",
        "(less is better)",
        "memory and time",
        "95 %",
        "100 resamples",
    ]
    assert all(word in text for word in words)
    for row in results:
        for judged in row.judgements.values():
            for metric in METRICS:
                each = getattr(judged, metric)
                assert f"{each.low:.3f}-{each.high:.3f}" in text and f"{each.value:.3f}" in text
    # Every metric and the costs name every row; every set stands over every metric, alone in the head if it is one.
    blocks = 1 if count == 1 else 3 * math.ceil(count / 4)
    assert [line.split("  ")[0] for line in text.splitlines()].count("constant") == blocks + 1
    assert all(f"set {place}" in text for place in range(count))
    assert "broken failed: BudgetError while fitting: the budget '0.5p'" in text


def test_columns_are_not_mixed_up(board):
    """The line of a row has its own numbers, in the order of the sets."""
    for metric in METRICS:
        text = board.table(metric)
        line = next(line for line in text.splitlines() if line.startswith("one, second"))
        values = [getattr(board["one, second"].judgements[name], metric).value for name in board.outside]
        numbers = [float(word.rstrip("*")) for word in line.removeprefix("one, second").split() if "-" not in word]
        assert numbers == pytest.approx(values, abs=6e-4)


def test_leaders_are_starred(board):
    text = board.table("auroc")
    assert board.leaders["auroc"]["set 0"] == ("sum", "near")
    line = next(line for line in text.splitlines() if line.startswith("sum"))
    assert f"{board['sum'].judgements['set 0'].auroc.value:.3f}*" in line
    assert "*" not in next(line for line in text.splitlines() if line.startswith("constant"))
    assert "paired difference" in text


def test_memory_and_time_are_told():
    known = replace(make().rows[0], parameters=100, bytes_each=4, seconds=12.34, milliseconds=0.0567)
    board = replace(make(), rows=(known,))
    text = str(board)
    assert "p = 100 parameters (400 B) and queries in batches of 80" in " ".join(text.split())
    line = [line for line in text.splitlines() if line.startswith("sum")][-1]
    # 1,200 bytes of 400 kept, 4,000 while fitting, 1,600 in a query.
    assert line.split() == ["sum", "formula-0", "3", "1.2", "kB", "10", "4", "kB", "4", "1.6", "kB", "12.3", "0.057"]
    mixed = replace(board, rows=(known, replace(known, parameters=7)))
    assert "each row's own" in str(mixed)


def test_what_memory_leaves_out_is_told_of_those_who_are_there():
    named = ("DeepEnsemble", "DiagonalLaplace", "SCOD", "SWAG")
    text = str(make(**{name: Failing(BudgetError("small")) for name in (*named, "LocalEnsemble")}))
    assert all(f"\n{name}" in text.partition("Memory:")[2] for name in named)
    assert "so m members keep (m - 1)p beside it" in " ".join(text.split())
    assert "SWAG keeps" in str(make(**{"SWAG rank 3": Failing(BudgetError("small"))}))
    assert "members" not in str(make())


def test_readings_are_broken_at_a_hyphen():
    reading = {"mutual-information": lambda x: x[:, 0]}
    known = replace(make(**{"a method with a long name": Formula(**reading)}).rows[0], parameters=10**8, bytes_each=4)
    many = Cost(artefact=123_400_000_000, fitting=987_600_000_000, querying=456_700_000_000, passes=1)
    text = str(replace(make(), rows=(replace(known, cost=many, seconds=12345.6, milliseconds=0.0123),)))
    assert max(map(len, text.splitlines())) <= 110 and "…" not in text
    words = text.split()
    assert "mutual-" in words and "information" in words and "12,346" in words


def test_long_names_are_folded_not_cut():
    name, group = "a method with a very long name that nobody can remember", "a set of points with an even longer name"
    results = compare(
        {name: Formula(lambda x: x[:, 0])}, train=INSIDE, inside=INSIDE, outside={group: FAR, "b": NEAR}, resamples=40
    )
    text = str(results)
    assert max(map(len, text.splitlines())) <= 110 and "…" not in text
    plain = "".join(text.split())
    assert "remember" in plain and results[name].label == name


def test_names_are_not_read_as_markup():
    names = ["[bold]x[/bold]", "a_b $x$", ":smile:"]
    results = compare(
        {name: Formula(lambda x: x[:, 0]) for name in names},
        train=INSIDE,
        inside=INSIDE,
        outside={"[red]": FAR},
        resamples=40,
    )
    assert all(name in str(results) for name in [*names, "[red]"])


def test_a_board_of_failures_can_be_printed_and_written(tmp_path):
    results = make(a=Failing(BudgetError("small")), b=Failing(BudgetError("small")), c=Failing(ValueError("x" * 5000)))
    text = str(results)
    assert "a, b failed: BudgetError while fitting: small" in text
    assert "x" * 100 in "".join(text.split()) and len(text) < 4000
    assert "paired difference" not in text
    results.plot(tmp_path / "empty.png")
    results.to_json(tmp_path / "board.json")
    assert len(json.loads((tmp_path / "board.json").read_text())["rows"]) == 3
    assert results.rows[2].failure.message == "x" * 5000


def test_differences(board):
    far, near = "set 0", "set 1"
    estimate = board.difference("sum", "one, first", outside=far)
    expected = detect(parted(INSIDE), parted(FAR)).auroc - detect(INSIDE[:, 0], FAR[:, 0]).auroc
    assert estimate.value == pytest.approx(expected) and estimate.low > 0
    back = board.difference("one, first", "sum", outside=far)
    assert (back.value, back.low, back.high) == pytest.approx((-estimate.value, -estimate.high, -estimate.low))
    assert board.difference("sum", "near", outside=near).holds(0)
    assert board.difference("sum", "constant", outside=far, metric="fpr95").high < 0
    assert board.difference("sum", "sum", outside=far) == Estimate(0.0, 0.0, 0.0)
    alone = make(1)
    assert alone.difference("sum", "constant") == alone.difference("sum", "constant", outside="set 0")


def test_leaders_are_who_the_differences_say(board):
    for metric in METRICS:
        for name in board.outside:
            leaders = board.leaders[metric][name]
            values = {row.label: getattr(row.judgements[name], metric).value for row in board if row.judgements}
            best = (min if metric == "fpr95" else max)(values, key=values.get)
            for label in values:
                tied = board.difference(best, label, outside=name, metric=metric).holds(0)
                assert tied == (label in leaders)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("sum", "constant", None, "auroc"), "unknown outside set None; valid are 'set 0', 'set 1'"),
        (("sum", "constant", "set 7", "auroc"), "unknown outside set 'set 7'"),
        (("sum", "constant", "set 0", "accuracy"), "unknown metric 'accuracy'"),
        (("sum", "broken", "set 0", "auroc"), "broken has no scores on 'set 0': BudgetError while fitting"),
    ],
)
def test_differences_that_there_are_not(board, asked, message):
    first, second, outside, metric = asked
    with pytest.raises(SettingError, match=message):
        board.difference(first, second, outside=outside, metric=metric)
    with pytest.raises(SettingError, match="unknown metric"):
        board.table("accuracy")


def test_json_says_everything_in_finite_numbers(board, tmp_path):
    path = tmp_path / "board.json"
    board.to_json(path, raw=True)

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    content = json.loads(path.read_text(), parse_constant=refuse)
    assert content["versions"]["torch"] == torch.__version__ and content["level"] == 0.95
    assert (content["inside"], content["outside"], content["seed"], content["resamples"]) == (
        80,
        {"set 0": 80, "set 1": 80},
        0,
        100,
    )
    rows = {row["label"]: row for row in content["rows"]}
    assert rows["broken"]["failure"]["kind"] == "BudgetError" and rows["broken"]["seconds"] is None
    assert rows["sum"]["cost"] == asdict(COST) and rows["sum"]["settings"] == {"level": 0, "fits": 0}
    assert rows["sum"]["judgements"]["set 0"]["auroc"] == asdict(board["sum"].judgements["set 0"].auroc)
    assert "inf" in content["scores"]["sum"]["outside"]["set 0"]
    for label, scored in board.scores.items():
        assert [float(each) for each in content["scores"][label]["inside"]] == scored.inside.tolist()
    board.to_json(path)
    assert content.keys() - json.loads(path.read_text()).keys() == {"scores"} and list(tmp_path.iterdir()) == [path]


def test_paths_that_cannot_be(board, tmp_path):
    with pytest.raises(StorageError, match="is a folder"):
        board.to_json(tmp_path)
    with pytest.raises(StorageError, match="no folder"):
        board.to_json(tmp_path / "none" / "board.json")
