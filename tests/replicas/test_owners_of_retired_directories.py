"""The process slot of a transactional producer whose directory leaves the set: other processes see
that the producer lives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import embedlog
from embedlog._native import system
from embedlog.coordination.transactions.transaction_coordinator import Transactions
from embedlog.errors import FencedError, LockTimeoutError, StorageError
from embedlog.storage.set_liveness import SetLiveness
from embedlog.transaction import Status
from tests.support.replica_moves import opened
from tests.support.transactional_producers import (
    TOPIC,
    Writer,
    begun,
    committed,
    help_out,
    state_of,
)

INTERNAL = {"offsets_topic_num_partitions": 1, "transaction_state_log_num_partitions": 1}
Retire = Callable[[], embedlog.Log]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    """Node 1 has the process slots, and no partition of the topic."""
    with opened(tmp_path, 4, **INTERNAL) as log:
        log.create_topic(TOPIC, assignment={0: [2, 3, 4], 1: [3, 4, 2]})
        yield log


@pytest.fixture(params=[False, True], ids=["in order", "by force"])
def retire(request: pytest.FixtureRequest, log: embedlog.Log, tmp_path: Path) -> Iterator[Retire]:
    """Retire node 1; returns the log of a process that opens the set afterwards."""
    with ExitStack() as stack:

        def retired() -> embedlog.Log:
            if request.param:
                (tmp_path / "d1").rename(tmp_path / "lost")
                log.housekeep()
            log.retire_directory(1, force=request.param)
            paths = [tmp_path / f"d{node}" for node in (2, 3, 4)]
            return stack.enter_context(embedlog.open(paths, config={"housekeeping": False}))

        yield retired


def node_of(log: embedlog.Log) -> int | None:
    """The directory of the slot in the record of the id."""
    state = state_of(log, "id")
    assert state is not None
    assert state.owner is not None
    return state.owner.node


def looked_at(other: embedlog.Log) -> None:
    """The work of another process for waiting readers."""
    help_out(other)
    other.housekeep()


def in_use(log: embedlog.Log) -> bool | None:
    (found,) = log.transactions()
    return found.in_use


def test_a_transaction_that_begins_afterwards_names_another_slot(
    log: embedlog.Log, retire: Retire
) -> None:
    writer = begun(log)
    writer.write(b"before")
    writer.commit()
    assert node_of(log) == 1
    other = retire()
    assert in_use(other) is False, "no directory shows it, and no transaction is open"
    writer.write(b"after")
    assert node_of(other) == 2
    looked_at(other)
    assert in_use(other)
    writer.commit()
    assert committed(other) == [b"before", b"after"]
    writer.write(b"of a process that has ended")
    writer.owner.close()
    looked_at(other)
    state = state_of(other, "id")
    assert state is not None
    assert state.status is Status.COMPLETE_ABORT, "its end is detected at once again"


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("further", [False, True], ids=["as it is", "with a further partition"])
def test_an_open_transaction_is_not_aborted(
    log: embedlog.Log, retire: Retire, further: bool
) -> None:
    writer = begun(log)
    writer.write(b"before")
    other = retire()
    looked_at(other)
    assert in_use(other)
    writer.write(b"more")
    assert node_of(other) == 1
    if further:
        writer.write(b"further", partition=1)
        assert node_of(other) == 2
        looked_at(other)
    writer.commit()
    values = [b"before", b"more", b"further"] if further else [b"before", b"more"]
    assert committed(other) == values
    writer.write(b"next")
    assert node_of(other) == 2
    looked_at(other)
    writer.commit()
    assert sorted(committed(other)) == sorted([*values, b"next"])


def test_an_open_transaction_of_a_process_that_ends_is_aborted_after_its_timeout(
    log: embedlog.Log, retire: Retire
) -> None:
    writer = begun(log, timeout_ms=1000)
    writer.write(b"before")
    other = retire()
    writer.owner.close()
    until_ns = system.boot_ns() + 60_000_000_000
    while (state := state_of(other, "id")) is None or state.status is Status.ONGOING:
        assert system.boot_ns() < until_ns
        looked_at(other)
    assert committed(other) == []
    with pytest.raises(FencedError):
        writer.write(b"late")


def test_a_repeated_end_finds_its_decision_under_the_earlier_slot(
    log: embedlog.Log, retire: Retire, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = begun(log)
    writer.write(b"before")
    other = retire()
    writer.owner._ensure_slot()  # as the attempt of a registration that wrote nothing
    finish = Transactions.finish
    failures = list[int]()

    def failing_once(self: Transactions, *arguments: object) -> None:
        if not failures:
            failures.append(1)
            raise LockTimeoutError("held")
        finish(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Transactions, "finish", failing_once)
    with pytest.raises(LockTimeoutError):
        writer.commit()
    assert node_of(other) == 1
    looked_at(other)  # completes it
    writer.commit()
    assert committed(other) == [b"before"]
    writer.write(b"next")
    writer.commit()
    assert committed(other) == [b"before", b"next"]


def test_without_another_slot_the_earlier_one_counts(
    log: embedlog.Log, retire: Retire, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: SetLiveness) -> None:
        raise StorageError("the disk is full")

    writer = begun(log)
    other = retire()
    monkeypatch.setattr(SetLiveness, "begin", full)
    writer.write(b"v")
    assert node_of(other) == 1
    looked_at(other)
    writer.commit()
    assert committed(other) == [b"v"]


def test_a_close_gives_all_slots_back(log: embedlog.Log, retire: Retire) -> None:
    writer: Writer = begun(log)
    writer.write(b"v")
    retire()
    writer.write(b"w", partition=1)
    assert [each.node for each in writer.owner._slots] == [1, 2]
    liveness = log._engine.transactions.liveness
    assert isinstance(liveness, SetLiveness)
    assert sum(len(each._nonces) for each in liveness._all_slots()) == 2
    writer.owner.close()
    assert not any(each._nonces for each in liveness._all_slots())
