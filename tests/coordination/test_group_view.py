"""The view of a partition of `__consumer_offsets`: groups, offsets, and records that transactions
hold back.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import embedlog
from embedlog.coordination.groups.group_records import (
    Committed,
    decode_group,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
)
from embedlog.coordination.groups.group_view import GroupEntries
from embedlog.errors import CorruptRecordError
from embedlog.format.record_batch import decode as decode_batches
from embedlog.group import Group, State
from embedlog.types import OffsetAndMetadata, TopicPartition
from tests.kafka import BOTH_PROTOCOLS
from tests.support.group_members import A, B, emptied, stable

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


def offset(number: int, note: str = "") -> bytes:
    return encode_offset(OffsetAndMetadata(number, note), 1000)


def key(partition: int = 0, group: str = "g") -> bytes:
    return encode_offset_key(group, "t", partition)


def numbers(view: GroupEntries, group: str = "g") -> dict[int, int]:
    return {tp.partition: committed.offset for tp, committed in view.offsets(group).items()}


# ---- groups and offsets ----------------------------------------------------------------------------


def test_the_newest_record_counts() -> None:
    view = GroupEntries()
    for group in (stable(A), stable(A, B)):
        view.apply(encode_group_key("g"), encode_group(group))
        assert view.group("g") == group
        assert view.group("g") is view.group("g"), "decoded once"
    view.apply(encode_group_key("g"), None)
    assert view.group("g") is None
    view.apply(encode_group_key("g"), None)
    assert view.groups() == []


def test_what_is_known_already_is_not_decoded() -> None:
    view = GroupEntries()
    group = stable(A)
    view.apply(encode_group_key("g"), encode_group(group))
    view.keep("g", group)
    assert view.group("g") is group
    view.apply(encode_group_key("g"), encode_group(emptied()))
    assert view.group("g") == emptied()


def test_offsets_are_those_of_the_last_commits() -> None:
    view = GroupEntries()
    for number in range(3):
        view.apply(key(0), offset(number))
    view.apply(key(1), offset(7, "note"))
    view.apply(key(1, "other"), offset(9))
    assert view.offset("g", T1) == Committed(7, -1, "note", 1000)
    assert numbers(view) == {0: 2, 1: 7}
    assert view.offsets("none") == {}
    assert view.offset("g", TopicPartition("u", 0)) is None
    assert view.offset("none", T0) is None


def test_old_and_new_keys_are_one() -> None:
    view = GroupEntries()
    view.apply(key(0), offset(1))
    view.apply(b"\0\0" + key(0)[2:], offset(2))
    assert numbers(view) == {0: 2}
    view.apply(b"\0\0" + key(0)[2:], None)
    assert view.offsets("g") == {}


def test_a_tombstone_takes_an_offset_and_the_last_one_the_group() -> None:
    view = GroupEntries()
    view.apply(key(0), offset(1))
    view.apply(key(1), offset(1))
    view.apply(key(0), None)
    assert (numbers(view), view.groups()) == ({1: 1}, ["g"])
    view.apply(key(1), None)
    view.apply(key(1), None)
    assert (numbers(view), view.groups()) == ({}, [])


def test_groups_are_those_with_a_record_or_with_offsets() -> None:
    view = GroupEntries()
    view.apply(key(0, "simple"), offset(1))
    view.apply(encode_group_key("classic"), encode_group(emptied()))
    view.apply(key(0, "classic"), offset(1))
    view.apply(bytes.fromhex("0003 0001 6d"), bytes.fromhex("0000 00000001 00"))
    assert sorted(view.groups()) == ["classic", "m", "simple"]


def test_records_of_other_kinds_are_passed_over() -> None:
    view = GroupEntries()
    for kind in (9, 16, 18, 24, 255, 32_767, 65_535):
        view.apply(kind.to_bytes(2, "big") + b"whatever", b"something")
        view.apply_pending(1, kind.to_bytes(2, "big") + b"whatever", b"something")
    assert view.groups() == []


@pytest.mark.parametrize("broken", [b"", b"\0", b"\0\1", b"\0\2\0\2g"])
def test_a_broken_key_is_reported(broken: bytes) -> None:
    with pytest.raises(CorruptRecordError):
        GroupEntries().apply(broken, b"")


def test_a_broken_value_is_nobody_elses_trouble() -> None:
    view = GroupEntries()
    view.apply(encode_group_key("bad"), b"\0\4")
    view.apply(key(0, "bad"), b"\0\3")
    view.apply(encode_group_key("good"), encode_group(emptied()))
    group = view.group("good")
    assert group is not None
    assert group.state is State.EMPTY
    with pytest.raises(CorruptRecordError):
        view.group("bad")
    with pytest.raises(CorruptRecordError):
        view.offsets("bad")


def test_what_was_decoded_from_old_bytes_is_not_taken_for_what_the_new_ones_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One thread reads while another applies: between reading and storing the bytes, they are
    replaced.
    """
    view = GroupEntries()
    old = stable(A)
    new = stable(A, B)
    view.apply(encode_group_key("g"), encode_group(old))

    def slowly(value: bytes) -> Group:
        if value == encode_group(old):
            view.apply(encode_group_key("g"), encode_group(new))
        return decode_group(value)

    monkeypatch.setattr("embedlog.coordination.groups.group_view.decode_group", slowly)
    assert view.group("g") == old
    assert view.group("g") == new


# ---- transactions ------------------------------------------------------------------------------------


