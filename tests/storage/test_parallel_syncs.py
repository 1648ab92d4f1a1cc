"""Several partitions on stable storage at the same time: order, errors, deadlines."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from embedlog._native import system
from embedlog.errors import DurabilityError, LockTimeoutError
from embedlog.storage import parallel_syncs
from embedlog.storage.parallel_syncs import TransactionSyncs, sync_together

LONG_NS = 120_000_000_000


class Partition:
    """Records the end and the thread of its sync, which may wait for others or fail."""

    def __init__(
        self, problem: Exception | None = None, meet: threading.Barrier | None = None
    ) -> None:
        self.path = Path("t-0")
        self.problem = problem
        self.meet = meet
        self.synced: list[tuple[int, int]] = []

    def sync_to(self, end: int, deadline_ns: int) -> None:
        if self.meet is not None:
            self.meet.wait(60)
        self.synced.append((end, threading.get_ident()))
        if self.problem is not None:
            raise self.problem


def soon() -> int:
    return system.boot_ns() + LONG_NS


def test_all_are_synced_at_the_same_time() -> None:
    """Each waits for all others: one after the other they would never end."""
    meet = threading.Barrier(4)
    partitions = [Partition(meet=meet) for _ in range(4)]
    assert sync_together([(each, end) for end, each in enumerate(partitions)], soon()) == [None] * 4
    assert [each.synced[0][0] for each in partitions] == [0, 1, 2, 3]
    assert len({each.synced[0][1] for each in partitions}) == 4


def test_an_error_belongs_to_one_and_a_late_sync_has_failed() -> None:
    failed = Partition(DurabilityError("lost"))
    late = Partition(meet=threading.Barrier(2))
    assert sync_together([(Partition(), 1), (failed, 1)], soon()) == [None, failed.problem]
    assert late.meet is not None
    (first, second) = sync_together([(Partition(), 1), (late, 7)], system.boot_ns() + 1_000_000)
    late.meet.wait(60)  # the thread of the late one ends
    assert first is None
    assert isinstance(second, LockTimeoutError)
    assert str(second.expected) == "7"


@pytest.mark.parametrize("slow", [False, True])
def test_a_transaction_syncs_in_threads_where_syncs_are_slow(
    slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel_syncs, "THREADS_FROM_NS", 0 if slow else LONG_NS)
    meet = threading.Barrier(3) if slow else None  # one after the other they would never end
    partitions = [Partition(meet=meet) for _ in range(3)]
    TransactionSyncs().sync([(each, 1) for each in partitions], soon())
    threads = {each.synced[0][1] for each in partitions}
    assert (threads == {threading.get_ident()}) == (not slow)


@pytest.mark.parametrize("slow", [False, True])
def test_the_first_error_is_raised_after_all_syncs(
    slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel_syncs, "THREADS_FROM_NS", 0 if slow else LONG_NS)
    one = DurabilityError("one")
    two = DurabilityError("two")
    partitions = [Partition(), Partition(one), Partition(two), Partition()]
    with pytest.raises(DurabilityError) as raised:
        TransactionSyncs().sync([(each, 1) for each in partitions], soon())
    assert raised.value is one
    assert all(each.synced for each in partitions)


def test_nothing_to_sync_is_no_work() -> None:
    TransactionSyncs().sync([], soon())
    assert sync_together([], soon()) == []
