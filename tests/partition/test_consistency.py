"""Recorded facts about a partition's files, against other files: an error, in every way of opening,
never a shorter log.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import embedlog
from embedlog.partition.recovery import evidence
from embedlog.storage import file_names
from embedlog.storage.checkpoints import EpochCache
from tests.support.segmented_logs import (
    COUNT,
    HERE,
    PARTITION,
    QUIET,
    Opening,
    backed_up,
    contents,
    copied,
    flip,
    in_place,
    killed,
    logs,
    middle_missing,
    read,
)


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


DAMAGES = [
    middle_missing,
    first_missing,
    last_missing,
    middle_emptied,
    last_emptied,
    last_cut,
    all_missing,
]


@pytest.mark.sample(0.25)
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
def test_an_empty_stray_segment_behind_the_end_is_not_part_of_the_log(
    closed: Path, place: Opening, read_only: bool
) -> None:
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
                producer.send("t", b"%d" % number * 20, key=b"%d" % (number // 4)).result(
                    timeout=10
                )
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


def heads(path: Path) -> list[int]:
    data = path.read_bytes()
    found = []
    at = 0
    while at < len(data):
        found.append(at)
        at += 12 + int(struct.unpack_from(">i", data, at + 8)[0])
    return found


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("bit", [0, 3, 10, 20, 33, 62])
@pytest.mark.parametrize("back", [1, 2], ids=["last", "second last"])
@pytest.mark.parametrize("place", [in_place, copied])
@pytest.mark.parametrize("read_only", [False, True], ids=["writing", "reading"])
def test_a_damaged_base_offset_of_a_durable_batch_cuts_nothing_away(
    tmp_path: Path, place: Opening, read_only: bool, back: int, bit: int
) -> None:
    """LOAD-5."""
    path = place(killed(tmp_path / "log", flushed=True))
    last = logs(path)[-1]
    flip(last, heads(last)[-back] + 7 - bit // 8, bit % 8)
    before = contents(path)
    with pytest.raises(embedlog.CorruptRecordError) as noticed:
        read(path, read_only=read_only)
    assert noticed.value.path == str(last)
    assert contents(path) == before


def test_a_damaged_leader_epoch_of_the_last_batch_is_noticed_in_a_copy(tmp_path: Path) -> None:
    """LOAD-6: no digest reaches it there; the epochs' checkpoint has it."""
    path = copied(killed(tmp_path / "log", flushed=True))
    last = logs(path)[-1]
    flip(last, heads(last)[-1] + 15, 2)
    for read_only in (True, False):
        with pytest.raises(embedlog.CorruptRecordError, match="another leader epoch"):
            read(path, read_only=read_only)


def test_a_batch_of_another_epoch_that_equals_where_its_own_began_is_noticed() -> None:
    epochs = np.array([7, 7], np.int32)
    bases = np.array([7, 8], np.int64)
    assert EpochCache([(0, 0), (1, 7)]).find_disagreement(bases, epochs) == (0, 1)
    assert EpochCache([(0, 0), (7, 7)]).find_disagreement(bases, epochs) is None
    assert EpochCache([(0, 8)]).find_disagreement(bases, np.array([5, 0], np.int32)) is None, (
        "nothing is known before"
    )
    assert EpochCache().find_disagreement(bases, epochs) is None


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
def test_a_brokers_log_that_ends_before_its_recovery_point_is_damaged(
    closed: Path, read_only: bool
) -> None:
    path = as_a_brokers(copied(closed), clean=True)
    logs(path)[-1].unlink()
    with pytest.raises(embedlog.CorruptRecordError, match="ends before the durable end"):
        read(path, read_only=read_only)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize(("number", "bit"), [(1, 10), (1, 33), (-1, 31), (-1, 33), (-1, 40)])
def test_a_base_offset_that_leapt_in_a_log_of_a_broker_is_damage(
    closed: Path, number: int, bit: int, clean: bool
) -> None:
    """The sound batches that follow it are no torn tail, and an offset that one bit put beyond its
    segment is no offset.
    """
    path = as_a_brokers(copied(closed), clean=clean)
    (path / file_names.RECOVERY_POINTS).unlink()
    last = logs(path)[-1]
    flip(last, heads(last)[number] + 7 - bit // 8, bit % 8)
    before = contents(path)
    for read_only in (True, False):
        with pytest.raises(embedlog.CorruptRecordError):
            read(path, read_only=read_only)
    if not clean:  # an opening for writing removes the mark of a broker's orderly close
        assert contents(path) == before
    report = embedlog.check(path)
    assert str(last) in [each.path for each in report.findings if each.severity == "damage"], str(
        report
    )
    if number == -1:
        assert [
            (each.kind, each.position) for each in report.findings if each.path == str(last)
        ] == [("headers", heads(last)[-1])]


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("bit", [31, 33, 62])
def test_a_repair_restores_the_base_offset_that_leapt_out_of_its_segment(
    closed: Path, bit: int, clean: bool
) -> None:
    path = as_a_brokers(copied(closed), clean=clean)
    (path / file_names.RECOVERY_POINTS).unlink()
    last = logs(path)[-1]
    flip(last, heads(last)[-1] + 7 - bit // 8, bit % 8)
    assert not embedlog.repair(path).damaged
    for read_only in (True, False):
        assert read(path, read_only=read_only) == list(range(COUNT))


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_a_base_offset_that_leapt_beyond_the_next_segment_is_damage_and_splits_nothing(
    closed: Path, clean: bool
) -> None:
    path = as_a_brokers(copied(closed), clean=clean)
    (path / file_names.RECOVERY_POINTS).unlink()
    for each in logs(path)[-3:-1]:
        each.with_suffix(".index").unlink()
    middle = logs(path)[-2]
    flip(middle, heads(middle)[-1] + 7 - 33 // 8, 33 % 8)
    before = [each.read_bytes() for each in logs(path)]
    for read_only in (True, False):
        with pytest.raises(embedlog.CorruptRecordError) as noticed:
            read(path, read_only=read_only)
        assert noticed.value.path == str(middle)
    assert [each.read_bytes() for each in logs(path)] == before
    assert not embedlog.repair(path).damaged
    assert read(path, read_only=False) == list(range(COUNT))


def test_a_segment_larger_than_any_can_be_is_refused(closed: Path) -> None:
    path = copied(closed)
    os.truncate(logs(path)[-1], 1 << 32)
    for read_only in (True, False):
        with pytest.raises(embedlog.CorruptRecordError, match="a segment is too large"):
            read(path, read_only=read_only)


# ---- comparing ------------------------------------------------------------------------------------------------------


def test_a_comparison_goes_by_every_point_that_is_passed() -> None:
    point = evidence.KnownPart(10, 1, 5, True, True)
    comparison = evidence.Comparison(Path("x.log"), [point])
    with pytest.raises(embedlog.CorruptRecordError, match="file ends inside a batch"):
        comparison.compare_end(4, 0, None)
    with pytest.raises(embedlog.CorruptRecordError, match="headers of this segment"):
        evidence.Comparison(Path("x.log"), [point]).compare_end(10, 6, None)
    comparison.compare_end(20, 0, None)
