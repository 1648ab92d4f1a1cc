"""Lock, catch up, decide, append: a counter that processes and threads raise; and stale views that
must not be used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog._native import system
from embedlog.coordination import internal_topic
from embedlog.coordination.internal_topic import InternalTopic, java_hash, java_partition
from embedlog.errors import FencedError, LockTimeoutError, StorageError
from embedlog.partition.partition import Partition
from embedlog.storage import files
from tests.faults.harness.processes import Nursery
from tests.support.internal_topics import NAME, Newest, topic_of
from tests.support.interrupts import OF_THIS_INTERPRETER, Interrupt, within
from tests.support.mutants import mutated


def soon() -> int:
    return files.deadline_after(20)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as opened:
        yield opened


def count_up(topic: InternalTopic[Newest], number: int = 0, key: bytes = b"n") -> int:
    with topic.lock_for_decision(number, soon()) as decision:
        count = int(decision.view.values.get(key, b"0")) + 1
        decision.append([(key, b"%d" % count)])
    return count


# ---- Kafka's partition ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "number", "partition"),
    [
        ("group-1", 293427299, 49),
        ("test-group", 627841412, 12),
        ("payments", 1382682413, 13),
        ("żółć-grupa", -1369065334, 34),
        ("polygenelubricants", -2147483648, 0),
        ("my-txn-id", 1405732511, 11),
        ("", 0, 0),
    ],
)
def test_a_name_has_kafkas_partition(name: str, number: int, partition: int) -> None:
    assert java_hash(name) == number
    assert java_partition(name, 50) == partition


# ---- making --------------------------------------------------------------------------------------


def test_the_topic_is_made_by_whoever_needs_it_first_and_then_used_as_it_is(
    log: embedlog.Log,
) -> None:
    topic = topic_of(log, partitions=5)
    assert topic.partition_count() == 0
    assert NAME not in log.topics(include_internal=True)
    topic.partition_of("a")
    assert topic.partition_count() == 5
    assert topic_of(log, partitions=50).partition_of("my-txn-id") == java_partition("my-txn-id", 5)
    assert topic.partition_count() == 5
    assert log.topics() == []
    assert log.describe_topic(NAME).config["cleanup.policy"] == "compact"


def test_two_that_make_it_at_once_get_one(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log") as one, embedlog.open(tmp_path / "log") as two:
        threads = [
            threading.Thread(target=topic_of(each, partitions=2).partition_of, args=("a",))
            for each in (one, two)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert topic_of(one).partition_count() == topic_of(two).partition_count() == 2


def test_a_partition_is_blank_until_somebody_writes(log: embedlog.Log, tmp_path: Path) -> None:
    topic = topic_of(log)
    topic.partition_of("a")
    assert [topic.is_unwritten(number) for number in range(3)] == [True] * 3
    with embedlog.open(tmp_path / "log") as other:
        count_up(topic_of(other), 1)
    assert [topic.is_unwritten(number) for number in range(3)] == [True, False, True]


# ---- deciding ------------------------------------------------------------------------------------


def test_threads_and_open_logs_never_decide_from_the_same_state(tmp_path: Path) -> None:
    path = tmp_path / "log"
    turns = 40
    with embedlog.open(path) as one, embedlog.open(path) as two:
        topics = [topic_of(one), topic_of(one), topic_of(two)]
        topics[0].partition_of("a")
        seen: list[int] = []

        def work(topic: InternalTopic[Newest]) -> None:
            seen.extend(count_up(topic) for _ in range(turns))

        threads = [threading.Thread(target=work, args=(topic,)) for topic in topics * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(seen) == list(range(1, 6 * turns + 1))
        assert topics[2].view(0).values == {b"n": b"%d" % (6 * turns)}


def test_a_deciding_thread_and_those_that_look_agree(log: embedlog.Log) -> None:
    topic = topic_of(log)
    topic.partition_of("a")
    stop = threading.Event()
    wrong = []

    def look() -> None:
        last = 0
        while not stop.is_set():
            count = int(topic.view(0).values.get(b"n", b"0"))
            if count < last:
                wrong.append((last, count))
            last = count

    watchers = [threading.Thread(target=look) for _ in range(2)]
    for each in watchers:
        each.start()
    try:
        assert [count_up(topic) for _ in range(150)] == list(range(1, 151))
    finally:
        stop.set()
        for each in watchers:
            each.join(20)
    assert not wrong
    assert topic.view(0).applied == 150, "every record is taken in once"


def test_a_refusal_leaves_nothing_behind(log: embedlog.Log) -> None:
    topic = topic_of(log)
    topic.partition_of("a")
    count_up(topic)
    with pytest.raises(FencedError, match="no"), topic.lock_for_decision(0, soon()):
        raise FencedError("no")
    partition = topic.partition(0)
    assert partition._state.page.word(system.WORD_OWNER) == 0, "the next one has nothing to repair"
    assert count_up(topic) == 2


def test_a_write_that_fails_leaves_the_lock_and_the_view_in_order(log: embedlog.Log) -> None:
    topic = topic_of(log)
    topic.partition_of("a")
    count_up(topic)
    system.fault_arm(("pwrite",), 1, "fail")
    try:
        with pytest.raises(StorageError):
            count_up(topic)
    finally:
        system.fault_off()
    assert topic.view(0).values == {b"n": b"1"}
    assert count_up(topic) == 2


def test_a_frozen_decider_is_named_after_the_deadline(nursery: Nursery, tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log") as log:
        topic = topic_of(log)
        topic.partition_of("a")
        victim = nursery.spawn()
        victim.call("open", str(tmp_path / "log"))
        victim.arm(["point"], "stop_after", name="locked")
        victim.start("decide", 0)
        victim.wait_stopped()
        with (
            pytest.raises(LockTimeoutError, match=str(victim.pid)),
            topic.lock_for_decision(0, files.deadline_after(0.1)),
        ):
            pass
        victim.resume()
        assert victim.result() == 1
        assert count_up(topic) == 2


@pytest.mark.parametrize("action", ["kill_before", "kill_after", "torn_kill"])
def test_who_dies_while_appending_leaves_a_whole_outcome_or_none(
    nursery: Nursery, tmp_path: Path, action: str
) -> None:
    with embedlog.open(tmp_path / "log") as log:
        topic = topic_of(log)
        topic.partition_of("a")
        count_up(topic)
        victim = nursery.spawn()
        victim.call("open", str(tmp_path / "log"))
        victim.arm(["pwrite"], action, name=".log")
        victim.start("decide", 0)
        victim.wait_dead()
        assert count_up(topic) == (3 if action == "kill_after" else 2)


def test_a_decision_stands_if_its_partition_is_closed_before_the_late_flush(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decision was appended, so its caller must not get the error of an unknown topic."""
    topic = topic_of(log)
    topic.partition_of("a")
    sync_overdue = internal_topic._sync_overdue
    flushed = []

    def overtaken(partition: Partition, end: int, deadline_ns: int) -> None:
        # as after the deletion of the topic by another process
        del log._engine.home.partitions[NAME, 0]
        partition.close()
        sync_overdue(partition, end, deadline_ns)
        flushed.append(end)

    monkeypatch.setattr(internal_topic, "_sync_overdue", overtaken)
    with topic.lock_for_decision(0, soon()) as decision:
        decision.append([(b"n", b"1")])
        decision.is_sync_due = True
    assert flushed == [1]


