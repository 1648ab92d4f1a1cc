"""Directories of embedlog at a real Kafka: dump-log finds no error, a broker serves them unchanged,
each locks the other out.

All is written once, into one log directory, with the expectation beside it. The expected records
are computed from the sent ones, not from those that embedlog reads back.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import embedlog
from tests.faults.partition import stamping
from tests.kafka import client, oracle
from tests.kafka.client import shown, told

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
THOUSANDS = 10_000  # records in hundreds of batches of 4 KiB
START_MS = 1_700_000_000_000
SEGMENT_FILES = {".log", ".index", ".timeindex", ".txnindex"}
pytestmark = pytest.mark.xdist_group("kafka")  # one worker: the directory is written once

# messages of a broker that does not trust a log
MISTRUST = ("ecovering", "ebuilding index", "orrupt", "truncat", "Could not find", "stray", "ERROR")


@dataclass
class Sent:
    """The records sent to one topic: the rows that a consumer must get, by partition."""

    topic: str
    config: dict[str, Any] = field(default_factory=dict)
    partition_count: int = 1
    timestamp_type: str = "CreateTime"
    rows: dict[int, list[dict[str, object]]] = field(default_factory=dict)
    aborted: set[object] = field(default_factory=set)  # offsets that read_committed leaves out

    def add(
        self,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Any,
        timestamp_ms: int,
    ) -> None:
        own = self.rows.setdefault(partition, [])
        own.append(
            {
                "partition": partition,
                "offset": len(own),
                "timestamp_ms": timestamp_ms,
                "timestamp_type": self.timestamp_type,
                "leader_epoch": 0,
                "key": shown(key),
                "value": shown(value),
                "headers": [[name, shown(data)] for name, data in headers],
            }
        )

    def expected(self, isolation: str = "read_uncommitted") -> list[dict[str, object]]:
        rows = [row for partition in sorted(self.rows) for row in self.rows[partition]]
        return [
            row
            for row in rows
            if isolation == "read_uncommitted" or row["offset"] not in self.aborted
        ]


class Writer:
    """Writes topics into an open log and keeps the expectations."""

    def __init__(self, log: embedlog.Log) -> None:
        self.log = log
        self.topics: dict[str, Sent] = {}

    def topic(self, name: str, partition_count: int = 1, **config: Any) -> Sent:
        dotted = {key.replace("_", "."): value for key, value in config.items()}
        self.log.create_topic(name, partition_count, config=dotted)
        kind = dotted.get("message.timestamp.type", "CreateTime")
        return self.topics.setdefault(name, Sent(name, dotted, partition_count, kind))

    def send(
        self, to: Sent, rows: list[tuple[int, bytes | None, bytes | None, Any, int]], **config: Any
    ) -> None:
        """One by one."""
        with self.log.producer(max_request_size=8_000_000, **config) as producer:
            futures = []
            for partition, key, value, headers, time_ms in rows:
                given = {"partition": partition, "timestamp_ms": time_ms, "headers": headers}
                futures.append(producer.send(to.topic, value, key, **given))
            for (partition, key, value, headers, time_ms), future in zip(
                rows, futures, strict=True
            ):
                done = future.result(30)
                assert done.offset == len(to.rows.get(partition, []))
                to.add(
                    partition,
                    key,
                    value,
                    headers,
                    time_ms if to.timestamp_type == "CreateTime" else done.timestamp_ms,
                )

    def send_batch(
        self, to: Sent, partition: int, values: list[bytes], keys: list[bytes] | None, **config: Any
    ) -> None:
        """In one call."""
        times = [START_MS + number for number in range(len(values))]
        with self.log.producer(max_request_size=8_000_000, **config) as producer:
            parts = producer.send_batch(
                to.topic, values, keys=keys, partition=partition, timestamps_ms=times
            ).result(60)
        assert sum(count for _, _, _, count in parts) == len(values)
        for value, key, time_ms in zip(values, keys or [None] * len(values), times, strict=True):
            to.add(partition, key, value, (), time_ms)


# ---- the written directory -----------------------------------------------------------------------


def text(number: int, size: int) -> bytes:
    return (b"record %d of offset segment batch broker leader epoch " % number * (size // 20 + 1))[
        :size
    ]


def each_codec(out: Writer) -> None:
    for codec in CODECS:
        to = out.topic(f"codec-{codec}", 2)
        rows = [
            (n % 2, b"key-%d" % (n % 50), text(n, n % 300), (), START_MS + n) for n in range(1000)
        ]
        out.send(to, rows, compression_type=codec, linger_ms=50)
        out.send_batch(
            to,
            0,
            [text(n, 200) for n in range(3000)],
            [b"k%d" % n for n in range(3000)],
            compression_type=codec,
        )
        stored = out.topic(
            f"stored-{codec}", 1, compression_type="uncompressed" if codec == "none" else codec
        )
        out.send_batch(
            stored,
            0,
            [text(n, 100) for n in range(500)],
            None,
            compression_type="lz4" if codec == "none" else "none",
        )


def corners(out: Writer) -> None:
    """Null and empty keys, values and headers; names twice; text beyond ASCII; bytes of all kinds;
    times out of order.
    """
    every = bytes(range(256))
    cases: list[tuple[bytes | None, bytes | None, Any]] = [
        (None, b"null key", ()),
        (b"", b"empty key", ()),
        (b"null value", None, ()),
        (b"empty value", b"", ()),
        (None, None, ()),
        (b"one", b"header", [("trace", b"abc")]),
        (b"null", b"header value", [("nothing", None)]),
        (b"empty", b"", [("", b"")]),
        (b"repeated", b"names", [("a", b"1"), ("a", b"2"), ("b", None), ("a", b"")]),
        (every, every[::-1], [("binary", every)]),
        (b"wide", "値".encode(), [("schlüssel-日志", "値".encode())]),
        (b"many", b"", [(f"n{i}", b"x" * i) for i in range(70)]),
    ]
    for name, codec in (("corners", "none"), ("corners-zstd", "zstd")):
        rows = [
            (0, key, value, headers, START_MS + n * 7919 % 1000)
            for n, (key, value, headers) in enumerate(cases)
        ]
        out.send(out.topic(name), rows, compression_type=codec)


def segments(out: Writer) -> None:
    by_size = out.topic(
        "by-size", 2, segment_bytes=65_536, index_interval_bytes=256, segment_index_bytes=2048
    )
    for partition in range(2):
        out.send_batch(
            by_size, partition, [text(n, 150) for n in range(4000)], None, batch_size=2000
        )
    by_time = out.topic("by-time", 1, segment_ms=1000, index_interval_bytes=64)
    out.send(
        by_time,
        [(0, None, text(n, 90), (), START_MS + n * 37) for n in range(300)],
        batch_size=500,
        linger_ms=0,
    )
    stamped = out.topic(
        "append-time",
        1,
        message_timestamp_type="LogAppendTime",
        segment_bytes=20_000,
        index_interval_bytes=128,
    )
    out.send(
        stamped,
        [(0, b"k", text(n, 100), (), START_MS) for n in range(500)],
        batch_size=700,
        compression_type="lz4",
    )


def large(out: Writer) -> None:
    big = out.topic("big", 1, max_message_bytes=8_000_000)
    for codec in CODECS:
        rows = [
            (0, codec.encode(), text(size, size), (), START_MS + size)
            for size in (70_000, 1_048_576, 2_000_000)
        ]
        out.send(big, rows, compression_type=codec)
    thousands = out.topic("thousands", 1, max_message_bytes=4096, index_interval_bytes=4096)
    out.send_batch(thousands, 0, [text(n, 100) for n in range(THOUSANDS)], None)


APPEND = """
import sys, embedlog
with embedlog.open(sys.argv[1], create=False) as log, log.producer() as producer:
    for number in range(200):
        producer.send("by-processes", b"%s %d" % (sys.argv[2].encode(), number), partition=0, timestamp_ms=number).result(30)
