"""Extends the model of replicas by the commit under the leader's lock (REPLICA-15): the high watermark rises in several steps.

A process locks the leader, measures one member of the maximal ISR after the other, and then stores the high watermark. The
leader's lock is held throughout: no step of another process changes the leader's page or log, and all other directories change
freely. Decisions about the ISR need no lock of the leader, but their installation does. `replicated_append.py` has the locks.
"""

from replicas import Replicas
from replicas_state import become, has, name, put

RULES = {
    "lock_held": ("REPLICA-15", "the leader's lock is held from the first measurement until the high watermark is stored"),
    "grow_locked": ("REPLICA-6+", "a joining replica is measured under the leader's lock, even if the maximal ISR contains it"),
}


class SingleLock(Replicas):
    """The model of replicas in which every commit has the lock of the leader."""

    rules = RULES

    def _steps(self, state):
        held = self._held(state)
        for label, after in super()._steps(state):
            changed = (at for at in held if after.directories[at] != state.directories[at])
            if label[0] == "!" or all(label.startswith(f"{name(held[at])} ") for at in changed):
                yield label, after

    def _held(self, state):
        """Leaders whose lock is held, with the process."""
        jobs = ((p.job, me) for me, p in enumerate(state.processes))
        return {job[1]: me for job, me in jobs if job and job[0] == "measure" and self.on("lock_held")}

    def _propose_growth(self, state, me, p):
        if self._led(state, p) not in self._held(state) or not self.on("grow_locked"):
            yield from super()._propose_growth(state, me, p)

    def _raise_high(self, state, me, p):
        held = self._held(state)
        for at, d in enumerate(state.directories):
            if has(p.reaches, at) and d.leads and self._enough(d) and len(d.log) > d.high and at not in held:
                job = ("measure", at, d.epoch, d.page, d.maximal, len(d.log))
                yield f"{name(me)} locks D{at}", become(state, me, p._replace(job=job))

    def _measure(self, state, me, p):
        _, at, epoch, page, left, least = p.job
        d = state.directories[at]
        n = (left & -left).bit_length() - 1
        stopped = not has(p.reaches, at) or d.page != page or not d.leads or d.epoch != epoch
        if not stopped and not left:
            state = put(state, at, d._replace(high=max(d.high, min(least, len(d.log)))))
            yield f"{name(me)} raises the high watermark of D{at} to {least}", become(state, me, p._replace(job=()))
        elif stopped or not has(p.reaches, n) or state.directories[n].epoch != epoch:
            yield f"{name(me)} cannot commit and unlocks D{at}", become(state, me, p._replace(job=()))
        else:
            end = min(least, len(state.directories[n].log))
            p = p._replace(job=("measure", at, epoch, page, left & ~(1 << n), end))
            yield f"{name(me)} finds D{n} in sync up to {end}", become(state, me, p)
