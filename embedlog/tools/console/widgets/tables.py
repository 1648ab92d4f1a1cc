"""Contains `Section`, a title and a table that shows grids and keeps its cursor.

- A cell is plain text with visible control characters: no text of a log controls the terminal.
- The cursor stays on the row with its key; if the row is gone, at its number.
- An observation with the same rows changes only the cells that differ.
"""

from __future__ import annotations

from typing import Any, ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import DataTable, Static
from textual.widgets.data_table import ColumnKey

from embedlog.descriptions.display.visible_text import visible
from embedlog.tools.console.model.grid import Grid, Row


def plain_text(text: str, *, right: bool = False, style: str = "") -> Text:
    """A text without markup."""
    return Text(
        visible(text), style=style, justify="right" if right else "left", no_wrap=True, end=""
    )


class GridTable(DataTable[Text]):
    """A table of rows with a cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("home", "scroll_top", "first row", show=False),
        Binding("end", "scroll_bottom", "last row", show=False),
    ]

    def __init__(self, **facts: Any) -> None:
        super().__init__(cursor_type="row", zebra_stripes=True, **facts)
        self._grid = Grid("", ())

    def put(self, grid: Grid, *, top: bool = False) -> None:
        """Show these rows instead of the current ones; `top` moves the cursor to the first one."""
        before = self._grid
        self._grid = grid
        if grid.columns != before.columns:
            self.clear(columns=True)
            for name in grid.columns:
                self.add_column(plain_text(name, right=name in grid.right, style="bold"), key=name)
            before = Grid("", grid.columns)
        if [row.key for row in before.rows] == [row.key for row in grid.rows]:
            self._change_cells(before, grid)
        else:
            self._replace(before, grid)
        if top and grid.rows:
            self.move_cursor(row=0, animate=False)
            self.scroll_to(y=0, animate=False)

    def _change_cells(self, before: Grid, grid: Grid) -> None:
        for old, new in zip(before.rows, grid.rows, strict=True):
            for name, was, cell in zip(grid.columns, old.cells, new.cells, strict=True):
                if was != cell:
                    text = plain_text(cell, right=name in grid.right)
                    # a new width is computed from all rows
                    wider = text.cell_len > self._width(name)
                    self.update_cell(new.key, name, text, update_width=wider)

    def _width(self, name: str) -> int:
        """The width of a column."""
        return int(self.columns[ColumnKey(name)].content_width)

    def _replace(self, before: Grid, grid: Grid) -> None:
        cursor_row = self.cursor_row
        scroll_y = self.scroll_y
        key = before.rows[cursor_row].key if 0 <= cursor_row < len(before.rows) else None
        self.clear()
        for row in grid.rows:
            cells = (
                plain_text(cell, right=name in grid.right)
                for name, cell in zip(grid.columns, row.cells, strict=True)
            )
            self.add_row(*cells, key=row.key)
        # now: a line that is drawn before the next idle moment stays as it is
        for number, name in enumerate(grid.columns):
            widest = max((cell_len(visible(row.cells[number])) for row in grid.rows), default=0)
            self.columns[ColumnKey(name)].content_width = max(widest, cell_len(name))
        new_cursor_row = max(min(cursor_row, len(grid.rows) - 1), 0)
        for number, row in enumerate(grid.rows):
            if row.key == key:
                new_cursor_row = number
        if grid.rows:
            self.move_cursor(row=new_cursor_row, animate=False)
            self.scroll_to(y=scroll_y, animate=False)

    @property
    def selected(self) -> Row | None:
        """The row of the cursor."""
        rows = self._grid.rows
        return rows[self.cursor_row] if 0 <= self.cursor_row < len(rows) else None

    @property
    def grid(self) -> Grid:
        """The current rows."""
        return self._grid


class Section(Vertical):
    """A title above a table."""

    def __init__(self, **facts: Any) -> None:
        super().__init__(**facts)
        self.title = Static("reading …", classes="title", markup=False)
        self.table = GridTable()
        self._shown_title: str | None = None

    def compose(self) -> ComposeResult:
        yield self.title
        yield self.table

    def show_state(self, text: str) -> None:
        """Show a text instead of the title, until the next grid."""
        self._shown_title = None
        self.title.update(plain_text(text))

    def put(self, grid: Grid, *, top: bool = False) -> None:
        """Show a grid; `top` moves the cursor to the first row."""
        if grid.title != self._shown_title:
            self._shown_title = grid.title
            self.title.update(plain_text(grid.title))
        self.table.put(grid, top=top)
