"""The dependency directions of `dependencies.toml`: every import counts, at run time or for
types.
"""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import embedlog
from tests.conftest import ROOT

pytestmark = pytest.mark.xdist_group("tests/project/prose")  # the worker that reads all texts

PACKAGE = ROOT / "embedlog"
DIRECTIONS: dict[str, Any] = tomllib.loads(
    (ROOT / "tests" / "project" / "dependencies.toml").read_text()
)
ALLOWED: dict[str, frozenset[str]] = {
    unit["name"]: frozenset(unit["may"]) for unit in DIRECTIONS["unit"]
}
OPEN_IMPORTS: frozenset[str] = frozenset(DIRECTIONS["open"]["imports"])
OPEN_CYCLES: list[list[str]] = DIRECTIONS["open"]["cycles"]
INTEGRATIONS = (
    "spark",
    "schemas",
    "polars",
    "duckdb",
    "exporters",
    "progress",
    "plot",
    "mirror",
    "tools.console",
    "tools.cli",
)


def dotted_name(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES: dict[str, Path] = {dotted_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def unit_of(dotted: str) -> str:
    """`embedlog.a.b.c` belongs to unit `a.b` if that is one, otherwise to unit `a`."""
    parts = dotted.split(".")
    nested = ".".join(parts[1:3])
    if nested in ALLOWED:
        return nested
    return parts[1] if len(parts) > 1 else parts[0]


class Member(NamedTuple):
    """The use of a private member."""

    line: int
    owner: str  # the expression before the last dot
    name: str


class Uses(NamedTuple):
    """What a module uses of others: one parse and one walk for all rules."""

    imports: tuple[tuple[int, str], ...]  # line and dotted name of modules of the package
    public_names: tuple[tuple[int, str], ...]  # line and name, of `embedlog` itself
    private_members: tuple[Member, ...]


@cache
def uses(path: Path) -> Uses:
    imported: list[tuple[int, str]] = []
    public: list[tuple[int, str]] = []
    private: list[Member] = []
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import() | ast.ImportFrom():
                imported += _imports(path, node)
                if isinstance(node, ast.ImportFrom) and node.module == "embedlog":
                    public += [(node.lineno, alias.name) for alias in node.names]
            case ast.Attribute(value=ast.Name(id="embedlog")):
                public.append((node.lineno, node.attr))
            case ast.Attribute() if node.attr.startswith("_"):
                private.append(Member(node.lineno, ast.unparse(node.value), node.attr))
    return Uses(tuple(imported), tuple(public), tuple(private))


def imports(path: Path) -> tuple[tuple[int, str], ...]:
    """Line and dotted name of each module of the package that a module imports."""
    return uses(path).imports


def _imports(path: Path, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.split(".")[0] == "embedlog":
                yield node.lineno, alias.name
        return
    assert not node.level, f"{path}:{node.lineno}: a relative import"
    if (node.module or "").split(".")[0] == "embedlog":
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            is_module = inner in MODULES or alias.name in {"_core", "_rows"}
            yield node.lineno, inner if is_module else str(node.module)


@cache
def graph() -> dict[str, set[str]]:
    """The modules that each module imports."""
    return {
        name: {found for _, found in imports(path) if found in MODULES and found != name}
        for name, path in MODULES.items()
    }


def components(graph: dict[str, set[str]]) -> list[list[str]]:
    """The cycles of a graph: its strongly connected components of more than one module (Tarjan,
    without recursion).
    """
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    for root in graph:
        work: list[tuple[str, Iterator[str]]] = (
            [(root, iter(sorted(graph[root])))] if root not in order else []
        )
        while work:
            node, rest = work[-1]
            if node not in order:
                order[node] = low[node] = len(order)
                stack.append(node)
            for child in rest:
                if child not in order:
                    work.append((child, iter(sorted(graph[child]))))
                    break
                if child in stack:
                    low[node] = min(low[node], order[child])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    part = [stack.pop()]
                    while part[-1] != node:
                        part.append(stack.pop())
                    if len(part) > 1:
                        found.append(sorted(part))
    return sorted(found)


def test_components_are_found() -> None:
    small = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert components(small) == [["a", "b", "c"], ["d", "e"]]


def test_each_unit_is_listed_once_and_from_the_bottom_up() -> None:
    names = [unit["name"] for unit in DIRECTIONS["unit"]]
    assert len(set(names)) == len(names)
    assert {unit_of(name) for name in MODULES} == set(names)
    for number, name in enumerate(names):
        assert ALLOWED[name] <= set(names[:number]), name
    tuple(graphlib.TopologicalSorter(ALLOWED).static_order())


def test_imports_follow_the_directions() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {found}"
        for name, path in MODULES.items()
        for line, found in imports(path)
        if unit_of(found) not in ALLOWED[unit_of(name)] | {unit_of(name)}
        and f"{unit_of(name)} > {unit_of(found)}" not in OPEN_IMPORTS
    ]
    assert not wrong


EXPORTS: dict[str, frozenset[str]] = {
    unit["name"]: frozenset(unit["exports"]) for unit in DIRECTIONS["unit"] if "exports" in unit
}


@pytest.mark.parametrize("unit", EXPORTS)
def test_only_exported_modules_are_imported(unit: str) -> None:
    package = f"embedlog.{unit}"
    exported = {f"{package}.{name}" for name in EXPORTS[unit]}
    wrong = [
        f"{MODULES[name].relative_to(ROOT)}:{line} imports {found}"
        for name in MODULES
        if unit_of(name) != unit
        for line, found in imports(MODULES[name])
        if unit_of(found) == unit and found not in exported
    ]
    assert wrong == []
    described = MODULES[package].read_text()
    assert [name for name in EXPORTS[unit] if f"`{name}" not in described] == [], (
        "exports that the docstring does not name"
    )


def test_no_other_unit_uses_a_private_member_of_a_partition() -> None:
    private = {
        member.name
        for name in EXPORTS["partition"]
        for member in uses(MODULES[f"embedlog.partition.{name}"]).private_members
        if member.owner == "self"
    }
    assert {"_lock", "_reader", "_state", "_syncer"} <= private
    wrong = [
        f"{MODULES[name].relative_to(ROOT)}:{member.line}: {member.owner}.{member.name}"
        for name in MODULES
        if unit_of(name) != "partition"
        for member in uses(MODULES[name]).private_members
        if member.name in private and "partition" in member.owner.rpartition(".")[2]
    ]
    assert wrong == []


def test_no_open_import_is_left_in_the_list() -> None:
    present = {f"{unit_of(name)} > {unit_of(found)}" for name in MODULES for found in graph()[name]}
    assert present >= OPEN_IMPORTS, f"not needed any more: {sorted(OPEN_IMPORTS - present)}"


def test_no_cycle() -> None:
    found = [[name.removeprefix("embedlog.") for name in part] for part in components(graph())]
    assert found == sorted(OPEN_CYCLES)


def test_only_native_imports_the_c_library() -> None:
    importing = {
        unit_of(name)
        for name in MODULES
        for _, found in imports(MODULES[name])
        if found.endswith("._core")
    }
    assert importing == {"_native"}


@pytest.mark.parametrize("name", [name for name in MODULES if unit_of(name) in INTEGRATIONS])
def test_integrations_use_public_names_only(name: str) -> None:
    """Of other units an integration imports only `embedlog` and integrations, and of the former
    only names of `__all__`, also as `embedlog.NAME`. The verbs `dump` and `handover` use files
    through the units of their names, `import` opens those of others as the library opens its own,
    and terminals get text through `descriptions.display`.
    """
    own = f"embedlog.{unit_of(name)}"
    used = uses(MODULES[name]).public_names
    assert [f"line {line}: {found}" for line, found in used if found not in embedlog.__all__] == []
    others = {
        found
        for _, found in imports(MODULES[name])
        if found != own and not found.startswith(f"{own}.")
    }
    of_verbs = {
        "embedlog.tools.cli.verbs.directory.dump": ["tools.dump"],
        "embedlog.tools.cli.verbs.directory.handover": ["tools.handover"],
        "embedlog.tools.cli.transfer.received_files": ["errors", "storage"],
    }
    allowed = (*INTEGRATIONS, "descriptions.display", *of_verbs.get(name, []))
    assert {found for found in others if unit_of(found) not in allowed} <= {"embedlog"}


def test_an_import_loads_no_optional_dependency() -> None:
    """`import embedlog` needs no extra and loads no slow module of the standard library."""
    heavy = [
        "pyarrow",
        "cramjam",
        "rich",
        "click",
        "pyspark",
        "asyncio",
        "multiprocessing",
        "concurrent.futures",
    ]
    program = f"import sys, embedlog; print([name for name in {heavy} if name in sys.modules])"
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout.strip() == "[]"
