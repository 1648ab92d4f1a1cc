"""Models what shows that a replica is complete after kills and power losses (REPLICA-13): clean mark, DIRTY mark, control page.

One replica in one directory. Processes open the directory, load the replica, write, and close; each may be killed between any
two steps. A power loss takes every process, every mark without a sync, and every record without one. An operator may put the
directory back to a copy of the same opening, as a snapshot of a file system does. Registrations: `registrations.py`.

Invariants: README.md, C1 and C2.
"""

from typing import NamedTuple

OUT, OPEN, LOADED = "out", "open", "loaded"
CLOSING = 4                        # the first step of a close, which has the open lock, as an opening
NOTHING, KEPT, ROLE = 0, 1, 2      # what the control page shows

RULES = {
    "unmarked": ("REPLICA-13", "a replica without the DIRTY mark is as its last orderly close left it: complete"),
    "unmarked_loads": ("REPLICA-13", "... so a load makes no mark"),
    "marked_after_loss": ("REPLICA-13", "after a loss of the page cache the first process marks every replica"),
    "marked_first": ("REPLICA-13", "... before it records the present page cache"),
    "cache_first": ("REPLICA-13", "the first process records the page cache before it removes the clean mark"),
    "in_place": ("REPLICA-13", "the record of a copied directory proves nothing"),
    "page_kept": ("REPLICA-13", "a load replaces the control page without a moment in which it shows nothing"),
    "kept_shown": ("REPLICA-13", "the new control page shows that the replica is complete, before it has a role"),
    "same_cache": ("REPLICA-13", "a control page of another page cache shows nothing"),
    "waiting_stays": ("REPLICA-13", "an orderly close leaves the mark of a replica that waits for other members"),
    "complete_closes": ("REPLICA-13", "... and removes that of a complete one, also without a role"),
}


class Page(NamedTuple):
    boot: int = 0
    shows: int = ROLE
    opening: int = 0           # it counts for the processes of this opening


class State(NamedTuple):
    processes: tuple                       # (mode, step)
    clean: bool = True                     # the clean mark of the directory
    marked: bool = False                   # the DIRTY mark of the replica, and whether it is on disk
    mark_synced: bool = False
    recorded: int = 0                      # the page cache that the directory has recorded
    placed: bool = True                    # the page of the directory is the one that was written here
    opening: int = 0
    boot: int = 0
    page: Page = Page()
    unsynced: bool = False                 # acknowledged records are not on disk
    whole: bool = True                     # no acknowledged record is missing
    lossless: bool = True                  # only kills since the replica was complete for the last time
    copy: tuple = ()
    kills: int = 0
    cuts: int = 0
    copies: int = 0


