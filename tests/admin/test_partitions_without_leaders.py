"""Descriptions of topics and groups while a partition has no leader."""

from __future__ import annotations

from pathlib import Path

import pytest

import embedlog
from embedlog import TopicPartition
from embedlog.errors import LeaderNotAvailableError
from tests.replica_set.test_opening import opened, paths


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
        assert [(each.partition, each.log_end_offset, each.lag) for each in log.describe_group("g").partitions] == [
            (0, 0, 0),
            (1, None, None),
            (2, 0, 0),
        ]
