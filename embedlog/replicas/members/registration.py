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
  first opening takes the current birth time for those of before, and removes the clean mark after
  that, so that it may crash at once.
- A directory that does not continue is a stranger. It is away, with the command that helps:
  `replace_directory` prepares an empty directory, which is registered as a stranger and copied.
  The only directory of a set is its own judge: it is registered as a stranger. So are all
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
    Condition,
    Event,
    HeldTopic,
    Identity,
    Observed,
    PartitionId,
    Register,
)
from embedlog.replicas.rules.records import RegisterBroker
from embedlog.replicas.rules.state import State
from embedlog.storage.identity import id_bytes, id_text
from embedlog.telemetry import log_messages

logger = logging.getLogger("embedlog")

Observe = Callable[[State], Mapping[PartitionId, Observed]]


class StrangerFound(Exception):
    """A registration finds a directory that is not the registered one: the directories are judged
    again.
    """


class Opening(NamedTuple):
    """The state in which a process found a directory.

    `first`: no other process is in it. `clean`: it was closed in order, and `mark_epoch` is the
    broker epoch of the clean mark. `broker_wrote`: a broker wrote here since. `created_ns`: the
    birth time of `embedlog.door`; None if it is unknown.
    """

    path: Path
    first: bool
    clean: bool
    mark_epoch: int = -1
    broker_wrote: bool = False
    created_ns: int | None = None


class EnteredDirectory(NamedTuple):
    """A directory of the set that this process has opened, and the registration id before a new one
    was drawn.

    `first`: no other process was in it, and `fresh`: since an orderly close. `note_outcome` shows every
    process in the directory whether the outcome of the registration is known and recorded; only the
    first process has it. `created_ns`: as in `Opening`. `restored`: it is the copy from which the
    set begins again.
    """

    path: Path
    membership: Membership
    previous_id: UUID
    fresh: bool = False
    first: bool = True
    note_outcome: Callable[[bool], None] = lambda is_known: None
    created_ns: int | None = None
    restored: bool = False

    def is_copy(self, opening: UUID | None) -> bool:
        """Whether it is a copy of the directory with this opening, as far as birth times show
        it.
        """
        recorded = self.membership.birth_at(opening)
        return None not in (recorded, self.created_ns) and recorded != self.created_ns


def _is_fresh(opening: Opening, membership: Membership) -> bool:
    """Whether no process was in the directory since an orderly close that names its
    registration.
    """
    is_unused = not (opening.broker_wrote or membership.alone or membership.replaces)
    has_its_mark = opening.clean and is_unused and opening.mark_epoch == membership.broker_epoch
    is_registered = membership.registration_id == membership.registered_id
    return opening.first and has_its_mark and is_registered


def stand_for(opening: Opening, mode: int = 0o666) -> None:
    """Let a copy that was closed in order stand for its directory. REQUIRES the open lock, and that
    the clean mark is not removed yet: the first opening may be killed after that.
    """
    membership = members.read(opening.path)
    if membership is not None and _is_fresh(opening, membership):
        current_membership = membership.with_birth(opening.created_ns)
        if current_membership != membership:
            members.write(opening.path, current_membership, mode)


def enter(opening: Opening, mode: int = 0o666) -> EnteredDirectory | None:
    """Keep the registration id of a directory that is being opened, or draw a new one; None if it
    belongs to no set.

    REQUIRES the open lock of the directory.
    """
    membership = members.read(opening.path)
    if membership is None:
        return None
    fresh = _is_fresh(opening, membership)
    own = membership
    if opening.first:
        own = set_up.begin_opening(
            opening.path,
            membership,
            mode,
            fresh=fresh,
            created_ns=opening.created_ns,
            alone=opening.broker_wrote,
        )
    return EnteredDirectory(
        opening.path,
        own,
        membership.registration_id,
        fresh=fresh,
        first=opening.first,
        created_ns=opening.created_ns,
    )


def strangeness(entered: EnteredDirectory, state: State) -> str:
    """The reason for which a directory does not continue in a state of the decision log; empty if
    it continues.

    Without the opening that a process has entered, as `entry_in_file` makes it, it may miss a copy that
    was made while processes used the original.
    """
    own = entered.membership
    registered = state.nodes.get(entered.membership.node)
    if registered is None or entered.restored:
        return ""
    if own.replaces:
        return _reason_to_give_way(entered, registered)
    is_registered = registered.registration_id == own.registration_id
    if is_registered and own.openings and registered.opening == own.openings[-1]:
        return ""  # it was registered since it was entered
    if own.alone:
        return "it was written without the set, by alone=True or by a broker"
    if registered.opening is not None:
        continues = registered.opening in own.openings
    elif is_registered:  # a set of an earlier version has no ids of openings
        continues = own.broker_epoch == registered.broker_epoch or (
            own.broker_epoch < registered.broker_epoch and not entered.fresh
        )
    else:
        continues = registered.registration_id in (entered.previous_id, own.registered_id)
    if not continues:
        return "it was put back to an earlier copy, or is of another copy of the set"
    if not is_registered and entered.is_copy(registered.opening):
        return "it was copied while processes used the original, or after a crash"
    return ""


