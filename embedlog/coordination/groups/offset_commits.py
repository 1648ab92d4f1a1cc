"""Committed offsets of groups: commit, read and delete, in one partition of `__consumer_offsets`
per group.

- A commit is checked under the lock of its group's partition, before it is appended. The check
  covers member, generation, state of the group, and existence of every topic. Offsets of a commit
  are one batch, so all of them count or none.
- A topic that is being deleted is marked on disk before its offsets are deleted. A commit reads the
  file of topics under the lock, so it is never appended after the tombstones.
- Offsets within a transaction count after its marker; a reader of stable offsets waits for it, and
  ends the transaction if its owner has ended.
- A commit changes no notice, so it does not wake followers of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from embedlog import group as machine
from embedlog._native import system
from embedlog.coordination.groups.commit_checks import (
    HEADER_BYTES,
    batch_bytes,
    check_group_id,
    check_identity,
    check_notes,
    check_offsets,
    commit_records,
    member_commit_refusal,
    record_bytes,
    refusal_error,
    refuse_share,
)
from embedlog.coordination.groups.group_view import GroupEntries
from embedlog.coordination.host import Host
from embedlog.coordination.internal_topic import (
    InternalTopic,
    Record,
    TopicDecision,
    java_partition,
)
from embedlog.errors import (
    DeadlineError,
    NotEnoughReplicasError,
    UnknownTopicOrPartitionError,
)
from embedlog.format.record_columns import Stamp
from embedlog.group import Group, Refusal
from embedlog.partition.interposer import ask_before_commit, report_commit
from embedlog.storage.call_deadline import bound_deadline
from embedlog.types import GroupMetadata, OffsetAndMetadata, TopicPartition, topic_partitions

if TYPE_CHECKING:
    from embedlog.coordination.transactions.transaction_coordinator import Transactions
    from embedlog.partition.interfaces import InternalLog

OFFSETS_TOPIC: Final = "__consumer_offsets"
# a commit up to this size is not compared with the limit of the topic, which is far larger by default
SMALL_COMMIT_BYTES: Final = 1 << 14
RESOLVE_S: Final = 0.1  # between two checks of a transaction during a wait for it

T = TypeVar("T")
Admission = Callable[[Group | None], Refusal | None]  # the reason of a group to refuse a write


class Interruptible(Protocol):
    """A waiting caller, which can be interrupted."""

    def raise_if_interrupted(self) -> None: ...


# ---- offsets -------------------------------------------------------------------------------------


class Offsets:
    """The committed offsets of all groups of one open log. Threads: any."""

    def __init__(self, host: Host, transactions: Transactions) -> None:
        config = host.config
        self.host = host
        self.transactions = transactions
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
        """The deadline of a call, or else that of `lock.timeout.ms`."""
        if deadline_ns is not None:
            return deadline_ns
        return bound_deadline(system.boot_ns() + self.host.config.lock_timeout_ms * 1_000_000)

    def entries(self, group_id: str) -> GroupEntries | None:
        """The view of a group's partition; None if the partition was never written. Takes no lock,
        creates nothing. It is for answers to a person: what is acted on comes from `read`
        (`InternalTopic.view`), or from the view under the lock.
        """
        return self.read(group_id, lambda view: view)

    def read(self, group_id: str, select: Callable[[GroupEntries], T]) -> T | None:
        """As `InternalTopic.read`, of a group's partition; None as `entries`."""
        self.host.check_open()
        count = self.topic.partition_count()
        if count == 0:
            return None
        number = java_partition(check_group_id(group_id), count)
        return None if self.topic.is_unwritten(number) else self.topic.read(number, select)

    # ---- commits ---------------------------------------------------------------------------------

    def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        identity: GroupMetadata | None = None,
        deadline_ns: int | None = None,
        topics: Mapping[str, str] | None = None,
    ) -> None:
        """Commit as a member of the group, or without `identity` as no member, which an empty group
        permits. `topics`: the ids of the topics that the offsets are of, by name (`topic_ids`);
        without them those of now. An offset of a deleted topic is none of a newer one of that name.

        Raises UnknownMemberError, IllegalGenerationError, FencedInstanceIdError,
        RebalanceInProgressError, UnknownTopicOrPartitionError, OffsetOutOfRangeError,
        RecordTooLargeError, LockTimeoutError, ReadOnlyError, StorageError; and if commits must
        survive a power loss DurabilityError. After StorageError and DurabilityError the commit may
        have been written.
        """
        member = GroupMetadata(group_id) if identity is None else check_identity(group_id, identity)
        self._commit(
            group_id, offsets, lambda old: member_commit_refusal(old, member), deadline_ns, topics
        )

    def commit_kept_partitions(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        member_id: str,
        deadline_ns: int | None = None,
    ) -> None:
        """As `commit`, of the partitions that a cooperative, dynamic member still has in the midst
        of a rebalance.
        """
        self._commit(
            group_id, offsets, lambda old: machine.kept_commit_refusal(old, member_id), deadline_ns
        )

    def reset(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        deadline_ns: int | None = None,
    ) -> None:
        """As `commit`, by an administrator, while the group is empty. Raises GroupNotEmptyError."""
        self._commit(group_id, offsets, machine.reset_refusal, deadline_ns)

    def _commit(
        self,
        group_id: str,
        offsets: Mapping[Any, Any],
        admission: Admission,
        deadline_ns: int | None,
        topics: Mapping[str, str] | None = None,
    ) -> None:
        self.host.check_writable()
        checked = self.check_arguments(group_id, offsets)
        if not checked:
            return
        topics = self.check_topics(checked, topics)
        records = commit_records(group_id, checked)
        until = self.deadline(deadline_ns)
        number = self.topic.partition_of(group_id)
        self.check_size(number, records)
        raise_if_refused = partial(self.raise_if_refused, group_id, admission)
        ask_before_commit(self.host.interposer, group_id, until)

        def append() -> InternalLog | None:
            return self._append(number, records, checked, topics, raise_if_refused, until)

        partition = self.topic.retry_until_counted(append, until)
        while partition is None:
            self.check_topics(checked, topics)
            partition = self.topic.retry_until_counted(append, until)
        if partition.config.durable:
            partition.sync_to(partition.published().log_end, until)
        report_commit(self.host.interposer, group_id)

    def _append(
        self,
        number: int,
        records: list[Record],
        tps: Iterable[TopicPartition],
        topics: Mapping[str, str],
        raise_if_refused: Callable[[GroupEntries], None],
        deadline_ns: int,
    ) -> InternalLog | None:
        """The partition of the offsets, with them; None if the topics must be read again first.
        `topics`: ids by name.
        """
        with self.topic.lock_for_decision(number, deadline_ns) as decision:
            raise_if_refused(decision.view)
            if not self.has_all_topics_locked(tps, topics):
                return None
            decision.append(records)
            return decision.partition

    def prepare(
        self, offsets: Mapping[Any, Any], group: GroupMetadata
    ) -> TransactionalCommit | None:
        """A commit that becomes part of a transaction; None if there is nothing to commit. Raises
        for its arguments.
        """
        self.host.check_writable()
        checked = self.check_arguments(group.group_id, offsets)
        return TransactionalCommit(self, group, checked) if checked else None

    def check_arguments(
        self, group_id: object, offsets: object
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets to commit. Raises for invalid arguments."""
        check_group_id(group_id)
        checked = check_offsets(offsets)
        check_notes(checked, self.host.config.offset_metadata_max_bytes)
        return checked

    def check_size(self, number: int, records: list[Record]) -> None:
        """Raises RecordTooLargeError for a commit with too large a batch."""
        size = batch_bytes(records)
        if size > SMALL_COMMIT_BYTES:
            self.topic.partition(number).config.check_batch(size, "a commit of offsets")

    def topic_ids(self, tps: Iterable[TopicPartition]) -> dict[str, str]:
        """The ids of the topics as far as this process knows them, by name."""
        known = {name: self.host.registry.get(name) for name in {tp.topic for tp in tps}}
        return {name: topic.topic_id for name, topic in known.items() if topic is not None}

    def check_topics(
        self, tps: Iterable[TopicPartition], topics: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """The ids of the topics by name; reads changes of the topics by other processes. Raises
        UnknownTopicOrPartitionError, also for a topic that has another id than in `topics`.
        """
        first = next(iter(tps), None)
        if first is not None:
            self.host.topic(first.topic)  # one read of the file covers all topics
        return self._check_topics_exist(tps, topics or {})

    def has_all_topics_locked(
        self, tps: Iterable[TopicPartition], topics: Mapping[str, str]
    ) -> bool:
        """Whether all topics exist with these ids, checked under the lock; False requires another
        check without the lock.
        """
        if self.host.registry.has_changed():
            return False
        self._check_topics_exist(tps, topics)
        return True

    def _check_topics_exist(
        self, tps: Iterable[TopicPartition], topics: Mapping[str, str]
    ) -> dict[str, str]:
        counts: dict[str, int] = {}
        ids: dict[str, str] = {}
        for topic, number in tps:
            count = counts.get(topic)
            if count is None:
                found = self.host.registry.live(topic)
                ids[topic] = found.topic_id
                if topics.get(topic, found.topic_id) != found.topic_id:
                    raise UnknownTopicOrPartitionError(
                        f"topic {topic!r} was deleted, and another one has its name: the offsets "
                        "are those of the deleted one",
                        path=self.host.path,
                        expected=topics[topic],
                        found=found.topic_id,
                    )
                count = counts[topic] = found.partitions
            if not 0 <= number < count:
                raise UnknownTopicOrPartitionError(
                    f"topic {topic!r} has no partition {number}",
                    path=self.host.path,
                    expected=f"0 to {count - 1}",
                    found=number,
                )
        return ids

    @staticmethod
    def raise_if_refused(group_id: str, admission: Admission, view: GroupEntries) -> None:
        """Raises the reason to refuse a write to this group now."""
        old = view.group(group_id)
        refusal = admission(old)
        modern = view.modern(group_id)
        refuse_share(group_id, modern)
        if refusal is None and modern is not None and modern.members:
            refusal = Refusal.UNKNOWN_MEMBER_ID
        if refusal is not None:
            raise refusal_error(group_id, refusal, old)

    # ---- reads -----------------------------------------------------------------------------------

    def read_committed(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        stable_deadline_ns: int | None = None,
        caller: Interruptible | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets: for these partitions, with None for missing ones, or all
        of them.

        With a deadline it waits for transactions with offsets of these partitions, and raises
        DeadlineError; without one it returns the current offsets. An exception of
        `caller.raise_if_interrupted()` ends the wait; it is called after every
        `Engine.wake(caller)`.
        """
        tps = None if partitions is None else topic_partitions(partitions)
        caller = caller or _Uninterrupted()
        while stable_deadline_ns is not None:
            undecided = self.read(group_id, lambda view: view.pending(group_id))
            if not undecided or (tps is not None and undecided.isdisjoint(tps)):
                break
            self._wait_for_marker(group_id, stable_deadline_ns, caller)
        offsets = self.read(group_id, lambda view: _offsets(view, group_id, tps))
        return dict.fromkeys(tps or ()) if offsets is None else offsets

    def _wait_for_marker(self, group_id: str, deadline_ns: int, caller: Interruptible) -> None:
        partition = self.topic.partition(java_partition(group_id, self.topic.partition_count()))
        stable = partition.bounds().last_stable
        if self.transactions.resolve(partition):
            return
        remaining_s = (deadline_ns - system.boot_ns()) / 1e9
        if remaining_s <= 0:
            ids = ", ".join(map(repr, self.transactions.open_in(partition)))
            raise DeadlineError(
                f"group {group_id!r}: offsets of an undecided transaction "
                f"(UNSTABLE_OFFSET_COMMIT); open: transactional id {ids}",
                expected="a commit or abort by its producer, or the end of transaction.timeout.ms",
            )
        caller.raise_if_interrupted()
        self.host.wait([(partition, stable)], min(remaining_s, RESOLVE_S), caller, committed=True)

    # ---- deletion --------------------------------------------------------------------------------

    def forget_topics(
        self,
        topics: Collection[str],
        deadline_ns: int,
        is_deleted: Callable[[str], bool] = lambda name: True,
    ) -> None:
        """Delete every group's offsets for topics that are marked as deleted, including those of
        open transactions.

        `is_deleted` is called under each lock: the offsets of a newer topic of this name are kept.
        May be repeated. Every partition's lock is taken once: an earlier holder has read the topics
        before the mark. Raises LockTimeoutError; LeaderNotAvailableError and NotEnoughReplicasError
        for a partition of a set that may have such offsets.
        """
        for number in self.topic.written_partitions():
            forget = partial(self._forget_topics, number, topics, deadline_ns, is_deleted)
            problem = self.topic.retry_until_counted(forget, deadline_ns)
            if problem is not None:
                raise problem
            system.point("offsets-forgotten")

    def _forget_topics(
        self,
        number: int,
        topics: Collection[str],
        deadline_ns: int,
        is_deleted: Callable[[str], bool],
    ) -> NotEnoughReplicasError | None:
        """As `forget_topics`, in one partition. Returns NotEnoughReplicasError: if it were raised, the
        caller's `retry_until_counted` would repeat the attempt.
        """
        try:
            with self.topic.lock_for_decision(number, deadline_ns) as decision:
                keys = decision.view.keys_of(topics)
                tombstones: list[Record] = [
                    (key, None) for topic in keys if is_deleted(topic) for key in keys[topic]
                ]
                self.append_in_pieces(decision, number, tombstones)
        except NotEnoughReplicasError as problem:
            return problem
        return None

    def append_in_pieces(
        self, decision: TopicDecision[GroupEntries], number: int, records: list[Record]
    ) -> None:
        """Append tombstones, in as many batches as the topic's limit requires; each may be repeated
        independently.
        """
        limit = self.topic.partition(number).batch_limit
        start = 0
        size = HEADER_BYTES
        for index, record in enumerate(records):
            grown = size + record_bytes(record)
            if index > start and grown > limit:
                decision.append(records[start:index])
                start = index
                grown = HEADER_BYTES + record_bytes(record)
            size = grown
        if records:
            decision.append(records[start:])


class _Uninterrupted:
    """A caller that is never interrupted."""

    def raise_if_interrupted(self) -> None:
        pass


class TransactionalCommit:
    """A group's offsets that become part of a transaction. Used by one thread."""

    def __init__(
        self,
        offsets: Offsets,
        group: GroupMetadata,
        checked: dict[TopicPartition, OffsetAndMetadata],
    ) -> None:
        self._offsets = offsets
        self._group = group
        self._wanted = checked
        self._topics = offsets.check_topics(checked)
        self._records = commit_records(group.group_id, checked)
        self.number = offsets.topic.partition_of(group.group_id)
        self.topic = offsets.topic.name
        self.end = 0  # offset after it
        offsets.check_size(self.number, self._records)

    @property
    def partition(self) -> InternalLog:
        """The partition of the group's offsets."""
        return self._offsets.topic.partition(self.number)

    def check(self) -> None:
        """Check group and topics without locks. Raises the errors of a refusal."""
        self._offsets.check_topics(self._wanted, self._topics)
        self._raise_if_refused(self._offsets.topic.view(self.number))

    def append(self, stamp: Stamp, deadline_ns: int) -> bool:
        """Append the commit; False if it must be checked again. A repetition asks the interposer again;
        the owner of the transaction reports the commit. Raises as `check`, FencedError,
        LockTimeoutError.

        It may be repeated: the same offsets count once in a transaction.
        """
        ask_before_commit(self._offsets.host.interposer, self._group.group_id, deadline_ns)
        return self._offsets.topic.retry_until_counted(
            lambda: self._append(stamp, deadline_ns), deadline_ns, idempotent=True
        )

    def _append(self, stamp: Stamp, deadline_ns: int) -> bool:
        with self._offsets.topic.lock_for_decision(self.number, deadline_ns) as decision:
            self._raise_if_refused(decision.view)
            if not self._offsets.has_all_topics_locked(self._wanted, self._topics):
                return False
            decision.append_stamped(self._records, stamp)
        self.end = decision.end
        return True

    def wait(self, deadline_ns: int) -> None:
        """Wait until the partition's lock is free."""
        with self.partition.exclusive(deadline_ns):
            pass

    def _raise_if_refused(self, view: GroupEntries) -> None:
        Offsets.raise_if_refused(
            self._group.group_id,
            lambda old: member_commit_refusal(old, self._group, transactional=True),
            view,
        )


def _offsets(
    view: GroupEntries, group_id: str, tps: Iterable[TopicPartition] | None
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    if tps is None:
        return {
            tp: _offset_and_metadata(committed) for tp, committed in view.offsets(group_id).items()
        }
    return {tp: _offset_and_metadata(view.offset(group_id, tp)) for tp in tps}


def _offset_and_metadata(committed: Any) -> OffsetAndMetadata | None:
    if committed is None:
        return None
    return OffsetAndMetadata(committed.offset, committed.metadata, committed.leader_epoch)
