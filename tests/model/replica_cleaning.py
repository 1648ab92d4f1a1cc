"""Models log start and compaction over replicas (REPLICA-20): each directory compacts on its own.

Decisions and installations are one step here; `replicas.py` and `decisions.py` explore them. Copying is two steps, so the
leader can be compacted in between. A record is (offset, key, value); a value of None is a tombstone. A compaction pass
keeps the last record of each key, and may remove tombstones at any time. The next writes are fixed by the scenario.
`purged_to` can be an estimate: above all that was removed, and above the log end (`swap`).

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
    "delete_refused": ("REPLICA-20+", "... and is refused while the ISR is smaller than min.insync.replicas"),
    "start_below_high": ("REPLICA-20", "the log start never passes the high watermark"),
    "clean_below_high": ("REPLICA-20", "compaction never passes the high watermark"),
    "begin_again": ("REPLICA-20", "a follower with an end below the leader's purged_to, and a lower one, begins again"),
    "purged_taken": ("REPLICA-20+", "a follower that begins again takes the leader's purged_to"),
    "purged_lowered": ("REPLICA-20+", "purged_to is not above the log end of a replica that follows in a new epoch"),
    "purged_kept": ("REPLICA-20+", "a control page that is created again has no lower purged_to"),
    "swap_raises": ("REPLICA-20+", "each compaction of a leader raises purged_to, at least by one"),
    "swap_of_follower": ("REPLICA-20+", "... that of a follower does not raise it above the compacted part"),
    "swap_uncut": ("REPLICA-20+", "a compaction swaps nothing if the log was cut, or began again, since it read the log"),
    "removed_below_high": ("REPLICA-20+", "a leader has removed nothing above its high watermark, if that is in its epoch"),
    "complete_keeps": ("REPLICA-20+", "members of the ISR and the ELR never begin again for purged_to"),
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
    cuts: int = 0
    removed: int = 0            # its compaction removed nothing from there on; the active segment begins there or later


class State(NamedTuple):
    replicas: tuple
    isr: int
    elr: int = 0
    leader: int = 0
    epoch: int = 0
    written: int = 0            # writes that were appended
    committed: tuple = ()       # (key, value) by offset
    copy: tuple = ()            # (leader, follower, generation, position): a copy in progress
    swap: tuple = ()            # (replica, cuts, limit, records): a compaction in progress
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

    def __init__(self, off=(), replicas=2, writes=(), leaves=0, elections=1, cleans=0, deletes=0, rebuilds=0, least=1,
                 swaps=False):
        self.off, self.replicas, self.writes, self.compacted = frozenset(off), replicas, writes, not deletes
        self.least = least      # min.insync.replicas
        self.swaps = swaps      # a compaction is two steps
        self.faults = {"leaves": leaves, "elections": elections, "cleans": cleans, "deletes": deletes, "rebuilds": rebuilds}

    def on(self, rule):
        return rule not in self.off

    def initial(self):
        return State((Replica(),) * self.replicas, (1 << self.replicas) - 1, **self.faults)

    def complete(self, state, n):
        return has(state.isr | state.elr, n)

    # -- invariants -------------------------------------------------------------------------

    def broken(self, state):
        committed = len(state.committed)
        for n, r in enumerate(state.replicas):
            if not self.complete(state, n):
                continue
            if r.start > committed:
                return "K3 a log start above the high watermark"
            kept = [each for each in r.log if each[0] < committed]
            if self.compacted:
                expected = replay(enumerate_records(state.committed))
                if r.end < committed or replay(kept) != expected:
                    return "K1 a member of the ISR or ELR does not have the last committed value of each key"
            elif [each for each in kept if each[0] >= r.start] != enumerate_records(state.committed)[r.start:]:
                return "K1 a member of the ISR or ELR lacks a record after its log start"
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
            if state.cleans and not state.swap:
                yield from self._compact(state, n, r)
        if state.swap:
            yield from self._swap(state)
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
        if least > leader.high and len(members) >= self.least and all(r.epoch == leader.epoch for r in members):
            present = {offset: (key, value) for offset, key, value in leader.log}
            known = len(state.committed)
            more = tuple(present[offset] for offset in range(known, least) if offset in present)
            after = put_replica(state, state.leader, leader._replace(high=least))
            yield f"the high watermark rises to {least}", after._replace(committed=state.committed + more)
        enough = len(members) >= self.least or not self.on("delete_refused")
        if state.deletes and enough:
            start = leader.high if self.on("start_below_high") else leader.end
            if start > leader.start:
                yield f"delete_records({start}) begins", state._replace(asked=start, deletes=state.deletes - 1)
        if state.asked:
            yield from self._delete(state, leader, enough)

    def _delete(self, state, leader, enough):
        """The followers of the ISR delete first, then the leader."""
        for n, r in enumerate(state.replicas):
            if n != state.leader and has(state.isr, n) and r.epoch == leader.epoch and r.start < state.asked <= r.end:
                r = r._replace(high=max(r.high, state.asked))
                yield f"D{n} moves its log start to {state.asked}", put_replica(state, n, begun_at(r, state.asked))
        others = (r for n, r in enumerate(state.replicas) if n != state.leader and has(state.isr, n))
        followers = all(r.start >= state.asked for r in others) or not self.on("delete_waits")
        if leader.start < state.asked and followers:
            after = put_replica(state, state.leader, begun_at(leader, state.asked))
            yield f"D{state.leader}, the leader, moves its log start to {state.asked}", after
        if leader.start >= state.asked and followers and enough:
            yield "delete_records returns", state._replace(deleted=state.asked, asked=0)

    def _join(self, state):
        leader = state.replicas[state.leader]
        for n, r in enumerate(state.replicas):
            ready = r.epoch == leader.epoch and r.end >= max(leader.high, leader.epochs[-1][1])
            if not has(state.isr, n) and ready and (r.start >= leader.start or not self.on("start_joins")):
                yield f"D{n} joins the ISR", self._in_sync(state, state.isr | 1 << n, state.elr & ~(1 << n))

    def _in_sync(self, state, isr, elr):
        """The state with another ISR; there is no ELR once enough replicas are in sync."""
        return state._replace(isr=isr, elr=0 if isr.bit_count() >= self.least else elr)

    def _follow(self, state, leader, n, r):
        if r.epoch < leader.epoch:
            end = agreed_end(r, leader)
            epochs = tuple(each for each in leader.epochs if each[1] <= end)
            purged = min(r.purged, max(end, r.start)) if self.on("purged_lowered") else r.purged
            cut = self.swaps and end < r.end
            log = tuple(each for each in r.log if each[0] < end)
            r = r._replace(log=log, end=end, cuts=following(r.cuts, cut), epoch=leader.epoch, epochs=epochs,
                           high=min(r.high, end), purged=purged)
            yield f"D{n} follows D{state.leader}, truncated to {end}", put_replica(state, n, r)
        elif r.end < leader.start and self.on("begin_at_start"):
            yield f"D{n} begins at {leader.start}", put_replica(state, n, self._begin(state, leader, r))
        elif self._must_begin_again(state, leader, n, r):
            yield f"D{n} begins again at {leader.start}", put_replica(state, n, self._begin(state, leader, r))
        elif r.end < leader.end or r.start < leader.start:
            label = f"a copy from D{state.leader} to D{n} begins at {r.end}"
            yield label, state._replace(copy=(state.leader, n, leader.generation, r.end))

    def _must_begin_again(self, state, leader, n, r):
        removed_to = min(leader.purged, leader.end)
        if leader.high >= leader.epochs[-1][1]:
            removed_to = min(removed_to, leader.high) if self.on("removed_below_high") else removed_to
        elif self.complete(state, n) and self.on("complete_keeps"):
            return False
        return self.on("begin_again") and self.compacted and r.purged < leader.purged and r.end < removed_to

    def _begin(self, state, leader, r):
        purged = max(r.purged, leader.purged) if self.on("purged_taken") else r.purged
        return r._replace(log=(), start=leader.start, end=leader.start, high=leader.start, epochs=leader.epochs[:1],
                          purged=purged, generation=following(r.generation), removed=0,
                          cuts=following(r.cuts, self.swaps))

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
            what = "" if log == kept else " without tombstones"
            after = state._replace(cleans=state.cleans - 1, swap=(n, r.cuts, limit, log))
            if self.swaps:
                yield f"D{n} writes its segments up to {limit} anew{what}", after
            else:
                yield from self._swap(after)

    def _swap(self, state):
        n, cuts, limit, log = state.swap
        state, r = state._replace(swap=()), state.replicas[n]
        if r.cuts != cuts and self.on("swap_uncut"):
            yield f"D{n} was cut, its new segments are deleted", state
            return
        log = tuple(each for each in log if each[0] < limit) + tuple(each for each in r.log if each[0] >= limit)
        leads = n == state.leader or not self.on("swap_of_follower")
        purged = max(limit, r.purged + 1) if leads and self.on("swap_raises") else max(limit, r.purged)
        r = r._replace(log=log, end=max(r.end, limit), removed=max(r.removed, limit))
        r = r._replace(purged=purged, generation=following(r.generation))
        yield f"D{n} is compacted up to {limit}", put_replica(state, n, r)

    # faults

    def _faults(self, state):
        for n, r in enumerate(state.replicas):
            if n != state.leader and has(state.isr, n) and state.leaves:
                after = self._in_sync(state, state.isr & ~(1 << n), state.elr | 1 << n)
                yield f"!D{n} leaves the ISR", after._replace(leaves=state.leaves - 1)
            if n != state.leader and self._may_lead(state, n) and state.elections:
                after = self._elected(state, n, state.isr & ~(1 << state.leader) | 1 << n, r)
                yield f"!D{state.leader} fails, D{n} leads in epoch {after.epoch}", after
            if r.end and state.rebuilds:
                yield from self._rebuilt(state._replace(rebuilds=state.rebuilds - 1), n, r)

    def _may_lead(self, state, n):
        return has(state.isr, n) or (state.isr == 1 << state.leader and has(state.elr, n))

    def _elected(self, state, n, isr, r):
        epoch = state.epoch + 1
        after = put_replica(state, n, r._replace(epoch=epoch, epochs=r.epochs + ((epoch, r.end),)))
        elr = (state.elr | 1 << state.leader) & ~isr
        return self._in_sync(after, isr, elr)._replace(leader=n, epoch=epoch, asked=0, elections=state.elections - 1)

    def _rebuilt(self, state, n, r):
        """The page is lost: its purged_to is the begin of the active segment. A leader leads again in a new epoch."""
        for purged in {r.removed, r.end} if self.on("purged_kept") else {0}:
            r, label = r._replace(purged=purged, epoch=-1), f"!the page of D{n} is created again with purged_to {purged}"
            if n != state.leader:
                yield label, put_replica(state, n, r)
            elif state.elections:
                yield f"{label}, D{n} leads again", self._elected(state, n, state.isr, r)


# -- helpers ---------------------------------------------------------------------------------

def put_replica(state, n, replica):
    return state._replace(replicas=state.replicas[:n] + (replica,) + state.replicas[n + 1:])


def begun_at(r, start):
    return r._replace(start=start, log=tuple(each for each in r.log if each[0] >= start))


def following(count, counted=True):
    """A page has counters that do not end; those of the model do, so the number of states does."""
    return (count + counted) % 4


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
