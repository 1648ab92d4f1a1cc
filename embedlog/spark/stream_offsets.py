"""Offsets of a stream: where a query begins, where the next micro-batch ends, and what it reads.
Does not import Spark.

- The end offset alone defines a batch, however often it is planned, because Spark keeps ends and
  drops the first start. So it also contains the first offsets of partitions that its start lacks:
  all in the first batch, new ones later.
- An offset contains topic ids: a topic that was deleted and created again is recognized. It
  contains the leader epoch of the record before each position: so is a log that was cut or
  restored, and has grown since. Offsets of earlier versions have no epochs, and are read.
- An end is never before its start, unless records were lost; without new records it is the start
  itself. With `failOnDataLoss=false` a position that does not exist any more is replaced by one
  that does, and the next end contains it, also if the batch has no records. So a loss is logged
  once.
- A check for new records that finds none costs one call over the partitions' control pages, and
  describes nothing: Spark checks every few milliseconds.
- A position above the end of a partition is a loss after a wait for a replica that shows it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import embedlog
from embedlog.spark.offset_publisher import OffsetPublisher
from embedlog.spark.read_options import LATEST, Bound, ReadSettings, first_of
from embedlog.spark.read_plan import (
    PlannedPiece,
    ReadTask,
    Topics,
    is_present,
    report_loss,
    tasks_of,
)

logger = logging.getLogger("embedlog.spark")

VERSION = 1

PartitionName = tuple[str, int]  # topic and number
PartitionOffsets = dict[PartitionName, int]
# As Spark stores it: {"v": 1, "o": {topic: {partition: offset}}, "id": {topic: id}, "e": {topic:
# {partition: epoch}}, "first": …}
Offset = dict[str, Any]


def offsets_to_json(offsets: Mapping[PartitionName, int]) -> dict[str, dict[str, int]]:
    """Offsets by partition in the form of the JSON."""
    by_topic: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, {})[str(number)] = offset
    return by_topic


def offsets_from_json(by_topic: Mapping[str, Mapping[str, int]]) -> PartitionOffsets:
    """The reverse of `written`."""
    return {
        (topic, int(number)): offset
        for topic, numbers in by_topic.items()
        for number, offset in numbers.items()
    }


class _Begun(NamedTuple):
    """Where the next batch begins."""

    positions: PartitionOffsets  # each existing partition
    # those of them that are not in the offset that Spark keeps as the start
    first: PartitionOffsets
    has_lost: bool  # whether a position of the start does not exist any more


class StreamOffsets:
    """Plans the micro-batches of one streaming query; holds the log open.

    **Threads:** one.
    """

    def __init__(self, settings: ReadSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._log = embedlog.open(settings.directory, read_only=True)
        self._publisher: OffsetPublisher | None = None
        self._initial: Offset | None = None
        self._targets: PartitionOffsets | None = None
        self._moved_s = -float("inf")
        # position, its epoch, and the partition's epoch then
        self._compared: dict[PartitionName, tuple[int, int, int]] = {}
        self._watch = self._log._watch_topics()
        self._topics: Topics | None = None  # of the last look
        self._planned: Offset | None = None  # the last end that this object has planned
        # an offset with all records that were there at the last look, without a loss
        self._read: Offset | None = None
        try:
            if settings.group_id:
                self._publisher = OffsetPublisher(settings.directory, settings.group_id, clock)
        except BaseException:
            self._log.close()
            raise

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
        self._log.close()

    # ---- present positions ----

    def initial(self) -> Offset:
        """The start offset of a new query; every call returns the same. Raises EmbedlogError."""
        if self._initial is None:
            topics = Topics.of_a_new_query(self._log, self._settings)
            pieces = topics.find_pieces(self._settings.start, Bound(LATEST))
            starts = {(piece.topic, piece.partition): piece.start for piece in pieces}
            self._initial = self._offset(starts, topics, self._epochs(starts, {})) | {"init": True}
        return self._initial

    def latest(self) -> Offset:
        """The current end of all partitions."""
        topics = self._current_topics()
        return self._offset(self._ends(topics), topics, {})

    def pin(self) -> None:
        """Make the current end the last one: for a query that reads the current records and
        ends.
        """
        self._targets = self._ends(self._current_topics())

    def _ends(self, topics: Topics) -> PartitionOffsets:
        return {
            (topic, partition.partition): topics.end_of(partition)
            for topic, partition in topics.partitions
        }

    @staticmethod
    def _offset(
        ends: Mapping[PartitionName, int], topics: Topics, epochs: Mapping[PartitionName, int]
    ) -> Offset:
        names = {topic for topic, _ in ends}
        ids = {
            name: description.topic_id
            for name, description in topics.descriptions.items()
            if name in names
        }
        offset: Offset = {"v": VERSION, "o": offsets_to_json(ends), "id": ids}
        if epochs:
            offset["e"] = offsets_to_json(epochs)
        return offset

    def _epochs(
        self, ends: Mapping[PartitionName, int], unmoved: Mapping[PartitionName, int]
    ) -> PartitionOffsets:
        """The leader epochs before these ends, as far as there are some; `unmoved` are those of
        ends that have not moved.
        """
        epochs: PartitionOffsets = {}
        scans: dict[str, embedlog.Scan] = {}
        for tp, end in ends.items():
            if tp in unmoved:
                epochs[tp] = unmoved[tp]
                continue
            topic, number = tp
            if topic not in scans:
                scans[topic] = self._log.scan(topic, partitions=[])
            epoch = scans[topic]._epoch_before(number, end)
            if epoch >= 0:
                epochs[tp] = epoch
        return epochs

    # ---- the end of a batch ----

    def _current_topics(self) -> Topics:
        """The current topics. They are described again only if something has
        changed.
        """
        if self._topics is None or not self._watch.is_unchanged():
            self._topics = self._read = None
            self._watch.begin()
            topics = Topics(self._log, self._settings)
            self._watch.keep(topics.descriptions.values())
            self._topics = topics
        return self._topics

    def next(self, start: Offset, row_count: int | None) -> Offset:
        """The end of the next batch, at most about `row_count` offsets after `start`; `start`
        itself if there are no new records.

        Raises EmbedlogError, among others for a data loss that is fatal.
        """
        topics = self._current_topics()
        if self._is_read(start):
            return start
        begun = self._begins(start, topics)
        ends = self._ends(topics)
        if self._publisher is not None:
            self._publisher.publish(
                {tp: begin for tp, begin in begun.positions.items() if tp not in begun.first},
                ends,
            )
        if self._targets is not None:
            ends = {tp: min(end, self._targets.get(tp, 0)) for tp, end in ends.items()}
        spans = {tp: max(0, ends[tp] - begin) for tp, begin in begun.positions.items()}
        total = sum(spans.values())
        if not begun.has_lost and (total == 0 or (row_count is not None and self._waits(total))):
            self._read = start if total == 0 else None
            return start
        self._moved_s = self._clock()
        if row_count is not None and total > row_count:
            spans = {tp: share(span, row_count, total) for tp, span in spans.items()}
        moved = {tp: begin + spans[tp] for tp, begin in begun.positions.items()}
        before = offsets_from_json(start["o"])
        epochs = {
            tp: epoch
            for tp, epoch in offsets_from_json(start.get("e", {})).items()
            if before.get(tp) == moved.get(tp)
        }
        first = offsets_from_json(start["o"]) | begun.first if start.get("init") else begun.first
        end = self._offset(moved, topics, self._epochs(moved, epochs)) | (
            {"first": offsets_to_json(first)} if first else {}
        )
        if self._publisher is None and moved == ends:
            self._read = end
        self._planned = end
        return end

    def _is_read(self, start: Offset) -> bool:
        """Whether nothing has changed since no record was found after this offset, and nothing is
        to be published.
        """
        if self._read is None or (self._publisher is not None and self._publisher.is_due()):
            return False
        if start is self._read:
            return True
        if start != self._read:
            return False
        self._read = start  # as Spark stores it: often it asks with the same object again
        return True

    def _waits(self, total: int) -> bool:
        """Whether `minOffsetsPerTrigger` is not reached and time is left; never for a query with a
        pinned end.
        """
        if self._targets is not None or total >= self._settings.min_offsets:
            return False
        return (self._clock() - self._moved_s) * 1000 < self._settings.max_delay_ms

    def _begins(self, start: Offset, topics: Topics) -> _Begun:
        """Where the next batch begins in each existing partition. Raises EmbedlogError for a loss
        that is fatal.
        """
        check_version(start)
        positions = offsets_from_json(start["o"])
        ids = start["id"]
        epochs = offsets_from_json(start.get("e", {}))
        lost_topics = self._lost_topics(ids, topics)
        begun = _Begun({}, {}, bool(lost_topics))
        for topic, partition in topics.partitions:
            tp = (topic, partition.partition)
            if tp not in positions or topic in lost_topics:
                begun.positions[tp] = begun.first[tp] = partition.log_start_offset
                continue
            begun.positions[tp] = self._begin(
                topics, tp, partition, positions[tp], epochs.get(tp, -1)
            )
            if begun.positions[tp] != positions[tp]:
                begun.first[tp] = begun.positions[tp]
                begun = begun._replace(has_lost=True)
        return begun

    def _begin(
        self,
        topics: Topics,
        tp: PartitionName,
        partition: embedlog.PartitionDescription,
        position: int,
        epoch: int,
    ) -> int:
        """The position of a partition, or the one that replaces it if the log does not contain it
        any more.
        """
        topic, number = tp
        lost_from, words = self._cut(tp, partition, position, epoch)
        end = topics.awaited_end(topic, partition, position)
        if not words and position <= end:
            return position
        if not words and position <= topics.awaited_end(
            topic, partition, position, "read_uncommitted"
        ):
            if self._settings.fail_on_data_loss:
                raise embedlog.OffsetOutOfRangeError(
                    f"this query has read records after the last stable offset {end}, and "
                    "isolation.level is read_committed now:"
                    " an open transaction hides them; restart with the earlier level or after the "
                    "end of the transaction"
                    " (failOnDataLoss=false waits for it)",
                    topic=topic,
                    partition=number,
                    offset=position,
                    path=partition.path,
                    expected=f"at most {end}",
                    found=position,
                )
            return position
        if not words:
            lost_from = end
            words = "the log ends before the position of this query"
        report_loss(
            words,
            self._settings.fail_on_data_loss,
            topic=topic,
            partition=number,
            offset=position,
            path=partition.path,
            begin=partition.log_start_offset,
            end=end,
        )
        return max(partition.log_start_offset, min(lost_from, end))

    def _cut(
        self, tp: PartitionName, partition: embedlog.PartitionDescription, position: int, epoch: int
    ) -> tuple[int, str]:
        """The offset below `position` from which on the log has other records, and what happened;
        no words if it has the same.

        As a consumer does: the epoch of the record before the position must reach up to it. Records
        that retention removed are none of this. A position that was compared is compared again when
        the partition is in another epoch.
        """
        compared = (position, epoch, partition.leader_epoch)
        if (
            epoch < 0
            or position <= partition.log_start_offset
            or self._compared.get(tp) == compared
        ):
            return position, ""
        same_until, words = self._same_until(tp, position, epoch, "the position of this query")
        if not words:
            self._compared[tp] = compared
        return max(same_until, partition.log_start_offset), words

    def _same_until(
        self, tp: PartitionName, position: int, epoch: int, what: str
    ) -> tuple[int, str]:
        """The offset up to `position` below which the log has the records of this epoch, and what
        happened if it is another.
        """
        topic, number = tp
        known, end = self._log.scan(topic, partitions=[])._epoch_end(number, epoch)
        if known >= 0 and position <= end:
            return position, ""
        words = f"the log was cut or restored below {what}: its leader epoch {epoch} "
        if known < 0:
            return 0, words + "is unknown now"
        return end, words + f"ends at {end} now, and records from there on are others"

    def _lost_topics(self, ids: Mapping[str, str], topics: Topics) -> set[str]:
        """The topics of the query that are gone, or others now. Raises UnknownTopicOrPartitionError
        if that is fatal.
        """
        changed = {
            name: identity
            for name, identity in ids.items()
            if name not in topics.descriptions or topics.descriptions[name].topic_id != identity
        }
        if not changed:
            return set()
        existing = self._log.topics(include_internal=True)
        fatal = self._settings.fail_on_data_loss
        for name, identity in changed.items():
            description = topics.descriptions.get(name)
            if description is not None:
                message = f"topic {name}, which this query reads, is another one now"
            elif name in existing:
                message = f"topic {name}, which this query reads, is no longer subscribed"
            else:
                message = f"topic {name}, which this query reads, is deleted"
            if fatal:
                message += " (failOnDataLoss=false ignores it)"
            problem = embedlog.UnknownTopicOrPartitionError(
                message,
                path=first_of(self._settings.directory),
                expected=f"topic id {identity}",
                found=None if description is None else description.topic_id,
            )
            if fatal:
                raise problem
            logger.warning("%s", problem)
        return set(changed)

    def done(self, end: Offset) -> None:
        """Spark has committed the results of all records before `end`."""
        if self._publisher is None:
            return
        topics = self._current_topics()
        ids = {
            name
            for name, description in topics.descriptions.items()
            if end["id"].get(name) == description.topic_id
        }
        reached = {tp: offset for tp, offset in offsets_from_json(end["o"]).items() if tp[0] in ids}
        self._publisher.publish(reached, self._ends(topics))

    # ---- the tasks of a batch ----

    def tasks(self, start: Offset, end: Offset) -> list[ReadTask]:
        """The tasks of a batch. Raises EmbedlogError."""
        check_version(end)
        begins = offsets_from_json(start["o"]) | offsets_from_json(end.get("first", {}))
        pieces = [
            PlannedPiece(topic, end["id"][topic], number, begins[topic, number], last)
            for (topic, number), last in offsets_from_json(end["o"]).items()
            if begins.get((topic, number), last) < last
        ]
        ids = {piece.topic: piece.topic_id for piece in pieces}
        existing_topics = {
            topic
            for topic, identity in ids.items()
            if is_present(self._log, self._settings, topic, identity)
        }
        pieces = [piece for piece in pieces if piece.topic in existing_topics]
        if end != self._planned:  # by an earlier process: the log may have been restored since
            pieces = self._drop_replaced(pieces, offsets_from_json(end.get("e", {})))
        return tasks_of(self._log, self._settings, pieces)

    def _drop_replaced(
        self, pieces: list[PlannedPiece], epochs: PartitionOffsets
    ) -> list[PlannedPiece]:
        """The pieces without records that the log has replaced by others. Raises
        OffsetOutOfRangeError if that is fatal.
        """
        remaining_pieces = []
        for piece in pieces:
            tp = (piece.topic, piece.partition)
            words = ""
            if tp in epochs:
                end, words = self._same_until(
                    tp, piece.end, epochs[tp], "the end of a planned batch"
                )
            if not words:
                remaining_pieces.append(piece)
                continue
            report_loss(
                words,
                self._settings.fail_on_data_loss,
                topic=piece.topic,
                partition=piece.partition,
                offset=piece.end,
                path=first_of(self._settings.directory),
                begin=piece.start,
                end=end,
            )
            if piece.start < end:
                remaining_pieces.append(replace(piece, end=end))
        return remaining_pieces


def share(span: int, row_count: int, total: int) -> int:
    """A partition's share of a batch, in proportion to its lag; at least 1 if it has any."""
    return min(span, max(1, span * row_count // total)) if span else 0


def check_version(offset: Mapping[str, Any]) -> None:
    """Raises UnsupportedFormatError for a checkpoint of another version or of another source."""
    if offset.get("v") != VERSION or "o" not in offset or "id" not in offset:
        raise embedlog.UnsupportedFormatError(
            "the offsets in this checkpoint are not from this source",
            expected=f"version {VERSION}",
            found=str(dict(offset))[:200],
        )
