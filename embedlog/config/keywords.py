"""Checks the keywords of calls without options: an unknown one raises the same error as an unknown option.

KEYWORD-1  the check comes before any effect, and adds a tenth of a microsecond to a call
KEYWORD-2  `send` is not checked, because it is called for each record: Python's message must suffice
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, TypeVar

from embedlog.config.options import nearest
from embedlog.config.other_clients import with_hints
from embedlog.errors import UnknownOptionError

Class = TypeVar("Class", bound=type)

HOT = ("send", "poll")  # `poll` checks its keywords itself
IN_SECONDS = "the time to wait is timeout=, in seconds"
NO_TIMEOUT = (
    "the call has no timeout of its own; the longest wait is an option such as default_api_timeout_ms, or lock_timeout_ms"
)
HINTS: Mapping[str, str] = {  # names in other clients → the hint for them
    "timeout_ms": IN_SECONDS,
    "timeout_s": IN_SECONDS,
    "on_assign": "on_assigned= is a callable of a list of partitions",
    "on_revoke": "on_revoked= is a callable of a list of partitions",
    "update_offsets": "each poll moves the positions, and seek() sets them",
    "asynchronous": "commit() waits, and commit_async() does not",
    "message": "offsets={TopicPartition(topic, partition): record.offset + 1}",
    "num_messages": "the number is max_records= of poll()",
    "metadata": "the result contains it: {partition: OffsetAndMetadata}",
    "new_topics": "topics= is a list of names or of embedlog.NewTopic",
    "validate_only": "the call changes the log; there is no trial",
    "group_coordinator_id": "there is no coordinator",
    "autocommit": "the option is enable_auto_commit of the consumer",
}


def unknown_keyword(call: str, wrong: str, known: tuple[str, ...]) -> UnknownOptionError:
    """The error for an unknown keyword of a call."""
    near = nearest(wrong, known)
    if wrong == "timestamps":
        hint = (
            "times= is a mapping of TopicPartition to milliseconds"
            if "times" in known
            else "timestamps_ms is one int, or one per row"
        )
    elif HINTS.get(wrong) == IN_SECONDS and "timeout" not in known:
        hint = NO_TIMEOUT
    else:
        hint = HINTS.get(wrong) or (f"did you mean {near[0]}?" if near else f"it takes {', '.join(known) or 'none'}")
    return UnknownOptionError(f"{call} has no argument {wrong}; {hint}")


def checked(cls: Class) -> Class:
    """The class with public methods that raise UnknownOptionError, with the nearest name, for unknown keywords."""
    for name, verb in list(vars(cls).items()):
        if isinstance(verb, FunctionType) and not name.startswith("_") and name not in HOT:
            code = inspect.unwrap(verb).__code__  # inspect.signature takes milliseconds for all verbs
            if not code.co_flags & inspect.CO_VARKEYWORDS:
                named = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
                setattr(cls, name, _checked(verb, named[1:]))
    return with_hints(cls)


def part_of(name: str) -> Callable[[Class], Class]:
    """As `checked`, for a base class of the public class with this name: errors name that one."""

    def renamed(cls: Class) -> Class:
        for verb in vars(cls).values():
            if isinstance(verb, FunctionType):
                verb.__qualname__ = f"{name}.{verb.__name__}"
        return checked(cls)

    return renamed


def _checked(verb: Callable[..., Any], known: tuple[str, ...]) -> Callable[..., Any]:
    @functools.wraps(verb)
    def call(*arguments: Any, **keywords: Any) -> Any:
        for name in keywords:
            if name not in known:
                raise unknown_keyword(f"{verb.__qualname__}()", name, known)
        return verb(*arguments, **keywords)

    if sys.version_info >= (3, 12) and inspect.iscoroutinefunction(verb):
        inspect.markcoroutinefunction(call)
    return call
