"""Rows of Python objects: records and lists of bytes, each against a reference implementation in
plain Python.
"""

from __future__ import annotations

import copy
import gc
import pickle
import random
import weakref
from array import array
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from embedlog._native import _rows
from embedlog._native._rows import Record
from embedlog.format.record_columns import BytesColumn
from tests.support.producer_helpers import run_program

# ---- records ------------------------------------------------------------------------------------


def record(**other: Any) -> Record:
    facts = {
        "topic": "t",
        "partition": 1,
        "offset": 5,
        "timestamp_ms": 9,
        "timestamp_type": 0,
        "key": b"k",
        "value": None,
    }
    return Record(**(facts | other))


def test_a_record_is_read_only_and_compares_by_content() -> None:
    one = record(headers=(("h", None),), leader_epoch=4)
    assert one == record(headers=[("h", None)], leader_epoch=4)
    assert hash(one) == hash(record(headers=(("h", None),), leader_epoch=4))
    assert one != record(leader_epoch=4)
    assert one != "record"
    assert (one.topic, one.partition, one.offset, one.timestamp_ms, one.timestamp_type) == (
        "t",
        1,
        5,
        9,
        0,
    )
    assert (one.key, one.value, one.headers, one.leader_epoch) == (b"k", None, (("h", None),), 4)
    for name in ("offset", "value", "headers"):
        with pytest.raises(AttributeError):
            setattr(one, name, 1)
    with pytest.raises(TypeError):
        assert one < record()  # type: ignore[operator]


def test_a_record_tells_and_survives_copies() -> None:
    one = record(headers=(("h", b"1"),))
    assert repr(one) == (
        "Record(topic='t', partition=1, offset=5, timestamp_ms=9, timestamp_type=0, "
        "key=b'k', value=None, headers=(('h', b'1'),), leader_epoch=-1)"
    )
    assert pickle.loads(pickle.dumps(one)) == one == copy.copy(one)


def test_a_record_of_unhashable_values_is_hashable() -> None:
    assert len({record(value={"a": 1}), record(value={"a": 1})}) == 1


def random_items(rng: random.Random, count: int, nulls: bool = True) -> list[bytes | None]:
    return [
        None if nulls and rng.random() < 0.2 else rng.randbytes(rng.choice([0, 1, 7, 300]))
        for _ in range(count)
    ]


def parts(column: BytesColumn) -> tuple[Any, Any, Any, int]:
    return (column.data, column.offsets, column.validity, column.validity_offset)


def test_records_out_of_columns_are_those_of_the_slow_way(rng: random.Random) -> None:
    count = 200
    keys = random_items(rng, count)
    values = random_items(rng, count)
    counts = [rng.choice([0, 0, 1, 3]) for _ in range(count)]
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    names = [f"h{number}é".encode() for number in range(starts[-1])]
    header_values = random_items(rng, int(starts[-1]))
    offsets = np.arange(count, dtype=np.int64) * 2
    columns = (offsets, offsets + 5, np.full(count, 1, np.int8), np.full(count, 6, np.int32))
    headers = (starts, parts(BytesColumn.of(names)), parts(BytesColumn.of(header_values)))
    start, stop = sorted(rng.sample(range(count + 1), 2))
    made = _rows.records_from_columns(
        "t",
        2,
        *columns,
        parts(BytesColumn.of(keys)),
        parts(BytesColumn.of(values)),
        headers,
        start,
        stop,
    )
    for row, one in enumerate(made, start):
        pairs = tuple(zip([name.decode() for name in names], header_values, strict=True))[
            starts[row] : starts[row + 1]
        ]
        assert one == Record("t", 2, row * 2, row * 2 + 5, 1, keys[row], values[row], pairs, 6)
    assert len(made) == stop - start


def test_absent_columns_are_nulls() -> None:
    numbers = np.zeros(2, np.int64)
    made = _rows.records_from_columns(
        "t",
        0,
        numbers,
        numbers,
        np.zeros(2, np.int8),
        np.zeros(2, np.int32),
        None,
        None,
        None,
        0,
        2,
    )
    assert [(one.key, one.value, one.headers) for one in made] == [(None, None, ())] * 2


