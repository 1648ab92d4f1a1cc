"""This module computes when a follower last had everything that its leader had, as Kafka's
lastCaughtUpTimeMs.

- A look compares the log ends. A follower with the leader's end has caught up now. One with the end
  that the leader had at the look before had caught up then. Otherwise the time does not change,
  however much is copied.
- A follower is late if it lacks records and has not caught up for longer than
  `replica.lag.time.max.ms`. The number of records does not count.
"""

from __future__ import annotations

from typing import NamedTuple


class CaughtUp(NamedTuple):
    """A follower at the last look. Times are of any clock that does not go back."""

    last: int  # the latest time at which it is known to have had everything
    at: int  # the time of that look
    leader_end: int  # the leader's log end at that look


def begin(leader_end: int, now: int) -> CaughtUp:
    """A follower about which nothing is known: its time begins now, as for a new leader in
    Kafka.
    """
    return CaughtUp(now, now, leader_end)


def observe(before: CaughtUp, follower_end: int, leader_end: int, now: int) -> CaughtUp:
    """The state after a look."""
    last = before.last
    if follower_end >= leader_end:
        last = max(last, now)
    elif follower_end >= before.leader_end:
        last = max(last, before.at)
    return CaughtUp(last, now, leader_end)


def is_late(caught_up: CaughtUp, follower_end: int, leader_end: int, now: int, limit: int) -> bool:
    """Whether the follower must leave the ISR."""
    return follower_end != leader_end and now - caught_up.last > limit
