"""LOAD-7: the start of a log, by manifest, checkpoints and a killed broker's traces: an error, never a
shorter or a longer log.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import embedlog
from embedlog import segment
from embedlog.storage import file_names
from embedlog.storage.checkpoints import EpochCache, read_epochs, write_epochs
from tests.support.segmented_logs import (
    COUNT,
    HERE,
    PARTITION,
    QUIET,
    Opening,
    contents,
    copied,
    in_place,
    killed,
    logs,
    read,
    write,
)


@pytest.mark.parametrize("noted", ["0\n0\n", "0\n1\nt 0 3\n", "0\n1\nu 0 7\n"])
@pytest.mark.parametrize("read_only", [False, True], ids=["writing", "reading"])
def test_the_manifest_knows_where_the_log_starts(
    tmp_path: Path, noted: str, read_only: bool
) -> None:
    with write(tmp_path / "log") as log:
        log.delete_records({HERE: 7})
    path = copied(tmp_path / "log")
    (path / file_names.LOG_STARTS).write_text(noted)
    assert read(path, read_only=read_only) == list(range(7, COUNT))


@pytest.mark.parametrize("read_only", [False, True], ids=["writing", "reading"])
def test_a_start_above_the_one_that_was_written_first_is_damage(
    tmp_path: Path, read_only: bool
) -> None:
    """One of the two is wrong: deleted records do not come back, and none vanish."""
    with write(tmp_path / "log") as log:
        log.delete_records({HERE: 7})
    (tmp_path / "log" / file_names.LOG_STARTS).write_text("0\n1\nt 0 40\n")
    with pytest.raises(embedlog.CorruptRecordError, match="differ on where the log starts"):
        read(tmp_path / "log", read_only=read_only)


def test_a_manifest_that_lost_its_end_does_not_bring_deleted_records_back(tmp_path: Path) -> None:
    log = write(tmp_path / "log")
    log.delete_records({HERE: 7})
    path = copied(tmp_path / "log")
    log.close()
    manifest = path / PARTITION / file_names.MANIFEST
    os.truncate(manifest, manifest.stat().st_size - 1)
    assert read(path, read_only=True) == list(range(7, COUNT))
    assert read(path) == list(range(7, COUNT))


def test_the_start_is_known_behind_a_kill(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            write(tmp_path / "log").delete_records({HERE: 7})
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    (tmp_path / "log" / file_names.LOG_STARTS).unlink()
    assert read(tmp_path / "log", read_only=True) == list(range(7, COUNT))
    assert read(tmp_path / "log") == list(range(7, COUNT))


@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("place", [in_place, copied])
def test_a_first_segment_that_is_missing_behind_a_kill_is_noticed(
    tmp_path: Path, place: Opening, flushed: bool
) -> None:
    path = place(killed(tmp_path / "log", flushed=flushed))
    first = logs(path)[0]
    for each in (path / PARTITION).glob(first.stem + "*"):
        each.unlink()
    for read_only in (True, False):
        with pytest.raises(embedlog.CorruptRecordError, match="a segment is missing"):
            read(path, read_only=read_only)


def broker_deleted(path: Path, traces: str) -> tuple[int, int]:
    """Delete the first two segments as a broker's retention, which is killed afterwards: first
    offset and log start.
    """
    first = int(logs(path)[2].stem)
    for each in logs(path)[:2]:
        for name in (path / PARTITION).glob(f"*{each.stem}*"):
            name.unlink()
    start = first
    if "epochs" in traces:
        epochs = read_epochs(path / PARTITION / file_names.EPOCHS)
        assert epochs.truncate_from_start(first)
        write_epochs(path / PARTITION / file_names.EPOCHS, epochs)
    # a broker notes only a start inside a segment: records were deleted on demand, too
    if "checkpoint" in traces:
        start = first + 1
        (path / file_names.LOG_STARTS).write_text(f"0\n1\nt 0 {start}\n")
    elif "empty" in traces:
        (path / file_names.LOG_STARTS).write_text("0\n0\n")
    return first, start


@pytest.mark.sample(0.25)
@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("place", [in_place, copied])
@pytest.mark.parametrize(
    "traces",
    ["epochs", "epochs, empty checkpoint", "checkpoint", "epochs, checkpoint of the start"],
)
def test_what_a_killed_broker_deleted_behind_a_kill_is_not_missed(
    tmp_path: Path, place: Opening, flushed: bool, traces: str
) -> None:
    """Neither process left a mark. The broker's checkpoints prove that it moved the log start to
    the first segment.
    """
    path = place(killed(tmp_path / "log", flushed=flushed))
    traces = traces.replace("empty checkpoint", "empty")
    _, start = broker_deleted(path, traces)
    for read_only in (True, False, True, False):
        assert read(path, read_only=read_only) == list(range(start, COUNT))


@pytest.mark.parametrize("read_only", [True, False], ids=["reading", "writing"])
@pytest.mark.parametrize(
    "traces", ["none", "empty", "epochs of another segment", "checkpoint below"]
)
def test_what_no_checkpoint_of_a_broker_proves_is_missed(
    tmp_path: Path, read_only: bool, traces: str
) -> None:
    path = killed(tmp_path / "log", flushed=True)
    following = int(logs(path)[1].stem)
    first, _ = broker_deleted(path, traces if traces == "empty" else "none")
    if traces == "epochs of another segment":
        write_epochs(path / PARTITION / file_names.EPOCHS, EpochCache([(0, following)]))
    elif traces == "checkpoint below":
        (path / file_names.LOG_STARTS).write_text(f"0\n1\nt 0 {first - 1}\n")
    before = contents(path)
    with pytest.raises(embedlog.CorruptRecordError, match="a segment is missing"):
        read(path, read_only=read_only)
    assert contents(path) == before


def test_after_an_orderly_close_checkpoints_explain_no_missing_segment(closed: Path) -> None:
    broker_deleted(closed, "epochs")
    for read_only in (True, False):
        with pytest.raises(embedlog.CorruptRecordError, match="a segment is missing"):
            read(closed, read_only=read_only)


def test_what_retention_removed_is_not_missed_behind_a_kill(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            log = write(tmp_path / "log", config={"retention.bytes": 2000})
            log.housekeep()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    for path in (copied(tmp_path / "log"), tmp_path / "log"):
        found = read(path, read_only=True)
        assert found
        assert found[0] > 0
        assert found[-1] == COUNT - 1
        assert read(path) == found


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("gone", [None, 1])
@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_segments_that_retention_was_about_to_remove_are_not_missed_behind_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, gone: int | None, read_only: bool
) -> None:
    """The new start is on disk first; the records below it were perhaps never synced, and of the
    renames any may be.
    """
    path = tmp_path / "log"
    pid = os.fork()
    if pid == 0:
        try:
            log = embedlog.open(path, config=QUIET)
            log.create_topic(
                "t", config={"segment.bytes": 1000, "retention.ms": 1000, "cleanup.policy": policy}
            )
            with log.producer(linger_ms=0) as producer:
                for number in range(COUNT):
                    producer.send(
                        "t", b"%d" % number * 20, key=b"%d" % number, timestamp_ms=1
                    ).result(timeout=10)
            monkeypatch.setattr(segment, "set_aside", lambda *rest: os._exit(7))
            log.housekeep()
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    for each in logs(path)[:-1]:
        os.truncate(each, each.stat().st_size // 2)
    if gone is not None:
        for each in sorted((path / PARTITION).glob(logs(path)[gone].stem + "*")):
            each.rename(each.with_name(each.name + file_names.DELETED))
    (path / file_names.CONTROL).unlink()
    (path / PARTITION / file_names.PAGE).unlink()
    assert read(path, read_only=read_only) == []
    with embedlog.open(path, config=QUIET) as log:
        with log.producer() as producer:
            producer.send("t", b"next", key=b"next").result(timeout=10)
        assert [record.offset for record in log.scan("t").records()] == [COUNT]
    assert read(path) == [COUNT]
