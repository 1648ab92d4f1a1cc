"""Metrics of the partitions, topics and groups of an open log with the names of Kafka's broker (a
part of `log.metrics()`).

- Meters and timers count what this process did since it opened the log: bytes and records of its
  appends and reads, syncs, loads, compactions. Gauges are those of the log, which all processes
  share.
- An append is counted in the C core, a read and a sync once per call. Totals are added up for a
  report only.
- A copy of a follower is not an append: `ReplicationBytesInPerSec` counts it.
- The gauges of a log open no partition: one that is not open is described by its files. The lag of
  a group opens the partitions in which it has offsets.
- The lag of a group is omitted while `__consumer_offsets` has no leader: a report does not wait for
  one.
- A wait for an append lock is counted in the C core when another process had the lock. The longest
  wait of a writer that is dropped meanwhile is not reported; its count and its time are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from embedlog.admin.groups import GroupAdmin
from embedlog.coordination.groups.offset_commits import OFFSETS_TOPIC
from embedlog.descriptions.directories import (
    ReplicaDescription,
    ReplicasDescription,
    ReplicatedPartitionDescription,
)
from embedlog.errors import EmbedlogError, GroupNotFoundError
from embedlog.replicas.observation.replica_events import Meter, Timer
from embedlog.storage import file_names, files
from embedlog.telemetry import log_messages
from embedlog.telemetry.metrics import Metrics, milliseconds
from embedlog.types import TopicPartition

if TYPE_CHECKING:
    from embedlog.engine.engine import Engine
    from embedlog.engine.log_directory import LogDirectory

logger = logging.getLogger("embedlog")


_OF_TOPICS: Final = {
    "MessagesInPerSec": "records_in",
    "BytesInPerSec": "bytes_in",
    "BytesOutPerSec": "bytes_out",
}


class _Traffic:
    """The totals of topics, as a `Source` of the metrics. Threads: REQUIRES the lock of the metrics.

    A writer counts what its partition appends. When it is dropped, its counts are added to
    `engine.traffic`, and its partition has no writer until the next append. A report that reads the
    first before this and the partition after it misses them: so a total stays at least as high as
    it was reported before.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._totals: dict[str, float] = {}

    def counters(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Totals by kind and topic, and the longest wait for an append lock since the last call,
        which is forgotten in the writers.
        """
        totals: dict[str, float] = {}
        waits = 0
        waited_ns = 0
        longest_ns = 0
        # before the writers: one that is dropped in between must not be added twice
        for topic, traffic in list(self._engine.traffic.items()):
            totals[f"records_in {topic}"] = traffic.records_in
            totals[f"bytes_in {topic}"] = traffic.bytes_in
            totals[f"bytes_out {topic}"] = traffic.bytes_out
            waits += traffic.lock_waits
            waited_ns += traffic.lock_waited_ns
        for directory in list(self._engine.directories):
            for partition in list(directory.partitions.values()):
                writer = partition.direct_target.writer
                if writer is None:
                    continue
                records_name = f"records_in {partition.topic}"
                bytes_name = f"bytes_in {partition.topic}"
                records = int(writer.raw.appended_records)
                size = int(writer.raw.appended_bytes)
                totals[records_name] = totals.get(records_name, 0) + records
                totals[bytes_name] = totals.get(bytes_name, 0) + size
                waits += int(writer.raw.lock_waits)
                waited_ns += int(writer.raw.lock_waited_ns)
                longest_ns = max(longest_ns, int(writer.raw.lock_waited_max_ns))
                writer.raw.lock_waited_max_ns = 0
        totals["lock_waits"] = waits
        totals["lock_waits_s"] = waited_ns / 1e9
        for name, value in totals.items():
            # a writer that was dropped in between is in neither of the two
            self._totals[name] = max(value, self._totals.get(name, 0))
        for kind in _OF_TOPICS.values():
            self._totals[kind] = sum(
                value for name, value in self._totals.items() if name.startswith(f"{kind} ")
            )
        return self._totals, {"lock_waits_s": longest_ns / 1e9} if longest_ns else {}

    def rotate_window(self) -> None:
        """Nothing: the writers keep their maximum until `counters` takes it, whatever the window."""


def report(engine: Engine, description: ReplicasDescription) -> dict[str, Any]:
    """The metrics of the process, of each of the `topics`, and of each of the `groups`. Raises
    ClosedError.
    """
    metrics = engine.metrics
    if metrics.source is None:
        metrics.source = _Traffic(engine)
    topics = sorted({partition.topic for partition in description.partitions})
    return {
        **{name: _meter(metrics, kind) for name, kind in _OF_TOPICS.items()},
        **_disk_metrics(metrics, description),
        "topics": {
            topic: {name: _meter(metrics, f"{kind} {topic}") for name, kind in _OF_TOPICS.items()}
            for topic in topics
        },
        "groups": _group_metrics(engine, description),
    }


def _disk_metrics(metrics: Metrics, description: ReplicasDescription) -> dict[str, Any]:
    """Syncs, loads and compactions of this process, and directories that failed."""
    bytes_read = metrics.total("clean_read")
    return {
        "LogFlushRateAndTimeMs": _timer(metrics, "flushes"),
        "AppendLockWaitRateAndTimeMs": _timer(metrics, "lock_waits"),
        "LogLoadRateAndTimeMs": _timer(metrics, "loads"),
        "RecoveredLogs": int(metrics.total("recoveries")),
        "OfflineLogDirectoryCount": sum(
            not directory.answers for directory in description.directories
        ),
        "LogCleanRateAndTimeMs": _timer(metrics, "cleans"),
        "max-clean-time-secs": metrics.peak("cleans_s", 0.0),
        "cleaner-recopy-percent": 100 * metrics.total("clean_written") / bytes_read
        if bytes_read
        else 0.0,
    }


def _meter(metrics: Metrics, name: str) -> Meter:
    return Meter(Count=int(metrics.total(name)), OneMinuteRate=metrics.rate(name))


def _timer(metrics: Metrics, name: str) -> Timer:
    mean = metrics.mean(f"{name}_s", name, None)
    peak = metrics.peak(f"{name}_s", None)
    return Timer(**_meter(metrics, name), Mean=milliseconds(mean), Max=milliseconds(peak))


# ---- partitions ----------------------------------------------------------------------------------


def partition_gauges(
    engine: Engine, description: ReplicasDescription, partition: ReplicatedPartitionDescription
) -> dict[str, int | None]:
    """The gauges of the log of a partition: those of its leader. None: its files do not show it, or
    no leader answers.
    """
    leader = ReplicaDescription(partition.leader, "")  # of which nothing is known
    for copy in partition.copies:
        if copy.node == partition.leader:
            leader = copy
            break
    paths = {
        directory.path
        for directory in description.directories
        if directory.node == partition.leader and directory.answers
    }
    sizes = None
    for directory in list(engine.directories):
        if str(directory.path) in paths:
            sizes = _segment_sizes(directory, partition.topic, partition.partition)
            break
    return {
        "LogStartOffset": leader.log_start,
        "LogEndOffset": leader.log_end,
        "NumLogSegments": None if sizes is None else len(sizes),
        "Size": None if sizes is None else sum(sizes),
    }


def _segment_sizes(directory: LogDirectory, topic: str, number: int) -> list[int] | None:
    """The sizes of the segments; None if the directory fails meanwhile."""
    try:
        partition = directory.partitions.get((topic, number))
        if partition is not None and partition.mapped_page is not None:
            return [info.size for info in partition.current_segments()[1]]
        return _read_sizes(directory.path / file_names.partition_name(topic, number))
    except EmbedlogError as problem:
        if not files.is_directory(directory.path / file_names.partition_name(topic, number)):
            return None  # deleted meanwhile
        subject = f"metrics of {topic}-{number} in {directory.path}"
        log_messages.report(logger, logging.WARNING, (directory.path, "metrics"), subject, problem)
        return None


def _read_sizes(path: Path) -> list[int] | None:
    """The sizes of the log files of a partition; None if it was deleted meanwhile."""
    if not files.is_directory(path):
        return None
    all_facts: Iterable[Any] = (
        files.facts_of(file_names.segment_path(path, base))
        for base in file_names.bases(files.listing(path))
    )
    return [file_facts.size for file_facts in all_facts if file_facts is not None]


# ---- internal topics -----------------------------------------------------------------------------


def split_internal(
    report: dict[str, Any], description: ReplicasDescription, *, include_internal: bool
) -> dict[str, Any]:
    """The report with the sums over internal topics as `internal`; their own values stay in it only
    with `include_internal`. REQUIRES: the caller has added the `partitions` to the report.
    """
    internal_partitions = [partition for partition in description.partitions if partition.internal]
    names = {partition.topic for partition in internal_partitions}
    gauges = [
        report["partitions"][partition.topic, partition.partition]
        for partition in internal_partitions
    ]
    meters = [report["topics"][name] for name in names]
    report["internal"] = {
        "GlobalTopicCount": len(names),
        "GlobalPartitionCount": len(internal_partitions),
        "OfflinePartitionsCount": sum(partition.offline for partition in internal_partitions),
        "UnderReplicatedPartitions": sum(
            partition.under_replicated for partition in internal_partitions
        ),
        "NumLogSegments": _sum_of(gauges, "NumLogSegments"),
        "Size": _sum_of(gauges, "Size"),
        **{name: _sum_of_meters([meter[name] for meter in meters]) for name in _OF_TOPICS},
    }
    if not include_internal:
        report["topics"] = {
            name: metrics for name, metrics in report["topics"].items() if name not in names
        }
        report["partitions"] = {
            tp: metrics for tp, metrics in report["partitions"].items() if tp.topic not in names
        }
    return report


def _sum_of(gauges: Iterable[Mapping[str, int | None]], name: str) -> int | None:
    """The sum of a gauge; None while one of them is not known."""
    values = [gauge[name] for gauge in gauges]
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _sum_of_meters(meters: Iterable[Meter]) -> Meter:
    every = [*meters]
    return Meter(
        Count=sum(meter["Count"] for meter in every),
        OneMinuteRate=sum(meter["OneMinuteRate"] for meter in every),
    )


# ---- groups --------------------------------------------------------------------------------------


def _would_wait(partition: ReplicatedPartitionDescription) -> bool:
    """Whether a reader of the partition would wait: for a leader, or for more replicas in sync that
    commit its last records.
    """
    ends = [copy.log_end for copy in partition.copies if copy.node == partition.leader]
    uncommitted = partition.high_watermark is None or any(
        end is not None and end > partition.high_watermark for end in ends
    )
    return partition.offline or (partition.under_min_isr and uncommitted)


def _group_metrics(engine: Engine, description: ReplicasDescription) -> dict[str, Any]:
    """The lag of each group, in records, and of its partitions; None while that of a partition is
    not known. No group is there while `__consumer_offsets` has no leader.
    """
    if not description.can_decide or any(
        _would_wait(partition)
        for partition in description.partitions
        if partition.topic == OFFSETS_TOPIC
    ):
        return {}
    groups = {}
    admin = GroupAdmin(engine)
    for name in admin.names():
        try:
            group = admin.describe(name)
        except GroupNotFoundError:  # deleted meanwhile
            continue
        partitions = {
            TopicPartition(partition.topic, partition.partition): partition.lag
            for partition in group.partitions
        }
        lags = [lag for lag in partitions.values() if lag is not None]
        groups[name] = {
            "records-lag": group.lag,
            # a group without partitions has no lag
            "records-lag-max": None if group.lag is None else max(lags),
            "members": len(group.members),
            "partitions": {tp: {"records-lag": lag} for tp, lag in partitions.items()},
        }
    return groups
