"""Rules for the listeners of a rebalance: the partitions that a member revokes and gets, and the
callbacks for them.

- Eager: all partitions are revoked before every join of a member that has a generation, and
  listeners are called even for an empty list. Cooperative: only partitions of unsubscribed topics,
  then those that the assignment takes away.
- `on_assigned` is called at the end of every rebalance, with the new partitions; `on_lost` instead
  of `on_revoked` if other members may own them already.
- A listener that leaves the group is not called again for that.
- An exception of a listener stops nothing: the others are called, the assignment is valid, and the
  first exception is raised afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from embedlog.errors import ListenerError, WakeupError
from embedlog.hooks.callbacks import is_interrupt
from embedlog.types import TopicPartition

logger = logging.getLogger("embedlog.consumer")

Listener = Callable[[list[TopicPartition]], object]
Partitions = Collection[TopicPartition]
Callables = tuple[
    Listener | None, Listener | None, Listener | None
]  # on_assigned, on_revoked, on_lost

_METHODS = ("on_partitions_assigned", "on_partitions_revoked", "on_partitions_lost")


def listeners_of(listener: object, callables: Callables) -> Callables:
    """The callables of `subscribe`, or the methods of its listener object. Raises TypeError for
    both, and for another object.
    """
    if listener is None:
        return callables
    if any(callback is not None for callback in callables):
        raise TypeError(
            "listener= has the methods, so on_assigned=, on_revoked= and on_lost= are not given "
            "with it"
        )
    if isinstance(listener, type):
        raise TypeError(f"listener: an instance of {listener.__name__} is expected, not the class")
    methods: list[Listener | None] = [getattr(listener, name, None) for name in _METHODS]
    if not any(methods):
        raise TypeError(
            f"listener: an object with methods such as on_partitions_assigned, not {listener!r:.100}"
        )
    return methods[0], methods[1], methods[2]


def find_revoked(
    owned: Partitions, cooperative: bool, is_subscribed: Callable[[str], bool]
) -> list[TopicPartition] | None:
    """The partitions that a member revokes before it joins again; None if no listener must be
    called.
    """
    if not cooperative:
        return sorted(owned)
    return sorted(tp for tp in owned if not is_subscribed(tp.topic)) or None


class Change(NamedTuple):
    """The consequences of an assignment for a member."""

    revoked: list[TopicPartition]
    added: list[TopicPartition]

    @property
    def needs_rejoin(self) -> bool:
        """Whether to join once more, so that revoked partitions can be assigned to other
        members.
        """
        return bool(self.revoked)


def compute_change(
    owned: Partitions, assigned: Iterable[TopicPartition], cooperative: bool
) -> Change:
    """The change from the owned to the assigned partitions."""
    if not cooperative:
        return Change([], sorted(set(assigned)))
    before = set(owned)
    after = set(assigned)
    return Change(sorted(before - after), sorted(after - before))


class Listeners:
    """The three callables of `subscribe`, and their first unraised exception. Threads: the
    consumer's own.
    """

    def __init__(self) -> None:
        self._assigned: Listener | None = None
        self._revoked: Listener | None = None
        self._lost: Listener | None = None
        self._error: BaseException | None = None
        self._calling = False

    def listen(
        self, assigned: Listener | None, revoked: Listener | None, lost: Listener | None
    ) -> None:
        """Set the callables. Raises TypeError for an object that is not callable."""
        callbacks: list[tuple[str, object]] = [
            ("on_assigned", assigned),
            ("on_revoked", revoked),
            ("on_lost", lost),
        ]
        for name, callback in callbacks:
            if callback is not None and not callable(callback):
                hint = ""
                if any(hasattr(callback, method) for method in _METHODS):
                    hint = "; listener= takes such an object"
                raise TypeError(
                    f"{name}: a callable of a list of partitions, not {callback!r:.100}{hint}"
                )
        self._assigned = assigned
        self._revoked = revoked
        self._lost = lost

    def call_assigned(self, tps: list[TopicPartition]) -> None:
        self._call("on_assigned", self._assigned, tps)

    def call_revoked(self, tps: list[TopicPartition]) -> None:
        self._call("on_revoked", self._revoked, tps)

    def call_lost(self, tps: list[TopicPartition]) -> None:
        """Calls `on_lost`, or `on_revoked` if there is no `on_lost`."""
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
        except BaseException as problem:
            # a listener may raise anything; the assignment is valid
            if is_interrupt(problem):
                raise
            if self._error is not None:
                logger.exception("%s failed after another listener", name)
            elif isinstance(problem, WakeupError):
                self._error = problem
            else:
                self._error = ListenerError(f"{name} failed: {problem!r}")
                self._error.__cause__ = problem
        finally:
            self._calling = False

    def raise_first(self) -> None:
        """Raise a listener's exception, once: ListenerError with it as the cause, or the
        WakeupError that it received.
        """
        if self._error is not None:
            error = self._error
            self._error = None
            raise error


__all__ = ["Change", "Listener", "Listeners", "compute_change", "find_revoked", "listeners_of"]
