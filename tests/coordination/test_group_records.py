"""Keys and values of `__consumer_offsets`: Kafka's bytes, a broker's records, the library's
additions, and damage.
"""

from __future__ import annotations

import random
import string
from dataclasses import replace
from uuid import UUID

import pytest

from embedlog.coordination.groups.group_records import (
    JOINED_TAG,
    SLOT_TAG,
    STATE_TAG,
    Committed,
    decode_group,
    decode_names,
    decode_offset,
    decode_offset_key,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
    key_kind,
)
from embedlog.errors import CorruptRecordError, UnsupportedFormatError
from embedlog.format.process_slot import ProcessSlot
from embedlog.group import Group, Member, State
from embedlog.types import OffsetAndMetadata, TopicPartition

TIME_MS = 1_700_000_000_000
V3 = (
    "0003 0008 636f6e73756d6572 00000008 0005 72616e6765 0002 6d31 0000018bcfe56800 00000001 0002 "
    "6d31 ffff 0001 63 0002 2f68"
    " 0000ea60 0000afc8 00000002 0102 00000001 03"
)
V4 = (
    "0004 09 636f6e73756d6572 00000008 06 72616e6765 03 6d31 0000018bcfe56800 02 03 6d31 00 02 63 "
    "03 2f68 0000ea60 0000afc8"
    " 03 0102 02 03 00 00"
)
ONE = Member("m1", None, "c", "/h", 60_000, 45_000, (("range", b"\1\2"),), b"\3")
GROUP = Group("consumer", 8, "range", "m1", State.STABLE, TIME_MS, {"m1": ONE})
OURS = Group(
    "consumer",
    9,
    "sticky",
    "m1",
    State.PREPARING_REBALANCE,
    TIME_MS,
    {
        "m1": Member(
            "m1",
            "i",
            "c",
            "/h",
            1,
            2,
            (("range", b"\1\2"), ("sticky", b"\3")),
            b"x",
            True,
            ProcessSlot(3, 2**64 - 1),
        ),
        "m2": Member(
            "m2",
            None,
            "",
            "",
            1,
            2,
            (("sticky", b"\3" * 300),),
            b"",
            False,
            None,
            ((7, b"?"), (20_000, b"")),
        ),
    },
    True,
    77,
    ((1, b"one"),),
)


# ---- keys ----------------------------------------------------------------------------------------


def test_keys_are_kafkas() -> None:
    key = bytes.fromhex("0001 0002 6731 0001 74 00000003")
    assert encode_offset_key("g1", "t", 3) == key
    assert (
        decode_offset_key(key)
        == decode_offset_key(b"\0\0" + key[2:])
        == ("g1", TopicPartition("t", 3))
    )
    assert encode_group_key("g1") == bytes.fromhex("0002 0002 6731")
    assert decode_names(encode_group_key("żółć")) == ("żółć", "")
    assert decode_names(bytes.fromhex("0005 0002 6731 0001 6d")) == ("g1", "m")
    assert [key_kind(key), key_kind(encode_group_key("")), key_kind(b"\x01\0")] == [1, 2, 256]


@pytest.mark.parametrize("broken", ["", "00"])
def test_a_key_without_a_kind_is_corrupt(broken: str) -> None:
    with pytest.raises(CorruptRecordError):
        key_kind(bytes.fromhex(broken))


BROKEN_OFFSET_KEYS = [
    "0001",
    "0001 0002 67",
    "0001 0001 67 0001 74",
    "0001 0001 67 0001 74 000000",
    "0001 0001 67 0001 74 0000000000",
    "0001 0001 ff 0001 74 00000000",
    "0001 ffff 0001 74 00000000",
]


@pytest.mark.parametrize("broken", BROKEN_OFFSET_KEYS)
def test_an_offsets_key_that_does_not_fit_its_lengths_is_corrupt(broken: str) -> None:
    with pytest.raises(CorruptRecordError, match="key in __consumer_offsets"):
        decode_offset_key(bytes.fromhex(broken))


@pytest.mark.parametrize(
    "broken", ["0002", "0002 0002 67", "0002 ffff", "0005 0001 67 0001 6d 00", "0002 0001 ff"]
)
def test_a_groups_key_that_does_not_fit_its_lengths_is_corrupt(broken: str) -> None:
    with pytest.raises(CorruptRecordError, match="key in __consumer_offsets"):
        decode_names(bytes.fromhex(broken))


# ---- offsets -------------------------------------------------------------------------------------

