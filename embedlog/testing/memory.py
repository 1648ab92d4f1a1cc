"""Log directories in memory for the time of one test.

- The directory is in `/dev/shm` if that is writable and has `free_bytes_min` free bytes; otherwise
  in the default folder for temporary files.
- The directory is removed at the end of the block, also after an exception.
- The settings of `open_log` change sizes and threads only: internal topics have one partition, and
  no thread does housekeeping.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from embedlog.config import keywords

if TYPE_CHECKING:
    from embedlog import Log

__all__ = ["SETTINGS", "memory_directory", "open_log"]

MEMORY: Final = "/dev/shm"  # the tmpfs of POSIX shared memory
# containers have 64 MiB by default; an empty log with one group needs less than 1 MiB
FREE_BYTES_MIN: Final = 64 << 20

# Kafka's names, of a log for one test. No thread of housekeeping: the work of a test is that of its
# own calls.
SETTINGS: Final[Mapping[str, Any]] = {
    "housekeeping": False,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}


def memory_parent(free_bytes_min: int = FREE_BYTES_MIN, memory: str = MEMORY) -> str | None:
    """The folder for a directory in memory; None for the default temporary folder."""
    try:
        status = os.statvfs(memory)
    except OSError:
        return None
    free_bytes = status.f_bavail * status.f_frsize
    if free_bytes < free_bytes_min or not os.access(memory, os.W_OK | os.X_OK):
        return None
    return memory


@keywords.checked_call
@contextmanager
def memory_directory(free_bytes_min: int = FREE_BYTES_MIN) -> Iterator[Path]:
    """An empty directory, in memory if possible; it is removed at the end of the block.

    `free_bytes_min`: bytes that must be free in `/dev/shm`; with less the directory is in the
    default temporary folder. Raises OSError if neither can be written. **Threads:** any.
    """
    path = Path(tempfile.mkdtemp(prefix="embedlog-test-", dir=memory_parent(free_bytes_min)))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@keywords.checked_call
@contextmanager
def open_log(
    topics: Mapping[str, int] | Iterable[str] = (),
    *,
    path: str | os.PathLike[str] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Iterator[Log]:
    """An open log for one test, in a directory in memory that is removed at the end of the block.

    `topics`: names, or a mapping of names to numbers of partitions. `path`: a directory to use
    instead, which is kept. `config` has Kafka's names and comes before the settings for tests
    (`SETTINGS`). Other processes may open `log.path` at the same time. Raises the errors of
    `embedlog.open` and `create_topic`; at the end those of `Log.close`. **Threads:** any.

        with embedlog.testing.open_log({"orders": 3}) as log:
            ...
    """
    import embedlog

    if isinstance(topics, Mapping):
        counts = dict(topics)
    elif isinstance(topics, str):
        counts = {topics: 1}
    else:
        counts = dict.fromkeys(topics, 1)
    settings = {**SETTINGS, **(config or {})}
    directory = memory_directory() if path is None else nullcontext(path)
    with directory as log_path, embedlog.open(log_path, config=settings) as log:
        for name, partition_count in counts.items():
            log.create_topic(name, partition_count, exist_ok=True)
        yield log
