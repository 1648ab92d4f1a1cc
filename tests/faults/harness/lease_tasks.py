"""Tasks of a victim with a heartbeat lease, and as a follower of a group."""

from __future__ import annotations

import ctypes
import os
import select
import threading
import time
from pathlib import Path
from typing import Any

from embedlog._native import system
from embedlog.coordination.internal_topic import InternalTopic
from embedlog.storage.liveness import Lease, Liveness
from tests.faults.harness.tasks import Stage, task

_held: list[Lease] = []


class ThreadOfPython:
    """The heartbeat that MEMBER-2 forbids: in a thread that needs the interpreter's lock."""

    def __init__(self, fd: int, position: int, heartbeat_ms: int) -> None:
        self.code = 0
        self._fd = fd
        self._position = position
        self._heartbeat_s = heartbeat_ms / 1000
        self._beat = 0
        self._over = threading.Event()
        threading.Thread(target=self._live, daemon=True).start()

    def _live(self) -> None:
        while not self._over.wait(self._heartbeat_s):
            self._beat += 1
            os.pwrite(self._fd, self._beat.to_bytes(8, "big"), self._position + 8)


@task
def lease(
    _: Stage,
    directory: str,
    session_ms: int,
    heartbeat_ms: int,
    poll_ms: int = 1 << 30,
    python: bool = False,
) -> tuple[int, int]:
    """Take a process slot and write heartbeats; with `python` in a thread that needs the
    interpreter.
    """
    if python:
        system.Heartbeat = lambda fd, position, *times: ThreadOfPython(fd, position, times[2])  # type: ignore
    found = Liveness(Path(directory)).lease(
        session_timeout_ms=session_ms,
        heartbeat_interval_ms=heartbeat_ms,
        max_poll_interval_ms=poll_ms,
    )
    _held.append(found)
    return tuple(found.process_slot)


@task
def lease_state(_: Stage) -> tuple[bool, bool]:
    """Expired, left."""
    return _held[-1].is_expired, _held[-1].has_left


@task
def lease_do(_: Stage, verb: str) -> Any:
    return getattr(_held[-1], verb)()


@task
def hold_interpreter(stage: Stage, ms: int) -> None:
    """Do nothing for a while without letting any other thread of Python run."""
    stage.note("now")
    ctypes.PyDLL(None).usleep(ms * 1000)


@task
def await_notice(stage: Stage, number: int) -> float:
    """How long it took until a notice came."""
    topic: InternalTopic[_Nothing] = InternalTopic(
        stage.opened._engine, "__transaction_state", partitions=1, config={}, view=_Nothing
    )
    seen = [(topic.partition(number), topic.notice_word(number))]
    stage.note("seen")
    began = time.monotonic()
    stage.opened._engine.wait([], 20, topic, notices=seen)
    return time.monotonic() - began


@task
def join_group(stage: Stage, topic: str, group_id: str) -> int:
    """Poll until there is something to read in a group: how many partitions."""
    consumer = stage.opened.consumer(topic, group_id=group_id)
    end = time.monotonic() + 20
    while not consumer.assignment() and time.monotonic() < end:
        consumer.poll(timeout=0.1)
    return len(consumer.assignment())


class _Nothing:
    """A view that keeps nothing."""

    def apply(self, key: bytes, value: bytes | None) -> None:
        pass


@task
def leave_child(_: Stage) -> int:
    """A child that only inherits: its pid, after the handlers of the fork in the child."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, b"x")
        select.select([], [], [], 20)
        os._exit(0)
    os.read(reading, 1)
    return pid
