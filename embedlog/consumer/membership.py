"""The membership of one consumer in its group, as a sequence of steps: join, lead, take the
assignment, be removed, leave.

- Every step reads the group's record and makes at most one decision. It runs inside a call of the
  user and does not wait: the consumer's own wait, on the group's notice, includes other members.
- A step keeps only its result: after any error the next step starts from the group's record.
- A member that is not in the record has lost its partitions: they are released, and `on_lost` is
  called, before it joins again.
- Listeners are called last: they see the assignment and generation that are valid from then on,
  even if they raise.
- A member commits before it revokes partitions, if it commits automatically.
"""

from __future__ import annotations

import logging
import socket
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

from embedlog import assignors, group
from embedlog._native import system
from embedlog.config.client import ConsumerConfig
from embedlog.consumer import assignment, rebalance_listener
from embedlog.consumer.group_metrics import Rebalances
from embedlog.errors import (
    CommitFailedError,
    EmbedlogError,
    FencedInstanceIdError,
    IllegalGenerationError,
    LeaderNotAvailableError,
    LockTimeoutError,
    NotEnoughReplicasError,
    RebalanceInProgressError,
    StorageError,
    UnknownMemberError,
)
from embedlog.format.consumer_protocol import decode_assignment
from embedlog.group import Group, Member, Refusal, State
from embedlog.telemetry.metrics import Metrics
from embedlog.types import GroupMetadata, TopicPartition, brief

if TYPE_CHECKING:
    from embedlog.consumer.subscription import Subscription
    from embedlog.engine.engine import Engine
    from embedlog.storage.liveness import Lease

logger = logging.getLogger("embedlog.consumer")


NO_MEMBER: Final = ""
NO_GENERATION: Final = -1


class Phase(Enum):
    """The state of a member, in its own view."""

    OUT = "not a member"
    JOINING = "waits for other members to join, or for the leader"
    IN = "reads its assignment"


