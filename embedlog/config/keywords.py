"""Checks the arguments of calls: an unknown keyword raises the same error as an unknown option, and
too many arguments by position an error with the signature.

- The check comes before any effect, and adds a tenth of a microsecond to a call.
- `send` is called for each record, and a check would cost 7 % of it. Its signature is part of its
  name instead, so Python's own message has it.

Arguments by position are counted only after Python has refused a call. An import inside of a call
that fails, for want of a descriptor, is a StorageError, as is any other file that cannot be opened.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import Any, TypeVar, cast

from embedlog.config.options import nearest
from embedlog.config.other_clients import with_hints
from embedlog.errors import StorageError, UnknownOptionError

Class = TypeVar("Class", bound=type)
Call = TypeVar("Call", bound=Callable[..., Any])

# Flags of code: inspect.CO_VARARGS, CO_VARKEYWORDS and CO_COROUTINE.
TAKES_POSITIONS = 0x04
TAKES_KEYWORDS = 0x08
IS_COROUTINE = 0x80
IMPORT_FILE = "<frozen importlib._bootstrap_external>"
HOT = ("send", "poll")  # `poll` checks its keywords itself
IN_SECONDS = "the time to wait is timeout=, in seconds"
NO_TIMEOUT = (
    "the call has no timeout of its own; the longest wait is an option such as "
    "default_api_timeout_ms, or lock_timeout_ms"
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
    "Faults.times": "the fault lasts until heal(), or until the end of its block",
}


def unknown_keyword(call: str, wrong: str, parameters: tuple[str, ...]) -> UnknownOptionError:
    """The error for an unknown keyword of a call."""
    near = nearest(wrong, parameters)
    if wrong == "timestamps":
        hint = (
            "times= is a mapping of TopicPartition to milliseconds"
            if "times" in parameters
            else "timestamps_ms is one int, or one per row"
        )
    elif (hint := HINTS.get(f"{call.partition('.')[0]}.{wrong}", "")) != "":
        pass
    elif HINTS.get(wrong) == IN_SECONDS and "timeout" not in parameters:
        hint = NO_TIMEOUT
    else:
        hint = HINTS.get(wrong) or (
            f"did you mean {near[0]}?" if near else f"it takes {', '.join(parameters) or 'none'}"
        )
    return UnknownOptionError(f"{call} has no argument {wrong}; {hint}")


def is_of_import(problem: OSError) -> bool:
    """Whether an import raised it: without a free descriptor, a call that imports its modules late
    fails there.
    """
    step = problem.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    return step is not None and step.tb_frame.f_code.co_filename == IMPORT_FILE


def checked(cls: Class) -> Class:
    """The class with public methods that raise UnknownOptionError, with the nearest name, for
    unknown keywords.
    """
    for name, verb in list(vars(cls).items()):
        if isinstance(verb, FunctionType) and not name.startswith("_"):
            if name not in HOT:
                setattr(cls, name, _check_calls(verb, _parameters(verb)[1:], 1))
            else:  # called for each record: the signature is part of its name instead
                verb.__qualname__ += f"({', '.join(_parameters(verb)[1:])}): {name}"
    return with_hints(cls)


def checked_call(call: Call) -> Call:
    """As `checked`, for a function of a module."""
    return cast("Call", _check_calls(call, _parameters(call), 0))


def part_of(name: str) -> Callable[[Class], Class]:
    """As `checked`, for a base class of the public class with this name: errors name that one."""

    def renamed(cls: Class) -> Class:
        for verb in vars(cls).values():
            if isinstance(verb, FunctionType):
                verb.__qualname__ = f"{name}.{verb.__name__}"
        return checked(cls)

    return renamed


def _parameters(verb: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the parameters that may be keywords; inspect.signature takes milliseconds for
    all verbs.
    """
    code = _code(verb)
    return code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]


def _code(verb: Callable[..., Any]) -> CodeType:
    return _innermost(verb).__code__


def _innermost(verb: Callable[..., Any]) -> FunctionType:
    """The function below decorators."""
    while (inner := getattr(verb, "__wrapped__", None)) is not None:
        verb = inner
    return cast("FunctionType", verb)


def _signature(verb: Callable[..., Any], first: int) -> str:
    """The parameters with their types, as in the source; those before `first` are not the
    caller's.
    """
    types = _innermost(verb).__annotations__
    code = _code(verb)
    shown = [
        f"{name}: {types[name]}"
        for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if name in types
    ]
    if code.co_kwonlyargcount:
        shown.insert(code.co_argcount - first, "*")
    if code.co_flags & TAKES_KEYWORDS:
        shown.append("**settings")
    return f"{verb.__qualname__}({', '.join(shown)})"


def _check_calls(
    verb: Callable[..., Any], parameters: tuple[str, ...], first: int
) -> Callable[..., Any]:
    code = _code(verb)
    checks_keywords = not code.co_flags & TAKES_KEYWORDS
    limit = sys.maxsize if code.co_flags & TAKES_POSITIONS else code.co_argcount

    @functools.wraps(verb)
    def call(*arguments: Any, **keywords: Any) -> Any:
        __tracebackhide__ = True  # pytest shows the caller of a failed assertion
        if checks_keywords:
            for name in keywords:
                if name not in parameters:
                    raise unknown_keyword(f"{verb.__qualname__}()", name, parameters)
        try:
            return verb(*arguments, **keywords)
        except OSError as problem:
            if not is_of_import(problem):
                raise
            raise StorageError(
                "a module cannot be imported", errno=problem.errno, path=problem.filename
            ) from problem
        except TypeError:
            if len(arguments) <= limit:
                raise
            counts = f"expected at most {limit - first}, found {len(arguments) - first}"
            raise TypeError(f"arguments by position: {counts}: {_signature(verb, first)}") from None

    if sys.version_info >= (3, 12) and _code(verb).co_flags & IS_COROUTINE:
        from inspect import markcoroutinefunction  # late: few programs need its imports

        markcoroutinefunction(call)
    return call
