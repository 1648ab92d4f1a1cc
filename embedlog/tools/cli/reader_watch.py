"""Ends a wait for records when the process that reads the output has ended:
`embedlog tail t | head -3` on an idle topic.

A thread waits in poll(2) for the error state of the output, without an interval. It wakes the
consumer once. An output that is no pipe, socket or terminal never has that state, and is not
watched.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import stat
import sys
import threading
from collections.abc import Iterator
from typing import Any

import embedlog
from embedlog import Consumer


@contextlib.contextmanager
def end_with_reader(consumer: Consumer[Any, Any]) -> Iterator[None]:
    """Inside the block, the present or next wait of the consumer raises BrokenPipeError after the
    reader's end.
    """
    output = _find_watchable_output()
    if output is None:
        yield
        return
    end_of_block, end_block = os.pipe()
    thread = threading.Thread(
        target=_watch, args=(output, end_of_block, consumer), name="embedlog-output", daemon=True
    )
    thread.start()
    try:
        yield
    except embedlog.WakeupError:
        raise BrokenPipeError from None
    finally:
        os.close(end_block)
        thread.join()
        os.close(end_of_block)


def _find_watchable_output() -> int | None:
    try:
        fd = sys.stdout.fileno()
    except io.UnsupportedOperation:  # a caller replaced it by an object in memory
        return None
    mode = os.fstat(fd).st_mode
    is_watchable = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)
    return fd if is_watchable else None


def _watch(output: int, end_of_block: int, consumer: Consumer[Any, Any]) -> None:
    poller = select.poll()
    poller.register(output, 0)  # POLLERR and POLLHUP are always reported
    poller.register(end_of_block, 0)
    if any(fd == output for fd, _ in poller.poll()):
        consumer.wakeup()
