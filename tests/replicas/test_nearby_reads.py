"""Reads from a replica in the consumer's rack (REPLICA-27): no record is skipped or repeated when
the replica changes.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.errors import ConfigError
from embedlog.partition.partition import Partition
from embedlog.replicas.partition.nearby_partition import NearbyPartition
from tests.faults.harness.processes import until
from tests.support.opened_sets import QUIET, isr, paths, send
from tests.support.replica_directories import failing
from tests.support.returning_directories import moved_away, moved_back, replica
from tests.support.stamped_batches import run_of as run

NEARBY = {**QUIET, "replica.selector.class": "RackAwareReplicaSelector"}
RACKS = ["a", "b", "c"]
T0 = TopicPartition("t", 0)


class Reads:
    """The directories from which records of topic `t` were fetched, in order, without
    repetitions.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._names: list[str] = []
        fetch = Partition.fetch

        def noted(partition: Partition, offset: int, **options: Any) -> Any:
            found = fetch(partition, offset, **options)
            if partition.topic == "t" and len(found.batches):
                self._names.append(partition.path.parent.name)
            return found

        monkeypatch.setattr(Partition, "fetch", noted)
        tail = Partition.tail

        def tailed(partition: Partition, offset: int, isolation: str) -> Any:
            found = tail(partition, offset, isolation)
            if partition.topic == "t" and found is not None:
                self._names.append(partition.path.parent.name)
            return found

        monkeypatch.setattr(Partition, "tail", tailed)

    def taken(self) -> list[str]:
        names = self._names
        self._names = []
        return [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


@contextlib.contextmanager
def a_log(
    root: Path, *values: bytes, racks: list[str] | None = None, **settings: Any
) -> Iterator[embedlog.Log]:
    """Three directories in racks a, b, c; d1 leads."""
    with embedlog.open(paths(root), racks=racks or RACKS, config={**NEARBY, **settings}) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]})
        send(log, *values)
        yield log


def reader(log: embedlog.Log, rack: str, **options: Any) -> Any:
    return log.consumer(
        "t",
        client_rack=rack,
        **{"auto_offset_reset": "earliest", "consumer_timeout_ms": 0, **options},
    )


def offsets(consumer: Any) -> list[int]:
    return [record.offset for record in consumer]


@pytest.mark.parametrize(
    ("rack", "name"), [("a", "d1"), ("b", "d2"), ("c", "d3"), ("elsewhere", "d1")]
)
def test_a_consumer_reads_the_replica_in_its_rack(
    tmp_path: Path, reads: Reads, rack: str, name: str
) -> None:
    with a_log(tmp_path, b"0", b"1", b"2") as log, reader(log, rack) as consumer:
        assert offsets(consumer) == [0, 1, 2], (
            "the last record, too: the reader brings the high watermark"
        )
        assert reads.taken() == [name]
        with log.consumer("t", auto_offset_reset="earliest", consumer_timeout_ms=0) as other:
            assert offsets(other) == [0, 1, 2]
        assert reads.taken() == ["d1"]
        assert (
            b"".join(record.value for record in log.scan("t", client_rack=rack).records()) == b"012"
        )
        assert reads.taken() == [name]


def test_without_the_selector_the_leader_is_read(tmp_path: Path, reads: Reads) -> None:
    selector = "org.apache.kafka.common.replica.LeaderSelector"
    with (
        a_log(tmp_path, b"0", **{"replica.selector.class": selector}) as log,
        reader(log, "b") as consumer,
    ):
        assert offsets(consumer) == [0]
        assert reads.taken() == ["d1"]
    with pytest.raises(ConfigError, match="RackAwareReplicaSelector"):
        embedlog.open(
            paths(tmp_path), config={**QUIET, "replica.selector.class": "com.example.Nearest"}
        )


