"""Models which directories an opening takes for one set (QUORUM-1): files of members, growth, retirements, generations, copies.

A directory has its id, the members that it has recorded with their places, and a copy of the decision log. Processes open some of
the directories that an operator gives; the others of the set may be found at their recorded places. They add a directory, retire
one, or retire one by force without a majority, and may stop between any two writes. The operator may have copied some directories
of the set to other places. Two logs of decisions of which neither continues the other one are those of two sets: their decisions
replace one another if a process uses both.

What the decision log says about a directory that is opened is the subject of `registrations.py`. A directory that is given twice
is a clone here: both have the same id.

A process that is killed after the decision of a forced retirement leaves files that do not show it. They are recorded by the next
opening of these directories; the invariants ask for no more.

Invariants: README.md, Q1 to Q3.
"""

from itertools import combinations
from typing import NamedTuple

RULES = {
    "no_clones": ("QUORUM-1", "two directories with one id are refused"),
    "one_set": ("QUORUM-1", "directories of which none names the other one are two sets"),
    "either_names": ("QUORUM-1", "... it is enough that one of the two names the other: the one that was added later does"),
    "followed": ("QUORUM-1", "... and the relation is followed over several directories"),
    "last_generation": ("QUORUM-1", "after a forced retirement only the files of the last generation count"),
    "retired_by_each": ("QUORUM-1+", "directories of which each has retired a member of the other one are two sets"),
    "names_others": ("QUORUM-1", "a new directory names the other members before the decision that adds it"),
    "beside": ("QUORUM-1", "a recorded place is used only if the directory there has recorded an open one at its place"),
}


class Directory(NamedTuple):
    id: int
    members: frozenset = frozenset()    # ids that its file names; empty: it has none
    generation: int = 0
    log: tuple = ()                     # decisions: (number, members, generation)
    highest: int = -1                   # the highest id that its set had used when it recorded the members
    copied: bool = False                # it is a copy, in another place than the recorded one


class Process(NamedTuple):
    inside: frozenset = frozenset()     # directories, by their number in the state
    job: tuple = ()                     # what it does, and the directories to which it still writes


class State(NamedTuple):
    directories: tuple
    processes: tuple
    number: int = 1                     # of the next decision
    wrong: str = ""
    opens: int = 0                      # what may still happen
    decisions: int = 0
    kills: int = 0


