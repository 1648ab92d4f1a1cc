"""Ctrl-C at every point of a call that takes records: what it did not return comes again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import Log, TopicPartition
from tests.support.interrupts import OF_THIS_INTERPRETER, Interrupt

TP = TopicPartition("t", 0)
MODULES = (
    "collector.py",
    "consumer.py",
    "coordinator.py",
    "fetcher.py",
    "positions.py",
    "waiter.py",
)
COUNT = 2000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as opened:
        opened.create_topic("t")
        with opened.producer() as producer:
            producer.send_batch("t", [b"%d" % n for n in range(COUNT)])
        yield opened


@OF_THIS_INTERPRETER
@pytest.mark.parametrize("group", [False, True], ids=["alone", "group"])
@pytest.mark.parametrize(("limit", "ahead"), [(7, 20), (7, 0), (COUNT, 20), (COUNT, 0)])
def test_an_interrupted_poll_returns_its_records_the_next_time(
    log: Log, limit: int, ahead: int, group: bool
) -> None:
    options: dict[str, Any] = {"group_id": "g", "enable_auto_commit": False} if group else {}
    with log.consumer("t", auto_offset_reset="earliest", **options) as consumer:
        assert consumer.poll(timeout=None, max_records=1)
        nth = 0
        while True:
            nth += 1
            consumer.seek(TP, 0)
            if ahead:
                consumer.poll(timeout=None, max_records=ahead)
            found: list[Any] = []
            interrupt = Interrupt(nth, MODULES)
            interrupt.run(
                lambda found=found: found.extend(consumer.poll(timeout=10, max_records=limit))
            )  # type: ignore[misc]
            assert consumer.position(TP) == ahead + len(found), interrupt.struck
            if interrupt.struck is None:
                break
        assert nth > 15


@OF_THIS_INTERPRETER
def test_an_interrupted_batch_comes_the_next_time(log: Log) -> None:
    with log.consumer("t", auto_offset_reset="earliest") as consumer:
        consumer.poll(timeout=None, max_records=1)
        nth = 0
        while True:
            nth += 1
            consumer.seek(TP, 5)
            found: list[Any] = []
            interrupt = Interrupt(nth, MODULES)
            interrupt.run(lambda found=found: found.append(next(consumer.batches(timeout=10))))  # type: ignore[misc]
            assert consumer.position(TP) == (COUNT if found else 5), interrupt.struck
            if interrupt.struck is None:
                break
        assert nth > 15


def test_a_member_that_was_interrupted_in_a_rebalance_gets_its_partitions_at_their_committed_offsets(
    log: Log,
) -> None:
    """Before, an interrupt while the assignment was taken left a member without partitions, or one
    that read from the start.
    """
    arrived: list[list[TopicPartition]] = []
    nth = 0
    committed = 5
    log.consumer(group_id="g").commit({TP: committed})
    while True:
        nth += 1
        with log.consumer(
            group_id="g", enable_auto_commit=False, auto_offset_reset="earliest"
        ) as consumer:
            consumer.subscribe(["t"], on_assigned=arrived.append)
            arrived.clear()
            found: list[Any] = []
            interrupt = Interrupt(nth, (*MODULES, "membership.py", "rebalance_listener.py"))
            interrupt.run(
                lambda found=found: found.extend(consumer.poll(timeout=10, max_records=3))
            )  # type: ignore[misc]
            while not found:
                found.extend(consumer.poll(timeout=10, max_records=3))
            assert found[0].offset == committed, interrupt.struck
            assert [TP] in arrived, interrupt.struck
            if interrupt.struck is None:
                break
    assert nth > 100
