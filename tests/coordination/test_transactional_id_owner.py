"""An owner that begins in several partitions at once: one record, one lock, and no owner that waits
for another.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import embedlog
from embedlog.coordination.transactions import transactional_id_owner
from embedlog.errors import ClosedError, FencedError
from tests.support.interrupts import OF_THIS_INTERPRETER, Interrupt
from tests.support.transactional_producers import QUIET, TOPIC, begun, committed, everything


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log", config=QUIET) as opened:
        opened.create_topic(TOPIC, 3)
        yield opened


def test_several_partitions_are_begun_under_one_lock_and_by_one_record(log: embedlog.Log) -> None:
    writer = begun(log)
    state = log._engine.transactions.topic.partition(
        log._engine.transactions.topic.partition_of("id")
    )
    before = state.bounds().log_end
    gone_in = writer.begin_in(0, 1, 2)
    assert sorted(everything(log)) == [b"x0", b"x1", b"x2"]
    for number, (run, progress) in gone_in.items():
        partition = log._engine.partition(TOPIC, number)
        assert writer.owner.append(partition, run, progress=progress)[:2] == (0, 0), (
            "written before: their offset"
        )
        assert partition.bounds().log_end == 1
    run, progress = writer.begin_in(1)[1]
    assert progress.start == 0, "earlier work continues by itself"
    writer.write(again=run, partition=1)
    assert state.bounds().log_end == before + 1
    writer.commit()
    assert sorted(committed(log)) == [b"x0", b"x1", b"x1", b"x2"]
    assert state.bounds().log_end == before + 3


def test_who_sits_in_one_of_several_partitions_keeps_nobody_waiting_for_long(
    log: embedlog.Log, other: embedlog.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional_id_owner, "SHARE_NS", 1_000_000)
    writer = begun(log)
    with other._engine.partition(TOPIC, 1).exclusive():
        gone_in = writer.begin_in(0, 1, 2)
        assert set(everything(log)) <= {b"x0"}  # the time may be over before the first append, too
        second = begun(other, "id-2")
        second.write(b"not kept waiting")
        second.abort()  # while it is open, readers get nothing after its record
    for number, (run, progress) in gone_in.items():
        writer.owner.append(log._engine.partition(TOPIC, number), run, progress=progress)
    writer.commit()
    assert sorted(committed(log)) == [b"x0", b"x1", b"x2"]


def test_of_a_fenced_owner_nothing_is_begun(log: embedlog.Log, other: embedlog.Log) -> None:
    zombie = begun(log)
    begun(other)
    gone_in = zombie.begin_in(0, 1)
    assert everything(log) == []
    with pytest.raises(FencedError):
        zombie.owner.append(log._engine.partition(TOPIC, 0), *gone_in[0][:1])


@OF_THIS_INTERPRETER
def test_a_signal_handler_may_close_the_owner_anywhere_in_init(log: embedlog.Log) -> None:
    transactions = log._engine.transactions
    held = set(transactions.liveness._nonces)
    nth = 0
    refused = 0
    interrupt = None
    while interrupt is None or interrupt.struck is not None:
        nth += 1
        owner = transactions.owner("id", 60_000)
        interrupt = Interrupt(nth, ("transactional_id_owner.py",), owner.close)
        try:
            interrupt.run(owner.init)
        except ClosedError:
            refused += 1
        owner.close()
        assert set(transactions.liveness._nonces) == held, interrupt.struck
        with pytest.raises(ClosedError):
            owner.init()
    assert nth > 5
    assert refused > 2
