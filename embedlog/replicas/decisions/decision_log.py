"""Decisions of a set of directories, made on a majority of the copies of the decision log
(`docs/protocol.md`, QUORUM-2 to QUORUM-7).

DECISIONLOG-1  a decision is made by one process at a time: it holds the locks of a majority from
    its first read to its last sync
DECISIONLOG-2  a copy that fails in the middle is left out. The decision begins again with the
    others, unless they are no majority
DECISIONLOG-3  an answer without a record, also a refusal, is given only in a settled state: a found
    record is settled first
DECISIONLOG-4  a term is continued only if it is the highest promise of all locked copies and its
    own record is the last one
DECISIONLOG-5  the state of this object contains counted records only
DECISIONLOG-6  each record that counts is in the copies of a majority. So a majority without a later
    record shows that none counts
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

from embedlog import _logging
from embedlog._native import system
from embedlog._native.scope import scope, stack
from embedlog.errors import EmbedlogError
from embedlog.replicas.decisions import decision_view, promise, shared_records
from embedlog.replicas.decisions.copies import Copy
from embedlog.replicas.decisions.decision_session import Again, Own, Session
from embedlog.replicas.decisions.decision_view import NO_TERM, View
from embedlog.replicas.decisions.proposals import Decided, MakeEvent, Proposal, Steps
from embedlog.replicas.decisions.refusals import error_of
from embedlog.replicas.decisions.shared_records import ShownRecords
from embedlog.replicas.rules.events import Event, Refusal
from embedlog.replicas.rules.state import State
from embedlog.storage import checkpoints, file_names, locks

logger = logging.getLogger("embedlog")


class DecisionLog:
    """The decision log of an open set. Threads: any; one decides at a time."""

    def __init__(
        self, cluster_id: str, voters: Iterable[int], *, lock_timeout_ms: int = 10_000
    ) -> None:
        """`voters` decide as long as the log is empty: the planned members."""
        self._first_voters = frozenset(voters)
        self._timeout_ms = lock_timeout_ms
        self._mutex = threading.RLock()  # of the deciding thread
        self._attaching = threading.Lock()  # for changes of the two mappings, never during a wait
        self._copies: dict[int, Copy] = {}
        self._away: dict[int, EmbedlogError] = {}
        self._own = Own()
        self._view = View(0, NO_TERM, State(cluster_id))
        # the facts of a page, and what the copy with it shows
        self._shown: tuple[object, View] = (None, self._view)
        # called after each proposal, without locks
        self.observer: Callable[[Proposal], None] = lambda proposal: None

    # ---- the copies ------------------------------------------------------------------------------

    def attach(self, copy: Copy) -> None:
        """Use the copy of a directory from now on, instead of an earlier one of this node."""
        with self._attaching:
            self._copies = self._copies | {copy.node: copy}
            self._away = {
                node: problem for node, problem in self._away.items() if node != copy.node
            }

    def detach(self, node: int, problem: EmbedlogError | None = None) -> None:
        """Do not use the copy of a directory any more: it failed, or is closed."""
        with self._attaching:
            self._copies = {other: copy for other, copy in self._copies.items() if other != node}
            if problem is not None:
                self._away = self._away | {node: problem}

    def _renewed(self) -> list[Copy]:
        """The attached copies. A copy that is closed because its directory was missing is opened
        again.
        """
        for copy in list(self._copies.values()):
            if copy.hangs:
                continue
            try:
                found = copy.renewed()
            except EmbedlogError:
                continue
            if found is not copy and self._copies.get(copy.node) is copy:
                self.attach(found)
        return list(self._copies.values())

    def _answering(self) -> list[Copy]:
        """The attached copies whose directories do not hang, as far as this process knows."""
        return [copy for copy in self._renewed() if not copy.hangs]

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
        """The state as one copy shows it, without a lock (QUORUM-7). At least as new as the last
        decision of this object.
        """
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
                _logging.report(
                    logger, logging.INFO, (copy.partition.path, "decisions"), what, problem
                )
                continue
            if found is not None:
                self._shown = (seen, found)
                break
        return self.last_view()

    def is_newest(self, state: State) -> bool:
        """Whether a hint has all decisions that count: a majority of its voters has no record after
        it (DECISIONLOG-6).

        No lock is taken, so it may say no while another process decides.
        """
        view = self.view()
        found = set[int]()
        for copy in self._answering():
            with contextlib.suppress(EmbedlogError):
                if copy.partition.replica.published()[0].log_end > view.position:
                    return False
                if not copy.is_other(state) and not promise.read(copy.partition.path).incomplete:
                    found.add(copy.node)
        voters = frozenset(state.voters) or self._first_voters
        return view.state is state and 2 * len(found & voters) > len(voters)

    def views(self, copies: Iterable[Copy]) -> dict[int, View]:
        """What copies show with all of their records, of which some may not count. They need not be
        attached.

        Unreadable copies are left out.
        """
        found = dict[int, View]()
        for copy in copies:
            if copy.hangs:
                continue
            with contextlib.suppress(EmbedlogError):
                present = copy.renewed()
                view = self._read(present, present.partition.replica.published()[0].log_end)
                if view is not None:
                    found[copy.node] = view
        return found

    @staticmethod
    def is_continued(copy: Copy, later: Copy) -> bool:
        """Whether the records of a later copy begin with all of those of this one. True if that
        cannot be read.
        """
        try:
            records = _shown_records(copy)
            return shared_records.agreed_end(records, _shown_records(later)) >= records.end
        except (EmbedlogError, shared_records.Unreadable):
            return True

    def last_view(self) -> View:
        """The newest view that this object has read, without access to a directory."""
        shown = self._shown[1]
        view = self._view
        return shown if shown.position >= view.position else view

    def version(self) -> int:
        """A number that rises with each decision that a copy shows: cheap to compare before
        `hint`.
        """
        return max([self._view.position, *(seen[-1] for _, seen in self._by_advance())])

    def _by_advance(self) -> list[tuple[Copy, tuple[int, ...]]]:
        """Each copy that answers, with the facts of its page, the one with the highest watermark
        first.
        """
        found = []
        every = self._answering()
        for copy in every:
            try:
                now, replica = copy.partition.replica.published()
            except EmbedlogError:
                continue
            found.append(
                (copy, (copy.node, replica.role, now.epoch, now.generation, now.high_watermark))
            )
        return sorted(found, key=lambda each: each[1][-1], reverse=True)

    def _read(self, copy: Copy, end: int) -> View | None:
        """What a copy shows up to its high watermark; None if its files were replaced meanwhile."""
        epochs = checkpoints.read_epochs(copy.partition.path / file_names.EPOCHS)
        log = copy.partition.replica
        now, _ = log.published()
        known = [
            view for view in (self._shown[1], self._view) if view.continues_in(now, epochs, end)
        ]
        view = max(known, key=lambda view: view.position, default=self._view)
        found = decision_view.brought_to(view, log, now, epochs, end)
        return found if log.published()[0].generation == now.generation else None

    # ---- decisions -------------------------------------------------------------------------------

    def decide(
        self,
        make_event: Callable[[State], Event],
        deadline_ns: int | None = None,
        *,
        reason: str = "",
    ) -> Decided:
        """Decide about the event that `make_event` derives from the newest state, and append the
        records.

        `reason` is for the observer. Raises the error of a refusal (`refusals`),
        NotEnoughDirectoriesError, LockTimeoutError.
        """
        return self.decide_all(
            [lambda state, offset: make_event(state)], deadline_ns, reason=reason
        )

    def decide_all(
        self, steps: Sequence[MakeEvent], deadline_ns: int | None = None, *, reason: str = ""
    ) -> Decided:
        """As `decide`, for several events in one batch: each is derived from the state after the
        earlier ones.
        """
        found = self.propose(Steps(steps), deadline_ns, reason=reason)
        if isinstance(found, Refusal):
            raise error_of(found)
        return found

    def propose(
        self, steps: Steps, deadline_ns: int | None = None, *, reason: str = ""
    ) -> Decided | Refusal:
        """As `decide_all`, but returns the first refusal of a needed event; then no record of the
        events is written.
        """
        return self._proposed(steps, deadline_ns, reason)

    def force(
        self,
        make_event: Callable[[State], Event],
        deadline_ns: int | None = None,
        *,
        reason: str = "",
    ) -> State:
        """Decide without a majority of the old voters: one of the new voters suffices.
        Raises as `decide`.
        """
        found = self._proposed(
            Steps([lambda state, offset: make_event(state)]), deadline_ns, reason, forced=True
        )
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
        deadline = self._deadline(deadline_ns)
        began_ns = system.boot_ns()
        with locks.holding(self._mutex, deadline, "the decision log"):
            found, before, events = self._decided(steps, deadline, forced=forced, leveling=leveling)
        if events:
            self.observer(
                Proposal(events, before, found, reason, (system.boot_ns() - began_ns) / 1e9)
            )
        return found

    def settle(self, deadline_ns: int | None = None) -> State:
        """The newest state, in which every record counts: for a process that must act on decisions
        of others (QUORUM-5).
        """
        return self.decide_all([], deadline_ns).state

    def level(self, deadline_ns: int | None = None) -> None:
        """Bring every copy that answers to the newest log, by a record without an effect
        (QUORUM-4). Raises as `settle`.
        """
        self._proposed(Steps([]), deadline_ns, "", leveling=True)

    def settled(self) -> State:
        """The state at the last decision or settlement of this object: all of its records count."""
        return self._view.state

    def _deadline(self, deadline_ns: int | None) -> int:
        return (
            system.boot_ns() + self._timeout_ms * 1_000_000 if deadline_ns is None else deadline_ns
        )

    def _decided(
        self, steps: Steps, deadline_ns: int, *, forced: bool = False, leveling: bool = False
    ) -> tuple[Decided | Refusal, State, tuple[Event, ...]]:
        """The outcome, the state before it, and the events."""
        with self._session(deadline_ns) as session:
            session.forced = forced
            session.leveling = leveling
            while True:
                try:
                    return session.decide(steps), session.before, session.events
                except Again:
                    session.own = Own()

    @scope
    def _session(self, deadline_ns: int) -> Iterator[Session]:
        session = Session(self._view, self._own, self._first_voters)
        self._own = Own()  # unless this session ends well
        try:
            with stack() as ends:
                try:
                    session.lock(self._renewed(), deadline_ns, ends)
                    yield session
                    self._view = session.view
                    self._own = session.own
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
                kept = {
                    node: problem
                    for node, problem in self._away.items()
                    if node not in self._copies
                }
                self._away = kept | session.failed


def _shown_records(copy: Copy) -> ShownRecords:
    log = copy.renewed().partition.replica
    now, _ = log.published()
    return ShownRecords(copy.node, log, now.log_start, now.log_end)
