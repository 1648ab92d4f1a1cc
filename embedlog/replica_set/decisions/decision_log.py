"""Decisions of a set of directories, made on a majority of the copies of the decision log (`docs/protocol.md`, QUORUM-2 to
QUORUM-7).

DECISIONLOG-1  a decision is made by one process at a time: it holds the locks of a majority from its first read to its last sync
DECISIONLOG-2  a copy that fails in the middle is left out. The decision begins again with the others, unless they are no majority
DECISIONLOG-3  an answer without a record, also a refusal, is given only in a settled state: a found record is settled first
DECISIONLOG-4  a term is continued only if it is the highest promise of all locked copies and its own record is the last one
DECISIONLOG-5  the state of this object contains counted records only
DECISIONLOG-6  each record that counts is in the copies of a majority. So a majority without a later record shows that none counts
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from embedlog import _logging
from embedlog._native import system
from embedlog.errors import EmbedlogError, NotEnoughDirectoriesError, StateError
from embedlog.replica_set.decisions import decision_view, promise
from embedlog.replica_set.decisions.copies import Batch, Copy, LockedCopy, advancement, batch_of
from embedlog.replica_set.decisions.decision_view import NO_TERM, View
from embedlog.replica_set.decisions.promise import TERM_MAX
from embedlog.replica_set.decisions.proposals import Decided, MakeEvent, Proposal, Steps, derived
from embedlog.replica_set.decisions.refusals import error_of
from embedlog.replication.events import Event, Refusal
from embedlog.replication.records import NoOp, Record
from embedlog.replication.state import State, apply_all
from embedlog.storage import checkpoints, file_names, locks

logger = logging.getLogger("embedlog")

SYNC_S: Final = 10  # for the syncs of records that are written: a result is better than a deadline


class _Own(NamedTuple):
    """The last decision of this object: its term, and the log end after it."""

    term: int = NO_TERM
    end: int = -1


class _Again(Exception):
    """A copy failed before the decision was written: begin again with the others."""


class DecisionLog:
    """The decision log of an open set. Threads: any; one decides at a time."""

    def __init__(self, cluster_id: str, voters: Iterable[int], *, lock_timeout_ms: int = 10_000) -> None:
        """`voters` decide as long as the log is empty: the planned members."""
        self._first_voters = frozenset(voters)
        self._timeout_ms = lock_timeout_ms
        self._mutex = threading.RLock()  # of the deciding thread
        self._attaching = threading.Lock()  # for changes of the two mappings, never during a wait
        self._copies: dict[int, Copy] = {}
        self._away: dict[int, EmbedlogError] = {}
        self._own = _Own()
        self._view = View(0, NO_TERM, State(cluster_id))
        self._shown: tuple[object, View] = (None, self._view)  # the facts of a page, and what the copy with it shows
        self.observer: Callable[[Proposal], None] = lambda proposal: None  # called after each proposal, without locks

    # ---- the copies ------------------------------------------------------------------------------

    def attach(self, copy: Copy) -> None:
        """Use the copy of a directory from now on, instead of an earlier one of this node."""
        with self._attaching:
            self._copies = self._copies | {copy.node: copy}
            self._away = {node: problem for node, problem in self._away.items() if node != copy.node}

    def detach(self, node: int, problem: EmbedlogError | None = None) -> None:
        """Do not use the copy of a directory any more: it failed, or is closed."""
        with self._attaching:
            self._copies = {other: copy for other, copy in self._copies.items() if other != node}
            if problem is not None:
                self._away = self._away | {node: problem}

    def _renewed(self) -> list[Copy]:
        """The attached copies. A copy that is closed because its directory was missing is opened again."""
        for copy in list(self._copies.values()):
            try:
                found = copy.renewed()
            except EmbedlogError:
                continue
            if found is not copy and self._copies.get(copy.node) is copy:
                self.attach(found)
        return list(self._copies.values())

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes whose copies are attached."""
        return tuple(sorted(self._copies))

    def copy(self, node: int) -> Copy | None:
        """The attached copy of a directory."""
        return self._copies.get(node)

    def failures(self) -> dict[int, EmbedlogError]:
        """The error of each copy that was left out of the last decision, or that is detached."""
        return dict(self._away)

    # ---- hints -----------------------------------------------------------------------------------

    def hint(self) -> State:
        """The state as one copy shows it, without a lock (QUORUM-7). At least as new as the last decision of this object."""
        return self.view().state

    def view(self) -> View:
        """As `hint`, with the position and the term of the last record."""
        for copy, seen in self._by_advance():
            if seen == self._shown[0]:
                break
            try:
                found = self._read(copy, seen[-1])
            except EmbedlogError as problem:
                what = f"the decision log in {copy.partition.path} cannot be read"
                _logging.report(logger, logging.INFO, (copy.partition.path, "decisions"), what, problem)
                continue
            if found is not None:
                self._shown = (seen, found)
                break
        return self.last_view()

    def is_newest(self, state: State) -> bool:
        """Whether a hint has all decisions that count: a majority of its voters has no record after it (DECISIONLOG-6).

        No lock is taken, so it may say no while another process decides.
        """
        view, found = self.view(), set[int]()
        for copy in self._renewed():
            with contextlib.suppress(EmbedlogError):
                if copy.partition.replica.published()[0].log_end > view.position:
                    return False
                if not promise.read(copy.partition.path).incomplete:
                    found.add(copy.node)
        voters = frozenset(state.voters) or self._first_voters
        return view.state is state and 2 * len(found & voters) > len(voters)

    def written(self) -> State:
        """The state with all records of the most advanced copy, of which some may not count: for the paths of directories."""
        found = [self.last_view()]
        for copy, _ in self._by_advance():
            with contextlib.suppress(EmbedlogError):
                found.append(self._read(copy, copy.partition.replica.published()[0].log_end) or found[0])
        return max(found, key=lambda view: (view.term, view.position)).state

    def last_view(self) -> View:
        """The newest view that this object has read, without access to a directory."""
        shown, view = self._shown[1], self._view
        return shown if shown.position >= view.position else view

    def version(self) -> int:
        """A number that rises with each decision that a copy shows: cheap to compare before `hint`."""
        return max([self._view.position, *(seen[-1] for _, seen in self._by_advance())])

    def _by_advance(self) -> list[tuple[Copy, tuple[int, ...]]]:
        """Each copy that answers, with the facts of its page, the one with the highest watermark first."""
        found = []
        for copy in self._renewed():
            try:
                now, replica = copy.partition.replica.published()
            except EmbedlogError:
                continue
            found.append((copy, (copy.node, replica.role, now.epoch, now.generation, now.high_watermark)))
        return sorted(found, key=lambda each: each[1][-1], reverse=True)

    def _read(self, copy: Copy, end: int) -> View | None:
        """What a copy shows up to its high watermark; None if its files were replaced meanwhile."""
        epochs = checkpoints.read_epochs(copy.partition.path / file_names.EPOCHS)
        log = copy.partition.replica
        now, _ = log.published()
        known = [view for view in (self._shown[1], self._view) if view.continues_in(now, epochs, end)]
        view = max(known, key=lambda view: view.position, default=self._view)
        found = decision_view.brought_to(view, log, now, epochs, end)
        return found if log.published()[0].generation == now.generation else None

    # ---- decisions -------------------------------------------------------------------------------

    def decide(self, make_event: Callable[[State], Event], deadline_ns: int | None = None, *, reason: str = "") -> Decided:
        """Decide about the event that `make_event` derives from the newest state, and append the records.

        `reason` is for the observer. Raises the error of a refusal (`refusals`), NotEnoughDirectoriesError, LockTimeoutError.
        """
        return self.decide_all([lambda state, offset: make_event(state)], deadline_ns, reason=reason)

    def decide_all(self, steps: Sequence[MakeEvent], deadline_ns: int | None = None, *, reason: str = "") -> Decided:
        """As `decide`, for several events in one batch: each is derived from the state after the earlier ones."""
        found = self.propose(Steps(steps), deadline_ns, reason=reason)
        if isinstance(found, Refusal):
            raise error_of(found)
        return found

    def propose(self, steps: Steps, deadline_ns: int | None = None, *, reason: str = "") -> Decided | Refusal:
        """As `decide_all`, but returns the first refusal of a needed event; then no record of the events is written."""
        return self._proposed(steps, deadline_ns, reason)

    def force(self, make_event: Callable[[State], Event], deadline_ns: int | None = None, *, reason: str = "") -> State:
        """Decide without a majority of the old voters: one of the new voters suffices (GROWTH-4). Raises as `decide`."""
        found = self._proposed(Steps([lambda state, offset: make_event(state)]), deadline_ns, reason, forced=True)
        if isinstance(found, Refusal):
            raise error_of(found)
        return found.state

    def _proposed(
        self,
        steps: Steps,
        deadline_ns: int | None,
        reason: str,
        *,
        forced: bool = False,
        leveling: bool = False,
    ) -> Decided | Refusal:
        deadline, began_ns = self._deadline(deadline_ns), system.boot_ns()
        with locks.holding(self._mutex, deadline, "the decision log"):
            found, before, events = self._decided(steps, deadline, forced=forced, leveling=leveling)
        if events:
            self.observer(Proposal(events, before, found, reason, (system.boot_ns() - began_ns) / 1e9))
        return found

    def settle(self, deadline_ns: int | None = None) -> State:
        """The newest state, in which every record counts: for a process that must act on decisions of others (QUORUM-5)."""
        return self.decide_all([], deadline_ns).state

    def level(self, deadline_ns: int | None = None) -> None:
        """Bring every copy that answers to the newest log, by a record without an effect (QUORUM-4). Raises as `settle`."""
        self._proposed(Steps([]), deadline_ns, "", leveling=True)

    def settled(self) -> State:
        """The state at the last decision or settlement of this object: all of its records count."""
        return self._view.state

    def _deadline(self, deadline_ns: int | None) -> int:
        return system.boot_ns() + self._timeout_ms * 1_000_000 if deadline_ns is None else deadline_ns

    def _decided(
        self, steps: Steps, deadline_ns: int, *, forced: bool = False, leveling: bool = False
    ) -> tuple[Decided | Refusal, State, tuple[Event, ...]]:
        """The outcome, the state before it, and the events."""
        with self._session(deadline_ns) as session:
            session.forced, session.leveling = forced, leveling
            while True:
                try:
                    return session.decide(steps), session.before, session.events
                except _Again:
                    session.own = _Own()

    @contextlib.contextmanager
    def _session(self, deadline_ns: int) -> Iterator[_Session]:
        session = _Session(self._view, self._own, self._first_voters)
        self._own = _Own()  # unless this session ends well
        try:
            session.lock(self._renewed(), deadline_ns)
            yield session
            self._view, self._own = session.view, session.own
        except EmbedlogError:  # no copy that is still locked has failed
            session.release()
            raise
        except BaseException as problem:
            session.release(problem)
            raise
        else:
            session.release()
        finally:
            with self._attaching:
                kept = {node: problem for node, problem in self._away.items() if node not in self._copies}
                self._away = kept | session.failed


