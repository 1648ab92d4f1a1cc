"""Waiting: an idle consumer does nothing, and is woken by whatever concerns it."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import Record, TopicPartition
from embedlog._native import system
from embedlog.consumer import waiter
from tests.faults.harness.processes import until
from tests.support.fake_engine import FakeEngine, FakePartition, consumer, fill

__all__ = ["consumer"]

A0 = TopicPartition("a", 0)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(a=2)


@pytest.fixture
def real(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as opened:
        opened.create_topic("t", 2)
        yield opened


def during(act: Callable[[], object], poll: Callable[[], Any]) -> Any:
    """What `poll` gives in another thread, which sleeps when `act` is called here."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(poll()))
    thread.start()
    act()
    thread.join(60)
    assert not thread.is_alive()
    return results[0]


# ---- nothing to do ----------------------------------------------------------------------------------------------------


def work_of(call: Callable[[], object]) -> tuple[int, int]:
    """Calls of the system's table that were made meanwhile, and how often this thread went to
    sleep.
    """
    before, _ = system.fault_counters()
    slept = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    call()
    after, _ = system.fault_counters()
    calls = sum(after.values()) - sum(before.values())
    return calls, resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - slept


def test_an_idle_consumer_only_looks_whether_a_signal_came(real: embedlog.Log) -> None:
    """In the main thread, which runs signal handlers: 20 times a second, and without any other
    call.
    """
    with real.consumer("t") as reader:
        reader.poll()
        calls, slept = work_of(lambda: reader.poll(timeout=1.0))
    assert calls <= 2 * 2  # at the end of a wait: are the two pages still where their names lead?
    assert slept <= 45


def test_a_spinning_poll_returns_a_record_that_another_thread_appends(real: embedlog.Log) -> None:
    with real.consumer("t", poll_spin_us=60_000_000) as reader, real.producer() as producer:
        assert reader.poll() == []
        records = during(
            lambda: producer.send("t", b"value").result(), lambda: reader.poll(timeout=60)
        )
        assert [record.value for record in records] == [b"value"]


@pytest.mark.parametrize("spin_us", [60_000_000, 1, 0])
def test_a_spinning_poll_does_not_sleep_and_ends_at_its_timeout(
    real: embedlog.Log, spin_us: int
) -> None:
    with real.consumer("t", poll_spin_us=spin_us) as reader:
        reader.poll()
        found: list[list[Record]] = []
        _, slept = work_of(lambda: found.append(reader.poll(timeout=0.2)))
    assert found == [[]]
    assert (slept == 0) == (spin_us > 1), "it sleeps after the time of its spin"


@pytest.mark.parametrize("end", ["wakeup", "a new topic"])
def test_wakeup_and_a_new_topic_end_a_spin(real: embedlog.Log, end: str) -> None:
    with real.consumer(poll_spin_us=60_000_000, auto_offset_reset="earliest") as reader:
        reader.subscribe(pattern="t.*")

        def poll() -> list[bytes] | str:
            try:
                return [record.value for record in reader.poll(timeout=60)]
            except embedlog.WakeupError:
                return "woken"

        def act() -> None:
            waiter = real._engine.waiter(reader._waiter)
            until(lambda: waiter.spin_until_ns > 0, "the poll to begin")
            if end == "wakeup":
                reader.wakeup()
            else:
                real.create_topic("t2")
                with real.producer() as producer:
                    producer.send("t2", b"value").result()

        assert during(act, poll) == ("woken" if end == "wakeup" else [b"value"])


def test_an_idle_consumer_of_another_thread_sleeps_through(real: embedlog.Log) -> None:
    found: list[tuple[int, int]] = []

    def idle() -> None:
        with real.consumer("t") as reader:
            reader.poll()
            found.append(work_of(lambda: reader.poll(timeout=0.9)))

    thread = threading.Thread(target=idle)
    thread.start()
    thread.join()
    calls, slept = found[0]
    assert calls <= 2 * 2
    assert slept <= 10  # one for the wait, the others for the interpreter's lock


