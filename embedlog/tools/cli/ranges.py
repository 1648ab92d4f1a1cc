"""Contains the options that select topics, partitions, offsets and times, and the scans that they
name.

Starts are inclusive, ends exclusive; times filter record by record. A topic without one of the
given partitions is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from embedlog import IsolationLevel, Log, Scan
from embedlog.tools.cli.arguments import complete_topic_names, parse_numbers, parse_time_ms
from embedlog.tools.cli.internal_topics import find_matching_topics


@dataclass(frozen=True)
class Range:
    """A part of each topic. It can be pickled."""

    partitions: tuple[int, ...] | None
    start_offset: int | None
    end_offset: int | None
    start_ms: int | None
    end_ms: int | None
    isolation_level: IsolationLevel

    def scan(self, log: Log, topic: str) -> Scan:
        """The scan of this part of a topic. Raises as `Log.scan`."""
        return log.scan(
            topic,
            partitions=self.partitions,
            start_offset=self.start_offset,
            end_offset=self.end_offset,
            start_time=self.start_ms,
            end_time=self.end_ms,
            isolation_level=self.isolation_level,
        )


def range_options(
    isolation_level: IsolationLevel,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options of `topics_of` and `range_of`, with the default of the isolation level."""
    options = (
        click.option(
            "-t",
            "--topic",
            "topic",
            multiple=True,
            shell_complete=complete_topic_names,
            metavar="TOPIC",
            help="A topic.",
        ),
        click.option("--include", metavar="REGEX", help="All topics that match."),
        click.option(
            "-p", "--partition", "partitions", metavar="N,…", help="Only these partitions."
        ),
        click.option("--start-offset", type=click.IntRange(min=0), help="The first offset."),
        click.option("--end-offset", type=click.IntRange(min=0), help="The offset after the last."),
        click.option(
            "--start-time",
            metavar="TIME",
            help="The first time: milliseconds, or an ISO 8601 date.",
        ),
        click.option("--end-time", metavar="TIME", help="The time after the last."),
        click.option(
            "--isolation-level",
            type=click.Choice(["read_uncommitted", "read_committed"]),
            default=isolation_level,
            help=f"{isolation_level} is the default.",
        ),
    )

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def range_of(options: dict[str, Any]) -> Range:
    """The range that the options name. Raises UsageError."""
    partitions = None
    if options["partitions"] is not None:
        partitions = tuple(parse_numbers(options["partitions"], "--partition"))
    start_ms = None
    if options["start_time"] is not None:
        start_ms = parse_time_ms(options["start_time"], "--start-time")
    end_ms = None
    if options["end_time"] is not None:
        end_ms = parse_time_ms(options["end_time"], "--end-time")
    return Range(
        partitions=partitions,
        start_offset=options["start_offset"],
        end_offset=options["end_offset"],
        start_ms=start_ms,
        end_ms=end_ms,
        isolation_level=options["isolation_level"],
    )


def topics_of(log: Log, options: dict[str, Any]) -> list[str]:
    """The named topics, or those that match; all without both. Raises UnknownTopicOrPartitionError
    if none matches.
    """
    named = [*options.get("topics", ()), *options["topic"]]
    if named and options["include"] is not None:
        raise click.UsageError("give topics, or --include with a regular expression")
    return list(dict.fromkeys(named)) or find_matching_topics(log, options["include"], "--include")
