"""Searches pieces of topics, in this process or on all cores, and returns the lines of the matches
in the order of the log.

- A worker is a forked process that opens the log read-only itself; it is started only if each has
  much to read.
- At most two pieces a worker are searched ahead, so that memory is bounded if the reader of the
  output is slow.
- The parent alone is interrupted by Ctrl-C; workers end after their piece, or at once if the parent
  was killed.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import NamedTuple, TypeAlias

import embedlog
from embedlog import IsolationLevel, Log
from embedlog.tools.cli.record_format import Formatter, envelope, kcat_formatter

PARENT_CHECK_S = 0.5  # a worker of a killed parent would wait for its next piece for ever
PIECE_BYTES = 32 << 20
# for each worker; a start costs about as much as the search of so many bytes
WORKER_BYTES = 128 << 20


class SearchPiece(NamedTuple):
    """Offsets of a partition."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    size_bytes: int


Result: TypeAlias = tuple[SearchPiece, int, list[bytes]]  # the number of matches, and their lines


@dataclass(frozen=True)
class Query:
    """What is searched, and how a match is printed. It can be pickled."""

    directories: tuple[str, ...]
    pattern: bytes | re.Pattern[bytes] | re.Pattern[str]
    columns: tuple[str, ...]
    invert: bool
    start_ms: int | None
    end_ms: int | None
    isolation_level: IsolationLevel
    counts_only: bool
    layout: str | None  # a kcat format; None is the JSON envelope
    null: bytes = b""

    def run(self, log: Log, piece: SearchPiece, limit: int | None) -> tuple[int, list[bytes]]:
        """The number of matches, and their lines, up to a limit."""
        scan = log.scan(
            piece.topic,
            partitions=piece.partition,
            start_offset=piece.start_offset,
            end_offset=piece.end_offset,
            start_time=self.start_ms,
            end_time=self.end_ms,
            isolation_level=self.isolation_level,
        )
        matches = scan.search(self.pattern, columns=self.columns, invert=self.invert)
        if self.counts_only and limit is None:
            return matches.count(), []
        layout = self._formatter()
        lines = []
        for record in matches:
            lines.append(b"" if self.counts_only else layout(record))
            if len(lines) == limit:
                break
        return len(lines), [] if self.counts_only else lines

    def _formatter(self) -> Formatter:
        if self.layout is None:
            return envelope
        return kcat_formatter(self.layout, self.null)


def worker_count(pieces: Sequence[SearchPiece], count_max: int) -> int:
    """The number of processes that are worth their start; 1 is this process."""
    size = sum(piece.size_bytes for piece in pieces)
    return max(1, min(count_max, size // WORKER_BYTES, len(pieces)))


def search(
    log: Log, query: Query, pieces: Sequence[SearchPiece], limit: int | None
) -> Generator[Result, None, None]:
    """The result of each piece, in their order. `limit` bounds the matches of a piece."""
    for piece in pieces:
        yield (piece, *query.run(log, piece, limit))


@contextmanager
def worker_pool(query: Query, workers: int) -> Iterator[ProcessPoolExecutor]:
    """Forked processes that have the log open. REQUIRES that this process has no open log, and no
    other thread yet.
    """
    pool = ProcessPoolExecutor(workers, get_context("fork"), _start_worker, (query, os.getpid()))
    try:
        pool.submit(os.getpid).result()  # the first call starts all of them
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def search_in_pool(
    pool: ProcessPoolExecutor, pieces: Sequence[SearchPiece], limit: int | None, workers: int
) -> Generator[Result, None, None]:
    """As `search`, by the processes of a pool."""
    running: deque[tuple[SearchPiece, Future[tuple[int, list[bytes]]]]] = deque()
    for piece in pieces:
        running.append((piece, pool.submit(_work, piece, limit)))
        if len(running) >= 2 * workers:
            first, future = running.popleft()
            yield (first, *future.result())
    while running:
        first, future = running.popleft()
        yield (first, *future.result())


def core_count() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0))


# ---- workers -------------------------------------------------------------------------------------


@dataclass
class _Worker:
    """What a worker process searches for, and its open log."""

    query: Query
    log: Log


_worker: _Worker | None = None  # of this process, after its start


def _start_worker(query: Query, parent: int) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(
        target=_end_with_parent, args=(parent,), name="embedlog-parent", daemon=True
    ).start()
    paths = list(query.directories)
    path = paths[0] if len(paths) == 1 else paths
    _worker = _Worker(query, embedlog.open(path, read_only=True))


def _end_with_parent(parent: int) -> None:
    never = threading.Event()
    while os.getppid() == parent:
        never.wait(PARENT_CHECK_S)
    os._exit(1)


def _work(piece: SearchPiece, limit: int | None) -> tuple[int, list[bytes]]:
    assert _worker is not None, "the pool calls _start_worker first"
    return _worker.query.run(_worker.log, piece, limit)
