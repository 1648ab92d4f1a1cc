"""Failed and repeated attempts: once, in order, as the same producer; and the end of the
retries.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog._native import system
from embedlog.errors import (
    ClosedError,
    DeadlineError,
    DeliveryError,
    DuplicateSequenceError,
    DurabilityError,
    LeaderNotAvailableError,
    LockTimeoutError,
    OutOfOrderSequenceError,
    StorageError,
)
from embedlog.producer import idempotence
from embedlog.producer.attempts import Attempt
from embedlog.storage.call_deadline import wait_end
from tests.support import producer_helpers
from tests.support.failing_appends import Append, failing
from tests.support.mutants import apply_mutant, undo_mutants
from tests.support.producer_helpers import LONG_MS, values, wait_until

log = producer_helpers.log


@pytest.fixture(autouse=True)
def unarmed() -> Iterator[None]:
    yield
    system.fault_off()
    undo_mutants()


def batches(log: embedlog.Log, topic: str = "one") -> Any:
    found = log._engine.partition(topic, 0).fetch(0, max_bytes=1 << 24)
    return found.batches


def stamps(log: embedlog.Log) -> list[tuple[int, int, int]]:
    rows = batches(log)
    ids = {number: at for at, number in enumerate(dict.fromkeys(rows["producer_id"].tolist()))}
    return [
        (ids[row["producer_id"]], int(row["producer_epoch"]), int(row["base_sequence"]))
        for row in rows
    ]


def test_batches_carry_a_producer_of_their_own_and_sequences_that_run_on(log: embedlog.Log) -> None:
    """SEQ-4."""
    with log.producer(batch_size=150) as first, log.producer() as second:
        for number in range(30):
            first.send("one", b"%050d" % number)
        first.flush()
        first.send_batch("one", [b"x"] * 1000).result(10)
        assert first.send("one", b"last").result(10).offset == 1030
        second.send("one", b"other").result(10)
    rows = batches(log)
    assert (rows["producer_id"] >= 2**62).all()
    assert len(set(rows["producer_id"].tolist())) == 2
    own = rows[rows["producer_id"] == rows["producer_id"][0]]
    ends = own["base_sequence"] + own["last_offset_delta"] + 1
    assert own["base_sequence"][0] == 0
    assert (own["base_sequence"][1:] == ends[:-1]).all()
    assert int(ends[-1]) == 1031


def test_without_idempotence_nothing_is_stamped(log: embedlog.Log) -> None:
    with log.producer(enable_idempotence=False) as producer:
        producer.send("one", b"v").result(10)
    assert batches(log)["producer_id"].tolist() == [-1]


@pytest.mark.parametrize("idempotent", [True, False])
def test_what_passes_is_waited_for_in_order(log: embedlog.Log, idempotent: bool) -> None:
    with log.producer(
        enable_idempotence=idempotent, retry_backoff_ms=5, batch_size=200
    ) as producer:
        producer.send("one", b"before").result(10)
        system.fault_arm(["pwrite"], 1, "fail", errno.ENOSPC, sticky=True)
        futures = [producer.send("one", b"%0100d" % number) for number in range(10)]
        wait_until(lambda: producer.metrics()["record-retry-total"] > 3)
        assert not any(future.done() for future in futures)
        system.fault_off()
        assert [future.result(10).offset for future in futures] == list(range(1, 11))
    assert values(log)[1:] == [b"%0100d" % number for number in range(10)]


def test_another_partition_does_not_wait_for_it(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(log._engine.partition("t", 0))
    real: Append = kind.append

    def append(self: Any, run: Any, **facts: Any) -> Any:
        if self.number == 0 and held:
            raise LockTimeoutError("held")
        return real(self, run, **facts)

    held = [True]
    monkeypatch.setattr(kind, "append", append)
    with log.producer(retry_backoff_ms=20) as producer:
        stuck = producer.send("t", b"v", partition=0)
        for number in range(20):
            assert producer.send("t", b"v", partition=1).result(10).offset == number
        assert not stuck.done()
        held.clear()
        assert stuck.result(10).offset == 0


class Unled:
    """Partition 0 has no leader: an append waits until its deadline, or until the thread has other
    work.
    """

    def __init__(self, log: embedlog.Log, monkeypatch: pytest.MonkeyPatch) -> None:
        kind = type(log._engine.partition("t", 0))
        real: Append = kind.append
        self.led = threading.Event()
        self.parts = 0

        def append(partition: Any, run: Any, **facts: Any) -> Any:
            if partition.number == 0:
                self.parts += 1
                while not self.led.wait(0.001):
                    if system.boot_ns() >= wait_end(facts["deadline_ns"]):
                        raise LeaderNotAvailableError("no leader")
            return real(partition, run, **facts)

        monkeypatch.setattr(kind, "append", append)


def test_a_wait_for_a_leader_is_one_try_with_pauses_for_other_partitions(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One repetition is allowed, and the deadline of a try is far. The waiting records keep their
    order.
    """
    unled = Unled(log, monkeypatch)
    with log.producer(retries=1, linger_ms=0, request_timeout_ms=LONG_MS) as producer:
        waiting = [producer.send("t", b"%d" % number, partition=0) for number in range(3)]
        wait_until(lambda: unled.parts)
        for number in range(50):
            led = producer.send("t", b"v", partition=1)
            wait_until(led.done)
            assert led.result().offset == number
        wait_until(lambda: unled.parts > 4)
        assert producer.metrics()["record-retry-total"] == 0
        assert not waiting[0].done()
        unled.led.set()
        assert [each.result(10).offset for each in waiting] == [0, 1, 2]


