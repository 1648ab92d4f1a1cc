"""Decides about the directories of a set: registration, growth, retirement, voters.

- A directory of another cluster, generation or directory id, and a second copy of a live one, are
  refused.
- A directory that was not closed in order has a new registration id. It leaves every ISR and ELR in
  which another member is complete, and no other one, because an election may need its log.
- The number of a node is never used again.
- Voters change one at a time, after the previous change is settled; one voter is always left.
- A directory leaves the set after no partition names it.
- A new directory gets the smallest slot that no current directory has. No page that counts contains
  the bit of a directory that left, because no partition names it.
- A forced retirement removes a directory with all its replicas. The rest has another generation,
  and votes. What only the removed replicas had is lost: the ISR is the rest of it, else the ELR,
  else all replicas that are left. A partition without another replica begins again in a directory
  that takes replicas. A reassignment that loses its whole target is cancelled.
- A stranger leaves every ISR, also the one of which it is the only member: its records are
  not those of the set. The partition notes that until the replica joins again, for the case that
  all its replicas are strangers.
- The first directory of a set may have topics, which the decision about it takes over; every
  further one is empty.
- A registered directory has the path at which it was found, also one that another node had: that
  one was moved, or is absent. It keeps its path until it is registered at another one: a process
  that uses a path compares the identity there. A new directory has a path of its own.
"""

from __future__ import annotations

from dataclasses import replace

from embedlog.replicas.rules.elections import (
    Ruling,
    best_candidate,
    change_partition,
    complete_nodes,
    elect_leader,
)
from embedlog.replicas.rules.events import (
    Add,
    Condition,
    ForceRetire,
    Identity,
    Observed,
    Refusal,
    Register,
    Retire,
    SetVoter,
)
from embedlog.replicas.rules.records import (
    NO_LEADER,
    SLOTS,
    DecidedPartition,
    Record,
    RegisterBroker,
    Tombstone,
    UnregisterBroker,
    key_of,
)
from embedlog.replicas.rules.state import State, with_throttle
from embedlog.replicas.rules.topics import held_records


def register(state: State, event: Register) -> Ruling:
    """The current registration id and broker epoch of a registered directory. Nothing if another
    process has it open already.
    """
    identity = event.identity
    refusal = _check_identity(state, identity)
    if refusal is not None:
        return refusal
    old = state.nodes.get(identity.node)
    if old is None:
        return Refusal.BROKER_ID_NOT_REGISTERED
    is_same_registration = old.registration_id == identity.registration_id
    if event.alive and not is_same_registration:
        return Refusal.DUPLICATE_BROKER_REGISTRATION
    if (
        old.directory != identity.directory
        or (event.condition is Condition.COMPLETE and not is_same_registration)
        or event.condition is Condition.AWAY
    ):
        return Refusal.INVALID_REGISTRATION
    if identity.opening is None:  # a directory of an earlier version
        is_same_opening = not event.fresh
    else:
        is_same_opening = old.opening == identity.opening
    epoch = old.broker_epoch if is_same_registration and is_same_opening else event.offset
    new = replace(
        old,
        registration_id=identity.registration_id,
        broker_epoch=epoch,
        path=identity.path,
        rack=identity.rack,
        opening=identity.opening or old.opening,
    )
    records = list[Record]()
    if new != old:
        records.append(new)
    if event.condition is not Condition.COMPLETE:
        for partition in state.partitions.values():
            remaining = _without_member(state, partition, event)
            if remaining is not None:
                records.append(remaining)
    return tuple(records)


def _without_member(
    state: State, old: DecidedPartition, event: Register
) -> DecidedPartition | None:
    """The partition after this node left ISR and ELR; None if it stays, or is in neither of
    them.
    """
    node = event.identity.node
    is_stranger = event.condition is Condition.STRANGER
    seen: Observed = event.seen.get((old.topic_uuid, old.number), {})
    is_member = node in old.isr or node in old.elr
    if not is_member and (not is_stranger or node not in old.replicas or node in old.strangers):
        return None
    own = seen.get(node)
    registration_ids = (state.nodes[node].registration_id, event.identity.registration_id)
    if (
        not is_stranger
        and own is not None
        and own.condition is Condition.COMPLETE
        and own.registration_id in registration_ids
    ):
        return None  # also after a kill, which loses nothing (REPLICA-13)
    isr = [member for member in old.isr if member != node]
    elr = [member for member in old.elr if member != node]
    candidates = complete_nodes(state, isr or elr, seen)
    if not candidates and not is_stranger:
        return None
    base = replace(old, isr=tuple(isr), elr=tuple(elr))
    new_strangers = (node,) if is_stranger else ()
    if old.leader in isr:
        return change_partition(
            state, base, isr=isr, eligible=elr, recovering=old.recovering, strangers=new_strangers
        )
    if not candidates:
        return change_partition(
            state,
            base,
            isr=isr,
            eligible=elr,
            leader=NO_LEADER,
            recovering=old.recovering,
            strangers=new_strangers,
        )
    noted = tuple(
        replica for replica in old.replicas if replica in {*old.strangers, *new_strangers}
    )
    leader = best_candidate(old, candidates, seen)
    return elect_leader(state, replace(base, strangers=noted), leader, seen)


