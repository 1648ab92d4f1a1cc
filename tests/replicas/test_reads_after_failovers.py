"""What readers of a replicated partition get after failovers, and the log start in all
directories.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog._native import system
from embedlog.errors import LeaderNotAvailableError, OffsetOutOfRangeError
from tests.support.opened_sets import send
from tests.support.replica_moves import opened, values
from tests.support.replica_partitions import Process, a_set
from tests.support.stamped_batches import run_of


def read(process: Process) -> int:
    """The position of a reader that has read everything."""
    offset = 0
    while len((found := process.partition.fetch(offset)).batches):
        offset = found.next_offset
    return offset


def test_a_leader_returns_nothing_before_the_start_of_its_epoch_is_committed(
    tmp_path: Path,
) -> None:
    with a_set(tmp_path, min_insync_replicas="2") as (decisions, [process]):
        process.partition.append(run_of(b"first"))
        assert read(process) == 1
        # one append late
        assert process.published(2).high_watermark == process.published(3).high_watermark == 0
        process.disks[1].broken = process.disks[3].broken = True
        within_ns = process.partition._calls.timeout_ns
        process.partition._calls.timeout_ns = 500_000_000
        for call in (process.partition.bounds, lambda: read(process)):
            with pytest.raises(LeaderNotAvailableError, match="start of its epoch"):
                call()
        process.partition._calls.timeout_ns = within_ns
        assert decisions.partition.leader == 2
        process.disks[3].broken = False
        process.forgive()
        process.disks[1].broken = True
        process.replicas.in_sync.add_to_isr(
            process.replicas.leaders.find_leader(process.partition.deadline()),
            3,
            process.partition.deadline(),
        )
        assert process.partition.bounds().high_watermark == read(process) == 1


def test_a_reader_never_returns_to_a_lower_leader_epoch(tmp_path: Path) -> None:
    with a_set(tmp_path, processes=2) as (decisions, [process, other]):
        process.partition.append(run_of(b"first"))
        before = decisions.state
        other.disks[1].broken = True
        other.partition.append(run_of(b"second"))
        process.partition.append(run_of(b"third"))
        assert (read(process), decisions.partition.leader_epoch) == (3, 1)
        second = decisions.partition.leader
        process.disks[second].broken = True
        newest = lambda: before if decisions.partition.leader_epoch == 1 else decisions.state  # noqa: E731
        decisions.counted_state = newest  # type: ignore[method-assign]  # the reached copies are old until the next decision
        assert read(process) == 3
        assert process.partition.node not in (1, second)


def test_deleted_records_are_deleted_in_all_directories(tmp_path: Path) -> None:
    with a_set(tmp_path) as (decisions, [process]):
        for number in range(4):
            process.partition.append(run_of(b"%d" % number))
        assert process.partition.delete_records(-1) == 4
        assert [process.published(node).log_start for node in (1, 2, 3)] == [4, 4, 4]
        process.partition.append(run_of(b"later"))
        process.disks[2].broken = True
        assert process.partition.delete_records(5) == 5
        assert [process.published(node).log_start for node in (1, 3)] == [5, 5]
        assert decisions.partition.isr == (1, 3)


@pytest.mark.parametrize("acks", [0, 1])
def test_a_close_commits_what_only_the_leader_has(tmp_path: Path, acks: int) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", replication_factor=3)
        with log.producer(acks=acks) as producer:
            producer.send("t", b"v")
    paths = [tmp_path / f"d{node}" for node in (1, 2, 3)]
    with embedlog.open(paths, read_only=True) as log:
        assert values(log) == [b"v"]
    for path in paths:
        with embedlog.open(path, read_only=True) as copy:
            assert values(copy) == [b"v"]


@pytest.fixture
def late(tmp_path: Path) -> Iterator[embedlog.Log]:
    """A set with a leader, a follower that knows the high watermark late, and a directory without
    replicas.
    """
    settings = {
        "housekeeping": False,
        "lock.timeout.ms": 1000,
        "auto.leader.rebalance.enable": False,
    }
    paths = [tmp_path / "d1", tmp_path / "d2"]
    with embedlog.open(paths, config=settings) as log:
        log.add_directory(tmp_path / "d3", replicas=False)
        log.create_topic("t", assignment={0: [1, 2]}, config={"min.insync.replicas": "2"})
        with log.producer() as producer:
            for number in range(5):
                producer.send("t", b"%d" % number).result(20)
        assert [copy.high_watermark for copy in log.replicas("t").partitions[0].copies] == [5, 4]
        yield log


def reading(root: Path, **settings: Any) -> embedlog.Log:
    paths = [root / f"d{node}" for node in (1, 2, 3)]
    return embedlog.open(paths, read_only=True, config={"lock.timeout.ms": 1000, **settings})


WANTED = [b"%d" % number for number in range(5)]


@pytest.mark.parametrize("rack", [None, "r"])
def test_a_scan_of_a_read_only_log_does_not_end_early(
    late: embedlog.Log, tmp_path: Path, rack: str | None
) -> None:
    """The new leader commits nothing alone, and the reader has no more than the follower: that it
    ends there does not show that the log does.
    """
    with reading(tmp_path) as reader:
        scan = reader.scan("t", client_rack=rack)
        (tmp_path / "d1").rename(tmp_path / "away")
        late.housekeep()
        assert late.replicas("t").partitions[0].leader == 2
        with pytest.raises(LeaderNotAvailableError, match="all records below 5"):
            list(scan.records())
        assert scan.bounds == {0: (0, 5)}
        late.alter_topic("t", min_insync_replicas=1)
        late.housekeep()
        assert [record.value for record in scan.records()] == WANTED


def test_a_scan_whose_records_an_unclean_election_lost_is_an_error(
    late: embedlog.Log, tmp_path: Path
) -> None:
    with reading(tmp_path) as reader:
        scan = reader.scan("t")
        own = late.scan("t")
        (tmp_path / "d2").rename(tmp_path / "away")
        late.alter_topic("t", min_insync_replicas=1)
        with late.producer() as producer:
            producer.send("t", b"5").result(20)
        longer = reader.scan("t")
        longest = late.scan("t")
        assert longest.bounds == longer.bounds == {0: (0, 6)}
        (tmp_path / "d1").rename(tmp_path / "gone")
        (tmp_path / "away").rename(tmp_path / "d2")
        late.housekeep()
        assert late.elect("t", 0, unclean=True, node=2)
        late.housekeep()
        assert (
            [record.value for record in own.records()]
            == [record.value for record in scan.records()]
            == WANTED
        )
        for each in (longer, longest):
            with pytest.raises(
                OffsetOutOfRangeError, match="t-0 ends before the last record of this scan"
            ):
                list(each.records())


def test_a_scan_of_a_read_only_log_waits_for_the_next_leader(
    late: embedlog.Log, tmp_path: Path
) -> None:
    with reading(tmp_path, **{"lock.timeout.ms": 60_000}) as reader:
        scan = reader.scan("t")
        found = list[bytes]()
        (tmp_path / "d1").rename(tmp_path / "away")
        thread = threading.Thread(
            target=lambda: found.extend(record.value for record in scan.records())
        )
        thread.start()
        late.alter_topic("t", min_insync_replicas=1)
        late.housekeep()  # elects the follower, which commits
        thread.join(60)
        assert found == WANTED


def test_a_reader_that_finds_nothing_where_a_page_shows_records_ends_at_its_first_deadline(
    late: embedlog.Log,
) -> None:
    """The page can be that of a lost directory, which stays mapped. Each call
    before waits for a change.
    """
    partition: Any = late._engine.partition("t", 0)
    assert partition.awaited_bounds(5, "read_uncommitted").high_watermark == 5
    since_ns = system.boot_ns()
    calls = 0
    with pytest.raises(
        LeaderNotAvailableError, match="returns all records below 5 before the deadline"
    ):
        while calls < 1000:
            assert partition.awaited_bounds(5, "read_uncommitted", since_ns).high_watermark == 5
            calls += 1
    assert 0 < calls < 100, "it does not occupy a processor"


def test_records_above_the_end_of_all_replicas_in_sync_are_not_awaited(tmp_path: Path) -> None:
    """No process has the set open, so no replica leads: an end above all of them was lost with an
    earlier copy of the set.
    """
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]})
        with log.producer() as producer:
            producer.send("t", b"a").result(30)
    paths = [tmp_path / f"d{node}" for node in (1, 2, 3)]
    with embedlog.open(
        paths, read_only=True, config={"housekeeping": False, "lock.timeout.ms": 600_000}
    ) as log:
        partition = log._engine.partition("t", 0)
        assert partition.awaited_bounds(5, "read_uncommitted").high_watermark == 1
    (tmp_path / "d1").rename(tmp_path / "away")
    with embedlog.open(
        paths, read_only=True, config={"housekeeping": False, "lock.timeout.ms": 500}
    ) as log:
        partition = log._engine.partition("t", 0)
        with pytest.raises(LeaderNotAvailableError):
            partition.awaited_bounds(5, "read_uncommitted")


def test_the_decisions_of_a_minority_do_not_show_that_records_are_lost(tmp_path: Path) -> None:
    """Its directory was the ISR once. Another one leads since then, and has the records: a scan
    took them for lost.
    """
    settings = {
        "housekeeping": False,
        "lock.timeout.ms": 1000,
        "auto.leader.rebalance.enable": False,
    }
    paths = [tmp_path / f"d{node}" for node in (1, 2, 3)]
    with embedlog.open(paths, config=settings) as log:
        log.create_topic("t", assignment={0: [1, 2]}, config={"min.insync.replicas": 1})
        send(log, b"0")
        paths[1].rename(tmp_path / "away2")
        send(log, b"1")
        assert log.replicas("t").partitions[0].isr == (1,)
    paths[0].rename(tmp_path / "away1")
    (tmp_path / "away2").rename(paths[1])
    with embedlog.open(paths, config=settings) as log:
        log.elect("t", unclean=True, node=2)
        send(log, b"1", b"2", b"3")
    paths[1].rename(tmp_path / "away2")
    (tmp_path / "away1").rename(paths[0])
    for newest in (False, True):  # the third directory has the election, and no replica
        paths[2].rename(tmp_path / "away3") if not newest else (tmp_path / "away3").rename(paths[2])
        with embedlog.open(paths, read_only=True, config=settings) as log:
            partition: Any = log._engine.partition("t", 0)
            with pytest.raises(LeaderNotAvailableError):
                partition.awaited_bounds(4, "read_uncommitted")


def test_records_that_the_only_replica_in_sync_lacks_are_lost_if_a_majority_shows_its_election(
    tmp_path: Path,
) -> None:
    settings = {"housekeeping": False, "lock.timeout.ms": 600_000}
    paths = [tmp_path / f"d{node}" for node in (1, 2, 3)]
    with embedlog.open(paths, config=settings | {"lock.timeout.ms": 2000}) as log:
        log.create_topic("t", assignment={0: [1, 2]}, config={"min.insync.replicas": 1})
        send(log, b"0")
        paths[1].rename(tmp_path / "away2")
        send(log, b"1")
    with embedlog.open(paths, read_only=True, config=settings) as log:
        partition: Any = log._engine.partition("t", 0)
        assert partition.awaited_bounds(4, "read_uncommitted").high_watermark == 2
