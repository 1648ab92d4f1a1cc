"""Contains serializers for `key_serializer` and `value_serializer`, and the deserializers of consumers.

Each is a plain function. None stays None, because a null is not a text.
"""

from __future__ import annotations

import json as _json
from typing import Any, overload

__all__ = ["from_json", "from_string", "json", "string"]


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
