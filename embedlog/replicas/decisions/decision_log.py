"""Decisions of a set of directories, made on a majority of the copies of the decision log
(`docs/protocol.md`, QUORUM-2 to QUORUM-7).

A decision is made by one process at a time: it holds the locks of a majority from its first read to
its last sync. A copy that fails in the middle is left out. The decision begins again with the
others, unless they are no majority.

An answer without a record, also a refusal, is given only in a settled state: a found record is
settled first. So the state of a `DecisionLog` contains counted records only.

Three kinds of states come from this module. `CountedView` and `CopyView` (`decision_view`) are the
types of two of them:

| state | from | it may lack later decisions | it may have records that do not count |
| --- | --- | --- | --- |
| decided | `decide`, `decide_all`, `propose`, `force`, `settle` | no, at that moment | no |
| counted | `counted_state`, `view`: one copy up to its high watermark | yes | no |
| | `last_view`: the newest one that was read, without a read | yes | no |
| | `last_decided_state`: that of the last decision of this object | yes | no |
| of a copy | `read_copy_views`: all records of each copy | yes | yes |

The calls of the first row take the locks of a majority, the others none. They differ in what they
do beside that: `propose` returns a refusal instead of raising it, `force` needs no majority of the
old voters, and `settle` has no event. `level` has none either, and writes a record in any case,
which brings every copy that answers to the same end. `is_newest` tells whether a counted state is
the decided one.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from embedlog._native import system
from embedlog._native.scope import scope, stack
from embedlog.errors import EmbedlogError
from embedlog.replicas.decisions import decision_view, promise, shared_records
from embedlog.replicas.decisions.copies import Copy
from embedlog.replicas.decisions.decision_session import CopyLeftOut, DecisionSession, OwnDecision
from embedlog.replicas.decisions.decision_view import (
    NO_TERM,
    CopyView,
    CountedView,
    DecisionView,
)
from embedlog.replicas.decisions.proposals import Decision, MakeEvent, Proposal, Steps
from embedlog.replicas.decisions.refusals import error_of
from embedlog.replicas.decisions.shared_records import ShownRecords
from embedlog.replicas.rules.events import Event, Refusal
from embedlog.replicas.rules.state import State
from embedlog.storage import checkpoints, file_names, locks
from embedlog.telemetry import log_messages

logger = logging.getLogger("embedlog")


class ShownView(NamedTuple):
    """What a copy shows up to its high watermark. `facts` of its page change with that."""

    facts: tuple[int, ...]
    view: CountedView


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
        # the error of each copy that the last decision left out, or that was detached; of a copy
        # that is attached again it is forgotten
        self._away: dict[int, EmbedlogError] = {}
        # of the last decision, if it ended well: unless others decided since, the next one needs
        # no new term, and the last record is settled
        self._own = OwnDecision()
        empty_view = CountedView(DecisionView(0, NO_TERM, State(cluster_id)))
        self._decided_view = empty_view  # after the last decision of this object
        self._shown = ShownView((), empty_view)  # after the last read of a copy
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

    def _reopen_copies(self) -> list[Copy]:
        """The attached copies. A copy that is closed because its directory was missing is opened
        again.
        """
        for copy in list(self._copies.values()):
            if copy.is_hanging:
                continue
            try:
                open_copy = copy.reopen()
            except EmbedlogError:
                continue
            if open_copy is not copy and self._copies.get(copy.node) is copy:
                self.attach(open_copy)
        return list(self._copies.values())

    def _answering_copies(self) -> list[Copy]:
        """The attached copies whose directories do not hang, as far as this process knows."""
        return [copy for copy in self._reopen_copies() if not copy.is_hanging]

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes whose copies are attached."""
        return tuple(sorted(self._copies))

    def attached_copy(self, node: int) -> Copy | None:
        """The attached copy of a directory."""
        return self._copies.get(node)

    def failures(self) -> dict[int, EmbedlogError]:
        """The error of each copy that was left out of the last decision, or that is detached."""
        return dict(self._away)

    # ---- states of single copies -----------------------------------------------------------------

    def counted_state(self) -> State:
        """The state as one copy shows it, without a lock (QUORUM-7). At least as new as the last
        decision of this object.
        """
        return self.view().state

    def view(self) -> CountedView:
        """As `counted_state`, with the position and the term of the last record."""
        for copy, facts in self._rank_copies():
            if facts == self._shown.facts or facts[-1] < self._shown.view.position:
                break  # nothing newer: copies with later records may be away
            try:
                view = self._read_view(copy, facts[-1])
            except EmbedlogError as problem:
                text = f"the decision log in {copy.partition.path} cannot be read"
                log_messages.report(
                    logger, logging.INFO, (copy.partition.path, "decisions"), text, problem
                )
                continue
            if view is not None:
                # the records below a high watermark count: a decision raises it after that
                self._show(ShownView(facts, CountedView(view)))
                break
        return self.last_view()

    def _show(self, shown: ShownView) -> None:
        """Keep what a copy shows, unless another thread has read something newer meanwhile."""
        with self._attaching:
            if shown.view.position >= self._shown.view.position:
                self._shown = shown

    def _forget_shown_above(self, settled: CountedView) -> None:
        """Forget what a copy showed above all decisions that count: it was that of a directory that
        does not belong to the set. REQUIRES: the locks of the session that settled.
        """
        with self._attaching:
            if self._shown.view.position > settled.position:
                self._shown = ShownView((), settled)

    def is_newest(self, state: State) -> bool:
        """Whether a state has all decisions that count: a majority of its voters has no record
        after it. `state` is the object that `view` returned: an equal one is not recognised.

        Each record that counts is in the copies of a majority. So a majority without a later record
        shows that none counts. No lock is taken, so it may say no while another process decides.
        """
        view = self.view()
        nodes = set[int]()
        for copy in self._answering_copies():
            with contextlib.suppress(EmbedlogError):
                if copy.partition.replica.published()[0].log_end > view.position:
                    return False
                if not copy.is_other(state) and not promise.read(copy.partition.path).incomplete:
                    nodes.add(copy.node)
        voters = frozenset(state.voters) or self._first_voters
        return view.state is state and 2 * len(nodes & voters) > len(voters)

    def read_copy_views(self, copies: Iterable[Copy]) -> dict[int, CopyView]:
        """What copies show with all of their records, of which some may not count. They need not be
        attached.

        Unreadable copies are left out.
        """
        views = dict[int, CopyView]()
        for copy in copies:
            if copy.is_hanging:
                continue
            with contextlib.suppress(EmbedlogError):
                open_copy = copy.reopen()
                end = open_copy.partition.replica.published()[0].log_end
                view = self._read_view(open_copy, end)
                if view is not None:
                    views[copy.node] = CopyView(view)
        return views

    @staticmethod
    def is_continued(copy: Copy, later: Copy) -> bool:
        """Whether the records of a later copy begin with all of those of this one. True if that
        cannot be read.
        """
        try:
            records = _read_shown_records(copy)
            return (
                shared_records.find_agreed_end(records, _read_shown_records(later)) >= records.end
            )
        except (EmbedlogError, shared_records.Unreadable):
            return True

    def last_view(self) -> CountedView:
        """The newest view that this object has read, without access to a directory."""
        shown_view = self._shown.view
        decided_view = self._decided_view
        return shown_view if shown_view.position >= decided_view.position else decided_view

    def version(self) -> int:
        """A number that rises with each decision that a copy shows: cheap to compare before
        `counted_state`.
        """
        high_watermarks = [facts[-1] for _, facts in self._rank_copies()]
        return max([self.last_view().position, *high_watermarks])

    def _rank_copies(self) -> list[tuple[Copy, tuple[int, ...]]]:
        """Each copy that answers, with the facts of its page, the one with the highest watermark
        first.
        """
        ranked: list[tuple[Copy, tuple[int, ...]]] = []
        for copy in self._answering_copies():
            try:
                now, replica = copy.partition.replica.published()
            except EmbedlogError:
                continue
            facts = (copy.node, replica.role, now.epoch, now.generation, now.high_watermark)
            ranked.append((copy, facts))
        return sorted(ranked, key=lambda ranked_copy: ranked_copy[1][-1], reverse=True)

    def _read_view(self, copy: Copy, end: int) -> DecisionView | None:
        """The view at the end of a part of a copy; None if its files were replaced meanwhile."""
        epochs = checkpoints.read_epochs(copy.partition.path / file_names.EPOCHS)
        log = copy.partition.replica
        now, _ = log.published()
        usable_views = [
            view
            for view in (self._shown.view, self._decided_view)
            if view.continues_in(now, epochs, end)
        ]
        earlier = max(usable_views, key=lambda view: view.position, default=self._decided_view)
        view = decision_view.advance_view(earlier, log, now, epochs, end)
        if log.published()[0].generation != now.generation:
            return None
        return view

    # ---- decisions -------------------------------------------------------------------------------

    def decide(
        self,
        make_event: Callable[[State], Event],
        deadline_ns: int | None = None,
        *,
        reason: str = "",
    ) -> Decision:
        """Decide about the event that `make_event` derives from the decided state, and append the
        records.

        `reason` is for the observer. Raises the error of a refusal (`refusals`),
        NotEnoughDirectoriesError, LockTimeoutError.
        """
        return self.decide_all(
            [lambda state, offset: make_event(state)], deadline_ns, reason=reason
        )

    def decide_all(
        self, steps: Sequence[MakeEvent], deadline_ns: int | None = None, *, reason: str = ""
    ) -> Decision:
        """As `decide`, for several events in one batch: each is derived from the state after the
        earlier ones.
        """
        outcome = self.propose(Steps(steps), deadline_ns, reason=reason)
        if isinstance(outcome, Refusal):
            raise error_of(outcome)
        return outcome

    def propose(
        self, steps: Steps, deadline_ns: int | None = None, *, reason: str = ""
    ) -> Decision | Refusal:
        """As `decide_all`, but returns the first refusal of a needed event; then no record of the
        events is written.
        """
        return self._propose_events(steps, deadline_ns, reason)

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
        outcome = self._propose_events(
            Steps([lambda state, offset: make_event(state)]), deadline_ns, reason, forced=True
        )
        if isinstance(outcome, Refusal):
            raise error_of(outcome)
        return outcome.state

    def _propose_events(
        self,
        steps: Steps,
        deadline_ns: int | None,
        reason: str,
        *,
        forced: bool = False,
        leveling: bool = False,
    ) -> Decision | Refusal:
        until_ns = self._deadline_of(deadline_ns)
        began_ns = system.boot_ns()
        with locks.holding(self._mutex, until_ns, "the decision log"):
            outcome, before, events = self._decide_locked(
                steps, until_ns, forced=forced, leveling=leveling
            )
        if events:
            spent_s = (system.boot_ns() - began_ns) / 1e9
            self.observer(Proposal(events, before, outcome, reason, spent_s))
        return outcome

    def settle(self, deadline_ns: int | None = None) -> State:
        """The decided state: for a process that must act on decisions of others (QUORUM-5)."""
        return self.decide_all([], deadline_ns).state

    def level(self, deadline_ns: int | None = None) -> None:
        """Bring every copy that answers to the newest log, by a record without an effect
        (QUORUM-4). Raises as `settle`.
        """
        self._propose_events(Steps([]), deadline_ns, "", leveling=True)

    def last_decided_state(self) -> State:
        """The state at the last decision or settlement of this object: all of its records count."""
        return self._decided_view.state

    def _deadline_of(self, deadline_ns: int | None) -> int:
        """The deadline of a call (boot clock, ns); without one, that of this decision log."""
        if deadline_ns is None:
            return system.boot_ns() + self._timeout_ms * 1_000_000
        return deadline_ns

    def _decide_locked(
        self, steps: Steps, deadline_ns: int, *, forced: bool = False, leveling: bool = False
    ) -> tuple[Decision | Refusal, State, tuple[Event, ...]]:
        """The outcome, the state before it, and the events."""
        with self._hold_session(deadline_ns) as session:
            session.forced = forced
            session.leveling = leveling
            while True:  # ends: each repetition has left out at least one copy
                try:
                    return session.decide(steps), session.before, session.events
                except CopyLeftOut:
                    session.own = OwnDecision()  # the majority is another one

    @scope
    def _hold_session(self, deadline_ns: int) -> Iterator[DecisionSession]:
        session = DecisionSession(self._decided_view, self._own, self._first_voters)
        self._own = OwnDecision()  # unless this session ends well
        try:
            with stack() as ends:
                try:
                    session.lock(self._reopen_copies(), deadline_ns, ends)
                    yield session
                    self._decided_view = session.counted_view
                    self._forget_shown_above(session.counted_view)
                    self._own = session.own
                except EmbedlogError:  # no copy that is still locked has failed: they stay usable
                    session.release()
                    raise
                except BaseException as problem:
                    session.release(problem)
                    raise
                else:
                    session.release()
        finally:
            with self._attaching:
                detached = {
                    node: problem
                    for node, problem in self._away.items()
                    if node not in self._copies
                }
                self._away = detached | session.failed


def _read_shown_records(copy: Copy) -> ShownRecords:
    log = copy.reopen().partition.replica
    now, _ = log.published()
    return ShownRecords(copy.node, log, now.log_start, now.log_end)
