"""Members of an ISR after a crash: those that were copied since, and those that wait for others."""

from __future__ import annotations

import json
import os
import shutil
from functools import partial
from pathlib import Path

import pytest

import embedlog
from embedlog._native import system
from embedlog.errors import EmbedlogError
from embedlog.storage import control_page, file_names
from tests.support.put_back_directories import (
    check_it_waits,
    killed,
    killed_after,
    level,
    logs,
    opened,
    send,
    values,
)
from tests.support.replica_directories import take_for_originals


def copied(root: Path, node: int) -> None:
    """The directory is replaced by its copy, as on another disk."""
    shutil.copytree(root / f"d{node}", root / "copy")
    shutil.rmtree(root / f"d{node}")
    (root / "copy").rename(root / f"d{node}")


@pytest.mark.parametrize("third", ["copied", "outside the ISR"])
def test_directories_that_were_copied_after_a_kill_begin_again_together(
    tmp_path: Path, third: str
) -> None:
    """Nothing shows whether they were put back. The third directory lacks an acknowledged
    record.
    """
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [2, 1, 3]})
        send(log, b"before")
    killed(
        tmp_path,
        b"after 1",
        b"after 2",
        between=partial((tmp_path / "d3").rename, tmp_path / "away"),
    )
    for node in (1, 2):
        copied(tmp_path, node)
    (tmp_path / "away").rename(tmp_path / "d3")
    if third == "copied":
        copied(tmp_path, 3)
    with embedlog.open([tmp_path / f"d{node}" for node in (1, 2, 3)], restored=True) as log:
        assert values(log) == [b"before", b"after 1", b"after 2"]
        level(log)
    assert len(logs(tmp_path)) == 1


def test_a_copy_from_before_a_topic_does_not_lead_it(tmp_path: Path) -> None:
    """Its opening makes the partition anew, and empty."""
    with opened(tmp_path) as log:
        log.create_topic("other", assignment={0: [1]})

    def work(log: embedlog.Log) -> None:
        shutil.copytree(tmp_path / "d2", tmp_path / "copy")
        log.create_topic("t", assignment={0: [2, 1, 3]})
        send(log, b"after 1", b"after 2")

    killed_after(tmp_path, work)
    shutil.rmtree(tmp_path / "d2")
    (tmp_path / "copy").rename(tmp_path / "d2")
    with opened(tmp_path) as log:
        assert values(log) == [b"after 1", b"after 2"]
        log.replace_directory(2, tmp_path / "d2")
        level(log)
    assert len(logs(tmp_path)) == 1


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_an_orderly_close_ends_no_wait_for_a_member_after_a_crash(tmp_path: Path, end: str) -> None:
    """The power failed: one member lost an acknowledged record that was not synced, the other one
    is away (REPLICA-13).
    """
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1, 2]})
        send(log, b"before")
    killed(
        tmp_path,
        b"after 1",
        b"after 2",
        between=partial(shutil.copytree, tmp_path / "d1", tmp_path / "copy"),
    )
    shutil.rmtree(tmp_path / "d1")
    (tmp_path / "copy").rename(tmp_path / "d1")
    take_for_originals(tmp_path)
    (tmp_path / "d2").rename(tmp_path / "away")
    if end == "killed":
        killed_after(tmp_path, check_it_waits)
    for _ in range(3):
        with opened(tmp_path) as log:
            check_it_waits(log)
    (tmp_path / "away").rename(tmp_path / "d2")
    with opened(tmp_path) as log:
        assert values(log) == [b"before", b"after 1", b"after 2"]
    with opened(tmp_path) as log:
        assert values(log) == [b"before", b"after 1", b"after 2"]


def test_a_mark_that_stays_is_on_disk_before_the_clean_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that made it may have been killed before its sync. Else the next power loss takes
    the mark, and the clean mark shows a complete replica.
    """
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1, 2]})
        send(log, b"before")
    killed(tmp_path, b"after 1", b"after 2")
    monkeypatch.setattr(control_page, "boot_number", lambda: 1)
    (tmp_path / "d2").rename(tmp_path / "away")
    partition = tmp_path / "d1" / "t-0"
    log = opened(tmp_path)
    check_it_waits(log)
    with (tmp_path / "trace").open("w+") as trace:
        system.fault_trace(trace.fileno())
        try:
            log.close()
        finally:
            system.fault_trace(-1)
        trace.seek(0)
        calls = [line.split() for line in trace]
    assert (partition / file_names.DIRTY).exists()
    synced = [number for number, call in enumerate(calls) if call[-1] == str(partition)]
    cleaned = [number for number, call in enumerate(calls) if "cleanshutdown" in call[-1]]
    assert synced, "the names of the partition"
    assert synced[-1] < cleaned[-1]


@pytest.mark.parametrize("created", [False, True], ids=["altered", "created so"])
def test_a_crashed_member_leads_only_a_topic_that_was_always_durable(
    tmp_path: Path, created: bool
) -> None:
    """Records before the setting were acknowledged without a sync, and two of three
    directories lose them.
    """
    durable = {"flush.messages": "1"}
    plain = {"flush.ms": "3600000"}
    sent = [b"%d" % number for number in range(10)]
    synced = {node: tmp_path / f"d{node}" / "t-0" / f"{0:020d}.log" for node in (2, 3)}

    def work(log: embedlog.Log) -> None:
        log.create_topic(
            "t",
            assignment={0: [1, 2, 3]},
            config={"min.insync.replicas": "2", **(durable if created else plain)},
        )
        send(log, b"first")
        log.flush()
        sizes = {node: path.stat().st_size for node, path in synced.items()}
        send(log, *sent)
        log.alter_topic("t", durable)
        if not created:
            (tmp_path / "sizes").write_text(json.dumps(sizes))

    killed_after(tmp_path, work)
    for page in tmp_path.glob(f"d*/*/{file_names.PAGE}"):
        page.unlink()
    if not created:
        for node, size in json.loads((tmp_path / "sizes").read_text()).items():
            os.truncate(synced[int(node)], size)
    (tmp_path / "d1").rename(tmp_path / "away")
    with opened(tmp_path) as log:
        if created:
            log.housekeep()
            assert log.replicas("t").partitions[0].leader in (2, 3)
        else:
            check_it_waits(log)
    (tmp_path / "away").rename(tmp_path / "d1")
    with opened(tmp_path) as log:
        assert values(log) == [b"first", *sent]


def test_damage_of_the_only_replica_of_a_partition_does_not_prevent_an_opening(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1, 2, 3]})
        log.create_topic("single", assignment={0: [3]})

    def work(log: embedlog.Log) -> None:
        with log.producer(linger_ms=0) as producer:
            for number in range(50):
                producer.send("single", b"%0500d" % number)
        send(log, b"before")
        log._engine.partition("single", 0).sync()

    killed_after(tmp_path, work)
    segment = tmp_path / "d3" / "single-0" / f"{0:020d}.log"
    data = bytearray(segment.read_bytes())
    data[1000] ^= 1
    segment.write_bytes(data)
    with opened(tmp_path) as log:
        send(log, b"after")
        assert values(log) == [b"before", b"after"]
        with pytest.raises(EmbedlogError, match="single-0"):
            list(log.scan("single").records())
        log.delete_topic("single")
        assert log.topics() == ["t"]
    assert segment.exists() is False
