"""Model of opening and closing a log directory (LOCK, OPEN) with one partition in it.

Here the log is a list of records and an append is four steps. The model checks which processes may open the directory and which
inode a name leads to. It also checks which page counts as valid, and whether the clean mark is right.
A Kafka broker is one more process: it knows `.lock`, the mark and Kafka's files only.
"""

from typing import NamedTuple

TORN = "torn"

RULES = {
    "identity": ("LOCK-1", "after locking, page and path are the same inode, else map again"),
    "made_under_lock": ("LOCK-1", "a page is created under the append lock"),
    "lock_apart": ("LOCK-1+", "the append lock is not a lock on the page itself"),
    "stat_again": ("OPEN-1", "after locking `.lock`, compare the inode with the path"),
    "settle": ("OPEN-1+", "compare again after a departing broker has unlinked the file"),
    "incarnation": ("OPEN-2", "a page of another incarnation is rebuilt from the log"),
    "loads_alone": ("OPEN-3", "loading writes only under exclusive rights"),
    "dirty": ("OPEN-5", "DIRTY is on disk before the first write"),
    "close_all": ("OPEN-5", "the last process closes partitions that others left dirty"),
    "door": ("OPEN-2", "an open lock serialises opening and closing"),
    "unmark_first": ("OPEN-5", "the first process deletes the mark before any write"),
    "unmark_synced": ("OPEN-5+", "and syncs the directory before any write"),
    "sync_then_mark": ("OPEN-5", "the mark is written after the sync"),
}


class Page(NamedTuple):
    inode: int
    incarnation: int
    end: int
    owner: bool = False


class Process(NamedTuple):
    at: str = "out"
    lock: int = 0             # inode of `.lock` that it has open, 0 = none
    mode: str = ""            # "x" exclusive, "s" shared, "" unlocked
    page: int = 0             # inode of the page that it has mapped, 0 = none
    spot: int = -1            # where it writes, or how far it has scanned
    record: int = 0
    wrote: bool = False
    clean: bool = False       # it found the mark


class State(NamedTuple):
    processes: tuple
    lock_name: int = 0                 # inode of the name `.lock`, 0 = absent
    page_name: int = 0
    pages: tuple = ()                  # every page that a name or a mapping leads to
    door: object = None
    writers: tuple = ()                # (lock, process): holders of the append lock
    incarnation: int = 0
    log: tuple = ()
    indexed: int = 0                   # batches that the index describes
    synced: int = 0
    mark: bool = False                 # clean mark, as processes see it
    mark_disk: bool = False
    dirty: bool = False
    rough: bool = True                 # a process died since the directory was opened
    broker: str = "away"
    broker_lock: int = 0
    acked: frozenset = frozenset()     # (offset, record)
    record: int = 1
    inode: int = 1                     # next unused one
    kills: int = 0
    cuts: int = 0
    visits: int = 0                    # visits of a broker left
    deletions: int = 0                 # pages that an operator may still delete
    opens: int = 0                     # openings left


