"""Schedules: what they are, how they are chosen, and how one that fails becomes small.

A schedule is a list of turns. After its end the process of the last turn goes on until it waits or
ends, then the first one that can. A turn of a process that cannot go on is left out. So each part
of a schedule is a schedule, too. One that was chosen during a run is recorded as turns of the
lengths that they had: as a list it gives the same run.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

TO_THE_END: Final = 1 << 40
WAY_BACK: Final = 50  # steps of a process while one of a higher priority waits for something

# What a controller does with a process instead of letting it run
KILL = "kill"  # kill -9 at its next hook
FREEZE = "freeze"  # it is not chosen for so many steps of others, or until these have ended
HANG = "hang"  # its next call returns after the others have ended
FAIL = "fail"  # as `hang`, and the call returns EIO then
EVENTS = (KILL, FREEZE, HANG, FAIL)


class Turn(NamedTuple):
    """Steps of one process; with an event, what happens to it. `steps` of a freeze are those of all
    others.
    """

    process: int
    steps: int = TO_THE_END
    event: str = ""

    def __str__(self) -> str:
        if self.event:
            return f"{self.event} {self.process}" + (
                f" for {self.steps}" if self.event == FREEZE else ""
            )
        return f"{self.process}" + (f" x {self.steps}" if self.steps < TO_THE_END else "")


Schedule = tuple[Turn, ...]


def as_text(schedule: Sequence[Turn]) -> str:
    """One line that `from_text` reads: `0 x 120, 1 x 7, kill 1`."""
    return ", ".join(map(str, schedule))


def from_text(text: str) -> Schedule:
    """The schedule of a line."""
    turns = []
    for part in filter(None, map(str.strip, text.split(","))):
        found = re.fullmatch(r"(?:(kill|freeze|hang|fail) )?(\d+)(?: (?:x|for) (\d+))?", part)
        assert found is not None, f"no turn: {part!r}"
        event, process, steps = found.groups()
        turns.append(Turn(int(process), int(steps) if steps else TO_THE_END, event or ""))
    return tuple(turns)


class Choice(Protocol):
    """Chooses turns during a run."""

    def next(self, candidates: Sequence[int], steps: Mapping[int, int]) -> Turn:
        """The next turn, of one of the processes that can go on. `steps`: those of each process so
        far.
        """


class Listed:
    """The turns of a list, and then without any preemption."""

    def __init__(self, schedule: Sequence[Turn]) -> None:
        self._turns = list(schedule)
        self._last = schedule[-1].process if schedule else 0

    def next(self, candidates: Sequence[int], steps: Mapping[int, int]) -> Turn:
        while self._turns:
            turn = self._turns.pop(0)
            if turn.process in candidates or (turn.event and turn.process in steps):
                self._last = turn.process
                return turn
        if self._last not in candidates:
            self._last = candidates[0]
        return Turn(self._last)


class Randomly:
    """Each turn is of a random process, with a length that is about the same for a whole run: from
    1 to 1,000 steps.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._mean = rng.choice((3, 30, 100, 300, 1000))

    def next(self, candidates: Sequence[int], steps: Mapping[int, int]) -> Turn:
        length = 1 + int(self._rng.expovariate(1 / self._mean))
        return Turn(self._rng.choice(candidates), length)


class Prioritised:
    """Probabilistic concurrency testing: random priorities, and `depth` - 1 steps at which the
    running process gets the lowest.

    A defect of `depth` ordered events is found with a probability of at least 1/(n k^(depth-1)),
    for n processes and k steps.
    """

    def __init__(self, rng: random.Random, processes: int, length: int, depth: int = 3) -> None:
        self._priorities = list(range(depth, depth + processes))
        rng.shuffle(self._priorities)
        self._changes = sorted(rng.randrange(1, max(2, length)) for _ in range(depth - 1))
        self._lowest = depth

    def next(self, candidates: Sequence[int], steps: Mapping[int, int]) -> Turn:
        total = sum(steps.values())
        chosen = max(candidates, key=self._priorities.__getitem__)
        while self._changes and self._changes[0] <= total:
            self._changes.pop(0)
            self._lowest -= 1
            self._priorities[chosen] = self._lowest
            chosen = max(candidates, key=self._priorities.__getitem__)
        length = self._changes[0] - total if self._changes else TO_THE_END
        waiting = any(
            self._priorities[other] > self._priorities[chosen]
            for other in steps
            if other not in candidates
        )
        return Turn(chosen, min(length, WAY_BACK) if waiting else length)


