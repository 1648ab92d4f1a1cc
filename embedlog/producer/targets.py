"""Write targets of a producer: one for each topic, with one for each partition queue.

- A topic target is the producer's knowledge of one topic; its queues live as long as the topic, so
  a new route keeps the order.
- An attempt remains at its target until its result is known: it is repeated with the same bytes
  (`Attempt`).
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from embedlog._native import _rows
from embedlog.config.options import INT_MAX
from embedlog.errors import EmbedlogError
from embedlog.format import compression
from embedlog.format.record_columns import HEADER_SIZE
from embedlog.partition.interposer import InterposedWriter
from embedlog.types import CODECS

if TYPE_CHECKING:
    from embedlog._native._rows import PartitionQueue, Router
    from embedlog.config.client import ProducerConfig
    from embedlog.config.topic import TopicConfig
    from embedlog.partition.log_context import DirectTarget
    from embedlog.producer.attempts import Attempt
    from embedlog.topic import Topic

CHECK_NS = 100_000_000  # between comparisons of a topic during direct appends in a set
# a larger batch is compressed by the producer's thread: that takes longer than its wake-up
PACKED_BYTES_MAX = 64 << 10
LONG_MAX = 2**63 - 1
FLUSH_NEVER = LONG_MAX  # flush.messages when no append waits for a sync
# Kafka's steps of the compression ratio estimate
RATIO_BETTER = 0.005
RATIO_WORSE = 0.05
RATIO_MARGIN = 1.05


class QueueTarget:
    """The target of one partition queue, with an estimate of the compression ratio."""

    def __init__(self, topic_target: TopicTarget, queue: PartitionQueue) -> None:
        self.topic_target = topic_target
        self.partition: Any = None  # opened by the first write
        self.queue = queue
        self.attempt: Attempt | None = None
        self.dropped: Exception | None = None  # the error with which a waiting attempt fails
        self.single_batches = 0  # batches to write one by one, because together they were refused
        self.seen = -1  # the queue's producer state after the thread's last write
        # objects for which direct appends were enabled
        self.direct: tuple[int, int, int] | None = None
        self.followed = False  # direct appends change several directories
        self._checked_ns = 0
        self.ratio = 1.0

    @property
    def awaits_sync(self) -> bool:
        """Whether records are acknowledged after a sync. Of a topic that is gone, by the settings
        that were known last.
        """
        config = self.topic_target.config
        with suppress(EmbedlogError):
            config = config if self.partition is None else self.partition.config
        return config.flush_messages != FLUSH_NEVER

    def is_check_due(self) -> bool:
        """Whether to compare the topic. In a set that is slow: between direct appends it is done at
        intervals.
        """
        now_ns = time.monotonic_ns()
        if self.followed and self.direct is not None and now_ns - self._checked_ns < CHECK_NS:
            return False
        self._checked_ns = now_ns
        return True

    def open_direct(self, *, allowed: bool, repeatable: bool, plain_max: int) -> None:
        """Enable direct appends by callers, unless each append needs more work: a sync.

        `plain_max`: uncompressed bytes of the largest batch that may be compressed. `repeatable`: a
        run whose result is unknown may be appended again, which an append to several directories
        needs.
        """
        direct: DirectTarget | None = None
        if self.partition is not None and allowed:
            direct = self.partition.direct_target
        if direct is None or not _can_append_directly(direct, repeatable):
            self.direct = None
            self.queue.close_direct()
            return
        config = direct.config
        identity = (id(direct.writer), id(config), id(direct))
        if self.direct == identity:
            return
        self.direct = identity
        append_address, raw_address = direct.addresses
        past_ms, future_ms = _time_limits(config)
        compress, codec, compressed_bytes_max = self._compression(plain_max)
        # positions are the interface of C: `open_direct` of partition_queue.c names them
        self.queue.open_direct(
            direct,
            direct.mutex,
            direct.writer,
            config,
            append_address,
            raw_address,
            config.flush_ms,
            config.batch_limit,
            config.compacted,
            past_ms,
            future_ms,
            direct.followers,
            compress,
            codec,
            compressed_bytes_max,
        )
        self.followed = direct.followers is not None
        if self.followed:
            # it may be the slot of another leader (REPLICA-16)
            self.queue.seen = -1
            self.seen = -1

    def _compression(self, plain_max: int) -> tuple[Callable[[bytes], Any] | None, int, int]:
        """Compression of direct appends: the function, the codec, and the most bytes."""
        codec = self.topic_target.codec
        level = self.topic_target.level
        if not codec:
            return None, 0, 0
        return partial(_compress_section, codec, level), codec, min(PACKED_BYTES_MAX, plain_max)

    def update_ratio(self, before: int, after: int) -> None:
        """Adapt the size limit so that compressed batches fill batch.size, as Kafka's estimate
        does.
        """
        ratio = after / before
        if ratio > self.ratio:
            self.ratio = max(ratio, self.ratio + RATIO_WORSE)
        else:
            self.ratio = max(ratio, self.ratio - RATIO_BETTER)
        uncompressed_limit = self.topic_target.batch_size / min(1.0, self.ratio * RATIO_MARGIN)
        self.queue.limit = min(int(uncompressed_limit), self.topic_target.batch_limit)


class TopicTarget:
    """One topic of a producer: its settings, its partition targets, and the route that chooses
    among them.
    """

    def __init__(
        self, name: str, config: TopicConfig, settings: ProducerConfig, rows: _rows.Accumulator
    ) -> None:
        self.name = name
        self.config = config
        self.topic: Topic | None = None  # at the last call
        self.batch_limit = config.batch_limit
        self.batch_size = max(1, settings.batch_size)
        self.codec, self.level = _choose_codec(config, settings)
        # bytes of one record
        self.record_limit = config.max_decompressed_message_bytes if self.codec else INT_MAX
        self.targets: list[QueueTarget] = []  # of the local partitions, by rising numbers
        self.partition_count = 0  # of the topic; other brokers of a cluster may hold some of them
        self.rows = rows
        self._settings = settings
        self.route: Router | None = None

    def take_queues(self, targets: list[QueueTarget]) -> None:
        """Use existing queues: their records keep their order and sequences. REQUIRES make_route()
        afterwards.
        """
        self.targets = targets
        for target in targets:
            target.topic_target = self
            target.queue.limit = min(self.batch_size, self.batch_limit)

    @property
    def numbers(self) -> list[int]:
        """The local partitions, which can be written."""
        return [target.queue.partition for target in self.targets]

    @property
    def every(self) -> Sequence[int]:
        """All partitions of the topic; the caller owns the list."""
        return range(self.partition_count) if self.is_sparse else list(range(self.partition_count))

    @property
    def is_sparse(self) -> bool:
        """Whether some partitions of the topic are not local."""
        return len(self.targets) != self.partition_count

    def target_of(self, number: int) -> QueueTarget | None:
        """The target of a partition, None if it is not local."""
        index = bisect_left(self.targets, number, key=_number_of) if self.is_sparse else number
        if not 0 <= index < len(self.targets):
            return None
        target = self.targets[index]
        return target if target.queue.partition == number else None

    def grow(self, partition_count: int, numbers: Iterable[int]) -> None:
        """Have targets for these local partitions. REQUIRES make_route() afterwards, once the
        sender knows their queues.
        """
        targets = {target.queue.partition: target for target in self.targets}
        limit = min(self.batch_size, self.batch_limit)
        for number in numbers:
            if number < partition_count and number not in targets:
                queue = _rows.PartitionQueue(self.rows, self.name, number, limit)
                targets[number] = QueueTarget(self, queue)
        self.targets = [targets[number] for number in sorted(targets) if number < partition_count]

    def make_route(self, partition_count: int) -> None:
        """Make the route over the targets. The number of partitions is the last step: an
        interrupted call is repeated.
        """
        past_ms, future_ms = _time_limits(self.config)
        self.route = _rows.Router(
            self.rows,
            [target.queue for target in self.targets],
            batch_size=self.batch_size,
            request_limit=min(self._settings.max_request_size, self.record_limit + HEADER_SIZE),
            past_ms=past_ms,
            future_ms=future_ms,
            keys_required=self.config.compacted,
            keys_ignored=self._settings.partitioner_ignore_keys,
            seed=int.from_bytes(os.urandom(8), "little"),
            adaptive=self._settings.partitioner_adaptive_partitioning_enable,
            availability_ms=self._settings.partitioner_availability_timeout_ms,
            partition_count=partition_count,
        )
        self.partition_count = partition_count


def _can_append_directly(direct: DirectTarget, repeatable: bool) -> bool:
    """Whether an append needs no more work than the direct append in C does."""
    if direct.writer is None or isinstance(direct.writer, InterposedWriter):
        return False
    if direct.config.flush_messages != FLUSH_NEVER:
        return False
    if direct.followers is None:
        return direct.config.min_insync_replicas <= 1
    return repeatable


def _compress_section(codec: int, level: int | None, plain: bytes) -> Any:
    """A compressed records section; None if that fails: the producer's thread fails too, and
    settles the batch.
    """
    try:
        return compression.compress(codec, plain, level)
    except (EmbedlogError, MemoryError):
        return None


def _time_limits(config: TopicConfig) -> tuple[int, int]:
    """The most that a given timestamp may be before, and after, the current time, in ms."""
    if config.message_timestamp_type != "CreateTime":
        return LONG_MAX, LONG_MAX
    return config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms


def _number_of(target: QueueTarget) -> int:
    return target.queue.partition


def _choose_codec(config: TopicConfig, settings: ProducerConfig) -> tuple[int, int | None]:
    """Number of the codec and its level: the topic's, unless the topic leaves the choice to the
    producer.
    """
    source: Any = settings if config.compression_type == "producer" else config
    name: str = source.compression_type
    if name in ("none", "uncompressed"):
        return 0, None
    return CODECS.index(name), getattr(source, f"compression_{name}_level", None)
