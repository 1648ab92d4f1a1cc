"""Loading: cached facts about files are used only as long as the files are unchanged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import embedlog
from embedlog.format import aborted_transactions
from embedlog.format.record_batch import Chain, scan
from embedlog.storage import file_names
from embedlog.storage.manifest import Manifest

QUIET = {"flush.ms": 3_600_000}


def opened(path: Path) -> embedlog.Log:
    return embedlog.open(path, config={"housekeeping": False})


def append(
    log: embedlog.Log, count: int, size: int = 100, topic: str = "t", first: int = 0
) -> None:
    with log.producer(linger_ms=0) as producer:
        for number in range(first, first + count):
            producer.send(topic, value=b"%0*d" % (size, number), timestamp_ms=1000).result(
                timeout=10
            )


def read(log: embedlog.Log, topic: str = "t") -> list[int]:
    return [int(record.value) for record in log.scan(topic).records()]


def two_topics(path: Path, size: int, segment_bytes: int) -> tuple[Path, Path]:
    """The first segments of two topics with the same offsets; the second topic's records are `size`
    bytes large.
    """
    with opened(path) as log:
        for name, each in (("t", 100), ("u", size)):
            log.create_topic(
                name, config=QUIET | {"segment.bytes": 400 if name == "t" else segment_bytes}
            )
            append(log, 6, each, name, first=0 if name == "t" else 100)
    return tuple(path / f"{name}-0" / file_names.file_name(0, file_names.LOG) for name in "tu")  # type: ignore[return-value]


@pytest.mark.parametrize(("size", "segment_bytes"), [(150, 600), (80, 350)])
def test_a_sealed_segment_swapped_for_another_valid_one_is_noticed_at_opening(
    tmp_path: Path, size: int, segment_bytes: int
) -> None:
    ours, theirs = two_topics(tmp_path / "log", size, segment_bytes)
    assert ours.stat().st_size != theirs.stat().st_size
    shutil.copyfile(theirs, ours)
    with (
        opened(tmp_path / "log") as log,
        pytest.raises(embedlog.CorruptRecordError, match="a sealed segment is too"),
    ):
        read(log)


def test_a_sealed_segment_swapped_for_one_of_its_size_is_noticed_when_it_is_read(
    tmp_path: Path,
) -> None:
    ours, theirs = two_topics(tmp_path / "log", 100, 400)
    assert ours.stat().st_size == theirs.stat().st_size
    shutil.copyfile(theirs, ours)
    with (
        opened(tmp_path / "log") as log,
        pytest.raises(embedlog.CorruptRecordError, match="headers of this segment"),
    ):
        read(log)


def test_a_segment_whose_name_leaves_no_room_for_offsets_is_refused(tmp_path: Path) -> None:
    ours, _ = two_topics(tmp_path / "log", 100, 400)
    path = ours.with_name(file_names.file_name(2**63 - 3, file_names.LOG))
    path.write_bytes(ours.read_bytes())
    with (
        opened(tmp_path / "log") as log,
        pytest.raises(embedlog.CorruptRecordError, match="is no offset") as caught,
    ):
        read(log)
    assert caught.value.path == str(path)


def test_heads_that_a_broker_rewrote_are_not_taken_for_damage(tmp_path: Path) -> None:
    """A cleaner that only sets a delete horizon leaves a file of the same size whose checksums are
    others.
    """
    ours, theirs = two_topics(tmp_path / "log", 100, 400)
    shutil.copyfile(theirs, ours)
    mark = tmp_path / "log" / file_names.CLEAN_MARK
    mark.unlink()
    mark.write_text('{"version":0,"brokerEpoch":7}')
    with opened(tmp_path / "log") as log:
        assert read(log) == [100, 101, 2, 3, 4, 5]


def test_a_segment_that_was_sealed_twice_may_have_lost_the_record_of_the_second_time(
    tmp_path: Path,
) -> None:
    """A broken-off roll leaves a record; the segment grows, is rolled, and a power loss takes the
    newer record.
    """
    with opened(tmp_path / "log") as log:
        log.create_topic("t", config=QUIET | {"segment.bytes": 400})
        append(log, 5)
    partition = tmp_path / "log" / "t-0"
    raw = (partition / file_names.MANIFEST).read_bytes()
    manifest = Manifest(partition, raw[16:32])
    manifest.refresh()
    info = manifest.segments[0]
    assert manifest.start is not None
    first = (partition / file_names.file_name(0, file_names.LOG)).read_bytes()[: info.size // 2]
    chain = Chain()
    assert scan(first, chain).consumed == len(first)
    before = info._replace(size=len(first), next_offset=1, digest=chain.digest)
    manifest.rewrite([before, manifest.segments[2]], manifest.start)
    (tmp_path / "log" / file_names.CLEAN_MARK).unlink()
    (tmp_path / "log" / file_names.CONTROL).unlink()
    (partition / file_names.PAGE).unlink()
    (partition / file_names.DIRTY).touch()
    with opened(tmp_path / "log") as log:
        log._engine.home.context.broker_wrote = False
        assert read(log) == [0, 1, 2, 3, 4]


def test_a_compacted_log_that_was_recovered_opens_again(golden_copy: Callable[[str], Path]) -> None:
    """Its segments end before the next ones begin; that is no segment missing."""
    path = golden_copy("clean")
    (path / file_names.CLEAN_MARK).unlink()
    for _ in range(2):
        with opened(path) as log:
            counts = {name: sum(1 for _ in log.scan(name).records()) for name in log.topics()}
        assert sum(counts.values())


def committed(log: embedlog.Log) -> dict[str, int]:
    names = log.topics(include_internal=True)
    return {
        name: sum(1 for _ in log.scan(name, isolation_level="read_committed").records())
        for name in names
    }


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("damage", ["gone", "cut", "rubbish"])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_transaction_index_that_is_gone_is_made_again_before_anybody_is_answered(
    golden_copy: Callable[[str], Path], damage: str, read_only: bool
) -> None:
    path = golden_copy("clean")
    with opened(path) as log:
        expected = committed(log)
    indexes = [each for each in path.rglob("*.txnindex") if each.stat().st_size]
    assert indexes
    before = {each: each.read_bytes() for each in indexes}
    for each in indexes:
        if damage == "gone":
            each.unlink()
        else:
            each.write_bytes(
                before[each][: -aborted_transactions.ENTRY_SIZE]
                if damage == "cut"
                else b"\xff" * len(before[each])
            )
    with embedlog.open(path, read_only=read_only) as log:
        assert committed(log) == expected
    if not read_only:
        assert {each: each.read_bytes() for each in indexes} == before
