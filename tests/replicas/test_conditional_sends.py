"""Sends with an expected offset while a directory of the set fails: one place for each record, and
no false conflict.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

import embedlog
from embedlog import OffsetMismatchError
from embedlog._native import system

CONFIG = {"default.replication.factor": 3, "housekeeping": False}


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_failing_directory_is_no_conflict(tmp_path: Path, leads: bool, nth: int) -> None:
    """The write of the leader, of its index, or of a follower fails: the same record is appended
    once, at its offset.
    """
    directories = [tmp_path / name for name in ("d1", "d2", "d3")]
    with (
        embedlog.open(directories, config=CONFIG) as log,
        log.producer() as producer,
        log.producer() as other,
    ):
        log.create_topic("t", config={"min.insync.replicas": 1, "index.interval.bytes": 0})
        assert producer.send("t", b"0", expected_offset=0).result(30).offset == 0
        leader = log.replicas().partitions[0].leader
        failing = leader if leads else next(node for node in (1, 2, 3) if node != leader)
        system.fault_arm(
            ["pwrite"], nth, "fail", errno.EIO, sticky=True, name=f"{directories[failing - 1]}/t-0/"
        )
        try:
            place = producer.send("t", b"1", expected_offset=1).result(30)
            assert system.fault_counters()[1] > 0
        finally:
            system.fault_off()
        assert place.offset == 1
        with pytest.raises(OffsetMismatchError) as caught:
            other.send("t", b"x", expected_offset=1).result(30)
        assert caught.value.actual == 2
        assert other.send("t", b"2", expected_offset=2).result(30).offset == 2
        assert [record.value for record in log.scan("t").records()] == [b"0", b"1", b"2"]
        assert (log.replicas().partitions[0].leader != leader) == leads
