"""Copies of a leader's log: the same bytes, and the same state for readers and appenders."""

from __future__ import annotations

import errno
import random
import shutil
from pathlib import Path

import pytest

import embedlog
from embedlog._native import system
from embedlog._native.replication import ROLE_FOLLOWER, Leading, Replica
from embedlog.errors import CorruptRecordError, EmbedlogError
from embedlog.format.record_batch import Stamp
from embedlog.partition.partition import Partition
from embedlog.partition.replication.replica_log import Fenced
from tests.support.replica_logs import (
    SMALL,
    Content,
    boundaries,
    content,
    copy,
    fill,
    lead,
    replica,
)
from tests.support.stamped_batches import run_of, stamped

CHANGING = ["open", "pwrite", "ftruncate", "rename", "unlink", "fsync", "fdatasync"]
OTHER_SEGMENTS = {"segment.bytes": 2300, "index.interval.bytes": 200}


def same(found: Content, expected: Content) -> None:
    assert found.log == expected.log
    assert found.bounds[:3] == expected.bounds[:3]
    assert (found.aborted, found.epochs) == (expected.aborted, expected.epochs)
    assert found.producers[6:] == expected.producers[6:]


def follow(partition: Partition, epoch: int) -> None:
    with partition.replica.exclusive() as held:
        held.publish(held.published._replace(epoch=epoch), Replica(role=ROLE_FOLLOWER))


