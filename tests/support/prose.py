"""Prose of the project: documents, docstrings and comments of Python, comments of C, with the lines where they begin."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.conftest import ROOT
from tests.support import python_source

C_COMMENT = re.compile(r"/\*(.*?)\*/", re.DOTALL)
DIRECTIVE = re.compile(r"#\s*(?:noqa|type:|fmt:|pragma|!)")
FENCE = re.compile(r"^(```.*?^```$|    .*?$)", re.DOTALL | re.MULTILINE)


CODE = re.compile(r"``.*?``|`[^`\n]*`")
RULE_ID = re.compile(r"[A-Z]+\d*-\d+\+?")
STAR = re.compile(r"\n[ \t]*\*+")
DOCTEST = re.compile(r"^\s*(?:>>>|\.\.\. ).*$", re.MULTILINE)
SENTENCE_END = re.compile(
    r"""
    (?: (?<=[.?!]) | (?<=[.?!][)"”`]) ) \s+ (?![a-z0-9])  # a full stop before a capital letter
    | \n\s*\n                                            # a paragraph
    | \n\s* (?= \S+\ {2,}\S )                            # a rule or a row of a table
    | \n\s* (?= (?:[-*]|\d+\.)\s )                       # an item of a list
    | (?<=\S)\ {3,}(?=\S) | \n(?=\s*\S+(?:\ \S+)*\ {3,}\S)  # columns of a table
    """,
    re.VERBOSE,
)


class Prose(NamedTuple):
    """A piece of text and its place."""

    path: Path
    line: int
    text: str

    def where(self, offset: int = 0) -> str:
        """Path and line of a character of the text."""
        return f"{self.path.relative_to(ROOT)}:{self.line + self.text.count(chr(10), 0, offset)}"


def sentences(each: Prose) -> list[str]:
    """The sentences of a docstring or a comment, without doctests."""
    return SENTENCE_END.split(DOCTEST.sub("", STAR.sub("\n", each.text)))


def word_count(sentence: str) -> int:
    """Words of a sentence; a piece of code is one word, and a rule id none."""
    words = CODE.sub("x", sentence).split()
    return sum(re.search(r"\w", word) is not None and RULE_ID.fullmatch(word) is None for word in words)


def documents() -> list[Path]:
    """All Markdown files that the project consists of."""
    folders = ("docs", "examples", "tests", "benchmarks", "embedlog")
    return [*sorted(ROOT.glob("*.md")), *sorted(path for folder in folders for path in (ROOT / folder).rglob("*.md"))]


def build_files() -> list[Path]:
    """The Makefile and the program of continuous integration: comments and printed lines, read as a whole."""
    return [ROOT / "Makefile", ROOT / ".ci" / "run"]


def of_document(path: Path, *, code: bool = True) -> Prose:
    """A document; without `code`, its fenced blocks are blank lines."""
    text = path.read_text()
    if not code:
        text = FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)
    return Prose(path, 1, text)


def of_python(path: Path, *, messages: bool = False) -> Iterator[Prose]:
    """Docstrings and comments of a Python module; with `messages` also its other strings with words."""
    source = python_source.read(path)
    comments = [each for each in source.comments if not DIRECTIVE.match(each.text)]
    for each in (*source.docstrings, *comments, *(source.messages if messages else ())):
        yield Prose(path, each.line, each.text)


def names(path: Path) -> Iterator[tuple[str, int]]:
    """The names that a Python module gives to classes, functions, parameters, variables and attributes, with their lines."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno


def of_c(path: Path) -> Iterator[Prose]:
    """Comments of a C file."""
    source = path.read_text()
    for found in C_COMMENT.finditer(source):
        yield Prose(path, source.count("\n", 0, found.start()) + 1, found[1])


def of_code(path: Path, *, messages: bool = False) -> Iterator[Prose]:
    """The prose of one file of code."""
    if path.suffix in (".py", ".pyi"):
        yield from of_python(path, messages=messages)
    else:
        yield from of_c(path)


def code(*folders: str) -> list[Path]:
    """Files of Python and C in folders of the project."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    return sorted(path for path in found if path.suffix in (".py", ".pyi", ".c", ".h") and "build" not in path.parts)
