"""A damaged partition.metadata in one directory, for writers: only its replica, or its copy of the
decisions, begins again.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

import embedlog
from embedlog.replicas.rules.records import LOG
from embedlog.storage import file_names, identity
from tests.support.damaged_sets import garbled, newer, of_another_topic, send
from tests.support.renewed_replicas import until_in_sync
from tests.support.verified_sets import (
    WANTED,
    assert_equal_copies,
    filled,
    opened,
    segment_of,
    values,
)


def half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


KINDS = [
    newer,
    of_another_topic,
    *(pytest.param(each, marks=pytest.mark.slow) for each in (garbled, half, os.unlink)),
]


def damage_two(root: Path, damage: Callable[[Path], object], node: int) -> None:
    """The replica of one node, and the decision log of another one."""
    damage(root / f"d{node}" / "t-0" / file_names.PARTITION_METADATA)
    damage(
        root / f"d{3 - node}" / file_names.partition_name(LOG, 0) / file_names.PARTITION_METADATA
    )


def assert_repaired(log: embedlog.Log, wanted: list[bytes]) -> None:
    log.verify_replicas(repair=True)
    until_in_sync(log)
    assert log.verify_replicas() == []
    assert values(log) == wanted
    assert [each.state for each in log.replicas().directories] == ["live"] * 3


def assert_one_id(root: Path) -> None:
    """A missing file is that of an older broker, and may stay so."""
    for name in ("t-0", file_names.partition_name(LOG, 0)):
        assert (
            len({identity.read_topic_id(root / f"d{node}" / name) for node in (1, 2, 3)} - {None})
            == 1
        )


@pytest.mark.parametrize("node", [1, 2])
@pytest.mark.parametrize("damage", KINDS)
def test_a_closed_directory_is_repaired(
    tmp_path: Path, damage: Callable[[Path], object], node: int
) -> None:
    """Before, an unsupported version was raised, and a replica with another id was never
    repaired.
    """
    with filled(tmp_path):
        pass
    damage_two(tmp_path, damage, node)
    with opened(tmp_path) as log:
        assert values(log) == WANTED
        send(log, "t", b"more")
        log.create_topic("second", replication_factor=3)
        assert_repaired(log, [*WANTED, b"more"])
    assert_equal_copies(tmp_path)
    assert_one_id(tmp_path)


@pytest.mark.parametrize("node", [1, 2])
@pytest.mark.parametrize("damage", KINDS)
def test_an_open_directory_is_repaired_by_the_next_process(
    tmp_path: Path, damage: Callable[[Path], object], node: int
) -> None:
    """A process that has the partition open does not read the file again."""
    with filled(tmp_path) as log:
        damage_two(tmp_path, damage, node)
        with opened(tmp_path) as other:
            send(other, "t", b"of the other")
            send(log, "t", b"more")
            other.housekeep()
            assert values(other) == values(log) == [*WANTED, b"of the other", b"more"]
    with opened(tmp_path) as log:
        assert_repaired(log, [*WANTED, b"of the other", b"more"])
    assert_equal_copies(tmp_path)
    assert_one_id(tmp_path)


def test_the_only_replica_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    with filled(tmp_path, factor=1):
        pass
    path = tmp_path / "d1" / "t-0" / file_names.PARTITION_METADATA
    newer(path)
    before = path.read_bytes(), segment_of(tmp_path, 1).read_bytes()
    with opened(tmp_path) as log:
        with pytest.raises(embedlog.errors.UnsupportedFormatError):
            values(log)
        log.housekeep()
    assert (path.read_bytes(), segment_of(tmp_path, 1).read_bytes()) == before


def test_another_topic_of_this_name_is_not_set_aside(tmp_path: Path) -> None:
    """The topic was deleted and created again after the renewal of its replica had been decided."""
    with filled(tmp_path) as log:
        directory = log._engine.set.directories.get(2).directory.log_directory  # type: ignore[attr-defined]
        old = directory.registry.live("t")._replace(topic_id=identity.id_text(uuid.uuid4().bytes))
        with directory.topic_changes.begin():
            assert directory.topic_changes.renew_partition(old, 0) is False
        assert log.verify_replicas() == []
        assert values(log) == WANTED
