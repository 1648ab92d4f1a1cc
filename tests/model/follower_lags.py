"""Models when a slow follower leaves the ISR (REPLICA-25): the times that each copying process measures, tick by tick.

In each tick the leader may get a record, and one process copies to the follower, or nobody does. The disk of the follower is
fast, and takes three records in a tick, or slow, and takes one: then it never catches up while the leader is written. A process
looks at both log ends before and after its copy, and knows nothing but its own looks. It may stop between two ticks, for any
number of them. The leader gets no more meanwhile than a fast disk takes within `replica.lag.time.max.ms`, which is two ticks.

Invariants: README.md, L1 and L2.
"""

from typing import NamedTuple

RULES = {
    "late_leaves": ("REPLICA-25", "a member that does not catch up for replica.lag.time.max.ms leaves the ISR"),
    "caught_up_then": ("REPLICA-25", "one that has what the leader had at the look before had caught up then"),
    "progress_is_none": ("REPLICA-25", "... and records that are copied are nothing, if they are fewer"),
    "copying_counts": ("REPLICA-25", "only time of copying counts: a pause of the copying process is no lag"),
    "begins_now": ("REPLICA-25", "of a follower about which a process knows nothing the time begins now"),
    "begins_again": ("REPLICA-25", "... and so it does when the follower has left the ISR and joins again"),
}
NEVER = -4                      # longer ago than any limit
FAST, SLOW = 3, 1               # records in a tick


class Known(NamedTuple):
    """What a process knows of the follower. Times are of its own clock, which is 0 now."""

    last: int                   # when the follower had everything for the last time
    at: int                     # the time of the last look
    leader_end: int             # at that look


class Process(NamedTuple):
    known: Known = None
    late: int = 0               # its slow ticks since the follower had what the leader had at the look before


class State(NamedTuple):
    """Log ends are relative to that of the follower, so that there are not many states."""

    processes: tuple
    leader_end: int = 0
    member: bool = True         # of the ISR
    fast: bool = True           # all copies since it has joined, or had everything, without a pause between them
    copying: bool = False       # ... which have begun
    wrong: str = ""


class FollowerLags:
    """The model; `off` names the rules that are switched off."""

    rules = RULES

    def __init__(self, off=(), processes=2, limit=2, lag=5):
        self.off, self.processes, self.limit, self.lag = frozenset(off), processes, limit, lag

    def on(self, rule):
        return rule not in self.off

    def initial(self):
        return State((Process(),) * self.processes)

    # -- invariants -------------------------------------------------------------------------

    def broken(self, state):
        for p in state.processes:
            if state.member and p.late > self.limit + 1:
                return "L1 a follower that is late all the time stays in the ISR"
        return state.wrong or None

    def satisfied(self, state):
        return state.member and not state.leader_end

    # -- steps ------------------------------------------------------------------------------

    def steps(self, state):
        for records in range(2 if state.leader_end < self.lag else 1):
            after = state._replace(leader_end=state.leader_end + records)
            after = after._replace(fast=state.fast and not state.copying)
            yield f"{records} records are appended, nobody copies", self._passed(after, None)
            for me in range(self.processes):
                yield from self._copied(state, me, records)
        if not state.member and not state.leader_end:
            processes = tuple(p._replace(late=0) for p in state.processes)
            yield "the follower joins the ISR", State(processes)

    def _copied(self, state, me, records):
        looked = self._looked(state, me)
        for speed in (FAST, SLOW):
            copied = min(speed, state.leader_end)
            whole = copied == state.leader_end
            after = self._moved(self._passed(looked, me), copied, records)
            p = after.processes[me]
            late = 0 if speed == FAST else min(p.late + 1, self.limit + 2)
            after = put(after, me, p._replace(late=late))
            fast = whole or (after.fast and speed == FAST)
            after = self._looked(after._replace(fast=fast, copying=not whole), me)
            what = f"{'PQR'[me]} copies {copied} of {state.leader_end}"
            yield f"{records} records are appended, {what}", self._judged(after, me)

    def _moved(self, state, copied, records):
        """The state after records were copied, and others appended."""
        processes = []
        for p in state.processes:
            known = p.known and p.known._replace(leader_end=max(0, p.known.leader_end - copied))
            processes.append(p._replace(known=known))
        return state._replace(processes=tuple(processes), leader_end=state.leader_end - copied + records)

    def _passed(self, state, copying):
        """The state a tick later. Without the rule a pause counts for every process."""
        processes = []
        for me, p in enumerate(state.processes):
            if p.known and (me == copying or not self.on("copying_counts")):
                last = max(NEVER, p.known.last - 1)
                p = p._replace(known=p.known._replace(last=last, at=max(NEVER, p.known.at - 1)))
            processes.append(p)
        return state._replace(processes=tuple(processes))

    def _looked(self, state, me):
        p = state.processes[me]
        before = p.known
        if before is None:
            last = 0 if self.on("begins_now") else NEVER
        elif not state.leader_end:
            last = 0
        else:
            had = not before.leader_end and self.on("caught_up_then")
            last = max(before.last, before.at) if had or not self.on("progress_is_none") else before.last
        caught_up = not state.leader_end or (before is not None and not before.leader_end)
        late = 0 if caught_up else p.late
        return put(state, me, p._replace(known=Known(last, 0, state.leader_end), late=late))

    def _judged(self, state, me):
        """The state after the process has compared the time with the limit."""
        p = state.processes[me]
        late = state.member and state.leader_end and -p.known.last > self.limit
        if not late or not self.on("late_leaves"):
            return state
        wrong = "L2 a follower with a fast disk leaves the ISR" if state.fast else ""
        processes = []
        for other, each in enumerate(state.processes):
            forgets = other == me and self.on("begins_again")
            processes.append(each._replace(late=0, known=None if forgets else each.known))
        return state._replace(processes=tuple(processes), member=False, wrong=wrong)


def put(state, me, process):
    """The state after a process has changed."""
    return state._replace(processes=(*state.processes[:me], process, *state.processes[me + 1 :]))
