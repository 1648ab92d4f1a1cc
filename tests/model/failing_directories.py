"""Models what a failure changes (REPLICA-18, REPLICA-25): of a disk, of a process, and of one that stops with a lock.

One partition on the disks of two directories; a third one has a copy of the decision log, too, and does not fail.
Records are appended with acks=1: they are in the leader's log, and any process copies and commits them. A process finds a
failure by its own call, and knows only the errors that it got. A disk fails for all processes; a process may lack descriptors or
memory, so that each of its calls fails; and one may stop for ever while it holds the lock of a replica. Decisions and their
installation are one step. A hanging disk is in `replicated_append.py`, the return of a directory in `registrations.py`.

Invariants: README.md, P1, P2 and I7.
"""

from typing import NamedTuple

NOBODY = -1

RULES = {
    "evicts": ("REPLICA-18", "the process that finds a failed follower decides at once that it leaves the ISR"),
    "elects": ("REPLICA-18", "the process that finds a failed leader decides at once that another member leads"),
    "own_errors": ("REPLICA-18", "errors of one process (descriptors, memory, permissions) change no ISR"),
    "lock_timeout": ("REPLICA-18", "a lock that is not had in time is a failure of its directory"),
    "used_again": ("REPLICA-18", "a directory that failed is used again after it has returned"),
    "follows_first": ("REPLICA-18", "... and joins the ISR when it has everything that is committed"),
    "any_commits": ("REPLICA-25", "records of a killed process are copied and committed by another one"),
}


class Disk(NamedTuple):
    end: int = 0
    broken: bool = False
    lock: int = NOBODY          # a process that has stopped with the lock of the replica


class Process(NamedTuple):
    alive: bool = True
    starved: bool = False       # it has no descriptors, for now
    stopped: bool = False
    unused: frozenset = frozenset()     # directories that it does not use any more


class State(NamedTuple):
    disks: tuple
    processes: tuple
    leader: int = 0
    isr: frozenset = frozenset({0, 1})
    high: int = 0
    owner: int = NOBODY         # the process that has appended the last record
    lost: bool = False          # the leader lacks a committed record
    records: int = 0            # what may still happen
    breaks: int = 0
    starves: int = 0
    stops: int = 0
    kills: int = 0


