"""Converts records to columns of text for CSV files, and back.

- Null is an empty cell without quotes; empty text has quotes.
- A value that is not UTF-8 is the text {"base64":"…"}. A value that begins so is written as base64
  itself, so that each text has one meaning.
- Headers are one list in JSON, as in the JSON lines: name, value, name, value.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any

from embedlog import InvalidRecordError
from embedlog.tools.cli.output import text_of

if TYPE_CHECKING:
    import pyarrow

MARK = '{"base64":"'


def text_columns_of(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    """A batch of a scan with texts instead of bytes, dictionaries and lists."""
    import pyarrow

    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if pyarrow.types.is_binary(field.type):
            columns.append(_texts_of(column))
        elif field.name == "headers":
            texts = [_text_of_headers(pairs) for pairs in column.to_pylist()]
            columns.append(pyarrow.array(texts, pyarrow.string()))
        elif pyarrow.types.is_dictionary(field.type):
            columns.append(column.cast(pyarrow.string()))
        else:
            columns.append(column)
    return pyarrow.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _texts_of(column: pyarrow.Array) -> pyarrow.Array:
    import pyarrow
    from pyarrow import compute

    try:
        texts = column.cast(pyarrow.string())
        if not compute.any(compute.starts_with(texts, MARK)).as_py():
            return texts
    except pyarrow.ArrowInvalid:
        pass
    return pyarrow.array([_text_of_value(value) for value in column.to_pylist()], pyarrow.string())


def _text_of_value(value: bytes | None) -> str | None:
    if value is None:
        return None
    text = text_of(value)
    if isinstance(text, str) and not text.startswith(MARK):
        return text
    return f'{MARK}{b64encode(value).decode("ascii")}"}}'


def _text_of_headers(pairs: list[dict[str, Any]]) -> str | None:
    flat = [part for pair in pairs for part in (pair["key"], text_of(pair["value"]))]
    return json.dumps(flat, ensure_ascii=False, separators=(",", ":")) if flat else None


# ---- from texts ----------------------------------------------------------------------------------


def bytes_column_of(column: pyarrow.Array) -> pyarrow.Array:
    """The bytes of a column of texts. Raises InvalidRecordError for a damaged base64 text."""
    import pyarrow
    from pyarrow import compute

    data = column.cast(pyarrow.binary())
    if not compute.any(compute.starts_with(data, MARK)).as_py():
        return data
    return pyarrow.array([_bytes_of_cell(text) for text in data.to_pylist()], pyarrow.binary())


def _bytes_of_cell(text: bytes | None) -> bytes | None:
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
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        return b64decode(value["base64"], validate=True)
    raise ValueError('expected text, null or {"base64": "…"}')


def headers_of(value: object) -> list[tuple[str, bytes | None]]:
    """The pairs of a flat list of names and values. Raises ValueError."""
    if not value and (value is None or isinstance(value, list)):
        return []
    problem = "headers: expected a list of names and values in turn"
    if not isinstance(value, list) or len(value) % 2:
        raise ValueError(problem)
    names = value[::2]
    contents = value[1::2]
    if not all(isinstance(name, str) for name in names):
        raise ValueError(problem)
    return [(name, bytes_of(content)) for name, content in zip(names, contents, strict=True)]
