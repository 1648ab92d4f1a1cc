"""The throttle of a reassignment is in its decisions until its end."""

from __future__ import annotations

from dataclasses import replace

from embedlog.replicas.rules.events import CancelReassignment, FinishReassignment, Reassign
from embedlog.replicas.rules.state import throttle_of
from tests.support.replica_sets import PARTITION_ID, after, having, partition, seen, with_topic

OTHER = (9999, b"of a newer version")


def test_a_throttle_lasts_until_the_end_of_the_reassignment() -> None:
    state = after(with_topic((1,), spare=(2, 3)), Reassign(PARTITION_ID, 0, (2,), 1000))
    assert throttle_of(partition(state)) == 1000
    replaced = after(state, Reassign(PARTITION_ID, partition(state).partition_epoch, (2,), 50))
    assert throttle_of(partition(replaced)) == 50
    assert partition(replaced).partition_epoch == partition(state).partition_epoch + 1
    freed = after(state, Reassign(PARTITION_ID, partition(state).partition_epoch, (3,)))
    assert throttle_of(partition(freed)) is None
    cancelled = after(
        state, CancelReassignment(PARTITION_ID, partition(state).partition_epoch, seen("1 2"))
    )
    assert throttle_of(partition(cancelled)) is None
    joined = having(state, isr=(2, 1), others=tuple(sorted((OTHER, *partition(state).others))))
    finished = after(
        joined, FinishReassignment(PARTITION_ID, partition(joined).partition_epoch, seen("1 2"))
    )
    assert partition(finished).others == (OTHER,)
    assert partition(finished).replicas == (2,)


def test_a_throttle_that_is_damaged_limits_nothing() -> None:
    state = with_topic((1,))
    assert throttle_of(replace(partition(state), others=((10001, b"short"),))) is None
