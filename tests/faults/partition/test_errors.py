"""E10 and E11: calls that fail. A typed error, nothing unacknowledged counts, the log is usable at
once.
"""

from __future__ import annotations

import errno
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults.harness.content import Verdict
from tests.faults.harness.processes import Nursery, RemoteError
from tests.faults.harness.stage import Play
from tests.faults.partition import crashes
from tests.support.campaign_report import add_counts, pieces, share

RUNS_FAST = 8
RUNS_PIECES = 64
FULL_DISKS = 6
SLOW_S = 2.0


Case = tuple[str, int, int]  # kind of call, which one, the error


def cases(counts: dict[str, int]) -> list[Case]:
    return [
        (kind, nth, error)
        for kind in crashes.FAILING
        for nth in range(1, counts[kind] + 1)
        for error in crashes.ERRORS
    ]


def fail_everywhere(nursery: Nursery, directory: Path, seed: int, chosen: Sequence[Case]) -> int:
    """How many steps failed in all the runs; three in ten of the errors stay until the step is
    tried again.
    """
    total = Verdict()
    failures = 0
    for kind, nth, error in chosen:
        sticky = random.Random(f"{seed} {kind} {nth} {error}").random() < 0.3
        began = time.monotonic()
        verdict, promises = crashes.fail_at(
            nursery, directory, seed, nth, error, kinds=(kind,), sticky=sticky
        )
        if time.monotonic() - began > SLOW_S:
            print(f"slow: call {nth} of {kind} with {errno.errorcode[error]}: {promises.failures}")
        total.add(verdict)
        failures += len(promises.failures)
        assert not total.violations, total
        shutil.rmtree(directory, ignore_errors=True)
    add_counts("E10", failing_calls=len(chosen), failed_steps=failures, **total.counts())
    return failures


def test_e10_any_failing_call_is_a_typed_error_and_no_more(
    nursery: Nursery, tmp_path: Path, seed: int
) -> None:
    every = cases(crashes.count_calls(nursery, tmp_path / "log", seed))
    failures = fail_everywhere(
        nursery, tmp_path / "log", seed, random.Random(seed).sample(every, RUNS_FAST)
    )
    assert failures > RUNS_FAST // 10, "hardly any fault was felt"


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pieces(RUNS_PIECES)
def test_e10_every_call_and_error(
    nursery: Nursery, tmp_path: Path, campaign_seed: int, piece: int
) -> None:
    every = cases(crashes.count_calls(nursery, tmp_path / "log", campaign_seed))
    fail_everywhere(nursery, tmp_path / "log", campaign_seed, share(every, piece, RUNS_PIECES))


def full_disk(nursery: Nursery, directory: Path, seed: int, nth: int) -> Verdict:
    """From the nth write on everything that needs space fails, until it is freed again."""
    kinds = ("pwrite", "fallocate", "open", "mkdir", "link")
    verdict, _ = crashes.fail_at(
        nursery, directory, seed, nth, errno.ENOSPC, kinds=kinds, sticky=True
    )
    return verdict


def test_e10_a_full_disk_loses_nothing_and_is_over_when_space_returns(
    nursery: Nursery, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    total = Verdict()
    for _ in range(FULL_DISKS):
        total.add(full_disk(nursery, tmp_path / "log", seed, rng.randint(1, 250)))
        assert not total.violations, total
        shutil.rmtree(tmp_path / "log", ignore_errors=True)
    add_counts("E10, full disk", runs=FULL_DISKS, **total.counts())


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("nth", range(1, 9))
def test_e11_any_failing_sync_is_never_a_durable_acknowledgement(
    nursery: Nursery, tmp_path: Path, nth: int
) -> None:
    """With `flush.messages` 1 every acknowledgement is durable: if the sync after the write fails,
    there must be none.
    """
    play = Play(nursery, tmp_path / "log", config={"flush.messages": 1, "segment.bytes": 700})
    a = play.enter()
    b = play.enter()
    a.arm(["fdatasync", "fsync"], "fail", nth=nth)
    refused: list[tuple[str, ...]] = []
    for turn in range(6):
        victim = a if turn % 2 == 0 else b
        try:
            offset = play.append(victim)
        except RemoteError as problem:
            refused.append(problem.kinds)
        else:
            assert victim.call("durable") > offset, "acknowledged, but not durable"
    struck = a.call("disarm")
    assert all({"DurabilityError", "StorageError"} & set(kinds) for kinds in refused), refused
    assert struck == 0 or len(refused) <= 1, "one failed sync failed more than one append"
    verdict = play.seen_by(b)
    a.kill()
    b.kill()
    verdict.add(play.seen_afresh())
    assert not verdict.violations, verdict
