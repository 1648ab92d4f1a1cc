"""Runs a scenario under a schedule: directories, processes, turns, and the judgement afterwards.

A run is determined by its scenario, the seed of its random bytes and its schedule. It always begins
with the same files at the same paths. A turn goes on after a wait in which no other process could
go on, because only time has passed. After the last turn every process has ended or is killed. One
more process, which has all turns, opens the files then and reads them.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.faults.harness.processes import Nursery, RemoteError, Victim
from tests.scheduler.gate import ENDED, Gate, Step
from tests.scheduler.schedules import (
    EVENTS,
    FAIL,
    FREEZE,
    HANG,
    KILL,
    TO_THE_END,
    Choice,
    Schedule,
    Turn,
    as_text,
    joined_turns,
)

STEPS_MAX = 40_000  # of one run: more are a loop that makes no progress
SECONDS_MAX = 3_600  # on the clock of the processes


class Scenario(Protocol):
    """What is run: the prepared files, the programs, and the promises."""

    name: str
    is_read_afterwards: bool  # one more process opens the files after the last turn

    def prepare(self, root: Path, nursery: Nursery) -> None:
        """Make the files below `root`, once."""

    def programs(self, root: Path) -> Sequence[tuple[str, dict[str, Any]]]:
        """The program of each process, with its arguments."""

    def judge(self, root: Path, told: Told) -> Sequence[str]:
        """The promises that were broken."""


@dataclass
class Told:
    """What the processes told, until they ended: notes, errors, and the answer of the one that
    opens the files afterwards.
    """

    notes: dict[int, list[Any]] = field(default_factory=dict)
    errors: dict[int, RemoteError] = field(default_factory=dict)
    killed: set[int] = field(default_factory=set)
    after: Any = None
    failed_after: RemoteError | None = None


@dataclass
class Run:
    """One run, and what came out."""

    schedule: Schedule
    violations: Sequence[str]
    steps: list[int]
    told: Told
    trace: list[Step]
    seconds: float

    def __str__(self) -> str:
        errors = {process: str(error)[:200] for process, error in self.told.errors.items()}
        return (
            f"schedule: {as_text(self.schedule)}\nsteps: {self.steps}, errors: {errors}\n"
            + "\n".join(self.violations)
        )


class Controller:
    """Makes runs of one scenario. `mutants` are rules that are off in its processes."""

    def __init__(
        self,
        scenario: Scenario,
        root: Path,
        *,
        mutants: Sequence[str] = (),
        nursery: Nursery | None = None,
    ) -> None:
        """`nursery`: where the processes come from; a new one if not given."""
        self.scenario = scenario
        self.mutants = tuple(mutants)
        self.run_count = 0
        self.step_count = 0
        self.turn_count = 0
        self.turn_seconds = 0.0
        self._root = root / "run"
        self._prepared = root / "prepared"
        self._nursery = nursery or new_nursery()
        self._owns_nursery = nursery is None
        self._gate = Gate(root / "gate")

    def __enter__(self) -> Controller:
        self._root.mkdir()
        self.scenario.prepare(self._root, self._nursery)
        shutil.copytree(self._root, self._prepared, symlinks=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._gate.close()
        if self._owns_nursery:
            self._nursery.close()

    def run(self, choice: Choice, *, seed: int = 1, traced: bool = False) -> Run:
        """Run the scenario once. A violation is in the result, not raised."""
        shutil.rmtree(self._root)
        shutil.copytree(self._prepared, self._root, symlinks=True)
        self._gate.reset(traced=traced)
        told = Told()
        turns = list[Turn]()
        programs = self.scenario.programs(self._root)
        victims = {number: self._start(number, seed, *each) for number, each in enumerate(programs)}
        for number in victims:
            self._gate.wait_joined(number)
        began_s = time.monotonic()
        problems = self._take_turns(choice, victims, turns, told)
        self.turn_seconds += time.monotonic() - began_s
        for number, victim in victims.items():
            if self._gate.state(number) != ENDED:
                victim.kill()
                told.killed.add(number)
            self._hear(number, victim, told)
            self._nursery.end(victim)
        if not problems:
            if self.scenario.is_read_afterwards:
                problems = self._look_afterwards(len(programs), seed, told)
            problems += [] if problems else self.scenario.judge(self._root, told)
        steps = [self._gate.steps(number) for number in victims]
        self.run_count += 1
        self.step_count += sum(steps)
        self.turn_count += len(turns)
        trace = self._gate.trace() if traced else []
        return Run(joined_turns(turns), problems, steps, told, trace, self._gate.seconds)

    # ---- processes -----------------------------------------------------------------------------------------------

    def _start(self, number: int, seed: int, name: str, arguments: dict[str, Any]) -> Victim:
        victim = self._nursery.spawn()
        victim.start("scheduled", str(self._gate.path), number, seed, self.mutants, name, arguments)
        return victim

    def _hear(self, number: int, victim: Victim, told: Told) -> None:
        """Take what a process has told, until its end or its death."""
        notes = told.notes.setdefault(number, [])
        try:
            notes.extend(victim.notes())
        except RemoteError as error:
            told.errors[number] = error

    def _look_afterwards(self, number: int, seed: int, told: Told) -> list[str]:
        """Let one more process open the files and read them."""
        paths = self.scenario.programs(self._root)[-1][1]["paths"]
        victim = self._start(number, seed, "look_afterwards", {"paths": paths})
        self._gate.wait_joined(number)
        problem = self._take_all_turns(number)
        if problem:
            self._nursery.end(victim)
            return problem
        try:
            told.after = victim.result()
        except RemoteError as error:
            told.failed_after = error
        self._nursery.end(victim)
        return []

    def _take_all_turns(self, number: int) -> list[str]:
        """Let a process that is alone run until it has ended. A loop is a violation."""
        gate = self._gate
        until_s = gate.seconds + SECONDS_MAX
        while gate.run(number, max(1, STEPS_MAX - gate.steps(number))) != ENDED:
            if gate.steps(number) >= STEPS_MAX or gate.seconds > until_s:
                return [f"the next opening makes no progress: {self._positions([number])}"]
            if not gate.is_runnable(number):
                gate.pass_time([number])
        return []

    # ---- turns ---------------------------------------------------------------------------------------------------

    def _take_turns(
        self, choice: Choice, victims: Mapping[int, Victim], turns: list[Turn], told: Told
    ) -> list[str]:
        """Run until every process has ended. What prevents that is a violation: a loop, or a wait
        that nothing ends.
        """
        gate = self._gate
        frozen = dict[int, int]()
        errors = dict[int, int]()
        unfinished: Turn | None = None
        time_passed = False
        while alive := [
            number
            for number in victims
            if number not in told.killed and gate.state(number) != ENDED
        ]:
            steps = {number: gate.steps(number) for number in victims}
            total = sum(steps.values())
            if total > STEPS_MAX or gate.seconds > SECONDS_MAX:
                return [
                    f"no progress: {self._positions(alive)} after {total} steps and "
                    f"{gate.seconds:.0f} s"
                ]
            for number in [
                number for number, until in frozen.items() if total >= until or number not in alive
            ]:
                del frozen[number]
            moving = [number for number in alive if number not in frozen]
            if not moving:
                frozen.clear()
                continue
            candidates = [number for number in moving if gate.is_runnable(number)]
            if not candidates:
                gate.pass_time(moving)
                time_passed = True
                continue
            if unfinished is not None and time_passed and unfinished.process in candidates:
                turn = unfinished
            else:
                turn = choice.next(candidates, steps)
                unfinished = None
            time_passed = False
            if turn.event:
                if turn.process not in alive:
                    continue
                turns.append(turn)
                self._strike(turn, victims[turn.process], total, frozen, errors, told)
                continue
            assert turn.process in candidates, f"{turn} of {candidates}"
            length = min(
                turn.steps,
                STEPS_MAX + 1 - total,
                *(until - total for until in frozen.values()),
                TO_THE_END,
            )
            gate.run(turn.process, max(1, length), errors.pop(turn.process, 0))
            passed = gate.steps(turn.process) - steps[turn.process]
            if unfinished is None:
                turns.append(Turn(turn.process, passed))
            else:
                turns[-1] = Turn(turn.process, turns[-1].steps + passed)
            unfinished = turn._replace(steps=turn.steps - passed) if turn.steps > passed else None
        return []

    def _strike(
        self,
        turn: Turn,
        victim: Victim,
        total: int,
        frozen: dict[int, int],
        errors: dict[int, int],
        told: Told,
    ) -> None:
        assert turn.event in EVENTS, turn
        if turn.event == KILL:
            victim.kill()
            told.killed.add(turn.process)
            frozen.pop(turn.process, None)
            return
        frozen[turn.process] = total + max(1, turn.steps if turn.event == FREEZE else TO_THE_END)
        if turn.event == FAIL:
            errors[turn.process] = errno.EIO
        assert turn.event in (FREEZE, HANG, FAIL)

    def _positions(self, processes: Sequence[int]) -> str:
        gate = self._gate
        return "; ".join(
            f"process {number} at step {gate.steps(number)}: {gate.standing_at(number)}"
            for number in processes
        )


def new_nursery() -> Nursery:
    """Processes that have all modules, and the same order of sets in each run."""
    return Nursery("tests.scheduler.zygote", {"PYTHONHASHSEED": "0"})


@contextlib.contextmanager
def controlling(
    scenario: Scenario, root: Path, *mutants: str, nursery: Nursery | None = None
) -> Iterator[Controller]:
    """A controller of this scenario below a new directory."""
    root.mkdir(parents=True, exist_ok=True)
    with Controller(scenario, root, mutants=mutants, nursery=nursery) as controller:
        yield controller
