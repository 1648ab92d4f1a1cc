"""Groups in Kafka's newer protocol, out of records as brokers write them."""

from __future__ import annotations

import struct
from uuid import UUID

import pytest

from embedlog.coordination.groups.group_view import GroupEntries
from embedlog.coordination.groups.kip848_groups import CURRENT, GROUP, KINDS, MEMBER, TARGET, TARGET_OF, TOPICS
from embedlog.errors import CorruptRecordError, UnsupportedFormatError

TOPIC = UUID(int=7)


def text(word: str) -> bytes:
    return bytes((len(word) + 1,)) + word.encode()


def parts(*numbers: int) -> bytes:
    return b"\2" + TOPIC.bytes + bytes((len(numbers) + 1,)) + struct.pack(f">{len(numbers)}i", *numbers) + b"\0"


def key(kind: int, member: str = "") -> bytes:
    name = b"\0\1g" + (struct.pack(">h", len(member)) + member.encode() if member else b"")
    return struct.pack(">h", kind) + name


def member_value(tags: bytes = b"\0") -> bytes:
    head = b"\0\0" + b"\0" + text("rack") + text("client") + text("/host")
    return head + b"\3" + text("t") + text("u") + text("t.*") + struct.pack(">i", 300_000) + text("uniform") + tags


def epoch(number: int) -> bytes:
    return b"\0\0" + struct.pack(">i", number) + b"\0"


def current(number: int, state: int, assigned: bytes = b"\1", revoking: bytes = b"\1") -> bytes:
    return b"\0\0" + struct.pack(">iib", number, number - 1, state) + assigned + revoking + b"\0"


TOPICS_VALUE = (
    b"\0\0\2" + TOPIC.bytes + text("t") + struct.pack(">i", 2) + b"\2" + struct.pack(">i", 0) + b"\2" + text("r1") + b"\0\0\0"
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
    assert (group.epoch, group.assignment_epoch, group.state, group.topics) == (3, 3, "Stable", {TOPIC: "t"})
    member = group.members["m1"]
    assert (member.instance_id, member.rack, member.client_id, member.client_host) == (None, "rack", "client", "/host")
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
def test_its_state_follows_from_the_epochs(changed: dict[tuple[int, str], bytes], state: str) -> None:
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
    assert {kind for kind, _ in RECORDS} == KINDS
