"""Model of one partition's log: append, roll, repair, sync, power loss (APPEND, SYNC, LOAD).

Worst cases that are built in, to keep the space small:
  - an acknowledgement leaves in the same step as the publishing store, before the unlock
  - a reader sees everything in the moment in which it is published (`seen`)
  - durable acknowledgements leave in the step that raises `durable`
"""

from append_state import (
    CAPACITY,
    TORN,
    Batch,
    Page,
    Process,
    Segment,
    State,
    bases,
    batches,
    become,
    cut,
    find,
    flushed,
    holders,
    idle,
    name,
    open_descriptors,
    open_late,
    publish,
    published,
    put,
    rotted,
    see,
    show,
    spoiled,
    surviving,
    swap,
    unlink,
    visible,
)

# switch -> (rule of the protocol, its requirement). "+" marks later additions to the rules.
RULES = {
    "append_lock": ("APPEND-1", "one writer at a time"),
    "catch_up": ("APPEND-1", "the position is read from the page after locking, not before"),
    "owner_word": ("APPEND-2", "the successor of a dead writer repairs first"),
    "roll_intent": ("APPEND-2", "a roll records its intent before it creates a file"),
    "adopt": ("APPEND-3", "valid batches after the published end are recovered, not truncated"),
    "publish_once": ("APPEND-4", "one store changes the whole tuple"),
    "publish_last": ("APPEND-1", "write first, publish afterwards"),
    "epoch_check": ("APPEND-3", "a chain is valid only if its epochs do not fall"),
    "sync_lock": ("SYNC-1", "one sync at a time"),
    "sync_intent": ("SYNC-1", "a sync stores its intent; a process that finds one rewrites first"),
    "intent_poisons": ("SYNC-5+", "an intent of a dead process counts as a failed sync: poison, then rewrite"),
    "fresh_rewrite": ("SYNC-6", "a descriptor opened while published > durable rewrites first"),
    "open_then_compare": ("SYNC-6+", "open the descriptor first, compare published with durable after"),
    "poison": ("SYNC-4", "a failed sync marks the segment"),
    "poison_file": ("SYNC-4", "the mark is a file before it is a field of the page"),
    "poison_rewrite": ("SYNC-4+", "`durable` passes a poisoned segment only after a rewrite"),
    "poison_roll": ("SYNC-4", "no process appends to a poisoned segment"),
    "durable_only": ("SYNC-1", "durable acknowledgements depend on `durable`"),
    "all_segments": ("SYNC-3", "a sync covers every segment that contains [durable, end)"),
    "directory_sync": ("SYNC-3", "new names are synced before `durable` passes them"),
    "durable_record": ("LOAD-4", "a bad batch below the stored `durable` is damage, not a torn tail"),
    "new_epoch": ("LOAD-1", "an unclean recovery after a restart begins a new epoch"),
    "epoch_synced": ("LOAD-1+", "the new epoch is on disk before the first append in it"),
}

WRITING = {"half", "whole", "torn_tuple", "repair", "adopted", "roll"}


