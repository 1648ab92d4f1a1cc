"""Every rule that can be switched off is switched off by some test that must fail then; the table says which."""

from __future__ import annotations

import re
from pathlib import Path

from embedlog._native import calls

ROOT = Path(__file__).resolve().parent.parent.parent
TABLE = ROOT / "tests/faults/README.md"


def switches() -> set[str]:
    """Names of all mutants: those that C knows and those that Python asks for."""
    asked = (re.findall(r'mutated\(\s*"(\w+)"', path.read_text()) for path in (ROOT / "embedlog").rglob("*.py"))
    return set(calls._C_MUTANTS).union(*asked)


def test_every_mutant_is_used_by_a_test() -> None:
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if path.name != Path(__file__).name]
    unused = [name for name in switches() if not any(f'"{name}"' in text for text in texts)]
    assert len(switches()) >= 20
    assert not unused, f"nothing switches off {sorted(unused)}"


def test_the_table_of_mutants_is_whole() -> None:
    listed = set(re.findall(r"^\| `(\w+)`", TABLE.read_text(), re.MULTILINE))
    assert listed == switches(), f"missing: {sorted(switches() - listed)}, gone: {sorted(listed - switches())}"
