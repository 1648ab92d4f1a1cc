"""Members under random orders of events: no partition has two owners, nothing is skipped; and
invalid results of assignors.
"""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from embedlog.consumer.consumer import Consumer
from embedlog.errors import (
    AssignorError,
    ClosedError,
    CommitFailedError,
    RebalanceInProgressError,
    StateError,
)
from embedlog.group import State, Verdict, evict
from embedlog.types import TopicPartition
from tests.support.fake_engine import fill
from tests.support.fake_groups import GroupEngine, run_duties, settle
from tests.support.fake_groups import member as member


@pytest.fixture
def engine() -> GroupEngine:
    return GroupEngine(a=5, b=3)


# ---- assignors of the user's ------------------------------------------------------------------------------------------


def first_takes_all(members: Any, counts: Any) -> Any:
    everything = [
        TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)
    ]
    return {min(members): everything}


def two_owners(members: Any, counts: Any) -> Any:
    return {member_id: [TopicPartition("a", 0)] for member_id in members}


def broken(members: Any, counts: Any) -> Any:
    raise ValueError("of the user's")


def test_an_assignor_of_the_users_own_shares_out(engine: GroupEngine, member: Any) -> None:
    both = [
        member("a", client_id=name, partition_assignment_strategy=[first_takes_all])
        for name in ("1", "2")
    ]
    settle(*both)
    assert [len(each.assignment()) for each in both] == [5, 0]
    assert engine.group().protocol == "first_takes_all"


@pytest.mark.parametrize("assignor", [two_owners, broken])
def test_an_assignor_that_does_what_it_must_not_is_the_leaders_error_and_the_group_goes_on(
    engine: GroupEngine, member: Any, assignor: Any
) -> None:
    fine = lambda members, counts: first_takes_all(members, counts)  # noqa: E731
    fine.name = assignor.__name__  # type: ignore[attr-defined]
    leader = member("a", partition_assignment_strategy=[assignor])
    if assignor is two_owners:
        other = member("a", partition_assignment_strategy=[fine])
        run_duties(leader)  # alone it harms no member
        run_duties(other)
    for _ in range(2):  # the next poll calls it again
        with pytest.raises(AssignorError, match=assignor.__name__):
            leader.poll()
        assert engine.group().state is State.COMPLETING_REBALANCE
    leader.close()
    next_leader = member("a", partition_assignment_strategy=[fine])
    rest = [next_leader] if assignor is broken else [other, next_leader]
    settle(*rest)
    assert sum(len(each.assignment()) for each in rest) == 5


def test_a_stranger_that_commits_is_refused_and_the_group_goes_on(
    engine: GroupEngine, member: Any
) -> None:
    inside = member("a")
    stranger = member()
    settle(inside)
    stranger.assign([TopicPartition("a", 0)])
    with pytest.raises(CommitFailedError):
        stranger.commit({TopicPartition("a", 0): 3})
    inside.commit({TopicPartition("a", 0): 1})
    assert engine.committed()[TopicPartition("a", 0)] == 1


# ---- listeners that leave ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("when", ["on_assigned", "on_revoked"])
@pytest.mark.parametrize("how", ["unsubscribe", "close"])
def test_a_listener_that_leaves_holds_nothing(
    engine: GroupEngine, member: Any, strategy: str, when: str, how: str
) -> None:
    reader, other = (member(partition_assignment_strategy=[strategy]) for _ in range(2))
    left: list[Any] = []

    def leave(tps: list[TopicPartition]) -> None:
        if not left:
            left.append(tps)
            getattr(reader, how)()

    reader.subscribe(["a"], **{when: leave})
    other.subscribe(["a"])
    for _ in range(20):
        for each in (reader, other):
            try:
                run_duties(each)
            except (StateError, ClosedError):
                assert each is reader
    assert left
    assert (reader.assignment(), len(other.assignment())) == (set(), 5)
    assert len(engine.group().members) == 1


