"""Checks the arguments of one record, without its topic; computes its size.

- An argument of a wrong type, or a negative number, raises before the record has any effect.
"""

from __future__ import annotations

from typing import Any

from embedlog.errors import (
    InvalidTimestampError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from embedlog.producer.batch_send import HEADER_OVERHEAD, RECORD_OVERHEAD
from embedlog.types import ProducerRecord, RecordMetadata

# a value that was not given
OMITTED: Any = type("Omitted", (), {"__repr__": lambda self: "None", "__slots__": ()})()
HEADERS_OVERHEAD = 5  # the number of headers


def check_call(record: ProducerRecord) -> None:
    """Check the arguments of a call. Raises TypeError, UnknownTopicOrPartitionError,
    InvalidTimestampError.
    """
    if not isinstance(record.topic, str):
        raise TypeError(f"a topic is a str, not {type(record.topic).__name__}")
    for name in ("partition", "timestamp_ms"):
        number = getattr(record, name)
        if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
            hint = milliseconds_hint(number) if name == "timestamp_ms" else ""
            raise TypeError(f"{name} is an int or None, not {type(number).__name__}{hint}")
    if record.partition is not None and record.partition < 0:
        raise UnknownTopicOrPartitionError(
            "a partition's number is not negative", found=record.partition
        )
    if record.timestamp_ms is not None and not 0 <= record.timestamp_ms < 2**63:
        raise InvalidTimestampError(
            "a timestamp is not negative and fits in 64 bits", found=record.timestamp_ms
        )


def milliseconds_hint(time: object) -> str:
    """How a time that is no int of milliseconds becomes one, as the end of an error."""
    if hasattr(time, "timestamp"):
        return "; it is in milliseconds: int(moment.timestamp() * 1000)"
    return "; it is in milliseconds: int(time.time() * 1000)" if isinstance(time, float) else ""


def check_tombstone(key: object) -> None:
    """Check a call without the argument `value`. Raises TypeError without a key."""
    if key is None:
        raise TypeError(
            "send() has neither a value nor a key; a tombstone, which deletes a key, is "
            "send(topic, key=…)"
        )


def check_expected(expected_offset: object) -> None:
    """Check the argument of a call. Raises TypeError, OffsetOutOfRangeError."""
    if not isinstance(expected_offset, int) or isinstance(expected_offset, bool):
        raise TypeError(f"expected_offset is an int or None, not {type(expected_offset).__name__}")
    if expected_offset < 0:
        raise OffsetOutOfRangeError("an expected offset is not negative", found=expected_offset)


def unknown_metadata(record: ProducerRecord) -> RecordMetadata:
    """The metadata that interceptors receive for a record that was not written."""
    partition = -1 if record.partition is None else record.partition
    return RecordMetadata(
        record.topic, partition, -1, -1 if record.timestamp_ms is None else record.timestamp_ms
    )


def record_size(
    value: bytes | None, key: bytes | None, headers: tuple[tuple[str, bytes | None], ...]
) -> int:
    """Upper bound of the bytes of one record in a batch of its own."""
    pairs_size = sum(
        len(name.encode("utf-8")) + len(data or b"") + HEADER_OVERHEAD for name, data in headers
    )
    return RECORD_OVERHEAD + len(value or b"") + len(key or b"") + HEADERS_OVERHEAD + pairs_size
