"""Extends the model of transactions by replicas (REPLICA-21, REPLICA-22): a failover loses an uncommitted tail.

`__transaction_state` and both partitions have a high watermark each. It rises at any time; a process that must act on a
record waits until the record is below it. A failover keeps any log end between the high watermark and the present end.
All processes continue, with the memory of what they appended before.

Invariants: T1 to T5, and T6: the last stable offset never falls.
"""

from transactions import Entry, Process, Transactions, become, open_data

RULES = {
    "registered_committed": ("REPLICA-22", "a registration is committed before the first batch is written"),
    "init_committed": ("REPLICA-22+", "a producer uses its epoch only after its init_transactions is committed"),
    "data_committed": ("REPLICA-22", "data is committed before PrepareCommit"),
    "prepare_committed": ("REPLICA-22", "Prepare is committed before the markers"),
    "markers_committed": ("REPLICA-22", "markers are committed before Complete"),
    "read_again": ("REPLICA-22", "a change that was not committed before a failover has not happened: the log is read again"),
    "stable_committed": ("REPLICA-21", "the last stable offset passes a transaction when its marker is committed"),
}
# A power loss and a failover both lose a tail: waiting for the high watermark takes the place of a sync.
INSTEAD = {"data_synced": "data_committed", "prepare_synced": "prepare_committed", "markers_synced": "markers_committed"}
LOGS = ("__transaction_state", "partition 0", "partition 1")


class ReplicaTransactions(Transactions):
    """The model of transactions with failovers; `synced` contains the high watermarks."""

    rules = RULES

    def __init__(self, off=(), failovers=1, **bounds):
        super().__init__(off, **bounds)
        self.failovers = failovers

    def on(self, rule):
        return INSTEAD.get(rule, rule) not in self.off

    def initial(self):
        return super().initial()._replace(more=(self.failovers, 0, 0))

    def broken(self, state):
        _, *stable = state.more
        if any(self._stable(state, n) < stable[n] for n in (0, 1)):
            return "T6 the last stable offset falls"
        return super().broken(state)

    def _stable(self, state, n):
        log, high = state.logs[n], state.synced[1 + n]
        known = log[:high] if self.on("stable_committed") else log
        return min(len(known) - len(open_data(known)), high)

    # -- steps ------------------------------------------------------------------------------

    def steps(self, state):
        for label, after in self._all_steps(state):
            if not label.endswith("and returns at once"):        # a producer returns when it has seen the end committed
                failovers, *stable = after.more
                if label[0] != "!":
                    stable = [max(stable[n], self._stable(after, n)) for n in (0, 1)]
                yield label, after._replace(more=(failovers, *stable))

    def _all_steps(self, state):
        yield from super().steps(state)
        for n, log in enumerate((state.status, *state.logs)):
            if state.synced[n] < len(log):
                yield f"the high watermark of {LOGS[n]} rises", raised(state, n)
            if state.more[0]:
                for end in range(state.synced[n], len(log)):
                    yield f"!a failover of {LOGS[n]} keeps {end} entries", self._failover(state, n, end)

    def _ready(self, state, me, p):
        yield from super()._ready(raised(state, 0) if self.on("init_committed") else state, me, p)

    def _write(self, state, me, p):
        yield from super()._write(raised(state, 0) if self.on("registered_committed") else state, me, p)

    def _end(self, state, me, p):
        now = state.status[-1]
        lost = any(txn == now.txn and Entry("data", p.epoch, txn) not in state.logs[n] for txn, n in state.wrote)
        for label, after in super()._end(state, me, p):
            if not (lost and "to commit" in label and self.on("data_committed")):       # its sends have failed
                yield label, after

    # faults

    def _failover(self, state, n, end):
        failovers, *stable = state.more
        whole = [state.status, *state.logs]
        whole[n] = whole[n][:end]
        status, *logs = whole
        entries = [e for log in logs for e in log if e.kind != "data"]
        decided = frozenset([s.outcome for s in status if s.outcome] + [(e.txn, e.kind) for e in entries])
        state = state._replace(
            status=status, logs=tuple(logs), decided=decided, last=status[-1].outcome, more=(failovers - 1, *stable))
        if n == 0:
            state = state._replace(lock=None)
        for me, p in enumerate(state.processes):
            state = become(state, me, self._after_failover(state, n, p))
        return state

    def _after_failover(self, state, n, p):
        """What a process does whose append was not committed: it reads the log of the new leader."""
        if n == 0 and p.at == "ready" and state.status[-1].epoch != p.epoch and self.on("init_committed"):
            return Process("new")
        if not self.on("read_again"):
            return p
        if n == 0 and p.at == "write":
            return p._replace(at="first")
        if n == 0 and p.helping is not None and p.helping not in state.status:
            return Process("new" if p.after == "ready" else p.after)
        if n > 0 and p.at in ("mark", "complete"):
            return p._replace(at="mark", todo=tuple(sorted(p.helping.partitions)))
        return p


# -- helpers ---------------------------------------------------------------------------------

def raised(state, n):
    """All of a log is committed."""
    ends = list(state.synced)
    ends[n] = len((state.status, *state.logs)[n])
    return state._replace(synced=tuple(ends))
