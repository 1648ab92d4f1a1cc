"""Reads the pieces of a task as record batches, on any machine: opens the directory read-only.

- A task returns exactly the planned rows or raises. Reasons are another topic of the same name,
  offsets deleted by retention (with `failOnDataLoss=false` both are warnings), and a directory that
  is not visible here. So is a set whose replicas do not show all planned rows before
  `lock.timeout.ms`: a follower that does not is no loss.
- An error names topic, partition and the offset up to which rows were returned, and the file if one
  is the cause.
- No state is kept between two tasks, except that the interpreter's objects are frozen for the
  garbage collector.
"""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import embedlog
from embedlog.spark.columns import Shaper, source_columns
from embedlog.spark.error_reports import without_internal_frames
from embedlog.spark.read_options import Directory
from embedlog.spark.read_plan import PlannedPiece, ReadTask, is_present, report_loss

_frozen = 0  # number of modules at the last freeze


@without_internal_frames
def read(task: ReadTask, schema: Any) -> Iterator[Any]:
    """The record batches of a task, of this schema. Raises EmbedlogError."""
    _freeze()
    with _open_log(task.directory) as log:
        for topic, pieces in groupby(task.pieces, key=lambda piece: piece.topic):
            yield from _Reading(log, task, topic, tuple(pieces), schema).batches()
    _freeze()


def read_all(tasks: Sequence[ReadTask], numbers: Iterator[Any], schema: Any) -> Iterator[Any]:
    """The record batches of the tasks with the numbers in column `id`; runs inside `mapInArrow`."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from read(tasks[number], schema)


def _freeze() -> None:
    """Exclude the objects of imported modules from garbage collection.

    Spark's worker runs a collection after every task, which would cost more than a small task. The
    freeze is repeated if modules were imported since, by the first task or by the user's function.
    """
    global _frozen
    if len(sys.modules) != _frozen:
        gc.collect()
        gc.freeze()
        _frozen = len(sys.modules)


def _open_log(directory: Directory) -> embedlog.Log:
    try:
        return embedlog.open(directory, read_only=True)
    except (embedlog.StorageError, embedlog.ForeignDirectoryError) as problem:
        problem.message = (
            f"an executor on {socket.gethostname()} does not see the same log directory as the "
            "driver:"
            f" every machine needs it at the same path ({problem.message})"
        )
        raise


class _Reading:
    """The pieces of one topic, one partition after the other. REQUIRES one piece for each partition,
    all of the same topic id: the plan joins adjacent pieces of a task (`join_pieces`).
    """

    def __init__(
        self,
        log: embedlog.Log,
        task: ReadTask,
        topic: str,
        pieces: tuple[PlannedPiece, ...],
        schema: Any,
    ) -> None:
        self._log = log
        self._task = task
        self._topic = topic
        self._schema = schema
        self._topic_id = pieces[0].topic_id
        self._left = {piece.partition: piece.start for piece in pieces}  # the next offset to return
        self._ends = {piece.partition: piece.end for piece in pieces}

    def batches(self) -> Iterator[Any]:
        """Rows of all pieces. Raises EmbedlogError with the place in its message."""
        try:
            while self._left and is_present(self._log, self._task, self._topic, self._topic_id):
                try:
                    yield from self._read_rows(self._scan())
                    return
                except embedlog.OffsetOutOfRangeError:
                    # retention deleted records after the plan was made
                    if not self._skip_lost():
                        raise
                except embedlog.UnknownTopicOrPartitionError:
                    if is_present(self._log, self._task, self._topic, self._topic_id):
                        raise
                    return
        except embedlog.EmbedlogError as problem:
            number = getattr(problem, "partition", None)
            if number is None:
                number = min(self._left, default=0)
            problem.message = (
                f"topic {self._topic}, partition {number}, at or after offset "
                f"{self._left.get(number, 0)}: {problem.message}"
            )
            raise

    def _scan(self) -> embedlog.Scan:
        """A scan of the remaining offsets. Raises OffsetOutOfRangeError if some are missing,
        LeaderNotAvailableError.
        """
        task = self._task
        remaining = self._left
        while True:
            whole = self._log.scan(
                self._topic,
                partitions=list(remaining),
                start_offset=dict(remaining),
                end_offset={number: self._ends[number] for number in remaining},
                isolation_level=task.isolation,
                columns=source_columns([field.name for field in self._schema]),
            )
            wrong = [
                number
                for number, bounds in whole.bounds.items()
                if bounds != (remaining[number], self._ends[number])
            ]
            if not wrong:
                return whole.narrowed(start_time=task.start_ms, end_time=task.end_ms)
            for number in wrong:
                begin, end = whole._await_bounds(number, self._ends[number])
                if begin > remaining[number] or end < self._ends[number]:
                    raise embedlog.OffsetOutOfRangeError(
                        "planned offsets are missing",
                        topic=self._topic,
                        partition=number,
                        offset=remaining[number],
                        expected=f"{remaining[number]} to {self._ends[number]}",
                        found=f"{begin} to {end}",
                    )

    def _read_rows(self, scan: embedlog.Scan) -> Iterator[Any]:
        shaper = Shaper(self._topic, self._schema)
        for batch in scan:
            yield from shaper.shape(batch)
            last = batch.num_rows - 1
            number = batch.column("partition")[last].as_py()
            # partitions come in order, so those below are finished
            self._left = {later: start for later, start in self._left.items() if later >= number}
            self._left[number] = batch.column("offset")[last].as_py() + 1

    def _skip_lost(self) -> bool:
        """Continue at the current start of each partition; False if nothing is missing. Raises
        OffsetOutOfRangeError if fatal.
        """
        has_loss = False
        scan = self._log.scan(
            self._topic, partitions=list(self._left), isolation_level=self._task.isolation
        )
        for description in self._log.describe_topic(self._topic).partitions:
            number = description.partition
            start = self._left.get(number)
            if start is None:
                continue
            begin, end = scan._await_bounds(number, self._ends[number])
            if begin <= start and self._ends[number] <= end:
                continue
            has_loss = True
            report_loss(
                "planned records were deleted",
                self._task.fail_on_data_loss,
                topic=self._topic,
                partition=number,
                offset=start,
                path=description.path,
                begin=begin,
                end=end,
            )
            self._ends[number] = min(self._ends[number], end)
            self._left[number] = max(start, begin)
            if self._left[number] >= self._ends[number]:
                del self._left[number]
        return has_loss
