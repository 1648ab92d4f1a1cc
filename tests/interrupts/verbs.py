"""Contains the table of the public verbs: how each is used before, during and after an
interrupt.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.interrupts.runner import Use, Verb
from tests.interrupts.world import World

VERBS: list[Verb] = []


def verb(
    *covers: str, fresh: bool = False, topics: bool = False, stride: int = 1
) -> Callable[[Callable[[World], Use]], Callable[[World], Use]]:
    """Enter a function that makes a use into the table."""

    def enter(make: Callable[[World], Use]) -> Callable[[World], Use]:
        VERBS.append(Verb(make.__name__.rstrip("_"), covers, make, fresh, topics, stride))
        return make

    return enter
