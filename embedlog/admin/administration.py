"""Defines the administration of an open log, a part of the public `Log`: topics, records, and
groups.

A method calls one part; the work is done in the modules of the parts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from embedlog.admin.topics import TopicAdmin
from embedlog.config import keywords
from embedlog.engine.engine import Engine
from embedlog.types import NewTopic, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from embedlog.admin.groups import GroupAdmin, Scope
    from embedlog.admin.topic_watch import TopicWatch
    from embedlog.config.typed_options import TopicOptions
    from embedlog.descriptions.groups import (
        GroupDescription,
        OpenTransaction,
        TransactionDescription,
    )
    from embedlog.descriptions.topics import TopicDescription


@keywords.part_of("Log")
class Administration:
    """Topics and groups of an open log. Threads: every method may be called from any thread."""

    _topics: TopicAdmin
    _engine: Engine

    @property
    def _groups(self) -> GroupAdmin:
        # late: an opening does not need the modules of groups
        from embedlog.admin.groups import GroupAdmin

        return GroupAdmin(self._engine)

    # ---- transactions ----------------------------------------------------------------------------

    def transactions(self) -> list[TransactionDescription]:
        """The state of every transactional id, sorted by name. Raises CorruptRecordError."""
        from embedlog.admin import transactions  # late, as the modules of groups

        return transactions.describe_all(self._engine)

    def open_transactions(self, topic: str | None = None) -> list[OpenTransaction]:
        """The transactions that are open in the partitions of a topic, or of all topics.

        One without a transactional id is hanging: it was open while the ids were read, and none of
        them will end it. Transactions of producers that are at work always have their id.

        Raises UnknownTopicOrPartitionError, CorruptRecordError.
        """
        from embedlog.admin import transactions

        return transactions.open_in_partitions(self._engine, topic)

    # ---- topics ----------------------------------------------------------------------------------

    def topics(self, include_internal: bool = False) -> list[str]:
        """Names of all topics, sorted; internal ones (`__consumer_offsets`, …) only if
        requested.
        """
        if not isinstance(include_internal, bool):
            raise TypeError(
                f"include_internal is a bool, not {type(include_internal).__name__}; "
                "describe_topic(name) describes one topic"
            )
        return self._topics.names(include_internal)

    def describe_topic(self, name: str, *, available_only: bool = False) -> TopicDescription:
        """A topic's present identity, partitions and own settings.

        A partition of a set without a leader raises LeaderNotAvailableError. With `available_only`
        it is left out, and nothing waits for a leader; `replicas(name)` has all partitions. Raises
        UnknownTopicOrPartitionError.
        """
        return self._topics.describe(name, available_only=available_only)

    def _watch_topics(self) -> TopicWatch:
        """A watch over topics that are described again and again, such as those of a stream. For
        integrations.
        """
        from embedlog.admin.topic_watch import TopicWatch  # late: few programs need it

        return TopicWatch(self._engine)

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        replication_factor: int | None = None,
        assignment: Mapping[int, Sequence[int]] | None = None,
        exist_ok: bool = False,
        **settings: Unpack[TopicOptions],
    ) -> bool:
        """Create a topic; it is on disk, and usable by every process, when this returns. Returns
        whether it was created.

        `partitions` is `num.partitions` of the log if not given. Settings of this topic by Kafka's
        names: `config` is a mapping, keywords have underscores. With `exist_ok` an existing topic
        of this name is accepted, and stays unchanged. It must have at least the given number of
        partitions, and the given settings. Replicas are not compared. In a set of directories,
        `replication_factor` is the number of copies of each partition. `assignment` names their
        directories: see `NewTopic`. Raises InvalidTopicError, TopicExistsError, with `exist_ok`
        TopicMismatchError if the topic contradicts the call; InvalidPartitionsError, ConfigError;
        InvalidReplicationFactorError, InvalidReplicaAssignmentError; ForeignDirectoryError if a
        partition's directory exists already. In a set also LeaderNotAvailableError or
        NotEnoughReplicasError: `__consumer_offsets` may have offsets of a deleted topic of this
        name.
        """
        return self._topics.create(
            NewTopic(name, partitions, config, replication_factor, assignment), settings, exist_ok
        )

    def create_topics(self, topics: Iterable[str | NewTopic], exist_ok: bool = False) -> list[str]:
        """Create several topics, given by name or as NewTopic(name, partitions, config); returns
        the names of the created ones.

        All are checked before anything is written. If one fails, those created before it are
        removed; after a crash the next process completes the creation. Otherwise as `create_topic`.
        """
        return self._topics.create_all(topics, exist_ok)

    def create_partitions(self, name: str, total_count: int) -> None:
        """Raise the number of partitions to `total_count`; it cannot be lowered. Keys then map to
        other partitions than before.

        Raises UnknownTopicOrPartitionError, InvalidPartitionsError.
        """
        self._topics.grow(name, total_count)

    def alter_topic(
        self, name: str, config: Mapping[str, Any] | None = None, **settings: Unpack[TopicOptions]
    ) -> None:
        """Change settings of a topic; the value None resets one to the log's default. Other
        settings are unchanged.

        `config` is a mapping of Kafka's names, keywords have underscores. When this returns, every
        later append of any process goes by the new settings, and every append that went by the old
        ones has ended.

        Raises UnknownTopicOrPartitionError, ConfigError; then nothing has changed. Raises
        LockTimeoutError if an append does not end within `lock.timeout.ms`; then the settings have
        changed.
        """
        self._topics.alter(name, config, **settings)

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records below an offset of each partition (-1: all that can be read); returns
        the new log starts.

        The deletion is on disk when this returns; the next housekeeping removes files. An offset
        below the log start changes nothing. Raises OffsetOutOfRangeError, PolicyViolationError (a
        topic that is only compacted), InvalidTopicError, UnknownTopicOrPartitionError; then nothing
        is deleted in any partition. Raises DurabilityError if the remaining records cannot be
        synced, because the log start must not be ahead of the data on disk. Partitions before that
        one keep their new start.
        """
        return self._topics.delete_records(offsets)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records; a new topic of the same name may be created at once.

        Files are removed after `file.delete.delay.ms`. Raises UnknownTopicOrPartitionError,
        InvalidTopicError, LockTimeoutError (another process is stuck in an append: the topic is
        unusable, and the next change completes the deletion).
        """
        self._topics.delete(name)

    # ---- groups ----------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """The ids of all groups, sorted: those that members have joined, and those with committed
        offsets only.
        """
        return self._groups.names()

    def describe_group(self, group_id: str) -> GroupDescription:
        """State and members, and for each partition the committed offset, the reader and the end.
        Raises GroupNotFoundError.
        """
        return self._groups.describe(group_id)

    def group_offsets(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """A group's committed offsets, by partition; empty if there is no such group."""
        return self._groups.offsets(group_id)

    def keep_group(self, group_id: str) -> None:
        """Exempt a group's offsets from expiry, for a program that stores its progress in them;
        consumers cannot join the group.

        The group need not exist. Raises InconsistentGroupProtocolError for one that consumers have
        joined, InvalidGroupIdError.
        """
        self._groups.keep(group_id)

    def reset_group_offsets(
        self, group_id: str, topics: Scope = None, *, to: Any, dry_run: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Commit other offsets for a group without members; returns them. With `dry_run` nothing is
        written.

        `topics`: a topic, a TopicPartition, several of either, or None for every partition with a
        committed offset. `to` is "earliest", "latest" or "current". An offset. An aware datetime,
        or a timedelta back from now, for the first record since then. `{"shift": n}`, or
        `{"offset": n}`, `{"time": ms}`, `{"duration": "PT1H"}`. Or `{TopicPartition: offset}`. An
        offset outside of the log is moved to its nearer end, with a warning in the program's log.
        The group need not exist.

        Raises GroupNotEmptyError; GroupNotFoundError if there is nothing to reset;
        NoOffsetForPartitionError for a shift without a committed offset;
        UnknownTopicOrPartitionError, ConfigError, InvalidGroupIdError. Then nothing has changed.
        """
        return self._groups.reset_offsets(group_id, topics, to=to, dry_run=dry_run)

    def delete_group(self, group_id: str) -> None:
        """Delete a group and its committed offsets. Raises GroupNotEmptyError,
        GroupNotFoundError.
        """
        self._groups.delete(group_id)

    def delete_group_offsets(self, group_id: str, tps: Iterable[TopicPartition]) -> None:
        """Delete a group's committed offsets for these partitions; partitions without one are
        ignored.

        Raises GroupSubscribedError if its members read one of the topics, GroupNotEmptyError if
        they are not consumers, GroupNotFoundError; then nothing has changed.
        """
        self._groups.delete_offsets(group_id, tps)

    def remove_group_members(
        self, group_id: str, instance_ids: Collection[str] | None = None
    ) -> None:
        """Remove these static members at once, instead of after their session timeout; None: all
        members.

        A removed member that still polls joins again; it can no longer commit offsets of its
        previous assignment. Raises GroupNotFoundError, UnknownMemberError for an unknown instance,
        InconsistentGroupProtocolError; then nothing has changed.
        """
        self._groups.remove_members(group_id, instance_ids)
