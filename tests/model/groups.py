"""Model of groups (MEMBER): processes that share one partition, and an observer that evicts.

An append under the lock of the group's partition is one step here. Time is a step, too: except for `!`, anything may
happen before or after it. Ages and timers are counted up to SESSION, where they mean "as long as the session timeout";
the same number is the rebalance timeout. Only the first process freezes: any of them may come first or lead.
`lost` and `moment` are known to the checker and not to the protocol.
"""

from typing import NamedTuple

SESSION = 2
QUIET = ("new", "dead", "gone", "frozen")      # these write no heartbeats

RULES = {
    "commit_checked": ("MEMBER-6", "only a member of the present generation commits"),
    "checked_under_lock": ("MEMBER-6", "the check is in the step that appends the commit"),
    "joins_awaited": ("MEMBER-8+", "a join phase ends when all members have joined or were evicted"),
    "given_up_first": ("MEMBER-8+", "a member releases its partitions before it joins"),
    "assigned_when_stable": ("MEMBER-8+", "an assignment is taken from a stable record only, never during a join phase"),
    "position_when_stable": ("MEMBER-8+", "the position is read when the assignment is taken, not before"),
    "sync_fenced": ("MEMBER-8+", "a sync is accepted only in the generation that it was made for"),
    "expiry": ("MEMBER-3", "a member without a heartbeat for the session timeout is evicted"),
    "beats_reread": ("MEMBER-3", "heartbeats are read again under the lock, before the eviction"),
    "own_lease": ("MEMBER-4", "a member checks its own lease before it returns a record"),
    "gap_noticed": ("MEMBER-4+", "after a gap in its heartbeats a member stays expired until it has read the log"),
    "round_checked": ("MEMBER-3+", "a late member is late in the present round"),
    "nonce": ("LIFE-1", "the next user of a process slot is another member"),
    "static_stays": ("MEMBER-5", "a static member does not leave when its process dies"),
    "place_fences": ("MEMBER-5+", "a process that takes over a static member has an id of its own and ends the earlier one"),
}


class Member(NamedTuple):
    id: int
    slot: int
    life: int
    joined: bool
    owner: bool = False


class Group(NamedTuple):            # the newest record
    word: str = "Empty"             # Empty Preparing Completing Stable
    generation: int = 0
    round: int = 0
    leader: int = 0
    members: tuple = ()


class Process(NamedTuple):
    at: str
    life: int = 0
    id: int = 0
    generation: int = -1
    owns: bool = False
    position: int = 0
    age: int = 0                    # of its last heartbeat
    lapsed: bool = False            # it has noticed a gap between its heartbeats
    taker: int = 0                  # the next owner of the partition
    lost: bool = False              # it was evicted as expired, and has not read the group since


class Watch(NamedTuple):            # the observer's memory
    at: str = "look"                # look watch evict
    target: int = 0                 # a member's id, or 0: the round
    round: int = 0
    timer: int = 0
    moved: bool = False             # the target has written a heartbeat since


class State(NamedTuple):
    processes: tuple
    group: Group = Group()
    committed: int = 0
    handed: int = 0                 # records below it were returned by some member
    watch: Watch = Watch()
    moment: int = 0                 # how long the present round lasts
    next: int = 1                   # the next life or id
    problem: str = ""
    kills: int = 0
    stops: int = 0                  # how often the first one may freeze for good
    freezes: int = 0                # how often one may be evicted that only slept, without a check of clocks
    expiries: int = 0               # ... by the observer's clock
    lates: int = 0                  # ... as one that does not come in time
    more: tuple = ()                # of a model that extends this one


