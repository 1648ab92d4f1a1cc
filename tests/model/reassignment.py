"""Extends the model of replicas by reassignments (REPLICA-24): other directories take over the partition.

A reassignment is a decision that adds the target to the assignment. The added replicas follow and join. A second decision
finishes it: assignment and ISR become the target. A cancellation restores the first assignment instead. Replicas outside the
assignment are deleted in two steps, so that the deleting process (role x) can be slow.

Invariant R11: no replica of the ISR or ELR is deleted.
"""

from typing import NamedTuple

from replicas import Replicas
from replicas_state import NONE, Directory, become, best, has, name, put, show

RULES = {
    "target_in_sync": ("REPLICA-24", "a reassignment is finished when the ISR contains the whole target"),
    "target_complete": ("REPLICA-24+", "... and its leader is reached and complete"),
    "finish_raises": ("REPLICA-24", "a decision that removes replicas raises the leader epoch"),
    "assigned_join": ("REPLICA-24", "only assigned replicas join the ISR"),
    "delete_after": ("REPLICA-24", "a replica is deleted only after the decision that removes it"),
    "delete_compares": ("REPLICA-24+", "... and only if its page has an older epoch than that decision"),
}


class Assignment(NamedTuple):
    assigned: int               # a bit for each directory
    target: int = 0             # of the reassignment in progress
    original: int = 0           # what a cancellation restores
    moves: tuple = ()           # targets to come
    cancels: int = 0
    deleted: str = ""           # an invariant that a deletion broke


class Reassignment(Replicas):
    """The model of replicas with reassignments."""

    rules = RULES

    def __init__(self, off=(), moves=(), cancels=0, members=0b011, **bounds):
        super().__init__(off, **bounds)
        self.members, self.moves, self.cancels = members, moves, cancels

    def initial(self):
        state = super().initial()
        for n in range(self.replicas):
            if not has(self.members, n):
                state = put(state, n, Directory(epoch=NONE))
        return state._replace(more=Assignment(self.members, moves=self.moves, cancels=self.cancels))

    def broken(self, state):
        return state.more.deleted or super().broken(state)

    def satisfied(self, state):
        left = any(d.log and not has(state.more.assigned, n) for n, d in enumerate(state.directories))
        return super().satisfied(state) and (not state.decisions or not (state.more.target or left))

    # -- steps ------------------------------------------------------------------------------

    def _steps(self, state):
        yield from super()._steps(state)
        for me, p in enumerate(state.processes):
            if not p.job and "d" in self.roles[me] and self._decides(state, p):
                yield from self._reassign(state, me, p)
                yield from self._finish(state, me, p)
                yield from self._cancel(state, me, p)
            if not p.job and "x" in self.roles[me]:
                yield from self._find_removed(state, me, p)

    def _assigned(self, state, n):
        return has(state.more.assigned, n)

    def _may_join(self, state, n, d, f):
        assigned = self._assigned(state, n) or not self.on("assigned_join")
        return assigned and super()._may_join(state, n, d, f)

    def _reassign(self, state, me, p):
        move = state.more
        if move.moves and not move.target:
            target, *moves = move.moves
            more = Assignment(move.assigned | target, target, move.assigned, tuple(moves), move.cancels)
            yield from self._decide(state._replace(more=more), me, p, state.decided, f"reassignment to {show(target)}")

    def _finish(self, state, me, p):
        move, decided = state.more, state.decided
        if move.target and (move.target & ~decided.isr == 0 or not self.on("target_in_sync")):
            yield from self._assign(state, me, p, move.target, "finished")

    def _cancel(self, state, me, p):
        move = state.more
        if move.target and move.cancels and move.original & state.decided.isr:
            after = state._replace(more=move._replace(cancels=move.cancels - 1))
            yield from self._assign(after, me, p, move.original, "cancelled")

    def _assign(self, state, me, p, assigned, how):
        """The last decision of a reassignment: the assignment, the ISR within it, a leader within the ISR."""
        decided = state.decided
        isr = assigned & decided.isr if self.on("target_in_sync") else assigned
        fit = [n for n, f in enumerate(state.directories) if has(isr & p.reaches, n) and self._complete(state, n, f)]
        if not self.on("target_complete"):
            fit = [n for n in range(self.replicas) if has(isr, n)]
        if not fit:
            return
        leader = decided.leader if decided.leader in fit else best(state, fit)
        if leader == decided.leader and state.directories[leader].page != decided.page:
            return                                              # an election comes first
        epoch = decided.epoch + (1 if self.on("finish_raises") or leader != decided.leader else 0)
        after = decided._replace(epoch=epoch, leader=leader, isr=isr, elr=0, page=state.directories[leader].page)
        state = state._replace(more=state.more._replace(assigned=assigned, target=0, original=0))
        yield from self._decide(state, me, p, after, f"reassignment {how}, D{leader} leads in epoch {epoch}, ISR {show(isr)}")

    # deletion

    def _find_removed(self, state, me, p):
        move = state.more
        kept = move.assigned
        if move.target and not move.target & ~state.decided.isr and not self.on("delete_after"):
            kept = move.target
        for n, d in enumerate(state.directories):
            if has(p.reaches, n) and not has(kept, n) and d.epoch != NONE:
                job = ("delete", n, state.decided.epoch)
                yield f"{name(me)} finds D{n} outside the assignment", become(state, me, p._replace(job=job))

    def _delete(self, state, me, p):
        _, n, epoch = p.job
        d = state.directories[n]
        state = become(state, me, p._replace(job=()))
        older = d.epoch < epoch or (d.epoch == epoch and not (self.on("finish_raises") and self.on("delete_after")))
        if not has(p.reaches, n) or d.epoch == NONE or (not older and self.on("delete_compares")):
            yield f"{name(me)} finds a newer page in D{n}", state
            return
        if has(state.decided.isr | state.decided.elr, n):
            state = state._replace(more=state.more._replace(deleted="R11 a member of the ISR or ELR is deleted"))
        fresh = Directory(epoch=NONE, registration=d.registration, page=d.page + 1)
        yield f"{name(me)} deletes the replica in D{n}", put(state, n, fresh)
