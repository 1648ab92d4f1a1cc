"""Idempotence and transactions inside one partition: refused batches, repeats, visible records."""

from __future__ import annotations

import contextlib
import errno
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog._native import system
from embedlog.errors import (
    EmbedlogError,
    FencedError,
    InvalidRecordError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    StorageError,
    UnsupportedFormatError,
)
from embedlog.format import aborted_transactions, record_batch
from embedlog.format.record_batch import EncodedRun, Stamp
from embedlog.format.visibility import filter_visible as visible
from embedlog.partition.partition import Partition
from embedlog.storage import file_names
from tests.support.mutants import mutated
from tests.support.stamped_batches import run_of, send, stamped

A = 2**62 + 1
B = 2**62 + 2


def seen(partition: Partition, isolation: str = "read_uncommitted") -> list[bytes]:
    found = partition.fetch(0, isolation=isolation)
    batches = found.batches
    aborts = record_batch.aborts(found.data, found.batches)
    decoded = record_batch.decode(found.data, visible(batches, found.aborted, aborts))
    return [value or b"" for value in decoded.values or ()]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("events", config={"segment.bytes": 1 << 20})
        yield log


@pytest.fixture
def partition(log: embedlog.Log) -> Partition:
    return log._engine.partition("events", 0)


# ---- the rules, row by row (semantics A.5, A.6) --------------------------------------------------


def test_a_batch_sent_twice_is_in_the_log_once(partition: Partition) -> None:
    stamp = Stamp(A, 0)
    assert send(partition, stamp, 0, b"a", b"b") == (0, 1)
    assert send(partition, stamp, 2, b"c") == (2, 2)
    assert send(partition, stamp, 0, b"a", b"b") == (0, 1)
    assert send(partition, stamp, 2, b"c") == (2, 2)
    assert send(partition, stamp, 3, b"d") == (3, 3)
    assert seen(partition) == [b"a", b"b", b"c", b"d"]


def test_a_duplicate_under_append_time_has_the_time_of_the_first(log: embedlog.Log) -> None:
    log.create_topic("timed", config={"message.timestamp.type": "LogAppendTime"})
    partition = log._engine.partition("timed", 0)
    stamp = Stamp(A, 0)
    run = stamped(stamp, 0, b"a")
    first = partition.append(run, stamp=stamp)
    system.shift_wall(5000)
    try:
        assert partition.append(run, stamp=stamp) == first
    finally:
        system.shift_wall(0)


def test_five_batches_are_recognised_and_a_sixth_is_out_of_order(partition: Partition) -> None:
    stamp = Stamp(A, 0)
    for sequence in range(6):
        send(partition, stamp, sequence)
    for sequence in range(1, 6):
        assert send(partition, stamp, sequence) == (sequence, sequence)
    with pytest.raises(OutOfOrderSequenceError, match="expected sequence 6, found 0"):
        send(partition, stamp, 0)


def test_only_whole_batches_are_duplicates(partition: Partition) -> None:
    stamp = Stamp(A, 0)
    send(partition, stamp, 0, b"a", b"b")
    for sequence, values in ((0, (b"a",)), (1, (b"b",)), (0, (b"a", b"b", b"c"))):
        with pytest.raises(OutOfOrderSequenceError):
            send(partition, stamp, sequence, *values)


def test_a_gap_is_refused(partition: Partition) -> None:
    stamp = Stamp(A, 0)
    send(partition, stamp, 0, b"a")
    with pytest.raises(OutOfOrderSequenceError, match=r"expected sequence 1, found 2"):
        send(partition, stamp, 2, b"c")
    assert send(partition, stamp, 1, b"b") == (1, 1)


def test_an_older_epoch_is_fenced_and_a_newer_one_begins_at_0(partition: Partition) -> None:
    send(partition, Stamp(A, 1), 0)
    with pytest.raises(FencedError, match="expected 1, found 0"):
        send(partition, Stamp(A, 0), 1)
    with pytest.raises(OutOfOrderSequenceError, match="expected sequence 0, found 1"):
        send(partition, Stamp(A, 2), 1)
    assert send(partition, Stamp(A, 2), 0) == (1, 1)
    assert partition.stored_epoch(A) == 2
    assert partition.stored_epoch(B) == -1


def test_an_unknown_producer_may_begin_anywhere(partition: Partition) -> None:
    assert send(partition, Stamp(A, 3), 77) == (0, 0)
    assert send(partition, Stamp(A, 3), 78) == (1, 1)