def test_polls_that_find_nothing_ask_the_system_nothing(real: embedlog.Log) -> None:
    with real.consumer("t") as reader:
        reader.poll()
        calls, _ = work_of(lambda: [reader.poll() for _ in range(100)])
    assert calls == 0


# ---- events that wake it ----------------------------------------------------------------------------------------------


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics are looked up only for explicit calls."""
    monkeypatch.setattr(waiter, "TOPICS_CHECK_S", 3600.0)


@pytest.mark.usefixtures("deaf")
def test_a_new_topic_wakes_who_waits_for_its_pattern(real: embedlog.Log) -> None:
    with real.consumer() as reader:
        reader.subscribe(pattern="n.*")
        assert reader.poll() == []

        def act() -> None:
            real.create_topic("new")
            with real.producer() as producer:
                producer.send("new", b"x").result(10)

        assert [record.value for record in during(act, lambda: reader.poll(timeout=60))] == [b"x"]


@pytest.mark.usefixtures("deaf")
def test_a_deleted_topic_ends_the_wait_for_its_partition(real: embedlog.Log) -> None:
    def refused() -> str:
        with pytest.raises(embedlog.UnknownTopicOrPartitionError) as caught:
            reader.poll(timeout=60)
        return str(caught.value)

    with real.consumer() as reader:
        reader.assign([TopicPartition("t", 0)])
        reader.poll()
        assert "deleted" in during(lambda: real.delete_topic("t"), refused)


@pytest.mark.usefixtures("deaf")
def test_a_topic_that_was_made_anew_is_read_from_its_start(real: embedlog.Log) -> None:
    with real.producer() as producer, real.consumer() as reader:
        reader.subscribe(pattern="t")
        producer.send("t", b"old", partition=0).result(10)
        real.delete_topic("t")
        real.create_topic("t", 2)
        producer.send("t", b"new", partition=0).result(10)
        assert [(record.offset, record.value) for record in reader.poll(timeout=10)] == [
            (0, b"new")
        ]


def test_the_word_of_the_topics_is_odd_while_they_change(
    real: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = real._engine.topics_version()
    assert not before & 1
    seen = []
    write = embedlog.topic.files.write_atomically

    def watched(*args: Any, **options: Any) -> None:
        seen.append(real._engine.topics_version())
        write(*args, **options)

    monkeypatch.setattr(embedlog.topic.files, "write_atomically", watched)
    real.alter_topic("t", {"retention.ms": 5000})
    assert any(word & 1 for word in seen)
    assert real._engine.topics_version() > before
    assert not real._engine.topics_version() & 1


def test_a_killed_change_makes_readers_look_at_the_topics_themselves(
    engine: FakeEngine, consumer: Any
) -> None:
    reader = consumer("a")
    reader.poll()
    engine.word |= 1  # the process that changed them did not publish the end of the change
    word = engine.word
    engine.grow("a", 3)
    engine.word = word
    engine.partition("a", 2).append([b"x"])
    assert [record.value for record in reader.poll(timeout=10)] == [b"x"]


def test_metadata_max_age_is_the_longest_time_between_two_looks(
    engine: FakeEngine, consumer: Any
) -> None:
    reader = consumer("a", metadata_max_age_ms=1)
    reader.poll()
    word = engine.word
    engine.grow("a", 3)
    engine.word = word  # no process was notified
    engine.partition("a", 2).append([b"x"])
    assert [record.value for record in reader.poll(timeout=10)] == [b"x"]


# ---- fetch.min.bytes --------------------------------------------------------------------------------------------------


def test_a_poll_that_may_wait_waits_for_fetch_min_bytes(engine: FakeEngine, consumer: Any) -> None:
    reader = consumer("a", fetch_min_bytes=300, fetch_max_wait_ms=60_000)
    fill(engine.partition("a", 0), 1)
    assert engine.partition("a", 0).unread_bytes(0) < 150

    def act() -> None:
        assert engine.sleeping.wait(10)
        fill(engine.partition("a", 1), 20)

    reader.poll()  # positions are known from here on, and the present records were taken
    fill(engine.partition("a", 0), 1)
    assert len(during(act, lambda: reader.poll(timeout=60))) == 21


def test_no_longer_than_fetch_max_wait_ms(engine: FakeEngine, consumer: Any) -> None:
    reader = consumer("a", fetch_min_bytes=1 << 20, fetch_max_wait_ms=20)
    reader.poll()
    fill(engine.partition("a", 0), 3)
    began = time.monotonic()
    assert len(reader.poll(timeout=60)) == 3
    assert time.monotonic() - began < 30


def test_a_poll_that_may_not_wait_takes_what_is_there(engine: FakeEngine, consumer: Any) -> None:
    reader = consumer("a", fetch_min_bytes=1 << 20, fetch_max_wait_ms=60_000)
    reader.poll()
    fill(engine.partition("a", 0), 3)
    assert len(reader.poll()) == 3


def test_real_logs_know_how_much_is_unread(real: embedlog.Log) -> None:
    with (
        real.producer() as producer,
        real.consumer("t", auto_offset_reset="earliest", fetch_min_bytes=2) as reader,
    ):
        producer.send("t", b"x" * 1000, partition=0).result(10)
        reader.poll()
        partition = real._engine.partition("t", 0)
        assert partition.unread_bytes(1) == 0
        producer.send("t", b"x" * 1000, partition=0).result(10)
        assert 1000 < (partition.unread_bytes(1) or 0) < 1200
        assert partition.unread_bytes(0) is None


# ---- transactions in the way ------------------------------------------------------------------------------------------


class Helper:
    """Stands for the log's transactions: ends those of producer 3."""

    def __init__(self, engine: FakeEngine) -> None:
        self.asked: list[float] = []
        self._engine = engine

    def resolve(self, partition: FakePartition) -> bool:
        self.asked.append(time.monotonic())
        if len(self.asked) < 3:
            return False  # its owner is alive and in time
        partition.end(3, 1)
        return True


