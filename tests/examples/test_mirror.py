"""The mirror: there and back again at a real broker, killed on the way, nothing lost and nothing
doubled.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from tests.kafka import client
from tests.kafka.oracle import Broker
from tests.support import examples, random_log

confluent_kafka = pytest.importorskip("confluent_kafka")
pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(600)]

Row = tuple[Any, ...]
TOTAL = 6000
sys.path.append(str(examples.EXAMPLES))


def here(path: Path, topic: str) -> list[Row]:
    """The records of a reader of committed data in the log directory: partition by partition, all
    fields that a mirror copies.
    """
    with embedlog.open(path, read_only=True) as log:
        found = log.scan(topic, isolation_level="read_committed").records()
        return sorted(
            (
                (
                    each.partition,
                    each.offset,
                    each.key,
                    each.value,
                    tuple(each.headers),
                    each.timestamp_ms,
                )
                for each in found
            ),
            key=lambda row: row[:2],
        )


def there(broker: Broker, topic: str, partitions: int) -> list[Row]:
    return [
        (
            each.partition(),
            each.offset(),
            each.key(),
            each.value(),
            tuple(each.headers() or ()),
            each.timestamp()[1],
        )
        for each in client.messages(broker.bootstrap, {topic: partitions}, "read_committed")
    ]


def same(one: list[Row], other: list[Row]) -> bool:
    """The same records in the same order of each partition, wherever they lie."""
    return [(row[0], *row[2:]) for row in one] == [(row[0], *row[2:]) for row in other]


def fill(path: Path, topic: str, count: int, first: int = 0) -> None:
    with embedlog.open(path, config={"housekeeping": False}) as log:
        if topic not in log.topics():
            log.create_topic(topic, partitions=3)
        with log.producer(batch_size=2000) as producer:
            for number in range(first, first + count):
                producer.send(
                    topic,
                    b"value %d" % number,
                    key=b"k%d" % (number % 7),
                    timestamp_ms=1_700_000_000_000 + number,
                )


def mirror(direction: str, log: Path, topic: str, broker: Broker, *more: object) -> str:
    return examples.run("mirror.py", direction, log, topic, broker.bootstrap, *more).stdout


@pytest.mark.slow
def test_a_topic_goes_there_and_back(broker: Broker, tmp_path: Path) -> None:
    log = tmp_path / "log"
    back = tmp_path / "back"
    fill(log, "mirrored", 300)
    assert (
        mirror("push", log, "mirrored", broker, "--piece", 100)
        == "300 records copied to mirrored\n"
    )
    assert (
        mirror("pull", back, "mirrored", broker, "--target", "again")
        == "300 records copied to again\n"
    )
    sent = here(log, "mirrored")
    assert same(sent, there(broker, "mirrored", 3))
    assert same(sent, here(back, "again"))


@pytest.mark.slow
def test_what_comes_later_follows_and_every_offset_is_found(broker: Broker, tmp_path: Path) -> None:
    log = tmp_path / "log"
    back = tmp_path / "back"
    for first, count in ((0, 300), (300, 50), (350, 0)):
        fill(log, "grows", count, first=first)
        assert (
            mirror("push", log, "grows", broker, "--piece", 40)
            == f"{count} records copied to grows\n"
        )
        assert (
            mirror("pull", back, "grows", broker, "--piece", 40)
            == f"{count} records copied to grows\n"
        )
    sent = here(log, "grows")
    copied = there(broker, "grows", 3)
    again = here(back, "grows")
    assert same(sent, copied)
    assert same(sent, again)
    for direction, place, source, target in (
        ("push", log, sent, copied),
        ("pull", back, copied, again),
    ):
        partition, offset = source[-1][:2]
        assert (
            mirror(direction, place, "grows", broker, "--find", f"{partition}:{offset}")
            == f"{target[-1][1]}\n"
        )
        import mirror as program

        if direction == "push":
            lines = program.map_there(program.consumer_there(broker.bootstrap), "grows.map")
        else:
            with embedlog.open(back, read_only=True) as opened:
                lines = program.map_here(opened, "grows.map")
        for (partition, offset, *_), (_, there_it_lies, *_) in zip(source, target, strict=True):
            assert program.translate(lines[partition], offset) == there_it_lies


@pytest.mark.slow
def test_what_makes_reading_hard_arrives_as_it_is(
    broker: Broker, tmp_path: Path, rng: random.Random
) -> None:
    """Gaps of compaction, aborted transactions, nulls, headers, a log that does not begin at 0."""
    log = tmp_path / "log"
    back = tmp_path / "back"
    for topic in random_log.write(log, rng):
        mirror(
            "push",
            log,
            topic,
            broker,
            "--target",
            f"hard-{topic}",
            "--piece",
            rng.choice([7, 50, 1000]),
        )
        mirror("pull", back, f"hard-{topic}", broker, "--piece", rng.choice([7, 50, 1000]))
        sent = here(log, topic)
        assert same(sent, here(back, f"hard-{topic}")), topic


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["push", "pull"])
def test_killed_in_the_middle_it_goes_on(
    direction: str, broker: Broker, tmp_path: Path, rng: random.Random
) -> None:
    """kill -9 while pieces are on their way, eight times; then once to the end."""
    log = tmp_path / "log"
    back = tmp_path / "back"
    topic = f"killed-{direction}"
    fill(log, topic, TOTAL)
    if direction == "pull":
        mirror("push", log, topic, broker)
        with embedlog.open(back) as made:
            made.create_topic(topic, 3)
    place, size = (log, 20) if direction == "push" else (back, 5)
    reached = [0]
    with _ends(direction, broker, back, topic) as end:
        for _ in range(8):
            before = end()
            line = examples.command(
                "mirror.py", direction, place, topic, broker.bootstrap, "--piece", size
            )
            process = subprocess.Popen(line, stdout=subprocess.DEVNULL)
            wanted = before + rng.randrange(1, TOTAL // 6)
            while process.poll() is None and end() < wanted:
                pass
            process.send_signal(signal.SIGKILL)
            process.wait()
            reached.append(_copied(direction, broker, back, topic))
    print(f"copied when killed, {direction}:", reached)
    assert reached == sorted(reached)
    assert len(set(reached)) > 4, "a kill in the middle of the work has records after it"
    mirror(direction, place, topic, broker)
    assert same(
        here(log, topic), there(broker, topic, 3) if direction == "push" else here(back, topic)
    )


@contextlib.contextmanager
def _ends(direction: str, broker: Broker, back: Path, topic: str) -> Iterator[Callable[[], int]]:
    """Returns quickly how much was written to the copy, committed or not."""
    if direction == "push":
        client = confluent_kafka.Consumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": "watch"}
        )

        def end() -> int:
            places = [confluent_kafka.TopicPartition(topic, number) for number in range(3)]
            try:
                return sum(client.get_watermark_offsets(place, timeout=10)[1] for place in places)
            except confluent_kafka.KafkaException:  # not made yet
                return 0

        yield end
        client.close()
    else:
        with embedlog.open(back, read_only=True) as log:
            yield lambda: sum(each.log_end_offset for each in log.describe_topic(topic).partitions)


def _copied(direction: str, broker: Broker, back: Path, topic: str) -> int:
    """How much of the copy can be seen, in whole pieces."""
    import mirror as program

    if direction == "push":
        lines = program.map_there(program.consumer_there(broker.bootstrap), f"{topic}.map")
    else:
        with embedlog.open(back, read_only=True) as log:
            lines = program.map_here(log, f"{topic}.map")
    return sum(run.size for each in lines.values() for run in each)


@pytest.mark.slow
def test_what_retention_took_from_the_source_is_an_error(broker: Broker, tmp_path: Path) -> None:
    log = tmp_path / "log"
    fill(log, "shortened", 300)
    mirror("push", log, "shortened", broker)
    fill(log, "shortened", 300, first=300)
    with embedlog.open(log) as opened:
        ends = {
            each.partition: each.log_end_offset
            for each in opened.describe_topic("shortened").partitions
        }
        opened.delete_records(
            {embedlog.TopicPartition("shortened", number): end - 1 for number, end in ends.items()}
        )
    line = examples.command("mirror.py", "push", log, "shortened", broker.bootstrap)
    answer = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 1
    assert "is next, the log has" in answer.stderr
    assert len(there(broker, "shortened", 3)) == 300
