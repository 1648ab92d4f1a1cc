"""Consumers of a group over a real log, in processes of their own: partitions move, and nothing is
skipped.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.consumer.collector import Collector
from embedlog.consumer.positions import Cursor
from embedlog.errors import CommitFailedError, ReadOnlyError
from embedlog.partition.log_context import Bounds
from embedlog.storage.locks import LoadPendingError

SHORT = {"group.min.session.timeout.ms": 100, "housekeeping": False}
QUICK = {
    "session_timeout_ms": 600,
    "heartbeat_interval_ms": 50,
    "auto_offset_reset": "earliest",
    "auto_commit_interval_ms": 50,
}
RETRY_S = 60.0

MEMBER = """
import sys, time, embedlog
path, client_id, config = sys.argv[1], sys.argv[2], eval(sys.argv[3])
def say(*words):
    print(*words, flush=True)
with embedlog.open(path, config={"group.min.session.timeout.ms": 100, "housekeeping": False}) as log:
    with log.consumer(group_id="g", client_id=client_id, **config) as consumer:
        consumer.subscribe(
            ["t"],
            on_assigned=lambda tps: say("assigned", *sorted(tp.partition for tp in tps)),
            on_revoked=lambda tps: say("revoked", *sorted(tp.partition for tp in tps)),
            on_lost=lambda tps: say("lost", *sorted(tp.partition for tp in tps)),
        )
        while True:
            for record in consumer.poll(timeout=0.2):
                say("read", record.partition, record.offset)
