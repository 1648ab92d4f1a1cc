"""A roll: the active segment is sealed and a new one begins at the log end.

ROLL-1  a roll writes its intent to the control page before it makes a file, and publishes before it
    clears the intent
ROLL-2  it can be interrupted anywhere: a repair removes files that were not published
"""

from __future__ import annotations

import logging

from embedlog import _logging, segment
from embedlog._native import system
from embedlog._native.system import Published
from embedlog.partition.locked_partition import LockedPartition
from embedlog.partition.segment_info import final_time_entry, published_empty
from embedlog.storage.manifest import SEALED

logger = logging.getLogger("embedlog")


def roll(held: LockedPartition, now: Published) -> Published:
    """Seal the active segment and begin one at the log end. No effect on an empty one."""
    if now.segment_size == 0:
        return now
    state = held.state
    page = held.page
    config = held.state.config
    base = now.log_end
    state.mark_dirty()
    page.set(system.WORD_ROLL_INTENT, base + 1)
    system.point("roll-intent")
    times = segment.finish(
        held.path,
        now.segment_base,
        now.segment_size,
        now.index_entries,
        now.time_entries,
        final_time_entry(now),
        sync=False,
    )
    held.write_snapshot(now)
    segment.create(held.path, base, held.mode, config.segment_bytes if config.preallocate else 0)
    system.point("roll-created")
    held.note(now, held.active_info(now)._replace(time_entries=times, kind=SEALED))
    after = published_empty(now, base, config.segment_jitter_ms)
    held.publish(after)
    system.point("roll-published")
    page.set(system.WORD_ROLL_INTENT, 0)
    _logging.change(logger, (state.path, "roll"), f"{state.name}: segment {base} begins")
    return after
