"""Warm memory: a block returns when its last view is gone, not before; forked children share
none.
"""

from __future__ import annotations

import gc
import os
import sys
import threading

import numpy as np
import pytest

from embedlog.format import buffer_pool
from embedlog.format.buffer_pool import BufferPool
from tests.support.strike import Strike


def test_a_block_comes_back_with_its_last_view() -> None:
    pool = BufferPool()
    part = pool.lease(100_000).view[10:20]
    assert pool.free_bytes == 0
    del part
    assert pool.free_bytes == 131_072


def test_slices_casts_and_arrays_of_a_view_all_keep_it() -> None:
    pool = BufferPool()
    numbers = pool.lease(80_000).array[8:8008].view(np.int64)
    again = np.frombuffer(memoryview(numbers), np.uint8)[5:]
    del numbers
    again[:] = 7
    other = pool.lease(80_000).array
    other[:] = 1
    assert (again == 7).all()
    assert pool.free_bytes == 0


def test_the_last_block_given_back_is_the_next_one_lent() -> None:
    pool = BufferPool()
    first = pool.lease(70_000)
    second = pool.lease(70_000)
    address = second.array.__array_interface__["data"][0]
    del first, second
    pool.lease(70_000)  # takes `second`'s and gives it back
    assert pool.lease(100_000).array.__array_interface__["data"][0] == address


def test_what_is_too_much_is_unmapped() -> None:
    pool = BufferPool(free_bytes_max=200_000)
    leases = [pool.lease(65_536) for _ in range(10)]
    assert len({lease.array.__array_interface__["data"][0] for lease in leases}) == 10
    del leases
    assert 0 < pool.free_bytes <= 200_000


def test_a_block_that_is_never_kept_leaves_the_others_in_the_pool() -> None:
    pool = BufferPool(free_bytes_max=1 << 20)
    small = pool.lease(100_000)
    large = pool.lease((1 << 20) + 1)
    del small
    assert pool.free_bytes == 131_072
    del large
    assert pool.free_bytes == 131_072


def test_a_lease_has_the_size_asked_for() -> None:
    pool = BufferPool()
    for size in (0, 1, 65_536, 65_537, 3_000_000):
        assert len(pool.lease(size).view) == size


def test_a_lease_in_a_cycle_comes_back_with_the_collector() -> None:
    pool = BufferPool()
    cycle: list[object] = [pool.lease(70_000).array]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert pool.free_bytes == 131_072


def test_no_memory_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        BufferPool().lease(1 << 62)


def test_threads_never_share_a_block() -> None:
    pool = BufferPool()
    mixed = []

    def work(mark: int) -> None:
        for _ in range(300):
            buffer = pool.lease(66_000).array
            buffer[:100] = mark
            if not (buffer[:100] == mark).all():
                mixed.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mixed == []


def test_a_forked_child_begins_with_an_empty_pool() -> None:
    buffer_pool.shared_pool().lease(70_000)
    assert buffer_pool.shared_pool().free_bytes > 0
    child = os.fork()
    if child == 0:
        os._exit(0 if buffer_pool.shared_pool().free_bytes == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_a_child_inherited_is_not_the_parents_next_buffer() -> None:
    """The memory is shared by both; the first process that writes to it must get its own pages."""
    pool = BufferPool()
    lease = pool.lease(70_000)
    lease.array[:] = 7
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(told, 1)
        os._exit(0 if (lease.array == 7).all() else 1)
    del lease
    pool.lease(70_000).array[:] = 1
    os.write(tell, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(told)
    os.close(tell)


def test_an_interrupt_at_any_point_of_a_lease_leaves_no_half_made_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its finalizer found no pool, and the interpreter printed an AttributeError."""
    reports: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reports.append(report.exc_value))
    nth = 0
    has_struck = True
    while has_struck:
        nth += 1
        pool = BufferPool()
        strike = Strike(nth)
        strike.run(lambda pool=pool: pool.lease(100))  # type: ignore[misc]
        has_struck = strike.has_struck
        del strike
        gc.collect()
        assert pool.lease(100).view.nbytes == 100
    assert nth > 3
    assert [report for report in reports if not isinstance(report, KeyboardInterrupt)] == []
