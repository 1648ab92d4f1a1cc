"""Mirrors a topic to a real Kafka and back: offsets are mapped, and every record is copied once,
even if the mirror is killed.

    python examples/mirror.py push data events localhost:9092       from the log directory `data` to
    the broker python examples/mirror.py pull data events localhost:9092       from the broker to
    the log directory python examples/mirror.py push data events localhost:9092 --find 2:1234
                                                                    the broker's offset of offset
                                                                    1234 of partition 2

A run copies the records that exist when it begins, and ends. The next run continues where the last
one stopped or was killed. Each piece is one transaction: the records, and lines of a *map* (a
second topic, `events.map`, beside the copy) from source offsets to target offsets. The map is the
mirror's only state: a run continues after its last line. A piece of a killed mirror has neither
records nor lines, because the next run aborts it before it reads the map.

Guaranteed: readers with `isolation.level=read_committed` see each committed record once, in order,
in its partition, with key, value, headers and timestamp. Not guaranteed: readers of uncommitted
data also see aborted pieces. Offsets and leader epochs differ (hence the map). A broker with
`message.timestamp.type=LogAppendTime` assigns new timestamps, as does librdkafka for timestamp 0.
Records that retention deleted from the source before they were copied are lost: the mirror reports
this and stops.
"""

from __future__ import annotations

import argparse
import bisect
import functools
import itertools
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined, unused-ignore]
from rich.console import Console
from rich.progress import Progress

import embedlog


class Run(NamedTuple):
    """One line of the map: `size` records from source offset `source` on have the target offsets
    from `target` on.
    """

    source: int
    target: int
    size: int


