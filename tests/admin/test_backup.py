"""Backups: consistent under writers, rolls, retention and deletion; closed in Kafka's form; never
of damage, never half a one.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import OffsetAndMetadata, TopicPartition
from embedlog._native import system
from embedlog.admin.backup import _Copier
from embedlog.errors import (
    ClosedError,
    CorruptRecordError,
    DirectoryInUseError,
    EmbedlogError,
    ForeignDirectoryError,
    StorageError,
)
from embedlog.storage.identity import read_meta
from tests.faults.harness.content import Row, check
from tests.faults.harness.processes import Died, Nursery
from tests.faults.harness.stage import FakeBroker, Play
from tests.support.backups import KEPT, QUIET, content, fill, rows
from tests.support.backups import log as log
from tests.support.changes_during_copies import deleting
from tests.support.golden_records import OF_CLEAN, OF_UNCLEAN, consumed, wanted

Expected = Callable[[str, str], list[dict[str, object]]]


def names_below(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


# ---- the copy --------------------------------------------------------------------------------------------------------


def test_the_copy_holds_the_same_and_is_a_closed_log_directory(
    log: embedlog.Log, tmp_path: Path
) -> None:
    log.alter_topic("t", {"retention.ms": 10**12})
    log.delete_records({TopicPartition("t", 0): 17})
    target = tmp_path / "copy"
    log.backup(target)
    assert content(target) == rows(log)
    assert (target / ".kafka_cleanshutdown").exists()
    assert not {
        ".lock",
        "embedlog.backup",
        "embedlog.control",
        "t-0/embedlog.page",
        "t-0/embedlog.dirty",
    } & names_below(target)
    before = read_meta(log.path)
    after = read_meta(target)
    assert before is not None
    assert after is not None
    assert (after.cluster_id, after.node_id) == (before.cluster_id, before.node_id)
    assert after.directory_id not in (None, before.directory_id)
    with embedlog.open(target, config=QUIET) as copy:
        mine = copy.describe_topic("t")
        theirs = log.describe_topic("t")
        assert (mine.topic_id, mine.config) == (theirs.topic_id, theirs.config)
        assert [each.log_start_offset for each in mine.partitions] == [17, 0]
        assert rows(copy) == rows(log)
        fill(copy, 10)
        assert len(rows(copy)) == len(rows(log)) + 10, "the copy accepts appends of its own"
    assert content(target) != rows(log)


def test_opening_the_copy_reads_no_log(log: embedlog.Log, tmp_path: Path) -> None:
    """Indexes, manifest and mark are such that nothing has to be recovered."""
    log.backup(tmp_path / "copy")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "copy").rglob("*.*index")}
    with embedlog.open(tmp_path / "copy", config=QUIET) as copy:
        bounds = log._engine.partition("t", 0).bounds()
        assert copy._engine.partition("t", 0).bounds() == bounds._replace(epoch=bounds.epoch + 1)
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "copy").rglob("*.*index")}
    assert after == before


def test_what_is_appended_to_a_copy_is_told_from_what_the_original_got(tmp_path: Path) -> None:
    """A reader of the original that continues in the copy, which has grown past its position,
    misses nothing in silence.
    """
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        log.create_topic("t")
        log.create_topic("empty")
        with log.producer() as producer:
            producer.send_batch("t", [b"a"] * 10)
            producer.flush()
            log.backup(tmp_path / "copy")
            producer.send_batch("t", [b"b"] * 10)
    with embedlog.open(tmp_path / "copy", config=QUIET) as copy:
        copy.backup(tmp_path / "restored")
    with embedlog.open(tmp_path / "restored", config=QUIET) as restored:
        with restored.producer() as producer:
            producer.send_batch("t", [b"c"] * 30)
        records = list(restored.scan("t").records())
        assert [record.leader_epoch for record in records] == [0] * 10 + [2] * 30
        assert restored.describe_topic("empty").partitions[0].leader_epoch == 0
        with restored.consumer(auto_offset_reset="none") as consumer:
            consumer.assign([TopicPartition("t", 0)])
            consumer.seek(TopicPartition("t", 0), OffsetAndMetadata(20, leader_epoch=0))
            with pytest.raises(embedlog.LogTruncationError, match="that epoch ends at 10 now"):
                consumer.poll(5)


def test_sealed_segments_are_byte_for_byte_what_a_close_leaves(
    log: embedlog.Log, tmp_path: Path
) -> None:
    log.backup(tmp_path / "copy")
    log.close()
    for path in sorted((tmp_path / "copy").glob("t-*/*")):
        if path.suffix in (".log", ".index", ".timeindex", ".snapshot"):
            assert (
                path.read_bytes() == (log.path / path.relative_to(tmp_path / "copy")).read_bytes()
            ), path
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        assert (tmp_path / "copy" / name).read_bytes() == (log.path / name).read_bytes()


@pytest.mark.kafka
def test_kafkas_own_dump_log_accepts_the_copy(
    log: embedlog.Log, tmp_path: Path, dump_log_verify: Callable[..., int]
) -> None:
    log.backup(tmp_path / "copy")
    assert dump_log_verify(tmp_path / "copy") > 20


def test_an_empty_log_and_an_empty_topic(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log") as log:
        log.backup(tmp_path / "nothing")
        log.create_topic("e", 2)
        (tmp_path / "there").mkdir()
        log.backup(tmp_path / "there")
    assert content(tmp_path / "there", topic="e") == []
    with embedlog.open(tmp_path / "nothing", read_only=True) as copy:
        assert copy.topics() == []


def test_a_copy_of_a_copy_and_a_copy_by_a_reader(log: embedlog.Log, tmp_path: Path) -> None:
    log.delete_records({TopicPartition("t", 1): 40})
    expected = rows(log)
    with embedlog.open(log.path, read_only=True) as live:
        live.backup(tmp_path / "one")
    with embedlog.open(tmp_path / "one", read_only=True) as one:
        one.backup(tmp_path / "two")
    with embedlog.open(tmp_path / "two") as two:
        two.backup(tmp_path / "three")
    assert content(tmp_path / "three") == expected


# ---- the directory of a broker ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [pytest.param("clean", marks=pytest.mark.slow), "unclean"])
def test_a_brokers_directory_is_copied_record_for_record(
    golden_copy: Callable[[str], Path], golden_expected: Expected, tmp_path: Path, name: str
) -> None:
    source = golden_copy(name)
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    with embedlog.open(source, read_only=True) as log:
        log.backup(tmp_path / "copy")
    assert {path: path.read_bytes() for path in source.rglob("*") if path.is_file()} == before
    for read_only in (True, False):
        with embedlog.open(tmp_path / "copy", read_only=read_only, config=QUIET) as copy:
            for topic in OF_CLEAN if name == "clean" else OF_UNCLEAN:
                for isolation in ("read_uncommitted", "read_committed"):
                    assert consumed(copy, topic, isolation) == wanted(
                        golden_expected(name, topic), isolation
                    ), topic


@pytest.mark.kafka
def test_kafkas_own_dump_log_accepts_the_copy_of_a_brokers_directory(
    golden_copy: Callable[[str], Path], tmp_path: Path, dump_log_verify: Callable[..., int]
) -> None:
    with embedlog.open(golden_copy("unclean"), read_only=True) as log:
        log.backup(tmp_path / "copy")
    assert dump_log_verify(tmp_path / "copy", gaps=True) > 5


def test_a_broker_that_comes_meanwhile_ends_the_backup(
    golden_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    source = golden_copy("clean")
    broker = FakeBroker(source)
    with (
        embedlog.open(source, read_only=True, config={"lock.timeout.ms": 50}) as log,
        pytest.raises(DirectoryInUseError),
    ):
        log.backup(tmp_path / "copy", progress=lambda done, total: broker.start())
    assert not (tmp_path / "copy").exists()
    broker.mark_and_unlock()


# ---- others at work --------------------------------------------------------------------------------------------------


def test_writers_in_other_processes_are_not_held_up_and_each_copy_is_a_prefix(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log", config=KEPT, partitions=2)
    writers = [play.enter() for _ in range(2)]
    for number, writer in enumerate(writers):
        writer.start("write_on", number, 0, 2, number, (20, 200), 1500)
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        for number in range(4):
            acknowledged = sum(each.high_watermark for each in log.describe_topic("t").partitions)
            log.backup(tmp_path / f"copy-{number}")
            with embedlog.open(tmp_path / f"copy-{number}", read_only=True) as copy:
                found = [
                    Row(r.offset, r.leader_epoch, r.value)
                    for r in copy.scan("t", partitions=0).records()
                ]
                assert (
                    sum(each.high_watermark for each in copy.describe_topic("t").partitions)
                    >= acknowledged
                )
            verdict = check({0: found}, {}, ordered=False)
            assert not verdict.violations, verdict
            assert [row.offset for row in found] == list(range(len(found)))
    for writer in writers:
        for _ in writer.notes():
            pass
        play.leave(writer)


def test_segments_that_retention_deletes_meanwhile_are_left_out(
    log: embedlog.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = log._engine.partition("t", 0).bounds().log_end
    calls = []

    def retain(done: int, total: int) -> None:
        calls.append(done)
        if len(calls) == 2:
            log.delete_records({TopicPartition("t", 0): end - 30})
            log.housekeep()
            log.housekeep()

    log.backup(tmp_path / "copy", progress=retain)
    with embedlog.open(tmp_path / "copy", read_only=True) as copy:
        bounds = copy._engine.partition("t", 0).bounds()
        assert (bounds.log_start, bounds.log_end) == (end - 30, end)
    assert content(tmp_path / "copy") == rows(log)
    assert not (tmp_path / "copy" / "t-0" / f"{0:020d}.log").exists()


def test_a_topic_that_is_deleted_meanwhile_is_left_out_whole(
    log: embedlog.Log, tmp_path: Path
) -> None:
    log.create_topic("a", 2)
    fill(log, 20, "a")
    log.backup(tmp_path / "copy", progress=deleting(log, "a"))
    assert not list((tmp_path / "copy").glob("a-*"))
    assert content(tmp_path / "copy") == rows(log)
    with embedlog.open(tmp_path / "copy", read_only=True) as copy:
        assert copy.topics() == ["t"]


# ---- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "where", [3, 12, 30, 70], ids=["base offset", "leader epoch", "checked header", "records"]
)
@pytest.mark.parametrize("which", [0, 2, -1], ids=["first", "sealed", "active"])
def test_damage_is_never_backed_up(
    log: embedlog.Log, tmp_path: Path, which: int, where: int
) -> None:
    path = sorted((log.path / "t-1").glob("*.log"))[which]
    good = path.read_bytes()
    path.write_bytes(good[:where] + bytes([good[where] ^ 0x10]) + good[where + 1 :])
    with pytest.raises(CorruptRecordError) as problem:
        log.backup(tmp_path / "copy")
    assert str(path) == problem.value.path
    assert not (tmp_path / "copy").exists()
    path.write_bytes(good)  # an orderly end would not vouch for damage, either


def test_a_segment_that_lost_its_end_is_never_backed_up(log: embedlog.Log, tmp_path: Path) -> None:
    path = sorted((log.path / "t-0").glob("*.log"))[1]
    os.truncate(path, path.stat().st_size - 400)
    with pytest.raises(CorruptRecordError):
        log.backup(tmp_path / "copy")


def test_a_damaged_index_does_no_harm(log: embedlog.Log, tmp_path: Path) -> None:
    for path in (log.path / "t-0").glob("*index"):
        if path.stat().st_size:
            path.write_bytes(bytes(path.stat().st_size))
    log.backup(tmp_path / "copy")
    assert content(tmp_path / "copy") == rows(log)


@pytest.mark.parametrize("how", ["cut", "gone"])
def test_a_damaged_transaction_index_is_made_anew(
    golden_copy: Callable[[str], Path], golden_expected: Expected, tmp_path: Path, how: str
) -> None:
    source = golden_copy("clean")
    with embedlog.open(source, config=QUIET) as log:  # a manifest stores its number of entries
        log.describe_topic("transactions")
    for index in source.glob("transactions-*/*.txnindex"):
        if how == "cut":
            index.write_bytes(index.read_bytes()[:-1])
        else:
            index.unlink()
    with embedlog.open(source, read_only=True) as log:
        log.backup(tmp_path / "copy")
    with embedlog.open(tmp_path / "copy", read_only=True) as copy:
        expected = wanted(golden_expected("clean", "transactions"), "read_committed")
        assert consumed(copy, "transactions", "read_committed") == expected
    assert list(tmp_path.glob("copy/transactions-*/*.txnindex"))


# ---- destinations ----------------------------------------------------------------------------------------------------


def test_a_destination_that_holds_something_is_refused_and_left_alone(
    log: embedlog.Log, tmp_path: Path
) -> None:
    full = tmp_path / "full"
    file = tmp_path / "file"
    full.mkdir()
    (full / "mine").write_text("x")
    file.write_text("y")
    for destination in (full, file, log.path, log.path / "inside", tmp_path / "no" / "parent"):
        before = names_below(tmp_path)
        with pytest.raises((ForeignDirectoryError, StorageError)) as problem:
            log.backup(destination)
        assert problem.value.path is not None
        assert names_below(tmp_path) == before
    assert len(rows(log)) == 300


def test_of_two_backups_to_one_place_one_is_refused(log: embedlog.Log, tmp_path: Path) -> None:
    problems: list[EmbedlogError] = []

    def other(done: int, total: int) -> None:
        if not problems:
            with pytest.raises(ForeignDirectoryError) as problem:
                log.backup(tmp_path / "copy")
            problems.append(problem.value)

    log.backup(tmp_path / "copy", progress=other)
    assert problems
    assert content(tmp_path / "copy") == rows(log)


def test_a_closed_log_makes_no_backup(log: embedlog.Log, tmp_path: Path) -> None:
    log.close()
    with pytest.raises(ClosedError):
        log.backup(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


# ---- interrupted -----------------------------------------------------------------------------------------------------


def test_progress_tells_bytes_and_may_end_it(log: embedlog.Log, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    log.backup(tmp_path / "copy", progress=lambda done, total: seen.append((done, total)))
    size = sum(each.size_bytes for each in log.describe_topic("t").partitions)
    assert seen[-1] == (size, size)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        log.backup(tmp_path / "other", progress=stop)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("kind", ["open", "pwrite", "fsync", "mkdir", "rename", "pread", "list"])
def test_any_failing_call_is_a_typed_error_and_leaves_nothing(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        log.create_topic("t")
        fill(log, 5)
        nth = 0
        while True:
            nth += 1
            target = tmp_path / f"copy-{nth}"
            system.fault_arm([kind], nth, "fail", errno.ENOSPC if kind == "pwrite" else errno.EIO)
            try:
                log.backup(target)
            except EmbedlogError:
                system.fault_off()
                assert not target.exists(), nth
                continue
            struck = system.fault_counters()[1]
            system.fault_off()
            assert content(target) == rows(log)
            if not struck:
                break
        assert nth > 1
        shutil.rmtree(target)
        log.backup(target)


def test_a_crash_in_the_middle_leaves_nothing_that_is_taken_for_a_log(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log", config=KEPT)
    keeper = play.enter()
    for _ in range(40):
        play.append(keeper)
    for nth in (1, 2, 5, 9, 14, 20, 30):
        victim = play.enter()
        victim.arm(["fsync"], "kill_before", nth=nth, name="copy")
        target = tmp_path / f"copy-{nth}"
        try:
            victim.call("on_log", "backup", str(target))
        except Died:
            assert not (target / ".kafka_cleanshutdown").exists()
            assert not target.exists() or (target / "embedlog.backup").exists() or nth > 20
        for read_only in (True, False):
            if (target / "embedlog.backup").exists():
                with pytest.raises(ForeignDirectoryError, match="incomplete backup"):
                    embedlog.open(target, read_only=read_only)
    play.leave(keeper)


def test_the_clean_mark_comes_last(
    log: embedlog.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = _Copier.finish

    def finish(this: _Copier, topics: list[Any]) -> None:
        assert (tmp_path / "copy" / "embedlog.backup").exists()
        assert not (tmp_path / "copy" / "meta.properties").exists(), (
            "a broker does not start on half a copy"
        )
        real(this, topics)

    monkeypatch.setattr(_Copier, "finish", finish)
    log.backup(tmp_path / "copy")
    assert not (tmp_path / "copy" / "embedlog.backup").exists()
