"""Mirrors between two directories: what is copied, how a second run continues, what is refused."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import Log, OffsetAndMetadata, TopicPartition
from embedlog.mirror import Mirror, MirrorReport
from embedlog.mirror import mirror as mirror_module
from embedlog.mirror.directory_sides import DirectoryTarget
from tests.support import mirrored_topics, random_log
from tests.support.mirrored_topics import rows

QUIET = {"housekeeping": False}


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Log]:
    with embedlog.open(tmp_path / "there", config=QUIET) as log:
        yield log


def run(source: Log, target: Log, **options: Any) -> MirrorReport:
    with Mirror(source, target, **options) as mirror:
        return mirror.run()


def send(log: Log, topic: str, values: range, partitions: int = 2) -> None:
    with log.producer() as producer:
        for number in values:
            producer.send(
                topic, b"%d" % number, key=b"k%d" % (number % 3), partition=number % partitions
            )


def test_every_record_of_a_difficult_log_arrives_as_it_is(
    tmp_path: Path, there: Log, rng: random.Random
) -> None:
    """Codecs, gaps of compaction, aborted transactions, nulls, headers, epochs, a start after 0."""
    topics = random_log.write(tmp_path / "here", rng, rows=80)
    with embedlog.open(tmp_path / "here", read_only=True) as here:
        report = run(here, there)
        assert {each.topic: each.records for each in report.topics} == {
            topic: len(rows(here, topic)) for topic in topics
        }
        for topic in topics:
            assert rows(there, topic) == rows(here, topic), topic
            one = here.describe_topic(topic)
            other = there.describe_topic(topic)
            assert (one.partition_count, one.config) == (other.partition_count, other.config)
        assert run(here, there).records == 0


def test_a_second_run_continues_and_follows_new_partitions(here: Log, there: Log) -> None:
    here.create_topic("events", 2)
    for first in range(0, 90, 30):
        send(here, "events", range(first, first + 30))
        assert run(here, there).records == 30
    here.create_partitions("events", 3)
    send(here, "events", range(90, 120), partitions=3)
    assert run(here, there).records == 30
    assert there.describe_topic("events").partition_count == 3
    assert rows(there, "events") == rows(here, "events")


def test_topics_are_selected_by_name_and_pattern_and_internal_ones_never(
    here: Log, there: Log
) -> None:
    for topic in ("orders", "orders.late", "users", "logs"):
        here.create_topic(topic)
        send(here, topic, range(3), partitions=1)
    here.create_topic("__own")
    report = run(here, there, topics=["users"], pattern=r"orders\..*", prefix="us.")
    assert [(each.topic, each.target, each.records) for each in report.topics] == [
        ("orders.late", "us.orders.late", 3),
        ("users", "us.users", 3),
    ]
    assert rows(there, "us.users") == rows(here, "users")
    with pytest.raises(embedlog.ConfigError, match="another prefix"):
        run(here, there, topics=["users"])
    with pytest.raises(embedlog.UnknownTopicOrPartitionError, match="no topic 'absent'"):
        run(here, there, topics=["absent"])
    with pytest.raises(embedlog.ConfigError, match="internal"):
        run(here, there, topics=["__own"])
    with pytest.raises(embedlog.ConfigError, match="regular expression"):
        run(here, there, pattern="(")
    assert {each.topic for each in run(here, there, name="all", prefix="all.").topics} == {
        "orders",
        "orders.late",
        "users",
        "logs",
    }


# ---- groups --------------------------------------------------------------------------------------


def test_groups_are_translated_exactly(here: Log, there: Log, rng: random.Random) -> None:
    """The source has gaps of aborted transactions, and the target a marker for each transaction of
    the mirror.
    """
    here.create_topic("events", 2)
    with here.producer(transactional_id="t") as producer:
        producer.init_transactions()
        for number in range(12):
            producer.begin_transaction()
            for _ in range(rng.randrange(1, 5)):
                producer.send("events", b"x", partition=rng.randrange(2))
            producer.flush()
            producer.abort_transaction() if number % 3 == 1 else producer.commit_transaction()
            if number % 2:
                run(here, there)
    run(here, there)
    one = mirrored_topics.offsets(here, "events")
    other = mirrored_topics.offsets(there, "events")
    ends = {
        part.partition: part.log_end_offset for part in here.describe_topic("events").partitions
    }
    for offset in range(max(ends.values()) + 1):
        wanted = {
            TopicPartition("events", number): min(offset, end)
            for number, end in ends.items()
            if one[number]
        }
        here.reset_group_offsets(f"g{offset}", to=wanted)
    report = run(here, there, groups=None)
    assert report.offsets
    for offset in range(max(ends.values()) + 1):
        found = there.group_offsets(f"g{offset}")
        for place, at in here.group_offsets(f"g{offset}").items():
            best = mirrored_topics.exact(one, other, place, at.offset)
            assert found[place].offset <= best
            assert not [
                each for each in other[place.partition] if found[place].offset <= each < best
            ]
    assert run(here, there, groups=None).offsets == ()


def test_a_group_follows_the_source_until_it_is_used_at_the_target(here: Log, there: Log) -> None:
    here.create_topic("events")
    send(here, "events", range(20), partitions=1)
    place = TopicPartition("events", 0)

    def copied(offset: int) -> int:
        here.reset_group_offsets("readers", to={place: offset})
        run(here, there, groups=["readers"])
        return there.group_offsets("readers")[place].offset

    assert [copied(10), copied(15), copied(5)] == [10, 15, 5]
    there.reset_group_offsets("readers", to={place: 12})
    assert [copied(7), copied(14)] == [12, 14]
    notices: list[str] = []
    with there.consumer("events", group_id="readers", enable_auto_commit=False) as consumer:
        consumer.poll(timeout=10)
        here.reset_group_offsets("readers", to={place: 18})
        run(here, there, groups=["readers"], notice=notices.append)
        assert notices == ["group readers has members at the target: its offsets are not copied"]
        consumer.commit({place: OffsetAndMetadata(16)})
    assert copied(18) == 18


@pytest.mark.parametrize("committed", [True, False], ids=["after the commit", "before the commit"])
def test_a_group_moves_back_after_a_mirror_that_ended_at_its_commit(
    here: Log, there: Log, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    """Each offset was committed by the mirror, whether its state has the end of that
    commit or not.
    """
    here.create_topic("events")
    send(here, "events", range(20), partitions=1)
    place = TopicPartition("events", 0)
    commit = DirectoryTarget.commit_group

    def ended(target: DirectoryTarget, group: str, offsets: Mapping[TopicPartition, int]) -> bool:
        if committed:
            commit(target, group, offsets)
        raise KeyboardInterrupt

    def copied(offset: int) -> int:
        here.reset_group_offsets("readers", to={place: offset})
        run(here, there, groups=["readers"])
        return there.group_offsets("readers")[place].offset

    for first, interrupted in enumerate([[10], [15, 17], [12]]):
        for offset in interrupted:
            here.reset_group_offsets("readers", to={place: offset})
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(DirectoryTarget, "commit_group", ended)
                run(here, there, groups=["readers"])
        assert copied(5 - first) == 5 - first
    there.reset_group_offsets("readers", to={place: 14})
    assert copied(2) == 14, "used at the target"


@pytest.mark.parametrize("found_by", ["the look", "the commit", "the next mirror"])
def test_an_offset_of_members_at_the_target_is_not_moved_back(
    here: Log, there: Log, monkeypatch: pytest.MonkeyPatch, found_by: str
) -> None:
    """The mirror had an offset to commit, was refused, and a member committed the
    same one.
    """
    here.create_topic("events")
    send(here, "events", range(20), partitions=1)
    run(here, there)
    place = TopicPartition("events", 0)
    notices: list[str] = []

    def copied(offset: int) -> int:
        here.reset_group_offsets("readers", to={place: offset})
        run(here, there, groups=["readers"], notice=notices.append)
        return there.group_offsets("readers")[place].offset

    def ended(*_: object) -> bool:
        raise KeyboardInterrupt

    assert copied(10) == 10
    with there.consumer("events", group_id="readers", enable_auto_commit=False) as consumer:
        consumer.poll(timeout=10)
        consumer.commit({place: OffsetAndMetadata(12)})
        with monkeypatch.context() as patch:
            if found_by != "the look":
                patch.setattr(DirectoryTarget, "may_commit_group", lambda *_: True)
            if found_by == "the next mirror":
                patch.setattr(DirectoryTarget, "commit_group", ended)
                with pytest.raises(KeyboardInterrupt):
                    copied(15)
        with monkeypatch.context() as patch:
            if found_by == "the commit":
                patch.setattr(DirectoryTarget, "may_commit_group", lambda *_: True)
            assert copied(15) == 12
        consumer.commit({place: OffsetAndMetadata(15)})
    assert notices == ["group readers has members at the target: its offsets are not copied"]
    assert [copied(3), copied(15), copied(4)] == [15, 15, 15]


def test_a_group_with_members_is_looked_at_and_not_written(
    here: Log, there: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror that continues looks at each group again and again: the state topic does not grow
    meanwhile.
    """
    here.create_topic("events")
    send(here, "events", range(20), partitions=1)
    run(here, there)
    here.reset_group_offsets("readers", to={TopicPartition("events", 0): 15})
    with there.consumer(
        "events", group_id="readers", enable_auto_commit=False, auto_offset_reset="earliest"
    ) as consumer:
        assert consumer.poll(timeout=10, max_records=1)
        monkeypatch.setattr(DirectoryTarget, "write", lambda *_: pytest.fail("a line was written"))
        run(here, there, groups=["readers"])


