"""Consumer groups without a coordinator process: each process decides its requests, from the
group's newest record.

- Every request locks the group's partition of `__consumer_offsets`, catches up, applies the pure
  rules (`group`), and appends the outcome as one batch. A refusal writes nothing.
- Followers of a group read without a lock, and are woken by the notice of its partition, which
  changes with groups, not with commits.
- A member is evicted by the first process that detects its end, after another check under the lock;
  the housekeeper checks groups without active members.
- After `offsets.retention.minutes` unused offsets are removed by Kafka's rules. The time counts
  from the commit, or from the loss of the group's last member if that is later. Offsets are kept
  while a transaction contains offsets of the group, and in a group of `KEPT_TYPE`.
- Groups of Kafka's newer protocol are read, never changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from embedlog import group as machine
from embedlog._native import system
from embedlog.coordination.groups.commit_checks import check_group_id, refusal_error
from embedlog.coordination.groups.group_records import (
    Committed,
    encode_group,
    encode_group_key,
    encode_offset_key,
)
from embedlog.coordination.groups.group_view import GroupEntries
from embedlog.coordination.groups.member_watch import Watch
from embedlog.coordination.groups.offset_commits import Offsets
from embedlog.coordination.host import Host
from embedlog.coordination.internal_topic import Record
from embedlog.errors import (
    ClosedError,
    EmbedlogError,
    InconsistentGroupProtocolError,
    ReadOnlyError,
)
from embedlog.group import Group, Limits, Refusal, State
from embedlog.telemetry import log_messages
from embedlog.types import TopicPartition

if TYPE_CHECKING:
    from embedlog.coordination.transactions.transaction_coordinator import Transactions

logger = logging.getLogger("embedlog")


# protocol type of groups that never expire: a sink stores its progress in their offsets
KEPT_TYPE: Final = "embedlog"
MINUTE_MS: Final = 60_000

Event = Callable[[Group | None], Group | Refusal | None]


class Groups(Offsets):
    """The groups of one open log. Threads: any."""

    def __init__(self, host: Host, transactions: Transactions) -> None:
        super().__init__(host, transactions)
        config = host.config
        self.limits = Limits(
            config.group_min_session_timeout_ms,
            config.group_max_session_timeout_ms,
            config.group_max_size,
            config.group_initial_rebalance_delay_ms,
        )
        self._watches: dict[str, Watch] = {}  # of the housekeeper's thread

    # ---- reads -----------------------------------------------------------------------------------

    def read_group(self, group_id: str) -> Group | None:
        """The current group; takes no lock and writes nothing. Raises CorruptRecordError,
        UnsupportedFormatError.
        """
        return self.read(group_id, lambda view: view.group(group_id))

    def names(self) -> list[str]:
        """Every group with a record or offsets, sorted, including those of Kafka's newer
        protocol.
        """
        self.host.check_open()
        return sorted(
            name
            for number in self.topic.written_partitions()
            for name in self.topic.view(number).groups()
        )

    # ---- decisions -------------------------------------------------------------------------------

    def decide(self, group_id: str, event: Event, deadline_ns: int | None = None) -> Group | None:
        """Apply an event to a group, and append the result if it is a change; the old group if the
        event does not apply.

        Raises the error of a `Refusal` (`commit_checks.KINDS`), LockTimeoutError, ReadOnlyError,
        StorageError, RecordTooLargeError; InconsistentGroupProtocolError for a group of Kafka's
        newer protocol.
        """
        self.host.check_writable()
        until = self.deadline(deadline_ns)
        return self.topic.retry_until_counted(lambda: self._decide(group_id, event, until), until)

    def _decide(self, group_id: str, event: Event, deadline_ns: int) -> Group | None:
        number = self.topic.partition_of(check_group_id(group_id))
        with self.topic.lock_for_decision(number, deadline_ns) as decision:
            old = decision.view.group(group_id)
            new = event(old)
            if isinstance(new, Refusal):
                raise refusal_error(group_id, new, old)
            if new is None or new is old:
                return old
            self._refuse_modern(decision.view, group_id)
            if old is not None and old.protocol_type == KEPT_TYPE != new.protocol_type:
                raise InconsistentGroupProtocolError(
                    f"group {group_id!r} keeps offsets of a program: consumers cannot join it"
                )
            records: list[Record] = [(encode_group_key(group_id), encode_group(new))]
            self.check_size(number, records)
            decision.append(records, wake=True)
            decision.view.keep(group_id, new)
            return new

    def exempt(self, group_id: str, deadline_ns: int | None = None) -> Group | None:
        """Create a group whose offsets never expire, for programs that store their progress in
        them; consumers cannot join it.

        Raises InconsistentGroupProtocolError for a group that consumers have joined, and as
        `decide`.
        """

        def event(old: Group | None) -> Group | Refusal:
            if old is not None and old.protocol_type not in ("", KEPT_TYPE):
                return Refusal.INCONSISTENT_GROUP_PROTOCOL
            if old is not None and old.protocol_type:
                return old
            return Group(KEPT_TYPE, changed_ms=system.wall_ms())

        return self.decide(group_id, event, deadline_ns)

    def evict(
        self,
        group_id: str,
        watch: Watch,
        me: str | None = None,
        whole: bool = False,
        deadline_ns: int | None = None,
    ) -> Group | None:
        """Evict members that have ended according to the observer; returns the group afterwards.
        Raises as `decide`.
        """
        group = self.read_group(group_id)
        if group is None or not group.members:
            return group
        verdicts = watch.find_verdicts(group, me, whole)
        if not verdicts:
            return group

        def event(old: Group | None) -> Group | None:
            if old is None:
                return None
            confirmed = watch.confirm(old, verdicts)
            if not confirmed:
                return old
            new = machine.evict(old, confirmed, system.wall_ms())
            removed = ", ".join(
                f"{member_id} ({verdict.value})"
                for member_id, verdict in confirmed.items()
                if member_id not in new.members
            )
            if removed:
                logger.info("group %r continues without %s", group_id, removed)
            return new

        return self.decide(group_id, event, deadline_ns)

    def read_living(self, group_id: str, watch: Watch) -> Group | None:
        """The group as an eviction of all members that have ended would leave it. Nothing is
        written.
        """
        group = self.read_group(group_id)
        if group is None or not group.members:
            return group
        verdicts = watch.find_verdicts(group, None, covers_all=True)
        return machine.evict(group, verdicts, system.wall_ms()) if verdicts else group

    # ---- deletion --------------------------------------------------------------------------------

    def delete(self, group_id: str, deadline_ns: int | None = None) -> None:
        """Delete a group and its offsets. Raises GroupNotEmptyError, GroupNotFoundError, and as
        `decide`.
        """
        self.host.check_writable()
        check_group_id(group_id)
        until = self.deadline(deadline_ns)
        self.topic.retry_until_counted(lambda: self._delete(group_id, until), until)

    def _delete(self, group_id: str, deadline_ns: int) -> None:
        number = self.topic.partition_of(group_id)
        with self.topic.lock_for_decision(number, deadline_ns) as decision:
            view = decision.view
            old = decision.view.group(group_id)
            self._refuse_modern(view, group_id)
            tps = {*view.partitions(group_id), *view.pending(group_id)}
            refusal = machine.deletion_refusal(old, bool(tps))
            if refusal is not None:
                raise refusal_error(group_id, refusal, old)
            # a broker may have created a group from offsets alone
            tombstones = _make_tombstones(group_id, tps, True)
            self.append_in_pieces(decision, number, tombstones)

    def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], deadline_ns: int | None = None
    ) -> None:
        """Delete offsets; partitions without a committed offset are ignored.

        Raises GroupSubscribedError for a topic that members read, GroupNotEmptyError,
        GroupNotFoundError, and as `decide`.
        """
        self.host.check_writable()
        check_group_id(group_id)
        tps = {TopicPartition(*tp) for tp in partitions}
        until = self.deadline(deadline_ns)
        self.topic.retry_until_counted(lambda: self._delete_offsets(group_id, tps, until), until)

    def _delete_offsets(self, group_id: str, tps: set[TopicPartition], deadline_ns: int) -> None:
        number = self.topic.partition_of(group_id)
        with self.topic.lock_for_decision(number, deadline_ns) as decision:
            view = decision.view
            old = decision.view.group(group_id)
            self._refuse_modern(view, group_id)
            committed = {*view.partitions(group_id), *view.pending(group_id)}
            for topic in sorted({tp.topic for tp in tps}) or [""]:
                refusal = machine.offset_deletion_refusal(old, bool(committed), topic)
                if refusal is not None:
                    raise refusal_error(group_id, refusal, old)
            self.append_in_pieces(
                decision, number, _make_tombstones(group_id, committed & tps, False)
            )

    @staticmethod
    def _refuse_modern(view: GroupEntries, group_id: str) -> None:
        group = view.modern(group_id)
        if group is not None:
            text = (
                f"is a {group.type} group of Kafka's newer protocol: only a broker changes it; "
                "choose another group id"
            )
            raise InconsistentGroupProtocolError(f"{group_id!r} {text}")

    # ---- housekeeping ----------------------------------------------------------------------------

    def housekeep(self) -> None:
        """In all groups, evict members whose process has ended, as far as detectable here. Failures
        are reported and tried again.

        Threads: one at a time.
        """
        self._watches = self._evict_ended(self._watches)

    def evict_ended(self) -> None:
        """As `housekeep`, for what one observation shows: ended processes, and members whose polls
        stopped. Threads: any.
        """
        if not self.host.read_only:
            self._evict_ended({})

    def _evict_ended(self, watches_before: Mapping[str, Watch]) -> dict[str, Watch]:
        watches: dict[str, Watch] = {}
        for number in self.topic.written_partitions():
            view = self.topic.view(number)
            for name in view.groups():
                try:
                    group = view.group(name)
                    if group is not None and group.members:
                        watches[name] = watches_before.get(name) or Watch(
                            self.transactions.liveness
                        )
                        self.evict(name, watches[name], whole=True)
                except ClosedError:  # the log is closed during this round
                    return watches
                except EmbedlogError as problem:
                    log_messages.report(
                        logger,
                        logging.WARNING,
                        (self.host.path, "group", name),
                        f"group {name!r}",
                        problem,
                    )
        return watches

    def expire(self, deadline_ns: int | None = None) -> int:
        """Remove unused offsets and groups; returns their number."""
        if self.host.read_only:
            raise ReadOnlyError(
                "the log was opened read-only; open it without read_only=True to change it",
                path=self.host.path,
            )
        until = self.deadline(deadline_ns)
        count = 0
        now_ms = system.wall_ms()
        for number in self.topic.written_partitions():
            view = self.topic.view(number)
            names = [
                name for name in view.groups() if self._make_expiry_tombstones(view, name, now_ms)
            ]
            if not names:
                continue
            records: list[Record] = []
            with self.topic.lock_for_decision(number, until) as decision:
                for name in names:
                    records += self._make_expiry_tombstones(decision.view, name, now_ms)
                self.append_in_pieces(decision, number, records)
            count += len(records)
        return count

    def _make_expiry_tombstones(self, view: GroupEntries, name: str, now_ms: int) -> list[Record]:
        """The tombstones of a group's expired offsets."""
        try:
            group = view.group(name)
            committed = view.offsets(name)
        except EmbedlogError as problem:
            message = f"group {name!r} cannot be read and is not expired"
            log_messages.report(
                logger, logging.ERROR, (self.host.path, "expiry", name), message, problem
            )
            return []
        if (
            view.modern(name) is not None
            or (group is not None and group.protocol_type == KEPT_TYPE)
            or view.pending(name)
        ):
            return []
        topics = machine.subscribed_topics(group)
        due = {
            tp
            for tp, offset in committed.items()
            if self._is_due(group, topics, tp, offset, now_ms)
        }
        has_members = group is not None and group.state is not State.EMPTY
        is_unused = len(due) == len(committed) and not has_members
        return _make_tombstones(name, due, is_unused)

    def _is_due(
        self,
        group: Group | None,
        topics: frozenset[str],
        tp: TopicPartition,
        committed: Committed,
        now_ms: int,
    ) -> bool:
        since_ms = machine.expires_from_ms(group, topics, tp.topic, committed.commit_ms)
        if since_ms is None:
            return False
        if committed.expire_ms >= 0:
            return now_ms >= committed.expire_ms
        return now_ms - since_ms >= self.host.config.offsets_retention_minutes * MINUTE_MS


def _make_tombstones(
    group_id: str, tps: Iterable[TopicPartition], includes_group: bool
) -> list[Record]:
    records: list[Record] = [(encode_offset_key(group_id, *tp), None) for tp in sorted(tps)]
    return [*records, (encode_group_key(group_id), None)] if includes_group else records
