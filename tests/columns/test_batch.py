"""Batches: columns that stay alive, records out of them, and Arrow consumers that take them as they
are.
"""

from __future__ import annotations

import dataclasses
import gc
import weakref
from typing import Any

import numpy as np
import pyarrow
import pytest

from embedlog._native import _rows
from embedlog.columns.arrow_export import ALL_COLUMNS, Layout, check_columns, schema_of
from embedlog.columns.batch import Batch
from embedlog.errors import ConfigError
from embedlog.format.record_columns import BytesColumn, Decoded, Headers
from tests.support.scan_schema import SCHEMA

KEYS = [None, b"", b"k\x00", None, b"key"]
VALUES = [b"one", None, b"", b"\xff\xfe", b"five"]
HEADERS = [(("a", b"1"), ("a", None)), (), (("ü", b""),), (), ()]


def decoded(names: list[bytes] | None = None) -> Decoded:
    """Five records from offset 100, with a gap, and three headers."""
    values = BytesColumn.of([b"1", None, b""])
    headers = Headers(
        np.array([0, 2, 2, 3, 3, 3], np.int32),
        BytesColumn.of(names or [b"a", b"a", "ü".encode()]),
        values,
    )
    return Decoded(
        5,
        np.array([100, 101, 102, 110, 111], np.int64),
        np.array([1_700_000_000_000, 5, -1, 7, 8], np.int64),
        np.array([0, 0, 0, 1, 1], np.int8),
        np.array([3, 3, 3, 4, 4], np.int32),
        BytesColumn.of(KEYS),
        BytesColumn.of(VALUES),
        headers,
    )


def batch() -> Batch:
    return Batch("events", 2, decoded())


def test_a_batch_says_what_it_is() -> None:
    made = batch()
    assert (made.topic, made.partition, made.num_rows, len(made), made.base_offset) == (
        "events",
        2,
        5,
        5,
        100,
    )
    assert repr(made) == "Batch(events-2, 5 records from offset 100)"


def test_columns_are_read_only_views() -> None:
    made = batch()
    assert made.offsets.tolist() == [100, 101, 102, 110, 111]
    assert list(made.keys) == KEYS
    assert list(made.values) == VALUES
    for view in (made.offsets, made.timestamps_ms, made.timestamp_types, made.leader_epochs):
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1


def test_records_are_the_same_rows() -> None:
    records = batch().records()
    assert [(r.topic, r.partition) for r in records] == [("events", 2)] * 5
    assert [r.offset for r in records] == [100, 101, 102, 110, 111]
    assert [r.key for r in records] == KEYS
    assert [r.value for r in records] == VALUES
    assert [r.headers for r in records] == HEADERS
    assert [(r.timestamp_type, r.leader_epoch) for r in records] == [
        (0, 3),
        (0, 3),
        (0, 3),
        (1, 4),
        (1, 4),
    ]


def test_pyarrow_takes_a_batch() -> None:
    table = pyarrow.record_batch(batch())
    table.validate(full=True)
    assert table.schema.equals(SCHEMA)
    assert table["topic"].to_pylist() == ["events"] * 5
    assert table["partition"].to_pylist() == [2] * 5
    assert table["key"].to_pylist() == KEYS
    assert table["value"].to_pylist() == VALUES
    assert table["headers"].to_pylist() == [
        [{"key": k, "value": v} for k, v in row] for row in HEADERS
    ]
    assert table["timestamp"].cast(pyarrow.int64()).to_pylist() == [1_700_000_000_000, 5, -1, 7, 8]


def test_no_buffer_is_copied_and_each_lives_as_long_as_its_user() -> None:
    rows = decoded()
    alive = weakref.ref(rows.offsets)
    address = rows.offsets.ctypes.data
    table = pyarrow.record_batch(Batch("events", 0, rows))
    del rows
    gc.collect()
    column = table["offset"]
    assert column.buffers()[1].address == address
    del table
    assert alive() is not None
    del column
    gc.collect()
    assert alive() is None


def test_polars_takes_a_batch() -> None:
    polars = pytest.importorskip("polars", reason="needs polars")
    frame = polars.DataFrame(pyarrow.table(pyarrow.record_batch(batch())))
    assert frame["value"].to_list() == VALUES


def test_header_names_that_are_no_utf8_do_not_reach_arrow() -> None:
    names = [b"\xff", b"a", b"\xc3"]
    table = pyarrow.record_batch(Batch("events", 0, decoded(names)))
    table.validate(full=True)
    assert [each["key"] for row in table["headers"].to_pylist() for each in row] == [
        "\ufffd",
        "a",
        "\ufffd",
    ]