class _Session:
    """One decision, from the locking of the copies to their release."""

    def __init__(self, view: View, own: _Own, first_voters: frozenset[int]) -> None:
        self.view, self.own = view, own
        self._first_voters = first_voters
        self.before: State = view.state  # of the last attempt, and its events
        self.events: tuple[Event, ...] = ()
        self._held: dict[int, LockedCopy] = {}
        self._paths: dict[int, str] = {}
        self.failed: dict[int, EmbedlogError] = {}
        self.forced = False  # only the voters after the decision count
        self.leveling = False  # a record is written in any case

    # ---- locks -----------------------------------------------------------------------------------

    def lock(self, copies: Iterable[Copy], deadline_ns: int) -> None:
        """Take the locks in the order of the nodes (QUORUM-2). A part of the time for each leaves some for the others.

        Before that the epochs are compared: a slow directory would hold up the decisions of all processes otherwise.
        """
        every, able = sorted(copies, key=lambda copy: copy.node), list[Copy]()
        for copy in every:
            self._paths[copy.node] = str(copy.partition.path)
            try:
                copy.partition.replica.compare_epochs()
                able.append(copy)
            except EmbedlogError as problem:
                self.failed[copy.node] = problem
        for at, copy in enumerate(able):
            now = system.boot_ns()
            until = now + max(0, deadline_ns - now) // (len(able) - at)
            try:
                self._held[copy.node] = LockedCopy(copy, copy.partition.replica.exclusive(until))
            except EmbedlogError as problem:
                self.failed[copy.node] = problem

    def release(self, problem: BaseException | None = None) -> None:
        """Give all locks back, in any case."""
        for node in sorted(self._held, reverse=True):
            with contextlib.suppress(EmbedlogError):
                self._held.pop(node).release(problem)

    def _each(self, action: Callable[[LockedCopy], None]) -> bool:
        """Do this with each locked copy; a failing one is left out. True if none failed."""
        before = len(self._held)
        for node in sorted(self._held):
            try:
                action(self._held[node])
            except EmbedlogError as problem:
                self.failed[node] = problem
                with contextlib.suppress(EmbedlogError):
                    self._held.pop(node).release(problem)
        return len(self._held) == before

    def _each_or_again(self, action: Callable[[LockedCopy], None]) -> None:
        if not self._each(action):
            raise _Again

    # ---- the majority ----------------------------------------------------------------------------

    def _voters(self, state: State) -> frozenset[int]:
        return frozenset(state.voters) or self._first_voters

    def _require_majority(self, nodes: Iterable[int], states: Sequence[State], undecided: bool = False) -> None:
        reached = frozenset(nodes)
        counted = states[1:] if self.forced else states
        for voters in map(self._voters, counted):
            if 2 * len(reached & voters) <= len(voters):
                what = "the decision may count later" if undecided else "no decision is possible"
                raise NotEnoughDirectoriesError(
                    f"no majority of the directories was reached: {what}",
                    reached=sorted(reached & voters),
                    voters=sorted(voters),
                    away={self._paths[node]: str(problem) for node, problem in sorted(self.failed.items())},
                    undecided=undecided,
                    expected=f"{len(voters) // 2 + 1} of {len(voters)}",
                    found=len(reached & voters),
                )

    def _best(self) -> tuple[LockedCopy, View]:
        """The most advanced copy, and its view. Raises NotEnoughDirectoriesError without a majority."""
        able = [copy for copy in self._held.values() if not copy.promise.incomplete]
        if not able:
            self._require_majority((), [self.view.state])
        best = max(able, key=advancement)
        view = self.view
        try:
            view = decision_view.brought_to(view, best.copy.partition.replica, best.now, best.epochs, best.end)
        except EmbedlogError as problem:
            self.failed[best.node] = problem
            self._held.pop(best.node).release(problem)
            raise _Again from problem
        self._require_majority((copy.node for copy in able), [view.state])
        return best, view

    # ---- the decision ----------------------------------------------------------------------------

    def decide(self, steps: Steps) -> Decided | Refusal:
        """Decide in the state of the most advanced copy. Raises _Again after the failure of a copy."""
        best, view = self._best()
        continues = best.end > 0 and self.own == (best.last_term, best.end) and self._highest() == self.own.term
        settled = continues or self._is_settled(best, view)
        self.before, derivation = view.state, derived(steps, view.state, view.position)
        self.events, found = derivation.events, derivation.records
        if isinstance(found, Refusal) or not found:
            if self.leveling or not settled:
                view = self._write((NoOp(),), best, view, continues)
            self.view = view
            return found if isinstance(found, Refusal) else Decided(view.state, (), derivation.others)
        after = apply_all(view.state, found)
        if self.forced:
            self._require_majority(self._held, [view.state, after])
        elif self._voters(after) != self._voters(view.state) and not settled and view.state.voters:
            self.view = self._write((NoOp(),), best, view, continues)  # the change before this one counts first (QUORUM-6)
            return self.decide(steps)
        self.view = self._write(found, best, view, continues)
        return Decided(self.view.state, found, derivation.others)

    def _highest(self) -> int:
        return max(copy.highest_term for copy in self._held.values())

    def _is_settled(self, best: LockedCopy, view: View) -> bool:
        """Whether a majority of the voters shows all records as settled."""
        voters = self._voters(view.state)
        shown = [copy for copy in self._held.values() if copy.node in voters and copy.settled_end >= best.end]
        return best.end == 0 or 2 * len(shown) > len(voters)

    def _write(self, records: tuple[Record, ...], best: LockedCopy, view: View, continues: bool) -> View:
        """Promise, level, append, sync (QUORUM-3 to QUORUM-5); the view after the records, which count."""
        term = self.own.term if continues else self._highest() + 1
        if term > TERM_MAX:
            raise StateError("no term is left", path=best.path, found=term)
        self._each_or_again(lambda copy: copy.give_promise(term))
        self._each_or_again(lambda copy: copy.bring_to(best, term))
        self._each_or_again(lambda copy: copy.become_complete(_sync_deadline()))
        batch = batch_of(records, best.end, term, system.wall_ms())
        self.own = _Own()
        self._append(batch, best.now.high_watermark)
        after = apply_all(view.state, records)
        self._require_majority(self._held, [view.state, after], undecided=True)
        self._each(lambda copy: copy.settle(batch.end))
        self._each(LockedCopy.announce)
        self.own = _Own(term, batch.end)
        return View(batch.end, term, after)

    def _append(self, batch: Batch, settled: int) -> None:
        self._each(lambda copy: copy.append(batch, settled))
        self._each(lambda copy: copy.sync(_sync_deadline()))


def _sync_deadline() -> int:
    return system.boot_ns() + SYNC_S * 1_000_000_000
