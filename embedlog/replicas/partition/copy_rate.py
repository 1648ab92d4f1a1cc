"""This module limits the bytes per second of copies out of a directory and into it, for all
processes together.

A word of the directory's control page has the time from which the next chunk may be copied. A chunk
moves it by its size, divided by the rate: all processes share one rate. Time without copies counts
for the last seconds only. A chunk is reserved before its copy, under the directory lock, and paid
after it. A process that is killed in between leaves a reservation that ends by itself.

A throttle concerns replicas outside the ISR: copies to its members keep records committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from embedlog._native import system
from embedlog.errors import LockTimeoutError

if TYPE_CHECKING:
    from embedlog.engine.log_directory import LogDirectory

SECOND_NS: Final = 1_000_000_000
CREDIT_NS: Final = 3 * SECOND_NS  # longer than the pause between two rounds of a housekeeper
RESERVED_NS: Final = SECOND_NS
CHUNK_MAX_BYTES: Final = 8 << 20  # more than a chunk has
# words of the directory's control page
COPIES_OUT = 17
COPIES_IN = 18


class CopyRate:
    """The copies out of one directory, or into it. Threads: any."""

    def __init__(self, directory: LogDirectory, word: int) -> None:
        self._directory = directory
        self._word = word

    def claim(self, rate: int) -> int | None:
        """Reserve the next chunk: the reservation in nanoseconds, None if it is too early, or if
        the directory is locked.
        """
        if self._next_ns(rate) > clock_ns():
            return None
        try:
            with self._directory.topic_changes.directory_lock():
                now_ns = clock_ns()
                next_ns = max(self._next_ns(rate), now_ns - CREDIT_NS)
                if next_ns > now_ns:
                    return None
                page = self._directory.context.directory_page
                if page is not None:
                    page.set(self._word, now_ns + RESERVED_NS)
                return now_ns + RESERVED_NS - next_ns
        except LockTimeoutError:
            # a change of topics takes long: that is no failure of the directory
            return None

    def pay(self, rate: int, size: int, reserved_ns: int) -> None:
        """Replace the reservation of a chunk by its size."""
        page = self._directory.context.directory_page
        if page is not None:
            page.add(self._word, size * SECOND_NS // rate - reserved_ns)

    def _next_ns(self, rate: int) -> int:
        """The time from which the next chunk may be copied; 0 if there is none.

        A time that no chunk at this rate could have caused is of another boot or of a lower rate.
        It does not count.
        """
        page = self._directory.context.directory_page
        if page is None:
            return 0
        next_ns = page.word(self._word)
        latest_ns = clock_ns() + CHUNK_MAX_BYTES * SECOND_NS // rate + RESERVED_NS
        return next_ns if next_ns <= latest_ns else 0


class RateLimit(NamedTuple):
    """A rate of a directory that applies to a copy."""

    copies: CopyRate
    rate: int  # bytes per second


class Throttle:
    """The limits of the copies to one replica. Threads: one at a time."""

    def __init__(self, limits: Sequence[RateLimit]) -> None:
        self._limits = limits
        self._claimed: list[tuple[RateLimit, int]] = []

    def claim(self) -> bool:
        """Whether the next chunk may be copied now: then `pay` follows."""
        for limit in self._limits:
            reserved_ns = limit.copies.claim(limit.rate)
            if reserved_ns is None:
                self.pay(0)
                return False
            self._claimed.append((limit, reserved_ns))
        return True

    def pay(self, size: int) -> None:
        """Count a copied chunk."""
        for limit, reserved_ns in self._claimed:
            limit.copies.pay(limit.rate, size, reserved_ns)
        self._claimed.clear()


def is_throttled(replicas: str, partition: int, node: int) -> bool:
    """Whether a value of `leader|follower.replication.throttled.replicas` names a replica: `*`, or
    `partition:node,…`.
    """
    return replicas == "*" or f"{partition}:{node}" in replicas.split(",")


def clock_ns() -> int:
    """The boot clock, which all processes share."""
    return system.boot_ns()
