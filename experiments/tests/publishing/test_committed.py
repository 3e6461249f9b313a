"""What the repository publishes is what its own files of runs give, and no more than a reader can take."""

import re
from pathlib import Path

import pytest

from slu_experiments.publishing import made_of, report_of, with_headline
from slu_experiments.publishing.page import FIGURES

REPOSITORY = Path(__file__).parents[3]
FOLDER = REPOSITORY / "docs" / "results" / "paper"
AGAIN = "write it again: slu-paper publish --stored --to docs/results/paper"


@pytest.fixture(scope="module")
def report():
    return report_of(FOLDER)


def test_the_page_and_its_tables_are_not_stale(report):
    for name, text in made_of(report).items():
        assert (FOLDER / name).read_text(encoding="utf-8") == text, f"{name} is stale; {AGAIN}"


def test_no_table_is_left_of_runs_that_are_gone(report):
    assert {path.name for path in FOLDER.glob("*.csv")} == set(report.csv())


def test_figures_are_there(report):
    for setting in report.settings:
        for name in FIGURES:
            assert (FOLDER / f"{setting.name}-{name}.png").read_bytes().startswith(b"\x89PNG"), AGAIN


def test_every_file_is_small():
    assert not [path.name for path in FOLDER.iterdir() if path.stat().st_size > 2**20]


def test_links_of_the_page_lead_somewhere():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)\)", text)
    assert targets and all((FOLDER / target).exists() for target in targets)


def test_the_headline_of_readme_is_not_stale(report):
    path = REPOSITORY / "README.md"
    text = path.read_text(encoding="utf-8")
    assert with_headline(text, report) == text, f"README.md is stale; {AGAIN} --readme README.md"
