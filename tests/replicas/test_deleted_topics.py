"""Deleted topics in the directories of a set: what a directory that was away has of them, and their
committed offsets.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.admin.deleted_topics import DeletedTopics
from embedlog.coordination.groups.group_view import GroupEntries
from embedlog.errors import UnknownTopicOrPartitionError
from embedlog.replicas.rules.events import DeleteTopic
from tests.support.replica_moves import opened

T0 = TopicPartition("t", 0)


def made(log: embedlog.Log) -> None:
    log.create_topic("t", assignment={0: [1, 2, 3]})
    with log.producer() as producer:
        producer.send("t", b"value").result(20)


def committed(log: embedlog.Log) -> int | None:
    """The committed offset of the group."""
    with log.consumer(group_id="g") as consumer:
        found = consumer.committed(T0)[T0]
    return None if found is None else found.offset


def commit(log: embedlog.Log) -> None:
    with log.consumer(group_id="g") as consumer:
        consumer.assign([T0])
        consumer.commit({T0: 1})


def live(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("t-?"))


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_a_directory_that_was_away_loses_a_deleted_topic(tmp_path: Path, closed: bool) -> None:
    log = opened(tmp_path, offsets_topic_num_partitions=1)
    with log:
        made(log)
        (tmp_path / "d3").rename(tmp_path / "away")
        log.delete_topic("t")
        log.housekeep()
        if not closed:
            (tmp_path / "away").rename(tmp_path / "d3")
            log.housekeep()
            assert live(tmp_path / "d3") == []
            return
    (tmp_path / "away").rename(tmp_path / "d3")
    with opened(tmp_path, offsets_topic_num_partitions=1) as log:
        log.housekeep()
        assert live(tmp_path / "d3") == []
        assert log.topics() == []


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_a_directory_with_an_older_topic_of_the_name_costs_no_committed_offset(
    tmp_path: Path, closed: bool
) -> None:
    with opened(tmp_path, offsets_topic_num_partitions=1) as log:
        made(log)
        (tmp_path / "d3").rename(tmp_path / "away")
        log.delete_topic("t")
        made(log)
        commit(log)
        if not closed:
            (tmp_path / "away").rename(tmp_path / "d3")
            log.housekeep()
            assert committed(log) == 1
    if closed:
        (tmp_path / "away").rename(tmp_path / "d3")
    with opened(tmp_path, offsets_topic_num_partitions=1) as log:
        log.housekeep()
        assert committed(log) == 1
        assert [record.value for record in log.scan("t").records()] == [b"value"]


def test_the_offsets_of_a_deleted_topic_are_deleted_once(tmp_path: Path) -> None:
    with opened(tmp_path, offsets_topic_num_partitions=1) as log:
        made(log)
        commit(log)
        log.delete_topic("t")
        made(log)
        assert committed(log) is None


def test_a_deletion_that_was_interrupted_is_completed_before_the_name_is_used_again(
    tmp_path: Path,
) -> None:
    """The process that decided was killed before it deleted the offsets."""
    with opened(tmp_path, offsets_topic_num_partitions=1) as log:
        made(log)
        commit(log)
        members = log._engine.set  # type: ignore[attr-defined]
        topic_id = members.topics.topic_with_id("t")[1]
        members.decide(lambda state: DeleteTopic(topic_id))
        assert live(tmp_path / "d1") == ["t-0"]
        made(log)
        assert committed(log) is None


def test_a_late_completion_keeps_the_offsets_of_a_newer_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process completed the deletion and created the topic again
    meanwhile.
    """
    with opened(tmp_path, offsets_topic_num_partitions=1) as log:
        made(log)
        topic_id = log._engine.set.topics.topic_with_id("t")[1]  # type: ignore[attr-defined]
        log.delete_topic("t")
        made(log)
        commit(log)
        DeletedTopics(log._engine).delete("t", topic_id)  # type: ignore[arg-type]
        assert committed(log) == 1
        assert [record.value for record in log.scan("t").records()] == [b"value"]


def test_a_directory_that_is_missing_does_not_end_a_round_of_housekeeping(tmp_path: Path) -> None:
    with opened(tmp_path, offsets_topic_num_partitions=1) as log:
        made(log)
        (tmp_path / "d3").rename(tmp_path / "away")
        log.delete_topic("t")
        log.housekeep()
        assert log.replicas().directories[2].state in ("away", "failed")


def test_topics_of_a_directory_that_was_written_alone_are_those_of_the_set_after_its_replacement(
    tmp_path: Path,
) -> None:
    with opened(tmp_path, offsets_topic_num_partitions=1) as log:
        made(log)
    with embedlog.open(tmp_path / "d2", alone=True) as alone:
        alone.create_topic("t2")
        alone.delete_topic("t")
    with opened(tmp_path, offsets_topic_num_partitions=1) as log:
        log.replace_directory(2, tmp_path / "d2")
        log.housekeep()
        assert log.topics() == ["t"]
        assert sorted(log.replicas("t").partitions[0].isr) == [1, 2, 3]
    with embedlog.open(tmp_path / "d2", read_only=True) as alone:
        assert alone.topics() == ["t"]
        assert [record.value for record in alone.scan("t").records()] == [b"value"]


