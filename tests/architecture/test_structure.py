"""The shape of the source tree: layers, file lengths, docstrings, no global random state."""

import ast
import importlib
import sys
from pathlib import Path

import pytest

import slu

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it where Python does not
    import tomli as tomllib

ROOT = Path(slu.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in FILES]
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))

CONTRACTS = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
CONTRACTS = CONTRACTS["tool"]["importlinter"]["contracts"]
# From the top down; the members of one row are blind to each other.
LAYERS = [
    {name.strip() for name in row.split("|")}
    for contract in CONTRACTS
    if contract["type"] == "layers"
    for row in contract["layers"]
]
# Who must not import whom besides.
BLIND = [
    tuple({name.removeprefix("slu.") for name in contract[side]} for side in ("source_modules", "forbidden_modules"))
    for contract in CONTRACTS
    if contract["type"] == "forbidden"
]


def imported(tree: ast.AST) -> set[str]:
    """The parts of slu that a module imports, wherever in the file: slu.krylov.lanczos gives krylov."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer"
            names = [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "slu" else [node.module]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name and name.startswith("slu.")}
    return found


def forbidden(part: str) -> set[str]:
    """What a part of slu must not import."""
    height = next(place for place, row in enumerate(LAYERS) if part in row)
    above = set().union(*LAYERS[: height + 1]) - {part}
    return above.union(*(second for first, second in BLIND if part in first))


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_imports_go_down_only(path):
    part = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if part in ("__init__", "__main__"):
        return  # the public surface and the entry point may import everything
    assert part in set().union(*LAYERS), f"{part} has no layer: add it to the contracts in pyproject.toml"
    assert not imported(parse(path)) & forbidden(part)


@pytest.mark.parametrize(
    ("part", "text", "fine"),
    [
        ("krylov", "from slu.errors import SluError", True),
        ("krylov", "from slu.curvature import Curvature", False),
        ("krylov", "from slu.subspace.basis import reveal", False),
        ("krylov", "def f():\n    import slu.sketches", False),
        ("subspace", "from slu import likelihoods", False),
        ("curvature", "from slu.sketches import build", False),
        ("errors", "from slu.seeds import stream", False),
    ],
)
def test_the_check_of_layers_sees_what_it_should(part, text, fine):
    """Control."""
    assert (not imported(ast.parse(text)) & forbidden(part)) == fine


TESTS = sorted(Path(__file__).parents[1].rglob("*.py"))


@pytest.mark.parametrize("path", [*FILES, *TESTS], ids=[*NAMES, *(f"tests/{path.name}" for path in TESTS)])
def test_no_file_is_too_long(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


def test_a_name_that_is_not_there():
    assert set(slu.__all__) <= set(dir(slu))
    with pytest.raises(AttributeError, match="no attribute 'Slu'"):
        slu.Slu  # noqa: B018


@pytest.mark.parametrize("name", slu.__all__)
def test_public_names_have_docstrings(name):
    documented(getattr(slu, name), name)


def documented(found, name):
    assert found.__doc__ and found.__doc__.strip(), f"{name} has no docstring"
    if isinstance(found, type):
        # Dataclasses without a docstring get their signature as one.
        assert not found.__doc__.startswith(f"{found.__name__}("), f"{name} has no docstring of its own"
        for member, value in vars(found).items():
            if not member.startswith("_") and callable(value):
                assert value.__doc__, f"{name}.{member} has no docstring"


def test_the_check_of_docstrings_sees_what_it_should():
    """Control."""

    class Silent:
        pass

    with pytest.raises(AssertionError):
        documented(Silent, "Silent")


@pytest.mark.parametrize("package", PACKAGES)
def test_package_imports_and_names_exist(package):
    module = importlib.import_module(f"slu.{package}")
    for name in getattr(module, "__all__", []):
        assert hasattr(module, name)
    assert len(set(getattr(module, "__all__", []))) == len(getattr(module, "__all__", []))


# Functions of torch that draw from its global state unless they are given a generator.
DRAWS = {"rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson"}
IN_PLACE = {"normal_", "uniform_", "random_", "bernoulli_", "exponential_", "cauchy_", "log_normal_", "geometric_"}
GLOBAL = {"rand_like", "randn_like", "randint_like", "set_rng_state", "seed"}


def global_draws(tree: ast.AST) -> list[str]:
    """Calls that read or set a global random state, of torch, numpy or Python."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", None) or ""] + [alias.name for alias in node.names]
            found += [name for name in names if name == "random"]
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        name, owner = node.func.attr, ast.unparse(node.func.value)
        seeded = any(keyword.arg == "generator" for keyword in node.keywords)
        if owner == "torch" and (name in GLOBAL | {"manual_seed"} or (name in DRAWS and not seeded)):
            found.append(f"torch.{name}")
        elif name in IN_PLACE and not seeded and "init" not in owner:
            found.append(name)
        elif owner in ("np.random", "numpy.random") and name != "default_rng":
            found.append(f"{owner}.{name}")
    return found


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_no_global_random_state(path):
    assert not global_draws(parse(path))


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("torch.randn(3, generator=g)", True),
        ("torch.Generator('cpu').manual_seed(0)", True),
        ("np.random.default_rng(0)", True),
        ("torch.randn(3)", False),
        ("torch.manual_seed(0)", False),
        ("x.normal_()", False),
        ("torch.randn_like(x)", False),
        ("np.random.normal()", False),
        ("import random", False),
    ],
)
def test_the_check_of_random_state_sees_what_it_should(text, fine):
    """Control."""
    assert (not global_draws(ast.parse(text))) == fine


# Reading any of these runs code that stands in the file.
PICKLING = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}


def unpickles(tree: ast.AST) -> list[str]:
    """Imports and calls that write or read pickled objects."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            names = [module, *(alias.name for alias in node.names)]
            found += [name for name in names if name.split(".")[0] in PICKLING]
            if module == "torch":
                found += [
                    f"torch.{alias.name}" for alias in node.names if alias.name in ("load", "save", "serialization")
                ]
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in (
            "torch.load",
            "torch.save",
            "torch.serialization",
        ):
            found.append(ast.unparse(node))
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            found.append("allow_pickle")
    return found


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_no_pickle_anywhere(path):
    assert not unpickles(parse(path))


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("import json", True),
        ("score.save(path); SLU.load(path, model)", True),
        ("model.load_state_dict(state)", True),
        ("import pickle", False),
        ("from pickle import loads", False),
        ("def f():\n    import joblib", False),
        ("torch.load(path, weights_only=True)", False),
        ("torch.save(state, path)", False),
        ("from torch import save", False),
        ("np.load(path, allow_pickle=True)", False),
    ],
)
def test_the_check_of_pickle_sees_what_it_should(text, fine):
    """Control."""
    assert (not unpickles(ast.parse(text))) == fine
