"""Keys and values of `__consumer_offsets`: Kafka's bytes, what a broker wrote, what we add, and what is broken."""

from __future__ import annotations

from embedlog.group import Group, Member, State
from embedlog.group_records import (
    Committed,
    decode_group,
    decode_names,
    decode_offset,
    decode_offset_key,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
)
from embedlog.liveness import Life
from embedlog.values import OffsetAndMetadata, TopicPartition

TIME_MS = 1_700_000_000_000
V3 = (
    "0003 0008 636f6e73756d6572 00000008 0005 72616e6765 0002 6d31 0000018bcfe56800 00000001 0002 6d31 ffff 0001 63 0002 2f68"
    " 0000ea60 0000afc8 00000002 0102 00000001 03"
)
V4 = (
    "0004 09 636f6e73756d6572 00000008 06 72616e6765 03 6d31 0000018bcfe56800 02 03 6d31 00 02 63 03 2f68 0000ea60 0000afc8"
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
        "m1": Member("m1", "i", "c", "/h", 1, 2, (("range", b"\1\2"), ("sticky", b"\3")), b"x", True, Life(3, 2**64 - 1)),
        "m2": Member("m2", None, "", "", 1, 2, (("sticky", b"\3" * 300),), b"", False, None, ((7, b"?"), (20_000, b""))),
    },
    True,
    77,
    ((1, b"one"),),
)


def test_keys_are_kafkas() -> None:
    key = bytes.fromhex("0001 0002 6731 0001 74 00000003")
    assert encode_offset_key("g1", "t", 3) == key
    assert decode_offset_key(key) == ("g1", TopicPartition("t", 3))
    assert encode_group_key("g1") == bytes.fromhex("0002 0002 6731")
    assert decode_names(encode_group_key("żółć")) == ("żółć", "")


def test_groups_are_kafkas_byte_for_byte() -> None:
    assert decode_group(bytes.fromhex(V3)) == GROUP
    assert decode_group(bytes.fromhex(V4)) == GROUP
    assert encode_group(GROUP).startswith(bytes.fromhex(V4)[:-2])


def test_our_own_fields_come_back() -> None:
    assert decode_group(encode_group(OURS)) == OURS
    assert decode_group(encode_group(GROUP)) == GROUP


def test_offsets_are_kafkas_byte_for_byte() -> None:
    v3 = bytes.fromhex("0003 000000000000007b 00000005 0002 6d64 0000018bcfe56800")
    assert encode_offset(OffsetAndMetadata(123, "md", 5), TIME_MS) == v3
    assert decode_offset(v3) == Committed(123, 5, "md", TIME_MS)
