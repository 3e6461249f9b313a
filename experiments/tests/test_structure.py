"""The shape of slu_experiments: file lengths, no pickled objects, and only the public packages of slu."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import slu_experiments

ROOT = Path(slu_experiments.__file__).parent
SOURCE = sorted(ROOT.rglob("*.py"))
FILES = [*SOURCE, *sorted(Path(__file__).parent.rglob("*.py"))]


def modules(tree):
    """The modules of slu that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
    return {name for name in names if name.split(".")[0] == "slu"}


def private(tree):
    """Those that are no public package: the command, and modules inside a package."""
    return {name for name in modules(tree) if name.count(".") > 1 or name == "slu.cli"}


def test_only_public_packages_of_slu_are_imported():
    for path in SOURCE:
        assert not private(ast.parse(path.read_text(encoding="utf-8"))), path


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("import slu\nfrom slu.artifacts import read", True),
        ("from slu.core.checkpoint import Checkpoint", False),
        ("def f():\n    from slu.cli import app", False),
        ("import slu.core.solvers", False),
    ],
)
def test_the_check_of_imports_sees_what_it_should(text, fine):
    """Control."""
    assert (not private(ast.parse(text))) == fine


def test_no_file_is_too_long():
    assert not [path for path in FILES if len(path.read_text(encoding="utf-8").splitlines()) > 400]


def test_nothing_is_unpickled():
    for path in SOURCE:
        text = path.read_text(encoding="utf-8")
        assert not any(word in text for word in ("import pickle", "torch.load", "torch.save", "allow_pickle")), path


def test_asking_for_help_loads_nothing_heavy():
    code = (
        "import sys; from slu_experiments.__main__ import main\n"
        "sys.argv = ['slu-paper', 'reproduce', '--help']\n"
        "try:\n    main()\nexcept SystemExit as left:\n    assert left.code == 0\n"
        "assert not {'torch', 'scipy', 'numpy', 'sklearn', 'matplotlib', 'PIL', 'pooch'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "--setting" in done.stdout
