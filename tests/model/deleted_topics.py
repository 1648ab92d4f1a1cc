"""Models how topics are deleted and created again in a set (REPLICA-23, DIR-3): decisions, committed offsets, directories.

One topic name. A topic is decided under an id that no earlier topic had. Each directory has a replica of its one partition,
which is made there when it is used, and one group has one committed offset under the name. A process begins an operation at any
time: it deletes the topic, creates it, commits an offset, or looks for what a deletion has left. It may stop between any two
steps, and be killed there. A directory fails and returns. The lock is that of the group's partition of `__consumer_offsets`.

Before it takes that lock, a process knows the decisions that it had read when it began. Under the lock it reads the newest one:
which copy shows that is the subject of `decision_hints.py`. Elections of that partition are in `replica_groups.py`.

Invariants: README.md, O1 to O3 and I7.
"""

from typing import NamedTuple

NONE = 0                          # no topic, no offset, no replica
FREE = -1                         # nobody has the lock

RULES = {
    "decided_first": ("REPLICA-23", "the offsets are deleted after the decision that deletes the topic"),
    "offsets_first": ("REPLICA-23", "... and before the replicas, which show what is left to do"),
    "commit_checks": ("DIR-3", "a commit checks under the lock that the topic exists"),
    "commit_id": ("DIR-3+", "... with the id of the topic that its offset is of"),
    "newer_kept": ("REPLICA-23", "the offsets of a newer topic of that name stay"),
    "forgets_first": ("REPLICA-23", "before a creation the offsets of the name are deleted, under the lock"),
    "none_removed": ("REPLICA-23+", "... and the creation counts only if no decision has deleted a topic since that began"),
    "by_id": ("REPLICA-23", "a directory loses a replica by the id of its topic, not by the name"),
    "settled": ("QUORUM-7", "an id that a process does not know is deleted only after a settlement shows no topic of it"),
    "tended": ("REPLICA-23", "any process completes a deletion whose replicas it finds in a directory"),
}


class Process(NamedTuple):
    at: str = "idle"
    job: str = ""
    id: int = NONE                # the topic that it works on: to be deleted, or of the offset to be committed
    live: int = NONE              # the topic of the name when it began: it does not know a later one
    removed: int = NONE           # the topic that was deleted last, when it began
    todo: tuple = ()              # directories in which it deletes the replica


class State(NamedTuple):
    processes: tuple
    replicas: tuple               # of each directory: the topic whose records its replica has
    away: frozenset = frozenset()
    live: int = 1                 # the topic that is decided now
    newest: int = 1               # the last id
    removed: int = NONE           # the topic that was deleted last
    offset: int = NONE            # the topic that the committed offset is of
    lock: int = FREE
    wrong: str = ""
    creates: int = 0              # operations and faults that may still come
    deletes: int = 0
    commits: int = 0
    kills: int = 0
    fails: int = 0


