"""Decides about the leader and the ISR of one partition.

- Every election raises the leader epoch; every decision raises the partition epoch by one.
- A decision is refused if another one about the partition was made since its event.
- Only a complete member of the ISR is elected, or of the ELR if the ISR has none.
- Of several candidates, the one with the largest last epoch leads, then the longest log, then the
  first in the assignment.
- The new ISR has the complete members of the old one; the ELR gets the others if the ISR is now too
  small.
- If no member is complete, the best crashed log leads after all members of ISR and ELR are present.
  If every record was synced before its acknowledgement, a crashed member of the ISR suffices. Only
  a topic that was created so shows that.
- An unclean election is a request, or allowed by the settings after no eligible replica answered.
  Its leader is the whole ISR, and there is no ELR.
- An ELR exists only while the ISR is smaller than the topic requires: as long as nothing is
  committed, its members have every committed record.
- A new member of the ISR has the registered id and does not leave the set.
- A stranger leads only if all replicas of the partition were found to be strangers. Then nothing is
  left to compare with, and after all of them are present, the best log leads.
- No replica has a later epoch than the leader. One that was written without the set can have it;
  then the leader epoch is raised above that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, TypeAlias
from uuid import UUID

from embedlog.replicas.rules.events import (
    AlterIsr,
    Condition,
    Elect,
    Election,
    Observed,
    PartitionId,
    RaiseEpoch,
    Refusal,
)
from embedlog.replicas.rules.records import NO_LEADER, DecidedPartition, Record
from embedlog.replicas.rules.state import State, condition_of, serves

Ruling: TypeAlias = tuple[Record, ...] | Refusal

LAST_EPOCH: Final = 2**31 - 2
NOT_COMPLETE: Final = frozenset({Condition.CRASHED, Condition.STRANGER})


# ---- the new record of a partition ---------------------------------------------------------------


def at_partition_epoch(
    state: State, partition_id: PartitionId, partition_epoch: int
) -> DecidedPartition | Refusal:
    """The partition, if no decision about it was made since it had this partition epoch."""
    partition = state.partitions.get(partition_id)
    if partition is None:
        return Refusal.UNKNOWN_TOPIC_OR_PARTITION
    if partition.partition_epoch != partition_epoch:
        return Refusal.INVALID_UPDATE_VERSION
    return partition


def change_partition(
    state: State,
    old: DecidedPartition,
    *,
    isr: Iterable[int],
    eligible: Iterable[int] = (),
    replicas: Sequence[int] | None = None,
    leader: int | None = None,
    recovering: bool = False,
    strangers: Iterable[int] = (),
) -> DecidedPartition:
    """The partition after one more decision; an election if there is a `leader`. `eligible` become
    the ELR if it is needed.

    `strangers` were found to be strangers now. They are noted until they join the ISR.
    """
    assigned = old.replicas if replicas is None else tuple(replicas)
    members = set(isr)
    eligible_nodes = set(eligible) - members
    stranger_nodes = {*old.strangers, *strangers} - members
    new = replace(
        old,
        replicas=assigned,
        isr=tuple(node for node in assigned if node in members),
        elr=(),
        partition_epoch=old.partition_epoch + 1,
        directories=_directories_of(state, old, assigned),
        recovering=recovering,
        strangers=tuple(node for node in assigned if node in stranger_nodes),
    )
    if len(new.isr) < state.required_size(new):
        new = replace(new, elr=tuple(node for node in assigned if node in eligible_nodes))
    if leader is None:
        return new
    registration_id = None
    if leader != NO_LEADER:
        registration_id = state.nodes[leader].registration_id
    return replace(
        new,
        leader=leader,
        leader_epoch=old.leader_epoch + 1,
        leader_registration_id=registration_id,
    )


def elect_leader(
    state: State, old: DecidedPartition, leader: int, seen: Observed
) -> DecidedPartition:
    """The partition after the election of a complete member."""
    isr = {leader} | {
        node for node in old.isr if condition_of(state, seen, node) is Condition.COMPLETE
    }
    return change_partition(
        state, old, isr=isr, eligible=eligible_members(state, old, seen), leader=leader
    )


def eligible_members(state: State, old: DecidedPartition, seen: Observed) -> set[int]:
    """The members of ISR and ELR that may have all committed records: all that were not found
    incomplete.
    """
    return {
        node for node in (*old.isr, *old.elr) if condition_of(state, seen, node) not in NOT_COMPLETE
    }


def best_candidate(old: DecidedPartition, candidates: Iterable[int], seen: Observed) -> int:
    """The candidate with the most advanced log."""
    order = {node: position for position, node in enumerate(old.replicas)}

    def rank(node: int) -> tuple[int, int, int]:
        return seen[node].last_epoch, seen[node].log_end, -order[node]

    return max(candidates, key=rank)


def complete_nodes(state: State, nodes: Iterable[int], seen: Observed) -> list[int]:
    """Those of the nodes that are registered, and whose replica was found complete."""
    return [node for node in nodes if condition_of(state, seen, node) is Condition.COMPLETE]


def _directories_of(
    state: State, old: DecidedPartition, assigned: Sequence[int]
) -> tuple[UUID, ...]:
    earlier = dict(zip(old.replicas, old.directories, strict=True))
    return tuple(
        state.nodes[node].directory if node in state.nodes else earlier[node] for node in assigned
    )


# ---- the ISR -------------------------------------------------------------------------------------


def alter_isr(state: State, event: AlterIsr) -> Ruling:
    """Another ISR, proposed by the leader. Nothing if it is the current one, unless it is to be
    renewed.
    """
    current = state.partitions.get(event.partition_id)
    if current is not None and event.leader_epoch != current.leader_epoch:
        return Refusal.FENCED_LEADER_EPOCH
    old = at_partition_epoch(state, event.partition_id, event.partition_epoch)
    if isinstance(old, Refusal):
        return old
    isr = set(event.isr)
    if len(isr) != len(event.isr) or not isr.issubset(old.replicas) or old.leader not in isr:
        return Refusal.INVALID_REQUEST
    for node in isr.difference(old.isr):
        if not _is_eligible(state, node, event.registration_ids.get(node)):
            return Refusal.INELIGIBLE_REPLICA
    eligible = {*old.elr, *old.isr} - event.lost
    new = change_partition(state, old, isr=isr, eligible=eligible)
    if not event.renewed and (set(old.isr), old.elr, old.recovering) == (isr, new.elr, False):
        return ()
    return (new,)


def _is_eligible(state: State, node: int, registration_id: UUID | None) -> bool:
    """Whether a replica with this registration id may join the ISR."""
    registered = state.nodes.get(node)
    return (
        registered is not None
        and not registered.leaving
        and registered.registration_id == registration_id
    )


# ---- elections -----------------------------------------------------------------------------------


def elect(state: State, event: Elect) -> Ruling:
    """A leader for a partition, by the kind of the election."""
    old = at_partition_epoch(state, event.partition_id, event.partition_epoch)
    if isinstance(old, Refusal):
        return old
    match event.kind:
        case Election.OFFLINE:
            return _elect_offline(state, old, event.seen, allowed=event.allowed)
        case Election.PREFERRED:
            return _elect_preferred(state, old, event.seen)
        case Election.UNCLEAN:
            return _elect_unclean(state, old, event.seen, event.node)


def raise_epoch(state: State, event: RaiseEpoch) -> Ruling:
    """A leader epoch above a later one of a replica. The leader continues in it."""
    old = state.partitions.get(event.partition_id)
    if old is None:
        return Refusal.UNKNOWN_TOPIC_OR_PARTITION
    if old.leader_epoch >= event.epoch:
        return ()
    if event.epoch >= LAST_EPOCH:
        return Refusal.INVALID_REQUEST
    return (replace(old, leader_epoch=event.epoch + 1, partition_epoch=old.partition_epoch + 1),)


def _elect_offline(
    state: State, old: DecidedPartition, seen: Observed, *, allowed: bool = False
) -> Ruling:
    """The election of an eligible replica; of another one if that is `allowed` and needed."""
    ruling = _elect_eligible(state, old, seen)
    if not allowed or _has_leader(ruling):
        return ruling
    unclean = _elect_unclean(state, old, seen, None)
    if isinstance(unclean, Refusal):
        return ruling
    return unclean


def _has_leader(ruling: Ruling) -> bool:
    """Whether an election finds a leader, or needs none."""
    if isinstance(ruling, Refusal):
        return ruling is Refusal.ELECTION_NOT_NEEDED
    return any(
        isinstance(record, DecidedPartition) and record.leader != NO_LEADER for record in ruling
    )


def _elect_eligible(state: State, old: DecidedPartition, seen: Observed) -> Ruling:
    """The election of a replica that may have all committed records."""
    if serves(state, old, seen):
        return Refusal.ELECTION_NOT_NEEDED
    candidates = _candidates(state, old, seen)
    if candidates:
        return (elect_leader(state, old, best_candidate(old, candidates, seen), seen),)
    crashed = _crashed_candidates(state, old, seen)
    if isinstance(crashed, Refusal):
        return crashed
    if crashed:
        leader = best_candidate(old, crashed, seen)
        return (
            change_partition(
                state,
                old,
                isr=(leader,),
                eligible=eligible_members(state, old, seen),
                leader=leader,
            ),
        )
    if all(
        node in old.strangers and condition_of(state, seen, node) is not Condition.AWAY
        for node in old.replicas
    ):
        leader = best_candidate(old, old.replicas, seen)
        return (
            change_partition(
                state, old, isr=(leader,), leader=leader, recovering=len(old.replicas) > 1
            ),
        )
    if old.leader == NO_LEADER:
        return Refusal.ELIGIBLE_LEADERS_NOT_AVAILABLE
    return (
        change_partition(
            state, old, isr=old.isr, eligible=old.elr, leader=NO_LEADER, recovering=old.recovering
        ),
    )


def _candidates(state: State, old: DecidedPartition, seen: Observed) -> list[int]:
    """The replicas that may lead."""
    return complete_nodes(state, old.isr, seen) or complete_nodes(state, old.elr, seen)


def _crashed_candidates(state: State, old: DecidedPartition, seen: Observed) -> list[int] | Refusal:
    """The candidates after a crash of members of the ISR or the ELR; none if no member crashed."""
    members = (*old.isr, *old.elr)
    crashed = [node for node in members if condition_of(state, seen, node) is Condition.CRASHED]
    if not crashed or all(
        condition_of(state, seen, node) is not Condition.AWAY for node in members
    ):
        return crashed
    if state.is_durable(old):
        synced = [node for node in crashed if node in old.isr]
        if synced:
            return synced
    return Refusal.WAIT_FOR_REPLICAS


def _elect_preferred(state: State, old: DecidedPartition, seen: Observed) -> Ruling:
    preferred = old.replicas[0]
    if old.leader == preferred and serves(state, old, seen):
        return Refusal.ELECTION_NOT_NEEDED
    registered = state.nodes.get(preferred)
    if (
        preferred not in complete_nodes(state, old.isr, seen)
        or registered is None
        or registered.leaving
    ):
        return Refusal.PREFERRED_LEADER_NOT_AVAILABLE
    return (elect_leader(state, old, preferred, seen),)


def _elect_unclean(state: State, old: DecidedPartition, seen: Observed, node: int | None) -> Ruling:
    if node is None:
        ruling = _elect_offline(state, old, seen)
        if _has_leader(ruling):
            return ruling
    elif old.leader == node and old.isr == (node,) and serves(state, old, seen):
        return Refusal.ELECTION_NOT_NEEDED
    candidates = [
        replica
        for replica in old.replicas
        if (node is None or replica == node)
        and condition_of(state, seen, replica) is not Condition.AWAY
    ]
    if not candidates:
        return Refusal.ELIGIBLE_LEADERS_NOT_AVAILABLE
    trusted = [
        replica
        for replica in candidates
        if condition_of(state, seen, replica) is not Condition.STRANGER
        and replica not in old.strangers
    ]
    leader = best_candidate(old, trusted or candidates, seen)
    return (change_partition(state, old, isr=(leader,), leader=leader, recovering=True),)