class Opening:
    """The model; `off` names the rules that are switched off."""

    rules = RULES

    def __init__(self, off=(), processes=2, records=2, opens=3, kills=0, cuts=0, visits=0,
                 deletions=0):
        self.off = frozenset(off)
        self.processes, self.records = processes, records
        self.faults = {"opens": opens, "kills": kills, "cuts": cuts, "visits": visits, "deletions": deletions}

    def on(self, rule):
        return rule not in self.off

    def initial(self):
        return State((Process(),) * self.processes, **self.faults)

    # -- invariants -------------------------------------------------------------------------

    def broken(self, state):
        whole = TORN not in state.log
        if state.mark and not (whole and state.indexed == len(state.log)):
            return "I5 the clean mark is false"
        inside = [p for p in state.processes if p.at in INSIDE]
        if state.broker == "in" and inside:
            return "I6 a broker and we are in at once"
        if sum(p.at in ("half", "whole", "entry") for p in state.processes) > 1:
            return "I6 two processes write at once"
        if any(o >= len(state.log) or state.log[o] != r for o, r in state.acked):
            return "I1 an acknowledged record is gone"
        for p in inside:
            page = find(state, p.page) if p.page else None
            if page and page.inode == state.page_name and TORN in (state.log + (TORN,) * page.end)[:page.end]:
                return "I3 published, but not written"
        everybody_left = all(p.at == "out" for p in state.processes) and state.broker != "in"
        if everybody_left and state.incarnation and not state.rough and not state.mark:
            return "I5 all processes closed in order, but there is no clean mark"
        return None

    def satisfied(self, state):
        return state.record > self.records or not state.opens

    # -- steps ------------------------------------------------------------------------------

    def steps(self, state):
        for me, p in enumerate(state.processes):
            yield from getattr(self, "_" + p.at)(state, me, p)
            if p.at != "out" and state.kills:
                yield f"!{name(me)} is killed", self._kill(state, me)
        yield from self._broker(state)
        if state.deletions and state.page_name:
            yield "!an operator deletes the page", tidy(
                state._replace(page_name=0, deletions=state.deletions - 1))
        if state.cuts:
            yield from self._power_losses(state)

    # opening

    def _out(self, state, me, p):
        if state.opens and (state.door is None or not self.on("door")):
            state = state._replace(door=me if self.on("door") else None, opens=state.opens - 1)
            yield f"{name(me)} takes the door", become(state, me, p._replace(at="knock"))

    def _knock(self, state, me, p):
        if not state.lock_name:
            state = state._replace(lock_name=state.inode, inode=state.inode + 1)
        yield f"{name(me)} opens .lock", become(state, me, p._replace(at="lock", lock=state.lock_name))

    def _lock(self, state, me, p):
        held = modes(state, p.lock, me)
        if state.broker == "in" and state.broker_lock == p.lock:
            yield f"{name(me)} is refused: a broker is in", self._leave(state._replace(opens=state.opens + 1), me)
        elif not held:
            yield f"{name(me)} locks .lock exclusively", become(state, me, p._replace(at="look", mode="x"))
        elif "x" not in held:
            yield f"{name(me)} locks .lock shared", become(state, me, p._replace(at="look", mode="s"))

    def _look(self, state, me, p):
        if self.on("settle") and state.broker == "leaving":
            return                                      # waits for the unlink that is due
        if self.on("stat_again") and state.lock_name != p.lock:
            yield f"{name(me)} finds .lock replaced", become(state, me, p._replace(at="knock", mode="", lock=0))
            return
        at = "unmark" if p.mode == "x" else "join"
        yield f"{name(me)} looks again: .lock is the same", become(state, me, p._replace(at=at))

    def _unmark(self, state, me, p):
        p = p._replace(at="load", clean=state.mark)
        if self.on("unmark_first"):
            disk = state.mark_disk and not self.on("unmark_synced")
            state = state._replace(mark=False, mark_disk=disk)
        yield f"{name(me)} is first in, deletes the mark", become(state._replace(rough=False), me, p)

    def _load(self, state, me, p):
        state = state._replace(incarnation=state.incarnation + 1)
        if not p.clean:
            state = repaired(state)
        yield f"{name(me)} loads the log, incarnation {state.incarnation}", become(state, me, p._replace(at="page"))

    def _page(self, state, me, p):
        if state.page_name and not self.on("incarnation"):
            label = "keeps the page it finds"
        else:
            label, state = "rebuilds the page", made(state, state.page_name)
        p = p._replace(at="idle", mode="s", page=state.page_name)
        yield f"{name(me)} {label}, is in", become(free_door(state, me), me, p)

    def _join(self, state, me, p):
        if not self.on("loads_alone"):
            state = repaired(state)
        page = find(state, state.page_name)
        valid = page and (page.incarnation == state.incarnation or not self.on("incarnation"))
        p = p._replace(at="idle", page=state.page_name if valid else 0)
        yield f"{name(me)} joins", become(free_door(state, me), me, p)

    # appending

    def _idle(self, state, me, p):
        if state.record <= self.records:
            if not self._mapped(state, p) and not (self.on("made_under_lock") and self.on("lock_apart")):
                yield f"{name(me)} scans to {scan(state)}", become(state, me, p._replace(at="make", spot=scan(state)))
            else:
                key = 0 if self.on("lock_apart") else p.page
                if not any(lock == key for lock, _ in state.writers):
                    state_ = state._replace(writers=state.writers + ((key, me),))
                    yield f"{name(me)} takes the append lock", become(state_, me, p._replace(at="locked"))
        if state.door is None or not self.on("door"):
            state = state._replace(door=me if self.on("door") else None)
            yield f"{name(me)} begins to close", become(state, me, p._replace(at="close"))

    def _mapped(self, state, p):
        return p.page and (p.page == state.page_name or not self.on("identity"))

    def _make(self, state, me, p):
        if not state.page_name:
            state = made(state, 0, p.spot)
        p = p._replace(at="idle", page=state.page_name, spot=-1)
        yield f"{name(me)} links or maps a page", become(state, me, p)

    def _locked(self, state, me, p):
        if not self._mapped(state, p):
            if not self.on("lock_apart"):
                yield f"{name(me)} locked a page that is gone", unlock(state, me, p)
                return
            if not state.page_name:
                state = made(repaired(state), 0)
            p = p._replace(page=state.page_name)
            yield f"{name(me)} maps the page again", become(state, me, p)
            return
        page = find(state, p.page)
        if page.owner:
            state = store(repaired(state), page._replace(owner=False, end=scan(repaired(state))))
            yield f"{name(me)} finds the owner word, repairs", state
            return
        state = store(state, page._replace(owner=True))
        state = written(state._replace(dirty=self.on("dirty")), page.end, TORN)
        p = p._replace(at="half", spot=page.end, record=state.record, wrote=True)
        state = state._replace(record=state.record + 1)
        yield f"{name(me)} writes half of r{p.record} at {p.spot}", become(state, me, p)

    def _half(self, state, me, p):
        half_is_there = state.log[p.spot:p.spot + 1] == (TORN,)       # else: a hole, then the rest
        state = written(state, p.spot, p.record if half_is_there else TORN)
        yield f"{name(me)} writes the rest", become(state, me, p._replace(at="whole"))

    def _whole(self, state, me, p):
        state = state._replace(indexed=p.spot + 1)
        yield f"{name(me)} writes the index entry", become(state, me, p._replace(at="entry"))

    def _entry(self, state, me, p):
        page = find(state, p.page)
        state = store(state, page._replace(end=p.spot + 1))
        state = state._replace(acked=state.acked | {(p.spot, p.record)})
        yield f"{name(me)} publishes and acknowledges {p.spot}", become(state, me, p._replace(at="done"))

    def _done(self, state, me, p):
        state = store(state, find(state, p.page)._replace(owner=False))
        yield f"{name(me)} unlocks", unlock(state, me, p)

    # closing

    def _close(self, state, me, p):
        if modes(state, p.lock, me):
            yield f"{name(me)} is not the last one", become(state, me, p._replace(at="parting"))
        else:
            yield f"{name(me)} is the last one", become(state, me, p._replace(at="finish", mode="x"))

    def _parting(self, state, me, p):
        yield f"{name(me)} leaves", self._leave(state, me)

    def _finish(self, state, me, p):
        if p.wrote or (state.dirty and self.on("close_all")):
            state = repaired(state)
        if self.on("sync_then_mark"):
            state = state._replace(synced=len(state.log), dirty=False)
        yield f"{name(me)} closes the partition, syncs", become(state, me, p._replace(at="marking"))

    def _marking(self, state, me, p):
        state = state._replace(mark=True, mark_disk=True)
        yield f"{name(me)} writes the mark", become(state, me, p._replace(at="marked"))

    def _marked(self, state, me, p):
        state = state._replace(synced=len(state.log), dirty=False)
        yield f"{name(me)} leaves", self._leave(state, me)

    def _leave(self, state, me):
        return tidy(become(free_door(state, me), me, Process()))

    # a broker, which trusts the mark and unlinks `.lock` only after it has unlocked it

    def _broker(self, state):
        if state.broker == "away" and state.visits and not modes(state, state.lock_name, None):
            if not state.lock_name:
                state = state._replace(lock_name=state.inode, inode=state.inode + 1)
            loaded = state if state.mark else repaired(state)
            yield "a broker starts", loaded._replace(broker="in", broker_lock=state.lock_name, mark=False,
                                                     mark_disk=False, visits=state.visits - 1, rough=False)
        elif state.broker == "in":
            if state.record <= self.records:
                log = state.log + (state.record,)
                yield f"the broker appends r{state.record}", state._replace(
                    log=log, indexed=len(log), record=state.record + 1,
                    acked=state.acked | {(len(log) - 1, state.record)})
            yield "the broker closes, marks, unlocks", state._replace(
                broker="leaving", broker_lock=0, mark=True, mark_disk=True, synced=len(state.log))
            if state.kills:
                yield "!the broker is killed", state._replace(
                    broker="away", broker_lock=0, kills=state.kills - 1, rough=True)
        elif state.broker == "leaving":
            yield "the broker unlinks .lock", state._replace(broker="away", lock_name=0)

    # faults

    def _kill(self, state, me):
        writers = tuple(w for w in state.writers if w[1] != me)
        state = state._replace(writers=writers, kills=state.kills - 1, rough=True)
        return self._leave(state, me)

    def _power_losses(self, state):
        for end in range(state.synced, len(state.log) + 1):
            for tail in ((), (TORN,)) if end < len(state.log) else ((),):
                for indexed in {state.indexed, min(state.synced, state.indexed)}:
                    for mark in {state.mark, state.mark_disk}:
                        kept = frozenset(a for a in state.acked if a[0] < state.synced)
                        after = state._replace(
                            processes=(Process(),) * self.processes, door=None, writers=(),
                            log=state.log[:end] + tail, indexed=indexed, mark=mark, mark_disk=mark,
                            broker="away", broker_lock=0, acked=kept, rough=True, cuts=state.cuts - 1)
                        word = "with" if mark else "without"
                        yield f"!power loss, log {list(after.log)}, {word} the mark", tidy(after)


