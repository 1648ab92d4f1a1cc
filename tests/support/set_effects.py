"""Experiments with sets of directories, one for each setting of a log that concerns them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any
from unittest import mock

import embedlog
from embedlog import OffsetAndMetadata, TopicPartition
from embedlog._native import system
from embedlog.config.topic import LogConfig
from embedlog.replicas.partition import copying, follower_lags
from tests.support.option_effects import World
from tests.support.stamped_batches import run_of
from tests.support.throttled_copies import joined_in_a_round
from tests.support.transactional_producers import QUIET

HOUR_MS = 3_600_000
T0 = TopicPartition("t", 0)


def a_set(world: World, **config: Any) -> embedlog.Log:
    """A set of three directories with this setting."""
    log: embedlog.Log = world._open.enter_context(
        embedlog.open(
            [world.path / f"d{node}" for node in (1, 2, 3)],
            config=QUIET | world._of(LogConfig, config),
        )
    )
    return log


def copies_of(log: embedlog.Log, topic: str) -> tuple[int, str | None]:
    described = log.replicas(topic).partitions[0]
    return len(described.replicas), log.describe_topic(topic).config.get("min.insync.replicas")


def copies_by_default(world: World) -> int:
    log = a_set(world)
    log.create_topic("u")
    return copies_of(log, "u")[0]


def copies_of_internal(world: World, topic: str) -> tuple[int, str | None]:
    log = a_set(world, offsets_topic_num_partitions=1, transaction_state_log_num_partitions=1)
    log.create_topic("t")
    with log.producer(transactional_id="x") as producer, log.consumer(group_id="g") as consumer:
        producer.init_transactions()
        consumer.commit({T0: OffsetAndMetadata(0)})
    return copies_of(log, topic)


def offset_copies(world: World) -> tuple[int, str | None]:
    return copies_of_internal(world, "__consumer_offsets")


def transaction_copies(world: World) -> tuple[int, str | None]:
    return copies_of_internal(world, "__transaction_state")


def led_elsewhere(world: World, **config: Any) -> embedlog.Log:
    log = a_set(world, **config)
    log.create_topic("t", assignment={0: [1, 2, 3]})
    log.elect("t", 0, unclean=True, node=3)
    log._engine.set.assignments.tend(  # type: ignore[attr-defined]
        (log._engine.set.topics.topic_with_id("t")[1], 0),
        "t",
        lambda: False,  # type: ignore[attr-defined]
    )
    return log


def leader_of(log: embedlog.Log) -> int:
    found: int = log.replicas("t").partitions[0].leader
    return found


def returned_by_hand(world: World) -> bool:
    log = led_elsewhere(world)
    log.housekeep()
    return leader_of(log) == 1


def returned_when_due(world: World) -> bool:
    log = led_elsewhere(world)
    until_ns = system.boot_ns() + (60 if world.value == 1 else 2) * 1_000_000_000
    while leader_of(log) != 1 and system.boot_ns() < until_ns:
        log.housekeep(due_only=True)
    return leader_of(log) == 1


def in_sync_after_slow_copies(world: World) -> int:
    """The size of the ISR after copies to the second directory, each of which takes 20 s of another
    clock.
    """
    paths = [world.path / f"d{node}" for node in (1, 2)]
    passed = itertools.count(0, 20_000_000_000)
    log = world._open.enter_context(
        embedlog.open(paths, config=QUIET | world._of(LogConfig, {"replica_fetch_wait_max_ms": 1}))
    )
    log.create_topic("t", assignment={0: [1, 2]})
    with log.producer(acks=1, linger_ms=0, batch_size=0) as producer:
        for _ in range(5):
            producer.send("t", b"x" * 5000).result()
    with (
        mock.patch.object(follower_lags, "clock_ns", side_effect=passed),
        mock.patch.object(copying, "CHUNK_BYTES", 1),
    ):
        log.housekeep()
    return len(log.replicas("t").partitions[0].isr)


def copied_by_due_rounds(world: World) -> int:
    """The high watermark after due rounds: a process was killed after its append with acks=1."""
    log = a_set(world, replica_lag_time_max_ms=2 * HOUR_MS)
    log.create_topic("t", assignment={0: [1, 2, 3]})
    with log.producer(linger_ms=0) as producer:
        producer.send("t", b"x").result()
    log.housekeep()
    log.housekeep(due_only=True)
    leader = log._engine.directories[0].partition("t", 0)
    leader.append(run_of(b"y"))
    until_ns = system.boot_ns() + (60 if world.value == 1 else 0) * 1_000_000_000
    log.housekeep(due_only=True)
    while leader.published().high_watermark < 2 and system.boot_ns() < until_ns:
        log.housekeep(due_only=True)
    return int(leader.published().high_watermark)


def added(side: str) -> Callable[[World], int]:
    def observe(world: World) -> int:
        return joined_in_a_round(
            world.path, world.setting, {f"{side}.replication.throttled.replicas": "*"}
        )

    return observe


def read_node(world: World) -> int:
    """The node whose files a consumer in the rack of the second one reads."""
    paths = [world.path / f"d{node}" for node in (1, 2)]
    log = world._open.enter_context(
        embedlog.open(paths, racks=["a", "b"], config=QUIET | world._of(LogConfig, {}))
    )
    log.create_topic("t", assignment={0: [1, 2]})
    with log.producer() as producer:
        producer.send("t", b"x").result()
    with log.consumer(
        "t", client_rack="b", auto_offset_reset="earliest", consumer_timeout_ms=0
    ) as consumer:
        assert [record.value for record in consumer] == [b"x"]
        return int(getattr(consumer._reading.rotation.get(T0).partition, "read_node", 1))
