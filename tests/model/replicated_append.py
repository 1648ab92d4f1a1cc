"""Models one append to a leader and its followers, lock by lock (REPLICA-15).

On the usual path a process holds one lock at a time: the leader's, each follower's, then the leader's again. On the
single-lock path it keeps the leader's lock through all three parts. If a follower's lock is not free, it releases the
leader's lock and continues on the usual path. All directories are in the ISR throughout. An election may come at any
moment; its installation needs the lock of the new leader. A lock has no deadline here: a state without a way out is a
deadlock (I7).
"""

from typing import NamedTuple

from replicas_state import agreed, become, name, put

RULES = {
    "try_only": ("REPLICA-15", "a process does not wait for a follower's lock while it holds the leader's"),
    "leaf": ("REPLICA-15", "no lock is taken under a follower's lock"),
    "look": ("REPLICA-15", "a process reads the follower's epoch before it waits for the lock; a higher one fences it"),
    "look_again": ("REPLICA-15+", "... and again before each try"),
    "fence": ("REPLICA-1", "the epochs are compared under the follower's lock, in the section of the write"),
    "publish_first": ("REPLICA-15", "the leader's end is published before the followers' ends"),
    "recover": ("APPEND-3", "a repair recovers complete bytes after the published end"),
}
INSTALLER = 9                   # the holder of a lock that installs a decision


class Directory(NamedTuple):
    log: tuple = ()             # (epoch, record): the bytes in the file
    end: int = 0                # the published end
    epoch: int = 0
    leads: bool = False
    start: int = 0
    high: int = 0
    lock: int = -1              # the process that holds the append lock
    owner: bool = False         # the owner field: an append has begun and is not published


class Process(NamedTuple):
    at: str = "idle"
    left: int = 0               # records that it may still append
    leader: int = 0
    epoch: int = 0
    record: int = 0
    offset: int = 0
    single: bool = True         # the leader's lock is still held
    todo: int = 0               # followers without the record
    under: int = -1             # a follower whose lock is still held during the commit


class State(NamedTuple):
    directories: tuple
    processes: tuple
    decided: tuple = (0, 0)     # epoch, leader
    record: int = 1
    seen: tuple = ()
    acked: frozenset = frozenset()
    kills: int = 0
    elections: int = 0