# ---- refusals ------------------------------------------------------------------------------------


def test_a_topic_with_other_records_is_refused_unless_the_user_permits_it(
    here: Log, there: Log
) -> None:
    for log in (here, there):
        log.create_topic("events", 2)
        send(log, "events", range(4))
    with pytest.raises(
        embedlog.ConfigError, match=r"records that this mirror did not copy.*--append"
    ):
        run(here, there)
    assert run(here, there, append=True).records == 4
    assert len(rows(there, "events")) == 8
    assert run(here, there).records == 0


def test_a_target_with_fewer_partitions_and_the_same_log_are_refused(here: Log, there: Log) -> None:
    here.create_topic("events", 2)
    there.create_topic("events", 1)
    with pytest.raises(embedlog.InvalidPartitionsError, match="expected at least 2, found 1"):
        run(here, there)
    with pytest.raises(embedlog.ConfigError, match="the same log"):
        run(here, here)


def test_records_do_not_circulate(here: Log, there: Log) -> None:
    here.create_topic("events")
    there.create_topic("others")
    send(here, "events", range(3), partitions=1)
    send(there, "others", range(5), partitions=1)
    notices: list[str] = []
    for _ in range(2):
        run(here, there)
        assert [each.topic for each in run(there, here, notice=notices.append).topics] == ["others"]
    assert notices == ["topic events was copied from the target: it is not copied back"] * 2
    assert (len(rows(here, "events")), len(rows(there, "events"))) == (3, 3)
    with pytest.raises(embedlog.ConfigError, match="would circulate"):
        run(there, here, topics=["events"])