def test_closing_under_a_call_that_does_not_end_shows_no_life_any_more(
    engine: GroupEngine, member: Any
) -> None:
    reader = member("a")
    settle(reader)
    inside = threading.Event()
    go_on = threading.Event()

    def stuck() -> None:
        with reader._thread_guard:
            inside.set()
            go_on.wait(30)

    thread = threading.Thread(target=stuck)
    thread.start()
    inside.wait(30)
    reader.close(timeout=0.01)
    assert engine.liveness.leases[0].ended
    go_on.set()
    thread.join(30)


# ---- interrupts, and members that are forgotten -----------------------------------------------------------------------


def test_an_interrupt_behind_the_join_leaves_no_member_that_nobody_is(
    engine: GroupEngine, member: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = member("a")
    decide = engine.groups.decide

    def interrupted(*arguments: Any) -> Any:
        decide(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.groups, "decide", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reader.poll()
    monkeypatch.undo()
    settle(reader)
    assert list(engine.group().members) == [reader.group_metadata().member_id]
    assert len(reader.assignment()) == 5


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_an_interrupt_at_any_decision_leaves_a_group_that_goes_on(
    engine: GroupEngine, member: Any, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = engine.groups.decide
    for count in range(8):
        readers = [member("a", "b", partition_assignment_strategy=[strategy]) for _ in range(2)]
        calls = iter(range(100))

        def interrupted(*arguments: Any, count: int = count, calls: Iterator[int] = calls) -> Any:
            found = decide(*arguments)
            if next(calls) == count:
                raise KeyboardInterrupt
            return found

        monkeypatch.setattr(engine.groups, "decide", interrupted)
        for _ in range(3):
            try:
                settle(*readers)
            except KeyboardInterrupt:
                continue
        monkeypatch.undo()
        assert sum(len(reader.assignment()) for reader in readers) == 8
        assert len(engine.group().members) == 2
        for reader in readers:
            reader.close()


def test_a_consumer_that_is_dropped_shows_no_life_any_more(engine: GroupEngine) -> None:
    reader = Consumer(
        engine, ["a"], group_id="g", session_timeout_ms=1000, heartbeat_interval_ms=100
    )
    reader.poll()
    assert not engine.liveness.leases[0].ended
    del reader
    gc.collect()
    assert engine.liveness.leases[0].ended


def test_a_deleted_topic_keeps_the_offsets_of_others_from_no_commit(
    engine: GroupEngine, member: Any
) -> None:
    fill(engine.partition("a", 0), 5)
    reader = member("a", "b")
    reader.poll()
    engine._partitions["b"][0].closed = engine._partitions["b"][1].closed = engine._partitions["b"][
        2
    ].closed = True
    del engine._partitions["b"]
    reader.unsubscribe()
    assert engine.committed()[TopicPartition("a", 0)] == 5


def test_who_sought_reads_though_a_transaction_holds_the_committed_offset_back(
    engine: GroupEngine, member: Any
) -> None:
    fill(engine.partition("a", 0), 5)
    engine.groups.unstable = {TopicPartition("a", 0)}
    reader = member("a")
    assert reader.poll() == []
    reader.seek(TopicPartition("a", 0), 3)
    assert len(reader.poll()) == 2


# ---- random orders ----------------------------------------------------------------------------------------------------


class World:
    """Members that join, poll, commit, freeze, die and leave in a random order; and the allowed
    owners of each partition.
    """

    def __init__(self, engine: GroupEngine, strategy: str, seed: int) -> None:
        self.engine = engine
        self.strategy = strategy
        self.random = random.Random(seed)
        self.alive: list[Consumer] = []
        self.read: set[tuple[str, int, int]] = set()
        self.made = 0
        self.highest: dict[TopicPartition, int] = {}

    def come(self) -> None:
        config: dict[str, Any] = {
            "partition_assignment_strategy": [self.strategy],
            "auto_commit_interval_ms": 0,
        }
        if self.random.random() < 0.3:
            config["group_instance_id"] = f"static-{self.made}"
        self.made += 1
        config |= {
            "group_id": "g",
            "auto_offset_reset": "earliest",
            "session_timeout_ms": 1000,
            "heartbeat_interval_ms": 100,
        }
        self.alive.append(Consumer(self.engine, ["a", "b"], **config))

    def poll(self, reader: Consumer) -> None:
        reader._group.until_ns = 0  # type: ignore[union-attr]
        for record in reader.poll(max_records=self.random.randint(1, 9)):
            self.read.add((record.topic, record.partition, record.offset))

    def one_event(self) -> None:
        what = self.random.choice(
            ["poll"] * 12 + ["come", "close", "die", "freeze", "commit", "enforce", "lazy", "grow"]
        )
        if what == "come" or not self.alive:
            if len(self.alive) < 5:
                self.come()
            return
        reader = self.random.choice(self.alive)
        if what == "close":
            self.alive.remove(reader)
            self.end(reader)
        elif what == "die":
            self.alive.remove(reader)  # nothing is committed any more, and the others see it
            self.evict(reader)
        elif what == "freeze":
            self.evict(reader)
            if (lease := reader._group._lease) is not None:  # type: ignore[union-attr]
                lease.is_expired = True
        elif what == "lazy" and reader._group._lease is not None:  # type: ignore[union-attr]
            reader._group._lease.has_left = True  # type: ignore[union-attr]
        elif what == "commit":
            try:
                reader.commit()
            except (CommitFailedError, RebalanceInProgressError):
                pass
        elif what == "enforce":
            reader.enforce_rebalance()
        elif what == "grow" and self.engine.topic("b").partitions < 6:
            self.engine.grow("b", self.engine.topic("b").partitions + 1)
            fill(self.engine.partition("b", self.engine.topic("b").partitions - 1), 20)
        else:
            self.poll(reader)

    def end(self, reader: Consumer) -> None:
        static = reader._config.group_instance_id is not None
        member_id = reader.group_metadata().member_id
        reader.close()
        if static:
            self.evict_id(member_id)

    def evict(self, reader: Consumer) -> None:
        self.evict_id(reader.group_metadata().member_id)

    def evict_id(self, member_id: str) -> None:
        self.engine.groups.decide(
            "g", lambda old: old and evict(old, {member_id: Verdict.EXPIRED}, 0)
        )

    def check(self) -> None:
        """Of members of the present generation, no two own one partition; and committed offsets
        never fall.
        """
        group = self.engine.groups.read_group("g")
        if group is not None:
            held = [
                tp
                for reader in self.alive
                if reader.group_metadata().generation == group.generation
                and reader.group_metadata().member_id in group.members
                for tp in reader.assignment()
            ]
            assert len(held) == len(set(held))
        for tp, offset in self.engine.committed().items():
            assert offset >= self.highest.get(tp, 0)
            self.highest[tp] = offset


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky", "cooperative-sticky"])
@pytest.mark.parametrize("turn", range(5))
def test_random_histories_have_one_owner_and_skip_nothing(
    engine: GroupEngine, strategy: str, turn: int
) -> None:
    seed = turn * 1000 + 7
    print(f"seed {seed}")
    for topic, count in (("a", 5), ("b", 3)):
        for number in range(count):
            fill(engine.partition(topic, number), 20)
    world = World(engine, strategy, seed)
    for _ in range(150):
        world.one_event()
        world.check()
    for _ in range(200):
        if not world.alive:
            world.come()
        for reader in world.alive:
            world.poll(reader)
            world.check()
    expected = {
        (topic, number, offset)
        for topic in "ab"
        for number in range(engine.topic(topic).partitions)
        for offset in range(20)
    }
    assert world.read == expected
    for reader in world.alive:
        reader.close()
