"""Decides about other replicas of one partition: start, cancellation and end of a reassignment.

- During a reassignment the assignment is the target, followed by the replicas that are removed at
  its end.
- A new target replaces the current one; a cancellation returns to the assignment before the first
  one. A replica that was added for a replaced target is both added and removed: the end removes it,
  and so does the cancellation.
- The end needs every replica of the target in the ISR. One decision makes the target assignment and
  ISR, with a leader from it, in a new leader epoch.
- The throttle of a reassignment is in the DecidedPartition until the end, so that every process
  obeys it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from embedlog.replicas.rules.elections import (
    Ruling,
    at_partition_epoch,
    best_candidate,
    change_partition,
    complete_nodes,
    eligible_members,
)
from embedlog.replicas.rules.events import (
    CancelReassignment,
    FinishReassignment,
    Observed,
    Reassign,
    Refusal,
)
from embedlog.replicas.rules.records import DecidedPartition
from embedlog.replicas.rules.state import State, throttle_of, with_throttle


def reassign(state: State, event: Reassign) -> Ruling:
    """The first step to other replicas. Nothing if the target is the current assignment."""
    old = at_partition_epoch(state, event.partition_id, event.partition_epoch)
    if isinstance(old, Refusal):
        return old
    target = event.target
    usable = state.usable_racks()
    if (
        not target
        or len(set(target)) != len(target)
        or not all(node in usable or node in old.replicas for node in target)
    ):
        return Refusal.INVALID_REPLICA_ASSIGNMENT
    original = set(old.replicas).difference(old.adding)
    removing = tuple(node for node in old.replicas if node not in target)
    replicas = target + removing
    adding = tuple(node for node in replicas if node not in original)
    if (replicas, removing, adding, event.throttle) == (
        old.replicas,
        old.removing,
        old.adding,
        throttle_of(old),
    ):
        return ()
    new = change_partition(
        state, old, isr=old.isr, eligible=old.elr, replicas=replicas, recovering=old.recovering
    )
    new = replace(new, removing=removing, adding=adding)
    throttle = event.throttle if removing or adding else None
    return (with_throttle(new, throttle),)


def cancel(state: State, event: CancelReassignment) -> Ruling:
    """The assignment without the added replicas."""
    old = at_partition_epoch(state, event.partition_id, event.partition_epoch)
    if isinstance(old, Refusal):
        return old
    if not old.adding and not old.removing:
        return Refusal.NO_REASSIGNMENT_IN_PROGRESS
    original = [node for node in old.replicas if node not in old.adding]
    if not set(original) & set(old.isr):
        return Refusal.INVALID_REPLICA_ASSIGNMENT
    return _end_reassignment(state, old, original, event.seen)


def finish(state: State, event: FinishReassignment) -> Ruling:
    """The target as the assignment."""
    old = at_partition_epoch(state, event.partition_id, event.partition_epoch)
    if isinstance(old, Refusal):
        return old
    if not old.adding and not old.removing:
        return Refusal.NO_REASSIGNMENT_IN_PROGRESS
    target = [node for node in old.replicas if node not in old.removing]
    if not set(target) <= set(old.isr):
        return Refusal.REASSIGNMENT_IN_PROGRESS
    return _end_reassignment(state, old, target, event.seen)


def _end_reassignment(
    state: State, old: DecidedPartition, replicas: Sequence[int], seen: Observed
) -> Ruling:
    """The partition without a reassignment; the leader stays if it can."""
    candidates = complete_nodes(state, [node for node in replicas if node in old.isr], seen)
    if not candidates:
        return Refusal.ELIGIBLE_LEADERS_NOT_AVAILABLE
    leader = old.leader if old.leader in candidates else best_candidate(old, candidates, seen)
    new = change_partition(
        state,
        old,
        isr=old.isr,
        eligible=eligible_members(state, old, seen),
        replicas=replicas,
        leader=leader,
    )
    return (with_throttle(replace(new, removing=(), adding=()), None),)