"""


class Process:
    """A member in a process of its own; `heard` is its output."""

    def __init__(self, path: Path, client_id: str, **config: Any) -> None:
        arguments = [sys.executable, "-c", MEMBER, str(path), client_id, repr({**QUICK, **config})]
        self._process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        self.heard: list[str] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.heard.append(line.strip())

    def holds(self, count: int) -> bool:
        """Whether it has this number of partitions, by the calls of its listeners."""
        held: set[str] = set()
        for line in list(self.heard):
            what, *tps = line.split() or [""]
            if what == "assigned":
                held.update(tps)
            elif what in ("revoked", "lost"):
                held.difference_update(tps)
        return len(held) == count

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def read(self) -> set[tuple[int, int]]:
        """Partition and offset of the records that it was handed; a line that was cut by its death
        is none.
        """
        found = (re.fullmatch(r"read (\d+) (\d+)", line) for line in list(self.heard))
        return {(int(each[1]), int(each[2])) for each in found if each}

    def assigned_count(self) -> int:
        """Partitions that it was assigned so far, one after the other."""
        return sum(
            len(line.split()) - 1 for line in list(self.heard) if line.startswith("assigned")
        )

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + RETRY_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        pause.wait(0.005)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", config=SHORT) as opened:
        opened.create_topic("t", 4)
        yield opened


@pytest.fixture
def process(log: embedlog.Log) -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def make(client_id: str, **config: Any) -> Process:
        made.append(Process(log.path, client_id, **config))
        return made[-1]

    yield make
    for each in made:
        each.end()


def send(log: embedlog.Log, count: int) -> None:
    with log.producer() as producer:
        for number in range(count):
            producer.send("t", b"%d" % number, partition=number % 4)


def committed(log: embedlog.Log) -> int:
    return sum(place.offset for place in log.group_offsets("g").values())


# ---- a member that ends -----------------------------------------------------------------------------------------------


def test_the_partitions_of_a_killed_process_move_and_nothing_is_skipped(
    log: embedlog.Log, process: Any
) -> None:
    send(log, 400)
    first = process("first")
    second = process("second")
    until(lambda: first.holds(2) and second.holds(2), "two members share four partitions")
    first.end()
    until(lambda: second.holds(4), "the other one has them all")
    send(log, 400)
    until(lambda: committed(log) == 800, "everything is committed")
    assert first.read() | second.read() == {
        (partition, offset) for partition in range(4) for offset in range(200)
    }


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_frozen_process_is_given_up_and_knows_it_when_it_goes_on(
    log: embedlog.Log, process: Any, strategy: str
) -> None:
    kind = {"partition_assignment_strategy": [strategy]}
    # holds no lock for long
    first = process("first", auto_commit_interval_ms=100_000, **kind)
    second = process("second", **kind)
    until(lambda: first.holds(2) and second.holds(2), "two members share four partitions")
    send(log, 40)
    until(
        lambda: len(first.read()) >= 20 and len(first.read() | second.read()) == 40,
        "the records of both",
    )
    had = first.read()
    first.signal(signal.SIGSTOP)
    until(lambda: second.assigned_count() >= 4, "the other one has them all")
    send(log, 40)
    until(lambda: len(second.read() - had) >= 60, "the other one reads them")
    first.signal(signal.SIGCONT)
    until(
        lambda: any(line.startswith("lost") for line in first.heard),
        "the call of its listener for lost partitions",
    )
    until(
        lambda: (
            len(log.describe_group("g").members) == 2 and log.describe_group("g").state == "Stable"
        ),
        "it is back",
    )
    send(log, 40)
    until(lambda: len(first.read() | second.read()) == 120, "everything is read")
    of_the_other = {(partition, offset) for partition in range(4) for offset in range(10, 20)}
    assert not of_the_other & first.read()


def test_a_member_that_stops_polling_leaves_and_comes_again(
    log: embedlog.Log, process: Any
) -> None:
    lost: list[str] = []
    lazy = log.consumer(group_id="g", max_poll_interval_ms=200, **QUICK)
    lazy.subscribe(["t"], on_lost=lambda tps: lost.append("lost"))
    other = process("other")
    until(
        lambda: not lazy.poll(0.05) and len(lazy.assignment()) == 2 and other.holds(2),
        "two members share four partitions",
    )
    lost.clear()  # a slow machine may have been late before
    until(lambda: other.holds(4), "the other one has them all")  # this one polls no more
    with pytest.raises(CommitFailedError):
        lazy.commit({TopicPartition("t", 0): 1})
    assert lost == []
    until(lambda: not lazy.poll(0.05) and len(lazy.assignment()) == 2, "it is back")
    assert lost == ["lost"]
    lazy.close()
    until(lambda: other.holds(4), "a member that closes leaves at once")


# ---- static members ---------------------------------------------------------------------------------------------------


def test_a_static_member_comes_back_without_a_rebalance(log: embedlog.Log, process: Any) -> None:
    first = process("1", group_instance_id="one", session_timeout_ms=30_000)
    second = process("2", session_timeout_ms=30_000)
    until(lambda: first.holds(2) and second.holds(2), "two members share four partitions")
    generation = log.describe_group("g").generation
    first.end()
    again = process("3", group_instance_id="one", session_timeout_ms=30_000)
    until(lambda: again.holds(2), "the new process has the place of the old one")
    assert log.describe_group("g").generation == generation
    assert second.heard.count("assigned 2 3") + second.heard.count("assigned 0 1") == 1


# ---- transactions -----------------------------------------------------------------------------------------------------


def test_offsets_go_with_a_transaction_and_a_member_that_lost_its_place_takes_none_along(
    log: embedlog.Log,
) -> None:
    send(log, 8)
    log.create_topic("out")
    config = {
        **{key: value for key, value in QUICK.items() if "auto_commit" not in key},
        "enable_auto_commit": False,
    }
    with (
        log.consumer("t", group_id="g", **config) as consumer,
        log.producer(transactional_id="x") as producer,
    ):
        producer.init_transactions()
        records: list[Any] = []
        until(lambda: bool(records.extend(consumer.poll(0.1)) or len(records) == 8), "all is read")
        with producer.transaction():
            producer.send("out", b"eight")
            ends = {TopicPartition("t", partition): 2 for partition in range(4)}
            producer.send_offsets_to_transaction(ends, consumer.group_metadata())
        assert committed(log) == 8
        zombie = consumer.group_metadata()
        consumer.unsubscribe()
        producer.begin_transaction()
        with pytest.raises(CommitFailedError):
            producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, zombie)
        producer.abort_transaction()
        consumer.subscribe(["t"])
        assert consumer.poll(0.5) == []
        assert consumer.position(TopicPartition("t", 0)) == 2


# ---- topics -----------------------------------------------------------------------------------------------------------


def test_new_partitions_and_new_topics_are_shared_out(log: embedlog.Log) -> None:
    with log.consumer(group_id="g", **QUICK) as one, log.consumer(group_id="g", **QUICK) as other:
        for each in (one, other):
            each.subscribe(pattern="t.*")

        def shared(count: int) -> Callable[[], bool]:
            def look() -> bool:
                one.poll(0.02), other.poll(0.02)
                mine = one.assignment()
                yours = other.assignment()
                return len(mine) + len(yours) == count and not mine & yours and bool(mine and yours)

            return look

        until(shared(4), "four partitions")
        log.create_partitions("t", 6)
        until(shared(6), "six partitions")
        log.create_topic("t2", 2)
        until(shared(8), "two topics")
        log.delete_topic("t2")
        until(shared(6), "one topic")


def test_a_poll_that_waits_is_woken_by_a_rebalance(log: embedlog.Log, process: Any) -> None:
    with log.consumer("t", group_id="g", **QUICK) as consumer:
        consumer.poll()
        other = process("other")
        thread = threading.Thread(target=lambda: consumer.poll(timeout=RETRY_S))
        thread.start()
        until(lambda: other.holds(2), "the wait took part in the rebalance")
        send(log, 4)
        thread.join(RETRY_S)
        assert not thread.is_alive()


# ---- handing out ------------------------------------------------------------------------------------------------------


def test_who_only_reads_the_log_is_in_no_group(log: embedlog.Log) -> None:
    with (
        embedlog.open(log.path, read_only=True) as reader,
        pytest.raises(ReadOnlyError, match="group"),
    ):
        reader.consumer("t", group_id="g")


def test_a_forked_child_is_no_member(log: embedlog.Log) -> None:
    with log.consumer("t", group_id="g", **QUICK) as consumer:
        consumer.poll()
        child = os.fork()
        if child == 0:
            try:
                consumer.poll()
            except embedlog.ClosedError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        consumer.poll()
        consumer.commit({TopicPartition("t", 0): 0})


def test_an_idle_member_costs_next_to_nothing(log: embedlog.Log) -> None:
    with log.consumer("t", group_id="g", **QUICK) as consumer:
        consumer.poll()
        before = time.thread_time()
        assert consumer.poll(timeout=1.0) == []
        assert time.thread_time() - before < 0.3  # a loop without a wait takes 1.0


def test_before_the_first_poll_there_is_nothing_to_commit(tmp_path: Path) -> None:
    """Both ways of committing agree; offsets that are given need a member."""
    heard: list[tuple[Any, Any]] = []
    with embedlog.open(tmp_path / "log", config=SHORT) as log:
        log.create_topic("t")
        with log.consumer("t", group_id="g") as consumer:
            consumer.commit()
            consumer.commit_async(callback=lambda offsets, error: heard.append((offsets, error)))
            consumer.commit()
            assert heard == [({}, None)]
            with pytest.raises(CommitFailedError, match="poll to join"):
                consumer.commit({TopicPartition("t", 0): 0})
        assert "g" not in log.groups()


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_poll_looks_again_for_the_position_in_a_partition_that_another_thread_loads(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch, reset: str
) -> None:
    reset_position = Collector.reset_position
    missed = list[TopicPartition]()

    def pending(self: Collector, cursor: Cursor) -> Bounds | None:
        if len(missed) < 3:
            missed.append(cursor.tp)
            raise LoadPendingError("another thread loads the partition")
        return reset_position(self, cursor)

    monkeypatch.setattr(Collector, "reset_position", pending)
    with (
        log.producer() as producer,
        log.consumer("t", group_id="other", **{**QUICK, "auto_offset_reset": reset}) as consumer,
    ):
        producer.send("t", b"before").result()
        deadline = time.monotonic() + RETRY_S
        found = list[bytes | None]()
        while len(missed) < 3 or len(consumer.assignment()) < len(
            log.describe_topic("t").partitions
        ):
            assert time.monotonic() < deadline
            found += [record.value for record in consumer.poll(timeout=0.1)]
        found += [record.value for record in consumer.poll(timeout=0.3)]
        producer.send("t", b"after").result()
        while b"after" not in found:
            assert time.monotonic() < deadline
            found += [record.value for record in consumer.poll(timeout=0.1)]
    assert found == ([b"before", b"after"] if reset == "earliest" else [b"after"])
