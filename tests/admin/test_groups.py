"""Administration of groups: results agree with the log; groups with members are protected; refused
calls change nothing.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import GroupPartition, MemberDescription, OffsetAndMetadata, TopicPartition
from embedlog import group as machine
from embedlog._native import system
from embedlog.coordination.groups.group_records import encode_group, encode_group_key
from embedlog.format.consumer_protocol import MemberSubscription, encode_subscription
from embedlog.group import Member
from tests.faults.harness.processes import until
from tests.kafka import BOTH_PROTOCOLS
from tests.support.joining import commit, joined, left

CONFIG = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 2}
START_MS = 1_700_000_000_000
T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
U0 = TopicPartition("u", 0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    """Topic t with 10 and 20 records, a second apart; topic u with none."""
    with embedlog.open(tmp_path / "log", config=CONFIG) as opened:
        opened.create_topic("t", 2)
        opened.create_topic("u", 1)
        with opened.producer() as producer:
            for number, count in ((0, 10), (1, 20)):
                times = [START_MS + each * 1000 for each in range(count)]
                producer.send_batch(
                    "t", [b"x"] * count, partition=number, timestamps_ms=times
                ).result(10)
        yield opened


def record_count(log: embedlog.Log) -> int:
    """How many records all groups have written."""
    return sum(each.log_end_offset for each in log.describe_topic("__consumer_offsets").partitions)


def test_a_group_that_counts_the_batches_of_a_sink_has_no_lag(log: embedlog.Log) -> None:
    """The offsets are those of Spark's transactional sink: a number of a batch, and the start of
    each partition.
    """
    commit(log, "reader", {T0: 1})  # the topic of offsets exists
    marks = {
        TopicPartition("__consumer_offsets", 0): OffsetAndMetadata(6, "query"),
        T0: OffsetAndMetadata(3),
    }
    with log.producer(transactional_id="job") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"x", partition=0)
        producer.send_offsets_to_transaction(marks, embedlog.GroupMetadata("job"))
        producer.commit_transaction()
    assert log.group_offsets("job") == marks
    found = log.describe_group("job")
    assert ([each.lag for each in found.partitions], found.lag) == ([None, None], None)
    of_group = log.metrics()["groups"]["job"]
    assert (of_group["records-lag"], of_group["records-lag-max"]) == (None, None)
    assert [each["records-lag"] for each in of_group["partitions"].values()] == [None, None]


# ---- asking --------------------------------------------------------------------------------------


def test_a_log_without_groups_has_none(log: embedlog.Log) -> None:
    assert log.groups() == []
    assert log.group_offsets("nobody") == {}
    with pytest.raises(embedlog.GroupNotFoundError, match="nobody"):
        log.describe_group("nobody")
    assert log.topics(include_internal=True) == ["t", "u"], "asking makes nothing"


def test_all_groups_are_listed_in_order(log: embedlog.Log) -> None:
    commit(log, "with offsets", {T0: 1})
    joined(log, "another", {"a": [T0]})
    joined(log, "älter", {"a": [T0]})
    assert log.groups() == ["another", "with offsets", "älter"]


def test_offsets_come_with_note_and_epoch(log: embedlog.Log) -> None:
    commit(log, "g", {T1: OffsetAndMetadata(7, "nöte", 3), T0: 2})
    assert list(log.group_offsets("g").items()) == [
        (T0, OffsetAndMetadata(2)),
        (T1, OffsetAndMetadata(7, "nöte", 3)),
    ]


def test_a_group_that_nobody_joined_is_described(log: embedlog.Log) -> None:
    commit(log, "g", {T0: OffsetAndMetadata(4, "note")})
    found = log.describe_group("g")
    assert (found.group_id, found.state, found.type, found.protocol_type) == (
        "g",
        "Empty",
        "classic",
        "",
    )
    assert (found.assignor, found.generation, found.leader, found.members) == (None, 0, None, ())
    assert found.partitions == (GroupPartition("t", 0, OffsetAndMetadata(4, "note"), 10, None),)
    assert found.lag == 6


def test_a_stable_group_is_described_with_who_reads_what(log: embedlog.Log) -> None:
    joined(log, "g", {"a": [T1], "b": [T0]}, "t", "u")
    member = log.describe_group("g").members[0]
    assert member == MemberDescription("a", None, "client-a", "/here", ("t", "u"), (T1,))
    found = log.describe_group("g")
    assert (found.state, found.protocol_type, found.assignor, found.leader) == (
        "Stable",
        "consumer",
        "range",
        "a",
    )
    assert found.generation == log._engine.groups.read_group("g").generation
    assert [each.member_id for each in found.members] == ["a", "b"]
    assert found.partitions == (
        GroupPartition("t", 0, None, 10, "b"),
        GroupPartition("t", 1, None, 20, "a"),
        GroupPartition("u", 0, None, 0, None),
    )
    assert (found.partitions[0].lag, found.lag) == (None, None)
    left(log, "g", "a")
    assert log.describe_group("g").state == "PreparingRebalance"
    left(log, "g", "b")
    assert (log.describe_group("g").state, log.describe_group("g").members) == ("Empty", ())


def test_a_group_of_another_kind_is_shown_without_partitions(log: embedlog.Log) -> None:
    member = Member("w", None, "worker", "/here", 1, 1, (("default", b"\1\2"),), b"\3\4")
    group = machine.Group("connect", 4, "default", "w", machine.State.STABLE, 5, {"w": member})
    groups = log._engine.groups
    with groups.topic.lock_for_decision(
        groups.topic.partition_of("c"), groups.deadline(None)
    ) as decision:
        decision.append([(encode_group_key("c"), encode_group(group))])
    found = log.describe_group("c")
    assert (found.protocol_type, found.state, found.members[0].assignment, found.partitions) == (
        "connect",
        "Stable",
        (),
        (),
    )


def test_a_reader_sees_what_the_writer_has_committed(log: embedlog.Log) -> None:
    commit(log, "g", {T0: 4})
    with embedlog.open(log.path, read_only=True) as reader:
        assert reader.describe_group("g") == log.describe_group("g")
        commit(log, "g", {T0: 5})
        assert reader.group_offsets("g") == {T0: OffsetAndMetadata(5)}
        assert reader.reset_group_offsets("g", to="earliest", dry_run=True) == {
            T0: OffsetAndMetadata(0)
        }
        for verb in (
            lambda: reader.reset_group_offsets("g", to="earliest"),
            lambda: reader.delete_group("g"),
            lambda: reader.delete_group_offsets("g", [T0]),
            lambda: reader.remove_group_members("g"),
        ):
            with pytest.raises(embedlog.ReadOnlyError):
                verb()


@pytest.mark.parametrize("group_id", ["", "x" * 40_000, 5, None, b"g"])
def test_what_is_no_group_id_is_refused_by_every_verb(log: embedlog.Log, group_id: Any) -> None:
    commit(log, "g", {T0: 4})
    for verb in (
        lambda: log.describe_group(group_id),
        lambda: log.group_offsets(group_id),
        lambda: log.reset_group_offsets(group_id, "t", to=1),
        lambda: log.delete_group(group_id),
        lambda: log.delete_group_offsets(group_id, [T0]),
        lambda: log.remove_group_members(group_id),
    ):
        with pytest.raises((embedlog.InvalidGroupIdError, TypeError), match="group id"):
            verb()


# ---- a broker's groups ---------------------------------------------------------------------------


def rows_of(text: str) -> list[tuple[str, ...]]:
    """The lines of Kafka's own tool below its heads."""
    return [
        tuple(line.split()) for line in text.splitlines() if line and not line.startswith("GROUP ")
    ]


