"""Hides internal topics, such as `__consumer_offsets`, unless they are asked for.

A first group makes 50 internal partitions, a first transaction 50 more: they are most of every list, and seldom what somebody
looks for. Every verb that lists topics has the same option, and says on standard error how much is hidden. A topic that is given
by its own name is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click

from embedlog import Log
from embedlog.cli.arguments import matching
from embedlog.cli.invocation import current
from embedlog.cli.terminal import tell

OPTION = "--include-internal"


def internal_option(*aliases: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option that shows internal topics, as `include_internal`."""
    text = "Also internal topics, such as __consumer_offsets."
    return click.option("-a", OPTION, *aliases, "include_internal", is_flag=True, help=text)


def hidden_topics(log: Log, include_internal: bool) -> frozenset[str]:
    """The internal topics of a log, unless they are asked for."""
    return frozenset() if include_internal else frozenset(log.topics(include_internal=True)) - frozenset(log.topics())


def shown_topics(log: Log, include_internal: bool, pattern: str | None = None, option: str = "--topic") -> list[str]:
    """The topics whose whole name matches a regular expression, all without one. An internal one is named, or asked for."""
    hidden = hidden_topics(log, include_internal) - {pattern}
    return [name for name in matching(log.topics(include_internal=True), pattern, option) if name not in hidden]


def tell_hidden(hidden: Iterable[object], noun: str, more: str = "") -> None:
    """Say how many things of internal topics are not shown; nothing if there are none, or if a program reads the JSON."""
    count = 0 if current().json else len([*hidden])
    if count == 1:
        tell(f"embedlog: 1 {noun}{more} is hidden: {OPTION} shows it")
    elif count:
        tell(f"embedlog: {count} {noun}s{more} are hidden: {OPTION} shows them")