class Append:
    """The model; `off` names the rules that are switched off."""

    rules = RULES

    def __init__(self, off=(), processes=2, records=2, kills=1, cuts=1, fails=0, writebacks=0,
                 rots=0, syncs=True):
        self.off = frozenset(off)
        self.processes, self.records, self.syncs = processes, records, syncs
        self.faults = {"kills": kills, "cuts": cuts, "fails": fails, "writebacks": writebacks, "rots": rots}

    def on(self, rule):
        return rule not in self.off

    def initial(self):
        first = Segment(0, named=True)
        return State((first,), None, (Process(),) * self.processes, **self.faults)

    # -- invariants -------------------------------------------------------------------------

    def broken(self, state):
        return (self._two_writers(state) or self._page_lies(state) or self._lost(state)
                or self._changed(state) or self._overlap(state))

    def _two_writers(self, state):
        if sum(p.at in WRITING for p in state.processes) > 1:
            return "I6 two processes write at once"
        return None

    def _page_lies(self, state):
        if state.page is None:
            return None
        below = published(state)
        if below is None or len(below) != state.page.end:
            return "I3 the published tuple does not describe the files"
        if any(not isinstance(b, Batch) or b.offset != o for o, b in enumerate(below)):
            return "I4 published offsets are not contiguous, or a published record is not written"
        return None

    def _lost(self, state):
        if state.damaged:
            return None if state.rotten else "I2 a durably acknowledged record is gone (and missed)"
        if state.page is None:
            return None
        present = {(b.offset, b.record) for b in published(state)}
        if not state.safe <= present:
            return "I2 a durably acknowledged record is gone"
        if not state.acked <= present:
            return "I1 an acknowledged record is gone"
        return None

    def _changed(self, state):
        if state.page is None:
            return None
        for now in published(state):
            for old in state.seen:
                if old.offset == now.offset and old.record != now.record and now.epoch <= old.epoch:
                    return "I3 another record at an offset that readers saw, without a larger epoch"
        return None

    def _overlap(self, state):
        if state.page is None or state.writer is not None or state.page.owner or state.page.roll:
            return None
        if any(s.base > state.page.base for s in state.segments if s.linked):
            return "I4 an unpublished segment is left: its offsets will be used twice"
        return None

    def satisfied(self, state):
        if state.damaged:
            return True
        page = state.page
        done = state.record > self.records and page is not None
        return done and (page.durable == page.end or not self.syncs)

    # -- steps ------------------------------------------------------------------------------

    def steps(self, state):
        if state.damaged:
            return
        for me, process in enumerate(state.processes):
            yield from getattr(self, "_" + process.at)(state, me, process)
            if process.at != "out" and state.kills:
                yield f"!{name(me)} is killed", self._kill(state, me)
        yield from self._faults(state)

    # opening: the first one recovers, the others join

    def _out(self, state, me, p):
        others = [q.at for q in state.processes if q is not p and q.at != "out"]
        if not any(q.at != "out" for n, q in enumerate(state.processes) if n != me):
            yield f"{name(me)} opens first", become(state._replace(page=None), me, p._replace(at="recover"))
        elif not any(at in ("recover", "rebuild") for at in others):
            yield from self._join(state, me, p)

    def _join(self, state, me, p):
        late = state.page.end > state.page.durable
        if self.on("open_then_compare"):
            p = p._replace(at="compare", open=bases(state))
            yield f"{name(me)} joins: opens descriptors", open_descriptors(become(state, me, p), me, p.open)
        else:
            p = p._replace(at="descriptors", stale=late)
            yield f"{name(me)} joins: compares published with durable", become(state, me, p)

    def _compare(self, state, me, p):
        late = state.page.end > state.page.durable
        p = p._replace(at="idle", fresh=p.open if late else frozenset())
        yield f"{name(me)} compares published with durable", become(state, me, p)

    def _descriptors(self, state, me, p):
        mine = bases(state)
        p = p._replace(at="idle", open=mine, fresh=mine if p.stale else frozenset(), stale=False)
        yield f"{name(me)} opens descriptors", open_descriptors(become(state, me, p), me, mine)

    def _recover(self, state, me, p):
        segments, bad_below = self._keep_chain(state, 0, 0, adopting=True)
        state = state._replace(segments=segments)
        if bad_below < state.durable_record and self.on("durable_record"):
            yield f"{name(me)} refuses: damage below durable", state._replace(damaged=True)
            return
        top = max([b.epoch for b in batches(state)] + [state.epoch_cache])
        if state.rebooted and self.on("new_epoch"):
            top += 1
        disk = top if self.on("epoch_synced") else state.epoch_disk
        state = state._replace(epoch_cache=top, epoch_disk=disk)
        yield f"{name(me)} recovers, epoch {top}", become(state, me, p._replace(at="rebuild"))

    def _rebuild(self, state, me, p):
        last = max((s for s in state.segments if s.linked), key=lambda s: s.base)
        end = last.base + len(visible(last))
        durable = min(state.durable_record, end)
        page = Page(last.base, len(visible(last)), end, state.epoch_cache, durable=durable, poison=state.marks)
        mine = bases(state)
        p = p._replace(at="idle", open=mine, fresh=mine if end > durable else frozenset())
        state = state._replace(page=page, rebooted=False)
        yield f"{name(me)} rebuilds the page, end {end}", see(open_descriptors(become(state, me, p), me, mine))

    # appending

    def _idle(self, state, me, p):
        if state.record <= self.records and (state.writer is None or not self.on("append_lock")):
            yield from self._lock(state, me, p)
        wanted = self.syncs and state.page.end > state.page.durable
        if wanted and (state.syncer is None or not self.on("sync_lock")):
            yield self._begin_sync(state, me, p)

    def _lock(self, state, me, p):
        page = state.page
        if page.owner or page.roll:
            after = become(state._replace(writer=me), me, p._replace(at="repair"))
            yield f"{name(me)} locks, finds the owner word", after
        else:
            look = (page.base, page.size, page.end)
            if not self.on("catch_up"):
                look = p.look or look
            page = page._replace(owner=self.on("owner_word"))
            p = p._replace(at="place", target=look[0], spot=look[1], offset=look[2])
            yield f"{name(me)} locks", become(state._replace(writer=me, page=page), me, p)

    def _repair(self, state, me, p):
        page = state.page
        kept, _ = self._keep_chain(state, page.base, page.size, adopting=self.on("adopt"))
        yield f"{name(me)} adopts or cuts", become(state._replace(segments=kept), me, p._replace(at="adopted"))

    def _adopted(self, state, me, p):
        last = max((s for s in state.segments if s.linked), key=lambda s: s.base)
        size = len(visible(last))
        page = state.page._replace(base=last.base, size=size, end=last.base + size, roll=False,
                                   owner=self.on("owner_word"))
        p = p._replace(at="place", target=page.base, spot=page.size, offset=page.end)
        yield f"{name(me)} publishes the repair, end {page.end}", see(become(state._replace(page=page), me, p))

    def _place(self, state, me, p):
        page = state.page
        sick = page.base in page.poison and self.on("poison_roll")
        if p.spot > 0:                                  # by size, by time, or away from poison
            page = page._replace(roll=self.on("roll_intent"))
            yield f"{name(me)} means to roll", become(state._replace(page=page), me, p._replace(at="roll"))
        if p.spot < CAPACITY and not (sick and p.spot > 0):
            yield from self._write(state, me, p)

    def _roll(self, state, me, p):
        new = p.offset
        kept = tuple(unlink(s) if s.base == new and s.linked else s for s in state.segments)
        kept = tuple(s for s in kept if s is not None) + (Segment(new),)
        p = p._replace(at="write", target=new, spot=0, open=p.open | {new})
        yield f"{name(me)} creates segment {new}", become(state._replace(segments=kept), me, p)

    def _write(self, state, me, p):
        batch = Batch(p.offset, state.page.epoch, state.record)
        state, p = state._replace(record=state.record + 1), p._replace(batch=batch)
        if not self.on("publish_last"):
            early = see(publish(state, p))
            yield f"{name(me)} publishes before writing", become(early, me, p._replace(at="half"))
            return
        state = open_late(become(state, me, p), me, p.target)
        p = state.processes[me]
        yield (f"{name(me)} writes half of r{batch.record} at {p.offset}",
               become(put(state, p.target, p.spot, TORN), me, p._replace(at="half")))

    def _half(self, state, me, p):
        yield (f"{name(me)} writes the rest",
               become(put(state, p.target, p.spot, p.batch), me, p._replace(at="whole")))

    def _whole(self, state, me, p):
        if not self.on("publish_once"):
            page = state.page._replace(base=p.target, size=p.spot + 1)
            yield f"{name(me)} stores the size alone", become(state._replace(page=page), me, p._replace(at="torn_tuple"))
            return
        yield from self._torn_tuple(state, me, p)

    def _torn_tuple(self, state, me, p):
        after = see(publish(state, p))
        promise = (p.offset, p.batch.record)
        after = after._replace(acked=after.acked | {promise})
        if not self.on("durable_only"):
            after = after._replace(safe=after.safe | {promise})
        yield f"{name(me)} publishes and acknowledges {p.offset}", become(after, me, p._replace(at="unlock"))

    def _unlock(self, state, me, p):
        page = state.page._replace(owner=False)
        look = () if self.on("catch_up") else (page.base, page.size, page.end)
        state = state._replace(writer=None, page=page)
        yield f"{name(me)} unlocks", become(state, me, idle(p)._replace(look=look))

    # syncing

    def _begin_sync(self, state, me, p):
        page = state.page
        live = [s for s in state.segments if s.linked]
        todo = tuple(s.base for s in live
                     if s.base < page.end and s.base + len(s.cells) > page.durable)
        if not self.on("all_segments"):
            todo = todo[-1:]
        for base in todo:
            state = open_late(state, me, base)
        p = state.processes[me]
        left = page.syncing and self.on("sync_intent")
        fresh = bool(p.fresh & set(todo)) and self.on("fresh_rewrite")
        sick = bool(page.poison & set(todo)) and self.on("poison_rewrite")
        at = "rewrite" if left or fresh or sick else "sync"
        if left and self.on("intent_poisons") and self.on("poison"):
            at = "failed"
        p = p._replace(at=at, to=page.end, todo=todo)
        state = state._replace(syncer=me, page=page._replace(syncing=self.on("sync_intent")))
        return f"{name(me)} begins a sync to {page.end}", become(state, me, p)

    def _rewrite(self, state, me, p):
        low = state.page.durable
        segments = tuple(
            s._replace(cells=tuple(
                c._replace(dirty=True) if isinstance(c.cache, Batch) and low <= c.cache.offset < p.to else c
                for c in s.cells)) for s in state.segments)
        yield f"{name(me)} rewrites [{low}, {p.to})", become(state._replace(segments=segments), me, p._replace(at="sync"))

    def _sync(self, state, me, p):
        base, rest = p.todo[0], p.todo[1:]
        segment = find(state, base)
        told = segment._replace(owes=segment.owes - {me}, unseen=False)
        if me in segment.owes:
            failed = become(swap(state, flushed(told)), me, p._replace(at="failed", todo=(base,)))
            yield f"{name(me)} syncs {base}: EIO, reported late", failed
            return
        at = "sync" if rest else "names"
        good = become(swap(state, flushed(segment)), me, p._replace(at=at, todo=rest))
        yield f"{name(me)} syncs {base}", good
        if state.fails and any(c.dirty for c in segment.cells):
            bad = swap(state._replace(fails=state.fails - 1), spoiled(told, holders(state, base) - {me}))
            yield f"!{name(me)} syncs {base}: EIO", become(bad, me, p._replace(at="failed", todo=(base,)))

    def _names(self, state, me, p):
        if self.on("directory_sync"):
            state = state._replace(segments=tuple(
                s._replace(named=True) for s in state.segments if s.linked))
        yield f"{name(me)} syncs the directory", become(state, me, p._replace(at="raise"))

    def _raise(self, state, me, p):
        page = state.page._replace(durable=max(state.page.durable, p.to))
        safe = state.safe | {a for a in state.acked if a[0] < p.to}
        state = state._replace(page=page, durable_record=page.durable, safe=safe)
        yield f"{name(me)} raises durable to {p.to}", become(state, me, p._replace(at="synced", fresh=frozenset()))

    def _synced(self, state, me, p):
        state = state._replace(syncer=None, page=state.page._replace(syncing=False))
        yield f"{name(me)} clears the sync intent", become(state, me, idle(p))

    def _failed(self, state, me, p):
        if not self.on("poison"):
            yield from self._synced(state, me, p)
            return
        marks = state.marks.union(p.todo) if self.on("poison_file") else state.marks
        yield f"{name(me)} writes the poison file", become(state._replace(marks=marks), me, p._replace(at="poison"))

    def _poison(self, state, me, p):
        page = state.page._replace(poison=state.page.poison.union(p.todo), syncing=False)
        yield f"{name(me)} poisons {sorted(p.todo)} in the page", become(state._replace(page=page, syncer=None), me, idle(p))

    # faults

    def _kill(self, state, me):
        segments = tuple(s._replace(owes=s.owes - {me}) for s in state.segments)
        state = state._replace(segments=segments, kills=state.kills - 1)
        if state.writer == me:
            state = state._replace(writer=None)
        if state.syncer == me:
            state = state._replace(syncer=None)
        return become(state, me, Process())

    def _faults(self, state):
        if state.writebacks or state.fails:
            for segment in state.segments:
                if not any(c.dirty for c in segment.cells):
                    continue
                if state.writebacks:
                    after = swap(state, flushed(segment), segment)
                    yield f"!the kernel writes {segment.base} back", after._replace(writebacks=state.writebacks - 1)
                if state.fails and segment.linked:
                    bad = spoiled(segment, holders(state, segment.base))
                    after = swap(state, bad._replace(unseen=True), segment)
                    yield f"!write-back of {segment.base} fails", after._replace(fails=state.fails - 1)
        if state.cuts:
            yield from self._power_losses(state)

    def _power_losses(self, state):
        for segments in set(surviving(state.segments)):
            for epoch in {state.epoch_cache, state.epoch_disk}:
                after = State(segments, None, (Process(),) * self.processes,
                              durable_record=state.durable_record, marks=state.marks,
                              epoch_cache=epoch, epoch_disk=epoch, rebooted=True,
                              record=state.record, acked=state.safe, safe=state.safe, seen=state.seen,
                              kills=state.kills, cuts=state.cuts - 1, fails=state.fails,
                              writebacks=state.writebacks, rots=state.rots, rotten=state.rotten)
                yield f"!power loss, disk has {show(segments)}", after
                if state.rots:
                    for rotten in rotted(segments):
                        yield (f"!power loss and a bad sector, disk has {show(rotten)}",
                               after._replace(segments=rotten, rots=state.rots - 1, rotten=True))

    # the chain of valid batches

    def _keep_chain(self, state, base, size, adopting):
        """Segments with everything cut that does not continue the chain, and the chain's end.

        The part before (base, size) is taken as it is: it was published.
        """
        end, epoch, kept, whole = None, -1, [], True
        for segment in sorted(state.segments, key=lambda s: (s.base, s.linked)):
            if not segment.linked:
                kept.append(segment)
                continue
            if end is None:
                end = segment.base
            keep = 0
            trusted = CAPACITY if segment.base < base else size if segment.base == base else 0
            if whole and segment.base == end:
                for cell in segment.cells:
                    ok = (isinstance(cell.cache, Batch) and cell.cache.offset == end
                          and (cell.cache.epoch >= epoch or not self.on("epoch_check"))
                          and (adopting or keep < trusted))
                    if not ok:
                        break
                    end, epoch, keep = end + 1, cell.cache.epoch, keep + 1
                whole = keep >= len(visible(segment))
                unpublished = segment.base > base or (base == 0 and size == 0 and segment.base > 0)
                if keep == 0 and unpublished:
                    kept.append(unlink(segment))        # an unfinished roll
                    continue
                kept.append(cut(segment, keep))
            else:
                kept.append(unlink(segment))
        return tuple(s for s in kept if s is not None), end
