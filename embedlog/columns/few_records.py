"""Makes columns of few records, for a scan of few offsets: it takes them from one verified batch,
as a consumer does.

The columns are those that the decoder makes of the same records; the decoder is the reference
implementation.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

from embedlog._native._rows import Record
from embedlog._native.lazy_numpy import np
from embedlog.format.record_columns import BytesColumn, Decoded, Headers


def decoded_of(records: Sequence[Record[Any, Any]], columns: Collection[str]) -> Decoded:
    """The requested columns of these records."""

    def numbers(column: str, attribute: str, kind: Any) -> Any:
        if column not in columns:
            return None
        return np.array([getattr(record, attribute) for record in records], kind)

    return Decoded(
        len(records),
        numbers("offset", "offset", np.int64),
        numbers("timestamp", "timestamp_ms", np.int64),
        numbers("timestamp_type", "timestamp_type", np.int8),
        numbers("leader_epoch", "leader_epoch", np.int32),
        _bytes_column_of([record.key for record in records]) if "key" in columns else None,
        _bytes_column_of([record.value for record in records]) if "value" in columns else None,
        _headers_of(records) if "headers" in columns else None,
    )


def _bytes_column_of(items: Sequence[bytes | None]) -> BytesColumn:
    data = b"".join([item or b"" for item in items])
    sizes = [len(item or b"") for item in items]
    validity = None
    if None in items:
        validity = np.packbits([item is not None for item in items], bitorder="little")
    return BytesColumn(np.frombuffer(data, np.uint8), _offsets_of(sizes), validity)


@cache
def _empty_columns() -> tuple[BytesColumn, BytesColumn]:
    return _bytes_column_of(()), _bytes_column_of(())


def _offsets_of(sizes: Sequence[int]) -> Any:
    return np.array([0, *accumulate(sizes)], np.int32)


def _headers_of(records: Sequence[Record[Any, Any]]) -> Headers:
    headers = [header for record in records for header in record.headers]
    if not headers:
        return Headers(np.zeros(len(records) + 1, np.int32), *_empty_columns())
    names = _bytes_column_of([name.encode() for name, _ in headers])
    values = _bytes_column_of([value for _, value in headers])
    return Headers(_offsets_of([len(record.headers) for record in records]), names, values)
