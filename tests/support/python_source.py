"""The facts about a Python module that the rules of the project need: one parse and one walk for
all of them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
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
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")  # lists of statements of a node


class Text(NamedTuple):
    """A docstring or a comment in its file."""

    line: int
    end_line: int
    text: str


class PythonSource(NamedTuple):
    """The trees are not kept: they would slow each later garbage collection of the process."""

    has_purpose: bool  # the module has a docstring
    docstrings: tuple[Text, ...]
    comments: tuple[Text, ...]
    sleep_lines: tuple[int, ...]


@cache
def read(path: Path) -> PythonSource:
    """The facts about one module."""
    source = path.read_text()
    module = ast.parse(source)
    docstrings = []
    for node in _statements(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstrings += _docstring(node)
    # a walk over all expressions takes as long as the parse
    sleeps = tuple(_sleeps(module)) if "sleep" in source else ()
    return PythonSource(
        bool(_docstring(module)),
        tuple(map(_text, docstrings)),
        tuple(comments_in(source)),
        sleeps,
    )


def comments_in(source: str) -> Iterator[Text]:
    """The comments of a module, in order."""
    line = 1
    at = 0
    for found in STRING_OR_COMMENT.finditer(source):
        if found[1] is not None:
            line = line + source.count("\n", at, found.start())
            at = found.start()
            yield Text(line, line, found[1])


def _statements(module: ast.Module) -> Iterator[ast.AST]:
    """The module, its statements and the branches of statements."""
    left: list[ast.AST] = [module]
    while left:
        node = left.pop()
        yield node
        for name in BLOCKS:
            left += getattr(node, name, ())


def _sleeps(module: ast.Module) -> Iterator[int]:
    """The lines of the calls of `sleep`."""
    for node in ast.walk(module):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="time"), attr="sleep") | ast.Name(id="sleep")
            ):
                yield node.lineno


def _docstring(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
) -> list[ast.Constant]:
    match node.body[:1]:
        case [ast.Expr(value=ast.Constant(value=str()) as text)]:
            return [text]
    return []


def _text(node: ast.Constant) -> Text:
    return Text(node.lineno, node.end_lineno or node.lineno, str(node.value))
