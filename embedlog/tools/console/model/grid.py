"""Defines `Grid`, the rows that a table of the console shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

ROWS_MAX = 1000  # in a table: more would delay the keyboard


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table; `value` is what a key of the keyboard acts on.

    `key` is unique in its grid, and is the same in later observations of the same thing.
    """

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

    def select_matching(self, text: str) -> Grid:
        """The rows that contain a text in any case, up to `ROWS_MAX`; the title has the number of
        the others.
        """
        needle = text.casefold()
        rows = self.rows
        if needle:
            rows = tuple(
                row for row in rows if any(needle in cell.casefold() for cell in row.cells)
            )
        title = self.title
        if len(rows) > ROWS_MAX:
            title += f", the first {ROWS_MAX:,} of {len(rows):,} rows: / limits them"
        return Grid(title, self.columns, rows[:ROWS_MAX], self.right)


def make_grid(title: str, columns: str, rows: Iterable[Row], right: str = "") -> Grid:
    """A grid; names of columns are separated by `|`."""
    right_columns = frozenset(right.split("|")) if right else frozenset()
    return Grid(title, tuple(columns.split("|")), tuple(rows), right_columns)


def make_row(key: object, cells: Sequence[object], value: Any = None) -> Row:
    """A row; None is an unknown value."""
    return Row(str(key), tuple("-" if cell is None else str(cell) for cell in cells), value)
