"""Computes the records that an event produces in a state, or the reason to refuse it.

- A decision is all its records, appended as one batch; an empty decision appends nothing.
- Neither a decision nor a refusal changes the state: only `apply` of the appended records does.
- Equal states and events have equal decisions, in every process.
"""

from __future__ import annotations

from embedlog.replicas.rules import directories, elections, reassignments, topics
from embedlog.replicas.rules.elections import Ruling
from embedlog.replicas.rules.events import (
    Add,
    AlterIsr,
    CancelReassignment,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    Elect,
    Event,
    FinishReassignment,
    ForceRetire,
    RaiseEpoch,
    Reassign,
    Register,
    Retire,
    SetConfig,
    SetVoter,
)
from embedlog.replicas.rules.state import State


def decide(state: State, event: Event) -> Ruling:
    """The records to append for an event, or its refusal."""
    match event:
        case (
            AlterIsr()
            | Elect()
            | RaiseEpoch()
            | Reassign()
            | CancelReassignment()
            | FinishReassignment()
        ):
            return _of_partition(state, event)
        case CreateTopic():
            return topics.create_topic(state, event)
        case CreatePartitions():
            return topics.create_partitions(state, event)
        case DeleteTopic():
            return topics.delete_topic(state, event)
        case SetConfig():
            return topics.set_config(state, event)
        case Register():
            return directories.register(state, event)
        case Add():
            return directories.add(state, event)
        case Retire():
            return directories.retire(state, event)
        case ForceRetire():
            return directories.force_retire(state, event)
        case SetVoter():
            return directories.set_voter(state, event)


def _of_partition(
    state: State,
    event: AlterIsr | Elect | RaiseEpoch | Reassign | CancelReassignment | FinishReassignment,
) -> Ruling:
    match event:
        case AlterIsr():
            return elections.alter_isr(state, event)
        case Elect():
            return elections.elect(state, event)
        case RaiseEpoch():
            return elections.raise_epoch(state, event)
        case Reassign():
            return reassignments.reassign(state, event)
        case CancelReassignment():
            return reassignments.cancel(state, event)
        case FinishReassignment():
            return reassignments.finish(state, event)
