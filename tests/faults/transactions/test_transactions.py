"""E16 and E18: owners of transactions killed at any call and frozen at any stop, and the processes
after them.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import embedlog
from embedlog.errors import LockTimeoutError
from tests.faults.harness.processes import Nursery, until
from tests.faults.harness.transaction_tasks import CONFIG, PARTITIONS
from tests.faults.partition.crashes import Point
from tests.faults.transactions import cuts, owners
from tests.support.campaign_report import add_counts, pieces, share
from tests.support.transactional_producers import TOPIC, Writer, committed, help_out, last_stable

POINTS_FAST = 7
POINTS_PRODUCER = 4
POINTS_PIECES = 16
TRIALS_LONG = 1000
TRIALS_PIECES = 10
DISKS_FAST = 5
DISKS_LONG = 5000
DISKS_PIECES = 25


def prepared(path: Path, **config: object) -> embedlog.Log:
    """A log with its topic and `__transaction_state`."""
    log = embedlog.open(
        path, config=CONFIG | {name.replace("_", "."): value for name, value in config.items()}
    )
    log.create_topic(TOPIC, PARTITIONS)
    log._engine.transactions.topic.partition_of("id")
    return log


def crash_everywhere(
    nursery: Nursery, directory: Path, seed: int, chosen: Sequence[Point], by_producer: bool = False
) -> None:
    """Crashes at the points; every third helper dies, too; every second helper is a reader."""
    nested = 0
    for point in chosen:
        rng = random.Random(f"{seed} {point}")
        again = owners.nested_point(rng) if rng.random() < 1 / 3 else None
        wrong = owners.crash_at(
            nursery, directory, seed, point, again, rng.random() < 0.5, by_producer
        )
        nested += again is not None
        assert not wrong, wrong[0]
        shutil.rmtree(directory, ignore_errors=True)
    add_counts("E18", points=len(chosen), crashes_of_a_helper=nested, violations=0)


def test_e18_a_crash_at_any_call_of_a_transaction_leaves_it_whole_or_not_there(
    nursery: Nursery, tmp_path: Path, seed: int
) -> None:
    every = owners.points(owners.count_calls(nursery, tmp_path / "log", seed))
    crash_everywhere(
        nursery, tmp_path / "log", seed, random.Random(seed).sample(every, POINTS_FAST)
    )


def test_e18_a_producer_that_dies_leaves_whole_transactions(
    nursery: Nursery, tmp_path: Path, seed: int
) -> None:
    every = owners.points(owners.count_calls(nursery, tmp_path / "log", seed, by_producer=True))
    crash_everywhere(
        nursery,
        tmp_path / "log",
        seed,
        random.Random(seed).sample(every, POINTS_PRODUCER),
        by_producer=True,
    )


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pieces(POINTS_PIECES)
def test_e18_at_every_call(
    nursery: Nursery, tmp_path: Path, campaign_seed: int, piece: int
) -> None:
    every = owners.points(owners.count_calls(nursery, tmp_path / "log", campaign_seed))
    crash_everywhere(nursery, tmp_path / "log", campaign_seed, share(every, piece, POINTS_PIECES))


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("by_timeout", [False, True], ids=["heir", "timeout"])
@pytest.mark.parametrize(
    "stop", owners.STOPS, ids=lambda stop: f"{stop.verb}-{stop.name.strip('_-').replace('/', '.')}"
)
def test_e16_who_was_frozen_while_another_took_its_place_is_fenced(
    nursery: Nursery, tmp_path: Path, stop: owners.FreezePoint, by_timeout: bool
) -> None:
    with prepared(tmp_path / "log") as log:
        wrong = owners.trial(nursery, log, stop, by_timeout)
    assert not wrong, wrong
    add_counts("E16", zombies=1, violations=0)


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pieces(TRIALS_PIECES)
def test_e16_long(nursery: Nursery, tmp_path: Path, campaign_seed: int, piece: int) -> None:
    rng = random.Random(campaign_seed + piece)
    with prepared(tmp_path / "log") as log:
        for number in range(TRIALS_LONG // TRIALS_PIECES):
            stop = rng.choice(owners.STOPS)
            wrong = owners.trial(nursery, log, stop, rng.random() < 0.5)
            assert not wrong, f"trial {number}: {wrong}"
    add_counts("E16", zombies=TRIALS_LONG // TRIALS_PIECES, violations=0)


FROZEN = {
    "registered": ("point", "txn-registered"),
    "writing": ("pwrite", f"{TOPIC}-1/{0:020d}.log"),
}


@pytest.mark.parametrize(("kind", "name"), FROZEN.values(), ids=FROZEN)
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


def test_who_waits_for_a_partition_keeps_no_other_transaction_waiting(
    nursery: Nursery, tmp_path: Path
) -> None:
    """Both ids have their state in one partition; a frozen appender is in the data partition of the
    first.
    """
    with prepared(tmp_path / "log", transaction_state_log_num_partitions=1) as log:
        log._engine.partition(TOPIC, 0).bounds()  # open already: else the opening waits
        frozen = nursery.spawn()
        frozen.call("open", str(log.path), config=CONFIG)
        frozen.arm(["pwrite"], "stop_before", name=f"/{TOPIC}-0/")
        frozen.start("append", [b"slow"], 0)
        frozen.wait_stopped()
        waiting = Writer(log, "waiting")
        other = Writer(log, "other")
        waiting.init()
        other.init()
        thread = threading.Thread(target=waiting.write, args=(b"waiting",))
        thread.start()
        state = log._engine.transactions.topic.partition(0)
        until(lambda: state.bounds().log_end == 3, "the registration")
        began = time.monotonic()
        other.write(b"other", partition=1)
        other.commit()
        assert time.monotonic() - began < 5, "the lock timeout of the log is ten seconds"
        assert thread.is_alive()
        frozen.resume()
        frozen.result()
        thread.join(20)
        waiting.commit()
        assert committed(log) == [b"slow", b"waiting", b"other"]


def test_a_reader_is_not_kept_by_a_lock_that_a_frozen_process_holds(
    nursery: Nursery, tmp_path: Path
) -> None:
    with prepared(tmp_path / "log") as log:
        dead = nursery.spawn()
        frozen = nursery.spawn()
        dead.call("open", str(log.path), config=CONFIG)
        dead.call("owner", "dead")
        dead.call("transact", "dead", [b"left open"], 0)
        dead.kill()
        frozen.call("open", str(log.path), config=CONFIG)
        frozen.arm(["pwrite"], "stop_before", name=f"/{TOPIC}-0/")
        frozen.start("append", [b"slow"], 0)
        frozen.wait_stopped()
        began = time.monotonic()
        assert not log._engine.transactions.resolve(log._engine.partition(TOPIC, 0))
        assert time.monotonic() - began < 5, "the lock timeout of the log is ten seconds"
        frozen.resume()
        frozen.result()
        until(
            lambda: help_out(log, 0) or last_stable(log, 0) == (3, 3), "the transaction to end", 10
        )
        assert last_stable(log, 0) == (3, 3)
        assert committed(log) == [b"slow"]


def test_a_killed_owners_transaction_is_aborted_at_once_a_frozen_ones_after_its_timeout(
    nursery: Nursery, tmp_path: Path
) -> None:
    with prepared(tmp_path / "log") as log:
        killed = nursery.spawn()
        frozen = nursery.spawn()
        for victim, name, timeout_ms in ((killed, "killed", 60_000), (frozen, "frozen", 400)):
            victim.call("open", str(log.path), config=CONFIG)
            victim.call("owner", name, timeout_ms)
        killed.call("transact", "killed", [b"of the killed"], 0)
        began = time.monotonic()
        frozen.call("transact", "frozen", [b"of the frozen"], 1)
        frozen.stop()
        assert not help_out(log, 0), "its owner is alive"
        killed.kill()
        assert help_out(log, 0)
        assert last_stable(log, 0) == (2, 2)
        if time.monotonic() < began + 0.3:
            assert not help_out(log, 1), "its owner may come back in time"
        until(lambda: help_out(log, 1), "the frozen owner's timeout", 10)
        assert time.monotonic() >= began + 0.4
        frozen.resume()
        frozen.start("end", "frozen", True)
        assert owners.ended(frozen)
        assert committed(log) == []


def test_txn_5_a_power_loss_leaves_whole_transactions(
    nursery: Nursery, tmp_path: Path, seed: int
) -> None:
    wrong, opened = cuts.experiment(nursery, tmp_path, seed, DISKS_FAST)
    assert not wrong, wrong[0]
    add_counts("E5, transactions", disks=opened, violations=0)


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pieces(DISKS_PIECES)
def test_txn_5_power_losses_long(
    nursery: Nursery, tmp_path: Path, campaign_seed: int, piece: int
) -> None:
    wrong, opened = cuts.experiment(
        nursery, tmp_path, campaign_seed + piece, DISKS_LONG // DISKS_PIECES
    )
    assert not wrong, wrong[0]
    add_counts("E5, transactions", disks=opened, violations=0)


@pytest.mark.faults
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mutant", ["prepare_unsynced", "no_sweep"])
def test_a_power_loss_kills_the_mutant(
    nursery: Nursery, tmp_path: Path, seed: int, mutant: str
) -> None:
    for turn in range(10):
        workspace = tmp_path / str(turn)
        workspace.mkdir()
        wrong, opened = cuts.experiment(nursery, workspace, seed + turn, 200, (mutant,))
        if wrong:
            print(f"{mutant}: disk {opened}: {wrong[0]}")
            add_counts("mutants", killed=1)
            return
    pytest.fail(f"{mutant} survived")
