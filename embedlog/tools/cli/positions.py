"""Reads start positions: kcat's `-o` and Kafka's `--offset`.

The forms are: beginning, end, stored, an offset, -n before the end, @time; s@time and e@time are a
start and an end. A position outside of the log is moved to its nearer end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from embedlog import Consumer, OffsetAndMetadata, TopicPartition
from embedlog.tools.cli.arguments import parse_time_ms


@dataclass(frozen=True)
class Span:
    """The first offset of each partition, and the end offset of those that have one.

    `requested`: the first offset that was asked for, which may be outside of the log, with its
    start and its end.
    """

    starts: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]
    requested: dict[TopicPartition, tuple[int, int, int]]


def find_span(
    consumer: Consumer[Any, Any],
    tps: list[TopicPartition],
    positions: Iterable[str],
    default: str,
    option: str = "-o",
    stored: Mapping[TopicPartition, OffsetAndMetadata] | None = None,
) -> Span:
    """The offsets that the positions name; `stored` are a group's committed ones. Raises UsageError
    for an unknown form.
    """
    begins = consumer.beginning_offsets(tps)
    limits = consumer.end_offsets(tps)
    starts = None
    ends = {}
    for text in positions:
        if text.startswith("e@"):
            ends = _find_offsets_by_time(consumer, tps, limits, text[2:], option)
        elif text == "stored":
            starts = dict(_find_starts(consumer, tps, begins, limits, default, option))
            for tp, committed in (stored or {}).items():
                if tp in starts:
                    starts[tp] = committed.offset
        else:
            starts = _find_starts(consumer, tps, begins, limits, text, option)
    if starts is None:
        starts = _find_starts(consumer, tps, begins, limits, default, option)
    requested = {tp: (starts[tp], begins[tp], limits[tp]) for tp in tps}
    return Span({tp: min(max(starts[tp], begins[tp]), limits[tp]) for tp in tps}, ends, requested)


def _find_starts(
    consumer: Consumer[Any, Any],
    tps: list[TopicPartition],
    begins: dict[TopicPartition, int],
    limits: dict[TopicPartition, int],
    text: str,
    option: str,
) -> dict[TopicPartition, int]:
    if text in ("beginning", "earliest"):
        return begins
    if text in ("end", "latest"):
        return limits
    if "@" in text:
        mark, _, time = text.partition("@")
        if mark in ("", "s"):
            return _find_offsets_by_time(consumer, tps, limits, time, option)
    elif re.fullmatch(r"-?[0-9]{1,18}", text):
        number = int(text)
        return {tp: limits[tp] + number if text.startswith("-") else number for tp in tps}
    expected = "beginning, end, stored, an offset, -n, @time, s@time or e@time"
    is_date = re.match(r"[0-9]{4}-[0-9]{2}", text) is not None
    hint = f"; a time begins with @: {option} @{text}" if is_date else ""
    raise click.UsageError(f"{option}: expected {expected}, found {text!r}{hint}")


def _find_offsets_by_time(
    consumer: Consumer[Any, Any],
    tps: list[TopicPartition],
    limits: dict[TopicPartition, int],
    text: str,
    option: str,
) -> dict[TopicPartition, int]:
    time = parse_time_ms(text, option)
    answers = consumer.offsets_for_times(dict.fromkeys(tps, time))
    offsets = {}
    for tp in tps:
        answer = answers[tp]
        offsets[tp] = limits[tp] if answer is None else answer.offset
    return offsets