class Struck:
    """Another choice, with one event: what happens to a process when it has passed so many
    steps.
    """

    def __init__(
        self, choice: Choice, event: str, process: int, at_step: int, duration: int = TO_THE_END
    ) -> None:
        self._choice = choice
        self._event: Turn | None = Turn(process, duration, event)
        self._at_step = at_step

    def next(self, candidates: Sequence[int], steps: Mapping[int, int]) -> Turn:
        event = self._event
        if event is not None and steps.get(event.process, -1) >= self._at_step:
            self._event = None
            return event
        turn = self._choice.next(candidates, steps)
        if event is not None and turn.process == event.process and not turn.event:
            return turn._replace(steps=min(turn.steps, self._at_step - steps[event.process]))
        return turn


def chosen_at_random(rng: random.Random, processes: int, lengths: Sequence[int]) -> Choice:
    """A random choice or one by priorities, half of them with an event. `lengths`: the usual number
    of steps of each process.
    """
    choice: Choice = (
        Randomly(rng) if rng.random() < 0.4 else Prioritised(rng, processes, sum(lengths))
    )
    if rng.random() < 0.5:
        return choice
    process = rng.randrange(processes)
    duration = rng.choice((100, 1000, TO_THE_END))
    return Struck(
        choice,
        rng.choice((KILL, KILL, FREEZE, HANG, FAIL)),
        process,
        rng.randrange(1, lengths[process]),
        duration,
    )


def with_preemptions(
    processes: int, points: Sequence[Sequence[int]], count: int, *, kill: bool = False
) -> Iterator[Schedule]:
    """All schedules of exactly `count` preemptions, each at one of the points of the preempted
    process: numbers of its steps.

    `kill`: the process is killed instead of preempted at its last preemption.
    """
    for order in itertools.product(range(processes), repeat=count):
        if any(one == other for one, other in itertools.pairwise(order)):
            continue
        for stops in itertools.product(*(points[process] for process in order)):
            turns = list[Turn]()
            passed = dict[int, int]()
            for process, stop in zip(order, stops, strict=True):
                if stop <= passed.get(process, 0):
                    break
                turns.append(Turn(process, stop - passed.get(process, 0)))
                passed[process] = stop
            else:
                for following in range(processes) if count else ():
                    if following != order[-1]:
                        last = Turn(order[-1], 1, KILL)
                        yield (*turns, *([last] if kill else []), Turn(following))


def shrunk(
    schedule: Sequence[Turn], fails: Callable[[Schedule], bool], attempts: int = 200
) -> Schedule:
    """A part of a failing schedule that fails, too: as long as it does, turns are left out, in
    halves, quarters and so on.

    Then turns of one process that meet are joined.
    """
    best = tuple(schedule)
    size = max(1, len(best) // 2)
    while attempts > 0:
        at = 0
        while at < len(best) and attempts > 0:
            attempt = best[:at] + best[at + size :]
            attempts -= 1
            if fails(attempt):
                best = attempt
            else:
                at += size
        if size == 1:
            break
        size = max(1, size // 2)
    joined = joined_turns(best)
    return joined if joined != best and fails(joined) else best


def joined_turns(schedule: Sequence[Turn]) -> Schedule:
    """The same schedule, with consecutive turns of one process as one turn, and without those of no
    steps.
    """
    found = list[Turn]()
    for turn in schedule:
        if not turn.steps and not turn.event:
            continue
        if found and not turn.event and not found[-1].event and found[-1].process == turn.process:
            found[-1] = turn._replace(steps=min(TO_THE_END, found[-1].steps + turn.steps))
        else:
            found.append(turn)
    return tuple(found)
