"""Callbacks and unobserved failures, without a thread and without a log."""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import weakref
from typing import Any

import pytest

from embedlog._native import _rows
from embedlog._native._rows import Future
from tests.support.partition_queues import accumulator, put, queue, taken


def test_callbacks_run_in_the_order_of_the_records_once_somebody_runs_them() -> None:
    calls: list[Any] = []
    shared, target = queue(calls=calls)
    futures = put(target, b"a", b"b")
    futures[1].add_done_callback(id)
    futures[0].add_done_callback(id)
    (producer_batch,) = taken(target)
    producer_batch.deliver(0, -1)
    assert calls == []
    shared.run_late()
    assert calls == [(futures[0], id), (futures[1], id)]
    futures[0].add_done_callback(repr)
    assert len(calls) == 2
    shared.run_late()
    shared.run_late()
    assert calls[2:] == [(futures[0], repr)]
    with pytest.raises(TypeError, match="callable"):
        futures[0].add_done_callback(3)  # type: ignore[arg-type]


def test_callbacks_of_several_parcels_run_in_the_order_of_their_fates(rng: random.Random) -> None:
    calls: list[Any] = []
    shared, target = queue(limit=500, calls=calls)
    futures = put(target, *[b"x" * 100] * 40)
    producer_batches = taken(target)
    for future in rng.sample(futures, len(futures)):
        future.add_done_callback(id)
    order = rng.sample(range(len(producer_batches)), len(producer_batches))
    for number in order:
        producer_batches[number].deliver(100 * number, -1)
    shared.run_late()
    assert [future.result().offset for future, _ in calls] == [
        100 * number + index for number in order for index in range(producer_batches[number].count)
    ]


def test_a_callback_that_raises_keeps_none_of_the_others_from_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[object] = []
    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: reported.append(what.exc_type))

    def leave(future: Future) -> None:
        seen.append(future)
        raise SystemExit

    shared, target = queue()
    futures = put(target, b"a", b"b")
    for future in futures:
        future.add_done_callback(leave)
        future.add_done_callback(seen.append)
    taken(target)[0].deliver(0, -1)
    with pytest.raises(SystemExit):
        shared.run_late()
    assert reported == [SystemExit], "the first is raised, the others can only be reported"
    assert seen == [futures[0]] * 2 + [futures[1]] * 2


def test_a_mark_is_reached_when_the_callbacks_before_it_have_run() -> None:
    shared, target = queue()
    assert shared.mark().done
    (future,) = put(target, b"a")
    marks: list[_rows.ProducerBatch] = []
    future.add_done_callback(lambda _: marks.append(shared.mark()))
    taken(target)[0].deliver(0, -1)
    before = shared.mark()
    assert not before.done
    shared.run_late()
    assert before.done
    assert [mark.done for mark in marks] == [True]


def test_nothing_comes_into_what_is_closed_and_it_ends_when_all_is_settled() -> None:
    shared, target = queue()
    (future,) = put(target, b"a")
    seen: list[object] = []
    future.add_done_callback(seen.append)
    shared.close()
    assert target.append(b"b", None, 1, ()) is None
    assert target.push_run(object(), 1, 1) is None
    assert not shared.end()
    taken(target)[0].deliver(0, -1)
    assert not shared.end(), "a callback has not run"
    shared.run_late()
    assert shared.end()
    future.add_done_callback(seen.append)
    assert seen == [future, future], "without a thread a callback runs where it is added"


def test_what_is_left_open_is_settled_all_the_same() -> None:
    _, target = queue(limit=500)
    futures = put(target, *[b"x" * 100] * 12)
    first, second, third = taken(target)
    second.deliver(4, -1)
    _rows.settle_open([first, second], None)
    _rows.settle_open([third], LookupError("gone"))
    assert [future.result().offset for future in futures[:8]] == [-1, -1, -1, -1, 4, 5, 6, 7]
    assert isinstance(futures[8].exception(), LookupError)


def test_failures_count_as_unheard_until_somebody_asks() -> None:
    _, target = queue()
    futures = put(target, *[b"v"] * 6)
    tally = _rows.Tally()
    futures[5].add_done_callback(print)
    futures[4]._observe(print)
    taken(target)[0].fail(LookupError("gone"), tally)
    assert tally.unobserved == 5, (
        "one has a callback; failures that the producer itself observes do not count"
    )
    assert isinstance(futures[0]._failure, LookupError)
    assert tally.unobserved == 5
    for _ in range(2):
        futures[0].exception()
        with pytest.raises(LookupError):
            futures[1].result()
        futures[2].add_done_callback(print)
    assert tally.unobserved == 2


def test_a_promise_counts_as_many_records_as_failed() -> None:
    shared = accumulator()
    tally = _rows.Tally()
    future, promise = shared.promise(False)
    promise.fail(OSError("no"), tally, 70)
    shared.promise(False)[1].fail(OSError("no"), tally, 7)
    assert tally.unobserved == 77
    future.exception()
    assert tally.unobserved == 7


def test_what_leads_in_a_circle_is_collected() -> None:
    class Kept:
        pass

    shared, target = queue()
    (future,) = put(target, b"v")
    kept = Kept()
    future.add_done_callback(lambda _, here=(kept, future, target): None)  # type: ignore[misc]
    gone = weakref.ref(kept)
    del shared, target, future, kept
    gc.collect()
    assert gone() is None


def test_a_failure_that_was_raised_is_collected_with_the_frame_it_was_raised_in() -> None:
    class Kept:
        pass

    def ask() -> weakref.ref[Kept]:
        kept = Kept()
        _, target = queue()
        (future,) = put(target, b"v")
        taken(target)[0].fail(LookupError("gone"))
        with contextlib.suppress(LookupError):
            future.result()
        return weakref.ref(kept)

    gone = ask()
    gc.collect()
    assert gone() is None
