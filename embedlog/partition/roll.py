"""A roll: the active segment is sealed and a new one begins at the log end.

- A roll writes its intent to the control page before it makes a file, and publishes before it
  clears the intent.
- It can be interrupted anywhere: a repair removes files that were not published.
"""

from __future__ import annotations

import logging

from embedlog import segment
from embedlog._native import system
from embedlog._native.system import Published
from embedlog.partition.locked_partition import LockedPartition
from embedlog.partition.segment_info import final_time_entry, published_empty
from embedlog.storage.manifest import SEALED
from embedlog.telemetry import log_messages

logger = logging.getLogger("embedlog")


def roll(locked: LockedPartition, published: Published) -> Published:
    """Seal the active segment and begin one at the log end. No effect on an empty one."""
    if published.segment_size == 0:
        return published
    state = locked.state
    page = locked.page
    config = locked.state.config
    base = published.log_end
    state.mark_dirty()
    page.set(system.WORD_ROLL_INTENT, base + 1)
    system.point("roll-intent")
    times = segment.finish(
        locked.path,
        published.segment_base,
        published.segment_size,
        index_entries=published.index_entries,
        time_entries=published.time_entries,
        final_entry=final_time_entry(published),
        sync=False,
    )
    locked.write_snapshot(published)
    segment.create(
        locked.path, base, locked.mode, config.segment_bytes if config.preallocate else 0
    )
    system.point("roll-created")
    locked.append_to_manifest(
        published, locked.active_info(published)._replace(time_entries=times, kind=SEALED)
    )
    after = published_empty(published, base, config.segment_jitter_ms)
    locked.publish(after)
    system.point("roll-published")
    page.set(system.WORD_ROLL_INTENT, 0)
    log_messages.change(logger, (state.path, "roll"), f"{state.name}: segment {base} begins")
    return after
