"""What old brokers and their cleaners left, one shape at a time: nothing is cut that is no torn
tail, and no epoch falls.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

import embedlog
from tests.support.broker_directories import CLUSTER, TOPIC_ID, ZOOKEEPER_0, batch

CONFIG: dict[str, Any] = {"housekeeping": False}
FAR = 2**31 + 5  # more than 2^31 - 1 after the base of segment 0


def left(root: Path, segments: dict[int, bytes], files: dict[str, str] | None = None) -> Path:
    """A directory with the topic `t`: its logs, its topic id, and other files by their paths."""
    partition = root / "t-0"
    partition.mkdir(parents=True)
    (partition / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}")
    for base, data in segments.items():
        (partition / f"{base:020d}.log").write_bytes(data)
    for name, text in (files or {}).items():
        (root / name).write_text(text)
    return root


def one(offset: int, epoch: int = 0) -> bytes:
    return batch(offset, [(offset, b"k%d" % offset, b"v%d" % offset)], epoch=epoch)


def offsets(path: Path, **options: Any) -> list[int]:
    with embedlog.open(path, config=CONFIG, **options) as log:
        found = [(record.offset, record.value) for record in log.scan("t").records()]
    assert [value for _, value in found] == [b"v%d" % offset for offset, _ in found]
    return [offset for offset, _ in found]


def cuts(path: Path) -> list[str]:
    return [each.name for each in (path / "t-0").glob("embedlog.cut-*")]


def is_repaired(path: Path) -> bool:
    """Whether a repair leaves a log that is in order."""
    try:
        return embedlog.repair(path).good
    except embedlog.CorruptRecordError:  # it cannot be opened after its repair
        return False


# ---- gaps between segments, without checkpoints -------------------------------------------------------


@pytest.mark.parametrize("torn", [b"", one(301)[:30]], ids=["whole", "torn"])
def test_a_gap_between_segments_cuts_no_later_segment(tmp_path: Path, torn: bytes) -> None:
    path = left(
        tmp_path / "left", {0: one(0) + one(50), 100: one(150) + one(180), 300: one(300) + torn}
    )
    expected = [0, 50, 150, 180, 300]
    assert offsets(path, read_only=True) == expected
    assert cuts(path) == []
    assert offsets(path) == expected
    assert cuts(path) == ([f"embedlog.cut-{300:020d}-{len(one(300))}"] if torn else [])
    with embedlog.open(path, config=CONFIG) as log, log.producer() as producer:
        assert producer.send("t", b"v301", key=b"k301").result(20).offset == 301
    for options in ({"read_only": True}, {}):
        assert offsets(path, **options) == [*expected, 301]
    assert len(embedlog.check(path).findings) == len(cuts(path))


def test_a_repair_cuts_no_segment_after_a_gap(tmp_path: Path) -> None:
    path = left(tmp_path / "left", {0: one(0) + one(50), 100: one(150) + one(180), 300: one(300)})
    embedlog.repair(path)
    assert offsets(path) == [0, 50, 150, 180, 300]
    assert cuts(path) == []


# ---- segments whose offsets overflow ------------------------------------------------------------------


@pytest.mark.parametrize("mark", [{".kafka_cleanshutdown": ""}, {}], ids=["closed", "crashed"])
def test_no_opening_and_no_repair_removes_a_batch_beyond_the_offsets_of_its_segment(
    tmp_path: Path, mark: dict[str, str]
) -> None:
    """As Kafka, the first load that writes divides such a segment. A reader reads it as it is."""
    path = left(tmp_path / "left", {0: one(0) + one(FAR)}, mark)
    assert offsets(path, read_only=True) == [0, FAR]
    assert [each.name for each in sorted((path / "t-0").glob("*.log"))] == [f"{0:020d}.log"]
    for _ in range(2):
        assert offsets(path) == [0, FAR]
        assert offsets(path, read_only=True) == [0, FAR]
        assert embedlog.check(path).good
        assert is_repaired(path)
    assert [each.name for each in sorted((path / "t-0").glob("*.log"))] == [
        f"{0:020d}.log",
        f"{FAR:020d}.log",
    ]
    assert cuts(path) == []


# ---- meta.properties of the first version -------------------------------------------------------------


@pytest.mark.parametrize(
    "meta",
    [ZOOKEEPER_0, "version=0\nbroker.id=0\n", ZOOKEEPER_0 + CLUSTER],
    ids=["0.9", "bare", "with a cluster"],
)
def test_a_meta_file_needs_the_fields_of_its_own_version_only(tmp_path: Path, meta: str) -> None:
    path = left(tmp_path / "left", {0: one(0)}, {"meta.properties": meta})
    assert offsets(path, read_only=True) == [0]
    for number in range(1, 3):
        with embedlog.open(path, config=CONFIG) as log, log.producer() as producer:
            assert (
                producer.send("t", b"v%d" % number, key=b"k%d" % number).result(20).offset == number
            )
        assert offsets(path, read_only=True) == list(range(number + 1))
    assert "broker.id=0" in (path / "meta.properties").read_text()
    assert embedlog.check(path).good


# ---- leader epochs ------------------------------------------------------------------------------------


def epochs(path: Path) -> list[str]:
    return (path / "t-0" / "leader-epoch-checkpoint").read_text().split("\n")[2:-1]


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "crashed"])
def test_the_epoch_of_a_partition_without_records_is_kept(tmp_path: Path, closed: bool) -> None:
    files = {
        "t-0/leader-epoch-checkpoint": "0\n1\n29 1000\n",
        "recovery-point-offset-checkpoint": "0\n1\nt 0 1000\n",
    }
    path = left(
        tmp_path / "left", {1000: b""}, files | ({".kafka_cleanshutdown": ""} if closed else {})
    )
    assert offsets(path, read_only=True) == []
    for _ in range(2):
        assert offsets(path) == []
        assert epochs(path) == ["29 1000"]
    with embedlog.open(path, config=CONFIG) as log, log.producer() as producer:
        producer.send("t", b"v1000", key=b"k1000").result(20)
        [record] = log.scan("t").records()
        assert record.leader_epoch >= 29
    with embedlog.open(path, config=CONFIG) as log:  # emptied again
        log.delete_records({embedlog.TopicPartition("t", 0): -1})
    with embedlog.open(path, config=CONFIG) as log, log.producer() as producer:
        producer.send("t", b"v1001", key=b"k1001").result(20)
        [record] = log.scan("t").records()
        assert (record.offset, record.leader_epoch >= 29) == (1001, True)


@pytest.mark.parametrize(
    "noted", [None, [(5, 0)], [(3, 0)], [(5, 0), (7, 3)]], ids=["none", "first", "lower", "rising"]
)
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "crashed"])
def test_a_leader_epoch_that_falls_is_named_and_nothing_is_changed(
    tmp_path: Path, closed: bool, noted: list[tuple[int, int]] | None
) -> None:
    """Kafka reads such a batch, and takes its epoch for the one before it. No broker writes one,
    and the checksum does not cover the field: a check calls it damage, each opening refuses, and no
    mode cuts it.
    """
    data = one(0, 5) + one(1, 5) + one(2, 3) + one(3, 7)
    files = {".kafka_cleanshutdown": ""} if closed else {}
    if noted is not None:
        files["t-0/leader-epoch-checkpoint"] = f"0\n{len(noted)}\n" + "".join(
            f"{epoch} {start}\n" for epoch, start in noted
        )
    path = left(tmp_path / "left", {0: data}, files)
    log = path / "t-0" / f"{0:020d}.log"
    damage = [each for each in embedlog.check(path).findings if each.severity == "damage"]
    position = 2 * len(one(0))
    named = [
        (each.position, each.expected, each.found)
        for each in damage
        if "leader epoch" in each.message
    ]
    assert (position, 5, 3) in named
    for read_only in (True, False):
        with pytest.raises(embedlog.CorruptRecordError, match="leader epoch of a batch decreases"):
            offsets(path, read_only=read_only)
    assert not is_repaired(path)
    assert log.read_bytes() == data
    assert cuts(path) == []
    assert struct.unpack_from(">i", log.read_bytes(), position + 12) == (3,)