class Record(NamedTuple):
    """A record of either side."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int


Map = dict[int, list[Run]]  # by partition, in the order of offsets
KEPT = {"cleanup.policy": "compact"}  # settings of the map: lines are never deleted by age


class MirrorError(Exception):
    """The mirror cannot continue without loss or duplicates."""


# ---- the map -------------------------------------------------------------------------------------


def runs(places: Iterable[tuple[int, int]]) -> Iterator[Run]:
    """Pairs of a source offset and a target offset, in order, as lines of the map: both sides may
    have gaps.
    """
    found: Run | None = None
    for source, target in places:
        if found and (source, target) == (found.source + found.size, found.target + found.size):
            found = Run(found.source, found.target, found.size + 1)
        else:
            if found:
                yield found
            found = Run(source, target, 1)
    if found:
        yield found


def next_offset(lines: list[Run]) -> int | None:
    """The source offset to continue at; None if nothing was copied yet."""
    return lines[-1].source + lines[-1].size if lines else None


def translate(lines: list[Run], offset: int) -> int | None:
    """The target offset for a reader at source offset `offset`; None if it was not copied yet."""
    at = bisect.bisect_right(lines, offset, key=lambda run: run.source) - 1
    if at >= 0 and offset < lines[at].source + lines[at].size:
        return lines[at].target + offset - lines[at].source
    return lines[at + 1].target if at + 1 < len(lines) else None  # in a gap: the next record


def map_lines(places: dict[int, list[tuple[int, int]]]) -> Iterator[tuple[int, bytes, bytes]]:
    """Partition, key and value of the records of the map. Keys are unique, so compaction keeps
    every line.
    """
    for partition, pairs in places.items():
        for run in runs(pairs):
            yield partition, b"%d" % run.source, json.dumps(run._asdict()).encode()


# ---- the embedlog side ---------------------------------------------------------------------------


def map_here(log: embedlog.Log, topic: str) -> Map:
    """The map of a copy in the log directory."""
    found: Map = defaultdict(list)
    if topic in log.topics():
        for record in log.scan(topic, isolation_level="read_committed").records():
            found[record.partition].append(Run(**json.loads(record.value)))
    return found


def records_here(log: embedlog.Log, topic: str, known: Map) -> tuple[int, Iterator[Record]]:
    """An upper bound of the records to copy, and the records."""
    starts = {}
    for each in log.describe_topic(topic).partitions:
        wanted = next_offset(known[each.partition])
        if wanted is not None and not each.log_start_offset <= wanted <= each.log_end_offset:
            raise MirrorError(
                f"{topic}-{each.partition}: offset {wanted} is next, the log has "
                f"{each.log_start_offset} to {each.log_end_offset}"
            )
        starts[each.partition] = each.log_start_offset if wanted is None else wanted
    scan = log.scan(topic, start_offset=starts, isolation_level="read_committed")
    count = sum(end - start for start, end in scan.bounds.values())
    return count, (
        Record(
            each.partition, each.offset, each.key, each.value, list(each.headers), each.timestamp_ms
        )
        for each in scan.records()
    )


def write_here(producer: embedlog.Producer, target: str, piece: list[Record]) -> None:
    """Write one piece and its lines of the map, both or neither."""
    with producer.transaction():
        futures = [
            producer.send(
                target,
                each.value,
                each.key,
                partition=each.partition,
                timestamp_ms=each.timestamp_ms,
                headers=each.headers,
            )
            for each in piece
        ]
        places = defaultdict(list)
        for each, future in zip(piece, futures, strict=True):
            # written, not committed yet
            places[each.partition].append((each.offset, future.result().offset))
        for partition, key, value in map_lines(places):
            producer.send(f"{target}.map", value, key, partition=partition)


# ---- the Kafka side ------------------------------------------------------------------------------


def consumer_there(bootstrap: str) -> Any:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "mirror",  # required by the client; nothing is committed
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",  # records deleted by retention are an error
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
        }
    )


def partitions_there(consumer: Any, topic: str) -> list[int]:
    """The numbers of the partitions; empty if the topic does not exist."""
    return sorted(consumer.list_topics(topic, timeout=30).topics[topic].partitions)


def consume(consumer: Any, topic: str, starts: dict[int, int]) -> Iterator[Any]:
    """Messages from these offsets until the end of each partition."""
    consumer.assign(
        [confluent_kafka.TopicPartition(topic, number, start) for number, start in starts.items()]
    )
    open_ends = set(starts)
    while open_ends:
        for message in consumer.consume(10_000, timeout=0.1):
            error = message.error()
            if error is None:
                yield message
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                open_ends.discard(message.partition())
            else:
                raise MirrorError(f"{topic}-{message.partition()}: {error.str()}")


def map_there(consumer: Any, topic: str) -> Map:
    """The map of a copy at the broker."""
    found: Map = defaultdict(list)
    starts = dict.fromkeys(partitions_there(consumer, topic), confluent_kafka.OFFSET_BEGINNING)
    for message in consume(consumer, topic, starts):
        found[message.partition()].append(Run(**json.loads(message.value())))
    return found


def records_there(consumer: Any, topic: str, known: Map) -> tuple[int, Iterator[Record]]:
    """An upper bound of the records to copy, and the records."""
    starts = {}
    count = 0
    for number in partitions_there(consumer, topic):
        first, end = consumer.get_watermark_offsets(
            confluent_kafka.TopicPartition(topic, number), timeout=30
        )
        wanted = next_offset(known[number])
        if wanted is not None and not first <= wanted <= end:
            raise MirrorError(
                f"{topic}-{number}: offset {wanted} is next, the broker has {first} to {end}"
            )
        starts[number] = first if wanted is None else wanted
        count += end - starts[number]
    return count, (
        Record(
            each.partition(),
            each.offset(),
            each.key(),
            each.value(),
            each.headers() or [],
            each.timestamp()[1],
        )
        for each in consume(consumer, topic, starts)
    )


def create_there(bootstrap: str, topics: dict[str, dict[str, str]], partition_count: int) -> None:
    """Create the topics that do not exist."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = [NewTopic(name, partition_count, config=config) for name, config in topics.items()]
    for name, future in admin.create_topics(new, operation_timeout=30).items():
        try:
            future.result(60)
        except confluent_kafka.KafkaException as refused:
            if refused.args[0].code() != confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise MirrorError(f"{name}: {refused.args[0].str()}") from refused


