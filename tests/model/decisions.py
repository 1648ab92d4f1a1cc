"""Models the decision log (QUORUM): one log with a copy in each directory, decided by a majority.

A deciding process locks the directories of a majority of the voters and promises a new term there. It brings all of
them to the most advanced log among them, appends, and acts. Every choice of a majority is tried. So every pattern of
directories that fail for one process and not for another is included. A directory may also fail during a decision.

No step waits, so a process that is killed or frozen leaves any prefix of its steps.
"""

from itertools import combinations, product
from typing import NamedTuple

RULES = {
    "majority": ("QUORUM-2", "a deciding process holds the locks of a majority of the voters"),
    "locks_held": ("QUORUM-2", "it holds them from its first read to its last append"),
    "promise": ("QUORUM-3", "the term is stored in all of them before a record is written in it"),
    "promise_synced": ("QUORUM-3", "... and synced"),
    "by_term": ("QUORUM-4", "the most advanced log has the largest last term; its length comes second"),
    "catch_up": ("QUORUM-4", "all locked copies are brought to the most advanced log"),
    "truncate": ("QUORUM-4", "records that this log does not have are truncated first"),
    "counted": ("QUORUM-5", "a decision counts when a majority has it"),
    "record_synced": ("QUORUM-5", "... on stable storage"),
    "own_term": ("QUORUM-5", "a found record counts only if a record of the process's own term follows it"),
    "old_voters": ("QUORUM-6", "a change of the voters is on a majority of the old ones"),
    "new_voters": ("QUORUM-6", "... and of the new ones"),
}


class Copy(NamedTuple):
    """The decision log of one directory."""

    promise: int = 0
    log: tuple = ()              # (term, what); what: a number, or ("voters", mask)
    promise_disk: int = 0
    log_disk: tuple = ()


class Process(NamedTuple):
    at: str = "idle"
    term: int = 0
    held: int = 0                # directories whose lock the process holds
    todo: int = 0
    done: int = 0                # directories that have the new record
    best: tuple = ()
    what: object = None


class State(NamedTuple):
    copies: tuple
    processes: tuple
    acted: tuple = ()            # the log that a process has acted on
    wrong: str = ""
    number: int = 1              # of the next decision
    kills: int = 0
    fails: int = 0
    cuts: int = 0
    restores: int = 0            # old copies that may be restored
    changes: tuple = ()          # voters to come
    copy: tuple = ()             # (directory, promise, log): an old copy that an operator keeps
    more: tuple = ()             # of a model that extends this one