OFFSETS = {
    "0000 000000000000007b 0002 6d64 0000018bcfe56800": Committed(123, -1, "md", TIME_MS),
    "0001 000000000000007b 0002 6d64 0000018bcfe56800 0000018bcfe56be8": Committed(
        123, -1, "md", TIME_MS, TIME_MS + 1000
    ),
    "0002 000000000000007b 0002 6d64 0000018bcfe56800": Committed(123, -1, "md", TIME_MS),
    "0003 000000000000007b 00000005 0002 6d64 0000018bcfe56800": Committed(123, 5, "md", TIME_MS),
    "0004 000000000000007b 00000005 03 6d64 0000018bcfe56800 00": Committed(123, 5, "md", TIME_MS),
    f"0004 000000000000007b 00000005 03 6d64 0000018bcfe56800 02 00 10 {'ab' * 16} 07 01 ff": Committed(
        123, 5, "md", TIME_MS, topic_uuid=UUID("ab" * 16)
    ),
}


@pytest.mark.parametrize("data", OFFSETS)
def test_offsets_of_every_version_are_kafkas(data: str) -> None:
    assert decode_offset(bytes.fromhex(data)) == OFFSETS[data]


def test_offsets_are_written_as_brokers_write_them() -> None:
    v1, v3 = (bytes.fromhex(list(OFFSETS)[version]) for version in (1, 3))
    assert encode_offset(OffsetAndMetadata(123, "md", 5), TIME_MS) == v3
    assert encode_offset(OffsetAndMetadata(123, "md", 5), TIME_MS, TIME_MS + 1000) == v1
    far = OffsetAndMetadata(2**63 - 1, "ß" * 2048, 2**31 - 1)
    assert decode_offset(encode_offset(far, 0)) == Committed(2**63 - 1, 2**31 - 1, "ß" * 2048, 0)


@pytest.mark.parametrize("data", OFFSETS)
def test_an_offset_that_is_cut_short_is_corrupt(data: str) -> None:
    whole = bytes.fromhex(data)
    for size in range(len(whole)):
        with pytest.raises(CorruptRecordError):
            decode_offset(whole[:size])


def test_a_commit_without_a_note_is_not_without_the_field_for_it() -> None:
    null = bytes.fromhex("0003 000000000000007b 00000005 ffff 0000018bcfe56800 00000000")
    with pytest.raises(CorruptRecordError):
        decode_offset(null)


@pytest.mark.parametrize("version", ["0005", "ffff", "7fff"])
def test_a_newer_value_is_refused_as_such(version: str) -> None:
    with pytest.raises(UnsupportedFormatError, match="offset"):
        decode_offset(bytes.fromhex(version) + bytes(30))
    with pytest.raises(UnsupportedFormatError, match="group"):
        decode_group(bytes.fromhex(version) + bytes(30))


# ---- groups --------------------------------------------------------------------------------------

EMPTY = "0003 0008 636f6e73756d6572 00000008 ffff ffff 0000018bcfe56800 00000000"


def test_groups_are_kafkas_byte_for_byte() -> None:
    assert decode_group(bytes.fromhex(V3)) == GROUP
    assert decode_group(bytes.fromhex(V4)) == GROUP
    assert decode_group(bytes.fromhex(EMPTY)) == Group("consumer", 8, changed_ms=TIME_MS)


def test_older_groups_lack_what_came_later() -> None:
    v3 = bytes.fromhex(V3)
    v2 = b"\0\2" + v3[2:].replace(b"m1\xff\xff", b"m1")
    assert decode_group(v2) == GROUP
    v1 = b"\0\1" + v2[2:].replace(bytes.fromhex("0000018bcfe56800"), b"")
    assert decode_group(v1) == replace(GROUP, changed_ms=-1)
    v0 = b"\0\0" + v1[2:].replace(bytes.fromhex("0000ea60"), b"")
    slow = replace(ONE, rebalance_timeout_ms=45_000)
    assert decode_group(v0) == replace(GROUP, changed_ms=-1, members={"m1": slow}), (
        "the session timeout stands for both"
    )


def test_kafka_reads_ours_as_it_reads_its_own() -> None:
    """A reader that knows no tag of this library finds the fields of version 4, and tagged fields
    to skip.
    """
    ours = encode_group(GROUP)
    theirs = bytes.fromhex(V4)
    assert ours.startswith(theirs[:-2]), "everything before the member's tagged fields"
    assert [tag for tag, _ in strangers_view(ours)] == [JOINED_TAG, STATE_TAG]
    preparing = replace(GROUP, protocol="range", state=State.PREPARING_REBALANCE)
    assert encode_group(preparing).startswith(theirs[:-2])


def strangers_view(value: bytes) -> list[tuple[int, bytes]]:
    """The tagged fields of a value with one member, read without knowing any."""
    head = len(bytes.fromhex(V4)) - 2
    found: list[tuple[int, bytes]] = []
    at = head
    while at < len(value):
        count = value[at]
        at = at + 1
        for _ in range(count):
            tag = value[at] & 0x7F | value[at + 1] << 7
            size = value[at + 2]
            found.append((tag, value[at + 3 : at + 3 + size]))
            at += 3 + size
    return found


