"""Contains context managers whose end no interrupt can prevent: scopes, guards, claims and
settings.

The interpreter runs signal handlers between the instructions of Python functions, also at the first
instruction of an `__exit__` that is written in Python. A KeyboardInterrupt there leaves the lock of
a `contextlib.contextmanager` in a suspended generator, for as long as somebody keeps the exception.
The ends of the four classes here are one call of C (`objects/scope.c`): if the interrupt prevents even
that call, freeing the object ends it. A `Claim` lets one thread in, and a `Setting` restores an
attribute.

A `scope` is a generator function, as for `contextlib.contextmanager`. Its own instructions can be
interrupted as those of any function. So it holds what others need (a lock, a mutex, an owner field,
a pin) by a `Guard` or by another scope, never by `finally`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import ParamSpec, TypeVar

from embedlog._native._rows import Claim, Guard, Scope, Setting

__all__ = ["Claim", "Guard", "Scope", "Setting", "Stack", "scope", "stack"]

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")


def scope(function: Callable[Parameters, Iterator[Value]]) -> Callable[Parameters, Scope[Value]]:
    """Make a generator function with one `yield` a function that returns a context manager."""

    @functools.wraps(function)
    def make(*args: Parameters.args, **keywords: Parameters.kwargs) -> Scope[Value]:
        return Scope(function(*args, **keywords))

    return make


class Stack:
    """Scopes and guards that are entered one after another, and ended together in reverse order.
    Made by `stack`.
    """

    def __init__(self, ends: ExitStack) -> None:
        self._ends = ends

    def enter(self, manager: AbstractContextManager[Value]) -> Value:
        """Enter a `Scope`, `Guard`, `Claim` or `Setting`, no other manager. Its end is noted before: one
        that is not entered ends without effect.
        """
        self._ends.push(manager)
        return manager.__enter__()

    def take_over(self, other: Stack) -> None:
        """End here what another stack has entered."""
        self._ends.push(other._ends.pop_all())


@scope
def stack() -> Iterator[Stack]:
    """An empty `Stack`, whose members end with the block.

    The end of an `ExitStack` is Python: an interrupt can come in it. Then the guard calls it again, and
    it ends the members that are left. One that it had taken out and not ended is freed, which ends
    it. `told`: the end gets the exception, and may suppress it.
    """
    ends = ExitStack()
    with Guard(ends.__exit__, told=True):
        yield Stack(ends)
