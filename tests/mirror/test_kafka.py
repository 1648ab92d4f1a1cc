"""Mirrors from directories to a real Kafka and back."""

from __future__ import annotations

import contextlib
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import Log, TopicPartition
from embedlog.mirror import Mirror, MirrorReport
from tests.kafka import client
from tests.kafka.oracle import Broker
from tests.support import random_log
from tests.support.campaign_report import add_counts
from tests.support.mirrored_topics import Row, rows

QUIET = {"housekeeping": False}


@pytest.fixture
def place(broker: Broker) -> str:
    return f"kafka://{broker.bootstrap}"


@pytest.fixture
def back(tmp_path: Path) -> Iterator[Log]:
    with embedlog.open(tmp_path / "back", config=QUIET) as log:
        yield log


def run(source: Any, target: Any, **options: Any) -> MirrorReport:
    with Mirror(source, target, **options) as mirror:
        return mirror.run()


def rows_there(broker: Broker, topic: str, partitions: int) -> list[Row]:
    return [
        (
            each.partition(),
            each.key(),
            each.value(),
            tuple(each.headers() or ()),
            each.timestamp()[1],
        )
        for each in client.messages(broker.bootstrap, {topic: partitions}, "read_committed")
    ]


def send(log: Log, topic: str, values: range, partitions: int = 2) -> None:
    with log.producer() as producer:
        for number in values:
            producer.send(
                topic, b"%d" % number, key=b"k%d" % (number % 3), partition=number % partitions
            )


def delete_records(broker: Broker, topic: str, offset: int) -> None:
    from confluent_kafka import TopicPartition as Place
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (future,) = admin.delete_records([Place(topic, 0, offset)]).values()
    assert future.result(60).low_watermark == offset


@pytest.mark.slow
def test_every_record_of_a_difficult_log_arrives_there_and_back(
    broker: Broker, place: str, tmp_path: Path, back: Log, rng: random.Random
) -> None:
    topics = random_log.write(tmp_path / "difficult", rng, rows=80)
    notices: list[str] = []
    with embedlog.open(tmp_path / "difficult", read_only=True) as here:
        report = run(here, place, prefix="d.", notice=notices.append)
        assert {each.topic: each.records for each in report.topics} == {
            topic: len(rows(here, topic)) for topic in topics
        }
        for topic in topics:
            assert rows_there(
                broker, f"d.{topic}", here.describe_topic(topic).partition_count
            ) == rows(here, topic), topic
        assert run(here, place, prefix="d.").records == 0
        assert any("segment.bytes" in each for each in notices), "Kafka refuses small segments"
        run(place, back, pattern=r"d\..*")
        for topic in topics:
            assert rows(back, f"d.{topic}") == rows(here, topic), topic
            assert (
                back.describe_topic(f"d.{topic}").partition_count
                == here.describe_topic(topic).partition_count
            )
        assert back.describe_topic("d.compacted").config["cleanup.policy"] == "compact"


@pytest.mark.slow
def test_a_second_run_continues_with_new_partitions_and_groups(
    broker: Broker, place: str, here: Log, back: Log
) -> None:
    here.create_topic("grown", 2)
    for first, partitions in ((0, 2), (30, 2), (60, 3)):
        if partitions == 3:
            here.create_partitions("grown", 3)
        send(here, "grown", range(first, first + 30), partitions)
        assert run(here, place, topics=["grown"]).records == 30
        assert run(place, back, topics=["grown"]).records == 30
    assert rows_there(broker, "grown", 3) == rows(back, "grown") == rows(here, "grown")
    for offset in (0, 15, 20, 30):
        here.reset_group_offsets(f"grown-{offset}", to={TopicPartition("grown", 0): offset})
    run(here, place, topics=["grown"], groups=[f"grown-{offset}" for offset in (0, 15, 20, 30)])
    run(place, back, topics=["grown"], groups=[f"grown-{offset}" for offset in (0, 15, 20, 30)])
    one = [each.value for each in here.scan("grown", partitions=0).records()]
    for offset in (0, 15, 20, 30):
        at = back.group_offsets(f"grown-{offset}")[TopicPartition("grown", 0)].offset
        left = back.scan(
            "grown", partitions=0, start_offset=at, isolation_level="read_committed"
        ).records()
        assert [each.value for each in left] == one[offset:]


