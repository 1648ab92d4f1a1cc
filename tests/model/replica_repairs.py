"""Models the repair of a damaged replica (REPLICA-26): who reads instead, what leaves ISR and ELR, and when a log may be cut.

One partition. A record rots in a directory, so that it cannot be read there any more, or the whole replica cannot be loaded: the
same with the first record. A process that finds the damage repairs the replica step by step, and may stop, or be killed, between
any two. Others append, copy, let replicas join, elect, and repair at the same time. A directory fails and returns. Records are
offsets, as the replicas of one epoch never differ. A decision and its installation are one step, as in `replica_cleaning.py`;
a joining replica is measured in one step and decided in another one. No record rots while a repair is in progress: its source was
checked before, and of a record that rots there since then only the file of what was cut has a copy.

Invariants: README.md, D1 and D2.
"""

from typing import NamedTuple

RULES = {
    "hands_over": ("REPLICA-26", "a damaged leader hands over to a complete member of the ISR first, and without one it stays"),
    "source_checked": ("REPLICA-26", "nothing is cut before the records of the leader from there on were read with all checks"),
    "leaves_isr": ("REPLICA-26", "the damaged replica leaves the ISR by a decision before its log is cut"),
    "leaves_elr": ("REPLICA-26", "... and the ELR"),
    "role_lost": ("REPLICA-26+", "... then its page loses the role: no process measures it any more"),
    "left_checked": ("REPLICA-26+", "... and it is in no ISR and no ELR, also not by an earlier measurement"),
    "role_compared": ("REPLICA-26+", "the cut compares the role again, under the lock: the replica may follow since then"),
    "joins_whole": ("REPLICA-6", "a joining replica has everything below the high watermark"),
}


class Replica(NamedTuple):
    end: int = 1
    rotten: frozenset = frozenset()     # offsets that cannot be read
    follows: bool = True                # its page has a role in the present epoch
    away: bool = False


class Process(NamedTuple):
    at: str = "idle"
    node: int = 0                       # the replica that is repaired, or joins
    first: int = 0                      # the first offset that is cut
    version: int = 0                    # the partition epoch of a join


class State(NamedTuple):
    replicas: tuple
    processes: tuple
    isr: frozenset
    elr: frozenset = frozenset()
    leader: int = 0
    maximal: frozenset = frozenset()    # the ISR in the page of the leader
    version: int = 0
    high: int = 1
    wrong: str = ""
    records: int = 0                    # what may still happen
    rots: int = 0
    kills: int = 0
    fails: int = 0
    decisions: int = 0


