"""Models an append that a thread makes for its caller (REPLICA-15), while the disk of one directory may hang.

Two callers of one process, and another process. A thread locks the leader, writes, publishes, copies to the follower, and
commits under the same lock. Its caller may give up at any time: then the thread stays in the directory in which it is, and its
next step there happens when the disk continues, which may be never. The two callers use the same descriptors, so the lock of the
leader is theirs together: only rules keep them apart. After a caller has given up, it repeats its record at the leader, whoever
that is then, as `replicated_append.py` models in single steps.
"""

from typing import NamedTuple

from replicas_state import agreed

RULES = {
    "left_waits": ("REPLICA-15", "the process uses no directory in which a thread was left behind, before that has left it"),
    "left_locked": ("REPLICA-15", "... and does not unlock it: the lock is that of the thread"),
    "place": ("REPLICA-15", "a thread enters the next directory only if its caller has not given up"),
    "gives_back": ("REPLICA-15", "a caller that gives up while the thread is in a follower gives the leader's lock back"),
    "keeps": ("REPLICA-15", "... and keeps it if the thread is in the leader"),
    "own_epoch": ("REPLICA-15", "a thread appends in the epoch that its caller gave it"),
    "in_doubt": ("REPLICA-16", "a caller that has given up looks for its record before it repeats it"),
}
PROCESS, OTHER, FREE = 0, 1, -1         # who holds a lock
FOREIGN = 9                             # the record of the other process


class Directory(NamedTuple):
    log: tuple = ()             # (epoch, record): the bytes in the file
    end: int = 0                # the published end
    high: int = 0
    epoch: int = 0
    leads: bool = False
    paired: bool = False        # of a leader: the other directory is in its ISR
    lock: int = FREE
    left: int = -1              # the caller whose thread was left behind inside


class Caller(NamedTuple):
    at: str = "idle"            # idle, waits, repeats, done
    step: str = ""              # of its thread: begin, write, publish, copy, commit, ended, gone
    leader: int = 0
    epoch: int = 0
    offset: int = -1
    committed: bool = False
    left: int = -1              # the directory in which the thread was left behind


class State(NamedTuple):
    directories: tuple
    callers: tuple
    leader: int = 0
    epoch: int = 0
    other: str = "idle"         # the other process: idle, inside, done
    seen: tuple = ()
    acked: frozenset = frozenset()
    hung: int = -1
    hangs: int = 0
    elections: int = 0
    slow: int = 0               # callers that may give up although no disk hangs


