"""Models foreign directories and unclean elections (REPLICA-8, REPLICA-12): what no complete replica can decide.

A directory that was put back to an earlier copy, or was written without the set, is foreign. It is registered, and after an
orderly close nothing in it shows this any more: only the decision does. Copying and committing are one step here, as are a
decision and its installation; `replicas.py` explores them. Each record is acknowledged when every member of the ISR has it.

An operator may ask for an unclean election whenever no replica leads. The records that only other replicas have are lost then:
they are not expected any more, if those replicas are away or foreign.

Invariants: README.md, U1 and U2.
"""

from typing import NamedTuple

from replicas_state import has, put, show

NO_LEADER = -1
FOUND, REGISTERED = 2, 1        # the two states of a directory that shows that it is foreign

RULES = {
    "foreign_leaves": ("REPLICA-12+", "a foreign directory leaves the ISR, also as its only member"),
    "foreign_noted": ("REPLICA-12+", "the partition notes a foreign replica until it joins"),
    "foreign_all": ("REPLICA-12+", "of foreign replicas only, the most complete log leads after all of them are present"),
    "foreign_compared": ("REPLICA-19", "the bytes of a foreign replica are compared from the log start before it follows"),
    "trusted_first": ("REPLICA-8+", "an unclean election prefers a replica that is not foreign"),
    "epoch_above": ("REPLICA-8+", "a decision raises the leader epoch above that of a replica that was written without the set"),
}


class Replica(NamedTuple):
    log: tuple = ()             # (epoch, record)
    epoch: int = 0              # of the page
    present: bool = True
    foreign: int = 0            # FOUND, then REGISTERED until the next orderly close
    alien: bool = False         # what it is, although nothing shows it


class State(NamedTuple):
    directories: tuple
    leader: int = 0
    epoch: int = 0
    isr: int = 0
    noted: int = 0              # foreign replicas, until they join
    record: int = 1
    acked: frozenset = frozenset()      # (offset, record)
    kept: tuple = ()                    # (log, epoch) of each directory: copies that an operator keeps
    fails: int = 0
    copies: int = 0
    alone: int = 0
    problem: str = ""


