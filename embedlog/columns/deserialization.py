"""Contains the deserializers of one reader: they make records with objects of records with bytes.

- A null stays None: the deserializer is not called.
- A failure names the record and its field, and the record can be passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from embedlog._native._rows import Record
from embedlog.config.conversions import Convert, by_method
from embedlog.errors import SerializationError

if TYPE_CHECKING:
    from embedlog.config.callables import Deserializer

AnyDeserializer: TypeAlias = "_OfRecord | Callable[[bytes], Any]"


class Deserializers:
    """The deserializers of keys and values; None leaves the bytes. Threads: any, if the
    deserializers allow it.
    """

    __slots__ = ("_key", "_value", "is_needed")

    def __init__(
        self, key: Deserializer[Any] | None = None, value: Deserializer[Any] | None = None
    ) -> None:
        self._key = _adapt("key", key)
        self._value = _adapt("value", value)
        self.is_needed = key is not None or value is not None

    def record(self, record: Record[bytes, bytes]) -> Record[Any, Any]:
        """The record with the results of the deserializers. Raises SerializationError."""
        return Record(
            record.topic,
            record.partition,
            record.offset,
            record.timestamp_ms,
            record.timestamp_type,
            _apply(self._key, record.key, "key", record),
            _apply(self._value, record.value, "value", record),
            record.headers,
            record.leader_epoch,
        )


class _OfRecord(NamedTuple):
    """A deserializer that also gets topic and headers."""

    convert: Convert


def _adapt(field: str, deserializer: Deserializer[Any] | None) -> AnyDeserializer | None:
    method = by_method(deserializer, "deserialize")
    if method is not None:
        return _OfRecord(method)
    if deserializer is not None and not callable(deserializer):
        kind = type(deserializer).__name__
        raise TypeError(
            f"{field}_deserializer is a callable of bytes, or an object with deserialize(), not "
            f"{kind}"
        )
    return deserializer


def _apply(
    deserialize: AnyDeserializer | None, data: bytes | None, field: str, record: Record[Any, Any]
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
