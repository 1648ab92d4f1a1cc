"""Models the growth of a log of one directory into a set (REPLICA-28): members, the first decision, and kills.

Processes open the directory, append, and one of them makes it a set. A log of one directory begins a new epoch in the load after
a kill (LOAD-1), and a set does not (REPLICA-17). An earlier set may have left its decisions in the directory. Further directories
are added by decisions, as `decisions.py` models them (QUORUM-6).

Invariants: README.md, N1 to N3.
"""

from typing import NamedTuple

OUT, SINGLE, CLOSED, SET = "out", "log", "closed", "set"

RULES = {
    "members_first": ("REPLICA-28", "the file of members comes before the first decision"),
    "set_only": ("REPLICA-28", "from the file of members on, the directory is opened as a set only"),
    "unused": ("REPLICA-28", "the file of members is written while no other process uses the directory"),
    "topics_first": ("REPLICA-28", "the first decision of the set has the topics of the log"),
    "epoch_above": ("REPLICA-28", "... and a leader epoch above that of the log"),
    "earlier_removed": ("REPLICA-28+", "decisions of an earlier set are removed first"),
}


class State(NamedTuple):
    processes: tuple
    earlier: bool               # decisions of an earlier set are in the directory
    members: bool = False       # the file of members is there
    decided: int = 0            # the leader epoch of the first decision, 0 without one
    topics: bool = False        # the decision has the topic
    log: tuple = ()             # (epoch, opened as a set) of each record
    epoch: int = 1
    dirty: bool = False         # a process was killed since the last load
    record: int = 1
    kills: int = 0


class Growth:
    """The model; `off` names the rules that are switched off."""

    rules = RULES

    def __init__(self, off=(), processes=2, records=2, kills=1, earlier=False):
        self.off, self.processes, self.records, self.kills, self.earlier = frozenset(off), processes, records, kills, earlier

    def on(self, rule):
        return rule not in self.off

    def initial(self):
        return State((OUT,) * self.processes, self.earlier, kills=self.kills)

    # -- invariants -------------------------------------------------------------------------

    def broken(self, state):
        if SET in state.processes and SINGLE in state.processes:
            return "N1 one process uses the directory as a set, another one as a log"
        if SET in state.processes and state.log and not state.topics:
            return "N2 a topic with acknowledged records is not in the set"
        if {epoch for epoch, in_set in state.log if in_set} & {epoch for epoch, in_set in state.log if not in_set}:
            return "N3 one epoch has records of the log and of the set"
        return None

    def satisfied(self, state):
        return SET in state.processes and state.record > self.records

    # -- steps ------------------------------------------------------------------------------

    def steps(self, state):
        for me, mode in enumerate(state.processes):
            name = "PQR"[me]
            if mode == OUT:
                yield from self._open(state, me, name)
            elif mode == CLOSED:
                yield from self._grow(state, me, name)
            else:
                yield from self._use(state, me, name, mode)
            if mode != OUT and state.kills:
                killed = become(state, me, OUT)._replace(kills=state.kills - 1, dirty=state.dirty or mode != CLOSED)
                yield f"! {name} is killed", killed

    def _open(self, state, me, name):
        if state.members:
            yield f"{name} opens the set", become(self._decide(state), me, SET)
        if not state.members or not self.on("set_only"):
            loads = state.dirty and not {SINGLE, SET} & {*state.processes}
            after = state._replace(epoch=state.epoch + 1, dirty=False) if loads else state
            yield f"{name} opens the log", become(after, me, SINGLE)

    def _decide(self, state):
        """The state after the first decision, which the first opening of a set makes."""
        if state.decided:
            return state
        if state.earlier:
            return state._replace(decided=state.epoch + 1)      # those of the earlier set count again, without the topic
        return state._replace(decided=state.epoch + self.on("epoch_above"), topics=self.on("topics_first"))

    def _use(self, state, me, name, mode):
        if state.record <= self.records:
            epoch = state.decided if mode == SET else state.epoch
            after = state._replace(log=(*state.log, (epoch, mode == SET)), record=state.record + 1)
            yield f"{name} appends r{state.record} in epoch {epoch}", after
        yield f"{name} closes", become(state, me, OUT)
        if mode == SINGLE:
            if state.earlier and self.on("earlier_removed"):
                yield f"{name} removes the decisions of an earlier set", state._replace(earlier=False)
            else:
                yield f"{name} closes the log, which becomes a set", become(state, me, CLOSED)

    def _grow(self, state, me, name):
        if not self.on("members_first") and not state.decided:
            yield f"{name} decides first", self._decide(state)
        elif state.members or not self.on("unused") or not {SINGLE, SET} & {*state.processes}:
            yield f"{name} writes the file of members", become(state._replace(members=True), me, OUT)
        else:
            yield f"{name} finds the directory in use", become(state, me, OUT)


def become(state, me, mode):
    """The state after a process has changed its mode."""
    return state._replace(processes=(*state.processes[:me], mode, *state.processes[me + 1 :]))
