"""Each file of tests/replicas/library runs all tests of another file again, with its fixtures.

`from … import *` leaves out what `__all__` does not name, and names with an underscore.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

REPEATING = sorted((ROOT / "tests" / "replicas" / "library").glob("test_*.py"))


def repeated_modules(tree: ast.Module) -> Iterator[str]:
    """The modules from which a file imports everything."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            yield str(node.module)


def imported_names(tree: ast.Module) -> set[str]:
    return {
        alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }


def defines_all(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        for node in tree.body
    )


def hidden_fixtures(tree: ast.Module) -> set[str]:
    """Fixtures that `import *` leaves out."""
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("_")
        and any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list)
    }


@pytest.mark.parametrize("path", REPEATING, ids=lambda path: path.name)
def test_a_file_that_repeats_another_one_has_all_its_tests_and_fixtures(path: Path) -> None:
    tree = ast.parse(path.read_text())
    own_names = imported_names(tree)
    test_count = 0
    for module in repeated_modules(tree):
        original = ROOT / (module.replace(".", "/") + ".py")
        text = original.read_text()
        original_tree = ast.parse(text)
        assert not defines_all(original_tree), (
            f"{original}: __all__ hides its tests: pass a fixture on by `import log as log`"
        )
        assert hidden_fixtures(original_tree) <= own_names, f"{original}: import them by name, too"
        test_count += text.count("def test_")
    assert test_count > 0, f"{path} runs no test"
