"""This module reads what one directory of an open log shows about its replicas, without a lock and
without opening them.

- A partition that this process does not use costs the read of its control page, or nothing after an
  orderly close.
- A reader loads the files of a partition after a crash: no process that writes has done so yet.
- The bytes and the time of missing records are read from the leader's log, only for replicas that
  lack records.
- Damage in one partition leaves its offsets unknown. An error of the storage belongs to the
  directory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from embedlog.errors import (
    CorruptRecordError,
    EmbedlogError,
    OffsetOutOfRangeError,
    StorageError,
    UnknownTopicOrPartitionError,
    UnsupportedFormatError,
)
from embedlog.format.record_columns import LOG_APPEND_TIME
from embedlog.partition.replication.replica_position import (
    Checkpointed,
    Position,
    TopicIdPartition,
    read_position,
)
from embedlog.replicas.members import membership as members
from embedlog.storage import file_names, files

if TYPE_CHECKING:
    from embedlog.engine.log_directory import LogDirectory
    from embedlog.partition.partition import Partition
    from embedlog.replicas.members.membership import Membership


class DirectoryObservation(NamedTuple):
    """What a directory shows. A position is None if only a load knows it; `partition_names` are
    those of the partition directories.
    """

    positions: dict[TopicIdPartition, Position | None]
    partition_names: frozenset[str]
    device: int
    membership: Membership | None


class Missing(NamedTuple):
    """The records that a replica lacks: their bytes in the leader's log, and the timestamp of the
    first one.
    """

    size: int
    first_ms: int


def observe(
    directory: LogDirectory, topic_partitions: Iterable[TopicIdPartition]
) -> DirectoryObservation:
    """Read a directory. Raises StorageError if it was removed or replaced,
    ForeignDirectoryError.
    """
    if directory.read_only:
        if directory.context.refresh is not None:
            directory.context.refresh()
    else:
        directory.directory.check_lock()
    facts = files.lstat(files.real_path(directory.path))
    if facts is None:
        raise StorageError("the log directory does not exist any more", path=directory.path)
    membership = members.read(directory.path)
    partition_names = frozenset(
        name
        for name in files.directories(directory.path)
        if file_names.parse_partition_name(name) is not None
    )
    checkpoints = Checkpointed.read(directory.path)
    positions = {
        topic_partition: _read_position(directory, topic_partition, checkpoints)
        for topic_partition in topic_partitions
        if file_names.partition_name(topic_partition.topic, topic_partition.number)
        in partition_names
    }
    return DirectoryObservation(positions, partition_names, facts.device, membership)


def _read_position(
    directory: LogDirectory, topic_partition: TopicIdPartition, checkpoints: Checkpointed
) -> Position | None:
    opened = directory.partitions.get((topic_partition.topic, topic_partition.number))
    page = None
    if (
        opened is not None
        and opened.topic_id_bytes == topic_partition.topic_id_bytes
        and not opened.closed
    ):
        page = opened.mapped_page
    # damage is that of this partition only
    with contextlib.suppress(
        CorruptRecordError, UnknownTopicOrPartitionError, UnsupportedFormatError
    ):
        known_position = read_position(directory.context, topic_partition, page, checkpoints)
        if known_position is None and directory.read_only:
            now = directory.partition(topic_partition.topic, topic_partition.number).published()
            return Position(now.log_start, now.log_end, now.high_watermark, now.log_end, now.epoch)
        return known_position
    return None


def measure_missing(
    directory: LogDirectory, ends: Sequence[tuple[TopicIdPartition, int]]
) -> dict[tuple[TopicIdPartition, int], Missing]:
    """The records from each offset on, in the leader's log. What cannot be read is left out."""
    measured = {}
    for topic_partition, offset in ends:
        with contextlib.suppress(EmbedlogError):
            leader = directory.partition(topic_partition.topic, topic_partition.number)
            measured[topic_partition, offset] = _measure_missing(leader, offset)
    return measured


def _measure_missing(leader: Partition, offset: int) -> Missing:
    """Raises OffsetOutOfRangeError if the log ends at the offset; CorruptRecordError,
    StorageError.
    """
    now, segments = leader.current_segments()
    first = max(offset, now.log_start)
    fetched = leader.replica.read(first, 1)
    if not len(fetched.batches):
        raise OffsetOutOfRangeError("no record is missing", found=offset)
    size = sum(
        segment.size
        for segment in segments
        if segment.next_offset > first or segment.base == now.segment_base
    )
    batch = fetched.batches[0]
    position_of_batch = fetched.position + int(batch["position"])
    is_time_of_append = int(batch["attributes"]) & LOG_APPEND_TIME
    first_ms = int(batch["max_timestamp" if is_time_of_append else "base_timestamp"])
    return Missing(max(0, size - position_of_batch), first_ms)
