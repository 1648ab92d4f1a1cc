"""Registration of opened directories in the decision log (`docs/protocol.md`, REPLICA-12,
REPLICA-19).

- The first process in a directory keeps the registration id only if the clean mark names the
  registration. No broker and no process without the set may have written here since. Else it draws
  a new id before any other write.
- The first process draws an opening id, too, which the registration stores. A directory continues
  only if the registered opening is one of those that it has recorded. Each process sees that, also
  one that is not the first.
- A directory that a broker or a process without the set has written does not continue. The mark
  `alone` is written with the new registration id, so that a second crash does not hide the visit.
- The file of members has the birth time of `embedlog.door` at each opening. A directory that was
  not closed in order, and has another one than at its registered opening, does not continue: it is
  a copy that was made while processes used the original. A copy continues with an opening of its
  own, which a request has registered. One that was closed in order stands for the directory: its
  first opening takes the present birth time for those of before, and removes the clean mark after
  that, so that it may crash at once.
- A directory that does not continue is a stranger. It is away, with the command that helps:
  `replace_directory` prepares an empty directory, which is registered as a foreign one and copied.
  The only directory of a set is its own judge: it is registered as a foreign one. So are all
  directories of a restored set, whose best logs lead.
- A decision judges with the state that it is derived from, under the locks of the copies. It is not
  made if one of its directories is a stranger there: the directories are judged again.
- One decision registers all directories that were opened. The first process in a directory raises
  its broker epoch, also after an orderly close, as a start of a broker does. The decision appends
  nothing for later processes.
- The file of members is updated after the decision; until then it has the registered id of before.
  The files of all open directories get a changed path: the search for a member compares
  it.
- Before the decision, the control page shows that the outcome is not known; after the file of
  members has it, that it is. A process that is killed between them leaves the first value.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from embedlog import _logging
from embedlog.errors import EmbedlogError, NotEnoughDirectoriesError, StorageError
from embedlog.replicas.decisions.decision_log import DecisionLog
from embedlog.replicas.decisions.proposals import MakeEvent
from embedlog.replicas.members import membership as members
from embedlog.replicas.members import set_up
from embedlog.replicas.members.directory_workers import Call, call_here
from embedlog.replicas.members.membership import Member, Membership
from embedlog.replicas.members.set_up import open_locks
from embedlog.replicas.rules.events import (
    Add,
    Event,
    Found,
    HeldTopic,
    Identity,
    Observed,
    Place,
    Register,
)
from embedlog.replicas.rules.records import RegisterBroker
from embedlog.replicas.rules.state import State
from embedlog.storage.identity import id_bytes, id_text

logger = logging.getLogger("embedlog")

Observe = Callable[[State], Mapping[Place, Observed]]


class StrangerFound(Exception):
    """A registration finds a directory that is not the registered one: the directories are judged
    again.
    """


class Opening(NamedTuple):
    """The state in which a process found a directory.

    `first`: no other process is in it. `clean`: it was closed in order, and `mark_epoch` is the
    broker epoch of the clean mark. `visited`: a broker wrote here since. `created_ns`: the birth
    time of `embedlog.door`; None if it is unknown.
    """

    path: Path
    first: bool
    clean: bool
    mark_epoch: int = -1
    visited: bool = False
    created_ns: int | None = None


class Entered(NamedTuple):
    """A directory of the set that this process has opened, and the registration id before a new one
    was drawn.

    `first`: no other process was in it, and `fresh`: since an orderly close. `outcome` shows every
    process in the directory whether the outcome of the registration is known and recorded; only the
    first process has it. `created_ns`: as in `Opening`. `restored`: it is the copy from which the
    set begins again.
    """

    path: Path
    membership: Membership
    previous_id: UUID
    fresh: bool = False
    first: bool = True
    outcome: Callable[[bool], None] = lambda known: None
    created_ns: int | None = None
    restored: bool = False

    def is_copy(self, opening: UUID | None) -> bool:
        """Whether it is a copy of the directory with this opening, as far as birth times show
        it.
        """
        recorded = self.membership.birth_at(opening)
        return None not in (recorded, self.created_ns) and recorded != self.created_ns


def _is_fresh(opening: Opening, found: Membership) -> bool:
    """Whether no process was in the directory since an orderly close that names its
    registration.
    """
    unused = not (opening.visited or found.alone or found.replaces)
    kept = opening.clean and unused and opening.mark_epoch == found.broker_epoch
    return opening.first and kept and found.registration_id == found.registered_id


def stand_for(opening: Opening, mode: int = 0o666) -> None:
    """Let a copy that was closed in order stand for its directory. REQUIRES the open lock, and that
    the clean mark is not removed yet: the first opening may be killed after that.
    """
    found = members.read(opening.path)
    if found is not None and _is_fresh(opening, found):
        born = found.born(opening.created_ns)
        if born != found:
            members.write(opening.path, born, mode)


def enter(opening: Opening, mode: int = 0o666) -> Entered | None:
    """Keep the registration id of a directory that is being opened, or draw a new one; None if it
    belongs to no set.

    REQUIRES the open lock of the directory.
    """
    found = members.read(opening.path)
    if found is None:
        return None
    fresh = _is_fresh(opening, found)
    own = found
    if opening.first:
        own = set_up.begin_opening(
            opening.path,
            found,
            mode,
            fresh=fresh,
            created_ns=opening.created_ns,
            alone=opening.visited,
        )
    return Entered(
        opening.path,
        own,
        found.registration_id,
        fresh=fresh,
        first=opening.first,
        created_ns=opening.created_ns,
    )


def strangeness(entered: Entered, state: State) -> str:
    """The reason for which a directory does not continue in a state of the decision log; empty if
    it continues.

    Without the opening that a process has entered, as `in_file` makes it, it may miss a copy that
    was made while processes used the original.
    """
    own = entered.membership
    registered = state.nodes.get(entered.membership.node)
    if registered is None or entered.restored:
        return ""
    if own.replaces:
        return _reason_to_give_way(entered, registered)
    same = registered.incarnation == own.registration_id
    if same and own.openings and registered.opening == own.openings[-1]:
        return ""  # it was registered since it was entered
    if own.alone:
        return "it was written without the set, by alone=True or by a broker"
    if registered.opening is not None:
        known = registered.opening in own.openings
    elif same:  # a set of an earlier version has no ids of openings
        known = own.broker_epoch == registered.broker_epoch or (
            own.broker_epoch < registered.broker_epoch and not entered.fresh
        )
    else:
        known = registered.incarnation in (entered.previous_id, own.registered_id)
    if not known:
        return "it was put back to an earlier copy, or is of another copy of the set"
    return (
        ""
        if same or not entered.is_copy(registered.opening)
        else "it was copied while processes used the original, or after a crash"
    )


def _reason_to_give_way(prepared: Entered, registered: RegisterBroker) -> str:
    """The reason for which a prepared directory replaces nothing; empty if no process uses the
    registered directory.
    """
    path = Path(registered.path)
    if registered.opening in prepared.membership.openings or members.is_same(path, prepared.path):
        return ""
    try:
        found = members.read(path)
        is_registered = found is not None and found.registration_id == registered.incarnation
        is_in_use = is_registered and set_up.is_used(path)
    except EmbedlogError:  # it is lost
        return ""
    return f"a process uses the directory that it replaces, {path}" if is_in_use else ""


def in_file(path: Path, own: Membership) -> Entered:
    """A directory as its file of members shows it, for `strangeness`."""
    return Entered(path, own, own.registration_id, first=False)


def found_state(entered: Entered, state: State) -> Found:
    """How a registered directory that continues was found. REQUIRES a state that is no hint."""
    own = entered.membership
    registered = state.nodes[entered.membership.node]
    is_registered = bool(own.openings) and registered.opening == own.openings[-1]
    begins = own.replaces and registered.opening not in own.openings
    if not is_registered and (begins or entered.restored or strangeness(entered, state)):
        return Found.FOREIGN
    return Found.COMPLETE if own.registration_id == registered.incarnation else Found.CRASHED


def is_judged(state: State) -> bool:
    """Whether strangers are away: the only directory of a set is used in any case."""
    return len(state.nodes) > 1


def register(
    log: DecisionLog,
    entered: Sequence[Entered],
    *,
    observe: Observe = lambda state: {},
    held: tuple[HeldTopic, ...] = (),
    deadline_ns: int,
    mode: int = 0o666,
    opened: Iterable[Path] = (),
    at: Call = call_here,
) -> State:
    """Register these directories by one decision, and record it in each of them; the state after
    it.

    Other directories that are open have their file of members updated, too, if a path has changed.

    The first decision of a set adds all its members. A prepared directory that the log does not
    have is added. `observe` has the replicas of partitions, `held` the topics of the only directory
    of a new set. `at` makes the calls about one directory. Raises ReplicaSetError for a directory
    of another set, StrangerFound, NotEnoughDirectoriesError.
    """
    found: dict[int, Found] = {}
    for each in entered:
        at(each.path, partial(each.outcome, False))
    steps = [
        _step(each, entered, observe, held, found)
        for each in sorted(entered, key=lambda each: each.membership.node)
    ]
    nodes = ", ".join(str(each.membership.node) for each in entered)
    state = log.decide_all(
        steps, deadline_ns, reason=f"registration of the directories {nodes}"
    ).state
    for each in entered:
        if found.get(each.membership.node) is Found.FOREIGN and not each.membership.replaces:
            text = (
                "the set begins from the given copies"
                if each.restored
                else "the only directory of the set is used as it is"
            )
            logger.warning("%s: %s, node %d", text, each.path, each.membership.node)
        # of a directory that hangs since: its next registration repeats it
        with contextlib.suppress(StorageError):
            at(each.path, partial(_note_outcome, each, state, deadline_ns, mode))
    record_changes(opened, state, deadline_ns=deadline_ns, mode=mode, at=at)
    return state


def _note_outcome(each: Entered, state: State, deadline_ns: int, mode: int) -> None:
    if note(each.path, state, deadline_ns=deadline_ns, mode=mode, entered=each):
        each.outcome(True)


def note(
    directory: Path,
    state: State,
    *,
    deadline_ns: int,
    mode: int = 0o666,
    entered: Entered | None = None,
) -> bool:
    """As `record`; a failure is logged, and False. The next registration of the directory repeats
    it.
    """
    try:
        record(directory, state, deadline_ns=deadline_ns, mode=mode, entered=entered)
    except EmbedlogError as problem:
        what = f"the members of the set are not recorded in {directory}"
        _logging.report(logger, logging.WARNING, (directory, "members"), what, problem)
        return False
    return True


def record(
    directory: Path,
    state: State,
    *,
    deadline_ns: int,
    mode: int = 0o666,
    entered: Entered | None = None,
) -> Membership | None:
    """Update the members that a directory has recorded; None if it belongs to no set.

    `entered`: the opening of the directory, whose birth time is recorded.
    """
    with open_locks([directory], deadline_ns, mode):
        found = members.read(directory)
        if found is None or found.node not in state.nodes:
            return found
        own = state.nodes[found.node]
        new = found._replace(members=members_of(state, found), cluster_generation=state.generation)
        if own.incarnation == found.registration_id:
            new = new._replace(
                registered_id=own.incarnation, broker_epoch=own.broker_epoch, alone=False
            )
            new = new._replace(replaces=False)
            new = new.since_opening(own.opening)
            new = new if entered is None else new._replace(created_ns=entered.created_ns)
        return found if new == found else members.write(directory, new, mode)


def record_changes(
    directories: Iterable[Path],
    state: State,
    *,
    deadline_ns: int,
    mode: int = 0o666,
    at: Call = call_here,
) -> None:
    """Update the members in open directories where they differ. One that fails is updated by its
    next registration.
    """

    def record_in(directory: Path) -> None:
        found = members.read(directory)
        if found is not None and (members_of(state, found), state.generation) != (
            found.members,
            found.cluster_generation,
        ):
            note(directory, state, deadline_ns=deadline_ns, mode=mode)

    for each in directories:
        with contextlib.suppress(EmbedlogError):
            at(each, partial(record_in, each))


def _step(
    each: Entered,
    entered: Sequence[Entered],
    observe: Observe,
    held: tuple[HeldTopic, ...],
    noted: dict[int, Found],
) -> MakeEvent:
    own = each.membership
    directory = UUID(bytes=id_bytes(own.own.directory_id))
    rack = own.own.rack
    path = str(each.path)

    def make_event(state: State, offset: int) -> Event:
        # A stop after a forced retirement may leave the earlier generation in a directory that the
        # decision log has.
        generation = (
            max(own.cluster_generation, state.generation)
            if own.node in state.nodes
            else own.cluster_generation
        )
        identity = Identity(
            own.node,
            own.cluster_id,
            directory,
            own.registration_id,
            path,
            rack,
            generation,
            own.openings,
        )
        if is_judged(state) and strangeness(each, state):
            raise StrangerFound
        if own.node in state.nodes:
            found = noted[own.node] = found_state(each, state)
            seen = {} if found is Found.COMPLETE else observe(state)
            return Register(identity, found, offset, fresh=each.fresh, seen=seen)
        if not state.nodes:
            _check_complete(own, entered)
        return Add(
            identity, offset, own.own.voter, own.own.replicas, held=() if state.nodes else held
        )

    return make_event


def _check_complete(own: Membership, entered: Sequence[Entered]) -> None:
    """The first decision has all planned members. Raises NotEnoughDirectoriesError."""
    here = {each.membership.node for each in entered}
    away = {member.path: "it is not open" for member in own.members if member.node not in here}
    if away:
        planned = [member.node for member in own.members]
        raise NotEnoughDirectoriesError(
            "a new set begins with all of its directories",
            reached=sorted(here),
            voters=planned,
            away=away,
        )


def members_of(state: State, known: Membership) -> tuple[Member, ...]:
    """The registered members, with the unknown fields of their entries."""
    others = {member.node: member.others for member in known.members}
    return tuple(
        Member(
            node,
            id_text(each.directory.bytes),
            each.path,
            each.rack,
            each.voter,
            each.replicas,
            others.get(node, {}),
        )
        for node, each in sorted(state.nodes.items())
    )
