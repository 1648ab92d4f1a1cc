"""The sink of `format("embedlog")`: implements Spark's writer interfaces by calls to the other
modules of this package.

- Tasks stage files and do not open the log; the driver writes them in `commit`, after all tasks
  have succeeded.
- Spark calls `abort` after a `commit` that raised, whatever it wrote: written rows stay, staged
  files are removed.
- The writer that commits a stream's batch is not the instance of its tasks: the tasks' messages
  carry all it needs.
- What fails after the commit is a warning: Spark repeats a job that raises, and its rows would be
  there twice.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext

import embedlog
from embedlog.spark import staging, transactional_write
from embedlog.spark.error_reports import without_internal_frames
from embedlog.spark.read_options import first_of
from embedlog.spark.staging import Staged
from embedlog.spark.transactional_write import WriteId
from embedlog.spark.versions import require_pyspark
from embedlog.spark.write_options import WriteSettings, parse_write
from embedlog.spark.write_task import WriteTask, sink_columns

require_pyspark("writing needs")
from pyspark.sql.datasource import (  # noqa: E402 (older versions lack them)
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

logger = logging.getLogger("embedlog.spark")

DROPPED_TIMES = (
    "the column timestamp is not written, and the records get the time of the write:"
    " the option timestamp=true writes it, timestamp=false omits this warning"
)


@dataclass
class Message(WriterCommitMessage):
    """A task's message to the process that commits."""

    staged: Staged


def _staged_of(messages: Sequence[Message | None]) -> list[Staged]:
    return [message.staged for message in messages if message is not None]


class BatchWriter(DataSourceArrowWriter):
    """One job. Spark pickles it for its tasks and for the process that commits."""

    def __init__(self, settings: WriteSettings, struct: Any, overwrite: bool) -> None:
        self._settings = settings
        self._overwrite = overwrite
        self._column_numbers = _find_columns(settings, struct)
        self._area = staging.make_area(settings.staging_places(), f"job-{secrets.token_hex(8)}")

    @without_internal_frames
    def write(self, iterator: Iterator[Any]) -> Message:
        name = self._settings.transactional_id
        batch = self._settings.batch_id
        task = WriteTask(
            self._area,
            self._column_numbers,
            self._settings.topic,
            task=_task(),
            batch=batch,
            transactional_id=name,
        )
        return Message(task.stage(iterator))

    @without_internal_frames
    def commit(self, messages: list[Message | None]) -> None:
        write_id = WriteId(self._settings.transactional_id, self._settings.batch_id)
        transactional_write.commit(
            self._settings, write_id, _staged_of(messages), self._area, overwrite=self._overwrite
        )

    def abort(self, messages: list[Message | None]) -> None:
        transactional_write.clear([self._area.path])


class StreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch, or its commit. Output mode `complete` appends, as with Spark's Kafka
    sink.
    """

    def __init__(self, settings: WriteSettings, struct: Any) -> None:
        self._settings = settings
        self._column_numbers = _find_columns(settings, struct)
        self._drops_times = _drops_times(settings, struct)
        self._area = staging.make_area(settings.staging_places(), f"stream-{secrets.token_hex(8)}")

    @without_internal_frames
    def write(self, iterator: Iterator[Any]) -> Message:
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = int(context.getLocalProperty("streaming.sql.batchId"))
        task = WriteTask(
            self._area,
            self._column_numbers,
            self._settings.topic,
            task=_task(),
            query=query,
            batch=batch,
        )
        return Message(task.stage(iterator))

    @without_internal_frames
    def commit(self, messages: list[Message | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        if self._drops_times and batchId == 0:  # once for a query
            logger.warning(DROPPED_TIMES)
        staged = _staged_of(messages)
        if not any(task_file.rows for task_file in staged):
            self.abort(messages, batchId)  # nothing to write, and no number to record
            return
        query = staged[0].query
        write_id = WriteId(
            self._settings.transactional_id or f"embedlog-spark-{query}", batchId, query
        )
        transactional_write.commit(self._settings, write_id, staged, self._area)

    def abort(self, messages: list[Message | None], batchId: int) -> None:  # noqa: N803
        transactional_write.clear(
            [self._area.path, *(task_file.area for task_file in _staged_of(messages))]
        )


def _find_columns(settings: WriteSettings, struct: Any) -> dict[str, int]:
    return sink_columns(
        struct, topic=settings.topic, headers=settings.headers, timestamp=bool(settings.timestamp)
    )


def _drops_times(settings: WriteSettings, struct: Any) -> bool:
    """Whether there are times, and nothing says whether they are to be written."""
    return settings.timestamp is None and any(
        field.name.lower() == "timestamp" for field in struct.fields
    )


def _task() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


@without_internal_frames
def writer(options: Mapping[str, str], struct: Any, overwrite: bool) -> BatchWriter:
    """Raises ConfigError, StorageError without a log directory, and the errors of `check_topic`."""
    settings = parse_write(options, stream=False)
    _check_target(settings, overwrite)
    if _drops_times(settings, struct):
        logger.warning(DROPPED_TIMES)
    return BatchWriter(settings, struct, overwrite)


@without_internal_frames
def stream_writer(options: Mapping[str, str], struct: Any) -> StreamWriter:
    """As `writer`; Spark creates one for each micro-batch."""
    settings = parse_write(options, stream=True)
    _check_target(settings, overwrite=False)
    return StreamWriter(settings, struct)


def _check_target(settings: WriteSettings, overwrite: bool) -> None:
    """Check the target before tasks start: they may take hours."""
    if not settings.members():
        raise embedlog.StorageError(
            "there is no log directory: create one with embedlog.open() and create_topic()",
            path=first_of(settings.directory),
        )
    if settings.topic:
        with embedlog.open(settings.directory, read_only=True) as log:
            transactional_write.check_topic(log, settings.topic, "the option topic", overwrite)