def listed(log: embedlog.Log) -> list[tuple[str, ...]]:
    return [
        (
            name,
            each.topic,
            str(each.partition),
            str(each.position),
            str(each.log_end_offset),
            str(each.lag),
            "-",
            "-",
            "-",
        )
        for name in log.groups()
        for each in log.describe_group(name).partitions
    ]


@pytest.mark.parametrize("clean", BOTH_PROTOCOLS)
def test_a_brokers_groups_are_shown_as_its_own_tool_lists_them(golden: Path, clean: str) -> None:
    expected = rows_of((golden / clean / "expected" / "groups.txt").read_text())
    assert len(expected) == {"clean": 5, "clean-4.4.0": 7}[clean]
    with embedlog.open(golden / clean / "log", read_only=True) as log:
        assert listed(log) == expected
        described = {name: log.describe_group(name) for name in log.groups()}
    assert {name: (each.state, each.type) for name, each in described.items()} == {
        "classic-group": ("Empty", "classic"),
        "new-group": ("Empty", "consumer"),
        "transactional-group": ("Empty", "classic"),
    }
    assert re.match("a note", described["new-group"].partitions[0].committed.metadata)


def test_we_go_on_with_a_brokers_groups(golden: Path, golden_copy: Callable[[str], Path]) -> None:
    """Groups of the older protocol are ours to change; of a newer one only the offsets, and only
    while it has no members.
    """
    directory = golden_copy("clean")
    expected = rows_of((golden / "clean" / "expected" / "groups.txt").read_text())
    with embedlog.open(directory) as log:
        assert listed(log) == expected
        assert (
            log.reset_group_offsets("classic-group", to={"shift": 3})[
                TopicPartition("client-zstd", 0)
            ].offset
            == 10
        )
        log.reset_group_offsets("new-group", to="latest")
        log.delete_group("transactional-group")
        with pytest.raises(embedlog.InconsistentGroupProtocolError, match="newer protocol"):
            log.delete_group("new-group")
        with pytest.raises(embedlog.InconsistentGroupProtocolError, match="newer protocol"):
            log.delete_group_offsets("new-group", [TopicPartition("client-zstd", 0)])
    with embedlog.open(directory, read_only=True) as log:
        assert {row[0]: row[3] for row in listed(log)} == {
            "classic-group": "43",
            "new-group": "133",
        }