class HandedAppend:
    """The model; `off` names the rules that are switched off."""

    rules = RULES

    def __init__(self, off=(), callers=2, hangs=0, elections=0, slow=0, other=True):
        self.off, self.callers = frozenset(off), callers
        self.start = "idle" if other else "done"
        self.bounds = {"hangs": hangs, "elections": elections, "slow": slow}

    def on(self, rule):
        return rule not in self.off

    def initial(self):
        directories = (Directory(leads=True, paired=True), Directory())
        return State(directories, (Caller(),) * self.callers, other=self.start, **self.bounds)

    # -- invariants -------------------------------------------------------------------------

    def broken(self, state):
        leader = state.directories[state.leader]
        records = [record for _, record in leader.log[:leader.end]]
        if not state.acked <= set(records):
            return "R8 an acknowledged record is gone"
        if len(records) != len(set(records)):
            return "E1 a record is in the log twice"
        if leader.log[:leader.high][:len(state.seen)] != state.seen[:leader.high]:
            return "R3 another record at an offset that readers saw"
        one, other = (d.log[:d.end] for d in state.directories)
        least = min(len(one), len(other))
        if least and one[least - 1][0] == other[least - 1][0] and one[:least] != other[:least]:
            return "R2 same offset and epoch, another history"
        return None

    def satisfied(self, state):
        """Whether all callers have gone on, or the only member of the ISR hangs."""
        is_alone = not state.directories[state.leader].paired
        return all(c.at == "done" for c in state.callers) or (is_alone and state.leader == state.hung)

    # -- steps ------------------------------------------------------------------------------

    def steps(self, state):
        for label, after in self._steps(state):
            leader = after.directories[after.leader]
            shown = leader.log[:leader.high]
            yield label, after._replace(seen=shown) if len(shown) > len(after.seen) else after

    def _steps(self, state):
        for me, c in enumerate(state.callers):
            if c.step not in ("", "ended", "gone") and place(c) != state.hung:
                yield from getattr(self, "_thread_" + c.step)(state, me, c)
            if c.at != "done":
                yield from getattr(self, "_" + c.at)(state, me, c)
        yield from self._other(state)
        yield from self._decisions(state)

    # the thread

    def _thread_begin(self, state, me, c):
        d = state.directories[c.leader]
        if d.lock == OTHER:
            return
        epoch = c.epoch if self.on("own_epoch") else state.epoch
        if d.leads and d.epoch == epoch:
            locked = put(state, c.leader, d._replace(lock=PROCESS))
            begun = c._replace(step="write", epoch=epoch, offset=d.end)
            yield f"{name(me)}'s thread locks D{c.leader}", become(locked, me, begun)
        elif d.lock == FREE or c.left >= 0:
            yield f"{name(me)}'s thread does not find the leader", self._gone(state, me, c)

    def _thread_write(self, state, me, c):
        d = state.directories[c.leader]
        d = d._replace(log=d.log[:c.offset] + ((c.epoch, record_of(me)),))
        yield f"{name(me)}'s thread writes to D{c.leader}", become(put(state, c.leader, d), me, c._replace(step="publish"))

    def _thread_publish(self, state, me, c):
        d = state.directories[c.leader]
        d = d._replace(end=c.offset + 1)
        if not d.paired:
            d = d._replace(high=d.end)
        label = f"{name(me)}'s thread publishes in D{c.leader}"
        state = put(state, c.leader, d)
        if c.left >= 0 and (self.on("place") or not d.paired):
            yield label + ", unlocks it, and is gone", self._gone(state, me, c)
        elif not d.paired:
            ended = self._unlocked(state, c.leader)
            yield label + " and ends", become(ended, me, c._replace(step="ended", committed=True))
        else:
            yield label, become(self._entered(state, me, c), me, c._replace(step="copy", left=-1))

    def _thread_copy(self, state, me, c):
        n = 1 - c.leader
        f = state.directories[n]
        if f.lock == FREE and not f.leads and f.epoch == c.epoch and f.end == c.offset:
            f = f._replace(log=f.log[:c.offset] + ((c.epoch, record_of(me)),), end=c.offset + 1)
            state = put(state, n, f)
        label = f"{name(me)}'s thread copies to D{n}"
        if c.left >= 0 and self.on("place"):
            yield label + ", and is gone", self._gone(state, me, c)
        else:
            yield label, become(self._entered(state, me, c), me, c._replace(step="commit", left=-1))

    def _thread_commit(self, state, me, c):
        d, f = state.directories[c.leader], state.directories[1 - c.leader]
        has = f.epoch == c.epoch and f.end > c.offset and d.leads and d.epoch == c.epoch
        if has:
            state = put(state, c.leader, d._replace(high=max(d.high, min(d.end, f.end))))
        label = f"{name(me)}'s thread commits in D{c.leader}"
        if c.left >= 0:
            yield label + ", and is gone", self._gone(state, me, c)
        else:
            ended = self._unlocked(state, c.leader)
            yield label + ", and ends", become(ended, me, c._replace(step="ended", committed=has))

    def _entered(self, state, me, c):
        """Without the rule a thread that was left behind goes on as if its caller waited."""
        d = state.directories[c.left] if c.left >= 0 else None
        return put(state, c.left, d._replace(left=-1)) if d else state

    def _gone(self, state, me, c):
        """The thread ends what it does in its directory."""
        n = place(c)
        if c.left < 0:
            return become(state, me, c._replace(step="ended"))
        if n == c.leader and c.step != "begin":
            state = self._unlocked(state, n)
        state = put(state, n, state.directories[n]._replace(left=-1))
        return become(state, me, c._replace(step="gone"))

    def _unlocked(self, state, n):
        d = state.directories[n]
        return put(state, n, d._replace(lock=FREE)) if d.lock == PROCESS else state

    # the caller

    def _idle(self, state, me, c):
        n = state.leader
        is_free = all(other.at != "waits" for other in state.callers)           # the mutex
        is_left = any(d.left >= 0 for d in state.directories)
        if is_left and self.on("left_waits"):
            yield f"{name(me)} appends and copies by itself", become(state, me, c._replace(at="repeats"))
        elif is_free:
            yield f"{name(me)} hands its record over", become(state, me, Caller("waits", "begin", n, state.epoch))

    def _waits(self, state, me, c):
        if c.step == "ended":
            after = c._replace(at="done" if c.committed else "repeats", step="")
            if c.committed:
                state = state._replace(acked=state.acked | {record_of(me)})
            yield f"{name(me)} takes the result", become(state, me, after)
            return
        n = place(c)
        if n != state.hung:
            if not state.slow:
                return
            state = state._replace(slow=state.slow - 1)
        is_in_follower = n != c.leader
        state = put(state, n, state.directories[n]._replace(left=me))
        if self.on("gives_back") if is_in_follower else not self.on("keeps"):
            state = self._unlocked(state, c.leader)
        yield f"{name(me)} gives up, its thread is in D{n}", become(state, me, c._replace(at="repeats", left=n))

    def _repeats(self, state, me, c):
        n = state.leader
        d, f = state.directories[n], state.directories[1 - n]
        if n == state.hung or any(other.at == "waits" for other in state.callers):
            return
        if d.left >= 0 and d.lock == PROCESS and not self.on("left_locked"):
            yield f"{name(me)} unlocks D{n} after its deadline", put(state, n, d._replace(lock=FREE))
        is_held = d.left >= 0 and self.on("left_waits")
        if d.lock == OTHER or is_held or (d.lock == PROCESS and self.on("left_waits")) or not d.leads:
            return
        entry = next((e for e in d.log[:d.end] if e[1] == record_of(me)), None) if self.on("in_doubt") else None
        if entry is None:
            d = d._replace(log=(*d.log[:d.end], (d.epoch, record_of(me))), end=d.end + 1)
        if d.paired:
            if 1 - n == state.hung or f.lock != FREE or (f.left >= 0 and self.on("left_waits")):
                return                                      # until it leaves the ISR, or the thread has left
            f = f._replace(log=d.log[:d.end], end=d.end, epoch=d.epoch)
        d = d._replace(high=d.end)
        state = put(put(state, n, d), 1 - n, f)
        state = state._replace(acked=state.acked | {record_of(me)})
        yield f"{name(me)} repeats its record at D{n}, commits, and acknowledges", become(state, me, c._replace(at="done"))

    # the other process, and the decisions

    def _other(self, state):
        d = state.directories[state.leader]
        if state.leader == state.hung:
            return
        if state.other == "idle" and d.lock == FREE and d.leads:
            locked = put(state, state.leader, d._replace(lock=OTHER))
            yield f"Q locks D{state.leader}", locked._replace(other="inside")
        for n, d in enumerate(state.directories):
            if state.other == "inside" and d.lock == OTHER and n != state.hung:
                d = d._replace(log=(*d.log[:d.end], (d.epoch, FOREIGN)), end=d.end + 1, lock=FREE)
                if not d.paired:
                    d = d._replace(high=d.end)
                yield f"Q appends to D{n} and unlocks it", put(state, n, d)._replace(other="done")

    def _decisions(self, state):
        n, hung = state.leader, state.hung
        d, f = state.directories[n], state.directories[1 - n]
        if hung < 0 and state.hangs:
            for at in range(2):
                yield f"!the disk of D{at} hangs", state._replace(hung=at, hangs=state.hangs - 1)
        if hung >= 0:
            yield f"!the disk of D{hung} continues", state._replace(hung=-1)
        if hung == 1 - n and d.paired and d.lock == FREE:
            alone = d._replace(paired=False, high=d.end)
            yield f"D{hung} leaves the ISR", put(state, n, alone)
        may_lead = d.paired and f.lock == FREE and 1 - n != hung
        if may_lead and (hung == n or state.elections):
            if hung != n:
                state = state._replace(elections=state.elections - 1)
            led = f._replace(leads=True, epoch=state.epoch + 1, paired=False, high=f.end)
            yield f"D{1 - n} is elected", put(state, 1 - n, led)._replace(leader=1 - n, epoch=state.epoch + 1)
        if not d.paired and hung < 0 and d.lock == FREE and f.lock == FREE:
            log = d.log[:d.end]
            kept = agreed(f.log[:f.end], log)
            f = f._replace(log=f.log[:kept] + log[kept:], end=d.end, high=min(f.high, d.end))
            f = f._replace(epoch=d.epoch, leads=False, paired=False)
            after = put(put(state, n, d._replace(paired=True)), 1 - n, f)
            yield f"D{1 - n} follows D{n}, and joins the ISR", after


# -- helpers ---------------------------------------------------------------------------------

def place(c):
    """The directory in which the thread of a caller is."""
    return 1 - c.leader if c.step == "copy" else c.leader


def record_of(me):
    return me + 1


def become(state, me, caller):
    """The state after a caller has changed."""
    return state._replace(callers=(*state.callers[:me], caller, *state.callers[me + 1 :]))


def put(state, n, d):
    """The state with another directory."""
    return state._replace(directories=(*state.directories[:n], d, *state.directories[n + 1 :]))


def name(me):
    return "PR"[me]
