"""E16 and E18: owners of transactions killed at any call, frozen at any stop, and those who come after them."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

import pytest

import embedlog
from embedlog.errors import LockTimeoutError
from tests.faults import transaction_cuts, transactions
from tests.faults.processes import Nursery, until
from tests.faults.transacting import CONFIG, PARTITIONS
from tests.transacting import TOPIC, Writer, committed, help_out, last_stable

POINTS_FAST, POINTS_LONG = 60, 5000
TRIALS_LONG = 1000
DISKS_FAST, DISKS_LONG = 16, 5000


def prepared(path: Path, **config: object) -> embedlog.Log:
    """A log with its topic and `__transaction_state`."""
    log = embedlog.open(path, config=CONFIG | {name.replace("_", "."): value for name, value in config.items()})
    log.create_topic(TOPIC, PARTITIONS)
    log._transactions.topic.partition_of("id")
    return log


def crash_everywhere(nursery: Nursery, directory: Path, seed: int, limit: int) -> tuple[list[str], int]:
    rng = random.Random(seed)
    chosen = transactions.points(transactions.count_calls(nursery, directory, seed), rng, limit)
    for number, point in enumerate(chosen):
        nested = transactions.nested_point(rng) if number % 3 == 0 else None
        wrong = transactions.crash_at(nursery, directory, seed, point, nested, by_reader=number % 2 == 0)
        if wrong:
            return wrong, number + 1
        shutil.rmtree(directory, ignore_errors=True)
    return [], len(chosen)


def test_e18_a_crash_at_any_call_of_a_transaction_leaves_it_whole_or_not_there(
    nursery: Nursery, tmp_path: Path, seed: int
) -> None:
    wrong, runs = crash_everywhere(nursery, tmp_path / "log", seed, POINTS_FAST)
    print(f"E18: {runs} crashes, every third with another of the helper: {len(wrong)} violations")
    assert not wrong, wrong[0]
    assert runs >= POINTS_FAST


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_e18_at_every_call(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    wrong, runs = crash_everywhere(nursery, tmp_path / "log", seed, POINTS_LONG)
    print(f"E18: {runs} crashes: {len(wrong)} violations")
    assert not wrong, wrong[0]


@pytest.mark.parametrize("by_timeout", [False, True], ids=["heir", "timeout"])
@pytest.mark.parametrize("stop", transactions.STOPS, ids=lambda stop: f"{stop.verb}-{stop.name.strip('_-').replace('/', '.')}")
def test_e16_who_was_frozen_while_another_took_its_place_is_fenced(
    nursery: Nursery, tmp_path: Path, stop: transactions.Stop, by_timeout: bool
) -> None:
    with prepared(tmp_path / "log") as log:
        wrong = transactions.trial(nursery, log, stop, by_timeout)
    assert not wrong, wrong


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_e16_long(nursery: Nursery, tmp_path: Path, rng: random.Random) -> None:
    with prepared(tmp_path / "log") as log:
        for number in range(TRIALS_LONG):
            stop = rng.choice(transactions.STOPS)
            wrong = transactions.trial(nursery, log, stop, rng.random() < 0.5)
            assert not wrong, f"trial {number}: {wrong}"
    print(f"E16: {TRIALS_LONG} trials, all fenced")


@pytest.mark.parametrize(("kind", "name"), [("point", "txn-registered"), ("pwrite", "t-1")])
def test_who_is_frozen_inside_a_lock_is_named_and_nobody_breaks_in(
    nursery: Nursery, tmp_path: Path, kind: str, name: str
) -> None:
    with prepared(tmp_path / "log", lock_timeout_ms=300) as log:
        owner = nursery.spawn()
        owner.call("open", str(log.path), config=CONFIG)
        owner.call("owner", "id")
        owner.arm([kind], "stop_before", name=name)
        owner.start("transact", "id", [b"slow"], 1)
        owner.wait_stopped()
        with pytest.raises(LockTimeoutError, match=f"pid {owner.pid}"):
            Writer(log).init()
        owner.resume()
        owner.result()
        owner.call("end", "id", True)
        assert committed(log) == [b"slow"]


def test_a_reader_is_not_kept_by_a_lock_that_a_frozen_process_holds(nursery: Nursery, tmp_path: Path) -> None:
    with prepared(tmp_path / "log") as log:
        dead, frozen = nursery.spawn(), nursery.spawn()
        dead.call("open", str(log.path), config=CONFIG)
        dead.call("owner", "dead")
        dead.call("transact", "dead", [b"left open"], 0)
        dead.kill()
        frozen.call("open", str(log.path), config=CONFIG)
        frozen.arm(["pwrite"], "stop_before", name=f"{TOPIC}-0/")
        frozen.start("append", [b"slow"], 0)
        frozen.wait_stopped()
        began = time.monotonic()
        assert not help_out(log, 0)
        assert time.monotonic() - began < 5, "the lock timeout of the log is ten seconds"
        frozen.resume()
        frozen.result()
        until(lambda: help_out(log, 0) or last_stable(log, 0) == (3, 3), "the transaction to end", 10)
        assert last_stable(log, 0) == (3, 3)
        assert committed(log) == [b"slow"]


def test_a_killed_owners_transaction_is_aborted_at_once_a_frozen_ones_after_its_timeout(nursery: Nursery, tmp_path: Path) -> None:
    with prepared(tmp_path / "log") as log:
        killed, frozen = nursery.spawn(), nursery.spawn()
        for victim, name, timeout_ms in ((killed, "killed", 60_000), (frozen, "frozen", 400)):
            victim.call("open", str(log.path), config=CONFIG)
            victim.call("owner", name, timeout_ms)
        killed.call("transact", "killed", [b"of the killed"], 0)
        began = time.monotonic()
        frozen.call("transact", "frozen", [b"of the frozen"], 1)
        frozen.stop()
        assert not help_out(log, 0), "its owner lives"
        killed.kill()
        assert help_out(log, 0)
        assert last_stable(log, 0) == (2, 2)
        if time.monotonic() < began + 0.3:
            assert not help_out(log, 1), "its owner may come back in time"
        until(lambda: help_out(log, 1), "the frozen owner's timeout", 10)
        assert time.monotonic() >= began + 0.4
        frozen.resume()
        frozen.start("end", "frozen", True)
        assert transactions.ended(frozen)
        assert committed(log) == []


def test_rule_20_a_power_loss_leaves_whole_transactions(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    wrong, opened = transaction_cuts.experiment(nursery, tmp_path, seed, DISKS_FAST)
    print(f"power loss within transactions: {opened} disks: {len(wrong)} violations")
    assert not wrong, wrong[0]


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_rule_20_power_losses_long(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    for turn in range(DISKS_LONG // 200):
        workspace = tmp_path / str(turn)
        workspace.mkdir()
        wrong, _ = transaction_cuts.experiment(nursery, workspace, seed + turn, 200)
        assert not wrong, wrong[0]
        shutil.rmtree(workspace)


@pytest.mark.faults
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mutant", ["prepare_unsynced", "no_sweep"])
def test_a_power_loss_kills_the_mutant(nursery: Nursery, tmp_path: Path, seed: int, mutant: str) -> None:
    for turn in range(10):
        workspace = tmp_path / str(turn)
        workspace.mkdir()
        wrong, opened = transaction_cuts.experiment(nursery, workspace, seed + turn, 200, (mutant,))
        if wrong:
            print(f"{mutant}: disk {opened}: {wrong[0]}")
            return
    pytest.fail(f"{mutant} survived")
