"""Errors as Spark shows them: to somebody who wrote a query, and who reads the last line of what Java prints.

SPARKERROR-1  an error of this package leaves with its own sentence: the frames below the one that Spark called say nothing about
    the query
SPARKERROR-2  what is no error of this package keeps its frames: it is a defect, and they say where
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import embedlog

P = ParamSpec("P")
T = TypeVar("T")


def without_internal_frames(function: Callable[P, T]) -> Callable[P, T]:
    """For a function, or a generator, that Spark calls."""
    if inspect.isgeneratorfunction(function):
        return _generator(function)  # type: ignore[return-value]

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except embedlog.EmbedlogError as problem:
            raise problem.with_traceback(None) from None

    return called


def _generator(function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @functools.wraps(function)
    def generated(*args: Any, **kwargs: Any) -> Iterator[Any]:
        try:
            yield from function(*args, **kwargs)
        except embedlog.EmbedlogError as problem:
            raise problem.with_traceback(None) from None

    return generated