"""


def by_processes(out: Writer, directory: Path) -> None:
    """Two other processes append at once while this one has the log open; only then the order is
    known.
    """
    to = out.topic("by-processes", 1, segment_bytes=10_000, index_interval_bytes=128)
    writers = [
        subprocess.Popen([sys.executable, "-c", APPEND, str(directory), name])
        for name in ("one", "two")
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    found = list(out.log.scan(to.topic).records())
    for name in (b"one", b"two"):
        own = [record.value for record in found if record.value.startswith(name)]
        assert own == [b"%s %d" % (name, number) for number in range(200)]
    for record in found:
        to.add(0, None, record.value, (), record.timestamp_ms)


def compacted(out: Writer) -> None:
    """Cleaned twice, in two codecs: remaining records keep their offsets."""
    for codec in ("none", "lz4"):
        to = out.topic(
            f"compacted-{codec}",
            1,
            cleanup_policy="compact",
            segment_bytes=8000,
            min_cleanable_dirty_ratio=0.01,
        )
        for start in (0, 600):
            keys = [b"k%d" % (n * n % 37) for n in range(start, start + 600)]
            rows = [
                (0, key, None if n % 11 == 0 else text(n, 60), (), START_MS + n)
                for n, key in enumerate(keys, start)
            ]
            out.send(to, rows, compression_type=codec, batch_size=2000)
            out.log.housekeep()
        first_active = out.log._engine.partition(to.topic, 0).published().segment_base
        sealed = to.rows[0][:first_active]
        active = to.rows[0][first_active:]
        to.rows[0] = (
            sorted(
                {row["key"]: row for row in sealed}.values(),
                key=lambda row: str(row["offset"]).zfill(9),
            )
            + active
        )


def stamped(out: Writer) -> None:
    """Producers with and without transactions, interleaved over many segments: committed, aborted,
    across a roll.
    """
    to = out.topic("stamped", segment_bytes=5000, index_interval_bytes=500)
    partition = out.log._engine.partition(to.topic, 0)
    undecided = dict[int, set[object]]()
    for step in stamping.closed(stamping.steps(7, 120, START_MS)):
        if isinstance(step, stamping.End):
            partition.append_marker(step.producer_id, step.epoch, commit=step.commit)
            decided = undecided.pop(step.producer_id)
            to.aborted |= set() if step.commit else decided
            continue
        first = partition.append(step.run(), stamp=step.stamp).base_offset
        for number, value in enumerate(step.values()):
            to.add(0, None, value, (), START_MS)
            to.rows[0][-1]["offset"] = first + number
            if step.stamp.transactional:
                undecided.setdefault(step.stamp.producer_id, set()).add(first + number)


@dataclass
class Written:
    directory: Path
    topics: dict[str, Sent]


# not "module": pytest runs tests of one session fixture together, across modules
@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Everything, written in two sessions and closed in order."""
    directory = tmp_path_factory.mktemp("written") / "log"
    with embedlog.open(directory) as log:
        out = Writer(log)
        for write in (each_codec, corners, segments, stamped):
            write(out)
    with embedlog.open(directory) as log:
        out.log = log
        large(out)
        compacted(out)
        by_processes(out, directory)
        for to in (out.topics["codec-none"], out.topics["by-size"], out.topics["corners"]):
            before = len(to.rows[0])
            out.send(
                to,
                [
                    (0, b"late", b"second session %d" % n, (), START_MS + 10**6 + n)
                    for n in range(3)
                ],
            )
            assert len(to.rows[0]) == before + 3
        out.topic("empty", 3)
    return Written(directory, out.topics)


