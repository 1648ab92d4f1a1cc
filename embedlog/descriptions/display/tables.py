"""Makes HTML tables for notebooks.

Every text is input: it is escaped, made one line of printable characters, and cut at `CELL_MAX`
characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

CELL_MAX: Final = 200
ROWS_SHOWN: Final = 50


def to_one_line(text: str) -> str:
    """A text as one line of printable characters."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )


def show(data: object) -> str:
    """A value as one short line: UTF-8 as text, other bytes in hex, None as null."""
    if isinstance(data, bytes):
        text = _decode(data)
    elif data is None:
        text = "null"
    else:
        text = str(data)
    text = to_one_line(text[: CELL_MAX + 1])
    if len(text) > CELL_MAX:
        text = text[: CELL_MAX - 1] + "…"
    return text


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"0x{data[:CELL_MAX].hex()}"


def format_time(time_ms: int) -> str:
    """A time in UTC; the number if it is -1, which means none, or if no date has it."""
    from datetime import UTC, datetime  # late, as below

    if time_ms != -1:
        try:
            date = datetime.fromtimestamp(time_ms // 1000, UTC)
            return f"{date:%Y-%m-%d %H:%M:%S}.{time_ms % 1000:03}"
        except (OverflowError, ValueError, OSError):
            pass
    return str(time_ms)


def count_text(count: int, noun: str) -> str:
    """A count with its noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def partition_count_text(count: int, internal: int) -> str:
    """A count of partitions; those of internal topics are stated beside the others."""
    text = count_text(count - internal, "partition")
    if internal:
        text += f" and {internal} of internal topics"
    return text


def make_table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table; one without a head is a list."""
    # with all entities of HTML: an opening imports this module, and makes no table
    from html import escape

    def make_row(tag: str, cells: Iterable[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    heading = f"<thead>{make_row('th', head)}</thead>" if head else ""
    body = "".join(make_row("td", row) for row in rows)
    return f"<table><caption>{escape(title)}</caption>{heading}<tbody>{body}</tbody></table>"


def make_short_table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """An HTML table of any values, with the first rows only."""
    caption = show(title)
    if len(rows) > ROWS_SHOWN:
        caption += f", the first {ROWS_SHOWN} of {len(rows)}"
    return make_table(caption, head, [[show(cell) for cell in row] for row in rows[:ROWS_SHOWN]])


def record(fields: Mapping[str, object]) -> str:
    """An HTML table of the fields of one record, for `objects/record.c`. The time is also shown as a
    date.
    """
    title = f"record {fields['offset']} of {fields['topic']}-{fields['partition']}"
    shown_fields = dict(fields)
    time_ms = fields["timestamp_ms"]
    if isinstance(time_ms, int):
        date = format_time(time_ms)
        if date != str(time_ms):
            shown_fields["timestamp_ms"] = f"{time_ms} ({date} UTC)"
    return make_short_table(title, ("field", "value"), list(shown_fields.items()))
