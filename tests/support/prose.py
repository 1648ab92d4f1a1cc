"""Prose of the project: documents, docstrings and comments of Python, comments of C, with the lines
where they begin.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.conftest import ROOT
from tests.support import python_source

C_COMMENT = re.compile(r"/\*(.*?)\*/", re.DOTALL)
DIRECTIVE = re.compile(r"#\s*(?:noqa|type:|fmt:|pragma|!)")
FENCE = re.compile(r"^(```.*?^```$|    .*?$)", re.DOTALL | re.MULTILINE)


class Prose(NamedTuple):
    """A piece of text and its place."""

    path: Path
    line: int
    text: str

    def where(self, offset: int = 0) -> str:
        """Path and line of a character of the text."""
        return f"{self.path.relative_to(ROOT)}:{self.line + self.text.count(chr(10), 0, offset)}"


def documents() -> list[Path]:
    """All Markdown files that the project consists of."""
    folders = ("docs", "examples", "tests", "benchmarks", "embedlog")
    return [
        *sorted(ROOT.glob("*.md")),
        *sorted(path for folder in folders for path in (ROOT / folder).rglob("*.md")),
    ]


def build_files() -> list[Path]:
    """The Makefile and the program of continuous integration: comments and printed lines, read as a
    whole.
    """
    return [ROOT / "Makefile", ROOT / ".ci" / "run"]


def of_document(path: Path, *, code: bool = True) -> Prose:
    """A document; without `code`, its fenced blocks are blank lines."""
    text = path.read_text()
    if not code:
        text = FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)
    return Prose(path, 1, text)


def of_python(path: Path) -> Iterator[Prose]:
    """Docstrings and comments of a Python module."""
    source = python_source.read(path)
    comments = [each for each in source.comments if not DIRECTIVE.match(each.text)]
    for each in (*source.docstrings, *comments):
        yield Prose(path, each.line, each.text)


def of_c(path: Path) -> Iterator[Prose]:
    """Comments of a C file."""
    source = path.read_text()
    for found in C_COMMENT.finditer(source):
        yield Prose(path, source.count("\n", 0, found.start()) + 1, found[1])


def of_code(path: Path) -> Iterator[Prose]:
    """The prose of one file of code."""
    if path.suffix in (".py", ".pyi"):
        yield from of_python(path)
    else:
        yield from of_c(path)


def code(*folders: str) -> list[Path]:
    """Files of Python and C in folders of the project."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    return sorted(
        path
        for path in found
        if path.suffix in (".py", ".pyi", ".c", ".h") and "build" not in path.parts
    )