def test_the_segment_rolls_under_a_decision(log: embedlog.Log) -> None:
    topic = topic_of(log, segment_bytes="300")
    topic.partition_of("a")
    assert [count_up(topic) for _ in range(20)] == list(range(1, 21))
    assert len(list(topic.partition(0).path.glob("*.log"))) > 3
    assert topic_of(log).view(0).values == {b"n": b"20"}


# ---- catching up ---------------------------------------------------------------------------------


def test_a_rest_that_is_too_long_is_read_outside_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others append between the look and the lock: reading under the lock stays bounded, and the
    decision is right.
    """
    monkeypatch.setattr(internal_topic, "REST_BYTES", 2000)
    monkeypatch.setattr(internal_topic, "REPLAY_BYTES", 1000)
    with embedlog.open(tmp_path / "log") as one, embedlog.open(tmp_path / "log") as two:
        mine = topic_of(one)
        theirs = topic_of(two)
        mine.partition_of("a")
        count_up(mine)
        refresh = mine._refresh
        overtaken = []

        def overtake() -> None:
            with theirs.lock_for_decision(0, soon()) as decision:
                for at in range(40):
                    decision.append(
                        [(b"n", b"%d" % (100 * len(overtaken) + at)), (b"other", bytes(100))]
                    )
            overtaken.append(1)

        def refresh_and_be_overtaken(number: int) -> Any:
            found = refresh(number)
            if len(overtaken) < 3:
                overtake()
            else:
                monkeypatch.setattr(mine, "_refresh", refresh)
            return found

        monkeypatch.setattr(mine, "_refresh", refresh_and_be_overtaken)
        overtake()
        assert count_up(mine) == 240
        assert mine._refresh == refresh, "it gave the lock back three times"


@pytest.mark.parametrize("mutant", ["", "trust_old_look"])
def test_swap_2_a_look_below_what_was_purged_begins_again(log: embedlog.Log, mutant: str) -> None:
    """A cleaner removed a key's record and its tombstone: a reader with an older position must not
    keep the key.
    """
    topic = topic_of(log)
    count = 0
    topic.partition_of("a")
    with topic.lock_for_decision(0, soon()) as decision:
        decision.append([(b"gone", b"1"), (b"n", b"0")])
    stale = topic.view(0)
    assert b"gone" in stale.values
    other = topic_of(log)
    for _ in range(3):
        count = count_up(other)
    partition = topic.partition(0)
    # as if the tombstone of "gone" had been written and cleaned away below 3
    with partition.exclusive() as held:
        held.publish_replaced(held.published._replace(purged_to=3, log_start=1))
    with mutated(mutant):
        view = topic.view(0)
    assert view.values[b"n"] == b"%d" % count
    assert (b"gone" in view.values) == bool(mutant)


def test_a_look_in_another_epoch_begins_again(log: embedlog.Log) -> None:
    topic = topic_of(log)
    topic.partition_of("a")
    count_up(topic)
    stale = topic.view(0)
    partition = topic.partition(0)
    with partition.exclusive() as held:
        held.publish_replaced(held.published._replace(epoch=held.published.epoch + 1))
    assert topic.view(0) is not stale
    assert topic.view(0).values == {b"n": b"1"}


# ---- handlers of signals -------------------------------------------------------------------------


class Handled(Newest):
    """A view with handlers of signals, each of which runs at the beginning or the end of the
    application of a record.
    """

    def __init__(self, handlers: list[Callable[[], object]], found: list[object]) -> None:
        super().__init__()
        self.handlers = handlers
        self.found = found

    def interrupt(self) -> None:
        if self.handlers:
            handler = self.handlers.pop()
            self.found.append(handler())

    def apply(self, key: bytes, value: bytes | None) -> None:
        self.interrupt()
        super().apply(key, value)
        self.interrupt()


def topic_with_handlers(
    log: embedlog.Log,
) -> tuple[InternalTopic[Handled], list[Callable[[], object]], list[object]]:
    """A topic whose views share the handlers, and what these return."""
    handlers: list[Callable[[], object]] = []
    found: list[object] = []
    config = {"cleanup.policy": "compact", "compression.type": "uncompressed"}
    topic = InternalTopic(
        log._engine, NAME, partitions=3, config=config, view=lambda: Handled(handlers, found)
    )
    return topic, handlers, found


def test_a_signal_handler_reads_and_decides_while_its_thread_changes_the_view(
    log: embedlog.Log,
) -> None:
    """It interrupts at each record that is applied; its decisions count, and no view loses one."""
    topic, handlers, found = topic_with_handlers(log)
    other = topic_of(log)
    other.partition_of("a")

    def whole() -> None:
        for number in range(1, 4):
            count_up(other)
            handlers[:] = [
                lambda: count_up(topic, key=b"handler"),
                lambda: topic.view(0).values[b"n"],
            ]
            assert topic.view(0).values[b"n"] == b"%d" % number
            assert set(found) == {b"%d" % number, number}
            assert topic.view(0).values == other.view(0).values
            found.clear()

    within(20, whole)


def test_a_signal_handler_reads_inside_an_append(log: embedlog.Log) -> None:
    topic, handlers, found = topic_with_handlers(log)
    topic.partition_of("a")
    handlers[:] = [lambda: topic.view(0).values[b"n"]]

    def whole() -> None:
        with topic.lock_for_decision(0, soon()) as decision:
            decision.append([(b"n", b"last")])

    within(20, whole)
    assert found == [b"last"]
    assert topic.view(0).values == topic_of(log).view(0).values == {b"n": b"last"}


class Sums(Newest):
    """A view that a record changes each time it is applied."""

    def apply(self, key: bytes, value: bytes | None) -> None:
        total = int(self.values.get(key, b"0")) + int(value or b"0")
        self.applied += 1
        self.values[key] = b"%d" % total


@OF_THIS_INTERPRETER
@pytest.mark.parametrize("kind", ["read", "append"])
def test_an_interrupt_at_any_point_of_an_update_applies_no_record_twice(
    log: embedlog.Log, kind: str
) -> None:
    config = {"cleanup.policy": "delete", "compression.type": "uncompressed"}
    topic, other = (
        InternalTopic(log._engine, NAME, partitions=1, config=config, view=Sums) for _ in range(2)
    )
    topic.partition_of("a")
    records = [(b"n", b"1"), (b"n", b"10")]

    def append(to: InternalTopic[Sums]) -> None:
        with to.lock_for_decision(0, soon()) as decision:
            decision.append(records)

    append(topic)
    for nth in range(1, 500):
        if kind == "read":
            append(other)
        interrupt = Interrupt(nth, {"internal_topic.py", "replay.py", "test_internal_topic.py"})
        interrupt.run(lambda: topic.view(0) if kind == "read" else append(topic))
        count = int(topic.partition(0).published().log_end)
        epoch = topic.partition(0).published().epoch
        # in a set, nothing has committed an interrupted decision
        topic.partition(0).confirm(count, epoch)
        assert topic.view(0).values == {b"n": b"%d" % (count // 2 * 11)}, interrupt.struck
        if interrupt.struck is None:
            break
    assert interrupt.struck is None
    assert nth > 20


def test_no_thread_waits_for_an_update_that_does_not_end(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread may be in a signal handler that waits for the others."""
    monkeypatch.setattr(internal_topic, "UPDATE_S", 0.01)
    reached = threading.Event()
    ended = threading.Event()

    class Slow(Newest):
        def apply(self, key: bytes, value: bytes | None) -> None:
            if threading.current_thread() is slow:
                reached.set()
                assert ended.wait(20)
            super().apply(key, value)

    config = {"cleanup.policy": "compact", "compression.type": "uncompressed"}
    topic = InternalTopic(log._engine, NAME, partitions=1, config=config, view=Slow)
    other = topic_of(log, 1)
    other.partition_of("a")
    count_up(other)
    slow = threading.Thread(target=lambda: topic.view(0))
    slow.start()
    try:
        assert reached.wait(20)
        within(20, lambda: topic.view(0))
        assert topic.view(0).values == {b"n": b"1"}
        within(20, lambda: count_up(topic))
    finally:
        ended.set()
        slow.join()
    assert topic.view(0).values == other.view(0).values == {b"n": b"2"}


# ---- the number of partitions --------------------------------------------------------------------


@pytest.mark.usefixtures("usual_internal_topics")
def test_internal_topics_have_as_many_partitions_as_a_brokers(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log.create_topic("t")
        with log.producer(transactional_id="x") as producer, log.consumer(group_id="g") as consumer:
            producer.init_transactions()
            consumer.assign([embedlog.TopicPartition("t", 0)])
            consumer.commit({embedlog.TopicPartition("t", 0): 0})
        counts = {
            name: log.describe_topic(name).partition_count for name in ("__consumer_offsets", NAME)
        }
    assert counts == {"__consumer_offsets": 50, NAME: 50}