def test_a_consumer_goes_on_where_a_brokers_group_has_stopped(
    golden_copy: Callable[[str], Path],
) -> None:
    """Partitions 0 and 2 were committed at 7 and 40; of partition 1 nothing was."""
    with embedlog.open(golden_copy("clean")) as log:
        ends = {
            number: log.describe_topic("client-zstd").partitions[number].log_end_offset
            for number in range(3)
        }
        first: dict[int, int] = {}
        with log.consumer(
            "client-zstd", group_id="classic-group", auto_offset_reset="earliest"
        ) as consumer:
            while (
                any(consumer.position(tp) < ends[tp.partition] for tp in consumer.assignment())
                or not first
            ):
                for record in consumer.poll(10, max_records=100):
                    first.setdefault(record.partition, record.offset)
        assert first == {0: 7, 1: 0, 2: 40}
        assert log.describe_group("classic-group").lag == 0
        stranger = log.consumer("client-zstd", group_id="new-group")
        with pytest.raises(embedlog.InconsistentGroupProtocolError, match="newer protocol"):
            stranger.poll(10)


# ---- resetting -----------------------------------------------------------------------------------


def test_a_reset_is_committed_and_told(log: embedlog.Log) -> None:
    commit(log, "g", {T0: OffsetAndMetadata(4, "note", 0), U0: 0})
    assert log.reset_group_offsets("g", "t", to="latest") == {
        T0: OffsetAndMetadata(10),
        T1: OffsetAndMetadata(20),
    }
    assert log.group_offsets("g") == {
        T0: OffsetAndMetadata(10),
        T1: OffsetAndMetadata(20),
        U0: OffsetAndMetadata(0),
    }


