"""Bad calls on an open log: a typed error with the facts, nothing written, nothing lost, usable
after.

Directories that cannot be used are in `coordination/test_bad_directories.py`.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog._native import system
from embedlog.errors import (
    ClosedError,
    ConfigError,
    EmbedlogError,
    InvalidPartitionsError,
    InvalidTimestampError,
    InvalidTopicError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    ReadOnlyError,
    RecordTooLargeError,
    SerializationError,
    StateError,
    StorageError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from tests.support.idle_logs import COUNT, QUIET, fill, frozen, use, values
from tests.support.idle_logs import closed as closed

TP = TopicPartition("t", 0)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedlog.Log]:
    """One open log for the whole table: each row must leave it as it was."""
    with embedlog.open(tmp_path_factory.mktemp("bad") / "log", config=QUIET) as log:
        log.create_topic("t", 2)
        log.create_topic("a.b")
        log.create_topic("kept", config={"cleanup.policy": "compact"})
        fill(log)
        log.flush()
        with log.producer() as producer:  # files of a first use exist before
            producer.send_batch("kept", [b"v"], [b"k"]).result(10)
            producer.send("t", b"", partition=1).result(10)
        log.delete_records({TP: 5})
        values(log)
        yield log


def consuming(
    act: Callable[[embedlog.Consumer], Any], **config: Any
) -> Callable[[embedlog.Log], Any]:
    def call(log: embedlog.Log) -> Any:
        with log.consumer(**config) as consumer:
            return act(consumer)

    return call


def seeking(offset: Any, **config: Any) -> Callable[[embedlog.Log], Any]:
    def act(consumer: embedlog.Consumer) -> Any:
        consumer.assign([TP])
        consumer.seek(TP, offset)
        return consumer.poll(timeout=1)

    return consuming(act, **config)


def sending(*arguments: Any, config: Any = None, **keywords: Any) -> Callable[[embedlog.Log], Any]:
    def call(log: embedlog.Log) -> Any:
        with log.producer(**(config or {})) as producer:
            return producer.send(*arguments, **keywords).result(10)

    return call


def sending_batch(*arguments: Any, **keywords: Any) -> Callable[[embedlog.Log], Any]:
    def call(log: embedlog.Log) -> Any:
        with log.producer() as producer:
            return producer.send_batch(*arguments, **keywords).result(10)

    return call


def after_close(kind: str, act: Callable[[Any], Any]) -> Callable[[embedlog.Log], Any]:
    def call(log: embedlog.Log) -> Any:
        made = log.producer() if kind == "producer" else log.consumer("t")
        made.close()
        return act(made)

    return call


def refuse(value: Any) -> bytes:
    raise ValueError("no")


Row = tuple[str, Callable[[embedlog.Log], Any], type[Exception], str]

TYPES: list[Row] = [
    ("topic no text", lambda log: log.create_topic(5), TypeError, "str"),
    ("partitions no number", lambda log: log.create_topic("x", "3"), TypeError, "int"),
    ("partitions a truth", lambda log: log.create_topic("x", True), TypeError, "int"),
    ("settings no mapping", lambda log: log.create_topic("x", config=5), TypeError, "mapping"),
    ("alter without mapping", lambda log: log.alter_topic("t", ["a"]), TypeError, "mapping"),
    ("delete records of a list", lambda log: log.delete_records([TP]), TypeError, "mapping"),
    ("delete records to a text", lambda log: log.delete_records({TP: "5"}), TypeError, "int"),
    (
        "delete records of a name",
        lambda log: log.delete_records({"t": 5}),
        TypeError,
        "TopicPartition",
    ),
    ("send to no text", sending(b"t", b"v"), TypeError, "str"),
    ("value a text", sending("t", "v"), TypeError, "value_serializer"),
    ("key a number", sending("t", b"v", 5), TypeError, "key_serializer"),
    ("partition a text", sending("t", b"v", partition="0"), TypeError, "int"),
    ("time a float", sending("t", b"v", timestamp_ms=1.5), TypeError, "int"),
    ("headers a number", sending("t", b"v", headers=5), TypeError, "header"),
    ("header name bytes", sending("t", b"v", headers=[(b"h", b"v")]), TypeError, "str"),
    ("header value a text", sending("t", b"v", headers=[("h", "v")]), TypeError, "bytes"),
    ("batch one value", sending_batch("t", b"v"), TypeError, "many values"),
    ("batch a mapping", sending_batch("t", {"value": b"v"}), TypeError, "many values"),
    ("batch of numbers", sending_batch("t", [1, 2]), TypeError, "value_serializer"),
    ("assign a name", consuming(lambda c: c.assign(["t"])), TypeError, "TopicPartition"),
    ("subscribe to one text", consuming(lambda c: c.subscribe("t")), TypeError, "a list of names"),
    ("seek to a text", seeking("5"), TypeError, "int"),
    (
        "poll for a text",
        consuming(lambda c: (c.assign([TP]), c.poll(timeout="1"))),
        TypeError,
        "timeout",
    ),
    (
        "times by name",
        consuming(lambda c: c.offsets_for_times({"t": 5})),
        TypeError,
        "TopicPartition",
    ),
    ("scan of a number", lambda log: log.scan(5), TypeError, "str"),
    ("scan from a text", lambda log: log.scan("t", start_offset="5"), TypeError, "start_offset"),
    ("scan partitions a text", lambda log: log.scan("t", partitions="0"), TypeError, "partitions"),
    (
        "scan time without zone",
        lambda log: log.scan("t", start_time=datetime(2024, 1, 1)),
        TypeError,
        "time zone",
    ),
    ("scan columns a text", lambda log: log.scan("t", columns="value"), TypeError, "columns"),
    ("topic consumer of a number", lambda log: log.consumer(5), TypeError, "str"),
    ("backup to a number", lambda log: log.backup(5), TypeError, "PathLike"),
    ("flush a number", lambda log: log.flush(5), TypeError, "str"),
    ("durable offset of a text", lambda log: log.durable_offset("t", "0"), TypeError, "int"),
]

NAMES: list[Row] = [
    *(
        (
            f"topic {name[:9]!r}",
            lambda log, name=name: log.create_topic(name),
            InvalidTopicError,
            "1 to 249",
        )
        for name in ("", ".", "..", "a/b", "a b", "ä", "x\0y", "x" * 250, "../t")
    ),
    ("topic that exists", lambda log: log.create_topic("t"), TopicExistsError, "'t'"),
    (
        "topic that collides",
        lambda log: log.create_topic("a_b"),
        InvalidTopicError,
        "collides with the topic a.b",
    ),
    (
        "internal topic",
        lambda log: log.create_topic("__consumer_offsets"),
        InvalidTopicError,
        "own topics",
    ),
    (
        "metadata log",
        lambda log: log.create_topic("__cluster_metadata"),
        InvalidTopicError,
        "metadata",
    ),
    *(
        (f"unknown topic: {verb}", call, UnknownTopicOrPartitionError, "nowhere")
        for verb, call in {
            "describe": lambda log: log.describe_topic("nowhere"),
            "delete": lambda log: log.delete_topic("nowhere"),
            "alter": lambda log: log.alter_topic("nowhere", {}),
            "grow": lambda log: log.create_partitions("nowhere", 5),
            "delete records": lambda log: log.delete_records({TopicPartition("nowhere", 0): 0}),
            "flush": lambda log: log.flush("nowhere"),
            "durable offset": lambda log: log.durable_offset("nowhere", 0),
            "scan": lambda log: log.scan("nowhere"),
            "send": sending("nowhere", b"v"),
            "send batch": sending_batch("nowhere", [b"v"]),
            "assign": consuming(
                lambda c: (c.assign([TopicPartition("nowhere", 0)]), c.poll(timeout=1))
            ),
            "consumer": lambda log: log.consumer("nowhere"),
            "ends": consuming(lambda c: c.end_offsets([TopicPartition("nowhere", 0)])),
            "times": consuming(lambda c: c.offsets_for_times({TopicPartition("nowhere", 0): 0})),
        }.items()
    ),
    *(
        (f"unknown partition: {verb}", call, UnknownTopicOrPartitionError, "9")
        for verb, call in {
            "delete records": lambda log: log.delete_records({TopicPartition("t", 9): 0}),
            "durable offset": lambda log: log.durable_offset("t", 9),
            "scan": lambda log: log.scan("t", partitions=9),
            "send": sending("t", b"v", partition=9),
            "send batch": sending_batch("t", [b"v"], partition=9),
            "assign": consuming(lambda c: (c.assign([TopicPartition("t", 9)]), c.poll(timeout=1))),
            "ends": consuming(lambda c: c.end_offsets([TopicPartition("t", 9)])),
        }.items()
    ),
    ("no partitions", lambda log: log.create_topic("x", 0), InvalidPartitionsError, "1 to"),
    (
        "fewer partitions",
        lambda log: log.create_partitions("t", 1),
        InvalidPartitionsError,
        "more than",
    ),
    ("partition below 0", sending("t", b"v", partition=-1), UnknownTopicOrPartitionError, "-1"),
    (
        "scan partition below 0",
        lambda log: log.scan("t", partitions=-1),
        UnknownTopicOrPartitionError,
        "-1",
    ),
]

NUMBERS: list[Row] = [
    (
        "delete records above the end",
        lambda log: log.delete_records({TP: COUNT + 1}),
        OffsetOutOfRangeError,
        f"0 to {COUNT}",
    ),
    (
        "delete records below -1",
        lambda log: log.delete_records({TP: -2}),
        OffsetOutOfRangeError,
        "-2",
    ),
    ("seek below 0", seeking(-1), OffsetOutOfRangeError, "-1"),
    (
        "seek below the start",
        seeking(2, auto_offset_reset="none"),
        OffsetOutOfRangeError,
        f"5 to {COUNT}",
    ),
    (
        "seek above the end",
        seeking(COUNT + 1, auto_offset_reset="none"),
        OffsetOutOfRangeError,
        str(COUNT + 1),
    ),
    (
        "seek beyond 64 bits",
        seeking(2**64, auto_offset_reset="none"),
        OffsetOutOfRangeError,
        str(2**64),
    ),
    (
        "no position at all",
        consuming(lambda c: (c.assign([TP]), c.poll(timeout=1)), auto_offset_reset="none"),
        NoOffsetForPartitionError,
        "auto.offset.reset",
    ),
    ("record too large", sending("t", bytes(1 << 20)), RecordTooLargeError, "max.request.size"),
    (
        "batch too large",
        sending("t", bytes(1 << 20), config={"max_request_size": 1 << 21}),
        RecordTooLargeError,
        "max.message.bytes",
    ),
    ("negative time", sending("t", b"v", timestamp_ms=-1), InvalidTimestampError, "negative"),
    (
        "time beyond 64 bits",
        sending("t", b"v", timestamp_ms=2**63),
        InvalidTimestampError,
        str(2**63),
    ),
    (
        "time of next year",
        sending("t", b"v", timestamp_ms=2**45),
        InvalidTimestampError,
        "too far from now",
    ),
    (
        "negative time in a batch",
        sending_batch("t", [b"v"], timestamps_ms=[-1]),
        InvalidTimestampError,
        "-1",
    ),
    ("null key in a compacted topic", sending("kept", b"v"), EmbedlogError, "key"),
    (
        "columns that differ",
        sending_batch("t", [b"v"], keys=[b"a", b"b"]),
        EmbedlogError,
        "as many",
    ),
    (
        "serializer that raises",
        sending("t", 5, config={"value_serializer": refuse}),
        SerializationError,
        "value_serializer",
    ),
]

SETTINGS: list[Row] = [
    (
        "unknown for a topic",
        lambda log: log.create_topic("x", config={"retention.msec": 5}),
        ConfigError,
        "retention.ms?",
    ),
    (
        "unknown for alter",
        lambda log: log.alter_topic("t", {"segment_byte": 5}),
        ConfigError,
        "segment_bytes?",
    ),
    ("unknown for a producer", lambda log: log.producer(linger=5), ConfigError, "linger_ms?"),
    (
        "unknown for a consumer",
        lambda log: log.consumer("t", auto_offset="x"),
        ConfigError,
        "auto_offset_reset?",
    ),
    (
        "out of range",
        lambda log: log.create_topic("x", config={"segment.bytes": 13}),
        ConfigError,
        "from 14",
    ),
    (
        "no number",
        lambda log: log.create_topic("x", config={"segment.bytes": "many"}),
        ConfigError,
        "many",
    ),
    ("unknown choice", lambda log: log.producer(compression_type="rar"), ConfigError, "zstd"),
    (
        "given twice",
        lambda log: log.create_topic("x", config={"segment.bytes": 99, "segment_bytes": 99}),
        ConfigError,
        "twice",
    ),
    (
        "of a server",
        lambda log: log.create_topic("x", config={"remote.storage.enable": True}),
        ConfigError,
        "tiered",
    ),
    (
        "contradiction",
        lambda log: log.create_topic(
            "x", config={"min.compaction.lag.ms": 9, "max.compaction.lag.ms": 5}
        ),
        ConfigError,
        "max.compaction.lag.ms",
    ),
    (
        "isolation level",
        lambda log: log.scan("t", isolation_level="none"),
        ConfigError,
        "read_committed",
    ),
    ("unknown column", lambda log: log.scan("t", columns=["values"]), ConfigError, "value"),
]

STATES: list[Row] = [
    (
        "producer closed",
        after_close("producer", lambda made: made.send("t", b"v")),
        ClosedError,
        "closed",
    ),
    (
        "producer closed, batch",
        after_close("producer", lambda made: made.send_batch("t", [b"v"])),
        ClosedError,
        "closed",
    ),
    (
        "producer closed, flush",
        after_close("producer", lambda made: made.flush()),
        ClosedError,
        "closed",
    ),
    ("consumer closed", after_close("consumer", lambda made: made.poll()), ClosedError, "closed"),
    (
        "consumer closed, seek",
        after_close("consumer", lambda made: made.seek(TP, 0)),
        ClosedError,
        "closed",
    ),
    ("consumer without assignment", consuming(lambda c: c.poll()), StateError, "assign"),
    (
        "seek an unassigned partition",
        consuming(lambda c: (c.assign([TP]), c.seek(TopicPartition("t", 1), 0))),
        StateError,
        "t",
    ),
    ("commit without a group", consuming(lambda c: c.commit()), EmbedlogError, "group"),
]


@pytest.mark.parametrize(
    ("call", "error", "fact"),
    [pytest.param(*row[1:], id=row[0]) for row in (*TYPES, *NAMES, *NUMBERS, *SETTINGS, *STATES)],
)
def test_a_bad_call_is_a_typed_error_with_the_facts_and_changes_nothing(
    shared: embedlog.Log, call: Callable[[embedlog.Log], Any], error: type[Exception], fact: str
) -> None:
    before = frozen(shared.path)
    held = values(shared)
    with pytest.raises(error) as problem:
        call(shared)
    assert isinstance(problem.value, (EmbedlogError, TypeError, ValueError))
    assert fact in str(problem.value), str(problem.value)
    assert frozen(shared.path) == before
    assert values(shared) == held


def test_the_log_is_usable_after_all_of_that(shared: embedlog.Log) -> None:
    before = values(shared)
    with shared.producer() as producer:
        producer.send("t", b"after", partition=1).result(10)
    assert values(shared) == [*before, b"after"]
    assert sorted(shared.topics()) == ["a.b", "kept", "t"]


# ---- handles that are closed or may not write ----------------------------------------------------

VERBS: dict[str, Callable[[embedlog.Log], Any]] = {
    "create_topic": lambda log: log.create_topic("x"),
    "delete_topic": lambda log: log.delete_topic("t"),
    "alter_topic": lambda log: log.alter_topic("t", {}),
    "create_partitions": lambda log: log.create_partitions("t", 9),
    "delete_records": lambda log: log.delete_records({TP: 1}),
    "flush": lambda log: log.flush(),
    "housekeep": lambda log: log.housekeep(),
    "producer": lambda log: log.producer(),
}
LOOKS: dict[str, Callable[[embedlog.Log], Any]] = {
    "describe_topic": lambda log: log.describe_topic("t"),
    "topics": lambda log: log.topics(),
    "durable_offset": lambda log: log.durable_offset("t", 0),
    "consumer": lambda log: log.consumer("t"),
    "scan": lambda log: log.scan("t"),
}


@pytest.mark.parametrize("verb", [*VERBS, *LOOKS])
def test_a_closed_log_does_nothing(closed: Path, verb: str) -> None:
    log = embedlog.open(closed, config=QUIET)
    log.close()
    log.close()
    before = frozen(closed)
    with pytest.raises(ClosedError, match="closed"):
        (VERBS | LOOKS)[verb](log)
    assert frozen(closed) == before


@pytest.mark.parametrize("verb", VERBS)
def test_a_reader_changes_nothing(closed: Path, verb: str) -> None:
    before = frozen(closed)
    with embedlog.open(closed, read_only=True) as log:
        with pytest.raises(ReadOnlyError):
            VERBS[verb](log)
        assert len(values(log)) == COUNT
    assert frozen(closed) == before


def test_what_a_closed_log_made_is_closed_too(closed: Path) -> None:
    log = embedlog.open(closed, config=QUIET)
    producer = log.producer()
    consumer = log.consumer("t")
    scan = log.scan("t")
    rows = scan.records()
    next(rows)
    log.close()
    for call in (
        lambda: producer.send("t", b"v"),
        consumer.poll,
        lambda: list(scan.records()),
        lambda: list(rows),
    ):
        with pytest.raises(ClosedError):
            call()
    use(closed, read_only=False)


# ---- full disks ----------------------------------------------------------------------------------


def test_a_topic_whose_growth_fails_at_any_sync_is_readable_at_once(tmp_path: Path) -> None:
    """The new size was on disk, its directories were taken back, and the old size could not be
    written: nothing could be read.
    """
    with (
        embedlog.open(tmp_path / "log", config=QUIET) as log,
        log.producer(linger_ms=0) as producer,
    ):
        log.create_topic("t")
        producer.send("t", b"kept", partition=0).result(10)
        nth = struck = 1
        while struck:
            before = len(log.describe_topic("t").partitions)
            system.fault_arm(["fsync"], nth, "fail", errno.ENOSPC, sticky=True)
            try:
                log.create_partitions("t", before + 1)
            except (StorageError, InvalidPartitionsError):
                # or the partial creation of the last turn was completed first
                pass
            struck = system.fault_counters()[1]
            system.fault_off()
            assert len(log.describe_topic("t").partitions) in (before, before + 1), nth
            assert values(log) == [b"kept"], nth
            nth += 1
        assert nth > 4


@pytest.mark.parametrize("sticky", [False, True], ids=["once", "for good"])
def test_a_topic_whose_creation_fails_at_any_sync_is_there_or_not(
    tmp_path: Path, sticky: bool
) -> None:
    """The topic was published, the sync after that failed, its directories were removed, and the
    list could not be written.
    """
    with (
        embedlog.open(tmp_path / "log", config=QUIET) as log,
        log.producer(linger_ms=0) as producer,
    ):
        nth = struck = 1
        while struck:
            system.fault_arm(["fsync"], nth, "fail", errno.EINTR, sticky=sticky)
            try:
                log.create_topic("t", 2)
            except StorageError:
                pass
            struck = system.fault_counters()[1]
            system.fault_off()
            if "t" not in log.topics():
                with contextlib.suppress(TopicExistsError):  # a partial creation is completed first
                    log.create_topic("t", 2)
            assert len(log.describe_topic("t").partitions) == 2, nth
            producer.send("t", b"kept", partition=1).result(10)
            assert values(log) == [b"kept"], nth
            log.delete_topic("t")
            nth += 1
        assert nth > 6


@pytest.mark.parametrize("sticky", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize(
    "kinds",
    [["pwrite"], ["pwrite", "open", "fallocate", "mkdir", "link"]],
    ids=["writes", "names too"],
)
def test_a_disk_that_is_full_at_any_write_of_an_append(
    tmp_path: Path, kinds: list[str], sticky: bool
) -> None:
    """With a roll in it: the append writes log, indexes, snapshot, manifest."""
    with embedlog.open(tmp_path / "log", config=QUIET) as log, log.producer(retries=0) as producer:
        log.create_topic("t", config={"segment.bytes": 600, "index.interval.bytes": 0})
        kept: list[bytes] = []
        felt = nth = 0
        while True:
            nth += 1
            for number in range(3):
                value = b"%d before %d " % (number, nth) * 12
                producer.send("t", value).result(10)
                kept.append(value)
            value = b"at %d " % nth * 60
            system.fault_arm(kinds, nth, "fail", errno.ENOSPC, sticky=sticky)
            problem = producer.send("t", value).exception(10)
            struck = system.fault_counters()[1]
            system.fault_off()
            if problem is None:
                kept.append(value)
            else:
                assert isinstance(problem, StorageError), problem
                assert problem.errno == errno.ENOSPC
                assert problem.path
            assert values(log) == kept, nth
            if not struck:
                break
            felt += 1
        assert felt >= 2, "hardly any fault was felt"
    with embedlog.open(tmp_path / "log", read_only=True) as log:
        assert values(log) == kept


def test_a_write_that_is_cut_short_is_finished_or_taken_back(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log", config=QUIET) as log, log.producer(retries=0) as producer:
        log.create_topic("t")
        kept = []
        for nth in range(1, 6):
            system.fault_arm(["pwrite"], nth, "short", errno.ENOSPC)
            value = b"short %d " % nth * 50
            if producer.send("t", value).exception(10) is None:
                kept.append(value)
            system.fault_off()
            assert values(log) == kept
        assert kept
    assert os.stat(tmp_path / "log" / "t-0" / f"{0:020d}.log").st_size