def digests(directory: Path, topics: dict[str, Sent]) -> dict[str, str]:
    """SHA-256 of every segment file of these topics that holds anything: a broker makes empty ones
    where nothing was written.
    """
    found = {}
    for path in sorted(directory.glob("*-*/*")):
        if (
            path.suffix in SEGMENT_FILES
            and path.stat().st_size
            and path.parent.name.rpartition("-")[0] in topics
        ):
            found[f"{path.parent.name}/{path.name}"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


# ---- the judges ----------------------------------------------------------------------------------


def test_embedlog_reads_back_what_was_sent(written: Written) -> None:
    with embedlog.open(written.directory, read_only=True) as log:
        for topic, sent in written.topics.items():
            rows = [told(record) for record in log.scan(topic).records()]
            assert sorted(rows, key=lambda row: row["partition"]) == sent.expected(), topic  # type: ignore[arg-type,return-value]


def test_there_were_many_segments_and_batches(written: Written) -> None:
    """The input of the comparisons below is not empty."""
    assert len(list((written.directory / "by-size-0").glob("*.log"))) > 5
    assert len(list((written.directory / "by-time-0").glob("*.log"))) > 5
    assert len(list((written.directory / "by-processes-0").glob("*.log"))) > 1
    with embedlog.open(written.directory, read_only=True) as log:
        assert (
            written.directory / "thousands-0" / f"{0:020}.log"
        ).stat().st_size > THOUSANDS // 50 * 4096
        assert log.describe_topic("thousands").partitions[0].log_end_offset == THOUSANDS


@pytest.mark.kafka
def test_dump_log_finds_nothing_wrong(
    written: Written, dump_log_verify: Callable[..., int]
) -> None:
    assert dump_log_verify(written.directory, compacted=("compacted-none", "compacted-lz4")) > 100


@pytest.mark.kafka
def test_dump_log_reads_snapshots_and_transaction_indexes(written: Written, kafka: None) -> None:
    """Kafka's tool prints what a replay of the log by embedlog's reference implementation
    returns.
    """
    directory = written.directory / "stamped-0"
    paths = sorted([*directory.glob("*.snapshot"), *directory.glob("*.txnindex")])
    assert len(list(directory.glob("*.snapshot"))) > 5
    assert len(list(directory.glob("*.txnindex"))) > 2
    assert list(stamping.disagreements(directory)) == []
    printed = oracle.tool("dump-log", "--files", ",".join(map(str, paths)))
    assert not printed.stderr.strip(), printed.stderr
    aborted = [line for line in printed.stdout.splitlines() if "firstOffset" in line]
    assert len(aborted) == sum(path.stat().st_size // 34 for path in directory.glob("*.txnindex"))
    producers = [line for line in printed.stdout.splitlines() if "producerEpoch" in line]
    assert len(producers) == sum(
        (path.stat().st_size - 10) // 46 for path in directory.glob("*.snapshot")
    )


@pytest.fixture(scope="session")
def serving(written: Written, broker: oracle.Broker) -> Iterator[oracle.Broker]:
    """The run's broker, with embedlog's partitions moved into its directory."""
    counts = {name: sent.partition_count for name, sent in written.topics.items()}
    client.create_topics(broker.bootstrap, counts)
    broker.stop()
    oracle.move_in(broker, written.directory, counts)
    broker.forget()
    yield broker.start()
    if broker.process is None:
        broker.start()


def test_a_broker_serves_it_unchanged(written: Written, serving: oracle.Broker) -> None:
    """Each record as it was sent; nothing recovered, nothing rebuilt; every file the same byte for
    byte after the shutdown.
    """
    counts = {topic: sent.partition_count for topic, sent in written.topics.items()}
    for isolation in ("read_uncommitted", "read_committed"):
        got = client.read(serving.bootstrap, counts, isolation)
        for topic, sent in written.topics.items():
            assert got[topic] == sent.expected(isolation), topic
    said = [
        line
        for line in serving.said().splitlines()
        if any(f"{topic}-" in line for topic in written.topics)
    ]
    assert [line for line in said if any(word in line for word in MISTRUST)] == []
    assert "since clean shutdown file was found" in serving.said()
    serving.stop()
    left = digests(serving.log_dir, written.topics)
    serving.start()
    assert left == digests(written.directory, written.topics)


@pytest.mark.slow
def test_what_the_broker_adds_comes_back_to_us(
    written: Written, serving: oracle.Broker, tmp_path: Path
) -> None:
    """The directory goes to a broker, which appends, and back again; our own files from before are
    stale then.
    """
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": serving.bootstrap, "compression.type": "zstd"})
    for topic in ("codec-none", "by-size", "corners"):
        for number in range(20):
            producer.produce(
                topic,
                b"a broker's %d" % number,
                b"theirs",
                0,
                timestamp=START_MS + 2 * 10**6 + number,
            )
    assert producer.flush(30) == 0
    serving.stop()
    shutil.copytree(serving.log_dir, tmp_path / "log")
    serving.start()
    for read_only in (True, False):
        with embedlog.open(tmp_path / "log", read_only=read_only) as log:
            for topic in ("codec-none", "by-size", "corners"):
                records = [record for record in log.scan(topic).records() if record.partition == 0]
                ours = [told(record) for record in records if record.key != b"theirs"]
                assert ours == written.topics[topic].rows[0], topic
                assert [record.value for record in records[len(ours) :]] == [
                    b"a broker's %d" % n for n in range(20)
                ], topic
    with embedlog.open(tmp_path / "log") as log, log.producer() as again:
        end = log.describe_topic("corners").partitions[0].log_end_offset
        assert again.send("corners", b"ours again", partition=0).result(10).offset == end


def test_a_brokers_directory_is_refused_while_it_runs(serving: oracle.Broker) -> None:
    for read_only in (False, True):
        with pytest.raises(embedlog.DirectoryInUseError):
            embedlog.open(serving.log_dir, read_only=read_only)


@pytest.mark.slow
def test_a_broker_refuses_ours_while_we_are_in(serving: oracle.Broker) -> None:
    serving.stop()
    with embedlog.open(serving.log_dir) as log:
        with pytest.raises(oracle.OracleComplaint, match="Failed to acquire lock"):
            serving.start()
        assert "codec-none" in log.topics()
    serving.process = None
    serving.start()


@pytest.mark.slow
def test_kafkas_own_consumer_reads_it(written: Written, serving: oracle.Broker) -> None:
    """The Java client, which checks other things than librdkafka does."""
    for topic in (*(f"codec-{codec}" for codec in CODECS), "by-size", "thousands"):
        found = {(row["partition"], row["offset"]): row for row in serving.read(topic)}
        for row in written.topics[topic].expected():
            got = found[row["partition"], row["offset"]]
            assert (encoded(got["key"]), encoded(got["value"])) == (row["key"], row["value"])
            assert got["timestamp_ms"] == row["timestamp_ms"]


def encoded(text: Any) -> object:
    """The output of the console consumer, in the form of the expectation."""
    return shown(None if text is None else text.encode("latin-1"))