def test_the_best_follower_of_several_in_the_rack_is_read(tmp_path: Path, reads: Reads) -> None:
    with a_log(tmp_path, b"0", racks=["a", "b", "b"]) as log:
        log._engine.partition("t", 0).append(run(b"1"), all_in_sync=False)
        node2 = replica(log, 2)
        node3 = replica(log, 3)
        fetched = replica(log, 1).replica.read(1)
        node3.replica.take(fetched, 0, 1)
        assert (node2.published().log_end, node3.published().log_end) == (1, 2)
        with reader(log, "b") as consumer:
            assert offsets(consumer) == [0]
            assert reads.taken() == ["d3"]


def test_a_follower_that_leaves_the_isr_is_not_read(tmp_path: Path, reads: Reads) -> None:
    with a_log(tmp_path, b"0") as log, reader(log, "b") as consumer:
        assert offsets(consumer) == [0]
        moved_away(tmp_path / "d2")
        send(log, b"1")
        assert isr(log) == [1, 3]
        moved_back(tmp_path / "d2")
        log._engine.set.directories.recover(2)
        assert offsets(consumer) == [1]
        assert reads.taken() == ["d2", "d1"]


@pytest.mark.parametrize("kind", ["error", "damage", "page"])
def test_a_follower_that_fails_is_replaced_by_the_leader(
    tmp_path: Path, reads: Reads, kind: str
) -> None:
    with a_log(tmp_path, b"0") as log, reader(log, "b") as consumer:
        assert offsets(consumer) == [0]
        send(log, b"1", b"2")
        log_file = next((tmp_path / "d2" / "t-0").glob("*.log"))
        if kind == "damage":
            data = bytearray(log_file.read_bytes())
            data[-1] ^= 1
            log_file.write_bytes(data)
        elif kind == "page":
            moved_away(tmp_path / "d2")
        with failing(("pread",), name="d2/t-0") if kind == "error" else contextlib.nullcontext():
            assert offsets(consumer) == [1, 2]
        assert reads.taken()[-1] == "d1"


def test_an_offset_out_of_the_range_of_a_follower_is_asked_at_the_leader(
    tmp_path: Path, reads: Reads
) -> None:
    with (
        a_log(tmp_path, b"0", b"1", b"2") as log,
        reader(log, "b", auto_offset_reset="none") as consumer,
    ):
        consumer.seek(T0, 1)
        follower = replica(log, 2)
        follower.delete_records(2)
        assert offsets(consumer) == [1, 2]
        assert reads.taken() == ["d1"]
        consumer.seek(T0, 2)
        assert offsets(consumer) == [2]
        assert reads.taken() == ["d2"]


def test_a_change_of_the_leader_neither_repeats_nor_skips(tmp_path: Path, reads: Reads) -> None:
    with a_log(tmp_path) as log, reader(log, "b") as consumer:
        seen: list[int] = []
        for step in range(12):
            send(log, b"x" * step)
            if step % 3 == 0:
                seen += offsets(consumer)
            if step % 4 == 2:
                leader = log.replicas("t").partitions[0].leader
                log.reassign({T0: [leader % 3 + 1, (leader + 1) % 3 + 1, leader]})
                log.elect("t", 0)
        assert seen + offsets(consumer) == list(range(12))
        assert set(reads.taken()) >= {"d2"}


def test_the_position_never_goes_back_to_a_lower_epoch(tmp_path: Path) -> None:
    with a_log(tmp_path, b"0", b"1") as log:
        near = log._engine.near(log._engine.partition("t", 0), "b")
        assert isinstance(near, NearbyPartition)
        near.fetch(0)
        assert near._node == 2
        # as after a read in a later epoch: the decision that is known here is older
        near._partition._calls.highest_read_epoch = 1
        assert near._find_near(0) is None


