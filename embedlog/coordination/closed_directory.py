"""Holds a log directory that is closed, and determines its last use.

- The open lock keeps processes of embedlog waiting, and `.lock` is held exclusively, as a broker
  holds it.
- The last use is determined before `.lock` is held. The lock file and the mark of an orderly close
  are compared after that: a broker replaces both.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from embedlog._native import system
from embedlog._native.scope import Guard, scope
from embedlog.config.topic import LogConfig
from embedlog.coordination.directory import Directory
from embedlog.errors import DirectoryInUseError
from embedlog.storage import file_names, files, lock_holders, locks

_TIMEOUT_MS: Final = 10_000


class Use(NamedTuple):
    """The last use of a closed directory. `clean`: it was closed in order. `broker_wrote`: a broker
    used it after embedlog.
    """

    clean: bool
    broker_wrote: bool


def find_last_use(path: Path) -> Use:
    """The last use of the directory. Raises DirectoryInUseError if a broker is running on it."""
    directory = Directory(
        path, read_only=True, mode=0o666, lock_timeout_ms=_TIMEOUT_MS, shared="no"
    )
    try:
        directory.enter(lambda first: None)
        return Use(directory.clean, directory.broker_wrote)
    finally:
        directory.release()


@scope
def hold(path: Path) -> Iterator[Use]:
    """Hold a closed directory. Raises DirectoryInUseError if any process uses
    it.
    """
    mode = LogConfig().file_mode
    opening = locks.LockFile(path / file_names.OPEN_LOCK, mode)
    with Guard(opening.close), opening.hold(files.deadline_after(_TIMEOUT_MS / 1000)):
        use = find_last_use(path)
        mark = files.facts_of(path / file_names.CLEAN_MARK)
        lock = path / file_names.BROKER_LOCK
        with files.opened(lock, files.CREATE, mode) as fd:
            if system.lock_try(fd, True) < 0:
                raise lock_holders.in_use_error("the directory is open: close it there first", lock)
            ours = files.facts(fd, lock)
            named = files.facts_of(lock)
            is_current = named is not None and (named.device, named.inode) == (
                ours.device,
                ours.inode,
            )
            if not is_current or files.facts_of(path / file_names.CLEAN_MARK) != mark:
                raise DirectoryInUseError(
                    "another process uses the directory: repeat when it has ended", path=path
                )
            yield use