def add(state: State, event: Add) -> Ruling:
    """A new directory."""
    identity = event.identity
    refusal = _check_identity(state, identity)
    if refusal is not None:
        return refusal
    if identity.node < 0:
        return Refusal.INVALID_REGISTRATION
    if identity.node <= state.highest_node:
        return Refusal.DUPLICATE_BROKER_REGISTRATION
    if len(state.nodes) == SLOTS:
        return Refusal.TOO_MANY_DIRECTORIES
    if event.voter and not event.settled:
        return Refusal.VOTERS_CHANGING
    if not event.voter and not state.voters:
        return Refusal.LAST_VOTER
    used_slots = {member.slot for member in state.nodes.values()}
    slot = min(set(range(SLOTS)) - used_slots)
    new = RegisterBroker(
        node=identity.node,
        registration_id=identity.registration_id,
        broker_epoch=event.offset,
        directory=identity.directory,
        path=identity.path,
        rack=identity.rack,
        voter=event.voter,
        replicas=event.replicas,
        generation=identity.generation,
        slot=slot,
        opening=identity.opening,
    )
    if _is_used(state, new) or (event.held and (state.nodes or not event.replicas)):
        return Refusal.INVALID_REGISTRATION
    return (new, *held_records(new, event.held))


def retire(state: State, event: Retire) -> Ruling:
    """The end of a directory in the set, or its mark while partitions name it."""
    old = state.nodes.get(event.node)
    if old is None:
        return Refusal.BROKER_ID_NOT_REGISTERED
    if old.voter and state.voters == (event.node,):
        return Refusal.LAST_VOTER
    if any(event.node in partition.replicas for partition in state.partitions.values()):
        if old.leaving:
            return Refusal.REASSIGNMENT_IN_PROGRESS
        return (replace(old, leaving=True),)
    if old.voter and not event.settled:
        return Refusal.VOTERS_CHANGING
    return UnregisterBroker(event.node, old.broker_epoch), Tombstone(key_of(old))


def force_retire(state: State, event: ForceRetire) -> Ruling:
    """The end of a directory with all its replicas, in another generation of the set."""
    old = state.nodes.get(event.node)
    if old is None:
        return Refusal.BROKER_ID_NOT_REGISTERED
    remaining = [member for node, member in sorted(state.nodes.items()) if node != event.node]
    if not remaining:
        return Refusal.LAST_VOTER
    generation = state.generation + 1
    all_vote = not any(member.voter for member in remaining)
    records: list[Record] = [
        replace(member, generation=generation, voter=member.voter or all_vote)
        for member in remaining
    ]
    records.append(UnregisterBroker(event.node, old.broker_epoch))
    records.append(Tombstone(key_of(old)))
    records += [
        _without_replica(state, partition, event)
        for partition in state.partitions.values()
        if event.node in partition.replicas
    ]
    return tuple(records)


def _without_replica(state: State, old: DecidedPartition, event: ForceRetire) -> DecidedPartition:
    """The partition without a replica; its leader is elected among the rest if it led, or if
    nothing else is in sync.
    """
    node = event.node
    assigned = tuple(replica for replica in old.replicas if replica != node)
    if not assigned:  # the only replica: another directory begins the partition again, empty
        assigned = (_find_successor(state, node),)
    isr = [member for member in old.isr if member != node and member in assigned]
    elr = [member for member in old.elr if member != node and member in assigned]
    members = isr or elr or list(assigned)
    adding = tuple(replica for replica in old.adding if replica != node)
    removing = tuple(replica for replica in old.removing if replica != node)
    if set(removing) >= set(assigned):  # the target is lost
        adding = ()
        removing = ()
    base = replace(old, adding=adding, removing=removing)
    if not adding and not removing:
        base = with_throttle(base, None)
    if old.leader in isr:
        return change_partition(
            state, base, isr=isr, eligible=elr, replicas=assigned, recovering=old.recovering
        )
    # the last members were strangers: one of them may have the records
    if not (old.isr or old.elr) and {*old.strangers} - {node}:
        return change_partition(state, base, isr=(), replicas=assigned, recovering=old.recovering)
    seen = event.seen.get((old.topic_uuid, old.number), {})
    candidates = complete_nodes(state, members, seen)
    leader = NO_LEADER
    if candidates:
        leader = best_candidate(replace(base, replicas=assigned), candidates, seen)
    return change_partition(
        state,
        base,
        isr=members,
        eligible=elr,
        replicas=assigned,
        leader=leader,
        recovering=not (isr or elr) or old.recovering,
    )


def _find_successor(state: State, node: int) -> int:
    """The directory for the partitions that only a node has: one that takes replicas, if there is
    any.
    """
    others = [member for member in state.nodes.values() if member.node != node]
    successor = min(others, key=lambda member: (not member.replicas, member.leaving, member.node))
    return successor.node


def set_voter(state: State, event: SetVoter) -> Ruling:
    """Another voter, or one less."""
    old = state.nodes.get(event.node)
    if old is None:
        return Refusal.BROKER_ID_NOT_REGISTERED
    if old.voter == event.voter:
        return ()
    if not event.settled:
        return Refusal.VOTERS_CHANGING
    if state.voters == (event.node,):
        return Refusal.LAST_VOTER
    return (replace(old, voter=event.voter),)


def _check_identity(state: State, identity: Identity) -> Refusal | None:
    if identity.cluster_id != state.cluster_id:
        return Refusal.INCONSISTENT_CLUSTER_ID
    if identity.generation != state.generation:
        return Refusal.STALE_CLUSTER_GENERATION
    return None


def _is_used(state: State, new: RegisterBroker) -> bool:
    """Whether another node has this directory id or path."""
    for member in state.nodes.values():
        if member.node == new.node:
            continue
        if member.directory == new.directory or member.path == new.path:
            return True
    return False