class ReplicaRepairs:
    """The model; `off` names the rules that are switched off."""

    rules = RULES

    def __init__(self, off=(), replicas=2, processes=2, records=0, least=1, rots=1, kills=0, fails=0, decisions=5):
        self.off, self.count, self.processes, self.least = frozenset(off), replicas, processes, least
        self.bounds = {"records": records, "rots": rots, "kills": kills, "fails": fails, "decisions": decisions}

    def on(self, rule):
        return rule not in self.off

    def initial(self):
        everyone = frozenset(range(self.count))
        return State((Replica(),) * self.count, (Process(),) * self.processes, everyone, maximal=everyone, **self.bounds)

    # -- invariants -------------------------------------------------------------------------

    def broken(self, state):
        for n in state.isr | state.elr | {state.leader}:
            if state.replicas[n].end < state.high:
                return "D1 the leader, or a member of the ISR or ELR, has lost a committed record"
        return state.wrong or None

    def satisfied(self, state):
        whole = [n for n in state.isr | state.elr if not state.replicas[n].rotten]
        if not state.decisions or not whole:
            return True                  # the bounds are used up, or only a person can help
        whole = not any(each.rotten or each.away for each in state.replicas)
        return whole and state.isr == frozenset(range(self.count))

    def _readable(self, state, offset):
        return any(offset < each.end and offset not in each.rotten for each in state.replicas)

    # -- steps ------------------------------------------------------------------------------

    def steps(self, state):
        for me, p in enumerate(state.processes):
            yield from getattr(self, "_" + p.at)(state, me, p)
            if state.kills and p.at != "idle":
                yield f"!{name(me)} is killed", become(state._replace(kills=state.kills - 1), me, Process())
        yield from self._lead(state)
        yield from self._elect(state)
        yield from self._faults(state)

    def _lead(self, state):
        """Appends, copies and the high watermark: steps of any process."""
        leader = state.replicas[state.leader]
        if leader.away or not leader.follows:
            return
        if state.records:
            after = put(state, state.leader, leader._replace(end=leader.end + 1))
            yield f"a record is appended at {leader.end}", after._replace(records=state.records - 1)
        for n, follower in enumerate(state.replicas):
            if n == state.leader or follower.away:
                continue
            if not follower.follows:
                yield f"D{n} follows again", put(state, n, follower._replace(follows=True))
            elif follower.end < leader.end and follower.end not in leader.rotten:
                yield f"D{n} copies to {follower.end + 1}", put(state, n, follower._replace(end=follower.end + 1))
        members = [state.replicas[n] for n in state.maximal]
        enough = len(state.isr) >= self.least and all(member.follows for member in members)
        least = min((member.end for member in members), default=0)
        if enough and least > state.high:
            yield f"the high watermark rises to {least}", state._replace(high=least)
        for n in sorted(state.isr - {state.leader}):
            if state.replicas[n].away and state.decisions:
                yield f"decided: D{n}, which is away, leaves the ISR", self._left(state, n, lost=False)

    def _elect(self, state):
        """An election. A late repair can take the role from a leader, which is then elected again."""
        leader = state.replicas[state.leader]
        if (leader.away or not leader.follows) and state.decisions:
            for n in sorted(self._electable(state)):
                yield f"decided: D{n} leads", self._led(state, n)

    def _electable(self, state):
        """The members that may lead: a damaged replica counts as failed."""
        here = {n for n, each in enumerate(state.replicas) if not each.away and not each.rotten}
        return here & state.isr or here & state.elr

    def _led(self, state, n):
        """The state after an election: the other members of the ISR that are here stay in it."""
        isr = frozenset(m for m in state.isr - {state.leader} if not state.replicas[m].away) | {n}
        elr = (state.elr | state.isr) - isr if len(isr) < self.least else frozenset()
        after = put(state, n, state.replicas[n]._replace(follows=True))
        after = after._replace(leader=n, isr=isr, elr=elr, maximal=isr)
        return after._replace(version=state.version + 1, decisions=state.decisions - 1)

    def _left(self, state, n, lost):
        """The state after a decision that takes a replica out of the ISR; `lost`: out of the ELR, too."""
        isr = state.isr - {n}
        elr = (state.elr | (state.isr & {n})) - isr if len(isr) < self.least else frozenset()
        if lost:
            elr = elr - {n}
        return state._replace(isr=isr, elr=elr, maximal=isr, version=state.version + 1, decisions=state.decisions - 1)

    # a replica joins

    def _idle(self, state, me, p):
        leader = state.replicas[state.leader]
        for n, each in enumerate(state.replicas):
            if each.away:
                continue
            if each.rotten:
                yield f"{name(me)} finds damage in D{n}", become(state, me, Process("hand", n, min(each.rotten)))
            ready = each.follows and not leader.away and not each.rotten
            if n not in state.isr and ready and (each.end >= state.high or not self.on("joins_whole")):
                after = become(state._replace(maximal=state.maximal | {n}), me, Process("join", n, version=state.version))
                yield f"{name(me)} measures D{n} and adds it to the maximal ISR", after

    def _join(self, state, me, p):
        after = become(state, me, Process())
        if state.version != p.version or not state.decisions:
            yield f"{name(me)} finds another decision", after
            return
        isr = state.isr | {p.node}
        elr = state.elr - isr if len(isr) < self.least else frozenset()
        yield f"{name(me)} decides: D{p.node} joins", after._replace(
            isr=isr, elr=elr, version=state.version + 1, decisions=state.decisions - 1)

    # a repair

    def _hand(self, state, me, p):
        n = p.node
        done = become(state, me, Process())
        if state.leader != n or not self.on("hands_over"):
            yield f"{name(me)} finds that D{state.leader} leads", become(state, me, p._replace(at="check"))
            return
        others = self._electable(state) - {n}
        if not others or not state.decisions:
            yield f"{name(me)} finds no other member to lead", done
        for other in sorted(others):
            led = self._led(state, other)
            yield f"{name(me)} decides: D{other} leads instead of D{n}", become(led, me, p._replace(at="check"))

    def _check(self, state, me, p):
        leader = state.replicas[state.leader]
        whole = not leader.away and (state.leader == p.node or not any(each >= p.first for each in leader.rotten))
        if whole or not self.on("source_checked"):
            yield f"{name(me)} reads D{state.leader} from {p.first} on", become(state, me, p._replace(at="leave"))
        else:
            yield f"{name(me)} finds damage in D{state.leader}, too", become(state, me, Process())

    def _leave(self, state, me, p):
        following = p._replace(at="role" if self.on("role_lost") else "wait")
        if state.leader == p.node:
            yield f"{name(me)} finds that D{p.node} leads", become(state, me, Process())
            return
        here = state.isr | state.elr | state.maximal
        if not self.on("leaves_isr"):
            here = frozenset()
        elif not self.on("leaves_elr"):
            here = here - state.elr
        if p.node not in here:
            yield f"{name(me)} finds D{p.node} outside", become(state, me, following)
        elif state.decisions:
            left = self._left(state, p.node, lost=self.on("leaves_elr"))
            yield f"{name(me)} decides: D{p.node} leaves", become(left, me, following)

    def _role(self, state, me, p):
        replica = state.replicas[p.node]
        if replica.away:
            yield f"{name(me)} finds D{p.node} away", become(state, me, Process())
            return
        after = put(state, p.node, replica._replace(follows=False))
        yield f"{name(me)} takes the role from D{p.node}", become(after, me, p._replace(at="wait"))

    def _wait(self, state, me, p):
        """The leader's lock was free once: an earlier measurement is in its page, or ended without one."""
        inside = p.node in state.maximal | state.isr | state.elr | {state.leader}
        if inside and self.on("left_checked"):
            yield f"{name(me)} finds D{p.node} inside", become(state, me, Process())
        else:
            yield f"{name(me)} finds D{p.node} outside, and no measurement of it", become(state, me, p._replace(at="cut"))

    def _cut(self, state, me, p):
        replica = state.replicas[p.node]
        done = become(state, me, Process())
        if replica.away or (replica.follows and self.on("role_compared") and self.on("role_lost")):
            yield f"{name(me)} finds that D{p.node} follows again", done
            return
        if replica.end <= p.first:
            yield f"{name(me)} finds D{p.node} cut", done
            return
        rotten = frozenset(each for each in replica.rotten if each < p.first)
        after = put(done, p.node, replica._replace(end=p.first, rotten=rotten))
        for offset in range(state.high):
            if self._readable(state, offset) and not self._readable(after, offset):
                after = after._replace(wrong="D2 a repair cuts the only copy of a record")
        yield f"{name(me)} cuts D{p.node} to {p.first}", after

    # -- faults -----------------------------------------------------------------------------

    def _faults(self, state):
        quiet = state.rots and all(p.at == "idle" for p in state.processes)
        for n, replica in enumerate(state.replicas):
            for offset in range(replica.end if quiet else 0):
                if offset not in replica.rotten:
                    rotten = replica._replace(rotten=replica.rotten | {offset})
                    yield f"!record {offset} rots in D{n}", put(state, n, rotten)._replace(rots=state.rots - 1)
            if replica.away:
                yield f"D{n} returns", put(state, n, replica._replace(away=False))
            elif state.fails:
                yield f"!D{n} fails", put(state, n, replica._replace(away=True))._replace(fails=state.fails - 1)


def become(state, me, process):
    """The state after a process has changed."""
    return state._replace(processes=(*state.processes[:me], process, *state.processes[me + 1 :]))


def put(state, n, replica):
    """The state with another replica in a directory."""
    return state._replace(replicas=(*state.replicas[:n], replica, *state.replicas[n + 1 :]))


def name(me):
    return "PQR"[me]
