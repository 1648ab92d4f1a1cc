"""Models which directories a process of a set may use: openings, registrations, earlier copies, and kills between any two steps.

Each process enters the directories one after the other, in an order of its own. It decides then which of them are the registered
ones, registers them by one decision on a majority, and records that in each of them. One directory may be put back to an earlier
copy of itself. Every process leaves such a stranger, until a person replaces it: an empty directory takes its place, leaves the
ISR with its registration, and is copied from the leader. Records are a number: a member of the ISR has at least as many as were
acknowledged. A power loss is in `replicas.py`.

Invariants: README.md, U1 and I7.
"""

from typing import NamedTuple

RULES = {
    "opening_ids": ("REPLICA-12", "a directory continues only if the registered opening is one that it has recorded"),
    "every_process": ("REPLICA-12", "... also for a process that is not the first one in it"),
    "drawn_by_first": ("REPLICA-12", "the first process in a directory draws another opening id"),
    "unrecorded_kept": ("REPLICA-12", "a directory keeps the ids of openings whose registration it has not recorded"),
    "judged_again": ("REPLICA-12", "the decision judges again, with the state that it is derived from"),
    "births": ("REPLICA-12", "a directory with another birth that was not closed in order is a copy"),
    "replaced_leaves": ("REPLICA-19", "a directory that replaces another one leaves the ISR with its registration"),
    "replaced_silent": ("REPLICA-19", "it has no vote before it has the decisions"),
    "strangers_silent": ("QUORUM-9", "a directory that is not the registered one has no vote, and nothing is derived from it"),
}


class Directory(NamedTuple):
    openings: tuple = (0,)        # the registered one as it was recorded, then those drawn since
    mark: bool = True             # it was closed in order
    clean: bool = True            # ... when the first of its present users came
    born_elsewhere: bool = False  # its birth is not the recorded one
    copy_note: bool = False       # it was found to be such a copy: its registration id is another one since then
    users: frozenset = frozenset()
    decision: int = 0             # the newest one in its copy of the decision log
    records: int = 1
    replaces: bool = False        # it begins empty, in the place of another one; its registration is not recorded yet
    silent: bool = False          # its copy of the decision log may lack decisions


class Decision(NamedTuple):
    depth: int
    openings: tuple               # the registered opening of each directory
    isr: frozenset
    leader: int


class Process(NamedTuple):
    at: str = "out"
    todo: tuple = ()              # directories to be entered
    inside: frozenset = frozenset()
    first: frozenset = frozenset()  # where it was the first one


class State(NamedTuple):
    directories: tuple
    decisions: tuple
    processes: tuple
    copy: object = None           # (number, directory) of an earlier time
    acked: int = 1
    serial: int = 0               # the last opening id
    opens: int = 0
    looks: int = 0
    kills: int = 0
    copies: int = 0
    fails: int = 0
    replaces: int = 0


