"""Compaction of real logs: the last value of every key keeps its offset, and nothing else is lost
for any reader.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog._native import system
from embedlog.errors import EmbedlogError, StorageError
from embedlog.partition.compaction import cleaner, swap
from embedlog.storage import file_names
from embedlog.storage.manifest import SegmentInfo
from tests.faults.power.powerloss import Disk, changes, materialise
from tests.support.batches import crc32c
from tests.support.compacted_logs import (
    COMPACT,
    last_values,
    opened,
    put,
    random_pairs,
    rows,
    table,
)

TP = TopicPartition("t", 0)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_the_last_value_of_every_key_stays_at_its_offset(tmp_path: Path, codec: str) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    pairs: list[tuple[bytes, bytes | None]] = []
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config=COMPACT)
        for _ in range(4):
            more = random_pairs(rng, 300)
            put(log, more, compression_type=codec)
            pairs += more
            before = {offset: (key, value) for offset, key, value in rows(log)}
            log.housekeep()
            after = rows(log)
            assert all(before[offset] == (key, value) for offset, key, value in after)
            assert table(after) == last_values(pairs)
        partition = log._engine.partition("t", 0)
        now = partition.published()
        sealed = [(key, offset) for offset, key, _ in after if offset < now.segment_base]
        assert len(sealed) == len({key for key, _ in sealed})
        assert now.purged_to == now.segment_base
        assert log.consumer().end_offsets([TP]) == {TP: len(pairs)}
    with opened(tmp_path / "log", **{"log.cleaner.enable": False}) as log:
        assert rows(log) == after
    (tmp_path / "log" / ".kafka_cleanshutdown").unlink()
    for page in (tmp_path / "log" / "t-0").glob("embedlog.*"):
        page.unlink()
    with opened(tmp_path / "log") as log:
        assert rows(log) == after


def test_tombstones_go_one_pass_after_their_horizon(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config={**COMPACT, "delete.retention.ms": 60_000})
        put(log, [(b"a", b"1"), (b"b", b"1"), (b"a", None)] + [(b"fill", b"x" * 150)] * 14)
        log.housekeep()
        assert [key for _, key, _ in rows(log)].count(b"a") == 1
        put(log, [(b"fill", b"x" * 150)] * 14)
        log.housekeep()
        assert [key for _, key, _ in rows(log)].count(b"a") == 1
        system.shift_wall(120_000)
        try:
            put(log, [(b"fill", b"x" * 150)] * 14)
            log.housekeep()
        finally:
            system.shift_wall(0)
        assert [key for _, key, _ in rows(log)].count(b"a") == 0
        assert [key for _, key, _ in rows(log)].count(b"b") == 1


@pytest.mark.parametrize("lost", ["removed", "emptied"])
def test_a_control_page_lost_during_a_pass_loses_no_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """The next use of the partition loads it again, and removes the files of the pass before their
    swap.
    """
    pairs = [(b"k%d" % (n % 40), b"v%d" % n) for n in range(400)]
    page = tmp_path / "log" / "t-0" / file_names.PAGE
    write = cleaner._Pass.write

    def interrupted(
        work: cleaner._Pass, group: list[SegmentInfo], end: int
    ) -> tuple[SegmentInfo, bytes]:
        made = write(work, group, end)
        if lost == "removed":
            page.unlink()
        else:
            os.truncate(page, 0)
            os.truncate(page, system.PAGE_BYTES)
        return made

    with opened(tmp_path / "log") as log:
        log.create_topic("t", config=COMPACT)
        put(log, pairs)
        monkeypatch.setattr(cleaner._Pass, "write", interrupted)
        log.housekeep()
        monkeypatch.undo()
        assert table(rows(log)) == dict(pairs)
        log.housekeep()
        assert table(rows(log)) == dict(pairs)
        assert log._engine.partition("t", 0).published().purged_to > 0, (
            "the next pass does the work"
        )
    with opened(tmp_path / "log") as log:
        assert table(rows(log)) == dict(pairs)


@pytest.mark.parametrize(
    "step",
    [(cleaner.LogCleaner, "find_due"), (cleaner._Pass, "write")],
    ids=["after its bounds", "after its files"],
)
def test_a_log_that_is_cut_during_a_pass_keeps_its_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: tuple[type, str]
) -> None:
    """After a cut a segment with other records can have the base and the size of the one that was
    read.

    The bounds of the pass can be above the high watermark then.
    """
    pairs = [(b"k%d" % (number % 7), b"v%d" % number * 8) for number in range(200)]
    original = getattr(*step)

    with opened(tmp_path / "log") as log:
        log.create_topic("t", config=COMPACT)
        put(log, pairs)
        before = rows(log)
        page = log._engine.partition("t", 0).mapped_page

        def cut(*arguments: Any) -> Any:
            found = original(*arguments)
            page.add(system.WORD_CUTS, 1)
            return found

        with monkeypatch.context() as patch:
            patch.setattr(*step, cut)
            log.housekeep()
        assert rows(log) == before
        log.housekeep()
        assert len(rows(log)) < len(before)
        assert table(rows(log)) == last_values(pairs)


@pytest.mark.parametrize("repaired", [False, True])
def test_no_power_loss_during_a_swap_loses_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repaired: bool
) -> None:
    """Any of the renames of a swap may be on the disk, and any may be missing: renames are not
    ordered without a sync.

    The same holds for a repair that finishes the swap of a process that failed after the first
    renames.
    """

    def failing(*_: object) -> None:
        monkeypatch.undo()
        raise StorageError("a failed rename", errno=errno.EIO)

    root = tmp_path / "log"
    recording = tmp_path / "recording"
    opens = 0
    pairs = [(b"k%d" % (n % 10), b"v%d" % n * 20) for n in range(60)]
    fd = os.open(recording, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    system.record_to(fd)
    try:
        with opened(root) as log:
            log.create_topic("t", config=COMPACT)
            put(log, pairs)
            log.flush()
            log.alter_topic("t", {"segment.bytes": 100_000})  # several segments become one
            before = sum(1 for _ in changes(recording))
            if repaired:
                monkeypatch.setattr(swap, "_set_aside", failing)
            log.housekeep()
            assert table(rows(log)) == dict(pairs)
    finally:
        system.record_to(-1)
        os.close(fd)
    disk = Disk(root)
    partition = str(root / "t-0")
    for at, change in enumerate(changes(recording)):
        renamed = disk.folders[partition].pending if at > before else []
        if (
            change.kind == "fsync"
            and change.name == partition
            and any(None in names.values() for names in renamed)
        ):
            for state in disk.states_by_name(partition):
                target = tmp_path / f"cut-{opens}"
                materialise(state, root, target, list(disk.folders))
                with opened(target) as log:
                    assert table(rows(log)) == dict(pairs), (
                        f"{opens}: {sorted(Path(name).name for name in state)}"
                    )
                shutil.rmtree(target)
                opens += 1
        disk.replay(change)
    assert opens > 20


def test_a_map_that_is_too_small_takes_several_passes(tmp_path: Path) -> None:
    pairs: list[tuple[bytes, bytes | None]] = [(b"k%d" % (n % 100), b"v%d" % n) for n in range(600)]
    with opened(tmp_path / "log", **{"log.cleaner.dedupe.buffer.size": 1024}) as log:
        log.create_topic("t", config=COMPACT)
        put(log, pairs)
        log.housekeep()
        base = log._engine.partition("t", 0).published().segment_base
        after = rows(log)
        assert table(after) == last_values(pairs)
        assert sum(offset < base for offset, *_ in after) == 100


def test_nothing_is_compacted_below_the_dirty_ratio_or_within_the_lag(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config={**COMPACT, "min.compaction.lag.ms": 3_600_000})
        put(log, [(b"k", b"x" * 100)] * 60)
        before = rows(log)
        log.housekeep()
        assert rows(log) == before
        log.alter_topic("t", {"min.compaction.lag.ms": 0, "min.cleanable.dirty.ratio": 0.99})
        log.housekeep()
        base = log._engine.partition("t", 0).published().segment_base
        assert sum(offset < base for offset, *_ in rows(log)) == 1
        put(log, [(b"k%d" % n, b"x" * 100) for n in range(60)])
        log.alter_topic("t", {"min.cleanable.dirty.ratio": 1.0})
        before = rows(log)
        log.housekeep()
        assert rows(log) == before


def test_a_reader_in_the_middle_goes_on_over_the_swap(tmp_path: Path) -> None:
    pairs: list[tuple[bytes, bytes | None]] = [
        (b"k%d" % (n % 7), b"v%d" % n * 20) for n in range(400)
    ]
    path = tmp_path / "log"
    with opened(path) as log, opened(path) as other, embedlog.open(path, read_only=True) as third:
        log.create_topic("t", config=COMPACT)
        put(log, pairs)
        readers = [
            each.consumer("t", auto_offset_reset="earliest", fetch_max_bytes=500)
            for each in (log, other, third)
        ]
        seen: list[list[Any]] = [reader.poll(10, max_records=5) for reader in readers]
        log.housekeep()
        for reader, records in zip(readers, seen, strict=True):
            while more := reader.poll(0):
                records += more
            offsets = [record.offset for record in records]
            assert offsets == sorted(set(offsets))
            assert offsets[-1] == len(pairs) - 1
            assert {record.key: record.value for record in records} == dict(pairs)
            reader.close()


def test_damage_is_not_compacted_away(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config=COMPACT)
        put(log, [(b"k%d" % (n % 7), b"v%d" % n * 20) for n in range(200)])
        log.flush()
        first = tmp_path / "log" / "t-0" / f"{0:020d}.log"
        raw = bytearray(first.read_bytes())
        raw[900] ^= 1
        first.write_bytes(raw)
        names = sorted(each.name for each in first.parent.iterdir())
        log.housekeep()
        assert first.read_bytes() == raw
        assert sorted(each.name for each in first.parent.iterdir()) == names
        with pytest.raises(EmbedlogError):
            rows(log)


def test_aborted_records_and_their_markers_go(tmp_path: Path) -> None:
    from embedlog.format import record_batch as record
    from embedlog.format.record_batch import Stamp
    from embedlog.format.record_columns import BytesColumn, Columns

    def run(pairs: list[tuple[bytes, bytes]]) -> Any:
        keys, values = (BytesColumn.of([pair[place] for pair in pairs]) for place in (0, 1))
        (made,) = record.encode(Columns(len(pairs), values, keys, 1_700_000_000_000))
        return made

    with opened(tmp_path / "log") as log:
        log.create_topic("t", config={**COMPACT, "delete.retention.ms": 0})
        partition = log._engine.partition("t", 0)
        put(log, [(b"a", b"old"), (b"b", b"old")])
        for producer, key, commit in ((11, b"a", False), (12, b"b", True)):
            made = run([(key, b"new")])
            stamp = Stamp(producer, 0, True, opens=True)
            record.stamp(made, stamp, 0)
            partition.append(made, stamp=stamp)
            partition.append_marker(producer, 1, commit=commit)
        for _ in range(3):
            put(log, [(b"fill", b"x" * 150)] * 30)
            log.housekeep()
        committed = table(rows(log, isolation_level="read_committed"))
        assert committed == {b"a": b"old", b"b": b"new", b"fill": b"x" * 150}
        assert table(rows(log)) == committed
        assert partition.stored_epoch(11) == 1
        assert partition.stored_epoch(12) == 1


def test_a_brokers_compacted_topic_is_cleaned_further(golden_copy: Callable[[str], Path]) -> None:
    directory = golden_copy("clean")

    def state(log: embedlog.Log) -> dict[tuple[int, bytes | None], bytes | None]:
        return {(each.partition, each.key): each.value for each in log.scan("compacted").records()}

    with opened(directory) as log:
        log.alter_topic("compacted", {**COMPACT, "segment.bytes": 1000})
        before = state(log)
        with log.producer(linger_ms=0, batch_size=100) as producer:
            for number in range(60):
                producer.send(
                    "compacted", key=b"ours%d" % (number % 3), value=b"x" * 100, partition=0
                )
        count = sum(1 for _ in log.scan("compacted").records())
        log.housekeep()
        assert sum(1 for _ in log.scan("compacted").records()) < count - 30
        after = state(log)
    gone = {key for key, value in before.items() if value is None} - after.keys()
    assert {
        key: value for key, value in after.items() if not (key[1] or b"").startswith(b"ours")
    } == {key: value for key, value in before.items() if key not in gone}


def test_a_batch_that_was_emptied_has_no_say_in_the_time_index(tmp_path: Path) -> None:
    """It keeps its largest timestamp, but no record has it: dump-log calls an entry that names it a
    mismatch.
    """
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config={**COMPACT, "index.interval.bytes": 0})
        with log.producer(linger_ms=0) as once:
            once.send("t", key=b"a", value=b"old", timestamp_ms=9_000).result(10)
        with log.producer(linger_ms=0) as producer:
            producer.send("t", key=b"b", value=b"stays", timestamp_ms=500).result(10)
            for number in range(30):
                producer.send("t", key=b"a", value=b"x" * 150, timestamp_ms=1_000 + number).result(
                    10
                )
        log.housekeep()
        first = next(iter(sorted((tmp_path / "log" / "t-0").glob("*.timeindex"))))
        times = [
            int.from_bytes(first.read_bytes()[at : at + 8], "big")
            for at in range(0, first.stat().st_size, 12)
        ]
        assert times == [500]


def test_a_batch_that_no_reader_takes_has_no_say_over_the_records_of_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A record of the same key, with an offset after its batch: if it counted, it would replace a
    good one.
    """
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config=COMPACT | {"segment.bytes": 300})
        put(log, [(b"k", b"old")])
        put(log, [(b"n%d" % n, b"v" * 60) for n in range(3)])
        put(log, [(b"k", b"new")])
        put(log, [(b"m%d" % n, b"v" * 60) for n in range(6)])
        log.flush()
        before = {offset: (key, value) for offset, key, value in rows(log)}
    first = tmp_path / "log" / "t-0" / f"{0:020d}.log"
    raw = bytearray(first.read_bytes())
    # timestamp delta, offset delta, then the key's length and the key
    at = raw.index(b"\x02k\x06old") - 2
    assert raw[at : at + 2] == b"\0\0"
    raw[at + 1] = 0x7E  # offset delta 63
    size = int.from_bytes(raw[8:12], "big") + 12
    raw[17:21] = crc32c(bytes(raw[21:size])).to_bytes(4, "big")
    first.write_bytes(raw)
    mark = tmp_path / "log" / ".kafka_cleanshutdown"
    mark.unlink()
    # a broker was here: our digests are no witnesses any more
    mark.write_text('{"version":0,"brokerEpoch":7}')
    with opened(tmp_path / "log") as log:
        log.housekeep()
        assert first.read_bytes() == raw
        after = {
            record.offset: (record.key, record.value)
            for record in log.scan("t", start_offset=1).records()
        }
        with pytest.raises(EmbedlogError, match="outside its batch"):
            rows(log)
    assert after == {offset: row for offset, row in before.items() if offset > 0}
    assert "compaction of t-0" in caplog.text
    assert "outside its batch" in caplog.text


def test_a_group_of_which_retention_removes_a_part_during_a_pass_is_compacted_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [(b"k%d" % (number % 7), b"v%d" % number * 8) for number in range(200)]
    original = cleaner._Pass.swap
    groups: list[list[SegmentInfo]] = []
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config={**COMPACT, "cleanup.policy": "compact,delete"})
        put(log, pairs)
        log.alter_topic("t", {"segment.bytes": 8000})  # the size of a group

        def swap_later(
            run: Any, group: list[SegmentInfo], new_segment: SegmentInfo, records: bytes, end: int
        ) -> bool:
            if not groups:
                log.delete_records({TP: group[1].base})
            groups.append(group)
            return bool(original(run, group, new_segment, records, end))

        with monkeypatch.context() as patch:
            patch.setattr(cleaner._Pass, "swap", swap_later)
            log.housekeep()
        assert len(groups[0]) > 2
        log.housekeep()
        now = log._engine.partition("t", 0).published()
        sealed = [key for offset, key, _ in rows(log) if offset < now.segment_base]
        assert len(sealed) == len(set(sealed))
        assert table(rows(log)) == last_values(pairs)