@pytest.mark.parametrize("seed", range(2))
def test_a_copy_in_random_pieces_is_the_log_of_the_leader(tmp_path: Path, seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    time_type = {"message.timestamp.type": rng.choice(["CreateTime", "LogAppendTime"])}
    with replica(tmp_path / "one", config=time_type) as one:
        fill(one, rng)
        expected = content(one)
        times = one.offset_for_time(0)
        with replica(tmp_path / "two", 1, OTHER_SEGMENTS) as two:
            copy(one, two, one.published().log_end, one.published().epoch, rng)
            same(content(two), expected)
            assert two.published().high_watermark == one.published().high_watermark
            assert two.published().segment_base != one.published().segment_base, (
                "segments roll by the settings of the follower"
            )
            ours = [(each.base, each.next_offset) for each in two.segments(two.published())]
    with replica(tmp_path / "two", 1) as two:
        same(content(two), expected)
        assert two.offset_for_time(0) == times
        assert [(each.base, each.next_offset) for each in two.segments(two.published())] == ours


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd", "snappy"])
def test_batches_of_each_codec_are_copied_unchanged(tmp_path: Path, codec: str) -> None:
    with replica(tmp_path / "one") as one, replica(tmp_path / "two", 1) as two:
        log = embedlog.open(tmp_path / "source", config={"housekeeping": False})
        with log, log.producer({"compression.type": codec, "linger.ms": 50}) as producer:
            log.create_topic("t", config=SMALL)
            for number in range(60):
                producer.send("t", b"value %d" % number * 5, key=b"%d" % (number % 7))
            producer.flush()
            plain = log._engine.partition("t", 0)
            copy(plain, one, plain.published().log_end, 3)
            copy(one, two, one.published().log_end, 3)
            assert content(one).log == content(two).log == content(plain).log


def compacted(path: Path) -> None:
    config = SMALL | {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": 0.0,
        "delete.retention.ms": 0,
    }
    with embedlog.open(path, config={"housekeeping": False}) as log:
        log.create_topic("t", config=config)
        with log.producer(linger_ms=0) as producer:
            rng = random.Random(4)
            for number in range(150):
                value = None if number % 11 == 0 else b"%d" % number * 30
                producer.send("t", value, key=b"%d" % rng.randrange(25)).result(timeout=30)
        log.housekeep()


def test_a_compacted_log_is_copied_with_its_gaps(tmp_path: Path) -> None:
    compacted(tmp_path / "one")
    with replica(tmp_path / "one") as one:
        ends = boundaries(one)
        assert ends[-1] - ends[0] >= len(ends), "offsets are missing"
        expected = content(one)
        with replica(tmp_path / "two", 1, OTHER_SEGMENTS) as two:
            copy(one, two, one.published().log_end, 1, random.Random(1))
            assert content(two).log == expected.log
            two.sync()
    shutil.copytree(tmp_path / "two", tmp_path / "three")
    (tmp_path / "three" / ".kafka_cleanshutdown").unlink(missing_ok=True)
    for name in ("two", "three"):
        with replica(tmp_path / name, 1) as two:
            assert content(two).log == expected.log


def test_a_batch_that_does_not_continue_the_log_is_not_taken(tmp_path: Path) -> None:
    with replica(tmp_path / "one") as one, replica(tmp_path / "two", 1) as two:
        fill(one, random.Random(5), epochs=2)
        follow(two, 9)
        ends = boundaries(one)
        later = one.replica.read(ends[2])
        with two.replica.exclusive() as held:
            assert not held.take(later.data, later.batches, Leading(0, 9))
            assert not held.take(
                later.data, later.batches, Leading(0, 9, gaps_allowed=True), ends[2]
            )
            assert held.published.log_end == 0
        first = one.replica.read(0, 1)
        with two.replica.exclusive() as held:
            with pytest.raises(Fenced):
                held.take(first.data, first.batches, Leading(0, 8))
            assert not held.take(first.data, first.batches, Leading(0, 10)), (
                "the page is in an earlier epoch"
            )
            assert held.take(first.data, first.batches, Leading(0, 9))
            assert not held.take(first.data, first.batches, Leading(0, 9)), "it is there already"
        assert two.published().high_watermark == 0
        with two.replica.exclusive() as held:
            assert held.take(b"", first.batches[:0], Leading(1 << 40, 9))
        assert two.published().high_watermark == two.published().log_end, (
            "never above the own log end"
        )


def test_an_epoch_without_a_batch_stays_the_newest_one(tmp_path: Path) -> None:
    with replica(tmp_path / "one") as one, replica(tmp_path / "two", 1) as two:
        fill(one, random.Random(5), epochs=2, steps=4)
        follow(two, 9)
        with two.replica.exclusive() as held:
            held.begin_epoch(9)
        copy(one, two, one.published().log_end, 9)
        end = two.published().log_end
        assert content(two).epochs == [*content(one).epochs, (9, end)]
        assert content(two).log == content(one).log
    with replica(tmp_path / "two", 1) as two:
        assert content(two).epochs[-1] == (9, end), "a load keeps it"


def test_a_copy_that_fails_at_any_call_leaves_whole_batches_and_can_continue(
    tmp_path: Path,
) -> None:
    with replica(tmp_path / "one") as one:
        fill(one, random.Random(3), epochs=2, steps=8)
        expected = content(one)
        end = one.published().log_end
        epoch = one.published().epoch
        ends = {0, *boundaries(one)}
        nth = 0
        struck = True
        felt = 0
        while struck:
            nth += 1 if nth < 40 else 7
            path = tmp_path / f"two{nth}"
            with replica(path, 1) as two:
                follow(two, epoch)
                system.fault_arm(CHANGING, nth, "fail", errno.EIO)
                try:
                    copy(one, two, end, epoch)
                except EmbedlogError:
                    felt += 1
                struck = bool(system.fault_counters()[1])
                system.fault_off()
                with two.replica.exclusive() as held:
                    assert held.published.log_end in ends
                assert expected.log.startswith(content(two).log)
                copy(one, two, end, epoch)
                same(content(two), expected)
            shutil.rmtree(path)
    assert felt >= 10, "hardly any call was hit"


def test_the_last_stable_offset_passes_a_transaction_with_the_high_watermark(
    tmp_path: Path,
) -> None:
    """Four transactions end between two raises of the high watermark of a follower."""
    one_stamp = Stamp(1, 0, True, True)
    two_stamp = Stamp(2, 0, True, True)
    with replica(tmp_path / "one") as one, replica(tmp_path / "two", 1) as two:
        lead(one, 1)
        one.append(stamped(one_stamp, 0, b"a"), stamp=one_stamp)  # 0
        one.append(stamped(two_stamp, 0, b"b"), stamp=two_stamp)  # 1
        assert one.append_marker(1, 1, commit=True) == 2
        third = Stamp(1, 1, True, True)
        one.append(stamped(third, 0, b"c"), stamp=third)  # 3
        assert one.append_marker(2, 1, commit=False) == 4
        assert one.append_marker(1, 2, commit=True) == 5
        one.append(run_of(b"plain"))  # 6
        follow(two, 1)
        fetched = one.replica.read(0)
        with two.replica.exclusive() as held:
            assert held.take(fetched.data, fetched.batches, Leading(0, 1))
        found = []
        for mark in range(8):
            with two.replica.exclusive() as held:
                assert held.take(b"", fetched.batches[:0], Leading(mark, 1))
            found.append(two.bounds().last_stable)
        exact = [0, 0, 0, 1, 1, 3, 6, 7]
        assert all(one_offset <= other for one_offset, other in zip(found, exact, strict=True)), (
            found
        )
        assert found[3] == 1, "the first marker counts at once"
        assert found[6:] == [6, 7], "at the last marker everything is stable"
        follower = two.fetch(0, isolation="read_committed")
        assert follower.next_offset == 7


def test_damage_in_the_leader_is_not_copied(tmp_path: Path) -> None:
    with replica(tmp_path / "one") as one:
        lead(one, 1)
        one.append(run_of(b"a" * 100))
        one.append(run_of(b"b" * 100))
        path = next(one.path.glob("*.log"))
        raw = bytearray(path.read_bytes())
        raw[-5] ^= 1
        path.write_bytes(raw)
        with pytest.raises(CorruptRecordError):
            one.replica.read(0)
