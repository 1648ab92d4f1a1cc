"""Models log start and compaction over replicas (REPLICA-20): each directory compacts on its own.

Decisions and installations are one step here; `replicas.py` and `decisions.py` explore them. Copying is two steps, so the
leader can be compacted in between. A record is (offset, key, value); a value of None is a tombstone. A compaction pass
keeps the last record of each key, and may remove tombstones at any time. The next writes are fixed by the scenario.

Invariants: README.md, K1 to K4.
"""

from itertools import pairwise
from typing import NamedTuple

from replicas_state import has

RULES = {
    "begin_at_start": ("REPLICA-20", "a follower below the leader's log start drops its log and begins there"),
    "copy_above_start": ("REPLICA-20+", "a copy counts only if the leader's log start is not above its position after it"),
    "start_taken": ("REPLICA-20", "a follower takes the leader's log start with each copy"),
    "start_joins": ("REPLICA-20+", "a joining replica has the leader's log start, although it has all records"),
    "delete_waits": ("REPLICA-20", "delete_records returns when the log start is on disk in every member of the ISR"),
    "start_below_high": ("REPLICA-20", "the log start never passes the high watermark"),
    "clean_below_high": ("REPLICA-20", "compaction never passes the high watermark"),
    "begin_again": ("REPLICA-20", "a follower with an end below the leader's purged_to begins again"),
    "same_source": ("REPLICA-20+", "... also if it had begun again already, but from another leader or another purged_to"),
    "purged_taken": ("REPLICA-20+", "a follower that begins again takes the leader's purged_to"),
    "purged_kept": ("REPLICA-20+", "a control page that is created again has no lower purged_to"),
    "same_generation": ("REPLICA-2", "a copy counts only if the leader's page shows the same generation after it"),
}


class Replica(NamedTuple):
    log: tuple = ()             # (offset, key, value)
    epochs: tuple = ((0, 0),)   # (epoch, start offset)
    epoch: int = 0              # of the page
    start: int = 0
    end: int = 0
    high: int = 0
    purged: int = 0             # records below it may be gone
    generation: int = 0
    began: tuple = ()           # (leader, its purged_to) of a copy that began again


class State(NamedTuple):
    replicas: tuple
    isr: int
    leader: int = 0
    epoch: int = 0
    written: int = 0            # writes that were appended
    committed: tuple = ()       # (key, value) by offset
    copy: tuple = ()            # (leader, follower, generation, position): a copy in progress
    asked: int = 0              # the log start that a delete_records in progress waits for
    deleted: int = 0            # the acknowledged one
    leaves: int = 0
    elections: int = 0
    cleans: int = 0
    deletes: int = 0
    rebuilds: int = 0