def test_an_offset_of_members_at_a_broker_is_not_moved_back(
    broker: Broker, place: str, here: Log
) -> None:
    """A new group, then one with a member that commits the offset that the mirror
    has not committed.
    """
    import confluent_kafka

    here.create_topic("used")
    send(here, "used", range(20), 1)
    notices: list[str] = []

    def copied(offset: int) -> int:
        here.reset_group_offsets("users", to={TopicPartition("used", 0): offset})
        run(here, place, topics=["used"], groups=["users"], notice=notices.append)
        (found,) = asking.committed([confluent_kafka.TopicPartition("used", 0)], timeout=30)
        return int(found.offset)

    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": "users",
        "enable.auto.commit": False,
    }
    with contextlib.closing(confluent_kafka.Consumer(settings)) as asking:
        assert [copied(10), copied(5), copied(12)] == [10, 5, 12]
        with contextlib.closing(confluent_kafka.Consumer(settings)) as member:
            member.subscribe(["used"])
            assert member.poll(60).value() == b"12"
            assert copied(15) == 12
            member.commit(
                offsets=[confluent_kafka.TopicPartition("used", 0, 15)], asynchronous=False
            )
        assert [copied(3), copied(15), copied(4), copied(18)] == [15, 15, 15, 18]
    assert notices == ["group users has members at the target: its offsets are not copied"]


def test_aborted_records_of_a_broker_are_not_copied_and_its_markers_may_be_deleted(
    broker: Broker, place: str, back: Log
) -> None:
    import confluent_kafka

    client.create_topics(broker.bootstrap, {"aborted": 1})
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": "of the test"}
    )
    producer.init_transactions()
    for number in range(6):
        producer.begin_transaction()
        producer.produce("aborted", b"%d" % number)
        producer.flush()
        producer.abort_transaction() if number % 2 else producer.commit_transaction()
    assert run(place, back, topics=["aborted"]).records == 3
    assert [row[2] for row in rows(back, "aborted")] == [b"0", b"2", b"4"]
    delete_records(broker, "aborted", 12)
    producer.begin_transaction()
    producer.produce("aborted", b"late")
    producer.commit_transaction()
    assert run(place, back, topics=["aborted"]).records == 1


@pytest.mark.slow
def test_deleted_records_of_a_broker_are_a_loss_that_is_reported(
    broker: Broker, place: str, here: Log, back: Log
) -> None:
    here.create_topic("records-deleted", 1)
    for first in (0, 10):
        send(here, "records-deleted", range(first, first + 10), partitions=1)
        run(here, place, topics=["records-deleted"])
        if not first:
            run(place, back, topics=["records-deleted"])
    delete_records(broker, "records-deleted", 15)
    with pytest.raises(
        embedlog.OffsetOutOfRangeError, match=r"offsets 11 to 14 were deleted.*continues at 15"
    ):
        run(place, back, topics=["records-deleted"])
    assert run(place, back, topics=["records-deleted"], skip_deleted=True).records == 6


@pytest.mark.slow
def test_what_a_broker_refuses_is_typed(broker: Broker, place: str, here: Log) -> None:
    here.create_topic("large", 1, config={"max.message.bytes": 3_000_000})
    here.create_topic("own", 1)
    client.create_topics(broker.bootstrap, {"large": 1, "own": 1})
    with here.producer(max_request_size=3_000_000) as producer:
        producer.send("large", bytes(2_000_000))
    with pytest.raises(embedlog.RecordTooLargeError):
        run(here, place, topics=["large"])
    send(here, "own", range(3), partitions=1)
    assert run(here, place, topics=["own"]).records == 3
    with pytest.raises(embedlog.ConfigError, match=r"records that this mirror did not copy"):
        run(here, place, topics=["own"], name="other")


