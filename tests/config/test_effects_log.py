"""Every setting of a log directory has an effect: one experiment for each name that is no default
of topics.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import OffsetAndMetadata, TopicPartition
from embedlog._native import system
from embedlog.config.topic import LogConfig
from embedlog.storage import locks
from tests.support.option_effects import (
    OLD_MS,
    Effect,
    Elsewhere,
    Seen,
    World,
    check,
    keys_of,
    name_of,
)
from tests.support.set_effects import (
    added,
    copied_by_due_rounds,
    copies_by_default,
    in_sync_after_slow_copies,
    offset_copies,
    read_node,
    returned_by_hand,
    returned_when_due,
    transaction_copies,
)
from tests.support.transactional_producers import Writer, begun, state_of

HOUR_MS = 3_600_000
DAY_MS = 86_400_000
T0 = TopicPartition("t", 0)


def with_old_segments(world: World, **config: Any) -> None:
    world.topic(segment_bytes=200, **config)
    assert world.send(b"a" * 100, b"b" * 100, time_ms=OLD_MS) is None
    assert world.send(b"c" * 100) is None


def rounds(world: World, done: Callable[[], bool]) -> bool:
    """Whether a housekeeper does this in rounds of a few milliseconds, if only due work is done."""
    for _ in range(30):
        world.log.housekeep(due_only=True)
        if done():
            return True
        pass_ms(1)
    return False


def pass_ms(time_ms: int) -> None:
    """Time passes on the clock that no test sets."""
    until_ns = system.boot_ns() + time_ms * 1_000_000
    while system.boot_ns() < until_ns:
        pass


def log_start(world: World) -> int:
    return int(world.partition.bounds().log_start)


def retained(world: World) -> int:
    with_old_segments(world)
    world.log.housekeep()
    return log_start(world)


def rolled(world: World) -> int:
    world.topic()
    for time_ms in (OLD_MS, OLD_MS + 2 * HOUR_MS):
        assert world.send(b"x", time_ms=time_ms) is None
    return len(world.files("*.log"))


def rolled_with_jitter(world: World) -> int:
    """The second record rolls in any case; the third does unless less than 5 ms were taken off an
    hour: once in 10^6.
    """
    world.log = world.open(log_roll_hours=1)
    world.topic()
    for time_ms in (OLD_MS, OLD_MS + DAY_MS, OLD_MS + DAY_MS + HOUR_MS - 5):
        assert world.send(b"x", time_ms=time_ms) is None
    return len(world.files("*.log"))


def compacted(world: World) -> int:
    with_old_segments(world, cleanup_policy="compact")
    world.log.housekeep()
    return len(world.values())


def compacted_when_due(world: World) -> bool:
    with_old_segments(world, cleanup_policy="compact")
    return rounds(world, lambda: len(world.values()) < 3)


def passes(world: World) -> bool:
    """Whether several passes are needed for a thousand keys."""
    world.topic(segment_bytes=100_000, cleanup_policy="compact")
    with world.log.producer() as producer:
        for number in range(2000):
            producer.send("t", b"x" * 100, b"key %d" % (number % 1000), partition=0)
    memory_bytes = world.log.config.log_cleaner_dedupe_buffer_size
    first = world.partition.compact(-1, memory_bytes, system.wall_ms())
    return world.partition.compact(first, memory_bytes, system.wall_ms()) >= 0


def partitions_of(topic: str, fill: Callable[[World], object]) -> Callable[[World], int]:
    def observe(world: World) -> int:
        fill(world)
        return len(world.log.describe_topic(topic).partitions)

    return observe


def segment_bytes_of(topic: str, fill: Callable[[World], object]) -> Callable[[World], str]:
    def observe(world: World) -> str:
        fill(world)
        return str(world.log.describe_topic(topic).config["segment.bytes"])

    return observe


def transaction(world: World) -> Writer:
    world.topic()
    writer = begun(world.log, "id")
    writer.write(b"x")
    writer.commit()
    return writer


def commit(world: World, note: str = "") -> None:
    world.topic()
    world.log._engine.groups.commit("g", {T0: OffsetAndMetadata(1, note)})


def opens(world: World) -> str | None:
    return name_of(lambda: world.log)


def deleted_when_due(world: World) -> bool:
    world.log = world.open(
        **({} if "log.initial.task.delay.ms" in world.setting else {"log_initial_task_delay_ms": 0})
    )
    world.topic(retention_ms=1000)
    assert world.send(b"x", time_ms=OLD_MS) is None
    return rounds(world, lambda: log_start(world) == 1)


def deleted_again_when_due(world: World) -> bool:
    """Records that became old after the first round."""
    assert deleted_when_due(world)
    assert world.send(b"x", time_ms=OLD_MS) is None
    return rounds(world, lambda: log_start(world) == 2)


def synced_a_little_early(world: World) -> int:
    world.topic(flush_ms=HOUR_MS)
    assert world.send(b"x") is None
    world.log.housekeep(due_only=True)
    return int(world.partition.durable_offset)


def checkpointed(world: World) -> bool:
    world.topic()
    assert world.send(b"x") is None
    return rounds(
        world, lambda: (Path(world.log.path) / "recovery-point-offset-checkpoint").exists()
    )


def producers_known(world: World) -> int:
    world.topic()
    assert world.send(b"x") is None
    world.log.housekeep()  # hears of it
    pass_ms(2)
    world.log.housekeep()
    return len(world.partition._producer_state().producers)


@contextlib.contextmanager
def an_hour_later() -> Iterator[None]:
    system.shift_wall(HOUR_MS)
    try:
        yield
    finally:
        system.shift_wall(0)


def transactional_id(world: World) -> bool:
    """Whether an id without an owner is known an hour later."""
    transaction(world).owner.close()
    with an_hour_later():
        world.log.housekeep()
    return state_of(world.log, "id") is not None


def transactional_id_when_due(world: World) -> bool:
    world.log = world.open(transactional_id_expiration_ms=1)
    transaction(world).owner.close()
    with an_hour_later():
        return rounds(world, lambda: state_of(world.log, "id") is None)


def offsets_kept(world: World) -> bool:
    commit(world)
    with an_hour_later():
        world.log.housekeep()
    return bool(world.log._engine.groups.read_committed("g"))


def offsets_forgotten_when_due(world: World) -> bool:
    world.log = world.open(offsets_retention_minutes=1)
    commit(world)
    with an_hour_later():
        return rounds(world, lambda: not world.log._engine.groups.read_committed("g"))


def aborted_when_due(world: World) -> bool:
    world.topic()
    writer = begun(world.log, "id", timeout_ms=1)
    writer.write(b"x")
    return rounds(world, lambda: world.partition.open_transactions() == [])


def session(timeout_ms: int) -> Callable[[World], str | None]:
    def observe(world: World) -> str | None:
        world.topic()
        member = world.consumer(
            "t", group_id="g", session_timeout_ms=timeout_ms, heartbeat_interval_ms=1000
        )
        return name_of(lambda: member.poll(0))

    return observe


def second_member(world: World) -> str | None:
    world.topic()
    world.consumer("t", group_id="g").poll(0)
    return name_of(lambda: world.consumer("t", group_id="g").poll(0))


def assigned_at_once(world: World) -> bool:
    world.topic()
    member = world.consumer("t", group_id="g")
    for _ in range(3):
        member.poll(0)
    return bool(member.assignment())


def waits_for_a_lock(world: World) -> str | None:
    """A second handle, to the locks another process, changes topics while the first one holds their
    lock.
    """
    world.topic()
    other = world.open()
    waiting = threading.Event()
    hold = locks.LockFile.hold

    def noting(lock: locks.LockFile, deadline_ns: int) -> Any:
        waiting.set()
        return hold(lock, deadline_ns)

    with ThreadPoolExecutor() as pool, pytest.MonkeyPatch.context() as patch:
        with world.log._engine.home.topic_changes.directory_lock():
            patch.setattr(locks.LockFile, "hold", noting)
            changing = pool.submit(name_of, lambda: other.create_topic("u"))
            assert waiting.wait(60)
            if world.value < 1000:
                return changing.result(60)
        return changing.result(60)


def mode_of_files(world: World) -> int:
    before = os.umask(0o022)
    try:
        world.topic()
        assert world.send(b"x") is None
        return world.files("*.log")[0].stat().st_mode & 0o777
    finally:
        os.umask(before)


def opened_the_usual_way_beside(world: World) -> str | None:
    world.topic()
    return name_of(lambda: embedlog.open(world.path).close())


def has_a_thread(world: World) -> bool:
    world.topic()
    return any(thread.name.startswith("embedlog housekeeper") for thread in threading.enumerate())


def descriptors(world: World) -> bool:
    """Whether more than ten partitions stay open for appending at once."""
    world.topic(partitions=40)
    with world.log.producer() as producer:
        for number in range(40):
            producer.send("t", b"x", partition=number).result(60)
        return (
            sum(bool(world.log._engine.partition("t", number)._writer.fds) for number in range(40))
            > 10
        )


def linked(world: World) -> str | None:
    """A partition in another place, reached by a link of its name."""
    world.topic()
    assert world.send(b"x") is None
    world.log.close()
    elsewhere = world.path.parent / f"elsewhere of {world.path.name}"
    world.directory.rename(elsewhere)
    world.directory.symlink_to(elsewhere)

    def read() -> None:
        world.log = world.open()
        assert world.values() == [b"x"]

    return name_of(read)


def codec_of_two_mebibytes(world: World) -> int:
    world.topic(max_message_bytes=1 << 23)
    assert world.send(bytes(2 << 20), compression_type="zstd", max_request_size=1 << 23) is None
    return world.files("*.log")[0].read_bytes()[22] & 7


TABLE: dict[str, Effect] = {
    "log_retention_minutes": Seen(retained, [(None, 0), (1, 2)]),
    "log_retention_hours": Seen(retained, [(None, 0), (1, 2)]),
    "log_roll_hours": Seen(rolled, [(None, 1), (1, 2)]),
    "log_roll_jitter_hours": Seen(rolled_with_jitter, [(None, 2), (1, 3)]),
    "log_cleaner_enable": Seen(compacted, [(True, 2), (False, 3)]),
    "log_cleaner_backoff_ms": Seen(compacted_when_due, [(1, True), (HOUR_MS, False)]),
    "log_cleaner_dedupe_buffer_size": Seen(passes, [(128 << 20, False), (1024, True)]),
    "num_partitions": Seen(partitions_of("t", World.topic), [(1, 1), (3, 3)]),
    "default_replication_factor": Seen(copies_by_default, [(1, 1), (2, 2), (3, 3)]),
    "replica_lag_time_max_ms": Seen(in_sync_after_slow_copies, [(30_000, 1), (HOUR_MS, 2)]),
    "replica_fetch_wait_max_ms": Seen(copied_by_due_rounds, [(1, 2), (HOUR_MS, 1)]),
    "leader_replication_throttled_rate": Seen(added("leader"), [(None, 2), (1, 1)]),
    "follower_replication_throttled_rate": Seen(added("follower"), [(None, 2), (1, 1)]),
    "replica_selector_class": Seen(
        read_node, [("LeaderSelector", 1), ("RackAwareReplicaSelector", 2)]
    ),
    "auto_leader_rebalance_enable": Seen(returned_by_hand, [(True, True), (False, False)]),
    "leader_imbalance_per_broker_percentage": Seen(returned_by_hand, [(10, True), (100, False)]),
    "leader_imbalance_check_interval_seconds": Seen(
        returned_when_due, [(1, True), (HOUR_MS, False)]
    ),
    "transaction_state_log_replication_factor": Seen(
        transaction_copies, [(3, (3, "2")), (1, (1, "1")), (9, (3, "2"))]
    ),
    "transaction_state_log_min_isr": Seen(transaction_copies, [(2, (3, "2")), (1, (3, "1"))]),
    "offsets_topic_replication_factor": Seen(offset_copies, [(3, (3, "2")), (2, (2, "1"))]),
    "auto_create_topics_enable": Seen(opens, [(False, None), (True, "ConfigError")]),
    "log_retention_check_interval_ms": Seen(deleted_again_when_due, [(1, True), (HOUR_MS, False)]),
    "log_initial_task_delay_ms": Seen(deleted_when_due, [(0, True), (HOUR_MS, False)]),
    "log_flush_scheduler_interval_ms": Seen(synced_a_little_early, [(250, 0), (HOUR_MS, 1)]),
    "log_flush_offset_checkpoint_interval_ms": Seen(checkpointed, [(1, True), (HOUR_MS, False)]),
    "producer_id_expiration_ms": Seen(producers_known, [(2**31 - 1, 1), (1, 0)]),
    "transaction_max_timeout_ms": Elsewhere(
        "coordination/test_transactions.py::test_the_longest_timeout_is_the_logs",
        "it limits the timeout of an owner",
    ),
    "transactional_id_expiration_ms": Seen(transactional_id, [(DAY_MS, True), (1, False)]),
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": Seen(
        aborted_when_due, [(1, True), (HOUR_MS, False)]
    ),
    "transaction_remove_expired_transaction_cleanup_interval_ms": Seen(
        transactional_id_when_due, [(1, True), (2**31 - 1, False)]
    ),
    "transaction_state_log_num_partitions": Seen(
        partitions_of("__transaction_state", transaction), [(1, 1), (3, 3)]
    ),
    "transaction_state_log_segment_bytes": Seen(
        segment_bytes_of("__transaction_state", transaction),
        [(1 << 20, "1048576"), (1 << 21, "2097152")],
    ),
    "offsets_topic_num_partitions": Seen(
        partitions_of("__consumer_offsets", commit), [(1, 1), (3, 3)]
    ),
    "offsets_topic_segment_bytes": Seen(
        segment_bytes_of("__consumer_offsets", commit), [(1 << 20, "1048576"), (1 << 21, "2097152")]
    ),
    "offsets_retention_minutes": Seen(offsets_kept, [(10_080, True), (1, False)]),
    "offsets_retention_check_interval_ms": Seen(
        offsets_forgotten_when_due, [(1, True), (HOUR_MS, False)]
    ),
    "offset_metadata_max_bytes": Seen(
        lambda world: name_of(lambda: commit(world, "a note")),
        [(4096, None), (3, "RecordTooLargeError")],
    ),
    "group_min_session_timeout_ms": Seen(session(10_000), [(6000, None), (20_000, "ConfigError")]),
    "group_max_session_timeout_ms": Seen(
        session(30_000), [(60_000, None), (20_000, "ConfigError")]
    ),
    "group_max_size": Seen(second_member, [(2, None), (1, "GroupSizeError")]),
    "group_initial_rebalance_delay_ms": Seen(assigned_at_once, [(0, True), (HOUR_MS, False)]),
    "lock_timeout_ms": Seen(waits_for_a_lock, [(1, "LockTimeoutError"), (60_000, None)]),
    "file_mode": Seen(mode_of_files, [(0o666, 0o644), (0o600, 0o600)]),
    "follow_links": Seen(linked, [(False, "ForeignDirectoryError"), (True, None)]),
    "max_decompressed_batch_bytes": Seen(codec_of_two_mebibytes, [(1 << 30, 4), (1 << 20, 0)]),
    "shared": Seen(opened_the_usual_way_beside, [("no", None), ("locks", "StateError")]),
    "housekeeping": Seen(has_a_thread, [(True, True), (False, False)]),
    "max_open_files": Seen(descriptors, [(400, True), (64, False)]),
}


def test_every_setting_of_a_log_is_in_the_table() -> None:
    assert sorted(TABLE) == sorted(keys_of(LogConfig))


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("name", TABLE)
def test_a_setting_of_a_log_has_an_effect(name: str, tmp_path: Path) -> None:
    check(TABLE[name], (LogConfig, name), tmp_path)
