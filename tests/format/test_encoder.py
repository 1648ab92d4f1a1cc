"""Columns to batches, byte for byte as the reference implementation makes them; and invalid
columns.
"""

from __future__ import annotations

import random
import struct
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from embedlog._native import codec as native
from embedlog.errors import InvalidRecordError
from embedlog.format.buffer_pool import BufferPool
from embedlog.format.encoder import encode_records
from embedlog.format.record_batch import (
    CONTROL,
    TRANSACTIONAL,
    Chain,
    Stamp,
    decode,
    encode,
    marker_batch,
    partitions_of,
    scan,
    set_header_fields,
    stamp_offsets,
)
from embedlog.format.record_columns import BytesColumn, Columns, Headers, batch_dtype
from tests.support import oracle
from tests.support.batches import Row, batch

# A run of 300 records takes a millisecond, in which the other thread changes columns many times.
CHANGING_RUNS = 150


def columns_of(rows: Sequence[Row], width: type = np.int64) -> Columns:
    """The columns that hold these rows."""
    starts = np.cumsum([0, *(len(row.headers) for row in rows)]).astype(np.int32)
    pairs = [header for row in rows for header in row.headers]
    names = [name.encode() if isinstance(name, str) else name for name, _ in pairs]
    values = BytesColumn.of([row.value for row in rows])
    keys = BytesColumn.of([row.key for row in rows])
    return Columns(
        len(rows),
        BytesColumn(values.data, values.offsets.astype(width), values.validity),
        BytesColumn(keys.data, keys.offsets.astype(width), keys.validity)
        if any(row.key is not None for row in rows)
        else None,
        np.array([row.timestamp_ms for row in rows], np.int64),
        Headers(starts, BytesColumn.of(names), BytesColumn.of([value for _, value in pairs]))
        if pairs
        else None,
    )


def joined(runs: Sequence[bytes], first: int = 0) -> bytes:
    """The runs one after the other, stamped as the log would."""
    whole = b""
    offset = first
    for run in runs:
        buffer = bytearray(run)
        offset, _ = stamp_offsets(buffer, offset, 0)
        whole += buffer
    return whole


@pytest.mark.parametrize("width", [np.int32, np.int64])
def test_random_columns_as_the_twin_encodes_them(rng: random.Random, width: type) -> None:
    for _ in range(60):
        rows = oracle.random_rows(rng, rng.randrange(1, 60), headers=rng.random() < 0.5)
        batch_bytes = rng.choice([61, 200, 1000, 5000, 1 << 20])
        run_bytes = rng.choice([None, 3000, 100_000])
        runs = [
            bytes(run.buffer)
            for run in encode(columns_of(rows, width), batch_bytes=batch_bytes, run_bytes=run_bytes)
        ]
        assert joined(runs) == b"".join(oracle.cut(rows, batch_bytes))


def test_plain_values_at_every_length(rng: random.Random) -> None:
    """Lengths around the steps of the copy and of the numbers; the last value ends with its
    column.
    """
    sizes = [*range(140), 255, 256, 511, 512, 513, 8190, 8191, 8192, 8193, 1_048_575, 1_048_576]
    rows = [Row(rng.randbytes(size), timestamp_ms=5) for size in sizes]
    runs = [bytes(run.buffer) for run in encode(columns_of(rows, np.int32), batch_bytes=1 << 22)]
    assert joined(runs) == batch(0, rows)


def test_more_records_than_two_bytes_of_offset_count() -> None:
    rows = [Row(b"", timestamp_ms=1)] * 20_000
    (run,) = encode(columns_of(rows))
    assert bytes(run.buffer) == batch(0, rows)


