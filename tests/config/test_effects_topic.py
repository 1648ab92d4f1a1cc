"""Every setting of a topic has an effect, set for the topic or as the log's default: one experiment
for each name.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embedlog._native import system
from embedlog.config.options import options_of, underscored
from embedlog.config.topic import LogConfig, TopicConfig
from tests.support.option_effects import (
    OLD_MS,
    Differ,
    Effect,
    Elsewhere,
    Seen,
    World,
    check,
    keys_of,
)
from tests.support.throttled_copies import joined_in_a_round

DAY_MS = 86_400_000
NEVER = 2**63 - 1
WORDS = b" ".join(b"word %d" % number for number in random.Random(1).choices(range(50), k=4000))


def two_segments(world: World, **config: Any) -> None:
    """Two records of 1970 with one key, each in a segment of its own, the second one sealed by a
    third.
    """
    world.topic(segment_bytes=200, **config)
    assert world.send(b"a" * 100, b"b" * 100, time_ms=OLD_MS) is None
    assert world.send(b"c" * 100) is None


def sent(
    *values: bytes | None, key: bytes | None = b"k", after_ms: int | None = None, **config: Any
) -> Any:
    """The result of a record."""

    def observe(world: World) -> object:
        world.topic(**config)
        time_ms = (
            None if after_ms is None else OLD_MS if after_ms < 0 else system.wall_ms() + after_ms
        )
        return world.send(*(values or (b"x" * 200,)), key=key, time_ms=time_ms)

    return observe


def log_start(world: World) -> int:
    two_segments(world)
    world.log.housekeep()
    return int(world.partition.bounds().log_start)


def segments(*times_ms: int, **config: Any) -> Any:
    """The number of segments of records of about 170 bytes."""

    def observe(world: World) -> int:
        world.topic(**config)
        for time_ms in times_ms:
            assert world.send(b"x" * 100, time_ms=time_ms) is None
        return len(world.files("*.log"))

    return observe


def index_entries(world: World) -> bool:
    world.topic()
    assert world.send(*[b"x" * 100] * 5) is None
    return int(world.partition.published().index_entries) > 0


def allocated(world: World) -> bool:
    world.topic(segment_bytes=1 << 20)
    assert world.send(b"x") is None
    return world.files("*.log")[0].stat().st_blocks * 512 >= 1 << 20


def codec(world: World) -> int:
    world.topic()
    assert world.send(WORDS) is None
    return world.files("*.log")[0].read_bytes()[22] & 7


def stored_bytes(name: str) -> Any:
    def observe(world: World) -> int:
        world.topic(compression_type=name)
        assert world.send(WORDS) is None
        return int(world.partition.published().segment_size)

    return observe


def timestamp_type(world: World) -> int:
    world.topic()
    assert world.send(b"x") is None
    return int(next(iter(world.log.scan("t").records())).timestamp_type)


def durable(world: World) -> int:
    world.topic()
    assert world.send(b"x") is None
    return int(world.partition.durable_offset)


def durable_behind_a_round(world: World) -> int:
    durable(world)
    world.log.housekeep()
    return int(world.partition.durable_offset)


def deleted_files(world: World) -> bool:
    two_segments(world, retention_ms=1000)
    world.log.housekeep()
    world.log.housekeep()
    return bool(world.files("*.deleted"))


def compacted(**config: Any) -> Any:
    """How many of two records with one key a compaction leaves below the active segment."""

    def observe(world: World) -> int:
        two_segments(world, cleanup_policy="compact", **config)
        world.log.housekeep()
        return len(world.values()) - 1

    return observe


def tombstones(world: World) -> int:
    """The number of tombstones after two compactions: the first one sets the time until which they
    stay.
    """
    world.topic(segment_bytes=200, cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    assert world.send(b"a" * 100, None, time_ms=OLD_MS) is None
    for key in (b"l", b"m"):
        assert world.send(b"b" * 100, b"c" * 100, key=key) is None
        world.log.housekeep()
    return world.values().count(None)


def added(side: str) -> Callable[[World], int]:
    def observe(world: World) -> int:
        return joined_in_a_round(
            world.path, {f"{side}.replication.throttled.rate": 1}, world.setting
        )

    return observe


TABLE: dict[str, Effect] = {
    "cleanup_policy": Seen(sent(key=None), [("delete", None), ("compact", "InvalidRecordError")]),
    "retention_ms": Seen(log_start, [(-1, 0), (1000, 2)]),
    "retention_bytes": Seen(log_start, [(-1, 0), (300, 1)]),
    "segment_bytes": Seen(segments(1, 2, 3), [(1 << 30, 1), (200, 3)]),
    "segment_ms": Seen(segments(OLD_MS, OLD_MS + 2000), [(7 * DAY_MS, 1), (1000, 2)]),
    # The second record rolls in any case. The jitter of the new segment is below 5 ms of its hour
    # once in 10^6
    "segment_jitter_ms": Seen(
        segments(OLD_MS, OLD_MS + DAY_MS, OLD_MS + DAY_MS + 3_600_000 - 5, segment_ms=3_600_000),
        [(0, 2), (3_600_000, 3)],
    ),
    "segment_index_bytes": Seen(
        segments(*range(1, 9), index_interval_bytes=0), [(10 << 20, 1), (36, 3)]
    ),
    "index_interval_bytes": Seen(index_entries, [(4096, False), (0, True)]),
    "preallocate": Seen(allocated, [(False, False), (True, True)]),
    "max_message_bytes": Seen(sent(), [(1_048_588, None), (100, "RecordTooLargeError")]),
    "max_decompressed_message_bytes": Seen(
        sent(compression_type="zstd"), [(2**31 - 9, None), (100, "InvalidRecordError")]
    ),
    "compression_type": Seen(codec, [("producer", 0), ("gzip", 1), ("zstd", 4)]),
    "compression_gzip_level": Differ(stored_bytes("gzip"), (1, 9)),
    "compression_lz4_level": Differ(stored_bytes("lz4"), (1, 17)),
    "compression_zstd_level": Differ(stored_bytes("zstd"), (1, 19)),
    "message_timestamp_type": Seen(timestamp_type, [("CreateTime", 0), ("LogAppendTime", 1)]),
    "message_timestamp_before_max_ms": Seen(
        sent(after_ms=-1), [(NEVER, None), (1000, "InvalidTimestampError")]
    ),
    "message_timestamp_after_max_ms": Seen(
        sent(after_ms=7_200_000), [(3_600_000, "InvalidTimestampError"), (NEVER, None)]
    ),
    "flush_messages": Seen(durable, [(NEVER, 0), (1, 1)]),
    "flush_ms": Seen(durable_behind_a_round, [(NEVER, 0), (0, 1)]),
    "file_delete_delay_ms": Seen(deleted_files, [(DAY_MS, True), (0, False)]),
    "leader_replication_throttled_replicas": Seen(
        added("leader"), [("none", 2), ("*", 1), ("0:1", 1), ("0:2", 2)]
    ),
    "follower_replication_throttled_replicas": Seen(
        added("follower"), [("none", 2), ("*", 1), ("0:1", 2), ("0:2", 1)]
    ),
    "min_insync_replicas": Seen(sent(), [(1, None), (2, "NotEnoughReplicasError")]),
    "unclean_leader_election_enable": Elsewhere(
        "replicas/test_election_policies.py::test_the_setting_elects_a_replica_outside_the_isr_with_a_warning",
        "a set of directories loses one",
    ),
    "min_cleanable_dirty_ratio": Seen(compacted(), [(0.5, 1), (1, 2)]),
    "min_compaction_lag_ms": Seen(compacted(), [(0, 1), (2 * system.wall_ms(), 2)]),
    "max_compaction_lag_ms": Seen(compacted(min_cleanable_dirty_ratio=1), [(NEVER, 2), (1, 1)]),
    "delete_retention_ms": Seen(tombstones, [(DAY_MS, 1), (0, 0)]),
}
TWINS = [name for name, known in options_of(LogConfig).items() if known.topic_option]


def test_every_setting_of_a_topic_is_in_the_table() -> None:
    assert sorted(TABLE) == sorted(keys_of(TopicConfig))


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("name", TABLE)
def test_a_setting_of_a_topic_has_an_effect(name: str, tmp_path: Path) -> None:
    check(TABLE[name], (TopicConfig, name), tmp_path)


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("name", TWINS)
def test_a_default_of_all_topics_has_the_effect_of_the_topics_own(
    name: str, tmp_path: Path
) -> None:
    check(TABLE[underscored(options_of(LogConfig)[name].topic_option)], (LogConfig, name), tmp_path)
