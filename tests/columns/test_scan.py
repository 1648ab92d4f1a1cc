"""Scans over a log in memory: bounds, pinning, columns, every consumer of Arrow data, failures in
the middle of a stream.
"""

from __future__ import annotations

import builtins
import gc
import pickle
import random
import threading
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import duckdb
import pyarrow
import pyarrow.compute
import pytest

from embedlog.columns import scan as scan_room
from embedlog.columns.chunks import EncodedPiece, EncodedRange
from embedlog.columns.scan import Scan
from embedlog.columns.scan_bounds import ScanBounds
from embedlog.errors import (
    ClosedError,
    ConfigError,
    CorruptRecordError,
    InvalidTimestampError,
    MissingExtraError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from embedlog.types import TopicPartition
from tests.support.fake_engine import ABORT, COMMIT, FakeEngine, FakePartition, Row
from tests.support.scan_schema import SCHEMA


@pytest.fixture
def engine() -> FakeEngine:
    """Topic `a`: 3 partitions of 40, 25 and no records, one a second, in batches of 7."""
    made = FakeEngine(a=3)
    for number, count in ((0, 40), (1, 25)):
        fill(made.partition("a", number), count)
    return made


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many chunks, so that reading ahead has something to do."""
    monkeypatch.setattr(scan_room, "CHUNK_BYTES", 400)


def fill(partition: FakePartition, count: int, per_batch: int = 7) -> None:
    rows = [
        Row(b"v%d" % n, b"k%d" % n if n % 3 else None, [("h", b"%d" % n)] * (n % 2), 1000 * n)
        for n in range(count)
    ]
    for begin in range(0, count, per_batch):
        partition.append(rows[begin : begin + per_batch])


def scan_of(engine: FakeEngine, topic: str, **bounds: Any) -> Scan:
    """The scan that `log.scan` makes."""
    return Scan(engine, topic, ScanBounds(**bounds))  # type: ignore[arg-type]


def places(scan: Scan) -> list[tuple[int, int]]:
    """Partition and offset of every row, the same by every way of reading."""
    by_record = [(record.partition, record.offset) for record in scan.records()]
    table = scan.to_arrow()
    assert (
        list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
        == by_record
    )
    return by_record


def span(number: int, start: int, end: int) -> list[tuple[int, int]]:
    return [(number, offset) for offset in range(start, end)]


# ---- bounds ----------------------------------------------------------------------------------------------------------


def test_without_bounds_everything_comes_partition_by_partition(engine: FakeEngine) -> None:
    assert places(scan_of(engine, "a")) == span(0, 0, 40) + span(1, 0, 25)


def test_offsets_start_inclusive_end_exclusive(engine: FakeEngine) -> None:
    assert places(scan_of(engine, "a", start_offset=10, end_offset=30)) == span(0, 10, 30) + span(
        1, 10, 25
    )
    assert places(scan_of(engine, "a", start_offset={0: 35}, end_offset={1: 3})) == span(
        0, 35, 40
    ) + span(1, 0, 3)
    assert places(scan_of(engine, "a", start_offset=10, end_offset=10)) == []
    one = scan_of(
        engine,
        "a",
        start_offset={TopicPartition("a", 0): 38, ("a", 1): 23},
        end_offset={TopicPartition("a", 0): 39},
    )
    two = scan_of(engine, "a").narrowed(start_offset={0: 38, 1: 23}, end_offset={0: 39})
    assert places(one) == span(0, 38, 39) + span(1, 23, 25) == places(two)


def test_bounds_are_filters_and_may_lie_outside_the_log(engine: FakeEngine) -> None:
    engine.partition("a", 0).log_start = 8
    scan = scan_of(engine, "a", start_offset=3, end_offset=1000, partitions=0)
    assert scan.bounds == {0: (8, 40)}
    assert places(scan) == span(0, 8, 40)


def test_partitions(engine: FakeEngine) -> None:
    assert places(scan_of(engine, "a", partitions=[1])) == span(1, 0, 25)
    assert places(scan_of(engine, "a", partitions=1)) == span(1, 0, 25)
    assert places(scan_of(engine, "a", partitions=[])) == []
    assert places(scan_of(engine, "a", partitions=2)) == []
    for wrong in (3, -1):
        with pytest.raises(UnknownTopicOrPartitionError, match="0 to 2"):
            scan_of(engine, "a", partitions=[wrong])
    with pytest.raises(TypeError):
        scan_of(engine, "a", partitions=["0"])  # type: ignore[list-item]
    with pytest.raises(UnknownTopicOrPartitionError):
        scan_of(engine, "missing")


def test_times_filter_record_by_record(engine: FakeEngine) -> None:
    assert places(scan_of(engine, "a", start_time=20_500, end_time=30_000)) == span(
        0, 21, 30
    ) + span(1, 21, 25)
    assert places(scan_of(engine, "a", start_time=10**15)) == []


def test_times_out_of_order_are_all_found() -> None:
    engine = FakeEngine(a=1)
    times = [5, 900, 3, 700, 100, 2, 800, 1]
    for time_ms in times:
        engine.partition("a", 0).append([Row(b"", timestamp_ms=time_ms)])
    got = places(scan_of(engine, "a", start_time=100, end_time=800))
    assert [times[offset] for _, offset in got] == [700, 100]


def test_aware_datetimes_are_times(engine: FakeEngine) -> None:
    start = datetime(1970, 1, 1, 0, 0, 20, 500_000, tzinfo=UTC)
    end = datetime(1970, 1, 1, 1, 0, 30, tzinfo=timezone(timedelta(hours=1)))
    assert places(scan_of(engine, "a", start_time=start, end_time=end)) == span(0, 21, 30) + span(
        1, 21, 25
    )


@pytest.mark.parametrize(
    ("bounds", "error"),
    [
        ({"start_time": datetime(2020, 1, 1)}, TypeError),
        ({"start_time": 1.5}, TypeError),
        ({"end_time": "2020"}, TypeError),
        ({"start_time": -1}, InvalidTimestampError),
        ({"start_offset": -1}, OffsetOutOfRangeError),
        ({"end_offset": {0: -1}}, OffsetOutOfRangeError),
        ({"end_offset": 1.0}, TypeError),
        ({"start_offset": 30, "end_offset": 10}, ConfigError),
        ({"start_offset": {1: 3}, "end_offset": 2}, ConfigError),
        ({"start_offset": {TopicPartition("a", 1): 3}, "end_offset": {1: 2}}, ConfigError),
        ({"start_time": 2, "end_time": 1}, ConfigError),
        ({"start_offset": {0: 1, TopicPartition("a", 0): 1}}, ConfigError),
        ({"end_offset": {"0": 1}}, TypeError),
        ({"end_offset": {"a": 1}}, TypeError),
        ({"end_offset": {0.0: 1}}, TypeError),
        ({"end_offset": {True: 1}}, TypeError),
        ({"end_offset": {("a", "0"): 1}}, TypeError),
        ({"end_offset": {("a", 0, 0): 1}}, TypeError),
        ({"end_offset": [1, 2]}, TypeError),
        ({"start_offset": {5: 1}}, UnknownTopicOrPartitionError),
        ({"start_offset": {-1: 1}}, UnknownTopicOrPartitionError),
        ({"start_offset": {TopicPartition("b", 0): 1}}, UnknownTopicOrPartitionError),
        ({"start_offset": {0: 1}, "partitions": 1}, UnknownTopicOrPartitionError),
        ({"columns": ["nothing"]}, ConfigError),
        ({"columns": "value"}, TypeError),
        ({"isolation_level": "serializable"}, ConfigError),
    ],
)
def test_wrong_bounds_are_refused_when_the_scan_is_made(
    engine: FakeEngine, bounds: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        scan_of(engine, "a", **bounds)


def test_narrowed_bounds_are_checked_but_may_cross(engine: FakeEngine) -> None:
    """A query with contradictory bounds is allowed, and returns nothing."""
    scan = scan_of(engine, "a", start_offset=20)
    assert (
        places(scan.narrowed(end_offset=10))
        == []
        == places(scan.narrowed(start_offset=30, end_offset=25))
    )
    for key in (5, TopicPartition("b", 0)):
        with pytest.raises(
            UnknownTopicOrPartitionError, match="refers to a partition that is not read"
        ):
            scan.narrowed(start_offset={key: 1})  # type: ignore[dict-item]


def test_random_bounds_as_a_slow_filter(engine: FakeEngine, rng: random.Random) -> None:
    everything = [(r.partition, r.offset, r.timestamp_ms) for r in scan_of(engine, "a").records()]
    for _ in range(60):
        first, last = sorted((rng.randrange(45), rng.randrange(45)))
        begin, end = sorted((rng.randrange(45_000), rng.randrange(45_000)))
        wanted = [(p, o) for p, o, t in everything if first <= o < last and begin <= t < end]
        assert (
            places(
                scan_of(
                    engine, "a", start_offset=first, end_offset=last, start_time=begin, end_time=end
                )
            )
            == wanted
        )


# ---- pinning ---------------------------------------------------------------------------------------------------------


def test_what_comes_later_is_not_in_the_scan_however_often_it_is_read(engine: FakeEngine) -> None:
    scan = scan_of(engine, "a")
    fill(engine.partition("a", 2), 5)
    engine.partition("a", 0).append([b"late"])
    for _ in range(2):
        assert places(scan) == span(0, 0, 40) + span(1, 0, 25)
    assert scan.bounds == {0: (0, 40), 1: (0, 25), 2: (0, 0)}


def test_what_retention_takes_away_is_an_error(engine: FakeEngine) -> None:
    scan = scan_of(engine, "a")
    engine.partition("a", 0).log_start = 5
    with pytest.raises(OffsetOutOfRangeError):
        scan.to_arrow()


def test_nothing_is_read_before_it_is_asked_for(engine: FakeEngine) -> None:
    scan = scan_of(engine, "a")
    rows = iter(scan)
    stream = pyarrow.RecordBatchReader.from_stream(scan)
    assert engine.partition("a", 0).fetches == 0
    next(rows)
    assert engine.partition("a", 0).fetches >= 1
    stream.close()


def test_a_compacted_end_ends_the_scan() -> None:
    engine = FakeEngine(a=1)
    fill(engine.partition("a", 0), 10)
    engine.partition("a", 0).skip(5)
    assert places(scan_of(engine, "a")) == span(0, 0, 10)


@pytest.mark.parametrize("few", [False, True])
def test_a_log_that_ends_below_the_scan_is_an_error(engine: FakeEngine, few: bool) -> None:
    """A scan never ends early without an error."""
    scan = scan_of(engine, "a", start_offset={0: 28} if few else None, partitions=0)
    engine.partition("a", 0).lose(35)
    with pytest.raises(
        OffsetOutOfRangeError,
        match=r"a-0 ends before the last record of this scan.*offset 40.*found 35",
    ):
        list(scan.records())
    with pytest.raises(OffsetOutOfRangeError):
        scan.to_arrow()


def test_a_divided_range_that_lies_above_the_end_of_the_log_is_an_error(engine: FakeEngine) -> None:
    source = scan_of(engine, "a", partitions=0)._open_source(("offset",))
    source._shared = True
    first = source.fetch_apart()
    assert isinstance(first, EncodedPiece)
    assert source._plain
    ranges = [source.fetch_apart() for _ in range(2)]
    assert all(isinstance(each, EncodedRange) for each in ranges)
    start = ranges[1].window.start_offset
    engine.partition("a", 0).lose(start)
    assert source.decode(ranges[0]).decoded is not None
    with pytest.raises(OffsetOutOfRangeError, match="a-0 ends before the last record of this scan"):
        source.decode(ranges[1])


# ---- isolation -------------------------------------------------------------------------------------------------------


def test_both_isolation_levels() -> None:
    engine = FakeEngine(a=1)
    partition = engine.partition("a", 0)
    for _ in range(30):
        partition.append([b"gone"], producer=1)
        partition.append([b"kept"], producer=2)
    partition.end(1, ABORT)
    partition.append([b"again"], producer=1)
    partition.end(2, COMMIT)
    partition.append([b"open"], producer=3)
    committed = scan_of(engine, "a", isolation_level="read_committed")
    # `again` is open too: the stable offset is before it
    assert committed.to_arrow()["value"].to_pylist() == [b"kept"] * 30
    partition.end(1, COMMIT)
    committed = scan_of(engine, "a", isolation_level="read_committed")
    assert committed.to_arrow()["value"].to_pylist() == [b"kept"] * 30 + [b"again"]
    assert len(list(scan_of(engine, "a").records())) == 62


# ---- columns and consumers -------------------------------------------------------------------------------------------


def test_the_schema_is_the_one_of_the_api(engine: FakeEngine) -> None:
    scan = scan_of(engine, "a")
    assert scan.schema.equals(SCHEMA)
    table = scan.to_arrow()
    assert table.schema.equals(SCHEMA)
    table.validate(full=True)


def test_columns_come_in_the_order_asked_for(engine: FakeEngine) -> None:
    scan = scan_of(engine, "a", columns=["value", "offset"], end_offset=2, partitions=0)
    assert scan.to_arrow().to_pydict() == {"value": [b"v0", b"v1"], "offset": [0, 1]}
    # records have all their fields
    assert [record.key for record in scan.records()] == [None, b"k1"]


@pytest.mark.parametrize("column", SCHEMA.names)
def test_each_column_alone(engine: FakeEngine, column: str) -> None:
    whole = scan_of(engine, "a").to_arrow()
    alone = scan_of(engine, "a", columns=[column]).to_arrow()
    assert alone.column_names == [column]
    assert alone[column].to_pylist() == whole[column].to_pylist()


def test_an_empty_scan_has_a_schema(engine: FakeEngine) -> None:
    empty = scan_of(engine, "a", partitions=2)
    assert empty.to_arrow().schema.equals(SCHEMA)
    assert pyarrow.table(empty).num_rows == 0


def test_polars_takes_a_scan_as_it_is(engine: FakeEngine) -> None:
    polars = pytest.importorskip("polars", reason="needs polars")
    assert polars.DataFrame(scan_of(engine, "a"))["offset"].sum() == sum(range(40)) + sum(range(25))


def test_pyarrow_and_duckdb_take_a_scan_as_it_is(engine: FakeEngine) -> None:
    scan = scan_of(engine, "a")
    total = sum(range(40)) + sum(range(25))
    assert pyarrow.compute.sum(pyarrow.table(scan)["offset"]).as_py() == total
    assert duckdb.sql('select sum("offset"), count(*), min(topic) from scan').fetchall() == [
        (total, 65, "a")
    ]


def test_records_and_the_stream_need_no_pyarrow(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **keywords: Any) -> Any:
        if name.split(".")[0] == "pyarrow":
            raise ModuleNotFoundError(name)
        return real(name, *rest, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    scan = scan_of(engine, "a")
    assert len(list(scan.records())) == 65
    assert scan.__arrow_c_stream__() is not None
    assert scan.__arrow_c_schema__() is not None
    for needs in (scan.to_arrow, lambda: scan.schema, lambda: next(iter(scan))):
        with pytest.raises(MissingExtraError, match=r"embedlog\[arrow\]"):
            needs()


# ---- failures and life -----------------------------------------------------------------------------------------------


def broken(engine: FakeEngine) -> None:
    """The 20th batch cannot be decoded."""
    partition = engine.partition("a", 0)
    real = partition.fetch

    def fetch(offset: int, **keywords: Any) -> Any:
        if offset >= 20:
            raise CorruptRecordError(
                "crc",
                path="00000000000000000000.log",
                position=777,
                expected="1a2b3c4d",
                found="00000000",
            )
        return real(offset, **keywords)

    partition.fetch = fetch  # type: ignore[method-assign]


def test_a_failure_in_the_middle_comes_behind_what_was_good(engine: FakeEngine) -> None:
    broken(engine)
    got = 0
    with pytest.raises(CorruptRecordError, match="at byte 777"):
        for batch in scan_of(engine, "a"):
            got += batch.num_rows
    assert got >= 20
    seen = []
    with pytest.raises(CorruptRecordError):
        seen += [record.offset for record in scan_of(engine, "a").records()]


@pytest.mark.parametrize(("package", "name"), [("pyarrow", "table"), ("polars", "DataFrame")])
def test_a_failure_reaches_every_consumer_with_its_facts(
    engine: FakeEngine, package: str, name: str
) -> None:
    consume = getattr(pytest.importorskip(package, reason=f"needs {package}"), name)
    broken(engine)
    with pytest.raises(Exception, match=r"(?s)at byte 777.*expected 1a2b3c4d, found 00000000"):
        consume(scan_of(engine, "a"))


def test_a_stream_given_up_half_way_ends_its_thread(engine: FakeEngine) -> None:
    reader = pyarrow.RecordBatchReader.from_stream(scan_of(engine, "a"))
    reader.read_next_batch()
    reader.read_next_batch()
    del reader
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "embedlog-read-ahead":
            thread.join(10)
            assert not thread.is_alive()


def test_two_readings_of_one_scan_do_not_disturb_each_other(engine: FakeEngine) -> None:
    scan = scan_of(engine, "a")
    pairs = list(zip(scan.records(), scan.records(), strict=True))
    assert all(left == right for left, right in pairs)
    assert len(pairs) == 65


def test_a_closed_log_ends_a_reading(engine: FakeEngine) -> None:
    records = scan_of(engine, "a").records()
    next(records)
    engine.problem = ClosedError("closed")
    with pytest.raises(ClosedError):
        list(records)


def test_pickling_is_refused_with_the_way_to_do_it(engine: FakeEngine) -> None:
    with pytest.raises(TypeError, match="in the worker"):
        pickle.dumps(scan_of(engine, "a"))


def test_it_says_what_it_is(engine: FakeEngine) -> None:
    assert (
        repr(scan_of(engine, "a", columns=["value"], partitions=0))
        == "Scan('a', bounds={0: (0, 40)}, columns=['value'])"
    )


def test_a_reading_reports_its_progress(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_room, "CHUNK_BYTES", 1)
    told: list[tuple[int, int]] = []
    bounds = ScanBounds(start_offset={0: 10}, columns=["value"])
    scan = Scan(engine, "a", bounds, progress=lambda done, total: told.append((done, total)))  # type: ignore[arg-type]
    assert scan.to_arrow().column_names == ["value"]
    first = list(told)
    assert (first[0], first[-1]) == ((0, 55), (55, 55))
    assert first == sorted(first)
    assert len(first) > 4, "one report for each chunk"
    assert [record.offset for record in scan.narrowed(partitions=0, end_offset=12).records()] == [
        10,
        11,
    ]
    assert told[len(first) :] == [(0, 2), (2, 2), (2, 2)]


def test_an_error_of_the_progress_ends_the_reading(engine: FakeEngine) -> None:
    def fail(done: int, total: int) -> None:
        if done:
            raise ZeroDivisionError

    scan = Scan(engine, "a", ScanBounds(), progress=fail)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        scan.to_arrow()


# ---- batches -------------------------------------------------------------------------------------


def test_batches_have_the_rows_of_the_records(engine: FakeEngine) -> None:
    scan = scan_of(engine, "a", start_offset=3)
    found = list(scan.batches())
    assert [record for batch in found for record in batch.records()] == list(scan.records())
    assert len({batch.base_offset for batch in found}) > 2, "several chunks of each partition"


def test_a_batch_has_the_columns_of_its_scan_and_no_others(engine: FakeEngine) -> None:
    first = next(scan_of(engine, "a", columns=["value", "offset"]).batches())
    assert list(first.values)[:2] == [b"v0", b"v1"]
    assert first.offsets[:2].tolist() == [0, 1]
    assert pyarrow.record_batch(first).schema.names == ["value", "offset"]
    for read in ("keys", "headers", "timestamps_ms", "timestamp_types", "leader_epochs"):
        with pytest.raises(ConfigError, match="columns of this batch"):
            getattr(first, read)
    with pytest.raises(ConfigError, match=r"expected .*topic"):
        first.records()