@pytest.mark.parametrize(
    "offsets",
    [
        array("i", [0, 9, 2]),
        array("i", [-1, 1, 2]),
        array("q", [0, 1, 2**40]),
        array("i", [2, 1, 0]),
    ],
    ids=["falling", "negative", "far outside", "backwards"],
)
def test_offsets_that_leave_the_data_are_refused(offsets: Any) -> None:
    numbers = np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="outside its data"):
        _rows.records_from_columns(
            "t",
            0,
            numbers,
            numbers,
            np.zeros(2, np.int8),
            np.zeros(2, np.int32),
            None,
            (b"xy", offsets),
            None,
            0,
            2,
        )


def test_columns_that_are_too_short_are_refused() -> None:
    numbers = np.zeros(2, np.int64)
    small = np.zeros(2, np.int32)
    good: list[Any] = [
        "t",
        0,
        numbers,
        numbers,
        np.zeros(2, np.int8),
        small,
        None,
        (b"", array("i", [0, 0, 0])),
        None,
        0,
        2,
    ]
    for place, short in [
        (2, numbers[:1]),
        (3, numbers[:1]),
        (4, np.zeros(1, np.int8)),
        (5, small[:1]),
        (7, (b"", array("i", [0]))),
        (9, -1),
        (10, 3),
    ]:
        bad = [*good[:place], short, *good[place + 1 :]]
        with pytest.raises(ValueError):
            _rows.records_from_columns(*bad)
    with pytest.raises(ValueError, match="validity"):
        _rows.records_from_columns(*good[:7], (b"", array("i", [0, 0, 0]), b"\xff", 7), *good[8:])
    assert len(_rows.records_from_columns(*good)) == 2


def test_headers_outside_their_columns_are_refused() -> None:
    numbers = np.zeros(1, np.int64)
    facts: Any = ("t", 0, numbers, numbers, np.zeros(1, np.int8), np.zeros(1, np.int32), None, None)
    column = parts(BytesColumn.of([b"a"]))
    for starts in ([0, 2], [1, 0], [-1, 1]):
        with pytest.raises(ValueError, match="headers of row"):
            _rows.records_from_columns(*facts, (array("i", starts), column, column), 0, 1)
    with pytest.raises(ValueError, match="key is null"):
        _rows.records_from_columns(
            *facts, (array("i", [0, 1]), parts(BytesColumn.of([None])), column), 0, 1
        )


# ---- lists of bytes -----------------------------------------------------------------------------


def test_a_list_becomes_the_column_of_the_slow_way(rng: random.Random) -> None:
    items = random_items(rng, 500)
    own, total, largest, nulls = _rows.list_take(items)
    assert own == items
    assert not gc.is_tracked(own)
    assert (total, largest) == (
        sum(len(item or b"") for item in items),
        max(len(item or b"") for item in items),
    )
    assert nulls == items.count(None)
    seen: list[bytes | None] = []
    while len(seen) < len(items):
        data = np.empty(max(largest, rng.randrange(1000)), np.uint8)
        offsets = np.empty(1 + rng.randrange(1, 50), np.int32)
        bits = np.empty(7, np.uint8) if nulls else None
        end, size = _rows.column_fill(own, len(seen), data, offsets, bits)
        assert end > len(seen)
        assert own[len(seen) : end] == [None] * (end - len(seen)), (
            "they are released where they were taken"
        )
        seen += BytesColumn(data[:size], offsets[: end - len(seen) + 1], bits)
    assert seen == items


def test_what_does_not_fit_into_its_buffers_is_left_in_the_list() -> None:
    own: list[bytes | None] = [b"abc", None, b"defg", b"h"]
    offsets = np.empty(9, np.int32)
    assert _rows.column_fill(own, 0, bytearray(6), offsets, bytearray(1)) == (2, 3)
    assert own == [None, None, b"defg", b"h"]
    assert _rows.column_fill(own, 2, bytearray(3), offsets, None) == (2, 0)
    assert _rows.column_fill(own, 2, bytearray(9), offsets[:2], None) == (3, 4)
    assert _rows.column_fill(own, 3, bytearray(9), offsets[:0], None) == (3, 0)
    assert _rows.column_fill(own, 4, bytearray(9), offsets, None) == (4, 0)
    for start in (-1, 5):
        with pytest.raises(IndexError):
            _rows.column_fill(own, start, bytearray(9), offsets, None)
    with pytest.raises((TypeError, BufferError)):
        _rows.column_fill(own, 0, bytearray(9), offsets, b"read-only")


