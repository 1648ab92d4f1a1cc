"""Calls of listeners in a rebalance: the listener's table as pure rules, and listeners that
fail.
"""

from __future__ import annotations

from typing import Any

import pytest

from embedlog.consumer.rebalance_listener import Change, Listeners, compute_change, find_revoked
from embedlog.errors import ListenerError, WakeupError
from embedlog.types import TopicPartition

A0 = TopicPartition("a", 0)
A1 = TopicPartition("a", 1)
B0 = TopicPartition("b", 0)


def only_a(topic: str) -> bool:
    return topic == "a"


@pytest.mark.parametrize(
    ("owned", "cooperative", "expected"),
    [
        ({A1, A0, B0}, False, [A0, A1, B0]),
        (set(), False, []),
        ({A1, A0, B0}, True, [B0]),
        ({A1, A0}, True, None),
        (set(), True, None),
    ],
)
def test_what_is_given_up_before_a_join(owned: Any, cooperative: bool, expected: Any) -> None:
    assert find_revoked(owned, cooperative, only_a) == expected


@pytest.mark.parametrize(
    ("owned", "assigned", "cooperative", "expected"),
    [
        (set(), [A1, A0], False, Change([], [A0, A1])),
        (set(), [], False, Change([], [])),
        ({A0, A1}, [A1, B0], True, Change([A0], [B0])),
        ({A0}, [A0], True, Change([], [])),
    ],
)
def test_what_an_assignment_changes(
    owned: Any, assigned: Any, cooperative: bool, expected: Change
) -> None:
    found = compute_change(owned, assigned, cooperative)
    assert found == expected
    assert found.needs_rejoin is bool(expected.revoked)


def test_without_on_lost_it_is_on_revoked() -> None:
    heard: list[Any] = []
    listeners = Listeners()
    listeners.listen(None, lambda tps: heard.append(("revoked", tps)), None)
    listeners.call_lost([A0])
    listeners.call_assigned([A0])
    listeners.listen(
        None, lambda tps: heard.append(("revoked", tps)), lambda tps: heard.append(("lost", tps))
    )
    listeners.call_lost([A1])
    assert heard == [("revoked", [A0]), ("lost", [A1])]


def test_the_first_error_is_raised_once_and_the_others_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(tps: list[TopicPartition]) -> None:
        raise ValueError(f"of the user's for {tps[0].topic}")

    listeners = Listeners()
    listeners.listen(fail, fail, None)
    listeners.call_revoked([A0])
    listeners.call_assigned([B0])
    with pytest.raises(ListenerError, match=r"on_revoked failed.*for a"):
        listeners.raise_first()
    listeners.raise_first()
    assert "for b" in caplog.text


def test_a_wakeup_that_a_listener_met_is_raised_as_it_is() -> None:
    def woken(tps: list[TopicPartition]) -> None:
        raise WakeupError("x")

    listeners = Listeners()
    listeners.listen(woken, None, None)
    listeners.call_assigned([])
    with pytest.raises(WakeupError):
        listeners.raise_first()


def test_a_listener_cannot_change_what_counts() -> None:
    listeners = Listeners()
    tps = [A0]
    listeners.listen(lambda given: given.clear(), None, None)
    listeners.call_assigned(tps)
    assert tps == [A0]
