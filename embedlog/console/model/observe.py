"""Observes an open log: topics, partitions, groups, transactions, replicas, settings and processes,
as grids.

OBSERVE-1  what disappears during an observation is left out: a topic may be deleted between its
    name and its description
OBSERVE-2  a topic or group that cannot be read is a row with the reason, and the others are shown
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import embedlog
from embedlog import (
    EmbedlogError,
    GroupNotFoundError,
    Log,
    TopicDescription,
    UnknownTopicOrPartitionError,
)
from embedlog.console.model import text
from embedlog.console.model.grid import Grid, Row, grid, row
from embedlog.console.model.rates import Level, Rates

SEGMENT = ".log"


Problems = list[tuple[str, EmbedlogError]]  # what cannot be read, with the reason
PROBLEM = "problem"
NO_TOPIC = "no topic: c creates one, if started with --write"


def _topics(log: Log, internal: bool) -> tuple[list[TopicDescription], Problems]:
    found: list[TopicDescription] = []
    problems: Problems = []
    for name in log.topics(include_internal=internal):
        try:
            found.append(log.describe_topic(name))
        except UnknownTopicOrPartitionError:
            continue
        except EmbedlogError as problem:
            problems.append((name, problem))
    return found, problems


def _with_problems(
    title: str, columns: str, rows: list[Row], right: str, problems: Problems
) -> Grid:
    """A grid with a row for each problem; their column is shown only if there is one."""
    if not problems:
        return grid(title, columns, rows, right)
    blank = [""] * columns.count("|")
    rows = [
        *(row(name, [name, *blank, _reason(problem)], name) for name, problem in problems),
        *_widened(rows),
    ]
    hint = f"{title} · {len(problems)} not readable: press 8, then c, for a check"
    return grid(hint, f"{columns}|{PROBLEM}", rows, right)


def _reason(problem: EmbedlogError) -> str:
    """The message first: a path is long, and cut by the screen."""
    return (
        problem.message
        if problem.path is None
        else f"{problem.message}: {os.sep.join(problem.path.split(os.sep)[-2:])}"
    )


def _widened(rows: Iterable[Row]) -> Iterator[Row]:
    return (replace(each, cells=(*each.cells, "")) for each in rows)


def segment_count(path: str) -> int | None:
    """The number of segments of a partition; None if its directory is gone."""
    try:
        with os.scandir(path) as entries:
            return sum(each.name.endswith(SEGMENT) for each in entries)
    except OSError:
        return None


# ---- topics --------------------------------------------------------------------------------------


def topics(log: Log, rates: Rates, time_s: float, *, internal: bool) -> list[Grid]:
    """All topics with their rates since the last observation."""
    found, problems = _topics(log, internal)
    _observe(rates, time_s, found)
    rows = []
    for each in found:
        parts = each.partitions
        rate = rates.of((each.name, part.partition) for part in parts)
        counts = [known for part in parts if (known := segment_count(part.path)) is not None]
        rows.append(
            row(
                each.name,
                [
                    each.name,
                    len(parts),
                    text.count(sum(part.high_watermark - part.log_start_offset for part in parts)),
                    text.size(sum(part.size_bytes for part in parts)),
                    text.rate(rate.records),
                    text.rate(rate.size_bytes, "B"),
                    sum(counts),
                    _offsets(part.log_start_offset for part in parts),
                    _offsets(part.high_watermark for part in parts),
                ],
                each.name,
            )
        )
    columns = "topic|partitions|offsets|size|records/s|bytes/s|segments|start|end"
    right = "partitions|offsets|size|records/s|bytes/s|segments|start|end"
    title = text.counted(len(rows) + len(problems), "topic") if rows or problems else NO_TOPIC
    hidden = 0 if internal else len(log.topics(include_internal=True)) - len(log.topics())
    made = _with_problems(title, columns, rows, right, problems)
    return [replace(made, title=made.title + _hidden(hidden, "internal topic"))]


def partitions(log: Log, topic: str, rates: Rates, time_s: float) -> list[Grid]:
    """The partitions of a topic."""
    found = log.describe_topic(topic)
    _observe(rates, time_s, [found])
    rows = []
    for part in found.partitions:
        rate = rates.of([(topic, part.partition)])
        rows.append(
            row(
                part.partition,
                [
                    part.partition,
                    text.count(part.high_watermark - part.log_start_offset),
                    text.size(part.size_bytes),
                    text.rate(rate.records),
                    text.rate(rate.size_bytes, "B"),
                    segment_count(part.path),
                    part.log_start_offset,
                    part.last_stable_offset,
                    part.high_watermark,
                    part.log_end_offset,
                    part.leader_epoch,
                ],
                part.partition,
            )
        )
    columns = (
        "partition|offsets|size|records/s|bytes/s|segments|start|last stable|high "
        "watermark|end|epoch"
    )
    return [grid(f"topic {topic}, id {found.topic_id}", columns, rows, columns)]


def _observe(rates: Rates, time_s: float, found: list[TopicDescription]) -> None:
    rates.observe(
        time_s,
        {
            (each.name, part.partition): Level(
                each.topic_id, part.log_start_offset, part.log_end_offset, part.size_bytes
            )
            for each in found
            for part in each.partitions
        },
    )


def _offsets(numbers: Iterator[int]) -> str:
    """The offset of one partition; the lowest and the highest of several."""
    known = sorted(numbers)
    if not known:
        return text.NONE
    return str(known[0]) if known[0] == known[-1] else f"{known[0]}…{known[-1]}"


# ---- groups --------------------------------------------------------------------------------------


def groups(log: Log, selected: str | None) -> list[Grid]:
    """All groups; members and partitions of the selected one."""
    found = []
    problems: Problems = []
    for name in log.groups():
        try:
            found.append(log.describe_group(name))
        except GroupNotFoundError:
            continue
        except EmbedlogError as problem:
            problems.append((name, problem))
    rows = [
        row(
            each.group_id,
            [
                each.group_id,
                each.state,
                each.type,
                each.assignor,
                each.generation,
                len(each.members),
                len(each.partitions),
                text.count(each.lag),
            ],
            each.group_id,
        )
        for each in found
    ]
    columns = "group|state|type|assignor|generation|members|partitions|lag"
    right = "generation|members|partitions|lag"
    made = [
        _with_problems(
            text.counted(len(rows) + len(problems), "group"), columns, rows, right, problems
        )
    ]
    shown = next((each for each in found if each.group_id == selected), found[0] if found else None)
    title = "" if shown is None else f" of {shown.group_id}"
    members, lags = (shown.members, shown.partitions) if shown is not None else ((), ())
    made.append(
        grid(
            f"members{title}",
            "member|instance|client|host|topics|assignment",
            [
                row(
                    each.member_id,
                    [
                        each.member_id,
                        each.instance_id,
                        each.client_id,
                        each.client_host,
                        " ".join(each.topics),
                        " ".join(f"{tp.topic}-{tp.partition}" for tp in each.assignment),
                    ],
                )
                for each in members
            ],
        )
    )
    made.append(
        grid(
            f"partitions{title}",
            "topic|partition|committed|end|lag|member|metadata",
            [
                row(
                    f"{each.topic}-{each.partition}",
                    [
                        each.topic,
                        each.partition,
                        each.position,
                        each.log_end_offset,
                        each.lag,
                        each.member_id,
                        each.committed.metadata if each.committed else None,
                    ],
                )
                for each in lags
            ],
            "partition|committed|end|lag",
        )
    )
    return made


# ---- transactions --------------------------------------------------------------------------------


def transactions(log: Log, time_ms: int) -> list[Grid]:
    """Transactional ids, and the transactions that are open in partitions."""
    rows = []
    for each in log.transactions():
        since = None if each.started_ms is None else text.age((time_ms - each.started_ms) / 1000)
        places = " ".join(f"{tp.topic}-{tp.partition}" for tp in each.partitions)
        rows.append(
            row(
                each.transactional_id,
                [
                    each.transactional_id,
                    each.state,
                    text.time(each.started_ms),
                    since,
                    each.timeout_ms,
                    each.producer_id,
                    each.producer_epoch,
                    places or None,
                ],
                each.transactional_id,
            )
        )
    columns = "transactional id|state|started|open since|timeout ms|producer id|epoch|partitions"
    ids = grid(
        text.counted(len(rows), "transactional id"), columns, rows, "timeout ms|producer id|epoch"
    )
    found = [
        row(
            f"{each.topic}-{each.partition}-{each.producer_id}",
            [
                each.topic,
                each.partition,
                each.first_offset,
                each.producer_id,
                each.producer_epoch,
                each.transactional_id or "none: hanging",
            ],
        )
        for each in log.open_transactions()
    ]
    columns = "topic|partition|first offset|producer id|epoch|transactional id"
    title = "open in partitions: readers of committed records wait at the first offset"
    return [ids, grid(title, columns, found, "partition|first offset|producer id|epoch")]


# ---- replicas ------------------------------------------------------------------------------------


def replicas(log: Log, *, internal: bool) -> list[Grid]:
    """Directories, partitions with their replicas, warnings and decisions.

    Partitions of internal topics are hidden without `internal`, except those without a leader or a
    full ISR.
    """
    found = log.replicas()
    shown = [
        each
        for each in found.partitions
        if internal or not each.internal or each.under_replicated or each.offline
    ]
    directories = grid(
        _directories_of(len(found.directories)),
        "node|state|leads|holds|rack|since|path|reason",
        [
            row(
                each.node,
                [
                    each.node,
                    each.state,
                    each.leads,
                    each.holds,
                    each.rack,
                    text.time(each.since_ms),
                    each.path,
                    each.reason,
                ],
            )
            for each in found.directories
        ],
        "node|leads|holds",
    )
    rows = [
        row(
            f"{each.topic}-{each.partition}-{copy.node}",
            [
                each.topic,
                each.partition,
                each.state.removesuffix("Partition"),
                _nodes(each.isr),
                copy.node,
                copy.state,
                "leader" if copy.leads else "in sync" if copy.in_sync else "out of sync",
                copy.log_end,
                copy.high_watermark,
                copy.lag,
                None if copy.lag_bytes is None else text.size(copy.lag_bytes),
            ],
        )
        for each in shown
        for copy in each.copies
    ]
    columns = "topic|partition|state|ISR|node|replica|role|end|high watermark|lag|lag bytes"
    right = "partition|node|end|high watermark|lag|lag bytes"
    title = text.counted(len(shown), "partition") + _hidden(
        len(found.partitions) - len(shown), "internal partition"
    )
    copies = grid(title, columns, rows, right)
    events = [
        row(f"warning {number}", ["warning", None, each])
        for number, each in enumerate(found.warnings)
    ]
    events += [
        row(
            f"decision {each.offset}",
            ["decision", text.time(each.timestamp_ms), "; ".join(each.changes)],
        )
        for each in reversed(found.decisions)
    ]
    return [directories, copies, grid("warnings and decisions", "kind|time|text", events)]


def _hidden(count: int, noun: str) -> str:
    """What a title says about rows of internal topics that are not shown."""
    return f" · i shows {text.counted(count, noun)}" if count else ""


def _directories_of(number: int) -> str:
    """The title of directories."""
    return "1 directory" if number == 1 else f"{number} directories"


def _nodes(nodes: tuple[int, ...]) -> str:
    return ",".join(map(str, nodes)) or text.NONE


# ---- settings and processes ----------------------------------------------------------------------


def settings(log: Log, *, own_only: bool) -> list[Grid]:
    """The effective settings of each topic, and where they come from."""
    rows = []
    found, problems = _topics(log, internal=False)
    for each in found:
        effective = (
            dict(each.config) if own_only else log.config.topic_config(dict(each.config)).as_kafka()
        )
        for name, value in sorted(effective.items()):
            origin = "topic" if name in each.config else "default"
            rows.append(row(f"{each.name} {name}", [each.name, name, value, origin]))
    title = "settings of topics" if own_only else "effective settings of topics"
    return [_with_problems(title, "topic|setting|value|origin", rows, "", problems)]


def processes(
    places: list[str], list_processes: Callable[..., list[embedlog.ProcessDescription]]
) -> list[Grid]:
    """The processes that have the directories open, one row for each lock and wait."""
    base = os.path.realpath(places[0]) if len(places) == 1 else ""
    rows: list[Row] = []
    for each in list_processes(places):
        parts: list[tuple[str | None, str | None, str | None]] = [
            *(
                ("holds" if lock.kind == "exclusive" else "shares", lock.purpose, lock.path)
                for lock in each.locks
            ),
            *(("waits for", wait.purpose, wait.path) for wait in each.waits or ()),
        ]
        for state, purpose, path in parts or [(None, None, None)]:
            shown = os.path.relpath(path, base) if path and base else path
            cells = [
                each.pid,
                each.user,
                each.mode,
                state,
                purpose,
                shown,
                each.command or "not visible",
            ]
            rows.append(row(f"{len(rows)} {each.pid}", cells))
    return [
        grid(
            "processes that have the directory open",
            "pid|user|mode|state|purpose|file|command",
            rows,
            "pid",
        )
    ]