def test_what_a_run_says_of_its_batches_is_in_its_bytes(rng: random.Random) -> None:
    for codec in range(5):
        rows = oracle.random_rows(rng, 200)
        for run in encode(columns_of(rows), codec=codec, batch_bytes=4000):
            stamped = bytearray(run.buffer)
            stamp_offsets(stamped, 0, 0)
            found = scan(stamped, Chain())
            assert found.problem is None
            assert found.consumed == run.size == len(run.buffer)
            assert run.batch_count == len(found.batches) == len(run.batches)
            assert run.record_count == found.batches["records"].sum()
            for name in set(batch_dtype().names or ()) - {"min_timestamp"}:
                assert run.batches[name].tolist() == found.batches[name].tolist(), name
            for row, header in zip(run.batches, found.batches, strict=True):
                alone = run.batches[run.batches["position"] == row["position"]]
                times = decode(run.buffer, alone, columns={"timestamp"}).timestamps
                assert times is not None
                oldest = max(-1, int(times.min()))
                assert row["min_timestamp"] == oldest
                assert header["min_timestamp"] == (oldest if len(times) == 1 else -1)


@pytest.mark.parametrize("codec", range(1, 5))
def test_compressed_batches_hold_the_same_records(rng: random.Random, codec: int) -> None:
    values = [rng.choice([b"abc" * 50, rng.randbytes(40)]) for _ in range(2800)]
    values += [b"abc" * 50] * 200  # the last batch shrinks, too
    rows = [Row(value, timestamp_ms=number) for number, value in enumerate(values)]
    pool = BufferPool()
    found = []
    for run in encode(columns_of(rows), codec=codec, batch_bytes=20_000, pool=pool):
        assert (run.batches["attributes"] == codec).all()
        decoded = decode(run.buffer, run.batches)
        assert decoded.values is not None
        found += list(decoded.values)
    assert found == [row.value for row in rows]


def test_a_batch_that_does_not_shrink_stays_uncompressed(rng: random.Random) -> None:
    rows = [Row(rng.randbytes(10_000))]
    for codec in range(1, 5):
        (run,) = encode(columns_of(rows), codec=codec)
        assert bytes(run.buffer) == batch(0, rows)


def test_a_record_larger_than_a_batch_has_one_of_its_own() -> None:
    rows = [Row(b"a"), Row(b"b" * 3_000_000), Row(b"c")]
    runs = list(encode(columns_of(rows), batch_bytes=1000))
    assert joined([bytes(run.buffer) for run in runs]) == b"".join(oracle.cut(rows, 1000))
    assert [count for run in runs for count in run.batches["records"].tolist()] == [1, 1, 1]


def test_selected_rows_in_their_order(rng: random.Random) -> None:
    rows = oracle.random_rows(rng, 50)
    selection = np.array([rng.randrange(50) for _ in range(30)], np.int64)
    runs = [
        bytes(run.buffer) for run in encode(columns_of(rows), selection=selection, batch_bytes=2000)
    ]
    assert joined(runs) == b"".join(oracle.cut([rows[number] for number in selection], 2000))


def test_one_timestamp_for_all_and_log_append_time() -> None:
    values = BytesColumn.of([b"x", None])
    (run,) = encode(Columns(2, values, timestamps=77), timestamp_type=1)
    assert bytes(run.buffer) == batch(
        0, [Row(b"x", timestamp_ms=77), Row(None, timestamp_ms=77)], attributes=8
    )


def test_no_values_at_all_are_nulls() -> None:
    (run,) = encode(Columns(2, None, BytesColumn.of([b"k", None]), 3))
    assert bytes(run.buffer) == batch(
        0, [Row(None, b"k", timestamp_ms=3), Row(None, timestamp_ms=3)]
    )


def test_no_rows_make_no_run() -> None:
    assert list(encode(Columns(0, BytesColumn.of([])))) == []


def test_a_sliced_column_with_bits_from_within_a_byte() -> None:
    column = BytesColumn.of([b"0", b"1", None, b"3", None, b"5"])
    assert column.validity is not None
    part = BytesColumn(column.data, column.offsets[2:], column.validity, validity_offset=2)
    (run,) = encode(Columns(4, part, timestamps=0))
    assert bytes(run.buffer) == batch(0, [Row(None), Row(b"3"), Row(None), Row(b"5")])


