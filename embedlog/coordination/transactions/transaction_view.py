"""The view of one partition of `__transaction_state`: the newest state of every transactional id.

- Values are decoded on demand: a process needs few of the ids in a partition.
- Two facts are read from every value at once, since they are searched for: the producer id, and
  whether the transaction is unfinished.
"""

from __future__ import annotations

import struct
from typing import Final

from embedlog.coordination.transactions.transaction_records import decode, decode_key
from embedlog.transaction import SETTLED, Status, Transaction

# after the version: producer id; after epoch and timeout: status
_ID_AND_STATUS: Final = struct.Struct(">2xq6xb")
_SETTLED: Final = frozenset(map(int, SETTLED))


class TransactionEntries:
    """The view. Threads: `apply` from one at a time; reads from any."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        # with the bytes that they were decoded from
        self._states: dict[str, tuple[bytes, Transaction]] = {}
        self._names: dict[int, str] = {}
        self._unfinished: set[str] = set()

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply the next record: a new state, or the removal of an id."""
        name = decode_key(key)
        if name is None:
            return
        previous = self._values.pop(name, None)
        self._states.pop(name, None)
        if previous is not None:
            self._names.pop(_facts(previous)[0], None)
        self._unfinished.discard(name)
        if value is None:
            return
        producer_id, status = _facts(value)
        self._values[name] = value
        self._names[producer_id] = name
        if status not in _SETTLED:
            self._unfinished.add(name)

    def keep(self, name: str, state: Transaction) -> None:
        """Store the decoded form of the last applied value, if the caller has it."""
        value = self._values.get(name)
        if value is not None:
            self._states[name] = value, state

    def get(self, name: str) -> Transaction | None:
        """The newest state of an id. Raises CorruptRecordError, UnsupportedFormatError."""
        value = self._values.get(name)
        if value is None:
            return None
        decoded = self._states.get(name)
        if (
            decoded is None or decoded[0] is not value
        ):  # another thread may have applied a record since
            decoded = self._states[name] = value, decode(value)
        return decoded[1]

    def name_of(self, producer_id: int) -> str | None:
        """The transactional id that a producer id belongs to."""
        return self._names.get(producer_id)

    def find(self, producer_id: int) -> tuple[str, Transaction] | None:
        """The transactional id that a producer id belongs to, and its newest state. Raises as
        `get`.
        """
        name = self.name_of(producer_id)
        state = None if name is None else self.get(name)
        return None if name is None or state is None else (name, state)

    def names(self) -> list[str]:
        """Every transactional id."""
        return list(self._values)

    def unfinished(self) -> list[str]:
        """The ids whose transaction is undecided, or decided and not complete."""
        return list(self._unfinished)


def _facts(value: bytes) -> tuple[int, int]:
    if len(value) < _ID_AND_STATUS.size:
        return -1, Status.EMPTY
    producer_id, status = _ID_AND_STATUS.unpack_from(value)
    return producer_id, status
