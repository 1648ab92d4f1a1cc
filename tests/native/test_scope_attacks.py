"""Scopes, guards, claims and settings used wrongly, freed early, shared, or part of garbage: no
crash, and one end each.
"""

from __future__ import annotations

import copy
import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from embedlog._native.scope import Claim, Guard, Scope, Setting, scope

# ---- references ---------------------------------------------------------------------------------------------------


class Tracked:
    def __init__(self) -> None:
        self.ends: list[int] = []
        self.keeps: Any = None

    def end(self, *_: object) -> None:
        self.ends.append(1)


def use_in_every_way(tracked: Tracked) -> None:
    def failing() -> bool:
        raise OSError("refused")

    with Guard(tracked.end, told=True):
        pass
    with pytest.raises(OSError, match="refused"), Guard(tracked.end, failing):
        pass
    with pytest.raises(ValueError, match="inside"), Guard(tracked.end):
        raise ValueError("inside")
    with Setting(tracked, "keeps", tracked.ends):
        pass
    with Claim(tracked.end):  # type: ignore[arg-type]
        pass

    def generator() -> Iterator[Tracked]:
        yield tracked

    with Scope(generator()):
        pass
    with pytest.raises(ValueError, match="inside"), Scope(generator()):
        raise ValueError("inside")
    unused = Scope(generator())
    del unused


def test_no_reference_is_lost_or_kept() -> None:
    tracked = Tracked()
    use_in_every_way(tracked)
    gc.collect()
    before = sys.getrefcount(tracked), sys.getrefcount(None), sys.getrefcount(ValueError)
    for _ in range(100):
        tracked.ends.clear()
        use_in_every_way(tracked)
    gc.collect()
    after = sys.getrefcount(tracked), sys.getrefcount(None), sys.getrefcount(ValueError)
    assert after[0] == before[0]
    assert abs(after[1] - before[1]) < 50
    assert abs(after[2] - before[2]) < 50


@pytest.mark.parametrize("wrong", [None, 1, "text"])
def test_an_end_that_cannot_be_called_is_refused_before_anything_is_held(wrong: Any) -> None:
    with pytest.raises(TypeError, match="leave is not callable"):
        Guard(wrong)
    if wrong is not None:
        with pytest.raises(TypeError, match="enter is not callable"):
            Guard(print, wrong)
    with pytest.raises(TypeError, match="refuse is not callable"):
        Claim(wrong)


MADE: list[Any] = [Guard(print), Scope(iter(())), Claim(print), Setting(Tracked(), "keeps", 1)]  # type: ignore[arg-type]


@pytest.mark.parametrize("made", MADE)
def test_none_of_them_is_copied_or_subclassed(made: Any) -> None:
    with pytest.raises(TypeError):
        copy.copy(made)
    with pytest.raises(TypeError):
        type("Derived", (type(made),), {})


# ---- garbage ------------------------------------------------------------------------------------------------------


def test_a_guard_in_a_garbage_cycle_ends() -> None:
    """An exception that is kept by what the guard holds, with the frame of the guard."""
    ends: list[int] = []

    def make() -> weakref.ref[Tracked]:
        tracked = Tracked()
        tracked.ends = ends
        guard = Guard(tracked.end)
        tracked.keeps = guard
        guard.__enter__()
        return weakref.ref(tracked)

    found = make()
    gc.collect()
    assert ends == [1]
    assert found() is None


def test_a_suspended_scope_in_a_garbage_cycle_ends() -> None:
    ends: list[int] = []

    @scope
    def holding(tracked: Tracked) -> Iterator[None]:
        with Guard(tracked.end):
            yield

    def make() -> None:
        tracked = Tracked()
        tracked.ends = ends
        tracked.keeps = holding(tracked)
        tracked.keeps.__enter__()

    make()
    gc.collect()
    assert ends == [1]


def test_a_setting_in_a_garbage_cycle_is_freed() -> None:
    tracked = Tracked()
    setting = Setting(tracked, "keeps", 1)
    setting.__enter__()
    tracked.ends.append(setting)  # type: ignore[arg-type]
    found = weakref.ref(tracked)
    del tracked, setting
    gc.collect()
    assert found() is None


# ---- exceptions in the begin and the end ---------------------------------------------------------------------------


def test_an_answer_whose_truth_is_not_known_ends_what_was_taken() -> None:
    class Unclear:
        def __bool__(self) -> bool:
            raise KeyboardInterrupt

    mutex = threading.Lock()

    def take() -> Unclear:
        mutex.acquire()
        return Unclear()

    with pytest.raises(KeyboardInterrupt), Guard(mutex.release, take):
        pass
    assert mutex.acquire(blocking=False)


def test_an_end_that_always_fails_raises_its_first_error() -> None:
    numbers = iter(range(100))

    def leave() -> None:
        raise OSError(next(numbers))

    with pytest.raises(OSError, match="0"), Guard(leave):
        pass
    assert next(numbers) == 3


def test_an_end_may_use_the_guard_itself() -> None:
    ends: list[int] = []
    guards: list[Guard[None]] = []

    def leave() -> None:
        ends.append(1)
        guards[0].__exit__(None, None, None)

    guards.append(Guard(leave))
    with guards[0]:
        pass
    assert ends == [1]


