"""Each row of Kafka's tables about replication, and each rule of replicas, has a test or a
difference that is explained.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.replication_rows import RULES, TABLES, Row

DIFFERENCES = ROOT / "docs" / "differences.md"
PROTOCOL = ROOT / "docs" / "protocol.md"
ROWS = [(table, row) for table, rows in TABLES.items() for row in rows]


@cache
def functions(path: Path) -> frozenset[str]:
    """The names of the tests of a module."""
    return frozenset(
        node.name for node in ast.parse(path.read_bytes()).body if isinstance(node, ast.FunctionDef)
    )


def missing(tests: str) -> list[str]:
    """The named tests that do not exist."""
    found = []
    for each in tests.split():
        module, _, name = each.partition("::")
        path = ROOT / "tests" / f"{module}.py"
        if not path.is_file() or name not in functions(path):
            found.append(each)
    return found


def explained() -> set[str]:
    """The first cells of the tables about replicas in docs/differences.md that have a reason."""
    section = re.search(
        r"^## Replicas$(.*?)^## ", DIFFERENCES.read_text(), re.MULTILINE | re.DOTALL
    )
    assert section is not None
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section[1].splitlines()
        if line.startswith("|")
    ]
    return {cells[0] for cells in rows if all(cells) and not cells[0].startswith("---")}


@pytest.mark.parametrize(
    ("table", "row"), ROWS, ids=[f"{table}: {row.name}" for table, row in ROWS]
)
def test_each_row_has_a_test_or_a_difference(table: str, row: Row) -> None:
    assert row.tests or row.difference, "neither"
    assert missing(row.tests) == []
    if row.difference:
        assert any(cell.startswith(row.difference) for cell in explained()), row.difference


def test_each_rule_has_a_test() -> None:
    rules = re.findall(r"^\*\*((?:QUORUM|REPLICA)-\d+)\.\*\*", PROTOCOL.read_text(), re.MULTILINE)
    assert list(RULES) == rules
    assert {
        rule: found for rule, tests in RULES.items() if not tests or (found := missing(tests))
    } == {}
