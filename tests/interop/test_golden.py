"""Directories of a real Kafka, read record for record: every golden directory, both isolation
levels, every way of reading.

The expectation is the output of a real client (tests/data/README.md). Only `unclean` has no clean
mark: its indexes are padded with zeros, and opening it for writing runs recovery. Reading it
read-only must show the same without touching a byte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

import embedlog
from embedlog import segment
from embedlog.format.record_batch import Chain
from embedlog.partition.segment_info import info_from_files
from embedlog.storage import file_names, files
from tests.kafka import CLEAN, GOLDEN, UNCLEAN
from tests.support.golden_records import DIRECTORIES, TOPICS, consumed, in_order, wanted

ISOLATION = ("read_uncommitted", "read_committed")

Expected = Callable[[str, str], list[dict[str, object]]]
every_topic = pytest.mark.parametrize(("name", "topic"), TOPICS)
both_levels = pytest.mark.parametrize("isolation", ISOLATION)


def digests(directory: Path) -> dict[str, str]:
    files = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


@pytest.fixture(scope="module")
def opened(golden: Path) -> Callable[[str], embedlog.Log]:
    """`opened("clean")`: that directory, read-only, opened once."""
    logs = {
        name: embedlog.open(golden / name / "log", read_only=True) for name in (*CLEAN, *UNCLEAN)
    }
    yield logs.__getitem__  # type: ignore[misc]
    for log in logs.values():
        log.close()


@pytest.mark.sample(0.2)
@every_topic
@both_levels
def test_a_consumer_gets_what_kafkas_client_got(
    opened: Callable[[str], embedlog.Log],
    golden_expected: Expected,
    name: str,
    topic: str,
    isolation: str,
) -> None:
    assert consumed(opened(name), topic, isolation) == wanted(
        golden_expected(name, topic), isolation
    )


@pytest.mark.sample(0.2)
@every_topic
@both_levels
def test_a_scan_gets_what_kafkas_client_got(
    opened: Callable[[str], embedlog.Log],
    golden_expected: Expected,
    name: str,
    topic: str,
    isolation: str,
) -> None:
    scan = opened(name).scan(topic, isolation_level=isolation)
    assert in_order(scan.records()) == wanted(golden_expected(name, topic), isolation)


@pytest.mark.sample(0.2)
@every_topic
def test_arrow_columns_say_the_same_as_records(
    opened: Callable[[str], embedlog.Log], name: str, topic: str
) -> None:
    pytest.importorskip("pyarrow")
    scan = opened(name).scan(topic)
    table = scan.to_arrow()
    records = sorted(scan.records(), key=lambda record: (record.partition, record.offset))
    rows = sorted(table.to_pylist(), key=lambda row: (row["partition"], row["offset"]))
    assert len(rows) == len(records)
    for row, record in zip(rows, records, strict=True):
        assert (row["topic"], row["partition"], row["offset"]) == (
            topic,
            record.partition,
            record.offset,
        )
        assert (row["key"], row["value"], row["leader_epoch"]) == (
            record.key,
            record.value,
            record.leader_epoch,
        )
        assert round(row["timestamp"].timestamp() * 1000) == record.timestamp_ms
        assert row["timestamp_type"] == record.timestamp_type
        assert [(header["key"], header["value"]) for header in row["headers"] or ()] == list(
            record.headers
        )


@pytest.mark.parametrize("name", GOLDEN)
def test_reading_only_writes_nothing(golden_copy: Callable[[str], Path], name: str) -> None:
    directory = golden_copy(name)
    before = digests(directory)
    with embedlog.open(directory, read_only=True) as log:
        for topic in log.topics():
            for _ in log.scan(topic).records():
                pass
    assert digests(directory) == before


@pytest.mark.sample(0.3)
@pytest.mark.parametrize(("name", "topics"), DIRECTORIES, ids=GOLDEN)
def test_a_writer_takes_the_directory_over(
    golden_copy: Callable[[str], Path],
    golden_expected: Expected,
    name: str,
    topics: tuple[str, ...],
) -> None:
    """Opened for writing (recovered, where Kafka was killed), closed, opened again: the same
    records each time.

    Without a housekeeper: it would end the transaction that Kafka left open, in its next round.
    """
    directory = golden_copy(name)
    for _ in range(2):
        with embedlog.open(directory, config={"housekeeping": False}, create=False) as log:
            assert log.topics() == sorted(topics)
            for topic in topics:
                for isolation in ISOLATION:
                    found = in_order(log.scan(topic, isolation_level=isolation).records())
                    assert found == wanted(golden_expected(name, topic), isolation), (
                        topic,
                        isolation,
                    )
        assert (directory / ".kafka_cleanshutdown").exists()


@pytest.mark.sample(0.3)
@pytest.mark.parametrize(("name", "topics"), DIRECTORIES, ids=GOLDEN)
def test_what_is_appended_comes_behind_what_kafka_wrote(
    golden_copy: Callable[[str], Path],
    golden_expected: Expected,
    name: str,
    topics: tuple[str, ...],
) -> None:
    directory = golden_copy(name)
    # The housekeeper would abort a transaction that Kafka left open, between the look at an end and
    # the append.
    with (
        embedlog.open(directory, config={"housekeeping": False}) as log,
        log.producer() as producer,
    ):
        for topic in topics:
            tps = [
                embedlog.TopicPartition(topic, number)
                for number in range(len(log.describe_topic(topic).partitions))
            ]
            with log.consumer(auto_offset_reset="earliest") as consumer:
                ends = consumer.end_offsets(tps)
            for tp in tps:
                done = producer.send(topic, b"ours", key=b"new", partition=tp.partition).result(10)
                assert done.offset == ends[tp], tp
            found = in_order(log.scan(topic).records())
            kept = [row for row in found if row["key"] != "bmV3"]
            assert kept == wanted(golden_expected(name, topic), "read_uncommitted"), topic
            assert len(found) - len(kept) == len(tps)


@pytest.mark.parametrize("name", CLEAN)
def test_a_log_start_inside_a_segment_is_kept(
    opened: Callable[[str], embedlog.Log], name: str
) -> None:
    """`records-deleted` starts at 333 though its first segment begins at 291."""
    tp = embedlog.TopicPartition("records-deleted", 0)
    with opened(name).consumer() as consumer:
        assert consumer.beginning_offsets([tp]) == {tp: 333}
    assert next(iter(opened(name).scan("records-deleted").records())).offset == 333


@pytest.mark.parametrize("name", UNCLEAN)
def test_an_open_transaction_ends_what_read_committed_sees(
    opened: Callable[[str], embedlog.Log], name: str
) -> None:
    """In `unclean` one transaction was never decided: the records after it are on disk but must not
    be delivered yet.
    """
    behind = {b"never decided", b"behind an open transaction"}
    levels = {}
    for isolation in ISOLATION:
        scan = opened(name).scan("transactions", isolation_level=isolation)
        levels[isolation] = behind & {record.value for record in scan.records()}
    assert levels == {"read_uncommitted": behind, "read_committed": set()}


@pytest.mark.parametrize("name", CLEAN)
def test_times_are_found_as_the_records_say(
    opened: Callable[[str], embedlog.Log], golden_expected: Expected, name: str
) -> None:
    """For some times in each topic: the first record whose timestamp is not smaller."""
    for topic in ("client-zstd", "corners", "rolled-by-time", "append-time", "compacted"):
        rows = wanted(golden_expected(name, topic), "read_uncommitted")
        with opened(name).consumer() as consumer:
            for partition in sorted({row["partition"] for row in rows}):  # type: ignore[type-var]
                own = [row for row in rows if row["partition"] == partition]
                times = sorted({row["timestamp_ms"] for row in own})  # type: ignore[type-var]
                tp = embedlog.TopicPartition(topic, partition)
                for time_ms in {0, *times[:: max(1, len(times) // 20)], times[-1], times[-1] + 1}:
                    first = next((row for row in own if row["timestamp_ms"] >= time_ms), None)
                    found = consumer.offsets_for_times({tp: time_ms})[tp]
                    if first is None:
                        assert found is None, (tp, time_ms)
                    else:
                        assert (found.offset, found.timestamp_ms) == (
                            first["offset"],
                            first["timestamp_ms"],
                        ), (tp, time_ms)


@pytest.mark.parametrize("name", CLEAN)
def test_the_last_time_entry_of_each_segment_names_a_batch(golden: Path, name: str) -> None:
    """A broker's index that is found wrong is rebuilt: a check that is too strict would read whole
    directories.
    """
    seen = 0
    for directory in sorted((golden / name / "log").glob("*-[0-9]*")):
        bases = file_names.bases([path.name for path in directory.iterdir()])
        ends = {base: segment_end(directory, base) for base in bases}
        for base, following in zip(bases, [*bases[1:], ends[bases[-1]]], strict=True):
            found = info_from_files(directory, base, segment.size_of(directory, base), following)
            assert found is not None, (directory, base)
            assert found.end == ends[base], (directory, base)
            seen += found.info.time_entries > 0
    assert seen > 20


def segment_end(directory: Path, base: int) -> int:
    """The offset after the last batch, by a read of the whole segment."""
    chain = Chain(base, gaps_allowed=True)
    path = file_names.segment_path(directory, base)
    with files.opened(path) as fd:
        for _ in segment.Walk(fd, path, chain, 0, segment.size_of(directory, base)):
            pass
    return chain.next_offset
