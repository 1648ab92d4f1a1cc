"""Plans a read: resolves topics and bounds now, and cuts them into tasks of about equal size.

- Bounds are pinned here: later appends are not in the plan, however late its tasks run.
- A task contains offsets and the topic's id, never file positions: it reads the indexes on its own
  machine.
- A piece has at most about `max_bytes`, and enough to make a task's fixed cost negligible; small
  pieces share a task.
- Requested topics, partitions or offsets that do not exist are an error, unless `failOnDataLoss` is
  false. A follower may know the end of a partition late: that an offset is above it counts after a
  wait for the end.

With `failOnDataLoss=false` each loss is a warning, at every step: at a new query, at a batch that
was planned earlier, and in its tasks. The query goes on from a position that exists. Without any of
its topics a new query is an error: the name is wrong.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import embedlog
from embedlog.spark.read_options import EARLIEST, LATEST, Bound, Directory, ReadSettings, first_of

logger = logging.getLogger("embedlog.spark")

PIECE_BYTES_MIN = 8 << 20  # read in the time that Spark needs to start a task


@dataclass(frozen=True)
class PlannedPiece:
    """Offsets from `start` to `end` (exclusive) of a partition of the topic with this id."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    size_bytes: int = 0


@dataclass(frozen=True)
class ReadTask:
    """The pieces that one Spark task reads. Times, if given, filter record by record."""

    directory: Directory
    pieces: tuple[PlannedPiece, ...]
    isolation: embedlog.IsolationLevel = "read_uncommitted"
    fail_on_data_loss: bool = True
    start_ms: int | None = None
    end_ms: int | None = None


def plan(settings: ReadSettings, parallel: int = 0) -> list[ReadTask]:
    """The tasks of a batch. Raises ConfigError, UnknownTopicOrPartitionError,
    OffsetOutOfRangeError, StorageError.
    """
    with embedlog.open(settings.directory, read_only=True) as log:
        topics = Topics.of_a_new_query(log, settings)
        return tasks_of(log, settings, topics.find_pieces(settings.start, settings.end), parallel)


# ---- partitions and bounds -----------------------------------------------------------------------


