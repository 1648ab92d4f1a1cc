"""One decision of a set, made under the locks of its copies (`docs/protocol.md`, QUORUM-2 to
QUORUM-8).

DECISIONSESSION-1  a copy counts for a node only if its directory is the registered one of that
    node. Another one, which is added at the same time under this number, or has been replaced since
    it was opened, neither votes nor gets records
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from embedlog._native import system
from embedlog._native.scope import Stack
from embedlog.errors import EmbedlogError, NotEnoughDirectoriesError, ReplicaSetError, StateError
from embedlog.replicas.decisions.copies import Batch, Copy, LockedCopy, advancement, batch_of
from embedlog.replicas.decisions.decision_view import NO_TERM, View
from embedlog.replicas.decisions.promise import TERM_MAX
from embedlog.replicas.decisions.proposals import Decided, Steps, derived
from embedlog.replicas.decisions.shared_records import Unreadable
from embedlog.replicas.members.directory_workers import LATER_NS, Work, run_together
from embedlog.replicas.rules.events import Event, Refusal
from embedlog.replicas.rules.records import NoOp, Record
from embedlog.replicas.rules.state import State, apply_all

# for the syncs of records that are written: a result is better than a deadline
SYNC_NS: Final = 10_000_000_000


class Own(NamedTuple):
    """The last decision of this object: its term, and the log end after it."""

    term: int = NO_TERM
    end: int = -1


class Again(Exception):
    """A copy failed before the decision was written: begin again with the others."""


class Session:
    """One decision, from the locking of the copies to their release."""

    def __init__(self, view: View, own: Own, first_voters: frozenset[int]) -> None:
        self.view = view
        self.own = own
        self._first_voters = first_voters
        self.before: State = view.state  # of the last attempt, and its events
        self.events: tuple[Event, ...] = ()
        self._held: dict[int, LockedCopy] = {}  # those that count
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
        every = sorted(copies, key=lambda copy: copy.node)
        problems = run_together([Work(copy.lane, partial(_prepare, copy)) for copy in every])
        able = [copy for copy, problem in zip(every, problems, strict=True) if problem is None]
        for copy, problem in zip(every, problems, strict=True):
            self._paths[copy.node] = str(copy.partition.path)
            if problem is not None:
                self.failed[copy.node] = problem
        for at, copy in enumerate(able):
            now = system.boot_ns()
            until = now + max(0, deadline_ns - now) // (len(able) - at)
            take = partial(self._take, copy, until)
            try:
                if copy.lane is None:
                    take()
                else:
                    ends.enter(copy.lane.end_with(partial(self._let_go, copy)))
                    copy.lane.run(take, limit_ns=max(0, until - now) + LATER_NS)
                self._held[copy.node] = self._locked[copy.node]
            except EmbedlogError as problem:
                self.failed[copy.node] = problem

    def _take(self, copy: Copy, deadline_ns: int) -> None:
        self._locked[copy.node] = LockedCopy(copy, copy.partition.replica.exclusive(deadline_ns))
        if copy.lane is not None:
            copy.lane.lock_count += 1

    def _let_go(self, copy: Copy) -> None:
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
        self._held.clear()
        works = []
        for locked in [self._locked[node] for node in sorted(self._locked, reverse=True)]:
            if locked.copy.lane is None:
                locked.broken = locked.broken or problem
            works.append(Work(locked.copy.lane, partial(self._let_go, locked.copy)))
        run_together(works)

    def _each(self, action: Callable[[LockedCopy], None], limit_ns: int | None = None) -> bool:
        """Do this with all locked copies at the same time; a failing one is left out. True if none
        failed.
        """
        copies = [self._held[node] for node in sorted(self._held)]
        works = [Work(locked.copy.lane, partial(locked.change, action)) for locked in copies]
        problems = run_together(works, limit_ns=limit_ns)
        for locked, problem in zip(copies, problems, strict=True):
            if problem is not None:
                self._leave_out(locked, problem, problem)
        return all(problem is None for problem in problems)

    def _each_or_again(
        self, action: Callable[[LockedCopy], None], limit_ns: int | None = None
    ) -> None:
        if not self._each(action, limit_ns):
            raise Again

    def _leave_out(
        self, locked: LockedCopy, problem: EmbedlogError, damage: EmbedlogError | None = None
    ) -> None:
        """Go on without a copy. One whose directory hangs gives its lock back when its thread
        returns.
        """
        self.failed[locked.node] = problem
        self._held.pop(locked.node)
        locked.broken = locked.broken or damage
        if locked.copy.lane is None:
            self._let_go(locked.copy)

    def _directory(self, copy: LockedCopy) -> str:
        return str(copy.path.parent)

    # ---- the majority ----------------------------------------------------------------------------

    def _voters(self, state: State) -> frozenset[int]:
        return frozenset(state.voters) or self._first_voters

    def _of(self, state: State, nodes: Iterable[int]) -> frozenset[int]:
        """Those of the nodes whose locked directory is the registered one (DECISIONSESSION-1), or
        is not registered yet.
        """
        return frozenset(
            node
            for node in nodes
            if node not in self._held or not self._held[node].copy.is_other(state)
        )

    def _require_majority(
        self, nodes: Iterable[int], states: Sequence[State], undecided: bool = False
    ) -> None:
        given = frozenset(nodes)
        counted = states[1:] if self.forced else states
        for state in counted:
            voters = self._voters(state)
            reached = self._of(state, given)
            if 2 * len(reached & voters) <= len(voters):
                what = "the decision may count later" if undecided else "no decision is possible"
                raise NotEnoughDirectoriesError(
                    f"no majority of the directories was reached: {what}",
                    reached=sorted(reached & voters),
                    voters=sorted(voters),
                    away={
                        self._paths[node]: str(problem)
                        for node, problem in sorted(self.failed.items())
                    },
                    undecided=undecided,
                    expected=f"{len(voters) // 2 + 1} of {len(voters)}",
                    found=len(reached & voters),
                )

    def _best(self) -> tuple[LockedCopy, View]:
        """The most advanced copy, and its view. Raises NotEnoughDirectoriesError without a
        majority.
        """
        able = [copy for copy in self._held.values() if not copy.promise.incomplete]
        if not able:
            self._require_majority((), [self.view.state])
        best = max(able, key=advancement)
        view = self.view
        try:
            view = best.brought(view)
        except EmbedlogError as problem:
            self._leave_out(best, problem, problem)
            raise Again from problem
        for copy in [each for each in self._held.values() if each.copy.is_other(view.state)]:
            text = f"another directory is node {copy.node} of the set"
            self._leave_out(
                copy,
                ReplicaSetError(
                    text, paths=[self._directory(copy), view.state.nodes[copy.node].path]
                ),
            )
        if best.node not in self._held:
            raise Again
        able = [copy for copy in able if copy.node in self._held]
        self._require_majority((copy.node for copy in able), [view.state])
        return best, view

    # ---- the decision ----------------------------------------------------------------------------

    def decide(self, steps: Steps) -> Decided | Refusal:
        """Decide in the state of the most advanced copy. Raises Again after the failure of a
        copy.
        """
        best, view = self._best()
        continues = (
            best.end > 0
            and self.own == (best.last_term, best.end)
            and self._highest() == self.own.term
        )
        settled = continues or self._is_settled(best, view)
        derivation = derived(steps, view.state, view.position)
        self.before = view.state
        self.events = derivation.events
        found = derivation.records
        if isinstance(found, Refusal) or not found:
            if self.leveling or not settled:
                view = self._write((NoOp(),), best, view, continues)
            self.view = view
            return (
                found if isinstance(found, Refusal) else Decided(view.state, (), derivation.others)
            )
        after = apply_all(view.state, found)
        if self.forced:
            self._require_majority(self._held, [view.state, after])
        elif self._voters(after) != self._voters(view.state) and not settled and view.state.voters:
            # the change before this one counts first (QUORUM-6)
            self.view = self._write((NoOp(),), best, view, continues)
            return self.decide(steps)
        self.view = self._write(found, best, view, continues)
        return Decided(self.view.state, found, derivation.others)

    def _highest(self) -> int:
        return max(copy.highest_term for copy in self._held.values())

    def _is_settled(self, best: LockedCopy, view: View) -> bool:
        """Whether a majority of the voters shows all records as settled."""
        voters = self._voters(view.state)
        shown = [
            copy
            for copy in self._held.values()
            if copy.node in voters and copy.settled_end >= best.end
        ]
        return best.end == 0 or 2 * len(shown) > len(voters)

    def _write(
        self, records: tuple[Record, ...], best: LockedCopy, view: View, continues: bool
    ) -> View:
        """Promise, level, append, sync (QUORUM-3 to QUORUM-5); the view after the records, which
        count.
        """
        term = self.own.term if continues else self._highest() + 1
        if term > TERM_MAX:
            raise StateError("no term is left", path=best.path, found=term)
        if not all(copy.has_promised(term) for copy in self._held.values()):
            self._each_or_again(lambda copy: copy.give_promise(term))
        try:
            self._each_or_again(lambda copy: copy.bring_to(best, term))
        except Unreadable as failure:  # most often of the best one: the others are not left out
            self._leave_out(self._held[failure.node], failure.problem, failure.problem)
            raise Again from failure
        if any(copy.promise.incomplete for copy in self._held.values()):
            self._each_or_again(
                lambda copy: copy.become_complete(_sync_deadline()), SYNC_NS + LATER_NS
            )
        batch = batch_of(records, best.end, term, system.wall_ms())
        self.own = Own()
        self._append(batch, best.now.high_watermark)
        after = apply_all(view.state, records)
        self._require_majority(self._held, [view.state, after], undecided=True)
        self._each(lambda copy: _show(copy, batch.end))
        self.own = Own(term, batch.end)
        return View(batch.end, term, after)

    def _append(self, batch: Batch, settled: int) -> None:
        def append(copy: LockedCopy) -> None:
            copy.append(batch, settled)
            copy.sync(_sync_deadline())

        self._each(append, SYNC_NS + LATER_NS)


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
