"""Prints results: JSON, tables for terminals, and plain columns for other outputs.

OUTPUT-1  plain columns have no colours and no lines; rich draws tables on terminals only
OUTPUT-2  JSON has one document with stable keys; bytes that are not UTF-8 are {"base64": …}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click


def text_of(data: bytes | None) -> str | dict[str, str] | None:
    """Bytes as a value of JSON."""
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        from base64 import b64encode

        return {"base64": b64encode(data).decode("ascii")}


def document(value: Any) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows below the names of their columns; None is "-", and columns of numbers are aligned at the right."""
    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    numbers = [
        bool(cells) and all(row[index].lstrip("-").isdigit() or row[index] == "-" for row in cells)
        for index in range(len(columns))
    ]
    if sys.stdout.isatty():
        _drawn(columns, cells, numbers)
        return
    lines = [[name.upper() for name in columns], *cells]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        parts = (
            cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(line, widths, numbers, strict=True)
        )
        click.echo("  ".join(parts).rstrip())


def _drawn(columns: Sequence[str], cells: list[list[str]], numbers: list[bool]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, header_style="bold", pad_edge=False)
    for name, right in zip(columns, numbers, strict=True):
        drawn.add_column(name.upper(), justify="right" if right else "left", overflow="fold")
    for row in cells:
        drawn.add_row(*(Text(cell) for cell in row))
    Console().print(drawn)


def size_of(count: int) -> str:
    """A number of bytes with three digits and a binary unit."""
    value, unit = float(count), 0
    while value >= 1024 and unit < 5:
        value, unit = value / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{value:.3g} {'KMGTP'[unit - 1]}iB"