def test_a_follower_that_is_not_in_the_epoch_of_the_decision_is_not_read(
    tmp_path: Path, reads: Reads
) -> None:
    with a_log(tmp_path, b"0", b"1") as log:
        log.housekeep()
        near = log._engine.near(log._engine.partition("t", 0), "b")
        with replica(log, 2).replica.exclusive() as held:
            held.publish(held.published._replace(epoch=-1), held.replica)
        assert near.fetch(0).next_offset == 2
        assert near.bounds().epoch == 0
        assert reads.taken() == ["d1"]


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_waiting_consumer_is_woken_by_records_at_its_follower(
    tmp_path: Path, reads: Reads, isolation: str
) -> None:
    with (
        a_log(tmp_path, b"0") as log,
        reader(log, "b", isolation_level=isolation, consumer_timeout_ms=20_000) as consumer,
    ):
        assert [record.offset for record in consumer.poll(5.0)] == [0]
        found: list[int] = []
        thread = threading.Thread(
            target=lambda: found.extend(record.offset for record in consumer.poll(20.0))
        )
        thread.start()
        send(log, b"1")
        thread.join(20)
        assert found == [1]
        assert reads.taken() == ["d2"]


def test_a_reader_that_changes_nothing_is_woken_when_the_mark_of_the_follower_moves(
    tmp_path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_log(tmp_path, b"0", b"1") as log:
        log.housekeep()  # brings the high watermark to the followers
        with (
            embedlog.open(paths(tmp_path), read_only=True, config=NEARBY) as other,
            reader(other, "b") as consumer,
        ):
            assert offsets(consumer) == [0, 1]
            send(log, b"2")
            assert offsets(consumer) == [], "the follower does not know yet that it is committed"
            found = list[int]()
            waits = list[int]()
            wait = other._engine.wait
            monkeypatch.setattr(other._engine, "wait", lambda *args: waits.append(1) or wait(*args))
            thread = threading.Thread(
                target=lambda: found.extend(record.offset for record in consumer.poll(20.0))
            )
            thread.start()
            until(lambda: bool(waits), "the reader to wait")
            log.housekeep()
            thread.join(20)
            assert found == [2]
            assert len(waits) < 5, "it sleeps: the leader's page does not wake it"
            assert reads.taken() == ["d2"]


def test_committed_reads_use_the_stable_offset_of_the_follower(
    tmp_path: Path, reads: Reads
) -> None:
    with (
        a_log(tmp_path, b"0") as log,
        reader(log, "b", isolation_level="read_committed") as consumer,
    ):
        with log.producer(transactional_id="x") as producer:
            producer.init_transactions()
            for ending in ("abort_transaction", "commit_transaction"):
                producer.begin_transaction()
                producer.send("t", ending.encode(), partition=0)
                producer.flush()
                assert [record.value for record in consumer] == (
                    [b"0"] if ending == "abort_transaction" else []
                )
                getattr(producer, ending)()
        until(
            lambda: [record.value for record in consumer] == [b"commit_transaction"],
            "the committed record",
        )
        assert reads.taken() == ["d2"]


@pytest.mark.slow
def test_readers_of_all_racks_see_the_same_records_over_failures(
    tmp_path: Path, rng: random.Random
) -> None:
    """Random appends, failures, returns and elections, and three readers, one in each rack."""
    with a_log(tmp_path) as log, contextlib.ExitStack() as stack:
        consumers = [stack.enter_context(reader(log, rack)) for rack in RACKS]
        seen: list[list[bytes]] = [[], [], []]
        away = 0
        for step in range(24):
            send(log, b"%d" % step)
            at = rng.randrange(3)
            seen[at] += [record.value for record in consumers[at]]
            if rng.random() < 0.4:
                if away:
                    moved_back(tmp_path / f"d{away}")
                    away = 0
                    log.housekeep()
                else:
                    away = rng.randint(1, 3)
                    moved_away(tmp_path / f"d{away}")
        for at, consumer in enumerate(consumers):
            seen[at] += [record.value for record in consumer]
        assert seen == [[b"%d" % step for step in range(24)]] * 3
