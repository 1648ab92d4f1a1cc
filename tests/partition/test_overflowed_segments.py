"""Segments whose offsets exceed their base by more than an index can hold, as cleaners of old
brokers left them.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.storage import files
from tests.support.broker_directories import batch
from tests.support.overflowed_segments import FAR, LAYOUTS, offsets_of, one, write

CONFIG: dict[str, Any] = {"housekeeping": False}


by_layout = pytest.mark.parametrize("layout", LAYOUTS)
by_close = pytest.mark.parametrize("closed", [True, False], ids=["closed", "crashed"])
by_index = pytest.mark.parametrize("indexed", [True, False], ids=["indexes", "logs-only"])


def read(log: embedlog.Log, layout: str) -> None:
    expected = [(offset, b"k%d" % offset, b"v%d" % offset) for offset in offsets_of(layout)]
    assert [(each.offset, each.key, each.value) for each in log.scan("t").records()] == expected
    with log.consumer(group_id=None, auto_offset_reset="earliest") as consumer:
        consumer.assign([embedlog.TopicPartition("t", 0)])
        polled: list[int] = []
        while found := consumer.poll(timeout=0):
            polled += [each.offset for each in found]
        assert polled == offsets_of(layout)
        for offset in polled:
            consumer.seek(embedlog.TopicPartition("t", 0), offset)
            assert consumer.poll(timeout=0, max_records=1)[0].offset == offset


@pytest.mark.sample(0.25)
@by_layout
@by_close
@by_index
def test_each_record_is_read_in_each_mode(
    tmp_path: Path, layout: str, closed: bool, indexed: bool
) -> None:
    root = write(tmp_path / "log", layout, closed=closed, indexed=indexed)
    for read_only in (True, True, False, True, False):
        with embedlog.open(root, read_only=read_only, config=CONFIG) as log:
            read(log, layout)
    last = offsets_of(layout)[-1]
    with embedlog.open(root, config=CONFIG) as log, log.producer() as producer:
        assert producer.send("t", b"new").result().offset == last + 1
    with embedlog.open(root, read_only=True) as log:
        assert [each.offset for each in log.scan("t").records()] == [*offsets_of(layout), last + 1]
    assert embedlog.check(root).good
    assert not list((root / "t-0").glob("embedlog.cut-*"))


@pytest.mark.sample(0.25)
@by_layout
@by_close
@by_index
def test_a_repair_removes_no_record(
    tmp_path: Path, layout: str, closed: bool, indexed: bool
) -> None:
    root = write(tmp_path / "log", layout, closed=closed, indexed=indexed)
    before = embedlog.check(root)
    assert "overflow" in [each.kind for each in before.findings]
    assert not [
        each for each in before.findings if each.kind in ("records", "headers", "missing-records")
    ]
    after = embedlog.repair(root)
    assert "overflow" not in [each.kind for each in after.findings]
    with embedlog.open(root, config=CONFIG) as log:
        read(log, layout)


@by_close
def test_producers_of_an_overflowed_last_segment_are_known_to_readers_and_writers(
    tmp_path: Path, closed: bool
) -> None:
    root = write(tmp_path / "log", "last segment", closed=closed, indexed=False)
    producer = (7, 0, 0)
    batches = [
        batch(offset, [(offset, b"k%d" % offset, b"v%d" % offset)], producer=producer)
        for offset in (0, FAR + 5)
    ]
    (root / "t-0" / f"{0:020d}.log").write_bytes(b"".join(batches))
    for read_only in (True, False, True):
        with embedlog.open(root, read_only=read_only, config=CONFIG) as log:
            read(log, "last segment")


@pytest.mark.parametrize("bytes_lost", [1, 30])
def test_a_torn_tail_of_an_overflowed_segment_is_cut_and_the_rest_split(
    tmp_path: Path, bytes_lost: int
) -> None:
    root = write(tmp_path / "log", "three parts", closed=False, indexed=True)
    path = root / "t-0" / f"{0:020d}.log"
    with path.open("ab") as file:
        file.write(one(5 * FAR + 10)[:-bytes_lost])
    for read_only in (True, False, True):
        with embedlog.open(root, read_only=read_only, config=CONFIG) as log:
            read(log, "three parts")
    assert len(list((root / "t-0").glob("*.log"))) == 3
    assert len(list((root / "t-0").glob("embedlog.cut-*"))) == 1


@pytest.mark.sample(0.1)
@by_layout
def test_an_interrupted_split_leaves_the_old_segment_or_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    given = write(tmp_path / "given", layout, closed=True, indexed=True)
    changes = 0

    class EndedError(Exception):
        pass

    def counted(call: Any) -> Any:
        def run(*args: Any, **options: Any) -> Any:
            nonlocal left, changes
            changes += 1
            left -= 1
            if left < 0:
                raise EndedError
            return call(*args, **options)

        return run

    for name in ("rename", "unlink", "write_all", "sync_directory"):
        monkeypatch.setattr(files, name, counted(getattr(files, name)))
    for number in range(100):
        root = tmp_path / f"log-{number}"
        shutil.copytree(given, root)
        left = number
        ended = False
        try:
            with embedlog.open(root, config=CONFIG) as log:
                log.scan("t").records()
        except EndedError:
            ended = True
        left = 1 << 30
        with embedlog.open(root, config=CONFIG) as log:
            read(log, layout)
        shutil.rmtree(root)
        if not ended:
            break
    assert changes > 10
    assert not ended


def test_own_segments_are_bounded_by_their_names(tmp_path: Path) -> None:
    """One changed bit of an offset, which Kafka's checksum does not cover, makes no gap of 2^31
    offsets.
    """
    with embedlog.open(tmp_path / "log", config=CONFIG) as log:
        log.create_topic("t")
        with log.producer() as producer:
            for _ in range(3):
                producer.send("t", b"v").result()
    path = tmp_path / "log" / "t-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[2 * len(data) // 3 + 2] ^= 1
    path.write_bytes(data)
    found = embedlog.check(tmp_path / "log")
    assert found.damaged
    assert "overflow" not in [each.kind for each in found.findings]
    with (
        pytest.raises(embedlog.CorruptRecordError),
        embedlog.open(tmp_path / "log", config=CONFIG) as log,
    ):
        list(log.scan("t").records())