class FailingDirectories:
    """The model; `off` names the rules that are switched off."""

    rules = RULES

    def __init__(self, off=(), processes=2, records=1, breaks=0, starves=0, stops=0, kills=0, returns=True):
        self.off, self.processes, self.returns = frozenset(off), processes, returns
        self.bounds = {"records": records, "breaks": breaks, "starves": starves, "stops": stops, "kills": kills}

    def on(self, rule):
        return rule not in self.off

    def initial(self):
        return State((Disk(), Disk()), (Process(),) * self.processes, **self.bounds)

    # -- invariants -------------------------------------------------------------------------

    def broken(self, state):
        if state.lost:
            return "P2 a leader lacks a committed record"
        fit = any(not state.disks[n].broken for n in state.isr)
        failures = sum(self.bounds[name] - getattr(state, name) for name in ("breaks", "stops"))
        if failures <= 1 and not fit:
            return "P1 one failure leaves no member of the ISR that may lead"
        return None

    def satisfied(self, state):
        if not any(p.alive and not p.stopped for p in state.processes):
            return True
        leader = state.disks[state.leader]
        serves = state.leader in state.isr and not leader.broken and state.high == leader.end
        whole = all(self._fails(state, n) or n in state.isr for n in range(2))
        nobody = all(self._fails(state, n) for n in state.isr)
        return nobody or (serves and whole and not state.records)

    def _fails(self, state, n):
        disk = state.disks[n]
        return disk.broken or disk.lock != NOBODY

    # -- steps ------------------------------------------------------------------------------

    def steps(self, state):
        for me, p in enumerate(state.processes):
            if p.alive and not p.stopped:
                yield from self._works(state, me, p)
                yield from self._process_faults(state, me, p)
        for n, disk in enumerate(state.disks):
            if disk.broken and self.returns:
                yield f"the disk of D{n} returns", put(state, n, disk._replace(broken=False))
            elif state.breaks and not disk.broken:
                yield f"!the disk of D{n} breaks", put(state, n, disk._replace(broken=True))._replace(breaks=state.breaks - 1)

    def _process_faults(self, state, me, p):
        if state.kills:
            killed = become(state, me, Process(alive=False))
            yield f"!{name(me)} is killed", killed._replace(kills=state.kills - 1)
        if p.starved:
            yield f"{name(me)} has descriptors again", become(state, me, p._replace(starved=False))
        elif state.starves:
            starved = become(state, me, p._replace(starved=True))
            yield f"!{name(me)} has no descriptors", starved._replace(starves=state.starves - 1)
        for n, disk in enumerate(state.disks):
            if state.stops and disk.lock == NOBODY and not disk.broken:
                stopped = become(put(state, n, disk._replace(lock=me)), me, p._replace(stopped=True))
                yield f"!{name(me)} stops for ever, with the lock of D{n}", stopped._replace(stops=state.stops - 1)

    def _works(self, state, me, p):
        for n in range(2):
            disk = state.disks[n]
            timeout = disk.lock != NOBODY
            if timeout and not self.on("lock_timeout"):
                continue                                         # it waits, and does nothing else with this directory
            if p.starved and n not in p.unused:
                if not self.on("own_errors"):
                    yield from self._finds(state, me, n, "gets EMFILE in")
                continue
            if disk.broken or timeout:
                yield from self._finds(state, me, n, "gets no lock in" if timeout else "gets EIO in")
                continue
            if n in p.unused and self.on("used_again"):
                yield f"{name(me)} uses D{n} again", become(state, me, p._replace(unused=p.unused - {n}))
        yield from self._leads(state, me, p)

    def _finds(self, state, me, n, what):
        """A process finds that a directory fails."""
        p = state.processes[me]
        used = become(state, me, p._replace(unused=p.unused | {n}))
        label = f"{name(me)} {what} D{n}"
        others = state.isr - {n}
        if n == state.leader and others and self.on("elects"):
            yield f"{label}: D{min(others)} leads", self._led(used, min(others))._replace(isr=others)
        elif n != state.leader and n in state.isr and self.on("evicts"):
            yield f"{label}, which leaves the ISR", used._replace(isr=others)
        elif used != state:
            yield label, used

    def _led(self, state, n):
        lost = state.lost or state.disks[n].end < state.high
        return state._replace(leader=n, lost=lost)

    def _leads(self, state, me, p):
        """Appends, copies, commits and joins, by a process that uses the leader."""
        at = state.leader
        leader = state.disks[at]
        if self._fails(state, at) or at in p.unused or p.starved:
            return
        if state.records:
            after = put(state, at, leader._replace(end=leader.end + 1))
            yield f"{name(me)} appends to D{at}", after._replace(records=state.records - 1, owner=me)
        for n in range(2):
            disk = state.disks[n]
            if n == at or self._fails(state, n) or n in p.unused:
                continue
            mine = self.on("any_commits") or state.owner in (me, NOBODY)
            if disk.end != leader.end and mine:
                yield f"{name(me)} copies to D{n}", put(state, n, disk._replace(end=leader.end))
            if n not in state.isr and (disk.end >= state.high or not self.on("follows_first")):
                yield f"{name(me)} lets D{n} join", state._replace(isr=state.isr | {n})
        least = min(state.disks[n].end for n in state.isr)
        if least > state.high and (self.on("any_commits") or state.owner == me):
            yield f"{name(me)} raises the high watermark to {least}", state._replace(high=least)


def become(state, me, process):
    """The state after a process has changed."""
    return state._replace(processes=(*state.processes[:me], process, *state.processes[me + 1 :]))


def put(state, n, disk):
    """The state with another disk of a directory."""
    return state._replace(disks=(*state.disks[:n], disk, *state.disks[n + 1 :]))


def name(me):
    return "PQR"[me]