@pytest.mark.parametrize("odd", ["text", 5, bytearray(b"x"), [b"x"]])
def test_a_list_of_something_else_is_refused_with_the_type(odd: object) -> None:
    with pytest.raises(TypeError) as caught:
        _rows.list_take([b"good", odd])
    assert caught.value.args[0] is type(odd)
    with pytest.raises(TypeError):
        _rows.column_fill([b"good", odd], 0, bytearray(100), bytearray(100), None)


# ---- records that hold objects -----------------------------------------------------------------------------------------


FREED = """
    import threading
    from embedlog import Record

    def free(wrap):
        record = None
        for _ in range(30_000):
            record = Record("t", 0, 0, 0, 0, None, wrap(record))
        del record

    threading.stack_size(1 << 18)  # a frame for each of them would be some megabytes
    wraps = [lambda each: each, lambda each: [each], lambda each: {"inner": each}, lambda each: (each,)]
    threads = [threading.Thread(target=free, args=(wrap,)) for wrap in wraps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("freed")
"""


def test_a_chain_of_records_is_freed_without_using_up_the_stack(tmp_path: Path) -> None:
    done = run_program(FREED, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "freed" in done.stdout


class Watched:
    """An object that notes its deallocation, and the fields of a record at that moment."""

    record: Any = None
    seen: ClassVar[list[tuple[Any, Any, Any]]] = []

    def __del__(self) -> None:
        if self.record is not None:
            Watched.seen.append((self.record.topic, self.record.key, self.record.headers))


@pytest.mark.parametrize("place", ["key", "value", "headers"])
def test_records_in_a_cycle_are_collected(place: str) -> None:
    watched = Watched()
    gone = weakref.ref(watched)
    held: list[Any] = [watched]
    given: Any = [("name", held)] if place == "headers" else held
    held.append(record(**{place: given}))
    del watched, held, given
    assert gone() is not None
    gc.collect()
    assert gone() is None


def test_a_finalizer_sees_a_record_with_all_of_its_fields() -> None:
    Watched.seen.clear()
    watched = Watched()
    watched.record = record(value=[watched], key=b"k")
    del watched
    gc.collect()
    assert len(Watched.seen) == 1
    assert Watched.seen[0][0] == "t"


def test_records_of_bytes_are_none_of_the_collectors_business() -> None:
    assert not gc.is_tracked(record())
    assert not gc.is_tracked(record(key=None, value="text", headers=()))
    assert gc.is_tracked(record(value={"a": 1}))
    assert gc.get_referents(record(value={"a": 1})).count({"a": 1}) == 1
    offsets = np.arange(3, dtype=np.int64)
    column = (b"abc", np.arange(4, dtype=np.int32))
    made = _rows.records_from_columns(
        "t",
        0,
        offsets,
        offsets,
        np.zeros(3, np.int8),
        np.zeros(3, np.int32),
        column,
        column,
        None,
        0,
        3,
    )
    assert not any(gc.is_tracked(each) for each in made)
    copied = copy.copy(made[0])
    assert copied == made[0]
    del made, copied
    gc.collect()


FREED_DEEP = """
    from embedlog import Record

    chain = None
    for number in range(300_000):
        chain = (chain, Record("t", 0, number, 0, 0, b"k", b"v"))
    del chain
    kept = [Record("t", 0, number, 0, 0, b"k", b"v") for number in range(1000)]
    assert [each.offset for each in kept] == list(range(1000))
    print("freed")
"""


def test_records_of_bytes_are_freed_deep_in_a_chain_of_containers(tmp_path: Path) -> None:
    """Python 3.14 delays the release of objects deep in the stack, by a link before the object."""
    done = run_program(FREED_DEEP, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "freed" in done.stdout
