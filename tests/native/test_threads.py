"""What threads of ours wait on: an interrupt at any instruction leaves it usable, and is raised as
an interrupt.
"""

from __future__ import annotations

import threading
import time

import pytest

from embedlog._native.threads import Bell, Flag, start
from tests.support.strike import Strike


def ended(thread: threading.Thread) -> bool:
    thread.join(30)
    return not thread.is_alive()


def test_a_bell_that_is_rung_twice_ends_one_sleep() -> None:
    bell = Bell()
    assert not bell.wait(0)
    bell.ring()
    bell.ring()
    assert bell.wait(0)
    assert not bell.wait(0.001)
    sleeper = threading.Thread(target=bell.wait)
    sleeper.start()
    bell.ring()
    assert ended(sleeper)


def test_a_flag_ends_the_waits_of_all_threads() -> None:
    flag = Flag()
    assert not flag.wait(0.001)
    waiting = [threading.Thread(target=flag.wait, args=(60,)) for _ in range(3)]
    for thread in waiting:
        thread.start()
    flag.set()
    flag.set()
    assert flag.is_set()
    assert flag.wait(0)
    assert all(ended(thread) for thread in waiting)


@pytest.mark.parametrize("way", ["set", "wait"])
def test_an_interrupt_anywhere_in_a_flag_leaves_it_usable(way: str) -> None:
    nth = 0
    strike = None
    while strike is None or strike.has_struck:
        nth += 1
        flag = Flag()
        waiting = threading.Thread(target=flag.wait, args=(60,))
        waiting.start()
        strike = Strike(nth)
        strike.run(flag.set if way == "set" else lambda flag=flag: flag.wait(0))  # type: ignore[misc]
        flag.set()
        assert flag.wait(0), strike.place
        assert ended(waiting), strike.place
    assert nth > 3


def test_an_interrupt_anywhere_in_the_start_of_a_thread_is_an_interrupt_and_leaves_no_thread_that_hangs() -> (
    None
):
    nth = 0
    strike = None
    threads = []
    while strike is None or strike.has_struck:
        nth += 1
        threads.append(threading.Thread(target=int, daemon=True))
        strike = Strike(nth)
        strike.run(lambda: start(threads[-1]))
        assert strike.kept is not None or not strike.has_struck, nth
    assert nth > 10
    assert threads[-1].ident is not None
    deadline = time.monotonic() + 30
    while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
        threading.Event().wait(0.0005)
    assert not any(thread.is_alive() for thread in threads)


def test_a_thread_that_the_system_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        start(threading.Thread(target=int))
