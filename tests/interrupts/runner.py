"""Contains the run: one verb after another, each with a Ctrl-C at each of its points."""

from __future__ import annotations

import gc
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from tests.interrupts.world import World
from tests.support.strike import Strike

HANGS_S = 60
FAILURES_MAX = 12  # of one verb: then its run ends


class Hang(BaseException):
    """A call did not end."""


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    def ring(_: int, frame: FrameType | None) -> None:
        raise Hang("".join(traceback.format_stack(frame)[-4:]))

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass
class Use:
    """A verb in use: `call` is interrupted; then `again` must succeed, `share` in another thread,
    and `judge` find all in order.

    With `abandon` it is asyncio's: an interrupt in the loop's own functions can leave tasks that
    never run again. Then `abandon` ends the use in another loop, and a new use must work.
    """

    call: Callable[[], Any]
    again: Callable[[], Any] | None = None
    share: Callable[[], Any] | None = None
    judge: Callable[[], Any] | None = None
    close: Callable[[], Any] | None = None
    abandon: Callable[[], Any] | None = None


@dataclass(frozen=True)
class Verb:
    """A public verb and its use.

    `fresh`: each interrupt needs a new use. `topics`: others must create and delete topics, too.
    `stride`: of the points that are struck, since a use takes long.
    """

    name: str
    covers: tuple[str, ...]
    make: Callable[[World], Use]
    fresh: bool = False
    topics: bool = False
    stride: int = 1


@dataclass
class Outcome:
    """What the interrupts of one verb did."""

    verb: str
    points: int = 0
    instructions: int = 0
    struck: int = 0
    caught: int = 0
    ignored: int = 0
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = (
            f"{self.verb}: {self.struck} interrupts ({self.points} points of {self.instructions} "
            "instructions)"
        )
        if self.caught:
            text += (
                f", {self.caught} of them not raised, {self.ignored} by the interpreter in a "
                "finalizer"
            )
        return text + (f", {len(self.failures)} FAILURES" if self.failures else "")


class Runner:
    """Keeps one world for all verbs, and replaces it after a failure."""

    def __init__(self, directories: int = 1) -> None:
        self._directories = directories
        self._world: World | None = None
        self._use: Use | None = None
        self._used: Verb | None = None

    def close(self) -> None:
        self._finish()
        world = self._world
        self._world = None
        if world is not None:
            world.close()

    def _finish(self) -> None:
        use = self._use
        self._use = None
        self._used = None
        if use is not None and use.close is not None:
            use.close()

    def begin(self) -> None:
        """Make the world, if there is none."""
        if self._world is None:
            self._world = World(self._directories)

    def _ready(self, verb: Verb) -> Use:
        self.begin()
        assert self._world is not None
        if self._use is None or verb.fresh or self._used is not verb:
            self._finish()
            self._use = verb.make(self._world)
            self._used = verb
        return self._use

    def count(self, verb: Verb) -> Strike:
        """The points of the second use: the first one imports and opens what is missing."""
        for _ in range(2):
            use = self._ready(verb)
            strike = Strike(0)
            with bounded(HANGS_S):
                strike.run(use.call)
                self._judge(verb, use)
        return strike

    def _judge(self, verb: Verb, use: Use) -> None:
        assert self._world is not None
        self._world.write_elsewhere(verb.topics)
        if use.share is not None:
            self._world.thread.call(use.share)
        (use.again or use.call)()
        if use.judge is not None:
            use.judge()
        self._world.read()

    def strike(self, verb: Verb, nth: int, outcome: Outcome) -> Strike:
        """One use with one interrupt, whose exception is kept while the others write."""
        try:
            return self._struck(verb, nth, outcome)
        except TypeError as problem:
            if "'traceback' object is not callable" not in str(problem):
                raise
            # CPython 3.11 has lost its trace function, which happens once in a thousand calls that
            # start threads.
            return self._struck(verb, nth, outcome)

    def _struck(self, verb: Verb, nth: int, outcome: Outcome) -> Strike:
        use = self._ready(verb)
        strike = Strike(nth)
        strange: list[str] = []

        def note(unraisable: Any) -> None:
            if isinstance(unraisable.exc_value, KeyboardInterrupt):
                outcome.ignored += 1
            elif not isinstance(unraisable.exc_value, Warning):
                # of a coroutine that was not begun, or a task that is left
                strange.append(
                    f"ignored in {unraisable.object}: {_described(unraisable.exc_value)}"
                )

        sys.unraisablehook = note
        try:
            with bounded(HANGS_S):
                gc.disable()
                strike.run(use.call)
                if strike.is_in_the_loop and use.abandon is not None:
                    self._world.write_elsewhere(verb.topics)  # type: ignore[union-attr]
                    use.abandon()
                    self._use = None
                    use = self._ready(verb)
                self._judge(verb, use)
                strike.kept = None
                self._world.read()  # type: ignore[union-attr]
            assert not strange, strange
        except (Exception, Hang) as problem:  # (a failure of the run)
            if "'traceback' object is not callable" in str(problem):
                self._abandon()
                raise
            place = strike.place or "not raised"
            outcome.failures.append(f"{verb.name}, point {nth}: {place}: {_described(problem)}")
            self._abandon()
        finally:
            gc.enable()
            sys.unraisablehook = sys.__unraisablehook__
        outcome.struck += strike.has_struck
        outcome.caught += strike.has_struck and strike.place is None
        return strike

    def _abandon(self) -> None:
        """Leave the world as it is: a lock that was lost would make its end wait."""
        world = self._world
        self._world = None
        self._use = None
        self._used = None
        try:
            if world is not None:
                with bounded(HANGS_S):
                    world.close()
        except (Exception, Hang) as problem:  # noqa: BLE001  (a failure of the run)
            print(f"the end of a world that failed: {_described(problem)}", file=sys.stderr)

    def run(
        self,
        verb: Verb,
        nths: Callable[[int], Iterable[int]] | None = None,
        until: float = float("inf"),
    ) -> Outcome:
        """All points of a verb, or those that `nths` chooses of their number. No further one after
        the time `until`.
        """
        outcome = Outcome(verb.name)
        try:
            counted = self.count(verb)
        except (Exception, Hang) as problem:  # noqa: BLE001  (a failure of the run)
            outcome.failures.append(f"{verb.name} without an interrupt: {_described(problem)}")
            self._abandon()
            return outcome
        outcome.points = counted.points
        outcome.instructions = counted.instructions
        for nth in nths(counted.points) if nths is not None else range(1, counted.points + 1):
            if time.monotonic() >= until or len(outcome.failures) >= FAILURES_MAX:
                break
            self.strike(verb, nth, outcome)
            if nth % 100 == 0:
                gc.collect()
        return outcome


def _described(problem: BaseException) -> str:
    trace = traceback.extract_tb(problem.__traceback__)
    inner = " < ".join(
        f"{line.filename.rpartition('embedlog/')[2]}:{line.lineno}" for line in reversed(trace[-4:])
    )
    return f"{type(problem).__name__}: {problem} ({inner})"
