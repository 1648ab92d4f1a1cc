"""Repairs: no good record is removed, no offset is used again, what is cut is kept, and an
interruption is completed.
"""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import pytest

import embedlog
from embedlog.storage import file_names
from tests.support.campaign_report import add_counts
from tests.support.damaged_logs import (
    PATIENT_S,
    QUIET,
    TOPIC,
    Damage,
    copy,
    drawn,
    extents,
    make,
    names_of,
    rows,
)
from tests.support.decision_logs import killed

UNREPAIRABLE = {"headers", "identity"}
SHORT = 8
LONG = 2_000
KILLS_MAX = 200


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("repair") / "log")


def flipped_batch(source: Path, segment: int, number: int) -> Damage:
    log = sorted((source / "t-0").glob("*.log"))[segment]
    each = extents(log)[number]
    return Damage(
        str(log.relative_to(source)),
        "flip",
        each.end - 5,
        3,
        frozenset(range(each.first, each.after)),
    )


def check_repaired(source: Path, path: Path, lost: frozenset[int], what: object = "") -> None:
    """All records of undamaged batches are there, unchanged, and a new record has a new offset."""
    right = rows(source)
    found = rows(path)
    assert {
        offset: row for offset, row in right.items() if offset not in lost
    }.items() <= found.items(), what
    assert found.items() <= right.items(), what
    assert rows(path, "read_committed").items() <= rows(source, "read_committed").items(), what
    with embedlog.open(path, config=QUIET) as log, log.producer() as producer:
        assert producer.send(TOPIC, b"new").result(PATIENT_S).offset > max(right), what


def test_a_good_log_is_left_alone(source: Path, tmp_path: Path) -> None:
    path = copy(source, tmp_path / "log")
    before = {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}
    found = embedlog.repair(path)
    assert found.good
    assert not found.repaired
    assert {each: each.read_bytes() for each in path.rglob("*") if each.is_file()} == before


@pytest.mark.parametrize(("segment", "number"), [(0, 0), (0, 5), (1, -1), (2, 3), (2, -1)])
def test_a_damaged_batch_is_cut_out_and_kept(
    source: Path, tmp_path: Path, segment: int, number: int
) -> None:
    path = copy(source, tmp_path / "log")
    damage = flipped_batch(source, segment, number)
    struck = damage.strike(path)
    each = extents(source / damage.name)[number]
    damaged = struck.read_bytes()[each.start : each.end]
    found = embedlog.repair(path)
    assert found.good, str(found)
    assert any("cut out" in text for text in found.repaired)
    [kept] = (path / "t-0").glob("embedlog.cut-*")
    assert kept.name == f"embedlog.cut-{struck.stem}-{each.start}"
    assert kept.read_bytes() == damaged
    assert {one.kind for one in found.findings} == {"kept"}
    check_repaired(source, path, damage.lost)


def test_lost_records_at_the_end_leave_a_gap(source: Path, tmp_path: Path) -> None:
    path = copy(source, tmp_path / "log")
    last = max((path / "t-0").glob("*.log"))
    last.unlink()
    found = embedlog.repair(path)
    assert found.good, str(found)
    end = max(rows(source)) + 2  # a marker follows the last record
    assert any(f"continues at offset {end}" in text for text in found.repaired)
    check_repaired(source, path, frozenset(range(int(last.stem), end)))


def test_a_set_refuses_and_repairs_itself(tmp_path: Path) -> None:
    places = [tmp_path / "1", tmp_path / "2"]
    with embedlog.open(places, config=QUIET) as log:
        log.create_topic(TOPIC, replication_factor=2)
        with log.producer(acks="all") as producer:
            for number in range(20):
                producer.send(TOPIC, b"%d" % number * 50).result(PATIENT_S)
        assert log.check().good
        leader = log.replicas(TOPIC).partitions[0].leader
        follower = next(each for each in log.replicas().directories if each.node != leader)
        [segment] = (Path(follower.path) / "t-0").glob("*.log")
        data = bytearray(segment.read_bytes())
        data[extents(segment)[4].end - 2] ^= 1
        segment.write_bytes(data)
        found = log.check()
        assert found.damaged
        assert {each.path for each in found.findings if each.kind == "records"} == {str(segment)}
        repaired = log.check(repair=True)
        assert repaired.repaired
        assert not repaired.damaged, str(repaired)
        assert len(list(log.scan(TOPIC).records())) == 20
    with pytest.raises(embedlog.ReplicaSetError):
        embedlog.repair(places[0])


def test_an_open_log_is_repaired_by_its_only_process(source: Path, tmp_path: Path) -> None:
    path = copy(source, tmp_path / "log")
    with embedlog.open(path, config=QUIET) as log:
        log.flush()
        damage = flipped_batch(source, 1, 2)
        damage.strike(path)
        assert log.check().damaged
        found = log.check(repair=True)
        assert found.good, str(found)
        assert found.repaired
        assert log.topics() == [TOPIC]
    check_repaired(source, path, damage.lost)


def test_a_repair_needs_a_directory_that_is_not_open(source: Path, tmp_path: Path) -> None:
    path = copy(source, tmp_path / "log")
    flipped_batch(source, 1, 2).strike(path)
    with embedlog.open(path, config=QUIET), embedlog.open(path, config=QUIET) as log:
        with pytest.raises(embedlog.DirectoryInUseError):
            embedlog.repair(path)
        with pytest.raises(embedlog.DirectoryInUseError):
            log.check(repair=True)
        assert log.check().damaged
    with embedlog.open(path, read_only=True) as log, pytest.raises(embedlog.ReadOnlyError):
        log.check(repair=True)


