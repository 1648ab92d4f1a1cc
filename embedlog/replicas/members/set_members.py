"""This module holds the directories of a set that this process has opened: their opening,
registration, failure and return.

SETMEMBERS-1  a directory is entered and judged before its copy of the decision log is attached; all
    of them are registered by one decision. A stranger is left again, and is away until it is
    replaced (`judgement`). The copy of a directory that replaces another one is attached after its
    registration: a majority of the others has that. It is level before it counts
SETMEMBERS-2  a directory that is missing or fails is away; the others open. Without a majority
    nothing is registered. A directory whose registration id is not the registered one leads nothing
    and joins no ISR until a later registration
SETMEMBERS-3  the clean mark of a directory has the broker epoch of its registration (REPLICA-12).
    After a registration with an unknown outcome, also of another process (REGISTRATION-9), it has
    none. The next opening finds a crashed directory then
SETMEMBERS-4  a failed directory is tried again after its pause. If lock file, control page and
    registration id are still those of this process, it continues. Otherwise it is opened and
    registered again, and its earlier objects end
SETMEMBERS-5  a registration by another process shows that a directory was replaced or crashed: it
    is opened again here, too
SETMEMBERS-6  a directory that the decision log names, but that was not given, is opened by its
    recorded path. At the opening and later, it must belong to the open directories
    (MEMBERDIRECTORY-6). A copy of the set must not use directories of the first one
SETMEMBERS-7  a given directory that has left the set is away: its retirement may have been
    interrupted. Its file of members need not have its registration
SETMEMBERS-8  a directory that another process added is opened before its first use. A reader
    registers nothing
SETMEMBERS-9  a set of which no majority continues begins again from all of its directories, by
    request only. Each of them is registered as a foreign one, so that the best log of each
    partition leads
"""

from __future__ import annotations

import _thread
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from embedlog import _logging
from embedlog._native import system
from embedlog._native.scope import Guard
from embedlog.errors import (
    EmbedlogError,
    LockTimeoutError,
    NotEnoughDirectoriesError,
    ReplicaSetError,
    StorageError,
)
from embedlog.replicas.decisions.copy_renewal import find_damaged_copies, renew_copy
from embedlog.replicas.decisions.decision_log import DecisionLog
from embedlog.replicas.decisions.decision_view import DecisionView
from embedlog.replicas.decisions.proposals import Proposal
from embedlog.replicas.members import adoption, judgement, member_directories, registration
from embedlog.replicas.members import membership as members
from embedlog.replicas.members.directory_workers import DECISIONS, DirectoryWorkers
from embedlog.replicas.members.judgement import Judgement
from embedlog.replicas.members.member_directories import MakeDirectory, MemberPlaces, Opened
from embedlog.replicas.members.membership import Member
from embedlog.replicas.members.open_directories import DAMAGE, OpenDirectories, OpenDirectory
from embedlog.replicas.members.registration import Entered
from embedlog.replicas.observation import topics_words
from embedlog.replicas.partition.partition_replicas import PartitionReplicas
from embedlog.storage import file_names, files, locks
from embedlog.storage.identity import id_text

if TYPE_CHECKING:
    from embedlog.config.topic import LogConfig
    from embedlog.log_directory import LogDirectory
    from embedlog.replicas.members.membership import CheckedSet, Membership
    from embedlog.replicas.rules.events import HeldTopic, Observed, Place
    from embedlog.replicas.rules.state import State

logger = logging.getLogger("embedlog")

REGISTER_S: Final = 1  # between two tries to register directories without a majority
JUDGEMENTS: Final = 10  # of directories that other processes register meanwhile


