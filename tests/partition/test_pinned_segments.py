"""A partition held as it was: copied whole, however often its files are replaced under the
copier.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import embedlog
from embedlog.errors import StorageError
from embedlog.partition.partition import Partition
from embedlog.storage import files
from tests.support.backups import QUIET, content, log, rows

__all__ = ["log"]


def test_a_partition_whose_files_are_replaced_is_copied_again(
    log: embedlog.Log, tmp_path: Path
) -> None:
    partition = log._engine.partition("t", 0)
    again = []

    def replace(done: int, total: int) -> None:
        if not again:
            again.append(done)
            with partition.exclusive() as held:
                partition._state.page.publish(
                    held.published._replace(generation=held.published.generation + 2), None
                )

    log.backup(tmp_path / "copy", progress=replace)
    assert content(tmp_path / "copy") == rows(log)


def moved(partition: Partition) -> None:
    with partition.exclusive() as held:
        partition._state.page.publish(
            held.published._replace(generation=held.published.generation + 2), None
        )


def test_files_that_never_rest_are_copied_as_they_were_opened(
    log: embedlog.Log, tmp_path: Path
) -> None:
    partition = log._engine.partition("t", 0)
    calls = []

    def replace(done: int, total: int) -> None:
        calls.append(done)
        moved(partition)

    log.backup(tmp_path / "copy", progress=replace)
    assert content(tmp_path / "copy") == rows(log)
    assert len(calls) > len(list((tmp_path / "copy" / "t-0").glob("*.log")))


def test_files_that_cannot_be_opened_between_two_changes_end_a_readers_backup(
    log: embedlog.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that cannot take the lock tries again until a deadline; a writer delays the
    swaps.
    """
    partition = log._engine.partition("t", 0)
    open_file = files.open_file

    def moving(path: object, *arguments: int) -> int:
        fd = open_file(path, *arguments)  # type: ignore[arg-type]
        if reading and str(path).endswith(".log"):
            reading.clear()
            moved(partition)
            reading.append(True)
        return fd

    reading = [True]
    monkeypatch.setattr(files, "open_file", moving)
    with embedlog.open(log.path, read_only=True) as reader:
        monkeypatch.setattr(reader._engine.partition("t", 0)._context, "lock_timeout_ms", 200)
        with pytest.raises(StorageError, match="keep changing"):
            reader.backup(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_topic_is_copied_while_it_is_compacted_all_the_time(tmp_path: Path) -> None:
    """In the middle of each segment's copy the whole log is compacted again."""
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": 2000,
        "min.cleanable.dirty.ratio": 0.01,
        "file.delete.delay.ms": 0,
    }
    with embedlog.open(tmp_path / "log", config=QUIET | {"log.initial.task.delay.ms": 0}) as log:
        log.create_topic("c", config=config)
        written = 0

        def write(count: int) -> None:
            nonlocal written
            with log.producer(linger_ms=0) as producer:
                for number in range(written, written + count):
                    producer.send("c", b"%d" % number * 20, key=b"%d" % (number % 50)).result(
                        timeout=10
                    )
            written += count

        def compacted(done: int, total: int) -> None:
            if written < 2000:
                write(60)
                log.housekeep()

        write(300)
        for turn in range(3):
            generation = log._engine.partition("c", 0).published().generation
            expected = {record.key for record in log.scan("c").records()}
            log.backup(tmp_path / f"copy-{turn}", progress=compacted)
            assert log._engine.partition("c", 0).published().generation > generation
            with embedlog.open(tmp_path / f"copy-{turn}", read_only=True) as copy:
                found = list(copy.scan("c").records())
            assert {record.key for record in found} == expected
            assert [record.offset for record in found] == sorted(
                {record.offset for record in found}
            )
            assert all(record.value == b"%d" % record.offset * 20 for record in found)


def test_a_copy_after_a_compaction_has_the_markers_that_the_compaction_relied_on(
    tmp_path: Path,
) -> None:
    """A committed record replaces an earlier one, and its marker is in the active segment."""
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": 1000,
        "min.cleanable.dirty.ratio": 0.01,
        "file.delete.delay.ms": 0,
    }
    with embedlog.open(tmp_path / "log", config=QUIET | {"log.initial.task.delay.ms": 0}) as log:
        log.create_topic("c", config=config)
        with (
            log.producer(linger_ms=0) as filler,
            log.producer(transactional_id="x", linger_ms=0) as producer,
        ):
            filler.send("c", b"old", key=b"k").result()
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("c", b"new", key=b"k").result()
            for number in range(40):
                filler.send("c", b"f" * 50, key=b"%d" % number).result()
            generation = log._engine.partition("c", 0).published().generation

            def compact(done: int, total: int) -> None:
                if log._engine.partition("c", 0).published().generation == generation:
                    producer.commit_transaction()
                    log.housekeep()

            log.backup(tmp_path / "copy", progress=compact)
            assert log._engine.partition("c", 0).published().generation > generation
    with embedlog.open(tmp_path / "copy", read_only=True) as copy:
        found = [
            record.value
            for record in copy.scan("c", isolation_level="read_committed").records()
            if record.key == b"k"
        ]
    assert found == [b"new"]
