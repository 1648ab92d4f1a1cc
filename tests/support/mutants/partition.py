"""Mutants of one partition: append, read, recover, sync, compact."""

from __future__ import annotations

from embedlog._native import system
from embedlog.format import aborted_transactions
from embedlog.format.aborted_transactions import AbortedTransaction
from embedlog.partition.compaction import swap
from embedlog.partition.continuations import Continuation
from embedlog.storage import file_names, files
from tests.support.mutants.registry import replaces

# ---- state and append --------------------------------------------------------------------------------


@replaces("no_topic_id_check", "embedlog.partition.state:PartitionState._check_topic")
def _loaded_for_any_topic(original, self):
    return None


@replaces("no_dirty", "embedlog.storage.dirty_mark:make")
def _never_marked_dirty(original, directory, mode):
    return False


@replaces("marker_not_skipped", "embedlog.partition.markers:_is_ended")
def _never_ended(original, producer, epoch):
    return False


@replaces("ignore_expected_offset", "embedlog.partition.idempotent_append:_find_mismatch")
def _every_offset_is_expected(original, lock, progress, log_end):
    return None


@replaces("entry_after_publish", "embedlog.partition.markers:_write")
def _entry_after_publication(original, locked, state, producer, batch, commit):
    """The marker goes in as one that has no entry, as a commit's."""
    published = locked.published
    code = original(locked, state, producer, batch, True)
    if commit or producer.transaction_start < 0 or code != system.APPENDED:
        return code
    after = locked.page.read()
    stable = after.first_unstable if after.first_unstable >= 0 else published.log_end + 1
    entry = aborted_transactions.encode(
        [
            AbortedTransaction(
                producer.producer_id, producer.transaction_start, published.log_end, stable
            )
        ]
    )
    path = file_names.segment_path(
        locked.path, published.segment_base, file_names.TRANSACTION_INDEX
    )
    with files.opened(path, files.CREATE, locked.mode) as fd:
        files.write_all(fd, entry, published.transaction_entries * len(entry), path)
    digest = aborted_transactions.digest(entry, after.transaction_digest)
    locked.publish_replaced(
        after._replace(transaction_entries=after.transaction_entries + 1, transaction_digest=digest)
    )
    return code


# ---- reading -----------------------------------------------------------------------------------------


@replaces("read_by_file_size", "embedlog.partition.reader:Reader._read_published")
def _bounded_by_the_file(original, self):
    published = original(self)
    found = files.facts_of(file_names.segment_path(self._state.path, published.segment_base))
    return published._replace(
        segment_size=found.size if found else 0, log_end=1 << 62, high_watermark=1 << 62
    )


@replaces("mixed_moments", "embedlog.partition.reader:Reader.read_consistently")
def _whatever_was_found(original, self, work):
    return work(self._read_published())


@replaces("mixed_moments", "embedlog.partition.aborted_index:AbortedIndex.between")
def _judged_by_a_later_moment(original, self, start, end, published):
    self._segments.forget()
    return original(self, start, end, self._state.published())


@replaces("trust_index", "embedlog.index:IndexEntry.begins")
def _begins_always(original, self, batches, first):
    return True


@replaces("trust_index", "embedlog.partition.reader:Reader._enter")
def _entered_where_the_index_says(original, self, info, offset):
    entry = self.find_entry(info, offset)
    if entry.number < 0:
        return original(self, info, offset)
    return entry, Continuation(info.base, entry.position, -1, self._digests.seed(info, entry)), -1


@replaces("no_epoch_check", "embedlog.partition.epoch_check:EpochCheck.check")
def _any_epoch(original, self, path, batches, position):
    return None


@replaces("no_epoch_check", "embedlog.segment:Walk.__init__")
def _walk_over_any_epoch(
    original, self, fd, path, chain, start, size, records=None, epochs=None, *, bounded=True
):
    original(self, fd, path, chain, start, size, records, bounded=bounded)


@replaces("no_interval_digest", "embedlog.storage.manifest:SegmentInfo.digested")
def _without_digests(original, self):
    return False


# ---- sync --------------------------------------------------------------------------------------------


@replaces("ack_before_fsync", "embedlog.partition.sync:Syncer.sync")
def _durable_without_a_sync(original, self, upto, deadline_ns):
    return upto


@replaces("no_sync_intent", "embedlog.partition.sync:Syncer._write_intent")
def _no_intent(original, self, page, segments, durable, end):
    return None


@replaces("no_poison", "embedlog.partition.sync:Syncer._poison")
def _no_mark(original, self, bases, level, reason):
    return None


@replaces("no_poison", "embedlog.partition.sync:Syncer._rewrite")
def _no_rewrite(original, self, info, fd, durable):
    return None


@replaces("leave_to_housekeeper", "embedlog.partition.sync:Syncer.flush_if_due")
def _never_late(original, self, end, unsynced_count, unsynced_ms, deadline_ns):
    original(self, end, unsynced_count, 0, deadline_ns)


# ---- recovery ----------------------------------------------------------------------------------------


@replaces("cut_instead_of_adopt", "embedlog.partition.append_repair:_walk_tail")
def _no_tail(original, fd, path, published, size, replica):
    return original(fd, path, published, published.segment_size, replica)


@replaces("swap_unfinished", "embedlog.partition.compaction.swap:finish")
def _swap_left_as_it_is(original, locked):
    return locked.published


@replaces("no_doubt", "embedlog.partition.append_repair:_invalidate_producers")
def _cached_producers_stay_valid(original, locked):
    return None


@replaces("unstable_forgotten", "embedlog.partition.append_repair:_RecoveredProducers.finish")
def _open_transactions_forgotten(original, self, published, replica):
    self._state = None
    return original(self, published, replica)


@replaces("truncate_below_recovery_point", "embedlog.partition.recovery.loader:_Loader._check_torn")
def _torn_wherever_it_ends(original, self, base, path, end, size, problem, batch_gaps, *, proven):
    if problem is not None and not problem.torn:
        original(self, base, path, end, size, problem, batch_gaps, proven=proven)


@replaces(
    "truncate_below_recovery_point", "embedlog.partition.recovery.loader:_Loader._check_durable_end"
)
def _any_end(original, self, active):
    return None


@replaces("no_new_epoch", "embedlog.partition.recovery.loader:_Loader._needs_epoch")
def _same_epoch(original, self, end, first_base):
    return False


# ---- compaction --------------------------------------------------------------------------------------


@replaces("silent_swap", "embedlog.partition.compaction.swap:_with_odd_generation")
def _same_generation(original, published):
    return published


@replaces("purge_unnoted", "embedlog.partition.compaction.swap:_with_even_generation")
def _nothing_purged(original, published, purged_to):
    return original(published, 0)


@replaces("aside_before_swap", "embedlog.partition.compaction.swap:_swap")
def _set_aside_first(original, locked, published, group, new_segment, records):
    swap._set_aside(locked.path, group, new_segment)
    original(locked, published, group, new_segment, records)


@replaces("clean_undecided", "embedlog.partition.compaction.cleaner:_decided_end")
def _undecided_end(original, high_watermark, published):
    return high_watermark


@replaces("rolled_without_the_lock", "embedlog.partition.roll:roll")
def _given_back_for_the_roll(original, locked, published):
    fd = locked.writer.native().raw.lock_fd
    system.unlock(fd)
    after = original(locked, published)
    system.lock_until(fd, True, locked.state.deadline())
    return after