@pytest.mark.slow
def test_a_killed_repair_is_completed(source: Path, tmp_path: Path) -> None:
    damage = flipped_batch(source, 1, 4)
    struck = copy(source, tmp_path / "struck")
    damage.strike(struck)
    kills = 0
    for nth in range(1, KILLS_MAX):
        path = copy(struck, tmp_path / "log")
        if not killed(lambda path=path: embedlog.repair(path), nth):  # type: ignore[misc]
            break
        kills += 1
        assert embedlog.repair(path).good, f"killed before call {nth}"
        check_repaired(source, path, damage.lost, f"killed before call {nth}")
    assert 20 < kills < KILLS_MAX - 1
    add_counts("repairs killed at each call", kills=kills)


def experiment(source: Path, target: Path, rng: random.Random, count: int) -> None:
    names = names_of(source)
    names += [name for name in names if name.endswith(".log")] * 5
    left = 0
    for _ in range(count):
        damage = drawn(source, rng, names)
        damage.strike(copy(source, target))
        found = embedlog.repair(target)
        kinds = {each.kind for each in found.findings if each.severity != "note"}
        assert kinds <= UNREPAIRABLE, f"{damage}: {found}"
        left += bool(kinds)
        if not kinds:
            check_repaired(source, target, damage.lost, damage)
    add_counts("repairs of damaged files", damages=count, left=left)
    assert left < max(3, count // 10)


def test_a_repair_removes_no_good_record(source: Path, tmp_path: Path, rng: random.Random) -> None:
    experiment(source, tmp_path / "log", rng, SHORT)


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_a_repair_removes_no_good_record_long(
    source: Path, tmp_path: Path, rng: random.Random
) -> None:
    experiment(source, tmp_path / "log", rng, LONG)


def test_a_high_watermark_of_a_partition_that_was_never_used(source: Path, tmp_path: Path) -> None:
    """A changed bit gave it the offset of another partition. Its log end is known only after its
    first load.
    """
    path = copy(source, tmp_path / "log")
    checkpoint = path / file_names.HIGH_WATERMARKS
    text, count = re.subn(
        r"(?m)^__transaction_state (\d+) (?=[1-9])",
        lambda found: f"__transaction_state {int(found[1]) ^ 1} ",
        checkpoint.read_text(),
    )
    assert count == 1
    checkpoint.write_text(text)
    found = embedlog.repair(path)
    assert found.good, str(found)
    assert any(file_names.HIGH_WATERMARKS in each for each in found.repaired)
    check_repaired(source, path, frozenset())


def test_a_repair_of_two_damages_in_one_segment(source: Path, tmp_path: Path) -> None:
    path = copy(source, tmp_path / "log")
    damages = [flipped_batch(source, 0, number) for number in (2, 3, 9)]
    for each in damages:
        each.strike(path)
    found = embedlog.repair(path)
    assert found.good, str(found)
    assert len(list((path / "t-0").glob("embedlog.cut-*"))) in (2, 3)
    check_repaired(source, path, frozenset().union(*(each.lost for each in damages)))
    shutil.rmtree(path)


def test_a_damaged_abort_marker_keeps_its_outcome(source: Path, tmp_path: Path) -> None:
    """Cut out, it let a reader of committed records see the records of the aborted transaction."""
    last = max((source / "t-0").glob("*.log"))
    markers = [number for number, each in enumerate(extents(last)) if each.end - each.start == 78]
    assert len(markers) == 4
    for number in markers:
        path = copy(source, tmp_path / "log")
        damage = flipped_batch(source, 2, number)
        damage.strike(path)
        found = embedlog.repair(path)
        assert found.good, str(found)
        assert any("marker" in text for text in found.repaired)
        check_repaired(source, path, frozenset(), number)
        assert (
            rows(copy(source, tmp_path / "right"), "read_committed").items()
            <= rows(path, "read_committed").items()
        )


@pytest.mark.parametrize(
    ("segment", "number", "position"), [(0, 0, 7), (1, 4, 7), (1, 4, 6), (1, -1, 7), (2, 1, 7)]
)
def test_an_offset_is_restored_from_the_neighbours(
    source: Path, tmp_path: Path, segment: int, number: int, position: int
) -> None:
    """Kafka's checksum does not cover them; the batch was once taken for a later one, and the next
    one cut out.
    """
    log = sorted((source / "t-0").glob("*.log"))[segment]
    path = copy(source, tmp_path / "log")
    batch = extents(log)[number]
    Damage(str(log.relative_to(source)), "flip", batch.start + position, 0, frozenset()).strike(
        path
    )
    assert embedlog.check(path).damaged
    found = embedlog.repair(path)
    assert found.good, str(found)
    assert (path / "t-0" / log.name).read_bytes() == log.read_bytes()
    check_repaired(source, path, frozenset())


def test_a_log_with_another_epoch_in_a_header_is_left(source: Path, tmp_path: Path) -> None:
    log = sorted((source / "t-0").glob("*.log"))[1]
    path = copy(source, tmp_path / "log")
    batch = extents(log)[4]
    Damage(str(log.relative_to(source)), "flip", batch.start + 15, 0, frozenset()).strike(path)
    before = {each.name: each.read_bytes() for each in (path / "t-0").glob("*.log")}
    found = embedlog.repair(path)
    assert {each.kind for each in found.findings if each.severity == "damage"} == {"headers"}
    assert {each.name: each.read_bytes() for each in (path / "t-0").glob("*.log")} == before