# ---- kills ---------------------------------------------------------------------------------------

KILLS = 6
RECORDS = 60_000
DEADLINE_S = 120.0


def started(source: str, target: str, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "embedlog", "mirror", "--from", source, "--to", target, *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def kill_until_equal(
    source: str, target: str, topic: str, end: Callable[[], int], rng: random.Random
) -> int:
    """Kill mirrors after some progress at the target, until one ends; returns the number of
    kills.
    """
    kills = 0
    deadline = time.monotonic() + DEADLINE_S
    while True:
        process = started(source, target, "-t", topic)
        try:
            wanted = end() + rng.choice([1, 100, 5000, 20_000])
            while process.poll() is None and (kills == KILLS or end() < wanted):
                assert time.monotonic() < deadline
        finally:
            process.kill()
            _, errors = process.communicate()
        if process.returncode == 0:
            return kills
        assert process.returncode == -9, errors.decode()
        kills += 1


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_killed_mirrors_to_and_from_a_broker_leave_equal_topics(
    broker: Broker, place: str, tmp_path: Path, rng: random.Random
) -> None:
    import confluent_kafka

    with embedlog.open(tmp_path / "here", config=QUIET) as here, here.producer() as producer:
        here.create_topic("killed", 3)
        for first in range(0, RECORDS, 100):
            producer.send_batch(
                "killed", [b"%d" % n for n in range(first, first + 100)], partition=first % 3
            ).result()
        wanted = rows(here, "killed")
    client.create_topics(broker.bootstrap, {"killed": 3})
    watching = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "watching"}
    )
    places = [confluent_kafka.TopicPartition("killed", number) for number in range(3)]
    with contextlib.closing(watching):
        kills = kill_until_equal(
            str(tmp_path / "here"),
            place,
            "killed",
            lambda: sum(watching.get_watermark_offsets(each, timeout=30)[1] for each in places),
            rng,
        )
    assert rows_there(broker, "killed", 3) == wanted
    with embedlog.open(tmp_path / "back", config=QUIET) as back:
        back.create_topic("killed", 3)
        kills_back = kill_until_equal(
            place,
            str(tmp_path / "back"),
            "killed",
            lambda: sum(part.log_end_offset for part in back.describe_topic("killed").partitions),
            rng,
        )
        assert rows(back, "killed") == wanted
    add_counts(
        "mirrors of a broker killed", to_the_broker=kills, from_the_broker=kills_back, violations=0
    )
    assert min(kills, kills_back) > 0


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_second_mirror_to_a_broker_fences_the_first(
    broker: Broker, place: str, tmp_path: Path, here: Log
) -> None:
    """In a process: the client keeps a producer with a fatal error, if it lost the exception."""
    here.create_topic("fenced", 1)
    send(here, "fenced", range(3), partitions=1)
    first = started(str(tmp_path / "here"), place, "-t", "fenced", "--follow")
    try:
        await_topic(place, "fenced", first)
        deadline = time.monotonic() + DEADLINE_S
        while len(rows_there(broker, "fenced", 1)) < 3:
            assert time.monotonic() < deadline
        assert run(here, place, topics=["fenced"]).records == 0
        send(here, "fenced", range(3, 5), partitions=1)
        _, errors = first.communicate(timeout=90)
    finally:
        first.kill()
        first.communicate()
    assert first.returncode == 1
    assert re.fullmatch(rb"embedlog: another mirror from .* has taken over: .*\n", errors), errors
    assert run(here, place, topics=["fenced"]).records == 2


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_following_mirror_continues_after_the_broker_was_killed(
    broker: Broker, place: str, tmp_path: Path, here: Log, back: Log
) -> None:
    here.create_topic("broken", 2)
    there = started(str(tmp_path / "here"), place, "-t", "broken", "--follow")
    with back.consumer(isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        send(here, "broken", range(100))
        again: subprocess.Popen[bytes] | None = None
        try:
            await_topic(place, "broken", there)
            again = started(place, str(tmp_path / "back"), "-t", "broken", "--follow")
            back.create_topic("broken", 2)
            consumer.subscribe(["broken"])
            found = 0
            deadline = time.monotonic() + DEADLINE_S
            for first in (100, 200):
                while found < first:
                    found += len(consumer.poll(timeout=1))
                    assert time.monotonic() < deadline
                broker.kill()
                send(here, "broken", range(first, first + 100))
                broker.start()
            while found < 300:
                found += len(consumer.poll(timeout=1))
                assert time.monotonic() < deadline
        finally:
            errors = [end_in_order(each) for each in (there, again) if each is not None]
    assert errors == [(0, b"")] * 2
    assert rows(back, "broken") == rows_there(broker, "broken", 2) == rows(here, "broken")


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_mirrors_and_a_broker_killed_a_hundred_times_leave_equal_topics(
    broker: Broker, place: str, tmp_path: Path, here: Log, back: Log, rng: random.Random
) -> None:
    """A chain: from a directory to the broker, and from the broker to another directory."""
    for log in (here, back):
        log.create_topic("chained", 2)
    client.create_topics(broker.bootstrap, {"chained": 2})
    sides = {"to": (str(tmp_path / "here"), place), "from": (place, str(tmp_path / "back"))}
    mirrors: dict[str, subprocess.Popen[bytes]] = {}
    kills = dict.fromkeys([*sides, "broker"], 0)

    def ended() -> int:
        return sum(part.log_end_offset for part in back.describe_topic("chained").partitions)

    def start_the_ended() -> None:
        for name, (source, target) in sides.items():
            if name in mirrors and mirrors[name].poll() is not None:
                _, errors = mirrors.pop(name).communicate()
                # no broker for 15 s at its start: it ends, as documented
                assert b"Failed to get metadata" in errors, errors
            if name not in mirrors:
                mirrors[name] = started(source, target, "-t", "chained", "--follow")

    try:
        for round_number in range(100):
            wanted = ended() + rng.randrange(1, 50)
            send(here, "chained", range(100 * round_number, 100 * round_number + 100))
            deadline = time.monotonic() + DEADLINE_S
            start_the_ended()  # the last victim, even if the records that are wanted have arrived
            while ended() < wanted:
                assert time.monotonic() < deadline
                start_the_ended()
            victim = rng.choice(["to", "to", "to", "from", "from", "from", "broker"])
            kills[victim] += 1
            if victim == "broker":
                broker.kill()
                broker.start()
            else:
                mirrors[victim].kill()
                mirrors.pop(victim).communicate()
    finally:
        for each in mirrors.values():
            each.kill()
            each.communicate()
    for source, target in sides.values():
        run(source, target, topics=["chained"])
    add_counts("mirrors of a broker, and brokers, killed", **kills, violations=0)
    wanted_rows = rows(here, "chained")
    assert len(wanted_rows) == 100 * 100
    assert rows_there(broker, "chained", 2) == wanted_rows
    assert rows(back, "chained") == wanted_rows


def await_topic(place: str, topic: str, mirror: subprocess.Popen[bytes]) -> None:
    """Until a mirror has created its topic."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": place.removeprefix("kafka://")})
    deadline = time.monotonic() + DEADLINE_S
    while topic not in admin.list_topics(timeout=30).topics:
        assert mirror.poll() is None
        assert time.monotonic() < deadline


def end_in_order(mirror: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    """The status and the messages of a mirror after a termination."""
    mirror.terminate()
    try:
        _, errors = mirror.communicate(timeout=90)
    finally:
        mirror.kill()
        mirror.communicate()
    return mirror.returncode, re.sub(rb"\d+ records, .* in .* s\n", b"", errors)