def test_a_generator_may_end_its_own_scope_while_it_runs() -> None:
    """Its only reference is that of the scope."""
    made: list[Scope[int]] = []

    def generator() -> Iterator[int]:
        assert made[0].__exit__(None, None, None) is False
        with pytest.raises(RuntimeError, match="entered once"):
            made[0].__enter__()
        yield 1

    made.append(Scope(generator()))
    with made[0] as value:
        assert value == 1
    assert made[0].__exit__(None, None, None) is False


def test_an_end_by_a_class_is_an_exception_of_it() -> None:
    """As the interpreter's own context managers take `__exit__(ValueError, None, None)`."""
    seen: list[BaseException] = []

    def generator() -> Iterator[None]:
        try:
            yield
        except ValueError as problem:
            seen.append(problem)
            raise

    made = Scope(generator())
    made.__enter__()
    assert not made.__exit__(ValueError, None, None)
    assert type(seen[0]) is ValueError


@pytest.mark.parametrize("wrong", [1, None, [], iter([1]), "text"])
def test_a_scope_of_something_else_than_a_generator_is_an_error(wrong: Any) -> None:
    made = Scope(wrong)
    try:
        made.__enter__()
    except (AttributeError, TypeError):
        return
    with pytest.raises((AttributeError, RuntimeError)):
        made.__exit__(ValueError, ValueError(), None)


def test_deeply_nested_scopes_end() -> None:
    depth = 5000
    ends: list[int] = []

    @scope
    def level(inner: Any) -> Iterator[None]:
        with Guard(lambda: ends.append(1)):
            if inner is not None:
                inner.__enter__()
            yield

    made: Any = None
    for _ in range(depth // 50):
        made = level(made)
    made.__enter__()
    del made
    gc.collect()
    assert len(ends) == depth // 50


# ---- threads ------------------------------------------------------------------------------------------------------


def in_threads(count: int, call: Any) -> list[Any]:
    ready = threading.Barrier(count)
    found: list[Any] = []

    def run() -> None:
        ready.wait(60)
        try:
            found.append(call())
        except BaseException as problem:  # noqa: BLE001  (the result)
            found.append(problem)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def test_a_guard_that_many_threads_end_ends_once() -> None:
    for _ in range(50):
        ends: list[int] = []
        guard = Guard(lambda ends=ends: ends.append(1))  # type: ignore[misc]
        guard.__enter__()
        in_threads(4, lambda guard=guard: guard.__exit__(None, None, None))
        assert ends == [1]


def test_a_scope_that_many_threads_end_ends_once() -> None:
    for _ in range(50):
        ends: list[int] = []

        def generator(ends: list[int] = ends) -> Iterator[None]:
            yield
            ends.append(1)

        made = Scope(generator())
        made.__enter__()
        in_threads(4, lambda made=made: made.__exit__(None, None, None))
        assert ends == [1]


def test_one_thread_is_inside_of_a_claim() -> None:
    inside: list[int] = []

    def refuse(owner: int) -> Any:
        raise LookupError(owner)

    claim = Claim(refuse)

    def enter() -> bool:
        with claim, claim:
            inside.append(1)
            assert len(inside) == 1
            inside.pop()
        return True

    found = [outcome for _ in range(50) for outcome in in_threads(4, enter)]
    assert all(outcome is True or isinstance(outcome, LookupError) for outcome in found)
    assert True in found
    claim.leave()  # without an entrance: nothing
    with claim:
        (refused,) = in_threads(1, claim.__enter__)
        assert isinstance(refused, LookupError)
        assert refused.args == (threading.get_ident(),)
        assert in_threads(1, claim.attempt) == [False]
        in_threads(1, claim.leave)  # of a thread that is not inside
        assert in_threads(1, claim.attempt) == [False]
    assert in_threads(1, claim.attempt) == [True]


def test_a_claim_whose_refusal_raises_nothing_refuses() -> None:
    claim = Claim(lambda owner: owner)  # type: ignore[arg-type, return-value]
    with claim:
        (refused,) = in_threads(1, claim.__enter__)
    assert isinstance(refused, RuntimeError)


# ---- settings -----------------------------------------------------------------------------------------------------


def test_settings_are_restored_in_reverse_order() -> None:
    holder = SimpleNamespace(value=0)
    with (
        pytest.raises(ValueError, match="inside"),
        Setting(holder, "value", 1) as first,
        Setting(holder, "value", 2),
    ):
        assert (first, holder.value) == (1, 2)
        raise ValueError("inside")
    assert holder.value == 0
    setting = Setting(holder, "value", 3)
    with setting, pytest.raises(RuntimeError, match="entered once"):
        setting.__enter__()
    assert holder.value == 0
    assert setting.__exit__(None, None, None) is False


def test_a_setting_of_an_attribute_that_is_missing_or_constant_changes_nothing() -> None:
    with pytest.raises(AttributeError), Setting(SimpleNamespace(), "missing", 1):
        pass
    with pytest.raises(AttributeError), Setting(1, "real", 2):
        pass
