"""Recorded facts about a partition's files, against other files: an error, in every way of opening, never a shorter log."""

from __future__ import annotations

import logging
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import embedlog
from embedlog import TopicPartition, segment
from embedlog.partition.recovery import evidence
from embedlog.storage import file_names
from embedlog.storage.checkpoints import EpochCache, read_epochs, write_epochs

QUIET = {"housekeeping": False}
COUNT = 60
HERE = TopicPartition("t", 0)
PARTITION = "t-0"
Opening = Callable[[Path], Path]


def write(path: Path, count: int = COUNT, config: dict[str, object] | None = None) -> embedlog.Log:
    log = embedlog.open(path, config=QUIET)
    log.create_topic("t", config={"segment.bytes": 1000} | (config or {}))
    with log.producer(linger_ms=0) as producer:
        for number in range(count):
            producer.send("t", b"%d" % number * 20).result(timeout=10)
    return log


def read(path: Path, *, read_only: bool = False, committed: bool = False) -> list[int]:
    isolation = "read_committed" if committed else "read_uncommitted"
    with embedlog.open(path, read_only=read_only, config={} if read_only else QUIET) as log:
        return [record.offset for record in log.scan("t", isolation_level=isolation).records()]


def logs(path: Path) -> list[Path]:
    return sorted((path / PARTITION).glob("*.log"))


def contents(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in logs(path)}


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    with write(tmp_path / "log") as log:
        log.backup(tmp_path / "backup")
    return tmp_path / "log"


def in_place(path: Path) -> Path:
    return path


def copied(path: Path) -> Path:
    return Path(shutil.copytree(path, path.with_name("copy")))


def backed_up(path: Path) -> Path:
    return path.with_name("backup")


def middle_missing(path: Path) -> None:
    logs(path)[2].unlink()


def first_missing(path: Path) -> None:
    logs(path)[0].unlink()


def last_missing(path: Path) -> None:
    logs(path)[-1].unlink()


def middle_emptied(path: Path) -> None:
    os.truncate(logs(path)[2], 0)


def last_emptied(path: Path) -> None:
    os.truncate(logs(path)[-1], 0)


