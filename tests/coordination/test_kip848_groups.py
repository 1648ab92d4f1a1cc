"""Groups in Kafka's newer protocol, out of records as brokers write them."""

from __future__ import annotations

import struct
from uuid import UUID

import pytest

from embedlog.coordination.groups.group_view import GroupEntries
from embedlog.coordination.groups.kip848_groups import (
    CONSUMER_KINDS,
    CURRENT,
    GROUP,
    MEMBER,
    SHARE_CURRENT,
    SHARE_GROUP,
    SHARE_KINDS,
    SHARE_MEMBER,
    SHARE_TARGET,
    SHARE_TARGET_OF,
    SHARE_TOPICS,
    STREAMS_CURRENT,
    STREAMS_GROUP,
    STREAMS_KINDS,
    STREAMS_MEMBER,
    STREAMS_TARGET,
    STREAMS_TARGET_OF,
    STREAMS_TOPOLOGY,
    TARGET,
    TARGET_OF,
    TOPICS,
)
from embedlog.errors import CorruptRecordError, UnsupportedFormatError

TOPIC = UUID(int=7)


def text(word: str) -> bytes:
    return bytes((len(word) + 1,)) + word.encode()


def parts(*numbers: int) -> bytes:
    return (
        b"\2"
        + TOPIC.bytes
        + bytes((len(numbers) + 1,))
        + struct.pack(f">{len(numbers)}i", *numbers)
        + b"\0"
    )


def key(kind: int, member: str = "") -> bytes:
    name = b"\0\1g" + (struct.pack(">h", len(member)) + member.encode() if member else b"")
    return struct.pack(">h", kind) + name


def member_value(tags: bytes = b"\0") -> bytes:
    head = b"\0\0" + b"\0" + text("rack") + text("client") + text("/host")
    return (
        head
        + b"\3"
        + text("t")
        + text("u")
        + text("t.*")
        + struct.pack(">i", 300_000)
        + text("uniform")
        + tags
    )


def epoch(number: int) -> bytes:
    return b"\0\0" + struct.pack(">i", number) + b"\0"


def current(number: int, state: int, assigned: bytes = b"\1", revoking: bytes = b"\1") -> bytes:
    return b"\0\0" + struct.pack(">iib", number, number - 1, state) + assigned + revoking + b"\0"


TOPICS_VALUE = (
    b"\0\0\2"
    + TOPIC.bytes
    + text("t")
    + struct.pack(">i", 2)
    + b"\2"
    + struct.pack(">i", 0)
    + b"\2"
    + text("r1")
    + b"\0\0\0"
)


def view(records: dict[tuple[int, str], bytes]) -> GroupEntries:
    found = GroupEntries()
    for (kind, member), value in records.items():
        found.apply(key(kind, member), value)
    return found


RECORDS = {
    (GROUP, ""): epoch(3),
    (TOPICS, ""): TOPICS_VALUE,
    (TARGET, ""): epoch(3),
    (MEMBER, "m1"): member_value(),
    (TARGET_OF, "m1"): b"\0\0" + parts(0, 1) + b"\0",
    (CURRENT, "m1"): current(3, 0, parts(0, 1)),
}


def test_a_group_is_put_together_from_its_records() -> None:
    group = view(RECORDS).modern("g")
    assert group is not None
    assert (group.epoch, group.assignment_epoch, group.state, group.topics) == (
        3,
        3,
        "Stable",
        {TOPIC: "t"},
    )
    member = group.members["m1"]
    assert (member.instance_id, member.rack, member.client_id, member.client_host) == (
        None,
        "rack",
        "client",
        "/host",
    )
    assert (member.topics, member.pattern, member.assignor) == (("t", "u"), "t.*", "uniform")
    assert (member.rebalance_timeout_ms, member.classic) == (300_000, False)
    assert (member.epoch, member.previous_epoch, member.state) == (3, 2, "Stable")
    assert member.assigned == member.target == {TOPIC: (0, 1)}
    assert member.revoking == {}


def test_a_member_of_the_older_protocol_in_it_is_known_as_such() -> None:
    for tags, classic in ((b"\1\0\1\0", False), (b"\1\0\2\1x", True), (b"\1\5\1\1", False)):
        group = view(RECORDS | {(MEMBER, "m1"): member_value(tags)}).modern("g")
        assert group is not None
        assert group.members["m1"].classic is classic


STATES = [
    ({(GROUP, ""): epoch(4)}, "Assigning"),
    ({(GROUP, ""): epoch(4), (TARGET, ""): epoch(4)}, "Reconciling"),
    ({(CURRENT, "m1"): current(3, 1, parts(0), parts(1))}, "Reconciling"),
    ({(CURRENT, "m1"): current(3, 2)}, "Reconciling"),
]


@pytest.mark.parametrize(("changed", "state"), STATES)
def test_its_state_follows_from_the_epochs(
    changed: dict[tuple[int, str], bytes], state: str
) -> None:
    group = view(RECORDS | changed).modern("g")
    assert group is not None
    assert group.state == state


def test_members_that_left_are_gone() -> None:
    found = view(RECORDS)
    for kind in (CURRENT, TARGET_OF, MEMBER):
        found.apply(key(kind, "m1"), None)
    group = found.modern("g")
    assert group is not None
    assert (group.state, group.members) == ("Empty", {})
    for kind in (GROUP, TOPICS, TARGET):
        found.apply(key(kind), None)
    assert (found.modern("g"), found.groups()) == (None, [])
    found.apply(key(GROUP), None)
    assert found.groups() == []