def test_a_try_in_parts_ends_at_its_deadline(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    unled = Unled(log, monkeypatch)
    with log.producer(
        retries=0, acks=1, linger_ms=0, request_timeout_ms=300, on_delivery_error="log"
    ) as producer:
        waiting = [producer.send("t", b"v", partition=0)]
        with pytest.raises(LeaderNotAvailableError):
            waiting[0].result(10)
        assert unled.parts > 1
        assert producer.send("t", b"v", partition=1).result(10).offset == 0


def test_parts_of_a_try_pause_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "boot_ns", lambda: 1_000_000_000)
    attempt = Attempt([], [], None, None)  # type: ignore[arg-type]
    attempt.until_ns = 60_000_000_000
    assert [attempt.pause_s() for _ in range(5)] == [0.1, 0.2, 0.4, 0.8, 0.8]
    attempt.until_ns = 1_050_000_000
    assert attempt.pause_s() == 0.05, "not longer than the try"


@pytest.mark.parametrize("mutant", ["", "retry_unstamped", "no_stamp", "no_duplicate_check"])
def test_an_acknowledgement_that_was_lost_doubles_nothing(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    """The mutants show that it is the stamp on the repeat that does it."""
    apply_mutant(mutant)
    failing(
        monkeypatch,
        log,
        [LockTimeoutError("the answer is lost"), StorageError("again", errno=errno.EIO)],
        after_write=True,
    )
    with log.producer(retry_backoff_ms=1, retries=3) as producer:
        places = producer.send_batch("one", [b"%d" % number for number in range(5)]).exception(10)
        producer.send("one", b"last").exception(10)
    whole = [b"0", b"1", b"2", b"3", b"4", b"last"]
    if mutant:
        assert values(log) != whole or places is not None, f"{mutant} survived"
    else:
        assert values(log) == whole


def test_a_gap_in_the_sequences_is_left_behind_with_the_epoch(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    with log.producer() as producer:
        producer.send("one", b"a").result(10)
        seen = failing(monkeypatch, log, [OutOfOrderSequenceError("cut away")])
        producer.send_batch("one", [b"b"]).result(10)
        producer.send_batch("one", [b"c"]).result(10)
    assert [(stamp.epoch, sequence) for stamp, sequence in seen] == [(0, 1), (1, 0), (1, 1)]
    assert stamps(log) == [(0, 0, 0), (0, 1, 0), (0, 1, 1)]


def test_records_that_were_appended_and_deleted_are_not_appended_in_the_next_epoch(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their places are not known any more, and the answer to the first append was lost."""
    with log.producer(retry_backoff_ms=1) as producer:
        producer.send("one", b"a").result(10)
        seen = failing(monkeypatch, log, [DuplicateSequenceError("no longer in the log")])
        assert isinstance(producer.send_batch("one", [b"b"]).exception(10), DuplicateSequenceError)
        assert [(stamp.epoch, sequence) for stamp, sequence in seen] == [(0, 1)]
        producer.send_batch("one", [b"c"]).result(10)
    assert values(log) == [b"a", b"c"]
    assert stamps(log) == [(0, 0, 0), (0, 1, 0)]


def test_what_is_given_up_leaves_its_epoch_behind(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEQ-6."""
    with log.producer(retries=1, retry_backoff_ms=1) as producer:
        producer.send("one", b"a").result(10)
        failing(monkeypatch, log, [LockTimeoutError("held")] * 2)
        with pytest.raises(LockTimeoutError):
            producer.send_batch("one", [b"b"]).result(10)
        producer.send_batch("one", [b"c"]).result(10)
        assert producer.send("one", b"d").result(10).offset == 2
    assert values(log) == [b"a", b"c", b"d"]
    assert stamps(log) == [(0, 0, 0), (0, 1, 0), (0, 1, 1)]


def test_behind_the_last_epoch_comes_a_new_id(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    with log.producer(retries=1, retry_backoff_ms=1) as producer:
        producer.send("one", b"a").result(10)
        (queue,) = producer._delivery._targets
        queue.producer_epoch = idempotence.EPOCH_MAX
        queue.next_sequence = 0
        queue.seen = -1
        producer.send("one", b"b").result(10)
        failing(monkeypatch, log, [LockTimeoutError("held")] * 2)
        assert isinstance(producer.send_batch("one", [b"c"]).exception(10), LockTimeoutError)
        producer.send("one", b"d").result(10)
    assert stamps(log) == [(0, 0, 0), (0, idempotence.EPOCH_MAX, 0), (1, 0, 0)]


def test_sequences_go_round(log: embedlog.Log) -> None:
    with log.producer() as producer:
        producer.send("one", b"first").result(10)
        (queue,) = producer._delivery._targets
        # of one that is not known any sequence will do
        queue.producer_id = idempotence.new_producer_id()
        queue.next_sequence = 2**31 - 3
        queue.seen = -1
        for number in range(4):
            producer.send("one", b"%d" % number).result(10)
            producer.send_batch("one", [b"w"]).result(10)
    sequences = batches(log)["base_sequence"].tolist()
    assert sequences == [0, 2**31 - 3, 2**31 - 2, 2**31 - 1, 0, 1, 2, 3, 4]


def test_records_that_are_in_do_not_fail_with_those_that_are_not(log: embedlog.Log) -> None:
    log.create_topic("small", config={"segment.bytes": 2000})
    patience = {"linger_ms": LONG_MS, "delivery_timeout_ms": 3 * LONG_MS}
    with log.producer(retries=1, retry_backoff_ms=1, batch_size=700, **patience) as producer:
        producer.send("small", b"first").result(10)
        # the run is cut in two by a roll, which fails
        system.fault_arm(["open"], 1, "fail", errno.ENOSPC, sticky=True)
        futures = [producer.send("small", b"%0600d" % number) for number in range(6)]
        problems = [future.exception(10) for future in futures]
        system.fault_off()
        there = values(log, "small")
        assert problems[-1] is not None
        assert [problem is None for problem in problems] == [
            b"%0600d" % number in there for number in range(6)
        ]
        assert len(there) > 1
        assert producer.send("small", b"after").result(10).offset == len(there)


def test_records_of_a_durable_topic_fail_if_no_sync_was_made(log: embedlog.Log) -> None:
    """The run is cut in two: the error of its second part comes before the sync of the first
    one.
    """
    log.create_topic("durable", config={"segment.bytes": 2000, "flush.messages": 1})
    patience = {"linger_ms": LONG_MS, "delivery_timeout_ms": 3 * LONG_MS}
    with log.producer(retries=1, retry_backoff_ms=1, batch_size=700, **patience) as producer:
        producer.send("durable", b"first").result(10)
        partition = log._engine.partition("durable", 0)
        synced = partition.durable_offset
        system.fault_arm(["open"], 1, "fail", errno.ENOSPC, sticky=True)
        futures = [producer.send("durable", b"%0600d" % number) for number in range(6)]
        assert all(isinstance(future.exception(10), StorageError) for future in futures)
        system.fault_off()
        assert (len(values(log, "durable")) > 1, partition.durable_offset) == (True, synced)
        assert producer.send("durable", b"after").result(10).offset + 1 == partition.durable_offset


def test_a_batch_that_grows_old_fails_with_what_it_failed_of(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    with log.producer(
        delivery_timeout_ms=60, request_timeout_ms=10, linger_ms=0, retry_backoff_ms=10
    ) as producer:
        failing(monkeypatch, log, [LockTimeoutError("process 7 holds it")] * 1000)
        with pytest.raises(DeadlineError, match="process 7"):
            producer.send("one", b"v").result(10)


def test_the_reason_of_an_earlier_attempt_is_kept(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = StorageError("cannot append", errno=errno.ENOSPC)
    failing(monkeypatch, log, [full, *[DeadlineError("late") for _ in range(1000)]])
    options = {
        "delivery_timeout_ms": 500,
        "linger_ms": 0,
        "request_timeout_ms": 50,
        "retry_backoff_ms": 1,
    }
    with log.producer(on_delivery_error="log", **options) as producer:
        error = producer.send("one", b"v").exception(10)
    assert isinstance(error, DeadlineError)
    assert error.__cause__ is full
    assert "ENOSPC" in str(error)


def test_what_does_not_pass_is_not_repeated(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    with log.producer() as producer:
        problems: list[Exception] = [
            StorageError("broken", errno=errno.EROFS),
            DurabilityError("a sync failed"),
        ]
        failing(monkeypatch, log, problems)
        assert isinstance(producer.send("one", b"v").exception(10), StorageError)
        assert isinstance(producer.send("one", b"v").exception(10), DurabilityError)
        assert not problems
    with log.producer(acks=0) as producer:
        problems.append(LockTimeoutError("held"))
        producer.send("one", b"gone")
        producer.flush()
        assert producer.metrics()["record-error-total"] == 1
    assert values(log) == []


def test_close_in_a_hurry_gives_up_what_waits_for_another_attempt(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, log, [LockTimeoutError("held")] * 1000)
    producer = log.producer(retry_backoff_ms=10_000, retry_backoff_max_ms=10_000)
    first = producer.send("one", b"v")
    wait_until(lambda: producer.metrics()["record-retry-total"] == 1)
    later = producer.send("one", b"w")
    with pytest.raises(DeliveryError):
        producer.close(timeout=0.05)
    for future in (first, later):
        assert isinstance(future.exception(10), ClosedError)


def test_the_way_past_the_thread_and_the_thread_take_turns_without_a_look_at_the_log(
    log: embedlog.Log, tmp_path: Path
) -> None:
    with log.producer() as producer:
        producer.send("one", b"v").result(10)
        looks: list[int] = []
        sequencing: Any = log._engine.partition("one", 0)._producers
        real = sequencing.catch_up
        sequencing.catch_up = lambda: (looks.append(1), real())
        for number in range(50):
            producer.send("one", b"%d" % number).result(10)
            producer.send_batch("one", [b"w"]).result(10)
        assert producer._rows.direct_count > 20
        assert looks == []
    assert len(values(log)) == 101


def test_a_topic_that_cannot_be_seen_for_a_moment_keeps_its_lanes(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two queues would write to one partition, each with sequences from 0 of one producer, and no
    order between them.
    """
    with log.producer() as producer:
        producer.send("one", b"0").result(10)
        real = log._engine.partition_count
        looks = []

        def count(name: str) -> int:
            looks.append(name)
            if len(looks) == 1:  # that of the thread after the write
                raise StorageError("cannot look at", errno=errno.EIO)
            return real(name)

        monkeypatch.setattr(log._engine, "partition_count", count)
        producer.send_batch("one", [b"1"]).result(10)
        wait_until(lambda: not producer._routes)
        for number in range(2, 6):
            producer.send("one", b"%d" % number).result(10)
        assert len(producer._delivery._targets) == 1
    assert values(log) == [b"%d" % number for number in range(6)]
    assert [row[1:] for row in stamps(log)] == [(0, number) for number in range(6)]