class SetMembers:
    """The model; `off` names the rules that are switched off."""

    rules = RULES

    def __init__(self, off=(), processes=1, members=2, new=1, copies=0, opens=3, decisions=2, kills=1, forces=True, retires=True):
        self.off, self.processes = frozenset(off), processes
        self.members, self.new, self.copies = members, new, copies
        self.forces, self.retires = forces, retires
        self.bounds = {"opens": opens, "decisions": decisions, "kills": kills}

    def on(self, rule):
        return rule not in self.off

    def initial(self):
        everyone = frozenset(range(self.members))
        log = ((0, everyone, 0),)
        old = tuple(Directory(n, everyone, 0, log, self.members - 1) for n in range(self.members))
        new = tuple(Directory(self.members + n) for n in range(self.new))
        copies = tuple(directory._replace(copied=True) for directory in old[:self.copies])
        return State((*old, *new, *copies), (Process(),) * self.processes, **self.bounds)

    # -- invariants -------------------------------------------------------------------------

    def broken(self, state):
        return state.wrong or None

    def satisfied(self, state):
        return not state.opens or not state.decisions

    # -- steps ------------------------------------------------------------------------------

    def steps(self, state):
        for me, p in enumerate(state.processes):
            if p.job:
                yield from self._writes(state, me, p)
                if state.kills:
                    yield f"!{name(me)} is killed", become(state._replace(kills=state.kills - 1), me, Process())
            elif p.inside:
                yield from self._changes(state, me, p)
                yield f"{name(me)} closes", become(state, me, Process())
            elif state.opens:
                yield from self._open(state, me)

    # opening

    def _open(self, state, me):
        """An opening of any directories. The others of their set are away, or found at their recorded places."""
        known = [n for n, each in enumerate(state.directories) if each.members]
        for size in range(1, len(known) + 1):
            for given in combinations(known, size):
                if not any(state.directories[n].log for n in given):
                    continue
                copied = {state.directories[n].copied for n in given}
                clones = len({state.directories[n].id for n in given}) < size
                if len(copied) > 1 and not clones and self.on("no_clones"):
                    continue                         # what an operator mixes by hand is left to the registrations
                opened = state._replace(opens=state.opens - 1)
                label = f"{name(me)} opens {show(given)}"
                if self._refuses(state, given):
                    yield f"{label}: refused", opened._replace(wrong=self._refused_wrongly(state, given))
                    continue
                for found in sorted({given, self._found(state, given)}):
                    used = self._used(state, found)
                    after = opened._replace(wrong=self._used_wrongly(state, found))
                    yield f"{label}, and uses {show(used)}", become(after, me, Process(frozenset(used)))

    def _used(self, state, found):
        """Those that are members in the newest state of the last generation."""
        newest = max((state.directories[n] for n in found), key=self._advance)
        return tuple(n for n in found if state.directories[n].id in newest.log[-1][1])

    def _is_newest(self, state, inside, log):
        """Whether a log is still the newest one of the open directories, under their locks."""
        return max((state.directories[n] for n in inside), key=self._advance).log == log

    @staticmethod
    def _advance(directory):
        return directory.log[-1][2] if directory.log else -1, len(directory.log)

    def _used_wrongly(self, state, found):
        files = [state.directories[n] for n in found]
        if len({each.copied for each in files}) > 1:
            return "Q2 a copy of some directories uses the other ones of the original"
        recorded = [each for each in files if each.log and each.members == each.log[-1][1]]
        if any(differ(one.log, other.log) for one, other in combinations(recorded, 2)):
            return "Q1 directories of two sets are opened together"
        return ""

    def _refuses(self, state, given):
        """Whether an opening is refused, whichever of the newest files it begins with."""
        files = [state.directories[n] for n in given]
        if self.on("no_clones") and len({each.id for each in files}) < len(files):
            return True
        if not self.on("one_set"):
            return False
        last = max(each.generation for each in files)
        newest = [each for each in files if each.generation == last or not self.on("last_generation")]
        earlier = [each for each in files if each not in newest]
        for one, other in combinations(files, 2):
            if self.on("retired_by_each") and has_retired(one, other) and has_retired(other, one):
                return True
        linked = [self._linked(newest, first) for first in newest]
        whole = all(len(each) == len(newest) for each in linked)
        return not whole or any(not any(each.id in one.members for one in newest) for each in earlier)

    def _linked(self, files, first):
        """The files that are of one set with the first one."""
        linked = [first]
        left = [each for each in files if each is not first]
        while True:
            among = linked if self.on("followed") else [first]
            near = [each for each in left if any(self._related(each, one) for one in among)]
            if not near:
                return linked
            linked += near
            left = [each for each in left if each not in near]

    def _related(self, one, other):
        names = (other.id in one.members, one.id in other.members)
        return any(names) if self.on("either_names") else all(names)

    def _found(self, state, given):
        """The given directories, and those at recorded places."""
        newest = max((state.directories[n] for n in given), key=lambda each: (each.generation, len(each.log)))
        wanted = newest.log[-1][1] if newest.log else newest.members
        found = list(given)
        for n in sorted(wanted - {state.directories[n].id for n in given}):
            directory = state.directories[n]                       # the place that all files have recorded
            beside = any(not state.directories[m].copied and state.directories[m].id in directory.members for m in given)
            if directory.members and (beside or not self.on("beside")) and not self._refuses(state, (*found, n)):
                found.append(n)
        return tuple(found)

    def _refused_wrongly(self, state, given):
        """Directories of one history that are all members in its newest decision must open."""
        files = [state.directories[n] for n in given]
        newest = max(files, key=lambda each: len(each.log))
        if not newest.log or len({each.id for each in files}) < len(files):
            return ""
        one_history = not any(differ(one.log, other.log) for one, other in combinations(files, 2))
        if one_history and {each.id for each in files} == newest.log[-1][1]:
            return "Q3 the members of one set are refused"
        return ""

    # changes

    def _changes(self, state, me, p):
        if not state.decisions:
            return
        inside = [n for n in p.inside if state.directories[n].log]
        newest = max((state.directories[n] for n in inside), key=lambda each: (each.generation, len(each.log)))
        _, members, generation = newest.log[-1]
        here = {state.directories[n].id for n in inside} & members
        if not here:
            return
        if 2 * len(here) > len(members):
            for n in range(self.members, self.members + self.new):
                if state.directories[n].id not in members and not state.directories[n].members:
                    job = ("grow", newest.log, members | {n}, generation, n)
                    yield f"{name(me)} begins to add D{n}", become(state, me, p._replace(job=job))
            for each in sorted(members) if self.retires and len(members) > 1 else ():
                rest = members - {each}
                if 2 * len(here & rest) > len(rest):
                    job = ("decide", newest.log, rest, generation, NOBODY)
                    yield f"{name(me)} retires D{each}", become(state, me, p._replace(job=job))
        for each in sorted(members) if self.forces and len(members) > 1 else ():
            rest = members - {each}
            if 2 * len(here - {each}) > len(rest):
                job = ("decide", newest.log, rest, generation + 1, NOBODY)
                yield f"{name(me)} retires D{each} by force", become(state, me, p._replace(job=job))

    def _writes(self, state, me, p):
        what, log, members, generation, new = p.job
        if what == "grow" and state.directories[new].log:
            yield f"{name(me)} finds D{new} in use", become(state, me, p._replace(job=()))
        elif what == "grow":
            following = p._replace(job=("decide", *p.job[1:]))
            named = members if self.on("names_others") else frozenset({new})
            prepared = state.directories[new]._replace(members=named, generation=generation, highest=new)
            state = put(state, new, prepared)
            yield f"{name(me)} writes the members into D{new}", become(state, me, following)
        elif what == "decide" and not self._is_newest(state, p.inside, log):
            yield f"{name(me)} finds another decision", become(state, me, p._replace(job=()))
        elif what == "decide":
            decided = (*log, (state.number, members, generation))
            able = [*sorted(p.inside), *(() if new == NOBODY else (new,))]
            if generation > log[-1][2]:                            # by force: the others have no part in it
                able = [n for n in able if state.directories[n].id in members]
            after = state._replace(number=state.number + 1, decisions=state.decisions - 1)
            for n in able:
                after = put(after, n, after.directories[n]._replace(log=decided))
            able.sort(key=lambda n: state.directories[n].id not in members)          # the retired one is released last
            job = ("record", tuple(able), members, generation, new)
            yield f"{name(me)} decides: {show(sorted(members))}", become(after, me, p._replace(job=job))
        else:
            n = log[0]
            directory = state.directories[n]
            gone = directory.id not in members
            highest = max(max(each[1]) for each in directory.log)
            directory = directory._replace(
                members=frozenset() if gone else members, generation=generation, highest=highest)
            rest = log[1:]
            job = ("record", rest, members, generation, new) if rest else ()
            inside = p.inside if new == NOBODY else p.inside | {new}
            inside = frozenset(m for m in inside if state.directories[m].id in members)
            after = become(put(state, n, directory), me, p._replace(job=job, inside=inside))
            yield f"{name(me)} {'releases' if gone else 'records the members in'} D{n}", after


NOBODY = -1


def has_retired(one, other):
    """Whether the file of a directory lacks a member of another one that its set has had."""
    return any(each not in one.members and each <= one.highest for each in other.members)


def differ(one, other):
    """Whether neither of two logs continues the other one."""
    end = min(len(one), len(other))
    return one[:end] != other[:end]


def become(state, me, process):
    """The state after a process has changed."""
    return state._replace(processes=(*state.processes[:me], process, *state.processes[me + 1 :]))


def put(state, n, directory):
    """The state with another content of a directory."""
    return state._replace(directories=(*state.directories[:n], directory, *state.directories[n + 1 :]))


def show(nodes):
    return "{" + ",".join(f"D{n}" for n in nodes) + "}"


def name(me):
    return "PQR"[me]
