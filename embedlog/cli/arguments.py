"""Reads the values of options: settings, partitions, topic patterns and times; names of topics and
groups are completed.

ARGUMENTS-1  a value that cannot be read is a usage error that names the option and the expected
    form
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

import embedlog
from embedlog.cli.invocation import VARIABLE, Function, Invocation

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def settings(given: Iterable[str], option: str) -> dict[str, str]:
    """Settings in the form key=value."""
    pairs = [each.partition("=") for each in given]
    for key, sign, _ in pairs:
        if not key or not sign:
            raise click.UsageError(f"{option}: expected key=value, found {key!r}")
    return {key.strip(): value for key, _, value in pairs}


def numbers(text: str, option: str) -> list[int]:
    """Partitions in the form 0,1,2."""
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise click.UsageError(
            f"{option}: expected numbers of partitions such as 0,1, found {text!r}"
        ) from None


def matching(names: Iterable[str], pattern: str | None, option: str = "--topic") -> list[str]:
    """The names that a regular expression matches as a whole; all without one."""
    if pattern is None:
        return list(names)
    try:
        found = re.compile(pattern)
    except re.error as problem:
        raise click.UsageError(f"{option}: not a regular expression: {problem}") from None
    return [name for name in names if found.fullmatch(name)]


def time_ms(text: str, option: str) -> int:
    """A time: milliseconds since 1970, or an ISO 8601 date and time, in UTC without a zone, as in
    Kafka.
    """
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    try:
        found = datetime.fromisoformat(text)
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found
        return (found - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        raise click.UsageError(
            f"{option}: expected milliseconds or a date such as 2026-01-31T12:00, found {text!r}"
        ) from None


# ---- completion ----------------------------------------------------------------------------------


def completed(
    list_names: Callable[[embedlog.Log, str], Iterable[str]],
) -> Callable[..., list[CompletionItem]]:
    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        invocation = context.find_object(Invocation)
        given = invocation.directories if invocation is not None else ()
        places = list(given or filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)))
        if not places:
            return []
        from click.shell_completion import CompletionItem  # for a completion only

        try:
            with embedlog.open(places[0] if len(places) == 1 else places, read_only=True) as log:
                return [
                    CompletionItem(name)
                    for name in list_names(log, incomplete)
                    if name.startswith(incomplete)
                ]
        except embedlog.EmbedlogError:
            return []  # a completion prints no errors

    return complete


def _topic_names(log: embedlog.Log, incomplete: str) -> list[str]:
    """The names of topics; internal ones once their first character is typed."""
    return log.topics(include_internal=incomplete.startswith("_"))


def _partition_names(log: embedlog.Log, incomplete: str) -> list[str]:
    """Partitions as TOPIC-N; internal ones once their first character is typed."""
    topic = incomplete.rpartition("-")[0]
    names = _topic_names(log, incomplete)
    shown = [topic] if topic in names else names
    return [
        f"{name}-{number}"
        for name in shown
        for number in range(log.describe_topic(name).partition_count)
    ]


def words(*texts: str) -> Callable[..., list[CompletionItem]]:
    """Completes an option with these texts; of a list such as a,b its last part."""

    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem  # for a completion only

        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(before + comma + text) for text in texts if text.startswith(last)]

    return complete


def _settings_of_topics(sign: str) -> Callable[[embedlog.Log, str], Iterable[str]]:
    """The names of the settings of a topic; `sign` follows each."""

    def names(log: embedlog.Log, incomplete: str) -> list[str]:
        before, comma, _ = incomplete.rpartition(",")
        return [f"{before}{comma}{name}{sign}" for name in log.config.topic_config({}).as_kafka()]

    return names


CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
POSITIONS = ("beginning", "end", "stored", "@", "s@", "e@")

topic_names = completed(_topic_names)
partition_names = completed(_partition_names)
topic_settings = completed(_settings_of_topics("="))
topic_setting_names = completed(_settings_of_topics(""))
group_ids = completed(lambda log, incomplete: log.groups())


def actions(texts: Mapping[str, str]) -> Callable[[Function], Function]:
    """An option for each action of a verb, with its help; of which one may be given as `action`."""

    def decorated(function: Function) -> Function:
        for name, text in reversed(list(texts.items())):
            function = click.option(f"--{name}", "action", flag_value=name, help=text or None)(
                function
            )
        return function

    return decorated


def topic_option(**facts: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option `--topic`, completed from the directory."""
    return click.option("-t", "--topic", shell_complete=topic_names, metavar="TOPIC", **facts)
