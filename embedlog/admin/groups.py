"""Administration of consumer groups: list, describe, reset offsets, delete.

- Reads take no lock and write nothing: they also work on a directory that was opened read-only,
  including a broker's.
- Changes are decided under the lock of the group's partition; a call that raises has changed
  nothing.
- A dynamic member whose process has ended blocks no change: it is evicted before the change, unless
  the change is refused because of the other members.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from embedlog import group as machine
from embedlog._native import system
from embedlog.coordination.groups.commit_checks import (
    check_group_id,
    check_instance_ids,
    refusal_error,
    refuse_share,
)
from embedlog.coordination.groups.group_offset_reset import Target, clamp, parse_target
from embedlog.coordination.groups.member_watch import Watch
from embedlog.coordination.groups.offset_commits import OFFSETS_TOPIC
from embedlog.descriptions.groups import GroupDescription, GroupPartition, MemberDescription
from embedlog.errors import (
    ConfigError,
    CorruptRecordError,
    GroupNotFoundError,
    LeaderNotAvailableError,
    UnknownTopicOrPartitionError,
)
from embedlog.format.consumer_protocol import TYPE, decode_assignment, decode_subscription
from embedlog.topic import check_name
from embedlog.types import (
    OffsetAndMetadata,
    TopicPartition,
    brief,
    topic_partition,
    topic_partitions,
)

if TYPE_CHECKING:
    from embedlog.coordination.groups.kip848_groups import ModernGroup, Parts
    from embedlog.engine.engine import Engine
    from embedlog.group import Group, Member

_logger = logging.getLogger("embedlog")

Scope = str | TopicPartition | Iterable[str | TopicPartition] | None


class GroupAdmin:
    """The administration of groups of one open directory. **Threads**: any; **processes**: a lock
    per partition orders them.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._groups = engine.groups

    # ---- reads -----------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """As `Log.groups`."""
        self._engine.check_open()
        return self._groups.names()

    def describe(self, group_id: str) -> GroupDescription:
        """As `Log.describe_group`."""
        view = self._groups.entries(group_id)
        group = None if view is None else view.group(group_id)
        modern = None if view is None else view.modern(group_id)
        committed = self.offsets(group_id)
        if modern is not None:
            description = _describe_modern(group_id, modern, self._topic_names(modern.topics))
        elif group is not None or committed:
            description = _describe_classic(group_id, group)
        else:
            raise GroupNotFoundError(
                f"no such group: {group_id!r}; a group exists from the first poll() of a member "
                "on, or from its first commit, "
                "and log.groups() has the names of all"
            )
        reader = {
            tp: member.member_id for member in description.members for tp in member.assignment
        }
        # a group that never had a member, and has an offset in __consumer_offsets, counts the
        # batches of a Spark sink: its offsets are no positions of a reader, so it has no lag
        has_internal_offset = any(tp.topic == OFFSETS_TOPIC for tp in committed)
        is_spark_sink = not description.protocol_type and has_internal_offset
        subscribed = self._partitions_of(
            {topic for member in description.members for topic in member.topics}
        )
        partitions = []
        for tp in sorted({*committed, *reader, *subscribed}):
            end = None if is_spark_sink else self._find_end(tp)
            partitions.append(GroupPartition(*tp, committed.get(tp), end, reader.get(tp)))
        return GroupDescription(
            group_id,
            description.state,
            description.type,
            description.protocol_type,
            description.assignor,
            description.generation,
            description.leader,
            description.members,
            tuple(partitions),
        )

    def offsets(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """As `Log.group_offsets`."""
        committed = self._groups.read_committed(group_id)
        return {tp: offset for tp, offset in sorted(committed.items()) if offset is not None}

    def _partitions_of(self, topics: Collection[str]) -> list[TopicPartition]:
        """The partitions of those topics that exist: in a rebalance they are assigned to no member,
        and still are to be read.
        """
        partitions = []
        for name in topics:
            with contextlib.suppress(UnknownTopicOrPartitionError):
                partitions += [
                    TopicPartition(name, number)
                    for number in self._engine.topic(name).usable_numbers
                ]
        return partitions

    def _find_end(self, tp: TopicPartition) -> int | None:
        """The end of a partition; None if there is no such partition, if it has no leader, or if it
        is damaged.
        """
        try:
            partition = self._engine.partition(*tp)
            if not self._engine.is_led(partition):
                return None
            return int(partition.bounds().high_watermark)
        except (CorruptRecordError, LeaderNotAvailableError, UnknownTopicOrPartitionError):
            return None

    def _topic_names(self, named: Mapping[UUID, str]) -> dict[UUID, str]:
        """Names of topics by their ids: those of this directory, and those in a group's own
        records.
        """
        self._engine.refresh_topics()
        topics = self._engine.registry.all()
        return {UUID(bytes=topic.id_bytes): topic.name for topic in topics} | dict(named)

    # ---- retention -------------------------------------------------------------------------------

    def keep(self, group_id: str) -> None:
        """As `Log.keep_group`."""
        self._engine.check_writable()
        self._groups.exempt(group_id)

    # ---- reset -----------------------------------------------------------------------------------

    def reset_offsets(
        self, group_id: str, topics: Scope = None, *, to: object, dry_run: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """As `Log.reset_group_offsets`."""
        if dry_run:
            self._engine.check_open()
        else:
            self._engine.check_writable()
        target = parse_target(to)
        committed = self.offsets(group_id)
        self._check_empty(group_id)
        now_ms = system.wall_ms()
        plan = {
            tp: self._reset_offset(tp, target, committed.get(tp), now_ms)
            for tp in self._select_partitions(group_id, topics, target, committed)
        }
        if not dry_run:
            self._evict_dead(group_id, machine.reset_refusal)
            self._groups.reset(group_id, plan)
            _logger.info("group %r: offsets of %s are reset", group_id, brief(plan))
        return plan

    def _select_partitions(
        self,
        group_id: str,
        topics: Scope,
        target: Target,
        committed: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> list[TopicPartition]:
        if topics is None:
            partitions = target.each or committed
            if not partitions:
                raise GroupNotFoundError(
                    f"group {group_id!r} has no committed offsets: give the argument topics"
                )
            return sorted(partitions)
        if isinstance(topics, str | TopicPartition):
            topics = [topics]
        selected: set[TopicPartition] = set()
        for entry in topics:
            if isinstance(entry, str):
                numbers = self._engine.topic(check_name(entry)).usable_numbers
                selected.update(TopicPartition(entry, number) for number in numbers)
            else:
                selected.add(topic_partition(entry))
        if target.kind == "each" and selected != target.each.keys():
            odd = ", ".join(
                f"{tp.topic}-{tp.partition}" for tp in sorted(selected ^ target.each.keys())
            )
            expected = "an offset for each of the partitions in `topics`, and for no others"
            raise ConfigError("to", expected=expected, found=f"no match for {odd}")
        return sorted(selected)

    def _reset_offset(
        self, tp: TopicPartition, target: Target, committed: OffsetAndMetadata | None, now_ms: int
    ) -> OffsetAndMetadata:
        partition = self._engine.partition(*tp)
        bounds = partition.bounds()
        start = int(bounds.log_start)
        end = int(bounds.high_watermark)
        time_ms = target.time_ms(now_ms)
        record = None if time_ms is None else partition.offset_for_time(time_ms)
        requested = target.offset(
            tp,
            start=start,
            end=end,
            committed=None if committed is None else committed.offset,
            offset_for_time=None if record is None else record.offset,
        )
        offset = requested if target.kind == "current" else clamp(requested, start, end)
        if offset != requested:
            _logger.warning(
                "%s-%d has no offset %d: the group is reset to %d instead", *tp, requested, offset
            )
        return OffsetAndMetadata(offset)

    # ---- deletion --------------------------------------------------------------------------------

    def delete(self, group_id: str) -> None:
        """As `Log.delete_group`."""
        self._engine.check_writable()
        self._evict_dead(group_id, machine.reset_refusal)
        self._groups.delete(group_id)
        _logger.info("group %r is deleted", group_id)

    def delete_offsets(self, group_id: str, tps: Iterable[TopicPartition]) -> None:
        """As `Log.delete_group_offsets`."""
        self._engine.check_writable()
        partitions = topic_partitions(tps)
        topics = {tp.topic for tp in partitions} or {""}  # without any, each member refuses

        def refusal_of(living: Group | None) -> machine.Refusal | None:
            refusals = (machine.offset_deletion_refusal(living, True, topic) for topic in topics)
            return next((refusal for refusal in refusals if refusal is not None), None)

        self._evict_dead(group_id, refusal_of)
        self._groups.delete_offsets(group_id, partitions)
        _logger.info("group %r: offsets of %s are deleted", group_id, brief(partitions))

    def remove_members(self, group_id: str, instance_ids: Collection[str] | None = None) -> None:
        """As `Log.remove_group_members`."""
        checked_ids = None if instance_ids is None else check_instance_ids(instance_ids)
        self._groups.decide(
            group_id, lambda old: machine.remove(old, checked_ids, system.wall_ms())
        )

    # ---- blocking members ------------------------------------------------------------------------

    def _check_empty(self, group_id: str) -> None:
        """Refuse a group with members that live. Nothing is written."""
        check_group_id(group_id)
        view = self._groups.entries(group_id)
        if view is None:
            return
        group = view.group(group_id)
        if not self._engine.read_only:
            group = self._groups.read_living(group_id, self._make_watch())
        modern = view.modern(group_id)
        refuse_share(group_id, modern)
        refusal = machine.reset_refusal(group)
        if modern is not None and modern.members:
            refusal = machine.Refusal.NON_EMPTY_GROUP
        if refusal is not None:
            raise refusal_error(group_id, refusal, group)

    def _evict_dead(
        self, group_id: str, refusal_of: Callable[[Group | None], machine.Refusal | None]
    ) -> None:
        """Evict the members that have ended, unless the change is refused because of the others."""
        check_group_id(group_id)
        watch = self._make_watch()
        if refusal_of(self._groups.read_living(group_id, watch)) is None:
            self._groups.evict(group_id, watch, whole=True)

    def _make_watch(self) -> Watch:
        return Watch(self._engine.transactions.liveness)


# ---- descriptions --------------------------------------------------------------------------------


def _describe_classic(group_id: str, group: Group | None) -> GroupDescription:
    """A group in the older protocol, or one that no member ever joined."""
    if group is None:
        return GroupDescription(group_id, machine.State.EMPTY.label)
    members = tuple(_describe_member(member, group) for member in group.members.values())
    return GroupDescription(
        group_id,
        group.state.label,
        "classic",
        group.protocol_type,
        group.protocol,
        group.generation,
        group.leader,
        members,
    )


def _describe_member(member: Member, group: Group) -> MemberDescription:
    topics: tuple[str, ...] = ()
    assignment: tuple[TopicPartition, ...] = ()
    if group.protocol_type == TYPE:
        try:
            topics = tuple(decode_subscription(member.metadata(group.protocol)).topics)
            assignment = tuple(sorted(decode_assignment(member.assignment)))
        except CorruptRecordError as problem:
            _logger.warning(
                "member %s cannot be read and is shown with no partitions: %s",
                member.member_id,
                problem,
            )
    return MemberDescription(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        topics,
        assignment,
    )


def _describe_modern(
    group_id: str, group: ModernGroup, names: Mapping[UUID, str]
) -> GroupDescription:
    members = tuple(
        MemberDescription(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.topics,
            _partitions_with_names(member.assigned, names),
        )
        for member in group.members.values()
    )
    assignor = next((member.assignor for member in group.members.values() if member.assignor), None)
    protocol = TYPE if group.type == "consumer" else group.type
    return GroupDescription(
        group_id, group.state, group.type, protocol, assignor, group.epoch, None, members
    )


def _partitions_with_names(parts: Parts, names: Mapping[UUID, str]) -> tuple[TopicPartition, ...]:
    partitions = (
        (names.get(topic, str(topic)), number)
        for topic, numbers in parts.items()
        for number in numbers
    )
    return tuple(TopicPartition(*tp) for tp in sorted(partitions))