def test_sequences_go_round(partition: Partition) -> None:
    stamp = Stamp(A, 0)
    assert send(partition, stamp, 2**31 - 2, b"a", b"b", b"c") == (0, 2)
    assert send(partition, stamp, 1) == (3, 3)
    assert send(partition, stamp, 2**31 - 2, b"a", b"b", b"c") == (0, 2)


def test_a_run_that_is_not_what_its_stamp_says_is_refused(partition: Partition) -> None:
    send(partition, Stamp(A, 0), 0)
    for stamp in (Stamp(B, 0), Stamp(A, 1)):
        with pytest.raises(InvalidRecordError, match="do not have the producer fields"):
            partition.append(stamped(Stamp(A, 0), 1, b"x"), stamp=stamp)
    with pytest.raises(InvalidRecordError, match="do not have the producer fields"):
        partition.append(run_of(b"x"), stamp=Stamp(-1, -1))


def test_a_control_batch_is_not_appended_like_data(partition: Partition) -> None:
    run = run_of(b"x")
    record_batch.set_header_fields(run.buffer, attributes=0x30)
    with pytest.raises(InvalidRecordError, match="control batch"):
        partition.append(run)
    assert partition.bounds().log_end == 0


@pytest.mark.parametrize(
    ("mutant_name", "stamp", "sequence"),
    [
        ("no_duplicate_check", Stamp(A, 1), 0),
        ("no_sequence_check", Stamp(A, 1), 5),
        ("no_epoch_fence", Stamp(A, 0), 0),
        ("no_open_check", Stamp(A, 1, True), 1),
    ],
)
def test_each_check_is_what_keeps_the_batch_out(
    partition: Partition, mutant_name: str, stamp: Stamp, sequence: int
) -> None:
    send(partition, Stamp(A, 1), 0, b"a")
    with contextlib.suppress(EmbedlogError):
        send(partition, stamp, sequence, b"a")
    assert partition.bounds().log_end == 1
    with (
        mutated(mutant_name),
        contextlib.suppress(OutOfOrderSequenceError if mutant_name == "no_duplicate_check" else ()),
    ):
        send(partition, stamp, sequence, b"a")
        assert partition.bounds().log_end == 2
        return
    assert mutant_name == "no_duplicate_check", "the other rules would have let it through"


def known(partition: Partition, anew: bool = False) -> tuple[object, ...]:
    """The producer states of a process: with the last batch of each, as in a snapshot."""
    if anew:
        partition._producers.forget()
    state = partition._producer_state()
    producers = [
        (
            each.producer_id,
            each.epoch,
            each.transaction_start,
            each.coordinator_epoch,
            each.timestamp,
            list(each.batches)[-1:],
        )
        for each in state.producers.values()
    ]
    return state.offset, state.open_transactions(), sorted(producers)


@pytest.mark.parametrize("append_time", [False, True])
def test_what_is_kept_of_own_appends_is_what_the_log_says(
    tmp_path: Path, append_time: bool
) -> None:
    """Two processes' worth of transactions and plain records at random; the expectation of a third
    reader.
    """
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with contextlib.ExitStack() as held:
        logs = [held.enter_context(embedlog.open(tmp_path / "log")) for _ in range(3)]
        time_type = "LogAppendTime" if append_time else "CreateTime"
        logs[0].create_topic(
            "events", config={"segment.bytes": 4000, "message.timestamp.type": time_type}
        )
        *own, third = [each._engine.partition("events", 0) for each in logs]
        epochs = {A: 0, B: 0}
        sequences = {A: 0, B: 0}
        opened = {A: False, B: False}
        for _ in range(150):
            partition = chance.choice(own)
            producer = chance.choice((A, A, B))
            if opened[producer] and chance.random() < 0.4:
                epochs[producer] = epochs[producer] + 1
                sequences[producer] = 0
                opened[producer] = False
                partition.append_marker(producer, epochs[producer], commit=chance.random() < 0.5)
            else:
                stamp = Stamp(producer, epochs[producer], True, not opened[producer])
                values = [b"v" * 20] * chance.randrange(1, 20)
                partition.append(
                    stamped(stamp, sequences[producer], *values, batch_bytes=200), stamp=stamp
                )
                sequences[producer] = sequences[producer] + len(values)
                opened[producer] = True
            assert known(partition) == known(third, anew=True)


def test_a_marker_behind_own_appends_reads_nothing(partition: Partition) -> None:
    for epoch in range(3):
        send(partition, Stamp(A, epoch, True, True), 0)
        send(partition, Stamp(A, epoch, True), 1)
        before = system.fault_counters()[0]["pread"]
        partition.append_marker(A, epoch + 1, commit=True)
    assert system.fault_counters()[0]["pread"] == before


