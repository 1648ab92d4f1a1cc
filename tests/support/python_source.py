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
LEAVES = (ast.expr_context, ast.operator, ast.cmpop, ast.boolop, ast.unaryop)


class Text(NamedTuple):
    """A docstring, a comment or another string in its file."""

    line: int
    end_line: int
    text: str


class PythonSource(NamedTuple):
    """The trees are not kept: they would slow each later garbage collection of the process."""

    has_purpose: bool  # the module has a docstring
    docstrings: tuple[Text, ...]
    comments: tuple[Text, ...]
    messages: tuple[Text, ...]  # other strings with a space
    sleep_lines: tuple[int, ...]


@cache
def read(path: Path) -> PythonSource:
    """The facts about one module."""
    source = path.read_text()
    module = ast.parse(source)
    docstrings = []
    strings = []
    sleeps = []
    for node in _nodes(module):
        match node:
            case ast.Constant(value=str()) if " " in node.value:
                strings.append(node)
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="time"), attr="sleep") | ast.Name(id="sleep")
            ):
                sleeps.append(node.lineno)
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                docstrings += _docstring(node)
    known = set(map(id, docstrings))
    return PythonSource(
        bool(_docstring(module)),
        tuple(map(_text, docstrings)),
        tuple(comments_in(source)),
        tuple(_text(node) for node in strings if id(node) not in known),
        tuple(sleeps),
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


def _nodes(module: ast.Module) -> Iterator[ast.AST]:
    """All nodes that have a place. `ast.walk` takes twice as long."""
    left: list[ast.AST] = [module]
    while left:
        node = left.pop()
        yield node
        for value in vars(node).values():
            if isinstance(value, list):
                left += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, LEAVES):
                left.append(value)


def _docstring(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
) -> list[ast.Constant]:
    match node.body[:1]:
        case [ast.Expr(value=ast.Constant(value=str()) as text)]:
            return [text]
    return []


def _text(node: ast.Constant) -> Text:
    return Text(node.lineno, node.end_lineno or node.lineno, str(node.value))
