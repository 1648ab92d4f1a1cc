"""Keys and values of `__transaction_state`: Kafka's bytes, a broker's records, the library's
additions, and damage.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

import embedlog
from embedlog.coordination.transactions.transaction_records import (
    OWNER_NODE,
    OWNER_NODE_TAG,
    decode,
    decode_key,
    encode,
    encode_key,
)
from embedlog.coordination.transactions.transaction_view import TransactionEntries
from embedlog.errors import CorruptRecordError, UnsupportedFormatError
from embedlog.format.process_slot import ProcessSlot
from embedlog.format.record_batch import decode as decode_batches
from embedlog.transaction import Beginning, Outcome, Status, Transaction
from tests.kafka import CLEAN, GOLDEN

TIME_MS = 1_700_000_000_000
ONGOING = Transaction(
    4000,
    2,
    60_000,
    Status.ONGOING,
    frozenset({("t", 0), ("t", 1)}),
    TIME_MS,
    TIME_MS,
    client_version=0,
)
V0 = (
    "0000 0000000000000fa0 0002 0000ea60 01 00000001 0001 74 00000002 00000000 00000001 "
    "0000018bcfe56800 0000018bcfe56800"
)
V1 = (
    "0001 0000000000000fa0 0002 0000ea60 01 02 02 74 03 00000000 00000001 00 0000018bcfe56800 "
    "0000018bcfe56800 00"
)
EMPTY = (
    "0001 0000000000000fa0 0002 0000ea60 00 00 0000018bcfe56800 ffffffffffffffff 02 00 08 "
    "0000000000000f9f 02 02 0002"
)
OURS = ONGOING._replace(
    client_version=2,
    owner=ProcessSlot(3, 2**64 - 1),
    began=Beginning(2**56 - 1, 123_456_789),
    outcome=Outcome("commit", 2**62 + 5, 1),
)


def test_keys_are_kafkas() -> None:
    assert encode_key("tx") == bytes.fromhex("0000 0002 7478")
    assert decode_key(bytes.fromhex("0000 0002 7478")) == "tx"
    assert decode_key(encode_key("żółć")) == "żółć"
    assert decode_key(bytes.fromhex("0001 0002 7478")) is None, (
        "a kind of key of a newer Kafka only"
    )
    for broken in ("00", "0000 0003 7478", "0000 0001 7478"):
        with pytest.raises(CorruptRecordError):
            decode_key(bytes.fromhex(broken))


def test_values_are_kafkas_byte_for_byte() -> None:
    assert decode(bytes.fromhex(V0)) == ONGOING
    assert decode(bytes.fromhex(V1)) == ONGOING
    assert encode(ONGOING) == bytes.fromhex(V1)
    empty = Transaction(4000, 2, 60_000, updated_ms=TIME_MS, previous_id=3999)
    assert decode(bytes.fromhex(EMPTY)) == empty
    assert encode(empty) == bytes.fromhex(EMPTY)


@pytest.mark.parametrize("name", GOLDEN)
def test_what_a_broker_wrote_is_understood(golden: Path, name: str) -> None:
    """Every record reads, and is written again as the same one, but for the order of topics; the
    last ones fit the scenario.
    """
    view = TransactionEntries()
    count = 0
    with embedlog.open(golden / name / "log", read_only=True) as log:
        partition = log._engine.partition("__transaction_state", 0)
        at = partition.bounds().log_start
        end = partition.bounds().log_end
        while at < end:
            found = partition.fetch(at)
            at = found.next_offset
            rows = decode_batches(found.data, found.batches, columns={"key", "value"})
            assert rows.keys is not None
            assert rows.values is not None
            for row in range(rows.count):
                key = rows.keys[row]
                value = rows.values[row]
                assert key is not None
                assert value is not None
                view.apply(key, value)
                assert encode_key(decode_key(key) or "") == key
                # Kafka 3 writes version 0, we write 1
                assert len(encode(decode(value))) == len(value) or value[:2] == bytes(2)
                assert decode(encode(decode(value))) == decode(value)
                count += 1
    assert count >= 2
    states = {name: view.get(name) for name in view.names()}
    if name in CLEAN:
        assert states["offsets-commit"].status is Status.COMPLETE_COMMIT  # type: ignore[union-attr]
        assert states["offsets-abort"].status is Status.COMPLETE_ABORT  # type: ignore[union-attr]
    left_open = "transaction-left-open-writer-0" if name in CLEAN else "transactions-writer-0"
    # the coordinator had ended it there
    assert view.unfinished() == ([] if name == "clean" else [left_open])
    for each, state in states.items():
        assert state is not None
        assert view.name_of(state.producer_id) == each


def test_our_own_fields_lie_behind_kafkas_and_come_back() -> None:
    assert decode(encode(OURS)) == OURS
    assert encode(OURS).startswith(
        encode(OURS._replace(owner=None, began=None, outcome=None, client_version=0))[:-1]
    )


def test_fields_of_a_newer_version_are_kept() -> None:
    newer = OURS._replace(others=((3, b"three"), (9_999, b""), (20_000, bytes(300))))
    assert decode(encode(newer)) == newer
    resized = ONGOING._replace(others=((10_000, b"a longer owner than ours"),))
    assert decode(encode(resized)) == resized, "a field of ours in a size that we do not know"


@pytest.mark.parametrize("data", [V0, V1, EMPTY])
def test_a_value_that_is_cut_short_is_corrupt(data: str) -> None:
    whole = bytes.fromhex(data)
    for size in range(len(whole)):
        with pytest.raises(CorruptRecordError):
            decode(whole[:size])


def test_a_newer_value_is_refused_as_such() -> None:
    with pytest.raises(UnsupportedFormatError, match="2"):
        decode(b"\0\2" + bytes.fromhex(V1)[2:])


@pytest.mark.parametrize("status", [6, 7, 8, -1])
def test_a_status_that_is_never_on_disk_is_corrupt(status: int) -> None:
    whole = bytearray(bytes.fromhex(V1))
    whole[16] = status & 0xFF
    with pytest.raises(CorruptRecordError):
        decode(bytes(whole))


def test_damaged_values_never_do_worse_than_raise(rng: random.Random) -> None:
    for _ in range(3000):
        whole = bytearray(encode(OURS))
        for _ in range(rng.randint(1, 3)):
            whole[rng.randrange(len(whole))] = rng.randrange(256)
        try:
            decode(bytes(whole))
        except (CorruptRecordError, UnsupportedFormatError):
            pass


def test_any_state_comes_back(rng: random.Random) -> None:
    for _ in range(500):
        state = random_state(rng)
        assert decode(encode(state)) == state


def a_slot(rng: random.Random) -> ProcessSlot:
    return ProcessSlot(
        rng.randrange(2**16), rng.randrange(2**64), rng.choice([None, rng.randrange(2**31)])
    )


def random_state(rng: random.Random) -> Transaction:
    status = rng.choice(
        [each for each in Status if each not in (Status.DEAD, Status.PREPARE_EPOCH_FENCE)]
    )
    maybe: Callable[[object], object] = lambda value: value if rng.random() < 0.5 else None  # noqa: E731
    names = [f"topic-{'x' * rng.randrange(200)}{n}" for n in range(rng.randrange(4))]
    partitions = {(name, rng.randrange(1000)) for name in names for _ in range(rng.randint(1, 200))}
    return Transaction(
        rng.randrange(2**63),
        rng.randrange(2**15),
        rng.randrange(1, 900_000),
        status,
        frozenset() if status is Status.EMPTY else frozenset(partitions),
        rng.randrange(2**42),
        rng.choice([-1, rng.randrange(2**42)]),
        rng.choice([-1, rng.randrange(2**63)]),
        rng.choice([-1, rng.randrange(2**63)]),
        rng.choice([0, 1, 2]),
        maybe(a_slot(rng)),  # type: ignore[arg-type]
        maybe(Beginning(rng.randrange(2**56), rng.randrange(2**63))),  # type: ignore[arg-type]
        maybe(Outcome(rng.choice(["commit", "abort"]), rng.randrange(2**63), rng.randrange(2**15))),  # type: ignore[arg-type]
    )


def test_the_directory_of_the_owner_is_a_field_of_its_own() -> None:
    """An older version keeps it as an unknown field, and may write it without an owner."""
    within = OURS._replace(owner=ProcessSlot(3, 2**64 - 1, node=7))
    assert encode(within)[-7:] == bytes.fromhex("934e 04 00000007")
    assert decode(encode(within)) == within
    node = (OWNER_NODE_TAG, OWNER_NODE.pack(7))
    assert decode(encode(OURS._replace(others=(node,)))) == within
    assert decode(encode(OURS._replace(owner=None, others=(node,)))) == OURS._replace(owner=None)


def test_the_view_forgets_what_a_tombstone_ends() -> None:
    view = TransactionEntries()
    view.apply(encode_key("a"), encode(ONGOING))
    view.apply(
        encode_key("b"),
        encode(
            ONGOING._replace(producer_id=9, status=Status.COMPLETE_COMMIT, partitions=frozenset())
        ),
    )
    assert (view.name_of(4000), view.name_of(9), view.unfinished()) == ("a", "b", ["a"])
    view.apply(
        encode_key("a"), encode(ONGOING._replace(producer_id=4001, status=Status.PREPARE_ABORT))
    )
    assert (view.name_of(4000), view.name_of(4001), view.unfinished()) == (None, "a", ["a"])
    view.apply(encode_key("a"), None)
    assert (view.get("a"), view.name_of(4001), view.unfinished(), view.names()) == (
        None,
        None,
        [],
        ["b"],
    )
    view.apply(encode_key("c"), b"\0")
    with pytest.raises(CorruptRecordError):
        view.get("c")
    view.apply(b"\0\7else", b"a kind of record that only a newer Kafka writes")
    assert view.names() == ["b", "c"]
