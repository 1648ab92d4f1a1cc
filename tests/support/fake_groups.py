"""Groups in memory, for tests of members: the real rules over a dictionary, no files, leases that
tests can end.

Several consumers of one thread are members of one group here, polled by turns: the result is the
same every time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from embedlog import group as machine
from embedlog.consumer.consumer import Consumer
from embedlog.consumer.membership import Phase
from embedlog.coordination.groups.commit_checks import (
    check_offsets,
    member_commit_refusal,
    refusal_error,
)
from embedlog.errors import (
    DeadlineError,
    ListenerError,
    LockTimeoutError,
    UnknownTopicOrPartitionError,
)
from embedlog.format.process_slot import ProcessSlot
from embedlog.group import Group, Limits, Refusal, kept_commit_refusal
from embedlog.storage.liveness import SlotState
from embedlog.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from tests.support.fake_engine import FakeEngine

A0 = TopicPartition("a", 0)
A1 = TopicPartition("a", 1)
B0 = TopicPartition("b", 0)
COOPERATIVE = {"partition_assignment_strategy": ["cooperative-sticky"]}


class FakeLease:
    """A lease that expires, or is left, at the request of a test."""

    def __init__(self, process_slot: ProcessSlot) -> None:
        self.process_slot = process_slot
        self.is_expired = self.has_left = self.ended = False
        self.renewed_count = 0

    @property
    def good_until_ns(self) -> int:
        return 0 if self.is_expired else 1 << 62

    def begin_poll(self) -> None: ...
    def end_poll(self) -> None: ...

    def renew(self) -> None:
        self.is_expired = self.has_left = False
        self.renewed_count += 1

    def end(self) -> None:
        self.ended = True


class FakeLiveness:
    """Leases by slot."""

    def __init__(self) -> None:
        self.leases: list[FakeLease] = []

    def shows(self, lease: FakeLease) -> bool:
        return True

    def lease(self, **_: int) -> FakeLease:
        self.leases.append(FakeLease(ProcessSlot(len(self.leases), 7)))
        return self.leases[-1]

    def slot_state(self, process_slot: ProcessSlot) -> SlotState:
        lease = self.leases[process_slot.slot]
        return SlotState(not lease.ended, lease.renewed_count, lease.has_left)


class FakeTopic:
    """The word that moves with the groups; commits leave it alone. There is one partition."""

    def __init__(self) -> None:
        self.word = 0
        self.topic = "__consumer_offsets"
        self.number = 0

    def partition_of(self, name: str) -> int:
        return 0

    def partition(self, number: int) -> FakeTopic:
        return self

    def notice_word(self, number: int) -> int:
        return self.word


class FakeGroups:
    """The part of `embedlog.groups.Groups`, without a log. With `locked` every wait for the lock
    fails.
    """

    def __init__(self, engine: FakeEngine) -> None:
        self.limits = Limits(session_min_ms=10)
        self.topic = FakeTopic()
        self.groups: dict[str, Group] = {}
        self.offsets: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        self.unstable: set[TopicPartition] = set()
        self.locked = False
        self.commit_count = 0
        self._engine = engine

    def read_group(self, group_id: str) -> Group | None:
        return self.groups.get(group_id)

    def decide(
        self, group_id: str, event: Callable[[Group | None], Any], deadline_ns: int | None = None
    ) -> Group | None:
        self._lock()
        old = self.groups.get(group_id)
        new = event(old)
        if isinstance(new, Refusal):
            raise refusal_error(group_id, new, old)
        if new is not None and new is not old:
            self.groups[group_id] = new
            with self._engine.changed:
                self.topic.word += 1
                self._engine.changed.notify_all()
        return self.groups.get(group_id)

    def evict(
        self,
        group_id: str,
        watch: Any,
        me: str | None = None,
        whole: bool = False,
        deadline_ns: int | None = None,
    ) -> Group | None:
        found = self.groups.get(group_id)
        verdicts = (
            watch.find_verdicts(found, me, whole) if found is not None and found.members else {}
        )
        if not verdicts:
            return found
        return self.decide(
            group_id,
            lambda old: machine.evict(old, watch.confirm(old, verdicts), 0) if old else old,
        )

    def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, Any],
        identity: GroupMetadata | None = None,
        deadline_ns: int | None = None,
        topics: Mapping[str, str] | None = None,
    ) -> None:
        member = identity or GroupMetadata(group_id)
        self._commit(group_id, offsets, lambda old: member_commit_refusal(old, member))

    def topic_ids(self, tps: Iterable[TopicPartition]) -> dict[str, str]:
        return {}

    def commit_kept_partitions(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, Any],
        member_id: str,
        deadline_ns: int | None = None,
    ) -> None:
        self._commit(group_id, offsets, lambda old: kept_commit_refusal(old, member_id))

    def _commit(
        self, group_id: str, offsets: Mapping[TopicPartition, Any], admission: Callable[[Any], Any]
    ) -> None:
        wanted = check_offsets(offsets)
        self._lock()
        old = self.groups.get(group_id)
        refusal = admission(old)
        if refusal is not None:
            raise refusal_error(group_id, refusal, old)
        for tp in wanted:
            if self._engine.topic(tp.topic).partitions <= tp.partition:
                raise UnknownTopicOrPartitionError(str(tp))
        self.offsets.setdefault(group_id, {}).update(wanted)
        self.commit_count += 1

    def read_committed(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        stable_deadline_ns: int | None = None,
        owner: object = None,
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        known = self.offsets.get(group_id, {})
        wanted = list(known) if partitions is None else list(partitions)
        if self.unstable & set(wanted):
            raise DeadlineError("a transaction is open")
        return {tp: known.get(tp) for tp in wanted}

    def _lock(self) -> None:
        if self.locked:
            raise LockTimeoutError("another process has the lock")


class GroupEngine(FakeEngine):
    """A fake log with groups."""

    def __init__(self, **partition_counts: int) -> None:
        super().__init__(**partition_counts)
        self.path = Path(f"log in memory {id(self)}")  # recurring messages are known by it
        self.groups = FakeGroups(self)
        self.liveness = FakeLiveness()
        self.transactions = SimpleNamespace(liveness=self.liveness, help=lambda partition: False)
        self.config = SimpleNamespace(lock_timeout_ms=50)

    def group(self, group_id: str = "g") -> Group:
        return self.groups.groups[group_id]

    def evict_all(self, group_id: str = "g") -> None:
        """The group has no members any more."""
        del self.groups.groups[group_id]
        self.groups.topic.word += 1

    def committed(self, group_id: str = "g") -> dict[TopicPartition, int]:
        return {tp: place.offset for tp, place in self.groups.offsets.get(group_id, {}).items()}


class ListenerCalls:
    """Listeners that record their calls."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, list[TopicPartition]]] = []

    def listeners(self) -> dict[str, Any]:
        return {
            f"on_{name}": lambda tps, name=name: self.heard.append((name, tps))
            for name in ("assigned", "revoked", "lost")
        }

    def take(self) -> list[tuple[str, list[TopicPartition]]]:
        heard = self.heard
        self.heard = []
        return heard


