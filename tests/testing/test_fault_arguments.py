"""The arguments of faults: wrong ones are refused before anything happens, and the error names the
right ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import embedlog
from embedlog.testing import Fault, Faults, Held, faults, open_log


@pytest.fixture(scope="module")
def log() -> Iterator[embedlog.Log]:
    with open_log("t") as opened:
        yield opened


def test_a_fault_of_a_missing_topic_names_the_topics() -> None:
    wanted = r"there is no topic 'order', only 'invoices', 'orders'"
    with open_log({"orders": 1, "invoices": 1}) as log:
        fault = faults(log).append_fails("order")
        with pytest.raises(AssertionError, match=wanted), fault:
            pass


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (
            lambda found: found.append_fails("t", 28),
            TypeError,
            r"error is an exception, such as OSError.*, not 28",
        ),
        (
            lambda found: found.commit_fails("g", OSError),
            TypeError,
            r"error is an exception, .* not <class 'OSError'>",
        ),
        (
            lambda found: found.killed(print, "commit"),
            embedlog.ConfigError,
            r"at: expected 'before append' or .*found 'commit'",
        ),
        (
            lambda found: found.disk_full(times=1),
            embedlog.UnknownOptionError,
            r"no argument times; the fault lasts until heal",
        ),
        (
            lambda found: found.append_fails(topics="t"),
            embedlog.UnknownOptionError,
            r"no argument topics; did you mean topic\?",
        ),
    ],
)
def test_wrong_arguments_are_refused_at_once(
    log: embedlog.Log, wrong: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        wrong(faults(log))


def test_only_the_calls_of_tests_are_public() -> None:
    public = {
        cls: {name for name in dir(cls) if not name.startswith("_")}
        for cls in (Faults, Fault, Held)
    }
    assert public[Faults] == {
        "append_fails",
        "append_held",
        "append_slow",
        "commit_fails",
        "disk_full",
        "expire",
        "fence",
        "killed",
        "other_member",
        "rebalance",
    }
    assert public[Fault] == {"count", "heal", "reached"}
    assert public[Held] == {"count", "heal", "reached", "release"}
