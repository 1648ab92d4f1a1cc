"""Groups of consumers without a coordinator: who wants something of a group decides it, from the group's newest record.

GROUPCOORDINATOR-1  every act is: lock the partition of `__consumer_offsets` that the group lies in, catch up, ask the pure rules
    (`group`), append the outcome as one batch; who is refused has written nothing
GROUPCOORDINATOR-2  who follows a group looks without a lock, and is woken by the notice of its partition, which moves with groups
    and not with commits
GROUPCOORDINATOR-3  members are evicted by whoever sees that they are gone, after looking once more under the lock; the
    housekeeper sees to groups that nobody else looks at
GROUPCOORDINATOR-4  what nobody has wanted for `offsets.retention.minutes` is forgotten by Kafka's rules, counted from the later
    of the commit and the moment in which the group lost its last member; never while a transaction holds offsets of the group,
    and never what belongs to a group of `KEPT_TYPE`
GROUPCOORDINATOR-5  groups of Kafka's newer protocol are read, never changed
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from embedlog import _logging
from embedlog import group as machine
from embedlog._native import system
from embedlog.coordination.groups.commit_checks import checked_group_id, refused
from embedlog.coordination.groups.group_records import Committed, encode_group, encode_group_key, encode_offset_key
from embedlog.coordination.groups.group_view import GroupEntries
from embedlog.coordination.groups.member_watch import Watch
from embedlog.coordination.groups.offset_commits import Offsets
from embedlog.coordination.host import Host
from embedlog.coordination.internal_topic import Record
from embedlog.errors import EmbedlogError, InconsistentGroupProtocolError, ReadOnlyError
from embedlog.group import Group, Limits, Refusal, State
from embedlog.types import TopicPartition

if TYPE_CHECKING:
    from embedlog.coordination.transactions.transaction_coordinator import Transactions

logger = logging.getLogger("embedlog")

KEPT_TYPE: Final = "embedlog"  # protocol type of groups that are nobody's to expire: offsets that a sink remembers its work by
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

    # ---- looking ---------------------------------------------------------------------------------

    def look(self, group_id: str) -> Group | None:
        """The group as it is now; no lock is taken, nothing is written. Raises CorruptRecordError, UnsupportedFormatError."""
        view = self.entries(group_id)
        return None if view is None else view.group(group_id)

    def names(self) -> list[str]:
        """Every group that has a record or offsets, sorted; those of Kafka's newer protocol, too."""
        self.host.check_open()
        return sorted(name for number in self.topic.written() for name in self.topic.look(number).groups())

    # ---- deciding --------------------------------------------------------------------------------

    def decide(self, group_id: str, event: Event, deadline_ns: int | None = None) -> Group | None:
        """What an event makes of a group, appended if it changes anything; what there was if the event has nothing to say.

        Raises what a `Refusal` stands for (`commit_checks.KINDS`), LockTimeoutError, ReadOnlyError, StorageError,
        RecordTooLargeError; InconsistentGroupProtocolError for a group of Kafka's newer protocol.
        """
        self.host.check_writable()
        number = self.topic.partition_of(checked_group_id(group_id))
        with self.topic.deciding(number, self.deadline(deadline_ns)) as decision:
            old = decision.view.group(group_id)
            new = event(old)
            if isinstance(new, Refusal):
                raise refused(group_id, new, old)
            if new is None or new is old:
                return old
            self._refuse_modern(decision.view, group_id)
            if old is not None and old.protocol_type == KEPT_TYPE != new.protocol_type:
                raise InconsistentGroupProtocolError(f"group {group_id!r} keeps offsets of a program's own: nobody can join it")
            records: list[Record] = [(encode_group_key(group_id), encode_group(new))]
            self.check_size(number, records)
            decision.append(records, notice=True)
            decision.view.keep(group_id, new)
            return new

    def exempt(self, group_id: str, deadline_ns: int | None = None) -> Group | None:
        """Make a group whose offsets never expire, for programs that remember their work by them; nobody can join it.

        Raises InconsistentGroupProtocolError for one that consumers have joined, and as `decide`.
        """

        def event(old: Group | None) -> Group | Refusal:
            if old is not None and old.protocol_type not in ("", KEPT_TYPE):
                return Refusal.INCONSISTENT_GROUP_PROTOCOL
            return old if old is not None and old.protocol_type else Group(KEPT_TYPE, changed_ms=system.wall_ms())

        return self.decide(group_id, event, deadline_ns)

    def evict(
        self, group_id: str, watch: Watch, me: str | None = None, whole: bool = False, deadline_ns: int | None = None
    ) -> Group | None:
        """Evict who is gone, as far as the observer's memory tells; the group as it is then. Raises as `decide`."""
        found = self.look(group_id)
        if found is None or not found.members:
            return found
        verdicts = watch.verdicts(found, me, whole)
        if not verdicts:
            return found

        def event(old: Group | None) -> Group | None:
            confirmed = watch.confirm(old, verdicts) if old is not None else {}
            if old is None or not confirmed:
                return old
            new = machine.evict(old, confirmed, system.wall_ms())
            gone = ", ".join(f"{each} ({verdict.value})" for each, verdict in confirmed.items() if each not in new.members)
            if gone:
                logger.info("group %r goes on without %s", group_id, gone)
            return new

        return self.decide(group_id, event, deadline_ns)

    # ---- deleting --------------------------------------------------------------------------------

    def delete(self, group_id: str, deadline_ns: int | None = None) -> None:
        """Forget a group and its offsets. Raises GroupNotEmptyError, GroupNotFoundError, and as `decide`."""
        self.host.check_writable()
        checked_group_id(group_id)
        number = self.topic.partition_of(group_id)
        with self.topic.deciding(number, self.deadline(deadline_ns)) as decision:
            view, old = decision.view, decision.view.group(group_id)
            self._refuse_modern(view, group_id)
            places = {*view.partitions(group_id), *view.pending(group_id)}
            refusal = machine.may_delete(old, bool(places))
            if refusal is not None:
                raise refused(group_id, refusal, old)
            tombstones = _tombstones(group_id, places, True)  # a broker has made a group of offsets alone
            self.append_in_pieces(decision, number, tombstones)

    def delete_offsets(self, group_id: str, partitions: Iterable[TopicPartition], deadline_ns: int | None = None) -> None:
        """Forget offsets; what is not committed is nothing to forget.

        Raises GroupSubscribedError for a topic that members read, GroupNotEmptyError, GroupNotFoundError, and as `decide`.
        """
        self.host.check_writable()
        checked_group_id(group_id)
        wanted = {TopicPartition(*place) for place in partitions}
        number = self.topic.partition_of(group_id)
        with self.topic.deciding(number, self.deadline(deadline_ns)) as decision:
            view, old = decision.view, decision.view.group(group_id)
            self._refuse_modern(view, group_id)
            places = {*view.partitions(group_id), *view.pending(group_id)}
            for topic in sorted({place.topic for place in wanted}) or [""]:
                refusal = machine.may_delete_offsets(old, bool(places), topic)
                if refusal is not None:
                    raise refused(group_id, refusal, old)
            self.append_in_pieces(decision, number, _tombstones(group_id, places & wanted, False))

    @staticmethod
    def _refuse_modern(view: GroupEntries, group_id: str) -> None:
        if view.modern(group_id) is not None:
            raise InconsistentGroupProtocolError(f"group {group_id!r} is one of Kafka's newer protocol, which is only read")

    # ---- housekeeping ----------------------------------------------------------------------------

    def look_after(self) -> None:
        """Evict who is gone from every group, as far as this process has seen it by now. What fails is reported and tried again.

        Threads: one at a time.
        """
        watches: dict[str, Watch] = {}
        for number in self.topic.written():
            view = self.topic.look(number)
            for name in view.groups():
                try:
                    group = view.group(name)
                    if group is not None and group.members:
                        watches[name] = self._watches.get(name) or Watch(self.transactions.liveness)
                        self.evict(name, watches[name], whole=True)
                except EmbedlogError as problem:
                    _logging.report(logger, logging.WARNING, (self.host.path, "group", name), f"group {name!r}", problem)
        self._watches = watches

    def expire(self, deadline_ns: int | None = None) -> int:
        """Forget what nobody has wanted for so long (GROUPCOORDINATOR-4); how many offsets and groups that were."""
        if self.host.read_only:
            raise ReadOnlyError("the log was opened read-only; without read_only=True it can be changed", path=self.host.path)
        until, count, now_ms = self.deadline(deadline_ns), 0, system.wall_ms()
        for number in self.topic.written():
            view = self.topic.look(number)
            names = [name for name in view.groups() if self._expired(view, name, now_ms)]
            if names:
                with self.topic.deciding(number, until) as decision:
                    records = [record for name in names for record in self._expired(decision.view, name, now_ms)]
                    self.append_in_pieces(decision, number, records)
                count += len(records)
        return count

    def _expired(self, view: GroupEntries, name: str, now_ms: int) -> list[Record]:
        """The tombstones of what is to be forgotten of a group."""
        try:
            group, committed = view.group(name), view.offsets(name)
        except EmbedlogError as problem:
            what = f"group {name!r} cannot be read, and is kept"
            _logging.report(logger, logging.ERROR, (self.host.path, "expiry", name), what, problem)
            return []
        if view.modern(name) is not None or (group is not None and group.protocol_type == KEPT_TYPE) or view.pending(name):
            return []
        topics = machine.subscribed(group)
        due = {place for place, each in committed.items() if self._is_due(group, topics, place, each, now_ms)}
        empty = len(due) == len(committed) if group is None else group.state is State.EMPTY and len(due) == len(committed)
        return _tombstones(name, due, empty)

    def _is_due(
        self, group: Group | None, topics: frozenset[str], place: TopicPartition, committed: Committed, now_ms: int
    ) -> bool:
        since_ms = machine.expires_from_ms(group, topics, place.topic, committed.commit_ms)
        if since_ms is None:
            return False
        if committed.expire_ms >= 0:
            return now_ms >= committed.expire_ms
        return now_ms - since_ms >= self.host.config.offsets_retention_minutes * MINUTE_MS


def _tombstones(group_id: str, places: Iterable[TopicPartition], group: bool) -> list[Record]:
    records: list[Record] = [(encode_offset_key(group_id, *place), None) for place in sorted(places)]
    return [*records, (encode_group_key(group_id), None)] if group else records
