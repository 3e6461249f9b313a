"""The pages for contributors and users name files that exist."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
FOLDERS = (".", "src", "src/slu", "src/slu/gradients", "experiments/src/slu_experiments")
ROOTS = [REPOSITORY / folder for folder in FOLDERS]


def missing_files(text: str) -> list[str]:
    """Files of Python that a text names in backquotes, as far as they are nowhere to be seen."""
    names = set(re.findall(r"`([\w/.-]+/[\w.-]+\.py)`", text))
    return sorted(name for name in names if not any((root / name).exists() for root in ROOTS))


def test_files_that_the_pages_name_exist():
    missing = {page.name: missing_files(page.read_text(encoding="utf-8")) for page in PAGES}
    assert not {name: files for name, files in missing.items() if files}


def test_control_a_missing_file_is_seen():
    assert missing_files("see `core/readout.py`, `tests/oracles.py` and `core/nowhere.py`") == ["core/nowhere.py"]
