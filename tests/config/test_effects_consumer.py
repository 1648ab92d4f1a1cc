"""Every setting of a consumer has an effect: one experiment for each name."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from embedlog import TopicPartition
from embedlog.config.client import ConsumerConfig
from embedlog.errors import RetriableCommitFailedError, WakeupError
from tests.faults.harness.processes import until
from tests.support.option_effects import Effect, Elsewhere, Seen, World, check, keys_of, name_of
from tests.support.transactional_producers import begun

HOUR_MS = 3_600_000
T0 = TopicPartition("t", 0)


def twice(data: bytes) -> bytes:
    return data * 2


class First:
    """An interceptor that lets one record through."""

    def on_consume(self, records: Any) -> Any:
        return records[:1]


def ten(world: World, partitions: int = 1) -> None:
    """Ten records in ten batches of each partition, each with an index entry."""
    world.topic(partitions=partitions, index_interval_bytes=0)
    with world.log.producer(linger_ms=0) as producer:
        for number in range(10 * partitions):
            producer.send("t", b"x" * 100, b"key", partition=number % partitions).result(60)


def reader(world: World, **options: Any) -> Any:
    return world.consumer("t", **{"auto_offset_reset": "earliest", **options})


def assigned(world: World, **options: Any) -> Any:
    made = world.consumer(**options)
    made.assign([T0])
    return made


def polled(world: World) -> int:
    ten(world)
    return len(reader(world).poll(60))


def seen_of_two(world: World) -> int:
    """Of how many partitions one poll brings records."""
    ten(world, 2)
    return len({record.partition for record in reader(world).poll(60)})


def partitions_in_turns(world: World) -> bool:
    """Whether a poll goes from one partition to the other before the first one is read."""
    ten(world, 2)
    return len({record.partition for record in reader(world).poll(60, max_records=10)}) > 1


def joined(world: World, **options: Any) -> Any:
    ten(world)
    member = reader(world, **{"group_id": "g", **options})
    member.poll(60)
    return member


def group_of(attribute: str) -> Callable[[World], object]:
    """The visible state of a group with one member."""

    def observe(world: World) -> object:
        joined(world)
        group = world.log.describe_group("g")
        return getattr(group if hasattr(group, attribute) else group.members[0], attribute)

    return observe


def shows_its_name(world: World) -> bool:
    world.topic()
    return "mine" in repr(reader(world))


def commits(world: World) -> str | None:
    ten(world)
    return name_of(lambda: assigned(world).commit({T0: 1}))


def rack_seen(world: World) -> object:
    """The arguments that an assignor gets for its one member."""
    racks: list[object] = []

    def mine(
        members: Mapping[str, Any], counts: Mapping[str, int]
    ) -> dict[str, list[TopicPartition]]:
        racks.extend(member.rack for member in members.values())
        return {member_id: [T0] for member_id in members}

    joined(world, partition_assignment_strategy=[mine])
    return racks[0]


def committed(world: World) -> int | None:
    found = world.log._engine.groups.read_committed("g").get(T0)
    return None if found is None else int(found.offset)


def committed_by_the_end(world: World) -> int | None:
    joined(world).close()
    return committed(world)


def committed_by_the_next_poll(world: World) -> int | None:
    joined(world).poll(0)
    return committed(world)


def hurries_behind_a_failure(world: World) -> bool:
    """Whether an automatic commit that failed of something that passes is tried again within a
    minute.
    """
    attendance = joined(world, auto_commit_interval_ms=2**31 - 1)._group
    attendance._note_automatic_commit({}, RetriableCommitFailedError("held"))
    return float(attendance._auto.due_at) - time.monotonic() < 60


def waits_for_the_groups_lock(world: World) -> str | None:
    ten(world)
    member = assigned(world, group_id="g")
    other = world.open()
    member.commit({T0: 1})
    number = world.log._engine.groups.topic.partition_of("g")
    with ThreadPoolExecutor() as pool:
        with other._engine.partition("__consumer_offsets", number).exclusive():
            committing = pool.submit(name_of, lambda: member.commit({T0: 2}))
            if world.value < 1000:
                return committing.result(60)
        return committing.result(60)


def committed_seen(world: World) -> int:
    """Records of an aborted transaction."""
    world.topic()
    writer = begun(world.log, "id")
    writer.write(b"x")
    writer.abort()
    return len(reader(world).poll(0.01))


def internal_followed(world: World) -> bool:
    ten(world)
    world.log._engine.groups.commit("g", {T0: 1})
    follower = world.consumer()
    follower.subscribe(pattern=".*")
    return "__consumer_offsets" in follower.subscription()


def loops(world: World) -> str | None:
    """The end of a loop that is woken after the last record, if it does not end by itself."""
    ten(world)
    found = reader(world)
    try:
        for record in found:
            if record.offset == 9 and world.value is None:
                found.wakeup()
    except WakeupError as error:
        return type(error).__name__
    return None


def consumed(world: World) -> list[tuple[Any, Any]]:
    world.topic()
    assert world.send(b"value", b"other", key=b"key") is None
    return [(record.key, record.value) for record in reader(world).poll(60)]


def refused(world: World) -> str | None:
    world.topic()
    return name_of(lambda: world.consumer("t"))


def position(world: World) -> int:
    ten(world)
    return int(world.consumer("t").position(T0))


def forgets(**options: Any) -> Callable[[World], tuple[bool, bool]]:
    """Whether maxima of the consumer and of a partition are forgotten after the time of some short
    windows.
    """

    def experiment(world: World) -> tuple[bool, bool]:
        ten(world)
        consumer = reader(world, **options)
        assert len(consumer.poll(60)) == 10
        ends = time.monotonic() + 0.12
        until(lambda: time.monotonic() >= ends, "some short windows end")
        found = consumer.metrics()
        return found["fetch-size-max"] is None, found["partitions"][T0]["records-lag-max"] is None

    return experiment


WHOLE = [(b"key", b"value"), (b"key", b"other")]
TABLE: dict[str, Effect] = {
    "client_id": Seen(shows_its_name, [("mine", True), (None, False)]),
    "client_rack": Seen(rack_seen, [(None, None), ("here", "here")]),
    "group_id": Seen(commits, [(None, "InvalidGroupIdError"), ("g", None)]),
    "group_instance_id": Seen(group_of("instance_id"), [(None, None), ("i", "i")]),
    "group_protocol": Seen(refused, [("classic", None), ("consumer", "ConfigError")]),
    "partition_assignment_strategy": Seen(
        group_of("assignor"), [(("range",), "range"), (("roundrobin",), "roundrobin")]
    ),
    "session_timeout_ms": Seen(
        lambda world: name_of(lambda: joined(world)), [(10_000, None), (5_000, "ConfigError")]
    ),
    "heartbeat_interval_ms": Elsewhere(
        "storage/test_heartbeats.py::test_whoever_runs_beats_until_the_end",
        "a thread of the core writes heartbeats; its times are tested there",
    ),
    "max_poll_interval_ms": Elsewhere(
        "consumer/test_groups.py::test_a_member_that_stops_polling_leaves_and_comes_again",
        "it takes a process that hangs",
    ),
    "max_poll_records": Seen(polled, [(500, 10), (3, 3)]),
    "enable_auto_commit": Seen(committed_by_the_end, [(True, 10), (False, None)]),
    "auto_commit_interval_ms": Seen(committed_by_the_next_poll, [(0, 10), (HOUR_MS, None)]),
    "auto_offset_reset": Seen(position, [("earliest", 0), ("latest", 10)]),
    "fetch_min_bytes": Elsewhere(
        "semantics/test_consumer.py::test_configuration_fetch_min_bytes_and_fetch_max_wait_hold_a_fetch_back",
        "waits are counted",
    ),
    "fetch_max_wait_ms": Elsewhere(
        "semantics/test_consumer.py::test_configuration_fetch_min_bytes_and_fetch_max_wait_hold_a_fetch_back",
        "waits are counted",
    ),
    "poll_spin_us": Elsewhere(
        "consumer/test_waiter.py::test_a_spinning_poll_does_not_sleep_and_ends_at_its_timeout",
        "the sleeps of a thread are counted",
    ),
    "fetch_max_bytes": Seen(seen_of_two, [(50 << 20, 2), (1, 1)]),
    "max_partition_fetch_bytes": Seen(partitions_in_turns, [(1 << 20, False), (1, True)]),
    "check_crcs": Seen(refused, [(True, None), (False, "ConfigError")]),
    "isolation_level": Seen(committed_seen, [("read_uncommitted", 1), ("read_committed", 0)]),
    "exclude_internal_topics": Seen(internal_followed, [(True, False), (False, True)]),
    "allow_auto_create_topics": Seen(refused, [(False, None), (True, "ConfigError")]),
    "default_api_timeout_ms": Seen(
        waits_for_the_groups_lock, [(1, "LockTimeoutError"), (60_000, None)]
    ),
    "consumer_timeout_ms": Seen(loops, [(None, "WakeupError"), (1, None)]),
    "interceptor_classes": Seen(consumed, [((), WHOLE), ((First,), WHOLE[:1])]),
    "key_deserializer": Seen(
        consumed, [(None, WHOLE), (twice, [(b"keykey", value) for _, value in WHOLE])]
    ),
    "value_deserializer": Seen(
        consumed, [(None, WHOLE), (twice, [(key, value * 2) for key, value in WHOLE])]
    ),
    "metrics_num_samples": Seen(
        forgets(metrics_sample_window_ms=50), [(1000, (False, False)), (1, (True, True))]
    ),
    "metrics_sample_window_ms": Seen(forgets(), [(HOUR_MS, (False, False)), (1, (True, True))]),
    "metadata_max_age_ms": Elsewhere(
        "semantics/test_consumer.py::test_configuration_metadata_max_age_bounds_how_late_a_partition_is_noticed",
        "it takes a log that does not say that its topics changed",
    ),
    "retry_backoff_ms": Seen(hurries_behind_a_failure, [(100, True), (HOUR_MS, False)]),
}


def test_every_setting_of_a_consumer_is_in_the_table() -> None:
    assert sorted(TABLE) == sorted(keys_of(ConsumerConfig))


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("name", TABLE)
def test_a_setting_of_a_consumer_has_an_effect(name: str, tmp_path: Path) -> None:
    check(TABLE[name], (ConsumerConfig, name), tmp_path)
