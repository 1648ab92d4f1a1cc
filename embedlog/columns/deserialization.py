"""Contains the deserializers of one reader: they make records with objects of records with bytes.

DESERIALIZATION-1  a null stays None: the deserializer is not called
DESERIALIZATION-2  a failure names the record and its field, and the record can be passed over
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from embedlog._native._rows import Record
from embedlog.config.conversions import Convert, by_method
from embedlog.errors import SerializationError

if TYPE_CHECKING:
    from embedlog.config.callables import Deserializer

Adapted: TypeAlias = "_OfRecord | Callable[[bytes], Any]"


class Deserializers:
    """The deserializers of keys and values; None leaves the bytes. Threads: any, if the
    deserializers allow it.
    """

    __slots__ = ("_key", "_value", "present")

    def __init__(
        self, key: Deserializer[Any] | None = None, value: Deserializer[Any] | None = None
    ) -> None:
        self._key = _adapted("key", key)
        self._value = _adapted("value", value)
        self.present = key is not None or value is not None

    def record(self, r: Record[bytes, bytes]) -> Record[Any, Any]:
        """The record with the results of the deserializers. Raises SerializationError."""
        key = _applied(self._key, r.key, "key", r)
        value = _applied(self._value, r.value, "value", r)
        return Record(
            r.topic,
            r.partition,
            r.offset,
            r.timestamp_ms,
            r.timestamp_type,
            key,
            value,
            r.headers,
            r.leader_epoch,
        )


class _OfRecord(NamedTuple):
    """A deserializer that also gets topic and headers."""

    convert: Convert


def _adapted(field: str, given: Deserializer[Any] | None) -> Adapted | None:
    method = by_method(given, "deserialize")
    if method is not None:
        return _OfRecord(method)
    if given is not None and not callable(given):
        kind = type(given).__name__
        raise TypeError(
            f"{field}_deserializer is a callable of bytes, or an object with deserialize(), not "
            f"{kind}"
        )
    return given


def _applied(
    deserialize: Adapted | None, data: bytes | None, field: str, record: Record[Any, Any]
) -> Any:
    if deserialize is None or data is None:
        return data
    try:
        if isinstance(deserialize, _OfRecord):
            return deserialize.convert(record.topic, list(record.headers), data)
        return deserialize(data)
    except Exception as cause:
        raise SerializationError(
            f"the deserializer raised {cause!r}; seek past the record to continue",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            field=field,
        ) from cause
