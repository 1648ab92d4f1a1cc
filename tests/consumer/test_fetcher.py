"""A log that comes back shorter than a reader has seen it: noticed by leader epochs, never passed
over in silence.
"""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import OffsetAndMetadata, TopicPartition
from embedlog.errors import LogTruncationError, OffsetOutOfRangeError
from tests.support.fake_engine import FakeEngine, FakePartition, Row
from tests.support.fake_engine import consumer as consumer

T0 = TopicPartition("t", 0)
QUIET = {"housekeeping": False}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(t=1)


def cut(partition: FakePartition, end: int) -> None:
    """The log ends at `end` again, and continues in a new epoch."""
    partition.stored = [each for each in partition.stored if each.last < end]
    partition.log_end = end
    epochs = [(epoch, start) for epoch, start in partition.epochs if start < end]
    partition.epochs = [*epochs, (partition.epochs[-1][0] + 1, end)]


def values_of(records: list[Any]) -> list[bytes]:
    return [record.value for record in records]


def seven(partition: FakePartition) -> None:
    for number in range(7):
        partition.append([b"%d" % number])


# ---- the reset policy after a truncation -------------------------------------------------------------------------------


def test_with_none_the_error_says_where_the_log_parted_ways(
    engine: FakeEngine, consumer: Any
) -> None:
    partition = engine.partition("t", 0)
    seven(partition)
    reader = consumer(auto_offset_reset="none")
    reader.assign([T0])
    reader.seek(T0, 0)
    assert len(reader.poll()) == 7
    cut(partition, 4)
    seven(partition)
    for _ in range(2):  # until a seek
        with pytest.raises(LogTruncationError, match="epoch 0: that epoch ends at 4 now") as caught:
            reader.poll()
        assert caught.value.diverging == OffsetAndMetadata(4, leader_epoch=0)
        assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 0, 7)
        assert reader.position(T0) == 7
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.diverging, again.offset, str(again)) == (
        caught.value.diverging,
        7,
        str(caught.value),
    )
    reader.seek(T0, caught.value.diverging)
    assert [record.offset for record in reader.poll()] == list(range(4, 11))


@pytest.mark.parametrize("policy", ["earliest", "latest", "by_duration:P1D"])
def test_with_any_policy_reading_goes_on_where_the_log_parted_ways(
    engine: FakeEngine, consumer: Any, policy: str
) -> None:
    """Kafka: not where the policy leads, which is for positions that are nowhere."""
    partition = engine.partition("t", 0)
    seven(partition)
    reader = consumer("t", auto_offset_reset=policy)
    reader.seek(T0, 0)
    assert len(reader.poll()) == 7
    cut(partition, 4)
    partition.append([b"new 4"])
    assert values_of(reader.poll()) == [b"new 4"]


def test_a_cut_above_the_position_is_nothing_to_it(engine: FakeEngine, consumer: Any) -> None:
    partition = engine.partition("t", 0)
    seven(partition)
    reader = consumer(auto_offset_reset="none")
    reader.assign([T0])
    reader.seek(T0, 0)
    assert values_of(reader.poll(max_records=2)) == [b"0", b"1"]
    reader.seek(T0, OffsetAndMetadata(2, leader_epoch=0))
    cut(partition, 4)
    partition.append([b"new 4"])
    assert values_of(reader.poll()) == [b"2", b"3", b"new 4"]


def test_what_was_fetched_before_the_cut_goes_out_and_then_it_is_noticed(
    engine: FakeEngine, consumer: Any
) -> None:
    partition = engine.partition("t", 0)
    partition.append([Row(b"%d" % number) for number in range(7)])
    reader = consumer(auto_offset_reset="none")
    reader.assign([T0])
    reader.seek(T0, 0)
    assert len(reader.poll(max_records=5)) == 5
    cut(partition, 0)
    assert values_of(reader.poll()) == [b"5", b"6"]
    with pytest.raises(LogTruncationError):
        reader.poll()


def test_batches_notice_it_too(engine: FakeEngine, consumer: Any) -> None:
    partition = engine.partition("t", 0)
    seven(partition)
    reader = consumer("t", auto_offset_reset="earliest")
    assert sum(len(batch) for batch in reader.batches(timeout=0)) == 7
    cut(partition, 5)
    seven(partition)
    assert [list(batch.offsets) for batch in reader.batches(timeout=0)] == [list(range(5, 12))]


# ---- positions from outside -------------------------------------------------------------------------------------------


