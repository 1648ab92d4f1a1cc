"""The orderly close of a partition: its files are left as Kafka leaves them.

- The order: repair if needed, final time-index entry and trimming, snapshot of the producers, sync
  (`sync`), closing record, removal of the DIRTY mark.
- The clean mark of the directory follows only if every partition was closed.
- In a set the DIRTY mark stays if the replica is not complete: it was not kept, and neither led nor
  followed since. An orderly close does not make it complete (REPLICA-13).
"""

from __future__ import annotations

from embedlog import segment
from embedlog._native.replication import ROLE_NONE
from embedlog.partition.append_lock import AppendLock
from embedlog.partition.segment_info import final_time_entry
from embedlog.partition.sync import Syncer
from embedlog.storage import file_names, files


def close_in_order(lock: AppendLock, syncer: Syncer) -> None:
    """Close the files. REQUIRES the open lock of the directory, as the last process. Raises
    DurabilityError if a sync fails.
    """
    state = lock.state
    with lock.exclusive() as locked:
        published = locked.published
        times = segment.finish(
            state.path,
            published.segment_base,
            published.segment_size,
            index_entries=published.index_entries,
            time_entries=published.time_entries,
            final_entry=final_time_entry(published),
            sync=True,
        )
        after = published._replace(
            time_entries=times,
            last_time_entry=max(published.last_time_entry, published.max_timestamp),
        )
        locked.write_snapshot(published)
        state.page.publish(after, None)
    syncer.sync(state.published().log_end, state.deadline())
    with lock.exclusive() as locked:
        if (
            state.context.in_set
            and locked.replica_at_begin.role == ROLE_NONE
            and not state.is_kept()
            and files.exists(state.path / file_names.DIRTY)
        ):
            # the process that made the mark may have been killed before its sync
            files.sync_directory(state.path)
            return
        locked.append_closed_to_manifest(locked.published)
        state.manifest.sync()
        files.sync_directory(state.path)
        if files.unlink(state.path / file_names.DIRTY, missing_ok=True):
            files.sync_directory(state.path)
