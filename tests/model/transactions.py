"""Model of transactions (TXN): two producers of one transactional id, two partitions.

An append under one lock is one step here (the append model looks inside). Only the first batch of
a transaction in a partition is two: register in `__transaction_state`, then write.
`txn` in a log entry is known to the checker and not to the protocol: the true transaction of the record.
"""

from itertools import product
from typing import NamedTuple

RULES = {
    "first_under_both": ("TXN-1", "registration and first batch under the lock of `__transaction_state`"),
    "first_not_preparing": ("TXN-1", "no first batch while the last transaction is in Prepare"),
    "first_fenced": ("TXN-1", "the first batch checks the producer's epoch"),
    "later_open": ("TXN-1", "later batches only where that id and epoch are open"),
    "partition_fence": ("SEQ-1", "a partition refuses epochs below its stored one"),
    "init_fences": ("TXN-2", "a new producer raises the epoch"),
    "prepare_raises": ("TXN-2", "Prepare raises the epoch, and markers carry the raised one"),
    "every_partition": ("TXN-2", "markers go to every listed partition, with data or without"),
    "skip_as_high": ("TXN-2", "a marker is skipped where the stored epoch is as high"),
    "same_prepare": ("TXN-2", "Complete only if the state is still that same Prepare"),
    "outcome_kept": ("TXN-4+", "the outcome outlives the next `init_transactions`"),
    "data_synced": ("TXN-5", "data is synced before PrepareCommit"),
    "prepare_synced": ("TXN-5", "Prepare is synced before the markers"),
    "markers_synced": ("TXN-5+", "markers are synced before Complete"),
    "sweep": ("TXN-6+", "an unclean recovery after a restart aborts data that no state entry lists"),
    "sweep_by_epoch": ("TXN-6+", "an entry covers only data of its own epoch (Prepare: one less)"),
    "sweep_ends": ("TXN-6+", "a transaction in the middle is ended, and the id is raised above its end"),
}


class Entry(NamedTuple):
    kind: str                 # "data", "commit" or "abort"
    epoch: int
    txn: int


class Status(NamedTuple):     # one value of `__transaction_state`
    word: str = "Empty"       # Empty Ongoing PrepareCommit PrepareAbort Complete
    epoch: int = 0
    partitions: frozenset = frozenset()
    txn: int = 0
    outcome: tuple = ()       # (txn, "commit" or "abort") of the last decided one


class Process(NamedTuple):
    at: str
    epoch: int = -1
    txn: int = 0
    todo: tuple = ()
    helping: object = None    # the Prepare that it saw
    after: str = ""           # the next step after the help


class State(NamedTuple):
    processes: tuple
    status: tuple = (Status(),)                # the log of `__transaction_state`
    logs: tuple = ((), ())
    synced: tuple = (1, 0, 0)                  # lengths on disk: status, partition 0, partition 1
    lock: object = None                        # of `__transaction_state`, where held over two steps
    decided: frozenset = frozenset()           # (txn, outcome) that was ever written
    wrote: frozenset = frozenset()             # (txn, partition) that holds data
    last: tuple = ()                           # last decision, known to the checker
    forgot: bool = False                       # a producer got another answer
    sweep: bool = False                        # recovery after a reboot is due
    txns: int = 0                              # transactions that may still begin
    next: int = 1
    known: tuple = (0, 0)                      # producer state begins at this entry (older: expired)
    expiries: int = 0
    kills: int = 0
    cuts: int = 0
    more: tuple = ()                           # of a model that extends this one