@pytest.mark.parametrize(
    ("to", "offsets"),
    [
        ("earliest", (3, 0)),
        ("latest", (10, 20)),
        ("current", (5, 20)),
        (7, (7, 7)),
        (15, (10, 15)),
        (0, (3, 0)),
        ({"shift": -1}, (4, 19)),
        ({"shift": 100}, (10, 20)),
        ({"shift": -100}, (3, 0)),
        ({"time": START_MS + 8000}, (8, 8)),
        ({"time": START_MS + 7001}, (8, 8)),
        ({"time": START_MS}, (3, 0)),
        (datetime.fromtimestamp(START_MS / 1000 + 15, UTC), (10, 15)),
        (timedelta(seconds=1), (10, 20)),
        ("by_duration:P20000D", (3, 0)),
        ({"duration": "PT1H"}, (10, 20)),
        ({T0: 6, T1: OffsetAndMetadata(2)}, (6, 2)),
    ],
)
def test_where_a_reset_leads(log: embedlog.Log, to: Any, offsets: tuple[int, int]) -> None:
    commit(log, "g", {T0: 5, T1: 20})
    log.delete_records({T0: 3})
    plan = {T0: OffsetAndMetadata(offsets[0]), T1: OffsetAndMetadata(offsets[1])}
    assert log.reset_group_offsets("g", to=to, dry_run=True) == plan
    assert log.group_offsets("g") == {T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(20)}
    assert log.reset_group_offsets("g", to=to) == plan
    assert log.group_offsets("g") == plan


def test_what_lies_outside_is_warned_of(
    log: embedlog.Log, caplog: pytest.LogCaptureFixture
) -> None:
    log.reset_group_offsets("g", T0, to=10)
    assert not caplog.records
    log.reset_group_offsets("g", T0, to=11)
    assert "t-0 has no offset 11: the group is reset to 10 instead" in caplog.text


def test_current_stays_what_it_is_even_outside(log: embedlog.Log) -> None:
    commit(log, "g", {T0: 99})
    assert log.reset_group_offsets("g", "t", to="current") == {
        T0: OffsetAndMetadata(99),
        T1: OffsetAndMetadata(20),
    }


@pytest.mark.parametrize(
    ("topics", "tps"),
    [
        ("t", [T0, T1]),
        (T1, [T1]),
        ([T1, "u"], [T1, U0]),
        (["t", T0], [T0, T1]),
        (None, [T0, U0]),
        ([], []),
    ],
)
def test_what_a_reset_is_of(log: embedlog.Log, topics: Any, tps: list[TopicPartition]) -> None:
    commit(log, "g", {T0: 5, U0: 0})
    assert list(log.reset_group_offsets("g", topics, to="earliest")) == tps


def test_a_group_may_begin_with_a_reset(log: embedlog.Log) -> None:
    with pytest.raises(embedlog.GroupNotFoundError, match="give the argument topics"):
        log.reset_group_offsets("new", to="earliest")
    assert log.groups() == []
    log.reset_group_offsets("new", {T0: 3}, to={T0: 3})
    assert log.describe_group("new").partitions == (
        GroupPartition("t", 0, OffsetAndMetadata(3), 10, None),
    )


def test_a_reset_that_cannot_be_whole_changes_nothing(log: embedlog.Log) -> None:
    commit(log, "g", {T0: 5})
    before = record_count(log)
    with pytest.raises(embedlog.NoOffsetForPartitionError, match="t-1"):
        log.reset_group_offsets("g", "t", to={"shift": 1})
    with pytest.raises(embedlog.UnknownTopicOrPartitionError):
        log.reset_group_offsets("g", ["t", "nowhere"], to=1)
    with pytest.raises(embedlog.UnknownTopicOrPartitionError):
        log.reset_group_offsets("g", TopicPartition("t", 2), to=1)
    with pytest.raises(embedlog.ConfigError, match="no match for t-1"):
        log.reset_group_offsets("g", "t", to={T0: 1})
    with pytest.raises(embedlog.ConfigError, match=r"^to"):
        log.reset_group_offsets("g", "t", to="nowhere")
    with pytest.raises(TypeError, match="TopicPartition"):
        log.reset_group_offsets("g", [("t", "0")], to=1)
    assert record_count(log) == before


def test_a_group_with_members_is_not_reset(log: embedlog.Log) -> None:
    joined(log, "g", {"a": [T0]})
    before = record_count(log)
    for dry_run in (True, False):
        with pytest.raises(embedlog.GroupNotEmptyError, match="Stable"):
            log.reset_group_offsets("g", "t", to="earliest", dry_run=dry_run)
    assert record_count(log) == before
    left(log, "g", "a")
    assert log.reset_group_offsets("g", "t", to="earliest") == {
        T0: OffsetAndMetadata(0),
        T1: OffsetAndMetadata(0),
    }


