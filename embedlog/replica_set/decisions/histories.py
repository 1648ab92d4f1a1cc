"""This module finds copies of the decision log that are of different histories of one set (`docs/protocol.md`, QUORUM-8).

A backup of a whole set that is opened by itself continues the decisions of the set, with the terms that the set uses, too.

HISTORIES-1  within one history a term has one writer, and each batch has a time. So copies with the same record at an offset have
    the same records below it. Equal terms alone do not show that
HISTORIES-2  a record that counts is in every more advanced log of its history. So a copy is of another history than a more
    advanced one that differs below its counted end. Above that it has a tail that counts nowhere, which is cut (COPY-2)
HISTORIES-3  a copy knows its counted end by the page of a decision, or by the checkpoint of the high watermarks. So it does by
    the recorded registration of its directory, if it contains that record
HISTORIES-4  a process continues the history of its earlier decisions. A copy has another one if it counts records that no copy of
    a compared majority has. Otherwise that one counts of which a majority of its voters
    has records that no other history has. Without one nothing is written
HISTORIES-5  a forced retirement begins a history that may lack counted records. That of the latest generation counts. A copy of
    an earlier generation is cut if it is less advanced
HISTORIES-6  a directory of another history is registered as a foreign one with a new id, before its copy begins again
HISTORIES-7  a process compares a copy once, before it counts here. It shows no decisions of it before that, if it has others
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from embedlog.errors import EmbedlogError, ReplicaSetError
from embedlog.replica_set.decisions import decision_view, shared_records
from embedlog.replica_set.decisions.copies import LockedCopy
from embedlog.replica_set.decisions.decision_view import NO_TERM, View
from embedlog.replica_set.decisions.shared_records import Unreadable
from embedlog.replication.records import RegisterBroker
from embedlog.replication.state import State

TEXT = "the directory has other decisions than the set: it is from a copy of the whole set that was opened by itself"
REMEDY = "one is of a copy of the whole set that was opened by itself. Give the directories of one history, and remove the others"


class OtherHistory(ReplicaSetError):
    """The copy of a directory has other decisions than the set."""


def grouped(copies: Sequence[LockedCopy], is_known: Callable[[LockedCopy], bool], cluster_id: str) -> list[list[LockedCopy]]:
    """The histories of these copies, the most advanced first: that of the most advanced copy, with those that fit, and so on.

    Raises Unreadable.
    """
    found: list[list[LockedCopy]] = []
    for copy in copies:
        for group in found:
            if (is_known(copy) and is_known(group[0])) or not differs(copy, group[0], cluster_id):
                group.append(copy)
                break
        else:
            found.append([copy])
    return found


def differs(one: LockedCopy, best: LockedCopy, cluster_id: str) -> bool:
    """Whether a copy is of another history than a copy that is at least as advanced (HISTORIES-2). Raises Unreadable."""
    end, agreed = min(one.end, best.end), shared_records.agreed_end(one, best)
    one.agreed = {**one.agreed, best.node: agreed}
    if agreed >= end or agreed >= counted_end(one):
        return False
    return state_of(one, cluster_id).generation >= state_of(best, cluster_id).generation


def state_of(copy: LockedCopy, cluster_id: str) -> State:
    """The state after all records of a copy. Raises Unreadable."""
    try:
        view = View(0, NO_TERM, State(cluster_id))
        return decision_view.brought_to(view, copy.copy.partition.replica, copy.now, copy.epochs, copy.end).state
    except EmbedlogError as problem:
        raise Unreadable(copy.node, problem) from problem


def counted_end(copy: LockedCopy) -> int:
    """The end of the records that a copy knows as counted (HISTORIES-3). Raises Unreadable."""
    known, registration = copy.counted_end, copy.copy.registration
    if registration is None or not max(known, copy.now.log_start) <= registration.broker_epoch < copy.end:
        return known
    at = registration.broker_epoch
    try:
        records = decision_view.numbered_from(shared_records.read(copy, at, at + 1), at)
        return at + 1 if any(_is_of(record, copy, at) for offset, record in records if offset == at) else known
    except EmbedlogError as problem:
        raise Unreadable(copy.node, problem) from problem


def _is_of(record: object, copy: LockedCopy, at: int) -> bool:
    registration = copy.copy.registration
    known = isinstance(record, RegisterBroker) and registration is not None and record.incarnation == registration.incarnation
    return known and isinstance(record, RegisterBroker) and (record.node, record.broker_epoch) == (copy.node, at)