class Transactions:
    """The model; `off` names the rules that are switched off."""

    rules = RULES

    def __init__(self, off=(), producers=2, helpers=1, txns=2, kills=0, cuts=0, expiries=0):
        self.off, self.helpers = frozenset(off), helpers
        self.start = (Process("new"),) * producers + (Process("watch"),) * helpers
        self.faults = {"txns": txns, "kills": kills, "cuts": cuts, "expiries": expiries}

    def on(self, rule):
        return rule not in self.off

    def initial(self):
        return State(self.start, **self.faults)

    # -- invariants -------------------------------------------------------------------------

    def broken(self, state):
        for log in state.logs:
            for at, entry in enumerate(log):
                closing = next((e for e in log[at:] if e.kind != "data"), None)
                if closing and closing.txn != entry.txn:
                    return f"T1 a record of transaction {entry.txn} is closed by the marker of {closing.txn}"
        for txn in range(1, state.next):
            kinds = {e.kind for log in state.logs for e in log if e.txn == txn} - {"data"}
            if len(kinds | {o for t, o in state.decided if t == txn}) > 1:
                return f"T2 transaction {txn} is both committed and aborted"
            for t, partition in state.wrote:
                present = any(e.kind == "data" and e.txn == txn for e in state.logs[partition])
                if t == txn and "commit" in kinds and not present:
                    return f"T3 half of transaction {txn} is visible"
        if state.forgot:
            return "T4 init_transactions does not know the outcome of the last transaction"
        now = state.status[-1]
        if now.word in ("Empty", "Complete") and not state.sweep and any(stored(state, n) > now.epoch for n in (0, 1)):
            return "T5 an id continues below an epoch that a partition has stored"
        return None

    def satisfied(self, state):
        settled = state.status[-1].word in ("Empty", "Complete") and not state.sweep
        return settled and not any(open_data(log) for log in state.logs)

    # -- steps ------------------------------------------------------------------------------

    def steps(self, state):
        if state.sweep:
            yield "recovery sweeps", self._swept(state)
        else:
            for me, p in enumerate(state.processes):
                yield from getattr(self, "_" + p.at)(state, me, p)
                if state.kills and p.at not in ("new", "watch"):
                    yield f"!{name(me)} is killed", self._kill(state, me)
        for partition, log in enumerate(state.logs if state.expiries else ()):
            if len(log) > state.known[partition] and not open_data(log):
                known = tuple(len(log) if n == partition else k for n, k in enumerate(state.known))
                yield (f"!partition {partition} forgets the idle producer",
                       state._replace(known=known, expiries=state.expiries - 1))
        if state.cuts:
            yield from self._power_losses(state)

    def _new(self, state, me, p):
        """init_transactions: fence the predecessor, finish or abort its transaction."""
        if state.lock is not None:
            return
        now = state.status[-1]
        if now.word == "Ongoing":
            state = self._prepare_as(state, "abort")
            yield f"{name(me)} inits: aborts transaction {now.txn}", self._help(state, me, p, "new")
        elif now.word.startswith("Prepare"):
            yield f"{name(me)} inits: finds {now.word}", self._help(state, me, p, "new")
        else:
            known = now.outcome
            epoch = now.epoch + 1 if self.on("init_fences") else now.epoch
            kept = now.outcome if self.on("outcome_kept") else ()
            state = record(state, Status("Empty", epoch, frozenset(), 0, kept))
            state = state._replace(forgot=known != state.last)
            yield f"{name(me)} inits: epoch {epoch}", become(state, me, Process("ready", epoch))

    def _ready(self, state, me, p):
        if state.txns:
            p = p._replace(at="first", txn=state.next, todo=(0, 1))
            yield (f"{name(me)} begins transaction {p.txn}",
                   become(state._replace(next=state.next + 1, txns=state.txns - 1), me, p))

    def _first(self, state, me, p):
        if state.lock is not None:
            return
        now, partition = state.status[-1], p.todo[0]
        if now.word.startswith("Prepare") and now.epoch == p.epoch and self.on("first_not_preparing"):
            return                                              # CONCURRENT_TRANSACTIONS: try later
        if now.epoch != p.epoch and self.on("first_fenced"):
            yield f"{name(me)} is fenced", become(state, me, Process("gone"))
            return
        old = now.partitions if now.word == "Ongoing" else frozenset()
        txn = now.txn if now.word == "Ongoing" else p.txn
        state = record(state, now._replace(word="Ongoing", partitions=old | {partition}, txn=txn))
        if self.on("first_under_both"):
            state = state._replace(lock=me)
        yield f"{name(me)} registers partition {partition}", become(state, me, p._replace(at="write"))

    def _write(self, state, me, p):
        partition, rest = p.todo[0], p.todo[1:]
        state = state._replace(lock=None if state.lock == me else state.lock)
        if self._fenced(state, partition, p.epoch):
            yield f"{name(me)} is fenced by partition {partition}", become(state, me, Process("gone"))
            return
        state = append(state, partition, Entry("data", p.epoch, p.txn))
        p = p._replace(at="first" if rest else "later", todo=rest)
        yield f"{name(me)} writes to partition {partition}", become(state, me, p)

    def _later(self, state, me, p):
        """One more batch to partition 0, under that partition's lock alone; or the end."""
        open_here = any(e.epoch == p.epoch for e in open_data(state.logs[0]))
        refused = not open_here if self.on("later_open") else self._fenced(state, 0, p.epoch)
        if refused:
            yield f"{name(me)} is fenced by partition 0", become(state, me, Process("gone"))
        elif len(open_data(state.logs[0])) < 2:
            yield (f"{name(me)} writes again to partition 0",
                   become(append(state, 0, Entry("data", p.epoch, p.txn)), me, p))
        yield from self._end(state, me, p)

    def _end(self, state, me, p):
        if state.lock is not None:
            return
        now = state.status[-1]
        if now.word != "Ongoing" or now.epoch != p.epoch:
            yield f"{name(me)} is fenced at the end", become(state, me, Process("gone"))
            return
        for outcome in ("commit", "abort"):
            after = self._prepare_as(state, outcome)
            p = p._replace(epoch=after.status[-1].epoch)
            label = f"{name(me)} prepares to {outcome} {now.txn}"
            yield label, self._help(after, me, p, "ready")
            if self.helpers:                                    # or leaves the markers to others
                yield label + " and returns at once", become(after, me, Process("ready", p.epoch))

    def _gone(self, state, me, p):
        return ()

    def _watch(self, state, me, p):
        """A helper: abort expired transactions, complete prepared ones."""
        now = state.status[-1]
        if state.lock is not None:
            return
        if now.word == "Ongoing":
            state = self._prepare_as(state, "abort")
            yield f"{name(me)} times transaction {now.txn} out", self._help(state, me, p, "watch")
        elif now.word.startswith("Prepare"):
            yield f"{name(me)} finds {now.word}", self._help(state, me, p, "watch")

    # deciding and spreading the decision

    def _prepare_as(self, state, outcome):
        now = state.status[-1]
        epoch = now.epoch + 1 if self.on("prepare_raises") else now.epoch
        lengths = list(state.synced)
        if outcome == "commit" and self.on("data_synced"):
            for partition in now.partitions:
                lengths[1 + partition] = len(state.logs[partition])
        decision = (now.txn, outcome)
        state = state._replace(synced=tuple(lengths), decided=state.decided | {decision}, last=decision)
        return record(state, now._replace(word="Prepare" + outcome.title(), epoch=epoch, outcome=decision))

    def _help(self, state, me, p, after):
        seen = state.status[-1]
        p = Process("mark", p.epoch, 0, tuple(sorted(seen.partitions)), seen, after)
        return become(state, me, p)

    def _mark(self, state, me, p):
        seen, partition, rest = p.helping, p.todo[0], p.todo[1:]
        if self.on("prepare_synced"):
            # it syncs all visible entries, and with them the entry that it read
            state = state._replace(synced=(len(state.status),) + state.synced[1:])
        log = state.logs[partition]
        skipped = self.on("skip_as_high") and self.on("prepare_raises") and stored(state, partition) >= seen.epoch
        if not self.on("every_partition"):
            skipped = skipped or not open_data(log)
        p = p._replace(at="mark" if rest else "complete", todo=rest)
        if skipped:
            yield f"{name(me)} skips partition {partition}", become(state, me, p)
            return
        kind = "commit" if seen.word == "PrepareCommit" else "abort"
        after = append(state, partition, Entry(kind, seen.epoch, seen.txn))
        yield f"{name(me)} marks partition {partition}: {kind} {seen.txn}", become(after, me, p)

    def _complete(self, state, me, p):
        if state.lock is not None:
            return
        seen, now = p.helping, state.status[-1]
        if self.on("markers_synced"):
            state = state._replace(synced=state.synced[:1] + tuple(
                len(log) if n in seen.partitions else state.synced[1 + n] for n, log in enumerate(state.logs)))
        if now == seen or not self.on("same_prepare"):
            state = record(state, seen._replace(word="Complete", partitions=frozenset()))
            label = f"completes {seen.txn}"
        else:
            label = f"leaves {seen.txn}: it is complete"
        yield f"{name(me)} {label}", become(state, me, Process(p.after, p.epoch))

    def _fenced(self, state, partition, epoch):
        return self.on("partition_fence") and epoch < stored(state, partition)

    # faults

    def _kill(self, state, me):
        lock = None if state.lock == me else state.lock
        return become(state._replace(lock=lock, kills=state.kills - 1), me, self.start[me])

    def _power_losses(self, state):
        whole = (state.status,) + state.logs
        choices = [range(low, len(log) + 1) for low, log in zip(state.synced, whole, strict=True)]
        for ends in product(*choices):
            status, *logs = (log[:end] for log, end in zip(whole, ends, strict=True))
            entries = [e for log in logs for e in log if e.kind != "data"]
            decided = frozenset([s.outcome for s in status if s.outcome] + [(e.txn, e.kind) for e in entries])
            after = state._replace(
                processes=self.start, status=status, logs=tuple(logs), synced=ends, lock=None, known=(0, 0),
                decided=decided, last=status[-1].outcome, sweep=self.on("sweep"), cuts=state.cuts - 1)
            yield f"!power loss, left: status {ends[0]}, partitions {ends[1]} and {ends[2]} entries", after

    def _swept(self, state):
        """Abort open data that no status entry lists; never go below an epoch that is in use."""
        now = state.status[-1]
        for partition, log in enumerate(state.logs):
            data = open_data(log)
            if data and not (partition in now.partitions and self._covers(now, data[-1].epoch)):
                state = append(state, partition, Entry("abort", data[-1].epoch + 1, data[-1].txn))
        top = max(stored(state, n) for n in (0, 1))
        if top > now.epoch and self.on("sweep_ends"):
            state = self._ended(state)
        now = state.status[-1]
        if top > now.epoch and now.word in ("Empty", "Complete"):
            state = record(state, now._replace(epoch=top))
        return state._replace(sweep=False)

    def _ended(self, state):
        """A transaction in the middle at its end: the steps of a helper, one after the other."""
        if state.status[-1].word == "Ongoing":
            state = self._prepare_as(state, "abort")
        if not state.status[-1].word.startswith("Prepare"):
            return state
        state = self._help(state._replace(processes=(Process("watch"),)), 0, Process("watch"), "watch")
        while state.processes[0].at != "watch":
            p = state.processes[0]
            (_, state), = getattr(self, "_" + p.at)(state, 0, p)
        return state._replace(processes=self.start)

    def _covers(self, now, epoch):
        """Is the open data of this epoch that of the entry? Not so if Complete was lost and the
        next transaction already used the raised epoch, or if an earlier sweep's marker was lost."""
        if now.word in ("Empty", "Complete"):
            return False
        if not self.on("sweep_by_epoch"):
            return True
        return epoch == (now.epoch if now.word == "Ongoing" else now.epoch - 1)


# -- small words -----------------------------------------------------------------------------

def name(me):
    return "ABC"[me]


def become(state, me, process):
    return state._replace(processes=state.processes[:me] + (process,) + state.processes[me + 1:])


def record(state, status):
    return state._replace(status=state.status + (status,))


def append(state, partition, entry):
    logs = list(state.logs)
    logs[partition] += (entry,)
    wrote = state.wrote | {(entry.txn, partition)} if entry.kind == "data" else state.wrote
    return state._replace(logs=tuple(logs), wrote=wrote)


def stored(state, partition):
    """The stored producer epoch of the partition."""
    return max((e.epoch for e in state.logs[partition][state.known[partition]:]), default=0)


def open_data(log):
    """Records after the last marker: the last stable offset waits for them."""
    last = max((at for at, e in enumerate(log) if e.kind != "data"), default=-1)
    return log[last + 1:]
