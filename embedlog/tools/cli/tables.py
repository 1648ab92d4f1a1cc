"""Lays out tables of texts: plain columns of any length, or lines that fit into a terminal.

A number and a name of a column are never cut. A row is one line if that fits; for it, long texts
are cut with … in the middle, because the ends of names differ most. If it does not fit, the row
continues in the next line, indented, with whole columns: the head has the same lines. A column of
sentences that is wider than the terminal continues at a space. Cells are one line of printable
characters, since a line is a row.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from unicodedata import category, east_asian_width

from embedlog.descriptions.display.visible_text import visible

GAP = 2
INDENT = 2
TEXT_COLUMNS_MIN = 30  # a text that is not longer is not cut for a line: dates, sizes, short names

_NUMBER = re.compile(r"-?[0-9]+")


def columns_of(text: str) -> int:
    """The columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    return sum(_columns_of_character(character) for character in text)


def _columns_of_character(character: str) -> int:
    if category(character) in ("Mn", "Me"):  # marks on the character before
        return 0
    return 2 if east_asian_width(character) in "WF" else 1


def table_lines(
    head: Sequence[str], rows: Sequence[Sequence[object]], width: int | None
) -> list[str]:
    """The lines of a table; `width` is that of the terminal, None for no limit. None in a cell is
    shown as "-".
    """
    cells = [["-" if cell is None else visible(str(cell)) for cell in row] for row in rows]
    table = _Table([name.upper() for name in head], cells)
    one_block = [[*range(len(head))]]
    if width is None or _total(table.natural) <= width:
        return table.lines(one_block, table.natural, width)
    if _total(table.least) <= width:
        return table.lines(one_block, _shrink(table.natural, table.least, width), width)
    blocks = _fold(table.least, width)
    widths = [*table.least]
    for number, block in enumerate(blocks):
        room = width - (INDENT if number else 0)
        natural = [table.natural[index] for index in block]
        least = [table.least[index] for index in block]
        for index, columns in zip(block, _shrink(natural, least, room), strict=True):
            widths[index] = columns
    return table.lines(blocks, widths, width)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _shrink(natural: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """The natural widths, the widest made smaller until all fit into the room, none below its least
    width.
    """
    widths = [*natural]
    excess = _total(widths) - room
    while excess > 0:
        spare = [index for index in range(len(widths)) if widths[index] > least[index]]
        if not spare:
            break
        widest = max(spare, key=lambda index: widths[index])
        widths[widest] -= 1
        excess -= 1
    return widths


def _fold(least: Sequence[int], width: int) -> list[list[int]]:
    """Numbers of columns for each line of a row: as many as fit."""
    blocks: list[list[int]] = [[]]
    for index in range(len(least)):
        room = width - (INDENT if len(blocks) > 1 else 0)
        if blocks[-1] and _total([least[number] for number in [*blocks[-1], index]]) > room:
            blocks.append([])
        blocks[-1].append(index)
    return blocks


class _Table:
    """Cells with the widths of their columns: the natural one, and the least one at which no number
    and no name is cut.
    """

    def __init__(self, head: list[str], cells: list[list[str]]) -> None:
        self.head = head
        self.cells = cells
        self.natural: list[int] = []
        self.least: list[int] = []
        self.is_number: list[bool] = []
        for index, name in enumerate(head):
            texts = [row[index] for row in cells]
            longest = max((columns_of(text) for text in texts), default=0)
            natural = max(columns_of(name), longest)
            has_sentences = any(
                " " in text and columns_of(text) > TEXT_COLUMNS_MIN for text in texts
            )
            is_number = bool(texts) and all(
                _NUMBER.fullmatch(text) or text == "-" for text in texts
            )
            whole = is_number or has_sentences
            self.natural.append(natural)
            self.least.append(
                natural if whole else min(natural, max(columns_of(name), TEXT_COLUMNS_MIN))
            )
            self.is_number.append(is_number)

    def lines(self, blocks: list[list[int]], widths: Sequence[int], width: int | None) -> list[str]:
        lines: list[str] = []
        for row in [self.head, *self.cells]:
            for number, block in enumerate(blocks):
                indent = " " * (INDENT if number else 0)
                room = None if width is None else width - len(indent)
                for line in self._block_lines(row, block, widths, room):
                    text = line.rstrip()
                    if text or len(blocks) == 1:
                        lines.append(indent + text)
        return lines

    def _block_lines(
        self, row: list[str], block: list[int], widths: Sequence[int], room: int | None
    ) -> list[str]:
        if len(block) == 1 and room is not None:
            cell = row[block[0]]
            if widths[block[0]] > room and " " in cell:
                words = " ".join(shorten(word, room) for word in cell.split())
                return textwrap.wrap(words, room, break_on_hyphens=False)
        limits = [widths[index] if room is None else min(widths[index], room) for index in block]
        parts = []
        for index, limit in zip(block, limits, strict=True):
            text = row[index] if self.is_number[index] else shorten(row[index], limit)
            blanks = " " * (limit - columns_of(text))
            parts.append(blanks + text if self.is_number[index] else text + blanks)
        return [(" " * GAP).join(parts)]


def shorten(text: str, columns: int) -> str:
    """The text, with … in the place of its middle if it takes more columns."""
    if columns_of(text) <= columns:
        return text
    beginning = _beginning_of(text, columns // 2)
    end = _beginning_of(text[::-1], columns - 1 - columns_of(beginning))[::-1]
    return f"{beginning}…{end}"


def _beginning_of(text: str, columns: int) -> str:
    """As many characters of the begin as the columns have room for."""
    used = 0
    for position, character in enumerate(text):
        used += _columns_of_character(character)
        if used > columns:
            return text[:position]
    return text