class CrashedReplicas:
    """The model; `off` names the rules that are switched off."""

    rules = RULES

    def __init__(self, off=(), processes=2, openings=3, kills=2, cuts=0, copies=0):
        self.off, self.processes, self.openings = frozenset(off), processes, openings
        self.faults = {"kills": kills, "cuts": cuts, "copies": copies}

    def on(self, rule):
        return rule not in self.off

    def initial(self):
        return State(((OUT, 0),) * self.processes, boot=1, **self.faults)      # closed in order before a restart

    # -- invariants -------------------------------------------------------------------------

    def broken(self, state):
        if (LOADED, 0) not in state.processes:
            return None
        complete = state.page.shows != NOTHING
        if complete and not state.whole:
            return "C1 a replica that lost an acknowledged record counts as complete"
        if not complete and state.lossless:
            return "C2 a replica that lost nothing does not count as complete"
        return None

    def satisfied(self, state):
        return (LOADED, 0) in state.processes or state.opening >= self.openings

    # -- steps ------------------------------------------------------------------------------

    def steps(self, state):
        for me, (mode, step) in enumerate(state.processes):
            name = "PQR"[me]
            if mode == OUT:
                if step or not any((other[0] == OUT and other[1]) or other[1] >= CLOSING for other in state.processes):
                    yield from self._open(state, me, name, step)
            elif mode == OPEN:
                if step or not any(other[0] != OUT and other[1] for other in state.processes):     # the append lock
                    yield from self._load(state, me, name, step)
            elif step or not any(other[0] != OUT and other[1] for other in state.processes):
                yield from self._use(state, me, name, step)
            if state.kills and (mode != OUT or step):
                yield f"! {name} is killed", become(state, me, OUT)._replace(kills=state.kills - 1)
        yield from self._losses(state)

    def _losses(self, state):
        nobody = ((OUT, 0),) * self.processes
        if state.cuts:
            lost = state.unsynced
            after = state._replace(processes=nobody, boot=state.boot + 1, cuts=state.cuts - 1, unsynced=False,
                                   marked=state.marked and state.mark_synced, whole=state.whole and not lost,
                                   lossless=state.lossless and state.clean)
            yield "! power loss", after
            if state.marked and not state.mark_synced:
                yield "! power loss, the mark stays", after._replace(marked=True, mark_synced=True)
        if state.copies and not state.clean:
            if not state.copy:
                copy = (state.opening, state.marked, state.recorded, state.page)
                yield "! an operator copies the directory", state._replace(copy=copy)
            elif state.copy[0] == state.opening and state.processes == nobody:
                _, marked, recorded, page = state.copy
                restored = state._replace(copies=state.copies - 1, copy=(), marked=marked, mark_synced=marked, recorded=recorded,
                                          page=page._replace(boot=-1), placed=False, lossless=False,
                                          whole=state.whole and not state.unsynced, unsynced=False)
                yield "! an operator puts the directory back", restored

    # opening: 0 marks and cache, 1 the clean mark, 2 the incarnation

    def _open(self, state, me, name, step):
        first = not any(mode != OUT for mode, _ in state.processes)
        if step == 0 and not first:
            yield f"{name} opens, too", become(state, me, OPEN)
        elif step == 0 and state.opening < self.openings:
            yield f"{name} opens: the page cache", become(self._record(state), me, OUT, 1)
        elif step == 1:
            yield f"{name} opens: the clean mark", become(state._replace(clean=False), me, OUT, 2)
        elif step == 2:
            after = state._replace(opening=state.opening + 1, recorded=state.boot, placed=True)
            late = not self.on("marked_first") and self._mark_after_loss(state) != state
            yield f"{name} opens: the incarnation", become(after, me, OUT, 3) if late else become(after, me, OPEN)
        elif step == 3:
            yield f"{name} marks the replica late", become(state._replace(marked=True), me, OPEN)

    def _record(self, state):
        if state.clean:
            return state._replace(recorded=state.boot, placed=True) if self.on("cache_first") else state
        return self._mark_after_loss(state) if self.on("marked_first") else state

    def _mark_after_loss(self, state):
        same = state.recorded == state.boot and (state.placed or not self.on("in_place"))
        if same or not self.on("marked_after_loss"):
            return state
        return state._replace(marked=True, mark_synced=state.mark_synced and state.marked)

    # loading: 0 reads, 1 and 2 write the page

    def _load(self, state, me, name, step):
        if step == 0 and state.page.opening == state.opening:
            yield f"{name} finds the page", become(state, me, LOADED)
        elif step == 0:
            marks = not self.on("unmarked_loads")
            yield f"{name} reads the files", become(state._replace(marked=state.marked or marks), me, OPEN, 1 + self._kept(state))
        elif not self.on("page_kept") and state.page.shows and state.page.opening != -1:
            yield f"{name} clears the page", become(state._replace(page=Page(state.boot, NOTHING, -1)), me, OPEN, step)
        else:
            shows = KEPT if step == 2 and self.on("kept_shown") else NOTHING
            if step == 2 and not self.on("kept_shown") and not state.marked:
                shows = KEPT                                       # the missing mark shows it, until it is made
            yield f"{name} publishes the page", become(state._replace(page=Page(state.boot, shows, state.opening)), me, LOADED)

    def _kept(self, state):
        same = state.page.boot == state.boot or not self.on("same_cache")
        return (not state.marked and self.on("unmarked")) or (same and state.page.shows != NOTHING)

    # using it: 1 to 3 write a record, the later ones close

    def _use(self, state, me, name, step):
        complete = state.page.shows != NOTHING
        if step == 0 and not complete:
            recovered = state._replace(page=state.page._replace(shows=ROLE), whole=True, lossless=True, marked=True)
            yield f"{name} reaches all members: it leads", recovered
        elif step == 0 and not state.unsynced:
            after = state if state.marked else state._replace(marked=True, mark_synced=False)
            if not self.on("kept_shown") and state.page.shows == KEPT:
                after = after._replace(page=state.page._replace(shows=NOTHING))
            yield f"{name} marks it", become(after, me, LOADED, 2 if state.marked else 1)
        elif step == 1:
            yield f"{name} syncs the mark", become(state._replace(mark_synced=True), me, LOADED, 2)
        elif step == 2:
            yield f"{name} installs a decision", become(state._replace(page=state.page._replace(shows=ROLE)), me, LOADED, 3)
        elif step == 3:
            yield f"{name} writes a record", become(state._replace(unsynced=True), me, LOADED)
        if step == 0 and sum(mode != OUT for mode, _ in state.processes) == 1:
            yield f"{name} syncs the records", become(state._replace(unsynced=False), me, LOADED, CLOSING)
        elif step == CLOSING:
            stays = self._stays_marked(state)
            after = state._replace(marked=stays, mark_synced=stays, lossless=state.lossless or not stays)
            yield f"{name} {'leaves' if stays else 'removes'} the DIRTY mark", become(after, me, LOADED, CLOSING + 1)
        elif step == CLOSING + 1:
            yield f"{name} writes the clean mark", become(state._replace(clean=True), me, OUT)

    def _stays_marked(self, state):
        if not state.marked or state.page.shows == ROLE:
            return False
        if state.page.shows == KEPT:
            return not self.on("complete_closes")
        return self.on("waiting_stays")


def become(state, me, mode, step=0):
    """The state after a step of a process."""
    return state._replace(processes=(*state.processes[:me], (mode, step), *state.processes[me + 1 :]))
