"""Shortens errors for users of Spark: they see the last line of a Java stack trace.

- An error of embedlog is raised without the frames below the function that Spark called: they do
  not help the user.
- Any other exception keeps its frames: it is a defect, and they show where.
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
    """Decorate a function or generator that Spark calls."""
    if inspect.isgeneratorfunction(function):
        return _generator(function)  # type: ignore[return-value]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except embedlog.EmbedlogError as problem:
            raise problem.with_traceback(None) from None

    return call


def _generator(function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @functools.wraps(function)
    def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:
        try:
            yield from function(*args, **kwargs)
        except embedlog.EmbedlogError as problem:
            raise problem.with_traceback(None) from None

    return generate
