"""Where embedlog runs: Linux on x86-64 and arm64.

- Importing this elsewhere raises; it is imported before anything native, whose error would only be
  a missing file.
- The reasons are the machine's: futexes, open-file-description locks, 64-bit atomics in shared
  mappings.
- A Python without the GIL loads no core that was compiled for the stable ABI of one with it. Its
  objects have another layout, so it would end with a segmentation fault. A clone in which both were
  used has such a core.

setup.py refuses with the same words.
"""

from __future__ import annotations

import os
import sys

from embedlog.errors import UnsupportedPlatformError

MACHINES = frozenset({"x86_64", "aarch64"})  # as `uname -m` spells them


def unsupported_reason(system: str = sys.platform, machine: str | None = None) -> str | None:
    """Why embedlog cannot run here, in one line, or None if it can."""
    machine = _machine(system) if machine is None else machine
    if system.startswith("linux") and machine in MACHINES:
        return None
    return f"embedlog runs on Linux on x86-64 and arm64 only; this is {system} on {machine}"


def _machine(system: str) -> str:
    if system.startswith("linux"):
        return os.uname().machine
    import platform  # takes milliseconds, which each program would pay

    return platform.machine()


def foreign_core_reason(folder: str, abiflags: str = sys.abiflags) -> str | None:
    """Why the compiled core in a folder cannot be loaded, in one line, or None if it can.

    One of the stable ABI is loaded by no Python without the GIL.
    """
    if "t" not in abiflags:
        return None
    from importlib.machinery import PathFinder  # only such a Python needs it

    spec = PathFinder.find_spec("_rows", [folder])
    if spec is None or not (spec.origin or "").endswith(".abi3.so"):
        return None
    return (
        f"this Python has no GIL, and the core in {folder} was compiled for one with it: pip "
        "install embedlog's source again"
    )


_unsupported_reason = unsupported_reason() or foreign_core_reason(
    os.path.join(os.path.dirname(__file__), "_native")
)
if _unsupported_reason is not None:
    raise UnsupportedPlatformError(_unsupported_reason)