def test_a_name_split_inside_a_character_does_not_reach_arrow() -> None:
    table = pyarrow.record_batch(Batch("events", 0, decoded([b"\xc3", b"\xbc", b"x"])))
    table.validate(full=True)


def test_without_headers_every_list_is_empty() -> None:
    bare = dataclasses.replace(decoded(), headers=None)
    table = pyarrow.record_batch(Batch("events", 0, bare))
    table.validate(full=True)
    assert table["headers"].to_pylist() == [[]] * 5
    assert Batch("events", 0, bare).headers is None


def test_a_bitmap_that_begins_inside_a_byte() -> None:
    column = BytesColumn.of([b"x", None, b"y"])
    assert column.validity is not None
    shifted = np.packbits(
        np.r_[np.zeros(3, np.uint8), np.unpackbits(column.validity, bitorder="little")[:3]],
        bitorder="little",
    )
    rows = decoded()
    three = BytesColumn(column.data, column.offsets, shifted, 3)
    some = Decoded(3, rows.offsets[:3], None, None, None, None, three, None)  # type: ignore[index]
    layout = Layout("t", 0, ("value", "key"))
    got = pyarrow.RecordBatch._import_from_c_capsule(
        _rows.arrow_schema(schema_of(("value", "key"))),
        _rows.arrow_array(layout.describe_rows(some)),
    )
    got.validate(full=True)
    assert got.to_pydict() == {"value": [b"x", None, b"y"], "key": [None, None, None]}


@pytest.mark.parametrize(
    ("columns", "message"),
    [(["offsets"], "unknown column"), ([], "at least one"), (["key", "key"], "none twice")],
)
def test_wrong_columns_are_named(columns: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_columns(columns)


def test_one_text_is_no_list_of_columns() -> None:
    with pytest.raises(TypeError, match="list of names"):
        check_columns("value")


def test_all_columns_are_those_of_the_api() -> None:
    assert tuple(SCHEMA.names) == ALL_COLUMNS == check_columns(None)
    assert pyarrow.schema(batch()).equals(SCHEMA)


# ---- the capsules themselves -----------------------------------------------------------------------------------------

ONE = schema_of(("offset",))


def numbers(count: int) -> Any:
    return Layout("t", 0, ("offset",)).describe_rows(
        Decoded(count, np.arange(count), None, None, None, None, None, None)
    )


@pytest.mark.parametrize(
    "wrong", [None, (), ("+s", "", True, ()), (1, "", True, (), None), ("+s", "", True, [], None)]
)
def test_a_wrong_schema_is_a_type_error(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        _rows.arrow_schema(wrong)


@pytest.mark.parametrize(
    "wrong",
    [None, (1, 0, 0, (), ()), (1, 0, 0, (object(),), (), None), (1, 0, 0, (None,), ((1,),), None)],
)
def test_a_wrong_array_is_a_type_error_and_holds_nothing(wrong: Any) -> None:
    with pytest.raises(TypeError):
        _rows.arrow_array(wrong)


def test_capsules_that_nobody_takes_free_what_they_hold() -> None:
    array = np.arange(5)
    alive = weakref.ref(array)
    capsule = _rows.arrow_array((5, 0, 0, (None, array), (), None))
    del array
    assert alive() is not None
    del capsule
    gc.collect()
    assert alive() is None


def test_a_stream_ends_and_is_not_asked_again() -> None:
    asked = []

    def following() -> Any:
        asked.append(1)
        return numbers(3) if len(asked) < 3 else None

    reader = pyarrow.RecordBatchReader._import_from_c_capsule(
        _rows.arrow_array_stream(ONE, following)
    )
    assert [each.num_rows for each in reader] == [3, 3]
    assert len(asked) == 3


def test_an_error_in_a_stream_reaches_its_consumer_with_its_message() -> None:
    def following() -> Any:
        raise ConfigError("not today", expected="sun", found="rain")

    reader = pyarrow.RecordBatchReader._import_from_c_capsule(
        _rows.arrow_array_stream(ONE, following)
    )
    with pytest.raises(OSError, match="ConfigError: not today: expected sun, found rain"):
        reader.read_all()


def test_what_is_no_array_is_an_error_of_the_stream() -> None:
    reader = pyarrow.RecordBatchReader._import_from_c_capsule(
        _rows.arrow_array_stream(ONE, lambda: 7)
    )
    with pytest.raises(OSError, match="a tuple of six"):
        reader.read_all()