# ---- a deletion whose offsets remain, and no entry of the topic in the present directories ----


def again(log: embedlog.Log) -> None:
    log.create_topic("t", assignment={0: [1, 2]})
    with log.producer() as producer:
        producer.send("t", b"new").result(20)


def committed_on_the_third(log: embedlog.Log) -> None:
    log.create_topic("t", assignment={0: [3]})
    with log.producer() as producer:
        producer.send("t", b"old").result(20)
    commit(log)


def test_a_new_topic_has_no_offset_of_a_deleted_one_whose_directories_are_away(
    tmp_path: Path,
) -> None:
    """The process that decided was killed before it deleted the offsets."""
    with opened(tmp_path, offsets_topic_num_partitions=1) as log:
        committed_on_the_third(log)
        (tmp_path / "d3").rename(tmp_path / "away")
        members = log._engine.set  # type: ignore[attr-defined]
        topic_id = members.topics.topic_with_id("t")[1]
        members.decide(lambda state: DeleteTopic(topic_id))
        log.housekeep()
        again(log)
        assert committed(log) is None
        commit(log)
        (tmp_path / "away").rename(tmp_path / "d3")
        log.housekeep()
        assert committed(log) == 1  # the offsets of the newer topic are kept
        assert live(tmp_path / "d3") == []


def test_a_deletion_that_failed_after_its_decision_leaves_no_offset_to_a_new_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise embedlog.LeaderNotAvailableError("no replica of __consumer_offsets-0 leads")

    with opened(tmp_path, offsets_topic_num_partitions=1) as log:
        committed_on_the_third(log)
        (tmp_path / "d3").rename(tmp_path / "away")
        with monkeypatch.context() as patched:
            patched.setattr(log._engine.groups.__class__, "forget_topics", fail)
            with pytest.raises(embedlog.LeaderNotAvailableError):
                log.delete_topic("t")
        assert log.topics() == []
        again(log)
        assert committed(log) is None


def replicas_of_offsets(log: embedlog.Log) -> tuple[int, ...]:
    return tuple(log.replicas("__consumer_offsets").partitions[0].isr)


def test_a_topic_is_not_created_while_offsets_of_its_name_cannot_be_looked_for(
    tmp_path: Path,
) -> None:
    settings = {
        "offsets_topic_num_partitions": 1,
        "offsets_topic_replication_factor": 1,
        "lock_timeout_ms": 500,
    }
    with opened(tmp_path, **settings) as log:
        log.create_topic("other", replication_factor=3)
        with log.consumer(group_id="g") as consumer:
            consumer.commit({TopicPartition("other", 0): 0})
        (node,) = replicas_of_offsets(log)
        (tmp_path / f"d{node}").rename(tmp_path / "away")
        with pytest.raises(embedlog.LeaderNotAvailableError, match="__consumer_offsets-0"):
            log.create_topics(["t", "u"])
        assert log.topics() == ["other"]
        assert not log.create_topic("other", exist_ok=True)
        (tmp_path / "away").rename(tmp_path / f"d{node}")
        log.housekeep()
        assert log.create_topics(["t", "u"]) == ["t", "u"]


def test_too_few_replicas_of_the_offsets_hold_up_the_names_that_have_some(tmp_path: Path) -> None:
    with opened(tmp_path, 5, offsets_topic_num_partitions=1, lock_timeout_ms=2000) as log:
        log.create_topic("t", replication_factor=5)
        commit(log)
        # the followers know the high watermark, so that one of them can be read alone
        log.housekeep()
        described = log.replicas("__consumer_offsets").partitions[0]
        kept = next(node for node in described.isr if node != described.leader)
        lost = [node for node in described.isr if node != kept]
        for node in lost:
            (tmp_path / f"d{node}").rename(tmp_path / f"away{node}")
        log.create_topic("v")
        assert replicas_of_offsets(log) == (kept,)
        with pytest.raises(embedlog.NotEnoughReplicasError):
            log.delete_topic("t")  # decided
        log.create_topic("u")
        with pytest.raises(embedlog.NotEnoughReplicasError):
            log.create_topic("t")
        assert log.topics() == ["u", "v"]
        for node in lost:
            (tmp_path / f"away{node}").rename(tmp_path / f"d{node}")
        log.housekeep()
        log.create_topic("t")
        assert committed(log) is None


def test_a_creation_that_waits_in_vain_for_offsets_in_sync_names_its_topic(tmp_path: Path) -> None:
    """The error was about the records of `__consumer_offsets`."""
    with opened(tmp_path, 5, offsets_topic_num_partitions=1, lock_timeout_ms=1000) as log:
        log.create_topic("t", replication_factor=5)
        commit(log)
        for node in replicas_of_offsets(log)[1:]:
            (tmp_path / f"d{node}").rename(tmp_path / f"away{node}")
        with (
            log.consumer(group_id="g", default_api_timeout_ms=1000) as consumer,
            pytest.raises(embedlog.NotEnoughReplicasError),
        ):
            consumer.commit({T0: 1})  # it is in the leader's log
        with pytest.raises(
            embedlog.NotEnoughReplicasError, match=r"'u' not created: .*__consumer_offsets-0"
        ) as refused:
            log.create_topic("u")
        assert (type(refused.value), refused.value.retriable) == (
            embedlog.NotEnoughReplicasError,
            True,
        )
        assert log.topics() == ["t"]