class SetMembers:
    """The directories of one open set. Threads: any; one opens or registers at a time."""

    decisions: DecisionLog  # this and the next one after `open`
    directories: OpenDirectories

    def __init__(
        self,
        make: MakeDirectory,
        config: LogConfig,
        *,
        read_only: bool,
        restored: bool = False,
        observer: Callable[[Proposal], None] = lambda proposal: None,
    ) -> None:
        """`observer` gets each proposal of this process. `restored`: the set begins again from its
        directories (SETMEMBERS-9).
        """
        self._observer = observer
        self._restored = restored
        self.make = make
        self._config = config
        self._read_only = read_only
        self._opened: dict[int, Opened] = {}
        self._openings = 0  # a number that changes after `_opened`
        # and the openings to which they belong
        self._known_pages: tuple[int, list[system.Page]] = (-1, [])
        self._known_version = system.TopicsWords(()), 0  # the last words, and their version
        self._away: dict[str, str] = {}  # the reason by path
        self._not_entered: set[Path] = set()  # directories that are here, and could not be opened
        self._known: set[int] = set()  # the nodes that this process has ever opened
        self._unregistered: set[int] = set()
        self._has_majority = True  # of the directories that continue, at the last judgement
        # open directories whose copies of the decision log are not attached yet (SETMEMBERS-1)
        self._unjudged: set[int] = set()
        # their last registration failed, and its records may count
        self._uncertain: set[int] = set()
        self._retry_ns = 0
        self._state: State | None = None  # of the last look
        self._mutex = threading.RLock()
        lock_ms = config.lock_timeout_ms
        self.workers = DirectoryWorkers(
            min(lock_ms // 3, config.replica_lag_time_max_ms) * 1_000_000, lock_ms * 1_000_000
        )
        self.workers.note = self._note_hang
        self.workers.returned = self._note_return
        self.changed: Callable[[list[LogDirectory]], None] = lambda directories: None

    # ---- open ------------------------------------------------------------------------------------

    def open(self, checked: CheckedSet, racks: Mapping[str, str | None]) -> None:
        """Open the given directories, those that answer, and register them, with these racks by
        path.

        Raises NotEnoughDirectoriesError for a new set without all its members, ReplicaSetError, and
        the errors of one directory that are no failure of its storage.
        """
        problems: list[EmbedlogError] = []
        self._places = MemberPlaces((found.path for found in checked.found), self.workers.at)
        for found in checked.found:
            try:
                member_directories.present(found)
                opened = self._enter(found.path)
                if str(found.path) in racks:
                    self._take(member_directories.with_rack(opened, racks[str(found.path)]))
            except EmbedlogError as problem:
                if not member_directories.is_away(problem):
                    raise
                problems.append(problem)
                self._note_away(found.path, problem)
        if checked.membership is None or not self._opened:
            raise problems[0] if problems else ReplicaSetError("the directories belong to no set")
        self._open_recorded(checked.membership.members)
        self._begin(checked.membership)

    def _enter(self, path: Path, *, again: bool = False) -> Opened:
        """Open a member directory, in its thread. A directory that hangs, and is entered later, is
        left at once.
        """
        # taken: the directory is noted as an open one, or the caller has given up
        noted = _thread.allocate_lock()

        def enter() -> Opened:
            opened = member_directories.enter(self.make, path, again=again)
            opened = self._in_its_lane(opened)
            if noted.acquire(False):
                self._take(opened)  # here: an interrupt of the caller does not lose it
            else:
                member_directories.leave_in_order(opened.directory.log_directory, earlier=True)
            return opened

        self._not_entered.add(path)
        with Guard(partial(noted.acquire, False)):
            found = self.workers.at(path, enter)
        self._not_entered.discard(path)
        return found

    def _in_its_lane(self, opened: Opened) -> Opened:
        """The directory with a copy of the decision log that is used by a thread of it."""
        return opened._replace(
            copy=replace(opened.copy, lane=self.workers.of(opened.path).lane(DECISIONS))
        )

    def _note_hang(self, path: Path, problem: EmbedlogError) -> None:
        """A directory hangs: it is a failed one for this process."""
        logger.warning("%s", problem)
        for opened in self.opened():
            if opened.path == path and hasattr(self, "directories"):
                self.directories.fail(opened.node, problem)

    def _note_return(self, path: Path) -> None:
        logger.info("the directory %s answers again", path)
        if hasattr(self, "directories"):
            self.directories.returned(path)

    def _take(self, opened: Opened) -> None:
        self._known.add(opened.node)
        self._opened[opened.node] = opened
        self._openings += 1

    def _remove(self, node: int) -> None:
        """End the use of a directory as an open one, if it is one."""
        self._opened.pop(node, None)
        self._unjudged.discard(node)
        self._openings += 1

    def _note_away(self, path: Path, problem: EmbedlogError) -> None:
        self._away[str(path)] = str(problem)
        logger.warning("the directory %s of the set is away: %s", path, problem)

    def _open_recorded(self, planned: Sequence[Member]) -> None:
        """Open the members that were not given (SETMEMBERS-6)."""
        for member in planned:
            if member.node not in self._opened and not self._places.is_given(Path(member.path)):
                try:
                    path = self._places.find(member, self.opened())
                    self._enter(path)
                    logger.info("the set has the directory %s, too: it is opened", path)
                except EmbedlogError as problem:
                    self._note_away(Path(member.path), problem)

    def _begin(self, known: Membership) -> None:
        voters = [member.node for member in known.members if member.voter]
        self.decisions = DecisionLog(
            known.cluster_id, voters, lock_timeout_ms=self._config.lock_timeout_ms
        )
        self.decisions.observer = self._observer
        nodes = {member.node for member in known.members}
        views = self.decisions.read_views(opened.copy for opened in self._opened.values())
        written = max(
            views.values(), key=judgement.advance, default=self.decisions.last_view()
        ).state
        added = [
            member for member in registration.members_of(written, known) if member.node not in nodes
        ]
        self._open_recorded(added)  # it may be needed for a majority
        self._unjudged = set(self._opened)
        self._judge()
        deadline_ns = self._deadline()
        state = self.decisions.hint()
        config = self._config
        self._places.end_opening({*nodes, *written.nodes, *state.nodes})
        self.directories = OpenDirectories(
            self._all(state),
            self,
            read_only=self._read_only,
            lock_wait_ms=config.lock_timeout_ms // 3,
            lag_time_ms=config.replica_lag_time_max_ms,
            rates=(
                config.leader_replication_throttled_rate,
                config.follower_replication_throttled_rate,
            ),
            workers=self.workers,
        )
        self.directories.follow = self.tend
        if self._read_only:
            self._use_registered(state)
            return
        self._unregistered = set(self._opened)
        try:
            self._register(deadline_ns)
        except NotEnoughDirectoriesError as problem:
            if not state.nodes:
                raise
            self._use_registered(state)
            logger.warning(
                "without a majority the set is open for reading, and for acks=1 at its leaders "
                "here: %s",
                problem,
            )
        self._state = self.decisions.hint()

    def _all(self, state: State) -> list[OpenDirectory]:
        """All directories of the set; those that this process has not opened are away."""
        away = [each for node, each in state.nodes.items() if node not in self._opened]
        why = {each.node: self._away.get(each.path, "not opened") for each in away}
        now_ms = system.wall_ms()
        return [self._usable(opened, state) for opened in self._opened.values()] + [
            OpenDirectory(
                each.node, each.slot, each.incarnation, None, why[each.node], since_ms=now_ms
            )
            for each in away
        ]

    def _usable(self, opened: Opened, state: State) -> OpenDirectory:
        own = opened.entered.membership
        registered = state.nodes.get(opened.node)
        slot = registered.slot if registered is not None else 0
        return OpenDirectory(opened.node, slot, own.registration_id, opened.directory)

    def _use_registered(self, state: State) -> None:
        """Use the registered slots and broker epochs, and show the open directories to the
        engine.
        """
        for node, opened in self._opened.items():
            registered = state.nodes.get(node)
            if registered is not None:
                opened.directory.log_directory.context.node_slot = registered.slot
                if registered.incarnation == opened.entered.membership.registration_id:
                    opened.directory.log_directory.directory.broker_epoch = registered.broker_epoch
        self.changed(self.log_directories())

    def log_directories(self) -> list[LogDirectory]:
        """The open directories, by node."""
        return [each.directory.log_directory for each in self.opened()]

    def opened(self) -> list[Opened]:
        """The open directories, by node."""
        present = self._opened.copy()  # one step: another thread may remove a directory meanwhile
        return [present[node] for node in sorted(present)]

    def failure(self, directory: LogDirectory) -> str | None:
        """The reason for which an open directory is not used now."""
        node = next(
            (each.node for each in self.opened() if each.directory.log_directory is directory), None
        )
        member = None if node is None else self.directories.member(node)
        return None if member is None else member.problem

    def usable_paths(self) -> tuple[dict[int, Path], bool]:
        """The paths of the directories that are usable now, in the order of their nodes, and
        whether others are away.
        """
        now_ns = system.boot_ns()
        usable = [each for each in self.directories if each.usable(now_ns) and each.problem is None]
        usable.sort(key=lambda each: each.node)
        paths = {each.node: each.directory.path for each in usable if each.directory is not None}
        return paths, len(usable) < self.directories.count()

    # ---- the words of the directories ------------------------------------------------------------

    def version(self) -> int:
        """A number that changes with each decision and with the topics in any directory; odd during
        such a change.

        It contains the topics word of every directory, for `followed`.
        """
        pages = self.pages()
        (words, known) = self._known_version
        if words.pages is pages and words.are_present():
            return known
        words = system.TopicsWords(pages)
        found = topics_words.version(words.words)
        self._known_version = words, found
        return found

    def followed(self, version: int) -> list[tuple[system.Page, int]]:
        """The pages of the directories, each with its topics word in `version`; NOT_FOLLOWED is
        that of each.
        """
        return topics_words.followed(self.pages(), version)

    def pages(self) -> list[system.Page]:
        """The pages of the open directories that are not closed, by node. They are looked for after
        a change only.
        """
        openings = self._openings
        (known_openings, known) = self._known_pages
        if openings == known_openings:
            for page in known:
                if page.closed:
                    break
            else:
                return known
        pages = [each.directory.log_directory.context.directory_page for each in self.opened()]
        found = [page for page in pages if page is not None and not page.closed]
        self._known_pages = openings, found
        return found

    def release(self) -> None:
        """After a failed opening of the set: close the directories in order, so that they are as
        before.
        """
        # an error or an interrupt in one step does not keep the rest open
        with contextlib.ExitStack() as leaving:
            for opened in self._opened.values():
                leave = partial(member_directories.leave_in_order, opened.directory.log_directory)
                leaving.callback(self.workers.finish, opened.path, leave)
            leaving.callback(self.name_marks)
        self.workers.close()

    def leave_later(self, directory: LogDirectory) -> None:
        """Close a directory in order that hangs now, when it answers again: nobody waits for
        that.
        """
        self.workers.of(directory.path).lane().finish(
            partial(member_directories.leave_in_order, directory), 0
        )

    def name_marks(self) -> None:
        """Before the directories are left: their clean marks get the broker epochs of the decision
        log (SETMEMBERS-3).

        Another process may have registered them and stopped before it recorded that.
        """
        if self._read_only or not hasattr(self, "decisions"):
            return
        for opened in self._opened.values():
            opened.directory.log_directory.directory.broker_epoch = -1  # if this is interrupted
        nodes = self.decisions.hint().nodes
        for node, opened in self._opened.items():
            registered = nodes.get(node)
            own = opened.entered.membership
            directory = opened.directory.log_directory.directory
            if node in self._unjudged:  # the opening was refused: the mark is that of before
                directory.broker_epoch = own.broker_epoch if opened.entered.fresh else -1
                continue
            known = (
                registered is not None
                and registered.incarnation == own.registration_id
                and node not in self._uncertain
            )
            certain = known and directory.is_registration_known
            directory.broker_epoch = registered.broker_epoch if registered and certain else -1

    def _deadline(self) -> int:
        return files.deadline_after(self._config.lock_timeout_ms / 1000)

    # ---- registration ----------------------------------------------------------------------------

    def _register(self, deadline_ns: int) -> None:
        """Register what is not registered, by one decision (SETMEMBERS-1). Raises
        NotEnoughDirectoriesError, ReplicaSetError.
        """
        for _ in range(JUDGEMENTS):
            self._set_aside_hanging()
            try:
                with contextlib.suppress(registration.StrangerFound):
                    self._register_judged(deadline_ns)
                    return
            except StorageError:
                if not any(
                    self._opened[node].path in self.workers.hang() for node in self._unregistered
                ):
                    raise
        raise NotEnoughDirectoriesError(
            "other processes register the directories of the set again and again"
        )

    def _set_aside_hanging(self) -> None:
        """Leave the directories that hang before their registration: they are tried again when they
        answer.
        """
        for node in sorted(self._unregistered):
            worker = self.workers.of(self._opened[node].path)
            if worker.hangs:
                self._set_aside(node, worker.late(), self.decisions.hint())

    def _register_judged(self, deadline_ns: int) -> None:
        """Judge the directories, and register those that continue. Raises as `_register`, and
        StrangerFound.
        """
        self._judge()
        self._drop_retired(deadline_ns)
        entered = [self._opened[node].entered for node in sorted(self._unregistered)]
        before = self._uncertain
        self._uncertain = self._uncertain | self._unregistered
        try:
            state = registration.register(
                self.decisions,
                entered,
                observe=self.observed,
                held=self._held(),
                deadline_ns=deadline_ns,
                mode=self._config.file_mode,
                opened=[each.path for each in self.opened()],
                at=self.workers.at,
            )
        except (NotEnoughDirectoriesError, registration.StrangerFound) as problem:
            if not getattr(problem, "undecided", False):
                self._uncertain = before
                for each in entered:
                    each.outcome(each.membership.node not in before)
            raise
        nodes, self._unregistered, self._uncertain = (
            self._unregistered,
            set(),
            self._uncertain - self._unregistered,
        )
        begun = {
            each.membership.node for each in entered if each.membership.replaces or each.restored
        }
        for node in begun & self._opened.keys():
            opened = self._opened[node]
            own = opened.entered.membership._replace(replaces=False)
            self._opened[node] = opened._replace(
                entered=opened.entered._replace(membership=own, restored=False)
            )
            self.decisions.attach(opened.copy)  # from now on by its opening
        self._unjudged -= begun
        if begun:
            # the next decision repeats it
            with contextlib.suppress(NotEnoughDirectoriesError, LockTimeoutError):
                self.decisions.level(deadline_ns)
        present = {each.node for each in self.directories}
        unknown = [
            each for each in self._all(state) if each.node in nodes or each.node not in present
        ]
        self.directories.put(unknown)
        self._use_registered(state)

    def _held(self) -> tuple[HeldTopic, ...]:
        """The topics of the only directory, before the first decision (ADOPTION-2)."""
        if len(self._opened) > 1 or self.decisions.hint().nodes:
            return ()
        return adoption.held_topics(self.log_directories()[0])

    # ---- judgement -------------------------------------------------------------------------------

    def _judge(self) -> None:
        """Attach the copies of the directories that continue, and leave the strangers
        (SETMEMBERS-1).

        Raises ReplicaSetError if none continues, or if a set is to begin again that continues
        (SETMEMBERS-9).
        """
        views = self.decisions.read_views(opened.copy for opened in self._opened.values())
        entered = {node: self._now(opened) for node, opened in self._opened.items()}
        if self._restored:
            judgement.check_restored(judgement.judged(entered, views, self._continues), entered)
            entered = {node: each._replace(restored=True) for node, each in entered.items()}
            self._opened = {
                node: opened._replace(entered=entered[node])
                for node, opened in self._opened.items()
            }
            self._restored = False
        found = judgement.judged(entered, views, self._continues)
        self._has_majority = found is None or found.has_majority
        if not self._has_majority and (shown := self._shown_by_others()):
            found = judgement.judged(entered, shown | views, self._continues)
        if found is not None:
            self._leave_strangers(found, entered)
        prepared = {
            node
            for node in self._unjudged
            if entered[node].membership.replaces and not self._read_only
        }
        for node in self._unjudged - prepared:
            copy = self._opened[node].copy
            is_unknown = self._read_only or entered[node].restored
            self.decisions.attach(replace(copy, openings=()) if is_unknown else copy)
        self._unjudged = prepared

    def _shown_by_others(self) -> dict[int, DecisionView]:
        """What the copies show of directories that could not be opened, because a lock in them is
        not free: a put back directory must not lead beside them (JUDGEMENT-5).
        """
        views = dict[int, DecisionView]()
        for path in self._not_entered:
            with contextlib.suppress(EmbedlogError):
                views |= self.workers.at(path, partial(self._shown_in, path))
        return views

    def _shown_in(self, path: Path) -> dict[int, DecisionView]:
        """What the copy in a directory shows without its locks; nothing if it is a stranger."""
        opened = member_directories.enter(partial(self.make, reading=True), path)
        try:
            views = self.decisions.read_views([opened.copy])
            own = registration.in_file(opened.path, opened.entered.membership)
            return {
                node: view
                for node, view in views.items()
                if not registration.strangeness(own, view.state)
            }
        finally:
            member_directories.leave_in_order(opened.directory.log_directory)

    def _continues(self, node: int, earlier: int) -> bool:
        """Whether the decisions in the directory of a node begin with all of those in another one.
        False for one that could not be opened.
        """
        if not {node, earlier} <= self._opened.keys():
            return False
        return self.decisions.is_continued(self._opened[earlier].copy, self._opened[node].copy)

    def _now(self, opened: Opened) -> Entered:
        """What a directory is judged by. Another process may have registered it since a reader
        opened it.
        """
        own = (
            self.workers.at(opened.path, partial(members.read, opened.path))
            if self._read_only
            else None
        )
        return opened.entered if own is None else registration.in_file(opened.path, own)

    def _leave_strangers(self, found: Judgement, entered: Mapping[int, Entered]) -> None:
        if self._read_only and not found.has_majority:
            return  # a reader changes nothing: it shows what is there
        if found.strangers.keys() >= entered.keys():
            if self._not_entered:
                raise NotEnoughDirectoriesError(
                    "of the directories that could be opened, none is the registered one",
                    reached=[],
                    voters=found.state.voters,
                    away=self._away,
                )
            raise judgement.all_strangers(entered, found.strangers)
        for node in sorted(found.strangers.keys() & (self._unjudged | self._unregistered)):
            path = entered[node].path
            problem = judgement.stranger(
                node, path, found.strangers[node], has_majority=found.has_majority
            )
            self._set_aside(node, problem, found.state)

    def _set_aside(self, node: int, problem: EmbedlogError, state: State) -> None:
        """Leave a stranger, or a directory that hangs, and use it for nothing. After a pause its
        files are looked at again.
        """
        opened = self._opened[node]
        # an interrupt in one step does not keep the locks of the directory
        with contextlib.ExitStack() as leaving:
            leave = partial(
                member_directories.leave_in_order, opened.directory.log_directory, earlier=True
            )
            leaving.callback(self.workers.finish, opened.path, leave)
            opened.directory.log_directory.directory.broker_epoch = -1
            self._remove(node)
            self._unregistered.discard(node)
            self.decisions.detach(node, problem)
            self._note_away(opened.path, problem)
            if node in state.nodes:
                self._away[state.nodes[node].path] = str(problem)
            if hasattr(self, "directories"):
                member = self.directories.member(node)
                if member is not None:
                    member.directory = None
                    self.directories.fail(node, problem)
                self.changed(self.log_directories())

    def _drop_retired(self, deadline_ns: int) -> None:
        """End the use of directories that were registered once, and have left the set since
        (SETMEMBERS-7).
        """
        state = self.decisions.hint()
        noted = {
            node
            for node in self._unregistered
            if self._opened[node].entered.membership.registered_id is not None
        }
        registered = noted | {node for node in self._unregistered if node <= state.highest_node}
        if not state.nodes or registered <= set(state.nodes):
            return
        for node in registered - set(self.decisions.settle(deadline_ns).nodes):
            path = self._opened[node].path
            self.forget(node)
            self._note_away(
                path,
                ReplicaSetError("the directory has left the set", path=path, found=f"node {node}"),
            )

    def observed(self, state: State) -> Mapping[Place, Observed]:
        """The replicas of all partitions that this process reaches. A damaged one that is the whole
        ISR is not reached.
        """
        found: dict[Place, Observed] = {}
        for place, each in state.partitions.items():
            replicas = PartitionReplicas(
                self.directories, self.decisions, place, state.topics[place[0]].name
            )
            try:
                found[place] = replicas.leaders.observe_replicas(each)
            except DAMAGE as problem:  # each access to this partition meets it again
                logger.warning(
                    "the only replica of %s that is in sync is damaged: %s", replicas.name, problem
                )
        return found

    def admit(self, opened: Opened, deadline_ns: int) -> None:
        """Register a directory that was just opened, and is not in the set yet. After an error it
        is closed again.
        """
        with locks.holding(self._mutex, deadline_ns, "the directories of the set"):
            opened = self._in_its_lane(opened)
            self._take(opened)
            self.decisions.attach(opened.copy)
            self._unregistered.add(opened.node)
            self.directories.put([self._usable(opened, self.decisions.hint())])
            try:
                self._register(deadline_ns)
            except BaseException:
                self.forget(opened.node)
                raise
            if opened.node not in self._opened:
                raise ReplicaSetError(
                    "another directory got this number, and left: add it again",
                    paths=[str(opened.path)],
                )

    def leave_failed(self, node: int) -> None:
        """Give the opening of a failed directory back: it is opened again when it is tried next."""
        with locks.holding(self._mutex, self._deadline(), "the directories of the set"):
            self._leave_failed(node)

    def _leave_failed(self, node: int) -> None:
        earlier = self._opened.get(node)
        if earlier is None:
            return
        with contextlib.ExitStack() as leaving:  # as in `_set_aside`
            leaving.callback(self._leave_earlier, earlier)
            self._remove(node)
            self.decisions.detach(node)
            member = self.directories.member(node)
            if member is not None:
                member.directory = None
            self._unregistered.discard(node)
            self.changed(self.log_directories())

    def _leave_earlier(self, earlier: Opened) -> None:
        leave = partial(member_directories.leave_earlier, earlier.directory.log_directory)
        self.workers.finish(earlier.path, leave)

    def replace(self, node: int, path: Path, deadline_ns: int) -> None:
        """Open and register the prepared directory of a node that was away.

        Raises as `_register`, and ReplicaSetError if another process uses the lost directory again.
        """
        with locks.holding(self._mutex, deadline_ns, "the directories of the set"):
            self._open_in_place(node, path, self.decisions.hint())
            self._register(deadline_ns)
            if node not in self._opened:
                why = self._away.get(str(path), "the directory has left the set")
                raise ReplicaSetError(f"nothing is replaced: {why}", paths=[str(path)])

    # ---- directories that return -----------------------------------------------------------------

    def tend(self, *, by_hand: bool = False) -> None:
        """Try failed directories again, and register what is not registered. Nothing is read if all
        directories are in order.

        `by_hand`: without waiting for the end of the pauses. Replaced directories fail first then,
        or if there was no majority.
        """
        if not self._read_only:
            self._renew_copies()
            # a decision fails no directory that it does not reach
            if by_hand or self.directories.undecided():
                self.directories.fail_replaced()
        state = self.decisions.hint()
        now_ns = system.boot_ns()
        failed = [each for each in self.directories if each.problem is not None]
        if state is self._state and not failed and not self._unregistered:
            return
        with locks.holding(self._mutex, self._deadline(), "the directories of the set"):
            # another thread may have registered directories meanwhile
            state = self.decisions.hint()
            self._follow(state)
            for each in list(self.directories):
                if self._read_only and each.directory is not None:
                    continue  # it is used again after its pause
                registered = state.nodes.get(each.node)
                due = each.problem is not None and (by_hand or now_ns >= each.retry_ns)
                replaced = registered is not None and registered.incarnation != each.incarnation
                if due or (
                    replaced and each.node not in self._unregistered and each.problem is None
                ):
                    self._retry(each, state, replaced=replaced)
            if self._unregistered and (by_hand or now_ns >= self._retry_ns):
                self._register_again()
            self._state = state if not self._unregistered else None

    def _renew_copies(self) -> None:
        """Begin damaged copies of the decision log again. A directory that fails returns first."""
        opened = self._opened.copy()
        used = {node for node in opened if self.directories.get(node) is not None} - self._unjudged
        for node, problem in find_damaged_copies(
            self.decisions, {node: opened[node].copy for node in used}
        ).items():
            try:
                self.renew_copy(node, problem)
            except EmbedlogError as found:
                what = f"the decision log of node {node} is damaged, and not copied again yet"
                _logging.report(
                    logger, logging.WARNING, (self._opened[node].path, what), what, found
                )

    def renew_copy(self, node: int, problem: EmbedlogError) -> None:
        """Begin a damaged copy of the decision log again. Raises NotEnoughDirectoriesError,
        LockTimeoutError, StorageError.
        """
        with locks.holding(self._mutex, self._deadline(), "the directories of the set"):
            if (opened := self._opened.get(node)) is not None:
                renew_copy(self.decisions, opened.directory, opened.copy, problem, self._deadline)

    def _follow(self, state: State) -> None:
        """Add the directories that other processes have added to the set, and forget those that
        have left it.
        """
        known = {each.node for each in self.directories}
        self.directories.put(
            [each for each in self._all(state) if each.node not in known and each.directory is None]
        )
        for node in known - set(state.nodes) if state.nodes else ():
            self.forget(node)

    def forget(self, node: int) -> None:
        """End the use of a directory that left the set."""
        with self._mutex:
            self.directories.remove(node)
            self.decisions.detach(node)
            self._unregistered.discard(node)
            opened = self._opened.get(node)
            if opened is None:
                return
            with contextlib.ExitStack() as leaving:  # as in `_set_aside`
                leave = partial(
                    member_directories.leave_in_order, opened.directory.log_directory, earlier=True
                )
                leaving.callback(self.workers.finish, opened.path, leave)
                self._remove(node)
                self.changed(self.log_directories())

    def _register_again(self) -> None:
        deadline_ns = self._deadline()
        try:
            self._register(deadline_ns)
        except EmbedlogError as problem:
            if isinstance(problem, NotEnoughDirectoriesError):
                self.directories.fail_replaced()  # those are opened again next
            self._retry_ns = system.boot_ns() + REGISTER_S * 1_000_000_000
            key = (*sorted(str(each.path) for each in self._opened.values()), "register")
            _logging.report(
                logger, logging.INFO, key, "directories are not registered yet", problem
            )

    def _retry(self, member: OpenDirectory, state: State, *, replaced: bool) -> None:
        """Use a failed directory again, if it is the same as before; otherwise open it again
        (SETMEMBERS-4).
        """
        opened = self._opened.get(member.node)
        try:
            if opened is not None and not replaced and self._is_unchanged(opened):
                self.directories.recovered(member.node)
                return
            self._reopen(member.node, None if opened is None else opened.path, state)
        except EmbedlogError as problem:
            self.directories.fail(member.node, problem)
            logger.debug("the directory of node %d is still away: %s", member.node, problem)

    def _is_unchanged(self, opened: Opened) -> bool:
        return self.workers.at(opened.path, partial(member_directories.is_unchanged, opened))

    def _reopen(self, node: int, path: Path | None, state: State) -> None:
        """Open a member again, which was open at this path; without one, where it is found
        (SETMEMBERS-6).
        """
        registered = state.nodes[node]
        member = Member(node, id_text(registered.directory.bytes), registered.path)
        if path is not None and registered.path != str(path):
            there = self.workers.at(path, partial(files.exists, path / file_names.REPLICAS))
            # another process has given its place to a directory elsewhere
            path = path if there else None
        place = self._places.find(member, self.opened(), path, registered.incarnation)
        own = self.workers.at(place, partial(members.read, place))
        if own is not None and registration.is_judged(state):
            why = registration.strangeness(registration.in_file(place, own), state)
            if why:
                self._leave_failed(node)
                raise judgement.stranger(node, place, why, has_majority=self._has_majority)
        self._open_in_place(node, place, state)
        if not self._read_only:
            self._register_again()
        else:
            self._judge()

    def _open_in_place(self, node: int, path: Path, state: State) -> None:
        """Open the directory of a node instead of an earlier one; it is not registered yet."""
        with contextlib.ExitStack() as leaving:  # as in `_set_aside`
            earlier = self._opened.get(node)
            if earlier is not None:
                leaving.callback(self._leave_earlier, earlier)
            self._remove(node)
            self.decisions.detach(node)
        try:
            opened = self._enter(path, again=node in self._known)
        except BaseException:
            known = self.directories.member(node)
            if known is not None:
                known.directory = None
            self.changed(self.log_directories())
            raise
        self._unjudged.add(node)
        self.directories.put([self._usable(opened, state)])
        self._use_registered(state)
        logger.warning("the directory %s of node %d is usable", path, node)
        if not self._read_only:
            self._unregistered.add(node)
