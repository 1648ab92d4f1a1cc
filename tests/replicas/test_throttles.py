"""Throttled copies: one rate for all processes, for replicas outside the ISR only."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.errors import ConfigError
from embedlog.replicas.partition import copy_rate, copying
from embedlog.replicas.partition.copy_rate import (
    COPIES_OUT,
    CREDIT_NS,
    CopyRate,
    RateLimit,
    Throttle,
    is_throttled,
)
from tests.support.replica_moves import opened, partition_of

T0 = TopicPartition("t", 0)
SECOND_NS = 1_000_000_000
RATE = 2000
CHUNK = 4500  # bytes of a chunk, at most


class Clock:
    """The clock of all processes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 1000 * SECOND_NS
        monkeypatch.setattr(copy_rate, "clock_ns", lambda: self.now_ns)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(copying, "CHUNK_BYTES", 1)
    monkeypatch.setattr(copying, "LARGE_CHUNK_BYTES", 1)
    return Clock(monkeypatch)


def made(log: embedlog.Log, count: int = 60, **config: Any) -> None:
    log.create_topic("t", assignment={0: [1]}, **config)
    with log.producer(linger_ms=0, batch_size=0) as producer:
        for number in range(count):
            producer.send("t", b"%04d" % number * 250, partition=0).result()


def copied(root: Path, node: int) -> int:
    return sum(path.stat().st_size for path in (root / f"d{node}" / "t-0").glob("*.log"))


@pytest.mark.parametrize("processes", [1, 2])
def test_the_throttle_of_a_reassignment_is_one_rate_for_all_processes(
    tmp_path: Path, clock: Clock, processes: int
) -> None:
    with opened(tmp_path) as log, opened(tmp_path) as other:
        made(log)
        log.reassign({T0: [1, 2]}, throttle=RATE)
        sizes = []
        for second in range(12):
            for each in (log, other)[:processes] * 2:
                each.housekeep()
            sizes.append(copied(tmp_path, 2))
            assert sizes[-1] <= RATE * (second + CREDIT_NS / SECOND_NS) + CHUNK * processes
            clock.now_ns += SECOND_NS
        assert sizes[-1] >= RATE * 11, "the rate is used"
        clock.now_ns += 100 * SECOND_NS
        for _ in range(30):
            log.housekeep()
            clock.now_ns += 3 * SECOND_NS
        assert partition_of(log, T0).isr == (1, 2)


@pytest.mark.parametrize("side", ["leader", "follower"])
@pytest.mark.parametrize("replicas", ["*", "named", "0:3,1:2"])
def test_the_throttles_of_a_topic_limit_the_named_replicas(
    tmp_path: Path, clock: Clock, side: str, replicas: str
) -> None:
    named = {"leader": "0:1", "follower": "0:2"}[side] if replicas == "named" else replicas
    rate = {f"{side}.replication.throttled.rate": RATE}
    with opened(tmp_path, **rate) as log:
        made(log, config={f"{side}.replication.throttled.replicas": named})
        log.reassign({T0: [1, 2]})
        log.housekeep()
        limited = replicas != "0:3,1:2"
        assert (copied(tmp_path, 2) < 20_000) is limited
        assert partition_of(log, T0).isr == ((1,) if limited else (1, 2))
        log.alter_topic("t", {f"{side}.replication.throttled.replicas": None})
        log.housekeep()
        assert partition_of(log, T0).isr == (1, 2)


def test_members_of_the_isr_are_not_throttled(tmp_path: Path, clock: Clock) -> None:
    rates = {"leader.replication.throttled.rate": 1, "follower.replication.throttled.rate": 1}
    config = {
        "leader.replication.throttled.replicas": "*",
        "follower.replication.throttled.replicas": "*",
    }
    with opened(tmp_path, **rates) as log:
        log.create_topic("t", assignment={0: [1, 2]}, config=config)
        with log.producer(acks=1, linger_ms=0, batch_size=0) as producer:
            for _ in range(10):
                producer.send("t", b"x" * 1000, partition=0).result()
        log.housekeep()
        assert copied(tmp_path, 2) == copied(tmp_path, 1)
        assert partition_of(log, T0).isr == (1, 2)


def a_rate(log: embedlog.Log) -> CopyRate:
    return CopyRate(cast("Any", log)._engine.home, COPIES_OUT)


def test_a_process_that_is_killed_during_a_copy_stops_the_others_for_a_moment_only(
    tmp_path: Path, clock: Clock
) -> None:
    with opened(tmp_path) as log, opened(tmp_path) as other:
        assert a_rate(log).claim(1) is not None  # and never paid
        assert a_rate(other).claim(1) is None
        clock.now_ns += SECOND_NS + 1
        assert a_rate(other).claim(1) is not None


def test_a_locked_directory_is_no_failure(tmp_path: Path, clock: Clock) -> None:
    with opened(tmp_path, lock_timeout_ms=30) as log, opened(tmp_path) as other:
        with cast("Any", other)._engine.home.topic_changes.directory_lock():
            assert a_rate(log).claim(1) is None
        assert a_rate(log).claim(1) is not None


def test_a_time_of_another_boot_limits_nothing(tmp_path: Path, clock: Clock) -> None:
    with opened(tmp_path) as log:
        page = cast("Any", log)._engine.home.context.directory_page
        for word in (2**62, -5):
            page.set(COPIES_OUT, word)
            assert a_rate(log).claim(10**9) is not None


def test_a_second_limit_that_refuses_gives_the_first_reservation_back(
    tmp_path: Path, clock: Clock
) -> None:
    with opened(tmp_path) as log:
        out = a_rate(log)
        into = CopyRate(cast("Any", log)._engine.home, COPIES_OUT + 1)
        assert into.claim(100) is not None
        throttle = Throttle([RateLimit(out, 100), RateLimit(into, 100)])
        assert not throttle.claim()
        assert out.claim(100) is not None


def test_lists_of_replicas() -> None:
    assert is_throttled("*", 5, 1)
    assert is_throttled("0:1,5:2", 5, 2)
    for text in ("none", "0:1,5:2", "15:1", "5:12"):
        assert not is_throttled(text, 5, 1)


def test_a_wrong_list_of_replicas_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        for wrong in ("1", "0:1;1:2", "a:b", "0:1,", ":", " "):
            with pytest.raises(ConfigError, match="throttled"):
                log.create_topic("u", config={"leader.replication.throttled.replicas": wrong})
