"""Makes columns of few records, for a scan of few offsets: it takes them from one verified batch,
as a consumer does.

FEWRECORDS-1  the columns are those that the decoder makes of the same records; the decoder is the
    reference implementation
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
        return (
            np.array([getattr(each, attribute) for each in records], kind)
            if column in columns
            else None
        )

    return Decoded(
        len(records),
        numbers("offset", "offset", np.int64),
        numbers("timestamp", "timestamp_ms", np.int64),
        numbers("timestamp_type", "timestamp_type", np.int8),
        numbers("leader_epoch", "leader_epoch", np.int32),
        _texts([each.key for each in records]) if "key" in columns else None,
        _texts([each.value for each in records]) if "value" in columns else None,
        _headers(records) if "headers" in columns else None,
    )


def _texts(items: Sequence[bytes | None]) -> BytesColumn:
    data = b"".join([item or b"" for item in items])
    sizes = [len(item or b"") for item in items]
    validity = (
        np.packbits([item is not None for item in items], bitorder="little")
        if None in items
        else None
    )
    return BytesColumn(np.frombuffer(data, np.uint8), _starts(sizes), validity)


@cache
def _no_texts() -> tuple[BytesColumn, BytesColumn]:
    return _texts(()), _texts(())


def _starts(sizes: Sequence[int]) -> Any:
    return np.array([0, *accumulate(sizes)], np.int32)


def _headers(records: Sequence[Record[Any, Any]]) -> Headers:
    every = [header for each in records for header in each.headers]
    if not every:
        return Headers(np.zeros(len(records) + 1, np.int32), *_no_texts())
    names = _texts([name.encode() for name, _ in every])
    values = _texts([value for _, value in every])
    return Headers(_starts([len(each.headers) for each in records]), names, values)
