"""Prints results: JSON, and tables that fit into a terminal.

A table in a pipe or a file has no limit of width, no colours and no rules. JSON has one document
with stable keys; bytes that are not UTF-8 are {"base64": …}.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from embedlog.tools.cli.tables import table_lines


def text_of(data: bytes | None) -> str | dict[str, str] | None:
    """Bytes as a value of JSON."""
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        from base64 import b64encode

        return {"base64": b64encode(data).decode("ascii")}


def print_document(value: Any) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows below the names of their columns; None is "-", and columns of numbers are aligned
    at the right.
    """
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in table_lines(columns, [*rows], width):
        click.echo(line)


def size_of(count: int) -> str:
    """A number of bytes with three digits and a binary unit; below the next unit with four."""
    value = float(count)
    unit = 0
    while value >= 1024 and unit < 5:
        value = value / 1024
        unit = unit + 1
    if unit == 0:
        return f"{count} B"
    number = f"{value:.3g}" if value < 999.5 else f"{value:.0f}"  # else it has an exponent
    return f"{number} {'KMGTP'[unit - 1]}iB"
