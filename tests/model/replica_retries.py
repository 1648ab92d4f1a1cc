"""Models an append that ends in a failover, and goes on at the next leader (REPLICA-16): is its record there, or was it ever?

A sender appends its records one after the other. Each has a sequence number, unless the scenario has none. A record is
acknowledged when the leader of its epoch has committed it. After a failover the sender looks for it in the log of the next
leader: in the epochs, and then in the sequences that this log knows. It may stop before each step, and everything else goes on:
other processes append, delete records, and compact the log of a directory; a replica leaves the ISR, follows again, and leads.
A copy is one step.

A follower whose end is below the leader's log start, or below what the leader's compaction has removed, begins again there
(REPLICA-20). It knows no earlier producer (REPLICA-21), and an epoch of its log begins where it has a batch. Elections and the
high watermark are in `replicas.py`.

Invariants: README.md, E1 to E3.
"""

from typing import NamedTuple

OTHER = 0                       # the record of another process
NOBODY = 0                      # the last sequence of a producer that a log does not know

RULES = {
    "looked_for": ("REPLICA-16", "after a failover the sender looks for its record in the log of the next leader"),
    "lost_again": ("REPLICA-16", "a record that is not there is appended again"),
    "commit_again": ("REPLICA-16", "one that is there is acknowledged when the next leader has committed it"),
    "first_epoch": ("REPLICA-16", "the first epoch of a log shows nothing about the offsets below its first batch"),
    "unknown_fails": ("REPLICA-16", "if no batch at or above the offset shows what was there, the attempt fails"),
    "sequence_shows": ("REPLICA-16", "... unless the leader knows the producer: the sequence shows it"),
    "cache_own": ("REPLICA-16", "cached sequences belong to one directory and are not carried to another"),
}


class Batch(NamedTuple):
    epoch: int
    record: int                 # of the sender; OTHER


class Replica(NamedTuple):
    start: int = 0              # log start
    log: tuple = ()             # from the log start on: a batch, or None where compaction has removed it
    epochs: tuple = ((0, 0),)   # (epoch, start offset), as the leader-epoch-checkpoint has them
    known: int = NOBODY         # the last sequence of the sender that the log knows
    whole: bool = True          # it never began again

    @property
    def end(self):
        return self.start + len(self.log)


class Sender(NamedTuple):
    at: str = "idle"
    record: int = 0
    epoch: int = 0              # of the last append of this record
    offset: int = 0
    seen: int = 0               # the epoch in which it waits for the commit
    cached: int = NOBODY        # the last sequence that the sender has seen in a leader


class State(NamedTuple):
    replicas: tuple
    sender: Sender = Sender()
    leader: int = 0
    epoch: int = 0
    isr: frozenset = frozenset()
    high: int = 0
    committed: tuple = ()       # the record at each offset, of all time
    acked: frozenset = frozenset()
    wrong: str = ""
    others: int = 0             # what may still happen
    failovers: int = 0
    deletes: int = 0
    leaves: int = 0
    compactions: int = 0


