"""The verbs of administration: every bad input leaves no trace, every failure is taken back, every
dead process's half-made topic is finished by the next. The interleavings are in
test_protocol_topics.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import errors as e
from embedlog.storage import checkpoints, file_names
from embedlog.storage.identity import new_id, read_topic_id
from embedlog.topic import TOPICS, Topic
from embedlog.types import TopicPartition
from tests.support.full_disks import QUIET, failing, tree
from tests.support.full_disks import log as log


def write(log: Any, topic: str, partition: int, count: int) -> None:
    with log.producer() as producer:
        producer.send_batch(
            topic, [b"%d" % number for number in range(count)], partition=partition
        ).result(30)


def directories(path: Path) -> list[str]:
    return sorted(
        each.name for each in path.iterdir() if each.is_dir() and not each.name.endswith("-delete")
    )


# ---- create --------------------------------------------------------------------------------------


def test_a_new_topic_is_there_for_every_process_at_once(log: Any, other: Any) -> None:
    assert other.topics() == []
    log.create_topic("events", 3, {"segment.bytes": 1000, "cleanup_policy": ["compact", "delete"]})
    assert other.topics() == ["events"]
    topic = other.describe_topic("events")
    assert topic == log.describe_topic("events")
    assert topic.config == {"segment.bytes": "1000", "cleanup.policy": "compact,delete"}
    assert [each.partition for each in topic.partitions] == [0, 1, 2]
    assert {each.log_end_offset for each in topic.partitions} == {0}
    assert {read_topic_id(log.path / f"events-{number}") for number in range(3)} == {topic.topic_id}
    assert not topic.internal


def test_the_number_of_partitions_is_the_logs_if_not_given(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log", config=QUIET | {"num.partitions": 4}) as log:
        log.create_topic("events")
        assert len(log.describe_topic("events").partitions) == 4


BAD_TOPICS: dict[str, tuple[tuple[Any, ...], type[Exception], str]] = {
    "an empty name": (("",), e.InvalidTopicError, "not a valid topic name"),
    "a path": (("../x",), e.InvalidTopicError, "found '../x'"),
    "too long a name": (("x" * 250,), e.InvalidTopicError, "1 to 249"),
    "a name in bytes": ((b"x",), TypeError, "is a str, not bytes"),
    "no name": ((None,), TypeError, "is a str, not NoneType"),
    "an internal name": (("__consumer_offsets",), e.InvalidTopicError, "the log's own"),
    "the name of a cluster's log": (("__cluster_metadata",), e.InvalidTopicError, "metadata log"),
    "a colliding name": (
        ("here_it_is",),
        e.InvalidTopicError,
        "collides with the topic here.it.is",
    ),
    "a name that is taken": (
        ("here.it.is",),
        e.TopicExistsError,
        "topic 'here.it.is' exists already",
    ),
    "no partitions": (("x", 0), e.InvalidPartitionsError, "expected 1 to 1048576, found 0"),
    "fewer than none": (("x", -1), e.InvalidPartitionsError, "found -1"),
    "too many": (("x", 2**31), e.InvalidPartitionsError, "found 2147483648"),
    "a long name with many": (
        ("x" * 249, 10**6),
        e.InvalidPartitionsError,
        "too many partitions for the length of the name",
    ),
    "half a partition": (("x", 1.5), TypeError, "not float"),
    "true partitions": (("x", True), TypeError, "not a bool"),
    "partitions in words": (("x", "3"), TypeError, "not str"),
    "an unknown setting": (
        ("x", 1, {"segment.byte": 5}),
        e.ConfigError,
        "did you mean segment.bytes?",
    ),
    "a setting out of range": (
        ("x", 1, {"segment.bytes": 5}),
        e.ConfigError,
        "14 to 2147483647, found 5",
    ),
    "settings that contradict": (
        ("x", 1, {"min.compaction.lag.ms": 6, "max.compaction.lag.ms": 5}),
        e.ConfigError,
        "at most max.compaction.lag.ms",
    ),
    "settings in a list": (("x", 1, ["segment.bytes"]), TypeError, "mapping"),
    "a name that a file has": (("file",), e.ForeignDirectoryError, "file-0"),
}


@pytest.mark.parametrize(("arguments", "error", "text"), BAD_TOPICS.values(), ids=BAD_TOPICS)
def test_a_topic_that_cannot_be_leaves_no_trace(
    log: Any, arguments: tuple[Any, ...], error: type[Exception], text: str
) -> None:
    log.create_topic("here.it.is", 1)
    (log.path / "file-0").write_text("somebody's")
    before = tree(log.path)
    with pytest.raises(error) as caught:
        log.create_topic(*arguments)
    assert text in str(caught.value)
    assert tree(log.path) == before
    log.create_topic("usable", 1)
    assert log.topics() == ["here.it.is", "usable"]


@pytest.mark.parametrize("ever_after", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("act", ["create", "grow"])
def test_a_full_disk_at_any_step_is_taken_back(tmp_path: Path, act: str, ever_after: bool) -> None:
    """Afterwards the topics are those of before, or (if the rollback failed, too) those of the
    request, complete.
    """
    for step in range(1, 60):
        with embedlog.open(tmp_path / str(step), config=QUIET) as log:
            log.create_topic("events", 1)
            with pytest.MonkeyPatch.context() as patch:
                came = failing(patch, step, ever_after=ever_after)
                try:
                    log.create_topic("more", 2) if act == "create" else log.create_partitions(
                        "events", 3
                    )
                except e.StorageError as problem:
                    failed: e.StorageError | None = problem
                else:
                    failed = None
                if not came():
                    assert step > 8, "nothing was written"
                    return
            assert failed is not None
            assert failed.errno == errno.ENOSPC
            log.create_topic("another", 1)
            count = {name: len(log.describe_topic(name).partitions) for name in log.topics()}
            expected = [
                f"{name}-{number}"
                for name, partitions in count.items()
                for number in range(partitions)
            ]
            assert directories(log.path) == sorted(expected)
            whole = (
                {"another": 1, "events": 1, "more": 2}
                if act == "create"
                else {"another": 1, "events": 3}
            )
            assert (
                count in ({"another": 1, "events": 1}, whole)
                if ever_after
                else count == {"another": 1, "events": 1}
            )
    raise AssertionError("no end of steps")


@pytest.mark.parametrize("step", [5, 30, 70])
def test_a_full_disk_is_taken_back_where_many_partitions_are_made_side_by_side(
    log: Any, step: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        came = failing(patch, step, ever_after=False)
        with pytest.raises(e.StorageError):
            log.create_topic("more", 20)
        assert came()
    assert log.topics() == directories(log.path) == []
    log.create_topic("more", 20)
    assert len(directories(log.path)) == 20


@pytest.mark.parametrize("by", ["a change", "housekeeping"])
def test_what_a_dead_process_left_half_made_is_finished_by_those_who_live(
    log: Any, other: Any, by: str
) -> None:
    registry = log._engine.registry
    with log._engine.home.topic_changes.directory_lock():
        registry.put(
            Topic("half", new_id(), 2, {}, "creating"), Topic("gone", new_id(), 1, {}, "deleting")
        )
    (log.path / "gone-0").mkdir()
    assert other.topics() == []
    if by == "a change":
        other.create_topic("events", 1)
        assert other.topics() == log.topics() == ["events", "half"]
        assert directories(log.path) == ["events-0", "half-0", "half-1"]
    else:
        other.housekeep()
        assert other.topics() == log.topics() == ["half"]
        assert directories(log.path) == ["half-0", "half-1"]


def test_what_a_dead_process_left_half_made_is_finished_by_the_next_opening(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        log.create_topic("events", 1)
        topic = log._engine.registry.live("events")
        with log._engine.home.topic_changes.directory_lock():
            log._engine.registry.put(
                Topic("half", new_id(), 2, {}, "creating"), topic._replace(growing=3)
            )
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        assert log.topics() == ["events", "half"]
        assert len(log.describe_topic("events").partitions) == 3


# ---- describe and list ---------------------------------------------------------------------------


def test_a_description_tells_how_it_stands(log: Any) -> None:
    log.create_topic("events", 2)
    write(log, "events", 1, 10)
    first, second = log.describe_topic("events").partitions
    assert (first.log_start_offset, first.log_end_offset, first.size_bytes) == (0, 0, 0)
    assert (
        second.log_start_offset,
        second.log_end_offset,
        second.high_watermark,
        second.last_stable_offset,
    ) == (0, 10, 10, 10)
    assert second.size_bytes == (log.path / "events-1" / f"{0:020d}.log").stat().st_size
    assert second.path == str(log.path / "events-1")


def test_an_unknown_topic_is_told_by_its_name(log: Any) -> None:
    for act in (log.describe_topic, log.delete_topic, lambda name: log.create_partitions(name, 5)):
        with pytest.raises(e.UnknownTopicOrPartitionError, match="'events' is unknown"):
            act("events")
    with pytest.raises(e.UnknownTopicOrPartitionError, match="'events' is unknown"):
        log.alter_topic("events", {"flush.ms": 5})


def test_internal_topics_are_shown_when_asked_for(golden_copy: Callable[[str], Path]) -> None:
    with embedlog.open(golden_copy("clean"), config=QUIET) as log:
        shown = log.topics()
        every = log.topics(include_internal=True)
        assert set(every) - set(shown) == {"__consumer_offsets", "__transaction_state"}
        assert log.describe_topic("__consumer_offsets").internal
        for act in (log.delete_topic, lambda name: log.create_partitions(name, 60)):
            with pytest.raises(e.InvalidTopicError, match="the log's own"):
                act("__consumer_offsets")


# ---- grow and alter ------------------------------------------------------------------------------


def test_partitions_are_added_and_never_taken(log: Any, other: Any) -> None:
    log.create_topic("events", 2)
    write(log, "events", 1, 3)
    for count in (2, 1, 0, -5):
        with pytest.raises(e.InvalidPartitionsError):
            log.create_partitions("events", count)
    log.create_partitions("events", 4)
    assert [each.log_end_offset for each in other.describe_topic("events").partitions] == [
        0,
        3,
        0,
        0,
    ]
    write(other, "events", 3, 2)
    assert log.describe_topic("events").partitions[3].log_end_offset == 2


def test_settings_are_changed_one_by_one(log: Any, other: Any) -> None:
    log.create_topic("events", 1, {"flush.ms": 5, "segment.bytes": 1000})
    other.alter_topic("events", {"flush_ms": 7, "retention.ms": 100})
    assert log.describe_topic("events").config == {
        "flush.ms": "7",
        "segment.bytes": "1000",
        "retention.ms": "100",
    }
    assert log._engine.topic_config("events").flush_ms == 7
    log.alter_topic("events", {"flush.ms": None, "max.message.bytes": None})
    assert other.describe_topic("events").config == {"segment.bytes": "1000", "retention.ms": "100"}


def test_new_settings_hold_for_a_partition_that_is_in_use(log: Any, other: Any) -> None:
    log.create_topic("events", 1)
    write(log, "events", 0, 1)
    other.alter_topic("events", {"max.message.bytes": 60})
    with pytest.raises(e.RecordTooLargeError, match=r"max\.message\.bytes"):
        write(log, "events", 0, 100)


@pytest.mark.parametrize(
    ("config", "error", "text"),
    [
        ({"segment.byte": 5}, e.ConfigError, "did you mean segment.bytes?"),
        ({"segment.byte": None}, e.ConfigError, "did you mean segment.bytes?"),
        ({"flush.ms": 5, "segment.bytes": 5}, e.ConfigError, "found 5"),
        ({"max.compaction.lag.ms": 5}, e.ConfigError, "at most max.compaction.lag.ms (5), found 6"),
        (None, TypeError, "not NoneType"),
        ([("flush.ms", 5)], TypeError, "not list"),
    ],
)
def test_settings_that_cannot_be_change_nothing(
    log: Any, config: Any, error: type[Exception], text: str
) -> None:
    log.create_topic("events", 1, {"min.compaction.lag.ms": 6})
    before = tree(log.path)
    with pytest.raises(error) as caught:
        log.alter_topic("events", config)
    assert text in str(caught.value)
    assert tree(log.path) == before


def test_a_newer_versions_settings_survive_a_change_by_an_older_one(log: Any) -> None:
    log.create_topic("events", 1)
    with log._engine.home.topic_changes.directory_lock():
        log._engine.registry.put(
            log._engine.registry.live("events")._replace(config={"hologram.depth": "9"})
        )
    log.alter_topic("events", {"flush.ms": 5})
    assert log.describe_topic("events").config == {"hologram.depth": "9", "flush.ms": "5"}


# ---- delete records ------------------------------------------------------------------------------


def test_deleted_records_are_gone_for_good(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        log.create_topic("events", 2)
        for number in range(2):
            write(log, "events", number, 10)
        answer = log.delete_records({TopicPartition("events", 0): 4, ("events", 1): -1})
        assert answer == {TopicPartition("events", 0): 4, TopicPartition("events", 1): 10}
        assert log.delete_records({("events", 0): 2}) == {("events", 0): 4}, (
            "the log start never falls"
        )
        starts = {("events", 0): 4, ("events", 1): 10}
        assert checkpoints.read_offsets(log.path / file_names.LOG_STARTS) == starts
        assert log.delete_records({}) == {}
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        assert [each.log_start_offset for each in log.describe_topic("events").partitions] == [
            4,
            10,
        ]


BAD_DELETIONS: dict[str, tuple[Any, type[Exception], str]] = {
    "beyond the end": (
        {("events", 0): 4, ("events", 1): 11},
        e.OffsetOutOfRangeError,
        "expected -1, or 0 to 10, found 11",
    ),
    "below all": ({("events", 0): -2}, e.OffsetOutOfRangeError, "found -2"),
    "no such partition": (
        {("events", 0): 4, ("events", 2): 4},
        e.UnknownTopicOrPartitionError,
        "no partition 2",
    ),
    "no such topic": (
        {("events", 0): 4, ("other", 0): 4},
        e.UnknownTopicOrPartitionError,
        "'other' is unknown",
    ),
    "only compacted": (
        {("events", 0): 4, ("compacted", 0): 0},
        e.PolicyViolationError,
        "found compact",
    ),
    "half an offset": ({("events", 0): 4.5}, TypeError, "an offset is an int, not float"),
    "a topic without a number": ({"events": 4}, TypeError, "TopicPartition"),
    "a number in words": (
        {("events", "0"): 4},
        TypeError,
        "the partition of a TopicPartition is an int",
    ),
    "a list": ([("events", 0)], TypeError, "not list"),
}


@pytest.mark.parametrize(("offsets", "error", "text"), BAD_DELETIONS.values(), ids=BAD_DELETIONS)
def test_records_that_cannot_be_deleted_stay_all_of_them(
    log: Any, offsets: Any, error: type[Exception], text: str
) -> None:
    log.create_topic("events", 2)
    log.create_topic("compacted", 1, {"cleanup.policy": "compact"})
    for number in range(2):
        write(log, "events", number, 10)
    before = tree(log.path)
    with pytest.raises(error) as caught:
        log.delete_records(offsets)
    assert text in str(caught.value)
    assert tree(log.path) == before
    assert [each.log_start_offset for each in log.describe_topic("events").partitions] == [0, 0]


# ---- delete --------------------------------------------------------------------------------------


def test_a_deleted_topic_is_gone_for_every_process_and_can_be_made_anew(
    log: Any, other: Any
) -> None:
    log.create_topic("events", 2)
    log.create_topic("kept", 1)
    write(log, "events", 0, 5)
    write(log, "kept", 0, 5)
    first = log.describe_topic("events").topic_id
    other.describe_topic("events")
    other.delete_topic("events")
    assert log.topics() == ["kept"]
    with pytest.raises(e.UnknownTopicOrPartitionError):
        write(log, "events", 0, 1)
    log.create_topic("events", 1)
    again = other.describe_topic("events")
    assert again.topic_id != first
    assert [each.log_end_offset for each in again.partitions] == [0]
    assert len(list(log.path.glob("events-*-delete"))) == 2
    write(other, "events", 0, 1)
    assert log.describe_topic("events").partitions[0].log_end_offset == 1


@pytest.mark.parametrize("count", [1, 2], ids=["one directory", "a set"])
def test_a_change_is_decided_by_the_present_topics(tmp_path: Path, count: int) -> None:
    """Each call is the first one of its handle after the change of another handle. A set refused a
    name that had become free.
    """
    paths: Any = (
        [tmp_path / f"d{number}" for number in range(count)] if count > 1 else tmp_path / "d0"
    )
    with embedlog.open(paths, config=QUIET) as one, embedlog.open(paths, config=QUIET) as two:
        one.create_topic("t")
        with pytest.raises(e.TopicExistsError):
            two.create_topic("t")
        one.delete_topic("t")
        two.create_topic("t", 2)
        with pytest.raises(e.TopicExistsError):
            one.create_topic("t")
        two.delete_topic("t")
        with pytest.raises(e.UnknownTopicOrPartitionError):
            one.alter_topic("t", {"retention.ms": 1})
        two.create_topic("t", 2)
        one.alter_topic("t", {"retention.ms": 10**12})
        two.delete_topic("t")
        with pytest.raises(e.UnknownTopicOrPartitionError):
            one.create_partitions("t", 3)
        two.create_topic("t", 2)
        one.create_partitions("t", 3)
        with pytest.raises(e.InvalidPartitionsError):
            two.create_partitions("t", 3)
        one.delete_topic("t")
        with pytest.raises(e.UnknownTopicOrPartitionError):
            two.delete_topic("t")
        assert two.create_topic("t", exist_ok=True) is True
        assert one.create_topic("t", exist_ok=True) is False
        two.delete_topic("t")
        assert one.create_topic("t", exist_ok=True) is True


READING: dict[str, Callable[[Any], Any]] = {
    "create_topic, which exists": lambda log: log.create_topic("quiet", exist_ok=True),
    "create_topic, which contradicts": lambda log: log.create_topic("quiet", 5, exist_ok=True),
    "create_topic, which is not accepted": lambda log: log.create_topic("quiet"),
    "create_topics": lambda log: log.create_topics([embedlog.NewTopic("quiet")], exist_ok=True),
    "alter_topic without a change": lambda log: log.alter_topic("quiet", {"retention.ms": -1}),
    "alter_topic": lambda log: log.alter_topic("quiet", {"retention.ms": 10**12}),
    "create_partitions, refused": lambda log: log.create_partitions("quiet", 1),
    "delete_topic, refused": lambda log: log.delete_topic("absent"),
    "delete_records, refused": lambda log: log.delete_records({TopicPartition("quiet", 7): 0}),
    "describe_topic": lambda log: log.describe_topic("quiet"),
    "topics": lambda log: log.topics(),
    "housekeep": lambda log: log.housekeep(),
    "check": lambda log: log.check(),
}


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *((name, 1) for name in sorted(READING)),
        ("create_topics", 2),
        ("alter_topic without a change", 2),
    ],
)
def test_a_call_about_one_topic_hides_no_change_of_another(
    tmp_path: Path, name: str, count: int
) -> None:
    """A call read the file of topics and applied nothing, so the next one found it unchanged: a
    topic that was made anew was its predecessor for that handle, and altered settings were not
    seen, for as long as nobody changed another topic.
    """
    paths: Any = (
        [tmp_path / f"d{number}" for number in range(count)] if count > 1 else tmp_path / "d0"
    )
    with embedlog.open(paths, config=QUIET) as one, embedlog.open(paths, config=QUIET) as two:
        for topic in ("quiet", "anew", "altered"):
            one.create_topic(topic)
        write(one, "anew", 0, 3)
        write(one, "altered", 0, 1)
        probe = two.consumer()
        places = [TopicPartition("anew", 0), TopicPartition("altered", 0)]
        assert list(probe.end_offsets(places).values()) == [3, 1]
        one.delete_topic("anew")
        one.create_topic("anew", 2)
        one.alter_topic("altered", {"cleanup.policy": "compact"})
        with contextlib.suppress(e.EmbedlogError):
            READING[name](two)
        assert probe.end_offsets([TopicPartition("anew", number) for number in range(2)]) == {
            ("anew", 0): 0,
            ("anew", 1): 0,
        }
        assert len(list(two.scan("anew").records())) == 0
        assert two._engine.partition("altered", 0).config.cleanup_policy == ("compact",)
        write(two, "anew", 0, 1)
        assert len(list(one.scan("anew").records())) == 1


def test_a_reader_of_a_deleted_topic_is_told(log: Any, other: Any) -> None:
    log.create_topic("events", 1)
    write(log, "events", 0, 5)
    partition = other._engine.partition("events", 0)
    assert partition.fetch(0).next_offset == 5
    log.delete_topic("events")
    with pytest.raises(e.UnknownTopicOrPartitionError):
        other._engine.partition("events", 0)
    with pytest.raises(e.EmbedlogError):
        partition.fetch(0)


def test_a_deleted_topics_files_go_after_the_delay(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log", config=QUIET | {"log.segment.delete.delay.ms": 0}) as log:
        log.create_topic("events", 1)
        write(log, "events", 0, 5)
        log.delete_topic("events")
        log.housekeep()
        assert [each.name for each in log.path.iterdir() if each.is_dir()] == []


def test_a_damaged_partition_can_still_be_deleted(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        log.create_topic("events", 1)
        write(log, "events", 0, 5)
    (tmp_path / "log" / "events-0" / "leader-epoch-checkpoint").write_text("rubbish")
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        log.delete_topic("events")
        assert log.topics() == []


# ---- handles that may not ------------------------------------------------------------------------


def test_a_reader_may_ask_and_not_change(log: Any) -> None:
    log.create_topic("events", 1)
    write(log, "events", 0, 5)
    with embedlog.open(log.path, read_only=True) as reader:
        assert reader.topics() == ["events"]
        assert reader.describe_topic("events").partitions[0].log_end_offset == 5
        before = tree(log.path)
        for act in (
            lambda: reader.create_topic("x", 1),
            lambda: reader.delete_topic("events"),
            lambda: reader.create_partitions("events", 5),
            lambda: reader.alter_topic("events", {"flush.ms": 5}),
            lambda: reader.delete_records({("events", 0): 1}),
        ):
            with pytest.raises(e.ReadOnlyError):
                act()
        assert tree(log.path) == before


def test_a_closed_log_does_nothing(log: Any) -> None:
    log.close()
    for act in (
        log.topics,
        lambda: log.describe_topic("x"),
        lambda: log.create_topic("x"),
        lambda: log.delete_topic("x"),
    ):
        with pytest.raises(e.ClosedError):
            act()


def test_a_damaged_file_of_topics_stops_the_opening_and_is_left_alone(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        log.create_topic("events", 2, {"flush.ms": 5})
    path = tmp_path / "log" / TOPICS
    path.write_text(path.read_text().replace('"flush.ms": "5"', '"flush.ms": "6"'))
    before = path.read_bytes()
    with pytest.raises(e.ForeignDirectoryError, match=TOPICS):
        embedlog.open(tmp_path / "log", config=QUIET)
    assert path.read_bytes() == before
    path.unlink()
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        assert len(log.describe_topic("events").partitions) == 2
