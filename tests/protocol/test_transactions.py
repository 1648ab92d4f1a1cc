"""LOCK-3, TXN-5 and TXN-6 of the protocol for transactions: the order of locks and of syncs, and
the result of a power loss.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import transaction as machine
from embedlog._native import system
from embedlog.admin import backup
from embedlog.coordination.producer_ids import new_producer_id
from embedlog.coordination.transactions import recovery_due
from embedlog.coordination.transactions.transaction_checks import current_moment
from embedlog.errors import FencedError, LockTimeoutError
from embedlog.format.record_batch import Stamp
from embedlog.storage import locks
from embedlog.storage.control_page import boot_and_mount_number
from embedlog.transaction import Status, Transaction
from tests.support.mutants import mutated
from tests.support.transactional_producers import (
    QUIET,
    TOPIC,
    Writer,
    begun,
    committed,
    help_out,
    last_stable,
    run_of,
    soon,
)


@pytest.fixture
def log(path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(path, config=QUIET) as opened:
        opened.create_topic(TOPIC, 3)
        yield opened


# ---- locks and disks -----------------------------------------------------------------------------


def test_lock_3_internal_partitions_come_before_data(
    log: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "checks_order", True)
    log.create_topic("Events", 1)  # sorts before the underscore
    writer = begun(log)
    writer.write(b"x", topic="Events")
    writer.write(b"x")
    writer.commit()
    assert committed(log, "Events") == [b"x"]


def syncs_and_writes(path: Path, work: Callable[[], None], directory: Path) -> list[str]:
    """The partitions' directories in the order in which they were written to ("w t-0") and synced
    ("s t-0").
    """
    with path.open("wb") as trace:
        system.fault_trace(trace.fileno())
        try:
            work()
        finally:
            system.fault_trace(-1)
    found = []
    for line in path.read_text().splitlines():
        kind, _, name = line.split(" ", 2)
        if (
            name.endswith(".log")
            and kind in ("pwrite", "fdatasync", "fsync")
            and name.startswith(str(directory))
        ):
            topic = Path(name).parent.name.rpartition("-")[0]
            found.append(
                ("w " if kind == "pwrite" else "s ")
                + ("state" if topic == "__transaction_state" else topic)
            )
    return found


# data, Prepare, it on disk, marker, it on disk, Complete
STEPS = ["s t", "w state", "s state", "w t", "s t", "w state"]


@pytest.mark.parametrize("mutant", ["", "data_unsynced", "prepare_unsynced", "markers_unsynced"])
def test_txn_5_each_step_is_on_disk_before_the_next(
    log: embedlog.Log, tmp_path: Path, path: Path, mutant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = begun(log)
    writer.write(b"x")
    # after the write, which else would have seen to it
    log.alter_topic(TOPIC, {"flush.messages": "1"})
    partition = log._engine.partition(TOPIC, 0)
    monkeypatch.setattr(partition._syncer, "flush_if_due", lambda *_: None)
    with mutated(mutant):
        steps = syncs_and_writes(tmp_path / "trace", writer.commit, path)
    assert (steps == STEPS) == (not mutant), steps


def test_without_a_wish_for_durability_nothing_is_synced(
    log: embedlog.Log, tmp_path: Path, path: Path
) -> None:
    writer = begun(log)
    writer.write(b"x")
    assert syncs_and_writes(tmp_path / "trace", writer.commit, path) == [
        "w state",
        "w t",
        "w state",
    ]


# ---- after a power loss --------------------------------------------------------------------------


def orphan(
    log: embedlog.Log, partition: int, epoch: int = 0, producer_id: int | None = None
) -> int:
    """Open data whose record in the state topic was lost."""
    stamp = Stamp(producer_id or new_producer_id(), epoch, transactional=True, opens=True)
    log._engine.partition(TOPIC, partition).append(run_of(stamp, 0, [b"orphan"]), stamp=stamp)
    return stamp.producer_id


def due(log: embedlog.Log) -> None:
    assert log._engine.home.directory.page is not None
    log._engine.home.directory.page.set(recovery_due.RECOVERY_DUE, 1)


@pytest.mark.parametrize("mutant", ["", "no_sweep"])
def test_txn_6_open_data_without_a_record_is_swept(log: embedlog.Log, mutant: str) -> None:
    orphan(log, 1)
    due(log)
    with mutated(mutant):
        help_out(log, 1)
        assert (last_stable(log, 1) == (2, 2)) == (not mutant)
    assert recovery_due.is_due(log._engine.home.directory.page) == bool(mutant)


def test_txn_6_the_sweep_leaves_what_a_record_covers(log: embedlog.Log, path: Path) -> None:
    living = begun(log, "living")
    living.write(b"mine")
    with embedlog.open(path, config=QUIET) as short:
        begun(short, "dead").write(b"theirs", partition=1)
    due(log)
    begun(log, "another")
    assert not recovery_due.is_due(log._engine.home.directory.page)
    assert last_stable(log, 0) == (0, 1)
    assert last_stable(log, 1) == (0, 1)
    living.commit()
    assert committed(log) == [b"mine"]


def test_txn_6_nobody_goes_on_below_an_epoch_that_a_partition_has_stored(log: embedlog.Log) -> None:
    writer = begun(log)
    writer.write(b"x")
    writer.commit()
    state = writer.state()
    assert state is not None
    # the records of epochs 1 to 7 were lost with the power
    orphan(log, 2, epoch=7, producer_id=state.producer_id)
    due(log)
    heir = begun(log)
    assert heir.owner.stamp.epoch == 9, "above the marker that the sweep wrote"
    heir.write(b"y", partition=2)
    heir.commit()
    assert committed(log) == [b"x", b"y"]


@pytest.mark.parametrize("decided", [False, True])
@pytest.mark.parametrize("mutant", ["", "lift_settled_only"])
def test_txn_6_an_id_that_was_in_a_transaction_is_lifted_behind_its_end(
    log: embedlog.Log, path: Path, mutant: str, decided: bool
) -> None:
    with embedlog.open(path, config=QUIET) as short:
        dead = begun(short)
        dead.write(b"theirs")
        if decided:  # and no marker written
            short._engine.transactions.decide(
                "id",
                lambda old: machine.abort_abandoned(old, old, new_producer_id(), current_moment()),
                soon(),
            )
        orphan(log, 2, epoch=7, producer_id=dead.owner.stamp.producer_id)
    due(log)
    with mutated(mutant):
        heir = begun(log)
    if mutant:
        with pytest.raises(FencedError):
            heir.write(b"y", partition=2)
        return
    assert heir.owner.stamp.epoch == 9, "above the marker that the sweep wrote"
    heir.write(b"y", partition=2)
    heir.commit()
    assert committed(log) == [b"y"]


def test_txn_6_a_slow_sweep_spares_what_began_since(
    log: embedlog.Log, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has swept, too, was done sooner, and works on."""
    begun(log, "somebody")
    due(log)
    with embedlog.open(path, config=QUIET) as other:
        writers: list[Writer] = []
        every = log._engine.all_partitions

        def slowly(*, loaded_only: bool) -> Iterator[Any]:
            found = every(loaded_only=loaded_only)
            writers.append(begun(other, "living"))
            for partition in range(3):
                writers[0].write(b"x", partition=partition)
            yield from found

        monkeypatch.setattr(log._engine, "all_partitions", slowly)
        log._engine.transactions.recover_if_due(soon())
        writers[0].write(b"y")
        writers[0].commit()
        assert committed(log) == [b"x", b"y", b"x", b"x"]


