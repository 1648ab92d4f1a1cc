"""How far a stream has come, told to a consumer group: its lag is then seen where that of consumers is.

SPARKPUBLISH-1  only what Spark is done with is told: where the next batch begins, once it asks for one, and what it commits
SPARKPUBLISH-2  a group is never moved back, unless it stands where the partition has no records any more: whoever reads once more
    from the start leaves the group alone until it is overtaken, and a batch that is repeated moves nothing
SPARKPUBLISH-3  a group with members is theirs: a query does not begin with it. What keeps later commits back is a warning, no
    more
SPARKPUBLISH-4  what was told is told again every hour: an idle stream's group is not forgotten
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

import embedlog

logger = logging.getLogger("embedlog.spark")

AGAIN_S, RETRY_S, PATIENCE_MS = 3600.0, 5.0, 2000
Place = tuple[str, int]


class OffsetPublisher:
    """Commits for one group, through an opening of its own: the source itself only reads.

    Raises GroupNotEmptyError, InvalidGroupIdError; what it takes to write here is said beside the reason why that is not so.

    **Threads:** one.
    """

    def __init__(self, directory: str, group_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._group_id, self._clock = group_id, clock
        self._told: dict[Place, int] = {}
        self._due_s = 0.0
        self._warned: set[str] = set()
        try:
            self._log = embedlog.open(directory, config={"housekeeping": False})
        except embedlog.EmbedlogError as problem:
            words = "it would be told by writing to the log, and that cannot be"
            problem.message = f"group.id={group_id}: {words}: {problem.message}"
            raise
        try:
            self._log.reset_group_offsets(group_id, [], to="earliest", dry_run=True)  # is it nobody's? Who died is nobody
            self._consumer = self._log.consumer(group_id=group_id, enable_auto_commit=False, default_api_timeout_ms=PATIENCE_MS)
        except embedlog.GroupNotEmptyError as problem:
            self._log.close()
            words = "consumers are at work in this group: let the stream have one of its own"
            problem.message = f"group.id: {words}: {problem.message}"
            raise
        except BaseException:
            self._log.close()
            raise

    def close(self) -> None:
        self._consumer.close()
        self._log.close()

    def publish(self, reached: Mapping[Place, int], ends: Mapping[Place, int]) -> None:
        """All before these offsets has been read; `ends` is where the partitions end now."""
        if reached == self._told and self._clock() < self._due_s:
            return
        wait_s = AGAIN_S
        try:
            moved = self._forward(reached, ends)
            if moved:
                self._consumer.commit(moved)
            self._warned.discard("failed")
        except embedlog.EmbedlogError as problem:
            wait_s = RETRY_S
            self._warn("failed", f"offsets were not published, the query goes on: {problem}")
        self._told, self._due_s = dict(reached), self._clock() + wait_s

    def _forward(self, reached: Mapping[Place, int], ends: Mapping[Place, int]) -> dict[embedlog.TopicPartition, int]:
        """What does not move the group back (SPARKPUBLISH-2)."""
        committed = self._log.group_offsets(self._group_id)
        found = {}
        for place, offset in reached.items():
            partition = embedlog.TopicPartition(*place)
            before = committed.get(partition)
            if before is None or not offset < before.offset <= ends.get(place, -1):
                found[partition] = offset
            else:
                words = f"committed up to {before.offset}, this query is at {offset}: left as it is"
                self._warn("ahead", f"{place[0]}-{place[1]}: {words}")
        return found

    def _warn(self, kind: str, words: str) -> None:
        """Once; of what failed, until it has gone well again."""
        if kind not in self._warned:
            logger.warning("group %s: %s", self._group_id, words)
            self._warned.add(kind)
