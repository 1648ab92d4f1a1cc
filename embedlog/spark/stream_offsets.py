"""Offsets of a stream: where a query begins, where the next micro-batch ends, and what it reads. Does not import Spark.

SPARKOFFSETS-1  the end offset alone defines a batch, however often it is planned, because Spark keeps ends and drops the first
    start. So it also contains the first offsets of partitions that its start lacks: all in the first batch, new ones later
SPARKOFFSETS-2  an offset contains topic ids: a topic that was deleted and created again is recognized
SPARKOFFSETS-3  an end is never before its start; without new records it is the start itself
SPARKOFFSETS-4  a check for new records reads only the partitions' control blocks: Spark checks every few milliseconds
SPARKOFFSETS-5  a position above the end of a partition is a loss after a wait for a replica that shows it (SPARKPLAN-4)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import embedlog
from embedlog.spark.offset_publisher import OffsetPublisher
from embedlog.spark.read_options import LATEST, Bound, Settings, first_of
from embedlog.spark.read_plan import Piece, Task, Topics, lost, tasks_of

VERSION = 1

Place = tuple[str, int]
Places = dict[Place, int]
Offset = dict[str, Any]  # as Spark stores it: {"v": 1, "o": {topic: {partition: offset}}, "id": {topic: id}, "first": …}


def written(places: Mapping[Place, int]) -> dict[str, dict[str, int]]:
    """Offsets by partition in the form of the JSON."""
    found: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(places.items()):
        found.setdefault(topic, {})[str(number)] = offset
    return found


def places(given: Mapping[str, Mapping[str, int]]) -> Places:
    return {(topic, int(number)): offset for topic, numbers in given.items() for number, offset in numbers.items()}


class StreamOffsets:
    """Plans the micro-batches of one streaming query; holds the log open.

    **Threads:** one.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._clock = settings, clock
        self._log = embedlog.open(settings.directory, read_only=True)
        self._publisher: OffsetPublisher | None = None
        self._initial: Offset | None = None
        self._targets: Places | None = None
        self._moved_s = -float("inf")
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
            topics = Topics(self._log, self._settings)
            pieces = topics.bounded(self._settings.start, Bound(LATEST))
            starts = {(piece.topic, piece.partition): piece.start for piece in pieces}
            self._initial = self._offset(starts, topics) | {"init": True}
        return self._initial

    def latest(self) -> Offset:
        """The present end of all partitions."""
        topics = self._now()
        return self._offset(self._ends(topics), topics)

    def pin(self) -> None:
        """Make the present end the last one: for a query that reads the present records and ends."""
        self._targets = self._ends(self._now())

    def _ends(self, topics: Topics) -> Places:
        return {(topic, partition.partition): topics.end_of(partition) for topic, partition in topics.partitions}

    @staticmethod
    def _offset(ends: Mapping[Place, int], topics: Topics) -> Offset:
        known = {topic for topic, _ in ends}
        ids = {name: each.topic_id for name, each in topics.descriptions.items() if name in known}
        return {"v": VERSION, "o": written(ends), "id": ids}

    # ---- the end of a batch ----

    def _now(self) -> Topics:
        return Topics(self._log, self._settings, lenient=not self._settings.fail_on_data_loss)

    def next(self, start: Offset, row_count: int | None) -> Offset:
        """The end of the next batch, at most about `row_count` offsets after `start`; `start` itself if there are no new records.

        Raises EmbedlogError, among others for a data loss that is fatal.
        """
        topics = self._now()
        begins, first = self._begins(start, topics)
        ends = self._ends(topics)
        if self._publisher is not None:
            self._publisher.publish({place: begin for place, begin in begins.items() if place not in first}, ends)
        if self._targets is not None:
            ends = {place: min(end, self._targets.get(place, 0)) for place, end in ends.items()}
        spans = {place: max(0, ends[place] - begin) for place, begin in begins.items()}
        total = sum(spans.values())
        if total == 0 or (row_count is not None and self._waits(total)):
            return start
        self._moved_s = self._clock()
        if row_count is not None and total > row_count:
            spans = {place: share(span, row_count, total) for place, span in spans.items()}
        moved = {place: begin + spans[place] for place, begin in begins.items()}
        if start.get("init"):
            first = places(start["o"]) | first
        return self._offset(moved, topics) | ({"first": written(first)} if first else {})

    def _waits(self, total: int) -> bool:
        """Whether `minOffsetsPerTrigger` is not reached and time is left; never for a query with a pinned end."""
        if self._targets is not None or total >= self._settings.min_offsets:
            return False
        return (self._clock() - self._moved_s) * 1000 < self._settings.max_delay_ms

    def _begins(self, start: Offset, topics: Topics) -> tuple[Places, Places]:
        """Where the next batch begins in each existing partition, and the subset of partitions that `start` lacks."""
        check_version(start)
        known, ids = places(start["o"]), start["id"]
        self._check_topics(ids, topics)
        begins: Places = {}
        first: Places = {}
        for topic, partition in topics.partitions:
            place = (topic, partition.partition)
            same = ids.get(topic, "") == topics.descriptions[topic].topic_id
            if not same or place not in known:
                begins[place] = first[place] = partition.log_start_offset
                continue
            end = topics.awaited_end(topic, partition, known[place])
            if known[place] > end:
                lost(
                    "the log ends before the position of this query",
                    self._settings.fail_on_data_loss,
                    topic=topic, partition=partition.partition, offset=known[place], path=partition.path,
                    begin=partition.log_start_offset, end=end,
                )  # fmt: skip
            begins[place] = known[place]
        return begins, first

    def _check_topics(self, ids: Mapping[str, str], topics: Topics) -> None:
        """Check that the topics of the query still exist with the same ids. Raises UnknownTopicOrPartitionError."""
        for name, identity in ids.items():
            found = topics.descriptions.get(name)
            if (found is None or found.topic_id != identity) and self._settings.fail_on_data_loss:
                what = "is deleted" if found is None else "is another one now"
                raise embedlog.UnknownTopicOrPartitionError(
                    f"topic {name}, which this query reads, {what} (failOnDataLoss=false ignores it)",
                    path=first_of(self._settings.directory),
                    expected=f"topic id {identity}", found=None if found is None else found.topic_id,
                )  # fmt: skip

    def done(self, end: Offset) -> None:
        """Spark has committed the results of all records before `end`."""
        if self._publisher is None:
            return
        topics = self._now()
        ids = {name for name, each in topics.descriptions.items() if end["id"].get(name) == each.topic_id}
        reached = {place: offset for place, offset in places(end["o"]).items() if place[0] in ids}
        self._publisher.publish(reached, self._ends(topics))

    # ---- the tasks of a batch ----

    def tasks(self, start: Offset, end: Offset) -> list[Task]:
        """The tasks of a batch. Raises EmbedlogError."""
        check_version(end)
        begins = places(start["o"]) | places(end.get("first", {}))
        pieces = [
            Piece(topic, end["id"][topic], number, begins[topic, number], last)
            for (topic, number), last in places(end["o"]).items()
            if begins.get((topic, number), last) < last
        ]
        return tasks_of(self._log, self._settings, pieces)


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
