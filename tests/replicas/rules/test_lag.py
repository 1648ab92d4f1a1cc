"""The time since a follower had everything, by Kafka's rule: the worked example, and each line of
the rule.
"""

from __future__ import annotations

import random

import pytest

from embedlog.replicas.rules import lag
from embedlog.replicas.rules.lag import CaughtUp

LIMIT_MS = 10_000


def test_a_follower_that_is_slower_than_its_leader_is_written_leaves_after_the_limit() -> None:
    """`replica.lag.time.max.ms` is 10 s. The leader gets 100 records a second, the follower copies
    80, and looks ten times.
    """
    found = lag.begin(0, 0)
    follower_end = 0
    late = []
    for now in range(0, 25_000, 100):
        leader_end = now // 10
        found = lag.observe(found, follower_end, leader_end, now)
        late.append(lag.is_late(found, follower_end, leader_end, now, LIMIT_MS))
        follower_end = min(leader_end, follower_end + 8)
    assert found.last == 0, "it had everything at the first look only"
    assert late.index(True) * 100 == 10_100
    assert all(late[late.index(True) :]), "copying much does not help"


@pytest.mark.parametrize(
    ("follower_end", "leader_end", "expected"),
    [
        (10, 10, 500),  # everything: now
        (12, 10, 500),
        (8, 10, 300),  # everything that the leader had at the last look: then
        (9, 10, 300),
        (7, 10, 100),  # less: unchanged
    ],
)
def test_each_line_of_the_rule(follower_end: int, leader_end: int, expected: int) -> None:
    found = lag.observe(CaughtUp(100, 300, 8), follower_end, leader_end, 500)
    assert found == CaughtUp(expected, 500, leader_end)


def test_only_time_counts_and_a_level_follower_is_never_late() -> None:
    found = CaughtUp(0, 0, 0)
    assert not lag.is_late(found, 5, 5, 1 << 40, LIMIT_MS), "an idle partition"
    assert not lag.is_late(found, 0, 1 << 40, LIMIT_MS, LIMIT_MS), "many records, not yet the limit"
    assert lag.is_late(found, 4, 5, LIMIT_MS + 1, LIMIT_MS)


def test_the_time_never_falls(rng: random.Random) -> None:
    found = lag.begin(0, 0)
    now = 0
    follower_end = 0
    leader_end = 0
    for _ in range(500):
        now += rng.randint(0, 50)
        leader_end += rng.randint(0, 3)
        follower_end = rng.randint(follower_end, leader_end)
        after = lag.observe(found, follower_end, leader_end, now)
        assert found.last <= after.last <= now
        found = after