def test_a_reader_held_back_by_a_dead_transaction_sees_to_it(
    engine: FakeEngine, consumer: Any
) -> None:
    partition = engine.partition("a", 0)
    partition.append([b"open"], producer=3)
    partition.append([b"after"])
    engine.transactions = Helper(engine)
    reader = consumer("a", isolation_level="read_committed")
    assert [record.value for record in reader.poll(timeout=60)] == [b"open", b"after"]
    gaps = [
        late - early
        for early, late in zip(
            engine.transactions.asked, engine.transactions.asked[1:], strict=False
        )
    ]
    assert len(gaps) == 2
    assert min(gaps) >= waiter.RESOLVE_S


def test_short_polls_see_to_it_as_well(engine: FakeEngine, consumer: Any) -> None:
    partition = engine.partition("a", 0)
    partition.append([b"open"], producer=3)
    engine.transactions = Helper(engine)
    reader = consumer("a", isolation_level="read_committed")
    deadline = time.monotonic() + 30
    found: list[Any] = []
    while not found and time.monotonic() < deadline:
        found = reader.poll()
    assert [record.value for record in found] == [b"open"]
    assert len(engine.transactions.asked) == 3


@pytest.mark.parametrize(
    ("isolation", "read_only"), [("read_uncommitted", False), ("read_committed", True)]
)
def test_others_leave_transactions_alone(
    engine: FakeEngine, consumer: Any, isolation: str, read_only: bool
) -> None:
    partition = engine.partition("a", 0)
    partition.append([b"open"], producer=3)
    engine.transactions = Helper(engine)
    engine.read_only = read_only
    reader = consumer("a", isolation_level=isolation)
    reader.poll()
    reader.poll(timeout=0.3)
    assert not engine.transactions.asked


def test_a_read_only_reader_that_is_held_back_shows_a_lag(
    engine: FakeEngine, consumer: Any
) -> None:
    partition = engine.partition("a", 0)
    partition.append([b"seen"])
    partition.append([b"open"], producer=3)
    partition.append([b"after"])
    reader = consumer("a", isolation_level="read_committed")
    assert len(reader.poll()) == 1
    # Kafka's: to the last stable offset; another process will end the transaction
    assert reader.current_lag(A0) == 0
    engine.read_only = True
    assert reader.current_lag(A0) == 2
    assert reader.metrics()["records-lag-max"] == 2
