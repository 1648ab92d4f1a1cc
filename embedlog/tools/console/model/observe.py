"""Observes an open log: topics, partitions, groups, transactions, replicas, settings and processes,
as grids.

What disappears during an observation is left out: a topic may be deleted between its name and its
description. A topic or group that cannot be read is a row with the reason, and the others are shown.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace

import embedlog
from embedlog import (
    EmbedlogError,
    GroupDescription,
    GroupNotFoundError,
    Log,
    ReplicaDescription,
    ReplicasDescription,
    ReplicatedPartitionDescription,
    TopicDescription,
    TopicPartition,
    UnknownTopicOrPartitionError,
)
from embedlog.tools.console.model import text
from embedlog.tools.console.model.grid import Grid, Row, make_grid, make_row
from embedlog.tools.console.model.rates import Level, Rates

SEGMENT = ".log"
Problems = list[tuple[str, EmbedlogError]]  # what cannot be read, with the reason
PROBLEM = "problem"
NO_TOPIC = "no topic: c creates one, if started with --write"


def _describe_topics(log: Log, internal: bool) -> tuple[list[TopicDescription], Problems]:
    descriptions: list[TopicDescription] = []
    problems: Problems = []
    for name in log.topics(include_internal=internal):
        try:
            descriptions.append(log.describe_topic(name))
        except UnknownTopicOrPartitionError:
            continue
        except EmbedlogError as problem:
            problems.append((name, problem))
    return descriptions, problems


def _grid_with_problems(
    title: str, columns: str, rows: list[Row], right: str, problems: Problems
) -> Grid:
    """A grid with a row for each problem; their column is shown only if there is one."""
    if not problems:
        return make_grid(title, columns, rows, right)
    blank = [""] * columns.count("|")
    problem_rows = [
        make_row(name, [name, *blank, _reason_of(problem)], name) for name, problem in problems
    ]
    readable_rows = [replace(row, cells=(*row.cells, "")) for row in rows]
    hint = f"{title} · {len(problems)} not readable: press 8, then c, for a check"
    return make_grid(hint, f"{columns}|{PROBLEM}", problem_rows + readable_rows, right)


def _reason_of(problem: EmbedlogError) -> str:
    """The message first: a path is long, and cut by the screen."""
    if problem.path is None:
        return problem.message
    last_names = problem.path.split(os.sep)[-2:]
    return f"{problem.message}: {os.sep.join(last_names)}"


def segment_count(path: str) -> int | None:
    """The number of segments of a partition; None if its directory is gone."""
    try:
        with os.scandir(path) as entries:
            return sum(entry.name.endswith(SEGMENT) for entry in entries)
    except OSError:
        return None


# ---- topics --------------------------------------------------------------------------------------


def topics(log: Log, rates: Rates, time_s: float, *, internal: bool) -> list[Grid]:
    """All topics with their rates since the last observation."""
    descriptions, problems = _describe_topics(log, internal)
    _observe(rates, time_s, descriptions)
    rows = []
    for topic in descriptions:
        rate = rates.of((topic.name, partition.partition) for partition in topic.partitions)
        starts = [partition.log_start_offset for partition in topic.partitions]
        ends = [partition.high_watermark for partition in topic.partitions]
        counts = [segment_count(partition.path) for partition in topic.partitions]
        rows.append(
            make_row(
                topic.name,
                [
                    topic.name,
                    len(topic.partitions),
                    text.count(sum(ends) - sum(starts)),
                    text.size(sum(partition.size_bytes for partition in topic.partitions)),
                    text.rate(rate.records_per_s),
                    text.rate(rate.bytes_per_s, "B"),
                    sum(count for count in counts if count is not None),
                    _offset_range(starts),
                    _offset_range(ends),
                ],
                topic.name,
            )
        )
    columns = "topic|partitions|offsets|size|records/s|bytes/s|segments|start|end"
    right = "partitions|offsets|size|records/s|bytes/s|segments|start|end"
    topic_count = len(rows) + len(problems)
    title = text.count_with_noun(topic_count, "topic") if topic_count else NO_TOPIC
    hidden = 0 if internal else len(log.topics(include_internal=True)) - len(log.topics())
    grid = _grid_with_problems(title, columns, rows, right, problems)
    return [replace(grid, title=grid.title + _hidden_text(hidden, "internal topic"))]


def partitions(log: Log, topic: str, rates: Rates, time_s: float) -> list[Grid]:
    """The partitions of a topic."""
    description = log.describe_topic(topic)
    _observe(rates, time_s, [description])
    rows = []
    for partition in description.partitions:
        rate = rates.of([(topic, partition.partition)])
        rows.append(
            make_row(
                partition.partition,
                [
                    partition.partition,
                    text.count(partition.high_watermark - partition.log_start_offset),
                    text.size(partition.size_bytes),
                    text.rate(rate.records_per_s),
                    text.rate(rate.bytes_per_s, "B"),
                    segment_count(partition.path),
                    partition.log_start_offset,
                    partition.last_stable_offset,
                    partition.high_watermark,
                    partition.log_end_offset,
                    partition.leader_epoch,
                ],
                partition.partition,
            )
        )
    columns = (
        "partition|offsets|size|records/s|bytes/s|segments|start|last stable|high "
        "watermark|end|epoch"
    )
    return [make_grid(f"topic {topic}, id {description.topic_id}", columns, rows, columns)]


def _observe(rates: Rates, time_s: float, descriptions: list[TopicDescription]) -> None:
    levels = {}
    for topic in descriptions:
        for partition in topic.partitions:
            levels[topic.name, partition.partition] = Level(
                topic.topic_id,
                partition.log_start_offset,
                partition.log_end_offset,
                partition.size_bytes,
            )
    rates.observe(time_s, levels)


def _offset_range(offsets: list[int]) -> str:
    """The offset of one partition; the lowest and the highest of several."""
    if not offsets:
        return text.NONE
    lowest = min(offsets)
    highest = max(offsets)
    return str(lowest) if lowest == highest else f"{lowest}…{highest}"


# ---- groups --------------------------------------------------------------------------------------


def groups(log: Log, selected: str | None) -> list[Grid]:
    """All groups; members and partitions of the selected one."""
    descriptions = []
    problems: Problems = []
    for name in log.groups():
        try:
            descriptions.append(log.describe_group(name))
        except GroupNotFoundError:
            continue
        except EmbedlogError as problem:
            problems.append((name, problem))
    rows = [
        make_row(
            group.group_id,
            [
                group.group_id,
                group.state,
                group.type,
                group.assignor,
                group.generation,
                len(group.members),
                len(group.partitions),
                text.count(group.lag),
            ],
            group.group_id,
        )
        for group in descriptions
    ]
    columns = "group|state|type|assignor|generation|members|partitions|lag"
    right = "generation|members|partitions|lag"
    title = text.count_with_noun(len(rows) + len(problems), "group")
    all_groups = _grid_with_problems(title, columns, rows, right, problems)
    shown = descriptions[0] if descriptions else None
    for group in descriptions:
        if group.group_id == selected:
            shown = group
    return [all_groups, _members(shown), _lags(shown)]


def _members(group: GroupDescription | None) -> Grid:
    columns = "member|instance|client|host|topics|assignment"
    if group is None:
        return make_grid("members", columns, [])
    rows = [
        make_row(
            member.member_id,
            [
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                " ".join(member.topics),
                _partitions_text(member.assignment),
            ],
        )
        for member in group.members
    ]
    return make_grid(f"members of {group.group_id}", columns, rows)


def _lags(group: GroupDescription | None) -> Grid:
    columns = "topic|partition|committed|end|lag|member|metadata"
    right = "partition|committed|end|lag"
    if group is None:
        return make_grid("partitions", columns, [], right)
    rows = [
        make_row(
            f"{partition.topic}-{partition.partition}",
            [
                partition.topic,
                partition.partition,
                partition.position,
                partition.log_end_offset,
                partition.lag,
                partition.member_id,
                partition.committed.metadata if partition.committed else None,
            ],
        )
        for partition in group.partitions
    ]
    return make_grid(f"partitions of {group.group_id}", columns, rows, right)


def _partitions_text(partitions: Iterable[TopicPartition]) -> str:
    return " ".join(f"{tp.topic}-{tp.partition}" for tp in partitions)


# ---- transactions --------------------------------------------------------------------------------


def transactions(log: Log, time_ms: int) -> list[Grid]:
    """Transactional ids, and the transactions that are open in partitions."""
    rows = []
    for transaction in log.transactions():
        age = None
        if transaction.started_ms is not None:
            age = text.age((time_ms - transaction.started_ms) / 1000)
        rows.append(
            make_row(
                transaction.transactional_id,
                [
                    transaction.transactional_id,
                    transaction.state,
                    text.time(transaction.started_ms),
                    age,
                    transaction.timeout_ms,
                    transaction.producer_id,
                    transaction.producer_epoch,
                    _partitions_text(transaction.partitions) or None,
                ],
                transaction.transactional_id,
            )
        )
    columns = "transactional id|state|started|open since|timeout ms|producer id|epoch|partitions"
    title = text.count_with_noun(len(rows), "transactional id")
    ids = make_grid(title, columns, rows, "timeout ms|producer id|epoch")
    open_rows = [
        make_row(
            f"{transaction.topic}-{transaction.partition}-{transaction.producer_id}",
            [
                transaction.topic,
                transaction.partition,
                transaction.first_offset,
                transaction.producer_id,
                transaction.producer_epoch,
                transaction.transactional_id or "none: hanging",
            ],
        )
        for transaction in log.open_transactions()
    ]
    columns = "topic|partition|first offset|producer id|epoch|transactional id"
    title = "open in partitions: readers of committed records wait at the first offset"
    return [ids, make_grid(title, columns, open_rows, "partition|first offset|producer id|epoch")]


# ---- replicas ------------------------------------------------------------------------------------


def replicas(log: Log, *, internal: bool) -> list[Grid]:
    """Directories, partitions with their replicas, warnings and decisions.

    Partitions of internal topics are hidden without `internal`, except those without a leader or a
    full ISR.
    """
    description = log.replicas()
    shown = [
        partition
        for partition in description.partitions
        if internal or not partition.internal or partition.under_replicated or partition.offline
    ]
    return [
        _directories(description),
        _copies(shown, len(description.partitions) - len(shown)),
        _events(description),
    ]


def _directories(description: ReplicasDescription) -> Grid:
    rows = [
        make_row(
            directory.node,
            [
                directory.node,
                directory.state,
                directory.leads,
                directory.holds,
                directory.rack,
                text.time(directory.since_ms),
                directory.path,
                directory.reason,
            ],
        )
        for directory in description.directories
    ]
    title = "1 directory" if len(rows) == 1 else f"{len(rows)} directories"
    columns = "node|state|leads|holds|rack|since|path|reason"
    return make_grid(title, columns, rows, "node|leads|holds")


def _copies(partitions: list[ReplicatedPartitionDescription], hidden: int) -> Grid:
    """A row for each replica of the partitions; the title counts those that are hidden."""
    rows = [
        make_row(
            f"{partition.topic}-{partition.partition}-{copy.node}",
            [
                partition.topic,
                partition.partition,
                partition.state.removesuffix("Partition"),
                _nodes_text(partition.isr),
                copy.node,
                copy.state,
                _role_of(copy),
                copy.log_end,
                copy.high_watermark,
                copy.lag,
                None if copy.lag_bytes is None else text.size(copy.lag_bytes),
            ],
        )
        for partition in partitions
        for copy in partition.copies
    ]
    columns = "topic|partition|state|ISR|node|replica|role|end|high watermark|lag|lag bytes"
    right = "partition|node|end|high watermark|lag|lag bytes"
    title = text.count_with_noun(len(partitions), "partition")
    hint = _hidden_text(hidden, "internal partition")
    return make_grid(title + hint, columns, rows, right)


def _role_of(copy: ReplicaDescription) -> str:
    if copy.leads:
        return "leader"
    return "in sync" if copy.in_sync else "out of sync"


def _events(description: ReplicasDescription) -> Grid:
    """Warnings, and decisions from the newest on."""
    rows = [
        make_row(f"warning {number}", ["warning", None, warning])
        for number, warning in enumerate(description.warnings)
    ]
    rows += [
        make_row(
            f"decision {decision.offset}",
            ["decision", text.time(decision.timestamp_ms), "; ".join(decision.changes)],
        )
        for decision in reversed(description.decisions)
    ]
    return make_grid("warnings and decisions", "kind|time|text", rows)


def _hidden_text(count: int, noun: str) -> str:
    """What a title says about rows of internal topics that are not shown."""
    return f" · i shows {text.count_with_noun(count, noun)}" if count else ""


def _nodes_text(nodes: tuple[int, ...]) -> str:
    return ",".join(map(str, nodes)) or text.NONE


# ---- settings and processes ----------------------------------------------------------------------


def settings(log: Log, *, own_only: bool) -> list[Grid]:
    """The effective settings of each topic, and where they come from."""
    rows = []
    descriptions, problems = _describe_topics(log, internal=False)
    for topic in descriptions:
        values = dict(topic.config)
        if not own_only:
            values = log.config.topic_config(values).as_kafka()
        for name, value in sorted(values.items()):
            origin = "topic" if name in topic.config else "default"
            rows.append(make_row(f"{topic.name} {name}", [topic.name, name, value, origin]))
    title = "settings of topics" if own_only else "effective settings of topics"
    return [_grid_with_problems(title, "topic|setting|value|origin", rows, "", problems)]


def processes(
    paths: list[str], list_processes: Callable[..., list[embedlog.ProcessDescription]]
) -> list[Grid]:
    """The processes that have the directories open, one row for each lock and wait."""
    base = os.path.realpath(paths[0]) if len(paths) == 1 else None
    rows: list[Row] = []
    for process in list_processes(paths):
        uses = _lock_uses(process)
        if not uses:
            uses = [(None, None, None)]
        for state, purpose, path in uses:
            if path and base is not None:
                path = os.path.relpath(path, base)
            cells = [
                process.pid,
                process.user,
                process.mode,
                state,
                purpose,
                path,
                process.command or "not visible",
            ]
            rows.append(make_row(f"{len(rows)} {process.pid}", cells))
    title = "processes that have the directory open"
    return [make_grid(title, "pid|user|mode|state|purpose|file|command", rows, "pid")]


def _lock_uses(
    process: embedlog.ProcessDescription,
) -> list[tuple[str | None, str | None, str | None]]:
    """State, purpose and path of the locks that a process has, and of those that it waits for."""
    uses: list[tuple[str | None, str | None, str | None]] = []
    for lock in process.locks:
        state = "holds" if lock.kind == "exclusive" else "shares"
        uses.append((state, lock.purpose, lock.path))
    uses += [("waits for", wait.purpose, wait.path) for wait in process.waits or ()]
    return uses
