"""Defines the description of a set of directories and their replicas, as `log.replicas()` returns
it.

- A value is immutable and contains no handle; `as_dict` has only what JSON can represent.
- None means "not known": the directory did not answer, or its files do not show it without a
  recovery.
- Texts of directories (paths, racks, reasons, names) are escaped in HTML, and are one line in the
  table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from embedlog.descriptions.display.tables import (
    count_text,
    format_time,
    make_table,
    partition_count_text,
    to_one_line,
)

__all__ = [
    "DecisionDescription",
    "DirectoryDescription",
    "ReplicaDescription",
    "ReplicatedPartitionDescription",
    "ReplicasDescription",
]

NO_NODE: Final = -1
CHANGES_SHOWN: Final = 3  # of one decision, in a table
DECISIONS_SHOWN: Final = 5
TOPICS_SHOWN: Final = 3
PARTITIONS_SHOWN: Final = 200  # in a table; `partitions` has all of them


@dataclass(frozen=True, slots=True)
class DirectoryDescription:
    """One directory of the set.

    `state` is "live", or "witness" for a live one that takes no replicas. This process has not
    opened a directory that is "away". A "failed" one does not answer, and a "foreign" one was
    written without the set. `since_ms` is the begin of such a state.

    `holds` and `leads` count decided partitions. `same_device` are the nodes on the same device:
    they fail together.
    """

    node: int
    path: str
    state: str
    reason: str | None = None
    since_ms: int | None = None
    rack: str | None = None
    voter: bool = True
    registration_id: str | None = None
    holds: int = 0
    leads: int = 0
    same_device: tuple[int, ...] = ()

    @property
    def answers(self) -> bool:
        """Whether the directory is used now."""
        return self.state in ("live", "witness")


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """One replica of a partition; offsets are those of its control page.

    `state` has the name of Kafka's controller, for example "OnlineReplica". `lag` is in records up
    to the leader's log end, `lag_bytes` in bytes. `last_caught_up_ms` is the time of the
    observation, or of the first record that is missing here; `lag_seconds` is the age of that
    record.
    """

    node: int
    state: str
    in_sync: bool = False
    leads: bool = False
    log_start: int | None = None
    log_end: int | None = None
    high_watermark: int | None = None
    durable_offset: int | None = None
    lag: int | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    last_caught_up_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ReplicatedPartitionDescription:
    """One partition: the newest decision about it, and its replicas.

    `leader` is -1 without one. `replicas` are the assigned nodes, the preferred leader first;
    `copies` describes each of them, and those that are still to be deleted. `state` has the name of
    Kafka's controller, for example "OnlinePartition". `internal` is whether the topic is internal,
    for example `__consumer_offsets`.
    """

    topic: str
    partition: int
    state: str
    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    min_in_sync: int = 1
    high_watermark: int | None = None
    copies: tuple[ReplicaDescription, ...] = ()
    internal: bool = False

    @property
    def offline(self) -> bool:
        """Whether no leader serves it."""
        return self.state == "OfflinePartition"

    @property
    def under_replicated(self) -> bool:
        """Whether a replica is not in the ISR. Those that a reassignment adds do not count."""
        return len(self.isr) < len(set(self.replicas) - set(self.adding))

    @property
    def under_min_isr(self) -> bool:
        """Whether the ISR is smaller than `min.insync.replicas`, so that `acks=all` is refused."""
        return self.leader == NO_NODE or len(self.isr) < self.min_in_sync

    @property
    def at_min_isr(self) -> bool:
        """Whether the loss of one more member of the ISR makes `acks=all` impossible."""
        return self.leader != NO_NODE and len(self.isr) == self.min_in_sync

    @property
    def reassigning(self) -> bool:
        """Whether a reassignment is in progress."""
        return bool(self.adding or self.removing)


@dataclass(frozen=True, slots=True)
class DecisionDescription:
    """One decision: the offset of its first record in `__replica_state`, its term, its time, and
    its changes in words.
    """

    offset: int
    term: int
    timestamp_ms: int
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReplicasDescription:
    """The directories of an open log, the partitions and their replicas, and the recent decisions,
    at the time of the call.

    `voters` are the nodes of which a majority decides; `can_decide` is whether a majority answers.
    `term` is that of the newest decision, -1 without one. The decisions are in the order of their
    offsets.
    """

    directories: tuple[DirectoryDescription, ...]
    partitions: tuple[ReplicatedPartitionDescription, ...]
    term: int = -1
    voters: tuple[int, ...] = ()
    can_decide: bool = True
    decisions: tuple[DecisionDescription, ...] = ()
    observed_ms: int = 0

    @property
    def warnings(self) -> tuple[str, ...]:
        """What reduces the safety of the data, in words."""
        return tuple(_find_warnings(self))

    def as_dict(self) -> dict[str, Any]:
        """The description as nested dicts and lists, for `json.dumps`."""
        return {**asdict(self), "warnings": list(self.warnings)}

    def __repr__(self) -> str:
        directories = _directory_count_text(self)
        partitions = _partition_count_text(self)
        warnings = f", {count_text(len(self.warnings), 'warning')}" if self.warnings else ""
        return f"<embedlog.ReplicasDescription: {directories}, {partitions}{warnings}>"

    def __str__(self) -> str:
        texts = []
        for title, head, rows in _make_tables(self):
            texts.append(f"{title}\n{_align(head, rows)}" if rows else title)
        return "\n\n".join(texts)

    def _repr_html_(self) -> str:
        return "".join(make_table(title, head, rows) for title, head, rows in _make_tables(self))


# ---- warnings ------------------------------------------------------------------------------------


def _find_warnings(description: ReplicasDescription) -> Iterator[str]:
    if not description.can_decide:
        answering = [
            directory.node
            for directory in description.directories
            if directory.voter and directory.answers
        ]
        yield (
            f"no majority of the voters {_nodes(description.voters)} answers (only "
            f"{_nodes(answering)}): no decision is possible"
        )
    for directory in description.directories:
        if not directory.answers:
            yield f"node {directory.node} is {directory.state}: {directory.reason or 'no reason is known'}"
    shared = {
        tuple(sorted((directory.node, *directory.same_device)))
        for directory in description.directories
        if directory.same_device
    }
    for nodes in sorted(shared):
        yield f"nodes {_nodes(nodes)} are on one device and fail together"
    counts = {
        "without a leader": sum(partition.offline for partition in description.partitions),
        "with fewer replicas in sync than assigned": sum(
            partition.under_replicated for partition in description.partitions
        ),
        "below min.insync.replicas": sum(
            partition.under_min_isr for partition in description.partitions
        ),
    }
    for state, count in counts.items():
        if count:
            yield f"{count_text(count, 'partition')} {state}"
    yield from _warn_of_single_copies(description)


def _warn_of_single_copies(description: ReplicasDescription) -> Iterator[str]:
    """What a set keeps in one directory only, although it has more."""
    holders = sum(directory.state != "witness" for directory in description.directories)
    single = [partition for partition in description.partitions if len(partition.replicas) == 1]
    if not description.voters or holders < 2 or not single:
        return
    names = list(dict.fromkeys(partition.topic for partition in single))
    topics = ", ".join(names[:TOPICS_SHOWN])
    if len(names) > TOPICS_SHOWN:
        topics += ", …"
    has = "has" if len(single) == 1 else "have"
    yield (
        f"{count_text(len(single), 'partition')} {has} one copy only ({topics}): replicate(factor) "
        "gives each more"
    )


# ---- tables --------------------------------------------------------------------------------------

Table = tuple[str, Sequence[str], list[list[str]]]


def _make_tables(description: ReplicasDescription) -> Iterator[Table]:
    """Title, head and rows of each table; a table without a head is a list."""
    title = _directory_count_text(description)
    if description.term >= 0:
        decides = "a majority answers" if description.can_decide else "NO majority answers"
        title += f"; term {description.term}, voters {_nodes(description.voters)}, {decides}"
    yield (
        title,
        _DIRECTORY_HEAD,
        [_directory_row(directory) for directory in description.directories],
    )
    if description.warnings:
        yield "Warnings", (), [[text] for text in description.warnings]
    shown = description.partitions[:PARTITIONS_SHOWN]
    title = _partition_count_text(description)
    if len(shown) < len(description.partitions):
        title += f", the first {len(shown)} of them"
    yield (
        title,
        _PARTITION_HEAD,
        [row for partition in shown for row in _partition_rows(partition)],
    )
    if description.decisions:
        yield (
            "Recent decisions",
            _DECISION_HEAD,
            [_decision_row(decision) for decision in description.decisions[-DECISIONS_SHOWN:]],
        )


_DIRECTORY_HEAD: Final = ("node", "state", "path", "rack", "leads", "holds", "since", "reason")
_PARTITION_HEAD: Final = (
    "partition",
    "state",
    "epoch",
    "ISR",
    "replica",
    "state",
    "start",
    "end",
    "HW",
    "durable",
    "lag",
    "bytes",
    "s",
)
_DECISION_HEAD: Final = ("offset", "term", "time", "changes")


def _directory_row(directory: DirectoryDescription) -> list[str]:
    since = "" if directory.since_ms is None else _second(directory.since_ms)
    texts = (
        str(directory.node),
        directory.state,
        directory.path,
        directory.rack or "",
        str(directory.leads),
        str(directory.holds),
        since,
        directory.reason or "",
    )
    return [to_one_line(text) for text in texts]


def _partition_rows(partition: ReplicatedPartitionDescription) -> list[list[str]]:
    """One row for each replica; the first one has the facts of the partition."""
    facts = [
        to_one_line(f"{partition.topic}-{partition.partition}"),
        partition.state.removesuffix("Partition"),
        str(partition.leader_epoch),
        _nodes(partition.isr),
    ]
    rows = []
    for copy in partition.copies:
        state = copy.state.removeprefix("Replica").removesuffix("Replica")
        role = "leader" if copy.leads and state == "Online" else state
        numbers = (
            copy.log_start,
            copy.log_end,
            copy.high_watermark,
            copy.durable_offset,
            copy.lag,
            copy.lag_bytes,
        )
        lag_s = "?" if copy.lag_seconds is None else f"{copy.lag_seconds:.1f}"
        rows.append([*facts, str(copy.node), role, *map(_number, numbers), lag_s])
        facts = [""] * len(facts)
    return rows or [[*facts, *[""] * (len(_PARTITION_HEAD) - len(facts))]]


def _decision_row(decision: DecisionDescription) -> list[str]:
    hidden_count = len(decision.changes) - CHANGES_SHOWN
    text = "; ".join(decision.changes[:CHANGES_SHOWN])
    if hidden_count > 0:
        text += f"; and {hidden_count} more"
    return [
        str(decision.offset),
        str(decision.term),
        _second(decision.timestamp_ms),
        to_one_line(text),
    ]


def _align(head: Sequence[str], rows: list[list[str]]) -> str:
    """The rows as lines of text, with columns of equal width."""
    lines = [list(head), *rows] if head else rows
    widths = [max(len(cells[column]) for cells in lines) for column in range(len(lines[0]))]
    return "\n".join("  " + "  ".join(map(str.ljust, cells, widths)).rstrip() for cells in lines)


def _directory_count_text(description: ReplicasDescription) -> str:
    if len(description.directories) == 1:
        return "1 directory"
    return f"{len(description.directories)} directories"


def _partition_count_text(description: ReplicasDescription) -> str:
    internal_count = sum(partition.internal for partition in description.partitions)
    return partition_count_text(len(description.partitions), internal_count)


def _nodes(nodes: Iterable[int]) -> str:
    return "[" + ", ".join(map(str, nodes)) + "]"


def _number(value: int | None) -> str:
    return "?" if value is None else str(value)


def _second(time_ms: int) -> str:
    return format_time(time_ms).partition(".")[0]
