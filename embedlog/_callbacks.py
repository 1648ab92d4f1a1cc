"""Handles exceptions of user code that runs inside the library: callbacks, interceptors, listeners, log handlers.

CALLBACK-1  any exception, including BaseException, is logged or passed on by the caller; it ends no thread of the library and
    prevents no other callback
CALLBACK-2  only exceptions of signals propagate: KeyboardInterrupt and SystemExit, in the main thread
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading


def interrupts(error: BaseException) -> bool:
    """Whether an exception of user code must propagate: in the main thread a signal may have raised it."""
    return isinstance(error, (KeyboardInterrupt, SystemExit)) and threading.current_thread() is threading.main_thread()


def report(logger: logging.Logger, message: str, *arguments: object) -> None:
    """Log the present exception, and raise nothing: log handlers are user code, and may raise."""
    try:
        logger.exception(message, *arguments)
    except BaseException:  # noqa: BLE001  (top of the thread)
        hook()


def hook() -> None:
    """Pass the present exception to `threading.excepthook`, which is user code too, as the last possible report."""
    with contextlib.suppress(BaseException):
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