INSIDE = {"unmark", "load", "page", "join", "idle", "make", "locked", "half", "whole", "entry",
          "done", "close", "parting", "finish", "marking", "marked"}


# -- small words -----------------------------------------------------------------------------

def name(me):
    return "ABC"[me]


def become(state, me, process):
    return state._replace(processes=state.processes[:me] + (process,) + state.processes[me + 1:])


def modes(state, inode, me):
    """Locks that others hold on this inode of `.lock`."""
    return [p.mode for n, p in enumerate(state.processes) if n != me and p.mode and p.lock == inode]


def find(state, inode):
    return next((page for page in state.pages if page.inode == inode), None)


def store(state, page):
    return state._replace(pages=tuple(page if q.inode == page.inode else q for q in state.pages))


def tidy(state):
    """Forget pages that neither a name nor a mapping leads to."""
    used = {p.page for p in state.processes} | {state.page_name}
    return state._replace(pages=tuple(page for page in state.pages if page.inode in used))


def made(state, inode, end=None):
    """A page in place of the old content (same inode), or a new one."""
    end = scan(state) if end is None else end
    if inode:
        return store(state, Page(inode, state.incarnation, end))
    page = Page(state.inode, state.incarnation, end)
    return state._replace(pages=state.pages + (page,), page_name=page.inode, inode=state.inode + 1)


def scan(state):
    return state.log.index(TORN) if TORN in state.log else len(state.log)


def repaired(state):
    """Recovery: adopt the valid chain, cut the rest, redo the index."""
    end = scan(state)
    return state._replace(log=state.log[:end], indexed=end, synced=min(state.synced, end))


def written(state, spot, content):
    return state._replace(log=state.log[:spot] + (content,) + state.log[spot + 1:])


def free_door(state, me):
    return state._replace(door=None) if state.door == me else state


def unlock(state, me, p):
    writers = tuple(w for w in state.writers if w[1] != me)
    p = p._replace(at="idle", spot=-1, record=0)
    return become(state._replace(writers=writers), me, p)
