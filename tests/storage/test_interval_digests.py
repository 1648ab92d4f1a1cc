"""Digests by index interval: damage outside of Kafka's checksum is detected from any start
position.

The damage is another leader epoch or base offset, or a whole valid batch in the place of another
one (misdirected write, old block). Every test of its detection has the same steps with the rule
switched off.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

import embedlog
from embedlog import CorruptRecordError, TopicPartition
from embedlog._native import codec, system
from embedlog.format.record_batch import Chain, scan
from embedlog.storage import file_names, files, interval_digests
from tests.faults.harness.batches import batch as as_batch
from tests.faults.harness.processes import Nursery, RemoteError
from tests.faults.harness.stage import Play
from tests.support.mutants import mutated

QUIET = {"housekeeping": False}
COUNT = 48  # batches of one record, all of one size; an index entry for every third
CONFIG = {"index.interval.bytes": 200, "flush.ms": 3_600_000}


def value(number: int) -> bytes:
    return b"value %04d" % number


def filled(path: Path, count: int = COUNT, config: dict[str, object] | None = None) -> embedlog.Log:
    log = embedlog.open(path, config=QUIET)
    log.create_topic("t", config=CONFIG | (config or {}))
    write(log, range(count))
    return log


def write(log: embedlog.Log, numbers: range, **options: int) -> None:
    with log.producer(linger_ms=0, **options) as producer:
        for number in numbers:
            future = producer.send("t", value(number), timestamp_ms=1000 + number, partition=0)
            producer.flush()
            future.result()


def segment_of(path: Path) -> Path:
    return min((path / "t-0").glob("*.log"))


def heads(raw: bytes) -> list[tuple[int, int]]:
    """(position, size) of each batch."""
    found = []
    at = 0
    while at < len(raw):
        size = int.from_bytes(raw[at + 8 : at + 12], "big") + 12
        found.append((at, size))
        at += size
    return found


def patch(path: Path, position: int, data: bytes) -> None:
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, data, position)
    os.close(fd)


# ---- the damage ----------------------------------------------------------------------------------


def replaced(log: Path, number: int) -> None:
    """Another batch of this log in the place of this one: valid, of the same size, with the offset
    that belongs here.
    """
    raw = log.read_bytes()
    batches = heads(raw)
    (here, size), (there, other) = batches[number], batches[(number + 7) % len(batches)]
    assert size == other
    patch(log, here, raw[here : here + 16] + raw[there + 16 : there + size])


def other_epoch(log: Path, number: int) -> None:
    patch(log, heads(log.read_bytes())[number][0] + 12, b"\0\0\0\x07")


def other_offset(log: Path, number: int) -> None:
    patch(log, heads(log.read_bytes())[number][0], (number + 1).to_bytes(8, "big"))


# ---- the ways in ---------------------------------------------------------------------------------


def by_seek(log: embedlog.Log, number: int) -> list[bytes]:
    here = TopicPartition("t", 0)
    with log.consumer(max_partition_fetch_bytes=1) as consumer:
        consumer.assign([here])
        consumer.seek(here, number)
        return [record.value for record in consumer.poll(timeout=1, max_records=1)]


def by_time(log: embedlog.Log, number: int) -> list[bytes]:
    here = TopicPartition("t", 0)
    with log.consumer() as consumer:
        consumer.assign([here])
        found = consumer.offsets_for_times({here: 1000 + number})[here]
        assert found is not None
        consumer.seek(here, found.offset)
        return [record.value for record in consumer.poll(timeout=1, max_records=1)]


def by_scan(log: embedlog.Log, number: int) -> list[bytes]:
    return [
        record.value
        for record in log.scan("t", start_offset=number, end_offset=number + 1).records()
    ]


def by_scan_of_a_time(log: embedlog.Log, number: int) -> list[bytes]:
    return [
        record.value
        for record in log.scan("t", start_time=1000 + number, end_time=1001 + number).records()
    ]


WAYS = [by_seek, by_time, by_scan, by_scan_of_a_time]
Way = Callable[[embedlog.Log, int], list[bytes]]


@pytest.mark.parametrize("sealed", [False, True], ids=["active", "sealed"])
@pytest.mark.parametrize("way", WAYS)
def test_a_valid_batch_in_the_place_of_another_is_noticed_in_the_middle(
    tmp_path: Path, way: Way, sealed: bool
) -> None:
    with filled(tmp_path, config={"segment.bytes": 3000} if sealed else None) as log:
        file = segment_of(tmp_path)
        assert len(list((tmp_path / "t-0").glob("*.log"))) > 1 or not sealed
        number = len(heads(file.read_bytes())) // 2 + 1
        assert way(log, number) == [value(number)]
        replaced(file, number)
        with pytest.raises(CorruptRecordError) as noticed:
            way(log, number)
        assert noticed.value.path == str(file)
        assert noticed.value.position is not None
        assert str(noticed.value.expected).startswith("digest ")
    with embedlog.open(tmp_path, config=QUIET) as log, pytest.raises(CorruptRecordError):
        way(log, number)
    with mutated("no_interval_digest"), embedlog.open(tmp_path, config=QUIET) as log:
        assert way(log, number) != [value(number)], (
            "the rule is off: the wrong record must come back"
        )


@pytest.mark.parametrize("damage", [replaced, other_epoch, other_offset])
def test_no_wrong_record_comes_out_wherever_reading_begins(
    tmp_path: Path, damage: Callable[[Path, int], None], seed: int
) -> None:
    """Every batch damaged in turn, from random places: returned records are right, up to a typed
    error.
    """
    rng = random.Random(seed)
    with filled(tmp_path) as log:
        file = segment_of(tmp_path)
        whole = file.read_bytes()
        partition = log._engine.partition("t", 0)
        noticed = expected = 0
        for number in range(COUNT):
            damage(file, number)
            offset = rng.randrange(COUNT)
            most = rng.choice([1, 300, 5000])
            expected += offset <= number
            try:
                while offset < COUNT:
                    found = partition._reader.fetch(
                        offset, max_bytes=most, committed=False, upto=None, pool=None
                    )
                    for row in found.batches:
                        at = int(row["position"])
                        size = int(row["size"])
                        there = found.position + at
                        assert found.data[at : at + size] == whole[there : there + size], (
                            f"batch {number} was returned"
                        )
                    offset = found.next_offset
            except CorruptRecordError:
                noticed += 1
            patch(file, 0, whole)
            partition._reader.forget()
        print(f"noticed {noticed} of {COUNT}")
        assert noticed >= expected


# ---- the records against a reference implementation ---------------------------------------------------


def reference(log: Path, index: Path) -> list[tuple[int, int]]:
    """(position, digest) for each index entry, by hand."""
    raw = log.read_bytes()
    entries = index.read_bytes()
    wanted = {int.from_bytes(entries[at + 4 : at + 8], "big") for at in range(0, len(entries), 8)}
    digest = 0
    found = []
    for position, _ in heads(raw):
        if position in wanted:
            found.append((position, digest))
        digest = xxhash.xxh3_64_intdigest(raw[position : position + 21], digest)
    return found


def stored(path: Path, base: int) -> list[tuple[int, int]]:
    raw = path.read_bytes()
    records = [raw[at : at + 16] for at in range(0, len(raw), 16)]
    found = [(int.from_bytes(each[:4], "big"), int.from_bytes(each[8:], "big")) for each in records]
    assert [
        interval_digests.encode_record(base, number, *each) for number, each in enumerate(found)
    ] == records, "checks"
    return found


def agree(partition: Path) -> int:
    """Compare all files of digests with the reference; the number of records."""
    count = 0
    for log in partition.glob("*.log"):
        base = int(log.stem)
        mine = file_names.segment_path(partition, base, file_names.DIGESTS)
        expected = reference(log, log.with_suffix(".index"))
        assert stored(mine, base) == expected, log.name
        count += len(expected)
    return count


def test_records_agree_with_the_twin_through_rolls_reopening_and_backup(tmp_path: Path) -> None:
    source = tmp_path / "log"
    with filled(source, 40, {"segment.bytes": 1500}) as log:
        log.backup(tmp_path / "copy")
    assert agree(source / "t-0") > 10
    assert agree(tmp_path / "copy" / "t-0") > 10
    with embedlog.open(source, config=QUIET) as log:
        write(log, range(40, 70))
    assert agree(source / "t-0") > 20


def test_retention_takes_the_digests_along(tmp_path: Path) -> None:
    with filled(
        tmp_path, 60, {"segment.bytes": 1500, "retention.bytes": 3000, "file.delete.delay.ms": 0}
    ) as log:
        log.housekeep()
        left = {int(path.stem) for path in (tmp_path / "t-0").glob("*.log")}
    names = files.listing(tmp_path / "t-0")
    assert {base for name in names if (base := file_names.digests_base(name)) is not None} == left
    assert len(left) < 5


def adopted(play: Play) -> list[tuple[int, int]]:
    a = play.enter()
    b = play.enter()
    for _ in range(12):
        play.append(a)
    play.stop_in_append(a, "before-publish")
    a.kill()
    for _ in range(6):
        play.append(b)
    play.leave(b)
    return stored(file_names.segment_path(play.partition, 0, file_names.DIGESTS), 0)


def test_what_a_dead_process_had_written_gets_its_digests(nursery: Nursery, tmp_path: Path) -> None:
    play = Play(nursery, tmp_path / "log", config=CONFIG)
    assert len(adopted(play)) > 5
    assert agree(play.partition)
    assert not play.seen_afresh().violations


def test_a_failed_append_takes_its_digests_back(tmp_path: Path) -> None:
    with filled(tmp_path) as log:
        file = file_names.segment_path(tmp_path / "t-0", 0, file_names.DIGESTS)
        before = file.read_bytes()
        system.fault_arm(["pwrite"], 3, "fail", errno.ENOSPC, name=file_names.DIGESTS, sticky=True)
        system.fault_arm(["pwrite"], 1, "fail", errno.ENOSPC, name=file_names.DIGESTS, sticky=True)
        with pytest.raises(embedlog.EmbedlogError):
            write(log, range(COUNT, COUNT + 3), delivery_timeout_ms=100, request_timeout_ms=50)
        system.fault_off()
        assert len(file.read_bytes()) <= len(before) + 16 * 3
        write(log, range(COUNT, COUNT + 9))
    assert agree(tmp_path / "t-0")


# ---- lost digests ----------------------------------------------------------------------------------


def read_from_everywhere(log: embedlog.Log) -> None:
    for number in range(0, COUNT, 5):
        assert by_scan(log, number) == [value(number)]


@pytest.mark.parametrize("harm", ["gone", "empty", "torn", "rubbish", "zeros"])
def test_digests_that_are_lost_cost_time_never_data(tmp_path: Path, harm: str) -> None:
    with filled(tmp_path) as log:
        file = file_names.segment_path(tmp_path / "t-0", 0, file_names.DIGESTS)
        raw = file.read_bytes()
        if harm == "gone":
            file.unlink()
        else:
            file.write_bytes(
                {
                    "empty": b"",
                    "torn": raw[:-20],
                    "rubbish": os.urandom(len(raw)),
                    "zeros": bytes(len(raw)),
                }[harm]
            )
        log._engine.partition("t", 0)._reader.forget()
        read_from_everywhere(log)
        replaced(segment_of(tmp_path), 24)
        with pytest.raises(CorruptRecordError):
            by_scan(log, 24)  # the record at the end is still compared


def test_a_file_of_digests_that_is_gone_is_made_again_when_the_log_is_opened(
    tmp_path: Path,
) -> None:
    filled(tmp_path, config={"segment.bytes": 2000}).close()
    first, *_ = sorted((tmp_path / "t-0").glob(file_names.DIGESTS + "*"))
    for path in (tmp_path / "t-0").glob(file_names.DIGESTS + "*"):
        path.unlink()
    with embedlog.open(tmp_path, config=QUIET) as log:
        read_from_everywhere(log)
        assert first.exists()
    assert agree(tmp_path / "t-0") > 10


def test_making_them_again_blesses_nothing(tmp_path: Path) -> None:
    filled(tmp_path, config={"segment.bytes": 2000}).close()
    for path in (tmp_path / "t-0").glob(file_names.DIGESTS + "*"):
        path.unlink()
    file = segment_of(tmp_path)
    replaced(file, 4)
    with embedlog.open(tmp_path, config=QUIET) as log, pytest.raises(CorruptRecordError) as refused:
        by_scan(log, 20)
    assert refused.value.path == str(file)
    assert not file_names.segment_path(tmp_path / "t-0", 0, file_names.DIGESTS).exists()


def test_what_a_broker_has_written_has_no_digests(tmp_path: Path) -> None:
    """Foreign use: ours do not count any more, and nothing that the broker may have changed is
    called damage.
    """
    filled(tmp_path).close()
    shutil.copytree(tmp_path, tmp_path.parent / "copied")
    copied = tmp_path.parent / "copied"
    (copied / file_names.CLEAN_MARK).write_text('{"version":0,"brokerEpoch":7}')
    replaced(segment_of(copied), 24)
    with embedlog.open(copied, config=QUIET) as log:
        assert by_scan(log, 20) == [value(20)]
        assert by_scan(log, 24) == [value(31)]
        assert not list((copied / "t-0").glob(file_names.DIGESTS + "*"))
        write(log, range(COUNT, COUNT + 5))
        assert by_scan(log, COUNT + 2) == [value(COUNT + 2)]


# ---- recovery --------------------------------------------------------------------------------------


def test_damage_is_noticed_in_the_recovery_of_what_was_published(
    nursery: Nursery, tmp_path: Path
) -> None:
    """All processes are killed; the digests are compared with the records before they are made
    again.
    """
    play = Play(nursery, tmp_path / "log", config=CONFIG)
    a = play.enter()
    for _ in range(20):
        play.append(a)
    a.kill()
    replaced(play.partition / f"{0:020d}.log", 9)
    before = {
        path.name: path.read_bytes()
        for path in play.partition.iterdir()
        if path.name.startswith(file_names.DIGESTS)
    }
    b = nursery.spawn()
    with pytest.raises(RemoteError) as refused:
        b.call("read_directory", str(play.directory))
    assert refused.value.kind == "CorruptRecordError"
    assert "digest " in str(refused.value)
    assert before == {name: (play.partition / name).read_bytes() for name in before}


# ---- the walk along the records ----------------------------------------------------------------------


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_reading_ends_where_it_can_be_compared(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """`reach` and `compare` against plain lists, some of the records lost."""
    sizes = data.draw(st.lists(st.integers(70, 400), min_size=1, max_size=40))
    base = data.draw(st.integers(0, 1 << 40))
    raw = b"".join(as_batch(base + at, bytes(size - 69)) for at, size in enumerate(sizes))
    places = []
    digest = 0
    records = []
    for position, _ in heads(raw):
        if position and data.draw(st.booleans()):
            places.append(position)
            records.append(interval_digests.encode_record(base, len(places) - 1, position, digest))
        digest = xxhash.xxh3_64_intdigest(raw[position : position + 21], digest)
    lost = data.draw(st.sets(st.integers(0, max(len(records) - 1, 0))))
    held = [place for number, place in enumerate(places) if number not in lost]
    path = tmp_path_factory.mktemp("records") / "file"
    path.write_bytes(
        b"".join(bytes(16) if number in lost else each for number, each in enumerate(records))
    )
    with files.opened(path) as fd:
        known = interval_digests.Records(fd, base, len(records))
        limit = data.draw(st.integers(1, len(raw) + 100))
        expected = max(
            (at for at in [*held, len(raw)] if at <= limit), default=min(held, default=0)
        )
        if expected == len(raw) or limit < len(raw):
            assert known.reach(interval_digests.State(), limit, len(raw)) == expected
        batches = scan(raw, Chain(gaps_allowed=True)).batches
        after, problem = known.compare(interval_digests.State(), memoryview(raw), batches)
        assert problem is None
        assert (after.position, after.digest, after.agreed) == (
            len(raw),
            digest,
            max(held, default=0),
        )
        at = data.draw(st.integers(0, len(batches) - 1))
        wrong = bytearray(raw)
        # a checksum: another batch, as far as the digest can tell
        wrong[int(batches["position"][at]) + 20] ^= 1
        after, problem = known.compare(interval_digests.State(), memoryview(wrong), batches)
        later = [place for place in held if place > batches["position"][at]]
        assert (problem is None) == (not later)
        if problem is not None:
            assert problem.position == min(later)
            assert after.agreed == max(
                (place for place in held if place <= batches["position"][at]), default=0
            )
    assert codec.DIGEST_RECORD_SIZE == 16


def test_a_file_without_end_has_no_more_records_than_its_segment_has_batches(
    tmp_path: Path,
) -> None:
    """4 TiB without a block once kept a reader busy for hours."""
    with embedlog.open(tmp_path / "log", config={"log.index.interval.bytes": 64}) as log:
        log.create_topic("t")
        with log.producer(linger_ms=0) as producer:
            for number in range(20):
                producer.send("t", b"%d" % number * 50).result(10)
    path = tmp_path / "log" / "t-0"
    (digests,) = path.glob("embedlog.digests-*")
    before = digests.stat().st_size // interval_digests.RECORD_BYTES
    os.truncate(digests, 1 << 42)
    with interval_digests.open_records(path, 0) as records:
        assert records is not None
        assert (
            before <= records._file._file.count <= (path / f"{0:020d}.log").stat().st_size // 61 + 1
        )
    (tmp_path / "log" / ".kafka_cleanshutdown").unlink()
    for read_only in (True, False):
        with embedlog.open(tmp_path / "log", read_only=read_only) as log:
            assert len(list(log.scan("t").records())) == 20
