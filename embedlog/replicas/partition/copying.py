"""This module copies the log of a leader to a follower.

COPYING-1  a follower first follows the leader's epoch, which cuts what the leader does not have
    (REPLICA-2)
COPYING-2  the bytes of every chunk are checked (checksums, chain, digests) before the follower
    takes them unchanged
COPYING-3  a follower that lacks much gets one chunk while the next one is read. A chunk for another
    log end is not taken
COPYING-4  a replica outside ISR and ELR whose page has no role may be of an earlier copy, or
    written without the set. Before it follows, its bytes are compared with those of the leader from
    the log start, and cut at the first difference (REPLICA-19). Without an equal batch nothing of
    it is known to be the leader's, also below the leader's log start (`replica_log`)
COPYING-5  no lock of the leader is held, and the follower's lock is held for one chunk
COPYING-6  the page of the leader is read after each chunk. It must still lead in the epoch, and
    have deleted nothing that the follower lacks. Otherwise the follower begins again at the
    leader's log start (REPLICA-2, REPLICA-20)
COPYING-7  a log start can be inside a batch. A follower begins at the first offset of that batch,
    and takes the log start later. One that ends inside a batch of its leader begins again. Each
    chunk moves the log end, or the copy fails
COPYING-8  a follower whose page was removed, or whose log is being cut, does not count for a
    commit. Its append lock shows why
COPYING-9  a follower takes the leader's log start also without a record. Its high watermark, which
    it learns one copy late, rises to that start first: a log start is never above it (REPLICA-20)
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
from embedlog.replicas.members.directory_workers import Make, make_here

if TYPE_CHECKING:
    import numpy as np

    from embedlog._native.replication import Replica
    from embedlog._native.system import Published
    from embedlog.partition.interfaces import Fetched
    from embedlog.partition.partition import Partition
    from embedlog.partition.replication.replica_log import ReplicaLog
    from embedlog.replicas.partition.follower_lags import Step
    from embedlog.replicas.partition.leaders import Leader

logger = logging.getLogger("embedlog")


CHUNK_BYTES: Final = 1 << 20
# if much is to be copied: fewer locks and fewer reads of the pages
LARGE_CHUNK_BYTES: Final = 4 << 20

Read = Callable[[int], "Fetched"]


def check_copied(follower: ReplicaLog, deadline_ns: int) -> None:
    """Raise the reason why a follower does not count that has everything (COPYING-8).

    A copy of nothing takes no lock, and meets no error.
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
    complete: bool = False,
    step: Step | None = None,
    at_follower: Make = make_here,
) -> int:
    """Copy the leader's log up to `end` at least; the follower's log end. Raises Fenced, NotLeader,
    and errors of both directories.

    `compared`: the follower is outside the ISR, and its bytes are compared before it follows
    (COPYING-4). `complete`: it is in the ELR. `at_follower` makes the calls that change the
    follower, one for each chunk. `step` is called with the follower's log end before each chunk and
    after the last one. The copy ends if it returns False.
    """
    now, replica = follower.replica.published()
    if now.epoch > leader.epoch:
        raise Fenced
    at = now.log_end
    if now.epoch < leader.epoch or replica.role != replication.ROLE_FOLLOWER:
        limit = start = None
        if compared and not complete:
            source, shown = leader.page()
            # another process may have added it since the caller looked
            if not _is_member(shown, follower):
                start = source.log_start
            if replica.role == replication.ROLE_NONE and now.log_end > now.log_start:
                limit = _equal_end(leader.partition, follower)
        epoch_end = (
            leader.partition.epoch_end
            if start is None
            else leader.partition.replica.epochs.known_end_of
        )
        follow = partial(
            follower.replica.follow,
            leader.node,
            leader.epoch,
            epoch_end,
            deadline_ns,
            limit=limit,
            start=start,
        )
        at = at_follower(follow)
    work = _Copying(leader, follower, deadline_ns, complete, at_follower)
    source = work.source().published
    if at < end:
        at, source = work.copied(at, end, step)
    if (
        source.log_start > now.log_start
        and source.log_start > (own := follower.published()).log_start
    ):
        if own.high_watermark < source.log_start <= own.log_end:  # COPYING-9
            at_follower(
                partial(follower.replica.learn, leader.epoch, source.log_start, deadline_ns)
            )
            own = follower.published()
        end = min(source.log_start, own.high_watermark)
        at_follower(partial(follower.delete_records, end, leader.epoch, deadline_ns))
    return at


