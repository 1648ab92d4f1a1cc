"""Scopes and guards end what they hold, whatever is interrupted and whoever keeps the exception."""

from __future__ import annotations

import functools
import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from embedlog._native.scope import Guard, scope, stack


@scope
def holding(mutex: Any) -> Iterator[Any]:
    with Guard(mutex.release, functools.partial(mutex.acquire, False)) as taken:
        assert taken
        yield mutex


def is_free(mutex: Any) -> bool:
    answers: list[bool] = []

    def attempt() -> None:
        taken = mutex.acquire(blocking=False)
        answers.append(taken)
        if taken:
            mutex.release()

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return answers[0]


class StrikeAt:
    """Raises KeyboardInterrupt before the nth instruction of this file's functions and of the
    package's.
    """

    def __init__(self, nth: int) -> None:
        self._left = nth
        self.struck: tuple[str, int] | None = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes = True
        if event == "opcode" and self.struck is None and frame.f_code.co_name != "__exit__":
            self._left -= 1
            if self._left == 0:
                self.struck = frame.f_code.co_name, frame.f_lineno
                raise KeyboardInterrupt
        return self


def interrupted(nth: int, call: Any) -> tuple[StrikeAt, BaseException | None]:
    strike = StrikeAt(nth)
    before = sys.gettrace()
    sys.settrace(strike)
    try:
        call()
    except KeyboardInterrupt as problem:
        return strike, problem  # with its traceback, as a REPL keeps it
    finally:
        sys.settrace(before)
    return strike, None


def in_a_scope(mutex: Any) -> None:
    with holding(mutex):
        len("")


def in_a_stack(mutex: Any) -> None:
    with stack() as held:
        held.enter(holding(mutex))


def in_a_generator(mutex: Any) -> None:
    def pieces() -> Iterator[int]:
        with holding(mutex):
            yield 1
            yield 2

    assert sum(pieces()) == 3


@pytest.mark.parametrize("use", [in_a_scope, in_a_stack, in_a_generator])
def test_a_mutex_is_free_after_an_interrupt_at_every_instruction(use: Any) -> None:
    gc.disable()
    try:
        count = 0
        while True:
            count += 1
            mutex = threading.RLock()
            strike, kept = interrupted(count, functools.partial(use, mutex))
            assert is_free(mutex), strike.struck
            if strike.struck is None:
                break
            assert kept is not None, strike.struck
        print(f"{use.__name__}: {count} instructions")
        assert count > 20
    finally:
        gc.enable()


def test_the_generator_of_the_standard_library_keeps_the_mutex() -> None:
    """Or this test could not fail."""
    mutex = threading.RLock()

    @contextmanager
    def suspended() -> Iterator[None]:
        with mutex:
            yield

    def use() -> None:
        with suspended():
            pass

    def strike(frame: FrameType, event: str, _: Any) -> Any:
        if event == "call" and frame.f_code.co_name == "__exit__":
            sys.settrace(None)
            raise KeyboardInterrupt
        return None

    before = sys.gettrace()
    sys.settrace(strike)
    try:
        use()
    except KeyboardInterrupt as problem:
        kept = problem
    finally:
        sys.settrace(before)
    assert not is_free(mutex)
    del kept


def test_an_end_that_is_interrupted_is_repeated() -> None:
    calls: list[int] = []

    def leave() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Guard(leave):
        pass
    assert len(calls) == 2


def test_an_end_is_told_whether_its_block_failed() -> None:
    told: list[Any] = []

    def leave(kind: Any, problem: Any, trace: Any) -> None:
        told.append(kind)

    with Guard(leave, told=True):
        pass
    with pytest.raises(ValueError, match="inside"), Guard(leave, told=True):
        raise ValueError("inside")
    unused = Guard(leave, told=True)
    unused.__enter__()
    del unused
    assert told == [None, ValueError, KeyboardInterrupt]


def test_a_guard_that_was_not_entered_does_not_end() -> None:
    calls: list[int] = []
    guard = Guard(functools.partial(calls.append, 1), lambda: False)
    with guard as taken:
        assert not taken
    assert guard.__exit__(None, None, None) is False
    assert not calls


def test_a_scope_treats_exceptions_as_the_standard_library_does() -> None:
    @scope
    def converting(into: Any) -> Iterator[str]:
        try:
            yield "value"
        except LookupError as problem:
            if into is not None:
                raise into from problem

    with converting(None) as value:
        raise KeyError(value)
    with pytest.raises(OSError, match="converted"), converting(OSError("converted")):
        raise KeyError
    with pytest.raises(ValueError, match="passed"), converting(None):
        raise ValueError("passed")
    given = StopIteration("an exception of the block")
    with pytest.raises(StopIteration) as raised, converting(None):
        raise given
    assert raised.value is given


def test_a_scope_whose_generator_yields_twice_or_never_is_an_error() -> None:
    @scope
    def yielding(times: int) -> Iterator[int]:
        yield from range(times)

    with pytest.raises(RuntimeError, match="did not yield"), yielding(0):
        pass
    with pytest.raises(RuntimeError, match="did not stop"), yielding(2):
        pass
    once = yielding(1)
    with once:
        pass
    with pytest.raises(RuntimeError, match="entered once"):
        once.__enter__()
