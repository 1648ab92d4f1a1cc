"""One replica whose append lock is held: its epochs, its roles, its cuts, and batches of a leader.

- The start of an epoch is in the leader-epoch-checkpoint before a page or a batch has the epoch.
- A batch is written unchanged, and only if it continues the log. Its offset, its epoch, and the
  epoch of the page are compared in the section of the write (REPLICA-1). The caller has checked its
  bytes.
- Index, digests, producers and transactions follow from the batches, as in an append.
- An epoch without a batch moves with the log end: it may be a promise (QUORUM-3).
- The first gap of a segment is in the manifest, on disk, before a batch after it: else a load would
  cut there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from embedlog._native import replication, system
from embedlog._native.lazy_numpy import np
from embedlog._native.replication import Leading, Replica
from embedlog._native.scope import scope
from embedlog._native.system import Published
from embedlog.errors import CorruptRecordError, EmbedlogError
from embedlog.format.record_columns import CONTROL, Batches
from embedlog.partition import markers, retention
from embedlog.partition.append_lock import AppendLock
from embedlog.partition.locked_partition import LockedPartition
from embedlog.partition.recovery import producer_history
from embedlog.partition.replication.known_high_watermark import known_high_watermark
from embedlog.partition.replication.refusals import Fenced
from embedlog.partition.truncation import log_cut
from embedlog.storage import file_names, files
from embedlog.storage.checkpoints import EpochCache
from embedlog.storage.manifest import GAPLESS, Start

if TYPE_CHECKING:
    from typing_extensions import Buffer


_NO_ENDING: Final = contextlib.nullcontext[None]()


class LockedReplica:
    """A replica whose append lock this thread holds. `published` and `replica` are of the last
    publication under this lock.
    """

    def __init__(self, lock: AppendLock, partition: LockedPartition) -> None:
        self._lock = lock
        self.partition = partition
        self.published = partition.published
        self.replica = partition.replica_at_begin

    def _refresh(self) -> None:
        self.published, self.replica = self.partition.read_page()

    def publish(self, published: Published, replica: Replica) -> None:
        """Publish both by one store."""
        self.partition.publish(published, replica)
        self.published = published
        self.replica = replica

    @property
    def known_high_watermark(self) -> int:
        """The high watermark of the page if a decision gave it its role; else the one of the
        checkpoint.
        """
        return known_high_watermark(self.partition.state, self.published, self.replica.role)

    # ---- epochs ----------------------------------------------------------------------------------

    def epochs(self) -> EpochCache:
        """The leader-epoch-checkpoint."""
        return self.partition.epochs(self.published, self.replica)

    def begin_epoch(self, epoch: int, before: EpochCache | None = None) -> EpochCache:
        """Store the log end as the start of an epoch above that of the page; it is on disk when
        this returns.

        Returns the stored epochs. `before` has the current ones, if they are known. On an error
        they are kept. A start of that epoch that is stored already is of an interrupted beginning:
        the page never had the epoch.
        """
        if before is None:
            before = self.epochs()
        after = epochs_of_leader(before, self.published, self.replica, epoch)
        try:
            self._write_epochs(after)
        except BaseException:
            with contextlib.suppress(EmbedlogError):
                self._write_epochs(before)
            raise
        return after

    def _write_epochs(self, epochs: EpochCache) -> None:
        self.partition.state.mark_dirty()
        self.partition.write_epochs(epochs)

    # ---- cuts ------------------------------------------------------------------------------------

    def truncate(
        self, offset: int, epoch: int | None = None, replica: Replica | None = None
    ) -> None:
        """Cut the log: batches that end above `offset` are set aside. `epoch` and `replica` are
        published with the cut.

        Raises ValueError for an offset below the log start.
        """
        published = self.published
        partition = self.partition
        if offset < published.log_start:
            raise ValueError(f"a cut at {offset}, before the log start {published.log_start}")
        if offset >= published.log_end:
            if epoch is not None:
                published = published._replace(epoch=epoch)
            self.publish(published, replica or self.replica)
            return
        info = partition.segments.at(offset, published)
        remaining = log_cut.find_remaining(partition.path, info.base, info.size, offset)
        if remaining.log_end < published.log_start:
            # the log starts inside the batch that is cut
            self.restart(published.log_start, epoch, replica)
            return
        log_cut.begin(partition, system.CUT_END, info.base, offset, epoch=epoch, replica=replica)
        self._refresh()

    def restart(
        self, offset: int, epoch: int | None = None, replica: Replica | None = None
    ) -> None:
        """Delete all segments, and begin the log again at `offset`, without epochs (REPLICA-20)."""
        log_cut.begin(self.partition, system.CUT_ALL, offset, offset, epoch=epoch, replica=replica)
        self._refresh()

    # ---- copies ----------------------------------------------------------------------------------

    def take(self, data: Buffer, rows: Batches, leading: Leading, at: int | None = None) -> bool:
        """Append whole checked batches of a leader unchanged; False if they do not continue the
        log.

        `rows` describes adjacent batches; positions count from the start of `data`. `at`: the log
        end for which they were read; offsets may be missing before the first batch only if it is
        given. No batch: only the high watermark is taken. Raises Fenced, CorruptRecordError,
        StorageError.
        """
        view = memoryview(data).cast("B")
        if at is not None and at != self.published.log_end:
            return False
        if self.published.epoch > leading.epoch:
            raise Fenced
        if len(rows) and at is None and int(rows["base_offset"][0]) != self.published.log_end:
            return False
        self.partition.state.mark_dirty()
        if not len(rows):
            return self._take_run(view[:0], rows, leading) and self._take_start(leading)
        epochs = self.epochs()
        epoch = int(rows["leader_epoch"][0])
        log_end = self.published.log_end
        if epoch < with_batches(epochs, log_end).latest_epoch:
            epochs = self.partition.remake_epochs(epochs)
            if epoch < with_batches(epochs, log_end).latest_epoch:
                return False
        self._store_epochs(rows, epochs)
        for part in _split_runs(rows):
            first = part[0]
            last = part[-1]
            run = view[int(first["position"]) : int(last["position"]) + int(last["size"])]
            if not self._take_run(run, part, leading):
                return False
        return self._take_start(leading)

    def _take_start(self, leading: Leading) -> bool:
        """Take the leader's log start, as far as the high watermark allows it (REPLICA-20).

        Records below it are on stable storage: after a power loss a log must not end before its
        start.
        """
        start = min(
            leading.log_start, self.published.high_watermark, self.partition.state.durable_offset
        )
        if self.published.log_start < start:
            retention.publish_start(self.partition, self.published, start)
            self._refresh()
        return True

    def _store_epochs(self, rows: Batches, before: EpochCache) -> None:
        """Store the epochs of these batches; a later epoch without a batch begins after them."""
        after = with_batches(before, self.published.log_end)
        epochs = rows["leader_epoch"]
        changes = [0]  # rows that begin an epoch
        if len(epochs) > 1 and not (epochs == epochs[0]).all():
            changes += (np.flatnonzero(epochs[1:] != epochs[:-1]) + 1).tolist()
        for row in changes:
            if int(epochs[row]) > after.latest_epoch:
                start = self.published.log_end  # the first epoch covers the whole log
                if after.entries:
                    start = int(rows["base_offset"][row])
                after.assign(int(epochs[row]), start)
        if before.latest_epoch > after.latest_epoch:
            after.assign(before.latest_epoch, _end_of(rows))
        if after.entries != before.entries:
            self._write_epochs(after)
            system.point("follow-epochs")

    def _take_run(self, run: memoryview, rows: Batches, leading: Leading) -> bool:
        """Append one run of data batches, or one control batch. Raises Fenced."""
        partition = self.partition
        first = 0
        epoch = -1
        if len(rows):
            first = int(rows["position"][0])
            epoch = int(rows["leader_epoch"][0])
        start = 0
        while True:
            part = rows
            if start:
                part = rows[np.searchsorted(rows["position"], first + start) :]
            self._record_gap(part)
            is_control = len(part) > 0 and bool(int(part["attributes"][0]) & CONTROL)
            with self._open_ending(run, part) if is_control else _NO_ENDING as ending:
                code = replication.follow(
                    partition.writer.native(), leading, epoch, run, start, part, ending
                )
            if code == system.APPENDED:
                consumed = int(partition.writer.native().out.consumed)
                self._take_producers(run, start, part, consumed)
                self._refresh()
                start += consumed
                if start >= len(run):
                    return True
            elif code == replication.NEW_EPOCH:
                epoch = int(part["leader_epoch"][part["leader_epoch"] > epoch][0])
            elif code == replication.FENCED:
                raise Fenced
            elif code == replication.NOT_NEXT:
                return False
            elif code == system.MUST_ROLL and not self.published.segment_size:
                raise CorruptRecordError(
                    "a batch whose offset is too far from the start of its segment",
                    path=file_names.segment_path(partition.path, self.published.segment_base),
                    found=int(part["base_offset"][0]),
                )
            else:
                self._lock.resolve_code_held(code)
            self._refresh()

    def _record_gap(self, rows: Batches) -> None:
        """Note the first gap of a segment in the manifest before a batch after it is written."""
        published = self.published
        partition = self.partition
        if not len(rows) or not published.flags & GAPLESS:
            return
        if len(rows) == 1 and int(rows["base_offset"][0]) == published.log_end:
            return
        starts = rows["base_offset"]
        ends = rows["base_offset"] + rows["last_offset_delta"] + 1
        if int(starts[0]) == published.log_end and (starts[1:] == ends[:-1]).all():
            return
        start = Start(
            published.log_start, published.segment_base, partition.state.context.last_broker_visit
        )
        partition.state.manifest.append(start)
        partition.state.manifest.sync()

    @scope
    def _open_ending(self, run: memoryview, rows: Batches) -> Iterator[system.Ending]:
        """The end of a transaction; the run is a control batch."""
        partition = self.partition
        row = rows[0]
        state = partition.producer_state(self.published)
        marker = producer_history.marker_in(bytes(run), 0) if row["records"] else None
        unstable, entry = markers.ending_of(
            state, int(row["producer_id"]), marker, int(row["base_offset"])
        )
        path = file_names.segment_path(
            partition.path, self.published.segment_base, file_names.TRANSACTION_INDEX
        )
        if entry is None:
            yield system.Ending(unstable, None, -1)
            return
        with files.opened(path, files.CREATE, partition.mode) as fd:
            yield system.Ending(unstable, entry, fd)

    def _take_producers(self, run: memoryview, start: int, rows: Batches, consumed: int) -> None:
        """Take the producers of appended batches over."""
        if not consumed:
            return
        if start + consumed < len(run):
            rows = rows[: np.searchsorted(rows["position"], int(rows["position"][0]) + consumed)]
        self.partition.producers.take_copied(
            rows, producer_history.markers_in(run[start:], rows), self.partition.writer.native()
        )


def epochs_of_leader(
    before: EpochCache, published: Published, replica: Replica, epoch: int
) -> EpochCache:
    """The epochs of a leader that begins an epoch above that of its page."""
    after = EpochCache.from_rising(entry for entry in before.entries if entry[0] < epoch)
    if replica.role == replication.ROLE_LEADER and replica.epoch_start < published.log_end:
        # the interrupted beginning replaced an epoch without a batch
        after.assign(published.epoch, replica.epoch_start)
    after.assign(epoch, published.log_end)
    return after


def epochs_of_follower(before: EpochCache, published: Published, epoch: int) -> EpochCache:
    """The epochs of a follower whose next batch is the first one of an epoch."""
    after = with_batches(before, published.log_end)
    after.assign(epoch, published.log_end)
    return after


def with_batches(epochs: EpochCache, log_end: int) -> EpochCache:
    """The epochs that have a batch below the log end."""
    return EpochCache.from_rising(entry for entry in epochs.entries if entry[1] < log_end)


def _end_of(rows: Batches) -> int:
    return int(rows["base_offset"][-1] + rows["last_offset_delta"][-1]) + 1


def _split_runs(rows: Batches) -> Iterator[Batches]:
    """Runs of data batches, and each control batch alone."""
    if len(rows) == 1:
        yield rows
        return
    control = (rows["attributes"] & CONTROL) != 0
    cuts = np.flatnonzero(control[1:] | control[:-1]) + 1
    for start, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(rows)], strict=True):
        yield rows[start:end]
