"""Descriptions of topics and groups while a partition has no leader."""

from __future__ import annotations

from pathlib import Path

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.errors import LeaderNotAvailableError
from tests.support.opened_sets import opened, paths


@pytest.mark.parametrize("read_only", [False, True])
def test_the_other_partitions_are_described(tmp_path: Path, read_only: bool) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1], 1: [2], 2: [3]})
        log._engine.groups.commit("g", {TopicPartition("t", number): 0 for number in range(3)})
    paths(tmp_path)[1].rename(tmp_path / "away")
    config = {"housekeeping": False, "lock_timeout_ms": 300}
    with embedlog.open(paths(tmp_path), read_only=read_only, config=config) as log:
        with pytest.raises(LeaderNotAvailableError, match="t-1"):
            log.describe_topic("t")
        found = log.describe_topic("t", available_only=True)
        assert [each.partition for each in found.partitions] == [0, 2]
        assert [
            (each.partition, each.log_end_offset, each.lag)
            for each in log.describe_group("g").partitions
        ] == [
            (0, 0, 0),
            (1, None, None),
            (2, 0, 0),
        ]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_check_finds_what_it_cannot_read_and_checks_the_rest(
    tmp_path: Path, read_only: bool
) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={0: [1], 1: [2], 2: [3], 3: [2]})
        log.create_topic("u", assignment={0: [1, 2, 3]})
        with log.producer() as producer:
            producer.send_batch("u", [b"v"] * 20)
        assert log.check().good
    paths(tmp_path)[1].rename(tmp_path / "away")
    with embedlog.open(
        paths(tmp_path), read_only=read_only, config={"housekeeping": False, "lock_timeout_ms": 300}
    ) as log:
        with pytest.raises(LeaderNotAvailableError):
            log.verify_replicas()
        assert [(each.kind, each.topic, each.partition) for each in log.check().findings] == [
            ("away", None, None),
            ("leader", "t", 1),
            ("leader", "t", 3),
        ]
        path = next((paths(tmp_path)[2] / "u-0").glob("*.log"))
        data = bytearray(path.read_bytes())
        data[70] ^= 1
        path.write_bytes(data)
        assert {each.kind for each in log.check().findings} == {
            "away",
            "leader",
            "records",
            "replica",
        }


def test_the_housekeeper_reports_all_of_them_in_one_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as log:
        log.create_topic("t", assignment={number: [2] for number in range(5)})
    paths(tmp_path)[1].rename(tmp_path / "away")
    with embedlog.open(
        paths(tmp_path), config={"housekeeping": False, "lock_timeout_ms": 300}
    ) as log:
        caplog.clear()
        log.housekeep()
        messages = [
            record.getMessage()
            for record in caplog.records
            if "leads before" in record.getMessage()
        ]
        assert len(messages) == 1
        assert messages[0].startswith("partitions without a leader: ")