# ---- transactions (A.8) --------------------------------------------------------------------------


def test_transactions_open_and_end(partition: Partition) -> None:
    opening = Stamp(A, 0, True, True)
    going_on = Stamp(A, 0, True)
    with pytest.raises(FencedError, match="no open transaction"):
        send(partition, going_on, 0)
    assert send(partition, opening, 0, b"a") == (0, 0)
    assert send(partition, going_on, 1, b"b") == (1, 1)
    assert send(partition, Stamp(B, 0), 0, b"plain") == (2, 2)
    assert partition.open_transactions() == [(A, 0, 0)]
    assert partition.bounds().last_stable == 0
    with pytest.raises(InvalidTransactionStateError):
        send(partition, Stamp(A, 0), 2)
    assert seen(partition, "read_committed") == []
    assert partition.append_marker(A, 1, commit=False) == 3
    assert partition.append_marker(A, 1, commit=False) is None
    assert partition.stored_epoch(A) == 1
    assert partition.open_transactions() == []
    assert seen(partition, "read_committed") == [b"plain"]
    assert seen(partition) == [b"a", b"b", b"plain"]
    with pytest.raises(FencedError):
        send(partition, going_on, 2)
    assert send(partition, Stamp(A, 1, True, True), 0, b"again") == (4, 4)
    assert partition.append_marker(A, 2, commit=True) == 5
    assert seen(partition, "read_committed") == [b"plain", b"again"]
    entries = (partition.path / file_names.file_name(0, file_names.TRANSACTION_INDEX)).read_bytes()
    assert len(entries) == 34


def test_an_old_marker_does_not_end_a_new_transaction(partition: Partition) -> None:
    send(partition, Stamp(A, 0, True, True), 0)
    partition.append_marker(A, 1, commit=True)
    send(partition, Stamp(A, 1, True, True), 0)
    assert partition.append_marker(A, 1, commit=True) is None, "a slow helper's"
    assert partition.open_transactions() == [(A, 1, 2)]
    with mutated("marker_not_skipped"):
        partition.append_marker(A, 1, commit=True)
    assert partition.open_transactions() == []


def test_a_coordinator_that_was_replaced_is_fenced(partition: Partition) -> None:
    send(partition, Stamp(A, 0, True, True), 0)
    partition.append_marker(A, 1, commit=True, coordinator_epoch=4)
    with pytest.raises(FencedError, match="expected coordinator epoch 4 or later, found 3"):
        partition.append_marker(A, 2, commit=True, coordinator_epoch=3)
    assert partition.append_marker(A, 2, commit=True, coordinator_epoch=4) == 2


def test_a_marker_where_nothing_is_open_fences_who_comes_late(partition: Partition) -> None:
    assert partition.append_marker(A, 5, commit=False) == 0
    with pytest.raises(FencedError):
        send(partition, Stamp(A, 4, True, True), 0)
    assert not (partition.path / file_names.file_name(0, file_names.TRANSACTION_INDEX)).exists(), (
        "nothing was aborted"
    )
    assert partition.bounds().last_stable == 1


def test_a_transaction_of_an_older_epoch_must_end_before_a_newer_one_begins(
    partition: Partition,
) -> None:
    send(partition, Stamp(A, 0, True, True), 0)
    with pytest.raises(InvalidTransactionStateError, match="epoch 0 is still open"):
        send(partition, Stamp(A, 1, True, True), 0)


def test_the_last_stable_offset_waits_for_the_oldest(partition: Partition) -> None:
    send(partition, Stamp(A, 0, True, True), 0, b"a")
    send(partition, Stamp(B, 0, True, True), 0, b"b")
    partition.append_marker(B, 1, commit=False)
    assert partition.bounds().last_stable == 0
    partition.append_marker(A, 1, commit=False)
    assert partition.bounds().last_stable == 4
    index = (partition.path / file_names.file_name(0, file_names.TRANSACTION_INDEX)).read_bytes()
    assert aborted_transactions.decode(index, 0).tolist() == [(0, B, 1, 2, 0), (0, A, 0, 3, 4)]


