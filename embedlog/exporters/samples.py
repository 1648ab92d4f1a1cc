"""Turns the nested result of `log.metrics()` into samples with labels.

- A meter is one counter: a monitoring system computes the rate. A timer has `Mean` and `Max` as
  gauges, too.
- A value that is not known is no sample.
- Sums and their parts have different names, so that a sum over all labels counts nothing twice.
- The names of gauges and labels come from the library; only values of labels are input.
- `families` has every name that a sample can have, for systems that need the names before the first
  value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|-")
_COUNTED: Final = re.compile(r"(PerSec|RateAndTimeMs)$")
_PARTS: Final = ("Mean", "Max")  # of a timer

_METERS: Final = ("BytesInPerSec", "BytesOutPerSec", "MessagesInPerSec")
_OF_LEADERS: Final = (
    "AtMinIsrPartitionCount",
    "LeaderCount",
    "OfflineReplicaCount",
    "PartitionCount",
    "ReassigningPartitions",
    "UnderMinIsrPartitionCount",
    "UnderReplicatedPartitions",
)
# the names in `log.metrics()` by the prefix of their level
_SOURCES: Final[Mapping[str, tuple[str, ...]]] = {
    "": (
        *_METERS,
        *_OF_LEADERS,
        "ActiveBrokerCount",
        "AppendLockWaitRateAndTimeMs",
        "FailedIsrUpdatesPerSec",
        "FencedBrokerCount",
        "GlobalPartitionCount",
        "GlobalTopicCount",
        "IsrExpandsPerSec",
        "IsrShrinksPerSec",
        "LeaderElectionRateAndTimeMs",
        "LogCleanRateAndTimeMs",
        "LogFlushRateAndTimeMs",
        "LogLoadRateAndTimeMs",
        "OfflineLogDirectoryCount",
        "OfflinePartitionsCount",
        "PreferredReplicaImbalanceCount",
        "RecoveredLogs",
        "ReplicationBytesInPerSec",
        "ReplicationBytesOutPerSec",
        "UncleanLeaderElectionsPerSec",
        "cleaner-recopy-percent",
        "max-clean-time-secs",
    ),
    "internal_": (
        *_METERS,
        "GlobalPartitionCount",
        "GlobalTopicCount",
        "NumLogSegments",
        "OfflinePartitionsCount",
        "Size",
        "UnderReplicatedPartitions",
    ),
    "topic_": _METERS,
    "partition_": (
        "AtMinIsr",
        "InSyncReplicasCount",
        "LogEndOffset",
        "LogStartOffset",
        "NumLogSegments",
        "ReplicasCount",
        "Size",
        "UnderMinIsr",
        "UnderReplicated",
    ),
    "replica_": ("ConsumerLag", "lag-bytes", "lag-seconds"),
    "group_": ("members", "records-lag", "records-lag-max"),
    "group_partition_": ("records-lag",),
    "directory_": (*_OF_LEADERS, "MaxLag"),
}


class Family(NamedTuple):
    """The samples of one name."""

    name: str
    source: str
    counter: bool


class Sample(NamedTuple):
    """One value. `name` is in lower case with underscores; `source` is the name in
    `log.metrics()`.
    """

    name: str
    source: str
    labels: Mapping[str, str]
    value: float
    counter: bool = False


def families() -> Iterator[Family]:
    """Every name that a sample can have, once."""
    for prefix, sources in _SOURCES.items():
        for source in sources:
            suffix = _COUNTED.search(source)
            if suffix is None:
                yield Family(prefix + _name(source), source, counter=False)
                continue
            yield Family(_counter(prefix, source), source, counter=True)
            if suffix[1] == "RateAndTimeMs":
                for part in _PARTS:
                    yield Family(_part(prefix, source, part), source, counter=False)


def samples(metrics: Mapping[str, Any]) -> Iterator[Sample]:
    """All known values of `log.metrics()`."""
    yield from _of("", metrics, {})
    yield from _of("internal_", metrics["internal"], {})
    for topic, topic_values in metrics["topics"].items():
        yield from _of("topic_", topic_values, {"topic": topic})
    for (topic, number), partition_values in metrics["partitions"].items():
        labels = {"topic": topic, "partition": str(number)}
        yield from _of("partition_", partition_values, labels)
        for node, replica_values in partition_values["replicas"].items():
            yield from _of("replica_", replica_values, {**labels, "node": str(node)})
    for group, group_values in metrics["groups"].items():
        yield from _of("group_", group_values, {"group": group})
        for (topic, number), lag in group_values["partitions"].items():
            labels = {"group": group, "topic": topic, "partition": str(number)}
            yield from _of("group_partition_", lag, labels)
    for node, directory_values in metrics["directories"].items():
        yield from _of("directory_", directory_values, {"node": str(node)})


def _of(prefix: str, values: Mapping[str, Any], labels: Mapping[str, str]) -> Iterator[Sample]:
    """The samples of one level."""
    for source, value in values.items():
        if isinstance(value, int | float):
            yield Sample(prefix + _name(source), source, labels, value)
        elif isinstance(value, Mapping) and "OneMinuteRate" in value:
            yield Sample(_counter(prefix, source), source, labels, value["Count"], counter=True)
            for part in _PARTS:
                if value.get(part) is not None:
                    yield Sample(_part(prefix, source, part), source, labels, value[part])


def _counter(prefix: str, source: str) -> str:
    """The name of the total of a meter or timer."""
    return f"{prefix}{_name(_COUNTED.sub('', source))}_total"


def _part(prefix: str, source: str, part: str) -> str:
    """The name of the mean or maximum of a timer."""
    return f"{prefix}{_name(_COUNTED.sub('', source))}_{part.lower()}_ms"


def _name(source: str) -> str:
    """Kafka's name in lower case with underscores."""
    return _WORDS.sub("_", source).lower()
