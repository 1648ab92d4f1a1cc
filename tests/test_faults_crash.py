"""E1 and E2: processes die at random moments and at chosen calls; what was acknowledged is there."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.faults import crashes, kills
from tests.faults.content import Verdict
from tests.faults.processes import Nursery

KILLS_FAST, KILLS_LONG = 150, 10_000
POINTS_FAST = 40


def test_e1_killed_writers_lose_nothing_that_was_acknowledged(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    verdict, killed = kills.experiment(nursery, tmp_path / "log", seed, KILLS_FAST)
    print(f"E1: {killed} kills: {verdict}")
    assert not verdict.violations, verdict
    assert verdict.acked > 1000


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_e1_long(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    total, killed, rng = Verdict(), 0, random.Random(seed)
    for turn in range(KILLS_LONG // 500):
        verdict, more = kills.experiment(nursery, tmp_path / "log", rng.getrandbits(32), 500)
        total.add(verdict)
        killed += more
        assert not total.violations, f"turn {turn} of seed {seed}: {total}"
        shutil.rmtree(tmp_path / "log")
    print(f"E1: {killed} kills: {total}")


@pytest.mark.parametrize("mutant", ["no_append_lock", "publish_before_write"])
@pytest.mark.faults
def test_e1_kills_the_mutant(nursery: Nursery, tmp_path: Path, seed: int, mutant: str) -> None:
    """With the rule off the same experiment must find something, within a few times the fast form's kills."""
    verdict, killed = kills.experiment(nursery, tmp_path / "log", seed, 4 * KILLS_FAST, mutants=(mutant,))
    print(f"E1 with {mutant}: {killed} kills: {verdict}")
    assert verdict.violations, f"{mutant} survived {killed} kills"


def points(counts: dict[str, int], rng: random.Random, limit: int | None) -> list[tuple[crashes.Point, crashes.Point | None]]:
    """(where the script dies, where the recovery dies too or None): all of them, or every so many-th."""
    total = sum(counts.values())
    every = [crashes.Point(nth, mode) for nth in range(1, total + 1) for mode in crashes.MODES if mode != "torn_kill"]
    every += [crashes.Point(nth, "torn_kill", ("pwrite",)) for nth in range(1, counts["pwrite"] + 1)]
    step = 1 if limit is None else max(1, len(every) // limit)
    chosen = every[rng.randrange(step)::step]
    again = [crashes.Point(rng.randint(1, 150), rng.choice(crashes.MODES)) for _ in chosen]
    return [(point, again[number] if number % 3 == 0 else None) for number, point in enumerate(chosen)]


def crash_everywhere(nursery: Nursery, directory: Path, seed: int, limit: int | None,
                     mutants: tuple[str, ...] = ()) -> tuple[Verdict, int]:
    rng = random.Random(seed)
    total, runs = Verdict(), 0
    for point, nested in points(crashes.count_calls(nursery, directory, seed), rng, limit):
        verdict, _ = crashes.crash_at(nursery, directory, seed, point, nested=nested, mutants=mutants)
        total.add(verdict)
        runs += 1
        if verdict.violations:
            break
        shutil.rmtree(directory, ignore_errors=True)
    return total, runs


def test_e2_a_crash_at_any_call_leaves_a_log_that_goes_on(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    verdict, runs = crash_everywhere(nursery, tmp_path / "log", seed, POINTS_FAST)
    print(f"E2: {runs} crashes, every third with another during the recovery: {verdict}")
    assert not verdict.violations, verdict
    assert runs >= POINTS_FAST


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_e2_at_every_call(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    verdict, runs = crash_everywhere(nursery, tmp_path / "log", seed, None)
    print(f"E2: {runs} crashes: {verdict}")
    assert not verdict.violations, verdict
