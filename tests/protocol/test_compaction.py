"""SWAP-1 to SWAP-3 of the protocol: swaps, purged offsets, one housekeeper on which no process
depends; and with the rule off.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog._native import system
from embedlog.errors import EmbedlogError, LockTimeoutError
from embedlog.format import record_batch
from embedlog.format.record_batch import Stamp
from embedlog.format.record_columns import BytesColumn, Columns
from embedlog.partition.compaction import cleaner
from embedlog.partition.compaction import swap as replacement
from embedlog.storage import file_names
from tests.faults.harness.processes import Died, Nursery, Victim, until
from tests.support.compacted_logs import (
    COMPACT,
    QUIET,
    check,
    last_values,
    made,
    opened,
    put,
    rows,
    table,
)
from tests.support.internal_topics import Newest, topic_of
from tests.support.mutants import mutated

FILL: list[tuple[bytes, bytes | None]] = [(b"fill", b"x" * 150)] * 30


def transact(
    log: embedlog.Log, producer: int, key: bytes, value: bytes, commit: bool | None
) -> None:
    """One record of a transaction, written by hand, and its marker, if it is to have one."""
    stamp = Stamp(producer, 0, True, opens=True)
    (run,) = record_batch.encode(
        Columns(1, BytesColumn.of([value]), BytesColumn.of([key]), 1_700_000_000_000)
    )
    record_batch.stamp(run, stamp, 0)
    partition = log._engine.partition("t", 0)
    partition.append(run, stamp=stamp)
    if commit is not None:
        partition.append_marker(producer, 1, commit=commit)


# ---- SWAP-1: swaps ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "mutant"), [(1, ""), (2, ""), (3, ""), (4, ""), (2, "swap_unfinished")]
)
def test_swap_1_a_swap_that_was_broken_off_is_finished(
    nursery: Nursery,
    tmp_path: Path,
    seed: int,
    caplog: pytest.LogCaptureFixture,
    step: int,
    mutant: str,
) -> None:
    """The places between which the files of a segment are neither the old ones nor the new ones."""
    pairs = made(tmp_path / "log", seed)
    with opened(tmp_path / "log", **{"lock.timeout.ms": 500 if mutant else 10_000}) as log:
        before = {offset: (key, value) for offset, key, value in rows(log)}
        victim = nursery.spawn()
        victim.call("open", str(tmp_path / "log"), **QUIET)
        victim.arm(["point"], "kill_before", name="swap-step", nth=step)
        with pytest.raises(Died):
            victim.call("on_log", "housekeep")
        assert log._engine.partition("t", 0)._state.page.read().generation % 2 == 1
        with mutated(mutant), caplog.at_level(logging.CRITICAL):
            try:
                check(log, pairs, before)
                seen = log._engine.partition("t", 0)._state.page.read().generation % 2 == 0
            except (AssertionError, EmbedlogError) as problem:
                print(problem)
                seen = False
        assert seen == (mutant == "")


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_swap_1_the_next_housekeeper_finishes_a_swap_before_it_begins_its_own(
    nursery: Nursery,
    tmp_path: Path,
    seed: int,
    step: int,
) -> None:
    """The output of the next one is `.cleaned`: beside a `.swap` that would mean that the swap was
    not reached.
    """
    pairs = made(tmp_path / "log", seed)
    with opened(tmp_path / "log") as log:
        before = {offset: (key, value) for offset, key, value in rows(log)}
        # so that nothing but the swap needs the append lock
        log._engine.partition("t", 0)._lock.current_producers()
        victim = nursery.spawn()
        victim.call("open", str(tmp_path / "log"), **QUIET)
        victim.arm(["point"], "kill_before", name="swap-step", nth=step)
        with pytest.raises(Died):
            victim.call("on_log", "housekeep")
        partition = log._engine.partition("t", 0)
        assert partition._state.page.read().generation % 2 == 1
        partition.compact(-1, 1 << 20, system.wall_ms())
        check(log, pairs, before)


@pytest.mark.parametrize("mutant", ["", "silent_swap"])
def test_swap_1_files_that_were_opened_before_a_swap_are_forgotten(
    nursery: Nursery,
    tmp_path: Path,
    seed: int,
    mutant: str,
) -> None:
    """Without the generation a reader continues in files that are not the segment's any more."""
    pairs = made(tmp_path / "log", seed)
    cleaner = nursery.spawn()
    cleaner.mutate([mutant] if mutant else [])
    cleaner.call("open", str(tmp_path / "log"), **QUIET)
    with opened(tmp_path / "log") as other:
        before = {offset: (key, value) for offset, key, value in rows(other)}
        cleaner.call("on_log", "housekeep")
        try:
            check(other, pairs, before)
            seen = len(rows(other)) < len(before)
        except (AssertionError, EmbedlogError) as problem:
            print(problem)
            seen = False
        assert seen == (mutant == "")