def write_there(producer: Any, target: str, piece: list[Record]) -> None:
    """Write one piece and its lines of the map, both or neither: an error ends the mirror, and the
    next run aborts the piece.
    """
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    failed: list[Any] = []

    def delivered(offset: int, error: Any, message: Any) -> None:
        if error:
            failed.append(error)
        else:
            places[message.partition()].append((offset, message.offset()))

    producer.begin_transaction()
    for each in piece:
        producer.produce(
            target,
            each.value,
            each.key,
            each.partition,
            timestamp=each.timestamp_ms,
            headers=each.headers,
            on_delivery=functools.partial(delivered, each.offset),
        )
        producer.poll(0)
    producer.flush()  # the map needs their offsets
    if failed:
        raise MirrorError(f"{target}: {failed[0].str()}")
    for partition, key, value in map_lines(places):
        producer.produce(f"{target}.map", value, key, partition)
    producer.commit_transaction()


# ---- push and pull -------------------------------------------------------------------------------


def in_pieces(records: Iterator[Record], size: int, total: int) -> Iterator[list[Record]]:
    """The records, `size` at a time, with a progress bar."""
    with Progress(console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("records", total=total)
        while piece := list(itertools.islice(records, size)):
            yield piece
            bars.advance(bar, len(piece))


def push(options: argparse.Namespace) -> int:
    """Copy from the log directory to the broker; return the number of records."""
    with embedlog.open(options.directory, read_only=True) as log:
        topics = {options.target: {}, f"{options.target}.map": KEPT}
        create_there(options.bootstrap, topics, log.describe_topic(options.topic).partition_count)
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": options.bootstrap,
                "transactional.id": f"mirror-{options.target}",
                "linger.ms": 5,
            }
        )
        # fences an earlier mirror and aborts its piece: the map is stable from here on
        producer.init_transactions()
        consumer = consumer_there(options.bootstrap)
        count, records = records_here(
            log, options.topic, map_there(consumer, f"{options.target}.map")
        )
        consumer.close()
        copied = 0
        for piece in in_pieces(records, options.piece, count):
            write_there(producer, options.target, piece)
            copied += len(piece)
        return copied


def pull(options: argparse.Namespace) -> int:
    """Copy from the broker to the log directory; return the number of records."""
    consumer = consumer_there(options.bootstrap)
    partition_count = len(partitions_there(consumer, options.topic))
    if not partition_count:
        raise MirrorError(f"{options.topic}: the broker has no such topic")
    with (
        embedlog.open(options.directory) as log,
        log.producer(transactional_id=f"mirror-{options.target}") as producer,
    ):
        for name, config in ((options.target, {}), (f"{options.target}.map", KEPT)):
            if name not in log.topics():
                log.create_topic(name, partition_count, config=config)
        producer.init_transactions()  # as above
        count, records = records_there(
            consumer, options.topic, map_here(log, f"{options.target}.map")
        )
        copied = 0
        for piece in in_pieces(records, options.piece, count):
            write_here(producer, options.target, piece)
            copied += len(piece)
    consumer.close()
    return copied


def find(options: argparse.Namespace) -> int | None:
    """The target offset of a source offset."""
    partition, offset = (int(word) for word in options.find.split(":"))
    if options.direction == "push":
        return translate(
            map_there(consumer_there(options.bootstrap), f"{options.target}.map")[partition], offset
        )
    with embedlog.open(options.directory, read_only=True) as log:
        return translate(map_here(log, f"{options.target}.map")[partition], offset)


def main() -> int:
    parser = argparse.ArgumentParser(description="mirror a topic to a real Kafka, or back")
    parser.add_argument(
        "direction", choices=["push", "pull"], help="push: to the broker; pull: from it"
    )
    parser.add_argument("directory", help="the log directory")
    parser.add_argument("topic", help="the topic that is copied")
    parser.add_argument("bootstrap", help="address of a broker, such as localhost:9092")
    parser.add_argument("--target", help="the name of the copy, if it is to have another one")
    parser.add_argument(
        "--piece",
        type=int,
        default=5000,
        metavar="N",
        help="records in one transaction (default %(default)s)",
    )
    parser.add_argument(
        "--find",
        metavar="PARTITION:OFFSET",
        help="copy nothing, print the position of that offset in the copy",
    )
    options = parser.parse_args()
    options.target = options.target or options.topic
    try:
        if options.find:
            print(find(options))
        else:
            copied = push(options) if options.direction == "push" else pull(options)
            print(f"{copied:,} records copied to {options.target}")
    except (MirrorError, embedlog.EmbedlogError, confluent_kafka.KafkaException) as problem:
        print(f"mirror: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