class _Copying(NamedTuple):
    """The copy of one log."""

    leader: Leader
    follower: Partition
    deadline_ns: int
    complete: bool  # the follower was in the ELR
    at_follower: Make

    def source(self) -> CopySource:
        """What the leader shows now. Raises NotLeader."""
        now, replica = self.leader.page()
        return source_of(now, replica, complete=self.complete or _is_member(replica, self.follower))

    def copied(self, at: int, end: int, step: Step | None) -> tuple[int, Published]:
        """Copy from the follower's log end on: its new one, and what the leader showed last.

        A chunk counts only if nothing was deleted from it since it was read (COPYING-6).
        """
        leader = self.leader
        follower = self.follower
        source = self.source()
        with _reading(leader.partition, much=_is_much(leader, source.published, at)) as read:
            while at < end and (step is None or step(at)):
                own = follower.published()
                fetched = (
                    None
                    if _lacks(leader, own, source)
                    else _read(read, leader, max(at, source.published.log_start))
                )
                source = self.source()
                inside = (
                    at
                    if fetched is not None
                    and len(fetched.batches)
                    and int(fetched.batches["base_offset"][0]) < at
                    else -1
                )
                if fetched is None or inside >= 0 or _lacks(leader, own, source):
                    begin = _begin_of(leader, source.published)
                    again = partial(
                        follower.replica.begin_again,
                        source,
                        leader.epoch,
                        begin,
                        self.deadline_ns,
                        inside=inside,
                    )
                    at = self.at_follower(again)
                    continue
                if not len(fetched.batches):
                    break
                fetched.offset = at
                before = at
                now = source.published
                at = self.at_follower(
                    partial(
                        follower.replica.take,
                        fetched,
                        leader.epoch,
                        now.high_watermark,
                        self.deadline_ns,
                        now.log_start,
                    )
                )
                if at == before:
                    raise StorageError(
                        "the batches of the leader do not continue the log",
                        path=follower.path,
                        found=at,
                    )
        if step is not None:
            step(at)
        return at, source.published


def _is_member(leader: Replica, follower: Partition) -> bool:
    """Whether the page of a leader has a follower in its maximal ISR."""
    return bool(leader.maximal_isr >> follower.replica.slot & 1)


def _is_much(leader: Leader, source: Published, at: int) -> bool:
    """Whether so much is to be copied that it is worth reading the next chunk meanwhile."""
    if at < source.segment_base:
        return True
    return (
        source.segment_size > LARGE_CHUNK_BYTES
        and leader.partition.replica.bytes_from(at) > LARGE_CHUNK_BYTES
    )


def _lacks(leader: Leader, now: Published, source: CopySource) -> bool:
    """Whether the follower must begin again: also at the begin of a batch with the leader's log
    start it need not (COPYING-7).
    """
    theirs = source.published
    if (
        now.log_end < theirs.log_start
        and now.purged_to >= theirs.purged_to
        and now.log_end == _begin_of(leader, theirs)
    ):
        return False
    return lacks_deleted(now, source)


def _begin_of(leader: Leader, source: Published) -> int:
    """The first offset of the batch in which the log start of the leader is."""
    try:
        found = leader.partition.replica.read(source.log_start, 1)
    except OffsetOutOfRangeError:
        return source.log_start  # it has moved meanwhile
    return (
        min(source.log_start, int(found.batches["base_offset"][0]))
        if len(found.batches)
        else source.log_start
    )


