"""Checks and converts the fields of one record before it is sent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from embedlog._native.lazy_numpy import np
from embedlog.errors import InvalidRecordError

SERIALIZERS = {"value": "value_serializer", "key": "key_serializer"}


def bytes_of(value: object, field: str) -> bytes | None:
    """The value as bytes. The TypeError names a suitable serializer."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    kind = type(value).__name__
    if field not in SERIALIZERS:
        raise TypeError(f"a {field} is bytes or None, not {kind}")
    raise TypeError(f"a {field} is bytes, not {kind}: {_conversion_hint(value, field)}")


def _conversion_hint(value: object, field: str) -> str:
    """The hint for the conversion of the value to bytes."""
    from embedlog.columns import arrow_import  # for an error only

    if isinstance(value, np.ndarray) or arrow_import.has_arrow_interface(value):
        return "send_batch() takes columns and tables, each row is a record"
    if isinstance(value, str):
        return (
            f"encode it, or give the producer a {SERIALIZERS[field]} such as "
            "embedlog.serializers.string"
        )
    if isinstance(value, (dict, list, tuple, bool, int, float)):
        return (
            f"encode it, or give the producer a {SERIALIZERS[field]} such as "
            "embedlog.serializers.json"
        )
    return f"encode it, or give the producer a {SERIALIZERS[field]}: a callable that returns bytes"


def normalize_headers(headers: Any) -> tuple[tuple[str, bytes | None], ...]:
    """Headers as a tuple of (str, bytes or None). Raises TypeError, InvalidRecordError for a name
    that UTF-8 cannot encode.
    """
    if headers is None:
        return ()
    pairs = []
    if isinstance(headers, (str, bytes, dict)) or not isinstance(headers, Iterable):
        hint = ""
        if isinstance(headers, int):
            hint = "; partition= and timestamp_ms= are keywords"
        raise TypeError(
            f"headers are pairs of (str, bytes or None), not {type(headers).__name__}{hint}"
        )
    for pair in headers:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError(f"a header is a pair of (str, bytes or None), not {pair!r}")
        try:
            pair[0].encode()
        except UnicodeEncodeError:
            raise InvalidRecordError(
                "the name of a header",
                expected="text without lone surrogates",
                found=ascii(pair[0])[:100],
            ) from None
        pairs.append((str(pair[0]), bytes_of(pair[1], "header")))
    return tuple(pairs)
