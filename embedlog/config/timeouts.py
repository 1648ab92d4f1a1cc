"""Checks the timeouts of public calls, which are in seconds."""

from __future__ import annotations

import os
import sys
import warnings

from embedlog.errors import ConfigError

CLOSE_S = 30.0  # of close(), and of the end of `with`
LONG_WAIT_S = 100.0  # a longer timeout was perhaps meant in ms
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


def seconds(timeout: object, call: str) -> float | None:
    """A `timeout` argument: at least 0 seconds, or None, which waits forever. Warns if it was
    probably meant in ms.

    Raises TypeError for a value that is not a number, ConfigError for a negative one.
    """
    if timeout is None:
        return None
    try:
        timeout_s = float("nan") if isinstance(timeout, (str, bytes, bool)) else float(timeout)  # type: ignore[arg-type]
    except TypeError:
        timeout_s = float("nan")
    if timeout_s != timeout_s:
        raise TypeError(
            f"timeout of {call}: seconds or None (forever), not {type(timeout).__name__} "
            f"{timeout!r:.50}"
        )
    if timeout_s < 0:
        raise ConfigError(
            f"timeout of {call}",
            expected="seconds, at least 0, or None to wait forever",
            found=timeout,
        )
    if timeout_s > LONG_WAIT_S:
        text = f"{call} waits for up to {timeout_s:g} s: a timeout is in seconds, not in ms"
        warnings.warn(text, RuntimeWarning, stacklevel=caller_level())
    return timeout_s


def caller_level() -> int:
    """The `stacklevel` of the first caller outside the package: Python warns once for each such
    line.
    """
    frame = sys._getframe(1)
    level = 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
        level = level + 1
    return level
