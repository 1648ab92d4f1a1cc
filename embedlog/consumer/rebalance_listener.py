"""What a rebalance takes from a member and gives to it, and who is told of it: the listener's side of a group, as pure rules.

LISTENER-1  eager: everything is given up before every join of a member that has a generation, and listeners hear of it even if it
    is nothing; cooperative: only partitions of topics that are subscribed no more, then what the assignment takes away
LISTENER-2  `on_assigned` comes at the end of every rebalance, with what is new; `on_lost` instead of `on_revoked` once others may
    own it
LISTENER-3  a listener that leaves the group is not called for it: it knows
LISTENER-4  a listener that raises stops nothing: the others are called, the assignment stands, and the first error is raised
    behind it
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from embedlog import _callbacks
from embedlog.errors import ListenerError, WakeupError
from embedlog.types import TopicPartition

logger = logging.getLogger("embedlog.consumer")

Listener = Callable[[list[TopicPartition]], object]
Partitions = Collection[TopicPartition]


def given_up(owned: Partitions, cooperative: bool, is_subscribed: Callable[[str], bool]) -> list[TopicPartition] | None:
    """What a member gives up before it joins again; None if nobody has to hear of it."""
    if not cooperative:
        return sorted(owned)
    return sorted(tp for tp in owned if not is_subscribed(tp.topic)) or None


class Change(NamedTuple):
    """What an assignment means for a member."""

    revoked: list[TopicPartition]
    added: list[TopicPartition]

    @property
    def again(self) -> bool:
        """Whether to join once more: what was given up can be assigned to others now."""
        return bool(self.revoked)


def change(owned: Partitions, assigned: Iterable[TopicPartition], cooperative: bool) -> Change:
    """From what a member owns to what it is assigned."""
    wanted, held = set(assigned), set(owned)
    return Change(sorted(held - wanted), sorted(wanted - held)) if cooperative else Change([], sorted(wanted))


class Listeners:
    """The three callables of `subscribe`, and the first error of theirs that was not raised yet. Threads: the consumer's own."""

    def __init__(self) -> None:
        self._assigned: Listener | None = None
        self._revoked: Listener | None = None
        self._lost: Listener | None = None
        self._error: BaseException | None = None
        self._calling = False

    def listen(self, assigned: Listener | None, revoked: Listener | None, lost: Listener | None) -> None:
        """Who is told from now on. Raises TypeError for what cannot be called."""
        for name, given in (("on_assigned", assigned), ("on_revoked", revoked), ("on_lost", lost)):
            if given is not None and not callable(given):
                raise TypeError(f"{name}: a callable of a list of partitions, not {given!r}")
        self._assigned, self._revoked, self._lost = assigned, revoked, lost

    def assigned(self, tps: list[TopicPartition]) -> None:
        self._call("on_assigned", self._assigned, tps)

    def revoked(self, tps: list[TopicPartition]) -> None:
        self._call("on_revoked", self._revoked, tps)

    def lost(self, tps: list[TopicPartition]) -> None:
        """Without a listener of its own, this is `on_revoked`."""
        if self._lost is not None:
            self._call("on_lost", self._lost, tps)
        else:
            self._call("on_revoked", self._revoked, tps)

    def _call(self, name: str, listener: Listener | None, tps: list[TopicPartition]) -> None:
        if listener is None or self._calling:
            return
        self._calling = True
        try:
            listener(list(tps))
        except BaseException as problem:  # whatever a user's listener raises: the assignment stands (LISTENER-4)
            if _callbacks.interrupts(problem):
                raise
            if self._error is not None:
                logger.exception("%s failed behind another listener", name)
            elif isinstance(problem, WakeupError):
                self._error = problem
            else:
                self._error = ListenerError(f"{name} failed: {problem!r}")
                self._error.__cause__ = problem
        finally:
            self._calling = False

    def raise_first(self) -> None:
        """Raises what a listener raised, once: ListenerError with its exception as the cause, or the WakeupError that it met."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error


__all__ = ["Change", "Listener", "Listeners", "change", "given_up"]
