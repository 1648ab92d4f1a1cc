"""The parts of the model of one log: cells, segments, the page, processes, and their helpers.

Bytes are cells, one batch each. A cell has the content of the page cache, the content of the
disk, and whether the kernel still has to write it. So a failed sync (clean, yet not on disk) and a
truncation that a power loss undoes are both ordinary values. Everything here is a value: nothing changes in place.
"""

from itertools import product
from typing import NamedTuple

CAPACITY = 2          # batches that fit into one segment
TORN = "torn"         # half a batch



class Cell(NamedTuple):
    cache: object      # Batch, TORN or None (hole, or after the end)
    disk: object
    dirty: bool        # the kernel will still write it


class Batch(NamedTuple):
    offset: int
    epoch: int
    record: int


class Segment(NamedTuple):
    base: int
    cells: tuple = ()
    linked: bool = True                  # the name as processes see it
    named: bool = False                  # the name as the disk has it
    owes: frozenset = frozenset()        # descriptors that will get EIO at their next sync
    unseen: bool = False                 # a write-back error that no process has seen


class Page(NamedTuple):
    base: int                            # active segment
    size: int                            # its published cells
    end: int
    epoch: int
    owner: bool = False
    roll: bool = False
    syncing: bool = False                # the sync intent
    durable: int = 0
    poison: frozenset = frozenset()


class Process(NamedTuple):
    at: str = "out"
    target: int = -1                     # segment being written or synced
    spot: int = -1                       # cell to write
    offset: int = -1
    batch: object = None
    to: int = -1                         # a sync's end
    todo: tuple = ()                     # segments still to sync
    open: frozenset = frozenset()        # descriptors, by segment base
    fresh: frozenset = frozenset()       # those opened while published > durable
    stale: bool = False                  # opened in between (only without `open_then_compare`)
    look: tuple = ()                     # last read of the page (only without `catch_up`)


class State(NamedTuple):
    segments: tuple
    page: object
    processes: tuple
    writer: object = None                # holder of the append lock
    syncer: object = None                # holder of the sync lock
    durable_record: int = 0              # outlives a reboot
    marks: frozenset = frozenset()       # poison marker files
    epoch_cache: int = 0
    epoch_disk: int = 0
    rebooted: bool = False               # power was lost and no recovery has finished since
    damaged: bool = False                # opening refused: damage below `durable`
    rotten: bool = False                 # a bad sector is there, so refusing is right
    record: int = 1                      # next record to be written
    acked: frozenset = frozenset()       # (offset, record), within this boot
    safe: frozenset = frozenset()        # (offset, record), durably acknowledged
    seen: frozenset = frozenset()        # Batch, by any reader ever
    kills: int = 0
    cuts: int = 0                        # power losses left
    fails: int = 0                       # failed write-backs left
    writebacks: int = 0                  # kernel write-backs of its own left
    rots: int = 0


# -- small words -----------------------------------------------------------------------------

def name(me):
    return "ABC"[me]


def idle(p):
    """Between two calls a process keeps its descriptors and nothing else."""
    return Process(at="idle", open=p.open, fresh=p.fresh, look=p.look)


def become(state, me, process):
    return state._replace(processes=state.processes[:me] + (process,) + state.processes[me + 1:])


def bases(state):
    return frozenset(s.base for s in state.segments if s.linked)


def find(state, base):
    return next(s for s in state.segments if s.base == base and s.linked)


def swap(state, new, old=None):
    old = old or find(state, new.base)
    return state._replace(segments=tuple(new if s is old else s for s in state.segments))


def visible(segment):
    """Cells up to the end of the file as processes see it."""
    cells = list(segment.cells)
    while cells and cells[-1].cache is None:
        cells.pop()
    return cells


def batches(state):
    return [c.cache for s in state.segments if s.linked for c in s.cells if isinstance(c.cache, Batch)]