class ReplicaUnclean:
    """The model; `off` names the rules that are switched off."""

    rules = RULES

    def __init__(self, off=(), replicas=2, records=2, fails=1, copies=0, alone=0):
        self.off, self.replicas, self.records = frozenset(off), replicas, records
        self.faults = {"fails": fails, "copies": copies, "alone": alone}

    def on(self, rule):
        return rule not in self.off

    def initial(self):
        return State((Replica(),) * self.replicas, isr=(1 << self.replicas) - 1, kept=((),) * self.replicas, **self.faults)

    # -- invariants -------------------------------------------------------------------------

    def broken(self, state):
        if state.problem:
            return state.problem
        if self._serves(state) and not state.acked <= records_of(state, [state.leader]):
            return "U1 the leader lacks an acknowledged record that another replica has"
        return None

    def satisfied(self, state):
        return self._serves(state) and state.record > self.records and state.isr == (1 << self.replicas) - 1

    def _serves(self, state):
        return state.leader != NO_LEADER and self._complete(state, state.leader)

    def _complete(self, state, n):
        d = state.directories[n]
        return d.present and not d.foreign

    # -- steps ------------------------------------------------------------------------------

    def steps(self, state):
        if self._serves(state):
            yield from self._lead(state)
        else:
            yield from self._elect(state)
            yield from self._unclean(state)
        for n, d in enumerate(state.directories):
            if not d.present:
                yield f"D{n} is reached again", put(state, n, d._replace(present=True))
            elif d.foreign:
                yield from self._register(state, n, d)
        yield from self._faults(state)

    def _lead(self, state):
        leader = state.directories[state.leader]
        for n, d in enumerate(state.directories):
            if has(state.isr, n) and n != state.leader and not self._complete(state, n):
                yield f"D{n} leaves the ISR", state._replace(isr=state.isr & ~(1 << n))
            elif not has(state.isr, n) and d.present and d.foreign != FOUND:
                yield from self._join(state, leader, n, d)
        members = [n for n in range(self.replicas) if has(state.isr, n)]
        if state.record <= self.records and all(self._complete(state, n) for n in members):
            after = state._replace(record=state.record + 1, acked=state.acked | {(len(leader.log), state.record)})
            for n in members:
                log = leader.log + ((state.epoch, state.record),)
                after = put(after, n, after.directories[n]._replace(log=log, epoch=state.epoch))
            yield f"r{state.record} is acknowledged by {show(state.isr)}", after

    def _join(self, state, leader, n, d):
        if d.epoch > state.epoch:
            if self.on("epoch_above"):
                after = state._replace(epoch=d.epoch + 1)
                after = put(after, state.leader, leader._replace(epoch=after.epoch))
                yield f"the leader epoch is raised to {after.epoch}, above that of D{n}", after
            return
        kept = len(d.log)
        if self.on("foreign_compared") or not d.alien:
            kept = next((at for at, (own, other) in enumerate(zip(d.log, leader.log, strict=False)) if own != other),
                        min(len(d.log), len(leader.log)))
        log = d.log[:kept] + leader.log[kept:]
        if log != leader.log:
            state = state._replace(problem="U2 a member of the ISR has other records than the leader")
        after = state._replace(isr=state.isr | 1 << n, noted=state.noted & ~(1 << n))
        yield f"D{n} joins the ISR", put(after, n, d._replace(log=log, epoch=state.epoch, foreign=0, alien=False))

    def _elect(self, state):
        fit = [n for n in range(self.replicas) if has(state.isr, n) and self._complete(state, n)]
        every = range(self.replicas)
        if fit:
            isr = sum(1 << n for n in fit)
            yield self._led(state, best(state, fit), isr, "")
        elif not state.isr and all(has(state.noted, n) for n in every):
            present = [n for n in every if state.directories[n].present]
            if present and (len(present) == self.replicas or not self.on("foreign_all")):
                leader = best(state, present)
                if len(present) == self.replicas:       # nothing shows which of them has the records of the set
                    state = state._replace(acked=state.acked & records_of(state, [leader]))
                yield self._led(state, leader, 1 << leader, " of foreign replicas")

    def _unclean(self, state):
        present = [n for n, d in enumerate(state.directories) if d.present]
        if not present:
            return
        trusted = [n for n in present if not has(state.noted, n) and not state.directories[n].foreign]
        leader = best(state, trusted if trusted and self.on("trusted_first") else present)
        own = [n for n in present if n == leader or not state.directories[n].alien]
        expected = state.acked & records_of(state, own)         # the loss of what is away or foreign is accepted
        yield self._led(state._replace(acked=expected), leader, 1 << leader, " unclean")

    def _led(self, state, leader, isr, how):
        d = state.directories[leader]
        epoch = max(state.epoch, d.epoch) + 1
        after = state._replace(leader=leader, epoch=epoch, isr=isr, noted=state.noted & ~isr)
        after = put(after, leader, d._replace(epoch=epoch, foreign=0, alien=False))
        return f"D{leader} leads in epoch {epoch}, ISR {show(isr)}{how}", after

    def _register(self, state, n, d):
        """A foreign directory is registered by a decision. After an orderly close nothing in it shows that it is foreign."""
        if d.foreign == REGISTERED:
            yield f"D{n} is closed in order and opened", put(state, n, d._replace(foreign=0))
            return
        left = state.isr & ~(1 << n)
        isr = left if left or self.on("foreign_leaves") else state.isr
        noted = state.noted | 1 << n if self.on("foreign_noted") else state.noted
        leader = NO_LEADER if state.leader == n and not has(isr, n) else state.leader
        after = put(state, n, d._replace(foreign=REGISTERED))
        yield f"D{n} is registered as foreign, ISR {show(isr)}", after._replace(isr=isr, noted=noted, leader=leader)

    # faults

    def _faults(self, state):
        for n, d in enumerate(state.directories):
            if d.present and state.fails:
                yield f"!D{n} fails", put(state, n, d._replace(present=False))._replace(fails=state.fails - 1)
            if state.copies and not state.kept[n] and not d.alien:
                yield f"!an operator copies D{n}", keep(state, n, (d.log, d.epoch))
            if state.copies and state.kept[n] and not d.present:
                log, epoch = state.kept[n]
                after = keep(put(state, n, Replica(log, epoch, False, foreign=FOUND, alien=True)), n, ())
                left = state.acked & records_of(after, range(self.replicas))
                label = f"!an operator restores the old copy of D{n}"
                yield label, after._replace(acked=left, copies=state.copies - 1)
            if state.alone and not d.present:
                log = d.log + ((d.epoch + 1, "x"),)
                alone = d._replace(log=log, epoch=d.epoch + 1, foreign=FOUND, alien=True)
                yield f"!D{n} is written without the set", put(state, n, alone)._replace(alone=state.alone - 1)


def keep(state, n, copy):
    return state._replace(kept=state.kept[:n] + (copy,) + state.kept[n + 1:])


def records_of(state, among):
    """The records of these replicas, with their offsets."""
    return {(offset, record) for n in among for offset, (_, record) in enumerate(state.directories[n].log)}


def best(state, among):
    """The most complete log: largest last epoch, then longest, then first in the assignment."""
    def rank(n):
        log = state.directories[n].log
        return (log[-1][0] if log else -1, len(log), -n)
    return max(among, key=rank)
