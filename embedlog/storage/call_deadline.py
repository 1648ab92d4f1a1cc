"""This module bounds all waits of a public call by the deadline of that call.

CALLDEADLINE-1  a call of a client on a set stores its deadline for its thread. Waits for leaders and locks below it end then,
    although their own limit is `lock.timeout.ms`
CALLDEADLINE-2  a lock that is not waited for until its own limit shows nothing about its directory: it fails none
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Final

NEVER_NS: Final = 2**63 - 1


class _Calls(threading.local):
    deadline_ns: int = NEVER_NS


_calls = _Calls()


def bounded(deadline_ns: int) -> int:
    """The earlier one of a deadline (boot clock, ns) and of that of the present call of this thread."""
    return min(deadline_ns, _calls.deadline_ns)


class Until:
    """A context: waits of this thread end at a time (boot clock, ns). The earlier one of nested contexts counts.

    `public`: a call of the user begins, perhaps inside a callback. The contexts around it do not count.
    """

    __slots__ = ("_before_ns", "_deadline_ns", "_public")

    def __init__(self, deadline_ns: int, *, public: bool = False) -> None:
        self._deadline_ns, self._public = deadline_ns, public
        self._before_ns = NEVER_NS

    def __enter__(self) -> None:
        self._before_ns = _calls.deadline_ns
        _calls.deadline_ns = self._deadline_ns if self._public else min(self._before_ns, self._deadline_ns)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        _calls.deadline_ns = self._before_ns