class Topics:
    """The current state of the partitions that the options name.

    With `failOnDataLoss=false` those that do not exist are in `missing`. Raises
    UnknownTopicOrPartitionError otherwise.
    """

    def __init__(self, log: embedlog.Log, settings: ReadSettings) -> None:
        self._log = log
        self._settings = settings
        self.missing: list[str] = []
        self.descriptions = {name: log.describe_topic(name) for name in self._names()}
        self.partitions = list(self._partitions())

    @classmethod
    def of_a_new_query(cls, log: embedlog.Log, settings: ReadSettings) -> Topics:
        """As the constructor, with a warning for what is missing. Raises
        UnknownTopicOrPartitionError if no topic exists.
        """
        topics = cls(log, settings)
        if topics.missing and not topics.partitions:
            raise topics._unknown(topics.missing)
        if topics.missing:
            logger.warning(
                "failOnDataLoss=false: %s does not exist and is not read", ", ".join(topics.missing)
            )
        return topics

    def _names(self) -> list[str]:
        settings = self._settings
        if settings.pattern:
            try:
                pattern = re.compile(settings.pattern)
            except re.error as problem:
                raise embedlog.ConfigError(
                    "subscribePattern", expected="a regular expression", found=str(problem)
                ) from None
            return [name for name in self._log.topics() if pattern.fullmatch(name)]
        names = list(settings.subscribe or settings.assign)
        existing = self._log.topics(include_internal=True)
        missing = [name for name in names if name not in existing]
        if missing and settings.fail_on_data_loss:
            raise self._unknown(missing)
        self.missing += missing
        return [name for name in names if name in existing]

    def _unknown(self, names: Iterable[str]) -> embedlog.UnknownTopicOrPartitionError:
        topics = ", ".join(self._log.topics()) or "no topic"
        return embedlog.UnknownTopicOrPartitionError(
            f"no such topic: {', '.join(names)}",
            path=first_of(self._settings.directory),
            expected=f"one of: {topics}",
        )

    def _partitions(self) -> Iterator[tuple[str, embedlog.PartitionDescription]]:
        for name, description in self.descriptions.items():
            partitions = {partition.partition: partition for partition in description.partitions}
            for number in self._settings.assign.get(name, tuple(partitions)):
                if number in partitions:
                    yield name, partitions[number]
                elif self._settings.fail_on_data_loss:
                    raise embedlog.UnknownTopicOrPartitionError(
                        f"assign: topic {name} has no partition {number}",
                        path=first_of(self._settings.directory),
                        found=number,
                    )
                else:
                    self.missing.append(f"{name}, partition {number}")

    def end_of(self, partition: embedlog.PartitionDescription) -> int:
        """The offset after the last record that can be read."""
        committed = self._settings.isolation == "read_committed"
        return partition.last_stable_offset if committed else partition.high_watermark

    def awaited_end(
        self,
        topic: str,
        partition: embedlog.PartitionDescription,
        offset: int,
        isolation: embedlog.IsolationLevel | None = None,
    ) -> int:
        """As `end_of`, after a wait for a replica with the records below `offset`. Raises
        LeaderNotAvailableError.
        """
        end = self.end_of(partition)
        if offset <= end:
            return end
        number = partition.partition
        level = isolation or self._settings.isolation
        scan = self._log.scan(topic, partitions=number, isolation_level=level)
        return scan._await_bounds(number, offset)[1]

    def find_pieces(self, start: Bound, end: Bound) -> list[PlannedPiece]:
        """Each partition between its bounds, including empty pieces."""
        self._check_named(start)
        self._check_named(end)
        starts = self._by_time(start)
        ends = self._by_time(end)
        pieces = []
        for name, partition in self.partitions:
            number = partition.partition
            _check_order(start, end, name, number)
            first = self.offset(name, partition, start, starts)
            last = max(first, self.offset(name, partition, end, ends))
            pieces.append(PlannedPiece(name, self.descriptions[name].topic_id, number, first, last))
        return pieces

    def offset(
        self,
        topic: str,
        partition: embedlog.PartitionDescription,
        bound: Bound,
        times: Mapping[embedlog.TopicPartition, embedlog.OffsetAndTimestamp | None],
    ) -> int:
        """One bound of one partition as an existing offset. Raises OffsetOutOfRangeError,
        LeaderNotAvailableError.
        """
        value = bound.of(topic, partition.partition)
        begin = partition.log_start_offset
        end = self.end_of(partition)
        if value == EARLIEST:
            return begin
        if value == LATEST:
            return end
        if bound.by_time:
            first_after = times[embedlog.TopicPartition(topic, partition.partition)]
            if first_after is not None:
                return min(first_after.offset, end)
            if self._settings.late_is_error and bound.option.startswith("starting"):
                raise embedlog.OffsetOutOfRangeError(
                    f"{bound.option}: topic {topic}, partition {partition.partition} has no "
                    f"record at or after {value} ms",
                    topic=topic,
                    partition=partition.partition,
                    path=partition.path,
                )
            return end
        number = int(value)
        end = self.awaited_end(topic, partition, number)
        if not begin <= number <= end:
            report_loss(
                f"{bound.option} names an offset that topic {topic}, partition "
                f"{partition.partition} does not contain",
                self._settings.fail_on_data_loss,
                topic=topic,
                partition=partition.partition,
                offset=number,
                path=partition.path,
                begin=begin,
                end=end,
            )
        return min(max(number, begin), end)

    def _by_time(
        self, bound: Bound
    ) -> dict[embedlog.TopicPartition, embedlog.OffsetAndTimestamp | None]:
        if not bound.by_time:
            return {}
        times = {}
        for topic, partition in self.partitions:
            time = bound.of(topic, partition.partition)
            if type(time) is int:
                times[embedlog.TopicPartition(topic, partition.partition)] = time
        with self._log.consumer(config={"isolation.level": self._settings.isolation}) as consumer:
            return consumer.offsets_for_times(times)

    def _check_named(self, bound: Bound) -> None:
        """Raises ConfigError for a bound of a topic or partition that is not read."""
        read: set[tuple[str, int | None]] = {(topic, None) for topic in self.descriptions}
        read |= {(topic, partition.partition) for topic, partition in self.partitions}
        for topic, number in bound.each:
            name = topic if number is None else f"{topic}, partition {number}"
            if (topic, number) not in read and not {topic, name} & set(self.missing):
                raise embedlog.ConfigError(
                    f"{bound.option} names a partition that is not read: {name}"
                )


def _check_order(start: Bound, end: Bound, topic: str, number: int) -> None:
    """Raises ConfigError for a start after its end."""
    first = start.of(topic, number)
    last = end.of(topic, number)
    if start.by_time != end.by_time or not isinstance(first, int) or not isinstance(last, int):
        return
    if first > last:
        raise embedlog.ConfigError(
            f"{start.option} of topic {topic}, partition {number}",
            expected=f"at most {end.option}, {last}",
            found=first,
        )


def report_loss(
    message: str,
    fatal: bool,
    *,
    topic: str,
    partition: int,
    offset: int,
    path: str,
    begin: int,
    end: int,
) -> None:
    """Report records that are missing: raise OffsetOutOfRangeError if that is fatal, else log a
    warning.
    """
    problem = embedlog.OffsetOutOfRangeError(
        f"{message} (failOnDataLoss=false reads the remaining records)" if fatal else message,
        topic=topic,
        partition=partition,
        offset=offset,
        path=path,
        expected=f"{begin} to {end}",
        found=offset,
    )
    if fatal:
        raise problem
    logger.warning("topic %s, partition %d: %s", topic, partition, problem)


