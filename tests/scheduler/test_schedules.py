"""Schedules as text, their choice and their shrinking, without processes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from tests.scheduler.schedules import (
    EVENTS,
    FREEZE,
    KILL,
    TO_THE_END,
    Choice,
    Listed,
    Prioritised,
    Randomly,
    Schedule,
    Struck,
    Turn,
    as_text,
    chosen_at_random,
    from_text,
    joined_turns,
    shrunk,
    with_preemptions,
)


def random_schedule(rng: random.Random, count: int) -> Schedule:
    turns = [
        Turn(rng.randrange(3), rng.randrange(1, 100), rng.choice(("", "", "", *EVENTS)))
        for _ in range(count)
    ]
    return tuple(
        turn if turn.event in ("", FREEZE) else turn._replace(steps=TO_THE_END) for turn in turns
    )


def passed(choice: Choice, lengths: Sequence[int]) -> list[int]:
    """The process of each step that a choice gives to processes which never wait; events take no
    time.
    """
    steps = dict.fromkeys(range(len(lengths)), 0)
    order = list[int]()
    while candidates := [process for process in steps if steps[process] < lengths[process]]:
        turn = choice.next(candidates, dict(steps))
        if turn.event:
            continue
        length = min(turn.steps, lengths[turn.process] - steps[turn.process])
        assert length > 0
        steps[turn.process] += length
        order += [turn.process] * length
    return order


def test_a_schedule_is_a_line_of_text(rng: random.Random) -> None:
    assert as_text(from_text("0 x 120, 1, kill 1, freeze 0 for 30, hang 2, fail 0")) == (
        "0 x 120, 1, kill 1, freeze 0 for 30, hang 2, fail 0"
    )
    for count in range(20):
        schedule = random_schedule(rng, count)
        assert from_text(as_text(schedule)) == schedule


def test_a_schedule_that_was_listed_is_followed_and_then_nothing_is_preempted() -> None:
    assert passed(Listed(from_text("1 x 2, 0 x 1")), [3, 3]) == [1, 1, 0, 0, 0, 1]
    assert passed(Listed(()), [2, 2]) == [0, 0, 1, 1]


@pytest.mark.parametrize("processes", [2, 3])
def test_every_choice_gives_all_steps_to_all_processes(rng: random.Random, processes: int) -> None:
    lengths = [rng.randrange(2, 200) for _ in range(processes)]
    for _ in range(50):
        order = passed(chosen_at_random(rng, processes, lengths), lengths)
        assert [order.count(process) for process in range(processes)] == lengths


def test_priorities_change_at_two_steps_at_most(rng: random.Random) -> None:
    for _ in range(50):
        order = passed(Prioritised(rng, 3, 300), [100, 100, 100])
        switches = sum(one != other for one, other in itertools.pairwise(order))
        assert switches <= 4  # two changes, and two ends of processes


def test_an_event_comes_after_the_step_that_was_chosen() -> None:
    choice = Struck(Listed(()), KILL, 1, 5)
    assert choice.next([1], {0: 0, 1: 0}) == Turn(1, 5)
    assert choice.next([1], {0: 0, 1: 5}) == Turn(1, TO_THE_END, KILL)
    assert choice.next([1], {0: 0, 1: 5}) == Turn(1)


def test_preemptions_are_complete_and_each_schedule_comes_once() -> None:
    points = [[1, 2, 3], [1, 2]]
    one = list(with_preemptions(2, points, 1))
    assert len(one) == len(set(one)) == 5
    two = list(with_preemptions(2, points, 2))
    assert len(two) == len(set(two)) == 2 * 3 * 2
    orders = {tuple(passed(Listed(schedule), [4, 3])) for schedule in (*one, *two)}
    assert len(orders) == 5 + 12


def test_a_failing_schedule_shrinks_to_the_turns_that_it_needs(rng: random.Random) -> None:
    needed = (Turn(1, 7), Turn(0, 3))
    for _ in range(20):
        filling = list(random_schedule(rng, 30))
        at = sorted(rng.sample(range(30), 2))
        filling.insert(at[0], needed[0])
        filling.insert(at[1] + 1, needed[1])

        def fails(schedule: Schedule) -> bool:
            return needed[0] in schedule and needed[1] in schedule[schedule.index(needed[0]) :]

        assert shrunk(filling, fails, 1000) == needed


def test_turns_of_one_process_that_meet_are_one_turn() -> None:
    assert (
        as_text(joined_turns(from_text("0 x 3, 0 x 4, 1 x 1, kill 0, 1 x 2")))
        == "0 x 7, 1 x 1, kill 0, 1 x 2"
    )


def test_random_lengths_differ_between_runs(rng: random.Random) -> None:
    counts = {
        len(joined_turns([Turn(process, 1) for process in passed(Randomly(rng), [300, 300])]))
        for _ in range(30)
    }
    assert max(counts) > 3 * min(counts)
