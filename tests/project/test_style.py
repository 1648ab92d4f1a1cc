"""The rules of the project that a program can check: lines, words, and comments that name only
existing things.

A rule is one test over all files: a test for each file costs more than the rule.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

import embedlog
from tests.conftest import ROOT
from tests.support import python_source

pytestmark = pytest.mark.xdist_group("tests/project/prose")  # the worker that reads all texts

LINE_COLUMNS_MAX = 130
C_LINE_COLUMNS_MAX = 100

OURS = ("embedlog", "pyspark_embedlog", "tests", "benchmarks", "docs", "examples", "release")
PYTHON = [ROOT / "setup.py", *sorted(path for top in OURS for path in (ROOT / top).rglob("*.py"))]
C = [path for path in sorted((ROOT / "embedlog/_native").rglob("*.[ch]")) if path.name != "_core.c"]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
TEXT = [*PYTHON, *C, ROOT / "Makefile", ROOT / "pyproject.toml", *PAGES]

# spelled in pieces, so that this file does not hold them
UNFINISHED = re.compile(
    "|".join([r"\bTO" r"DO\b", r"\bFIX" r"ME\b", r"\bX" r"XX\b", r"\bplace" r"holder\b"])
)
FOREIGN = re.compile("|".join([r"/wo" r"rk/", r"/tmp/pl" r"an", r"/ro" r"ot\b"]))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def broken(rule: Callable[[Path], object], paths: Iterable[Path]) -> dict[str, object]:
    """What a rule finds in each file, without the files in which it finds nothing."""
    return {name(path): found for path in paths if (found := rule(path))}


# ---- lines -----------------------------------------------------------------------------------------------------------


def wrong_lines(path: Path) -> list[int | str]:
    text = path.read_text()
    # tables and links cannot be broken
    columns = {".md": 10_000, ".c": C_LINE_COLUMNS_MAX, ".h": C_LINE_COLUMNS_MAX}
    limit = columns.get(path.suffix, LINE_COLUMNS_MAX)
    found: list[int | str] = [
        number for number, line in enumerate(text.splitlines(), 1) if len(line) > limit
    ]
    found += ["its end"] * (not text.endswith("\n") or text.endswith("\n\n"))
    return found + ["a tab"] * ("\t" in text and path.name != "Makefile")


def test_lines_fit_and_end_well() -> None:
    assert broken(wrong_lines, TEXT) == {}


# ---- words -----------------------------------------------------------------------------------------------------------


def test_nothing_is_left_for_later_and_no_machine_is_named() -> None:
    def unwanted(path: Path) -> list[str]:
        return [
            line
            for line in path.read_text().splitlines()
            if UNFINISHED.search(line) or FOREIGN.search(line)
        ]

    assert broken(unwanted, TEXT) == {}


def test_a_module_begins_with_its_purpose() -> None:
    assert broken(lambda path: not python_source.read(path).has_purpose, PYTHON) == {}


def test_no_test_sleeps() -> None:
    """A sleeping test is slow where the machine is fast and wrong where it is slow: wait for the
    event itself.
    """
    assert (
        broken(
            lambda path: python_source.read(path).sleep_lines,
            sorted((ROOT / "tests").rglob("test_*.py")),
        )
        == {}
    )


def test_the_front_door_is_sorted_and_true() -> None:
    assert embedlog.__all__ == sorted(embedlog.__all__)
    assert [each for each in embedlog.__all__ if not hasattr(embedlog, each)] == []


# ---- comments --------------------------------------------------------------------------------------------------------

WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
QUOTED = re.compile(r"(?<!`)`([A-Za-z_][A-Za-z0-9_.]*)(?:\([^`]*\))?`(?!`)")


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring and comment."""
    for each in python_source.read(path).docstrings:
        yield each.line, each.text
    for each in python_source.read(path).comments:
        yield each.line, each.text


def words_of_code(path: Path) -> set[str]:
    """Every word of a module outside its docstrings and comments. The rest of a line after a # in a
    text is missing.
    """
    lines = path.read_text().splitlines()
    for each in python_source.read(path).docstrings:
        lines[each.line - 1 : each.end_line] = [""] * (each.end_line - each.line + 1)
    return {word for line in lines for word in WORD.findall(line.partition("#")[0])}


def vocabulary() -> set[str]:
    words = {word for path in PYTHON for word in words_of_code(path)}
    for path in C:
        words.update(
            WORD.findall(re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.DOTALL))
        )
    words.update(path.stem for path in [*PYTHON, *C])
    return words | set(dir(__builtins__)) | set(sys.stdlib_module_names)


def is_known_otherwise(quoted: str, vocabulary: set[str]) -> bool:
    """An option in Kafka's spelling, or a literal such as an ISO duration."""
    return (
        quoted.replace(".", "_") in vocabulary
        or re.fullmatch(r"[A-Z]+[0-9][A-Z0-9]*", quoted) is not None
    )


def test_comments_name_only_what_exists() -> None:
    """Every name quoted in a comment is a word of the code somewhere: a renaming includes the
    comments.
    """
    known = vocabulary()

    def drifted(path: Path) -> set[str]:
        return {
            f"line {line}: {quoted}"
            for line, text in comments(path)
            for quoted in QUOTED.findall(text)
            if not (
                all(part in known for part in WORD.findall(quoted))
                or is_known_otherwise(quoted, known)
            )
        }

    assert broken(drifted, sorted((ROOT / "embedlog").rglob("*.py"))) == {}
