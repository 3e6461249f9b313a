"""Who may import whom: the layers of pyproject.toml, no cycles, no module that is a few lines for one other."""

import ast
import sys

import pytest

from sourcetree import PACKAGES, REPOSITORY, cycles, importers, imports, inside, lengths, modules, packages

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it where Python does not
    import tomli as tomllib

CONTRACTS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
    "contracts"
]
SURFACE = ("slu", "slu.__main__")
"""The public surface and the entry point may import everything."""


def forbidden(importer: str) -> set[str]:
    """The packages and modules that the contracts forbid to a module, or to what it is a part of."""
    barred: set[str] = set()
    for contract in CONTRACTS:
        if contract["type"] == "layers":
            for container in contract["containers"]:
                rows = [
                    {f"{container}.{name.strip(' ()')}" for name in row.split("|")} for row in contract["layers"]
                ]  # from the top down; the members of one row are blind to each other
                height = next((place for place, row in enumerate(rows) if inside(importer, row)), None)
                if height is not None:
                    above = set().union(*rows[: height + 1])
                    barred |= {part for part in above if not inside(importer, [part])}
        elif contract["type"] == "forbidden":
            if inside(importer, contract["source_modules"]):
                barred |= set(contract["forbidden_modules"])
        else:
            raise ValueError(f"the contract {contract['name']!r} has the type {contract['type']!r}, not checked here")
    return barred


def layered() -> set[str]:
    """Every part of a container that has a layer."""
    return {
        f"{container}.{name.strip(' ()')}"
        for contract in CONTRACTS
        if contract["type"] == "layers"
        for container in contract["containers"]
        for row in contract["layers"]
        for name in row.split("|")
    }


def test_imports_go_down_only():
    trees = {name: tree for package in PACKAGES for name, tree in modules(package).items()}
    violations = [
        f"{importer} imports {module}"
        for importer, named in imports(trees).items()
        if importer not in SURFACE
        for module in sorted(named)
        if inside(module, forbidden(importer))
    ]
    assert not violations


def test_every_part_has_a_layer():
    parts = {module for module in modules() if module.count(".") == 1} - set(SURFACE)
    assert not parts - layered(), "add them to the contracts in pyproject.toml"


@pytest.mark.parametrize(
    ("importer", "text", "fine"),
    [
        ("slu.krylov.lanczos", "from slu.errors import SluError", True),
        ("slu.krylov.lanczos", "from slu.curvature import Curvature", False),
        ("slu.krylov.lanczos", "from slu.subspace.sketched import reveal", False),
        ("slu.krylov.lanczos", "def f():\n    import slu.sketches", False),
        ("slu.subspace.basis", "from slu import likelihoods", False),
        ("slu.curvature.root", "if TYPE_CHECKING:\n    from slu.sketches import build", False),
        ("slu.errors", "from slu.seeds import stream", False),
    ],
)
def test_control_the_check_of_layers_sees_what_it_should(importer, text, fine):
    (named,) = (imports(modules() | {importer: ast.parse(text)})[importer],)
    assert len(named) == 1
    assert (not any(inside(module, forbidden(importer)) for module in named)) == fine


@pytest.mark.parametrize("package", PACKAGES)
def test_no_import_cycle(package):
    """Between modules of one package and across packages; imports in functions and below TYPE_CHECKING count."""
    assert not cycles(imports(modules(package)))


@pytest.mark.parametrize(
    "texts",
    [
        {"slu.a": "import slu.b", "slu.b": "from slu.a import thing"},
        {"slu.a": "from slu import b", "slu.b": "def f():\n    from slu.a import thing"},
        {"slu.a": "from slu.b import x", "slu.b": "from slu.c import x", "slu.c": "if TYPE_CHECKING:\n import slu.a"},
        {"slu.a": "from slu.a.b import x", "slu.a.b": "from slu.a import y"},
    ],
    ids=["two modules", "in a function", "three, one for types only", "a package and its module"],
)
def test_control_a_cycle_is_seen(texts):
    trees = {name: ast.parse(text) for name, text in texts.items()}
    assert cycles(imports(trees)) == [sorted(trees)]
    trees["slu.a"] = ast.parse("")
    assert not cycles(imports(trees))


FEW_LINES = 40
SMALL_WITH_A_REASON: dict[str, str] = {}
"""Modules of few lines with one importer that stand alone all the same, and why."""


def small_modules(package: str) -> set[str]:
    trees, inits = modules(package), packages(package)
    users = importers(trees, inits)
    return {module for module in set(trees) - inits if len(users[module]) == 1 and lengths(package)[module] < FEW_LINES}


def test_no_few_lines_for_one_importer():
    """They belong into the module that imports them."""
    small = small_modules("slu")
    assert not small - set(SMALL_WITH_A_REASON)
    assert not set(SMALL_WITH_A_REASON) - small, "these need no reason any more: take them out"


def test_control_importers_are_counted_through_re_exports():
    texts = {
        "slu.a": "from slu.a.b import thing\nfrom slu.a.c import other",
        "slu.a.b": "thing = 1",
        "slu.a.c": "other = 1",
        "slu.d": "from slu.a import thing",
        "slu.e": "def f():\n    from slu.a.b import thing",
        "slu.f": "from slu.a import b, other",
    }
    users = importers({name: ast.parse(text) for name, text in texts.items()}, {"slu.a"})
    assert users["slu.a.b"] == {"slu.d", "slu.e", "slu.f"}
    assert users["slu.a.c"] == {"slu.f"}
    assert not users["slu.d"]
