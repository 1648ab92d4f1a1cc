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
from embedlog.partition.replication.replica_position import Checkpointed, Place, Position, position
from embedlog.replicas.members import membership as members
from embedlog.storage import file_names, files

if TYPE_CHECKING:
    from embedlog.log_directory import LogDirectory
    from embedlog.partition.partition import Partition
    from embedlog.replicas.members.membership import Membership


class Observation(NamedTuple):
    """What a directory shows. A position is None if only a load knows it; `held` are the names of
    partition directories.
    """

    positions: dict[Place, Position | None]
    held: frozenset[str]
    device: int
    membership: Membership | None


class Missing(NamedTuple):
    """The records that a replica lacks: their bytes in the leader's log, and the timestamp of the
    first one.
    """

    size: int
    first_ms: int


def observe(directory: LogDirectory, places: Iterable[Place]) -> Observation:
    """Read a directory. Raises StorageError if it was removed or replaced,
    ForeignDirectoryError.
    """
    if directory.read_only:
        if directory.context.refresh is not None:
            directory.context.refresh()
    else:
        directory.directory.check_lock()
    found = files.lstat(files.real_path(directory.path))
    if found is None:
        raise StorageError("the log directory does not exist any more", path=directory.path)
    membership = members.read(directory.path)
    held = frozenset(
        name
        for name in files.directories(directory.path)
        if file_names.parse_partition_name(name) is not None
    )
    noted = Checkpointed.read(directory.path)
    positions = {
        place: _position(directory, place, noted)
        for place in places
        if file_names.partition_name(place.topic, place.number) in held
    }
    return Observation(positions, held, found.device, membership)


def _position(directory: LogDirectory, place: Place, noted: Checkpointed) -> Position | None:
    opened = directory.partitions.get((place.topic, place.number))
    used = opened is not None and opened.topic_id == place.topic_id and not opened.closed
    page = opened.mapped_page if opened is not None and used else None
    # of this partition only
    with contextlib.suppress(
        CorruptRecordError, UnknownTopicOrPartitionError, UnsupportedFormatError
    ):
        found = position(directory.context, place, page, noted)
        if found is None and directory.read_only:
            now = directory.partition(place.topic, place.number).published()
            return Position(now.log_start, now.log_end, now.high_watermark, now.log_end, now.epoch)
        return found
    return None


def missing(
    directory: LogDirectory, wanted: Sequence[tuple[Place, int]]
) -> dict[tuple[Place, int], Missing]:
    """The records from each offset on, in the leader's log. What cannot be read is left out."""
    found = {}
    for place, offset in wanted:
        with contextlib.suppress(EmbedlogError):
            found[place, offset] = _missing(directory.partition(place.topic, place.number), offset)
    return found


def _missing(leader: Partition, offset: int) -> Missing:
    """Raises OffsetOutOfRangeError if the log ends at the offset; CorruptRecordError,
    StorageError.
    """
    now, segments = leader.present()
    first = max(offset, now.log_start)
    fetched = leader.replica.read(first, 1)
    if not len(fetched.batches):
        raise OffsetOutOfRangeError("no record is missing", found=offset)
    size = sum(
        each.size for each in segments if each.next_offset > first or each.base == now.segment_base
    )
    batch = fetched.batches[0]
    of_append = int(batch["attributes"]) & LOG_APPEND_TIME
    at = fetched.position + int(batch["position"])
    return Missing(
        max(0, size - at), int(batch["max_timestamp" if of_append else "base_timestamp"])
    )
