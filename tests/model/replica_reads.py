"""Extends the model of replicas by a reader that may choose any replica for each read (REPLICA-27).

The reader asks a leader or a follower at any time, in any order. It remembers its records and the highest leader epoch
that it has read from. A position after the end of a replica's log is out of range. At a follower the reader then asks the
leader. At a leader it is reset, which repeats or skips records.

Invariants. F1: a reader never finds another record at an offset that it has read. F2: a reader is never reset, because
its position exists at the decided leader.
"""

from typing import NamedTuple

from replicas import Replicas
from replicas_state import NONE, has
from replicas_state import RULES as BASE

RULES = {
    "reader_epoch": ("REPLICA-10", "a reader never returns to a lower leader epoch than it has read from"),
    "show_from_start": BASE["show_from_start"],
    "own_high": ("REPLICA-27", "a follower returns records up to its own high watermark"),
    "isr_member": ("REPLICA-27", "a follower serves readers only while it is in the ISR"),
    "leader_epoch": ("REPLICA-27", "... and only if its page has the leader's epoch"),
    "ask_leader": ("REPLICA-27", "an offset out of the range of a follower is asked again at the leader"),
}


class Reader(NamedTuple):
    epoch: int = 0
    records: tuple = ()         # what it has read, from offset 0
    problem: str = ""


class ReplicaReads(Replicas):
    """The model of replicas with one reader."""

    rules = RULES

    def initial(self):
        return super().initial()._replace(more=Reader())

    def broken(self, state):
        return state.more.problem or super().broken(state)

    def _steps(self, state):
        yield from super()._steps(state)
        reader = state.more
        for n, d in enumerate(state.directories):
            served = self._served(state, n, d)
            if served is None or (d.epoch < reader.epoch and self.on("reader_epoch")):
                continue
            position = len(reader.records)
            if position > len(d.log):
                if d.leads or not self.on("ask_leader"):
                    problem = "F2 a reader is reset although its position exists"
                    yield f"the reader is out of range in D{n}", state._replace(more=reader._replace(problem=problem))
            elif served[:position] != reader.records[:len(served)]:
                problem = "F1 a reader finds another record at an offset that it has read"
                yield f"the reader reads D{n}", state._replace(more=reader._replace(problem=problem))
            elif position < len(served):
                after = Reader(max(reader.epoch, d.epoch), served)
                yield f"the reader reads D{n} up to {len(served)}", state._replace(more=after)

    def _served(self, state, n, d):
        """The records that a replica returns, or None."""
        if d.leads:
            return self._shown(d)
        if d.epoch == NONE:
            return None
        if self.on("isr_member") and not has(state.decided.isr, n):
            return None
        if self.on("leader_epoch") and d.epoch != state.directories[state.decided.leader].epoch:
            return None
        return d.log[:d.high] if self.on("own_high") else d.log
