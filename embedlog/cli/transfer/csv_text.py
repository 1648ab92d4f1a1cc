"""Converts records to columns of text for CSV files, and back.

CSVTEXT-1  null is an empty cell without quotes; empty text has quotes
CSVTEXT-2  a value that is not UTF-8 is the text {"base64":"…"}. A value that begins so is written
    as base64 itself, so that each text has one meaning
CSVTEXT-3  headers are one list in JSON, as in the JSON lines: name, value, name, value
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any

from embedlog import InvalidRecordError
from embedlog.cli.output import text_of

if TYPE_CHECKING:
    import pyarrow

MARK = '{"base64":"'


def text_columns(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    """A batch of a scan with texts instead of bytes, dictionaries and lists."""
    import pyarrow

    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if pyarrow.types.is_binary(field.type):
            columns.append(_texts(column))
        elif field.name == "headers":
            texts = [_header_text(each) for each in column.to_pylist()]
            columns.append(pyarrow.array(texts, pyarrow.string()))
        else:
            columns.append(
                column.cast(pyarrow.string()) if pyarrow.types.is_dictionary(field.type) else column
            )
    return pyarrow.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _texts(column: pyarrow.Array) -> pyarrow.Array:
    import pyarrow
    from pyarrow import compute

    try:
        texts = column.cast(pyarrow.string())
        if not compute.any(compute.starts_with(texts, MARK)).as_py():
            return texts
    except pyarrow.ArrowInvalid:
        pass
    return pyarrow.array([_text(each) for each in column.to_pylist()], pyarrow.string())


def _text(value: bytes | None) -> str | None:
    found = text_of(value)
    if isinstance(found, str) and not found.startswith(MARK):
        return found
    return None if value is None else f'{MARK}{b64encode(value).decode("ascii")}"}}'


def _header_text(pairs: list[dict[str, Any]]) -> str | None:
    flat = [part for pair in pairs for part in (pair["key"], text_of(pair["value"]))]
    return json.dumps(flat, ensure_ascii=False, separators=(",", ":")) if flat else None


# ---- from texts ----------------------------------------------------------------------------------


def bytes_column(column: pyarrow.Array) -> pyarrow.Array:
    """The bytes of a column of texts. Raises InvalidRecordError for a damaged base64 text."""
    import pyarrow
    from pyarrow import compute

    data = column.cast(pyarrow.binary())
    if not compute.any(compute.starts_with(data, MARK)).as_py():
        return data
    return pyarrow.array([_bytes(each) for each in data.to_pylist()], pyarrow.binary())


def _bytes(text: bytes | None) -> bytes | None:
    if text is None or not text.startswith(MARK.encode()):
        return text
    try:
        value = bytes_of(json.loads(text))
        assert value is not None, "the text begins with a mark"
        return value
    except (ValueError, RecursionError) as problem:
        raise InvalidRecordError(
            "a cell", expected='{"base64":"…"}', found=repr(text[:100])
        ) from problem


def bytes_of(value: object) -> bytes | None:
    """The bytes of a value of JSON: text, {"base64": …} or null. Raises ValueError."""
    if value is None or isinstance(value, str):
        return value if value is None else value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        return b64decode(value["base64"], validate=True)
    raise ValueError('expected text, null or {"base64": "…"}')


def headers_of(value: object) -> list[tuple[str, bytes | None]]:
    """The pairs of a flat list of names and values. Raises ValueError."""
    if not value and (value is None or isinstance(value, list)):
        return []
    if (
        not isinstance(value, list)
        or len(value) % 2
        or not all(isinstance(name, str) for name in value[::2])
    ):
        raise ValueError("headers: expected a list of names and values in turn")
    return [(name, bytes_of(each)) for name, each in zip(value[::2], value[1::2], strict=True)]