def test_a_marker_is_kafkas_to_the_byte() -> None:
    """Worked example of format.md 13.3: producer 4000 in epoch 2, offset 50, coordinator epoch
    9.
    """
    for commit, crc, key in ((True, "1739e40b", "00000001"), (False, "e3073243", "00000000")):
        made = bytearray(record_batch.marker_batch(4000, 2, commit, 9, 1700000000000))
        record_batch.stamp_offsets(made, 50, 7)
        assert made.hex() == (
            "00000000000000320000004200000007"
            "02" + crc + "003000000000"
            "0000018bcfe568000000018bcfe56800"
            "0000000000000fa00002ffffffff00000001"
            "2000000008" + key + "0c00000000000900"
        )


# ---- a result that is not known ------------------------------------------------------------------


def fails_to_be_undone(partition: Partition, stamp: Stamp, sequence: int) -> EncodedRun:
    """An append whose records lie in the log, whose index entry failed, and whose undoing failed,
    too.
    """
    run = stamped(stamp, sequence, b"y" * 5000)
    system.fault_arm(("pwrite", "ftruncate"), 2, "fail", errno.EIO, sticky=True)
    try:
        with pytest.raises(StorageError):
            partition.append(run, stamp=stamp)
    finally:
        system.fault_off()
    return run


def test_an_append_of_uncertain_fate_goes_in_once(partition: Partition) -> None:
    """SEQ-3."""
    stamp = Stamp(A, 0)
    assert send(partition, stamp, 0, b"x" * 5000) == (0, 0)
    run = fails_to_be_undone(partition, stamp, 1)
    assert partition.append(run, stamp=stamp)[:2] == (1, 1)
    assert send(partition, stamp, 2) == (2, 2)
    assert [len(each) for each in seen(partition)] == [5000, 5000, 1]


def test_without_the_doubt_behind_a_repair_it_goes_in_twice(partition: Partition) -> None:
    stamp = Stamp(A, 0)
    send(partition, stamp, 0, b"x" * 5000)
    run = fails_to_be_undone(partition, stamp, 1)
    with mutated("no_doubt"):
        partition.append(run, stamp=stamp)
    assert [len(each) for each in seen(partition)] == [5000, 5000, 5000]


def test_a_run_of_many_batches_that_went_in_partly(log: embedlog.Log) -> None:
    """Rolled in between, and interrupted after the sixth batch or later: written batches are found,
    however old.
    """
    log.create_topic("small", config={"segment.bytes": 4000})
    partition = log._engine.partition("small", 0)
    for broken_at in range(1, 12):
        stamp = Stamp(A + broken_at, 0)
        whole = stamped(
            stamp, broken_at * 100, *(b"%0500d" % number for number in range(40)), batch_bytes=600
        )
        start = partition.bounds().log_end
        system.fault_arm(("pwrite",), broken_at, "fail", errno.ENOSPC, name=".log")
        try:
            with contextlib.suppress(StorageError):
                partition.append(whole, stamp=stamp)
        finally:
            system.fault_off()
        found = partition.append(whole, stamp=stamp)
        assert (found.base_offset, found.last_offset) == (start, start + 39)
        assert [offset for piece in found.pieces for offset in range(*piece)] == list(
            range(start, start + 40)
        )
        assert partition.append(whole, stamp=stamp).base_offset == start, "and whole, once more"
        assert send(partition, stamp, broken_at * 100 + 40) == (start + 40, start + 40)


# ---- other changes of a partition ----------------------------------------------------------------


def test_idle_producers_are_forgotten_but_not_what_is_open(tmp_path: Path) -> None:
    with embedlog.open(
        tmp_path, config={"producer.id.expiration.ms": 1, "housekeeping": False}
    ) as log:
        log.create_topic("events")
        partition = log._engine.partition("events", 0)
        send(partition, Stamp(A, 3), 0)
        send(partition, Stamp(B, 4, True, True), 0)
        assert (partition.stored_epoch(A), partition.stored_epoch(B)) == (3, 4)
        late = system.boot_ns() + 2_000_000
        while system.boot_ns() < late:
            pass
        log.housekeep()
        assert (partition.stored_epoch(A), partition.stored_epoch(B)) == (-1, 4)
        assert send(partition, Stamp(A, 3), 1) == (2, 2), (
            "this process has its own last append in its cache"
        )
        assert send(partition, Stamp(A + 9, 0), 77) == (3, 3)


