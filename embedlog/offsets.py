"""What groups have read: offsets committed, asked for, forgotten, one partition of `__consumer_offsets` per group.

O1  a commit is checked under the lock of its group's partition, before it is appended: the member, its generation, the state of
    the group, and that every topic is still there; its offsets are one batch, so all of them count or none
O2  a topic that is being deleted is marked so on disk before its offsets go: whoever commits looks at the file of topics under
    the lock, so no commit can come behind the tombstones
O3  offsets within a transaction count from its marker on; who asks for stable ones waits for it, and ends it if its owner is dead
O4  what is wrong with the arguments is told before anything is locked, and as an error of this package
O5  commits move no notice: whoever follows the group is not woken by them
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from embedlog import group as machine
from embedlog._native import system
from embedlog.deciding import asks_for_durability, put_on_disk
from embedlog.errors import (
    ConfigError,
    DeadlineError,
    EmbedlogError,
    FencedInstanceIdError,
    GroupNotEmptyError,
    GroupNotFoundError,
    GroupSizeError,
    GroupSubscribedError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    OffsetOutOfRangeError,
    RebalanceInProgressError,
    RecordTooLargeError,
    UnknownMemberError,
    UnknownTopicOrPartitionError,
)
from embedlog.group import Group, Refusal
from embedlog.group_records import encode_offset, encode_offset_key
from embedlog.group_view import GroupEntries
from embedlog.internal_topic import Decision, InternalTopic, Record, java_partition
from embedlog.options import INT_MAX, LONG_MAX
from embedlog.values import GroupMetadata, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from embedlog.partition import Partition
    from embedlog.topic import TopicRegistry

OFFSETS_TOPIC: Final = "__consumer_offsets"
HELP_S: Final = 0.1  # how often who waits for a transaction looks whether somebody has to end it
NAME_BYTES_MAX: Final = 2**15 - 1  # of a text in Kafka's format
RECORD_BYTES: Final = 24  # at most, of a record beside its key and value
HEADER_BYTES: Final = 61

KINDS: Final[Mapping[Refusal, type[EmbedlogError]]] = {
    Refusal.COORDINATOR_NOT_AVAILABLE: GroupNotFoundError,
    Refusal.UNKNOWN_MEMBER_ID: UnknownMemberError,
    Refusal.ILLEGAL_GENERATION: IllegalGenerationError,
    Refusal.REBALANCE_IN_PROGRESS: RebalanceInProgressError,
    Refusal.FENCED_INSTANCE_ID: FencedInstanceIdError,
    Refusal.INCONSISTENT_GROUP_PROTOCOL: InconsistentGroupProtocolError,
    Refusal.INVALID_SESSION_TIMEOUT: ConfigError,
    Refusal.GROUP_MAX_SIZE_REACHED: GroupSizeError,
    Refusal.NON_EMPTY_GROUP: GroupNotEmptyError,
    Refusal.GROUP_ID_NOT_FOUND: GroupNotFoundError,
    Refusal.GROUP_SUBSCRIBED_TO_TOPIC: GroupSubscribedError,
}


class Host(Protocol):
    """What of an open log is needed here."""

    path: Path
    read_only: bool
    config: Any
    _registry: TopicRegistry
    _transactions: Any

    def _partition(self, name: str, number: int) -> Partition: ...
    def _partition_count(self, name: str) -> int: ...
    def _make_internal(self, name: str, partitions: int, config: Any) -> None: ...
    def _check_open(self) -> None: ...
    def _check_writable(self) -> None: ...
    def _topics(self) -> list[str]: ...
    def _wait(self, tails: Any, timeout_s: float | None, owner: object, committed: bool = False) -> bool: ...


# ---- arguments -----------------------------------------------------------------------------------


def checked_group_id(group_id: object) -> str:
    """The name, if a group can have it. Raises InvalidGroupIdError, TypeError."""
    if not isinstance(group_id, str):
        raise TypeError(f"a group id is a str, not {type(group_id).__name__}")
    size = _size(group_id)
    if not 1 <= size <= NAME_BYTES_MAX:
        raise InvalidGroupIdError("group id", expected=f"1 to {NAME_BYTES_MAX} bytes of UTF-8", found=f"{group_id!r:.100}")
    return group_id


def checked_offsets(offsets: object) -> dict[TopicPartition, OffsetAndMetadata]:
    """What is to be committed, each offset with its metadata. Raises TypeError, OffsetOutOfRangeError, RecordTooLargeError."""
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets are a mapping of TopicPartition to OffsetAndMetadata or int, not {type(offsets).__name__}")
    return {_checked_place(place): _checked_offset(place, offset) for place, offset in offsets.items()}


def _checked_place(place: object) -> TopicPartition:
    if not isinstance(place, tuple) or len(place) != 2 or not isinstance(place[0], str) or type(place[1]) is not int:
        raise TypeError(f"a key of offsets is a TopicPartition, not {place!r:.100}")
    return TopicPartition(*place)


def _checked_offset(place: Any, offset: object) -> OffsetAndMetadata:
    made = OffsetAndMetadata(offset) if type(offset) is int else offset
    if not isinstance(made, OffsetAndMetadata) or (type(made.offset), type(made.leader_epoch)) != (int, int):
        raise TypeError(f"an offset is an OffsetAndMetadata or an int, not {offset!r:.100}")
    if not isinstance(made.metadata, str):
        raise TypeError(f"the metadata of an offset is a str, not {type(made.metadata).__name__}")
    if not 0 <= made.offset <= LONG_MAX or not -1 <= made.leader_epoch <= INT_MAX:
        raise OffsetOutOfRangeError(
            "an offset to commit", topic=place[0], partition=place[1],
            expected="0 to 2^63 - 1, with a leader epoch of -1 or more", found=f"{made.offset}, {made.leader_epoch}",
        )  # fmt: skip
    return made


def _size(text: str) -> int:
    """Bytes of a text in UTF-8; -1 if it has no such form."""
    try:
        return len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        return -1


def refused(group_id: str, refusal: Refusal, old: Group | None) -> EmbedlogError:
    """The error that tells why an event was not taken."""
    found = "no such group" if old is None else f"{old.state.label}, generation {old.generation}, {len(old.members)} members"
    return KINDS[refusal](f"group {group_id!r}: {refusal.value} ({refusal.name})", found=found)


# ---- offsets -------------------------------------------------------------------------------------


class Offsets:
    """The committed offsets of all groups of one open log. Threads: any."""

    def __init__(self, host: Host) -> None:
        config = host.config
        self.host = host
        self.topic: InternalTopic[GroupEntries] = InternalTopic(
            host,
            OFFSETS_TOPIC,
            partitions=config.offsets_topic_num_partitions,
            config={
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            },
            view=GroupEntries,
        )

    def deadline(self, deadline_ns: int | None) -> int:
        return system.boot_ns() + self.host.config.lock_timeout_ms * 1_000_000 if deadline_ns is None else deadline_ns

    def entries(self, group_id: str) -> GroupEntries | None:
        """The view of the partition that a group lies in; None while nobody has written there. No lock, and nothing is made."""
        self.host._check_open()
        count = self.topic.count()
        if count == 0:
            return None
        number = java_partition(checked_group_id(group_id), count)
        return None if self.topic.is_blank(number) else self.topic.look(number)

    # ---- committing ------------------------------------------------------------------------------

    def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        identity: GroupMetadata | None = None,
        deadline_ns: int | None = None,
    ) -> None:
        """Commit as a member of the group, or without `identity` as nobody's member, which an empty group lets happen.

        Raises UnknownMemberError, IllegalGenerationError, FencedInstanceIdError, RebalanceInProgressError,
        UnknownTopicOrPartitionError, OffsetOutOfRangeError, RecordTooLargeError, LockTimeoutError, ReadOnlyError, StorageError;
        and where commits must survive a power loss DurabilityError. Behind the last two it may have been written.
        """
        member = identity or GroupMetadata(group_id)
        self._commit(group_id, offsets, lambda old: admitted(old, member), deadline_ns)

    def reset(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], deadline_ns: int | None = None
    ) -> None:
        """As `commit`, by an administrator: while the group is empty. Raises GroupNotEmptyError."""
        self._commit(group_id, offsets, machine.may_reset, deadline_ns)

    def _commit(self, group_id: str, offsets: Mapping[Any, Any], admission: Any, deadline_ns: int | None) -> None:
        self.host._check_writable()
        wanted = self.checked(group_id, offsets)
        if not wanted:
            return
        self.check_topics(wanted)
        records = commit_records(group_id, wanted)
        until, number = self.deadline(deadline_ns), self.topic.partition_of(group_id)
        self.check_size(number, records)
        while not self._append(number, records, wanted, lambda view: self.admit(view, group_id, admission), until):
            self.check_topics(wanted)
        partition = self.topic.partition(number)
        if asks_for_durability(partition):
            put_on_disk(partition, until)

    def _append(
        self, number: int, records: list[Record], wanted: Iterable[TopicPartition], admit: Any, deadline_ns: int
    ) -> bool:
        """False if the topics have to be looked at once more."""
        with self.topic.deciding(number, deadline_ns) as decision:
            admit(decision.view)
            if not self.are_there_locked(wanted):
                return False
            decision.append(records)
        return True

    def checked(self, group_id: object, offsets: object) -> dict[TopicPartition, OffsetAndMetadata]:
        """What is to be committed. Raises for arguments that cannot be (O4)."""
        checked_group_id(group_id)
        wanted, limit = checked_offsets(offsets), self.host.config.offset_metadata_max_bytes
        for place, offset in wanted.items():
            if offset.metadata and not 0 <= (size := _size(offset.metadata)) <= limit:
                expected = f"at most {limit} bytes of UTF-8 (offset.metadata.max.bytes)"
                raise RecordTooLargeError(f"metadata of an offset for {place[0]}-{place[1]}", expected=expected, found=size)
        return wanted

    def check_size(self, number: int, records: list[Record]) -> None:
        """Raises RecordTooLargeError for a commit that makes too large a batch."""
        size = batch_bytes(records)
        if size > 1 << 14 and size > (limit := self.topic.partition(number).batch_limit):
            raise RecordTooLargeError("a commit of so many offsets", expected=f"at most {limit} bytes", found=size)

    def check_topics(self, wanted: Iterable[TopicPartition]) -> None:
        """Raises UnknownTopicOrPartitionError; takes note of what other processes have made of the topics."""
        self.host._topics()
        self._all_there(wanted)

    def are_there_locked(self, wanted: Iterable[TopicPartition]) -> bool:
        """Whether all topics are there, by a look under the lock (O2); False if they have to be looked at outside of it again."""
        if system.mutated("commit_to_deleted"):
            return True
        if self.host._registry.has_changed():
            return False
        self._all_there(wanted)
        return True

    def _all_there(self, wanted: Iterable[TopicPartition]) -> None:
        counts: dict[str, int] = {}
        for topic, number in wanted:
            count = counts.get(topic)
            if count is None:
                count = counts[topic] = self.host._registry.live(topic).partitions
            if not 0 <= number < count:
                raise UnknownTopicOrPartitionError(
                    f"topic {topic!r} has no partition {number}", path=self.host.path, expected=f"0 to {count - 1}", found=number
                )

    @staticmethod
    def admit(view: GroupEntries, group_id: str, admission: Any) -> None:
        """Raises what keeps the caller from writing to this group now."""
        old = view.group(group_id)
        refusal = admission(old)
        if refusal is None and (modern := view.modern(group_id)) is not None and modern.members:
            refusal = Refusal.UNKNOWN_MEMBER_ID
        if refusal is not None:
            raise refused(group_id, refusal, old)

    # ---- asking ----------------------------------------------------------------------------------

    def committed(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        stable_deadline_ns: int | None = None,
        owner: object = None,
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed: for these partitions, None where that is nothing, or for all that it has.

        With a deadline it waits for transactions that hold offsets of these partitions, and raises DeadlineError; without one it
        gives what counts now. `owner` is whom `Log._wake` wakes, for a caller who then raises.
        """
        wanted = None if partitions is None else [_checked_place(place) for place in partitions]
        view = self.entries(group_id)
        while view is not None and stable_deadline_ns is not None and view.pending(group_id):
            if wanted is not None and not view.pending(group_id) & set(wanted):
                break
            self._wait_for_marker(group_id, stable_deadline_ns, owner or self)
            view = self.entries(group_id)
        if view is None:
            return dict.fromkeys(wanted or ())
        if wanted is None:
            return {place: _told(found) for place, found in view.offsets(group_id).items()}
        return {place: _told(view.offset(group_id, place)) for place in wanted}

    def _wait_for_marker(self, group_id: str, deadline_ns: int, owner: object) -> None:
        partition = self.topic.partition(java_partition(group_id, self.topic.count()))
        stable = partition.bounds().last_stable
        if self.host._transactions.help(partition):
            return
        left_s = (deadline_ns - system.boot_ns()) / 1e9
        if left_s <= 0:
            raise DeadlineError(f"group {group_id!r}: offsets of a transaction that is not decided (UNSTABLE_OFFSET_COMMIT)")
        self.host._wait([(partition, stable)], min(left_s, HELP_S), owner, committed=True)

    # ---- forgetting ------------------------------------------------------------------------------

    def written(self) -> list[int]:
        """The partitions that hold anything."""
        return [number for number in range(self.topic.count()) if not self.topic.is_blank(number)]

    def forget_topic(self, topic: str, deadline_ns: int) -> None:
        """Forget every group's offsets for a topic that is marked as being deleted, those of open transactions too.

        May be repeated. Every partition's lock is taken once: who held it before has looked at the topics before. Raises
        LockTimeoutError.
        """
        for number in self.written():
            self.topic.look(number)
            with self.topic.deciding(number, deadline_ns) as decision:
                self.append_in_pieces(decision, number, [(key, None) for key in decision.view.keys_of(topic)])
            system.point("offsets-forgotten")

    def append_in_pieces(self, decision: Decision[GroupEntries], number: int, records: list[Record]) -> None:
        """Append tombstones, as many batches as the topic's limit asks for; each may be repeated, so none needs the others."""
        limit = self.topic.partition(number).batch_limit
        start, size = 0, HEADER_BYTES
        for at, record in enumerate(records):
            grown = size + _record_bytes(record)
            if at > start and grown > limit:
                decision.append(records[start:at])
                start, grown = at, HEADER_BYTES + _record_bytes(record)
            size = grown
        if records:
            decision.append(records[start:])


def admitted(old: Group | None, member: GroupMetadata, *, transactional: bool = False) -> Refusal | None:
    """Why a member's commit is not taken."""
    refusal = machine.may_commit(old, member.member_id, member.generation, member.instance_id, transactional=transactional)
    return Refusal.UNKNOWN_MEMBER_ID if refusal is Refusal.GROUP_ID_NOT_FOUND else refusal


def commit_records(group_id: str, wanted: Mapping[TopicPartition, OffsetAndMetadata]) -> list[Record]:
    """The records of a commit."""
    now_ms = system.wall_ms()
    return [(encode_offset_key(group_id, *place), encode_offset(each, now_ms)) for place, each in wanted.items()]


def batch_bytes(records: Iterable[Record]) -> int:
    """No fewer than the batch of these records will have."""
    return HEADER_BYTES + sum(map(_record_bytes, records))


def _record_bytes(record: Record) -> int:
    key, value = record
    return RECORD_BYTES + len(key) + len(value or b"")


def _told(found: Any) -> OffsetAndMetadata | None:
    return None if found is None else OffsetAndMetadata(found.offset, found.metadata, found.leader_epoch)
