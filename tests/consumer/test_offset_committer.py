"""Commits in order: now, later, by themselves; over a store that a test can lock or break."""

from __future__ import annotations

from typing import Any

import pytest

from embedlog._native import system
from embedlog.consumer import group_metrics
from embedlog.consumer.collector import ConsumerInterceptors
from embedlog.consumer.offset_committer import AutoCommit, OffsetCommitter
from embedlog.errors import (
    ClosedError,
    CommitFailedError,
    LockTimeoutError,
    RetriableCommitFailedError,
    UnknownMemberError,
)
from embedlog.telemetry.metrics import Metrics
from embedlog.types import OffsetAndMetadata, TopicPartition

TP = TopicPartition("a", 0)


def at(offset: int) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TP: OffsetAndMetadata(offset)}


class Store:
    def __init__(self) -> None:
        self.done: list[int] = []
        self.problem: Exception | None = None

    def topic_ids(self, tps: Any) -> dict[str, str]:
        return {}

    def commit(
        self, group_id: str, offsets: Any, identity: Any, deadline_ns: int, topics: Any = None
    ) -> None:
        if self.problem is not None:
            raise self.problem
        self.done.append(offsets[TP].offset)

    def commit_kept_partitions(
        self, group_id: str, offsets: Any, member_id: str, deadline_ns: int
    ) -> None:
        self.commit(group_id, offsets, None, deadline_ns)


def committing(
    store: Store, api_timeout_s: float = 60.0, metrics: Metrics | None = None
) -> OffsetCommitter:
    return OffsetCommitter(
        store, "g", ConsumerInterceptors(()), api_timeout_s, metrics or Metrics()
    )


def soon() -> int:
    return system.boot_ns()


def test_auto_commit_is_due_an_interval_later_and_sooner_behind_what_passes() -> None:
    auto = AutoCommit(5.0, 0.25, 100.0)
    assert auto.due_at == 105.0
    auto.restart(110.0)
    assert auto.due_at == 115.0
    auto.retry_soon(112.0)
    assert auto.due_at == 112.25
    auto.retry_soon(200.0)  # never later than it was due
    assert auto.due_at == 112.25


def test_what_waits_for_a_lock_is_first_when_it_is_free() -> None:
    store = Store()
    results = []
    commits = committing(store)
    store.problem = LockTimeoutError("taken")
    for offset in (1, 2):
        commits.commit_async(
            at(offset), None, lambda offsets, error: results.append((offsets[TP].offset, error))
        )
    assert commits.is_waiting
    store.problem = None
    commits.commit_sync(at(3), None, soon())
    assert (store.done, results) == ([1, 2, 3], [(1, None), (2, None)])
    assert not commits.is_waiting


def test_a_commit_does_not_overtake_one_that_cannot_be_made() -> None:
    store = Store()
    commits = committing(store)
    store.problem = LockTimeoutError("taken")
    commits.commit_async(at(1), None)
    with pytest.raises(LockTimeoutError):
        commits.commit_sync(at(2), None, soon())
    assert store.done == []


def test_waiting_too_long_is_a_failure_that_passes() -> None:
    store = Store()
    results = []
    commits = committing(store, api_timeout_s=0.0)
    store.problem = LockTimeoutError("taken")
    commits.commit_async(at(1), None, lambda offsets, error: results.append(error))
    assert results == []
    commits.call_back()
    assert isinstance(results[0], RetriableCommitFailedError)
    assert results[0].retriable
    assert results[0].__cause__ is store.problem


def test_a_refused_one_keeps_its_place_in_the_row() -> None:
    store = Store()
    results = []
    commits = committing(store)
    commits.commit_async(at(1), None, lambda offsets, error: results.append((1, error)))
    problem = CommitFailedError("x")
    commits.refuse(at(2), problem, lambda offsets, error: results.append((2, error)))
    commits.call_back()
    assert results == [(1, None), (2, problem)]


def test_a_real_error_is_told_as_it_is_and_the_next_one_is_tried() -> None:
    store = Store()
    results = []
    commits = committing(store)
    store.problem = UnknownMemberError("x")
    commits.commit_async(at(1), None, lambda offsets, error: results.append(error))
    store.problem = None
    commits.commit_async(at(2), None, lambda offsets, error: results.append(error))
    commits.call_back()
    assert [type(error) for error in results] == [UnknownMemberError, type(None)]
    assert store.done == [2]


def test_a_callback_may_commit_again() -> None:
    store = Store()
    commits = committing(store)
    commits.commit_async(at(1), None, lambda offsets, error: commits.commit_async(at(2), None))
    commits.call_back()
    assert store.done == [1, 2]
    assert not commits.is_waiting


def test_a_callback_that_commits_again_is_called_again_later() -> None:
    store = Store()
    heard = list[int]()
    commits = committing(store)

    def again(offsets: Any, error: Exception | None) -> None:
        heard.append(offsets[TP].offset)
        if len(heard) < 100:
            commits.commit_async(at(heard[-1] + 1), None, again)

    commits.commit_async(at(1), None, again)
    commits.call_back()
    assert (heard, store.done) == ([1], [1, 2])
    commits.call_back()
    assert (heard, store.done) == ([1, 2], [1, 2, 3])


def test_the_end_calls_also_callbacks_of_commits_that_were_not_made() -> None:
    store = Store()
    heard = list[Any]()
    commits = committing(store)
    commits.commit_async(at(1), None, lambda offsets, error: heard.append(error))
    store.problem = LockTimeoutError("taken")
    commits.commit_async(at(2), None, lambda offsets, error: heard.append(error))
    commits.end()
    assert heard[0] is None
    assert isinstance(heard[1], RetriableCommitFailedError)
    assert not commits.is_waiting
    with pytest.raises(ClosedError):
        commits.commit_async(at(3), None)
    with pytest.raises(ClosedError):
        commits.refuse(at(3), CommitFailedError("x"))


def test_metrics() -> None:
    now = [1000.0]
    metrics = Metrics(lambda: now[0])
    commits = committing(Store(), metrics=metrics)
    assert group_metrics.report_commits(metrics)["commit-latency-avg"] is None
    commits.commit_sync(at(1), None, soon())
    commits.commit_async(at(2), None)
    now[0] += 2
    known = group_metrics.report_commits(metrics)
    assert (known["commit-total"], known["commit-rate"]) == (2, 1.0)
    assert known["commit-latency-max"] >= known["commit-latency-avg"] > 0
    assert known["commit-sync-time-ns-total"] > 0
