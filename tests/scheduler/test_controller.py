"""The controller itself: one process at a time, waits that deadlock nobody, events, and runs that
repeat.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.faults.harness.processes import Nursery
from tests.scheduler.controller import Controller, Run, Told, controlling
from tests.scheduler.scenarios import Appending
from tests.scheduler.schedules import Listed, Randomly, from_text

TIMEOUT_S = 20.0


class OneLock:
    """Processes that take one lock. Nothing is judged."""

    name = "one lock"
    is_read_afterwards = False

    def prepare(self, root: Path, nursery: Nursery) -> None:
        """A directory for the lock."""
        (root / "d1").mkdir()

    def programs(self, root: Path) -> Sequence[tuple[str, dict[str, Any]]]:
        return [("hold_lock", {"paths": [str(root / "d1")], "timeout_s": TIMEOUT_S})] * 2

    def judge(self, root: Path, told: Told) -> Sequence[str]:
        return []


@pytest.fixture
def locking(tmp_path: Path, processes: Nursery) -> Iterator[Controller]:
    with controlling(OneLock(), tmp_path, nursery=processes) as controller:
        yield controller


def run(controller: Controller, schedule: str) -> Run:
    return controller.run(Listed(from_text(schedule)), traced=True)


def named(found: Run) -> list[tuple[int, str]]:
    """The named points, in their order."""
    return [
        (step.process, step.name)
        for step in found.trace
        if step.kind == "point" and step.process < 2
    ]


def steps_until_inside(controller: Controller) -> int:
    """The steps of a process that is alone until it holds the lock."""
    found = run(controller, "0")
    assert named(found) == [(0, "inside"), (0, "leaving"), (1, "inside"), (1, "leaving")]
    return next(step.number for step in found.trace if step.name == "inside")


def test_a_process_that_waits_for_a_lock_gives_its_turn_to_the_holder(locking: Controller) -> None:
    inside = steps_until_inside(locking)
    for steps in range(1, inside + 3, 2):
        found = run(locking, f"0 x {steps}, 1")
        assert not found.told.errors
        first, second, third, fourth = named(found)
        assert {first[1], third[1]} == {"inside"}
        assert first[0] != third[0]
        assert (second[0], fourth[0]) == (first[0], third[0]), "both are inside"


def test_the_wait_for_a_frozen_holder_ends_on_the_clock_of_the_run(locking: Controller) -> None:
    inside = steps_until_inside(locking)
    began_s = time.monotonic()
    found = run(locking, f"0 x {inside}, freeze 0, 1")
    assert found.told.errors[1].kind == "LockTimeoutError"
    assert found.seconds >= TIMEOUT_S > time.monotonic() - began_s
    assert named(found) == [(0, "inside"), (0, "leaving")]


def test_the_lock_of_a_killed_holder_is_free(locking: Controller) -> None:
    inside = steps_until_inside(locking)
    found = run(locking, f"0 x {inside}, kill 0, 1")
    assert named(found) == [(0, "inside"), (1, "inside"), (1, "leaving")]
    assert not found.told.errors


def test_a_call_that_hangs_returns_after_the_others_have_ended(locking: Controller) -> None:
    inside = steps_until_inside(locking)
    hung = run(locking, f"0 x {inside}, hang 0, 1")
    assert hung.told.errors.keys() == {1}
    failed = run(locking, f"0 x {inside}, fail 0, 1")
    assert failed.told.errors.keys() == {0, 1}
    assert "Input/output error" in str(failed.told.errors[0])


def test_a_run_repeats_with_each_of_its_steps(
    tmp_path: Path, processes: Nursery, rng: random.Random
) -> None:
    with controlling(Appending(), tmp_path, nursery=processes) as controller:
        seed = rng.getrandbits(30)
        chosen = controller.run(Randomly(rng), seed=seed, traced=True)
        listed = controller.run(Listed(chosen.schedule), seed=seed, traced=True)
    assert listed.schedule == chosen.schedule
    assert listed.trace == chosen.trace
    assert listed.told.notes == chosen.told.notes
    assert listed.seconds == chosen.seconds
