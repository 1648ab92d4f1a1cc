"""Turns the nested result of `log.metrics()` into samples with labels.

SAMPLES-1  a meter is one counter: a monitoring system computes the rate. A timer has `Mean` and `Max` as gauges, too
SAMPLES-2  a value that is not known is no sample
SAMPLES-3  sums and their parts have different names, so that a sum over all labels counts nothing twice
SAMPLES-4  the names of gauges and labels come from the library; only values of labels are input
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|-")
_COUNTED: Final = re.compile(r"(PerSec|RateAndTimeMs)$")


class Sample(NamedTuple):
    """One value. `name` is in lower case with underscores; `source` is the name in `log.metrics()`."""

    name: str
    source: str
    labels: Mapping[str, str]
    value: float
    counter: bool = False


def samples(metrics: Mapping[str, Any]) -> Iterator[Sample]:
    """All known values of `log.metrics()`."""
    yield from _of("", metrics, {})
    for topic, known in metrics["topics"].items():
        yield from _of("topic_", known, {"topic": topic})
    for (topic, number), known in metrics["partitions"].items():
        place = {"topic": topic, "partition": str(number)}
        yield from _of("partition_", known, place)
        for node, copy in known["replicas"].items():
            yield from _of("replica_", copy, {**place, "node": str(node)})
    for group, known in metrics["groups"].items():
        yield from _of("group_", known, {"group": group})
        for (topic, number), lag in known["partitions"].items():
            yield from _of("group_partition_", lag, {"group": group, "topic": topic, "partition": str(number)})
    for node, known in metrics["directories"].items():
        yield from _of("directory_", known, {"node": str(node)})


def _of(prefix: str, known: Mapping[str, Any], labels: Mapping[str, str]) -> Iterator[Sample]:
    """The samples of one level."""
    for source, value in known.items():
        if isinstance(value, int | float):
            yield Sample(prefix + _name(source), source, labels, value)
        elif isinstance(value, Mapping) and "OneMinuteRate" in value:
            name = prefix + _name(_COUNTED.sub("", source))
            yield Sample(f"{name}_total", source, labels, value["Count"], counter=True)
            for part in ("Mean", "Max"):
                if value.get(part) is not None:
                    yield Sample(f"{name}_{part.lower()}_ms", source, labels, value[part])


def _name(source: str) -> str:
    """Kafka's name in lower case with underscores."""
    return _WORDS.sub("_", source).lower()
