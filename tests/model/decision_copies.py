"""Extends the model of decisions by what one copy shows, and by the copies that count (QUORUM-7 to QUORUM-9).

A reader reads any copy at any time, without a lock, up to the high watermark of its page. A copy may be damaged: it begins again,
empty. A directory may be put back to an earlier copy with which another set has decided something: a stranger, until a person
replaces it by an empty one. Two processes may add different directories at the same time under one planned number. They are
D2 and D3 here, which are both node 2.

Invariants: README.md, M1 to M4.
"""

from typing import NamedTuple

from decisions import Copy, Decisions, Process, become, common, has, lowest, majority, name, put

RULES = {
    "settles": ("QUORUM-7", "a process that must act on a decision makes one, or settles the state, first"),
    "shows_counted": ("QUORUM-7", "a copy shows a record to readers when a majority has it synced"),
    "incomplete_silent": ("QUORUM-4", "a copy that begins again counts for no majority until it is level and synced"),
    "incomplete_first": ("QUORUM-4", "... which is on disk before its records are removed"),
    "strangers_silent": ("QUORUM-8", "copies are of one history: that of a stranger is neither counted nor read"),
    "replaced_silent": ("QUORUM-9", "the empty copy in the place of another one counts when it is level and synced"),
    "id_compared": ("QUORUM-9", "of two directories under one planned number only the decided one counts"),
}
FOREIGN = (99, "another set")           # a record that a set of copies has decided by itself


class Facts(NamedTuple):
    """What a directory has beside its log."""

    high: int = 0                       # of the page: readers get the records below it
    incomplete: bool = False
    stranger: bool = False


class More(NamedTuple):
    facts: tuple
    hint: tuple = ()                    # the longest log that a reader got
    renewals: int = 0                   # what may still happen
    strangers: int = 0
    replacements: int = 0