def test_the_offsets_are_looked_for_once_for_all_new_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, offsets_topic_num_partitions=1) as log:
        made(log)
        commit(log)
        looked = list[int]()
        original = GroupEntries.keys_of

        def keys_of(self: GroupEntries, topics: Collection[str]) -> dict[str, list[bytes]]:
            looked.append(len(topics))
            return original(self, topics)

        monkeypatch.setattr(GroupEntries, "keys_of", keys_of)
        log.create_topics([f"u{number}" for number in range(20)])
        log.create_topics(["t", "u0"], exist_ok=True)
        assert looked == [20]


@pytest.mark.parametrize("names", [["a", "t"], ["t", "a"]], ids=" ".join)
def test_a_topic_that_is_deleted_during_a_creation_leaves_no_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    """The offsets of both names are looked for. The deleting process is
    killed after its decision.
    """
    with (
        opened(tmp_path, offsets_topic_num_partitions=1) as log,
        opened(tmp_path, offsets_topic_num_partitions=1) as other,
    ):
        made(log)
        commit(log)
        topic_id = log._engine.set.topics.topic_with_id("t")[1]  # type: ignore[attr-defined]
        forget = DeletedTopics._forget
        forgotten = list[Collection[str]]()

        def _forget(self: DeletedTopics, names: Collection[str]) -> None:
            forget(self, names)
            if not forgotten:
                other._engine.set.decide(lambda state: DeleteTopic(topic_id))  # type: ignore[attr-defined]
            forgotten.append(names)

        with monkeypatch.context() as patched:
            patched.setattr(DeletedTopics, "_forget", _forget)
            assert log.create_topics(names, exist_ok=True) == names
        assert forgotten == [{"a"}, {"a", "t"}]
        assert log.topics() == ["a", "t"]
        assert log._engine.set.topics.topic_with_id("t")[1] != topic_id  # type: ignore[attr-defined]
        assert committed(log) is None
        for each in (other, log):
            each.housekeep()  # the offsets would be kept then
        assert committed(log) is None


def test_a_topic_that_existed_only_during_a_creation_leaves_no_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process creates the name, commits, deletes it, and is killed before it
    deletes the offset. The name was free before and after that.
    """
    with (
        opened(tmp_path, offsets_topic_num_partitions=1) as log,
        opened(tmp_path, offsets_topic_num_partitions=1) as other,
    ):
        log.create_topic("u")
        with log.consumer(group_id="g") as consumer:
            consumer.assign([TopicPartition("u", 0)])
            consumer.commit({TopicPartition("u", 0): 0})  # so that the topic of offsets is there
        forget = DeletedTopics._forget
        forgotten = list[Collection[str]]()

        def _forget(self: DeletedTopics, names: Collection[str]) -> None:
            forget(self, names)
            forgotten.append(names)
            if len(forgotten) == 1:
                made(other)
                commit(other)
                topic_id = other._engine.set.topics.topic_with_id("t")[1]  # type: ignore[attr-defined]
                other._engine.set.decide(lambda state: DeleteTopic(topic_id))  # type: ignore[attr-defined]

        with monkeypatch.context() as patched:
            patched.setattr(DeletedTopics, "_forget", _forget)
            made(log)
        assert forgotten == [{"t"}, {"t"}, {"t"}]  # of this creation, the other one, and again
        assert committed(log) is None


def test_a_topic_that_is_deleted_before_it_would_be_refused_is_not_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `exist_ok` a topic that existed is refused, and nothing is created."""
    with opened(tmp_path, offsets_topic_num_partitions=1) as log:
        made(log)
        commit(log)
        topic_id = log._engine.set.topics.topic_with_id("t")[1]  # type: ignore[attr-defined]
        finish = DeletedTopics.finish

        def _finish(self: DeletedTopics, names: Collection[str]) -> None:
            finish(self, names)
            log._engine.set.decide(lambda state: DeleteTopic(topic_id))  # type: ignore[attr-defined]

        monkeypatch.setattr(DeletedTopics, "finish", _finish)
        with pytest.raises(embedlog.TopicExistsError):
            log.create_topic("t")


def test_a_flush_leaves_out_a_topic_that_is_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, it raised, and the topics after the deleted one were not put on stable storage."""
    with embedlog.open([tmp_path / name for name in ("d1", "d2")], housekeeping=False) as log:
        log.create_topic("t", replication_factor=2)
        with log.producer(acks=1) as producer:
            producer.send("t", b"first").result(30)
        partition = log._engine.partition("t", 0)
        assert partition.durable_offset == 0
        monkeypatch.setattr(log._engine, "topic_names", lambda: ["deleted", "t"])
        log.flush()
        assert partition.durable_offset == 1
        with pytest.raises(UnknownTopicOrPartitionError):
            log.flush("deleted")