def test_what_is_missing_has_its_default() -> None:
    group = view({(MEMBER, "m1"): member_value()}).modern("g")
    assert group is not None
    assert (group.epoch, group.assignment_epoch, group.topics) == (0, 0, {})
    assert group.members["m1"].epoch == 0


@pytest.mark.parametrize("which", RECORDS)
def test_a_record_that_is_cut_short_is_corrupt(which: tuple[int, str]) -> None:
    for size in range(2, len(RECORDS[which]) - 1):
        with pytest.raises(CorruptRecordError):
            view(RECORDS | {which: RECORDS[which][:size]}).modern("g")


@pytest.mark.parametrize("which", RECORDS)
def test_a_newer_record_is_refused_as_such(which: tuple[int, str]) -> None:
    with pytest.raises(UnsupportedFormatError):
        view(RECORDS | {which: b"\0\1" + RECORDS[which][2:]}).modern("g")


def test_every_kind_is_covered() -> None:
    assert {kind for kind, _ in RECORDS} == CONSUMER_KINDS
    assert {kind for kind, _ in SHARE_RECORDS} == SHARE_KINDS
    assert {kind for kind, _ in STREAMS_RECORDS} == STREAMS_KINDS


# ---- share groups and streams groups -------------------------------------------------------------

SHARE_RECORDS = {
    (SHARE_GROUP, ""): b"\0\0" + struct.pack(">iq", 3, 77) + b"\0",
    (SHARE_TARGET, ""): epoch(3),
    (SHARE_TOPICS, ""): b"\0\0\1"
    + b"\2"
    + TOPIC.bytes
    + text("t")
    + b"\2"
    + struct.pack(">i", 0)
    + b"\0"
    + b"\1\0",
    (SHARE_MEMBER, "m1"): b"\0\0\0" + text("client") + text("/host") + b"\2" + text("t") + b"\0",
    (SHARE_TARGET_OF, "m1"): b"\0\0" + parts(0, 1) + b"\0",
    (SHARE_CURRENT, "m1"): b"\0\0" + struct.pack(">iib", 3, 2, 0) + parts(0, 1) + b"\0",
}
STREAMS_RECORDS = {
    (STREAMS_GROUP, ""): b"\0\0" + struct.pack(">iq", 5, 77) + b"\0",
    (STREAMS_TARGET, ""): epoch(5),
    (STREAMS_TOPOLOGY, ""): b"\0\0" + struct.pack(">i", 1) + b"\1\0",
    (STREAMS_MEMBER, "m1"): b"\0\0\0\0"
    + text("client")
    + text("/host")
    + struct.pack(">ii", 300_000, 1)
    + text("p")
    + b"\xff\1\0",
    (STREAMS_TARGET_OF, "m1"): b"\0\0\1\1\1\0",
    (STREAMS_CURRENT, "m1"): b"\0\0" + struct.pack(">iib", 5, 4, 0) + b"\1\1\1\1\1\1\0",
}


def test_a_share_group_is_put_together_from_its_records() -> None:
    group = view(SHARE_RECORDS).modern("g")
    assert group is not None
    assert (group.type, group.epoch, group.assignment_epoch, group.state) == (
        "share",
        3,
        3,
        "Stable",
    )
    assert group.topics == {TOPIC: "t"}
    member = group.members["m1"]
    assert (member.client_id, member.client_host, member.topics) == ("client", "/host", ("t",))
    assert (member.epoch, member.previous_epoch, member.state) == (3, 2, "Stable")
    assert member.assigned == member.target == {TOPIC: (0, 1)}


def test_a_streams_group_is_put_together_from_its_records() -> None:
    group = view(STREAMS_RECORDS).modern("g")
    assert group is not None
    assert (group.type, group.epoch, group.assignment_epoch, group.state) == (
        "streams",
        5,
        5,
        "Stable",
    )
    member = group.members["m1"]
    assert (member.client_id, member.client_host, member.rebalance_timeout_ms) == (
        "client",
        "/host",
        300_000,
    )
    assert (member.epoch, member.previous_epoch, member.state) == (5, 4, "Stable")


def test_a_group_without_members_is_empty() -> None:
    for records, kind in ((SHARE_RECORDS, SHARE_GROUP), (STREAMS_RECORDS, STREAMS_GROUP)):
        group = view({(kind, ""): records[kind, ""]}).modern("g")
        assert group is not None
        assert (group.state, group.members) == ("Empty", {})


READ = [
    *(
        (SHARE_RECORDS, kind)
        for kind in (
            SHARE_GROUP,
            SHARE_TARGET,
            SHARE_TOPICS,
            SHARE_MEMBER,
            SHARE_TARGET_OF,
            SHARE_CURRENT,
        )
    ),
    *(
        (STREAMS_RECORDS, kind)
        for kind in (STREAMS_GROUP, STREAMS_TARGET, STREAMS_MEMBER, STREAMS_CURRENT)
    ),
]


@pytest.mark.parametrize(("records", "kind"), READ)
def test_a_record_of_theirs_that_is_newer_is_refused_and_never_misread(
    records: dict[tuple[int, str], bytes], kind: int
) -> None:
    which = next(each for each in records if each[0] == kind)
    with pytest.raises(UnsupportedFormatError):
        view(records | {which: b"\0\1" + records[which][2:]}).modern("g")
    for size in range(2, 6):
        with pytest.raises(CorruptRecordError):
            view(records | {which: records[which][:size]}).modern("g")
