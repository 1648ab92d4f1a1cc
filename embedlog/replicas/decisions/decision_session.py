"""One decision of a set, made under the locks of its copies (`docs/protocol.md`, QUORUM-2 to
QUORUM-8).

A copy counts for a node only if its directory is the registered one of that node. Another one,
which is added at the same time under this number, or has been replaced since it was opened, neither
votes nor gets records.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from embedlog._native import system
from embedlog._native.scope import Stack
from embedlog.errors import EmbedlogError, NotEnoughDirectoriesError, ReplicaSetError, StateError
from embedlog.replicas.decisions.copies import (
    Copy,
    DecisionBatch,
    LockedCopy,
    advancement_of,
    batch_of,
)
from embedlog.replicas.decisions.decision_view import (
    NO_TERM,
    CopyView,
    CountedView,
    DecisionView,
)
from embedlog.replicas.decisions.promise import TERM_MAX
from embedlog.replicas.decisions.proposals import Decision, Steps, derive
from embedlog.replicas.decisions.shared_records import Unreadable
from embedlog.replicas.members.directory_workers import LATER_NS, Work, run_together
from embedlog.replicas.rules.events import Event, Refusal
from embedlog.replicas.rules.records import NoOp, Record
from embedlog.replicas.rules.state import State, apply_all

# for the syncs of records that are written: a result is better than a deadline
SYNC_NS: Final = 10_000_000_000


class OwnDecision(NamedTuple):
    """The last decision of this object: its term, and the log end after it."""

    term: int = NO_TERM
    end: int = -1


class CopyLeftOut(Exception):
    """A copy failed before the decision was written: begin again with the others."""


class DecisionSession:
    """One decision, from the locking of the copies to their release."""

    def __init__(
        self, counted_view: CountedView, own: OwnDecision, first_voters: frozenset[int]
    ) -> None:
        """`counted_view` is the last one of the decision log; a decision replaces it."""
        self.counted_view = counted_view
        self.own = own
        self._first_voters = first_voters
        self.before: State = counted_view.state  # of the last attempt, and its events
        self.events: tuple[Event, ...] = ()
        self._counting: dict[int, LockedCopy] = {}
        self._locked: dict[int, LockedCopy] = {}  # those that are to be released
        self._paths: dict[int, str] = {}
        self.failed: dict[int, EmbedlogError] = {}
        self.forced = False  # only the voters after the decision count
        self.leveling = False  # a record is written in any case

    # ---- locks -----------------------------------------------------------------------------------

    def lock(self, copies: Iterable[Copy], deadline_ns: int, ends: Stack) -> None:
        """Take the locks in the order of the nodes (QUORUM-2). A part of the time for each leaves
        some for the others.

        Before that the epochs are compared, and the disks are probed: a slow directory, or one that
        hangs, would hold up the decisions of all processes otherwise. `ends` gives the locks back
        that threads of directories hold, also after an interrupt.
        """
        ordered = sorted(copies, key=lambda copy: copy.node)
        problems = run_together([Work(copy.lane, partial(_prepare, copy)) for copy in ordered])
        able = list[Copy]()
        for copy, problem in zip(ordered, problems, strict=True):
            self._paths[copy.node] = str(copy.partition.path)
            if problem is None:
                able.append(copy)
            else:
                self.failed[copy.node] = problem
        for number, copy in enumerate(able):
            now_ns = system.boot_ns()
            until_ns = now_ns + max(0, deadline_ns - now_ns) // (len(able) - number)
            lock_copy = partial(self._lock_copy, copy, until_ns)
            try:
                if copy.lane is None:
                    lock_copy()
                else:
                    ends.enter(copy.lane.end_with(partial(self._release_copy, copy)))
                    copy.lane.run(lock_copy, limit_ns=max(0, until_ns - now_ns) + LATER_NS)
                self._counting[copy.node] = self._locked[copy.node]
            except EmbedlogError as problem:
                self.failed[copy.node] = problem

    def _lock_copy(self, copy: Copy, deadline_ns: int) -> None:
        self._locked[copy.node] = LockedCopy(copy, copy.partition.replica.exclusive(deadline_ns))
        if copy.lane is not None:
            copy.lane.lock_count += 1

    def _release_copy(self, copy: Copy) -> None:
        """Give the lock of one copy back, in the thread that holds it."""
        locked = self._locked.pop(copy.node, None)
        if locked is not None:
            if copy.lane is not None:
                copy.lane.lock_count -= 1
            with contextlib.suppress(EmbedlogError):
                locked.release()

    def release(self, problem: BaseException | None = None) -> None:
        """Give all locks back, in any case. A directory that hangs gives its lock back when its
        thread returns.
        """
        self._counting.clear()
        works = list[Work]()
        for node in sorted(self._locked, reverse=True):
            locked = self._locked[node]
            if locked.copy.lane is None:
                locked.broken = locked.broken or problem
            works.append(Work(locked.copy.lane, partial(self._release_copy, locked.copy)))
        run_together(works)

    def _change_all(
        self, action: Callable[[LockedCopy], None], limit_ns: int | None = None
    ) -> bool:
        """Do this with all locked copies at the same time; a failing one is left out. True if none
        failed.
        """
        copies = [self._counting[node] for node in sorted(self._counting)]
        works = [Work(locked.copy.lane, partial(locked.change, action)) for locked in copies]
        problems = run_together(works, limit_ns=limit_ns)
        for locked, problem in zip(copies, problems, strict=True):
            if problem is not None:
                self._leave_out(locked, problem, problem)
        return all(problem is None for problem in problems)

    def _change_all_or_repeat(
        self, action: Callable[[LockedCopy], None], limit_ns: int | None = None
    ) -> None:
        if not self._change_all(action, limit_ns):
            raise CopyLeftOut

    def _leave_out(
        self, locked: LockedCopy, problem: EmbedlogError, damage: EmbedlogError | None = None
    ) -> None:
        """Go on without a copy. One whose directory hangs gives its lock back when its thread
        returns.
        """
        self.failed[locked.node] = problem
        self._counting.pop(locked.node)
        locked.broken = locked.broken or damage
        if locked.copy.lane is None:
            self._release_copy(locked.copy)

    # ---- the majority ----------------------------------------------------------------------------

    def _voters(self, state: State) -> frozenset[int]:
        return frozenset(state.voters) or self._first_voters

    def _registered(self, state: State, nodes: Iterable[int]) -> frozenset[int]:
        """Those of the nodes whose locked directory is the registered one, or is not registered
        yet.
        """
        return frozenset(
            node
            for node in nodes
            if node not in self._counting or not self._counting[node].copy.is_other(state)
        )

    def _require_majority(
        self, nodes: Iterable[int], states: Sequence[State], undecided: bool = False
    ) -> None:
        counting_nodes = frozenset(nodes)
        counted_states = states[1:] if self.forced else states
        for state in counted_states:
            voters = self._voters(state)
            reached = self._registered(state, counting_nodes) & voters
            if 2 * len(reached) > len(voters):
                continue
            outcome = "the decision may count later" if undecided else "no decision is possible"
            away = {
                self._paths[node]: str(problem) for node, problem in sorted(self.failed.items())
            }
            raise NotEnoughDirectoriesError(
                f"no majority of the directories was reached: {outcome}",
                reached=sorted(reached),
                voters=sorted(voters),
                away=away,
                undecided=undecided,
                expected=f"{len(voters) // 2 + 1} of {len(voters)}",
                found=len(reached),
            )

    def _find_best(self) -> tuple[LockedCopy, CopyView]:
        """The most advanced copy, and the view of all of its records. Raises NotEnoughDirectoriesError without a
        majority.
        """
        able = [copy for copy in self._counting.values() if not copy.promise.incomplete]
        if not able:
            self._require_majority((), [self.counted_view.state])
        best = max(able, key=advancement_of)
        try:
            view = CopyView(best.advance_view(self.counted_view))
        except EmbedlogError as problem:
            self._leave_out(best, problem, problem)
            raise CopyLeftOut from problem
        for locked in list(self._counting.values()):
            if not locked.copy.is_other(view.state):
                continue
            registered_path = view.state.nodes[locked.node].path
            refusal = ReplicaSetError(
                f"another directory is node {locked.node} of the set",
                paths=[str(locked.path.parent), registered_path],
            )
            self._leave_out(locked, refusal)
        if best.node not in self._counting:
            raise CopyLeftOut
        able = [copy for copy in able if copy.node in self._counting]
        self._require_majority((copy.node for copy in able), [view.state])
        return best, view

    # ---- the decision ----------------------------------------------------------------------------

    def decide(self, steps: Steps) -> Decision | Refusal:
        """Decide in the state of the most advanced copy. Raises CopyLeftOut after the failure of a
        copy.
        """
        best, view = self._find_best()
        # a term is continued only if no copy has promised a higher one, and its own record is last
        continues = (
            best.end > 0
            and self.own == (best.last_term, best.end)
            and self._highest_term() == self.own.term
        )
        is_settled = continues or self._is_settled(best, view)
        derivation = derive(steps, view.state, view.position)
        self.before = view.state
        self.events = derivation.events
        records = derivation.records
        if isinstance(records, Refusal) or not records:
            if self.leveling or not is_settled:
                self.counted_view = self._write((NoOp(),), best, view, continues)
            else:
                self.counted_view = CountedView(view)  # as a majority shows
            if isinstance(records, Refusal):
                return records
            return Decision(self.counted_view.state, (), derivation.others)
        after = apply_all(view.state, records)
        changes_voters = self._voters(after) != self._voters(view.state)
        if self.forced:
            self._require_majority(self._counting, [view.state, after])
        elif changes_voters and not is_settled and view.state.voters:
            # the change before this one counts first (QUORUM-6)
            self.counted_view = self._write((NoOp(),), best, view, continues)
            return self.decide(steps)
        self.counted_view = self._write(records, best, view, continues)
        return Decision(self.counted_view.state, records, derivation.others)

    def _highest_term(self) -> int:
        return max(copy.highest_term for copy in self._counting.values())

    def _is_settled(self, best: LockedCopy, view: CopyView) -> bool:
        """Whether a majority of the voters shows all records as settled."""
        voters = self._voters(view.state)
        settled_copies = [
            copy
            for copy in self._counting.values()
            if copy.node in voters and copy.settled_end >= best.end
        ]
        return best.end == 0 or 2 * len(settled_copies) > len(voters)

    def _write(
        self, records: tuple[Record, ...], best: LockedCopy, view: CopyView, continues: bool
    ) -> CountedView:
        """Promise, level, append, sync (QUORUM-3 to QUORUM-5). Afterwards the records count, and so
        do those that were found before them.
        """
        if continues:
            term = self.own.term
        else:
            term = self._highest_term() + 1
        if term > TERM_MAX:
            raise StateError("no term is left", path=best.path, found=term)
        if not all(copy.has_promised(term) for copy in self._counting.values()):
            self._change_all_or_repeat(lambda copy: copy.give_promise(term))
        try:
            self._change_all_or_repeat(lambda copy: copy.bring_to(best, term))
        except Unreadable as failure:  # most often of the best one: the others are not left out
            self._leave_out(self._counting[failure.node], failure.problem, failure.problem)
            raise CopyLeftOut from failure
        if any(copy.promise.incomplete for copy in self._counting.values()):
            self._change_all_or_repeat(
                lambda copy: copy.become_complete(_sync_deadline()), SYNC_NS + LATER_NS
            )
        batch = batch_of(records, best.end, term, system.wall_ms())
        self.own = OwnDecision()
        self._append(batch, best.now.high_watermark)
        after = apply_all(view.state, records)
        self._require_majority(self._counting, [view.state, after], undecided=True)
        self._change_all(lambda copy: _show(copy, batch.end))
        self.own = OwnDecision(term, batch.end)
        return CountedView(DecisionView(batch.end, term, after))

    def _append(self, batch: DecisionBatch, settled: int) -> None:
        def append(copy: LockedCopy) -> None:
            copy.append(batch, settled)
            copy.sync(_sync_deadline())

        self._change_all(append, SYNC_NS + LATER_NS)


def _prepare(copy: Copy) -> None:
    """What may last, before a lock is taken. Raises the errors of the directory."""
    copy.partition.replica.compare_epochs()
    if copy.lane is not None:
        copy.lane.worker.probe()


def _show(copy: LockedCopy, end: int) -> None:
    """Show that all records below `end` count, and wake the processes that follow the decisions."""
    copy.settle(end)
    copy.announce()


def _sync_deadline() -> int:
    return system.boot_ns() + SYNC_NS
