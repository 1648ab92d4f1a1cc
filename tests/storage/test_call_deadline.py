"""The ends of waits: the deadline of a call, and the slices of a thread that has other work."""

from __future__ import annotations

import pytest

from embedlog._native import system
from embedlog.storage.call_deadline import Slice, wait_end, work_end

NOW_NS = 1_000
SLICE_NS = 100
FAR_NS = 5_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now = [NOW_NS]
    monkeypatch.setattr(system, "boot_ns", lambda: now[0])
    return now


def test_without_other_work_a_wait_lasts_for_a_slice(clock: list[int]) -> None:
    assert wait_end(FAR_NS) == work_end(FAR_NS) == FAR_NS
    with Slice(lambda: False, SLICE_NS).begin() as part:
        assert wait_end(FAR_NS) == work_end(FAR_NS) == NOW_NS + SLICE_NS
        assert not part.ended
        clock[0] += SLICE_NS
        assert work_end(FAR_NS) == 0
        assert (part.ended, part.awaits_change) == (True, False)
        assert wait_end(FAR_NS) == 0
        assert part.awaits_change
    assert wait_end(FAR_NS) == work_end(FAR_NS) == FAR_NS


def test_with_other_work_nothing_is_waited_for(clock: list[int]) -> None:
    """Work in steps goes on for the slice."""
    busy = [True]
    with Slice(lambda: busy[0], SLICE_NS).begin() as part:
        assert work_end(FAR_NS) == NOW_NS + SLICE_NS
        assert not part.ended
        assert wait_end(FAR_NS) == 0
        assert part.ended
        busy.clear()
        busy.append(False)
        assert wait_end(FAR_NS) == NOW_NS + SLICE_NS


def test_a_deadline_ends_a_wait_as_without_other_work(clock: list[int]) -> None:
    with Slice(lambda: True, SLICE_NS).begin() as part:
        assert wait_end(NOW_NS) == NOW_NS
        assert work_end(NOW_NS + SLICE_NS) == NOW_NS + SLICE_NS
    assert not part.ended


def test_the_inner_one_of_two_counts(clock: list[int]) -> None:
    with Slice(lambda: True, SLICE_NS).begin():
        with Slice(lambda: False, 2 * SLICE_NS).begin():
            assert wait_end(FAR_NS) == NOW_NS + 2 * SLICE_NS
        assert wait_end(FAR_NS) == 0