class Registrations:
    """The model; `off` names the rules that are switched off."""

    rules = RULES

    def __init__(self, off=(), processes=2, directories=3, records=2, opens=3, looks=1, kills=1, copies=1, fails=0, changes=0,
                 replaces=0):
        self.off, self.processes, self.count = frozenset(off), processes, directories
        self.records, self.changes = records, changes
        self.faults = {"opens": opens, "looks": looks, "kills": kills, "copies": copies, "fails": fails,
                       "replaces": replaces}

    def on(self, rule):
        return rule not in self.off

    def initial(self):
        everyone = frozenset(range(self.count))
        first = Decision(0, (0,) * self.count, everyone, self.count - 1)
        return State((Directory(),) * self.count, (first,), (Process(),) * self.processes, **self.faults)

    # -- invariants -------------------------------------------------------------------------

    def broken(self, state):
        for process in state.processes:
            if process.at == "in" and self._votes(state, process.inside):
                newest = self._newest(state, process.inside)
                if newest.leader in newest.isr & process.inside and state.directories[newest.leader].records < state.acked:
                    return "U1 a directory leads without an acknowledged record that another one has"
        return None

    def satisfied(self, state):
        if state.acked >= self.records:
            return True
        newest = state.decisions[-1]
        if self.changes and len(state.decisions) > 2 * self.faults["opens"] + self.changes:
            return True          # the bounds are used up
        if newest.isr and all(state.directories[node].records < state.acked for node in newest.isr):
            return True          # the whole ISR was put back: nothing but a person can decide
        return not state.opens and not any(p.at != "out" for p in state.processes)

    # -- judgement --------------------------------------------------------------------------

    def _votes(self, state, nodes):
        """Whether these directories decide: a majority that has all decisions."""
        return 2 * len([node for node in nodes if not state.directories[node].silent]) > self.count

    def _continues(self, state, process, node, decision):
        """Whether the directory is the registered one, as a decision and its own files show it."""
        directory, registered = state.directories[node], decision.openings[node]
        if not self.on("every_process") and node not in process.first:
            return True
        if registered == directory.openings[-1]:
            return True          # another process has registered this opening
        if directory.replaces:
            return True
        if directory.copy_note:
            return False
        if not self.on("opening_ids"):
            return True
        return registered in directory.openings

    def _is_copy(self, directory):
        return self.on("births") and directory.born_elsewhere and not directory.clean

    def _supported(self, state, process):
        """The newest decision of which a majority of the directories is the registered one, and these directories."""
        choices = []
        for node in process.inside:
            decision = state.directories[node].decision
            able = frozenset(
                each for each in process.inside if self._continues(state, process, each, state.decisions[decision])
            )
            if node in able and not state.directories[node].silent and self._votes(state, able):
                choices.append((state.decisions[decision].depth, decision, able))
        return max(choices, key=lambda each: each[:2]) if choices else None

    def _newest(self, state, nodes):
        numbers = [state.directories[node].decision for node in nodes if not state.directories[node].silent]
        return state.decisions[max(numbers, key=lambda each: (state.decisions[each].depth, each))]

    # -- steps ------------------------------------------------------------------------------

    def steps(self, state):
        for me, process in enumerate(state.processes):
            yield from getattr(self, "_" + process.at)(state, me, process)
            if process.at != "out" and state.kills:
                yield f"!{name(me)} is killed", self._killed(state, me)
        yield from self._put_back(state)

    def _out(self, state, me, process):
        if state.opens:
            order = tuple((number + 2 * me) % self.count for number in range(self.count))
            opened = state._replace(opens=state.opens - 1)
            yield f"{name(me)} begins to open the set", become(opened, me, Process("enter", order))
            for node in order if state.fails else ():
                todo = tuple(other for other in order if other != node)
                absent = become(opened._replace(fails=state.fails - 1), me, Process("enter", todo))
                yield f"!{name(me)} begins to open the set without D{node}", absent

    def _enter(self, state, me, process):
        node = process.todo[0]
        directory, serial = state.directories[node], state.serial
        first = not directory.users
        if first:
            directory = directory._replace(clean=directory.mark, mark=False)
            if self._is_copy(directory):
                directory = directory._replace(copy_note=True)
            if self.on("drawn_by_first"):
                serial += 1
                kept = directory.openings if self.on("unrecorded_kept") else directory.openings[:1]
                directory = directory._replace(openings=(*kept, serial))
        directory = directory._replace(users=directory.users | {me})
        process = process._replace(
            at="enter" if process.todo[1:] else "judge", todo=process.todo[1:], inside=process.inside | {node},
            first=process.first | {node} if first else process.first,
        )
        yield f"{name(me)} enters D{node}", become(put(state, node, directory)._replace(serial=serial), me, process)

    def _judge(self, state, me, process):
        found = self._supported(state, process)
        able = found[2] if found else frozenset()
        if not self.on("strangers_silent"):
            able = process.inside
        strangers = process.inside - able
        for node in sorted(strangers):
            state = left(state, me, node)
        process = process._replace(at="register" if self._votes(state, able) else "in", inside=able)
        without = f" without {', '.join(f'D{node}' for node in sorted(strangers))}" if strangers else ""
        yield f"{name(me)} knows its directories{without}", become(state, me, process)

    def _register(self, state, me, process):
        newest = self._newest(state, process.inside)
        if self.on("judged_again"):
            able = frozenset(node for node in process.inside if self._continues(state, process, node, newest))
            if able != process.inside:
                yield f"{name(me)} finds another directory away", become(state, me, process._replace(at="judge"))
                return
        openings, inside = list(newest.openings), process.inside
        begun = frozenset(node for node in inside if self._begins(state.directories[node], newest.openings[node]))
        for node in inside:
            openings[node] = state.directories[node].openings[-1]
        if tuple(openings) == newest.openings:
            yield f"{name(me)} finds all registered", become(state, me, process._replace(at="in"))
            return
        isr = newest.isr - begun if self.on("replaced_leaves") else newest.isr
        if newest.leader in isr or not isr:
            leader = newest.leader
        else:
            leader = max(isr, key=lambda node: (state.directories[node].records, -node))
        new = newest._replace(depth=newest.depth + 1, openings=tuple(openings), isr=isr, leader=leader)
        registered = process._replace(at="record")
        yield f"{name(me)} registers", become(decided(state, new, inside), me, registered)
        if state.kills:
            for node in sorted(process.inside):
                yield f"!{name(me)} is killed within its decision, in D{node}", self._killed(decided(state, new, {node}), me)

    def _begins(self, directory, registered):
        """Whether a registration takes a directory for one that begins empty."""
        return directory.replaces and registered not in directory.openings

    def _record(self, state, me, process):
        newest = self._newest(state, process.inside)
        for node in process.inside:
            directory = state.directories[node]
            if newest.openings[node] == directory.openings[-1]:
                directory = directory._replace(openings=directory.openings[-1:], born_elsewhere=False, copy_note=False,
                                                replaces=False)
                state = put(state, node, directory)
        yield f"{name(me)} records its registration", become(state, me, process._replace(at="in"))

    def _in(self, state, me, process):
        everyone, inside = frozenset(range(self.count)), process.inside
        if self._votes(state, inside):
            newest = self._newest(state, inside)
            members = newest.isr & inside
            if newest.leader in newest.isr <= inside and state.acked < self.records:
                after = state
                for node in newest.isr:
                    after = put(after, node, after.directories[node]._replace(records=state.acked + 1))
                yield f"{name(me)} appends", after._replace(acked=state.acked + 1)
            free = len(state.decisions) <= 2 * self.faults["opens"] + self.changes
            if free and members and (members != newest.isr or newest.leader not in members):
                leader = newest.leader if newest.leader in members else max(
                    members, key=lambda node: (state.directories[node].records, -node))
                new = newest._replace(depth=newest.depth + 1, isr=members, leader=leader)
                yield f"{name(me)} decides: D{leader} leads", decided(state, new, inside)
            for node in sorted(inside - newest.isr) if free and newest.leader in newest.isr & inside else ():
                after = put(state, node, state.directories[node]._replace(records=state.directories[newest.leader].records))
                new = newest._replace(depth=newest.depth + 1, isr=newest.isr | {node})
                yield f"{name(me)} decides: D{node} joins", decided(after, new, inside)
        if inside != everyone and state.looks:
            todo = tuple(sorted(everyone - inside))
            after = become(state._replace(looks=state.looks - 1), me, process._replace(at="enter", todo=todo))
            yield f"{name(me)} looks again", after
        yield from self._replaced(state, me, process)
        for node in sorted(inside) if state.fails else ():
            after = left(state._replace(fails=state.fails - 1), me, node)
            yield f"!D{node} fails for {name(me)}", become(after, me, process._replace(inside=inside - {node}))
        for node in sorted(inside):
            state = left(state, me, node)
        yield f"{name(me)} closes in order", become(state, me, Process())

    def _replaced(self, state, me, process):
        inside = process.inside
        for node in range(self.count) if state.replaces and inside else ():
            if node in inside or state.directories[node].users:
                continue
            if not self._votes(state, inside):
                continue
            newest = self._newest(state, inside)
            if not newest.isr - {node}:
                continue
            empty = Directory(openings=(), records=0, replaces=True, silent=self.on("replaced_silent"))
            after = put(state, node, empty)._replace(replaces=state.replaces - 1)
            yield f"{name(me)} replaces D{node}", become(after, me, process._replace(at="enter", todo=(node,)))

    # -- faults -----------------------------------------------------------------------------

    def _killed(self, state, me):
        for node, directory in enumerate(state.directories):
            state = put(state, node, directory._replace(users=directory.users - {me}))
        return become(state._replace(kills=state.kills - 1), me, Process())

    def _put_back(self, state):
        if state.copies and state.copy is None:
            node = self.count - 1
            copied = state.directories[node]
            saved = copied._replace(users=frozenset(), born_elsewhere=True)
            yield f"!D{node} is copied", state._replace(copy=(node, saved), copies=state.copies - 1)
        if state.copy is not None:
            node, saved = state.copy
            if not state.directories[node].users:
                yield f"!D{node} is put back", put(state, node, saved)._replace(copy=None)


def decided(state, new, nodes):
    """The state after a decision in the copies of these directories."""
    number = len(state.decisions)
    for node in nodes:
        state = put(state, node, state.directories[node]._replace(decision=number, silent=False))
    return state._replace(decisions=(*state.decisions, new))


def left(state, me, node):
    """The state after a process has left a directory in order; the last one writes the clean mark."""
    directory = state.directories[node]
    users = directory.users - {me}
    return put(state, node, directory._replace(users=users, mark=directory.mark or not users))


def put(state, node, directory):
    """The state with another directory in the place of one."""
    return state._replace(directories=(*state.directories[:node], directory, *state.directories[node + 1 :]))


def become(state, me, process):
    """The state after a process has changed."""
    return state._replace(processes=(*state.processes[:me], process, *state.processes[me + 1 :]))


def name(me):
    return "PQR"[me]
