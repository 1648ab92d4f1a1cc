"""A log of several directories: producers and consumers work as with one."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

import embedlog
from embedlog.errors import StorageError
from embedlog.partition.log_context import AppendProgress
from embedlog.replicas.decisions import proposals
from embedlog.replicas.rules.events import Refusal
from embedlog.storage import file_names
from tests.support.transactional_producers import TOPIC, begun, committed

QUIET = {"housekeeping": False}


def opened(root: Path, count: int = 3) -> embedlog.Log:
    return embedlog.open([root / f"d{n}" for n in range(1, count + 1)], config=QUIET)


def created(log: embedlog.Log, name: str = "t", partitions: int = 2, factor: int = 3) -> None:
    log.create_topic(name, partitions, replication_factor=factor)


def is_used(log: embedlog.Log, node: int) -> bool:
    """Whether a directory leads a partition, or is in an ISR."""
    return any(
        node in each.isr or node == each.leader
        for each in log._engine.set.decisions.counted_state().partitions.values()
    )


def values(log: embedlog.Log, name: str = "t") -> list[bytes]:
    return sorted(record.value for record in log.scan(name).records())


def test_records_are_in_all_directories_and_survive_an_orderly_close(tmp_path: Path) -> None:
    wanted = [b"%03d" % number for number in range(100)]
    with opened(tmp_path) as log:
        created(log)
        with log.producer() as producer:
            for value in wanted:
                producer.send("t", value)
        assert values(log) == wanted
    for node in (1, 2, 3):
        with embedlog.open(tmp_path / f"d{node}", read_only=True) as alone:
            assert values(alone) == wanted
    with opened(tmp_path) as log:
        assert values(log) == wanted
        with log.producer() as producer:
            assert producer.send("t", b"100", partition=0).result(10).offset >= 0
        assert len(values(log)) == 101


def test_a_group_consumes_and_commits(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        created(log)
        with log.producer() as producer:
            for number in range(20):
                producer.send("t", b"%03d" % number)
        with log.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
            found = []
            while len(found) < 20:
                found += [record.value for record in consumer.poll(5)]
            consumer.commit()
        assert sorted(found) == [b"%03d" % number for number in range(20)]
    with (
        opened(tmp_path) as log,
        log.producer() as producer,
        log.consumer("t", group_id="g") as consumer,
    ):
        producer.send("t", b"later").result(10)
        assert [record.value for record in consumer.poll(5)] == [b"later"]
        assert log.describe_group("g").lag == 1


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_is_seen_whole_or_not_at_all(tmp_path: Path, commit: bool) -> None:
    with opened(tmp_path) as log:
        created(log)
        with log.producer(transactional_id="x") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for number in range(10):
                producer.send("t", b"%d" % number, partition=number % 2)
            producer.flush()
            assert not list(log.scan("t", isolation_level="read_committed").records())
            producer.commit_transaction() if commit else producer.abort_transaction()
        assert len(list(log.scan("t", isolation_level="read_committed").records())) == (
            10 if commit else 0
        )


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_writing_goes_on_without_a_directory_that_was_removed(tmp_path: Path, lost: int) -> None:
    with opened(tmp_path) as log:
        created(log)
        wanted: list[bytes] = []
        deadline_s = time.monotonic() + 30
        with log.producer(linger_ms=0) as producer:
            # the paths are compared once a millisecond
            while len(wanted) < 60 or is_used(log, lost):
                assert time.monotonic() < deadline_s
                if len(wanted) == 20:
                    (tmp_path / f"d{lost}").rename(tmp_path / "removed")
                value = b"%06d" % len(wanted)
                producer.send("t", value, partition=len(wanted) % 2).result(20)
                wanted.append(value)
        assert values(log) == wanted
    for node in {1, 2, 3} - {lost}:
        with embedlog.open(tmp_path / f"d{node}", read_only=True) as alone:
            assert values(alone) == wanted


def test_a_record_that_is_only_in_the_leader_is_not_acknowledged(tmp_path: Path) -> None:
    """Two directories: the ISR cannot shrink without the second one, so nothing is committed until
    the timeout (REPLICA-4).
    """
    with opened(tmp_path, 2) as log:
        log.create_topic("t", assignment={0: [1, 2]})
        with log.producer(
            linger_ms=0, delivery_timeout_ms=1000, request_timeout_ms=300
        ) as producer:
            producer.send("t", b"first").result(20)
            follower = 3 - log._engine.partition("t", 0).node
            (tmp_path / f"d{follower}").rename(tmp_path / "removed")
            late = producer.send("t", b"second")
            several = producer.send_batch("t", [b"third", b"fourth"])
            for future in (late, several):
                with pytest.raises(embedlog.DeadlineError):
                    future.result(30)
        assert values(log) == [b"first"]


def test_a_flush_goes_on_without_a_directory_that_was_removed(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        created(log)
        with log.producer(linger_ms=0) as producer:
            producer.send("t", b"before", partition=0).result(20)
            (tmp_path / "d2").rename(tmp_path / "removed")
            producer.send("t", b"after", partition=0).result(20)
        log.flush("t")
        log.flush()
        assert all(
            0 <= log._engine.partition("t", number).durable_offset == end
            for number, end in ((0, 2), (1, 0))
        )


def test_a_directory_that_returns_joins_again(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        created(log)
        with log.producer(linger_ms=0) as producer:
            producer.send("t", b"first", partition=0).result(20)
            (tmp_path / "d2").rename(tmp_path / "removed")
            for number in range(5):
                producer.send("t", b"%d" % number, partition=number % 2).result(20)
    (tmp_path / "removed").rename(tmp_path / "d2")
    with opened(tmp_path) as log:
        log.housekeep()
        state = log._engine.set.decisions.counted_state()
        assert all(sorted(each.isr) == [1, 2, 3] for each in state.partitions.values()), (
            state.partitions
        )
        wanted = values(log)
        assert len(wanted) == 6
    with embedlog.open(tmp_path / "d2", read_only=True) as alone:
        assert values(alone) == wanted


def test_a_replica_without_appends_is_complete_after_its_directory_was_away_for_a_while(
    tmp_path: Path,
) -> None:
    """Its partitions were not closed in order, although the directory had the mark of that: no ISR
    could keep them (E17).
    """
    with opened(tmp_path) as log:
        for name in ("used", "unused"):
            log.create_topic(name, assignment={0: [3, 1, 2]}, config={"min.insync.replicas": "2"})
        with log.producer(linger_ms=0) as producer:
            for name in ("used", "unused"):
                producer.send(name, b"0").result(20)
            (tmp_path / "d1").rename(tmp_path / "removed")
            producer.send("used", b"1").result(20)
            directory = next(each for each in log._engine.directories if each.path.name == "d1")
            directory.registry.word = lambda: 1  # the page is not trusted: the file is looked at
            with pytest.raises(StorageError):
                directory.refresh_topics()
            (tmp_path / "removed").rename(tmp_path / "d1")
    assert not list(tmp_path.glob(f"*/*/{file_names.DIRTY}"))
    with opened(tmp_path) as log:
        (tmp_path / "d3").rename(tmp_path / "d3-away")
        with log.producer(linger_ms=0) as producer:
            producer.send("unused", b"1").result(20)
        assert values(log, "unused") == [b"0", b"1"]


def test_records_of_acks_1_are_committed_by_the_housekeeper(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        created(log, partitions=1)
        with log.producer(acks=1, enable_idempotence=False, linger_ms=0) as producer:
            producer.send("t", b"value").result(20)
        assert values(log) == []
        log.housekeep()
        assert values(log) == [b"value"]


def test_acknowledged_records_survive_kills_of_the_writer(
    tmp_path: Path, rng: random.Random
) -> None:
    with opened(tmp_path) as log:
        created(log)
    acknowledged: list[bytes] = []
    for run in range(4):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            log = opened(tmp_path)
            producer = log.producer(linger_ms=0)
            for number in range(1000):
                value = b"%d-%04d" % (run, number)
                producer.send("t", value, partition=number % 2).result(20)
                os.write(writer, value)
            os._exit(1)
        os.close(writer)
        with open(reader, "rb") as pipe:
            wanted = rng.randint(1, 60)
            found = pipe.read(6 * wanted)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            found += pipe.read()
        acknowledged += [found[at : at + 6] for at in range(0, len(found) - 5, 6)]
    with opened(tmp_path) as log:
        there = values(log)
        assert set(acknowledged) <= set(there)
        assert len(there) == len(set(there))
        log.housekeep()
        ends = {
            node: [end_of(tmp_path / f"d{node}" / f"t-{number}") for number in range(2)]
            for node in (1, 2, 3)
        }
    assert ends[1] == ends[2] == ends[3]


def end_of(directory: Path) -> bytes:
    """The bytes of all segments."""
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def nodes(log: embedlog.Log, name: str = "t") -> list[tuple[int, ...]]:
    state = log._engine.set.decisions.counted_state()
    found = next(topic_id for topic_id, topic in state.topics.items() if topic.name == name)
    return [each.replicas for each in state.partitions_of(found)]


def test_partitions_are_spread_over_directories_without_copies(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", 6)
        assert sorted(nodes(log)) == [(1,), (1,), (2,), (2,), (3,), (3,)]
        with log.producer() as producer:
            for number in range(60):
                producer.send("t", b"%02d" % number, partition=number % 6)
        assert values(log) == [b"%02d" % number for number in range(60)]
    for node in (1, 2, 3):
        with embedlog.open(tmp_path / f"d{node}", read_only=True) as alone:
            assert len(values(alone)) == 20


def test_an_assignment_names_the_directories(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [3, 1], 1: [2, 3]})
        assert nodes(log) == [(3, 1), (2, 3)]
        for wrong in ({0: [1, 9]}, {0: [1, 1]}, {0: []}, {1: [1]}, {0: [1, 2], 1: [3]}):
            with pytest.raises(embedlog.InvalidReplicaAssignmentError):
                log.create_topic("u", assignment=wrong)
        with pytest.raises(embedlog.InvalidReplicationFactorError):
            log.create_topic("u", replication_factor=4)
        assert log.topics() == ["t"]


def test_one_directory_holds_one_copy(tmp_path: Path) -> None:
    with embedlog.open(tmp_path, config=QUIET) as log:
        assert log.create_topic("t", replication_factor=1)
        with pytest.raises(embedlog.InvalidReplicationFactorError, match="list of directories"):
            log.create_topic("u", replication_factor=2)
        with pytest.raises(embedlog.InvalidReplicaAssignmentError, match="list of directories"):
            log.create_topic("u", assignment={0: [1]})


def test_topics_are_changed_and_deleted_in_all_directories(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        created(log)
        log.create_partitions("t", 3)
        log.alter_topic("t", retention_ms=1000)
        with log.producer() as producer:
            assert producer.send("t", b"x", partition=2).result(20).partition == 2
        assert log.describe_topic("t").config["retention.ms"] == "1000"
        log.delete_topic("t")
        assert log.topics() == []
        for node in (1, 2, 3):
            assert not list((tmp_path / f"d{node}").glob("t-?"))
        created(log)
        assert values(log) == []


def test_a_consumer_and_its_group_go_on_after_the_loss_of_a_directory(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        created(log)
        found: list[bytes] = []
        with (
            log.producer(linger_ms=0) as producer,
            log.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer,
        ):
            for number in range(40):
                if number == 15:
                    (tmp_path / "d1").rename(tmp_path / "removed")
                producer.send("t", b"%02d" % number, partition=number % 2).result(20)
                found += [record.value for record in consumer.poll(0.2)]
                consumer.commit()
            while len(found) < 40:
                found += [record.value for record in consumer.poll(5)]
            consumer.commit()
        assert sorted(found) == [b"%02d" % number for number in range(40)]
        assert log.describe_group("g").lag == 0


def test_a_transaction_is_whole_after_the_loss_of_a_directory(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        created(log)
        with log.producer(transactional_id="x") as producer:
            producer.init_transactions()
            for run in range(4):
                producer.begin_transaction()
                for number in range(4):
                    producer.send("t", b"%d-%d" % (run, number), partition=number % 2)
                    if (run, number) == (1, 2):
                        producer.flush()
                        (tmp_path / "d2").rename(tmp_path / "removed")
                producer.commit_transaction() if run % 2 else producer.abort_transaction()
        seen = sorted(
            record.value for record in log.scan("t", isolation_level="read_committed").records()
        )
        assert seen == [b"%d-%d" % (run, number) for run in (1, 3) for number in range(4)]


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_caller_that_waits_appends_to_all_directories_itself(tmp_path: Path, lost: int) -> None:
    wanted = [b"%03d" % number for number in range(200)]
    with opened(tmp_path) as log:
        created(log, partitions=1)
        with log.producer() as producer:
            for number, value in enumerate(wanted):
                if number == 100:
                    assert producer._rows.direct_count > 80, (
                        "only the first records need the thread"
                    )
                    before = producer._rows.direct_count
                    (tmp_path / f"d{lost}").rename(tmp_path / "removed")
                assert producer.send("t", value).result(20).offset == number
            assert producer._rows.direct_count > before + 50, (
                "the remaining directories are used in the same way"
            )
        assert values(log) == wanted
    for node in {1, 2, 3} - {lost}:
        with embedlog.open(tmp_path / f"d{node}", read_only=True) as alone:
            assert values(alone) == wanted


def test_one_election_replaces_all_leaders_that_were_in_a_lost_directory(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        created(log, partitions=9)
        decisions = log._engine.set.decisions
        with log.producer(linger_ms=0) as producer:
            for number in range(9):
                producer.send("t", b"before", partition=number).result(20)
            lost = sorted(
                each.number
                for each in decisions.counted_state().partitions.values()
                if each.leader == 1
            )
            assert len(lost) == 3
            version = decisions.version()
            (tmp_path / "d1").rename(tmp_path / "removed")
            producer.send("t", b"after", partition=lost[0]).result(20)
            elected = {
                each.number: each
                for each in decisions.counted_state().partitions.values()
                if each.number in lost
            }
            assert [(each.leader in (2, 3), each.leader_epoch) for each in elected.values()] == [
                (True, 1)
            ] * 3
            assert decisions.version() == version + 3, (
                "a record for each partition, in one decision"
            )
            for number in lost[1:]:
                producer.send("t", b"after", partition=number).result(20)
            assert decisions.version() == version + 3, "their first appends need no decision"
        assert values(log) == [b"after"] * 3 + [b"before"] * 9


def test_an_election_is_made_without_those_that_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as log:
        created(log, partitions=6)
        decisions = log._engine.set.decisions
        with log.producer(linger_ms=0) as producer:
            for number in range(6):
                producer.send("t", b"before", partition=number).result(20)
            lost = sorted(
                each.number
                for each in decisions.counted_state().partitions.values()
                if each.leader == 1
            )
            assert len(lost) == 2
            (tmp_path / "d1").rename(tmp_path / "removed")
            decide = proposals.decide
            asked = []

            def refused(state, event):  # type: ignore[no-untyped-def]
                asked.append(event.partition_id[1])
                return Refusal.INVALID_UPDATE_VERSION if asked == lost else decide(state, event)

            monkeypatch.setattr(proposals, "decide", refused)
            producer.send("t", b"after", partition=lost[0]).result(20)
            assert asked[:2] == lost
            found = {
                each.number: each.leader for each in decisions.counted_state().partitions.values()
            }
            assert [found[number] == 1 for number in lost] == [False, True]
        assert len(values(log)) == 7


def fail_after_append(leader: object, end: int, deadline_ns: int) -> int:
    raise embedlog.NotEnoughReplicasAfterAppendError("not committed", offset=end - 1)


def test_a_repeated_append_of_a_transaction_is_committed_to_the_isr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append to a transaction fails before its commit; its repetition must not take the leader's
    log for enough.
    """
    with opened(tmp_path) as log:
        created(log, TOPIC, partitions=1)
        writer = begun(log)
        partition = log._engine.partition(TOPIC, 0)
        for first in (True, False):
            run = writer.prepare(b"first" if first else b"second")
            progress = AppendProgress(run)
            with monkeypatch.context() as patched:
                patched.setattr(partition, "_prepare_followers", lambda leader: None)
                patched.setattr(partition._replicas.in_sync, "commit", fail_after_append)
                with pytest.raises(embedlog.NotEnoughReplicasAfterAppendError):
                    writer.owner.append(partition, run, progress=progress)
            assert partition.published().high_watermark <= progress.pieces[-1][0]
            done = writer.owner.append(partition, run, progress=progress)
            assert partition.published().high_watermark > done.last_offset
        writer.commit()
        assert committed(log) == [b"first", b"second"]


def test_a_copy_of_the_decision_log_that_was_closed_is_opened_again(tmp_path: Path) -> None:
    """A process closes the partitions of a directory that is missing; the directory may be back
    before it is needed.
    """
    with opened(tmp_path) as log:
        created(log)
        decisions = log._engine.set.decisions
        for each in log._engine.directories[:2]:
            each.partitions.pop(("__replica_state", 0)).close()
        log.create_topic("u", 1, replication_factor=3)
        assert not any(decisions.attached_copy(node).partition.closed for node in (1, 2, 3))
