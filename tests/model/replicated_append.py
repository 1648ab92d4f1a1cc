"""Models one append to a leader and its followers, lock by lock (REPLICA-15), while the disk of one directory may hang.

A process holds one lock at a time: the leader's for the write, each follower's for its copy, and the leader's again for the
commit. A step in a directory that hangs does not happen until its disk continues, which may be never: the process inside keeps
the lock of that directory. Another process then decides that the member leaves the ISR, or elects another leader. An election
may also come at any other moment. The installation of a decision needs the lock of the leader. A lock has no deadline here: a
state without a way out is a deadlock (I7).
"""

from typing import NamedTuple

from replicas_state import agreed, become, has, name, put

RULES = {
    "release": ("REPLICA-15", "the leader's lock is released before a follower's disk is used"),
    "evict": ("REPLICA-18", "a member whose directory hangs leaves the ISR, or hands over as leader"),
    "commit_lock": ("REPLICA-15", "the commit measures the pages and stores the high watermark under the leader's lock"),
    "epoch_again": ("REPLICA-15", "... and compares the epoch of the leader's page again under that lock"),
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
    isr: int = 0                # of a leader: the members that a commit needs, as its page shows
    page: int = 0               # the partition epoch of the page
    lock: int = -1              # the process that holds the append lock
    owner: bool = False         # the owner field: an append has begun and is not published


class Process(NamedTuple):
    at: str = "idle"
    left: int = 0               # records that it may still append
    leader: int = 0
    epoch: int = 0
    record: int = 0
    offset: int = 0
    holds: bool = False         # the leader's lock is still held, without the rule
    todo: int = 0               # followers without the record
    under: int = -1             # a follower whose lock is still held during the commit
    seen: tuple = ()            # what a commit without a lock has read


class State(NamedTuple):
    directories: tuple
    processes: tuple
    decided: tuple = (0, 0, 0, 0)   # epoch, leader, partition epoch, ISR
    record: int = 1
    seen: tuple = ()
    acked: frozenset = frozenset()
    kills: int = 0
    elections: int = 0
    hangs: int = 0
    hung: int = -1              # the directory whose disk hangs


class ReplicatedAppend:
    """The model; `off` names the rules that are switched off."""

    rules = RULES

    def __init__(self, off=(), directories=2, processes=2, records=1, kills=0, elections=1, hangs=0):
        self.off, self.count = frozenset(off), directories
        self.start = (Process(left=records),) * processes
        self.faults = {"kills": kills, "elections": elections, "hangs": hangs}

    def on(self, rule):
        return rule not in self.off

    def initial(self):
        every = (1 << self.count) - 1
        directories = (Directory(leads=True, isr=every),) + (Directory(),) * (self.count - 1)
        return State(directories, self.start, decided=(0, 0, 0, every), **self.faults)

    # -- invariants -------------------------------------------------------------------------

    def broken(self, state):
        led = [d.epoch for d in state.directories if d.leads]
        if len(led) != len(set(led)):
            return "R1 two leaders in one epoch"
        for n, d in enumerate(state.directories):
            shown = d.log[:d.high] if d.leads and d.high >= d.start else ()
            if shown[:len(state.seen)] != state.seen[:len(shown)]:
                return "R3 another record at an offset that readers saw"
            if d.high > d.end:
                return "R9 a high watermark beyond the end of the log"
            if has(state.decided[3], n) and self._repaired(d).log[:len(state.seen)] != state.seen:
                return "R7 a complete member of the ISR or ELR lacks a record that readers saw"
        epoch, at, _, _ = state.decided
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
        """Whether every process is done, or inside the disk that hangs."""
        return all(self._is_inside(state, p) or (p.at == "idle" and not p.left) for p in state.processes)

    @staticmethod
    def _is_inside(state, p):
        """Whether the next step of a process is in the directory that hangs."""
        at = {"write": p.leader, "publish": p.leader, "copy": lowest(p.todo)}.get(p.at, -1)
        return state.hung >= 0 and at == state.hung

    # -- steps ------------------------------------------------------------------------------

    def steps(self, state):
        for label, after in self._steps(state):
            for d in after.directories:                         # readers read at every moment
                if d.leads and d.high >= d.start and len(d.log[:d.high]) > len(after.seen):
                    after = after._replace(seen=d.log[:d.high])
            yield label, after

    def _steps(self, state):
        for me, p in enumerate(state.processes):
            if not self._is_inside(state, p):
                yield from getattr(self, "_" + p.at)(state, me, p)
            if state.kills and p.at != "idle" and not self._is_inside(state, p):
                free = tuple(d._replace(lock=-1) if d.lock == me else d for d in state.directories)
                after = state._replace(directories=free, kills=state.kills - 1)
                yield f"!{name(me)} is killed", become(after, me, Process(left=p.left))
        yield from self._decisions(state)
        epoch, leader, page, isr = state.decided
        d = state.directories[leader]
        if (d.epoch, d.page) < (epoch, page) and d.lock < 0:
            yield f"a process locks D{leader} for epoch {epoch}", put(state, leader, d._replace(lock=INSTALLER))
        for n, d in enumerate(state.directories):
            if d.lock == INSTALLER and n != state.hung:
                d = self._repaired(d)._replace(lock=-1)
                if n == leader and d.epoch < epoch:
                    d = d._replace(leads=True, epoch=epoch, start=d.end, page=page, isr=isr)
                elif n == leader and d.leads and d.page < page:
                    d = d._replace(page=page, isr=isr)
                yield f"epoch {epoch} is installed in D{leader}, D{n} is unlocked", put(state, n, d)

    def _decisions(self, state):
        """The decisions, and the disk that hangs."""
        epoch, leader, page, isr = state.decided
        hung = state.hung
        for n in range(self.count):
            if state.elections and n != leader and has(isr, n) and n != hung:
                after = state._replace(decided=(epoch + 1, n, page + 1, isr), elections=state.elections - 1)
                yield f"D{n} is elected in epoch {epoch + 1}", after
        if hung < 0:
            for n in range(self.count if state.hangs else 0):
                yield f"!the disk of D{n} hangs", state._replace(hung=n, hangs=state.hangs - 1)
            return
        yield f"!the disk of D{hung} continues", state._replace(hung=-1)
        rest = isr & ~(1 << hung)
        if has(isr, hung) and rest and self.on("evict"):
            if hung == leader:
                n = lowest(rest)
                yield f"D{n} is elected for D{hung}, which hangs", state._replace(decided=(epoch + 1, n, page + 1, rest))
            else:
                yield f"D{hung} leaves the ISR", state._replace(decided=(epoch, leader, page + 1, rest))

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
                todo = d.isr & ~(1 << at)
                after = Process("write", p.left - 1, at, d.epoch, state.record, d.end, True, todo)
                yield f"{name(me)} locks D{at}", become(put(state, at, d)._replace(record=state.record + 1), me, after)

    def _write(self, state, me, p):
        d = state.directories[p.leader]
        log = d.log[:d.end] + ((p.epoch, p.record),)
        state = put(state, p.leader, d._replace(log=log, owner=True))
        following = "follow" if p.todo else "commit"
        at = "publish" if self.on("publish_first") else following
        yield f"{name(me)} writes r{p.record} to D{p.leader} at {p.offset}", become(state, me, p._replace(at=at))

    def _publish(self, state, me, p):
        state = self._published(state, p)
        at = "follow" if p.todo else "commit"
        if self.on("release"):
            after = become(self._released(state, me, p), me, p._replace(at=at, holds=False))
            yield f"{name(me)} publishes the end of D{p.leader} and releases it", after
        else:
            yield f"{name(me)} publishes the end of D{p.leader}", become(state, me, p._replace(at=at))

    def _published(self, state, p):
        d = state.directories[p.leader]
        return put(state, p.leader, d._replace(end=len(d.log), owner=False)) if d.owner else state

    def _released(self, state, me, p):
        """Publish what is written, and release the leader's lock."""
        if not p.holds:
            return state
        state = self._published(state, p)
        return put(state, p.leader, state.directories[p.leader]._replace(lock=-1))

    def _follow(self, state, me, p):
        n = lowest(p.todo)
        f = state.directories[n]
        if not has(state.directories[p.leader].isr, n):
            todo = p.todo & ~(1 << n)
            p = p._replace(todo=todo, at="follow" if todo else "commit")
            yield f"{name(me)} reads that D{n} is no member", become(state, me, p)
        elif self.on("look") and f.epoch > p.epoch:
            yield f"{name(me)} reads epoch {f.epoch} in D{n}: fenced", self._end(state, me, p)
        else:
            yield f"{name(me)} reads the page of D{n}", become(state, me, p._replace(at="try"))

    def _try(self, state, me, p):
        n = lowest(p.todo)
        f = state.directories[n]
        if f.lock < 0:
            yield f"{name(me)} locks D{n}", become(put(state, n, f._replace(lock=me)), me, p._replace(at="copy"))
        elif self._leads_elsewhere(state, p):
            yield f"{name(me)} reads that D{p.leader} does not lead any more", self._end(state, me, p)
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
        known = len(leader.log) if p.holds else leader.end           # its own record is in memory
        log = f.log[:end] + leader.log[end:known]
        f = f._replace(log=log, end=len(log), epoch=max(f.epoch, p.epoch), leads=f.leads and f.epoch >= p.epoch,
                       high=min(max(f.high, leader.high), len(log)), lock=-1)
        todo = p.todo & ~(1 << n)
        p = p._replace(at="follow" if todo else "commit", todo=todo)
        if not todo and not p.holds and not self.on("leaf"):
            f, p = f._replace(lock=me), p._replace(under=n)
        yield f"{name(me)} copies to D{n} up to {len(log)}", become(put(state, n, f), me, p)

    def _commit(self, state, me, p):
        d = state.directories[p.leader]
        if not self.on("commit_lock") and not p.holds:
            seen = (d.epoch, d.leads, d.end, d.isr, self._least(state, p, d))
            yield f"{name(me)} measures the members of D{p.leader}", become(state, me, p._replace(at="store", seen=seen))
            return
        if not p.holds and d.lock >= 0:
            if self._leads_elsewhere(state, p):
                yield f"{name(me)} reads that D{p.leader} does not lead any more", self._end(state, me, p)
            return                                              # wait for the leader's lock
        if p.leader == state.hung:
            yield f"{name(me)} leaves D{p.leader}, which hangs", self._end(state, me, p)
            return
        state = self._published(state, p) if p.holds else put(state, p.leader, self._repaired(d))
        d = state.directories[p.leader]
        least = self._least(state, p, d)
        leads = d.leads and d.epoch == p.epoch
        if (leads or not self.on("epoch_again")) and least > p.offset:
            state = put(state, p.leader, d._replace(high=max(d.high, least)))
            state = state._replace(acked=state.acked | {(p.offset, p.record)})
            yield f"{name(me)}: r{p.record} is committed and acknowledged", self._end(state, me, p)
        else:
            yield f"{name(me)} cannot commit r{p.record}", self._end(state, me, p)

    def _least(self, state, p, d):
        """The records that all members have which the page of the leader shows."""
        members = [f for n, f in enumerate(state.directories) if n != p.leader and has(d.isr, n)]
        return min([f.end if f.epoch == p.epoch else 0 for f in members] + [d.end])

    @staticmethod
    def _leads_elsewhere(state, p):
        """Whether a decision shows that another directory leads, so that nobody waits for the lock of this one."""
        epoch, leader, _, _ = state.decided
        return leader != p.leader and state.directories[leader].epoch == epoch

    def _store(self, state, me, p):
        """The commit without a lock: what was read is written back, as a page is written as a whole."""
        epoch, leads, end, isr, least = p.seen
        d = state.directories[p.leader]
        p = p._replace(seen=())
        if leads and epoch == p.epoch and least > p.offset:
            d = d._replace(epoch=epoch, leads=leads, end=end, isr=isr, high=max(d.high, least))
            state = put(state, p.leader, d)._replace(acked=state.acked | {(p.offset, p.record)})
            yield f"{name(me)}: r{p.record} is committed without the lock", self._end(state, me, p)
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
