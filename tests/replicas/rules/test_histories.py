"""Random histories of decisions: what holds for any sequence of events, and that no committed
record is ever lost.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedlog.replicas.rules.decide import decide
from embedlog.replicas.rules.events import (
    Add,
    AlterIsr,
    CancelReassignment,
    Condition,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    Elect,
    Election,
    Event,
    FinishReassignment,
    Observed,
    RaiseEpoch,
    Reassign,
    Refusal,
    Register,
    Retire,
    Seen,
    SetConfig,
    SetVoter,
)
from embedlog.replicas.rules.records import (
    NO_LEADER,
    NODE,
    DecidedPartition,
    Record,
    decode,
    encode,
    inconsistency,
)
from embedlog.replicas.rules.state import State, apply, apply_all
from tests.support.mutants import mutated
from tests.support.replica_sets import (
    CLUSTER,
    PARTITION_ID,
    a_set,
    changes_of,
    compacted,
    identity,
    registration_id,
)
from tests.support.replica_world import Directory, Violation, World

STEPS = 400
NODES = range(1, 6)


# ---- any event -------------------------------------------------------------------------------------------------------


def observed(rng: random.Random) -> Observed:
    kinds = [*Condition, Condition.COMPLETE]
    registration_ids = [0, 0, 0, 1]
    present = [node for node in NODES if rng.random() < 0.8]
    return {
        node: Seen(
            rng.choice(kinds),
            registration_id(node, rng.choice(registration_ids)),
            rng.randrange(3),
            rng.randrange(9),
        )
        for node in present
    }


def some(rng: random.Random, least: int = 0) -> tuple[int, ...]:
    return tuple(rng.sample(NODES, rng.randrange(least, 5)))


def event_of_partition(rng: random.Random, old: DecidedPartition) -> Event:
    partition_id = (old.topic_uuid, old.number)
    change = old.partition_epoch - (rng.random() < 0.1)
    isr = tuple(
        {*some(rng), *((old.leader,) if rng.random() < 0.9 else ())}
        & {*old.replicas, rng.choice(NODES)}
    )
    registration_ids = {node: registration_id(node, rng.choice([0, 0, 1])) for node in NODES}
    kinds: list[Event] = [
        AlterIsr(
            partition_id,
            old.leader_epoch - (rng.random() < 0.1),
            change,
            isr,
            registration_ids,
            frozenset(some(rng)),
        ),
        Elect(partition_id, Election.OFFLINE, change, observed(rng), allowed=rng.random() < 0.2),
        RaiseEpoch(partition_id, old.leader_epoch + rng.randrange(-2, 4)),
        Elect(partition_id, Election.PREFERRED, change, observed(rng)),
        Elect(partition_id, Election.UNCLEAN, change, observed(rng), rng.choice([None, *NODES])),
        Reassign(partition_id, change, some(rng)),
        CancelReassignment(partition_id, change, observed(rng)),
        FinishReassignment(partition_id, change, observed(rng)),
    ]
    return rng.choice(kinds)


def event_of_set(rng: random.Random, state: State) -> Event:
    node = rng.choice(NODES)
    live = frozenset(some(rng, 2))
    topic_uuid = UUID(int=rng.randrange(1, 4))
    least = {"min.insync.replicas": rng.choice(["1", "2", "3", None])}
    given_identity = identity(node, registration_id=registration_id(node, rng.choice([0, 0, 1, 2])))
    seen = {partition_id: observed(rng) for partition_id in state.partitions}
    name = f"t{rng.randrange(3)}"
    total = rng.randrange(6)
    kinds: list[Event] = [
        CreateTopic(
            name,
            topic_uuid,
            live,
            rng.randrange(4),
            rng.randrange(4),
            rng.randrange(9),
            rng.randrange(9),
            removed=state.removed,
        ),
        CreateTopic(
            name,
            topic_uuid,
            live,
            assignment=(some(rng), some(rng))[: rng.choice([1, 1, 2])],
            removed=rng.choice([None, state.removed]),
        ),
        CreatePartitions(topic_uuid, total, live),
        DeleteTopic(topic_uuid),
        SetConfig(name, least, seen=seen),
        SetConfig("", least, NODE, seen),
        Register(
            given_identity, rng.choice([*Condition]), rng.randrange(99), rng.random() < 0.1, seen
        ),
        Add(
            given_identity,
            rng.randrange(99),
            rng.random() < 0.7,
            rng.random() < 0.9,
            rng.random() < 0.9,
        ),
        Retire(node, rng.random() < 0.9),
        SetVoter(node, rng.random() < 0.5, rng.random() < 0.9),
    ]
    return rng.choice(kinds)


def check_partition(
    state: State, old: DecidedPartition | None, new: DecidedPartition, raised: int
) -> None:
    assert inconsistency(new) == ""
    assert set(new.isr) <= set(new.replicas)
    assert new.isr or new.leader == NO_LEADER
    assert new.leader == NO_LEADER or new.leader in new.isr
    assert not set(new.elr) & set(new.isr)
    assert not new.elr or len(new.isr) < state.required_size(new)
    if old is None:
        assert (new.leader_epoch, new.partition_epoch) == (0, 0)
        return
    assert new.partition_epoch == old.partition_epoch + 1, "one change number for each decision"
    assert new.leader_epoch - old.leader_epoch in {0, 1, raised - old.leader_epoch + 1}
    if new.leader != old.leader:
        assert new.leader_epoch > old.leader_epoch, "every election raises the epoch"
    elif new.leader_epoch == old.leader_epoch:
        assert new.leader_registration_id == old.leader_registration_id


def check_decision(before: State, event: Event, found: tuple[Record, ...]) -> State:
    """The state after a decision that keeps all invariants."""
    assert [decode(*encode(record)) for record in found] == [*found]
    state = apply_all(before, found)
    one_by_one = before
    for record in found:
        one_by_one = apply(one_by_one, decode(*encode(record)))
    assert one_by_one == state
    counts = Counter((record.topic_uuid, record.number) for record in changes_of(found))
    assert max(counts.values(), default=1) == 1, "a decision has one record of a partition"
    raised = event.epoch if isinstance(event, RaiseEpoch) else -1
    for record in changes_of(found):
        check_partition(
            state, before.partitions.get((record.topic_uuid, record.number)), record, raised
        )
    assert state.voters or not before.nodes
    assert state.highest_node >= before.highest_node
    if isinstance(event, Add):
        assert event.identity.node > before.highest_node
    return state


def copied(state: State) -> State:
    """The same state in mappings of its own."""
    return replace(
        state,
        nodes=dict(state.nodes),
        topics=dict(state.topics),
        partitions=dict(state.partitions),
        settings=dict(state.settings),
    )


@given(number=st.integers(0, 2**32), count=st.integers(1, 60))
@settings(max_examples=80, deadline=None)
def test_no_sequence_of_events_breaks_an_invariant(number: int, count: int) -> None:
    rng = random.Random(number)
    log = list[Record]()
    state = a_set(range(1, rng.randrange(2, 6)))
    log += state.nodes.values()
    for _ in range(count):
        of_partition = state.partitions and rng.random() < 0.6
        event = (
            event_of_partition(rng, rng.choice([*state.partitions.values()]))
            if of_partition
            else event_of_set(rng, state)
        )
        before = copied(state)
        found = decide(state, event)
        assert copied(state) == before, "a decision changes no state"
        assert decide(state, event) == found
        if not isinstance(found, Refusal):
            state = check_decision(state, event, found)
            log += found
    assert apply_all(State(CLUSTER), log) == state
    assert apply_all(State(CLUSTER), compacted(log)) == state, (
        "compaction of the log changes no state"
    )


# ---- committed records -----------------------------------------------------------------------------------------------


def history(rng: random.Random) -> World:
    world = World(rng)
    try:
        for _ in range(STEPS):
            world.step()
    except Violation:
        print("\n".join(world.lines[-40:]))
        raise
    return world


def test_no_random_history_loses_a_committed_record(rng: random.Random) -> None:
    worlds = [history(rng) for _ in range(150)]
    counts = sum((world.counts for world in worlds), Counter[str]())
    counts["committed"] = sum(len(world.committed) for world in worlds)
    print(dict(counts))
    for what, least in (
        ("committed", 500),
        ("AlterIsr", 100),
        ("Elect", 80),
        ("Register", 100),
        ("Reassign", 30),
    ):
        assert counts[what] > least, what


@pytest.mark.parametrize("mutant", ["elect_any_replica", "elect_in_same_epoch"])
def test_without_a_rule_some_history_of_replicas_loses_a_record(
    rng: random.Random, mutant: str
) -> None:
    with mutated(mutant):
        for _ in range(1500):
            try:
                history(rng)
            except Violation as problem:
                print(f"{mutant}: {problem}")
                return
    pytest.fail(f"{mutant} was not noticed")


# ---- one history for each rule ---------------------------------------------------------------------------------------


def calm(world: World) -> None:
    """Everything that was appended is copied, committed and shown."""
    for _ in range(200):
        for step in (world.install, world.follow, world.measure):
            step()
        world.check()


def without(world: World, *away: int) -> None:
    """These nodes are away, and the leader has them out of the ISR."""
    for node, each in world.directories.items():
        each.away = node in away
    world.shrink()
    world.decide_pending()
    calm(world)


def filled(world: World, count: int = 3) -> None:
    for _ in range(count):
        world.append()
    calm(world)
    assert len(world.committed) >= count


def after_power_loss(world: World, left: dict[int, int]) -> None:
    """The directories have these numbers of records left, and register with new ids."""
    for node, size in left.items():
        world.directories[node] = Directory(
            world.directories[node].log[:size], crashes=1, lost="power"
        )
    for _ in left:
        world.register()


def offline(world: World) -> None:
    world.decide(
        Elect(PARTITION_ID, Election.OFFLINE, world.partition.partition_epoch, world.seen())
    )
    calm(world)


def newcomer_of_any_registration(world: World) -> str:
    """Node 3 is caught up; before its growth is decided, an old copy replaces it and begins to
    follow.
    """
    without(world, 3)
    filled(world)
    world.directories[3].away = False
    while world.directories[3].log != world.directories[1].log:
        world.follow()
    world.grow()
    world.directories[3] = replace(world.directories[3], log=(), high=0, crashes=1)
    world.register()
    world.decide_pending()
    return "INELIGIBLE_REPLICA"


def decide_after_another_decision(world: World) -> str:
    """One proposal removes 2, the other one 3; the later one would return 2."""
    for away in (3, 2):
        world.directories[3].away = away == 3
        world.directories[2].away = away == 2
        world.shrink()
    world.decide(world.pending.pop()[1])
    filled(world)
    world.decide(world.pending.pop()[1])
    return "INVALID_UPDATE_VERSION"


def elect_any_replica(world: World) -> str:
    """Node 3 missed records, and is the only one that is left."""
    without(world, 3)
    filled(world)
    for node, each in world.directories.items():
        each.away = node != 3
    offline(world)
    offline(world)
    return "ELIGIBLE_LEADERS_NOT_AVAILABLE"


def elect_without_waiting(world: World) -> str:
    """After a power loss the one with the longest log comes last."""
    filled(world)
    after_power_loss(world, {1: 1, 2: 3, 3: 2})
    world.directories[2].away = True
    offline(world)
    return "WAIT_FOR_REPLICAS"


def observed_in_any_registration(world: World) -> str:
    """Between observation and election all directories crash, and register their new
    registration ids.
    """
    filled(world)
    world.directories[1].away = True
    event = Elect(PARTITION_ID, Election.OFFLINE, world.partition.partition_epoch, world.seen())
    after_power_loss(world, {1: 1, 2: 1, 3: 3})
    world.decide(event)
    calm(world)
    offline(world)
    return "Elect"


def elect_first_log(world: World) -> str:
    """After a power loss the preferred leader has the shortest log."""
    filled(world)
    after_power_loss(world, {1: 1, 2: 3, 3: 2})
    offline(world)
    return "Elect"


def elect_in_same_epoch(world: World) -> str:
    """The leader fails, and another one follows it."""
    filled(world)
    world.directories[1].away = True
    offline(world)
    return "Elect"


def elr_outlives_its_need(world: World) -> str:
    """With `min.insync.replicas` 1 the leader commits alone, while the ELR is from the time of
    2.
    """
    world.decide(SetConfig("t", {"min.insync.replicas": "2"}))
    without(world, 2, 3)
    assert world.partition.elr == (2, 3)
    world.decide(SetConfig("t", {"min.insync.replicas": "1"}, seen={PARTITION_ID: world.seen()}))
    filled(world)
    return "SetConfig"


SCRIPTS: dict[str, Callable[[World], str]] = {
    "newcomer_of_any_registration": newcomer_of_any_registration,
    "decide_after_another_decision": decide_after_another_decision,
    "elect_any_replica": elect_any_replica,
    "elect_without_waiting": elect_without_waiting,
    "observed_in_any_registration": observed_in_any_registration,
    "elect_first_log": elect_first_log,
    "elect_in_same_epoch": elect_in_same_epoch,
    "elr_outlives_its_need": elr_outlives_its_need,
}


@pytest.mark.parametrize("rule", SCRIPTS)
def test_each_rule_keeps_the_committed_records_of_its_history(
    rule: str, rng: random.Random
) -> None:
    world = World(rng)
    counted = SCRIPTS[rule](world)
    world.check()
    assert world.counts[counted] >= 1
    assert world.committed
    with mutated(rule), pytest.raises(Violation):
        SCRIPTS[rule](again := World(rng))
        again.check()  # a copy in the first step below could hide the violation
        calm(again)
