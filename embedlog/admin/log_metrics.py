"""Metrics of the partitions, topics and groups of an open log with the names of Kafka's broker (a
part of `log.metrics()`).

LOGMETRICS-1  meters and timers count what this process did since it opened the log: bytes and
    records of its appends and reads, syncs, loads, compactions. Gauges are those of the log, which
    all processes share
LOGMETRICS-2  an append is counted in the C core, a read and a sync once per call. Totals are added
    up for a report only
LOGMETRICS-3  a copy of a follower is not an append: `ReplicationBytesInPerSec` counts it
LOGMETRICS-4  the gauges of a log open no partition: one that is not open is described by its files.
    The lag of a group opens the partitions in which it has offsets
LOGMETRICS-5  the lag of a group is omitted while `__consumer_offsets` has no leader: a report does
    not wait for one
LOGMETRICS-6  a wait for an append lock is counted in the C core when another process had the lock.
    The longest wait of a writer that is dropped meanwhile is not reported; its count and its time
    are
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from embedlog import _logging
from embedlog._metrics import Metrics, milliseconds
from embedlog.admin.groups import GroupAdmin
from embedlog.coordination.groups.offset_commits import OFFSETS_TOPIC
from embedlog.errors import EmbedlogError, GroupNotFoundError
from embedlog.replica_description import (
    ReplicaDescription,
    ReplicasDescription,
    ReplicatedPartitionDescription,
)
from embedlog.replica_set.observation.replica_events import Meter, Timer
from embedlog.storage import file_names, files
from embedlog.types import TopicPartition

if TYPE_CHECKING:
    from embedlog.engine import Engine
    from embedlog.log_directory import LogDirectory

logger = logging.getLogger("embedlog")


_OF_TOPICS: Final = {
    "MessagesInPerSec": "records_in",
    "BytesInPerSec": "bytes_in",
    "BytesOutPerSec": "bytes_out",
}


class _Traffic:
    """The source of the totals of topics. Threads: REQUIRES the lock of the metrics."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[str, float] = {}

    def counters(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Totals by kind and topic, and the longest wait for an append lock."""
        found: dict[str, float] = {}
        waits = 0
        waited_ns = 0
        longest_ns = 0
        # before the writers: one that is dropped now is not added twice
        for topic, each in list(self._engine.traffic.items()):
            found[f"records_in {topic}"] = each.records_in
            found[f"bytes_in {topic}"] = each.bytes_in
            found[f"bytes_out {topic}"] = each.bytes_out
            waits = waits + each.lock_waits
            waited_ns = waited_ns + each.lock_waited_ns
        for directory in list(self._engine.directories):
            for partition in list(directory.partitions.values()):
                if (writer := partition.direct_target.writer) is not None:
                    for kind, count in (
                        ("records_in", writer.raw.appended_records),
                        ("bytes_in", writer.raw.appended_bytes),
                    ):
                        name = f"{kind} {partition.topic}"
                        found[name] = found.get(name, 0) + int(count)
                    waits = waits + int(writer.raw.lock_waits)
                    waited_ns = waited_ns + int(writer.raw.lock_waited_ns)
                    longest_ns = max(longest_ns, int(writer.raw.lock_waited_max_ns))
                    writer.raw.lock_waited_max_ns = 0
        found["lock_waits"] = waits
        found["lock_waits_s"] = waited_ns / 1e9
        for name, value in found.items():
            # a writer that is dropped now is not in its topic yet
            self._known[name] = max(value, self._known.get(name, 0))
        for kind in _OF_TOPICS.values():
            self._known[kind] = sum(
                value for name, value in self._known.items() if name.startswith(f"{kind} ")
            )
        return self._known, {"lock_waits_s": longest_ns / 1e9} if longest_ns else {}

    def rotate_window(self) -> None:
        """The writers keep their maximum until it is reported."""


def report(engine: Engine, found: ReplicasDescription) -> dict[str, Any]:
    """The metrics of the process, of each of the `topics`, and of each of the `groups`. Raises
    ClosedError.
    """
    metrics = engine.metrics
    if metrics.source is None:
        metrics.source = _Traffic(engine)
    topics = sorted({each.topic for each in found.partitions})
    return {
        **{name: _meter(metrics, kind) for name, kind in _OF_TOPICS.items()},
        **_of_disks(metrics, found),
        "topics": {
            topic: {name: _meter(metrics, f"{kind} {topic}") for name, kind in _OF_TOPICS.items()}
            for topic in topics
        },
        "groups": _of_groups(engine, found),
    }


def _of_disks(metrics: Metrics, found: ReplicasDescription) -> dict[str, Any]:
    """Syncs, loads and compactions of this process, and directories that failed."""
    read = metrics.total("clean_read")
    return {
        "LogFlushRateAndTimeMs": _timer(metrics, "flushes"),
        "AppendLockWaitRateAndTimeMs": _timer(metrics, "lock_waits"),
        "LogLoadRateAndTimeMs": _timer(metrics, "loads"),
        "RecoveredLogs": int(metrics.total("recoveries")),
        "OfflineLogDirectoryCount": sum(not each.answers for each in found.directories),
        "LogCleanRateAndTimeMs": _timer(metrics, "cleans"),
        "max-clean-time-secs": metrics.peak("cleans_s", 0.0),
        "cleaner-recopy-percent": 100 * metrics.total("clean_written") / read if read else 0.0,
    }


def _meter(metrics: Metrics, name: str) -> Meter:
    return Meter(Count=int(metrics.total(name)), OneMinuteRate=metrics.rate(name))


def _timer(metrics: Metrics, name: str) -> Timer:
    mean = metrics.mean(f"{name}_s", name, None)
    peak = metrics.peak(f"{name}_s", None)
    return Timer(**_meter(metrics, name), Mean=milliseconds(mean), Max=milliseconds(peak))


# ---- partitions ----------------------------------------------------------------------------------


def of_partition(
    engine: Engine, found: ReplicasDescription, each: ReplicatedPartitionDescription
) -> dict[str, int | None]:
    """The gauges of the log of a partition: those of its leader. None: its files do not show it, or
    no leader answers.
    """
    copy = next(
        (copy for copy in each.copies if copy.node == each.leader),
        ReplicaDescription(each.leader, ""),
    )
    paths = {
        directory.path
        for directory in found.directories
        if directory.node == each.leader and directory.answers
    }
    directories = [
        directory for directory in list(engine.directories) if str(directory.path) in paths
    ]
    sizes = _segments(directories[0], each.topic, each.partition) if directories else None
    return {
        "LogStartOffset": copy.log_start,
        "LogEndOffset": copy.log_end,
        "NumLogSegments": None if sizes is None else len(sizes),
        "Size": None if sizes is None else sum(sizes),
    }


def _segments(directory: LogDirectory, topic: str, number: int) -> list[int] | None:
    """The sizes of the segments; None if the directory fails meanwhile."""
    try:
        partition = directory.partitions.get((topic, number))
        if partition is not None and partition.mapped_page is not None:
            return [info.size for info in partition.present()[1]]
        return _on_disk(directory.path / file_names.partition_name(topic, number))
    except EmbedlogError as problem:
        if not files.is_directory(directory.path / file_names.partition_name(topic, number)):
            return None  # deleted meanwhile
        what = f"metrics of {topic}-{number} in {directory.path}"
        _logging.report(logger, logging.WARNING, (directory.path, "metrics"), what, problem)
        return None


def _on_disk(path: Path) -> list[int] | None:
    """The sizes of the log files of a partition (LOGMETRICS-4); None if it was deleted
    meanwhile.
    """
    if not files.is_directory(path):
        return None
    facts: Iterable[Any] = (
        files.facts_of(file_names.segment_path(path, base))
        for base in file_names.bases(files.listing(path))
    )
    return [each.size for each in facts if each is not None]


# ---- internal topics -----------------------------------------------------------------------------


def with_internal_sums(
    report: dict[str, Any], found: ReplicasDescription, *, include_internal: bool
) -> dict[str, Any]:
    """The report with the sums over internal topics as `internal`; their own values only with
    `include_internal`.
    """
    own = [each for each in found.partitions if each.internal]
    names = {each.topic for each in own}
    gauges = [report["partitions"][each.topic, each.partition] for each in own]
    meters = [report["topics"][name] for name in names]
    report["internal"] = {
        "GlobalTopicCount": len(names),
        "GlobalPartitionCount": len(own),
        "OfflinePartitionsCount": sum(each.offline for each in own),
        "UnderReplicatedPartitions": sum(each.under_replicated for each in own),
        "NumLogSegments": _sum_of(gauges, "NumLogSegments"),
        "Size": _sum_of(gauges, "Size"),
        **{name: _sum_of_meters([each[name] for each in meters]) for name in _OF_TOPICS},
    }
    if not include_internal:
        report["topics"] = {
            name: known for name, known in report["topics"].items() if name not in names
        }
        report["partitions"] = {
            place: known
            for place, known in report["partitions"].items()
            if place.topic not in names
        }
    return report


def _sum_of(gauges: Iterable[Mapping[str, int | None]], name: str) -> int | None:
    """The sum of a gauge; None while one of them is not known."""
    values = [each[name] for each in gauges]
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _sum_of_meters(meters: Iterable[Meter]) -> Meter:
    every = [*meters]
    return Meter(
        Count=sum(each["Count"] for each in every),
        OneMinuteRate=sum(each["OneMinuteRate"] for each in every),
    )


# ---- groups --------------------------------------------------------------------------------------


def _is_undecided(each: ReplicatedPartitionDescription) -> bool:
    """Whether a reader of the partition would wait: for a leader, or for more replicas in sync that
    commit its last records.
    """
    ends = [copy.log_end for copy in each.copies if copy.node == each.leader]
    uncommitted = each.high_watermark is None or any(
        end is not None and end > each.high_watermark for end in ends
    )
    return each.offline or (each.under_min_isr and uncommitted)


def _of_groups(engine: Engine, found: ReplicasDescription) -> dict[str, Any]:
    """The lag of each group, in records, and of its partitions (LOGMETRICS-5); None while that of a
    partition is not known.
    """
    if not found.can_decide or any(
        _is_undecided(each) for each in found.partitions if each.topic == OFFSETS_TOPIC
    ):
        return {}
    groups = {}
    admin = GroupAdmin(engine)
    for name in admin.names():
        try:
            known = admin.describe(name)
        except GroupNotFoundError:  # deleted meanwhile
            continue
        partitions = {
            TopicPartition(each.topic, each.partition): each.lag for each in known.partitions
        }
        lags = [lag for lag in partitions.values() if lag is not None]
        groups[name] = {
            "records-lag": known.lag,
            "records-lag-max": None if known.lag is None else max(lags),
            "members": len(known.members),
            "partitions": {place: {"records-lag": lag} for place, lag in partitions.items()},
        }
    return groups
