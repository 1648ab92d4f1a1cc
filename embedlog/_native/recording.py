"""Recording of every change that this process makes to files, for simulations of power loss; off by default."""

from __future__ import annotations

from embedlog._native._core import lib


def record_to(fd: int) -> None:
    """Write each successful change, with its bytes, to `fd`; -1 ends it. The format is in `api_faults.h`."""
    lib.el_fault_record(fd)
