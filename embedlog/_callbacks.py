"""The edges at which code of the user's runs in the middle of ours: callbacks, interceptors, listeners, handlers of the log.

CALLBACK-1  whatever it raises, BaseException included, is logged or handed on by the caller; it ends no thread of ours and keeps
    no one else from being called
CALLBACK-2  only what a signal raises goes on: KeyboardInterrupt and SystemExit, in the main thread
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading


def interrupts(error: BaseException) -> bool:
    """Whether what came out of the user's code is to go on: in the main thread it may come from a signal."""
    return isinstance(error, (KeyboardInterrupt, SystemExit)) and threading.current_thread() is threading.main_thread()


def report(logger: logging.Logger, message: str, *arguments: object) -> None:
    """Logs the exception at hand and raises nothing: the handlers of the log are the user's, and may."""
    try:
        logger.exception(message, *arguments)
    except BaseException:  # noqa: BLE001  (the edge of a thread)
        hook()


def hook() -> None:
    """Gives the exception at hand to `threading.excepthook`, which is the user's too, and the last way to say it."""
    with contextlib.suppress(BaseException):
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