# ---- forgetting ----------------------------------------------------------------------------------


def test_a_deleted_group_is_gone_with_its_offsets(log: embedlog.Log) -> None:
    joined(log, "g", {"a": [T0]})
    left(log, "g", "a")
    commit(log, "g", {T0: 5})
    commit(log, "other", {T0: 6})
    log.delete_group("g")
    assert log.groups() == ["other"]
    assert log.group_offsets("g") == {}
    with pytest.raises(embedlog.GroupNotFoundError, match="GROUP_ID_NOT_FOUND"):
        log.delete_group("g")
    with embedlog.open(log.path, read_only=True) as reader:
        assert reader.groups() == ["other"]


def test_a_group_with_members_is_not_deleted(log: embedlog.Log) -> None:
    joined(log, "g", {"a": [T0]})
    before = record_count(log)
    with pytest.raises(embedlog.GroupNotEmptyError, match="NON_EMPTY_GROUP"):
        log.delete_group("g")
    assert record_count(log) == before


MEMBER = """
import os, sys, embedlog
from tests.support.joining import joined
log = embedlog.open(sys.argv[1])
joined(log, "g", {"a": [embedlog.TopicPartition("t", 0)]})
print("joined", flush=True)
sys.stdin.read()
"""


STATIC_MEMBER = """
import sys, embedlog
log = embedlog.open(sys.argv[1])
with log.consumer("t", group_id="g", group_instance_id="web-1", session_timeout_ms=600_000) as consumer:
    while not consumer.assignment():
        consumer.poll(timeout=0.1)
    print("joined", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("verb", ["delete_group", "reset_group_offsets", "delete_group_offsets"])
def test_who_was_killed_is_in_nobodys_way(log: embedlog.Log, verb: str) -> None:
    commit(log, "g", {T0: 5})
    command = [sys.executable, "-c", MEMBER, str(log.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"joined\n"
        act = {
            "delete_group": lambda: log.delete_group("g"),
            "reset_group_offsets": lambda: log.reset_group_offsets("g", to="earliest"),
            "delete_group_offsets": lambda: log.delete_group_offsets("g", [T0]),
        }[verb]
        with pytest.raises((embedlog.GroupNotEmptyError, embedlog.GroupSubscribedError)):
            act()
        process.kill()
        process.wait(10)
    assert [each.member_id for each in log.describe_group("g").members] == ["a"], (
        "a description evicts no member"
    )
    act()
    assert log.group_offsets("g") == (
        {T0: OffsetAndMetadata(0)} if verb == "reset_group_offsets" else {}
    )


def leave_killed_member(log: embedlog.Log) -> None:
    """Make a group g with the member a, whose process is killed."""
    command = [sys.executable, "-c", MEMBER, str(log.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"joined\n"
        process.kill()
        process.wait(10)


def add_member(log: embedlog.Log, name: str) -> None:
    """A member of g that lives as long as the log is open; the group waits for the others."""
    subscription = encode_subscription(MemberSubscription(("t",)))
    slot = log._engine.transactions.liveness.begin()
    member = Member(
        name, None, name, "/here", 60_000, 60_000, (("range", subscription),), process_slot=slot
    )
    log._engine.groups.decide(
        "g", lambda old: machine.join(old, member, machine.Limits(), system.wall_ms())
    )


def test_a_dry_run_evicts_no_member(log: embedlog.Log) -> None:
    commit(log, "g", {T0: 5})
    leave_killed_member(log)
    before = record_count(log)
    plan = log.reset_group_offsets("g", to="earliest", dry_run=True)
    assert plan == {T0: OffsetAndMetadata(0)}
    assert record_count(log) == before
    assert [member.member_id for member in log.describe_group("g").members] == ["a"]


@pytest.mark.parametrize("verb", ["delete_group", "reset_group_offsets", "delete_group_offsets"])
def test_a_change_that_is_refused_evicts_no_member(log: embedlog.Log, verb: str) -> None:
    """The group has a member that was killed, and one that lives."""
    commit(log, "g", {T0: 5})
    acts = {
        "delete_group": lambda: log.delete_group("g"),
        "reset_group_offsets": lambda: log.reset_group_offsets("g", to="earliest"),
        "delete_group_offsets": lambda: log.delete_group_offsets("g", [T0]),
    }
    leave_killed_member(log)
    add_member(log, "b")
    before = record_count(log)
    with pytest.raises((embedlog.GroupNotEmptyError, embedlog.GroupSubscribedError)):
        acts[verb]()
    assert record_count(log) == before
    group = log._engine.groups.read_group("g")
    assert group is not None
    assert set(group.members) == {"a", "b"}


def test_offsets_of_a_topic_that_members_read_are_kept(log: embedlog.Log) -> None:
    commit(log, "g", {T0: 1, T1: 2, U0: 0})
    joined(log, "g", {"a": [T0, T1]}, "t")
    with pytest.raises(embedlog.GroupSubscribedError, match="GROUP_SUBSCRIBED_TO_TOPIC"):
        log.delete_group_offsets("g", [U0, T0])
    assert list(log.group_offsets("g")) == [T0, T1, U0]
    log.delete_group_offsets("g", [U0, TopicPartition("u", 7)])
    assert list(log.group_offsets("g")) == [T0, T1]
    left(log, "g", "a")
    log.delete_group_offsets("g", [T0])
    assert list(log.group_offsets("g")) == [T1]


def test_offsets_of_an_unknown_group_cannot_be_deleted(log: embedlog.Log) -> None:
    with pytest.raises(embedlog.GroupNotFoundError):
        log.delete_group_offsets("g", [T0])
    with pytest.raises(TypeError, match="TopicPartition"):
        log.delete_group_offsets("g", ["t"])  # type: ignore[list-item]


def test_offsets_go_with_their_topic(log: embedlog.Log) -> None:
    commit(log, "g", {T0: 1, U0: 0})
    log.delete_topic("t")
    assert log.group_offsets("g") == {U0: OffsetAndMetadata(0)}


def test_a_static_member_that_will_not_come_back_gives_its_place_away(log: embedlog.Log) -> None:
    settings = {"group_id": "g", "session_timeout_ms": 600_000}
    command = [sys.executable, "-c", STATIC_MEMBER, str(log.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"joined\n"
        process.kill()
        process.wait(10)
    with log.consumer("t", **settings) as consumer:
        with pytest.raises(embedlog.GroupNotEmptyError):
            log.delete_group("g")
        for wrong in (["web-1", "web-2"], ["web-2"]):
            with pytest.raises(embedlog.UnknownMemberError, match="UNKNOWN_MEMBER_ID"):
                log.remove_group_members("g", wrong)
        for no_names in ("web-1", [5], 7):
            with pytest.raises(TypeError, match="instance id"):
                log.remove_group_members("g", no_names)  # type: ignore[arg-type]
        log.remove_group_members("g", ["web-1"])
        assert log.describe_group("g").members == ()
        until(
            lambda: consumer.poll(timeout=0.01) == [] and len(consumer.assignment()) > 0,
            "it to be alone",
        )
        log.remove_group_members("g")
        assert log.describe_group("g").state == "Empty"
        until(
            lambda: consumer.poll(timeout=0.01) == [] and len(log.describe_group("g").members) == 1,
            "it to join again",
        )
    with pytest.raises(embedlog.GroupNotFoundError):
        log.remove_group_members("unknown")


def test_a_closed_log_tells_nothing(log: embedlog.Log) -> None:
    log.close()
    for verb in (log.groups, lambda: log.describe_group("g"), lambda: log.group_offsets("g")):
        with pytest.raises(embedlog.ClosedError):
            verb()


def test_a_group_that_is_kept_takes_no_members_and_is_seen(log: embedlog.Log) -> None:
    log.keep_group("import")
    log.keep_group("import")
    assert log.describe_group("import").protocol_type == "embedlog"
    with (
        log.consumer(group_id="import") as consumer,
        pytest.raises(embedlog.InconsistentGroupProtocolError),
    ):
        consumer.subscribe(log.topics())
        consumer.poll(5)
    log.delete_group("import")
    assert log.groups() == []