def last_cut(path: Path) -> None:
    os.truncate(logs(path)[-1], logs(path)[-1].stat().st_size // 2)


def all_missing(path: Path) -> None:
    for each in logs(path):
        each.unlink()


DAMAGES = [middle_missing, first_missing, last_missing, middle_emptied, last_emptied, last_cut, all_missing]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("place", [in_place, copied, backed_up])
@pytest.mark.parametrize("read_only", [False, True], ids=["writing", "reading"])
def test_a_segment_that_is_missing_or_short_is_no_shorter_log(
    closed: Path, place: Opening, damage: Callable[[Path], None], read_only: bool
) -> None:
    path = place(closed)
    damage(path)
    before = contents(path)
    with pytest.raises(embedlog.CorruptRecordError):
        read(path, read_only=read_only)
    assert contents(path) == before


@pytest.mark.parametrize("place", [in_place, copied])
@pytest.mark.parametrize("read_only", [False, True], ids=["writing", "reading"])
def test_an_empty_stray_segment_behind_the_end_is_not_part_of_the_log(closed: Path, place: Opening, read_only: bool) -> None:
    path = place(closed)
    (path / PARTITION / file_names.file_name(10**9, file_names.LOG)).touch()
    assert read(path, read_only=read_only) == list(range(COUNT))
    with embedlog.open(path, read_only=True) as log:
        assert log.consumer().end_offsets([HERE])[HERE] == COUNT


def test_of_a_compacted_topic_a_segment_that_is_missing_is_noticed(tmp_path: Path) -> None:
    """Offsets are missing there anyhow; the manifest has the end of each segment all the same."""
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01, "segment.bytes": 1000}
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        log.create_topic("t", config=config)
        with log.producer(linger_ms=0) as producer:
            for number in range(200):
                producer.send("t", b"%d" % number * 20, key=b"%d" % (number // 4)).result(timeout=10)
        log.housekeep()
    right = read(tmp_path / "log", read_only=True)
    assert 0 < len(right) < 200
    path = copied(tmp_path / "log")
    logs(path)[1].unlink()
    for read_only in (True, False):
        with pytest.raises(embedlog.CorruptRecordError, match="a segment is missing"):
            read(path, read_only=read_only)
    assert read(tmp_path / "log") == right


# ---- fields outside Kafka's checksum ----------------------------------------------------------------------------------


def killed(nursery_path: Path, *, flushed: bool) -> Path:
    """A log whose writer was killed: its files as they are, in a process that ends without closing."""
    pid = os.fork()
    if pid == 0:
        try:
            log = write(nursery_path)
            if flushed:
                log.flush()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    return nursery_path


def heads(path: Path) -> list[int]:
    data, found, at = path.read_bytes(), [], 0
    while at < len(data):
        found.append(at)
        at += 12 + int(struct.unpack_from(">i", data, at + 8)[0])
    return found


def flip(path: Path, position: int, bit: int) -> None:
    with path.open("r+b") as file:
        before = os.pread(file.fileno(), 1, position)
        os.pwrite(file.fileno(), bytes([before[0] ^ 1 << bit]), position)


@pytest.mark.parametrize("bit", [0, 3, 10, 20, 33, 62])
@pytest.mark.parametrize("back", [1, 2], ids=["last", "second last"])
@pytest.mark.parametrize("place", [in_place, copied])
@pytest.mark.parametrize("read_only", [False, True], ids=["writing", "reading"])
def test_a_damaged_base_offset_of_a_durable_batch_cuts_nothing_away(
    tmp_path: Path, place: Opening, read_only: bool, back: int, bit: int
) -> None:
    path = place(killed(tmp_path / "log", flushed=True))
    last = logs(path)[-1]
    flip(last, heads(last)[-back] + 7 - bit // 8, bit % 8)
    before = contents(path)
    with pytest.raises(embedlog.CorruptRecordError) as noticed:
        read(path, read_only=read_only)
    assert noticed.value.path == str(last)
    assert contents(path) == before


def test_a_damaged_leader_epoch_of_the_last_batch_is_noticed_in_a_copy(tmp_path: Path) -> None:
    """No digest reaches it there: the epochs' checkpoint has it."""
    path = copied(killed(tmp_path / "log", flushed=True))
    last = logs(path)[-1]
    flip(last, heads(last)[-1] + 15, 2)
    for read_only in (True, False):
        with pytest.raises(embedlog.CorruptRecordError, match="another leader epoch"):
            read(path, read_only=read_only)


def test_a_batch_of_another_epoch_that_equals_where_its_own_began_is_noticed() -> None:
    epochs, bases = np.array([7, 7], np.int32), np.array([7, 8], np.int64)
    assert EpochCache([(0, 0), (1, 7)]).disagreement(bases, epochs) == (0, 1)
    assert EpochCache([(0, 0), (7, 7)]).disagreement(bases, epochs) is None
    assert EpochCache([(0, 8)]).disagreement(bases, np.array([5, 0], np.int32)) is None, "nothing is known before"
    assert EpochCache().disagreement(bases, epochs) is None


def test_a_transaction_index_is_compared_by_readers_too(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with embedlog.open(path, config=QUIET) as log:
        log.create_topic("t")
        with log.producer(transactional_id="x") as producer:
            producer.init_transactions()
            for number in range(6):
                producer.begin_transaction()
                producer.send("t", b"%d" % number).result(timeout=10)
                producer.abort_transaction() if number % 2 else producer.commit_transaction()
    right = read(path, read_only=True, committed=True)
    assert len(right) == 3
    index = next((path / PARTITION).glob("*.txnindex"))
    for position in range(10, 34, 3):
        flip(index, position, 1)
        assert read(path, read_only=True, committed=True) == right, position
        flip(index, position, 1)


# ---- a broker's directory ---------------------------------------------------------------------------------------------


def as_a_brokers(path: Path, *, clean: bool) -> Path:
    """The same, as a broker leaves it: without anything of ours."""
    for each in path.rglob("embedlog.*"):
        each.unlink()
    mark = path / file_names.CLEAN_MARK
    mark.unlink()
    if clean:
        mark.write_text('{"version":0,"brokerEpoch":7}')
    return path


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("read_only", [False, True], ids=["writing", "reading"])
def test_a_gap_that_nothing_explains_is_named(
    closed: Path, caplog: pytest.LogCaptureFixture, clean: bool, read_only: bool
) -> None:
    path = as_a_brokers(copied(closed), clean=clean)
    if not clean:
        (path / file_names.RECOVERY_POINTS).unlink()
    middle_missing(path)
    first, following = (int(logs(path)[at].stem) for at in (1, 2))
    with caplog.at_level(logging.WARNING):
        found = read(path, read_only=read_only)
    missing = sorted(set(range(COUNT)) - set(found))
    assert missing
    assert first < missing[0]
    assert missing[-1] == following - 1
    assert f"offsets {missing[0]} to {missing[-1]} are missing" in caplog.text


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_a_brokers_log_without_a_gap_is_read_without_a_warning(
    closed: Path, caplog: pytest.LogCaptureFixture, clean: bool
) -> None:
    with caplog.at_level(logging.WARNING):
        assert read(as_a_brokers(copied(closed), clean=clean), read_only=True) == list(range(COUNT))
    assert not caplog.records


def test_gaps_of_a_topic_that_was_compacted_are_not_named(
    golden_copy: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    path = golden_copy("clean")
    with caplog.at_level(logging.WARNING), embedlog.open(path, read_only=True) as log:
        for name in log.topics():
            assert sum(1 for _ in log.scan(name).records()) >= 0
    assert "there is no sign of a compaction" not in caplog.text


@pytest.mark.parametrize("read_only", [False, True], ids=["writing", "reading"])
def test_a_brokers_log_that_ends_before_its_recovery_point_is_damaged(closed: Path, read_only: bool) -> None:
    path = as_a_brokers(copied(closed), clean=True)
    logs(path)[-1].unlink()
    with pytest.raises(embedlog.CorruptRecordError, match="ends before the durable end"):
        read(path, read_only=read_only)


@pytest.mark.parametrize(("number", "bit"), [(1, 10), (1, 33), (-1, 33), (-1, 40)])
def test_a_base_offset_that_leapt_in_an_unclean_log_of_a_broker_is_damage(closed: Path, number: int, bit: int) -> None:
    """The sound batches that follow it are no torn tail, and an offset that no segment can hold is no offset."""
    path = as_a_brokers(copied(closed), clean=False)
    (path / file_names.RECOVERY_POINTS).unlink()
    last = logs(path)[-1]
    flip(last, heads(last)[number] + 7 - bit // 8, bit % 8)
    before = contents(path)
    for read_only in (True, False):
        with pytest.raises(embedlog.CorruptRecordError):
            read(path, read_only=read_only)
    assert contents(path) == before


def test_a_segment_larger_than_any_can_be_is_refused(closed: Path) -> None:
    path = copied(closed)
    os.truncate(logs(path)[-1], 1 << 32)
    for read_only in (True, False):
        with pytest.raises(embedlog.CorruptRecordError, match="a segment is too large"):
            read(path, read_only=read_only)


# ---- where the log starts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noted", ["0\n0\n", "0\n1\nt 0 3\n", "0\n1\nu 0 7\n"])
@pytest.mark.parametrize("read_only", [False, True], ids=["writing", "reading"])
def test_the_manifest_knows_where_the_log_starts(tmp_path: Path, noted: str, read_only: bool) -> None:
    with write(tmp_path / "log") as log:
        log.delete_records({HERE: 7})
    path = copied(tmp_path / "log")
    (path / file_names.LOG_STARTS).write_text(noted)
    assert read(path, read_only=read_only) == list(range(7, COUNT))


@pytest.mark.parametrize("read_only", [False, True], ids=["writing", "reading"])
def test_a_start_above_the_one_that_was_written_first_is_damage(tmp_path: Path, read_only: bool) -> None:
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
def test_a_first_segment_that_is_missing_behind_a_kill_is_noticed(tmp_path: Path, place: Opening, flushed: bool) -> None:
    path = place(killed(tmp_path / "log", flushed=flushed))
    first = logs(path)[0]
    for each in (path / PARTITION).glob(first.stem + "*"):
        each.unlink()
    for read_only in (True, False):
        with pytest.raises(embedlog.CorruptRecordError, match="a segment is missing"):
            read(path, read_only=read_only)


def broker_deleted(path: Path, traces: str) -> tuple[int, int]:
    """Delete the first two segments as a broker's retention, which is killed afterwards: first offset and log start."""
    first = int(logs(path)[2].stem)
    for each in logs(path)[:2]:
        for name in (path / PARTITION).glob(f"*{each.stem}*"):
            name.unlink()
    start = first
    if "epochs" in traces:
        epochs = read_epochs(path / PARTITION / file_names.EPOCHS)
        assert epochs.truncate_from_start(first)
        write_epochs(path / PARTITION / file_names.EPOCHS, epochs)
    if "checkpoint" in traces:  # a broker notes only a start inside a segment: records were deleted on demand, too
        start = first + 1
        (path / file_names.LOG_STARTS).write_text(f"0\n1\nt 0 {start}\n")
    elif "empty" in traces:
        (path / file_names.LOG_STARTS).write_text("0\n0\n")
    return first, start


@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("place", [in_place, copied])
@pytest.mark.parametrize("traces", ["epochs", "epochs, empty checkpoint", "checkpoint", "epochs, checkpoint of the start"])
def test_what_a_killed_broker_deleted_behind_a_kill_is_not_missed(
    tmp_path: Path, place: Opening, flushed: bool, traces: str
) -> None:
    """Neither process left a mark. The broker's checkpoints prove that it moved the log start to the first segment."""
    path = place(killed(tmp_path / "log", flushed=flushed))
    traces = traces.replace("empty checkpoint", "empty")
    _, start = broker_deleted(path, traces)
    for read_only in (True, False, True, False):
        assert read(path, read_only=read_only) == list(range(start, COUNT))


@pytest.mark.parametrize("read_only", [True, False], ids=["reading", "writing"])
@pytest.mark.parametrize("traces", ["none", "empty", "epochs of another segment", "checkpoint below"])
def test_what_no_checkpoint_of_a_broker_proves_is_missed(tmp_path: Path, read_only: bool, traces: str) -> None:
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
    """The new start is on disk first; the records below it were perhaps never synced, and of the renames any may be."""
    path, pid = tmp_path / "log", os.fork()
    if pid == 0:
        try:
            log = embedlog.open(path, config=QUIET)
            log.create_topic("t", config={"segment.bytes": 1000, "retention.ms": 1000, "cleanup.policy": policy})
            with log.producer(linger_ms=0) as producer:
                for number in range(COUNT):
                    producer.send("t", b"%d" % number * 20, key=b"%d" % number, timestamp_ms=1).result(timeout=10)
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


# ---- comparing ------------------------------------------------------------------------------------------------------


def test_a_comparison_goes_by_every_point_that_is_passed() -> None:
    point = evidence.Point(10, 1, 5, True, True)
    comparison = evidence.Comparison(Path("x.log"), [point])
    with pytest.raises(embedlog.CorruptRecordError, match="file ends inside a batch"):
        comparison.ended(4, 0, None)
    with pytest.raises(embedlog.CorruptRecordError, match="headers of this segment"):
        evidence.Comparison(Path("x.log"), [point]).ended(10, 6, None)
    comparison.ended(20, 0, None)
