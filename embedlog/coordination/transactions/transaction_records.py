"""Keys and values of `__transaction_state` in Kafka's schema (format.md 9.3), with embedlog's
additions as tagged fields.

- Values are written in version 1, which has tagged fields; versions 0 and 1 are read.
- Own fields have high tags, and are omitted if they have their default: to a broker they are
  unknown fields.
- Unknown tagged fields are kept, byte for byte, and written again.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable
from typing import Any, Final

from embedlog.errors import CorruptRecordError, UnsupportedFormatError
from embedlog.format.process_slot import ProcessSlot
from embedlog.format.wire import LONG, SHORT, Fields, Flexible, Plain, uvarint
from embedlog.transaction import COMPLETED, NO_ID, PREPARED, Beginning, Outcome, Status, Transaction

KEY_VERSION: Final = 0
VALUE_VERSION: Final = 1
OWNER_TAG: Final = 10_000  # first of embedlog's tags: Kafka numbers from 0
BEGAN_TAG: Final = 10_001
OUTCOME_TAG: Final = 10_002
OWNER_NODE_TAG: Final = 10_003

_HEAD: Final = struct.Struct(
    ">h"  # version of the value
    "q"  # producer id
    "h"  # producer epoch
    "i"  # transaction.timeout.ms
    "b"  # status
)
_TIMES: Final = struct.Struct(">qq")  # last update and start in wall clock ms, -1 none
OWNER: Final = struct.Struct(">IQ")  # slot, nonce
OWNER_NODE: Final = struct.Struct(">I")  # the directory of a set that has the slot
BEGAN: Final = struct.Struct(">QQ")  # boot number, monotonic clock in ns
OUTCOME: Final = struct.Struct(">bqh")  # 1 commit or 0 abort, producer id, producer epoch
_ON_DISK: Final = PREPARED | COMPLETED | {Status.EMPTY, Status.ONGOING}


# ---- keys ----------------------------------------------------------------------------------------


def encode_key(transactional_id: str) -> bytes:
    """The key of an id's records."""
    name = transactional_id.encode()
    return SHORT.pack(KEY_VERSION) + SHORT.pack(len(name)) + name


def decode_key(key: bytes) -> str | None:
    """The transactional id; None for a key of a kind that only a newer Kafka uses. Raises
    CorruptRecordError.
    """
    if len(key) < 4:
        raise CorruptRecordError("key in __transaction_state", found=key.hex())
    if SHORT.unpack_from(key)[0] != KEY_VERSION:
        return None
    size = SHORT.unpack_from(key, 2)[0]
    if size != len(key) - 4:
        raise CorruptRecordError(
            "key in __transaction_state", expected=f"{size} bytes of name", found=f"{len(key) - 4}"
        )
    return key[4:].decode()


# ---- values --------------------------------------------------------------------------------------


def encode(state: Transaction) -> bytes:
    """The value, in version 1."""
    head = _HEAD.pack(VALUE_VERSION, state.producer_id, state.epoch, state.timeout_ms, state.status)
    times = _TIMES.pack(state.updated_ms, state.started_ms)
    partitions = (
        b"\0" if state.status is Status.EMPTY else _encode_partitions(state.partitions)
    )  # 0: null
    return b"".join((head, partitions, times, _encode_tagged(_tags_of(state))))


@functools.lru_cache(maxsize=64)
def _encode_partitions(partitions: frozenset[tuple[str, int]]) -> bytes:
    """The encoded partitions: they stay the same through a decision, and often from one transaction
    to the next.
    """
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    parts = [uvarint(len(by_topic) + 1)]
    for topic, numbers in by_topic.items():
        name = topic.encode()
        parts += (
            uvarint(len(name) + 1),
            name,
            uvarint(len(numbers) + 1),
            struct.pack(f">{len(numbers)}i", *numbers),
            b"\0",
        )
    return b"".join(parts)


