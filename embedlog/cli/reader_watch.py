"""Ends a wait for records when the process that reads the output has ended:
`embedlog tail t | head -3` on an idle topic.

READERWATCH-1  a thread waits in poll(2) for the error state of the output, without an interval. It
    wakes the consumer once
READERWATCH-2  an output that is no pipe, socket or terminal never has that state, and is not
    watched
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
def ending_with_reader(consumer: Consumer[Any, Any]) -> Iterator[None]:
    """Inside the block, the present or next wait of the consumer raises BrokenPipeError after the
    reader's end.
    """
    output = _watchable()
    if output is None:
        yield
        return
    ended, end = os.pipe()
    thread = threading.Thread(
        target=_watch, args=(output, ended, consumer), name="embedlog-output", daemon=True
    )
    thread.start()
    try:
        yield
    except embedlog.WakeupError:
        raise BrokenPipeError from None
    finally:
        os.close(end)
        thread.join()
        os.close(ended)


def _watchable() -> int | None:
    try:
        fd = sys.stdout.fileno()
    except io.UnsupportedOperation:  # a caller replaced it by an object in memory
        return None
    mode = os.fstat(fd).st_mode
    return fd if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode) else None


def _watch(output: int, ended: int, consumer: Consumer[Any, Any]) -> None:
    poller = select.poll()
    poller.register(output, 0)  # POLLERR and POLLHUP are always reported
    poller.register(ended, 0)
    if any(fd == output for fd, _ in poller.poll()):
        consumer.wakeup()