class DeletedTopics:
    """The model; `off` names the rules that are switched off."""

    rules = RULES

    def __init__(self, off=(), processes=2, directories=2, creates=1, deletes=1, commits=1, kills=1, fails=1):
        self.off, self.processes, self.count = frozenset(off), processes, directories
        self.bounds = {"creates": creates, "deletes": deletes, "commits": commits, "kills": kills, "fails": fails}

    def on(self, rule):
        return rule not in self.off

    def initial(self):
        return State((Process(),) * self.processes, (1,) * self.count, **self.bounds)

    # -- invariants -------------------------------------------------------------------------

    def broken(self, state):
        if state.live and state.offset not in (NONE, state.live):
            return "O1 a topic starts at the offset of a deleted one"
        return state.wrong or None

    def satisfied(self, state):
        left = any(each not in (NONE, state.live) for each in (state.offset, *state.replicas))
        return not left and all(p.at == "idle" for p in state.processes)

    # -- steps ------------------------------------------------------------------------------

    def steps(self, state):
        for me, p in enumerate(state.processes):
            yield from getattr(self, "_" + p.at)(state, me, p)
            if state.kills and p.at != "idle":
                lock = FREE if state.lock == me else state.lock
                after = become(state._replace(kills=state.kills - 1, lock=lock), me, Process())
                yield f"!{name(me)} is killed", after
        for n in range(self.count):
            yield from self._use(state, n)
            if n in state.away:
                yield f"D{n} returns", state._replace(away=state.away - {n})
            elif state.fails:
                yield f"!D{n} fails", state._replace(away=state.away | {n}, fails=state.fails - 1)

    def _use(self, state, n):
        """The replica of the decided topic is made in a directory, in the place of an earlier one."""
        held = state.replicas[n]
        if n in state.away or not state.live or held == state.live:
            return
        if held and not self.on("by_id"):
            yield f"D{n} is used with its records of t{held}", state._replace(wrong="O2 a topic has records of a deleted one")
        else:
            yield f"D{n} gets a replica of t{state.live}", put(state, n, state.live)

    def _idle(self, state, me, p):
        begun = Process(live=state.live, removed=state.removed)
        if state.deletes and state.live:
            first = "decide" if self.on("decided_first") else "lock"
            after = become(state._replace(deletes=state.deletes - 1), me, begun._replace(at=first, job="delete", id=state.live))
            yield f"{name(me)} begins to delete t{state.live}", after
        if state.creates:
            first = "lock" if self.on("forgets_first") else "create"
            after = become(state._replace(creates=state.creates - 1), me, begun._replace(at=first, job="create"))
            yield f"{name(me)} begins to create a topic", after
        if state.commits and state.live and state.live in state.replicas:      # a record of it was read
            after = become(state._replace(commits=state.commits - 1), me, begun._replace(at="lock", job="commit", id=state.live))
            yield f"{name(me)} begins to commit an offset of t{state.live}", after
        yield f"{name(me)} begins to look at the directories", become(state, me, begun._replace(at="look", job="tend"))

    # the decisions

    def _decide(self, state, me, p):
        if state.live == p.id:
            after = become(state._replace(live=NONE, removed=p.id), me, self._follows(p))
            yield f"{name(me)} decides: t{p.id} is deleted", after
        else:
            yield f"{name(me)} finds t{p.id} deleted", become(state, me, Process())

    def _follows(self, p):
        """A process after the decision, with what is left to do."""
        if not self.on("decided_first"):
            return self._retires(p)
        return p._replace(at="lock") if self.on("offsets_first") else self._retires(p)

    def _retires(self, p):
        return p._replace(at="retire", todo=tuple(range(self.count)))

    def _create(self, state, me, p):
        if state.live:
            yield f"{name(me)} finds t{state.live}", become(state, me, Process())
            return
        if self.on("none_removed") and state.removed != p.removed:
            begun = Process("lock", "create", live=state.live, removed=state.removed)
            yield f"{name(me)} finds t{state.removed} deleted, and begins again", become(state, me, begun)
            return
        new = state.newest + 1
        yield f"{name(me)} decides: t{new} is created", become(state._replace(live=new, newest=new), me, Process())

    # the committed offset

    def _lock(self, state, me, p):
        if state.lock != FREE:
            return
        held = state._replace(lock=me)
        if p.job != "commit":
            yield f"{name(me)} locks the offsets", become(held, me, p._replace(at="forget"))
            return
        live = state.live if self.on("commit_checks") else p.live
        same = live == p.id or (live and not self.on("commit_id"))
        if same:
            yield f"{name(me)} locks the offsets and finds its topic", become(held, me, p._replace(at="commit"))
        else:
            yield f"{name(me)} finds t{p.id} deleted", become(state, me, Process())

    def _commit(self, state, me, p):
        after = state._replace(offset=p.id, lock=FREE)
        yield f"{name(me)} commits an offset of t{p.id}", become(after, me, Process())

    def _forget(self, state, me, p):
        free = not state.live or not self.on("decided_first")
        offset = state.offset
        if free or not self.on("newer_kept"):
            if offset and offset == state.live and self.on("decided_first"):
                state = state._replace(wrong="O3 what belongs to a topic is deleted, although no decision has deleted the topic")
            offset = NONE
        following = Process()
        if p.job == "create":
            following = p._replace(at="create")
        elif p.job == "delete" and not self.on("decided_first"):
            following = p._replace(at="decide")
        elif self.on("offsets_first"):
            following = self._retires(p)
        what = "deletes the offset" if offset != state.offset else "finds no offset to delete"
        yield f"{name(me)} {what}", become(state._replace(offset=offset, lock=FREE), me, following)

    # the directories

    def _retire(self, state, me, p):
        n = p.todo[0]
        held = state.replicas[n]
        if n not in state.away and held and (held == p.id or not self.on("by_id")):
            if held == state.live:
                state = state._replace(wrong="O3 what belongs to a topic is deleted, although no decision has deleted the topic")
            state = put(state, n, NONE)
            what = f"removes t{held} from D{n}"
        else:
            what = f"removes nothing from D{n}"
        following = p._replace(todo=p.todo[1:])
        if not following.todo:
            following = p._replace(at="lock") if p.job != "create" and not self.on("offsets_first") else Process()
        yield f"{name(me)} {what}", become(state, me, following)

    def _look(self, state, me, p):
        """The housekeeper finds the replica of a topic that it does not know."""
        for held in sorted({each for n, each in enumerate(state.replicas) if n not in state.away} - {NONE}):
            unknown = held != p.live
            if self.on("settled"):
                unknown = unknown and held != state.live
            if unknown and self.on("tended"):
                following = p._replace(at="lock", id=held) if self.on("offsets_first") else self._retires(p._replace(id=held))
                yield f"{name(me)} finds t{held}, of which it knows no topic", become(state, me, following)
        yield f"{name(me)} ends its look", become(state, me, Process())


def become(state, me, process):
    """The state after a process has changed."""
    return state._replace(processes=(*state.processes[:me], process, *state.processes[me + 1 :]))


def put(state, n, topic):
    """The state with the replica of this topic in a directory."""
    return state._replace(replicas=(*state.replicas[:n], topic, *state.replicas[n + 1 :]))


def name(me):
    return "PQR"[me]
