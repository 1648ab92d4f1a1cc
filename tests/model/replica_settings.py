"""Extends the model of replicas by a decision that lowers `min.insync.replicas` to 1 (REPLICA-4).

While the ISR is smaller than the setting requires, nothing is committed, and members of the ELR may still be elected. A lower
setting lets the present ISR commit alone.

Invariant R12: no decision removes the last complete replica from ISR and ELR.
"""

from replicas import Replicas
from replicas_state import has

RULES = {
    "lower_ends_elr": ("REPLICA-4+", "a lower min.insync.replicas ends the ELR in the same decision"),
    "lower_installed": ("REPLICA-4+", "... and a leader uses the setting of its installed decision, not a newer one"),
    "lower_waits": ("REPLICA-4+", "... and is decided only while the leader is reached and complete"),
}


class ReplicaSettings(Replicas):
    """The model of replicas with the setting; `more` is (min.insync.replicas, its partition epoch, a broken invariant)."""

    rules = RULES

    def initial(self):
        return super().initial()._replace(more=(self.least, 0, ""))

    def broken(self, state):
        return state.more[2] or super().broken(state)

    def _steps(self, state):
        self.least, self.since, _ = state.more          # all steps of a state are taken before those of the next one
        yield from super()._steps(state)
        for me, p in enumerate(state.processes):
            if not p.job and "d" in self.roles[me] and self._decides(state, p) and state.more[0] > 1:
                yield from self._lower(state, me, p)

    def _enough(self, d):
        lowered = self.least == 1 and (d.version >= self.since or not self.on("lower_installed"))
        return lowered or d.installed.bit_count() > 1

    def _lower(self, state, me, p):
        decided = state.decided
        leader = state.directories[decided.leader]
        complete = leader.page == decided.page and self._complete(state, decided.leader, leader)
        if self.on("lower_waits") and not (complete and has(p.reaches, decided.leader)):
            return
        after = decided._replace(elr=0) if self.on("lower_ends_elr") else decided
        whole = sum(1 << n for n, d in enumerate(state.directories) if self._complete(state, n, d))
        removed = whole & (decided.isr | decided.elr) and not whole & (after.isr | after.elr)
        problem = "R12 a decision removes the last complete replica" if removed else ""
        yield from self._decide(state._replace(more=(1, decided.version + 1, problem)), me, p, after, "min.insync.replicas is 1")
