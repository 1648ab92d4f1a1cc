"""Shows bytes as text, as JSON, and in hexadecimal.

- At most `SHOWN_BYTES` are shown, and the rest is counted; JSON is checked up to `JSON_BYTES`.
- JSON is indented without a change of its tokens: numbers, escapes and repeated names stay as they
  were written.
- Every line is printable text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from embedlog import Record
from embedlog.descriptions.display.visible_text import visible
from embedlog.tools.console.model import text

NAMES = ("text", "json", "hex")
SHOWN_BYTES = 32 << 10
JSON_BYTES = 4 << 20
HEX_COLUMNS = 16
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}:,]|[^\s\[\]{}:,"]+')


def record_lines(record: Record[bytes, bytes], view: str) -> list[str]:
    """A record with all its fields."""
    kind = "LogAppendTime" if record.timestamp_type == 1 else "CreateTime"
    lines = [
        f"partition {record.partition}   offset {record.offset}   leader epoch "
        f"{record.leader_epoch}",
        f"{kind} {text.time(record.timestamp_ms)} ({record.timestamp_ms})",
        *_lines_of_part("key", record.key, view),
        *_lines_of_part("value", record.value, view),
    ]
    for name, value in record.headers:
        lines += _lines_of_part(f"header {visible(name)}", value, view)
    return lines


def _lines_of_part(title: str, data: bytes | None, view: str) -> Iterator[str]:
    if data is None:
        yield f"── {title}: null"
        return
    yield f"── {title}: {len(data):,} bytes"
    yield from lines_of(data, view)


def lines_of(data: bytes, view: str) -> Iterator[str]:
    """The lines of a key or value in a view. JSON is counted as it is indented."""
    if view == "json" and data:
        indented, reason = indent_json(data)
        if indented is None:
            yield f"(not JSON: {visible(reason)})"
        else:
            data = indented.encode("utf-8", "surrogatepass")
    shown = data[:SHOWN_BYTES]
    if view == "hex":
        yield from _hex_lines(shown)
    else:
        yield from _text_lines(shown)
    if len(data) > SHOWN_BYTES:
        yield f"… {len(data) - SHOWN_BYTES:,} more bytes are not shown"


def _text_lines(data: bytes) -> Iterator[str]:
    for part in text.decode(data).split("\n"):
        yield visible(part.replace("\t", "    "))


def _hex_lines(data: bytes) -> Iterator[str]:
    for start in range(0, len(data), HEX_COLUMNS):
        row = data[start : start + HEX_COLUMNS]
        codes = " ".join(f"{byte:02x}" for byte in row)
        signs = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        yield f"{start:08x}  {codes:<{3 * HEX_COLUMNS}} {signs}"


def indent_json(data: bytes) -> tuple[str | None, str]:
    """Indented JSON, or None and the reason. Only the white space differs from the input."""
    if len(data) > JSON_BYTES:
        return None, f"more than {text.size(JSON_BYTES)}"
    try:
        document = data.decode("utf-8")
        json.loads(document, parse_int=str, parse_float=str, parse_constant=_refuse)
    except UnicodeDecodeError:
        return None, "not UTF-8"
    except ValueError as error:
        return None, str(error)
    except RecursionError:
        return None, "nested too deeply"
    return _indent(document), ""


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is no number of JSON")


def _indent(document: str) -> str:
    parts: list[str] = []
    depth = 0
    before = ""
    for token in _TOKEN.findall(document):
        if token in "]}":
            depth -= 1
            parts.append(token if before in ("[", "{") else f"\n{'  ' * depth}{token}")
        else:
            if before in ("[", "{", ","):
                parts.append("\n" + "  " * depth)
            parts.append(": " if token == ":" else token)
            depth += token in "[{"
        before = token
    return "".join(parts)
