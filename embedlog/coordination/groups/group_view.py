"""The view of one partition of `__consumer_offsets`: groups and their committed offsets.

- Groups are decoded on demand, and cached with the bytes that they were decoded from. While another
  thread applies the next record, a reader may cache an old group, but never for the new bytes.
- An offset committed within a transaction counts after that transaction's marker. Of two offsets
  for one partition the later one in the log counts, whichever marker came first.
- A newer record than an undecided offset, including a tombstone, ends the wait for it: it cannot
  count any more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from embedlog.coordination.groups.group_records import (
    GROUP_KEY,
    Committed,
    decode_group,
    decode_names,
    decode_offset,
    decode_offset_key,
    key_kind,
)
from embedlog.coordination.groups.kip848_groups import KINDS, ModernGroup, describe
from embedlog.group import Group
from embedlog.types import TopicPartition


class _Pending(NamedTuple):
    """An undecided offset: its number among all undecided ones that this view has applied, and its
    value.
    """

    number: int
    value: bytes


class GroupEntries:
    """The view. Threads: `apply`, `apply_pending` and `end_transaction` from one at a time; reads
    from any.
    """

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._groups: dict[str, tuple[bytes, Group]] = {}
        self._offsets: dict[str, dict[TopicPartition, bytes]] = {}
        self._modern: dict[str, dict[tuple[int, str], bytes]] = {}
        self._keys: dict[bytes, tuple[str, TopicPartition]] = {}  # cache: few keys occur often
        self._pending: dict[int, dict[bytes, _Pending]] = {}  # by producer id
        self._waiting: dict[bytes, set[int]] = {}  # producer ids with an undecided offset of a key
        self._pending_count = 0

    # ---- replay ----------------------------------------------------------------------------------

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply the next record, which counts at once. Raises CorruptRecordError."""
        kind = key_kind(key)
        if kind < GROUP_KEY:
            self._commit(key, value)
            if key in self._waiting:
                self._drop_undecided(key)
        elif kind == GROUP_KEY:
            name = decode_names(key)[0]
            if value is None:
                self._values.pop(name, None)
                self._groups.pop(name, None)
            else:
                self._values[name] = value
        elif kind in KINDS:
            self._apply_modern(kind, key, value)

    def apply_pending(self, producer_id: int, key: bytes, value: bytes | None) -> None:
        """Apply the next record, of an open transaction: it counts after its commit."""
        if key_kind(key) >= GROUP_KEY or value is None:
            return
        self._pending_count += 1
        self._pending.setdefault(producer_id, {})[key] = _Pending(self._pending_count, value)
        self._waiting.setdefault(key, set()).add(producer_id)

    def end_transaction(self, producer_id: int, commit: bool) -> None:
        """Apply the marker of a transaction.

        A concurrent reader that first checks `pending` and then reads the offset gets a valid one.
        """
        for key, pending in self._pending.pop(producer_id, {}).items():
            if commit:
                self._commit(key, pending.value)
                for other_id in tuple(self._waiting[key] - {producer_id}):
                    if self._pending[other_id][key].number < pending.number:
                        del self._pending[other_id][key]
                        self._forget(key, other_id)
            self._forget(key, producer_id)

    def _commit(self, key: bytes, value: bytes | None) -> None:
        name_and_partition = self._keys.get(key)
        name, partition = name_and_partition or decode_offset_key(key)
        offsets = self._offsets.get(name)
        if value is not None:
            if offsets is None:
                offsets = self._offsets[name] = {}
            offsets[partition] = value
            if name_and_partition is None:
                self._keys[key] = name, partition
            return
        self._keys.pop(key, None)
        if offsets is not None:
            offsets.pop(partition, None)
            if not offsets:
                del self._offsets[name]

    def _drop_undecided(self, key: bytes) -> None:
        """The applied record is newer than undecided offsets of its key."""
        for producer_id in self._waiting.pop(key):
            self._pending[producer_id].pop(key, None)

    def _forget(self, key: bytes, producer_id: int) -> None:
        waiting = self._waiting[key]
        waiting.discard(producer_id)
        if not waiting:
            del self._waiting[key]

    def _apply_modern(self, kind: int, key: bytes, value: bytes | None) -> None:
        name, member = decode_names(key)
        records = self._modern.setdefault(name, {})
        if value is None:
            records.pop((kind, member), None)
        else:
            records[kind, member] = value
        if not records:
            del self._modern[name]

    # ---- reads -----------------------------------------------------------------------------------

    def group(self, name: str) -> Group | None:
        """The newest record of a group; None if no member ever joined. Raises CorruptRecordError,
        UnsupportedFormatError.
        """
        value = self._values.get(name)
        if value is None:
            return None
        decoded = self._groups.get(name)
        if decoded is None or decoded[0] is not value:
            decoded = self._groups[name] = value, decode_group(value)
        return decoded[1]

    def keep(self, name: str, group: Group) -> None:
        """Store the decoded form of the last applied value, by a caller that has it and holds the
        lock.
        """
        value = self._values.get(name)
        if value is not None:
            self._groups[name] = value, group

    def modern(self, name: str) -> ModernGroup | None:
        """A group in the newer protocol, as a broker wrote it; None for any other group."""
        records = self._modern.get(name)
        return None if records is None else describe(dict(records))

    def groups(self) -> list[str]:
        """Every group with a record of its own, or with offsets."""
        return list(dict.fromkeys((*self._values, *self._modern, *self._offsets)))

    def offset(self, name: str, partition: TopicPartition) -> Committed | None:
        """The committed offset of a group for a partition. Raises CorruptRecordError,
        UnsupportedFormatError.
        """
        value = self._offsets.get(name, {}).get(partition)
        return None if value is None else decode_offset(value)

    def offsets(self, name: str) -> Mapping[TopicPartition, Committed]:
        """All committed offsets of a group."""
        decoded = (
            (partition, self.offset(name, partition))
            for partition in list(self._offsets.get(name, ()))
        )
        return {partition: committed for partition, committed in decoded if committed is not None}

    def partitions(self, name: str) -> tuple[TopicPartition, ...]:
        """The partitions with a valid committed offset of a group."""
        return (*self._offsets.get(name, ()),)  # as list() one step without the GIL, unlike tuple()

    def keys_of(self, topics: Collection[str]) -> dict[str, list[bytes]]:
        """The keys of all groups' offsets for these topics, decided or not: those of each topic
        that has some.
        """
        topic_keys = [
            (tp.topic, key) for key, (_, tp) in list(self._keys.items()) if tp.topic in topics
        ]
        for key in list(self._waiting):
            _, tp = decode_offset_key(key)
            if tp.topic in topics:
                topic_keys.append((tp.topic, key))
        keys_by_topic: dict[str, list[bytes]] = {}  # in the order of topics and keys
        for topic, key in sorted(set(topic_keys)):
            keys_by_topic.setdefault(topic, []).append(key)
        return keys_by_topic

    def pending(self, name: str) -> set[TopicPartition]:
        """The partitions for which an undecided transaction has an offset of this group."""
        undecided = (decode_offset_key(key) for key in list(self._waiting))
        return {partition for group, partition in undecided if group == name}
