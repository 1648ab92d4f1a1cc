"""The offsets of one replica, read without a lock and without opening the partition.

- Nothing is changed, recovered or waited for. An open partition shows its mapped page; otherwise
  the page is mapped for one read, and counts only in this incarnation of the directory.
- The checkpoints of the last orderly close count, unless the partition is marked dirty or a broker
  has used the directory. A page is read only if it can show more. Without both only a load knows
  the offsets.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from embedlog._native import replication, system
from embedlog._native.replication import ROLE_NONE, Replica
from embedlog._native.system import Page, Published
from embedlog.partition.log_context import Context
from embedlog.storage import checkpoints, file_names, files
from embedlog.storage.checkpoints import Offsets
from embedlog.storage.control_page import check, map_page


class Position(NamedTuple):
    """The offsets of a replica. `role` and `partition_epoch` are those of its page, without a role
    if it has none.
    """

    log_start: int
    log_end: int
    high_watermark: int
    durable_offset: int
    epoch: int = -1
    role: int = ROLE_NONE
    partition_epoch: int = 0


class TopicIdPartition(NamedTuple):
    """A partition in a directory."""

    topic: str
    number: int
    topic_id_bytes: bytes


class Checkpointed(NamedTuple):
    """The offsets of all partitions of a directory at the last orderly close."""

    ends: Offsets
    starts: Offsets
    high_watermarks: Offsets

    @classmethod
    def read(cls, root: Path) -> Checkpointed:
        """Raises ForeignDirectoryError, StorageError."""
        names = (file_names.RECOVERY_POINTS, file_names.LOG_STARTS, file_names.HIGH_WATERMARKS)
        return cls(*(checkpoints.read_offsets(root / name) for name in names))


def read_position(
    context: Context,
    topic_partition: TopicIdPartition,
    page: Page | None,
    checkpointed: Checkpointed,
) -> Position | None:
    """The offsets of a replica; None if only a load knows them. Raises StorageError.

    `page` is the mapped page of a partition that this process has open.
    """
    if page is not None:
        shown = _read_page(page)
        if shown is not None:
            return shown
    path = context.root / file_names.partition_name(topic_partition.topic, topic_partition.number)
    closed = None
    if not context.broker_wrote and not files.exists(path / file_names.DIRTY):
        closed = _position_at_close(topic_partition, checkpointed)
    if closed is not None and closed.high_watermark == closed.log_end:
        return closed  # nothing was written since, and nothing was left to commit
    mapped = map_page(path / file_names.PAGE, writable=False, locked=context.locked)
    if mapped is not None:
        try:
            own = system.identity(
                context.incarnation,
                topic_partition.topic_id_bytes,
                topic_partition.number,
                mapped.identity_device,
                mapped.inode,
            )
            if check(mapped, own):
                shown = _read_page(mapped.page)
                if shown is not None:
                    return shown
        finally:
            mapped.close()
    return closed


def _read_page(page: Page) -> Position | None:
    """What a page shows; None if it was truncated, or if a truncation of the log is not
    complete.
    """
    publication = replication.read(page)
    if publication is None or not page.is_alive() or page.word(system.WORD_CUT_INTENT):
        return None
    published: Published = publication[0]
    replica: Replica = publication[1]
    durable = min(page.word(system.WORD_DURABLE), published.log_end)
    return Position(
        published.log_start,
        published.log_end,
        published.high_watermark,
        durable,
        published.epoch,
        replica.role,
        replica.partition_epoch,
    )


def _position_at_close(topic_partition: TopicIdPartition, checkpointed: Checkpointed) -> Position:
    key = (topic_partition.topic, topic_partition.number)
    start = checkpointed.starts.get(key, 0)
    end = max(start, checkpointed.ends.get(key, 0))
    high_watermark = max(start, min(checkpointed.high_watermarks.get(key, 0), end))
    return Position(start, end, high_watermark, durable_offset=end)
