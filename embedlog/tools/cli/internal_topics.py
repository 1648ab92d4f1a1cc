"""Hides internal topics, such as `__consumer_offsets`, unless they are asked for.

A first group makes 50 internal partitions, a first transaction 50 more: they are most of every
list, and seldom what somebody looks for. Every verb that lists topics has the same option, and says
on standard error how much is hidden. Verbs that read or copy topics have no such option: they leave
internal topics out. A topic that is given by its own name is shown, and is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import click

from embedlog import Log, UnknownTopicOrPartitionError
from embedlog.tools.cli.arguments import select_matching
from embedlog.tools.cli.invocation import current
from embedlog.tools.cli.terminal import tell

OPTION = "--include-internal"


def internal_option(*aliases: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option that shows internal topics, as `include_internal`."""
    text = "Also internal topics, such as __consumer_offsets."
    return click.option("-a", OPTION, *aliases, "include_internal", is_flag=True, help=text)


def hidden_topics(log: Log, include_internal: bool) -> frozenset[str]:
    """The internal topics of a log, unless they are asked for."""
    if include_internal:
        return frozenset()
    return frozenset(log.topics(include_internal=True)) - frozenset(log.topics())


def shown_topics(
    log: Log, include_internal: bool, pattern: str | None = None, option: str = "--topic"
) -> list[str]:
    """The topics whose whole name matches a regular expression, all without one. An internal one is
    named, or asked for.
    """
    hidden = hidden_topics(log, include_internal) - {pattern}
    names = select_matching(log.topics(include_internal=True), pattern, option)
    return [name for name in names if name not in hidden]


def find_matching_topics(log: Log, pattern: str | None, option: str) -> list[str]:
    """As `shown_topics`, for a verb that needs a topic. Raises UnknownTopicOrPartitionError for a
    pattern that matches none.
    """
    names = shown_topics(log, include_internal=False, pattern=pattern, option=option)
    if pattern is not None and not names:
        raise no_match_error(log, pattern, option)
    return names


def no_match_error(log: Log, pattern: str, option: str) -> UnknownTopicOrPartitionError:
    """The error for a pattern that matches no topic which is shown."""
    internal = select_matching(log.topics(include_internal=True), pattern, option)
    if internal:
        remedy = f"only internal topics match: give the name of one, such as {internal[0]}"
    else:
        remedy = "the whole name must match; embedlog ls lists the topics"
    return UnknownTopicOrPartitionError(
        f"{option}: no topic matches {pattern!r}: {remedy}", path=log.path
    )


def tell_hidden(hidden: Collection[object], noun: str, size_text: str = "") -> None:
    """Say how many things of internal topics are not shown, with the text of their size; nothing if
    there are none, or if a program reads the JSON.
    """
    if current().json or not hidden:
        return
    if len(hidden) == 1:
        tell(f"embedlog: 1 {noun}{size_text} is hidden: {OPTION} shows it")
    else:
        tell(f"embedlog: {len(hidden)} {noun}s{size_text} are hidden: {OPTION} shows them")