class ReplicaCleaning:
    """The model; `off` names the rules that are switched off."""

    rules = RULES

    def __init__(self, off=(), replicas=2, writes=(), leaves=0, elections=1, cleans=0, deletes=0, rebuilds=0):
        self.off, self.replicas, self.writes, self.compacted = frozenset(off), replicas, writes, not deletes
        self.faults = {"leaves": leaves, "elections": elections, "cleans": cleans, "deletes": deletes, "rebuilds": rebuilds}

    def on(self, rule):
        return rule not in self.off

    def initial(self):
        return State((Replica(),) * self.replicas, (1 << self.replicas) - 1, **self.faults)

    # -- invariants -------------------------------------------------------------------------

    def broken(self, state):
        committed = len(state.committed)
        for n, r in enumerate(state.replicas):
            if not has(state.isr, n):
                continue
            if r.start > committed:
                return "K3 a log start above the high watermark"
            kept = [each for each in r.log if each[0] < committed]
            if self.compacted:
                expected = replay(enumerate_records(state.committed))
                if r.end < committed or replay(kept) != expected:
                    return "K1 a member of the ISR does not have the last committed value of each key"
            elif [each for each in kept if each[0] >= r.start] != enumerate_records(state.committed)[r.start:]:
                return "K1 a member of the ISR lacks a record after its log start"
        if state.replicas[state.leader].start < state.deleted:
            return "K2 the leader returns records that were deleted"
        for r in state.replicas if not self.compacted else ():
            if any(later[0] != each[0] + 1 for each, later in pairwise(r.log)):
                return "K4 offsets are missing in a log without compaction"
        return None

    def satisfied(self, state):
        leader = state.replicas[state.leader]
        all_in_sync = state.isr == (1 << self.replicas) - 1
        return state.written == len(self.writes) and leader.high == leader.end and not state.asked and all_in_sync

    # -- steps ------------------------------------------------------------------------------

    def steps(self, state):
        yield from self._lead(state)
        yield from self._join(state)
        yield from self._copy(state)
        leader = state.replicas[state.leader]
        for n, r in enumerate(state.replicas):
            if n != state.leader and not state.copy:
                yield from self._follow(state, leader, n, r)
            if state.cleans:
                yield from self._compact(state, n, r)
        yield from self._faults(state)

    def _lead(self, state):
        leader = state.replicas[state.leader]
        if state.written < len(self.writes):
            key, value = self.writes[state.written]
            log = leader.log + ((leader.end, key, value),)
            after = put_replica(state, state.leader, leader._replace(log=log, end=leader.end + 1))
            yield f"{key}={value} is appended to D{state.leader} at {leader.end}", after._replace(written=state.written + 1)
        members = [r for n, r in enumerate(state.replicas) if has(state.isr, n)]
        least = min(r.end for r in members)
        if least > leader.high and all(r.epoch == leader.epoch for r in members):
            present = {offset: (key, value) for offset, key, value in leader.log}
            known = len(state.committed)
            more = tuple(present[offset] for offset in range(known, least) if offset in present)
            after = put_replica(state, state.leader, leader._replace(high=least))
            yield f"the high watermark rises to {least}", after._replace(committed=state.committed + more)
        if state.deletes:
            start = leader.high if self.on("start_below_high") else leader.end
            if start > leader.start:
                kept = tuple(each for each in leader.log if each[0] >= start)
                after = put_replica(state, state.leader, leader._replace(start=start, log=kept))
                yield f"delete_records moves the log start to {start}", after._replace(asked=start, deletes=state.deletes - 1)
        if state.asked and (not self.on("delete_waits") or all(r.start >= state.asked for r in members)):
            yield "delete_records returns", state._replace(deleted=state.asked, asked=0)

    def _join(self, state):
        leader = state.replicas[state.leader]
        for n, r in enumerate(state.replicas):
            ready = r.epoch == leader.epoch and r.end >= max(leader.high, leader.epochs[-1][1])
            if not has(state.isr, n) and ready and (r.start >= leader.start or not self.on("start_joins")):
                after = put_replica(state, n, r._replace(began=()))
                yield f"D{n} joins the ISR", after._replace(isr=state.isr | 1 << n)

    def _follow(self, state, leader, n, r):
        if r.epoch < leader.epoch:
            end = agreed_end(r, leader)
            epochs = tuple(each for each in leader.epochs if each[1] <= end)
            r = r._replace(log=tuple(each for each in r.log if each[0] < end), end=end, epoch=leader.epoch, epochs=epochs,
                           high=min(r.high, end), began=() if self.on("same_source") else r.began)
            yield f"D{n} follows D{state.leader}, truncated to {end}", put_replica(state, n, r)
        elif r.end < leader.start and self.on("begin_at_start"):
            yield f"D{n} begins at {leader.start}", put_replica(state, n, self._begin(state, leader, r))
        elif r.end < leader.purged and self._must_begin_again(state, leader, r):
            yield f"D{n} begins again at {leader.start}", put_replica(state, n, self._begin(state, leader, r))
        elif r.end < leader.end or r.start < leader.start:
            label = f"a copy from D{state.leader} to D{n} begins at {r.end}"
            yield label, state._replace(copy=(state.leader, n, leader.generation, r.end))

    def _must_begin_again(self, state, leader, r):
        """Not if the present copy began at the log start of this leader, with this purged_to."""
        if not self.on("begin_again") or not self.compacted:
            return False
        return r.began != (state.leader if self.on("same_source") else 0, leader.purged)

    def _begin(self, state, leader, r):
        purged = max(r.purged, leader.purged) if self.on("purged_taken") else r.purged
        source = state.leader if self.on("same_source") else 0
        return r._replace(log=(), start=leader.start, end=leader.start, high=leader.start, epochs=leader.epochs[:1],
                          purged=purged, generation=r.generation + 1, began=(source, leader.purged))

    def _copy(self, state):
        if not state.copy:
            return
        at, n, generation, position = state.copy
        state = state._replace(copy=())
        leader, r = state.replicas[at], state.replicas[n]
        if at != state.leader or r.end != position or r.epoch != leader.epoch:
            yield "the copy finds another page", state
        elif leader.generation != generation and self.on("same_generation"):
            yield "the copy finds another generation", state
        elif position < leader.start and self.on("copy_above_start"):
            yield "the copy finds a higher log start", state
        else:
            more = [each for each in leader.log if each[0] >= position][:1]
            end = more[0][0] + 1 if more else leader.end
            r = r._replace(log=r.log + tuple(more), end=end, high=min(max(r.high, leader.high), end), epochs=leader.epochs)
            if self.on("start_taken") and leader.start <= end:
                r = r._replace(start=max(r.start, leader.start))
            yield f"D{n} copies D{at} up to {end}", put_replica(state, n, r)

    def _compact(self, state, n, r):
        limit = r.high if self.on("clean_below_high") else r.end
        last = {key: offset for offset, key, _ in r.log if offset < limit}
        kept = tuple(each for each in r.log if each[0] >= limit or last[each[1]] == each[0])
        without = tuple(each for each in kept if each[0] >= limit or each[2] is not None)
        for log in {kept, without} - {r.log}:
            after = r._replace(log=log, purged=max(r.purged, limit), generation=r.generation + 1)
            what = "" if log == kept else " without tombstones"
            yield f"D{n} is compacted up to {limit}{what}", put_replica(state, n, after)._replace(cleans=state.cleans - 1)

    # faults

    def _faults(self, state):
        for n, r in enumerate(state.replicas):
            if n != state.leader and has(state.isr, n) and state.leaves:
                yield f"!D{n} leaves the ISR", state._replace(isr=state.isr & ~(1 << n), leaves=state.leaves - 1)
            if n != state.leader and has(state.isr, n) and state.elections:
                epoch = state.epoch + 1
                led = r._replace(epoch=epoch, epochs=r.epochs + ((epoch, r.end),))
                after = put_replica(state, n, led)._replace(
                    leader=n, epoch=epoch, isr=state.isr & ~(1 << state.leader), asked=0, elections=state.elections - 1)
                yield f"!D{state.leader} fails, D{n} leads in epoch {epoch}", after
            if r.purged and state.rebuilds:
                purged = r.purged if self.on("purged_kept") else 0
                after = put_replica(state, n, r._replace(purged=purged))
                yield f"!the page of D{n} is created again", after._replace(rebuilds=state.rebuilds - 1)


# -- helpers ---------------------------------------------------------------------------------

def put_replica(state, n, replica):
    return state._replace(replicas=state.replicas[:n] + (replica,) + state.replicas[n + 1:])


def enumerate_records(values):
    return [(offset, key, value) for offset, (key, value) in enumerate(values)]


def replay(records):
    values = {key: value for _, key, value in records}
    return {key: value for key, value in values.items() if value is not None}


def agreed_end(r, leader):
    """Where a follower truncates: it asks for the end of its last epoch until both logs know the epoch."""
    epochs, end = r.epochs, r.end
    while epochs:
        epoch = epochs[-1][0]
        known = max((e for e, _ in leader.epochs if e <= epoch), default=None)
        if known is None:
            return r.start
        theirs = next((start for e, start in leader.epochs if e > epoch), leader.end)
        mine = next((start for e, start in epochs if e > known), end)
        end = min(end, theirs, mine)
        if known == epoch:
            return end
        epochs = tuple(each for each in epochs if each[0] <= known)
    return end
