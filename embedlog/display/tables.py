"""Makes HTML tables for notebooks.

Every text is input: it is escaped, made one line of printable characters, and cut at `CELL_MAX`
characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

CELL_MAX: Final = 200
ROWS_SHOWN: Final = 50


def line(text: str) -> str:
    """A text as one line of printable characters."""
    return (
        text
        if text.isprintable()
        else "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
    )


def shown(data: object) -> str:
    """A value as one short line: UTF-8 as text, other bytes in hex, None as null."""
    text = _decoded(data) if isinstance(data, bytes) else "null" if data is None else str(data)
    text = line(text[: CELL_MAX + 1])
    return text if len(text) <= CELL_MAX else text[: CELL_MAX - 1] + "…"


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"0x{data[:CELL_MAX].hex()}"


def time(time_ms: int) -> str:
    """A time in UTC; the number if it is -1, which means none, or if no date has it."""
    from datetime import UTC, datetime  # late, as below

    if time_ms != -1:
        try:
            return f"{datetime.fromtimestamp(time_ms // 1000, UTC):%Y-%m-%d %H:%M:%S}.{time_ms % 1000:03}"
        except (OverflowError, ValueError, OSError):
            pass
    return str(time_ms)


def counted(count: int, noun: str) -> str:
    """A count with its noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def counted_partitions(count: int, internal: int) -> str:
    """A count of partitions; those of internal topics are stated beside the others."""
    own = counted(count - internal, "partition")
    return f"{own} and {internal} of internal topics" if internal else own


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table; one without a head is a list."""
    # with all entities of HTML: an opening imports this module, and makes no table
    from html import escape

    def row(tag: str, cells: Iterable[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    heading = f"<thead>{row('th', head)}</thead>" if head else ""
    body = "".join(row("td", each) for each in rows)
    return f"<table><caption>{escape(title)}</caption>{heading}<tbody>{body}</tbody></table>"


def shortened(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """An HTML table of any values, with the first rows only."""
    more = f", the first {ROWS_SHOWN} of {len(rows)}" if len(rows) > ROWS_SHOWN else ""
    return table(
        shown(title) + more, head, [[shown(cell) for cell in row] for row in rows[:ROWS_SHOWN]]
    )


def record(fields: Mapping[str, object]) -> str:
    """An HTML table of the fields of one record. The time is also shown as a date."""
    title = f"record {fields['offset']} of {fields['topic']}-{fields['partition']}"
    shown_fields = dict(fields)
    time_ms = fields["timestamp_ms"]
    if isinstance(time_ms, int) and (date := time(time_ms)) != str(time_ms):
        shown_fields["timestamp_ms"] = f"{time_ms} ({date} UTC)"
    return shortened(title, ("field", "value"), list(shown_fields.items()))
