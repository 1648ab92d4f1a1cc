"""The close of a log at each of its steps: an error, an interrupt, a second close."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from embedlog.engine.closing import CloseStage, Closing
from embedlog.errors import LockTimeoutError

STEPS = ("stop", "finish", "leave", "release")
ALL_BUT_FINISH = ["stop", "leave", "release"]


class Steps:
    """The steps of a close, which are recorded; `actions` are done in them."""

    def __init__(self) -> None:
        self.closing = Closing(Path("log"), threading.RLock())
        self.calls: list[str] = []
        self.closers: dict[str, bool] = {}
        self.actions: dict[str, Callable[[], None]] = {}

    def close(self) -> list[str]:
        """The steps that this close does."""
        self.calls = []
        self.closing.run(
            0.1,
            stop=lambda: self.do("stop"),
            finish=lambda: self.do("finish"),
            leave=lambda: self.do("leave"),
            release=lambda: self.do("release"),
        )
        return self.calls

    def do(self, step: str) -> None:
        self.calls.append(step)
        self.closers[step] = self.closing.closer == threading.get_ident()
        self.actions.get(step, lambda: None)()


def fail(problem: BaseException) -> Callable[[], None]:
    def raise_it() -> None:
        raise problem

    return raise_it


def test_the_steps_have_one_order_and_the_closer_uses_partitions_in_the_middle() -> None:
    steps = Steps()
    assert steps.close() == ["stop", "finish", "leave", "release"]
    assert steps.closers == {"stop": False, "finish": True, "leave": True, "release": False}
    assert steps.closing.stage is CloseStage.CLOSED
    assert steps.close() == []


@pytest.mark.parametrize("step", STEPS)
def test_an_error_in_a_step_is_raised_once_and_keeps_no_later_step_undone(step: str) -> None:
    steps = Steps()
    steps.actions[step] = fail(ValueError(step))
    with pytest.raises(ValueError, match=step):
        steps.close()
    assert steps.calls == ["stop", "finish", "leave", "release"]
    assert steps.closing.stage is CloseStage.CLOSED
    assert steps.close() == []


@pytest.mark.parametrize("step", STEPS)
def test_after_an_interrupt_in_a_step_the_next_close_repeats_the_steps(step: str) -> None:
    steps = Steps()
    steps.actions[step] = fail(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        steps.close()
    assert steps.calls == ["stop", "finish", "leave", "release"]
    assert steps.closing.stage is CloseStage.LEAVING
    assert steps.closing.closer is None
    del steps.actions[step]
    assert steps.close() == ALL_BUT_FINISH
    assert steps.closing.stage is CloseStage.CLOSED


def test_an_interrupt_before_the_directories_are_left_leaves_their_last_work_to_the_next_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = Steps()
    with monkeypatch.context() as patched:
        patched.setattr("embedlog.engine.closing.acting_thread", fail(KeyboardInterrupt()))
        patched.setattr(Closing, "_leave", lambda self, leave: None)
        with pytest.raises(KeyboardInterrupt):
            steps.close()
    assert steps.closing.stage is CloseStage.STOPPING
    assert steps.close() == ["stop", "finish", "leave", "release"]


@pytest.mark.parametrize("step", STEPS)
def test_a_close_inside_of_a_step_returns_at_once(step: str) -> None:
    steps = Steps()
    inner: list[str] = []

    def close_again() -> None:
        calls = steps.calls
        inner.extend(steps.close())
        steps.calls = calls

    steps.actions[step] = close_again
    assert steps.close() == ["stop", "finish", "leave", "release"]
    assert inner == []


def test_a_close_waits_for_that_of_another_thread_until_its_deadline() -> None:
    steps = Steps()
    problems: list[LockTimeoutError] = []

    def close_in_another_thread() -> None:
        def close_here() -> None:
            try:
                steps.close()
            except LockTimeoutError as problem:
                problems.append(problem)

        thread = threading.Thread(target=close_here)
        thread.start()
        thread.join()

    steps.actions["leave"] = close_in_another_thread
    steps.close()
    assert len(problems) == 1
    assert steps.close() == []