def test_what_is_cut_takes_its_producers_along(partition: Partition) -> None:
    """After a failed sync the log is truncated at a damaged batch: state, index and last stable
    offset are those before it.
    """
    send(partition, Stamp(A, 0, True, True), 0)
    send(partition, Stamp(B, 0, True, True), 0)
    size = partition.published().segment_size
    send(partition, Stamp(A, 0, True), 1, b"damaged")
    partition.append_marker(B, 1, commit=False)
    with (partition.path / file_names.file_name(0, file_names.LOG)).open("r+b") as file:
        file.seek(size + 65)
        file.write(b"!!!")
    assert partition._syncer.cut_lost(0) == 2
    assert partition.open_transactions() == [(A, 0, 0), (B, 0, 1)]
    assert partition.bounds().last_stable == 0
    assert (
        partition.path / file_names.file_name(0, file_names.TRANSACTION_INDEX)
    ).read_bytes() == b""
    assert send(partition, Stamp(A, 0, True), 1, b"again") == (2, 2)
    assert partition.append_marker(B, 1, commit=False) == 3
    partition.append_marker(A, 1, commit=True)
    assert seen(partition, "read_committed") == [b"x", b"again"]


def test_a_lost_transaction_index_is_made_again_before_anybody_is_answered(
    log: embedlog.Log, partition: Partition
) -> None:
    send(partition, Stamp(A, 0, True, True), 0, b"aborted")
    partition.append_marker(A, 1, commit=False)
    path = partition.path / file_names.file_name(0, file_names.TRANSACTION_INDEX)
    whole = path.read_bytes()
    for damaged in (
        b"",
        whole[:20],
        whole[:9] + b"\x55" + whole[10:],
        whole[:17] + b"\x01" + whole[18:],
    ):
        path.write_bytes(damaged)
        assert seen(partition, "read_committed") == []
        assert path.read_bytes() == whole


def write_version(partition: Partition, version: int) -> None:
    """The page contains it twice."""
    with (partition.path / file_names.PAGE).open("r+b") as file:
        for position in (8, 68):
            file.seek(position)
            file.write(version.to_bytes(4, "little"))


def test_a_page_of_another_version_in_this_incarnation_is_refused(
    log: embedlog.Log, partition: Partition
) -> None:
    """A process whose embedlog does not know this layout has the log open; or this library does not
    know the other's layout.
    """
    send(partition, Stamp(A, 0), 0)
    for version, words in ((1, "an older embedlog"), (9, "a newer embedlog")):
        write_version(partition, version)
        with pytest.raises(UnsupportedFormatError, match=words):
            partition._state.remap()
        write_version(partition, system.PAGE_VERSION)
        partition._state.remap()
    assert send(partition, Stamp(A, 0), 1) == (1, 1)


def test_who_waits_for_committed_records_is_woken_by_the_marker(
    log: embedlog.Log, partition: Partition
) -> None:
    send(partition, Stamp(A, 0, True, True), 0, b"a")
    with log.consumer(
        "events", auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        assert consumer.poll(timeout=0.0) == []
        ending = threading.Timer(0.05, lambda: partition.append_marker(A, 1, commit=True))
        ending.start()
        assert [each.value for each in consumer.poll(timeout=20.0)] == [b"a"]
        ending.join()


def test_a_read_only_reader_knows_what_is_open(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("events")
        send(log._engine.partition("events", 0), Stamp(A, 2, True, True), 0)
        with embedlog.open(tmp_path / "log", read_only=True) as reader:
            assert reader._engine.partition("events", 0).open_transactions() == [(A, 2, 0)]
    with embedlog.open(tmp_path / "log", read_only=True) as reader:
        partition = reader._engine.partition("events", 0)
        assert partition.open_transactions() == [(A, 2, 0)]
        assert partition.stored_epoch(A) == 2


def test_what_others_append_during_the_read_is_read_before_the_lock_too(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new process reads the log while others append to it: what is left is read under their lock,
    and makes them wait.
    """
    from embedlog.partition import producer_sequences

    other = Stamp(B, 0)
    sequence = 0
    reads: list[int] = []  # the records of each
    fresh = producer_sequences.ProducerSequences(partition._state, partition._segments)
    walk = fresh._walk

    def appended(count: int) -> None:
        nonlocal sequence
        for _ in range(count):
            send(partition, other, sequence, b"x")
            sequence += 1

    def observed(state: Any, now: Any) -> None:
        reads.append(now.log_end - state.offset)
        walk(state, now)
        if len(reads) <= 3:
            # each read is shorter, and so is what happens meanwhile
            appended(40 // 4 ** len(reads))

    appended(50)
    monkeypatch.setattr(producer_sequences, "FEW_RECORDS", 2)
    monkeypatch.setattr(fresh, "_walk", observed)
    fresh.catch_up()
    assert fresh.caught_up is not None
    assert partition.published().log_end - fresh.caught_up.offset <= 2
    assert reads == [50, 10]