def test_topics_that_were_created_again(here: Log, there: Log) -> None:
    here.create_topic("events")
    send(here, "events", range(5), partitions=1)
    run(here, there)
    there.delete_topic("events")
    assert run(here, there).records == 5, "a new target is filled again"
    here.delete_topic("events")
    here.create_topic("events")
    send(here, "events", range(2), partitions=1)
    with pytest.raises(embedlog.StateError, match="delete events at the target to copy it again"):
        run(here, there)
    there.delete_topic("events")
    assert run(here, there).records == 2
    assert rows(there, "events") == rows(here, "events")


def test_deleted_records_are_a_loss_that_is_reported(here: Log, there: Log) -> None:
    here.create_topic("events")
    send(here, "events", range(10), partitions=1)
    run(here, there)
    send(here, "events", range(10, 20), partitions=1)
    here.delete_records({TopicPartition("events", 0): 15})
    with pytest.raises(
        embedlog.OffsetOutOfRangeError, match=r"offsets 10 to 14 were deleted.*continues at 15"
    ):
        run(here, there)
    notices: list[str] = []
    assert run(here, there, skip_deleted=True, notice=notices.append).records == 5
    assert notices == [
        "events-0: offsets 10 to 14 were deleted at the source before they were copied"
    ]


def test_the_deletion_of_markers_is_no_loss(here: Log, there: Log) -> None:
    here.create_topic("events")
    with here.producer(transactional_id="t") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("events", b"x")
    run(here, there)
    here.delete_records({TopicPartition("events", 0): 2})
    send(here, "events", range(3), partitions=1)
    assert run(here, there).records == 3


def test_a_source_that_was_put_back_is_refused(here: Log, there: Log, tmp_path: Path) -> None:
    here.create_topic("events")
    send(here, "events", range(5), partitions=1)
    here.close()
    shutil.copytree(tmp_path / "here", tmp_path / "earlier")
    with embedlog.open(tmp_path / "here", config=QUIET) as log:
        send(log, "events", range(5), partitions=1)
        run(log, there)
    with (
        embedlog.open(tmp_path / "earlier", config=QUIET) as log,
        pytest.raises(embedlog.StateError, match="found the end 5"),
    ):
        run(log, there)


def test_a_record_that_the_target_refuses_is_the_error(there: Log, tmp_path: Path) -> None:
    with embedlog.open(
        tmp_path / "large", config={**QUIET, "message.max.bytes": 3_000_000}
    ) as here:
        here.create_topic("events", 2)
        with here.producer(max_request_size=3_000_000) as producer:
            for number in range(2):
                producer.send("events", bytes(2_000_000), partition=number)
        with pytest.raises(embedlog.RecordTooLargeError, match="larger than max"):
            run(here, there)
        there.alter_topic("events", {"max.message.bytes": 3_000_000})
        assert run(here, there).records == 2
        assert rows(there, "events") == rows(here, "events")


