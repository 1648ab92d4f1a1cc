"""The map of offsets against a list of all pairs."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from embedlog.mirror import offset_map
from embedlog.mirror.offset_map import OffsetMap, OffsetRange, ranges_between, slot_of
from embedlog.mirror.sides import TargetSpan


def grown(rng: random.Random, pieces: int, gap: float) -> tuple[OffsetMap, list[tuple[int, int]]]:
    """A map of random pieces with gaps at both sides, and all pairs of offsets."""
    made = OffsetMap()
    pairs = []
    source = target = rng.randrange(5)
    for _ in range(pieces):
        offsets = []
        spans = []
        for _ in range(rng.randrange(1, 4)):
            count = rng.randrange(1, 5)
            spans.append(TargetSpan(target, count))
            for row in range(count):
                offsets.append(source)
                pairs.append((source, target + row))
                source += 1 + (rng.randrange(1, 4) if rng.random() < gap else 0)
            target += count + (rng.randrange(1, 3) if rng.random() < gap else 0)
        for offset_range in ranges_between(made.next_number, offsets, spans):
            made.add(offset_range)
        target += 1  # the marker
    return made, pairs


def exact(pairs: list[tuple[int, int]], offset: int) -> int:
    return next((target for source, target in pairs if source >= offset), pairs[-1][1] + 1)


@pytest.mark.parametrize("gap", [0.0, 0.2, 0.9])
def test_an_offset_is_translated_exactly_while_no_run_was_replaced(
    rng: random.Random, gap: float
) -> None:
    made, pairs = grown(rng, 60, gap)
    first = dict(pairs)
    for offset in range(pairs[0][0], pairs[-1][0] + 3):
        wanted = exact(pairs, offset)
        found = made.translate(offset)
        assert found is not None
        if offset in first:
            assert found == wanted
        assert found <= wanted
        assert not any(found <= target < wanted for _, target in pairs), (
            "a record would be repeated"
        )


def test_an_old_offset_is_never_translated_to_a_later_one(
    rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_map, "SLOTS", 4)
    made, pairs = grown(rng, 400, 0.9)
    total = made.next_number
    assert len(made.ranges) < 4 * 12
    assert made.ranges[0].number == 0, "the first range is kept for ever"
    assert [offset_range.number for offset_range in made.ranges][-8:] == list(
        range(total - 8, total)
    )
    inexact = 0
    for offset in range(pairs[0][0], pairs[-1][0] + 3, 7):
        found = made.translate(offset)
        wanted = exact(pairs, offset)
        assert found is not None
        assert found <= wanted
        inexact += any(found <= target < wanted for _, target in pairs)
    assert inexact > 0, "the old part has lost ranges"


def test_the_kept_runs_of_an_age_are_near_each_other() -> None:
    total = 20_000
    made = OffsetMap()
    for number in range(total):
        made.add(OffsetRange(number, number * 2, number, 1))
    numbers = [offset_range.number for offset_range in made.ranges]
    for one, other in pairwise(numbers):
        assert other - one <= max(1, 2 * (total - one) // offset_map.SLOTS)


def test_runs_of_different_levels_share_no_slot() -> None:
    last = [slot_of(number) for number in range(5000, 5000 + 2 * offset_map.SLOTS)]
    assert len(set(last)) == len(last)
