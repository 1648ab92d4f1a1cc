"""The protocol's rules 9 and 20 for transactions: the order of locks and of syncs, and what a power loss leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import embedlog
from embedlog import lockorder, sweeping
from embedlog._native import system
from embedlog.deciding import new_producer_id
from embedlog.record import Stamp
from tests.transacting import QUIET, TOPIC, begun, committed, help_out, last_stable, run_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def log(path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(path, config=QUIET) as opened:
        opened.create_topic(TOPIC, 3)
        yield opened


# ---- locks and disks -----------------------------------------------------------------------------


def test_rule_9_internal_partitions_come_before_data(log: embedlog.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockorder, "enabled", True)
    log.create_topic("Events", 1)  # sorts before the underscore
    writer = begun(log)
    writer.write(b"x", topic="Events")
    writer.write(b"x")
    writer.commit()
    assert committed(log, "Events") == [b"x"]


def syncs_and_writes(path: Path, work: Callable[[], None], directory: Path) -> list[str]:
    """The partitions' directories in the order in which they were written to ("w t-0") and synced ("s t-0")."""
    with path.open("wb") as trace:
        system.fault_trace(trace.fileno())
        try:
            work()
        finally:
            system.fault_trace(-1)
    found = []
    for line in path.read_text().splitlines():
        kind, _, name = line.split(" ", 2)
        if name.endswith(".log") and kind in ("pwrite", "fdatasync", "fsync") and name.startswith(str(directory)):
            topic = Path(name).parent.name.rpartition("-")[0]
            found.append(("w " if kind == "pwrite" else "s ") + ("state" if topic == "__transaction_state" else topic))
    return found


STEPS = ["s t", "w state", "s state", "w t", "s t", "w state"]  # data, Prepare, it on disk, marker, it on disk, Complete


@pytest.mark.parametrize("mutant", ["", "data_unsynced", "prepare_unsynced", "markers_unsynced"])
def test_rule_20_each_step_is_on_disk_before_the_next(log: embedlog.Log, tmp_path: Path, path: Path, mutant: str,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    writer = begun(log)
    writer.write(b"x")
    log.alter_topic(TOPIC, {"flush.messages": "1"})  # after the write, which else would have seen to it
    partition = log._partition(TOPIC, 0)
    monkeypatch.setattr(partition.syncer, "flush_if_due", lambda *_: None)
    if mutant:
        system.mutant(mutant)
    try:
        steps = syncs_and_writes(tmp_path / "trace", writer.commit, path)
    finally:
        system.mutant(mutant, False)
    assert (steps == STEPS) == (not mutant), steps


def test_without_a_wish_for_durability_nothing_is_synced(log: embedlog.Log, tmp_path: Path, path: Path) -> None:
    writer = begun(log)
    writer.write(b"x")
    assert syncs_and_writes(tmp_path / "trace", writer.commit, path) == ["w state", "w t", "w state"]


# ---- behind a power loss -------------------------------------------------------------------------


def orphan(log: embedlog.Log, partition: int, epoch: int = 0, producer_id: int | None = None) -> int:
    """Open data whose record in the state topic was lost."""
    stamp = Stamp(producer_id or new_producer_id(), epoch, transactional=True, opens=True)
    log._partition(TOPIC, partition).append(run_of(stamp, 0, [b"orphan"]), stamp=stamp)
    return stamp.producer_id


def due(log: embedlog.Log) -> None:
    assert log._directory.page is not None
    log._directory.page.set(sweeping.SWEEP_DUE, 1)


@pytest.mark.parametrize("mutant", ["", "no_sweep"])
def test_rule_20_open_data_without_a_record_is_swept(log: embedlog.Log, mutant: str) -> None:
    orphan(log, 1)
    due(log)
    if mutant:
        system.mutant(mutant)
    try:
        help_out(log, 1)
        assert (last_stable(log, 1) == (2, 2)) == (not mutant)
    finally:
        system.mutant(mutant, False)
    assert sweeping.is_due(log._directory.page) == bool(mutant)


def test_rule_20_the_sweep_leaves_what_a_record_covers(log: embedlog.Log, path: Path) -> None:
    living = begun(log, "living")
    living.write(b"mine")
    with embedlog.open(path, config=QUIET) as short:
        begun(short, "dead").write(b"theirs", partition=1)
    due(log)
    begun(log, "another")
    assert not sweeping.is_due(log._directory.page)
    assert last_stable(log, 0) == (0, 1)
    assert last_stable(log, 1) == (0, 1)
    living.commit()
    assert committed(log) == [b"mine"]


def test_rule_20_nobody_goes_on_below_an_epoch_that_a_partition_has_stored(log: embedlog.Log) -> None:
    writer = begun(log)
    writer.write(b"x")
    writer.commit()
    state = writer.state()
    assert state is not None
    orphan(log, 2, epoch=7, producer_id=state.producer_id)  # the records of epochs 1 to 7 were lost with the power
    due(log)
    heir = begun(log)
    assert heir.owner.stamp.epoch == 9, "above the marker that the sweep wrote"
    heir.write(b"y", partition=2)
    heir.commit()
    assert committed(log) == [b"x", b"y"]


@pytest.mark.parametrize(("clean", "foreign", "boot", "expected"), [
    (False, False, 1, True), (True, False, 1, False), (False, True, 1, False), (False, False, 0, False),
])  # fmt: skip
def test_rule_20_when_a_sweep_is_due(log: embedlog.Log, monkeypatch: pytest.MonkeyPatch, clean: bool, foreign: bool, boot: int,
                                     expected: bool) -> None:
    """`boot`: whether the machine was started anew since."""
    page = log._directory.page
    assert page is not None
    assert not sweeping.is_due(page)
    now = sweeping.boot_number()
    monkeypatch.setattr(sweeping, "boot_number", lambda: now + boot)
    sweeping.note_opening(page, clean, foreign)
    assert sweeping.is_due(page) == expected
    sweeping.note_opening(page, True, False)
    assert sweeping.is_due(page) == expected, "an orderly close in between does not make it needless"
