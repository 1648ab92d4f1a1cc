"""Where embedlog runs: Linux on x86-64 and arm64.

1  imported before anything native, so that a foreign machine gets one line instead of a missing shared object
2  the reason is the machine's, not the build's: futexes, open-file-description locks and 64-bit atomics in shared mappings

setup.py refuses with the same words.
"""

from __future__ import annotations

import platform
import sys

MACHINES = frozenset({"x86_64", "aarch64"})  # as `uname -m` spells them


def complaint(system: str = sys.platform, machine: str | None = None) -> str | None:
    """Why embedlog cannot run here, in one line, or None if it can."""
    machine = platform.machine() if machine is None else machine
    if system.startswith("linux") and machine in MACHINES:
        return None
    return f"embedlog runs on Linux on x86-64 and arm64 only; this is {system} on {machine}"