def listening(reader: Consumer, *topics: str, **how: Any) -> ListenerCalls:
    calls = ListenerCalls()
    reader.subscribe(list(topics) or None, **how, **calls.listeners())
    return calls


def run_duties(member: Consumer) -> None:
    """The work of a poll that returns nothing."""
    with member._using():
        member._waiter.wait_for(lambda: None, 0.0, member._subscription)


def settle(*members: Consumer, rounds: int = 30) -> None:
    """Lets them attend by turns until nothing moves any more."""
    for _ in range(rounds):
        before = [(member.group_metadata(), member.assignment()) for member in members]
        for member in members:
            run_duties(member)
        after = [(member.group_metadata(), member.assignment()) for member in members]
        if before == after and all(
            member._group.membership.phase is Phase.IN for member in members
        ):  # type: ignore[union-attr]
            return
    raise AssertionError(f"still moving: {after}")


@pytest.fixture
def engine() -> GroupEngine:
    return GroupEngine(a=2, b=1)


@pytest.fixture
def member(engine: GroupEngine) -> Iterator[Callable[..., Consumer]]:
    """`member("a", max_poll_records=5)`: a member of group "g"; by default it reads from the start;
    closed after the test.
    """
    made: list[Consumer] = []

    def make(*topics: str, **config: Any) -> Consumer:
        facts: dict[str, Any] = {
            "auto_offset_reset": "earliest",
            "group_id": "g",
            "session_timeout_ms": 1000,
        }
        made.append(Consumer(engine, topics, **{**facts, "heartbeat_interval_ms": 100, **config}))
        return made[-1]

    yield make
    for each in made:
        with contextlib.suppress(ListenerError):
            each.close()


__all__ = [
    "FakeGroups",
    "FakeLease",
    "GroupEngine",
    "ListenerCalls",
    "engine",
    "member",
    "run_duties",
    "settle",
]