BAD_OFFSETS = [[0, 3, 2, 4], [0, 1, 2, 5], [-1, 1, 2, 4], [0, 1, 2, 2**31 - 1]]


@pytest.mark.parametrize("offsets", BAD_OFFSETS)
@pytest.mark.parametrize("place", ["values", "keys", "header keys", "header values"])
def test_offsets_that_leave_their_data_are_refused(offsets: list[int], place: str) -> None:
    bad = BytesColumn(np.zeros(4, np.uint8), np.array(offsets, np.int32))
    good = BytesColumn.of([b"a", b"b", b"c"])
    one = {
        name: bad if name == place else good
        for name in ("values", "keys", "header keys", "header values")
    }
    headers = Headers(np.arange(4, dtype=np.int32), one["header keys"], one["header values"])
    columns = Columns(3, one["values"], one["keys"], 0, headers if "header" in place else None)
    with pytest.raises(InvalidRecordError, match="do not rise"):
        list(encode(columns))


@pytest.mark.parametrize("selection", [[3], [-1], [0, 2**40]])
def test_rows_that_are_not_there_are_refused(selection: list[int]) -> None:
    with pytest.raises(InvalidRecordError, match="no such row"):
        list(encode(columns_of([Row(b"a")] * 3), selection=np.array(selection, np.int64)))


@pytest.mark.parametrize("starts", [[0, 2, 1, 3], [0, 1, 2, 4], [-1, 0, 1, 3]])
def test_headers_of_rows_that_overlap_or_leave_their_columns_are_refused(starts: list[int]) -> None:
    headers = Headers(
        np.array(starts, np.int32), BytesColumn.of([b"a"] * 3), BytesColumn.of([b"b"] * 3)
    )
    with pytest.raises(InvalidRecordError):
        list(encode(Columns(3, BytesColumn.of([b"v"] * 3), headers=headers)))


def test_a_null_header_name_is_refused() -> None:
    headers = Headers(np.array([0, 1], np.int32), BytesColumn.of([None]), BytesColumn.of([b"b"]))
    with pytest.raises(InvalidRecordError):
        list(encode(Columns(1, BytesColumn.of([b"v"]), headers=headers)))


# ---- columns that change meanwhile ---------------------------------------------------------------

VALUE_AT = 61 + 8  # header, length, attributes, two deltas, null key, length of the value
OFFSETS_AT = 256


def encoded_over_itself(end: int, capacity: int = 1000) -> tuple[int, np.ndarray]:
    """One record whose value is written over the offsets of its own header: [0, 4] when measured,
    [0, end] when written.

    Another thread may do this; here it happens every time. Returns the size or the code, and the
    bytes after `capacity`.
    """
    whole = np.full(4096, 0xAA, np.uint8)
    buffer = whole[:capacity]
    offsets = whole[OFFSETS_AT : OFFSETS_AT + 8].view(np.int32)
    offsets[:] = 0, 4
    value = np.zeros(400, np.uint8)
    value[OFFSETS_AT - VALUE_AT :][:8] = np.array([0, end], np.int32).view(np.uint8)
    encoder = native.Encoder(1, 1, capacity, 0)
    encoder.set_column("values", value, np.array([0, 400], np.int32), None, 0)
    encoder.set_column("header_keys", np.zeros(1, np.uint8), np.array([0, 1], np.int32), None, 0)
    encoder.set_column("header_values", np.zeros(3000, np.uint8), offsets, None, 0)
    encoder.set_array("header_starts", "int32_t[]", np.array([0, 1], np.int32))
    written, _ = encoder.run(buffer, np.zeros(4, batch_dtype()))
    assert buffer[OFFSETS_AT : OFFSETS_AT + 8].view(np.int32).tolist() == [0, end]
    return written, whole[capacity:]