@pytest.mark.parametrize(
    ("clean", "broker_wrote", "cache", "expected"),
    [
        (False, False, 1, True),
        (True, False, 1, False),
        (False, True, 1, False),
        (False, False, 0, False),
    ],
)
def test_txn_6_when_a_sweep_is_due(
    log: embedlog.Log, clean: bool, broker_wrote: bool, cache: int, expected: bool
) -> None:
    """`cache`: whether the page cache is another one than before."""
    page = log._engine.home.directory.page
    assert page is not None
    assert not recovery_due.is_due(page)
    now = boot_and_mount_number(log.path) + cache
    recovery_due.record_opening(page, clean, broker_wrote, now)
    assert recovery_due.is_due(page) == expected
    recovery_due.record_opening(page, True, False, now)
    assert recovery_due.is_due(page) == expected, (
        "an orderly close in between does not make it needless"
    )


# ---- TXN-1 and TXN-2 -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mutant", "together"), [("", False), ("", True), ("register_apart", False)]
)
def test_txn_1_a_first_batch_is_registered_and_written_under_one_lock(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: str, together: bool
) -> None:
    """Between the two an heir aborts the transaction, and the partition forgets the producer, which
    nothing fences then.
    """
    hasty = QUIET | {"lock.timeout.ms": 300}
    with embedlog.open(path, config=QUIET) as log, embedlog.open(path, config=hasty) as other:
        log.create_topic(TOPIC, 1)
        zombie = begun(log)
        heir = Writer(other)
        partition = log._engine.partition(TOPIC, 0)
        refused = []
        append = partition.append

        def append_later(*arguments: Any, **keywords: Any) -> Any:
            if not refused:  # else it was late, and tries once more
                try:
                    heir.init()
                except LockTimeoutError as problem:
                    refused.append(problem)
                partition._producers.forget()
                state = partition._lock.current_producers()
                state.producers.clear()
            return append(*arguments, **keywords)

        monkeypatch.setattr(partition, "append", append_later)
        with mutated(mutant):
            if together:
                run, progress = zombie.begin_in(0)[0]
                zombie.owner.append(partition, run, progress=progress)
            else:
                zombie.write(b"of the zombie")
        heir.init()
        help_out(other)
        assert bool(refused) == (not mutant), "no process comes in between"
        assert (last_stable(other) == (2, 2)) == (not mutant), "else the last stable offset sticks"
        assert committed(other) == []


