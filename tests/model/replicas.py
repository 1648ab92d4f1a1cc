"""Models the replicas of one partition (REPLICA): leader, followers, ISR, high watermark, elections.

A directory has a log and a control page. Decisions (leader, epoch, ISR) are one atomic register here; `decisions.py`
shows that a log on a majority of directories is such a register. Work under one directory's append lock is one step.
Work on two directories is two steps, so a process can be killed or overtaken between them. Copying and raising the
high watermark are steps of any process that reaches the directories: the protocol lets any process help.

Worst cases that the model contains:
  - an acknowledgement is sent as soon as it is allowed; a reader reads what a leader returns at once
  - a follower learns the high watermark only with the next bytes that it copies
  - a process may append to any page that leads, however old
  - a directory may fail for one process and not for another, and return at any time

Invariants: README.md, R1 to R10. A scenario gives its processes roles, to keep the space small: a appends,
h raises high watermarks, d makes decisions. All processes copy.
"""

from replicas_faults import Faults
from replicas_state import (
    NONE,
    RULES,
    Decided,
    Directory,
    Process,
    State,
    agreed,
    become,
    best,
    has,
    name,
    put,
    show,
)


class Replicas(Faults):
    """The model; `off` names the rules that are switched off."""

    rules = RULES

    def __init__(self, off=(), directories=3, replicas=3, roles=("ahd", "ahd"), records=2, least=1, kills=0,
                 fails=0, cuts=0, copies=0, decisions=3, durable=False, script=()):
        self.off = frozenset(off)
        self.count, self.replicas, self.roles, self.records = directories, replicas, roles, records
        self.processes, self.least, self.durable, self.script = len(roles), least, durable, script
        self.members = (1 << replicas) - 1
        self.faults = {"kills": kills, "fails": fails, "cuts": cuts, "copies": copies, "decisions": decisions}

    def on(self, rule):
        return rule not in self.off

    def initial(self):
        every, members = (1 << self.count) - 1, self.members
        first = Directory(leads=True, maximal=members, installed=members)
        others = (Directory(),) * (self.replicas - 1)
        decided = Decided(0, 0, 0, members, 0, (0,) * self.replicas)
        return State((first, *others), decided, (Process(every),) * self.processes, **self.faults)

    # -- invariants -------------------------------------------------------------------------

    def broken(self, state):
        return (self._two_leaders(state) or self._diverged(state) or self._changed(state)
                or self._lost(state) or self._incomplete(state) or self._differ(state))

    def _two_leaders(self, state):
        led = [d.epoch for d in state.directories if d.leads]
        if len(led) != len(set(led)):
            return "R1 two leaders in one epoch"
        return None

    def _diverged(self, state):
        logs = [d.log for d in state.directories]
        for at, one in enumerate(logs):
            for other in logs[at + 1:]:
                for n in range(min(len(one), len(other)), 0, -1):
                    if one[n - 1][0] == other[n - 1][0]:
                        if one[:n] != other[:n]:
                            return "R2 same offset and epoch, another history"
                        break
        return None

    def _changed(self, state):
        newest = state.decided.epoch           # a reader never returns to a lower epoch than it has seen
        for d in state.directories:
            shown = self._shown(d)
            if shown is None:
                continue
            n = min(len(shown), len(state.seen))
            if shown[:n] != state.seen[:n]:
                return "R3 another record at an offset that readers saw"
            if d.epoch == newest and len(shown) < len(state.seen):
                return "R4 the high watermark fell"
            for now, then in zip(shown, state.seen_before, strict=False):
                if now != then and now[0] <= then[0]:
                    return "R5 after a power loss: another record without a larger epoch"
        return None

    def _lost(self, state):
        leader = state.directories[state.decided.leader]
        if not leader.leads or leader.epoch != state.decided.epoch:
            return None
        if leader.log[:len(state.seen)] != state.seen:
            return "R6 the leader lacks a record that readers saw"
        present = set(enumerate(record for _, record in leader.log))
        return None if state.acked <= present else "R8 an acknowledged record is gone"

    def _incomplete(self, state):
        """What the next election would lose."""
        for n, d in enumerate(state.directories):
            member = has(state.decided.isr | state.decided.elr, n)
            complete = d.epoch != NONE and d.registration == state.decided.registered[n]
            if member and complete and d.log[:len(state.seen)] != state.seen:
                return "R7 a complete member of the ISR or ELR lacks a record that readers saw"
        return None

    def _differ(self, state):
        known = [d for d in state.directories if d.epoch != NONE]
        for at, one in enumerate(known):
            if one.high > len(one.log):
                return "R9 a high watermark beyond the end of the log"
            for other in known[at + 1:]:
                n = min(one.high, other.high)
                if one.epoch == other.epoch and (one.leads or other.leads):
                    n = min(max(one.high, other.high), len(one.log), len(other.log))
                if one.log[:n] != other.log[:n]:
                    return "R10 replicas differ below the high watermark"
        return None

    def _shown(self, d):
        if d.leads and (d.high >= d.start or not self.on("show_from_start")):
            return d.log[:d.high]
        return None

    def satisfied(self, state):
        leader = state.directories[state.decided.leader]
        led = leader.leads and leader.epoch == state.decided.epoch and leader.high == len(leader.log)
        return not state.decisions or self._offline(state) or (state.record > self.records and led)

    def _offline(self, state):
        """The last replica that could lead was destroyed: only an unclean election helps."""
        wanted = state.decided.isr | state.decided.elr
        members = [(n, d) for n, d in enumerate(state.directories) if has(wanted, n)]
        complete = any(d.epoch != NONE for _, d in members)
        return not complete and any(d.loss == "copy" or d.registration != state.decided.registered[n] for n, d in members)

    # -- steps ------------------------------------------------------------------------------

    def steps(self, state):
        for label, after in self._steps(state):
            if self.script and label[0] == "!":            # only these faults, in this order, at any time
                if state.scripted == len(self.script) or self.script[state.scripted] not in label:
                    continue
                after = after._replace(scripted=state.scripted + 1)
            yield label, self._read(after)

    def _read(self, state):
        """Readers read at every moment."""
        for d in state.directories:
            shown = self._shown(d)
            if shown is not None and len(shown) > len(state.seen) and shown[:len(state.seen)] == state.seen:
                state = state._replace(seen=shown)
        return state

    def _steps(self, state):
        for me, p in enumerate(state.processes):
            roles = self.roles[me]
            if p.job:
                yield from getattr(self, "_" + p.job[0])(state, me, p)
            else:
                if "d" in roles and self._decides(state, p):
                    yield from self._elect(state, me, p)
                    yield from self._find_decision(state, me, p)
                    yield from self._propose_shrink(state, me, p)
                    yield from self._propose_growth(state, me, p)
                if "h" in roles:
                    yield from self._raise_high(state, me, p)
            if p.send or ("a" in roles and not p.job):
                yield from self._send(state, me, p)
            yield from self._return(state, me, p)
        yield from self._follow(state)
        yield from self._sync(state)
        yield from self._faults(state)

    def _decides(self, state, p):
        return state.decisions and p.reaches.bit_count() > self.count // 2

    # appending

    def _send(self, state, me, p):
        if p.send:
            at, epoch, offset, record = p.send
            d = state.directories[at]
            here = has(p.reaches, at) and d.leads and d.epoch == epoch
            yield f"{name(me)} gives up r{record}", become(state, me, p._replace(send=()))
            if here and (d.high > offset or not self.on("ack_at_high")) and self._synced_enough(state, p, at, offset):
                after = state._replace(acked=state.acked | {(offset, record)})
                yield f"{name(me)}: r{record} is acknowledged at {offset}", become(after, me, p._replace(send=()))
            return
        if state.record > self.records:
            return
        for at, d in enumerate(state.directories):
            if has(p.reaches, at) and d.leads and self._enough(d):
                sent = (at, d.epoch, len(d.log), state.record)
                after = put(state, at, d._replace(log=d.log + ((d.epoch, state.record),)))
                after = become(after._replace(record=state.record + 1), me, p._replace(send=sent))
                yield f"{name(me)} appends r{state.record} to D{at} in epoch {d.epoch}", after

    def _synced_enough(self, state, p, at, offset):
        if not self.durable:
            return True
        d = state.directories[at]
        asked = d.maximal if self.on("synced_by_all") else 1 << at
        return all(has(p.reaches, n) and f.synced > offset and f.epoch == d.epoch
                   for n, f in enumerate(state.directories) if has(asked, n))

    # copying, by any process

    def _follow(self, state):
        for at, leader in enumerate(state.directories):
            if not leader.leads:
                continue
            for n, f in enumerate(state.directories):
                reached = any(has(p.reaches, at) and has(p.reaches, n) for p in state.processes)
                if n == at or not reached or not self._assigned(state, n):
                    continue
                if f.epoch < leader.epoch:
                    yield from self._begin_to_follow(state, at, leader, n, f)
                elif len(f.log) < len(leader.log) and (f.epoch == leader.epoch or not self.on("fence")):
                    log = f.log + leader.log[len(f.log):len(f.log) + 1]
                    high = max(f.high, min(leader.high, len(log)))
                    yield f"D{n} copies D{at} to {len(log)}", put(state, n, f._replace(log=log, high=high))

    def _assigned(self, state, n):
        return True                    # reassignment.py has replicas outside the assignment

    def _begin_to_follow(self, state, at, leader, n, f):
        if f.epoch == NONE:
            member = has(state.decided.isr | state.decided.elr, n)
            if self.on("lost_leaves") and (member or f.registration != state.decided.registered[n]):
                return
            f = f._replace(registration=state.decided.registered[n])
        if not self.on("truncate_first"):
            end = len(f.log)
        elif not self.on("truncate_by_epoch"):
            end = min(f.high, len(leader.log))
        else:
            end = agreed(f.log, leader.log)
        f = f._replace(log=f.log[:end], epoch=leader.epoch, leads=False, maximal=0, installed=0, version=0, start=0,
                       high=min(f.high, end), synced=min(f.synced, end), loss="")
        yield f"D{n} begins to follow D{at} in epoch {leader.epoch}, truncated to {end}", put(state, n, f)

    # the high watermark: read all ends and store it under the leader's lock. Without that rule: read, lock, compare, store

    def _raise_high(self, state, me, p):
        for at, d in enumerate(state.directories):
            if not has(p.reaches, at) or not d.leads:
                continue
            if not self._enough(d) and self.on("enough"):
                continue
            asked = d.maximal if self.on("all_in_sync") else 1 << at
            members = [(n, f) for n, f in enumerate(state.directories) if has(asked, n)]
            if not all(has(p.reaches, n) and (f.epoch == d.epoch or not self.on("same_epoch")) for n, f in members):
                continue
            least = min(len(f.log) for _, f in members)
            if least > d.high and self.on("one_section"):
                yield f"{name(me)} raises the high watermark of D{at} to {least}", put(state, at, d._replace(high=least))
            elif least > d.high:
                job = ("store_high", at, d.epoch, d.version, d.maximal, least)
                yield f"{name(me)} finds all in sync with D{at} at {least}", become(state, me, p._replace(job=job))

    def _enough(self, d):
        return (d.installed if self.on("enough_decided") else d.maximal).bit_count() >= self.least

    def _store_high(self, state, me, p):
        _, at, epoch, version, maximal, least = p.job
        d = state.directories[at]
        same = has(p.reaches, at) and d.leads and (d.epoch, d.version, d.maximal) == (epoch, version, maximal)
        state = become(state, me, p._replace(job=()))
        if same and least <= len(d.log) and least > d.high:
            yield f"{name(me)} raises the high watermark of D{at} to {least}", put(state, at, d._replace(high=least))
        else:
            yield f"{name(me)} finds another page", state

    # decisions about the ISR

    def _led(self, state, p):
        """The decided leader, if it leads and this process reaches it."""
        at = state.decided.leader
        d = state.directories[at]
        return at if has(p.reaches, at) and d.leads and d.epoch == state.decided.epoch else None

    def _propose_shrink(self, state, me, p):
        at = self._led(state, p)
        if at is None:
            return
        decided, d = state.decided, state.directories[at]
        for n, f in enumerate(state.directories):
            lost = has(p.reaches, n) and f.epoch == NONE
            member = has(d.maximal | decided.isr | (decided.elr if lost else 0), n)
            unregistered = lost and f.registration != decided.registered[n]
            if n == at or not (member or unregistered) or (has(p.reaches, n) and not lost):
                continue
            base = state
            if not self.on("shrink_decided"):
                base = put(base, at, d._replace(maximal=d.maximal & ~(1 << n)))
            job = ("shrink", decided.version, decided.epoch, n)
            yield f"{name(me)} proposes D{n} out of the ISR", become(base, me, p._replace(job=job))

    def _shrink(self, state, me, p):
        _, version, epoch, n = p.job
        decided = state.decided
        if not self._current(state, p, version, epoch):
            yield f"{name(me)} finds another decision", become(state, me, p._replace(job=()))
            return
        isr = (decided.isr if self.on("compare") else state.directories[decided.leader].maximal) & ~(1 << n)
        f = state.directories[n]
        lost = has(p.reaches, n) and f.epoch == NONE
        elr = (decided.elr | (decided.isr & 1 << n)) & ~isr if isr.bit_count() < self.least else 0
        registered = decided.registered
        if lost:
            elr &= ~(1 << n)
            state, registered = self._register(state, n, registered)
        after = decided._replace(isr=isr, elr=elr, registered=registered)
        yield from self._decide(state, me, p, after, f"D{n} out of the ISR")

    def _propose_growth(self, state, me, p):
        at = self._led(state, p)
        if at is None:
            return
        d = state.directories[at]
        if d.version != state.decided.version and self.on("grow_current"):
            return
        for n, f in enumerate(state.directories):
            if n == at or has(state.decided.isr, n) or not has(p.reaches, n) or not self._may_join(state, n, d, f):
                continue
            base = state
            if self.on("grow_page"):
                base = put(base, at, d._replace(maximal=d.maximal | 1 << n))
            job = ("grow", state.decided.version, d.epoch, n, f.page)
            yield f"{name(me)} adds D{n} to the maximal ISR", become(base, me, p._replace(job=job))

    def _may_join(self, state, n, d, f):
        if self.durable and f.synced < max(d.high, d.start) and self.on("grow_synced"):
            return False
        return (f.epoch == d.epoch and (len(f.log) >= d.high or not self.on("grow_high"))
                and (len(f.log) >= d.start or not self.on("grow_start")))

    def _grow(self, state, me, p):
        _, version, epoch, n, page = p.job
        decided, f = state.decided, state.directories[n]
        same = has(p.reaches, n) and f.epoch == epoch and (f.page == page or not self.on("grow_registration"))
        if not same or not self._current(state, p, version, epoch):
            yield f"{name(me)} finds another decision", become(state, me, p._replace(job=()))
            return
        isr = decided.isr | 1 << n
        elr = decided.elr & ~isr if isr.bit_count() < self.least else 0
        yield from self._decide(state, me, p, decided._replace(isr=isr, elr=elr), f"D{n} into the ISR")

    def _current(self, state, p, version, epoch):
        decided = state.decided
        same = decided.version == version if self.on("compare") else True
        return same and decided.epoch == epoch and self._decides(state, p)

    def _decide(self, state, me, p, after, what):
        after = after._replace(version=state.decided.version + 1)
        job = ("install", after.leader, after.epoch, after.version, after.isr, after.page)
        state = state._replace(decided=after, decisions=state.decisions - 1)
        yield f"{name(me)} decides: {what}", become(state, me, p._replace(job=job))

    def _register(self, state, n, registered):
        registered = registered[:n] + (registered[n] + 1,) + registered[n + 1:]
        return put(state, n, state.directories[n]._replace(registration=registered[n])), registered

    # elections

    def _elect(self, state, me, p):
        decided = state.decided
        d = state.directories[decided.leader]
        if has(p.reaches, decided.leader) and d.page == decided.page:
            return
        found = self._candidate(state, p)
        if found is None:
            return
        leader, isr = found
        epoch = decided.epoch + (1 if self.on("raise_epoch") else 0)
        elr, registered = 0, decided.registered
        if isr.bit_count() < self.least:
            elr = (decided.elr | decided.isr) & ~isr
        for n, f in enumerate(state.directories):
            if has(p.reaches, n) and f.epoch == NONE:
                elr &= ~(1 << n)
                state, registered = self._register(state, n, registered)
        page = state.directories[leader].page
        after = decided._replace(epoch=epoch, leader=leader, isr=isr, elr=elr, registered=registered, page=page)
        yield from self._decide(state, me, p, after, f"D{leader} leads in epoch {epoch}, ISR {show(isr)}")

    def _candidate(self, state, p):
        """The replica to elect and its ISR, or None."""
        decided = state.decided
        fit = [n for n, f in enumerate(state.directories) if has(p.reaches, n) and self._complete(state, n, f)]
        members = [n for n in fit if has(decided.isr, n) or not self.on("from_isr")]
        if members:
            return best(state, members), sum(1 << n for n in members if has(decided.isr, n)) or 1 << best(state, members)
        eligible = [n for n in fit if has(decided.elr, n)]
        if eligible:
            return best(state, eligible), 1 << best(state, eligible)
        wanted = decided.isr | decided.elr
        crashed = [n for n, f in enumerate(state.directories)
                   if has(p.reaches & wanted, n) and f.loss == "power" and self._registered(state, n, f)]
        all_reached = all(has(p.reaches, n) for n in range(self.replicas) if has(wanted, n))
        in_sync = [n for n in crashed if has(decided.isr, n)]
        if crashed and (all_reached or not self.on("wait_for_all")):
            chosen = best(state, crashed) if self.on("longest") else crashed[0]
            return chosen, 1 << chosen
        if in_sync and (self.durable or not self.on("durable_created")):
            chosen = best(state, in_sync)
            return chosen, 1 << chosen
        return None

    def _registered(self, state, n, f):
        return f.registration == state.decided.registered[n] or not self.on("registrations")

    def _complete(self, state, n, f):
        return not self.on("lost_incomplete") or (f.epoch != NONE and self._registered(state, n, f))

    # installing a decision in the leader's page

    def _find_decision(self, state, me, p):
        """A process that finds the page older than the decision installs the decision."""
        decided = state.decided
        d = state.directories[decided.leader]
        older = (d.epoch, d.version) < (decided.epoch, decided.version) and d.page == decided.page
        if has(p.reaches, decided.leader) and older:
            job = ("install", decided.leader, decided.epoch, decided.version, decided.isr, decided.page)
            yield f"{name(me)} reads the decision", become(state, me, p._replace(job=job))

    def _install(self, state, me, p):
        _, at, epoch, version, isr, page = p.job
        d = state.directories[at]
        state = become(state, me, p._replace(job=()))
        newer = (epoch, version) > (d.epoch, d.version) or not self.on("newer_only")
        same = d.page == page or not self.on("same_page")
        if has(p.reaches, at) and newer and same:
            start = len(d.log) if epoch != d.epoch or not d.leads else d.start
            d = d._replace(leads=True, epoch=epoch, version=version, maximal=isr, installed=isr, start=start, loss="")
            yield f"{name(me)} installs in D{at}: epoch {epoch}, ISR {show(isr)}", put(state, at, d)
        else:
            yield f"{name(me)} finds a newer page in D{at}", state

    # storage

    def _sync(self, state):
        if self.durable:
            for n, d in enumerate(state.directories):
                if d.synced < len(d.log) and d.epoch != NONE and any(has(p.reaches, n) for p in state.processes):
                    yield f"D{n} is synced to {len(d.log)}", put(state, n, d._replace(synced=len(d.log)))

    def _return(self, state, me, p):
        for n in range(self.count):
            if not has(p.reaches, n):
                yield f"{name(me)} reaches D{n} again", become(state, me, p._replace(reaches=p.reaches | 1 << n))