def _reason_to_give_way(prepared: EnteredDirectory, registered: RegisterBroker) -> str:
    """The reason for which a prepared directory replaces nothing; empty if no process uses the
    registered directory.
    """
    path = Path(registered.path)
    if registered.opening in prepared.membership.openings or members.is_same_directory(
        path, prepared.path
    ):
        return ""
    try:
        own = members.read(path)
        is_registered = own is not None and own.registration_id == registered.registration_id
        is_in_use = is_registered and set_up.is_used(path)
    except EmbedlogError:  # it is lost
        return ""
    if not is_in_use:
        return ""
    return f"a process uses the directory that it replaces, {path}"


def entry_in_file(path: Path, own: Membership) -> EnteredDirectory:
    """A directory as its file of members shows it, for `strangeness`."""
    return EnteredDirectory(path, own, own.registration_id, first=False)


def condition_of(entered: EnteredDirectory, state: State) -> Condition:
    """How a registered directory that continues was found. REQUIRES a state that counts."""
    own = entered.membership
    registered = state.nodes[entered.membership.node]
    is_registered = bool(own.openings) and registered.opening == own.openings[-1]
    begins = own.replaces and registered.opening not in own.openings
    if not is_registered and (begins or entered.restored or strangeness(entered, state)):
        return Condition.STRANGER
    if own.registration_id == registered.registration_id:
        return Condition.COMPLETE
    return Condition.CRASHED


def is_judged(state: State) -> bool:
    """Whether strangers are away: the only directory of a set is used in any case."""
    return len(state.nodes) > 1


def register(
    log: DecisionLog,
    entered: Sequence[EnteredDirectory],
    *,
    observe: Observe = lambda state: {},
    held: tuple[HeldTopic, ...] = (),
    deadline_ns: int,
    mode: int = 0o666,
    opened: Iterable[Path] = (),
    run_at: Call = call_here,
) -> State:
    """Register these directories by one decision, and record it in each of them; the state after
    it.

    Other directories that are open have their file of members updated, too, if a path has changed.

    The first decision of a set adds all its members. A prepared directory that the log does not
    have is added. `observe` has the replicas of partitions, `held` the topics of the only directory
    of a new set. `run_at` makes the calls about one directory. Raises ReplicaSetError for a directory
    of another set, StrangerFound, NotEnoughDirectoriesError.
    """
    conditions: dict[int, Condition] = {}  # by node, as the decision saw them
    for directory in entered:
        run_at(directory.path, partial(directory.note_outcome, False))
    steps = [
        _step_of(directory, entered, observe, held, conditions)
        for directory in sorted(entered, key=lambda directory: directory.membership.node)
    ]
    nodes = ", ".join(str(directory.membership.node) for directory in entered)
    decision = log.decide_all(steps, deadline_ns, reason=f"registration of the directories {nodes}")
    state = decision.state
    for directory in entered:
        own = directory.membership
        if conditions.get(own.node) is Condition.STRANGER and not own.replaces:
            if directory.restored:
                text = "the set begins from the given copies"
            else:
                text = "the only directory of the set is used as it is"
            logger.warning("%s: %s, node %d", text, directory.path, own.node)
        # of a directory that hangs since: its next registration repeats it
        with contextlib.suppress(StorageError):
            run_at(directory.path, partial(_record_outcome, directory, state, deadline_ns, mode))
    record_changes(opened, state, deadline_ns=deadline_ns, mode=mode, run_at=run_at)
    return state


def _record_outcome(entered: EnteredDirectory, state: State, deadline_ns: int, mode: int) -> None:
    if try_to_record(entered.path, state, deadline_ns=deadline_ns, mode=mode, entered=entered):
        entered.note_outcome(True)


