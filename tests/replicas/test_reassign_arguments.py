"""Arguments of `Log.reassign` that are no partitions, or that are given to a log of one
directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition


@pytest.mark.parametrize(
    "given",
    [[("t", 0)], {("t", 0), ("t", 1)}, {"t": [1]}, {("t",): [1]}, {("t", 0): 1}, {("t", 0): "1"}],
)
def test_what_is_no_mapping_of_partitions_to_nodes_is_refused(tmp_path: Path, given: Any) -> None:
    with embedlog.open([tmp_path / f"d{node}" for node in (1, 2, 3)]) as log:
        log.create_topic("t", 1)
        before = log.replicas("t").partitions
        with pytest.raises(
            (TypeError, embedlog.ConfigError, embedlog.InvalidReplicaAssignmentError)
        ):
            log.reassign(given)
        assert [each.replicas for each in log.replicas("t").partitions] == [
            each.replicas for each in before
        ]


def test_one_directory_has_no_replicas_to_move(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("t", 1)
        with pytest.raises(embedlog.ReplicaSetError):
            log.reassign({TopicPartition("t", 0): [1]})