def test_our_own_fields_come_back() -> None:
    assert decode_group(encode_group(OURS)) == OURS
    assert decode_group(encode_group(GROUP)) == GROUP
    nothing = Group()
    assert decode_group(encode_group(nothing)) == nothing
    speechless = replace(GROUP, protocol=None)
    assert decode_group(encode_group(speechless)) == speechless


def test_equal_subscriptions_are_written_once() -> None:
    said = bytes(1000)
    member = replace(ONE, protocols=(("range", said), ("sticky", said)))
    value = encode_group(replace(GROUP, members={"m1": member}))
    assert len(value) < 1200
    assert decode_group(value).members["m1"] == member


def test_fields_of_a_newer_version_are_kept() -> None:
    resized = replace(GROUP, others=((STATE_TAG, b"a longer state than ours"),))
    back = decode_group(encode_group(replace(GROUP, others=((0, b"zero"), (20_000, bytes(300))))))
    assert back.others == ((0, b"zero"), (20_000, bytes(300)))
    process_slot = replace(ONE, others=((SLOT_TAG, b"a longer life than ours"),))
    value = encode_group(replace(GROUP, members={"m1": process_slot}))
    assert decode_group(value).members["m1"] == process_slot
    assert decode_group(encode_group(resized)).others == resized.others


@pytest.mark.parametrize("data", [V3, V4, encode_group(OURS).hex(), EMPTY])
def test_a_group_that_is_cut_short_is_corrupt(data: str) -> None:
    whole = bytes.fromhex(data)
    for size in range(len(whole)):
        with pytest.raises(CorruptRecordError):
            decode_group(whole[:size])


@pytest.mark.parametrize("state", [4, 5, -1])
def test_a_state_that_is_never_on_disk_is_corrupt(state: int) -> None:
    whole = bytearray(encode_group(GROUP))
    whole[-6] = state & 0xFF
    with pytest.raises(CorruptRecordError, match="group"):
        decode_group(bytes(whole))


def test_damage_anywhere_is_one_of_two_errors_or_another_group() -> None:
    value = encode_group(OURS)
    for at in range(len(value)):
        for flipped in (0x01, 0x80, 0xFF):
            damaged = bytearray(value)
            damaged[at] ^= flipped
            try:
                decode_group(bytes(damaged))
            except (CorruptRecordError, UnsupportedFormatError):
                continue


def test_random_groups_come_back(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(200):
        group = random_group(chance)
        assert decode_group(encode_group(group)) == group


def random_group(chance: random.Random) -> Group:
    def text(longest: int = 200) -> str:
        return "".join(
            chance.choice(string.ascii_letters + "żß€😀")
            for _ in range(chance.choice((0, 1, 20, longest)))
        )

    def data() -> bytes:
        return chance.randbytes(chance.choice((0, 1, 126, 127, 128, 20_000)))

    def member() -> Member:
        names = chance.sample(("range", "roundrobin", "sticky", "x" * 300), chance.randint(1, 4))
        protocols = tuple((name, data()) for name in names)
        process_slot = (
            ProcessSlot(chance.getrandbits(16), chance.getrandbits(64))
            if chance.random() < 0.8
            else None
        )
        instance = text() or "i" if chance.random() < 0.3 else None
        times = chance.randrange(2**31), chance.randrange(2**31)
        return Member(
            text(),
            instance,
            text(),
            text(),
            *times,
            protocols,
            data(),
            chance.random() < 0.5,
            process_slot,
            tags(),
        )

    def tags() -> tuple[tuple[int, bytes], ...]:
        unknown = chance.sample((0, 3, 9_999, JOINED_TAG + 1, 2**31), chance.choice((0, 0, 2)))
        return tuple(sorted((tag, data()) for tag in unknown))

    members = {each.member_id: each for each in (member() for _ in range(chance.choice((0, 1, 8))))}
    state = (
        chance.choice([State.PREPARING_REBALANCE, State.COMPLETING_REBALANCE, State.STABLE])
        if members
        else State.EMPTY
    )
    protocol = chance.choice(next(iter(members.values())).protocols)[0] if members else None
    leader = chance.choice(list(members)) if members else None
    moment = chance.randrange(-1, 2**62)
    delayed = chance.random() < 0.2
    round_ = chance.getrandbits(32)
    return Group(
        text(),
        chance.randrange(2**31),
        protocol,
        leader,
        state,
        moment,
        members,
        delayed,
        round_,
        tags(),
    )