def test_settings_that_are_not_copied_are_named(here: Log, there: Log) -> None:
    here.create_topic(
        "events", config={"message.timestamp.type": "LogAppendTime", "retention.ms": 1000}
    )
    notices: list[str] = []
    send(here, "events", range(2), partitions=1)
    run(here, there, notice=notices.append)
    assert notices == ["topic events: settings that were not copied: message.timestamp.type"]
    assert there.describe_topic("events").config == {"retention.ms": "1000"}
    assert rows(there, "events") == rows(here, "events"), "with the times of their appends"


def test_the_identity_of_a_log_is_its_own(here: Log, there: Log, tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "here", read_only=True) as again:
        assert again.identity == here.identity
    here.backup(tmp_path / "copy")
    with embedlog.open(tmp_path / "copy", read_only=True) as copy:
        assert len({here.identity, there.identity, copy.identity}) == 3


@pytest.mark.slow
def test_a_set_is_mirrored_and_a_copy_in_a_set(tmp_path: Path, there: Log) -> None:
    places = [tmp_path / name for name in "abc"]
    with embedlog.open(places) as log:
        log.create_topic("events", 2, replication_factor=3)
        send(log, "events", range(20))
        assert run(log, there).records == 20
    with embedlog.open(places[1:] + places[:1]) as log:
        send(log, "events", range(20, 30))
        assert run(log, there).records == 10, (
            "its identity does not depend on the order of the directories"
        )
        assert rows(there, "events") == rows(log, "events")
    with embedlog.open([tmp_path / "d", tmp_path / "e"]) as other:
        assert run(there, other, replication_factor=2).records == 30
        assert rows(other, "events") == rows(there, "events")


# ---- following -----------------------------------------------------------------------------------


class Follower:
    """A mirror that follows in a thread."""

    def __init__(self, stack: ExitStack, source: Log, target: Log, **options: Any) -> None:
        self.mirror = stack.enter_context(Mirror(source, target, **options))
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        stack.callback(self.end)

    def _run(self) -> None:
        try:
            self.mirror.run(follow=True)
        except embedlog.EmbedlogError as error:
            self.error = error

    def end(self) -> None:
        self.mirror.end()
        self.thread.join(60)
        assert not self.thread.is_alive()


def await_count(log: Log, topic: str, count: int) -> None:
    deadline = time.monotonic() + 60
    with log.consumer(isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        while topic not in log.topics():
            assert time.monotonic() < deadline
        consumer.subscribe([topic])
        found = 0
        while found < count:
            found += len(consumer.poll(timeout=1))
            assert time.monotonic() < deadline
        assert found == count


def test_a_following_mirror_notices_records_and_topics_until_its_end(
    here: Log, there: Log, until_end: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedlog.mirror.copying.REFRESH_S", 0.05)
    notices: list[str] = []
    follower = Follower(until_end, here, there, notice=notices.append)
    here.create_topic("events", 2)
    send(here, "events", range(10))
    await_count(there, "events", 10)
    here.create_topic("late")
    send(here, "late", range(4), partitions=1)
    await_count(there, "late", 4)
    here.create_partitions("events", 3)
    send(here, "events", range(30), partitions=3)
    await_count(there, "events", 40)
    here.delete_topic("late")
    deadline = time.monotonic() + 60
    while not notices:
        assert time.monotonic() < deadline
    follower.end()
    assert follower.error is None
    assert notices == ["topic late was deleted at the source"]
    assert rows(there, "events") == rows(here, "events")
    assert follower.mirror.report().records == 44


def test_a_second_mirror_fences_the_first(
    here: Log, there: Log, tmp_path: Path, until_end: ExitStack
) -> None:
    here.create_topic("events")
    send(here, "events", range(5), partitions=1)
    other = until_end.enter_context(embedlog.open(tmp_path / "there", config=QUIET))
    follower = Follower(until_end, here, other)
    await_count(there, "events", 5)
    assert run(here, there).records == 0
    send(here, "events", range(5, 10), partitions=1)
    follower.thread.join(60)
    assert isinstance(follower.error, embedlog.FencedError)
    assert "has taken over" in str(follower.error)
    assert run(here, there).records == 5
    assert rows(there, "events") == rows(here, "events")


def test_a_name_that_is_too_long_is_refused_for_its_length() -> None:
    with pytest.raises(embedlog.ConfigError, match=r"at most 100 characters.*101"):
        mirror_module._check_name("a" * 101)
    with pytest.raises(embedlog.ConfigError, match="letters, digits"):
        mirror_module._check_name("a_b")