def _tags_of(state: Transaction) -> Fields:
    fields = list(state.others)
    if state.previous_id != NO_ID:
        fields.append((0, LONG.pack(state.previous_id)))
    if state.next_id != NO_ID:
        fields.append((1, LONG.pack(state.next_id)))
    if state.client_version:
        fields.append((2, SHORT.pack(state.client_version)))
    if state.owner is not None:
        slot, nonce, node = state.owner
        fields.append((OWNER_TAG, OWNER.pack(slot, nonce)))
        if node is not None:
            fields.append((OWNER_NODE_TAG, OWNER_NODE.pack(node)))
    if state.began is not None:
        fields.append((BEGAN_TAG, BEGAN.pack(*state.began)))
    if state.outcome is not None:
        outcome = state.outcome
        fields.append(
            (
                OUTCOME_TAG,
                OUTCOME.pack(outcome.kind == "commit", outcome.producer_id, outcome.epoch),
            )
        )
    return sorted(fields)


def _encode_tagged(fields: Iterable[tuple[int, bytes]]) -> bytes:
    encoded = [uvarint(tag) + uvarint(len(data)) + data for tag, data in fields]
    return uvarint(len(encoded)) + b"".join(encoded)


def decode(value: bytes) -> Transaction:
    """The state in a value. Raises UnsupportedFormatError for a newer version, CorruptRecordError
    for a malformed value.
    """
    try:
        version, producer_id, epoch, timeout_ms, status = _HEAD.unpack_from(value)
        if version not in (0, VALUE_VERSION):
            raise UnsupportedFormatError(
                "version of a value in __transaction_state", expected="0 or 1", found=version
            )
        if Status(status) not in _ON_DISK:
            raise ValueError(f"status {status}")
        plain = Plain(value, _HEAD.size)
        reader = Flexible(value, _HEAD.size)
        partitions = _read_partitions(reader) if version else frozenset(plain.partitions())
        updated_ms, started_ms = (reader if version else plain).take(_TIMES)
        state = Transaction(
            producer_id,
            epoch,
            timeout_ms,
            Status(status),
            partitions,
            updated_ms,
            started_ms,
            client_version=0,
        )
        return _with_tags(state, reader.tagged()) if version else state
    except (struct.error, IndexError, ValueError) as problem:
        raise CorruptRecordError(
            f"value in __transaction_state: {problem}", found=value[:64].hex()
        ) from problem


def _with_tags(state: Transaction, tags: Fields) -> Transaction:
    """The state with its tagged fields; those with another number or size are kept unchanged."""
    facts: dict[str, Any] = {}
    others = []
    node = None
    for tag, data in tags:
        match tag, len(data):
            case 0, LONG.size:
                facts["previous_id"] = LONG.unpack(data)[0]
            case 1, LONG.size:
                facts["next_id"] = LONG.unpack(data)[0]
            case 2, SHORT.size:
                facts["client_version"] = SHORT.unpack(data)[0]
            case 10_000, OWNER.size:
                facts["owner"] = ProcessSlot(*OWNER.unpack(data))
            case 10_001, BEGAN.size:
                facts["began"] = Beginning(*BEGAN.unpack(data))
            case 10_002, OUTCOME.size:
                commit, producer_id, epoch = OUTCOME.unpack(data)
                facts["outcome"] = Outcome("commit" if commit else "abort", producer_id, epoch)
            case 10_003, OWNER_NODE.size:
                (node,) = OWNER_NODE.unpack(data)
            case _:
                others.append((tag, data))
    if "owner" in facts:
        facts["owner"] = facts["owner"]._replace(node=node)
    return state._replace(**facts, others=tuple(others))


def _read_partitions(reader: Flexible) -> frozenset[tuple[str, int]]:
    partitions: set[tuple[str, int]] = set()
    for _ in range(reader.uvarint() - 1):
        topic = reader.string()
        partitions.update((topic, number) for number in reader.numbers())
        reader.tagged()
    return frozenset(partitions)