@pytest.mark.parametrize("mutant", ["", "marker_not_skipped"])
def test_txn_2_an_old_marker_cannot_close_a_new_transaction(
    log: embedlog.Log, path: Path, mutant: str
) -> None:
    """A helper that saw the decision is slow: the owner has completed it and begun the next one."""
    writer = begun(log)
    writer.write(b"first")
    with embedlog.open(path, config=QUIET) as other:
        decided: list[Transaction] = []
        finish = log._engine.transactions.finish

        def see_and_finish(name: str, seen: Transaction, deadline_ns: int) -> None:
            decided.append(seen)
            finish(name, seen, deadline_ns)

        log._engine.transactions.finish = see_and_finish  # type: ignore[method-assign]
        writer.commit()
        writer.write(b"second")
        with mutated(mutant):
            other._engine.transactions.finish("id", decided[0], soon())
        assert (committed(other) == [b"first"]) == (not mutant)
        assert (last_stable(other)[0] == 2) == (not mutant)
        if not mutant:
            writer.abort()
            assert committed(other) == [b"first"]


def test_txn_2_helpers_may_do_it_all_at_once(log: embedlog.Log, path: Path) -> None:
    """TXN-3, too."""
    writer = begun(log)
    for partition in range(3):
        writer.write(b"x", partition=partition)
    state = writer.state()
    assert state is not None
    decided = log._engine.transactions.decide(
        "id",
        lambda old: old and machine.abort_abandoned(old, old, new_producer_id(), current_moment()),
        soon(),
    )
    assert decided is not None
    logs = [embedlog.open(path, config=QUIET) for _ in range(3)]
    threads = [
        threading.Thread(target=each._engine.transactions.finish, args=("id", decided, soon()))
        for each in logs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for each in logs:
        each.close()
    assert [last_stable(log, number) for number in range(3)] == [(2, 2)] * 3, "one marker each"
    after = writer.state()
    assert after is not None
    assert after.status is Status.COMPLETE_ABORT


# ---- copies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("still", [True, False])
def test_a_backup_tears_no_transaction(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, still: bool
) -> None:
    """A commit happens while the ends of the partitions are read: between the first and the
    second.
    """
    hasty = QUIET | {"lock.timeout.ms": 200}
    with embedlog.open(path, config=QUIET) as log, embedlog.open(path, config=hasty) as other:
        log.create_topic(TOPIC, 2)
        writer = begun(other)
        outcomes = []
        for partition in range(2):
            writer.write(b"x", partition=partition)
        pin = backup.pin_of

        def commit_and_pin(partition: Any) -> Any:
            if (partition.topic, partition.number) == (TOPIC, 1) and len(outcomes) < 2:
                outcomes.append("")
                if len(outcomes) == 2:  # the second look: the first one only opens
                    try:
                        writer.commit()
                    except LockTimeoutError as problem:
                        outcomes.append(str(problem))
            return pin(partition)

        monkeypatch.setattr(backup, "pin_of", commit_and_pin)
        if not still:
            monkeypatch.setattr(log._engine.transactions, "hold_all_locks", contextlib.nullcontext)
        log.backup(tmp_path / "copy")
        assert (len(outcomes) == 3) == still
        if still:
            writer.commit()
        assert committed(log) == [b"x", b"x"]
    with embedlog.open(tmp_path / "copy", config=QUIET) as copy:
        copy.housekeep()
        assert (len(committed(copy)) in (0, 2)) == still
        assert not still or all(last_stable(copy, number) == (2, 2) for number in range(2))
