"""Defines the descriptions of topics and their partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from embedlog.descriptions.display import tables


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition at the time of the call.

    `log_start_offset` is the first offset that can be read, `log_end_offset` the next one to write.
    Readers get records below `high_watermark`, those with `isolation_level="read_committed"` below
    `last_stable_offset`.
    """

    partition: int
    path: str
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    leader_epoch: int
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class TopicDescription:
    """A topic: its identity, its partitions in order, and the settings that differ from the log's
    defaults.
    """

    name: str
    topic_id: str
    partitions: tuple[PartitionDescription, ...]
    config: Mapping[str, str] = field(default_factory=dict)
    internal: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "partitions", tuple(self.partitions))
        object.__setattr__(self, "config", MappingProxyType(dict(self.config)))

    @property
    def partition_count(self) -> int:
        return len(self.partitions)

    def __repr__(self) -> str:
        offsets = _offset_count(self.partitions)
        size = _size_of(self.partitions)
        count = tables.count_text(self.partition_count, "partition")
        return (
            f"<embedlog.TopicDescription {self.name!r}: {count}, {offsets} offsets, {size} bytes>"
        )

    def _repr_html_(self) -> str:
        head = (
            "partition",
            "start",
            "end",
            "high watermark",
            "last stable",
            "epoch",
            "bytes",
            "path",
        )
        rows = [
            (
                partition.partition,
                partition.log_start_offset,
                partition.log_end_offset,
                partition.high_watermark,
                partition.last_stable_offset,
                partition.leader_epoch,
                partition.size_bytes,
                partition.path,
            )
            for partition in self.partitions
        ]
        settings = "".join(f"; {name}={value}" for name, value in self.config.items())
        return tables.make_short_table(f"topic {self.name}{settings}", head, rows)

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapping proxy cannot be pickled, so the pickle has a dict, which __post_init__ wraps
        # again.
        return (
            TopicDescription,
            (self.name, self.topic_id, self.partitions, dict(self.config), self.internal),
        )


def table_of(title: str, names: Sequence[str], describe: Callable[[str], TopicDescription]) -> str:
    """An HTML table of topics, without rows a title only. Raises what `describe` raises."""
    rows = []
    for name in names[: tables.ROWS_SHOWN]:
        topic = describe(name)
        rows.append(
            (
                topic.name,
                topic.partition_count,
                _offset_count(topic.partitions),
                _size_of(topic.partitions),
            )
        )
    if len(rows) < len(names):
        title += f", the first {len(rows)} of {len(names)} topics"
    head = ("topic", "partitions", "offsets", "bytes") if names else ()
    return tables.make_short_table(title, head, rows)


def _offset_count(partitions: Sequence[PartitionDescription]) -> int:
    """The number of offsets of which readers may get records."""
    return sum(partition.high_watermark - partition.log_start_offset for partition in partitions)


def _size_of(partitions: Sequence[PartitionDescription]) -> int:
    return sum(partition.size_bytes for partition in partitions)
