"""The states of partitions and replicas in Kafka's controller: views, and their transitions over
random decisions.
"""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from embedlog.replicas.rules.decide import decide
from embedlog.replicas.rules.events import (
    AlterIsr,
    Condition,
    DeleteTopic,
    Elect,
    Election,
    FinishReassignment,
    Observed,
    Reassign,
    Refusal,
    Seen,
)
from embedlog.replicas.rules.state import PartitionState as P
from embedlog.replicas.rules.state import ReplicaState as R
from embedlog.replicas.rules.state import State, apply_all, partition_state, replica_state
from tests.support.replica_sets import (
    PARTITION_ID,
    TOPIC_ID,
    a_set,
    after,
    partition,
    registration_id,
    seen,
    with_topic,
)

PARTITION_FROM = {
    P.NEW: {P.NON_EXISTENT},
    P.ONLINE: {P.NEW, P.ONLINE, P.OFFLINE},
    P.OFFLINE: {P.NEW, P.ONLINE, P.OFFLINE},
    P.NON_EXISTENT: {P.OFFLINE},
}
REPLICA_FROM = {
    R.NEW: {R.NON_EXISTENT},
    R.ONLINE: {R.NEW, R.ONLINE, R.OFFLINE, R.DELETION_INELIGIBLE},
    R.OFFLINE: {R.NEW, R.ONLINE, R.OFFLINE, R.DELETION_INELIGIBLE},
    R.DELETION_STARTED: {R.OFFLINE},
    R.DELETION_SUCCESSFUL: {R.DELETION_STARTED},
    R.DELETION_INELIGIBLE: {R.OFFLINE, R.DELETION_STARTED},
    R.NON_EXISTENT: {R.DELETION_SUCCESSFUL},
}
# several steps of Kafka that are one step here: no command has to arrive, a deletion needs no
# replica to be offline first
PARTITION_AT_ONCE: dict[tuple[P, P], tuple[P, ...]] = {
    (P.ONLINE, P.NON_EXISTENT): (P.OFFLINE,),
    (P.NEW, P.NON_EXISTENT): (P.OFFLINE,),
}
REPLICA_AT_ONCE: dict[tuple[R, R], tuple[R, ...]] = {
    (R.ONLINE, R.DELETION_STARTED): (R.OFFLINE,),
    (R.NEW, R.DELETION_SUCCESSFUL): (R.OFFLINE, R.DELETION_STARTED),
    (R.OFFLINE, R.DELETION_SUCCESSFUL): (R.DELETION_STARTED,),
    (R.OFFLINE, R.NEW): (R.DELETION_STARTED, R.DELETION_SUCCESSFUL, R.NON_EXISTENT),
    (R.DELETION_INELIGIBLE, R.DELETION_STARTED): (R.OFFLINE,),
    (R.DELETION_STARTED, R.ONLINE): (R.DELETION_INELIGIBLE,),
    (R.DELETION_SUCCESSFUL, R.NEW): (R.NON_EXISTENT,),
    (R.DELETION_SUCCESSFUL, R.OFFLINE): (R.NON_EXISTENT, R.NEW),
    (R.NON_EXISTENT, R.OFFLINE): (R.NEW,),
}


# ---- partitions ----------------------------------------------------------------------------------


def test_a_partition_is_new_until_it_is_installed() -> None:
    state = with_topic()
    assert partition_state(a_set(), PARTITION_ID, installed=False, seen={}) is P.NON_EXISTENT
    assert partition_state(state, PARTITION_ID, installed=False, seen=seen("1 2 3")) is P.NEW
    assert partition_state(state, PARTITION_ID, installed=True, seen=seen("1")) is P.ONLINE


def test_a_partition_is_online_while_its_leader_is_complete() -> None:
    state = with_topic()
    for observed in ({}, seen("2 3"), seen("c1 2 3"), seen("s1 2 3"), seen("a1")):
        assert partition_state(state, PARTITION_ID, installed=True, seen=observed) is P.OFFLINE
    state = after(state, Elect(PARTITION_ID, Election.OFFLINE, 0, seen("2 3")))
    assert partition_state(state, PARTITION_ID, installed=True, seen=seen("2")) is P.ONLINE
    state = after(state, Elect(PARTITION_ID, Election.OFFLINE, 1, {}))
    assert partition_state(state, PARTITION_ID, installed=True, seen=seen("1 2 3")) is P.OFFLINE, (
        "no leader"
    )
    assert (
        partition_state(
            after(state, DeleteTopic(TOPIC_ID)), PARTITION_ID, installed=True, seen=seen("1")
        )
        is P.NON_EXISTENT
    )


