"""Reads the values of options: settings, partitions, topic patterns and times; names of topics and
groups are completed.

A value that cannot be read is a usage error that names the option and the expected form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

import embedlog
from embedlog.tools.cli.invocation import Function, Invocation

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def parse_settings(texts: Iterable[str], option: str) -> dict[str, str]:
    """Settings in the form key=value; the last one of a key counts."""
    return dict(parse_pairs(texts, option))


def parse_pairs(texts: Iterable[str], option: str) -> list[tuple[str, str]]:
    """Keys and values in the form key=value, in their order."""
    pairs = [text.partition("=") for text in texts]
    for key, sign, _ in pairs:
        if not key or not sign:
            raise click.UsageError(f"{option}: expected key=value, found {key!r}")
    return [(key.strip(), value) for key, _, value in pairs]


def parse_numbers(text: str, option: str) -> list[int]:
    """Partitions in the form 0,1,2."""
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise click.UsageError(
            f"{option}: expected numbers of partitions such as 0,1, found {text!r}"
        ) from None


def select_matching(
    names: Iterable[str], pattern: str | None, option: str = "--topic"
) -> list[str]:
    """The names that a regular expression matches as a whole; all without one."""
    if pattern is None:
        return list(names)
    try:
        expression = re.compile(pattern)
    except re.error as problem:
        raise click.UsageError(f"{option}: not a regular expression: {problem}") from None
    return [name for name in names if expression.fullmatch(name)]


# eight digits that are a date of ISO 8601 without signs
_DATE_OR_MILLISECONDS = re.compile(r"(19|20)[0-9]{2}(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])")


def parse_time_ms(text: str, option: str) -> int:
    """A time: milliseconds since 1970, or an ISO 8601 date and time, in UTC without a zone, as in
    Kafka.
    """
    if _DATE_OR_MILLISECONDS.fullmatch(text):
        date = f"{text[:4]}-{text[4:6]}-{text[6:]}"
        raise click.UsageError(
            f"{option}: {text} is a date or milliseconds since 1970: write {date} or 0{text}"
        )
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        raise click.UsageError(
            f"{option}: expected milliseconds or a date such as 2026-01-31T12:00, found {text!r}"
        ) from None


# ---- completion ----------------------------------------------------------------------------------


def completion_of(
    list_names: Callable[[embedlog.Log, str], Iterable[str]],
) -> Callable[..., list[CompletionItem]]:
    """Completes an option with names from the directory that the command line names."""

    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        invocation = context.find_object(Invocation)
        options = invocation if invocation is not None else Invocation()
        directories = options.named_directories()
        if not directories:
            return []
        from click.shell_completion import CompletionItem  # for a completion only

        path = directories[0] if len(directories) == 1 else directories
        try:
            with embedlog.open(path, read_only=True) as log:
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


def complete_words(*texts: str) -> Callable[..., list[CompletionItem]]:
    """Completes an option with these texts; of a list such as a,b its last part."""

    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem  # for a completion only

        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(before + comma + text) for text in texts if text.startswith(last)]

    return complete


def _names_of_topic_settings(sign: str) -> Callable[[embedlog.Log, str], Iterable[str]]:
    """The names of the settings of a topic; `sign` follows each."""

    def list_names(log: embedlog.Log, incomplete: str) -> list[str]:
        before, comma, _ = incomplete.rpartition(",")
        return [f"{before}{comma}{name}{sign}" for name in log.config.topic_config({}).as_kafka()]

    return list_names


# the forms of `positions`: "@", "s@" and "e@" are followed by a time
POSITIONS = ("beginning", "end", "stored", "@", "s@", "e@")

complete_topic_names = completion_of(_topic_names)
complete_partition_names = completion_of(_partition_names)
complete_topic_settings = completion_of(_names_of_topic_settings("="))
complete_topic_setting_names = completion_of(_names_of_topic_settings(""))
complete_group_ids = completion_of(lambda log, incomplete: log.groups())


def action_options(texts: Mapping[str, str]) -> Callable[[Function], Function]:
    """An option for each action of a verb, with its help. The last one given is `action`."""

    def decorate(function: Function) -> Function:
        for name, text in reversed(list(texts.items())):
            add_option = click.option(f"--{name}", "action", flag_value=name, help=text or None)
            function = add_option(function)
        return function

    return decorate


def topic_option(**facts: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option `--topic`, completed from the directory."""
    return click.option(
        "-t", "--topic", shell_complete=complete_topic_names, metavar="TOPIC", **facts
    )