class ReplicatedAppend:
    """The model; `off` names the rules that are switched off."""

    rules = RULES

    def __init__(self, off=(), directories=2, processes=2, records=1, kills=0, elections=1):
        self.off, self.count = frozenset(off), directories
        self.start = (Process(left=records),) * processes
        self.faults = {"kills": kills, "elections": elections}

    def on(self, rule):
        return rule not in self.off

    def initial(self):
        directories = (Directory(leads=True),) + (Directory(),) * (self.count - 1)
        return State(directories, self.start, **self.faults)

    # -- invariants -------------------------------------------------------------------------

    def broken(self, state):
        led = [d.epoch for d in state.directories if d.leads]
        if len(led) != len(set(led)):
            return "R1 two leaders in one epoch"
        for d in state.directories:
            shown = d.log[:d.high] if d.leads and d.high >= d.start else ()
            if shown[:len(state.seen)] != state.seen[:len(shown)]:
                return "R3 another record at an offset that readers saw"
            if d.high > d.end:
                return "R9 a high watermark beyond the end of the log"
            if self._repaired(d).log[:len(state.seen)] != state.seen:
                return "R7 a complete member of the ISR or ELR lacks a record that readers saw"
        epoch, at = state.decided
        leader = state.directories[at]
        if leader.leads and leader.epoch == epoch and not state.acked <= set(enumerate(r for _, r in leader.log)):
            return "R8 an acknowledged record is gone"
        return self._diverged(state.directories)

    def _diverged(self, directories):
        for one in directories:
            for other in directories:
                a, b = one.log[:one.end], other.log[:other.end]
                n = min(len(a), len(b))
                if n and a[n - 1][0] == b[n - 1][0] and a[:n] != b[:n]:
                    return "R2 same offset and epoch, another history"
        return None

    def satisfied(self, state):
        return all(p.at == "idle" and not p.left for p in state.processes)

    # -- steps ------------------------------------------------------------------------------

    def steps(self, state):
        for label, after in self._steps(state):
            for d in after.directories:                         # readers read at every moment
                if d.leads and d.high >= d.start and len(d.log[:d.high]) > len(after.seen):
                    after = after._replace(seen=d.log[:d.high])
            yield label, after

    def _steps(self, state):
        for me, p in enumerate(state.processes):
            yield from getattr(self, "_" + p.at)(state, me, p)
            if state.kills and p.at != "idle":
                free = tuple(d._replace(lock=-1) if d.lock == me else d for d in state.directories)
                after = state._replace(directories=free, kills=state.kills - 1)
                yield f"!{name(me)} is killed", become(after, me, Process(left=p.left))
        epoch, leader = state.decided
        if state.elections:
            for n in range(self.count):
                if n != leader:
                    after = state._replace(decided=(epoch + 1, n), elections=state.elections - 1)
                    yield f"D{n} is elected in epoch {epoch + 1}", after
        d = state.directories[leader]
        if d.epoch < epoch and d.lock < 0:
            yield f"a process locks D{leader} for epoch {epoch}", put(state, leader, d._replace(lock=INSTALLER))
        for n, d in enumerate(state.directories):
            if d.lock == INSTALLER:
                d = self._repaired(d)._replace(lock=-1)
                if n == leader and d.epoch < epoch:
                    d = d._replace(leads=True, epoch=epoch, start=d.end)
                yield f"epoch {epoch} is installed in D{leader}, D{n} is unlocked", put(state, n, d)

    def _repaired(self, d):
        if not d.owner:
            return d
        if self.on("recover"):
            return d._replace(owner=False, end=len(d.log))
        return d._replace(owner=False, log=d.log[:d.end])

    def _idle(self, state, me, p):
        for at, d in enumerate(state.directories):
            if p.left and d.leads and d.lock < 0:
                d = self._repaired(d)._replace(lock=me)
                todo = (1 << self.count) - 1 & ~(1 << at)
                after = Process("write", p.left - 1, at, d.epoch, state.record, d.end, True, todo)
                yield f"{name(me)} locks D{at}", become(put(state, at, d)._replace(record=state.record + 1), me, after)
        if p.left:
            yield f"{name(me)} gives up", become(state, me, p._replace(left=p.left - 1))

    def _write(self, state, me, p):
        d = state.directories[p.leader]
        log = d.log[:d.end] + ((p.epoch, p.record),)
        state = put(state, p.leader, d._replace(log=log, owner=True))
        at = "publish" if self.on("publish_first") else "follow"
        yield f"{name(me)} writes r{p.record} to D{p.leader} at {p.offset}", become(state, me, p._replace(at=at))

    def _publish(self, state, me, p):
        state = self._published(state, p)
        yield f"{name(me)} publishes the end of D{p.leader}", become(state, me, p._replace(at="follow"))
        after = self._released(state, me, p)
        yield f"{name(me)} releases D{p.leader}", become(after, me, p._replace(at="follow", single=False))

    def _published(self, state, p):
        d = state.directories[p.leader]
        return put(state, p.leader, d._replace(end=len(d.log), owner=False)) if d.owner else state

    def _released(self, state, me, p):
        """Publish what is written, and release the leader's lock."""
        if not p.single:
            return state
        state = self._published(state, p)
        return put(state, p.leader, state.directories[p.leader]._replace(lock=-1))

    def _follow(self, state, me, p):
        n = lowest(p.todo)
        f = state.directories[n]
        if self.on("look") and f.epoch > p.epoch:
            yield f"{name(me)} reads epoch {f.epoch} in D{n}: fenced", self._end(state, me, p)
        else:
            yield f"{name(me)} reads the page of D{n}", become(state, me, p._replace(at="try"))

    def _try(self, state, me, p):
        n = lowest(p.todo)
        f = state.directories[n]
        if f.lock < 0:
            yield f"{name(me)} locks D{n}", become(put(state, n, f._replace(lock=me)), me, p._replace(at="copy"))
        elif p.single and self.on("try_only"):
            after = self._released(state, me, p)
            after = become(after, me, p._replace(at="follow", single=False))
            yield f"{name(me)} finds D{n} locked and releases D{p.leader}", after
        elif self.on("look_again"):
            yield f"{name(me)} finds D{n} locked", become(state, me, p._replace(at="follow"))

    def _copy(self, state, me, p):
        n = lowest(p.todo)
        leader, f = state.directories[p.leader], self._repaired(state.directories[n])
        free = f._replace(lock=-1)
        led = leader.leads and leader.epoch == p.epoch
        if not led or (f.epoch > p.epoch and self.on("fence")):
            yield f"{name(me)} is fenced in D{n}", self._end(put(state, n, free), me, p)
            return
        end = agreed(f.log[:f.end], leader.log) if f.epoch < p.epoch else f.end
        known = len(leader.log) if p.single else leader.end          # its own record is in memory
        log = f.log[:end] + leader.log[end:known]
        f = f._replace(log=log, end=len(log), epoch=max(f.epoch, p.epoch), leads=f.leads and f.epoch >= p.epoch,
                       high=min(max(f.high, leader.high), len(log)), lock=-1)
        todo = p.todo & ~(1 << n)
        p = p._replace(at="follow" if todo else "commit", todo=todo)
        if not todo and not p.single and not self.on("leaf"):
            f, p = f._replace(lock=me), p._replace(under=n)
        yield f"{name(me)} copies to D{n} up to {len(log)}", become(put(state, n, f), me, p)

    def _commit(self, state, me, p):
        d = state.directories[p.leader]
        if not p.single and d.lock >= 0:
            return                                              # wait for the leader's lock
        state = self._published(state, p) if p.single else put(state, p.leader, self._repaired(d))
        d = state.directories[p.leader]
        least = p.offset + 1 if p.single else min(f.end if f.epoch == p.epoch else 0 for f in state.directories)
        if d.leads and d.epoch == p.epoch and least > p.offset:
            state = put(state, p.leader, d._replace(high=max(d.high, least)))
            state = state._replace(acked=state.acked | {(p.offset, p.record)})
            yield f"{name(me)}: r{p.record} is committed and acknowledged", self._end(state, me, p)
        else:
            yield f"{name(me)} cannot commit r{p.record}", self._end(state, me, p)

    def _end(self, state, me, p):
        state = self._released(state, me, p)
        if p.under >= 0:
            state = put(state, p.under, state.directories[p.under]._replace(lock=-1))
        return become(state, me, Process(left=p.left))


# -- helpers ---------------------------------------------------------------------------------

def lowest(mask):
    return (mask & -mask).bit_length() - 1
