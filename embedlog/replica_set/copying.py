"""This module copies the log of a leader to a follower.

COPYING-1  a follower first follows the leader's epoch, which cuts what the leader does not have (REPLICA-2)
COPYING-2  the bytes of every chunk are checked (checksums, chain, digests) before the follower takes them unchanged
COPYING-3  a follower far behind gets one chunk while the next one is read. A chunk that was read for another log end is not taken
COPYING-4  no lock of the leader is held, and the follower's lock is held for one chunk
"""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from embedlog._native import replication
from embedlog.format.buffer_pool import BufferPool
from embedlog.partition.replication.replica_log import Fenced

if TYPE_CHECKING:
    from embedlog.partition.partition import Partition
    from embedlog.partition.reader import Fetched
    from embedlog.replica_set.leaders import Leader

CHUNK_BYTES: Final = 1 << 20
LARGE_CHUNK_BYTES: Final = 4 << 20  # far behind: fewer locks and fewer reads of the pages

Read = Callable[[int], "Fetched"]


def copy(leader: Leader, follower: Partition, end: int, deadline_ns: int) -> int:
    """Copy the leader's log up to `end` at least; the follower's log end. Raises Fenced, and errors of both directories."""
    now, replica = follower.replica.published()
    if now.epoch > leader.epoch:
        raise Fenced
    if now.epoch < leader.epoch or replica.role != replication.ROLE_FOLLOWER:
        follower.replica.follow(leader.node, leader.epoch, leader.partition.epoch_end, deadline_ns)
    at = follower.replica.published()[0].log_end
    if at >= end:
        return at
    unread = leader.partition.unread_bytes(at)
    with _reading(leader.partition, far=unread is None or unread > LARGE_CHUNK_BYTES) as read:
        while at < end:
            source = leader.partition.published()
            if at < source.log_start:
                with follower.replica.exclusive(deadline_ns) as held:
                    held.restart(source.log_start)
                at = source.log_start
                continue
            fetched = read(at)
            if not len(fetched.batches):
                break
            at = follower.replica.take(fetched, leader.epoch, source.high_watermark, deadline_ns)
    return at


@contextlib.contextmanager
def _reading(partition: Partition, *, far: bool) -> Iterator[Read]:
    """A function that reads the chunk at an offset; if `far`, it begins to read the next one meanwhile."""
    if not far:
        yield lambda offset: partition.replica.read(offset, CHUNK_BYTES)
        return
    pool = BufferPool()
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="embedlog-copy") as reader:
        ahead: dict[int, concurrent.futures.Future[Fetched]] = {}

        def begin(offset: int) -> concurrent.futures.Future[Fetched]:
            return reader.submit(partition.replica.read, offset, LARGE_CHUNK_BYTES, None, pool)

        def read(offset: int) -> Fetched:
            found = (ahead.pop(offset, None) or begin(offset)).result()
            ahead.clear()
            if len(found.batches):
                ahead[found.next_offset] = begin(found.next_offset)
            return found

        yield read