def test_a_seek_with_an_epoch_is_checked(engine: FakeEngine, consumer: Any) -> None:
    partition = engine.partition("t", 0)
    seven(partition)
    cut(partition, 4)
    seven(partition)
    reader = consumer(auto_offset_reset="none")
    reader.assign([T0])
    reader.seek(T0, OffsetAndMetadata(6, leader_epoch=1))
    assert reader.poll()[0].offset == 6
    reader.seek(T0, OffsetAndMetadata(6, leader_epoch=0))
    with pytest.raises(LogTruncationError):
        reader.poll()
    reader.seek(T0, 6)  # without an epoch a truncation cannot be detected
    assert reader.poll()[0].offset == 6


def test_an_epoch_that_the_log_never_had_is_a_truncation_without_a_place(
    engine: FakeEngine, consumer: Any
) -> None:
    partition = engine.partition("t", 0)
    seven(partition)
    reader = consumer(auto_offset_reset="none")
    reader.assign([T0])
    reader.seek(T0, OffsetAndMetadata(6, leader_epoch=9))
    with pytest.raises(LogTruncationError, match="that epoch is unknown") as caught:
        reader.poll()
    assert caught.value.diverging is None
    other = consumer("t", auto_offset_reset="earliest")
    other.seek(T0, OffsetAndMetadata(6, leader_epoch=9))
    assert other.poll()[0].offset == 0


def test_an_offset_out_of_range_names_its_partition(engine: FakeEngine, consumer: Any) -> None:
    reader = consumer(auto_offset_reset="none")
    reader.assign([T0])
    reader.seek(T0, 40)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        reader.poll()
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 0, 40)
    assert not isinstance(caught.value, LogTruncationError)


# ---- real logs --------------------------------------------------------------------------------------------------------


def after_power_loss(source: Path, target: Path, size: int) -> Path:
    """The directory as it comes back: the segment is as long as at some sync, mapped pages are
    zeroes, marks are as they were.
    """
    shutil.copytree(source, target)
    for page in [*target.rglob("embedlog.page"), target / "embedlog.control"]:
        page.write_bytes(bytes(4096))
    os.truncate(segment_of(target), size)
    return target


def segment_of(directory: Path) -> Path:
    return directory / "t-0" / f"{0:020d}.log"


def send(log: embedlog.Log, *values: bytes) -> None:
    with log.producer() as producer:
        for value in values:
            producer.send("t", value, partition=0).result(10)


def test_a_power_loss_behind_what_was_read_is_noticed(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        log.create_topic("t")
        send(log, b"0", b"1", b"2")
        log.flush()
        size = segment_of(log.path).stat().st_size
        send(log, b"3", b"4")
        with log.consumer("t", auto_offset_reset="earliest") as reader:
            last = reader.poll()[-1]
        reborn = after_power_loss(log.path, tmp_path / "reborn", size)
    with embedlog.open(reborn, config=QUIET) as log:
        send(log, b"other 3", b"other 4", b"other 5")
        with log.consumer("t", auto_offset_reset="none") as reader:
            reader.seek(T0, OffsetAndMetadata(last.offset + 1, leader_epoch=last.leader_epoch))
            with pytest.raises(LogTruncationError) as caught:
                reader.poll()
            assert caught.value.diverging.offset == 3
            reader.seek(T0, caught.value.diverging)
            assert values_of(reader.poll()) == [b"other 3", b"other 4", b"other 5"]


def test_an_epoch_that_was_seen_is_not_used_again(tmp_path: Path) -> None:
    """Two power losses in a row: the second takes all that the epoch of the first held, and the
    next one had its number.
    """
    path = tmp_path / "log"
    with embedlog.open(path, config=QUIET) as log:
        log.create_topic("t")
        send(log, b"0", b"1")
        log.flush()
        size = segment_of(path).stat().st_size
        once = after_power_loss(path, tmp_path / "once", size)
    with embedlog.open(once, config=QUIET) as log:
        send(log, b"2", b"3", b"4")
        with log.consumer("t", auto_offset_reset="earliest") as reader:
            last = reader.poll()[-1]
        twice = after_power_loss(once, tmp_path / "twice", size)
    with embedlog.open(twice, config=QUIET) as log:
        send(log, *[b"other %d" % number for number in range(2, 9)])
        with log.consumer("t", auto_offset_reset="earliest") as reader:
            reader.seek(T0, OffsetAndMetadata(last.offset + 1, leader_epoch=last.leader_epoch))
            assert values_of(reader.poll())[0] == b"other 2", (
                f"the records up to {last.offset} are gone without an error"
            )
