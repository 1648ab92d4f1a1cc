"""Contains serializers for `key_serializer` and `value_serializer`, and the deserializers of
consumers.

Each is a plain function. None stays None, because a null is not a text. Serializers with schemas
are in `embedlog.schemas`.
"""

from __future__ import annotations

import json as _json
from typing import Any, overload

from embedlog.errors import MissingExtraError

__all__ = [
    "arrow",
    "from_arrow",
    "from_json",
    "from_msgpack",
    "from_string",
    "json",
    "msgpack",
    "string",
]


def string(text: str | None) -> bytes | None:
    """UTF-8 bytes of a text."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise TypeError(f"the string serializer takes str, not {type(text).__name__}")
    return text.encode("utf-8")


def json(value: Any) -> bytes | None:
    """Compact JSON in UTF-8."""
    if value is None:
        return None
    return _json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


@overload
def from_string(data: bytes) -> str: ...
@overload
def from_string(data: None) -> None: ...
def from_string(data: bytes | None) -> str | None:
    """The text of UTF-8 bytes: a `value_deserializer`."""
    return None if data is None else data.decode("utf-8")


def from_json(data: bytes | None) -> Any:
    """The value of a JSON text: a `value_deserializer`."""
    return None if data is None else _json.loads(data)


# ---- with libraries ------------------------------------------------------------------------------


def msgpack(value: Any) -> bytes | None:
    """MessagePack. Raises MissingExtraError without `msgpack`."""
    return None if value is None else bytes(_msgpack().packb(value))


def from_msgpack(data: bytes | None) -> Any:
    """The value of MessagePack bytes: a `value_deserializer`. Raises MissingExtraError without
    `msgpack`.
    """
    return None if data is None else _msgpack().unpackb(data)


def arrow(batch: Any) -> bytes | None:
    """One pyarrow RecordBatch or Table as an IPC stream with its schema. Raises MissingExtraError
    without pyarrow.
    """
    if batch is None:
        return None
    pyarrow = _pyarrow()
    if not isinstance(batch, (pyarrow.RecordBatch, pyarrow.Table)):
        raise TypeError(
            "the arrow serializer takes a RecordBatch or a Table of pyarrow, not "
            f"{type(batch).__name__}"
        )
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write(batch)
    return bytes(sink.getvalue())


def from_arrow(data: bytes | None) -> Any:
    """The pyarrow Table of an IPC stream, without a copy of its columns: a `value_deserializer`.

    Raises MissingExtraError without pyarrow.
    """
    return None if data is None else _pyarrow().ipc.open_stream(data).read_all()


def _msgpack() -> Any:
    try:
        import msgpack as library
    except ImportError as missing:
        raise MissingExtraError("MessagePack needs msgpack", extra="msgpack") from missing
    return library


def _pyarrow() -> Any:
    try:
        import pyarrow.ipc
    except ImportError as missing:
        raise MissingExtraError("Arrow values need pyarrow", extra="arrow") from missing
    return pyarrow
