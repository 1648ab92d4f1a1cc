"""Compares what this process holds before and after a test: descriptors, file mappings, threads,
temporary files.

L1  a clean test costs two snapshots, together less than 1 ms; the garbage collector runs only if
something seems left L2  a resource that is released within `GRACE_S` is not a leak: a thread that
stops at a request, a descriptor that it closes L3  resources that a fixture of a wider scope opens
during a test belong to that fixture: `granted` adds them to the baseline.
    Files below the directory of a log that was open before the test belong to that log
L4  the runner's own resources are excluded by rule: modules of `RUNNERS`, and sockets and pipes
while a JVM is connected L5  resources with the lifetime of the process are excluded by rule: the
library's pool for codecs, multiprocessing's directory,
    event descriptors of native runtimes. The library has none; a leaked asyncio loop also leaks
    sockets
L6  the file of a sanitizer's reports and its pipes are excluded by rule: its first report opens
them
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import gc
import os
import re
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from embedlog.engine import engine

# for a thread that a busy machine runs late
GRACE_S = float(os.environ.get("EMBEDLOG_LEAK_GRACE_S", "10.0"))
RUNNERS = frozenset({"execnet", "xdist", "pytest_timeout", "py4j", "pyspark"})
POOLS = ("embedlog-codec",)
RUNTIMES = ("polars", "duckdb", "pyarrow")
MAPS = "/proc/self/maps"

# struct procmap_query of <linux/fs.h>, Linux 6.11: the kernel itself skips the other mappings.
_QUERY = struct.Struct("=9Q4I2Q")
_PROCMAP_QUERY = (3 << 30) | (_QUERY.size << 16) | (ord("f") << 8) | 17
_SHARED_FILES = 0x08 | 0x10 | 0x20  # shared, this or the next one, of a file

Mapping = tuple[int, int, int]  # first address, end, inode


def descriptors() -> dict[int, str]:
    """Each open descriptor and its target."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def mappings() -> set[Mapping]:
    """The shared mappings of files; the library maps its control blocks so."""
    descriptor = os.open(MAPS, os.O_RDONLY)
    try:
        return set(_queried(descriptor))
    except OSError:  # an older kernel
        return set(_parsed())
    finally:
        os.close(descriptor)


def _queried(descriptor: int) -> Iterator[Mapping]:
    answer = array.array("b", bytes(_QUERY.size))
    address = 0
    while True:
        _QUERY.pack_into(answer, 0, _QUERY.size, _SHARED_FILES, address, *[0] * 12)
        try:
            fcntl.ioctl(descriptor, _PROCMAP_QUERY, answer)
        except FileNotFoundError:  # none from this address on
            return
        fields = _QUERY.unpack_from(answer)
        address = fields[4]
        yield fields[3], address, fields[8]


def _parsed() -> Iterator[Mapping]:
    for line in Path(MAPS).read_text().splitlines():
        span, rights, _, _, inode, *_ = line.split(maxsplit=5)
        if rights.endswith("s") and inode != "0":
            first, end = span.split("-")
            yield int(first, 16), int(end, 16), int(inode)


def _mapped_file(mapping: Mapping) -> str:
    span = f"{mapping[0]:08x}-{mapping[1]:08x} "
    lines = [line for line in Path(MAPS).read_text().splitlines() if line.startswith(span)]
    return lines[0].split(maxsplit=5)[-1] if lines else "unmapped"


def is_excluded(thread: threading.Thread) -> bool:
    """Whether the thread is the test runner's or a JVM connection's, or lives as long as the
    process.
    """
    if thread.name.startswith(POOLS):
        return True
    target = getattr(thread, "_target", None)
    owners = {type(thread).__module__, getattr(target, "__module__", None) or ""}
    return any(owner.partition(".")[0] in RUNNERS for owner in owners)


def excluded_targets() -> tuple[str, ...]:
    """How the targets of descriptors begin that are not the test's."""
    module = sys.modules.get("pyspark.core.context") or sys.modules.get("pyspark.context")
    jvm = getattr(getattr(module, "SparkContext", None), "_gateway", None) is not None
    native = any(name in sys.modules for name in RUNTIMES)
    reports = re.findall(r"\blog_path=([^\s:]+)", os.environ.get("TSAN_OPTIONS", ""))
    # the pipes lead to the program that names functions
    sanitizer = (*reports, "pipe:") if reports else ()
    return (
        ("socket:", "pipe:") * jvm
        + ("anon_inode:[eventpoll]", "anon_inode:[eventfd]") * native
        + sanitizer
    )


def open_logs() -> tuple[str, ...]:
    """The directories of the logs that are open in this process."""
    return tuple(f"{each.path}/" for each in list(engine._open_engines) if not each.closed)


@dataclass
class Snapshot:
    """The resources of the process at one moment."""

    descriptors: dict[int, str] = field(default_factory=descriptors)
    mappings: set[Mapping] = field(default_factory=mappings)
    threads: set[threading.Thread] = field(default_factory=lambda: set(threading.enumerate()))
    files: set[str] = field(default_factory=lambda: set(os.listdir(tempfile.gettempdir())))
    logs: tuple[str, ...] = field(default_factory=open_logs)

    def granted(self, before: Snapshot, after: Snapshot) -> None:
        """Add the resources between two snapshots to this baseline (L3)."""
        self.descriptors |= {
            number: target
            for number, target in after.descriptors.items()
            if before.descriptors.get(number) != target
        }
        self.mappings |= after.mappings - before.mappings
        self.threads |= after.threads - before.threads
        self.files |= after.files - before.files

    def leaks(self, now: Snapshot) -> list[str]:
        """What `now` has and this snapshot has not, one line each."""
        excluded = (*excluded_targets(), *self.logs)
        return [
            *(
                f"descriptor {number}: {target}"
                for number, target in sorted(now.descriptors.items())
                if self.descriptors.get(number) != target and not target.startswith(excluded)
            ),
            *(
                f"mapping: {path}"
                for path in map(_mapped_file, sorted(now.mappings - self.mappings))
                if not path.startswith(self.logs)
            ),
            *(
                f"thread: {thread.name}"
                for thread in now.threads - self.threads
                if thread.is_alive() and not is_excluded(thread)
            ),
            *(
                f"file: {os.path.join(tempfile.gettempdir(), name)}"
                for name in sorted(now.files - self.files)
                if not name.startswith("pymp-")
            ),
        ]

    def equals(self, now: Snapshot) -> bool:
        return (
            now.mappings <= self.mappings
            and now.threads <= self.threads
            and now.files <= self.files
            and now.descriptors.items() <= self.descriptors.items()
        )


def left_since(before: Snapshot, grace_s: float = GRACE_S) -> list[str]:
    """The resources that were opened since `before` and are still open; empty for a clean test."""
    now = Snapshot()
    if before.equals(now) or not before.leaks(now):
        return []
    del now
    end = time.monotonic() + grace_s
    pause_s = 0.005
    while True:
        gc.collect()  # again each time: a thread that ends may drop the last reference to a cycle
        found = before.leaks(Snapshot())
        if not found or time.monotonic() >= end:
            return found
        threading.Event().wait(pause_s)
        pause_s = min(2 * pause_s, 0.5)