@pytest.mark.parametrize("mutant", ["", "mixed_moments"])
def test_swap_1_what_was_read_before_a_swap_is_not_judged_by_what_is_there_behind_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mutant: str,
) -> None:
    """The records of an aborted transaction, read a moment before their removal: the present index
    does not contain it.
    """
    with opened(tmp_path / "log") as log, opened(tmp_path / "log") as reader:
        log.create_topic("t", config=COMPACT)
        transact(log, 11, b"a", b"aborted", commit=False)
        put(log, FILL)
        partition = reader._engine.partition("t", 0)
        fetch = partition._reader._fetch
        swaps = []

        def fetch_and_swap(*arguments: Any) -> Any:
            found = fetch(*arguments)
            if not swaps:
                swaps.append(1)
                for _ in range(3):  # its marker goes a pass later
                    put(log, FILL)
                    log.housekeep()
            return found

        monkeypatch.setattr(partition._reader, "_fetch", fetch_and_swap)
        with mutated(mutant):
            found = rows(reader, isolation_level="read_committed")
        assert swaps
        assert ([value for _, key, value in found if key == b"a"] == [b"aborted"]) == bool(mutant)


def test_swap_1_a_reader_goes_on_however_often_files_are_replaced_under_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened(tmp_path / "log") as log, opened(tmp_path / "log") as reader:
        log.create_topic("t", config=COMPACT)
        put(log, FILL)
        partition = reader._engine.partition("t", 0)
        fetch = partition._reader._fetch
        swaps = []

        def fetch_and_swap(*arguments: Any) -> Any:
            found = fetch(*arguments)
            if len(swaps) < 5:
                swaps.append(1)
                put(log, FILL)
                log.housekeep()
            return found

        monkeypatch.setattr(partition._reader, "_fetch", fetch_and_swap)
        assert rows(reader)[-1][0] == 6 * len(FILL) - 1


@pytest.mark.parametrize("mutant", ["", "clean_undecided"])
def test_what_is_undecided_replaces_nothing(tmp_path: Path, mutant: str) -> None:
    """A transaction's record takes the place of an older one only once it counts: it may be aborted
    yet.
    """
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config=COMPACT)
        put(log, [(b"a", b"stays"), *FILL])
        transact(log, 11, b"a", b"aborted later", commit=None)
        put(log, FILL)
        with mutated(mutant):
            log.housekeep()
        log._engine.partition("t", 0).append_marker(11, 1, commit=False)
        put(log, FILL)
        log.housekeep()
        assert (b"a" in table(rows(log, isolation_level="read_committed"))) == (mutant == "")


# ---- SWAP-2: purged offsets --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mutant", "page_lost"),
    [("", False), ("", True), ("purge_unnoted", False), ("trust_old_look", False)],
)
def test_swap_2_who_looked_before_a_compaction_begins_again(
    tmp_path: Path, mutant: str, page_lost: bool
) -> None:
    """The record and its tombstone are gone: nothing that is left would tell an old look that the
    key is.

    A control page that is made again has no `purged_to`, but a new leader epoch.
    """
    settings = {
        "segment.bytes": 1000,
        "delete.retention.ms": 0,
        "min.cleanable.dirty.ratio": 0.0,
        "file.delete.delay.ms": 0,
    }

    def write(key: bytes, value: bytes | None) -> None:
        with topic.lock_for_decision(0, time.monotonic_ns() + 10**13) as decision:
            decision.append([(key, value)])

    with opened(tmp_path / "log") as log, opened(tmp_path / "log") as other:
        topic = topic_of(log, **settings)
        topic.partition_of("a")
        write(b"gone", b"1")
        stale = topic_of(other, **settings)
        assert b"gone" in stale.view(0).values
        write(b"gone", None)
        with mutated(mutant):
            for _ in range(3):
                for number in range(30):
                    write(b"fill", b"%0100d" % number)
                log.housekeep()
            fresh: Newest = topic_of(other, **settings).view(0)
            assert b"gone" not in fresh.values
            assert fresh.applied < 60, "it was compacted"
            if page_lost:
                page = topic.partition(0).path / file_names.PAGE
                os.truncate(page, 0)
                os.truncate(page, system.PAGE_BYTES)
            found = stale.view(0)
        assert found.values[b"fill"] == fresh.values[b"fill"]
        assert (b"gone" in found.values) == (mutant != "")


# ---- SWAP-3: one housekeeper, and no process depends on it ---------------------------------------------------------------


