"""Transactions over several partitions, without a coordinator: visibility, fencing, and completion
by other processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import embedlog
from embedlog._native import system
from embedlog.coordination.producer_ids import new_producer_id
from embedlog.coordination.transactions import recovery_due
from embedlog.coordination.transactions.transaction_records import encode_key
from embedlog.errors import (
    ClosedError,
    ConfigError,
    CorruptRecordError,
    FencedError,
    InvalidTransactionStateError,
    StateError,
    StorageError,
)
from embedlog.format.record_batch import Stamp
from embedlog.transaction import EPOCH_LAST, EPOCH_MAX, Outcome, Status, Transaction
from tests.kafka import UNCLEAN
from tests.support.transactional_producers import (
    QUIET,
    TOPIC,
    Writer,
    begun,
    committed,
    everything,
    help_out,
    last_stable,
    soon,
    state_of,
)


@pytest.fixture
def log(path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(path, config=QUIET) as opened:
        opened.create_topic(TOPIC, 3)
        yield opened


# ---- visibility ----------------------------------------------------------------------------------


def test_records_of_all_partitions_are_seen_together_or_never(
    log: embedlog.Log, other: embedlog.Log
) -> None:
    writer = begun(log)
    for partition in range(3):
        writer.write(b"a%d" % partition, partition=partition)
        writer.write(b"b%d" % partition, partition=partition)
    assert committed(other) == []
    assert len(everything(other)) == 6
    writer.commit()
    assert committed(other) == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"]
    writer.write(b"never", partition=1)
    writer.abort()
    assert committed(other) == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"]
    assert len(everything(other)) == 7
    assert [last_stable(other, number)[0] for number in range(3)] == [3, 5, 3], (
        "markers take an offset each"
    )


def test_an_end_without_records_asks_nobody(log: embedlog.Log) -> None:
    writer = begun(log)
    before = (
        log._engine.transactions.topic.partition(log._engine.transactions.topic.partition_of("id"))
        .bounds()
        .log_end
    )
    for end in (writer.commit, writer.abort):
        end()
    assert writer.owner.stamp.epoch == 0
    assert (
        log._engine.transactions.topic.partition(log._engine.transactions.topic.partition_of("id"))
        .bounds()
        .log_end
        == before
    )


def test_every_transaction_has_an_epoch_of_its_own(log: embedlog.Log) -> None:
    writer = begun(log)
    for turn in range(5):
        assert writer.owner.stamp.epoch == turn
        writer.write(b"%d" % turn)
        (writer.commit if turn % 2 else writer.abort)()
    assert committed(log) == [b"1", b"3"]


def test_open_transactions_of_several_ids_do_not_meet(
    log: embedlog.Log, other: embedlog.Log
) -> None:
    one = begun(log, "one")
    two = begun(other, "two")
    one.write(b"1a")
    two.write(b"2a")
    one.write(b"1b")
    two.commit()
    assert committed(log) == [], "one open transaction holds back all records after it"
    one.abort()
    assert committed(log) == [b"2a"]


def test_many_owners_at_once_leave_only_whole_transactions(
    log: embedlog.Log, other: embedlog.Log, seed: int
) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            writer = begun((log, other)[number % 2], f"id-{number}")
            for turn in range(12):
                for partition in range(3):
                    writer.write(b"%d.%d" % (number, turn), partition=partition)
                (writer.abort if (seed >> turn + number) % 3 == 0 else writer.commit)()
        except BaseException as problem:  # noqa: BLE001  a thread's edge
            errors.append(problem)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    wanted = {
        b"%d.%d" % (n, turn) for n in range(4) for turn in range(12) if (seed >> turn + n) % 3
    }
    found = committed(log)
    assert set(found) == wanted
    assert all(found.count(value) == 3 for value in wanted)
    assert all(stable == end for stable, end in (last_stable(log, number) for number in range(3)))


# ---- fencing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["first", "later", "commit", "abort", "init"])
def test_a_zombie_is_fenced_whatever_it_tries(
    log: embedlog.Log, other: embedlog.Log, verb: str
) -> None:
    zombie = begun(log)
    zombie.write(b"of the zombie")
    heir = Writer(other)
    assert heir.init() == Outcome("abort", zombie.owner.stamp.producer_id, 0)
    heir.write(b"of the heir")
    verbs: dict[str, Callable[[], object]] = {
        "first": lambda: zombie.write(b"late", partition=1),
        "later": lambda: zombie.write(b"late"),
        "commit": zombie.commit,
        "abort": zombie.abort,
        "init": zombie.init,
    }
    for _ in range(2):
        with pytest.raises(FencedError):
            verbs[verb]()
    heir.commit()
    assert committed(log) == [b"of the heir"]
    assert b"late" not in everything(log)


def test_before_init_nothing_goes(log: embedlog.Log) -> None:
    writer = Writer(log)
    with pytest.raises(StateError, match="init_transactions"):
        writer.write(b"x")
    with pytest.raises(StateError, match="init_transactions"):
        writer.owner.begin_in([])


def test_a_closed_owner_decides_nothing(log: embedlog.Log) -> None:
    writer = begun(log)
    writer.write(b"x")
    writer.owner.close()
    writer.owner.close()
    with pytest.raises(ClosedError, match="closed"):
        writer.commit()


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_out_of_range_is_named(log: embedlog.Log, timeout_ms: int) -> None:
    with pytest.raises(
        ConfigError, match=r"transaction\.timeout\.ms.*900000.*transaction\.max\.timeout\.ms"
    ):
        log._engine.transactions.owner("id", timeout_ms)


def test_the_longest_timeout_is_the_logs(path: Path) -> None:
    with embedlog.open(path, config={"transaction.max.timeout.ms": 5000}) as log:
        log._engine.transactions.owner("id", 5000)
        with pytest.raises(ConfigError):
            log._engine.transactions.owner("id", 5001)


@pytest.mark.parametrize("name", ["", "x" * 32768])
def test_an_id_that_has_no_place_in_a_record_is_refused(log: embedlog.Log, name: str) -> None:
    with pytest.raises(ConfigError, match=r"transactional\.id"):
        log._engine.transactions.owner(name, 1000)


# ---- unfinished work of other processes ----------------------------------------------------------


def test_a_dead_owners_transaction_is_aborted_by_who_waits(log: embedlog.Log, path: Path) -> None:
    with embedlog.open(path, config=QUIET) as short:
        writer = begun(short)
        writer.write(b"left open", partition=1)
        assert not help_out(log, 1), "its owner is alive, and its timeout is not over"
    assert last_stable(log, 1) == (0, 1)
    assert help_out(log, 1)
    assert last_stable(log, 1) == (2, 2)
    assert not help_out(log, 1)
    assert committed(log) == []
    assert begun(log).owner.stamp.epoch == 2


def test_an_owner_that_takes_too_long_is_aborted_and_fenced(
    log: embedlog.Log, other: embedlog.Log
) -> None:
    slow = begun(log, timeout_ms=1)
    slow.write(b"too slow")
    state = slow.state()
    assert state is not None
    assert state.began is not None
    threading.Event().wait(0.005)
    assert help_out(other)
    assert last_stable(other) == (2, 2)
    for verb in (
        slow.commit,
        slow.abort,
        lambda: slow.write(b"late"),
        lambda: slow.write(b"late", partition=2),
    ):
        with pytest.raises(FencedError):
            verb()
    assert slow.init() == Outcome("abort", slow.owner.stamp.producer_id, 0), (
        "the same producer may begin once more"
    )
    slow.write(b"in time")
    slow.commit()
    assert committed(other) == [b"in time"]


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(
    "finisher", ["the owner again", "a reader", "the next owner", "the housekeeper"]
)
def test_a_decision_that_was_not_carried_out(
    log: embedlog.Log, other: embedlog.Log, finisher: str, commit: bool
) -> None:
    writer = begun(log)
    for partition in range(2):
        writer.write(b"x", partition=partition)
    system.fault_arm(("pwrite",), 1, "fail", name=f"/{TOPIC}-0")  # the first marker
    try:
        with pytest.raises(StorageError):
            writer.owner.end(commit)
    finally:
        system.fault_off()
    assert committed(other) == []
    state = writer.state()
    assert state is not None
    assert state.status is (Status.PREPARE_COMMIT if commit else Status.PREPARE_ABORT)
    first = writer.owner.stamp.producer_id
    if finisher == "a reader":
        assert help_out(other, 1)
    elif finisher == "the housekeeper":
        other.housekeep()
    elif finisher == "the next owner":
        assert Writer(other).init() == Outcome("commit" if commit else "abort", first, 0)
    if finisher == "the next owner":
        with pytest.raises(FencedError):
            writer.owner.end(commit)
    else:
        for verb in [lambda: writer.owner.end(not commit)] if finisher != "the owner again" else []:
            with pytest.raises((FencedError, InvalidTransactionStateError)):
                verb()
        writer.owner.end(commit)
        assert writer.owner.stamp.epoch == 1
    assert committed(other) == ([b"x", b"x"] if commit else [])
    assert all(last_stable(other, number) == (2, 2) for number in range(2)), "one marker each"


def test_the_owner_waits_for_nobody_behind_a_decision_of_its_own(log: embedlog.Log) -> None:
    """A new transaction meets the last one prepared: it is finished on the way."""
    writer = begun(log)
    writer.write(b"1")
    state = writer.state()
    assert state is not None
    prepared = state._replace(status=Status.PREPARE_COMMIT, epoch=state.epoch + 1)
    log._engine.transactions.decide("id", lambda _: prepared, soon())
    writer.owner._id = (prepared.producer_id, prepared.epoch)
    writer.owner.begin()
    writer.write(b"2")
    assert committed(log) == [b"1"]
    writer.commit()
    assert committed(log) == [b"1", b"2"]


def test_a_partition_whose_topic_is_gone_counts_as_done(
    log: embedlog.Log, other: embedlog.Log
) -> None:
    log.create_topic("gone", 1)
    writer = begun(log)
    writer.write(b"kept")
    writer.write(b"lost", topic="gone")
    other.delete_topic("gone")
    writer.commit()
    assert committed(other) == [b"kept"]


def test_the_housekeeper_ends_what_the_dead_left(path: Path) -> None:
    config = {
        "log.flush.scheduler.interval.ms": 5,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 5,
    }
    with embedlog.open(path, config=config) as log:
        log.create_topic(TOPIC, 1)
        with embedlog.open(path, config=QUIET) as short:
            begun(short).write(b"left open")
        partition = log._engine.partition(TOPIC, 0)
        for _ in range(4000):
            if partition.bounds().last_stable == 2:
                break
            threading.Event().wait(0.005)
        assert last_stable(log) == (2, 2)


def test_who_only_reads_writes_nothing(log: embedlog.Log, path: Path) -> None:
    with embedlog.open(path, config=QUIET) as short:
        begun(short).write(b"left open")
    with embedlog.open(path, read_only=True) as reader:
        assert not help_out(reader)
        assert last_stable(reader) == (0, 1)
        with pytest.raises(embedlog.ReadOnlyError):
            Writer(reader).init()
    assert last_stable(log) == (0, 1)


@pytest.mark.parametrize("unclean", UNCLEAN)
def test_a_brokers_open_transaction_is_ended_here(
    golden_copy: Callable[[str], Path], unclean: str
) -> None:
    """Its producer was a client of the broker that was killed: no other process will decide."""
    with embedlog.open(golden_copy(unclean), config=QUIET) as log:
        opened = log._engine.partition("transactions", 0).open_transactions()
        assert opened
        log.housekeep()
        assert log._engine.partition("transactions", 0).open_transactions() == []
        state = state_of(log, "transactions-writer-0")
        assert state is not None
        assert (state.status, state.producer_id) == (Status.COMPLETE_ABORT, opened[0][0])
        heir = begun(log, "transactions-writer-0")
        assert heir.owner.stamp.producer_id == state.producer_id
        heir.write(b"on it goes", topic="transactions")
        heir.commit()
        assert b"on it goes" in committed(log, "transactions")


# ---- outcomes ------------------------------------------------------------------------------------


def test_init_tells_what_became_of_the_last_transaction_and_of_which(
    log: embedlog.Log, other: embedlog.Log
) -> None:
    writer = Writer(log)
    assert writer.init() is None
    producer_id = writer.owner.stamp.producer_id
    writer.write(b"x")
    writer.commit()
    assert Writer(other).init() == Outcome("commit", producer_id, 0)
    assert Writer(other).init() == Outcome("commit", producer_id, 0), (
        "a beginning that did nothing forgets nothing"
    )
    third = begun(log)
    third.write(b"y")
    assert Writer(other).init() == Outcome("abort", producer_id, 4)


def test_epochs_run_out_and_go_on_under_a_new_producer_id(log: embedlog.Log) -> None:
    old_id = new_producer_id()
    log._engine.transactions.decide(
        "id", lambda _: Transaction(old_id, EPOCH_LAST - 1, 60_000), soon()
    )
    writer = begun(log)
    assert writer.owner.stamp == Stamp(old_id, EPOCH_LAST, transactional=True)
    writer.write(b"the last of the old one")
    writer.commit()
    stamp = writer.owner.stamp
    assert (stamp.producer_id != old_id, stamp.epoch) == (True, 0)
    assert log._engine.partition(TOPIC, 0).stored_epoch(old_id) == EPOCH_MAX
    writer.write(b"the first of the new one")
    writer.commit()
    assert committed(log) == [b"the last of the old one", b"the first of the new one"]
    assert begun(log).owner.stamp == Stamp(stamp.producer_id, 2, transactional=True)


def test_ids_nobody_used_are_forgotten_those_of_the_living_are_not(path: Path) -> None:
    with embedlog.open(path, config=QUIET | {"transactional.id.expiration.ms": 200_000}) as log:
        log.create_topic(TOPIC, 1)
        alive = begun(log, "alive")
        dead = begun(log, "dead")
        for writer in (alive, dead):
            writer.write(b"x")
            writer.commit()
        dead.owner.close()
        try:
            system.shift_wall(100_000)
            log.housekeep()
            assert state_of(log, "dead") is not None
            system.shift_wall(200_000)
            log.housekeep()
        finally:
            system.shift_wall(0)
        assert state_of(log, "dead") is None
        assert state_of(log, "alive") is not None
        first = dead.owner.stamp.producer_id
        with pytest.raises(FencedError, match="INVALID_PRODUCER_ID_MAPPING"):
            dead.write(b"late")
        assert Writer(log, "dead").init() is None
        assert state_of(log, "dead").producer_id != first  # type: ignore[union-attr]


def test_one_broken_record_hinders_nobody_else(log: embedlog.Log, other: embedlog.Log) -> None:
    begun(log, "broken")
    topic = log._engine.transactions.topic
    with topic.lock_for_decision(topic.partition_of("broken"), soon()) as decision:
        decision.append(
            [(encode_key("broken"), b"\0\1 and then nothing that makes sense, under status \1")]
        )
    with pytest.raises(CorruptRecordError):
        begun(other, "broken")
    for opened in (log, other):
        assert opened._engine.home.directory.page is not None
        opened._engine.home.directory.page.set(recovery_due.RECOVERY_DUE, 1)
        writer = begun(opened, "whole")
        writer.write(b"x")
        writer.commit()
        opened.housekeep()
    assert committed(log) == [b"x", b"x"]


@pytest.mark.usefixtures("usual_internal_topics")
def test_the_topic_is_kafkas_unless_asked_otherwise(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log") as log:
        begun(log, "my-txn-id")
        found = log.describe_topic("__transaction_state")
        assert len(found.partitions) == 50
        assert found.partitions[11].log_end_offset == 1, "the place that Kafka gives this id"
        assert found.config["cleanup.policy"] == "compact"
        assert found.config["segment.bytes"] == "104857600"
