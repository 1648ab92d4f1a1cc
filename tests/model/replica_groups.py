"""Extends the model of groups by replicas (REPLICA-22): a failover of the group's partition loses an uncommitted tail.

Each append of a group record or of an offset commit remains uncommitted until the high watermark rises, at any time. A failover
returns to the state after any append from the high watermark on. All processes continue, with the memory of what they read.

Invariants: G1 to G5, and G6: an acknowledged offset commit is never lost.
"""

from groups import Groups

RULES = {
    "share_committed": ("REPLICA-22", "a member takes its assignment and positions only from committed records"),
    "assign_committed": ("REPLICA-22+", "the leader of the group assigns only in a committed generation: a lost one comes again"),
    "answer_committed": ("REPLICA-22", "an offset commit is acknowledged when it is below the high watermark"),
}


class ReplicaGroups(Groups):
    """The model of groups with failovers."""

    rules = RULES

    def __init__(self, off=(), failovers=1, **bounds):
        super().__init__(off, **bounds)
        self.failovers = failovers

    def initial(self):
        return super().initial()._replace(more=(self.failovers, 0, ()))

    def broken(self, state):
        if state.committed < state.more[1]:
            return "G6 an acknowledged offset commit is gone"
        return super().broken(state)

    def satisfied(self, state):
        return super().satisfied(state) and not state.more[2]

    # -- steps ------------------------------------------------------------------------------

    def steps(self, state):
        failovers, acked, tail = state.more
        for label, after in super().steps(state):
            if (after.group, after.committed) != (state.group, state.committed):
                answered = acked if self.on("answer_committed") else max(acked, after.committed)
                after = after._replace(more=(failovers, answered, (*tail, (state.group, state.committed))))
            yield label, after
        if tail:
            yield "the high watermark rises", state._replace(more=(failovers, max(acked, state.committed), ()))
        for end, (group, committed) in enumerate(tail if failovers else ()):
            after = state._replace(group=group, committed=committed, more=(failovers - 1, acked, tail[:end]))
            yield f"!a failover loses the last {len(tail) - end} appends", after

    def _wait(self, state, me, p):
        for label, after in super()._wait(state, me, p):
            share = "takes its share" in label and self.on("share_committed")
            assigns = " assigns to " in label and self.on("assign_committed")
            if not state.more[2] or not (share or assigns):
                yield label, after