def is_present(
    log: embedlog.Log, settings: ReadSettings | ReadTask, topic: str, topic_id: str
) -> bool:
    """Whether the topic of this id exists; a warning if it does not. Raises
    UnknownTopicOrPartitionError if that is fatal.
    """
    try:
        current_id = log.scan(topic, partitions=[]).topic_id  # opens no partition
    except embedlog.UnknownTopicOrPartitionError:
        current_id = None
    if current_id == topic_id:
        return True
    message = f"no such topic: {topic}"
    if current_id is not None:
        message = (
            "the topic is not the planned one: it was created again, or this machine has another "
            "directory here"
        )
    if settings.fail_on_data_loss:
        message += " (failOnDataLoss=false passes over it)"
    problem = embedlog.UnknownTopicOrPartitionError(
        message,
        path=first_of(settings.directory),
        expected=f"topic id {topic_id}",
        found=current_id,
    )
    if settings.fail_on_data_loss:
        raise problem
    logger.warning("topic %s is passed over: %s", topic, problem)
    return False


# ---- tasks ---------------------------------------------------------------------------------------


def tasks_of(
    log: embedlog.Log, settings: ReadSettings, pieces: Iterable[PlannedPiece], parallel: int = 0
) -> list[ReadTask]:
    """Tasks of about equal size: large pieces are cut, small ones joined."""
    whole = [piece for piece in pieces if piece.start < piece.end]
    if not whole:
        return []
    measured = cut(log, whole, 1 << 62, settings.isolation)
    total = sum(piece.size_bytes for piece in measured)
    target = settings.max_bytes
    if settings.min_partitions:
        target = min(target, max(1, total // settings.min_partitions))
    else:
        target = min(target, max(PIECE_BYTES_MIN, total // (parallel or os.cpu_count() or 1)))
    if total > target:
        measured = cut(log, whole, target, settings.isolation)
    task_pieces = list(by_count(measured, settings.max_records))
    while len(task_pieces) < settings.min_partitions:
        lengths = [piece.end - piece.start for piece in task_pieces]
        largest = lengths.index(max(lengths))
        if lengths[largest] <= 1:
            break
        task_pieces[largest : largest + 1] = halves(task_pieces[largest])
    groups = join_pieces(task_pieces, target, settings.max_records)
    if len(groups) < settings.min_partitions:
        groups = [[piece] for piece in task_pieces]
    return [
        ReadTask(settings.directory, tuple(group), settings.isolation, settings.fail_on_data_loss)
        for group in groups
    ]


def cut(
    log: embedlog.Log,
    pieces: list[PlannedPiece],
    max_bytes: int,
    isolation: embedlog.IsolationLevel,
) -> list[PlannedPiece]:
    """Pieces of at most about `max_bytes` and of about the same size, cut between batches, in the
    order of topics.
    """
    cut_pieces = []
    for topic in dict.fromkeys(piece.topic for piece in pieces):
        own = {piece.partition: piece for piece in pieces if piece.topic == topic}
        scan = log.scan(
            topic,
            partitions=list(own),
            start_offset={number: piece.start for number, piece in own.items()},
            end_offset={number: piece.end for number, piece in own.items()},
            isolation_level=isolation,
        )
        whole = [
            number
            for number, bounds in scan.bounds.items()
            if bounds == (own[number].start, own[number].end)
        ]
        # incomplete: the task that reads it reports that
        cut_pieces += [piece for number, piece in own.items() if number not in whole]
        for number in whole:
            parts = max(1, -(-own[number].size_bytes // max_bytes))
            even = own[number].size_bytes // parts or max_bytes  # if the size is known already
            for _, first, last, size in scan.narrowed(partitions=number).splits(even):
                cut_pieces.append(replace(own[number], start=first, end=last, size_bytes=size))
    return cut_pieces


def by_count(pieces: Iterable[PlannedPiece], records: int) -> Iterator[PlannedPiece]:
    """Pieces of at most this many offsets; 0 means no limit."""
    for piece in pieces:
        count = piece.end - piece.start
        parts = -(-count // records) if records else 1
        edges = [piece.start + count * at // parts for at in range(parts + 1)]
        for first, last in pairwise(edges):
            yield replace(piece, start=first, end=last, size_bytes=piece.size_bytes // parts)


def halves(piece: PlannedPiece) -> tuple[PlannedPiece, PlannedPiece]:
    """The piece as two of the same number of offsets."""
    middle = (piece.start + piece.end) // 2
    size = piece.size_bytes // 2
    first = replace(piece, end=middle, size_bytes=size)
    second = replace(piece, start=middle, size_bytes=size)
    return first, second


def join_pieces(
    pieces: Iterable[PlannedPiece], max_bytes: int, max_records: int
) -> list[list[PlannedPiece]]:
    """Join neighbours within the limits; adjacent pieces of one partition become one."""
    groups: list[list[PlannedPiece]] = []
    size = count = 0
    for piece in pieces:
        records = piece.end - piece.start
        if (
            not groups
            or size + piece.size_bytes > max_bytes
            or (max_records and count + records > max_records)
        ):
            groups.append([])
            size = count = 0
        size = size + piece.size_bytes
        count = count + records
        group = groups[-1]
        before = group[-1] if group else None
        if before is not None and (before.topic, before.partition, before.end) == (
            piece.topic,
            piece.partition,
            piece.start,
        ):
            group[-1] = replace(
                before, end=piece.end, size_bytes=before.size_bytes + piece.size_bytes
            )
        else:
            group.append(piece)
    return groups
