"""Python calls of the probes in `_core`: whether disks take a write now, without waiting for one
that hangs.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any, Final

from embedlog._native.calls import ffi, lib

COUNT_MAX: Final[int] = lib.EL_PROBES_MAX  # of one question
ANSWER_NS: Final[int] = lib.EL_PROBE_NS  # for an answer, before a slower way is taken
SILENT: Final = -1000 - errno.ETIMEDOUT  # no answer in time


class Probe:
    """The thread of the C core that writes a byte of a file when it is asked. It starts with a
    question, and ends seconds after the last one, or with the last reference; one that is inside a
    disk that hangs ends when that continues.
    """

    def __init__(self, path: str, position: int) -> None:
        raw = lib.el_probe_new(os.fsencode(path), position)
        if raw == ffi.NULL:
            raise MemoryError
        self.raw: Any = ffi.gc(raw, lib.el_probe_end)

    def rest(self) -> None:
        """End the thread now: no question is expected."""
        lib.el_probe_rest(self.raw)


def ask(probes: Sequence[Probe], timeout_ns: int) -> list[int]:
    """The answers of all probes, which are asked at the same time: 0 if the disk has taken a write
    since the call began, or just before; SILENT; or the code of an error of the system.
    """
    codes = ffi.new("int32_t[]", len(probes))
    raws = ffi.new("el_probe *[]", [probe.raw for probe in probes])
    code = int(lib.el_probe_ask(raws, len(probes), timeout_ns, codes))
    return list(codes) if code >= 0 else [code] * len(probes)