class ReplicaRetries:
    """The model; `off` names the rules that are switched off."""

    rules = RULES

    def __init__(self, off=(), replicas=2, records=1, sequences=True, others=1, failovers=2, deletes=1, leaves=1, compactions=0):
        self.off, self.count, self.records, self.sequences = frozenset(off), replicas, records, sequences
        self.bounds = {"others": others, "failovers": failovers, "deletes": deletes, "leaves": leaves, "compactions": compactions}

    def on(self, rule):
        return rule not in self.off

    def initial(self):
        return State((Replica(),) * self.count, isr=frozenset(range(self.count)), **self.bounds)

    # -- invariants -------------------------------------------------------------------------

    def broken(self, state):
        own = [record for record in state.committed if record != OTHER]
        if len(own) != len(set(own)):
            return "E1 a record is committed twice"
        if not state.acked <= set(own):
            return "E2 an acknowledged record was never committed"
        return state.wrong or None

    def satisfied(self, state):
        return state.sender.record >= self.records and state.sender.at == "idle"

    # -- steps ------------------------------------------------------------------------------

    def steps(self, state):
        for label, after in self._steps(state):
            leader = after.replicas[after.leader]
            high = max(after.high, min(after.replicas[n].end for n in after.isr))
            committed = after.committed
            for offset in range(len(committed), high):                 # the high watermark follows at once
                committed += (leader.log[offset - leader.start].record,)
            yield label, after._replace(high=high, committed=committed)

    def _steps(self, state):
        yield from getattr(self, "_" + state.sender.at)(state, state.sender)
        leader = state.replicas[state.leader]
        if state.others:
            yield "another process appends", put(state, state.leader, appended(leader, state.epoch, OTHER))._replace(
                others=state.others - 1)
        for n in range(self.count):
            yield from self._copies(state, leader, n)
        yield from self._removals(state)
        for n in sorted(state.isr - {state.leader}) if state.failovers else ():
            epoch = state.epoch + 1
            elected = state.replicas[n]
            elected = elected._replace(epochs=(*elected.epochs, (epoch, elected.end)))
            after = put(state, n, elected)._replace(leader=n, epoch=epoch, isr=state.isr - {state.leader})
            for member in after.isr - {n}:
                follower = state.replicas[member]
                after = put(after, member, cut(follower, agreed(follower, elected)))
            yield f"!D{state.leader} fails: D{n} leads in epoch {epoch}", after._replace(failovers=state.failovers - 1)

    def _copies(self, state, leader, n):
        follower = state.replicas[n]
        if n in state.isr and n != state.leader:
            if follower.end < leader.end:
                batch = leader.log[follower.end - leader.start]
                longer = appended(follower, *batch) if batch else follower._replace(log=(*follower.log, None))
                yield f"D{n} copies to {follower.end + 1}", put(state, n, longer)
            if state.leaves:
                yield f"!D{n} leaves the ISR", state._replace(isr=state.isr - {n}, leaves=state.leaves - 1)
        elif n not in state.isr:
            follower = followed(follower, leader)
            how = "" if follower.whole or not state.replicas[n].whole else "begins again, "
            after = put(state, n, follower)._replace(isr=state.isr | {n})
            yield f"D{n} {how}follows D{state.leader} and joins", after

    def _removals(self, state):
        leader = state.replicas[state.leader]
        if state.deletes and leader.start < state.high:
            after = state._replace(deletes=state.deletes - 1)
            for n in state.isr:
                after = put(after, n, started(after.replicas[n], state.high))
            yield f"the records below {state.high} are deleted", after
        if not state.compactions:
            return
        for n in sorted(state.isr):
            replica = state.replicas[n]
            for at, batch in enumerate(replica.log[:state.high - replica.start]):
                kept = batch is None or (self.sequences and batch.record == replica.known)
                if not kept and batch.record != OTHER:           # the last batch of a producer is kept
                    log = (*replica.log[:at], None, *replica.log[at + 1:])
                    yield f"D{n} is compacted", put(state, n, replica._replace(log=log))._replace(
                        compactions=state.compactions - 1)

    # the sender

    def _idle(self, state, sender):
        if sender.record < self.records:
            yield from self._append(state, sender._replace(record=sender.record + 1))

    def _append(self, state, sender):
        leader = state.replicas[state.leader]
        known = leader.known if self.on("cache_own") else max(leader.known, sender.cached)
        record = sender.record
        if self.sequences and known >= record:
            found = [at for at, batch in enumerate(leader.log) if batch and batch.record == record]
            offset = leader.start + found[0] if found else sender.offset
            epoch = leader.log[found[0]].epoch if found else sender.epoch
            sender = sender._replace(at="wait", epoch=epoch, offset=offset, seen=state.epoch)
            yield f"the sender finds the sequence of r{record} at D{state.leader}", state._replace(sender=sender)
            return
        after = put(state, state.leader, appended(leader, state.epoch, record))
        cached = record if self.sequences else NOBODY
        sender = Sender("wait", record, state.epoch, leader.end, state.epoch, cached)
        yield f"the sender appends r{record} to D{state.leader} at {leader.end}", after._replace(sender=sender)

    def _wait(self, state, sender):
        if sender.seen == state.epoch:
            if state.high > sender.offset:
                yield f"r{sender.record} is acknowledged", self._acknowledged(state, sender)
            return
        if not self.on("looked_for"):
            yield from self._append(state, sender)
            return
        there = self._is_there(state.replicas[state.leader], sender) if self.on("lost_again") else True
        name = f"r{sender.record} at D{state.leader}"
        if there is None and self.on("unknown_fails"):
            leader = state.replicas[state.leader]
            wrong = ""
            if leader.whole and sender.record in state.committed and self.sequences:
                wrong = "E3 an append fails at a leader that has had its record all the time"
            yield f"the sender cannot know of {name}: the append fails", state._replace(
                sender=sender._replace(at="idle"), wrong=wrong)
        elif there and not self.on("commit_again"):
            yield f"the sender finds {name} and acknowledges it", self._acknowledged(state, sender)
        elif there:
            yield f"the sender finds {name}", state._replace(sender=sender._replace(seen=state.epoch))
        else:
            yield from self._append(state, sender)

    def _acknowledged(self, state, sender):
        return state._replace(sender=sender._replace(at="idle"), acked=state.acked | {sender.record})

    def _is_there(self, leader, sender):
        """Whether the record is, or was, in a log; None if that is not known."""
        found = self._epochs_show(leader, sender.epoch, sender.offset)
        if found is None and self.sequences and leader.known and self.on("sequence_shows"):
            return leader.known >= sender.record
        return found

    def _epochs_show(self, leader, epoch, offset):
        latest = leader.epochs[-1][0]
        if offset >= leader.end or epoch >= latest:
            return offset < leader.end and epoch == latest
        at = max(offset, leader.start)
        while at < leader.end and leader.log[at - leader.start] is None:
            at += 1
        if at == leader.end:
            return None
        batch = leader.log[at - leader.start]
        if batch.epoch <= epoch:
            return batch.epoch == epoch
        entries = leader.epochs[1:] if self.on("first_epoch") else leader.epochs
        later = any(each > epoch and start <= offset for each, start in entries)
        return False if at <= offset or later else None


