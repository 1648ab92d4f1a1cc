"""Ctrl-C at every point where the interpreter looks for signals: no lock remains, in this process
or another.
"""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedlog
from embedlog._native import system
from embedlog.format import record_batch as record
from embedlog.storage import files, locks
from tests.support.interrupts import OF_THIS_INTERPRETER, Interrupt

MODULES = (
    "append_lock.py",
    "contextlib.py",
    "scope.py",
    "files.py",
    "locked_partition.py",
    "idempotent_append.py",
    "locks.py",
    "partition.py",
    "producer_sequences.py",
    "state.py",
    "sync.py",
    "writer.py",
)
# Only a remaining lock takes so long. Less is not enough: the next holder repairs, with one or two
# syncs, on a busy machine.
PATIENCE_MS = 30_000
CAN_LOSE_A_DESCRIPTOR = pytest.mark.may_leak(
    "an interrupt between a system call and the assignment of its result"
)


@OF_THIS_INTERPRETER
@pytest.mark.parametrize("way", ["exclusive", "hold"])
def test_an_interrupt_anywhere_leaves_no_lock_behind(
    until_end: ExitStack, tmp_path: Path, way: str
) -> None:
    settings = {"housekeeping": False, "lock.timeout.ms": PATIENCE_MS}
    with (
        embedlog.open(tmp_path / "log", config=settings) as log,
        embedlog.open(tmp_path / "log", config=settings) as other,
    ):
        log.create_topic("t")
        mine = log._engine.partition("t", 0)
        theirs = other._engine.partition("t", 0)
        pair = [
            until_end.enter_context(closing(locks.LockFile(tmp_path / "lock"))) for _ in range(2)
        ]

        def take(partition: Any, lock: locks.LockFile) -> None:
            with (
                partition.exclusive()
                if way == "exclusive"
                else lock.hold(system.boot_ns() + PATIENCE_MS * 1_000_000)
            ):
                pass

        take(mine, pair[0])
        take(theirs, pair[1])
        nth = 1
        while True:
            interrupt = Interrupt(nth, MODULES)
            interrupt.run(lambda: take(mine, pair[0]))
            if interrupt.struck is None:
                break
            try:
                take(theirs, pair[1])
                take(mine, pair[0])
            except embedlog.LockTimeoutError as problem:
                pytest.fail(f"interrupted at {interrupt.struck}: {problem}")
            nth += 1
        assert nth > 20


@OF_THIS_INTERPRETER
@CAN_LOSE_A_DESCRIPTOR
def test_an_append_that_was_interrupted_anywhere_goes_in_once(tmp_path: Path) -> None:
    """The same stamped run again, after appends of another process."""
    settings = {"housekeeping": False, "lock.timeout.ms": PATIENCE_MS}
    with (
        embedlog.open(tmp_path / "log", config=settings) as log,
        embedlog.open(tmp_path / "log", config=settings) as other,
    ):
        log.create_topic("t", config={"segment.bytes": 1000})  # some of them roll
        mine = log._engine.partition("t", 0)
        theirs = other._engine.partition("t", 0)
        stamp = record.Stamp(2**62 + 7, 0)
        sequence = 0
        nth = 0
        expected = []
        while True:
            nth += 1
            run = encoded(b"mine %d" % nth)
            strange = encoded(b"theirs %d" % nth)
            sequence = record.stamp(run, stamp, sequence)
            interrupt = Interrupt(nth, MODULES)
            interrupt.run(partial(mine.append, run, stamp=stamp))
            theirs.append(strange)
            offset = mine.append(run, stamp=stamp).base_offset
            expected += [b"mine %d" % nth, b"theirs %d" % nth]
            found = [each.value for each in log.scan("t").records()]
            assert found[offset] == b"mine %d" % nth, interrupt.struck
            assert sorted(found) == sorted(expected), interrupt.struck
            if interrupt.struck is None:
                break
        assert nth > 25


def encoded(value: bytes) -> record.EncodedRun:
    column = record.BytesColumn(np.frombuffer(value, np.uint8), np.array([0, len(value)], np.int32))
    return next(iter(record.encode(record.Columns(1, column, timestamps=0))))


@OF_THIS_INTERPRETER
@CAN_LOSE_A_DESCRIPTOR
def test_a_sync_that_was_interrupted_anywhere_is_no_failed_sync(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the next one reports a failure, marks the segment and writes its bytes once more."""
    with embedlog.open(
        tmp_path / "log", config={"housekeeping": False, "lock.timeout.ms": PATIENCE_MS}
    ) as log:
        log.create_topic("t", config={"flush.ms": 3_600_000})
        with log.producer(linger_ms=0) as producer:
            nth = 0
            while True:
                nth += 1
                producer.send("t", b"%d" % nth).result(timeout=10)
                interrupt = Interrupt(nth, MODULES)
                interrupt.run(log.flush)
                log.flush()
                assert log.durable_offset("t", 0) == nth, interrupt.struck
                assert not list((tmp_path / "log" / "t-0").glob("embedlog.poison-*")), (
                    interrupt.struck
                )
                if interrupt.struck is None:
                    break
    assert nth > 100
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


def test_an_interrupt_does_not_hide_a_sync_that_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The call in C has counted it before the interrupt can strike."""
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log.create_topic("t", config={"flush.ms": 3_600_000})
        with log.producer() as producer:
            producer.send("t", b"v").result(timeout=10)
        partition = log._engine.partition("t", 0)
        checked = files.datasync

        def interrupted(fd: int, path: str | os.PathLike[str] = "") -> None:
            system.fault_arm(["fdatasync"], 1, "fail", errno.EIO)
            assert system.sync(fd, True) < 0
            system.fault_off()
            raise KeyboardInterrupt

        files.datasync = interrupted
        try:
            with pytest.raises(KeyboardInterrupt):
                partition.sync()
        finally:
            files.datasync = checked
        assert partition._state.page.word(system.WORD_SYNC_OWNER) != 0
        partition.sync()
    assert [record.message for record in caplog.records if "is marked" in record.message]