def test_offsets_of_a_transaction_count_behind_its_commit() -> None:
    view = GroupEntries()
    view.apply(key(0), offset(1))
    view.apply_pending(50, key(0), offset(2))
    view.apply_pending(50, key(1), offset(2))
    view.apply_pending(50, key(1), offset(3))
    assert (numbers(view), view.pending("g"), view.pending("other")) == ({0: 1}, {T0, T1}, set())
    view.end_transaction(50, True)
    assert (numbers(view), view.pending("g")) == ({0: 2, 1: 3}, set())


def test_offsets_of_an_aborted_transaction_never_count() -> None:
    view = GroupEntries()
    view.apply(key(0), offset(1))
    view.apply_pending(50, key(0), offset(2))
    view.end_transaction(50, False)
    assert (numbers(view), view.pending("g")) == ({0: 1}, set())
    view.end_transaction(50, True)
    assert numbers(view) == {0: 1}, "a marker with nothing before it"


def test_of_two_transactions_the_one_further_on_in_the_log_counts() -> None:
    for first, second in ((50, 60), (60, 50)):
        view = GroupEntries()
        view.apply_pending(50, key(0), offset(5))
        view.apply_pending(60, key(0), offset(6))
        view.end_transaction(first, True)
        assert view.pending("g") == (set() if first == 60 else {T0})
        view.end_transaction(second, True)
        assert numbers(view) == {0: 6}
    view = GroupEntries()
    view.apply_pending(50, key(0), offset(5))
    view.apply_pending(60, key(0), offset(6))
    view.end_transaction(60, False)
    assert view.pending("g") == {T0}
    view.end_transaction(50, True)
    assert numbers(view) == {0: 5}


@pytest.mark.parametrize("newer", [offset(9), None])
def test_what_is_newer_than_an_undecided_offset_outlives_its_marker(newer: bytes | None) -> None:
    view = GroupEntries()
    view.apply(key(0), offset(1))
    view.apply_pending(50, key(0), offset(2))
    view.apply_pending(50, key(1), offset(3))
    view.apply(key(0), newer)
    assert view.pending("g") == {T1}
    view.end_transaction(50, True)
    assert numbers(view) == ({1: 3} if newer is None else {0: 9, 1: 3})


def test_random_histories_end_as_a_compacted_log_says(seed: int) -> None:
    """The reference implementation: of all records of decided transactions and of none, the last
    one of each key.
    """
    chance = random.Random(seed)
    for _ in range(200):
        view = GroupEntries()
        log = []
        outcome: dict[int, bool] = {}
        producers = [chance.randrange(3) for _ in range(3)]
        epoch = 0
        for step in range(chance.randrange(40)):
            partition = chance.randrange(3)
            producer = chance.choice(producers)
            match chance.randrange(4):
                case 0:
                    value = offset(step) if chance.random() < 0.7 else None
                    view.apply(key(partition), value)
                    log.append((None, partition, value))
                case 1 | 2:
                    view.apply_pending(producer, key(partition), offset(step))
                    log.append((producer, partition, offset(step)))
                case 3:
                    epoch += 1
                    committed = chance.random() < 0.6
                    view.end_transaction(producer, committed)
                    log = [(-epoch if who == producer else who, *rest) for who, *rest in log]  # type: ignore[misc]
                    outcome[-epoch] = committed
        found: dict[int, int] = {}
        waiting: set[int] = set()
        for who, partition, value in log:
            if who is None or outcome.get(who, False):
                waiting.discard(partition)
                found.pop(partition, None)
                if value is not None:
                    found[partition] = int.from_bytes(value[2:10], "big")
            elif who not in outcome:
                waiting.add(partition)
        assert numbers(view) == found
        assert {tp.partition for tp in view.pending("g")} == waiting


# ---- the records of a broker -------------------------------------------------------------------------


def golden_view(golden: Path, name: str, until: int | None = None) -> GroupEntries:
    view = GroupEntries()
    with embedlog.open(golden / name / "log", read_only=True) as log:
        partition = log._engine.partition("__consumer_offsets", 0)
        at = partition.bounds().log_start
        end = partition.bounds().log_end
        while at < end:
            found = partition.fetch(at)
            at = found.next_offset
            rows = decode_batches(found.data, found.batches, columns={"key", "value", "offset"})
            assert rows.keys is not None
            assert rows.values is not None
            for number in range(rows.count):
                if until is None or rows.offsets[number] < until:  # type: ignore[index]
                    view.apply(rows.keys[number] or b"", rows.values[number])
    return view


@pytest.mark.parametrize("clean", BOTH_PROTOCOLS)
def test_a_brokers_groups_and_offsets_are_those_that_its_tool_lists(
    golden: Path, clean: str
) -> None:
    """Except records of aborted transactions: the layer above separates these batches."""
    listed: dict[str, dict[TopicPartition, int]] = {}
    for line in (golden / clean / "expected" / "groups.txt").read_text().splitlines():
        if line and not line.startswith("GROUP"):
            group, topic, partition, committed, *_ = line.split()
            listed.setdefault(group, {})[TopicPartition(topic, int(partition))] = int(committed)
    view = golden_view(golden, clean)
    assert set(view.groups()) == listed.keys()
    for name, offsets in listed.items():
        if name != "transactional-group":
            assert {tp: committed.offset for tp, committed in view.offsets(name).items()} == offsets
    classic = view.group("classic-group")
    assert classic is not None
    assert (classic.state, classic.protocol_type, classic.members) == (State.EMPTY, "consumer", {})
    modern = view.modern("new-group")
    assert modern is not None
    assert (modern.state, modern.members) == ("Empty", {})
    assert view.modern("classic-group") is None
