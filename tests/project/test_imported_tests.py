"""A test file is imported by no other file: what several need is in tests/support."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

TESTS = ROOT / "tests"
# each file there runs a whole test file again, on a set of directories: `from … import *`
AGAIN = TESTS / "replicas" / "library"
FILES = sorted(
    path
    for folder in ("tests", "docs", "benchmarks", "release")
    for path in (ROOT / folder).rglob("*.py")
)


def dotted_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


TEST_FILES = {dotted_name(path): path for path in TESTS.rglob("test_*.py")}


def imported_test_files(path: Path, text: str) -> Iterator[tuple[int, Path]]:
    """Line and file of each import of a test file."""
    if "test_" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
            if path.parent == AGAIN and [alias.name for alias in node.names] == ["*"]:
                continue
        for name in names:
            if name in TEST_FILES:
                yield node.lineno, TEST_FILES[name]


def messages(path: Path, text: str) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line} imports {imported.relative_to(ROOT)}: what both need "
        "belongs in tests/support"
        for line, imported in imported_test_files(path, text)
    ]


def test_no_test_file_is_imported() -> None:
    assert [message for path in FILES for message in messages(path, path.read_text())] == []


@pytest.mark.parametrize(
    "line",
    [
        "from tests.test_log import helper",
        "from tests.test_log import *",
        "from tests import test_log",
        "import tests.test_log as other",
    ],
)
def test_an_import_of_a_test_file_is_found(line: str) -> None:
    (message,) = messages(TESTS / "test_topic.py", f"def test() -> None:\n    {line}\n")
    assert message.startswith("tests/test_topic.py:2 imports tests/test_log.py")


def test_only_a_whole_test_file_may_run_again() -> None:
    whole = "from tests.test_log import *"
    assert messages(AGAIN / "test_log.py", whole) == []
    assert messages(AGAIN / "test_log.py", "from tests.test_log import helper") != []
