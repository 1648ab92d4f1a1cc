"""Every mutant patches names that exist, is used by a test that must fail with it, and is listed in
the table.

The library itself contains no mutant.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from embedlog._native import system
from tests.support import mutants
from tests.support.mutants.registry import Patch

ROOT = Path(__file__).resolve().parent.parent.parent
TABLE = ROOT / "tests/faults/README.md"
ALL_PATCHES = [(name, patch) for name, patches in mutants.PATCHES.items() for patch in patches]


def parameters(function: object) -> list[str]:
    """Names of the parameters; those of ``*names`` with their star."""
    found = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    return ["*" if each.kind is each.VAR_POSITIONAL else each.name for each in found]


def function_of(original: object) -> object:
    if isinstance(original, property):
        return original.fget
    return original.__func__ if isinstance(original, staticmethod | classmethod) else original


@pytest.mark.parametrize(
    ("name", "patch"), ALL_PATCHES, ids=[f"{name}-{patch.path}" for name, patch in ALL_PATCHES]
)
def test_a_mutant_patches_what_exists_and_is_undone(name: str, patch: Patch) -> None:
    """A replacement has the parameters of the original after the original itself."""
    original = patch.original
    first, *rest = parameters(patch.replacement)
    fixed = rest[: rest.index("*")] if "*" in rest else rest
    theirs = parameters(function_of(original))
    assert first == "original"
    assert fixed == (theirs[: len(fixed)] if "*" in rest else theirs)
    with mutants.mutated(name):
        assert patch.original is not original
    assert patch.original is original


def test_every_mutant_is_used_by_a_test() -> None:
    texts = [
        path.read_text()
        for path in (ROOT / "tests").rglob("test_*.py")
        if path.name != Path(__file__).name
    ]
    unused = [name for name in mutants.names() if not any(f'"{name}"' in text for text in texts)]
    assert len(mutants.names()) >= 75
    assert not unused, f"no test uses {sorted(unused)}"


def test_the_table_of_mutants_is_complete() -> None:
    listed = set(re.findall(r"^\| `(\w+)`", TABLE.read_text(), re.MULTILINE))
    names = mutants.names()
    assert listed == names, f"missing: {sorted(names - listed)}, gone: {sorted(listed - names)}"


def test_the_kinds_of_calls_are_those_of_the_test_build() -> None:
    """The names in Python have the order of the enumeration `el_call`: else a fault is armed for
    another call.
    """
    header = (ROOT / "embedlog/_native/testing/faults.h").read_text()
    kinds = re.findall(r"EL_CALL_(\w+) = (\d+)", header)
    assert [(name.lower(), int(number)) for name, number in kinds] == [
        (name, number) for number, name in enumerate(system.CALLS)
    ]


def test_the_bits_are_those_of_the_test_build() -> None:
    """The enumeration `el_mutant` has a name for every bit."""
    header = (ROOT / "embedlog/_native/testing/mutants.h").read_text()
    bits = [int(number) for number in re.findall(r"EL_\w+ = (\d+)", header)]
    assert sorted(mutants.C_BITS.values()) == bits


def test_the_library_has_no_test_switches() -> None:
    """The build script names mutants, because it chooses the sources of the test build."""
    switch = re.compile(r"\bmutant|\bmutated|MUTANTS")
    modules = [
        path
        for path in (ROOT / "embedlog").rglob("*.py*")
        if path.suffix in (".py", ".pyi") and path.name != "build.py"
    ]
    assert [
        str(path.relative_to(ROOT)) for path in modules if switch.search(path.read_text())
    ] == []