class DecisionCopies(Decisions):
    """The model of decisions with hints, incomplete copies, and strangers."""

    rules = RULES

    def __init__(self, off=(), renewals=0, strangers=0, planned=False, **bounds):
        self.planned = planned
        super().__init__(off, directories=4 if planned else 3, processes=1, voters=0b011 if planned else 0b111, **bounds)
        self.more = {"renewals": renewals, "strangers": strangers, "replacements": strangers}

    def initial(self):
        return super().initial()._replace(more=More((Facts(),) * self.count, **self.more))

    # -- who counts -------------------------------------------------------------------------

    def _enough(self, state, mask, log):
        counted = 0
        for n in range(self.count):
            if has(mask, n) and self._counts(state, n, log):
                counted |= 1 << min(n, 2)
        return majority(counted, self._voters(log))

    def _counts(self, state, n, log):
        facts = state.more.facts[n]
        if facts.incomplete and self.on("incomplete_silent"):
            return False
        if facts.stranger and self.on("strangers_silent"):
            return False
        registered = next((what[2] for _, what in reversed(log) if isinstance(what, tuple)), n)
        return n < 2 or not self.planned or n == registered or not self.on("id_compared")

    def _best(self, state, held):
        able = sum(1 << n for n in range(self.count) if has(held, n) and self._may_lead(state, n))
        return super()._best(state, able) if able else ()

    def _may_lead(self, state, n):
        facts = state.more.facts[n]
        silent = facts.incomplete and self.on("incomplete_silent")
        return not silent and not (facts.stranger and self.on("strangers_silent"))

    # -- steps ------------------------------------------------------------------------------

    def steps(self, state):
        yield from super().steps(state)
        yield from self._read(state)
        yield from self._renew(state)
        yield from self._put_back(state)

    def _idle(self, state, me, p):
        silent = [n for n, each in enumerate(state.more.facts) if each.stranger and self.on("strangers_silent")]
        for label, after in super()._idle(state, me, p):
            held = after.processes[me].held
            both = self.planned and has(held, 2) and has(held, 3)      # a process has planned one of them
            if not both and not any(has(held, n) for n in silent):
                yield label, after

    def _catch_up(self, state, me, p):
        n = lowest(p.todo)
        before = state.copies[n].log
        for label, after in super()._catch_up(state, me, p):
            log = after.copies[n].log
            acted = common(before, max(state.acted, state.more.hint, key=len))
            if len(log) < min(acted, len(before)):
                after = after._replace(wrong="M3 a record that counts is truncated")
            facts = after.more.facts[n]
            facts = facts._replace(high=min(facts.high, len(log)), incomplete=facts.incomplete and log != p.best)
            yield label, noted(after, n, facts)

    def _append(self, state, me, p):
        for label, after in super()._append(state, me, p):
            what = after.processes[me].what
            if self.planned and isinstance(what, tuple) and len(what) == 2:
                for n in (2, 3):                                # the planned directory of this process
                    if has(p.held, n):
                        chosen = after.processes[me]._replace(what=(*what, n))
                        yield f"{label}, with D{n}", become(after, me, chosen)
                continue
            if not self.on("shows_counted") and p.what is not None:
                n = lowest(p.todo)
                after = noted(after, n, after.more.facts[n]._replace(high=len(after.copies[n].log)))
            yield label, after

    def _act(self, state, me, p):
        for label, after in super()._act(state, me, p):
            if "acts on" in label:
                after = become(after, me, Process("show", p.term, p.held, p.done))
            yield label, after

    def _show(self, state, me, p):
        n = lowest(p.todo)
        todo = p.todo & ~(1 << n)
        after = become(state, me, p._replace(todo=todo) if todo else Process())
        after = noted(after, n, state.more.facts[n]._replace(high=len(state.copies[n].log)))
        yield f"{name(me)} shows the decision in D{n}", after

    def _fails(self, state, me, p):
        if p.at != "show":
            yield from super()._fails(state, me, p)

    def _acts(self, state, me, log):
        after = super()._acts(state, me, log)
        hint = state.more.hint
        if log[:len(hint)] != hint[:len(log)]:
            after = after._replace(wrong="M2 a reader got a decision that does not count")
        return after

    # hints

    def _read(self, state):
        for n, facts in enumerate(state.more.facts):
            shown = state.copies[n].log[:facts.high]
            if facts.stranger and self.on("strangers_silent"):
                continue
            known = state.acted[:len(shown)]
            if shown[:len(known)] != known:
                yield f"a reader reads D{n}", state._replace(wrong="M2 a reader got a decision that does not count")
            elif len(shown) > len(state.more.hint):
                yield f"a reader reads D{n} up to {len(shown)}", state._replace(more=state.more._replace(hint=shown))
            if not self.on("settles") and len(shown) < len(state.acted):
                yield f"a process reads D{n} and acts on that", state._replace(wrong="M4 a process acts on an old decision")

    # faults

    def _held(self, state):
        held = 0
        for p in state.processes:
            held |= p.held
        return held

    def _renew(self, state):
        more = state.more
        for n, facts in enumerate(more.facts):
            if not more.renewals or has(self._held(state), n) or not state.copies[n].log or facts.stranger:
                continue
            if any(each.incomplete or each.stranger for each in more.facts):
                continue                                         # another loss would be the second one
            empty = Copy(state.copies[n].promise, (), state.copies[n].promise_disk, ())
            after = noted(put(state, n, empty), n, Facts(incomplete=self.on("incomplete_first")))
            yield f"!the copy of D{n} is damaged, and begins again", after._replace(
                more=after.more._replace(renewals=more.renewals - 1))

    def _put_back(self, state):
        more = state.more
        n = 2
        facts = more.facts[n]
        if has(self._held(state), n) or any(each.incomplete for each in more.facts):
            return
        if more.strangers and not facts.stranger:
            log = (*state.copies[n].log[:1], FOREIGN)
            other = Copy(FOREIGN[0], log, FOREIGN[0], log)
            after = noted(put(state, n, other), n, Facts(high=len(log), stranger=True))
            yield "!D2 is put back, and another set has used it", after._replace(
                more=after.more._replace(strangers=more.strangers - 1))
        if facts.stranger and more.replacements and self.on("strangers_silent"):
            after = noted(put(state, n, Copy()), n, Facts(incomplete=self.on("replaced_silent")))
            yield "a person replaces D2", after._replace(
                more=after.more._replace(replacements=more.replacements - 1))


def noted(state, n, facts):
    """The state with other facts of a directory."""
    every = state.more.facts
    return state._replace(more=state.more._replace(facts=(*every[:n], facts, *every[n + 1 :])))