def frozen_housekeeper(nursery: Nursery, path: Path) -> Victim:
    """It stopped when its output was on stable storage, and nothing was replaced yet."""
    frozen = nursery.spawn()
    frozen.call("open", str(path), **QUIET)
    frozen.arm(["fsync", "fdatasync"], "stop_after", name=".log.cleaned")
    frozen.start("on_log", "housekeep")
    frozen.wait_stopped()
    return frozen


def test_swap_3_there_is_one_housekeeper_at_a_time(
    nursery: Nursery, tmp_path: Path, seed: int
) -> None:
    """Two would write the same `.cleaned` files, or swap in the output of segments that the other
    one has replaced.
    """
    pairs = made(tmp_path / "log", seed)
    frozen = frozen_housekeeper(nursery, tmp_path / "log")
    with opened(tmp_path / "log", **{"lock.timeout.ms": 300}) as log:
        before = {offset: (key, value) for offset, key, value in rows(log)}
        with pytest.raises(LockTimeoutError):
            log.housekeep()
        frozen.resume()
        frozen.result()
        check(log, pairs, before)
        assert len(rows(log)) < len(before)


@pytest.mark.parametrize("checked", [True, False])
def test_swap_3_without_that_lock_only_a_check_of_the_files_prevents_a_swap_of_segments_that_are_gone(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    """The second housekeeper does a whole round between the files that the first one has made and
    its swap.
    """
    pairs = made(tmp_path / "log", seed)
    swap = cleaner._Pass.swap

    def two_rounds() -> dict[int, tuple[bytes, bytes | None]]:
        with (
            opened(tmp_path / "log") as log,
            opened(tmp_path / "log") as other,
            mutated("many_housekeepers"),
        ):
            before = {offset: (key, value) for offset, key, value in rows(log)}

            def late(*arguments: Any) -> bool:
                monkeypatch.undo()
                other.housekeep()
                if not checked:
                    monkeypatch.setattr(replacement, "_can_begin", lambda *_: True)
                return swap(*arguments)

            monkeypatch.setattr(cleaner._Pass, "swap", late)
            log.housekeep()
            monkeypatch.undo()
            check(log, pairs, before)
            return before

    def twice() -> None:
        before = two_rounds()  # an empty segment that is missing is noticed when the log is opened
        with opened(tmp_path / "log") as log:
            check(log, pairs, before)

    if checked:
        twice()
        return
    with pytest.raises((AssertionError, EmbedlogError)) as caught:
        twice()
    print(caught.value)


def test_swap_3_a_frozen_housekeeper_keeps_nobody_from_appending_or_reading(
    nursery: Nursery, tmp_path: Path, seed: int
) -> None:
    pairs = made(tmp_path / "log", seed)
    frozen = frozen_housekeeper(nursery, tmp_path / "log")
    with opened(tmp_path / "log", **{"lock.timeout.ms": 300}) as log:
        put(log, [(b"new", b"1"), *FILL])
        assert table(rows(log)) == last_values([*pairs, (b"new", b"1"), *FILL])
        frozen.resume()
        frozen.result()
        assert table(rows(log)) == last_values([*pairs, (b"new", b"1"), *FILL])


@pytest.mark.parametrize("mutant", ["", "leave_to_housekeeper"])
def test_swap_3_who_waits_for_what_the_housekeeper_should_do_does_it_himself(
    nursery: Nursery,
    tmp_path: Path,
    seed: int,
    mutant: str,
) -> None:
    """A dead producer's transaction keeps readers back, records grow older than `flush.ms`, and the
    housekeeper is frozen.
    """
    made(tmp_path / "log", seed)
    frozen = frozen_housekeeper(nursery, tmp_path / "log")
    with opened(tmp_path / "log") as log:
        log.alter_topic("t", {"flush.ms": 50})
        dead = nursery.spawn()
        dead.call("open", str(log.path), **QUIET)
        dead.call("leave_open", b"open")
        dead.kill()
        end = log._engine.partition("t", 0).bounds().high_watermark
        with mutated(mutant):
            with log.consumer(
                "t", auto_offset_reset="earliest", isolation_level="read_committed"
            ) as consumer:
                put(log, [(b"behind", b"it")])
                deadline = time.monotonic() + (0.6 if mutant else 20)
                found: list[Any] = []
                while not found and time.monotonic() < deadline:
                    found = [each for each in consumer.poll(timeout=0.2) if each.key == b"behind"]
            assert bool(found) == (mutant == "")
            late = time.monotonic() + 0.1
            until(lambda: time.monotonic() > late, "records to grow older than flush.ms")
            put(log, [(b"late", b"1")])
            assert (log.durable_offset("t", 0) > end) == (mutant == "")
        frozen.resume()
        frozen.result()
