"""A partition.metadata that is malformed, missing, newer, or of another topic, for a reader: only
this replica is not used.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import embedlog
from embedlog.storage import file_names
from tests.support.damaged_sets import garbled, newer, of_another_topic
from tests.support.verified_sets import QUIET, WANTED, filled, values


def closed_set(root: Path) -> list[Path]:
    with filled(root) as log:
        log.create_topic("u", replication_factor=3)
        with log.producer() as producer:
            producer.send("u", b"other").result(20)
    return [root / f"d{node}" for node in (1, 2, 3)]


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("node", [1, 2])
@pytest.mark.parametrize("damage", [garbled, of_another_topic, newer])
def test_a_reader_of_a_set_uses_another_replica(
    tmp_path: Path, damage: Callable[[Path], None], node: int
) -> None:
    """Before, the whole directory was away, or ReadOnlyError was raised."""
    paths = closed_set(tmp_path)
    damaged = paths[node - 1] / "t-0" / file_names.PARTITION_METADATA
    damage(damaged)
    before = damaged.read_bytes()
    with embedlog.open(paths, read_only=True, config=QUIET) as log:
        assert values(log) == WANTED
        assert [record.value for record in log.scan("u").records()] == [b"other"]
        [found] = log.verify_replicas("t")
        assert (found.node, found.kind, found.partition) == (node, "damaged", 0)
        directories = log.replicas().directories
        assert [each.state for each in directories] == ["live"] * 3
        assert [each.node for each in directories if each.reason is not None] == [node]
        assert str(damaged.parent) in str(directories[node - 1].reason)
    assert damaged.read_bytes() == before


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (garbled, embedlog.errors.ForeignDirectoryError),
        (of_another_topic, embedlog.errors.UnknownTopicOrPartitionError),
        (newer, embedlog.errors.UnsupportedFormatError),
    ],
)
def test_a_reader_of_one_directory_gets_an_error_of_this_partition(
    tmp_path: Path, damage: Callable[[Path], None], error: type[embedlog.errors.EmbedlogError]
) -> None:
    path = closed_set(tmp_path)[1]
    damage(path / "t-0" / file_names.PARTITION_METADATA)
    with embedlog.open(path, read_only=True, config=QUIET) as log:
        assert log.topics() == ["t", "u"]
        assert [record.value for record in log.scan("u").records()] == [b"other"]
        with pytest.raises(error, match="t-0"):
            values(log)


def test_a_missing_file_is_that_of_an_older_broker(tmp_path: Path) -> None:
    paths = closed_set(tmp_path)
    os.unlink(paths[0] / "t-0" / file_names.PARTITION_METADATA)
    for each in (paths, paths[0]):
        with embedlog.open(each, read_only=True, config=QUIET) as log:
            assert values(log) == WANTED
