"""The stream source of `format("embedlog")`: implements Spark's micro-batch interface with
`stream_offsets`.

- One instance in a driver process serves the whole query; tasks run on other instances and know
  only their task.
- Spark passes the limits of a batch: with `once` triggers it passes none, whatever the options are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from embedlog.spark.columns import arrow_schema
from embedlog.spark.error_reports import without_internal_frames
from embedlog.spark.read_options import ReadSettings, parse
from embedlog.spark.read_task import read
from embedlog.spark.source import check_schema
from embedlog.spark.stream_offsets import StreamOffsets
from embedlog.spark.versions import OLDEST_FOR_STREAMS, require_pyspark

require_pyspark("streams from a log need", OLDEST_FOR_STREAMS)
from pyspark.sql.streaming.datasource import (  # noqa: E402
    ReadAllAvailable,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

EVERYTHING = 2**62  # rows; distinguishes options without a limit from a trigger without limits


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query."""

    def __init__(self, settings: ReadSettings, struct: Any) -> None:
        self.settings = settings
        self.struct = struct
        self._follower: StreamOffsets | None = None

    @property
    def follower(self) -> StreamOffsets:
        """Opened on first use: Spark pickles the instance before."""
        if self._follower is None:
            self._follower = StreamOffsets(self.settings)
        return self._follower

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 (Spark's name)
        if self.settings.max_offsets or self.settings.min_offsets:
            return ReadMaxRows(self.settings.max_offsets or EVERYTHING)
        return ReadAllAvailable()

    @without_internal_frames
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.follower.pin()

    @without_internal_frames
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self.follower.initial()

    @without_internal_frames
    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        return self.follower.next(start, getattr(limit, "max_rows", None))

    @without_internal_frames
    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        return self.follower.latest()

    @without_internal_frames
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(task) for task in self.follower.tasks(start, end)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read(partition.value, arrow_schema(self.struct))

    @without_internal_frames
    def commit(self, end: dict[str, Any]) -> None:
        """Publish the offsets to the group, if one is configured: Spark's checkpoint contains
        them.
        """
        self.follower.done(end)

    def stop(self) -> None:
        if self._follower is not None:
            self._follower.close()
            self._follower = None


@without_internal_frames
def stream_reader(options: Mapping[str, str], struct: Any) -> StreamReader:
    """Raises ConfigError."""
    check_schema(struct)
    return StreamReader(parse(options, stream=True), struct)