def put(state, n, replica):
    return state._replace(replicas=(*state.replicas[:n], replica, *state.replicas[n + 1 :]))


def appended(replica, epoch, record):
    """The replica with one more batch. An epoch begins with its first batch, the first one at the log start."""
    epochs = replica.epochs
    if not epochs or epochs[-1][0] < epoch:
        epochs += ((epoch, replica.end if epochs else replica.start),)
    known = max(replica.known, record)
    return replica._replace(log=(*replica.log, Batch(epoch, record)), epochs=epochs, known=known)


def started(replica, start):
    """The replica with a higher log start."""
    if start <= replica.start:
        return replica
    before = [entry for entry in replica.epochs if entry[1] <= start]
    after = tuple(entry for entry in replica.epochs if entry[1] > start)
    first = ((before[-1][0], start),) if before else ()
    return replica._replace(start=start, log=replica.log[start - replica.start:], epochs=first + after)


def followed(follower, leader):
    """A replica outside the ISR after it has cut what the leader does not have, and copied the rest (REPLICA-2, REPLICA-20)."""
    end = agreed(follower, leader)
    shared = leader.start == 0                  # something in its log is known to be the leader's
    for offset in range(max(follower.start, leader.start), end):
        own = follower.log[offset - follower.start]
        shared = shared or (own is not None and own == leader.log[offset - leader.start])
    removed = any(each is None for each in leader.log[max(0, end - leader.start):])
    if end < leader.start or removed or not shared:
        follower = Replica(leader.start, (), (), NOBODY, False)
        end = leader.start
    follower = cut(follower, end)
    for batch in leader.log[end - leader.start:]:
        if batch is None:
            follower = follower._replace(log=(*follower.log, None))
        else:
            follower = appended(follower, *batch)
    return started(follower, leader.start)


def cut(replica, end):
    """The replica without the batches from an offset on."""
    kept = replica.log[:end - replica.start]
    lost = any(batch and batch.record == replica.known for batch in replica.log[end - replica.start:])
    known = max((batch.record for batch in kept if batch), default=NOBODY) if lost else replica.known
    epochs = tuple(entry for entry in replica.epochs if entry[1] < end)
    return replica._replace(log=kept, epochs=epochs, known=known)


def agreed(follower, leader):
    """The end of what a follower keeps: where the epochs of both logs diverge, by the entries of their checkpoints."""
    end = min(follower.end, leader.end)
    for epoch, start in reversed(follower.epochs):
        if start >= end:
            continue
        known = [entry for entry in leader.epochs if entry[0] <= epoch]
        if not known:
            return 0                            # the leader does not know the epoch any more
        later = [entry for entry in leader.epochs if entry[0] > epoch]
        end = min(end, later[0][1] if later else leader.end)
        if known[-1][0] == epoch:
            return end
        end = min(end, start)
    return end
