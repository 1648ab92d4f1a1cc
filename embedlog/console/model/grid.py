"""Defines `Grid`, the rows that a table of the console shows.

GRID-1  the key of a row is unique in its grid, and is the same in later observations of the same
    thing
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

ROWS_MAX = 1000  # in a table: more would delay the keyboard


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table; `value` is what a key of the keyboard acts on."""

    key: str
    cells: tuple[str, ...]
    value: Any = None


@dataclass(frozen=True, slots=True)
class Grid:
    """A table with a title. The columns in `right` are aligned at the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...] = ()
    right: frozenset[str] = frozenset()

    def matching(self, text: str) -> Grid:
        """The rows that contain a text in any case, up to `ROWS_MAX`; the title has the number of
        the others.
        """
        wanted = text.casefold()
        rows = tuple(
            row
            for row in self.rows
            if not wanted or any(wanted in cell.casefold() for cell in row.cells)
        )
        more = (
            f", the first {ROWS_MAX:,} of {len(rows):,} rows: / limits them"
            if len(rows) > ROWS_MAX
            else ""
        )
        return Grid(self.title + more, self.columns, rows[:ROWS_MAX], self.right)


def grid(title: str, columns: str, rows: Iterable[Row], right: str = "") -> Grid:
    """A grid; names of columns are separated by `|`."""
    return Grid(
        title, tuple(columns.split("|")), tuple(rows), frozenset(filter(None, right.split("|")))
    )


def row(key: object, cells: Sequence[object], value: Any = None) -> Row:
    """A row; None is an unknown value."""
    return Row(str(key), tuple("-" if cell is None else str(cell) for cell in cells), value)