@pytest.mark.parametrize("end", [0, 3, 5, 300, 800, 3000, 3001, -1, 2**31 - 1])
@pytest.mark.parametrize("capacity", [477, 1000])
def test_headers_that_change_between_measuring_and_writing_refuse_the_run(
    end: int, capacity: int
) -> None:
    """A record whose size differs from its length field would be sealed, acknowledged, and never
    read again.
    """
    written, beyond = encoded_over_itself(end, capacity)
    assert written == native.ECHANGED
    assert (beyond == 0xAA).all(), "nothing is written beyond the run's memory"


def test_headers_that_stay_what_they_were_are_written() -> None:
    assert encoded_over_itself(4, 477)[0] == 477


def test_columns_that_change_in_another_thread_make_readable_batches_or_none(
    rng: random.Random,
) -> None:
    """Every input that may change during the encoding does, at any moment; sealed records are read
    back complete.
    """
    count = 300
    rows = [Row(b"v" * 20, b"k" * 9, [("name", b"value")], n) for n in range(count)]
    columns = columns_of(rows, np.int32)
    assert columns.headers is not None
    assert columns.keys is not None
    moving = [
        columns.values.offsets,
        columns.keys.offsets,
        columns.headers.values.offsets,
        columns.headers.keys.offsets,
    ]
    other = [np.roll(each, 1) if number % 2 else each // 2 for number, each in enumerate(moving)]
    own = [each.copy() for each in moving]
    done = threading.Event()

    def disturb() -> None:
        while not done.is_set():
            for target, one, two in zip(moving, other, own, strict=True):
                target[150:] = one[150:]
                target[150:] = two[150:]

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        refused = sealed = 0
        while refused + sealed < CHANGING_RUNS:
            try:
                runs = [
                    bytes(run.buffer)
                    for run in encode(columns, batch_bytes=rng.choice((500, 5000, 1 << 20)))
                ]
            except InvalidRecordError:
                refused += 1
                continue
            data = joined(runs)
            found = scan(data, Chain())
            assert found.consumed == len(data)
            assert decode(data, found.batches).count == count
            sealed += 1
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("width", [np.int32, np.int64])
def test_offsets_at_odd_addresses_are_read_as_any(rng: random.Random, width: type) -> None:
    """Arrow allows buffers that are not aligned; the sanitised build refuses a load through a
    cast.
    """
    rows = oracle.random_rows(rng, 40, headers=True)

    def shifted(array: np.ndarray) -> np.ndarray:
        buffer = np.zeros(array.nbytes + 1, np.uint8)
        buffer[1:] = array.view(np.uint8)
        return buffer[1:].view(array.dtype)

    def column(given: BytesColumn) -> BytesColumn:
        return BytesColumn(given.data, shifted(given.offsets.astype(width)), given.validity)

    columns = columns_of(rows)
    assert columns.values is not None
    headers = columns.headers and Headers(
        columns.headers.starts, column(columns.headers.keys), column(columns.headers.values)
    )
    keys = columns.keys and column(columns.keys)
    odd = Columns(len(rows), column(columns.values), keys, shifted(columns.timestamps), headers)  # type: ignore[arg-type]
    selection = shifted(np.arange(len(rows), dtype=np.int64))
    expected = [bytes(run.buffer) for run in encode(columns)]
    assert [bytes(run.buffer) for run in encode(odd)] == expected
    assert [bytes(run.buffer) for run in encode(odd, selection=selection)] == expected
    if keys is not None:
        assert (partitions_of(keys, 7) == partitions_of(columns.keys, 7)).all()  # type: ignore[arg-type]


def test_columns_of_different_lengths_are_refused_with_both() -> None:
    with pytest.raises(InvalidRecordError, match="rows of keys: expected 2, found 1"):
        list(encode(Columns(2, BytesColumn.of([b"a", b"b"]), BytesColumn.of([b"k"]))))
    with pytest.raises(InvalidRecordError, match="validity bits of values: expected 9, found 8"):
        list(
            encode(
                Columns(
                    9,
                    BytesColumn(
                        np.zeros(0, np.uint8), np.zeros(10, np.int32), np.zeros(1, np.uint8)
                    ),
                )
            )
        )


# ---- sealed headers ------------------------------------------------------------------------------


def test_stamping_changes_no_checksum_and_can_be_repeated(rng: random.Random) -> None:
    rows = oracle.random_rows(rng, 100)
    (run,) = encode(columns_of(rows), batch_bytes=1 << 20)
    for base, epoch in ((0, 0), (2**62, 2**31 - 1), (41, 7)):
        following, digest = stamp_offsets(run.buffer, base, epoch, digest=base)
        chain = Chain(next_offset=base, digest=base)
        found = scan(run.buffer, chain)
        assert found.problem is None
        assert (chain.next_offset, chain.digest, chain.epoch) == (following, digest, epoch)
        assert following == base + 100


@pytest.mark.parametrize("count", [1, 3, 5000])
def test_changed_fields_have_the_checksum_of_a_batch_made_so(
    rng: random.Random, count: int
) -> None:
    rows = [Row(rng.randbytes(20), timestamp_ms=9)] * count
    made = bytearray(batch(0, rows))
    set_header_fields(made, attributes=0x10, producer=(2**62, 3), base_sequence=17)
    assert bytes(made) == batch(
        0, rows, attributes=0x10, producer_id=2**62, producer_epoch=3, base_sequence=17
    )
    set_header_fields(made, attributes=8, max_timestamp=1234, producer=(-1, -1), base_sequence=-1)
    assert [
        record.timestamp for record in oracle.read_batch(oracle.whole_batches(bytes(made))[0])
    ] == [1234] * count


# ---- a few records -------------------------------------------------------------------------------


def few(rows: Sequence[Row]) -> list[tuple[bytes, bytes | None]]:
    return [(row.key or b"", row.value) for row in rows]


@pytest.mark.parametrize("rounds", [80, pytest.param(300, marks=pytest.mark.slow)])
def test_a_few_records_as_the_twin_encodes_them(rng: random.Random, rounds: int) -> None:
    sizes = [0, 1, 7, 62, 63, 64, 127, 128, 8191, 8192, 70_000]
    for _ in range(rounds):
        count = rng.choice([1, 1, 2, 3, 8, 9, 40])
        time = rng.choice([0, 1_700_000_000_000, 2**62])
        rows = [
            Row(
                key=rng.randbytes(rng.choice(sizes[:-2])),
                value=rng.choice([None, rng.randbytes(rng.choice(sizes))]),
                timestamp_ms=time,
            )
            for _ in range(count)
        ]
        stamp = Stamp(rng.choice([-1, 2**62 + 5]), rng.choice([-1, 0, 32767]), rng.random() < 0.5)
        sequence = rng.choice([-1, 2**31 - 1])
        expected = batch(
            0,
            rows,
            attributes=TRANSACTIONAL if stamp.transactional else 0,
            producer_id=stamp.producer_id,
            producer_epoch=stamp.epoch,
            base_sequence=sequence,
        )
        assert encode_records(few(rows), time, stamp, sequence) == expected
    assert encode_records([(b"k", b"v")], 5) == batch(
        0, [Row(key=b"k", value=b"v", timestamp_ms=5)]
    )


@pytest.mark.parametrize(
    "records",
    [[(b"k",)], [[b"k", b"v"]], [(b"k", "v")], [(bytearray(b"k"), b"v")], [None], ((b"k", b"v"),)],
)
def test_a_few_records_of_other_types_are_refused(records: Any) -> None:
    with pytest.raises(TypeError):
        encode_records(records, 0)


def test_a_batch_of_no_records_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        encode_records([], 0)


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_as_the_twin_encodes_it(commit: bool) -> None:
    made = marker_batch(2**62 + 5, 32767, commit, 2**31 - 1, 1_700_000_000_000)
    row = Row(
        key=struct.pack(">hh", 0, commit),
        value=struct.pack(">hi", 0, 2**31 - 1),
        timestamp_ms=1_700_000_000_000,
    )
    assert made == batch(
        0, [row], attributes=TRANSACTIONAL | CONTROL, producer_id=2**62 + 5, producer_epoch=32767
    )
    assert len(made) == 78
