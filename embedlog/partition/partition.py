"""One partition, shared by any number of processes: the facade of this package.

Callers outside the package use the public methods of `Partition` only.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from embedlog import segment
from embedlog._native import system
from embedlog._native.replication import ROLE_NONE
from embedlog.errors import EmbedlogError, LockTimeoutError
from embedlog.hooks.callbacks import Work
from embedlog.partition import idempotent_append, markers, retention
from embedlog.partition.aborted_index import AbortedIndex
from embedlog.partition.append_lock import AppendLock
from embedlog.partition.compaction.cleaner import LogCleaner
from embedlog.partition.log_context import AppendProgress, Checkpoint, check_sizes
from embedlog.partition.producer_sequences import ProducerSequences
from embedlog.partition.reader import Reader
from embedlog.partition.replication.known_high_watermark import with_known_high_watermark
from embedlog.partition.replication.refusals import check_without_replicas
from embedlog.partition.replication.replica_log import ReplicaLog
from embedlog.partition.segment_info import final_time_entry
from embedlog.partition.segment_list import SegmentList
from embedlog.partition.split_points import split_points
from embedlog.partition.state import PartitionState
from embedlog.partition.sync import Syncer
from embedlog.partition.time_pruning import TimePruning
from embedlog.partition.writer import AppendWriter
from embedlog.storage import file_names, files, locks
from embedlog.storage.manifest import holds_data

if TYPE_CHECKING:
    from embedlog._native.system import Published
    from embedlog.config.topic import TopicConfig
    from embedlog.format.aborted_transactions import Entries
    from embedlog.format.buffer_pool import BufferPool
    from embedlog.format.producer_state import ProducerState
    from embedlog.format.record_batch import Batches, EncodedRun, Stamp
    from embedlog.partition.append_lock import HeldAppend
    from embedlog.partition.locked_partition import LockedPartition
    from embedlog.partition.log_context import Appended, Bounds, Context, DirectTarget
    from embedlog.partition.reader import Fetched
    from embedlog.partition.recovery.loader import Loaded
    from embedlog.partition.replication.followers import Followers
    from embedlog.partition.split_points import SplitPoint
    from embedlog.partition.tail import Tail
    from embedlog.storage.manifest import SegmentInfo
    from embedlog.types import OffsetAndTimestamp


class Partition:
    """Append to and read one partition.

    Threads: every public method may be called from any thread. Raises ClosedError after `close`.
    """

    replicated: Final = False

    def __init__(
        self,
        context: Context,
        topic: str,
        number: int,
        path: Path,
        topic_id_bytes: bytes,
        config: TopicConfig,
    ) -> None:
        self.topic = topic
        self.number = number
        self.path = path
        self.topic_id_bytes = topic_id_bytes
        self._context = context
        state = PartitionState(context, topic, number, path, topic_id_bytes, config)
        self._state = state
        self.direct_target: DirectTarget = state
        self._segments = SegmentList(state)
        self._producers = ProducerSequences(state, self._segments)
        self._writer = AppendWriter(state)
        self._lock = AppendLock(state, self._segments, self._writer, self._producers)
        self._aborted = AbortedIndex(state, self._segments, self._lock.store)
        self._reader = Reader(state, self._segments, self._aborted, self._lock.await_replacement)
        self.point = (
            self._reader.points.read
        )  # bound once: a point read costs no call of this class
        self._pruning = TimePruning(state, self._segments, self._reader)
        self._syncer = Syncer(self._lock, self._reader)
        self.replica = ReplicaLog(self._lock, self._reader, self._syncer)
        self._writer.on_segment = self._syncer.open_segment
        state.connect(forget_caches=self._forget_caches, release_writer=self._release_writer)

    # ---- lifetime --------------------------------------------------------------------------------

    def open(self) -> None:
        """Map the control page and load the files, unless that was done before."""
        self._state.ensure_open()

    def close(self) -> None:
        """Release descriptors and the mapping; appended records stay in the files. Idempotent."""
        self._state.close()
        self._context.writers.remove(self._writer)
        self._context.syncers.remove(self._syncer)

    def close_in_order(self) -> None:
        """Leave the files as Kafka does. REQUIRES the open lock of the directory, as the last
        process. Raises DurabilityError if a sync fails.

        The order: repair if needed, final time-index entry and trimming, snapshot of the producers,
        sync, closing record, removal of the DIRTY mark. The clean mark of the directory follows
        only if every partition was closed.

        In a set the DIRTY mark stays if the replica is not complete: it was not kept, and neither
        led nor followed since. An orderly close does not make it complete (REPLICA-13).
        """
        state = self._state
        with self._lock.exclusive() as locked:
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
        self._syncer.sync(state.published().log_end, state.deadline())
        with self._lock.exclusive() as locked:
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

    def confirm(self, end: int, epoch: int) -> bool:
        """True at once: without replicas, what is published is committed."""
        return True

    @property
    def closed(self) -> bool:
        return self._state.closed

    @property
    def deleted(self) -> bool:
        """Whether a process has retired it, as far as the mapped page shows."""
        page = self.mapped_page
        return page is not None and bool(page.word(system.WORD_FLAGS) & system.FLAG_DELETED)

    def check_open(self) -> None:
        """Raises ClosedError or ForkedError if the log is not open in this process."""
        self._context.check_open()

    def _forget_caches(self) -> None:
        self._segments.forget()
        self._reader.forget()
        self._aborted.forget()
        self._producers.forget()

    def _release_writer(self) -> None:
        self._writer.drop()
        self._syncer.close()

    @property
    def config(self) -> TopicConfig:
        return self._state.config

    def apply_config(self, config: TopicConfig) -> None:
        """Take over new settings of the topic."""
        self._writer.apply_config(config)

    @property
    def batch_limit(self) -> int:
        """Bytes of the largest batch that is accepted now."""
        return self._state.config.batch_limit

    # ---- the published state ---------------------------------------------------------------------

    def published(self) -> Published:
        """The published tuple."""
        return self._state.published()

    def await_replacement(self) -> Published:
        """The published tuple at a moment when no segment is being replaced. Raises
        LockTimeoutError.
        """
        return self._lock.await_replacement()

    @property
    def read_only(self) -> bool:
        return self._context.read_only

    def bounds(self) -> Bounds:
        """The current offsets, from one read of the control page."""
        return self._state.bounds()

    def awaited_bounds(self, end: int, isolation: str, since_ns: int | None = None) -> Bounds:
        """As `bounds`: without replicas there is nothing to wait for."""
        return self.bounds()

    @property
    def durable_offset(self) -> int:
        """Records below it are on stable storage, as far as the kernel reported."""
        return self._state.durable_offset

    @property
    def mapped_page(self) -> system.Page | None:
        """The control page if it is mapped, for waits on it."""
        mapped = self._state.page_file
        if mapped is None:
            return None
        return mapped.page

    def notify(self) -> None:
        """Wake the processes that follow decisions in this partition (`system.Page.notice`). Raises
        StorageError.
        """
        self._state.page.notify()

    def check_deleted(self) -> None:
        """Raises UnknownTopicOrPartitionError if the topic was deleted."""
        self._state.check_deleted()

    def check_page(self) -> None:
        """At the end of a wait: map the control page again if its file is another one."""
        self._state.check_page()

    def deadline(self) -> int:
        """The deadline (boot clock, ns) of a wait for the append lock that begins at this call."""
        return self._state.deadline()

    @property
    def unsynced_since_ns(self) -> int:
        """Boot time of the oldest record that is not on stable storage. REQUIRES: there is one."""
        return self._state.page.word(system.WORD_UNSYNCED_SINCE)

    def checkpoint(self, *, closing: bool) -> Checkpoint:
        """The offsets that belong in the checkpoints of the directory."""
        return Checkpoint.of(
            with_known_high_watermark(self._state), self._state.durable_offset, closing=closing
        )

    # ---- the append lock -------------------------------------------------------------------------

    def exclusive(
        self, deadline_ns: int | None = None
    ) -> contextlib.AbstractContextManager[LockedPartition]:
        """The append lock, with everything repaired and caught up (`append_lock`). Raises
        LockTimeoutError.
        """
        return self._lock.exclusive(deadline_ns)

    def append_held(self, batch: bytes, stamp: Stamp | None = None) -> HeldAppend:
        """Append one batch; with `stamp`, it carries that and the sequence of `following_sequence`.
        REQUIRES `exclusive`.
        """
        return self._lock.append_held(batch, stamp)

    def following_sequence(self, stamp: Stamp) -> int:
        """The next sequence of a producer. REQUIRES `exclusive`. Raises FencedError,
        InvalidTransactionStateError.
        """
        return self._producers.following_sequence_locked(stamp, self._state.read_page())

    # ---- appending -------------------------------------------------------------------------------

    def append(
        self,
        run: EncodedRun,
        *,
        deadline_ns: int | None = None,
        stamp: Stamp | None = None,
        flush: bool = True,
        progress: AppendProgress | None = None,
        all_in_sync: bool = True,
        followers: Followers | None = None,
    ) -> Appended:
        """Append whole batches, in order; with `stamp`, which they must carry (`record.stamp`), as
        that producer's.

        Raises LockTimeoutError, ReadOnlyError, RecordTooLargeError, StorageError,
        UnknownTopicOrPartitionError; for a stamped run FencedError, OutOfOrderSequenceError,
        OffsetMismatchError, InvalidTransactionStateError, with nothing written.

        After another error nothing of the current batch is visible; batches of the same run before
        it may be. A stamped run may then be appended again unchanged: batches that are in the log
        already are found there. Without `flush` the caller, which holds another partition's lock,
        calls `flush_if_due` afterwards. `progress` is that of earlier calls for the same run.
        `all_in_sync` has no effect on one directory. `followers` take the run at once, if they can:
        the progress shows it.

        The topic's settings of the moment of the append decide (`AppendProgress.judge`). If they
        refuse the rest of a run, the result is the part that was appended before, and the progress
        has the error.
        """
        state = self._state
        context = self._context
        context.check_open()
        until = state.deadline() if deadline_ns is None else deadline_ns
        if state.closed or state.page_file is None:
            state.ensure_open(until)
        if progress is None:
            progress = AppendProgress(run)
        progress.refusal = None
        in_doubt = progress.is_in_doubt(stamp)
        # odd: a change of the topics was in progress when the settings were read (the topics word)
        must_read = state.writer is None or bool(state.writer.topics & 1)
        unsynced_ms = 0
        durable = 0
        # Each turn judges the run by the settings that this process has:
        #   accepted, and they are the current ones: it is appended, the end
        #   accepted, and a topic has changed since: OTHER_SETTINGS, again with new settings
        #   refused by settings of an earlier call (`topics` is None): again with new settings
        #   refused by settings read in this turn: the end
        while True:
            topics = self._read_settings() if must_read else None
            refusal = None if in_doubt else self._find_refusal(progress)
            if refusal is None:
                progress.is_begun = True
                code, unsynced_ms, durable = self._append_judged(
                    stamp, progress, followers, until, topics, in_doubt
                )
                if code != system.OTHER_SETTINGS:
                    break
                if system.boot_ns() >= until:
                    raise LockTimeoutError(
                        "the topics of the log kept changing until the deadline", path=self.path
                    )
                in_doubt = False
            elif topics is not None:
                if not progress.pieces:
                    raise refusal
                progress.refusal = refusal
                break
            must_read = True
        if flush:
            end = progress.pieces[-1][1]
            self._syncer.flush_if_due(end, end - durable, unsynced_ms, until)
        return progress.result()

    def _read_settings(self) -> int:
        """Read the topic's current settings; the topics word before that. REQUIRES no lock here.

        Raises ClosedError, UnknownTopicOrPartitionError.
        """
        page = self._context.directory_page
        topics = 0
        if page is not None:
            topics = page.topics()
        self._context.renew_settings(self.topic, self.number)
        if self._state.closed:
            self._state.raise_closed()
        self._state.check_deleted()
        return topics

    def _find_refusal(self, progress: AppendProgress) -> EmbedlogError | None:
        """The error with which the settings refuse the rest of a run; None if they accept it."""
        if progress.complete:
            return None
        config = self._state.config
        try:
            check_sizes(progress.run, config, f"{self.topic}-{self.number}")
            if progress.judge is not None:
                progress.judge_by(config)
        except EmbedlogError as refusal:
            return refusal
        return None

    def _append_judged(
        self,
        stamp: Stamp | None,
        progress: AppendProgress,
        followers: Followers | None,
        until: int,
        topics: int | None,
        in_doubt: bool,
    ) -> tuple[int, int, int]:
        """Append the rest of a run that was judged by the settings. One in doubt is searched in the
        log before it is judged.

        Returns APPENDED, or OTHER_SETTINGS if they have changed; the age in ms of the oldest record
        that is not durable; and the durable offset.
        """
        state = self._state
        context = self._context
        run = progress.run
        with locks.holding(state.mutex, until, state.path):
            context.check_open()  # it may have been closed while this thread waited
            if not state.marked_dirty:
                with self._lock.exclusive_mutexed(until):
                    state.mark_dirty()
            context.writers.note_use(self._writer)
            producer = system.NULL
            if stamp is not None:
                producer = self._producers.cached_state(stamp)
            if topics is not None:
                self._writer.native().topics = topics
            code = system.APPENDED
            while not progress.complete and code != system.OTHER_SETTINGS:
                writer = state.writer or self._writer.native()
                slice_end_ns = min(until, system.boot_ns() + system.SLICE_NS)
                if progress.expected_offset is not None or in_doubt:
                    code = system.MUST_CATCH_UP
                elif progress.judge is not None and not progress.is_accepted_by(state.config):
                    code = system.OTHER_SETTINGS
                elif followers is None:
                    code = writer.append(
                        run.buffer, progress.start, progress.table_left, slice_end_ns, producer
                    )
                else:
                    code = followers.append(progress, slice_end_ns, producer)
                if code == system.APPENDED:
                    out = writer.out
                    if stamp is not None and stamp.transactional:
                        self._producers.take_appended(run, progress.start, writer)
                    progress.take(
                        out.base_offset, out.next_offset, out.consumed, out.append_time_ms
                    )
                    continue
                if code == system.MUST_CATCH_UP and stamp is not None:
                    code = idempotent_append.append(self._lock, stamp, progress, until)
                if code not in (system.APPENDED, system.OTHER_SETTINGS):
                    self._lock.resolve_code(code, until)
            return code, self._writer.native().out.unsynced_ms, state.page.word(system.WORD_DURABLE)

    def check_in_sync(self) -> None:
        """Raises NotEnoughReplicasError for a `min.insync.replicas` above 1, which one directory
        never satisfies.
        """
        check_without_replicas(
            f"{self.topic}-{self.number}", self._state.config.min_insync_replicas, self.path
        )

    def append_marker(
        self,
        producer_id: int,
        epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int | None = None,
        deadline_ns: int | None = None,
    ) -> int | None:
        """End a transaction here with a marker that carries the raised `epoch`: its offset, None if
        that epoch was stored before.

        It is not synced: the caller ends several partitions, and syncs them together. Raises
        FencedError for a lower coordinator epoch, and the errors of `append`. May be repeated after
        any error.
        """
        self._context.check_open()
        until = self._state.deadline() if deadline_ns is None else deadline_ns
        self._state.ensure_open(until)
        with self._lock.mutex_until(until):
            self._context.writers.note_use(self._writer)
            return markers.append_marker(
                self._lock,
                producer_id,
                epoch,
                commit=commit,
                coordinator_epoch=coordinator_epoch,
                deadline_ns=until,
            )

    def note_direct(self, stamp: Stamp, next_sequence: int, slot: int) -> None:
        """Take over the state in which appends to `direct_target` left a producer. `slot`: the number
        in its slot then.
        """
        with self._state.mutex:
            self._producers.update(stamp, next_sequence, slot)

    def seen_plain(self, stamp: Stamp) -> int:
        """The number in the slot of a producer after its last append outside of transactions, -1 if
        that is not known.
        """
        return self._producers.seen_plain(stamp)

    # ---- producers -------------------------------------------------------------------------------

    def open_transactions(self) -> list[tuple[int, int, int]]:
        """(producer id, epoch, first offset) of every transaction that is open here, the oldest
        first.
        """
        transactions = [
            (producer.producer_id, producer.epoch, producer.transaction_start)
            for producer in self._producer_state().producers.values()
            if producer.transaction_start >= 0
        ]
        return sorted(transactions, key=lambda transaction: transaction[2])

    def stored_epoch(self, producer_id: int) -> int:
        """The newest epoch of a producer here, -1 if it is not known."""
        producer = self._producer_state().producers.get(producer_id)
        if producer is None:
            return -1
        return producer.epoch

    def _producer_state(self) -> ProducerState:
        self._context.check_open()
        self._state.ensure_open()
        if self._context.read_only:
            return self._reader.read_consistently(lambda published: self._producer_state_mutexed())
        return self._producer_state_mutexed()

    def _producer_state_mutexed(self) -> ProducerState:
        with self._lock.mutex_until(self._state.deadline()):
            return self._lock.current_producers()

    def expire_producers(self) -> None:
        """Forget producers that have been idle for long; for the housekeeper."""
        if self._state.page_file is not None and self._producers.is_loaded:
            with self._lock.mutex_until(self._state.deadline()):
                self._producers.expire(self._context.producer_expiration_ms)

    # ---- reading ---------------------------------------------------------------------------------

    def fetch(
        self,
        offset: int,
        *,
        max_bytes: int = 1 << 20,
        isolation: str = "read_uncommitted",
        upto: int | None = None,
        pool: BufferPool | None = None,
    ) -> Fetched:
        """Whole checked batches from that of `offset`; none at the end. Arguments and errors are
        those of `Reader.fetch`.
        """
        self._context.check_open()
        fetched = self._reader.fetch(
            offset,
            max_bytes=max_bytes,
            committed=isolation == "read_committed",
            upto=upto,
            pool=pool,
        )
        self._state.traffic.add_read(len(fetched.data))
        return fetched

    def tail(self, offset: int, isolation: str) -> Tail | None:
        """A short path to the records after `offset`; None if that is not the end, or was not
        reached by `fetch`.
        """
        return self._reader.tail(offset, isolation == "read_committed")

    def unread_bytes(self, offset: int) -> int | None:
        """Bytes after `offset`; None if they cannot be counted without a read."""
        return self._reader.unread_bytes(offset)

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """The largest epoch known here that is at most `epoch`, and the offset at which it ended;
        (-1, -1) if there is none.
        """
        self._state.ensure_open()
        return self.replica.epochs.end_of(epoch)

    def offset_for_time(
        self, timestamp_ms: int, isolation: str = "read_uncommitted"
    ) -> OffsetAndTimestamp | None:
        """The first record with this timestamp or a later one, None if there is none."""
        self._context.check_open()
        self._state.ensure_open()
        return self._reader.offset_for_time(timestamp_ms, isolation == "read_committed")

    def end_by_time(self, first: int, last: int, end_ms: int) -> int:
        """An offset from `first` to `last`: no record from there up to `last` is older than
        `end_ms` (`time_pruning`).
        """
        return self._pruning.end(first, last, end_ms)

    def skip_by_time(self, offset: int, start_ms: int, end_ms: int) -> int:
        """The offset from which a reader continues: after its segment, if that has no record
        between the times.
        """
        return self._pruning.skip(offset, start_ms, end_ms)

    def check_epochs(self, path: Path, batches: Batches) -> None:
        """Each batch carries the epoch that its offset belongs to. Raises CorruptRecordError."""
        self._reader.epochs.check(path, batches, 0)

    # ---- files -----------------------------------------------------------------------------------

    def is_prepared(self) -> bool:
        """Whether an embedlog process has opened this partition, as its directory shows without an
        open.
        """
        return self._state.page_file is not None or files.exists(self.path / file_names.PAGE)

    def holds_data(self) -> bool:
        """Whether a segment has records, as the directory shows without an open."""
        return holds_data(self.path)

    def segments(self, published: Published) -> list[SegmentInfo]:
        """The segments of a published tuple; the active one is the last. REQUIRES the append lock
        (else `current_segments`).
        """
        return self._segments.all(published)

    def current_segments(self) -> tuple[Published, list[SegmentInfo]]:
        """The published tuple and its segments, at a moment when no segment is being replaced.

        For every look without the append lock: other processes compact, roll and delete meanwhile.
        Raises CorruptRecordError, LockTimeoutError, StorageError, UnknownTopicOrPartitionError.
        """
        self._state.ensure_open()
        return self._reader.read_consistently(
            lambda published: (published, self._segments.all(published))
        )

    def forget_segments(self) -> None:
        """Read the list of segments again when it is needed."""
        self._segments.forget()

    @property
    def loaded(self) -> Loaded | None:
        """The files as a reader loaded them that found no live control page."""
        return self._state.loaded_files

    def size_bytes(self) -> int:
        """Bytes in the logs of all segments."""
        return sum(info.size for info in self.current_segments()[1])

    def split_points(
        self, start: int, end: int, max_bytes: int, count: int | None = None
    ) -> list[SplitPoint]:
        """The ends of pieces of about `max_bytes` between two offsets, the last one at `end`, or
        the first `count` of them.
        """
        return split_points(
            self._segments, self._reader, start, end, max_bytes=max_bytes, count=count
        )

    def aborted_entries(self, info: SegmentInfo, published: Published) -> Entries:
        """The transaction index of one segment. Raises CorruptRecordError."""
        return self._aborted.entries(info, published)

    # ---- durability ------------------------------------------------------------------------------

    def sync(self, deadline_ns: int | None = None) -> int:
        """Put everything that is published now on stable storage; returns the durable offset.
        Raises DurabilityError.
        """
        self._state.ensure_open()
        end = self._state.published().log_end
        until = self.deadline() if deadline_ns is None else deadline_ns
        return self._syncer.sync(end, until)

    def sync_to(self, end: int, deadline_ns: int) -> None:
        """Put the records below `end` on stable storage. Raises DurabilityError,
        LockTimeoutError.
        """
        if self._state.durable_offset < end:
            self._syncer.wait(end, deadline_ns)

    def flush_if_due(self, end: int, deadline_ns: int, unsynced_ms: int = 0) -> None:
        """Sync up to `end` if `flush.messages` requires it, or if the housekeeper is late."""
        self._syncer.flush_if_due(end, end - self._state.durable_offset, unsynced_ms, deadline_ns)

    def flush_if_late(self) -> None:
        """Sync records that were not written by `append`, if the housekeeper is late."""
        self._syncer.flush_if_late()

    # ---- housekeeping ----------------------------------------------------------------------------

    def retain(self) -> int:
        """Delete the segments that retention releases now, and unlink files that were deleted long
        enough ago.

        Returns the number of segments. Raises LockTimeoutError.
        """
        state = self._state
        deleted = 0
        if retention.applies(state.config) or state.bounds().log_start > 0:
            deleted = retention.retain(self._lock)
        retention.unlink_deleted(state)
        return deleted

    def delete_records(
        self, offset: int, epoch: int | None = None, deadline_ns: int | None = None
    ) -> int:
        """Raise the log start to `offset` (-1: the high watermark); the new one. REQUIRES the
        directory lock, except in a set.

        Raises OffsetOutOfRangeError, DurabilityError; Fenced if the page is not in this epoch.
        """
        return retention.delete_records(self._lock, self._syncer, offset, epoch, deadline_ns)

    def dirty_ratio(self, cleaned_to: int, now_ms: int) -> float | None:
        """The share of the log that a compaction would read, None if no pass is due. `cleaned_to`:
        as for `compact`.
        """
        clean_range = LogCleaner(self._lock, self._reader, self._syncer).find_due(
            cleaned_to, now_ms
        )
        if clean_range is None:
            return None
        return clean_range.ratio

    def compact(
        self, cleaned_to: int, memory_bytes: int, now_ms: int, work: Work | None = None
    ) -> int:
        """One pass of compaction if one is due: the offset up to which the log is clean then, -1 if
        no pass was completed.

        `cleaned_to`: the offset up to which this process cleaned it, -1: as in the checkpoint.
        REQUIRES the housekeeper's lock. Raises CorruptRecordError, DurabilityError,
        LockTimeoutError.
        """
        return LogCleaner(self._lock, self._reader, self._syncer).compact(
            cleaned_to, memory_bytes, now_ms, work or Work()
        )