def try_to_record(
    directory: Path,
    state: State,
    *,
    deadline_ns: int,
    mode: int = 0o666,
    entered: EnteredDirectory | None = None,
) -> bool:
    """As `record`; a failure is logged, and False. The next registration of the directory repeats
    it.
    """
    try:
        record(directory, state, deadline_ns=deadline_ns, mode=mode, entered=entered)
    except EmbedlogError as problem:
        text = f"the members of the set are not recorded in {directory}"
        log_messages.report(logger, logging.WARNING, (directory, "members"), text, problem)
        return False
    return True


def record(
    directory: Path,
    state: State,
    *,
    deadline_ns: int,
    mode: int = 0o666,
    entered: EnteredDirectory | None = None,
) -> Membership | None:
    """Update the members that a directory has recorded; None if it belongs to no set.

    `entered`: the opening of the directory, whose birth time is recorded.
    """
    with open_locks([directory], deadline_ns, mode):
        own = members.read(directory)
        if own is None or own.node not in state.nodes:
            return own
        registered = state.nodes[own.node]
        new = own._replace(
            members=members_of(state, own),
            cluster_generation=state.generation,
            highest_node=-1 if state.highest_node in state.nodes else state.highest_node,
        )
        if registered.registration_id == own.registration_id:
            new = new._replace(
                registered_id=registered.registration_id,
                broker_epoch=registered.broker_epoch,
                alone=False,
                replaces=False,
            )
            new = new.since_opening(registered.opening)
            if entered is not None:
                new = new._replace(created_ns=entered.created_ns)
        if new == own:
            return own
        return members.write(directory, new, mode)


def record_changes(
    directories: Iterable[Path],
    state: State,
    *,
    deadline_ns: int,
    mode: int = 0o666,
    run_at: Call = call_here,
) -> None:
    """Update the members in open directories where they differ. One that fails is updated by its
    next registration.
    """

    def record_in(directory: Path) -> None:
        own = members.read(directory)
        if own is None:
            return
        recorded = (own.members, own.cluster_generation)
        if recorded != (members_of(state, own), state.generation):
            try_to_record(directory, state, deadline_ns=deadline_ns, mode=mode)

    for directory in directories:
        with contextlib.suppress(EmbedlogError):
            run_at(directory, partial(record_in, directory))


def _step_of(
    directory: EnteredDirectory,
    entered: Sequence[EnteredDirectory],
    observe: Observe,
    held: tuple[HeldTopic, ...],
    conditions: dict[int, Condition],
) -> MakeEvent:
    """What registers one directory in a state; its condition there is added to `conditions`."""
    membership = directory.membership
    member = membership.own
    directory_id = UUID(bytes=id_bytes(member.directory_id))

    def make_event(state: State, offset: int) -> Event:
        generation = membership.cluster_generation
        if membership.node in state.nodes:
            # A stop after a forced retirement may leave the earlier generation in a directory that
            # the decision log has.
            generation = max(generation, state.generation)
        identity = Identity(
            node=membership.node,
            cluster_id=membership.cluster_id,
            directory=directory_id,
            registration_id=membership.registration_id,
            path=str(directory.path),
            rack=member.rack,
            generation=generation,
            openings=membership.openings,
        )
        if is_judged(state) and strangeness(directory, state):
            raise StrangerFound
        if membership.node in state.nodes:
            condition = condition_of(directory, state)
            conditions[membership.node] = condition
            seen = {} if condition is Condition.COMPLETE else observe(state)
            return Register(identity, condition, offset, fresh=directory.fresh, seen=seen)
        if not state.nodes:
            _check_complete(membership, entered)
        return Add(
            identity,
            offset,
            voter=member.voter,
            replicas=member.replicas,
            held=() if state.nodes else held,
        )

    return make_event


def _check_complete(own: Membership, entered: Sequence[EnteredDirectory]) -> None:
    """The first decision has all planned members. Raises NotEnoughDirectoriesError."""
    opened = {directory.membership.node for directory in entered}
    away = {member.path: "it is not open" for member in own.members if member.node not in opened}
    if away:
        planned = [member.node for member in own.members]
        raise NotEnoughDirectoriesError(
            "a new set begins with all of its directories",
            reached=sorted(opened),
            voters=planned,
            away=away,
        )


def members_of(state: State, recorded: Membership) -> tuple[Member, ...]:
    """The registered members, with the unknown fields of their recorded entries."""
    others = {member.node: member.others for member in recorded.members}
    return tuple(
        Member(
            node,
            id_text(registered.directory.bytes),
            registered.path,
            rack=registered.rack,
            voter=registered.voter,
            replicas=registered.replicas,
            others=others.get(node, {}),
        )
        for node, registered in sorted(state.nodes.items())
    )
