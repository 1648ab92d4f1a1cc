"""The records of transactions reach a view in log order, apart from the rest, with their marker."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog.coordination import replay
from embedlog.coordination.internal_topic import InternalTopic
from embedlog.format.record_batch import Chain, Stamp, scan
from embedlog.transaction import EPOCH_MAX
from tests.support.batches import ABORT, COMMIT, TRANSACTIONAL, Row, batch, marker
from tests.support.transactional_producers import run_of

Event = tuple[Any, ...]


class Plain:
    """A view that does not tell them apart."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def apply(self, key: bytes, value: bytes | None) -> None:
        self.events.append((key, value))


class Discerning(Plain):
    def apply_pending(self, producer_id: int, key: bytes, value: bytes | None) -> None:
        self.events.append((producer_id, key, value))

    def end_transaction(self, producer_id: int, commit: bool) -> None:
        self.events.append((producer_id, commit))


def fed(data: bytes, view: Plain, position: int = 0) -> list[Event]:
    found = scan(data, Chain(0))
    assert found.problem is None
    replay.read(
        memoryview(data), found.batches, position, isinstance(view, replay.TransactionalView)
    ).apply_to(view)
    return view.events


def rows(*keys: bytes) -> list[Row]:
    return [Row(b"v", key) for key in keys]


LOG = (
    batch(0, rows(b"a"))
    + batch(
        1,
        rows(b"b", b"c"),
        attributes=TRANSACTIONAL,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
    )
    + batch(3, rows(b"d"))
    + batch(
        4, rows(b"e"), attributes=TRANSACTIONAL, producer_id=8, producer_epoch=0, base_sequence=0
    )
    + marker(5, 7, COMMIT)
    + batch(6, [Row(None, b"f")])
    + marker(7, 8, ABORT)
)
EVENTS: list[Event] = [
    (b"a", b"v"),
    (7, b"b", b"v"),
    (7, b"c", b"v"),
    (b"d", b"v"),
    (8, b"e", b"v"),
    (7, True),
    (b"f", None),
    (8, False),
]


def test_each_record_and_each_end_comes_in_the_order_of_the_log() -> None:
    assert fed(LOG, Discerning()) == EVENTS


@pytest.mark.parametrize("position", range(9))
def test_what_lies_before_the_position_is_not_taken_in_again(position: int) -> None:
    """Also in the middle of a transaction's batch, and after a marker."""
    assert fed(LOG, Discerning(), position) == EVENTS[position:]


def test_a_view_that_does_not_tell_them_apart_gets_every_record() -> None:
    assert fed(LOG, Plain()) == [event[-2:] for event in EVENTS if not isinstance(event[-1], bool)]


def test_a_batch_that_compaction_emptied_is_nothing() -> None:
    emptied = batch(
        0,
        [],
        attributes=TRANSACTIONAL,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        last_offset_delta=2,
    )
    assert fed(emptied, Discerning()) == []
    assert fed(emptied + marker(3, 7, COMMIT), Discerning()) == [(7, True)]


def test_random_logs_come_in_order(rng: random.Random) -> None:
    for _ in range(50):
        data = b""
        events = []
        offset = 0
        for _ in range(rng.randrange(12)):
            keys = [b"%d" % rng.randrange(9) for _ in range(rng.randint(1, 3))]
            producer_id = rng.randrange(3)
            kind = rng.randrange(3)
            if kind == 0:
                data += batch(offset, rows(*keys))
                events += [(key, b"v") for key in keys]
            elif kind == 1:
                stamp = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
                data += batch(offset, rows(*keys), attributes=TRANSACTIONAL, **stamp)
                events += [(producer_id, key, b"v") for key in keys]
            else:
                commit = rng.random() < 0.5
                keys = [b""]
                data += marker(offset, producer_id, COMMIT if commit else ABORT)
                events.append((producer_id, commit))
            offset += len(keys)
        position = rng.randint(0, offset)
        assert fed(data, Discerning(), position) == events[position:]


# ---- in a log ------------------------------------------------------------------------------------


def test_transactions_in_an_internal_topic_reach_its_view(tmp_path: Path) -> None:
    """With replays before, in the middle of and after a transaction, and from the start."""
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:

        def topic() -> InternalTopic[Discerning]:
            return InternalTopic(
                log._engine,
                "__inner",
                partitions=1,
                config={"cleanup.policy": "compact"},
                view=Discerning,
            )

        mine = topic()
        mine.partition_of("a")
        partition = mine.partition(0)
        stamp = Stamp(7, 0, transactional=True, opens=True)
        expected: list[Event] = []

        def check(*events: Event) -> None:
            expected.extend(events)
            assert mine.view(0).events == topic().view(0).events == expected

        with mine.lock_for_decision(0, partition.deadline()) as decision:
            decision.append([(b"a", b"1"), (b"b", None)])
        check((b"a", b"1"), (b"b", None))
        partition.append(run_of(stamp, 0, [b"x", b"y"]), stamp=stamp)
        check((7, b"", b"x"), (7, b"", b"y"))
        with mine.lock_for_decision(0, partition.deadline()) as decision:
            decision.append([(b"c", b"2")])
        check((b"c", b"2"))
        partition.append_marker(7, 1, commit=True)
        check((7, True))
        later = Stamp(7, 1, transactional=True, opens=True)
        partition.append(run_of(later, 0, [b"z"]), stamp=later)
        partition.append_marker(7, EPOCH_MAX, commit=False)
        check((7, b"", b"z"), (7, False))
