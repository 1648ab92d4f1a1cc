"""Partition queues, producer batches, futures and routes, without a thread and without a log."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from embedlog._native import _rows
from embedlog.errors import DeadlineError, StateError
from embedlog.format.record_columns import batch_dtype
from embedlog.types import RecordMetadata
from tests.conftest import ROOT
from tests.faults.harness.processes import SANITIZED
from tests.support.batches import Row, batch
from tests.support.crowd import FREE_THREADED
from tests.support.partition_queues import accumulator, put, queue, taken

# ---- queues and batches --------------------------------------------------------------------------


def test_what_a_lane_encodes_is_what_the_slow_twin_encodes(rng: random.Random) -> None:
    _, target = queue()
    rows = [
        Row(
            value=rng.choice(
                [None, b"", rng.randbytes(rng.choice([1, 63, 64, 65, 8191, 8192, 20000]))]
            ),
            key=rng.choice([None, b"", rng.randbytes(9)]),
            headers=tuple(
                (f"n{number}ü", rng.choice([None, b"", b"v"]))
                for number in range(rng.choice([0, 0, 1, 70]))
            ),
            timestamp_ms=rng.choice([0, 1000, 1001, 2**41, 2**62]),
        )
        for _ in range(100)
    ]
    for row in rows:
        assert target.append(row.value, row.key, row.timestamp_ms, row.headers) is not None
    producer_batches = taken(target)
    run, table = _rows.seal(producer_batches, None, 0)
    reference = b""
    start = 0
    for producer_batch in producer_batches:
        some = rows[start : start + producer_batch.count]
        reference += batch(start, some)
        start += producer_batch.count
    assert bytes(run) == reference
    assert len(table) == batch_dtype().itemsize * len(producer_batches)
    assert start == len(rows)


def test_a_record_that_does_not_fit_opens_the_next_parcel() -> None:
    shared, target = queue(limit=500)
    put(target, *[b"x" * 100] * 9)
    producer_batches = taken(target)
    assert [producer_batch.count for producer_batch in producer_batches] == [4, 4, 1]
    assert all(producer_batch.size <= 500 for producer_batch in producer_batches)
    assert (
        target.queued_bytes
        == shared.memory_used
        == sum(producer_batch.size for producer_batch in producer_batches)
    )


def test_a_record_larger_than_the_limit_goes_alone() -> None:
    _, target = queue(limit=500)
    put(target, b"a", b"x" * 1000, b"b")
    assert [producer_batch.count for producer_batch in taken(target)] == [1, 1, 1]


def test_memory_is_given_back_with_the_fate() -> None:
    shared, target = queue(limit=500)
    put(target, *[b"x" * 100] * 9)
    first, second, third = taken(target)
    first.deliver(0, -1)
    second.fail(ValueError())
    assert shared.memory_used == third.size
    third.deliver(8, -1)
    assert shared.memory_used == target.queued_bytes == 0
    assert shared.pending() == []
    with pytest.raises(RuntimeError):
        third.deliver(8, -1)


def test_a_lane_is_ready_when_full_sealed_or_past_its_linger() -> None:
    shared, target = queue(limit=500)
    put(target, b"x")
    queues, pause_s = shared.ready()
    assert queues == []
    assert pause_s is not None
    put(target, b"x" * 500)
    assert shared.ready()[0] == [target]
    shared, target = queue(linger_ms=0)
    put(target, b"x")
    assert shared.ready() == ([target], None)
    shared, target = queue()
    put(target, b"x")
    shared.seal()
    assert shared.ready()[0] == [target]


def test_who_waits_for_memory_ends_every_linger() -> None:
    shared, target = queue()
    put(target, b"x")
    shared.waiting += 1
    assert shared.ready()[0] == [target]


def test_a_ring_before_the_wait_ends_it() -> None:
    shared = accumulator()
    shared.wake()
    shared.wake()
    assert shared.wait(5)
    assert not shared.wait(0)


def test_the_thread_that_sends_does_not_wait_for_itself() -> None:
    shared, target = queue()
    (future,) = put(target, b"v")
    shared.wait(0)
    with pytest.raises(StateError, match="wait for itself"):
        future.result()


def test_the_first_record_rings_when_nobody_knows_a_deadline() -> None:
    shared, target = queue(linger_ms=50)
    shared.ready()
    put(target, b"x")
    assert shared.wait(0)
    shared.ready()
    put(target, b"x")
    assert not shared.wait(0)


def test_runs_of_send_batch_keep_their_place_between_records() -> None:
    _, target = queue()
    put(target, b"before")
    target.push_run("run", 10, 1000)
    put(target, b"after")
    target.seal()
    found = []
    while producer_batches := target.take(1 << 20):
        found.append([producer_batch.run for producer_batch in producer_batches])
        for producer_batch in producer_batches:
            producer_batch.deliver(0, -1)
    assert found == [[None], ["run"], [None]]


def test_bytes_taken_at_once_are_bounded_but_one_always_goes() -> None:
    _, target = queue(limit=200)
    put(target, *[b"x" * 100] * 3)
    target.seal()
    for _ in range(3):
        (producer_batch,) = target.take(1)
        producer_batch.deliver(0, -1)
    assert target.take(1) == []


def test_what_was_taken_and_got_no_fate_comes_again() -> None:
    shared, target = queue(limit=200)
    put(target, *[b"x" * 100] * 2)
    first = taken(target)
    assert shared.ready()[0] == [target]
    assert target.take(1) == first[:1]
    assert target.take(1 << 20) == first


def test_one_at_a_time_has_a_lanes_turn() -> None:
    shared, target = queue()
    put(target, b"x")
    target.seal()
    shared.wait(0)
    assert target.enter()
    assert not target.enter()
    assert shared.ready() == ([], None)
    target.leave()
    assert shared.wait(0)  # the next waiter is notified
    assert shared.ready()[0] == [target]
    assert target.enter()


def test_a_lane_that_rests_is_not_ready_before_its_time() -> None:
    shared, target = queue()
    put(target, b"x")
    target.seal()
    target.rest(50)
    queues, pause_s = shared.ready()
    assert queues == []
    assert pause_s is not None
    assert 49 < pause_s <= 50
    target.rest(0)
    assert shared.ready()[0] == [target]


def test_a_compressed_body_takes_the_place_of_the_plain_one() -> None:
    _, target = queue()
    put(target, b"a" * 50, b"b")
    producer_batches = taken(target)
    run, _ = _rows.seal(producer_batches, [b"packed"], 4)
    assert bytes(run[61:]) == b"packed"
    assert run[22] == 4
    plain, _ = _rows.seal(producer_batches, [None], 4)
    assert plain[22] == 0


def test_only_closed_parcels_can_be_sealed() -> None:
    shared, target = queue()
    put(target, b"x")
    with pytest.raises(ValueError, match="open"):
        _rows.seal(shared.pending(), None, 0)
    with pytest.raises(TypeError):
        _rows.seal([object()], None, 0)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="one body"):
        _rows.seal(taken(target), [], 0)


def test_what_was_taken_cannot_be_abandoned() -> None:
    shared, target = queue()
    put(target, b"x")
    producer_batches = taken(target)
    (later,) = put(target, b"y")
    error = ValueError("closed")
    assert [producer_batch.abandon(error) for producer_batch in shared.pending()] == [False, True]
    assert later.exception() is error
    assert not producer_batches[0].done


# ---- futures ------------------------------------------------------------------------------------


def test_a_thousand_futures_learn_their_fate_at_once() -> None:
    _, target = queue()
    futures = [target.append(b"v", None, 1000 + number, ()) for number in range(1000)]
    assert not any(future.done() for future in futures if future)
    (producer_batch,) = taken(target)
    producer_batch.deliver(500, -1)
    for number, future in enumerate(futures):
        assert future is not None
        assert future.done()
        assert future.result() == RecordMetadata("t", 3, 500 + number, 1000 + number)
        assert future.exception() is None


def test_the_append_time_goes_before_the_records_own() -> None:
    _, target = queue()
    (future,) = put(target, b"v", timestamp_ms=5)
    taken(target)[0].deliver(0, 77)
    assert future.result().timestamp_ms == 77


def test_a_failed_future_raises_the_same_error_without_growing_it() -> None:
    _, target = queue()
    first, second = put(target, b"v", b"w")
    taken(target)[0].fail(LookupError("gone"))
    for future in (first, second, first):
        with pytest.raises(LookupError, match="gone") as caught:
            future.result()
        assert len(caught.traceback) == 1
    assert isinstance(second.exception(), LookupError)
    with pytest.raises(TypeError):
        taken(target) or _rows.ProducerBatch.fail(accumulator().promise(False)[1], "no exception")  # type: ignore[arg-type]


def test_the_result_of_an_unsent_record_sends_it() -> None:
    shared, target = queue()
    (future,) = put(target, b"v")
    with pytest.raises(DeadlineError, match="0"):
        future.result(timeout=0)
    with pytest.raises(DeadlineError):
        future.exception(-1)
    assert shared.ready()[0] == [target]
    assert shared.wait(0)


def test_many_threads_wait_for_one_parcel() -> None:
    _, target = queue()
    (future,) = put(target, b"v")
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(future.result(10))) for _ in range(8)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 10
    while not (producer_batches := target.take(1)) and time.monotonic() < deadline:
        threading.Event().wait(0.001)
    producer_batches[0].deliver(4, -1)
    for thread in threads:
        thread.join(10)
    assert found == [future.result()] * 8


def test_unacknowledged_records_are_done_at_once_and_know_no_offset() -> None:
    shared, target = queue(unacknowledged=True)
    (future,) = put(target, b"v")
    assert future.done()
    assert future.result() == RecordMetadata("t", 3, -1, 1000)
    assert len(shared.pending()) == 1


def test_a_promise_is_kept_or_failed() -> None:
    shared = accumulator()
    future, promise = shared.promise(False)
    assert not future.done()
    promise.keep([1, 2])
    assert future.result() == [1, 2]
    future, promise = shared.promise(True)
    promise.fail(OSError("no"))
    with pytest.raises(OSError, match="no"):
        future.result()
    assert "failed" in repr(future)


def test_futures_outlive_everything_they_came_from() -> None:
    shared, target = queue()
    (future,) = put(target, b"v")
    (producer_batch,) = taken(target)
    producer_batch.deliver(1, -1)
    del shared, target, producer_batch
    assert future.result().offset == 1


@pytest.mark.skipif(SANITIZED, reason="the shadow of ASan does not fit into a limit of memory")
@pytest.mark.skipif(
    FREE_THREADED, reason="that interpreter reserves memory in advance: the limit is not met"
)
def test_a_record_for_which_there_is_no_memory_leaves_the_lane_as_it_was() -> None:
    program = """
import resource, sys
from tests.producer.test_partition_queues import queue, taken
shared, target = queue(limit=1 << 40)
value = bytes(400 << 20)
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20),) * 2)
try:
    target.append(value, None, 0, ())
except MemoryError:
    print("refused", shared.memory_used, target.queued_bytes, shared.pending(), shared.record_count)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )
    assert done.stdout.strip() == "refused 0 0 [] 0", done.stderr
