"""Registration of opened directories in the decision log (`docs/protocol.md`, REPLICA-12, REPLICA-19).

REGISTRATION-1  the first process in a directory keeps the registration id only if the clean mark names the registration. No
    broker and no process without the set may have written here since. Else it draws a new id before any other write
REGISTRATION-2  a directory had the registered id, or was registered by it, and crashed; a directory with any other id is foreign.
    A visit of a broker is recorded with the new id, so that a second crash does not hide it
REGISTRATION-3  one decision registers all directories that were opened. The first process in a directory raises its broker epoch,
    also after an orderly close, as a start of a broker does. The decision appends nothing for later processes
REGISTRATION-4  the file of members is updated after the decision; until then it has the registered id of before. The files of
    all open directories get a changed path: MEMBERDIRECTORY-6 and REGISTRATION-7 compare it
REGISTRATION-5  a directory that was closed in order has the registered broker epoch. One with a lower epoch was put back to an
    earlier copy: it draws a new id and is foreign. So does one whose decisions are of another history (HISTORIES-6)
REGISTRATION-6  only the first process in a directory raises its broker epoch. Before its decision, the control page shows that
    the outcome is not known; after the file of members has it, that it is. A process that is killed between them leaves the
    first value
REGISTRATION-7  a copy of a directory that is in use at its registered path is refused: else two processes would register them in
    turn (QUORUM-1). So is a directory in use, if a copy of it is registered at another path with another id. A copy of
    the whole set shares no directory with it, and may be used beside it. Some of its directories may still be registered at
    the places of the first set: its open members are not beside these
REGISTRATION-8  the file of members has the birth time of `embedlog.door`. A directory that was not closed in order, and has
    another one, is foreign: a copy that was made while processes used the original. A registration records the birth time that
    the opening found, so a copy that takes the place meanwhile keeps that of the original
REGISTRATION-9  a directory records a broker epoch after the decision about it counts. So one with the registered id and a higher
    epoch than the decision finds is of another history. It is foreign, also if its copy of the decision log is missing.
    It gets a new id as in REGISTRATION-5. A history after a forced retirement may lack a counted epoch (HISTORIES-5)
REGISTRATION-10  the first process in a directory draws an opening id, which the registration stores. A directory continues only
    if the registered opening is one of those that it has recorded. Each process sees that, also one that is not the first: it
    does not use another directory, and tries it again after the first one has registered it, or has left it. A decision judges
    with the state that it is derived from. REGISTRATION-5 and -9 compare broker epochs in sets of earlier versions only
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from embedlog import _logging
from embedlog.errors import EmbedlogError, NotEnoughDirectoriesError, ReplicaSetError
from embedlog.replica_set import membership as members
from embedlog.replica_set import set_up
from embedlog.replica_set.decisions.decision_log import DecisionLog
from embedlog.replica_set.decisions.proposals import MakeEvent
from embedlog.replica_set.membership import Member, Membership
from embedlog.replica_set.set_up import is_used, open_locks, renew
from embedlog.replication.events import Add, Event, Found, HeldTopic, Identity, Observed, Place, Register
from embedlog.replication.state import State
from embedlog.storage import file_names, files
from embedlog.storage.identity import id_bytes, id_text

logger = logging.getLogger("embedlog")

Observe = Callable[[State], Mapping[Place, Observed]]


class StrangerFound(Exception):
    """A registration finds a directory that is not the registered one any more: the directories are judged again."""


class Opening(NamedTuple):
    """The state in which a process found a directory.

    `first`: no other process is in it. `clean`: it was closed in order, and `mark_epoch` is the broker epoch of the clean mark.
    `visited`: a broker wrote here since. `created_ns`: the birth time of `embedlog.door`; None if it is unknown.
    """

    path: Path
    first: bool
    clean: bool
    mark_epoch: int = -1
    visited: bool = False
    created_ns: int | None = None


class Entered(NamedTuple):
    """A directory of the set that this process has opened, and the registration id before a new one was drawn.

    `first`: no other process was in it, and `fresh`: since an orderly close. `outcome` shows every process in the directory
    whether the outcome of the registration is known and recorded; only the first process has it (REGISTRATION-6). `created_ns`:
    as in `Opening`.
    """

    path: Path
    membership: Membership
    previous_id: UUID
    fresh: bool = False
    first: bool = True
    outcome: Callable[[bool], None] = lambda known: None
    created_ns: int | None = None

    @property
    def is_copy(self) -> bool:
        """Whether it is a copy of the directory that was registered last, as far as birth times show it (REGISTRATION-8)."""
        recorded = self.membership.created_ns
        return None not in (recorded, self.created_ns) and recorded != self.created_ns


def enter(opening: Opening, mode: int = 0o666) -> Entered | None:
    """Keep the registration id of a directory that is being opened, or draw a new one; None if it belongs to no set.

    REQUIRES the open lock of the directory (REGISTRATION-1).
    """
    found = members.read(opening.path)
    if found is None:
        return None
    kept = opening.clean and not opening.visited and not found.alone and opening.mark_epoch == found.broker_epoch
    fresh = opening.first and kept and found.registration_id == found.registered_id
    own = found
    if opening.first:
        own = set_up.begin_opening(opening.path, found, mode, fresh=fresh, alone=opening.visited)
    return Entered(opening.path, own, found.registration_id, fresh=fresh, first=opening.first, created_ns=opening.created_ns)


def with_new_id_if_put_back(
    entered: Entered, state: State, deadline_ns: int, mode: int = 0o666, *, other: bool = False
) -> Entered:
    """The directory, with a new id if it was put back to an earlier copy (REGISTRATION-5), or to one of an `other` history.

    REQUIRES a state that is no hint if the directory `is_stranger` to it.
    Raises ReplicaSetError if that is a copy of a directory in use (REGISTRATION-7).
    """
    own = entered.membership
    registered = state.nodes.get(own.node)
    same = registered is not None and registered.incarnation == own.registration_id
    if other and (same or not own.alone):
        if _is_copy(entered, state, None):
            raise _copy_error(entered, state)
    elif registered is None or not entered.fresh or not same or not (is_stranger(entered, state) or _is_below(entered, state)):
        return entered
    epochs = f"broker epoch {own.broker_epoch}, registered {registered.broker_epoch if registered is not None else None}"
    logger.info("the directory %s of node %d was put back to another copy (%s)", entered.path, own.node, epochs)
    with open_locks([entered.path], deadline_ns, mode):
        renewed = renew(entered.path, own, mode, alone=True)
    return entered._replace(membership=renewed, fresh=False)


def is_stranger(entered: Entered, state: State) -> bool:
    """Whether the registration of this node is none that the directory has had, or not yet (REGISTRATION-10).

    It was put back to an earlier copy, or is of another history.
    """
    own, registered = entered.membership, state.nodes.get(entered.membership.node)
    if registered is None or own.cluster_generation < state.generation:
        return False
    if registered.opening is not None:
        return registered.opening not in own.openings
    return registered.incarnation == own.registration_id and own.broker_epoch > registered.broker_epoch  # REGISTRATION-9


def _is_below(entered: Entered, state: State) -> bool:
    """Whether the recorded broker epoch is lower than the registered one, which has no opening id (REGISTRATION-5)."""
    registered = state.nodes[entered.membership.node]
    return registered.opening is None and entered.membership.broker_epoch < registered.broker_epoch


def must_wait(entered: Entered, state: State) -> bool:
    """Whether only the first process in the directory, or the next one, can register it (REGISTRATION-10)."""
    own, registered = entered.membership, state.nodes.get(entered.membership.node)
    if registered is None or entered.first:
        return False
    renewed = registered.opening in own.openings[-1:] and registered.incarnation != own.registration_id
    return renewed or is_stranger(entered, state)


def _must_be_renewed(entered: Entered, state: State) -> bool:
    """Whether a stranger still has the registered id: the decision before has made it one (REGISTRATION-5)."""
    own, registered = entered.membership, state.nodes.get(entered.membership.node)
    same = registered is not None and registered.incarnation == own.registration_id
    return entered.fresh and same and is_stranger(entered, state)


def found_state(entered: Entered, state: State) -> Found:
    """How a registered directory was found (REGISTRATION-2, REGISTRATION-8, REGISTRATION-9). REQUIRES a state that is no hint."""
    own, registered = entered.membership, state.nodes[entered.membership.node]
    if is_stranger(entered, state):
        return Found.FOREIGN
    if own.registration_id == registered.incarnation:
        return Found.COMPLETE
    known = registered.opening is not None or registered.incarnation in (entered.previous_id, own.registered_id)
    return Found.CRASHED if known and not own.alone and not entered.is_copy else Found.FOREIGN


def register(
    log: DecisionLog,
    entered: Sequence[Entered],
    *,
    observe: Observe = lambda state: {},
    held: tuple[HeldTopic, ...] = (),
    deadline_ns: int,
    mode: int = 0o666,
    opened: Sequence[Entered] = (),
) -> State:
    """Register these directories by one decision, and record it in each of them; the state after it.

    Other directories that are open have their file of members updated, too, if a path has changed (REGISTRATION-4).

    The first decision of a set adds all its members. A prepared directory that the log does not have is added. `observe` has the
    replicas of partitions, `held` the topics of the only directory of a new set.
    Raises ReplicaSetError for a foreign directory or a clone, NotEnoughDirectoriesError.
    """
    found: dict[int, Found] = {}
    for each in entered:
        each.outcome(False)
    steps = [_step(each, entered, observe, held, found) for each in sorted(entered, key=lambda each: each.membership.node)]
    steps[:1] = [_without_copies(each, entered, opened or entered) for each in steps[:1]]
    nodes = ", ".join(str(each.membership.node) for each in entered)
    state = log.decide_all(steps, deadline_ns, reason=f"registration of the directories {nodes}").state
    for each in entered:
        is_prepared = each.membership.alone and each.membership.registered_id is None  # it replaces another one
        if found.get(each.membership.node) is Found.FOREIGN and not is_prepared:
            copied = ", or copied after a crash" if each.is_copy else ", or written without the set"
            text = "the directory %s of node %d was put back to an earlier copy%s: it is compared"
            logger.warning(text, each.path, each.membership.node, copied)
        if note(each.path, state, deadline_ns=deadline_ns, mode=mode, entered=each):
            each.outcome(True)
    record_changes([each.path for each in opened], state, deadline_ns=deadline_ns, mode=mode)
    return state


def _without_copies(step: MakeEvent, entered: Sequence[Entered], opened: Sequence[Entered]) -> MakeEvent:
    """The first step of a registration. Raises ReplicaSetError for a copy of a directory that is in use (REGISTRATION-7).

    `opened`: all open directories, also those that are registered already.
    """

    def make_event(state: State, offset: int) -> Event:
        for each in copies_in_use(entered, opened, state):
            raise _copy_error(each, state)
        return step(state, offset)

    return make_event


def copies_in_use(entered: Sequence[Entered], opened: Sequence[Entered], state: State) -> list[Entered]:
    """Those that are copies of a directory that is registered and in use (REGISTRATION-7); `opened`: as in `_without_copies`."""
    present = [each for each in opened if _is_in_place(each, state)]
    return [each for each in entered if present and each not in present and _is_copy(each, state, present)]


def _copy_error(each: Entered, state: State) -> ReplicaSetError:
    text = f"a process uses another copy of the directory as node {each.membership.node} of the set"
    return ReplicaSetError(text, paths=[str(each.path), state.nodes[each.membership.node].path])


def _is_in_place(each: Entered, state: State) -> bool:
    registered = state.nodes.get(each.membership.node)
    if registered is None:
        return False
    return registered.path == str(each.path) or members.is_same(Path(registered.path), each.path)


def _is_copy(each: Entered, state: State, present: Sequence[Entered] | None) -> bool:
    """Whether another directory is the registered one, in the set of those that are in place if these are known.

    That one is in use, or this one with another registration id.
    """
    registered = state.nodes.get(each.membership.node)
    if registered is None:
        return False
    path = Path(registered.path)
    try:
        found = members.read(path)
        places = None if present is None else [(other.membership, other.path) for other in present]
        beside = found is not None and (places is None or members.is_beside(found, places))
        same = found is not None and found.registration_id == registered.incarnation
        one, other = files.facts_of(path / file_names.REPLICAS), files.facts_of(each.path / file_names.REPLICAS)
        alias = one is not None and other is not None and (one.device, one.inode) == (other.device, other.inode)
        another = not each.first and each.membership.registration_id != registered.incarnation
        return same and beside and not alias and (another or is_used(path))
    except EmbedlogError:  # it cannot be used
        return False


def note(directory: Path, state: State, *, deadline_ns: int, mode: int = 0o666, entered: Entered | None = None) -> bool:
    """As `record`; a failure is logged, and False. The next registration of the directory repeats it (REGISTRATION-4)."""
    try:
        record(directory, state, deadline_ns=deadline_ns, mode=mode, entered=entered)
    except EmbedlogError as problem:
        what = f"the members of the set are not recorded in {directory}"
        _logging.report(logger, logging.WARNING, (directory, "members"), what, problem)
        return False
    return True


def record(
    directory: Path, state: State, *, deadline_ns: int, mode: int = 0o666, entered: Entered | None = None
) -> Membership | None:
    """Update the members that a directory has recorded (REGISTRATION-4); None if it belongs to no set.

    `entered`: the opening of the directory, whose birth time is recorded (REGISTRATION-8).
    """
    with open_locks([directory], deadline_ns, mode):
        found = members.read(directory)
        if found is None or found.node not in state.nodes:
            return found
        own = state.nodes[found.node]
        new = found._replace(members=members_of(state, found), cluster_generation=state.generation)
        if own.incarnation == found.registration_id:
            new = new._replace(registered_id=own.incarnation, broker_epoch=own.broker_epoch, alone=False)
            if own.opening in new.openings:
                new = new._replace(openings=new.openings[new.openings.index(own.opening) :])
            new = new if entered is None else new._replace(created_ns=entered.created_ns)
        return found if new == found else members.write(directory, new, mode)


def record_changes(directories: Iterable[Path], state: State, *, deadline_ns: int, mode: int = 0o666) -> None:
    """Update the members in open directories where they differ. One that fails is updated by its next registration."""
    for each in directories:
        with contextlib.suppress(EmbedlogError):
            found = members.read(each)
            if found is not None and (members_of(state, found), state.generation) != (found.members, found.cluster_generation):
                note(each, state, deadline_ns=deadline_ns, mode=mode)


def _step(
    each: Entered, entered: Sequence[Entered], observe: Observe, held: tuple[HeldTopic, ...], noted: dict[int, Found]
) -> MakeEvent:
    own = each.membership
    directory = UUID(bytes=id_bytes(own.own.directory_id))
    rack, path = own.own.rack, str(each.path)

    def make_event(state: State, offset: int) -> Event:
        # A stop after a forced retirement may leave the earlier generation in a directory that the decision log has.
        generation = max(own.cluster_generation, state.generation) if own.node in state.nodes else own.cluster_generation
        identity = Identity(own.node, own.cluster_id, directory, own.registration_id, path, rack, generation, own.openings)
        if must_wait(each, state) or _must_be_renewed(each, state):
            raise StrangerFound
        if own.node in state.nodes:
            found = noted[own.node] = found_state(each, state)
            seen = {} if found is Found.COMPLETE else observe(state)
            return Register(identity, found, offset, fresh=each.fresh, seen=seen)
        if not state.nodes:
            _check_complete(own, entered)
        return Add(identity, offset, own.own.voter, own.own.replicas, held=() if state.nodes else held)

    return make_event


def _check_complete(own: Membership, entered: Sequence[Entered]) -> None:
    """The first decision has all planned members. Raises NotEnoughDirectoriesError."""
    here = {each.membership.node for each in entered}
    away = {member.path: "it is not open" for member in own.members if member.node not in here}
    if away:
        planned = [member.node for member in own.members]
        raise NotEnoughDirectoriesError(
            "a new set begins with all of its directories", reached=sorted(here), voters=planned, away=away
        )


def members_of(state: State, known: Membership) -> tuple[Member, ...]:
    """The registered members, with the unknown fields of their entries."""
    others = {member.node: member.others for member in known.members}
    return tuple(
        Member(node, id_text(each.directory.bytes), each.path, each.rack, each.voter, each.replicas, others.get(node, {}))
        for node, each in sorted(state.nodes.items())
    )
