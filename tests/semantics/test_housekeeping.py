"""Kafka's housekeeping of logs, row by row: rolled segments, deleted segments, and the choice and
output of the cleaner.

The names say the row. The compaction of single batches is in format/test_compactor, crashes in
faults/partition.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog._native import system
from embedlog.partition.compaction import cleaner, rules
from embedlog.partition.partition import Partition
from embedlog.storage import file_names
from embedlog.storage.manifest import SegmentInfo
from tests.support.compacted_logs import COMPACT, opened, put, rows

HERE = TopicPartition("t", 0)
NOW_MS = 1_800_000_000_000
FOREVER = 9_223_372_036_854_775_807


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with opened(tmp_path / "log") as made:
        yield made


@pytest.fixture
def later() -> Iterator[Any]:
    """`later(ms)`: the wall clock from now on."""
    yield system.shift_wall
    system.shift_wall(0)


def segments(log: embedlog.Log) -> list[int]:
    return file_names.bases([path.name for path in (log.path / "t-0").iterdir()])


def send(
    log: embedlog.Log, *times_ms: int | None, size: int = 100, keys: list[bytes] | None = None
) -> None:
    """A batch each."""
    with log.producer(linger_ms=0) as producer:
        for number, time_ms in enumerate(times_ms):
            key = keys[number] if keys else b"key"
            producer.send("t", key=key, value=b"x" * size, timestamp_ms=time_ms).result(30)


def log_start(log: embedlog.Log) -> int:
    with log.consumer() as consumer:
        return int(consumer.beginning_offsets([HERE])[HERE])


# ---- roll when, age -----------------------------------------------------------------------------------------------------


def test_roll_by_size(log: embedlog.Log) -> None:
    log.create_topic("t", config={"segment.bytes": 500})
    send(log, None, None)
    assert segments(log) == [0]
    send(log, None)
    assert segments(log) == [0, 2]


def test_roll_by_a_full_index(log: embedlog.Log) -> None:
    log.create_topic("t", config={"index.interval.bytes": 0, "segment.index.bytes": 36})
    send(log, *range(1000, 1008))
    assert len(segments(log)) > 1


def test_age_is_that_of_the_first_timestamp_against_the_newest_that_comes(
    log: embedlog.Log,
) -> None:
    log.create_topic("t", config={"segment.ms": 1000, "retention.ms": -1})
    send(log, 5_000, 5_900, 6_000)
    assert segments(log) == [0]
    send(log, 6_002)
    assert segments(log) == [0, 3]


def test_an_idle_partition_does_not_roll_by_itself(log: embedlog.Log, later: Any) -> None:
    log.create_topic("t", config={"segment.ms": 1000, "retention.ms": -1})
    send(log, None)
    later(60_000)
    log.housekeep()
    assert segments(log) == [0]


# ---- retention ----------------------------------------------------------------------------------------------------------


def test_deletion_by_time_stops_at_the_first_segment_that_stays(log: embedlog.Log) -> None:
    """One record from the future keeps its segment and all after it."""
    log.create_topic("t", config={"segment.bytes": 250, "retention.ms": 60_000})
    now = system.wall_ms()
    send(log, now - 90_000, now - 80_000, now + 3_600_000, now - 90_000, now - 90_000, size=150)
    before = segments(log)
    log.housekeep()
    assert before == [0, 1, 2, 3, 4]
    assert segments(log) == [2, 3, 4]
    assert log_start(log) == 2


def test_deletion_by_time_takes_the_active_segment_too_behind_a_fresh_one(
    log: embedlog.Log,
) -> None:
    log.create_topic("t", config={"segment.bytes": 250, "retention.ms": 60_000})
    old = system.wall_ms() - 90_000
    send(log, old, old, old, size=150)
    log.housekeep()
    assert segments(log) == [3]
    assert log_start(log) == 3
    log.housekeep()
    assert segments(log) == [3], "an empty active segment stays"


def test_deletion_by_size_leaves_between_the_limit_and_one_segment_more(log: embedlog.Log) -> None:
    log.create_topic("t", config={"segment.bytes": 250, "retention.bytes": 700})
    send(log, *[None] * 10, size=150)
    log.housekeep()
    left = sum(path.stat().st_size for path in (log.path / "t-0").glob("*.log"))
    assert 700 <= left < 700 + 250


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_topic_that_is_only_compacted_loses_nothing_by_age(
    log: embedlog.Log, policy: str
) -> None:
    settings = {
        **COMPACT,
        "segment.bytes": 250,
        "cleanup.policy": policy,
        "min.cleanable.dirty.ratio": 1.0,
    }
    log.create_topic("t", config={**settings, "retention.ms": 60_000})
    old = system.wall_ms() - 90_000
    send(log, old, old, old, size=150)
    log.housekeep()
    assert log_start(log) == (0 if policy == "compact" else 3)


def test_a_compacted_topic_deletes_what_lies_below_its_start(log: embedlog.Log) -> None:
    settings = {**COMPACT, "segment.bytes": 250, "min.cleanable.dirty.ratio": 1.0}
    log.create_topic("t", config={**settings, "cleanup.policy": "compact,delete"})
    send(log, *[None] * 5, size=150)
    log.delete_records({HERE: 3})
    log.alter_topic("t", settings)
    log.housekeep()
    assert segments(log) == [3, 4]
    assert log_start(log) == 3


def test_compact_delete_does_both(log: embedlog.Log) -> None:
    """Old segments go by age, of those that stay only the last value of a key."""
    log.create_topic(
        "t",
        config={
            **COMPACT,
            "cleanup.policy": "compact,delete",
            "segment.bytes": 400,
            "retention.ms": 60_000,
        },
    )
    now = system.wall_ms()
    send(log, now - 90_000, now - 90_000, size=300, keys=[b"old", b"old too"])
    send(log, *[now] * 12, keys=[b"a", b"b", b"c"] * 4)
    log.housekeep()
    found = rows(log)
    assert {key for _, key, _ in found} == {b"a", b"b", b"c"}
    assert log_start(log) == 2
    sealed = [
        key
        for offset, key, _ in found
        if offset < log._engine.partition("t", 0).published().segment_base
    ]
    assert len(sealed) == len(set(sealed)) > 0


# ---- cleaner choice, not cleaned ----------------------------------------------------------------------------------------


def sealed(*facts: tuple[int, int, int]) -> list[SegmentInfo]:
    """Segments by (base, next offset, largest timestamp), a hundred bytes an offset."""
    return [SegmentInfo(base, 100 * (end - base), end, newest) for base, end, newest in facts]


THREE = sealed((0, 10, 1000), (10, 20, 2000), (20, 30, 3000))
USUAL: dict[str, Any] = {
    "cleaned_to": 0,
    "log_start": 0,
    "stable": 100,
    "now_ms": NOW_MS,
    "min_lag_ms": 0,
    "max_lag_ms": FOREVER,
}


def test_the_dirty_ratio_is_that_of_dirty_bytes() -> None:
    found = rules.find_clean_range(THREE, **USUAL | {"cleaned_to": 20})
    assert (found.clean_bytes, found.dirty_bytes, found.first_dirty, found.end) == (
        2000,
        1000,
        20,
        30,
    )
    assert found.ratio == pytest.approx(1 / 3)


def test_what_is_above_the_last_stable_offset_is_not_cleaned() -> None:
    assert rules.find_clean_range(THREE, **USUAL | {"stable": 25}).end == 20
    assert rules.find_clean_range(THREE, **USUAL | {"stable": 20}).end == 20
    assert rules.find_clean_range(THREE, **USUAL | {"stable": 5}).end == 0


def test_nothing_is_cleaned_from_the_first_segment_with_a_record_that_is_younger_than_the_lag() -> (
    None
):
    lag = {"min_lag_ms": NOW_MS - 1500}  # records after 1500 are younger
    assert rules.find_clean_range(THREE, **USUAL | lag).end == 10
    odd = sealed((0, 10, 1000), (10, 20, 5000), (20, 30, 1100))
    assert rules.find_clean_range(odd, **USUAL | lag).end == 10, (
        "an old one after a young one waits, too"
    )


def test_a_record_older_than_the_largest_lag_makes_it_overdue() -> None:
    assert not rules.find_clean_range(THREE, **USUAL | {"max_lag_ms": NOW_MS - 900}).overdue
    assert rules.find_clean_range(THREE, **USUAL | {"max_lag_ms": NOW_MS - 1001}).overdue
    assert not rules.find_clean_range(
        THREE, **USUAL | {"max_lag_ms": NOW_MS - 1001, "cleaned_to": 10}
    ).overdue, "that one is clean"


def test_the_oldest_record_of_a_segment_decides_and_not_its_newest() -> None:
    lag = {"max_lag_ms": NOW_MS - 1001}  # a record from before 1001 is overdue
    spanning = SegmentInfo(0, 1000, 10, 5000, min_timestamp=1000)
    assert rules.find_clean_range([spanning], **USUAL | lag).overdue
    assert not rules.find_clean_range(
        [spanning._replace(min_timestamp=1001)], **USUAL | lag
    ).overdue
    assert not rules.find_clean_range(
        [spanning._replace(min_timestamp=-1)], **USUAL | lag
    ).overdue, "no bound is known: the newest decides"


@pytest.mark.parametrize("cleaned_to", [-1, 31, 1000])
def test_a_checkpoint_outside_the_log_counts_for_nothing(cleaned_to: int) -> None:
    assert rules.find_clean_range(THREE, **USUAL | {"cleaned_to": cleaned_to}).first_dirty == 0


def test_it_must_be_dirtier_than_the_ratio(log: embedlog.Log) -> None:
    """Strictly more: at a ratio of 1 nothing is ever due."""
    log.create_topic(
        "t", config={**COMPACT, "segment.bytes": 250, "min.cleanable.dirty.ratio": 1.0}
    )
    send(log, *[None] * 4, size=150)
    partition = log._engine.partition("t", 0)
    assert partition.dirty_ratio(0, system.wall_ms()) is None
    log.alter_topic("t", {"min.cleanable.dirty.ratio": 0.99})
    assert partition.dirty_ratio(0, system.wall_ms()) is not None


def test_the_largest_lag_overrides_the_ratio(log: embedlog.Log, later: Any) -> None:
    settings = {**COMPACT, "segment.bytes": 400, "min.cleanable.dirty.ratio": 1.0}
    log.create_topic("t", config={**settings, "max.compaction.lag.ms": 60_000})
    send(log, *[None] * 9)
    log.housekeep()
    assert len(rows(log)) == 9
    later(61_000)
    log.housekeep()
    assert len(rows(log)) < 9


def test_the_smallest_lag_keeps_what_is_young(log: embedlog.Log, later: Any) -> None:
    log.create_topic("t", config={**COMPACT, "segment.bytes": 400, "min.compaction.lag.ms": 60_000})
    send(log, *[None] * 9)
    log.housekeep()
    assert len(rows(log)) == 9
    later(61_000)
    log.housekeep()
    assert len(rows(log)) < 9


def test_the_dirtiest_comes_first(log: embedlog.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.create_topic("t", 3, config={**COMPACT, "segment.bytes": 250})
    with log.producer(linger_ms=0) as producer:
        for _ in range(6):
            for partition in (0, 1, 2):
                producer.send("t", key=b"k", value=b"x" * 150, partition=partition).result(30)
        log.housekeep()
        for partition, more in ((0, 2), (1, 9), (2, 4)):
            for number in range(more):
                producer.send(
                    "t", key=b"%d" % number, value=b"x" * 150, partition=partition
                ).result(30)
    order: list[int] = []
    compact = Partition.compact
    monkeypatch.setattr(
        Partition,
        "compact",
        lambda partition, *rest: order.append(partition.number) or compact(partition, *rest),
    )
    log.housekeep()
    assert list(dict.fromkeys(order)) == [1, 2, 0]


def test_the_active_segment_is_not_cleaned(log: embedlog.Log) -> None:
    log.create_topic("t", config=COMPACT)
    send(log, *[None] * 5)
    log.housekeep()
    assert len(rows(log)) == 5


def test_segments_become_one_up_to_the_size_of_one() -> None:
    many = [
        SegmentInfo(base, 400, base + 10, index_entries=2, time_entries=1)
        for base in range(0, 60, 10)
    ]
    assert [
        len(group) for group in rules.group_segments(many, segment_bytes=1000, index_bytes=1000)
    ] == [
        2,
        2,
        2,
    ]
    assert [
        len(group) for group in rules.group_segments(many, segment_bytes=9000, index_bytes=48)
    ] == [
        3,
        3,
    ]
    far = [SegmentInfo(0, 10, 10), SegmentInfo(10, 10, 2**31), SegmentInfo(2**31, 10, 2**31 + 9)]
    assert [
        len(group) for group in rules.group_segments(far, segment_bytes=9000, index_bytes=48)
    ] == [2, 1]


# ---- the output of a pass -----------------------------------------------------------------------------------------------


def test_records_without_keys_go(log: embedlog.Log) -> None:
    """They came in before the topic was compacted."""
    log.create_topic("t", config={"segment.bytes": 400})
    with log.producer(linger_ms=0) as producer:
        for _ in range(4):
            producer.send("t", value=b"x" * 100).result(30)
    log.alter_topic("t", {**COMPACT, "segment.bytes": 400})
    send(log, *[None] * 8)
    log.housekeep()
    assert [key for _, key, _ in rows(log) if key is None] == []


def test_the_last_batch_of_a_producer_stays_if_need_be_empty(tmp_path: Path) -> None:
    """Its sequences detect a repeat from any process, also in a recovered log."""
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config={**COMPACT, "segment.bytes": 400})
        with log.producer(linger_ms=0) as one:
            one.send("t", key=b"key", value=b"replaced later").result(30)
            send(log, *[None] * 9)
            log.housekeep()
            assert 0 not in [offset for offset, *_ in rows(log)]
            partition = log._engine.partition("t", 0)
            known = [
                each
                for each in partition._lock.current_producers().producers.values()
                if each.batches
            ]
            assert 0 in [each.batches[-1].last_offset for each in known]
    (tmp_path / "log" / ".kafka_cleanshutdown").unlink()
    for path in (tmp_path / "log" / "t-0").glob("*.snapshot"):
        path.unlink()
    with opened(tmp_path / "log") as log:
        known = [
            each
            for each in log._engine.partition("t", 0)._lock.current_producers().producers.values()
            if each.batches
        ]
        assert 0 in [each.batches[-1].last_offset for each in known]


def test_the_last_batch_of_what_was_cleaned_stays_if_need_be_empty(log: embedlog.Log) -> None:
    log.create_topic("t", config={**COMPACT, "segment.bytes": 400})
    send(
        log, *[None] * 5, keys=[b"a", b"a", b"b", b"c", b"c"]
    )  # the last values of the sealed segments are replaced in them, too
    with log.producer(linger_ms=0) as one:
        for _ in range(4):
            one.send_batch("t", [b"x" * 50] * 2, [b"d"] * 2).result(30)
    log.housekeep()
    *_, cleaned, _ = sorted((log.path / "t-0").glob("*.log"))
    end = log._engine.partition("t", 0).published().purged_to
    raw = cleaned.read_bytes()
    at = 0
    last = -1
    while at < len(raw):  # base offset, size after 12 bytes, last offset delta
        last = int.from_bytes(raw[at : at + 8], "big") + int.from_bytes(
            raw[at + 23 : at + 27], "big"
        )
        at += 12 + int.from_bytes(raw[at + 8 : at + 12], "big")
    assert last == end - 1


# ---- waiting processes ------------------------------------------------------------------------------------------------


def test_appenders_wait_for_the_swap_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the cleaner reads and writes, the append lock is free; it is held around the swap."""
    with (
        opened(tmp_path / "log") as log,
        opened(tmp_path / "log", **{"lock.timeout.ms": 200}) as other,
    ):
        log.create_topic("t", config=COMPACT)
        put(log, [(b"k%d" % (number % 5), b"x" * 100) for number in range(100)])
        seen: list[str] = []

        def beside(name: str, step: Any) -> Any:
            def work(*arguments: Any) -> Any:
                began = time.monotonic()
                found = step(*arguments)
                put(other, [(b"beside", name.encode())])
                seen.append(name)
                assert time.monotonic() - began < 5
                return found

            return work

        for name in ("fill_map", "write"):
            step = getattr(cleaner._Pass, name)
            monkeypatch.setattr(cleaner._Pass, name, beside(name, step))
        log.housekeep()
        assert {"fill_map", "write"} <= set(seen)
        assert rows(log)[-1][1:] == (b"beside", b"write")


# ---- the housekeeper --------------------------------------------------------------------------------------------------


def test_what_is_due_is_done_by_a_log_that_is_open_for_a_moment(tmp_path: Path, later: Any) -> None:
    """Each of them looks once: the first one sets the time, the second one finds it passed."""
    config = {
        "log.initial.task.delay.ms": 0,
        "log.retention.check.interval.ms": 1,
        "log.segment.delete.delay.ms": 0,
    }
    with embedlog.open(tmp_path / "log", config=config) as log:
        log.create_topic(
            "t", config={"segment.bytes": 500, "retention.ms": 1000, "file.delete.delay.ms": 0}
        )
        send(log, *[None] * 12)
        assert len(segments(log)) > 2
    later(60_000)
    for _ in range(2):
        with embedlog.open(tmp_path / "log", config=config) as log:
            log.housekeep(due_only=True)
    with embedlog.open(tmp_path / "log") as log:
        assert log_start(log) == 12


def test_who_is_at_it_is_not_disturbed(log: embedlog.Log) -> None:
    with embedlog.open(log.path) as other:
        assert other._housekeeper is not None
        with other._housekeeper.jobs.lock.hold(time.monotonic_ns() + 10**9):
            log.housekeep(due_only=True)  # returns at once