def published(state):
    """The records of a reader that trusts the page, or None if the page points at nothing."""
    page, found = state.page, []
    live = sorted((s for s in state.segments if s.linked), key=lambda s: s.base)
    for segment in live:
        if segment.base < page.base:
            found += [c.cache for c in visible(segment)]
        elif segment.base == page.base:
            cells = segment.cells[:page.size]
            return found + [c.cache for c in cells] if len(cells) == page.size else None
    return None


def see(state):
    return state._replace(seen=state.seen | {b for b in published(state) or () if isinstance(b, Batch)})


def publish(state, p):
    page = state.page._replace(base=p.target, size=p.spot + 1, end=p.offset + 1, roll=False)
    return state._replace(page=page)


def put(state, base, spot, content):
    segment = find(state, base)
    cells = list(segment.cells)
    while len(cells) <= spot:
        cells.append(Cell(None, None, False))
    cells[spot] = Cell(content, cells[spot].disk, True)
    return swap(state, segment._replace(cells=tuple(cells)))


def cut(segment, keep):
    """Truncate: the page cache forgets, the disk does not until a sync."""
    cells = segment.cells[:keep] + tuple(Cell(None, c.disk, True) for c in segment.cells[keep:])
    while cells and cells[-1].cache is None and cells[-1].disk is None:
        cells = cells[:-1]
    return segment._replace(cells=cells)


def unlink(segment):
    return segment._replace(linked=False) if segment.named else None


def open_descriptors(state, me, wanted):
    """A later opener gets an error that no process has seen yet."""
    return state._replace(segments=tuple(
        s._replace(owes=s.owes | {me}) if s.linked and s.unseen and s.base in wanted else s
        for s in state.segments))


def open_late(state, me, base):
    p = state.processes[me]
    if base in p.open:
        return state
    late = state.page.end > state.page.durable
    p = p._replace(open=p.open | {base}, fresh=p.fresh | {base} if late else p.fresh)
    return open_descriptors(become(state, me, p), me, {base})


def holders(state, base):
    return frozenset(n for n, p in enumerate(state.processes) if base in p.open)


def flushed(segment):
    cells = tuple(Cell(c.cache, c.cache, False) if c.dirty else c for c in segment.cells)
    while cells and cells[-1].cache is None and cells[-1].disk is None:
        cells = cells[:-1]
    return segment._replace(cells=cells)


def spoiled(segment, told):
    """A failed write-back: pages look clean, the disk keeps what it had."""
    cells = tuple(c._replace(dirty=False) for c in segment.cells)
    return segment._replace(cells=cells, owes=segment.owes | told)


def surviving(segments):
    """Every set of files that a power loss may leave."""
    choices = []
    for base in sorted({s.base for s in segments}):
        on_disk = [s for s in segments if s.base == base and s.named]
        in_cache = [s for s in segments if s.base == base and s.linked]
        variants = set()
        for files in (on_disk, in_cache):
            variants |= set(_contents(files[0])) if files else {None}
        choices.append(sorted(variants, key=repr))
    for chosen in product(*choices):
        yield tuple(s for s in chosen if s is not None)


def _contents(segment):
    options = [{c.cache, c.disk} if c.dirty else {c.disk} for c in segment.cells]
    for chosen in product(*options):
        while chosen and chosen[-1] is None:
            chosen = chosen[:-1]
        yield Segment(segment.base, tuple(Cell(x, x, False) for x in chosen), named=True)


def rotted(segments):
    for at, segment in enumerate(segments):
        for spot in range(len(segment.cells)):
            cells = segment.cells[:spot] + (Cell(TORN, TORN, False),) + segment.cells[spot + 1:]
            yield segments[:at] + (segment._replace(cells=cells),) + segments[at + 1:]


def show(segments):
    def word(cell):
        return "-" if cell.disk is None else "torn" if cell.disk == TORN else f"r{cell.disk.record}e{cell.disk.epoch}"
    return " ".join(f"{s.base}:[{','.join(map(word, s.cells))}]" for s in segments)