def _read(read: Read, leader: Leader, offset: int) -> Fetched | None:
    """The chunk at an offset; None if the log start of the leader passed the offset. Raises
    NotLeader.

    A leader that was replaced meanwhile can have been cut below the offset.
    """
    try:
        return read(offset)
    except OffsetOutOfRangeError:
        if leader.shown().log_start <= offset:
            raise
        return None


def _equal_end(leader: Partition, follower: Partition) -> int:
    """The offset up to which both logs have the same batches; the log start if no batch is
    compared, or if a compacted topic differs.
    """
    now = follower.published()
    theirs = leader.published()
    at = begin = max(now.log_start, theirs.log_start)
    if at > theirs.log_end:
        return now.log_start
    while at < now.log_end:
        following = _compared(leader.replica.read(at, LARGE_CHUNK_BYTES), _own(follower, at))
        if following is None:
            break
        at = following
    end = min(at, now.log_end)
    if end < min(now.log_end, leader.published().log_end):
        logger.warning(
            "%s differs from the log of the leader, from offset %d on", follower.path, end
        )
        if follower.config.compacted:
            return now.log_start
    return end if at > begin else now.log_start


def _own(follower: Partition, offset: int) -> Fetched | None:
    """The batches of the follower at an offset; None if they are damaged."""
    try:
        return follower.replica.read(offset, LARGE_CHUNK_BYTES)
    except CorruptRecordError as problem:
        logger.warning("%s is damaged, and copied again: %s", follower.path, problem)
        return None


def _compared(theirs: Fetched, own: Fetched | None) -> int | None:
    """The offset after the equal batches at the begin of both; None if the first ones differ or are
    absent.
    """
    if own is None:
        return None
    following = None
    for one, other in zip(theirs.batches, own.batches, strict=False):
        if _bytes_of(theirs, one) != _bytes_of(own, other):
            break
        following = int(one["base_offset"]) + int(one["last_offset_delta"]) + 1
    return following


def _bytes_of(fetched: Fetched, row: np.void) -> memoryview:
    position = int(row["position"])
    return fetched.data[position : position + int(row["size"])]


class _Ahead(threading.Thread):
    """One chunk that is read while the chunk before it is written."""

    def __init__(self, read: Read, offset: int) -> None:
        super().__init__(name="embedlog-copy", daemon=True)
        self._read = read
        self.offset = offset
        self._found: Fetched | None = None
        self._problem: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Read; an error is kept for `result`."""
        try:
            self._found = self._read(self.offset)
        except BaseException as problem:  # noqa: BLE001  (`result` raises it)
            self._problem = problem

    def result(self) -> Fetched:
        """The chunk, once it is read. Raises the errors of the read."""
        self.join()
        if self._problem is not None:
            raise self._problem
        if self._found is None:
            raise AssertionError("neither a chunk nor an error")
        return self._found


@scope
def _reading(partition: Partition, *, much: bool) -> Iterator[Read]:
    """A function that reads the chunk at an offset; if there is much to read, it begins to read the
    next one meanwhile.
    """
    if not much:
        yield lambda offset: partition.replica.read(offset, CHUNK_BYTES)
        return
    pool = BufferPool()
    ahead = list[_Ahead]()

    def chunk(offset: int) -> Fetched:
        return partition.replica.read(offset, LARGE_CHUNK_BYTES, None, pool)

    def read(offset: int) -> Fetched:
        next_chunk = ahead.pop() if ahead else None
        if next_chunk is not None and next_chunk.offset != offset:
            next_chunk.join()
            next_chunk = None
        found = chunk(offset) if next_chunk is None else next_chunk.result()
        if len(found.batches):
            ahead.append(_Ahead(chunk, found.next_offset))
        return found

    try:
        yield read
    finally:
        for each in ahead:
            each.join()
