"""The source tree as text: its modules, and who imports whom. Nothing of slu is run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PACKAGES = {
    name: folder
    for name, folder in {
        "slu": REPOSITORY / "src" / "slu",
        "slu_experiments": REPOSITORY / "experiments" / "src" / "slu_experiments",
    }.items()
    if folder.is_dir()
}


def module_name(path: Path, root: Path) -> str:
    """src/slu/data/keys.py is slu.data.keys, src/slu/data/__init__.py is slu.data."""
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules(package: str = "slu") -> dict[str, ast.Module]:
    """The syntax trees of all modules of a package, by module name."""
    root = PACKAGES[package]
    return {module_name(path, root): parse(path) for path in sorted(root.rglob("*.py"))}


@cache
def lengths(package: str = "slu") -> dict[str, int]:
    """The number of lines of every module."""
    root = PACKAGES[package]
    return {module_name(path, root): count_lines(path) for path in sorted(root.rglob("*.py"))}


@cache
def packages(package: str = "slu") -> set[str]:
    """The modules that are an `__init__`."""
    root = PACKAGES[package]
    return {module_name(path, root) for path in root.rglob("__init__.py")}


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def imported_names(tree: ast.AST) -> Iterator[tuple[str, str | None]]:
    """(module, name) of every import in a file, also below functions and TYPE_CHECKING; `import a.b` gives (a.b, None).

    Raises:
        ValueError: An import is relative, which hides where it goes.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level or node.module is None:
                raise ValueError(f"line {node.lineno} has a relative import; write the whole name")
            yield from ((node.module, alias.name) for alias in node.names)


def imports(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """The modules among `trees` that each of them names in an import: `from a import b` names a.b if that is one."""
    graph: dict[str, set[str]] = {}
    for importer, tree in trees.items():
        named = (
            f"{module}.{name}" if name and f"{module}.{name}" in trees else module
            for module, name in imported_names(tree)
        )
        graph[importer] = {module for module in named if module in trees and module != importer}
    return graph


def importers(trees: dict[str, ast.Module], inits: set[str]) -> dict[str, set[str]]:
    """Who uses each module: an `__init__` that passes a name on is no user, but whoever takes the name from it is."""
    passed_on = {
        (init, name): module
        for init in inits
        for module, name in imported_names(trees[init])
        if name and module in trees
    }
    users: dict[str, set[str]] = {module: set() for module in trees}
    for importer, tree in trees.items():
        if importer in inits:
            continue
        for module, name in imported_names(tree):
            while name and (module, name) in passed_on and f"{module}.{name}" not in trees:
                module = passed_on[module, name]
            target = f"{module}.{name}" if name and f"{module}.{name}" in trees else module
            if target in users and target != importer:
                users[target].add(importer)
    return users


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that all import each other, directly or by others (strongly connected components)."""
    reachable = {module: _reachable(graph, module) for module in graph}
    groups = {
        frozenset(other for other in reached if module in reachable[other])
        for module, reached in reachable.items()
        if module in reached
    }
    return sorted(sorted(group) for group in groups)


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """Every module at the end of at least one import, starting from a module."""
    seen: set[str] = set()
    ahead = list(graph[start])
    while ahead:
        module = ahead.pop()
        if module not in seen:
            seen.add(module)
            ahead += graph[module]
    return seen


def inside(module: str, parts: Iterable[str]) -> bool:
    """Whether a module is one of these, or below one of them."""
    return any(module == part or module.startswith(part + ".") for part in parts)
