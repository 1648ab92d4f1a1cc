"""Checks of the files of a log: every damage is found, with its file and position, and a good log
has no finding.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

import embedlog
from embedlog.admin import log_check
from embedlog.integrity.partition_check import PartitionFacts
from embedlog.partition.log_context import Bounds
from embedlog.partition.partition import Partition
from embedlog.storage.manifest import SegmentInfo
from tests.conftest import FEW_PARTITIONS
from tests.support.campaign_report import add_counts
from tests.support.damaged_logs import (
    PATIENT_S,
    QUIET,
    SETTINGS,
    TOPIC,
    copy,
    drawn,
    extents,
    make,
    names_of,
    rows,
)

CACHES_WITHOUT_CHECK = (  # a change of these files loses nothing, and some have no checksum
    ".kafka_cleanshutdown",
    "embedlog.control",
    "embedlog.directory",
    "embedlog.door",
    "embedlog.housekeeper",
    "embedlog.lock",
    "embedlog.page",
    "embedlog.slots",
    "embedlog.sync",
)
DETERMINED = (".log", ".index", ".timeindex", ".txnindex", ".manifest", "embedlog.topics")
SHORT = 35
LONG = 4_000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("damage") / "log")


def test_a_good_log_has_no_finding(source: Path, tmp_path: Path) -> None:
    found = embedlog.check(source)
    assert found.good
    assert not found.damaged
    assert not found.findings
    assert (found.partitions, found.segments) == (1 + FEW_PARTITIONS, 4)
    assert found.batches > 40 + 8
    assert str(found).endswith("in order")
    assert "in order" in repr(found)


def test_a_mark_of_a_failed_sync_is_kept_and_a_cut_file_is_not_needed(
    source: Path, tmp_path: Path
) -> None:
    path = copy(source, tmp_path)
    (path / f"{TOPIC}-0" / "embedlog.poison-0").write_bytes(b"")
    (path / f"{TOPIC}-0" / "embedlog.cut-0-99").write_bytes(b"cut")
    cut, mark = sorted(embedlog.check(path).findings, key=lambda each: each.path)
    assert (mark.kind, mark.severity, mark.message) == (
        "failed-sync",
        "note",
        "a sync of segment 0 has failed",
    )
    assert "cut out" not in mark.meaning
    assert mark.remedy.startswith("keep the file")
    assert (cut.kind, cut.message) == ("kept", "3 bytes")


def test_an_open_log_is_checked_while_it_is_written(tmp_path: Path) -> None:
    with (
        embedlog.open(tmp_path / "log", config=QUIET) as log,
        log.producer(linger_ms=0) as producer,
    ):
        log.create_topic(TOPIC, 2, config=SETTINGS)
        for number in range(60):
            producer.send(TOPIC, b"x" * 300, partition=number % 2).result(PATIENT_S)
            if number % 20 == 0:
                assert log.check().good
                assert embedlog.check(tmp_path / "log").good
        log.delete_records({embedlog.TopicPartition(TOPIC, 0): 20})
        assert log.check().good
    assert embedlog.check(tmp_path / "log").good


def test_compacted_and_shortened_logs_have_no_finding(tmp_path: Path) -> None:
    settings = SETTINGS | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    with embedlog.open(tmp_path / "log", config=QUIET) as log:
        log.create_topic(TOPIC, config=settings)
        with log.producer(linger_ms=0) as producer:
            for number in range(60):
                producer.send(TOPIC, b"x" * 300, key=b"%d" % (number % 3)).result(PATIENT_S)
        log.housekeep()
        assert log.check().good
    assert embedlog.check(tmp_path / "log").good


@pytest.mark.parametrize("name", ["clean", "unclean", "clean-4.4.0", "clean-3.9.1"])
def test_directories_of_a_broker_have_no_damage(
    golden: Path, golden_copy: Callable[[str], Path], name: str
) -> None:
    if not (golden / name).exists():
        pytest.skip(f"no golden directory {name}")
    found = embedlog.check(golden_copy(name))
    assert not found.damaged, str(found)
    assert found.batches > 0


def test_bytes_of_an_interrupted_append_are_no_damage(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        log = embedlog.open(tmp_path / "log", config=QUIET)
        log.create_topic(TOPIC)
        log.producer(linger_ms=0).send(TOPIC, b"x" * 500).result(PATIENT_S)
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    with (tmp_path / "log/t-0/00000000000000000000.log").open("ab") as segment:
        segment.write(b"\x00\x00\x00\x00torn")
    [finding] = embedlog.check(tmp_path / "log").findings
    assert (finding.kind, finding.severity) == ("unfinished", "note")
    assert finding.position is not None
    assert "cuts them" in finding.remedy


def test_a_finding_names_file_position_and_records(source: Path, tmp_path: Path) -> None:
    path = copy(source, tmp_path / "log")
    log = sorted((path / "t-0").glob("*.log"))[1]
    batch = extents(log)[3]
    data = bytearray(log.read_bytes())
    data[batch.end - 5] ^= 1
    log.write_bytes(data)
    found = embedlog.check(path)
    [finding] = found.findings
    assert (finding.kind, finding.severity, finding.path, finding.position) == (
        "records",
        "damage",
        str(log),
        batch.start,
    )
    assert (finding.topic, finding.partition, finding.first_offset, finding.end_offset) == (
        TOPIC,
        0,
        batch.first,
        batch.after,
    )
    assert "checksum" in str(finding)
    assert "backup" in finding.remedy
    assert "cannot be read" in finding.meaning
    assert str(log) in found._repr_html_()


def test_every_damaged_batch_of_a_segment_is_found(source: Path, tmp_path: Path) -> None:
    path = copy(source, tmp_path / "log")
    log = min((path / "t-0").glob("*.log"))
    data = bytearray(log.read_bytes())
    hit = [extents(log)[number] for number in (0, 4, 5, 9)]
    for each in hit:
        data[each.end - 3] ^= 64
    log.write_bytes(data)
    found = [(each.first_offset, each.end_offset) for each in embedlog.check(path).findings]
    assert found == [
        (hit[0].first, hit[0].after),
        (hit[1].first, hit[2].after),
        (hit[3].first, hit[3].after),
    ]


def test_a_partition_that_is_missing_is_found(source: Path, tmp_path: Path) -> None:
    path = copy(source, tmp_path / "log")
    shutil.rmtree(path / "t-0")
    assert [(each.kind, each.topic, each.partition) for each in embedlog.check(path).findings] == [
        ("missing-partition", TOPIC, 0)
    ]


def test_an_absent_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(embedlog.StorageError):
        embedlog.check(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


def test_progress_ends_at_the_total_and_can_end_the_check(source: Path) -> None:
    seen: list[tuple[int, int]] = []
    embedlog.check(source, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] == sum(path.stat().st_size for path in source.rglob("*.log"))
    with pytest.raises(ZeroDivisionError):
        embedlog.check(source, progress=lambda done, total: 1 // 0)


def test_a_check_changes_nothing(source: Path, tmp_path: Path, rng: random.Random) -> None:
    def contents() -> dict[Path, bytes]:
        return {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}

    for _ in range(5):
        path = copy(source, tmp_path / "log")
        drawn(source, rng, names_of(source)).strike(path)
        before = contents()
        embedlog.check(path)
        assert contents() == before


# ---- the damage experiments ----------------------------------------------------------------------


def is_same_text(source: Path, target: Path, name: str) -> bool:
    """Whether a file of topics has lost no more than the end of its last line, which JSON does not
    need.
    """
    struck = target / name
    return (
        name == "embedlog.topics"
        and struck.exists()
        and struck.read_bytes() == (source / name).read_bytes().rstrip(b"\n")
    )


def test_a_file_of_topics_without_the_end_of_its_last_line_is_whole(
    source: Path, tmp_path: Path
) -> None:
    path = copy(source, tmp_path / "log")
    topics = path / "embedlog.topics"
    size = topics.stat().st_size
    os.truncate(topics, size - 1)
    assert is_same_text(source, path, topics.name)
    assert embedlog.check(path).good
    assert rows(path) == rows(copy(source, tmp_path / "right"))
    os.truncate(topics, size - 2)
    assert [each.kind for each in embedlog.check(path).findings] == ["topics"]


def experiment(source: Path, target: Path, rng: random.Random, count: int) -> None:
    """What makes a reading fail or return less is damage. A change of a file whose bytes are
    determined is found in that file.
    """
    right = rows(copy(source, target))
    names = names_of(source)
    failed = found_exactly = 0
    for _ in range(count):
        damage = drawn(source, rng, names)
        struck = damage.strike(copy(source, target))
        report = embedlog.check(target)
        named = {each.path for each in report.findings if each.severity != "note"}
        if is_same_text(source, target, damage.name):
            assert report.good, f"{damage}: {report}"
        elif damage.name.endswith(DETERMINED) or "digests" in damage.name:
            missing_manifest = damage.kind == "delete" and damage.name.endswith("manifest")
            assert str(struck) in named or missing_manifest, f"{damage}: {report}"
            found_exactly += 1
        try:
            complete = rows(target) == right
        except embedlog.EmbedlogError:
            complete = False
        if not complete:
            failed += 1
            assert report.damaged, f"{damage}: {report}"
            assert str(struck) in named or damage.name.endswith("-checkpoint"), (
                f"{damage}: {report}"
            )
    add_counts("check of damaged files", damages=count, unreadable=failed, named_file=found_exactly)


def test_every_damage_is_found(source: Path, tmp_path: Path, rng: random.Random) -> None:
    experiment(source, tmp_path / "log", rng, SHORT)


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_every_damage_is_found_long(source: Path, tmp_path: Path, rng: random.Random) -> None:
    experiment(source, tmp_path / "log", rng, LONG)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_topic_that_is_deleted_during_a_check_has_no_finding(
    tmp_path: Path, read_only: bool
) -> None:
    with embedlog.open(tmp_path / "log", config=QUIET) as other:
        for name in ("a", "b", "c"):
            other.create_topic(name)
            with other.producer() as producer:
                producer.send(name, b"value").result(10)

        def delete(done: int, total: int) -> None:
            if "b" in other.topics():
                other.delete_topic("b")

        with embedlog.open(tmp_path / "log", config=QUIET, read_only=read_only) as log:
            report = log.check(progress=delete)
        assert "b" not in other.topics()
    assert not report.findings
    assert report.partitions == 2


class Shortened:
    """A partition of which retention has removed the first segment, and whose last one is not
    readable.
    """

    def bounds(self) -> Bounds:
        return Bounds(0, 20, 20, 20, 0)

    def fetch(self, offset: int, *, max_bytes: int) -> None:
        if offset < 10:
            raise embedlog.OffsetOutOfRangeError("deleted")
        raise embedlog.CorruptRecordError("not readable")


def test_a_segment_that_retention_removed_ends_no_search_for_unreadable_ones(
    tmp_path: Path,
) -> None:
    facts = PartitionFacts(
        tmp_path,
        "t",
        0,
        None,
        False,
        segments=(SegmentInfo(0, 100, 10), SegmentInfo(10, 100, 20)),
    )
    findings = log_check._find_unreadable(cast(Partition, Shortened()), facts)
    assert [finding.first_offset for finding in findings] == [10]
