"""Publishes the progress of a stream to a consumer group, so that its lag is visible like that of a
consumer.

- Only committed progress is published: the start of the next requested batch, and the offsets that
  Spark commits.
- A group never moves back, unless its offset is after the end of the partition. A query that reads
  from the start again leaves the group unchanged until it has passed it. A repeated batch moves
  nothing.
- A query refuses to start with a group that has members. A later failure to commit is only a
  warning.
- Offsets are committed again every hour, so that the group of an idle stream does not expire.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

import embedlog
from embedlog.spark.read_options import Directory

logger = logging.getLogger("embedlog.spark")

AGAIN_S = 3600.0
RETRY_S = 5.0
API_TIMEOUT_MS = 2000
PartitionName = tuple[str, int]  # topic and number


class OffsetPublisher:
    """Commits offsets of one group through its own open log: the source itself opens the log
    read-only.

    Raises GroupNotEmptyError, InvalidGroupIdError, and the errors of opening the log for writing,
    with the option's name added.

    **Threads:** one.
    """

    def __init__(
        self, directory: Directory, group_id: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._group_id = group_id
        self._clock = clock
        self._reported: dict[PartitionName, int] = {}
        self._due_s = 0.0
        self._warned: set[str] = set()
        try:
            self._log = embedlog.open(directory, config={"housekeeping": False})
        except embedlog.EmbedlogError as problem:
            words = "committing its offsets needs write access to the log"
            problem.message = f"group.id={group_id}: {words}: {problem.message}"
            raise
        try:
            # raises if the group has live members
            self._log.reset_group_offsets(group_id, [], to="earliest", dry_run=True)
            self._consumer = self._log.consumer(
                group_id=group_id, enable_auto_commit=False, default_api_timeout_ms=API_TIMEOUT_MS
            )
        except embedlog.GroupNotEmptyError as problem:
            self._log.close()
            words = "this group has active consumers: use a group of its own for the stream"
            problem.message = f"group.id: {words}: {problem.message}"
            raise
        except BaseException:
            self._log.close()
            raise

    def close(self) -> None:
        self._consumer.close()
        self._log.close()

    def is_due(self) -> bool:
        """Whether the offsets of the last call of `publish` are to be published again."""
        return self._clock() >= self._due_s

    def publish(
        self, reached: Mapping[PartitionName, int], ends: Mapping[PartitionName, int]
    ) -> None:
        """Publish that all records before these offsets were read; `ends` are the current ends of
        the partitions.
        """
        if reached == self._reported and self._clock() < self._due_s:
            return
        wait_s = AGAIN_S
        try:
            moved = self._forward(reached, ends)
            if moved:
                self._consumer.commit(moved)
            self._warned.discard("failed")
        except embedlog.EmbedlogError as problem:
            wait_s = RETRY_S
            self._warn("failed", f"offsets were not published, the query continues: {problem}")
        self._reported = dict(reached)
        self._due_s = self._clock() + wait_s

    def _forward(
        self, reached: Mapping[PartitionName, int], ends: Mapping[PartitionName, int]
    ) -> dict[embedlog.TopicPartition, int]:
        """The offsets that do not move the group back."""
        committed = self._log.group_offsets(self._group_id)
        moved = {}
        for (topic, number), offset in reached.items():
            tp = embedlog.TopicPartition(topic, number)
            commit = committed.get(tp)
            if commit is None or not offset < commit.offset <= ends.get((topic, number), -1):
                moved[tp] = offset
            else:
                self._warn(
                    "ahead",
                    f"{topic}-{number}: committed up to {commit.offset}, this query is at "
                    f"{offset}: left unchanged",
                )
        return moved

    def _warn(self, kind: str, words: str) -> None:
        """Log a warning once; after a failure, again only after a success."""
        if kind not in self._warned:
            logger.warning("group %s: %s", self._group_id, words)
            self._warned.add(kind)