# ---- replicas ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "live", "held", "known", "wanted"),
    [
        (1, True, False, True, R.NEW),
        (1, True, True, True, R.ONLINE),
        (1, False, True, True, R.OFFLINE),
        (1, False, False, True, R.OFFLINE),
        (9, True, True, True, R.DELETION_STARTED),
        (9, False, True, True, R.DELETION_INELIGIBLE),
        (9, True, False, True, R.DELETION_SUCCESSFUL),
        (9, True, False, False, R.NON_EXISTENT),
    ],
)
def test_the_state_of_a_replica_is_computed(
    node: int, live: bool, held: bool, known: bool, wanted: R
) -> None:
    assert (
        replica_state(with_topic(), PARTITION_ID, node, live=live, held=held, known=known) is wanted
    )


def test_steps_that_are_one_step_here_are_steps_of_kafka() -> None:
    for (first, last), between in PARTITION_AT_ONCE.items():
        assert all(one in PARTITION_FROM[other] for one, other in pairwise((first, *between, last)))
    for (old, new), passed in REPLICA_AT_ONCE.items():
        assert all(one in REPLICA_FROM[other] for one, other in pairwise((old, *passed, new)))


# ---- transitions ---------------------------------------------------------------------------------


class Cluster:
    """A set with one partition; one thing changes at a time: a decision, an installation, a
    directory.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.state: State = with_topic((1, 2, 3), spare=(4,))
        self.live = {1, 2, 3, 4}
        self.held: set[int] = set()
        self.known: set[int] = set()
        self.installed = False

    def seen(self) -> Observed:
        return {
            node: Seen(Condition.COMPLETE, registration_id(node), 0, 1)
            for node in self.live & (self.held | {0})
        }

    def views(self) -> tuple[P, dict[int, R]]:
        replicas = {
            node: replica_state(
                self.state,
                PARTITION_ID,
                node,
                live=node in self.live,
                held=node in self.held,
                known=node in self.known,
            )
            for node in (1, 2, 3, 4)
        }
        return partition_state(
            self.state, PARTITION_ID, installed=self.installed, seen=self.seen()
        ), replicas

    def decide(self) -> None:
        if PARTITION_ID not in self.state.partitions:
            return
        old = partition(self.state)
        observed = self.seen()
        change = old.partition_epoch
        caught_up = tuple(node for node in old.replicas if node in observed or node == old.leader)
        target = tuple(self.rng.sample((1, 2, 3, 4), self.rng.randrange(1, 4)))
        event = self.rng.choice(
            [
                Elect(PARTITION_ID, Election.OFFLINE, change, observed),
                Elect(PARTITION_ID, Election.PREFERRED, change, observed),
                AlterIsr(
                    PARTITION_ID,
                    old.leader_epoch,
                    change,
                    caught_up,
                    {node: registration_id(node) for node in self.live},
                ),
                Reassign(PARTITION_ID, change, target),
                FinishReassignment(PARTITION_ID, change, observed),
                *([DeleteTopic(TOPIC_ID)] if self.rng.random() < 0.1 else []),
            ]
        )
        found = decide(self.state, event)
        if not isinstance(found, Refusal):
            self.state = apply_all(self.state, found)

    def step(self) -> None:
        present = self.state.partitions.get(PARTITION_ID)
        assigned = set(present.replicas) if present else set()
        self.known |= assigned
        match self.rng.randrange(5):
            case 0:
                self.live ^= {self.rng.choice([1, 2, 3, 4])}
            case 1:  # a live directory makes what is assigned, or removes what is not
                node = self.rng.choice([1, 2, 3, 4])
                if node in self.live:
                    self.held = self.held | {node} if node in assigned else self.held - {node}
            case 2:
                self.installed = self.installed or (
                    present is not None and present.leader in self.live & self.held
                )
            case _:
                self.decide()


def test_every_transition_is_one_of_kafkas_controller(rng: random.Random) -> None:
    partitions: set[tuple[P, P]] = set()
    replicas: set[tuple[R, R]] = set()
    for _ in range(150):
        cluster = Cluster(rng)
        before = cluster.views()
        for _ in range(60):
            cluster.step()
            now = cluster.views()
            partitions.add((before[0], now[0]))
            replicas |= {(before[1][node], now[1][node]) for node in now[1]}
            before = now
    moved = {pair for pair in partitions if pair[0] is not pair[1]}
    assert {
        pair for pair in moved if pair[0] not in PARTITION_FROM[pair[1]]
    } <= PARTITION_AT_ONCE.keys()
    assert {
        (P.NEW, P.ONLINE),
        (P.ONLINE, P.OFFLINE),
        (P.OFFLINE, P.ONLINE),
        (P.OFFLINE, P.NON_EXISTENT),
    } <= moved
    gone = {pair for pair in replicas if pair[0] is not pair[1]}
    assert {pair for pair in gone if pair[0] not in REPLICA_FROM[pair[1]]} <= REPLICA_AT_ONCE.keys()
    assert {
        (R.NEW, R.ONLINE),
        (R.ONLINE, R.OFFLINE),
        (R.OFFLINE, R.ONLINE),
        (R.DELETION_STARTED, R.DELETION_SUCCESSFUL),
    } <= gone
