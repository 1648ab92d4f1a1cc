"""This module copies the log of a leader to a follower.

A follower first follows the leader's epoch, which cuts what the leader does not have (REPLICA-2).
The bytes of every chunk are checked (checksums, chain, digests) before the follower takes them
unchanged. A follower that lacks much gets one chunk while the next one is read. No lock of the
leader is held, and the follower's lock is held for one chunk.

The page of the leader is read after each chunk. It must still lead in the epoch, and have deleted
nothing that the follower lacks. Otherwise the follower begins again at the leader's log start
(REPLICA-2, REPLICA-20).

A replica outside ISR and ELR whose page has no role may be of an earlier copy, or written without
the set. Before it follows, its bytes are compared with those of the leader from the log start, and
cut at the first difference (REPLICA-19). Without an equal batch nothing of it is known to be the
leader's, also below the leader's log start.

A log start can be inside a batch. A follower begins at the first offset of that batch, and takes
the log start later. One that ends inside a batch of its leader begins again. Each chunk moves the
log end, or the copy fails.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from embedlog._native import replication
from embedlog._native.scope import scope
from embedlog.errors import CorruptRecordError, OffsetOutOfRangeError, StorageError
from embedlog.format.buffer_pool import BufferPool
from embedlog.partition.replication.replica_log import CopySource, Fenced, lacks_deleted, source_of
from embedlog.replicas.members.directory_workers import CallRunner, run_here

if TYPE_CHECKING:
    import numpy as np

    from embedlog._native.replication import Replica
    from embedlog._native.system import Published
    from embedlog.partition.interfaces import Fetched
    from embedlog.partition.partition import Partition
    from embedlog.partition.replication.replica_log import ReplicaLog
    from embedlog.replicas.partition.follower_lags import Step
    from embedlog.replicas.partition.leader import Leader

logger = logging.getLogger("embedlog")


CHUNK_BYTES: Final = 1 << 20
# if much is to be copied: fewer locks and fewer reads of the pages
LARGE_CHUNK_BYTES: Final = 4 << 20

Read = Callable[[int], "Fetched"]


def check_copied(follower: ReplicaLog, deadline_ns: int) -> None:
    """Raise the reason why a follower does not count that has everything: its page was removed, or
    its log is being cut.

    Its append lock shows that. A copy of nothing takes no lock, and meets no error.
    """
    with follower.exclusive(deadline_ns):
        pass


def copy(
    leader: Leader,
    follower: Partition,
    end: int,
    deadline_ns: int,
    *,
    compared: bool = False,
    eligible: bool = False,
    step: Step | None = None,
    at_follower: CallRunner = run_here,
) -> int:
    """Copy the leader's log up to `end`, and perhaps further; the follower's log end. Raises Fenced,
    NotLeader, and errors of both directories.

    The result is below `end` if the leader shows no more batches, or if `step` has ended the copy.
    `compared`: the follower is outside the ISR, and its bytes are compared before it follows.
    `eligible`: it is in the ELR, so its bytes are the leader's. `at_follower` makes the calls that
    change the follower, one for each chunk. `step` is told the follower's log end before each chunk,
    and once more after the last one. If it returns False before a chunk, the copy ends.
    """
    now, replica = follower.replica.published()
    if now.epoch > leader.epoch:
        raise Fenced
    offset = now.log_end
    if now.epoch < leader.epoch or replica.role != replication.ROLE_FOLLOWER:
        limit = None
        start = None
        if compared and not eligible:
            source, leader_replica = leader.read_page()
            # another process may have added it since the caller looked
            if not _is_member(leader_replica, follower):
                start = source.log_start
            if replica.role == replication.ROLE_NONE and now.log_end > now.log_start:
                limit = _find_equal_end(leader.partition, follower)
        if start is None:
            epoch_end = leader.partition.epoch_end
        else:
            # What a replica outside ISR and ELR has of an epoch below all that the leader knows is not
            # known to be the leader's: it begins again at `start` (`ReplicaLog.follow`).
            epoch_end = leader.partition.replica.epochs.known_end_of
        follow = partial(
            follower.replica.follow,
            leader.node,
            leader.epoch,
            epoch_end,
            deadline_ns,
            limit=limit,
            start=start,
        )
        offset = at_follower(follow)
    log_copy = _LogCopy(leader, follower, deadline_ns, eligible, at_follower)
    source = log_copy.read_source().published
    if offset < end:
        offset, source = log_copy.copy_chunks(offset, end, step)
    if source.log_start > now.log_start:
        log_copy.raise_log_start(source.log_start)
    return offset


class _LogCopy(NamedTuple):
    """The copy of one log."""

    leader: Leader
    follower: Partition
    deadline_ns: int
    eligible: bool  # the follower was in the ELR when the copy began
    at_follower: CallRunner

    def read_source(self) -> CopySource:
        """What the leader shows now. Raises NotLeader."""
        now, replica = self.leader.read_page()
        return source_of(now, replica, complete=self.eligible or _is_member(replica, self.follower))

    def copy_chunks(self, offset: int, end: int, step: Step | None) -> tuple[int, Published]:
        """Copy from the follower's log end on: its new one, and what the leader showed last.

        A chunk counts only if nothing was deleted from it since it was read. It ends below `end` if the
        leader shows no more batches, or if `step` returns False.
        """
        leader = self.leader
        follower = self.follower
        source = self.read_source()
        is_much = _is_much(leader, source.published, offset)
        with _read_ahead(leader.partition, much=is_much) as read:
            while offset < end:
                if step is not None and not step(offset):
                    break
                own = follower.published()
                fetched = None
                if not _needs_restart(leader, own, source):
                    fetched = _read_chunk(read, leader, max(offset, source.published.log_start))
                source = self.read_source()
                inside = _offset_inside(fetched, offset)
                if fetched is None or inside >= 0 or _needs_restart(leader, own, source):
                    offset = self._restart(source, inside=inside)
                    continue
                if not len(fetched.batches):
                    break  # the leader was cut, or shows its end
                fetched.offset = offset  # the read may have begun at a log start in this batch
                start = offset
                take = partial(
                    follower.replica.take,
                    fetched,
                    leader.epoch,
                    source.published.high_watermark,
                    self.deadline_ns,
                    source.published.log_start,
                )
                offset = self.at_follower(take)
                if offset == start:
                    raise StorageError(
                        "the batches of the leader do not continue the log",
                        path=follower.path,
                        found=offset,
                    )
        if step is not None:
            step(offset)
        return offset, source.published

    def _restart(self, source: CopySource, *, inside: int) -> int:
        """Let the follower begin again at the leader's log start; its new log end. `inside`: the
        offset at which it ends inside a batch of the leader, -1 otherwise.
        """
        restart = partial(
            self.follower.replica.begin_again,
            source,
            self.leader.epoch,
            _batch_start_of(self.leader, source.published),
            self.deadline_ns,
            inside=inside,
        )
        return self.at_follower(restart)

    def raise_log_start(self, log_start: int) -> None:
        """Raise the log start of the follower to that of the leader, also without a record.

        Its high watermark, which it learns one copy late, rises to that start first: a log start is
        never above it (REPLICA-20).
        """
        follower = self.follower
        own = follower.published()
        if log_start <= own.log_start:
            return
        epoch = self.leader.epoch
        if own.high_watermark < log_start <= own.log_end:
            self.at_follower(partial(follower.replica.learn, epoch, log_start, self.deadline_ns))
            own = follower.published()
        end = min(log_start, own.high_watermark)
        self.at_follower(partial(follower.delete_records, end, epoch, self.deadline_ns))


def _offset_inside(fetched: Fetched | None, offset: int) -> int:
    """The offset, if it is inside the first batch of a chunk; -1 otherwise."""
    if fetched is None or not len(fetched.batches):
        return -1
    first = int(fetched.batches["base_offset"][0])
    return offset if first < offset else -1


def _is_member(leader: Replica, follower: Partition) -> bool:
    """Whether the page of a leader has a follower in its maximal ISR."""
    return bool(leader.maximal_isr >> follower.replica.slot & 1)


def _is_much(leader: Leader, source: Published, offset: int) -> bool:
    """Whether so much is to be copied that it is worth reading the next chunk meanwhile."""
    if offset < source.segment_base:
        return True
    return (
        source.segment_size > LARGE_CHUNK_BYTES
        and leader.partition.replica.bytes_from(offset) > LARGE_CHUNK_BYTES
    )


def _needs_restart(leader: Leader, now: Published, source: CopySource) -> bool:
    """Whether the follower must begin again. One that ends at the begin of the batch with the
    leader's log start need not.
    """
    theirs = source.published
    if (
        now.log_end < theirs.log_start
        and now.purged_to >= theirs.purged_to
        and now.log_end == _batch_start_of(leader, theirs)
    ):
        return False
    return lacks_deleted(now, source)


def _batch_start_of(leader: Leader, source: Published) -> int:
    """The first offset of the batch in which the log start of the leader is."""
    try:
        fetched = leader.partition.replica.read(source.log_start, 1)
    except OffsetOutOfRangeError:
        return source.log_start  # it has moved meanwhile
    if not len(fetched.batches):
        return source.log_start
    return min(source.log_start, int(fetched.batches["base_offset"][0]))


def _read_chunk(read: Read, leader: Leader, offset: int) -> Fetched | None:
    """The chunk at an offset; None if the log start of the leader passed the offset. Raises
    NotLeader.

    A leader that was replaced meanwhile can have been cut below the offset.
    """
    try:
        return read(offset)
    except OffsetOutOfRangeError:
        if leader.read_tuple().log_start <= offset:
            raise
        return None


def _find_equal_end(leader: Partition, follower: Partition) -> int:
    """The offset up to which both logs have the same batches. The follower's log start, so that all
    of it is cut, if no batch is compared or if a compacted topic differs.
    """
    now = follower.published()
    theirs = leader.published()
    start = max(now.log_start, theirs.log_start)
    if start > theirs.log_end:
        return now.log_start
    offset = start
    while offset < now.log_end:
        leader_batches = leader.replica.read(offset, LARGE_CHUNK_BYTES)
        equal_end = _compare_batches(leader_batches, _read_own(follower, offset))
        if equal_end is None:
            break
        offset = equal_end
    end = min(offset, now.log_end)
    if end < min(now.log_end, leader.published().log_end):
        logger.warning(
            "%s differs from the log of the leader, from offset %d on", follower.path, end
        )
        if follower.config.compacted:
            return now.log_start
    return end if offset > start else now.log_start


def _read_own(follower: Partition, offset: int) -> Fetched | None:
    """The batches of the follower at an offset; None if they are damaged."""
    try:
        return follower.replica.read(offset, LARGE_CHUNK_BYTES)
    except CorruptRecordError as problem:
        logger.warning("%s is damaged, and copied again: %s", follower.path, problem)
        return None


def _compare_batches(theirs: Fetched, own: Fetched | None) -> int | None:
    """The offset after the equal batches at the begin of both; None if the first ones differ or are
    absent.
    """
    if own is None:
        return None
    equal_end = None
    for their_row, own_row in zip(theirs.batches, own.batches, strict=False):
        if _bytes_of(theirs, their_row) != _bytes_of(own, own_row):
            break
        equal_end = int(their_row["base_offset"]) + int(their_row["last_offset_delta"]) + 1
    return equal_end


def _bytes_of(fetched: Fetched, row: np.void) -> memoryview:
    position = int(row["position"])
    return fetched.data[position : position + int(row["size"])]


class _ChunkAhead(threading.Thread):
    """One chunk that is read while the chunk before it is written."""

    def __init__(self, read: Read, offset: int) -> None:
        super().__init__(name="embedlog-copy", daemon=True)
        self._read = read
        self.offset = offset
        self._fetched: Fetched | None = None
        self._problem: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Read; an error is kept for `result`."""
        try:
            self._fetched = self._read(self.offset)
        except BaseException as problem:  # noqa: BLE001  (`result` raises it)
            self._problem = problem

    def result(self) -> Fetched:
        """The chunk, once it is read. Raises the errors of the read."""
        self.join()
        if self._problem is not None:
            raise self._problem
        if self._fetched is None:
            raise AssertionError("neither a chunk nor an error")
        return self._fetched


@scope
def _read_ahead(partition: Partition, *, much: bool) -> Iterator[Read]:
    """A function that reads the chunk at an offset; if there is much to read, it begins to read the
    next one meanwhile. A chunk for another offset is not used.
    """
    if not much:
        yield lambda offset: partition.replica.read(offset, CHUNK_BYTES)
        return
    pool = BufferPool()
    ahead: _ChunkAhead | None = None

    def read_large(offset: int) -> Fetched:
        return partition.replica.read(offset, LARGE_CHUNK_BYTES, None, pool)

    def read(offset: int) -> Fetched:
        nonlocal ahead
        chunk = ahead
        ahead = None
        if chunk is not None and chunk.offset != offset:
            chunk.join()
            chunk = None
        fetched = read_large(offset) if chunk is None else chunk.result()
        if len(fetched.batches):
            ahead = _ChunkAhead(read_large, fetched.next_offset)
        return fetched

    try:
        yield read
    finally:
        if ahead is not None:
            ahead.join()