class Groups:
    """The model; `off` names the rules that are switched off."""

    rules = RULES

    def __init__(
        self, off=(), processes=2, records=1, kills=0, stops=0, freezes=0, expiries=0, lates=0, static=False, duplicates=False
    ):
        self.off, self.records, self.static = frozenset(off), records, static
        self.duplicates, self.expiring, self.lating = duplicates, expiries + stops > 0, lates > 0
        self.start = (Process("new"),) * processes
        self.faults = {"kills": kills, "stops": stops, "freezes": freezes, "expiries": expiries, "lates": lates}

    def on(self, rule):
        return rule not in self.off

    def initial(self):
        return State(self.start, **self.faults)

    # -- invariants -------------------------------------------------------------------------

    def broken(self, state):
        if state.problem:
            return state.problem
        known = {member.id for member in state.group.members}
        owners = [p for p in state.processes if p.owns and p.id in known]
        if len(owners) > 1:
            return "G1 two members own the partition at once"
        return None

    def satisfied(self, state):
        return state.committed == self.records

    # -- steps ------------------------------------------------------------------------------

    def steps(self, state):
        for me, p in enumerate(state.processes):
            yield from getattr(self, "_" + p.at)(state, me, p)
            if p.at not in QUIET and (p.age or (state.watch.target == p.id and not state.watch.moved)):
                yield f"{name(me)} writes a heartbeat", self._beat(state, me, p)
            if state.stops and me == 0 and p.at != "new":
                yield f"!{name(me)} freezes", become(state._replace(stops=state.stops - 1), me, p._replace(at="frozen"))
            if state.kills and p.at not in ("new", "dead", "gone"):
                dead = Process("dead", p.life, p.id, age=p.age)
                yield f"!{name(me)} is killed", become(state._replace(kills=state.kills - 1), me, dead)
            if state.freezes and member(state.group, p.id) is not None:
                after = record(state, self._without(state.group, p.id))
                yield f"!{name(me)} sleeps and is evicted", after._replace(freezes=state.freezes - 1)
        yield from self._bury(state)
        if self.expiring or self.lating:
            yield from self._observe(state)
            yield "time passes", self._later(state)

    def _gone(self, state, me, p):
        return ()

    _frozen = _gone

    def _dead(self, state, me, p):
        yield f"{name(me)} starts again", become(state, me, Process("new"))

    def _new(self, state, me, p):
        """A process, or one that was evicted, joins under a new id."""
        mine = [m for m in state.group.members if self.static and (self.duplicates or m.slot == me)]
        before = mine[0] if mine else None
        life = p.life or state.next
        fresh = state._replace(next=state.next + 1)
        keeps = before is not None and not self.on("place_fences")
        p = p._replace(at="wait", life=life, id=before.id if keeps else state.next, position=state.committed)
        if before is not None and p.life != before.life:
            group = replaced(state.group, before.id, before._replace(id=p.id, slot=me, life=p.life))
            group = group._replace(leader=p.id if group.leader == before.id else group.leader)
            if group.word == "Preparing":
                group = self._advance(replaced(group, p.id, member(group, p.id)._replace(joined=True)))
            elif group.word == "Completing":
                group = self._prepare(group, p.id)
            yield f"{name(me)} takes the place of {before.id}", become(record(fresh, group), me, p)
            return
        group = state.group._replace(members=state.group.members + (Member(p.id, me, p.life, True),))
        group = group._replace(leader=group.leader or p.id)
        group = self._advance(group) if group.word == "Preparing" else self._prepare(group, p.id)
        yield f"{name(me)} joins as {p.id}", become(record(fresh, group), me, p)

    def _join(self, state, me, p):
        """A known member comes again."""
        here = member(state.group, p.id)
        if here is None:
            yield f"{name(me)} is unknown", self._out(state, me, p)
            return
        p = p._replace(at="wait", position=state.committed)
        group = replaced(state.group, p.id, here._replace(joined=True))
        yield f"{name(me)} joins again", become(record(state, self._advance(group)), me, p)

    def _wait(self, state, me, p):
        """Read the record until the round is over."""
        group = state.group
        here = member(group, p.id)
        seen = p._replace(lapsed=False, lost=False)
        if here is None:
            yield f"{name(me)} finds itself out", self._out(state, me, p)
        elif group.word == "Completing" and group.leader == p.id:
            for taker in group.members:
                assigning = seen._replace(at="assign", generation=group.generation, taker=taker.id)
                yield f"{name(me)} assigns to {taker.id}", become(state, me, assigning)
        elif group.word == "Stable" or (not self.on("assigned_when_stable") and here.owner):
            position = state.committed if self.on("position_when_stable") else p.position
            taken = seen._replace(at="read", generation=group.generation, owns=here.owner, position=position)
            yield f"{name(me)} takes its share of generation {group.generation}", become(state, me, taken)
        elif not here.joined:
            yield f"{name(me)} has to join again", become(state, me, self._give_up(p)._replace(at="join"))

    def _assign(self, state, me, p):
        group = state.group
        mine = group.word == "Completing" and group.generation == p.generation and group.leader == p.id
        if mine or not self.on("sync_fenced"):
            shared = tuple(m._replace(owner=m.id == p.taker) for m in group.members)
            state = record(state, group._replace(word="Stable", round=group.round + 1, members=shared))
            yield f"{name(me)} syncs", become(state, me, p._replace(at="wait"))
        else:
            yield f"{name(me)} cannot sync", become(state, me, p._replace(at="wait"))

    def _read(self, state, me, p):
        """Hand records out, commit, look."""
        unsure = p.lapsed or (p.age >= SESSION)
        if p.owns and p.position < self.records and not (unsure and self.on("own_lease")):
            after = become(state._replace(handed=max(state.handed, p.position + 1)), me, p._replace(position=p.position + 1))
            if p.lost:
                after = after._replace(problem="G4 a record is returned by a member with an expired lease")
            yield f"{name(me)} returns record {p.position}", after
        if p.owns and p.position > 0:
            if self.on("checked_under_lock"):
                yield self._commit_now(state, me, p)
            elif self._admits(state, p):
                yield f"{name(me)} may commit", become(state, me, p._replace(at="commit"))
        group, here = state.group, member(state.group, p.id)
        if here is None:
            yield f"{name(me)} finds itself out", self._out(state, me, p)
        elif (group.word, group.generation) != ("Stable", p.generation):
            again = self._give_up(p)._replace(at="wait" if here.joined else "join", lapsed=False, lost=False)
            yield f"{name(me)} detects that it is not in the group", become(state, me, again)
        elif unsure:
            state = self._beat(state, me, p)
            yield f"{name(me)} reads the group: still a member", become(state, me, state.processes[me]._replace(lapsed=False))

    def _commit(self, state, me, p):
        yield self._commit_now(state, me, p, checked=True)

    def _commit_now(self, state, me, p, checked=False):
        if not checked and self.on("commit_checked") and not self._admits(state, p):
            return f"{name(me)} may not commit", become(state, me, self._give_up(p)._replace(at="wait"))
        after = state._replace(committed=p.position)
        if p.position < state.committed:
            after = after._replace(problem=f"G2 the committed offset falls from {state.committed} to {p.position}")
        elif p.position > state.handed:
            after = after._replace(problem="G2 a record is skipped")
        return f"{name(me)} commits {p.position}", become(after, me, p._replace(at="read"))

    def _admits(self, state, p):
        group = state.group
        return member(group, p.id) is not None and group.generation == p.generation and group.word != "Completing"

    def _give_up(self, p):
        return p._replace(owns=False) if self.on("given_up_first") else p

    def _out(self, state, me, p):
        """Evicted, it joins under a new id; a process whose place is taken by its static id joins no more."""
        return become(state, me, Process("gone" if self.duplicates and state.group.members else "new", p.life))

    # the life of a member

    def _beat(self, state, me, p):
        watch = state.watch
        if watch.target == p.id:
            watch = watch._replace(moved=True)
        after = p._replace(age=0, lapsed=p.lapsed or (p.age >= SESSION and self.on("gap_noticed")))
        return become(state._replace(watch=watch), me, after)

    def _later(self, state):
        first, *others = state.processes
        if self.expiring and first.at not in ("new", "dead", "gone"):
            first = first._replace(age=min(first.age + 1, SESSION))
        watch = state.watch
        if watch.at == "watch":
            watch = watch._replace(timer=min(watch.timer + 1, SESSION))
        return state._replace(processes=(first, *others), watch=watch, moment=min(state.moment + self.lating, SESSION))

    # the observer

    def _bury(self, state):
        for each in state.group.members:
            if self._is_dead(state, each) and not (self.static and self.on("static_stays")):
                after = record(state, self._without(state.group, each.id))
                if self.static:
                    after = after._replace(problem="G5 a static member loses its place when its process dies")
                yield f"the observer finds {each.id} dead", after

    def _observe(self, state):
        group, watch = state.group, state.watch
        if watch.at == "look" and self.on("expiry"):
            for each in (m for m in group.members if m.slot == 0 and self.expiring):
                yield f"the observer reads the heartbeat of {each.id}", state._replace(watch=Watch("watch", each.id))
            if group.word == "Preparing" and self.lating:
                yield "the observer reads the round", state._replace(watch=Watch("watch", 0, group.round))
        elif watch.at == "watch":
            if watch.moved or (watch.target and member(group, watch.target) is None):
                yield "the observer reads again", state._replace(watch=Watch())
            elif not watch.target and watch.round != group.round:
                yield "the observer sees another round", state._replace(watch=Watch())
            elif watch.timer >= SESSION:
                yield "the observer's timer has run out", state._replace(watch=watch._replace(at="evict"))
        elif watch.at == "evict":
            yield from self._evict(state._replace(watch=Watch()), watch)

    def _evict(self, state, watch):
        group = state.group
        if not watch.target:
            if group.word == "Preparing" and (group.round == watch.round or not self.on("round_checked")):
                yield from self._drop_late(state)
            else:
                yield "the observer finds the round over", state
            return
        here = member(group, watch.target)
        if here is None or (watch.moved and self.on("beats_reread")):
            yield "the observer thinks better of it", state
            return
        me = here.slot
        p = state.processes[me]
        lives = p.id == here.id and p.at not in ("dead", "frozen")
        if lives and not state.expiries:
            return
        after = record(state, self._without(group, here.id))
        if lives:
            after = become(after._replace(expiries=state.expiries - 1), me, p._replace(lost=True))
            if p.age < SESSION:
                after = after._replace(problem="G3 a member is evicted after a new heartbeat")
        yield f"the observer evicts {here.id}", after

    def _drop_late(self, state):
        group = state.group
        late = [m for m in group.members if not m.joined]
        if not late or not state.lates:
            return
        after = state._replace(lates=state.lates - 1)
        for each in late:
            group = self._without(group, each.id)
        after = record(after, group)
        if state.moment < SESSION:
            after = after._replace(problem="G3 a member is dropped as late in a round that has only begun")
        yield "the observer removes late members", after

    def _is_dead(self, state, each):
        """The lock on its slot is free, or another process has it."""
        holder = state.processes[each.slot]
        if holder.at == "dead" or not holder.life:
            return True
        return holder.life != each.life and self.on("nonce")

    # the pure rules

    def _prepare(self, group, here):
        members = tuple(m._replace(joined=m.id == here) for m in group.members)
        return self._advance(group._replace(word="Preparing", round=group.round + 1, members=members))

    def _advance(self, group):
        if group.word != "Preparing":
            return group
        missing = [m for m in group.members if not m.joined]
        if missing and (self.on("joins_awaited") or len(missing) == len(group.members)):
            return group
        if not group.members:
            return Group("Empty", group.generation + 1, group.round + 1)
        members = tuple(m._replace(owner=False) for m in group.members)
        return group._replace(word="Completing", generation=group.generation + 1, round=group.round + 1, members=members)

    def _without(self, group, gone):
        members = tuple(m for m in group.members if m.id != gone)
        leader = group.leader if group.leader != gone else (members[0].id if members else 0)
        left = group._replace(members=members, leader=leader)
        return self._advance(left) if group.word == "Preparing" else self._prepare(left, 0)


# -- small words -----------------------------------------------------------------------------

def name(me):
    return "ABC"[me]


def become(state, me, process):
    return state._replace(processes=state.processes[:me] + (process,) + state.processes[me + 1:])


def member(group, wanted):
    return next((m for m in group.members if m.id == wanted), None)


def replaced(group, wanted, new):
    return group._replace(members=tuple(new if m.id == wanted else m for m in group.members))


def record(state, group):
    """Append; a new round has a clock of its own."""
    return state._replace(group=group, moment=0 if group.round != state.group.round else state.moment)
