"""This module holds the directories of a set that this process has opened: their opening,
registration, failure and return.

The life of a directory in a process has four standings: away, entered, attached, registered
(`directory_states` has the table). `_enter` opens it. `_judge` leaves it if it is a stranger, or
attaches its copy of the decision log. `_register` puts its opening into the decisions. Six methods
end its use:

| method | the directory | its files | afterwards |
| --- | --- | --- | --- |
| `_leave_unusable` | is a stranger at the judgement, or hangs before it is registered | closed in order | away, tried again |
| `leave_failed` | has failed, is to be replaced, or is a stranger when it is opened again | only unlocked | away, tried again |
| `_open_in_place` | is opened again, or another one was prepared in its place (`replace`) | only unlocked | entered |
| `leave_retired` | has left the set | closed in order | not of the set |
| `release` | any, after a failed opening of the set | closed in order | the set is not open |
| `leave_later` | hangs while the set is closed | closed in order, when it answers | the set is closed |

The close of the set leaves all others (`engine.closing`), after `set_marked_epochs` has given their
clean marks the broker epochs.

One directory has several objects:

| object | what it is |
| --- | --- |
| `Member` | what the file of members has about it: node, directory id, path, rack |
| `EnteredDirectory` | its file of members as it was when its locks were taken: what it is registered by |
| `LogDirectory` | the directory as it is opened: topics, partitions; its `directory` is lock, page and clean mark |
| `SetDirectory` | `LogDirectory` with its node, for the partitions of the set |
| `OpenMember` | `EnteredDirectory`, `SetDirectory` and copy of the decision log: here, while it is open |
| `OpenDirectory` | its slot, and whether it works: in `directories`, also while it is away |

- A directory is entered and judged before its copy of the decision log is attached. All of them are
  registered by one decision. A stranger is left again, and is away until it is replaced
  (`judgement`). The copy of a directory that replaces another one is attached after its
  registration: a majority of the others has that. It is level before it counts.
- A directory that is missing or fails is away; the others open. Without a majority nothing is
  registered. A directory whose registration id is not the registered one leads nothing and joins no
  ISR until a later registration.
- The clean mark of a directory has the broker epoch of its registration (REPLICA-12). After a
  registration with an unknown outcome, also of another process, it has none. The next opening finds
  a crashed directory then.
- A failed directory is tried again after its pause. If lock file, control page and registration id
  are still those of this process, it continues. Otherwise it is opened and registered again, and
  its earlier objects end.
- A registration by another process shows that a directory was replaced or crashed: it is opened
  again here, too.
- A directory that the decision log names, but that was not given, is opened by its recorded path.
  At the opening and later, it must belong to the open directories. A copy of the set must not use
  directories of the first one.
- A given directory that has left the set is away: its retirement may have been interrupted. Its
  file of members need not have its registration.
- A directory that another process added is opened before its first use. A reader registers nothing.
- `_register` can be called inside itself: to observe the replicas means to use the directories, which
  can follow a decision of another process by `tend`, in the same thread and under the same mutex. So
  what is registered is asked again after the decision.
- A set of which no majority continues begins again from all of its directories, by request only.
  Each of them is registered as a stranger, so that the best log of each partition leads.
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
from embedlog.replicas.decisions.decision_view import CopyView
from embedlog.replicas.decisions.proposals import Proposal
from embedlog.replicas.members import adoption, judgement, member_directories, registration
from embedlog.replicas.members import membership as members
from embedlog.replicas.members.directory_states import DirectoryStanding, DirectoryStates
from embedlog.replicas.members.directory_workers import DECISIONS, DirectoryWorkers
from embedlog.replicas.members.judgement import Judgement
from embedlog.replicas.members.member_directories import MakeDirectory, MemberPlaces, OpenMember
from embedlog.replicas.members.membership import Member
from embedlog.replicas.members.open_directories import LOAD_ERRORS, OpenDirectories, OpenDirectory
from embedlog.replicas.members.registration import EnteredDirectory
from embedlog.replicas.observation import topics_words
from embedlog.replicas.partition.partition_replicas import PartitionReplicas
from embedlog.storage import file_names, files, locks
from embedlog.storage.identity import id_text
from embedlog.telemetry import log_messages

if TYPE_CHECKING:
    from embedlog.config.topic import LogConfig
    from embedlog.engine.log_directory import LogDirectory
    from embedlog.replicas.decisions.copies import Copy
    from embedlog.replicas.members.membership import CheckedSet, Membership
    from embedlog.replicas.rules.events import HeldTopic, Observed, PartitionId
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
        directories.
        """
        self._observer = observer
        self._restored = restored
        self.make = make
        self._config = config
        self._read_only = read_only
        self._states = DirectoryStates()
        # both are replaced as a whole, since any thread reads them: the pages with the openings to
        # which they belong, and the last words with their version
        self._last_pages: tuple[int, list[system.Page]] = (-1, [])
        self._last_version = system.TopicsWords(()), 0
        self._has_majority = True  # of the directories that continue, at the last judgement
        self._register_retry_ns = 0  # the time of the next try to register without a majority
        # the decisions that `tend` has followed; None: it has not registered every directory
        self._followed_state: State | None = None
        self._mutex = threading.RLock()
        lock_ms = config.lock_timeout_ms
        self.workers = DirectoryWorkers(
            min(lock_ms // 3, config.replica_lag_time_max_ms) * 1_000_000, lock_ms * 1_000_000
        )
        self.workers.on_hang = self._note_hang
        self.workers.on_return = self._note_return
        self.changed: Callable[[list[LogDirectory]], None] = lambda directories: None

    # ---- open ------------------------------------------------------------------------------------

    def open(self, checked: CheckedSet, racks: Mapping[str, str | None]) -> None:
        """Open the given directories, those that answer, and register them, with these racks by
        path.

        Raises NotEnoughDirectoriesError for a new set without all its members, ReplicaSetError, and
        the errors of one directory that are no failure of its storage.
        """
        problems: list[EmbedlogError] = []
        self._places = MemberPlaces(
            (directory.path for directory in checked.directories), self.workers.run_at
        )
        for directory in checked.directories:
            path = directory.path
            try:
                member_directories.check_present(directory)
                opened = self._enter(path)
                if str(path) in racks:
                    self._states.change(member_directories.with_rack(opened, racks[str(path)]))
            except EmbedlogError as problem:
                if not member_directories.is_away(problem):
                    raise
                problems.append(problem)
                self._note_away(path, problem)
        if checked.membership is None or not self._states.open_nodes():
            if problems:
                raise problems[0]
            raise ReplicaSetError("the directories belong to no set")
        self._open_recorded(checked.membership.members)
        self._begin(checked.membership)

    def _enter(self, path: Path, *, again: bool = False) -> OpenMember:
        """Open a member directory, in its thread. A directory that hangs, and is entered later, is
        left at once.
        """
        # whoever takes it first decides: the directory is noted as an open one, or left at once. It
        # is never released: each opening has its own
        turn = _thread.allocate_lock()
        refuse_entry = partial(turn.acquire, False)

        def enter() -> OpenMember:
            opened = member_directories.enter(self.make, path, again=again)
            opened = self._with_lane(opened)
            if turn.acquire(False):
                # in this thread: an interrupt of the caller does not lose it
                self._states.enter(opened)
            else:
                member_directories.leave_in_order(opened.directory.log_directory, earlier=True)
            return opened

        self._states.begin_entry(path)
        with Guard(refuse_entry):
            opened_member = self.workers.run_at(path, enter)
        self._states.end_entry(path)
        return opened_member

    def _with_lane(self, opened: OpenMember) -> OpenMember:
        """The directory with a copy of the decision log that is used by a thread of it."""
        return opened._replace(
            copy=replace(opened.copy, lane=self.workers.worker_of(opened.path).lane(DECISIONS))
        )

    def _note_hang(self, path: Path, problem: EmbedlogError) -> None:
        """A directory hangs: it is a failed one for this process."""
        logger.warning("%s", problem)
        for opened in self.open_members():
            if opened.path == path and hasattr(self, "directories"):
                self.directories.fail(opened.node, problem)

    def _note_return(self, path: Path) -> None:
        logger.info("the directory %s answers again", path)
        if hasattr(self, "directories"):
            self.directories.note_return(path)

    def _note_away(self, path: Path, problem: EmbedlogError) -> None:
        self._states.note_away(path, str(problem))
        logger.warning("the directory %s of the set is away: %s", path, problem)

    def _open_recorded(self, planned: Sequence[Member]) -> None:
        """Open the members that were not given."""
        for member in planned:
            is_open = self._states.open_member(member.node) is not None
            if is_open or self._places.is_given(Path(member.path)):
                continue
            try:
                path = self._places.find(member, self.open_members())
                self._enter(path)
                logger.info("the set has the directory %s, too: it is opened", path)
            except EmbedlogError as problem:
                self._note_away(Path(member.path), problem)

    def _begin(self, recorded: Membership) -> None:
        voters = [member.node for member in recorded.members if member.voter]
        self.decisions = DecisionLog(
            recorded.cluster_id, voters, lock_timeout_ms=self._config.lock_timeout_ms
        )
        self.decisions.observer = self._observer
        nodes = {member.node for member in recorded.members}
        views = self.decisions.read_copy_views(opened.copy for opened in self.open_members())
        newest_view = max(views.values(), key=judgement.advance, default=self.decisions.last_view())
        written = newest_view.state
        added = [
            member
            for member in registration.members_of(written, recorded)
            if member.node not in nodes
        ]
        self._open_recorded(added)  # it may be needed for a majority
        self._judge()
        deadline_ns = self._deadline()
        state = self.decisions.counted_state()
        config = self._config
        self._places.end_opening({*nodes, *written.nodes, *state.nodes})
        self.directories = OpenDirectories(
            self._all_directories(state),
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
        self._followed_state = self.decisions.counted_state()

    def _all_directories(self, state: State) -> list[OpenDirectory]:
        """All directories of the set; those that this process has not opened are away."""
        open_members = self.open_members()
        open_nodes = {opened.node for opened in open_members}
        directories = [self._open_directory_of(opened, state) for opened in open_members]
        now_ms = system.wall_ms()
        for node, registered in state.nodes.items():
            if node not in open_nodes:
                away = OpenDirectory(
                    node,
                    registered.slot,
                    registered.registration_id,
                    directory=None,
                    problem=self._states.reason(registered.path, default="not opened"),
                    since_ms=now_ms,
                )
                directories.append(away)
        return directories

    def _open_directory_of(self, opened: OpenMember, state: State) -> OpenDirectory:
        own = opened.entered.membership
        registered = state.nodes.get(opened.node)
        slot = registered.slot if registered is not None else 0
        return OpenDirectory(opened.node, slot, own.registration_id, opened.directory)

    def _use_registered(self, state: State) -> None:
        """Use the registered slots and broker epochs, and show the open directories to the
        engine.
        """
        for opened in self.open_members():
            registered = state.nodes.get(opened.node)
            if registered is None:
                continue
            log_directory = opened.directory.log_directory
            log_directory.context.node_slot = registered.slot
            if registered.registration_id == opened.entered.membership.registration_id:
                opened.set_marked_epoch(registered.broker_epoch)
        self.changed(self.log_directories())

    def log_directories(self) -> list[LogDirectory]:
        """The open directories, by node."""
        return [opened.directory.log_directory for opened in self.open_members()]

    def open_members(self) -> list[OpenMember]:
        """The open directories, by node."""
        return self._states.open_members()

    def _nodes_to_register(self) -> set[int]:
        """The nodes whose directories are open, and not registered by this opening. A reader
        registers none.
        """
        if self._read_only:
            return set()
        return self._states.nodes_at(DirectoryStanding.ENTERED) | self._states.nodes_at(
            DirectoryStanding.ATTACHED
        )

    def failure_of(self, directory: LogDirectory) -> str | None:
        """The reason for which an open directory is not used now."""
        for opened in self.open_members():
            if opened.directory.log_directory is directory:
                member = self.directories.member(opened.node)
                return None if member is None else member.problem
        return None

    def usable_paths(self) -> tuple[dict[int, Path], bool]:
        """The paths of the directories that are usable now, in the order of their nodes, and
        whether others are away.
        """
        now_ns = system.boot_ns()
        usable = [
            member
            for member in self.directories
            if member.is_usable(now_ns) and member.problem is None
        ]
        usable.sort(key=lambda member: member.node)
        paths = {
            member.node: member.directory.path for member in usable if member.directory is not None
        }
        return paths, len(usable) < self.directories.count()

    # ---- the words of the directories ------------------------------------------------------------

    def version(self) -> int:
        """A number that changes with each decision and with the topics in any directory; odd during
        such a change.

        It contains the topics word of every directory, for `followed_pages`.
        """
        pages = self.pages()
        (words, version) = self._last_version
        if words.pages is pages and words.are_current():
            return version
        words = system.TopicsWords(pages)
        version = topics_words.version(words.words)
        self._last_version = words, version
        return version

    def followed_pages(self, version: int) -> list[tuple[system.Page, int]]:
        """The pages of the directories, each with its topics word in `version`; with NOT_FOLLOWED, if
        that is the version.
        """
        return topics_words.followed_pages(self.pages(), version)

    def pages(self) -> list[system.Page]:
        """The pages of the open directories that are not closed, by node. They are looked for after
        a change only.
        """
        openings = self._states.openings
        (last_openings, pages) = self._last_pages
        if openings == last_openings:
            for page in pages:
                if page.closed:
                    break
            else:
                return pages
        pages = []
        for opened in self.open_members():
            open_page = opened.directory.log_directory.context.directory_page
            if open_page is not None and not open_page.closed:
                pages.append(open_page)
        self._last_pages = openings, pages
        return pages

    def release(self) -> None:
        """After a failed opening of the set: close the directories in order, so that they are as
        before.
        """
        # an error or an interrupt in one step does not keep the rest open
        with contextlib.ExitStack() as leaving:
            for opened in self.open_members():
                leave = partial(member_directories.leave_in_order, opened.directory.log_directory)
                leaving.callback(self.workers.finish, opened.path, leave)
            leaving.callback(self.set_marked_epochs)
        self.workers.close()

    def leave_later(self, directory: LogDirectory) -> None:
        """Close a directory in order that hangs now, when it answers again: nobody waits for
        that.
        """
        self.workers.worker_of(directory.path).lane().finish(
            partial(member_directories.leave_in_order, directory), 0
        )

    def set_marked_epochs(self) -> None:
        """Before the directories are left: their clean marks get the broker epochs of the decision
        log.

        Another process may have registered them and stopped before it recorded that.
        """
        if self._read_only or not hasattr(self, "decisions"):
            return
        open_members = self.open_members()
        for opened in open_members:
            opened.set_marked_epoch(-1)  # if this is interrupted
        nodes = self.decisions.counted_state().nodes
        for opened in open_members:
            registered = nodes.get(opened.node)
            own = opened.entered.membership
            if self._states.standing(opened.node) is DirectoryStanding.ENTERED:
                # the opening was refused: the mark is that of before
                opened.set_marked_epoch(own.broker_epoch if opened.entered.fresh else -1)
                continue
            if (
                registered is not None
                and registered.registration_id == own.registration_id
                and not self._states.is_uncertain(opened.node)
                and opened.directory.log_directory.directory.is_registration_known
            ):
                opened.set_marked_epoch(registered.broker_epoch)
            else:
                opened.set_marked_epoch(-1)

    def _deadline(self) -> int:
        return files.deadline_after(self._config.lock_timeout_ms / 1000)

    # ---- registration ----------------------------------------------------------------------------

    def _register(self, deadline_ns: int) -> None:
        """Register what is not registered, by one decision. Raises NotEnoughDirectoriesError,
        ReplicaSetError.
        """
        for _ in range(JUDGEMENTS):
            self._leave_hanging()
            try:
                with contextlib.suppress(registration.StrangerFound):
                    self._register_judged(deadline_ns)
                    return
            except StorageError:
                hanging = self.workers.hanging_paths()
                paths = [self._states.require(node).path for node in self._nodes_to_register()]
                if not any(path in hanging for path in paths):
                    raise
        raise NotEnoughDirectoriesError(
            "other processes register the directories of the set again and again"
        )

    def _leave_hanging(self) -> None:
        """Leave the directories that hang before their registration: they are tried again when they
        answer.
        """
        for node in sorted(self._nodes_to_register()):
            worker = self.workers.worker_of(self._states.require(node).path)
            if worker.is_hanging:
                self._leave_unusable(node, worker.hang_error(), self.decisions.counted_state())

    def _register_judged(self, deadline_ns: int) -> None:
        """Judge the directories, and register those that continue. Raises as `_register`, and
        StrangerFound.
        """
        self._judge()
        self._leave_all_retired(deadline_ns)
        nodes = self._nodes_to_register()
        entered = [self._states.require(node).entered for node in sorted(nodes)]
        uncertain_before = self._states.uncertain_nodes()
        self._states.doubt(nodes)
        try:
            state = registration.register(
                self.decisions,
                entered,
                observe=self.observe_replicas,
                held=self._held_topics(),
                deadline_ns=deadline_ns,
                mode=self._config.file_mode,
                opened=[opened.path for opened in self.open_members()],
                run_at=self.workers.run_at,
            )
        except (NotEnoughDirectoriesError, registration.StrangerFound) as problem:
            is_undecided = isinstance(problem, NotEnoughDirectoriesError) and problem.undecided
            if not is_undecided:
                # nothing was registered: what was known before is known again
                self._states.trust(nodes - uncertain_before)
                for directory in entered:
                    is_known = directory.membership.node not in uncertain_before
                    directory.note_outcome(is_known)
            raise
        beginning_again = {
            directory.membership.node
            for directory in entered
            if directory.membership.replaces or directory.restored
        }
        # those of the decision that are still open: observing the replicas can lead to `tend`, which
        # also opens others, and those are not in the decision
        registered_nodes = nodes & self._nodes_to_register()
        for node in registered_nodes - beginning_again:
            self._states.register(node)
        for node in registered_nodes & beginning_again:
            opened = self._states.require(node)
            own = opened.entered.membership._replace(replaces=False)
            entry = opened.entered._replace(membership=own, restored=False)
            self._states.change(opened._replace(entered=entry))
            self.decisions.attach(opened.copy)  # from now on by its opening
            self._states.register(node)
        if beginning_again:
            # the next decision repeats it
            with contextlib.suppress(NotEnoughDirectoriesError, LockTimeoutError):
                self.decisions.level(deadline_ns)
        opened_nodes = {member.node for member in self.directories}
        changed = [
            member
            for member in self._all_directories(state)
            if member.node in registered_nodes or member.node not in opened_nodes
        ]
        self.directories.put(changed)
        self._use_registered(state)

    def _held_topics(self) -> tuple[HeldTopic, ...]:
        """The topics of the only directory, before the first decision."""
        directories = self.log_directories()
        if len(directories) > 1 or self.decisions.counted_state().nodes:
            return ()
        return adoption.held_topics(directories[0])

    # ---- judgement -------------------------------------------------------------------------------

    def _judge(self) -> None:
        """Attach the copies of the directories that continue, and leave the strangers.

        Raises ReplicaSetError if none continues, or if a set is to begin again that continues.
        """
        open_members = self.open_members()
        views = self.decisions.read_copy_views(opened.copy for opened in open_members)
        entered = {opened.node: self._current_entry(opened) for opened in open_members}
        if self._restored:
            judgement.check_restored(
                judgement.judge(entered, views, self._is_continued_by), entered
            )
            entered = {
                node: directory._replace(restored=True) for node, directory in entered.items()
            }
            for opened in open_members:
                self._states.change(opened._replace(entered=entered[opened.node]))
            self._restored = False
        verdict = judgement.judge(entered, views, self._is_continued_by)
        self._has_majority = verdict is None or verdict.has_majority
        if not self._has_majority:
            views_of_others = self._views_of_others()
            if views_of_others:
                verdict = judgement.judge(entered, views_of_others | views, self._is_continued_by)
        if verdict is not None:
            self._leave_strangers(verdict, entered)
        for node in self._states.nodes_at(DirectoryStanding.ENTERED):
            if entered[node].membership.replaces and not self._read_only:
                continue  # its copy is attached after its registration
            copy = self._states.require(node).copy
            if self._read_only or entered[node].restored:
                copy = replace(copy, openings=())  # no decision has its opening
            self.decisions.attach(copy)
            self._states.attach(node)

    def _views_of_others(self) -> dict[int, CopyView]:
        """What the copies show of directories that could not be opened, because a lock in them is
        not free: a put back directory must not lead beside them.
        """
        views = dict[int, CopyView]()
        for path in self._states.refused_paths():
            with contextlib.suppress(EmbedlogError):
                views |= self.workers.run_at(path, partial(self._views_in, path))
        return views

    def _views_in(self, path: Path) -> dict[int, CopyView]:
        """What the copy in a directory shows without its locks; nothing if it is a stranger."""
        opened = member_directories.enter(partial(self.make, reading=True), path)
        try:
            views = self.decisions.read_copy_views([opened.copy])
            own = registration.entry_in_file(opened.path, opened.entered.membership)
            return {
                node: view
                for node, view in views.items()
                if not registration.strangeness(own, view.state)
            }
        finally:
            member_directories.leave_in_order(opened.directory.log_directory)

    def _is_continued_by(self, node: int, earlier: int) -> bool:
        """Whether the decisions in the directory of a node begin with all of those in another one.
        False for one that could not be opened.
        """
        opened = self._states.open_member(node)
        earlier_opened = self._states.open_member(earlier)
        if opened is None or earlier_opened is None:
            return False
        return self.decisions.is_continued(earlier_opened.copy, opened.copy)

    def _current_entry(self, opened: OpenMember) -> EnteredDirectory:
        """What a directory is judged by. Another process may have registered it since a reader
        opened it.
        """
        if not self._read_only:
            return opened.entered
        own = self.workers.run_at(opened.path, partial(members.read, opened.path))
        if own is None:
            return opened.entered
        return registration.entry_in_file(opened.path, own)

    def _leave_strangers(self, verdict: Judgement, entered: Mapping[int, EnteredDirectory]) -> None:
        if self._read_only and not verdict.has_majority:
            return  # a reader changes nothing: it shows what is there
        if verdict.strangers.keys() >= entered.keys():
            if self._states.refused_paths():
                raise NotEnoughDirectoriesError(
                    "of the directories that could be opened, none is the registered one",
                    reached=[],
                    voters=verdict.state.voters,
                    away=self._states.reasons(),
                )
            raise judgement.strangers_error(entered, verdict.strangers)
        unused = self._nodes_to_register() | self._states.nodes_at(DirectoryStanding.ENTERED)
        for node in sorted(verdict.strangers.keys() & unused):
            path = entered[node].path
            problem = judgement.stranger_error(
                node, path, verdict.strangers[node], has_majority=verdict.has_majority
            )
            self._leave_unusable(node, problem, verdict.state)

    def _leave_unusable(self, node: int, problem: EmbedlogError, state: State) -> None:
        """Leave a stranger, or a directory that hangs, and use it for nothing. After a pause its
        files are looked at again.
        """
        opened = self._states.require(node)
        # an interrupt in one step does not keep the locks of the directory
        with contextlib.ExitStack() as leaving:
            leave = partial(
                member_directories.leave_in_order, opened.directory.log_directory, earlier=True
            )
            leaving.callback(self.workers.finish, opened.path, leave)
            opened.set_marked_epoch(-1)
            self._states.leave(node)
            self.decisions.detach(node, problem)
            self._note_away(opened.path, problem)
            if node in state.nodes:
                self._states.note_away(state.nodes[node].path, str(problem))
            if hasattr(self, "directories"):
                member = self.directories.member(node)
                if member is not None:
                    member.directory = None
                    self.directories.fail(node, problem)
                self.changed(self.log_directories())

    def _leave_all_retired(self, deadline_ns: int) -> None:
        """End the use of directories that were registered once, and have left the set since."""
        state = self.decisions.counted_state()
        registered = set[int]()
        for node in self._nodes_to_register():
            own = self._states.require(node).entered.membership
            if own.registered_id is not None or node <= state.highest_node:
                registered.add(node)
        if not state.nodes or registered <= set(state.nodes):
            return
        for node in registered - set(self.decisions.settle(deadline_ns).nodes):
            path = self._states.require(node).path
            self.leave_retired(node)
            self._note_away(
                path,
                ReplicaSetError("the directory has left the set", path=path, found=f"node {node}"),
            )

    def observe_replicas(self, state: State) -> Mapping[PartitionId, Observed]:
        """The replicas of all partitions that this process reaches. A damaged one that is the whole
        ISR is not reached.
        """
        observations: dict[PartitionId, Observed] = {}
        for partition_id, partition in state.partitions.items():
            topic_uuid, _ = partition_id
            replicas = PartitionReplicas(
                self.directories, self.decisions, partition_id, state.topics[topic_uuid].name
            )
            try:
                observations[partition_id] = replicas.leaders.observe_replicas(partition)
            except LOAD_ERRORS as problem:  # each access to this partition meets it again
                logger.warning(
                    "the only replica of %s that is in sync is damaged: %s", replicas.name, problem
                )
        return observations

    def admit(self, opened: OpenMember, deadline_ns: int) -> None:
        """Register a directory that was just opened, and is not in the set yet. After an error it
        is closed again.
        """
        with locks.holding(self._mutex, deadline_ns, "the directories of the set"):
            opened = self._with_lane(opened)
            self._states.enter(opened)
            self.decisions.attach(opened.copy)  # a new directory is no stranger
            self._states.attach(opened.node)
            self.directories.put([self._open_directory_of(opened, self.decisions.counted_state())])
            try:
                self._register(deadline_ns)
            except BaseException:
                self.leave_retired(opened.node)
                raise
            if self._states.open_member(opened.node) is None:
                raise ReplicaSetError(
                    "another directory got this number, and left: add it again",
                    paths=[str(opened.path)],
                )

    def leave_failed(self, node: int) -> None:
        """Give the opening of a failed directory back: it is opened again when it is tried next."""
        with locks.holding(self._mutex, self._deadline(), "the directories of the set"):
            self._leave_failed(node)

    def _leave_failed(self, node: int) -> None:
        earlier = self._states.open_member(node)
        if earlier is None:
            return
        with contextlib.ExitStack() as leaving:  # as in `_leave_unusable`
            leaving.callback(self._give_back, earlier)
            self._states.leave(node)
            self.decisions.detach(node)
            member = self.directories.member(node)
            if member is not None:
                member.directory = None
            self.changed(self.log_directories())

    def _give_back(self, earlier: OpenMember) -> None:
        """Give the locks of an opening back; the directory is not closed in order."""
        leave = partial(member_directories.leave_earlier, earlier.directory.log_directory)
        self.workers.finish(earlier.path, leave)

    def replace(self, node: int, path: Path, deadline_ns: int) -> None:
        """Open and register the prepared directory of a node that was away.

        Raises as `_register`, and ReplicaSetError if another process uses the lost directory again.
        """
        with locks.holding(self._mutex, deadline_ns, "the directories of the set"):
            self._open_in_place(node, path, self.decisions.counted_state())
            self._register(deadline_ns)
            if self._states.open_member(node) is None:
                reason = self._states.reason(path, default="the directory has left the set")
                raise ReplicaSetError(f"nothing is replaced: {reason}", paths=[str(path)])

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
            if by_hand or self.directories.undecided_reason():
                self.directories.fail_replaced()
        state = self.decisions.counted_state()
        now_ns = system.boot_ns()
        has_failed = any(member.problem is not None for member in self.directories)
        if state is self._followed_state and not has_failed and not self._nodes_to_register():
            return
        with locks.holding(self._mutex, self._deadline(), "the directories of the set"):
            # another thread may have registered directories meanwhile
            state = self.decisions.counted_state()
            self._follow(state)
            for member in list(self.directories):
                if self._read_only and member.directory is not None:
                    continue  # it is used again after its pause
                registered = state.nodes.get(member.node)
                is_replaced = (
                    registered is not None and registered.registration_id != member.registration_id
                )
                if member.problem is None:
                    is_due = is_replaced and member.node not in self._nodes_to_register()
                else:
                    is_due = by_hand or now_ns >= member.retry_ns
                if is_due:
                    self._retry(member, state, replaced=is_replaced)
            is_register_due = by_hand or now_ns >= self._register_retry_ns
            if is_register_due and self._nodes_to_register():
                self._register_again()
            if self._nodes_to_register():
                self._followed_state = None
            else:
                self._followed_state = state

    def _renew_copies(self) -> None:
        """Begin damaged copies of the decision log again. A directory that fails returns first."""
        paths: dict[int, Path] = {}
        copies: dict[int, Copy] = {}
        for opened in self.open_members():
            is_attached = self._states.standing(opened.node) is not DirectoryStanding.ENTERED
            if is_attached and self.directories.get(opened.node) is not None:
                paths[opened.node] = opened.path
                copies[opened.node] = opened.copy
        for node, damage in find_damaged_copies(self.decisions, copies).items():
            try:
                self.renew_copy(node, damage)
            except EmbedlogError as problem:
                text = f"the decision log of node {node} is damaged, and not copied again yet"
                key = (paths[node], text)
                log_messages.report(logger, logging.WARNING, key, text, problem)

    def renew_copy(self, node: int, problem: EmbedlogError) -> bool:
        """Begin a damaged copy of the decision log again; False if its directory is not open any
        more. Raises NotEnoughDirectoriesError, LockTimeoutError, StorageError.
        """
        with locks.holding(self._mutex, self._deadline(), "the directories of the set"):
            opened = self._states.open_member(node)
            if opened is None:
                return False
            renew_copy(self.decisions, opened.directory, opened.copy, problem, self._deadline)
            return True

    def _follow(self, state: State) -> None:
        """Add the directories that other processes have added to the set, and forget those that
        have left it.
        """
        opened_nodes = {member.node for member in self.directories}
        self.directories.put(
            [
                member
                for member in self._all_directories(state)
                if member.node not in opened_nodes and member.directory is None
            ]
        )
        if not state.nodes:
            return
        for node in opened_nodes - set(state.nodes):
            self.leave_retired(node)

    def leave_retired(self, node: int) -> None:
        """End the use of a directory that left the set."""
        with self._mutex:
            self.directories.remove(node)
            self.decisions.detach(node)
            opened = self._states.open_member(node)
            if opened is None:
                return
            with contextlib.ExitStack() as leaving:  # as in `_leave_unusable`
                leave = partial(
                    member_directories.leave_in_order, opened.directory.log_directory, earlier=True
                )
                leaving.callback(self.workers.finish, opened.path, leave)
                self._states.leave(node)
                self.changed(self.log_directories())

    def _register_again(self) -> None:
        deadline_ns = self._deadline()
        try:
            self._register(deadline_ns)
        except EmbedlogError as problem:
            if isinstance(problem, NotEnoughDirectoriesError):
                self.directories.fail_replaced()  # those are opened again next
            self._register_retry_ns = system.boot_ns() + REGISTER_S * 1_000_000_000
            paths = sorted(str(opened.path) for opened in self.open_members())
            key = (*paths, "register")
            log_messages.report(
                logger, logging.INFO, key, "directories are not registered yet", problem
            )

    def _retry(self, member: OpenDirectory, state: State, *, replaced: bool) -> None:
        """Use a failed directory again, if it is the same as before; otherwise open it again."""
        opened = self._states.open_member(member.node)
        try:
            if opened is not None and not replaced and self._is_unchanged(opened):
                self.directories.recover(member.node)
                return
            self._reopen(member.node, None if opened is None else opened.path, state)
        except EmbedlogError as problem:
            self.directories.fail(member.node, problem)
            logger.debug("the directory of node %d is still away: %s", member.node, problem)

    def _is_unchanged(self, opened: OpenMember) -> bool:
        return self.workers.run_at(opened.path, partial(member_directories.is_unchanged, opened))

    def _reopen(self, node: int, path: Path | None, state: State) -> None:
        """Open a member again, which was open at this path; without one, where it is found."""
        registered = state.nodes[node]
        member = Member(node, id_text(registered.directory.bytes), registered.path)
        if path is not None and registered.path != str(path):
            members_path = path / file_names.REPLICAS
            if not self.workers.run_at(path, partial(files.exists, members_path)):
                path = None  # another process has given its place to a directory elsewhere
        path = self._places.find(member, self.open_members(), path, registered.registration_id)
        own = self.workers.run_at(path, partial(members.read, path))
        if own is not None and registration.is_judged(state):
            reason = registration.strangeness(registration.entry_in_file(path, own), state)
            if reason:
                self._leave_failed(node)
                raise judgement.stranger_error(node, path, reason, has_majority=self._has_majority)
        self._open_in_place(node, path, state)
        if not self._read_only:
            self._register_again()
        else:
            self._judge()

    def _open_in_place(self, node: int, path: Path, state: State) -> None:
        """Open the directory of a node instead of an earlier one; it is not registered yet."""
        with contextlib.ExitStack() as leaving:  # as in `_leave_unusable`
            earlier = self._states.open_member(node)
            if earlier is not None:
                leaving.callback(self._give_back, earlier)
            self._states.leave(node)
            self.decisions.detach(node)
        try:
            opened = self._enter(path, again=self._states.was_opened(node))
        except BaseException:
            member = self.directories.member(node)
            if member is not None:
                member.directory = None
            self.changed(self.log_directories())
            raise
        self.directories.put([self._open_directory_of(opened, state)])
        self._use_registered(state)
        logger.warning("the directory %s of node %d is usable", path, node)
