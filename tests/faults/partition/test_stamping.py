"""Stamped batches and markers under crashes and errors at chosen calls: the same step again, and
nothing is lost or doubled.
"""

from __future__ import annotations

import errno
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.harness.content import Verdict
from tests.faults.harness.processes import Nursery
from tests.faults.partition import stamping
from tests.support.campaign_report import add_counts, pieces

FAST = 4
LONG = 3000
LONG_PIECES = 30
ERRORS = (errno.EIO, errno.ENOSPC, errno.EMFILE)
PLACES = (
    "before-publish",
    "after-publish",
    "before-unlock",
    "roll-intent",
    "roll-created",
    "roll-published",
)


def crashes(
    nursery: Nursery, directory: Path, seed: int, limit: int, mutants: tuple[str, ...] = ()
) -> Verdict:
    """Crashes at random calls, at the places where something is half done, and again in the
    repair.
    """
    rng = random.Random(seed)
    total = Verdict()
    todo = stamping.steps(seed, 40, time.time_ns() // 1_000_000)
    answers, found, counts = stamping.undisturbed(nursery, directory, todo)
    todo = stamping.conditional(todo, answers)
    calls = sum(counts.values())
    for number in range(limit):
        kind = ("kill_before", "kill_after")[number % 2]
        arms = [(tuple(counts), kind, rng.randint(1, calls), "")]
        if number % 3 == 1:
            arms = [(("point",), "kill_before", rng.randint(1, 12), rng.choice(PLACES))]
        elif number % 3 == 2:
            name = rng.choice(("", ".log", ".txnindex", ".snapshot"))
            arms = [(("pwrite",), "torn_kill", rng.randint(1, counts["pwrite"]), name)]
        if rng.random() < 0.3:
            arms.append((tuple(counts), kind, rng.randint(1, 150), ""))
        total.add(
            stamping.crash_at(
                nursery, directory, todo, (answers, found), arms, mutants, alone=number % 4 == 3
            )
        )
        shutil.rmtree(directory, ignore_errors=True)
        if total.violations:
            break
    return total


def errors(nursery: Nursery, directory: Path, seed: int, limit: int) -> Verdict:
    rng = random.Random(seed)
    total = Verdict()
    todo = stamping.steps(seed, 40, time.time_ns() // 1_000_000)
    answers, found, counts = stamping.undisturbed(nursery, directory, todo)
    todo = stamping.conditional(todo, answers)
    for _ in range(limit):
        nth = rng.randint(
            1,
            sum(
                counts[kind]
                for kind in ("open", "pread", "pwrite", "ftruncate", "unlink", "rename", "stat")
            ),
        )
        verdict, _failures = stamping.fail_at(
            nursery, directory, todo, (answers, found), nth, rng.choice(ERRORS)
        )
        total.add(verdict)
        shutil.rmtree(directory)
        if total.violations:
            break
    return total


def test_after_a_crash_at_any_call_the_same_step_again_makes_the_log_that_would_have_been(
    nursery: Nursery, tmp_path: Path, seed: int
) -> None:
    verdict = crashes(nursery, tmp_path / "log", seed, FAST)
    assert not verdict.violations, verdict


def test_after_an_error_at_any_call_the_same_step_again_makes_the_log_that_would_have_been(
    nursery: Nursery, tmp_path: Path, seed: int
) -> None:
    verdict = errors(nursery, tmp_path / "log", seed, FAST)
    assert not verdict.violations, verdict


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("experiment", [crashes, errors])
@pieces(LONG_PIECES)
def test_long(
    nursery: Nursery,
    tmp_path: Path,
    campaign_seed: int,
    experiment: Callable[..., Verdict],
    piece: int,
) -> None:
    verdict = experiment(nursery, tmp_path / "log", campaign_seed + piece, LONG // LONG_PIECES)
    add_counts(f"stamped, {experiment.__name__}", runs=LONG // LONG_PIECES, **verdict.counts())
    assert not verdict.violations, verdict


# ---- the rules, switched off one by one ----------------------------------------------------------

A, B = stamping.PRODUCERS[:2]


def send(producer: int, epoch: int, sequence: int, *, opens: bool = True) -> stamping.Send:
    stamp = stamping.Stamp(producer, epoch, True, opens)
    return stamping.Send(stamp, sequence, 2, 100, 1500, time.time_ns() // 1_000_000)


def dies_in_the_last_step(
    nursery: Nursery,
    directory: Path,
    todo: list[stamping.Step],
    kinds: tuple[str, ...],
    action: str,
    name: str,
    mutants: tuple[str, ...] = (),
) -> Verdict:
    """The last step is interrupted there, and repeated by the next process."""
    answers, found, _ = stamping.undisturbed(nursery, directory, todo)
    nth = len(todo) if name.endswith("publish") else 1
    verdict = stamping.crash_at(
        nursery, directory, todo, (answers, found), [(kinds, action, nth, name)], mutants
    )
    shutil.rmtree(directory, ignore_errors=True)
    return verdict


@pytest.mark.parametrize(
    ("mutant", "kinds", "action", "name"),
    [
        ("entry_after_publish", ("point",), "kill_before", "after-publish"),
        ("entry_after_publish", ("pwrite",), "kill_before", ".txnindex"),
    ],
)
def test_append_6_the_entry_comes_before_the_publication(
    nursery: Nursery, tmp_path: Path, mutant: str, kinds: tuple[str, ...], action: str, name: str
) -> None:
    todo: list[stamping.Step] = [send(A, 0, 0), stamping.End(A, 1, commit=False)]
    assert not dies_in_the_last_step(
        nursery, tmp_path / "log", todo, kinds, action, name
    ).violations
    assert dies_in_the_last_step(
        nursery, tmp_path / "log", todo, kinds, action, name, (mutant,)
    ).violations


def test_a_transaction_that_a_dead_process_opened_is_undecided_for_readers(
    nursery: Nursery, tmp_path: Path
) -> None:
    """Its batch is taken over by the repair, and with it the last stable offset stops there."""
    todo: list[stamping.Step] = [send(A, 0, 0)]
    steps = nursery, tmp_path / "log", todo, ("point",), "kill_before", "before-publish"
    assert not dies_in_the_last_step(*steps).violations
    assert dies_in_the_last_step(*steps, ("unstable_forgotten",)).violations
