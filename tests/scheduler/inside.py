"""The side of a process: it takes its slot, and its clocks and random numbers are those of the run.

A wait of Python code gives the turn away, as the waits of the C core do. Waits for other threads of
the process are real: these threads have its turn. Two runs of one schedule draw the same random
bytes, and see the same times.
"""

from __future__ import annotations

import functools
import mmap
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import embedlog
from embedlog._native import _rows, system
from embedlog._native.calls import ffi, lib
from embedlog.producer.accumulator import Accumulator
from embedlog.storage import identity
from tests.faults.harness.tasks import Stage, task
from tests.support.mutants import apply_mutant

WALL_MS = 1_800_000_000_000  # 2027: after the times of prepared directories
PROGRAMS: dict[str, Callable[..., Any]] = {}
_KEPT: list[Any] = []  # the mapping: other threads may stand at the gate when the program has ended


def program(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register what a process may do in its turns."""
    PROGRAMS[function.__name__] = function
    return function


def _clock_ns(clock_id: int | None = None) -> int:
    return int(lib.el_boot_ns())


def _sleep(seconds: float) -> None:
    lib.el_schedule_sleep(int(seconds * 1e9), 0)


def _wait_for_event(
    wait: Callable[..., bool], self: threading.Event, timeout: float | None = None
) -> bool:
    """An event with a timeout is a sleep in the library: nobody sets it."""
    if timeout is None:
        return wait(self)
    if not self.is_set():
        _sleep(max(0.0, timeout))
    return self.is_set()


def _leave_time_to_producers() -> None:
    """Producers compare `time.monotonic` with the clock of their C core, and wait for their own
    threads only: that stays real.
    """
    real = SimpleNamespace(monotonic=time.monotonic, monotonic_ns=time.monotonic_ns)
    for name, module in list(sys.modules.items()):
        own_times = name == "embedlog.producer.targets"
        if (
            name.startswith("embedlog.producer.")
            and not own_times
            and getattr(module, "time", None) is time
        ):
            module.time = real  # type: ignore[attr-defined]


def _start_no_thread(self: Accumulator) -> None:
    """The thread of a producer would run beside the program, which calls `deliver` instead."""
    if self._thread is None:
        self._register(threading.current_thread())
        self.rows.wait(0)  # a wait of this thread for a record is an error from now on


def deliver(producer: embedlog.Producer, future: Any) -> Any:
    """Do what the producer's thread would do until a record is settled; its metadata. Raises what
    the send raises.
    """
    accumulator = producer._accumulator
    while not future.done():
        accumulator._run_once()
    return future.result()


def _take_clocks(schedule: Any) -> None:
    _leave_time_to_producers()
    _rows.follow_clock(int(ffi.cast("uintptr_t", ffi.addressof(schedule, "clock_ns"))))
    time.clock_gettime_ns = time.monotonic_ns = _clock_ns  # type: ignore[assignment]
    time.monotonic = lambda: _clock_ns() / 1e9
    time.sleep = _sleep  # type: ignore[assignment]
    wait = threading.Event.wait
    replaced = functools.partialmethod(
        lambda self, timeout=None: _wait_for_event(wait, self, timeout)
    )
    threading.Event.wait = replaced  # type: ignore[method-assign, assignment]
    system.freeze_wall(WALL_MS)


def _take_random_numbers(seed: int) -> None:
    rng = random.Random(seed)
    os.urandom = rng.randbytes
    identity.new_id.__defaults__ = (rng.randbytes,)
    random.seed(seed)


@task
def scheduled(
    stage: Stage,
    path: str,
    process: int,
    seed: int,
    mutants: tuple[str, ...],
    name: str,
    arguments: dict[str, Any],
) -> Any:
    """Run a program in the turns of a slot of the mapping at `path`."""
    for mutant in mutants:
        apply_mutant(mutant)
    stage.patience = {"retries": 1, "retry_backoff_ms": 1}
    with open(path, "r+b") as file:
        mapping = mmap.mmap(file.fileno(), 0)
    _KEPT.append(ffi.from_buffer("uint8_t[]", mapping, require_writable=True))
    schedule = ffi.cast("el_schedule *", _KEPT[-1])
    _take_random_numbers(seed * 8 + process)
    lib.el_schedule_join(schedule, process)
    _take_clocks(schedule)
    Accumulator.start = _start_no_thread  # type: ignore[method-assign]
    try:
        return PROGRAMS[name](stage, **arguments)
    finally:
        lib.el_schedule_leave()
