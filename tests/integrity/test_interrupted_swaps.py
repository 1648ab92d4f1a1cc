"""Checks and repairs of directories in which a replacement of segments was interrupted: the new
files are complete, and nothing is lost or damaged.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import embedlog
from embedlog._native import system
from embedlog.partition.compaction import swap
from tests.support.crash_states import CONFIG, TOPIC, Row, Work, look, rows, states, table

SETTINGS: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": 600,
    "min.cleanable.dirty.ratio": 0.0,
    "delete.retention.ms": 0,
    "file.delete.delay.ms": 60_000,
    "index.interval.bytes": 100,
}
JOINED_BYTES: Final = 2500  # of several segments that a compaction joins
KEYS: Final = 5
COUNT: Final = 40
PATIENT_S: Final = 20.0


class Scene(NamedTuple):
    """A log, and the replacement of segments that is interrupted."""

    first_keys: int  # records with keys of their own come first
    group: int  # which of the replaced groups
    transactional: bool = False


SCENES: Final = {
    "first group": Scene(3, 1),
    "first group, nothing left": Scene(0, 1),
    "middle group": Scene(3, 2),
    "first group with aborted transactions": Scene(3, 1, transactional=True),
    "middle group with aborted transactions": Scene(0, 2, transactional=True),
}


def send(producer: embedlog.Producer, number: int, first_keys: int) -> None:
    key = b"own%d" % number if number < first_keys else b"k%d" % (number % KEYS)
    producer.send(TOPIC, key=key, value=b"v%d" % number * 10).result(PATIENT_S)


def write(producer: embedlog.Producer, scene: Scene) -> None:
    for number in range(COUNT):
        if scene.transactional:
            producer.begin_transaction()
        send(producer, number, scene.first_keys)
        if not scene.transactional:
            continue
        if number % 3:
            producer.commit_transaction()
        else:
            producer.abort_transaction()


def make(path: Path, scene: Scene) -> list[Row]:
    """A log whose next compaction joins several segments; its records."""
    with embedlog.open(path, config=CONFIG) as log:
        log.create_topic(TOPIC, config=SETTINGS)
        if scene.transactional:
            with log.producer(transactional_id="x") as producer:
                producer.init_transactions()
                write(producer, scene)
        else:
            with log.producer(linger_ms=0) as producer:
                write(producer, scene)
        log.alter_topic(TOPIC, {"segment.bytes": JOINED_BYTES})
        return rows(log)


def compact(group: int) -> Work:
    """A compaction; the changes count from the begin of one of its replacements to its end."""

    def work(root: Path, arm: Callable[[], None]) -> None:
        swap_files = swap._swap
        count = 0

        def counted(*arguments: object) -> None:
            nonlocal count
            count += 1
            if count == group:
                arm()
            swap_files(*arguments)  # type: ignore[arg-type]
            if count == group:
                system.fault_off()

        swap._swap = counted
        with embedlog.open(root, config=CONFIG) as log:
            log.housekeep()
        assert count >= group

    return work


@pytest.mark.parametrize("scene", SCENES)
def test_a_compaction_that_was_killed_in_a_swap_is_no_damage(tmp_path: Path, scene: str) -> None:
    written = make(tmp_path / "made", SCENES[scene])

    def is_expected(found: Sequence[Row]) -> bool:
        return set(found) <= set(written) and table(found) == table(written)

    kinds = set()
    count = 0
    for number, root in states(tmp_path / "made", tmp_path / "log", compact(SCENES[scene].group)):
        print("killed before change", number)
        kinds |= look(root, is_expected)
        count += 1
    print(count, "states")
    assert "interrupted" in kinds
