"""The list of segments while other threads roll, retain and read."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.engine import log_directory
from tests.faults.harness.processes import Nursery
from tests.faults.harness.stage import Play
from tests.support.small_logs import append, opened


def test_a_reader_gets_the_segments_of_its_own_tuple_whatever_another_thread_refreshes(
    tmp_path: Path,
) -> None:
    """Else a fetch at a deleted offset would continue after the gap without an error."""
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config={"segment.bytes": 400, "flush.ms": 3_600_000})
        append(log, 6)
        partition = log._engine.partition("t", 0)
        before = partition.published()
        log.delete_records({TopicPartition("t", 0): 4})
        after = partition.published()
        segments = partition._segments
        real = segments._refresh

        def overtaken(now: object) -> object:
            mine = real(now)  # type: ignore[arg-type]
            real(after)
            return mine

        segments._refresh = overtaken  # type: ignore[method-assign,assignment]
        assert segments.at(1, before).base == 0


def test_the_segments_since_an_offset_are_those_that_end_after_it(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config={"segment.bytes": 400, "flush.ms": 3_600_000})
        append(log, 20)
        partition = log._engine.partition("t", 0)
        now = partition.published()
        segments = partition._segments
        assert now.segment_base > 0
        for offset in range(now.log_end + 3):
            assert segments.since(offset, now) == [
                each for each in segments.all(now) if each.next_offset > offset
            ]


def test_readers_in_threads_beside_rolls_see_every_offset_once(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config={"segment.bytes": 400, "flush.ms": 3_600_000})
        append(log, 1)
        failed: list[BaseException] = []
        count = 150

        def follow() -> None:
            try:
                partition = log._engine.partition("t", 0)
                offset = 0
                while offset < count:
                    found = partition.fetch(offset)
                    if len(found.batches):
                        assert int(found.batches["base_offset"][0]) <= offset
                        offset = found.next_offset
            except BaseException as problem:  # noqa: BLE001  told by the test's own thread
                failed.append(problem)

        threads = [threading.Thread(target=follow) for _ in range(3)]
        for thread in threads:
            thread.start()
        append(log, count - 1)
        for thread in threads:
            thread.join(60)
        assert not failed


def test_nobody_appends_behind_the_back_of_the_closing_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a partition's orderly close and the clean mark another thread of the process must not
    get in.
    """
    log = opened(tmp_path / "log")
    log.create_topic("t")
    append(log, 1)
    partition = log._engine.partition("t", 0)
    refused = []
    real = log_directory.write_checkpoints

    def meanwhile(*arguments: object, **keywords: object) -> None:
        def intrude() -> None:
            try:
                partition.fetch(0)
            except embedlog.ClosedError as problem:
                refused.append(problem)

        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()
        real(*arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(log_directory, "write_checkpoints", meanwhile)
    log.close()
    assert refused


def test_a_partition_that_cannot_be_closed_does_not_keep_the_others_off_the_disk(
    nursery: Nursery, tmp_path: Path
) -> None:
    play = Play(nursery, tmp_path / "log", partitions=2)
    victim = play.enter()
    play.append(victim, 0)
    play.append(victim, 1)
    victim.arm(["fsync", "fdatasync"], "fail", name="/t-0", sticky=True)
    with pytest.raises(Exception, match=r"EIO|error"):
        victim.call("close")
    assert not (tmp_path / "log" / ".kafka_cleanshutdown").exists()
    assert (tmp_path / "log" / "t-0" / "embedlog.dirty").exists()
    assert not (tmp_path / "log" / "t-1" / "embedlog.dirty").exists()


def test_bytes_read_while_files_were_changed_are_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config={"flush.ms": 3_600_000})
        append(log, 2)
        partition = log._engine.partition("t", 0)
        real = partition._reader._fetch

        def torn(*arguments: object) -> object:
            monkeypatch.setattr(partition._reader, "_fetch", real)
            with partition.exclusive() as held:
                held.publish_replaced(
                    held.published._replace(generation=held.published.generation + 2)
                )
            raise embedlog.CorruptRecordError("half cut")

        monkeypatch.setattr(partition._reader, "_fetch", torn)
        assert partition.fetch(0).next_offset == 2