class OwnedPartitions(Protocol):
    """The assigned partitions, with their positions."""

    def owned(self) -> set[TopicPartition]: ...
    def replace_owned(self, tps: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions; those that stay keep their state."""

    def commit_before_revocation(self, identity: GroupMetadata, deadline_ns: int) -> None:
        """Commit if commits are automatic. Raises LockTimeoutError, and no other error of
        embedlog.
        """


class Membership:
    """One member of one group. Threads: the consumer's own."""

    def __init__(
        self,
        engine: Engine,
        config: ConsumerConfig,
        client_id: str,
        subscription: Subscription,
        partitions: OwnedPartitions,
        ensure_lease: Callable[[], Lease],
        metrics: Metrics,
    ) -> None:
        self.phase = Phase.OUT
        self.generation = NO_GENERATION
        self.member_id = NO_MEMBER
        self.listeners = rebalance_listener.Listeners()
        self.rebalances = Rebalances(metrics)
        self.wants_rejoin = False  # join again without a request of the group
        self.fatal: EmbedlogError | None = None
        self._groups = engine.groups
        self._group_id = str(config.group_id)
        self._config = config
        self._client_id = client_id
        self._subscription = subscription
        self._partitions = partitions
        self._ensure_lease = ensure_lease
        self._strategies = assignment.strategies_of(config.partition_assignment_strategy)
        self._cooperative = assignment.is_cooperative(self._strategies)
        self._joined_with: frozenset[str] = frozenset()  # the topics of the last join
        self._last_assignment: list[TopicPartition] = []
        # the member id with which this consumer held its static membership
        self._static_member_id = NO_MEMBER
        self._prepared = False  # partitions to revoke before this join are revoked
        # The new partitions of an assignment that is being taken: an interrupt leaves them, and the
        # next step takes it again.
        self._arriving: list[TopicPartition] | None = None
        # The partitions that a leave has not told to the listener: an interrupt leaves them, and
        # the next leave tells them.
        self._departing: list[TopicPartition] | None = None
        # the topics as the leader read them for the assignment
        self._leader_topics: Mapping[str, Any] | None = None

    # ---- calls of the consumer -------------------------------------------------------------------

    def identity(self) -> GroupMetadata:
        """The member id and generation for a commit.

        Raises CommitFailedError, RebalanceInProgressError, FencedInstanceIdError.
        """
        self.check_not_fenced()
        if self.phase is Phase.JOINING and self._lacks_assignment():
            raise RebalanceInProgressError(
                f"group {self._group_id!r} is rebalancing: poll until there is an assignment"
            )
        if self.generation == NO_GENERATION:
            raise CommitFailedError(
                f"this consumer is not a member of group {self._group_id!r}: poll to join it"
            )
        return self.metadata()

    def check_not_fenced(self) -> None:
        """Raises FencedInstanceIdError once another consumer has this member's place. It is asked
        before the arguments.
        """
        if self.fatal is not None:
            raise self.fatal

    def keeps_partitions(self) -> bool:
        """Whether this member waits for an assignment, and nobody else gets meanwhile what it has.

        A static member may have missed a round in which others got its partitions, and still be a
        member.
        """
        is_dynamic = self._config.group_instance_id is None
        return (
            self._cooperative
            and is_dynamic
            and self.phase is Phase.JOINING
            and self.generation != NO_GENERATION
        )

    def _lacks_assignment(self) -> bool:
        """Whether the member's generation has ended, and it has no assignment of the next one
        yet.
        """
        if self.generation == NO_GENERATION:
            return True
        group_record = self._groups.read_group(self._group_id)
        return (
            group_record is not None
            and self.member_id in group_record.members
            and group_record.generation != self.generation
        )

    def metadata(self) -> GroupMetadata:
        return GroupMetadata(
            self._group_id, self.generation, self.member_id, self._config.group_instance_id
        )

    def note_topics_changed(self) -> None:
        """Topics may have changed: request a rebalance if the subscription or the leader's input
        changed.
        """
        self._subscription.refresh()
        if self.phase is not Phase.OUT and self._subscription.topics != self._joined_with:
            self.wants_rejoin = True
        # an interrupted unsubscribe released them
        if self.phase is Phase.IN and self._last_assignment and not self._partitions.owned():
            self.wants_rejoin = True
        if (
            self._leader_topics is not None
            and self._topics_of(self._leader_topics) != self._leader_topics
        ):
            self.wants_rejoin = True

    # ---- steps -----------------------------------------------------------------------------------

    def step(self, deadline_ns: int) -> bool:
        """Do one step, if any: True if another may follow at once.

        Raises FencedInstanceIdError, AssignorError, and the group's errors for such a member;
        LockTimeoutError if a lock was not free before the deadline.
        """
        self.check_not_fenced()
        group_record = self._groups.read_group(self._group_id)
        if self.phase is Phase.OUT:
            return self._join(deadline_ns)
        member = None if group_record is None else group_record.members.get(self.member_id)
        if group_record is None or member is None:
            return self._rejoin(group_record)
        if group_record.state is State.PREPARING_REBALANCE:
            if member.joined and not self.wants_rejoin:
                return False
            return self._join(deadline_ns)
        if not member.joined:  # a rebalance was completed without this member
            return self._missed_rebalance()
        if self.wants_rejoin and self.phase is Phase.IN:
            return self._join(deadline_ns)
        self.rebalances.end_join()
        if group_record.state is State.COMPLETING_REBALANCE:
            if group_record.leader != self.member_id:
                return False
            return self._assign_as_leader(group_record, deadline_ns)
        if group_record.state is State.STABLE and (
            self.phase is Phase.JOINING
            or self.generation != group_record.generation
            or self._arriving is not None
        ):
            return self._take_assignment(group_record, member, deadline_ns)
        return False

    def _join(self, deadline_ns: int) -> bool:
        if not self._prepared:
            self._prepare(deadline_ns)
        if not self._subscription.kind:
            return False  # a listener unsubscribed
        lease = self._ensure_lease()
        topics = self._subscription.topics
        rejoining = self.member_id != NO_MEMBER
        member_id = self.member_id
        if not rejoining:
            member_id = f"{self._config.group_instance_id or self._client_id}-{uuid.uuid4()}"
        protocols = assignment.encode_protocols(
            self._strategies,
            topics,
            self._partitions.owned(),
            self._last_assignment,
            self.generation,
            self._config.client_rack,
        )
        member = Member(
            member_id=member_id,
            instance_id=self._config.group_instance_id,
            client_id=self._client_id,
            client_host=f"/{socket.gethostname()}",
            rebalance_timeout_ms=self._config.max_poll_interval_ms,
            session_timeout_ms=self._config.session_timeout_ms,
            protocols=protocols,
            process_slot=lease.process_slot,
        )
        # set first: an interrupt after the append leaves no unknown member
        previous_id = self.member_id
        self.member_id = member_id
        try:
            self._groups.decide(
                self._group_id, lambda old: self._decide_join(old, member, rejoining), deadline_ns
            )
        except UnknownMemberError:
            return self._rejoin(None)
        except FencedInstanceIdError as problem:
            self._fence(problem)
        except StorageError:
            raise  # the record may have been written
        except EmbedlogError:
            self.member_id = previous_id
            raise
        self._static_member_id = member_id
        level = logging.DEBUG if rejoining else logging.INFO
        logger.log(level, "group %r: %r joins for %s", self._group_id, member_id, sorted(topics))
        self.phase = Phase.JOINING
        self.wants_rejoin = False
        self._joined_with = topics
        self._leader_topics = None
        return True

    def _decide_join(self, old: Group | None, member: Member, rejoining: bool) -> Group | Refusal:
        """A static membership that another consumer took over is not taken back: two consumers
        would fence each other in turn.
        """
        holder = None if old is None else old.holder_of(member.instance_id)
        if (
            holder is not None
            and self._static_member_id != NO_MEMBER
            and holder not in (self._static_member_id, member.member_id)
        ):
            return Refusal.FENCED_INSTANCE_ID
        return group.join(old, member, self._groups.limits, system.wall_ms(), rejoining=rejoining)

    def _prepare(self, deadline_ns: int) -> None:
        """Revoke partitions before a join, once per rebalance."""
        self._departing = None
        if self.generation != NO_GENERATION:
            revoked = rebalance_listener.find_revoked(
                self._partitions.owned(), self._cooperative, self._subscription.topics.__contains__
            )
            self._partitions.commit_before_revocation(self.metadata(), deadline_ns)
            if revoked is not None:
                logger.info(
                    "group %r: %r revokes %s for a rebalance",
                    self._group_id,
                    self.member_id,
                    brief(revoked),
                )
                self.listeners.call_revoked(revoked)
                self._partitions.replace_owned(self._partitions.owned() - set(revoked))
        elif self._partitions.owned():
            self._partitions.replace_owned(())  # an interrupt has left what this member had lost
        self._prepared = bool(self._subscription.kind)
        self.rebalances.begin()

    def _assign_as_leader(self, group_record: Group, deadline_ns: int) -> bool:
        """Assign partitions as the leader. An invalid result of the assignor is raised and not sent
        to the group.
        """
        strategy = next(
            strategy for strategy in self._strategies if strategy.name == group_record.protocol
        )
        members = assignment.members_of(group_record)
        topics = self._subscribed_topics(members)
        partitions = {topic: numbers for topic, (_, numbers) in topics.items()}
        assignments = assignment.assign(strategy, members, partitions, self._cooperative)
        generation = group_record.generation
        sync = group.sync
        member_id = self.member_id
        instance_id = self._config.group_instance_id
        try:
            self._groups.decide(
                self._group_id,
                lambda old: sync(
                    old, member_id, generation, instance_id, assignments, system.wall_ms()
                ),
                deadline_ns,
            )
        except (UnknownMemberError, IllegalGenerationError, RebalanceInProgressError):
            return True  # the group changed meanwhile: the next step reads it
        except FencedInstanceIdError as problem:
            self._fence(problem)
        self._leader_topics = topics
        return True

    def _take_assignment(self, group_record: Group, member: Member, deadline_ns: int) -> bool:
        """Take the assignment, and revoke partitions that other members got."""
        assigned = list(decode_assignment(member.assignment))
        unsubscribed = {tp.topic for tp in assigned} - self._subscription.topics
        if unsubscribed:
            logger.warning(
                "group %r assigned %s, which is not subscribed now: joining again",
                self._group_id,
                unsubscribed,
            )
            assigned = [tp for tp in assigned if tp.topic not in unsubscribed]
        moves = rebalance_listener.compute_change(
            self._partitions.owned(), assigned, self._cooperative
        )
        if moves.revoked:
            self._partitions.commit_before_revocation(
                self.metadata()._replace(generation=group_record.generation), deadline_ns
            )
        wants_rejoin = (
            moves.needs_rejoin
            or bool(unsubscribed)
            or self._subscription.topics != self._joined_with
        )
        # replaces a leader that had already assigned
        if group_record.leader == self.member_id and self._leader_topics is None:
            self._leader_topics = self._subscribed_topics(assignment.members_of(group_record))
            wants_rejoin = wants_rejoin or not self._is_assigned_whole(group_record)
        arriving_before = self._arriving or ()
        self._arriving = [tp for tp in assigned if tp in moves.added or tp in arriving_before]
        try:
            self.generation = group_record.generation
            self.phase = Phase.IN
            self._prepared = False
            self._last_assignment = assigned
            self.wants_rejoin = wants_rejoin
            self.rebalances.complete()
            if moves.revoked:
                self.listeners.call_revoked(moves.revoked)
        finally:
            if self.phase is Phase.IN:  # otherwise a listener unsubscribed
                self._partitions.replace_owned(assigned)
        if self.phase is Phase.IN:
            added = self._arriving
            logger.info(
                "group %r, generation %d: %r has %s (new: %s; revoked: %s)",
                self._group_id,
                group_record.generation,
                self.member_id,
                brief(assigned),
                brief(added),
                brief(moves.revoked or ()),
            )
            try:
                self.listeners.call_assigned(added)
            except Exception:
                self._arriving = None
                raise
        self._arriving = None
        return self.wants_rejoin

    def _is_assigned_whole(self, group_record: Group) -> bool:
        """Whether every existing partition is assigned: without a leader, no member noticed new
        ones.
        """
        assigned: set[TopicPartition] = set()
        for member in group_record.members.values():
            assigned.update(decode_assignment(member.assignment))
        topics = self._leader_topics or {}
        return all(
            (name, number) in assigned
            for name, (_, numbers) in topics.items()
            for number in numbers
        )

    # ---- removal from the group ------------------------------------------------------------------

    def _rejoin(self, group_record: Group | None) -> bool:
        """Other members removed this one, or another consumer took over its static membership."""
        instance_id = self._config.group_instance_id
        holder = None if group_record is None else group_record.holder_of(instance_id)
        self.member_id = NO_MEMBER
        if holder is not None:
            self._fence(
                FencedInstanceIdError(
                    f"another consumer has joined group {self._group_id!r} as instance "
                    f"{instance_id!r}",
                    found=holder,
                )
            )
        logger.warning("this consumer was removed from group %r; it joins again", self._group_id)
        self._lose_partitions()
        return True

    def _missed_rebalance(self) -> bool:
        """A rebalance was completed without this (static) member: it keeps its id, but has lost its
        partitions.
        """
        self._lose_partitions()
        return True

    def _lose_partitions(self) -> None:
        owned = sorted(self._partitions.owned())
        self.phase = Phase.OUT
        self.generation = NO_GENERATION
        self._prepared = False
        self._leader_topics = None
        self._arriving = None
        self.rebalances.fail()
        logger.info("group %r: this consumer has lost %s", self._group_id, brief(owned))
        try:
            if owned:
                self.listeners.call_lost(owned)
        finally:
            self._partitions.replace_owned(())

    def _fence(self, problem: FencedInstanceIdError) -> None:
        self.fatal = problem
        self._lose_partitions()
        self.member_id = NO_MEMBER
        raise problem

    def leave_expired(self, deadline_ns: int) -> None:
        """The polls stopped for too long: leave, unless another member removed this one already,
        and join later as a new member.
        """
        self.remove_member(deadline_ns)
        self.member_id = NO_MEMBER
        self._lose_partitions()

    # ---- leaving ---------------------------------------------------------------------------------

    def leave(self, deadline_ns: int) -> None:
        """Revoke all partitions and leave, unless this member is static: its membership is kept for
        its next process.
        """
        if self._departing is None:
            self._departing = sorted(self._partitions.owned())
        owned = self._departing
        try:
            if self.generation != NO_GENERATION:
                self.listeners.call_revoked(owned)
            elif owned:
                self.listeners.call_lost(owned)
            self.generation = NO_GENERATION
            self._departing = []
        finally:
            self._partitions.replace_owned(())
            if self.member_id != NO_MEMBER:
                logger.info(
                    "group %r: %r leaves, and revokes %s",
                    self._group_id,
                    self.member_id,
                    brief(owned),
                )
            self.remove_member(deadline_ns)
        self.phase = Phase.OUT
        self.generation = NO_GENERATION
        self.member_id = NO_MEMBER
        self._static_member_id = NO_MEMBER
        self._prepared = self.wants_rejoin = False
        self._leader_topics = None
        self._last_assignment = []
        self._departing = None

    def remove_member(self, deadline_ns: int) -> None:
        """Remove a dynamic member from the group. If that fails now, other members detect the end
        of its lease.
        """
        if self.member_id == NO_MEMBER or self._config.group_instance_id is not None:
            return
        member_id = self.member_id
        try:
            self._groups.decide(
                self._group_id,
                lambda old: group.leave(old, member_id, system.wall_ms()),
                deadline_ns,
            )
        except (
            UnknownMemberError,
            LockTimeoutError,
            LeaderNotAvailableError,
            NotEnoughReplicasError,
        ) as problem:
            logger.info("leaving group %r: %s", self._group_id, problem)

    # ---- topics ----------------------------------------------------------------------------------

    def _subscribed_topics(
        self, members: Mapping[str, assignors.Member]
    ) -> dict[str, tuple[Any, Sequence[int]]]:
        """Identity and partitions of the existing topics that any of the members subscribes to."""
        return self._topics_of({name for member in members.values() for name in member.topics})

    def _topics_of(self, names: Iterable[str]) -> dict[str, tuple[Any, Sequence[int]]]:
        """Identity and partitions of the existing topics."""
        topics = {}
        for name in sorted(names):
            topic = self._subscription.find_topic(name)
            if topic is not None:
                topics[name] = topic
        return topics