class Decisions:
    """The model; `off` names the rules that are switched off."""

    rules = RULES

    def __init__(self, off=(), directories=3, voters=0b111, processes=2, decisions=3, kills=0, fails=0, cuts=0,
                 restores=0, changes=()):
        self.off = frozenset(off)
        self.count, self.voters, self.processes, self.decisions = directories, voters, processes, decisions
        self.faults = {"kills": kills, "fails": fails, "cuts": cuts, "restores": restores, "changes": changes}

    def on(self, rule):
        return rule not in self.off

    def initial(self):
        return State((Copy(),) * self.count, (Process(),) * self.processes, **self.faults)

    # -- invariants -------------------------------------------------------------------------

    def broken(self, state):
        return state.wrong or None

    def satisfied(self, state):
        return state.number > self.decisions and all(p.at == "idle" for p in state.processes)

    # -- steps ------------------------------------------------------------------------------

    def steps(self, state):
        for me, p in enumerate(state.processes):
            yield from getattr(self, "_" + p.at)(state, me, p)
            if p.at != "idle" and state.kills:
                yield f"!{name(me)} is killed", become(state._replace(kills=state.kills - 1), me, Process())
            if p.todo and state.fails:
                yield from self._fails(state, me, p)
        yield from self._storage(state)

    def _idle(self, state, me, p):
        if state.number > self.decisions:
            return
        taken = 0
        for other in state.processes:
            taken |= other.held
        for size in range(1, self.count + 1):
            for chosen in combinations(range(self.count), size):
                held = sum(1 << n for n in chosen)
                if held & taken and self.on("locks_held"):
                    continue
                best = self._best(state, held)
                if self.on("majority") and not self._enough(state, held, best):
                    continue
                term = 1 + max([state.copies[n].promise for n in chosen] + [best[-1][0] if best else 0])
                p = Process("promise" if self.on("promise") else "catch_up", term, held, held, 0, best)
                yield f"{name(me)} locks {show(held)}, term {term}", become(state, me, p)

    def _promise(self, state, me, p):
        n = lowest(p.todo)
        copy = state.copies[n]._replace(promise=p.term)
        if self.on("promise_synced"):
            copy = copy._replace(promise_disk=p.term)
        p = p._replace(todo=p.todo & ~(1 << n))
        if not p.todo:
            p = p._replace(at="catch_up", best=self._best(state, p.held), todo=p.held)
        yield f"{name(me)} promises term {p.term} in D{n}", become(put(state, n, copy), me, p)

    def _catch_up(self, state, me, p):
        """Truncate what differs, then copy what is missing: two steps for each directory."""
        n = lowest(p.todo)
        copy = state.copies[n]
        same = common(copy.log, p.best)
        if not self.on("catch_up") or copy.log == p.best or (not self.on("truncate") and len(copy.log) >= len(p.best)):
            p = p._replace(todo=p.todo & ~(1 << n))
            if not p.todo:
                p = p._replace(at="append", todo=p.held)
            yield f"{name(me)} finds D{n} complete", become(state, me, p)
        elif same < len(copy.log) and self.on("truncate"):
            yield f"{name(me)} truncates D{n} to {same}", become(put(state, n, self._stored(copy, copy.log[:same])), me, p)
        else:
            log = copy.log + p.best[len(copy.log):]
            yield f"{name(me)} copies to D{n}", become(put(state, n, self._stored(copy, log)), me, p)

    def _stored(self, copy, log):
        copy = copy._replace(log=log)
        return copy._replace(log_disk=log) if self.on("record_synced") else copy

    def _append(self, state, me, p):
        if p.what is None:
            if len(p.best) > len(state.acted) and not self.on("own_term"):
                yield f"{name(me)} acts on a record that it found", self._acts(state, me, p.best)
            if state.number <= self.decisions:
                yield f"{name(me)} makes decision {state.number}", become(
                    state._replace(number=state.number + 1), me, p._replace(what=state.number))
                if state.changes and state.changes[0] != self._voters(p.best):
                    what = ("voters", state.changes[0])
                    after = state._replace(number=state.number + 1, changes=state.changes[1:])
                    yield f"{name(me)} makes {show(what[1])} the voters", become(after, me, p._replace(what=what))
            else:
                yield f"{name(me)} has nothing to decide", become(state, me, Process())
            return
        n = lowest(p.todo)
        copy = state.copies[n]
        log = copy.log + ((p.term, p.what),)
        p = p._replace(todo=p.todo & ~(1 << n), done=p.done | 1 << n)
        state = become(put(state, n, self._stored(copy, log)), me, p)
        if not p.todo:
            p = p._replace(at="act")
            state = become(state, me, p)
        yield f"{name(me)} appends {p.what} to D{n}", state

    def _act(self, state, me, p):
        log = p.best + ((p.term, p.what),)
        enough = ((self._enough(state, p.done, p.best) or not self.on("old_voters"))
                  and (self._enough(state, p.done, log) or not self.on("new_voters")))
        if enough or not self.on("counted"):
            yield f"{name(me)} acts on {p.what}", self._acts(state, me, log)
        else:
            yield f"{name(me)} has no majority", become(state, me, Process())

    def _acts(self, state, me, log):
        wrong = "" if log[:len(state.acted)] == state.acted else "M1 a decision that a process acted on is gone"
        acted = state.acted if len(log) < len(state.acted) else log
        return become(state._replace(acted=acted, wrong=wrong), me, Process())

    def _best(self, state, held):
        def rank(n):
            log = state.copies[n].log
            return (log[-1][0] if log and self.on("by_term") else 0, len(log))
        return state.copies[max((n for n in range(self.count) if has(held, n)), key=rank)].log

    def _enough(self, state, mask, log):
        """Whether directories are a majority of the voters that a log has."""
        return majority(mask, self._voters(log))

    def _voters(self, log):
        return next((what[1] for _, what in reversed(log) if isinstance(what, tuple)), self.voters)

    # faults

    def _fails(self, state, me, p):
        """A directory fails during a decision, which continues if the others are a majority."""
        n = lowest(p.todo)
        held = p.held & ~(1 << n)
        after = state._replace(fails=state.fails - 1)
        new = p.best + ((p.term, p.what),)
        enough = self._enough(state, held, p.best) or (not self.on("old_voters") and self._enough(state, held, new))
        p = p._replace(held=held, todo=p.todo & ~(1 << n))
        if not enough:
            p = Process()
        elif not p.todo:
            following = {"promise": "catch_up", "catch_up": "append", "append": "act"}[p.at]
            p = p._replace(at=following, todo=held if following != "act" else 0)
            if following == "catch_up":
                p = p._replace(best=self._best(state, held))
        yield f"!D{n} fails for {name(me)}", become(after, me, p)

    def _storage(self, state):
        if state.cuts:
            choices = [sorted(set(product((c.promise, c.promise_disk), (c.log, c.log_disk))), key=repr) for c in state.copies]
            for chosen in product(*choices):
                copies = tuple(Copy(promise, log, promise, log) for promise, log in chosen)
                yield f"!power loss, {[len(c.log) for c in copies]} records remain", state._replace(
                    copies=copies, processes=(Process(),) * self.processes, cuts=state.cuts - 1)
        if state.restores:
            free = [n for n in range(self.count) if not any(has(p.held, n) for p in state.processes)]
            if not state.copy:
                for n in free:
                    copy = state.copies[n]
                    yield f"!an operator copies D{n}", state._replace(copy=(n, copy.promise, copy.log))
            elif state.copy[0] in free and self._others_complete(state, state.copy[0]):
                n, promise, log = state.copy
                yield (f"!an operator restores the old copy of D{n}",
                       put(state._replace(restores=state.restores - 1), n, Copy(promise, log, promise, log)))

    def _others_complete(self, state, n):
        """The tolerated fault: all other copies have the log that was acted on, and the newest promise."""
        newest = max(c.promise for c in state.copies)
        return all(c.log[:len(state.acted)] == state.acted and c.promise == newest
                   for at, c in enumerate(state.copies) if at != n)


# -- helpers ---------------------------------------------------------------------------------

def name(me):
    return "ABC"[me]


def has(mask, n):
    return mask >> n & 1


def lowest(mask):
    return (mask & -mask).bit_length() - 1


def majority(mask, voters):
    return (mask & voters).bit_count() * 2 > voters.bit_count()


def show(mask):
    return "{" + ",".join(f"D{n}" for n in range(8) if has(mask, n)) + "}"


def common(one, other):
    n = 0
    while n < min(len(one), len(other)) and one[n] == other[n]:
        n += 1
    return n


def become(state, me, process):
    return state._replace(processes=state.processes[:me] + (process,) + state.processes[me + 1:])


def put(state, n, copy):
    return state._replace(copies=state.copies[:n] + (copy,) + state.copies[n + 1:])
