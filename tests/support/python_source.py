"""The facts about a Python module that the rules of the project need, found in its text: a parse
takes ten times as long.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

# A string or a comment. The module `tokenize` takes ten times as long. Python 3.11 has no quotes of
# a string within that string.
STRING_OR_COMMENT = re.compile(
    r"""
    \"{3} (?: [^"\\] | \\. | "(?!"") )* \"{3}
    | '{3} (?: [^'\\] | \\. | '(?!'') )* '{3}
    | " (?: [^"\\\n] | \\. )* "
    | ' (?: [^'\\\n] | \\. )* '
    | (\#[^\n]*)
    """,
    re.VERBOSE | re.DOTALL,
)
QUOTES = '"""'  # of each docstring


class Text(NamedTuple):
    """A docstring or a comment in its file."""

    line: int
    end_line: int
    text: str


class PythonSource(NamedTuple):
    """The facts about one module."""

    has_purpose: bool  # the module has a docstring
    docstrings: tuple[Text, ...]
    comments: tuple[Text, ...]
    sleep_lines: tuple[int, ...]


class _Token(NamedTuple):
    """A string or a comment, and what is before it."""

    line: int
    found: re.Match[str]
    prefix: str | None  # of a string that begins its line; None within a line
    before: str  # the last character of code before it; empty for the first string of a module


@cache
def read(path: Path) -> PythonSource:
    """The facts about one module."""
    source = path.read_text()
    tokens = list(_tokens(source))
    docstrings = [token for token in tokens if _is_docstring(token)]
    sleeps = tuple(_sleeps(ast.parse(source))) if "sleep" in source else ()
    return PythonSource(
        any(not token.before for token in docstrings),
        tuple(map(_text, docstrings)),
        tuple(_comments(tokens)),
        sleeps,
    )


def comments_in(source: str) -> Iterator[Text]:
    """The comments of a module, in order."""
    return _comments(_tokens(source))


def _comments(tokens: Iterable[_Token]) -> Iterator[Text]:
    for token in tokens:
        if token.found[1] is not None:
            yield Text(token.line, token.line, token.found[1])


def _tokens(source: str) -> Iterator[_Token]:
    line = 1
    at = 0
    before = ""
    for found in STRING_OR_COMMENT.finditer(source):
        gap = source[at : found.start()]
        line += gap.count("\n")
        code, newline, prefix = gap.rpartition("\n")
        begins_line = (newline or at == 0) and prefix.strip() in ("", "r")
        code = code.rstrip() if begins_line else gap.rstrip()
        before = code[-1:] or before
        yield _Token(line, found, prefix.strip() if begins_line else None, before)
        if found[1] is None:
            before = found[0][-1]
        line += found[0].count("\n")
        at = found.end()


def _is_docstring(token: _Token) -> bool:
    """The first statement of a module, a class or a function: no other string begins a line after a
    colon.
    """
    is_first = token.prefix is not None and token.before in ("", ":")
    return is_first and token.found[0].startswith(QUOTES)


def _text(token: _Token) -> Text:
    literal = token.found[0]
    text = literal[len(QUOTES) : -len(QUOTES)]
    if token.prefix == "" and "\\" in text:
        text = ast.literal_eval(literal)
    return Text(token.line, token.line + literal.count("\n"), text)


def _sleeps(module: ast.Module) -> Iterator[int]:
    """The lines of the calls of `sleep`."""
    for node in ast.walk(module):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="time"), attr="sleep") | ast.Name(id="sleep")
            ):
                yield node.lineno
