"""A producer's transactions in a real log: both isolation levels, fencing, and the transactions of
a dead owner.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import embedlog
from embedlog.errors import ConfigError, FencedError, InvalidTransactionStateError
from embedlog.producer.transaction_manager import ClientState
from tests.support.interrupts import OF_THIS_INTERPRETER, Interrupt
from tests.support.producer_helpers import log as log
from tests.support.producer_helpers import values


def committed(log: embedlog.Log, topic: str = "one") -> list[bytes]:
    return [record.value for record in log.scan(topic, isolation_level="read_committed").records()]


def test_a_transaction_over_many_partitions_and_topics_is_seen_whole_or_not_at_all(
    log: embedlog.Log,
) -> None:
    with log.producer(transactional_id="x") as producer:
        assert producer.init_transactions() is None
        with producer.transaction():
            for number in range(40):
                producer.send("t", b"%d" % number, b"%d" % number)
            producer.send_batch("one", [b"a", b"b"]).result(10)
            producer.flush(10)
            assert committed(log) == committed(log, "t") == []
            assert values(log) == [b"a", b"b"]
        assert committed(log) == [b"a", b"b"]
        assert sorted(committed(log, "t")) == sorted(b"%d" % number for number in range(40))


def test_what_is_aborted_is_never_seen_as_committed(log: embedlog.Log) -> None:
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        for number in range(6):
            producer.begin_transaction()
            producer.send("one", b"%d" % number).result(10)
            producer.abort_transaction() if number % 2 else producer.commit_transaction()
    assert committed(log) == [b"0", b"2", b"4"]
    assert values(log) == [b"%d" % number for number in range(6)]


def test_a_transaction_in_which_nothing_was_sent_touches_nothing(log: embedlog.Log) -> None:
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        before = sum(
            part.log_end_offset for part in log.describe_topic("__transaction_state").partitions
        )
        with producer.transaction():
            pass
        producer.begin_transaction()
        producer.abort_transaction()
        after = sum(
            part.log_end_offset for part in log.describe_topic("__transaction_state").partitions
        )
    assert after == before
    assert log.consumer().end_offsets([embedlog.TopicPartition("one", 0)]) == {
        embedlog.TopicPartition("one", 0): 0
    }


def test_a_newer_producer_of_the_id_fences_the_older_one(log: embedlog.Log) -> None:
    with log.producer(transactional_id="x") as older, log.producer(transactional_id="x") as newer:
        older.init_transactions()
        older.begin_transaction()
        older.send("one", b"older").result(10)
        outcome = newer.init_transactions()
        assert outcome is not None
        assert outcome.kind == "abort"
        with newer.transaction():
            newer.send("one", b"newer")
        assert isinstance(older.send("one", b"zombie").exception(10), FencedError)
        with pytest.raises(FencedError):
            older.commit_transaction()
    assert committed(log) == [b"newer"]


def test_init_says_what_became_of_the_last_commit(log: embedlog.Log) -> None:
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("one", b"v")
    with log.producer(transactional_id="x") as again:
        outcome = again.init_transactions()
        assert outcome is not None
        assert outcome.kind == "commit"


def test_closing_with_an_open_transaction_aborts_it(log: embedlog.Log) -> None:
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("one", b"v").result(10)
    with log.producer() as other:
        other.send("one", b"after").result(10)
    assert committed(log) == [b"after"]


def test_what_a_killed_process_left_open_is_aborted_by_the_next_owner(tmp_path: Path) -> None:
    program = """
        import sys, embedlog
        log = embedlog.open(sys.argv[1])
        log.create_topic("one")
        producer = log.producer(transactional_id="x")
        producer.init_transactions()
        with producer.transaction():
            producer.send("one", b"committed")
        producer.begin_transaction()
        producer.send("one", b"left").result()
        print("there", flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"there\n"
        os.kill(child.pid, signal.SIGKILL)
        child.wait(10)
    with embedlog.open(tmp_path / "log") as log, log.producer(transactional_id="x") as producer:
        outcome = producer.init_transactions()
        assert outcome is not None
        assert outcome.kind == "abort"
        with producer.transaction():
            producer.send("one", b"again")
        assert committed(log) == [b"committed", b"again"]
        assert values(log) == [b"committed", b"left", b"again"]


def test_offsets_of_a_group_are_committed_with_the_records(log: embedlog.Log) -> None:
    place = embedlog.TopicPartition("one", 0)
    group = embedlog.GroupMetadata("g")
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send_offsets_to_transaction({}, group)
            producer.send_offsets_to_transaction({place: 5}, group)
            assert log._engine.groups.read_committed("g") == {}
        assert log._engine.groups.read_committed("g") == {place: embedlog.OffsetAndMetadata(5)}


def test_offsets_that_the_group_refuses_can_only_be_aborted(log: embedlog.Log) -> None:
    stranger = embedlog.GroupMetadata("g", 3, "somebody")
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("one", b"never")
        with pytest.raises(embedlog.CommitFailedError):
            producer.send_offsets_to_transaction({embedlog.TopicPartition("one", 0): 5}, stranger)
        with pytest.raises(embedlog.CommitFailedError):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send("one", b"again")
    assert committed(log) == [b"again"]


def test_a_time_out_above_the_logs_is_refused(log: embedlog.Log) -> None:
    with pytest.raises(
        ConfigError, match=r"transaction\.timeout\.ms: expected .*transaction\.max\.timeout\.ms"
    ):
        log.producer(transactional_id="x", transaction_timeout_ms=900_001)


def test_a_plain_producer_beside_it_is_not_part_of_it(log: embedlog.Log) -> None:
    with log.producer(transactional_id="x") as producer, log.producer() as plain:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("one", b"inside").result(10)
        plain.send("one", b"plain").result(10)
        producer.abort_transaction()
        with pytest.raises(InvalidTransactionStateError):
            producer.send("one", b"outside")
    assert committed(log) == [b"plain"]


@pytest.mark.parametrize("raising", ["send_offsets_to_transaction", "commit_transaction"])
def test_failures_by_fencing_are_received_with_the_error_of_a_call(
    log: embedlog.Log, raising: str
) -> None:
    with (
        log.producer(transactional_id="x", linger_ms=60_000) as old,
        log.producer(transactional_id="x") as new,
    ):
        old.init_transactions()
        new.init_transactions()
        old.begin_transaction()
        future = old.send("one", b"buffered")
        with pytest.raises(FencedError):
            if raising == "commit_transaction":
                old.commit_transaction()
            else:
                old.send_offsets_to_transaction(
                    {embedlog.TopicPartition("one", 0): 1}, embedlog.GroupMetadata("g")
                )
        old.send("one", b"refused")
        old.close()  # raises nothing: the call above did
        assert isinstance(future.exception(10), FencedError)
    assert values(log) == []


def test_a_failure_by_fencing_that_no_call_raised_is_reported(log: embedlog.Log) -> None:
    old = log.producer(transactional_id="x", linger_ms=60_000)
    old.init_transactions()
    with log.producer(transactional_id="x") as new:
        new.init_transactions()
        old.begin_transaction()
        old.send("one", b"buffered")
        with pytest.raises(embedlog.DeliveryError, match="PRODUCER_FENCED"):
            old.close()


@pytest.mark.parametrize("batched", [False, True], ids=["send", "send_batch"])
@pytest.mark.parametrize("flush_messages", ["1", "100000"])
@pytest.mark.parametrize("end", ["commit", "abort"])
@pytest.mark.parametrize("again", [False, True], ids=["not written again", "written again"])
def test_a_topic_that_is_deleted_and_made_again_in_a_transaction_is_another_topic(
    log: embedlog.Log, batched: bool, flush_messages: str, end: str, again: bool
) -> None:
    """The records of the old topic are gone; the new one has no open transaction and no durable
    offset to wait for.
    """
    config = {"flush.messages": flush_messages}
    log.create_topic("again", config=config)
    with log.producer(transactional_id="x", max_block_ms=10_000) as producer:

        def send(topic: str, value: bytes) -> None:
            (
                producer.send_batch(topic, [value]) if batched else producer.send(topic, value)
            ).result(10)

        producer.init_transactions()
        producer.begin_transaction()
        send("one", b"u")
        send("again", b"old")
        log.delete_topic("again")
        log.create_topic("again", config=config)
        if again:
            send("again", b"new")
            send("again", b"newer")
        producer.commit_transaction() if end == "commit" else producer.abort_transaction()
        producer.begin_transaction()
        send("again", b"last")
        producer.commit_transaction()
    assert committed(log, "again") == ([b"new", b"newer"] if again and end == "commit" else []) + [
        b"last"
    ]
    assert committed(log) == ([b"u"] if end == "commit" else [])


@OF_THIS_INTERPRETER
def test_an_interrupt_anywhere_in_a_transaction_leaves_none_open_and_no_call_refused(
    log: embedlog.Log,
) -> None:
    with log.producer(transactional_id="x", max_block_ms=10_000) as producer:
        producer.init_transactions()

        def whole() -> None:
            with producer.transaction():
                producer.send("one", b"v")

        nth = 0
        begun = time.monotonic()
        struck: list[tuple[str, int]] = []
        while len(struck) == nth:
            nth += 1
            interrupt = Interrupt(nth, ("transaction_manager.py", "producer.py"))
            interrupt.run(whole)
            if interrupt.struck is not None:
                struck.append(interrupt.struck)
            if producer._transaction.state is ClientState.COMMITTING:
                producer.commit_transaction()
            assert producer._transaction.state is ClientState.READY, interrupt.struck
            whole()
        assert nth > 40
        assert time.monotonic() - begun < 10 * nth  # no call has waited for a lock that remained


def test_a_refused_transaction_does_not_abort_the_open_one(log: embedlog.Log) -> None:
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("one", b"v")
        with (
            pytest.raises(InvalidTransactionStateError, match="begin_transaction"),
            producer.transaction(),
        ):
            pass
        producer.commit_transaction()
    assert committed(log) == [b"v"]
