"""This module finds copies of the decision log that are damaged or missing, and begins them again.

COPYRENEWAL-1  a majority without the copy is brought to one log first. Without such a majority the
    copy is left as it is: it may be the only one with the newest record
COPYRENEWAL-2  the new copy is incomplete before it has its name, or before its log is cut. It
    counts for no majority until it is level (PROMISE-3). The promise of a cut copy does not fall
COPYRENEWAL-3  a loaded copy begins again by a cut, which other processes with its page follow. A
    copy that is not loaded is set aside
COPYRENEWAL-4  a check reads all published records without a lock. A copy that is cut meanwhile is
    checked again
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from embedlog._native import system
from embedlog.errors import (
    CorruptRecordError,
    EmbedlogError,
    ForeignDirectoryError,
    LockTimeoutError,
    StorageError,
)
from embedlog.replicas.decisions import promise
from embedlog.replicas.decisions.decision_view import CHUNK_BYTES
from embedlog.replicas.decisions.promise import Promise
from embedlog.replicas.members.open_directories import DAMAGE

if TYPE_CHECKING:
    from embedlog.replicas.decisions.copies import Copy
    from embedlog.replicas.decisions.decision_log import DecisionLog

logger = logging.getLogger("embedlog")


CHECKS: Final = 10  # of one copy, as long as it is cut meanwhile


class CopyDirectory(Protocol):
    """A directory with a copy of the decision log."""

    def check_place(self) -> None: ...
    def renew_decision_log(self) -> bool: ...


class Damage(NamedTuple):
    """Damage in a copy: its records from an offset on cannot be read."""

    first: int
    end: int
    problem: EmbedlogError


def damaged_copies(decisions: DecisionLog, copies: Mapping[int, Copy]) -> dict[int, EmbedlogError]:
    """The copies that the last decision, or a look at their pages, found damaged or missing. No
    file is read otherwise.
    """
    found = {
        node: decisions.failures().get(node) or _load_problem(copy) for node, copy in copies.items()
    }
    return {
        node: problem
        for node, problem in found.items()
        if problem is not None and _is_damage(problem)
    }


def damage_of(copy: Copy) -> Damage | None:
    """The damage in the records of a copy, which are all read (COPYRENEWAL-4). Raises other errors
    of the directory.
    """
    try:
        log = copy.renewed().partition.replica
        log.published()  # a partition that is not loaded yet is loaded
    except EmbedlogError as problem:
        if not _is_damage(problem):
            raise
        return Damage(0, 0, problem)
    for _ in range(CHECKS):
        now = log.published()[0]
        at = now.log_start
        try:
            promise.read(copy.partition.path)
            while True:
                if (missing := log.missing_segment(at)) is not None:
                    raise CorruptRecordError("the segment is missing", path=missing)
                if at >= now.log_end:
                    return None
                at = log.read(at, CHUNK_BYTES, now.log_end).next_offset
        except EmbedlogError as problem:
            if log.published()[0].generation == now.generation:
                if not _is_damage(problem):
                    raise
                return Damage(at, now.log_end, problem)
    raise LockTimeoutError(
        "the copy of the decision log is cut again and again", path=copy.partition.path
    )


def renew_copy(
    decisions: DecisionLog,
    directory: CopyDirectory,
    copy: Copy,
    problem: EmbedlogError,
    deadline: Callable[[], int],
) -> None:
    """Begin a damaged copy again. Raises NotEnoughDirectoriesError, LockTimeoutError,
    StorageError.
    """
    directory.check_place()  # else the directory fails, not its copy
    decisions.detach(copy.node, problem)
    try:
        decisions.level(deadline())
        if directory.renew_decision_log() or _cut(copy, deadline()):
            logger.warning(
                "the decision log in %s is copied again: %s", copy.partition.path, problem
            )
    finally:
        decisions.attach(copy)  # which opens the new partition
    decisions.level(deadline())


def _cut(copy: Copy, deadline_ns: int) -> bool:
    """Begin a loaded copy again in its place (COPYRENEWAL-3); False if it is in order."""
    found = copy.renewed()
    if not _is_unusable(found, deadline_ns) and damage_of(found) is None:
        return False
    partition = found.partition

    def note_incomplete() -> None:
        promise.write(partition.path, Promise(_promised(found), incomplete=True), found.mode)
        system.point("renew-noted")

    partition.replica.restart(0, deadline_ns, note_incomplete)
    return True


def _is_unusable(copy: Copy, deadline_ns: int) -> bool:
    """Whether damage prevents the repair of an interrupted append. Raises other errors."""
    try:
        with copy.partition.replica.exclusive(deadline_ns):
            return False
    except EmbedlogError as problem:
        if not _is_damage(problem):
            raise
        return True


def _promised(copy: Copy) -> int:
    """The highest promised term; that of the page if the promise cannot be read (COPY-1)."""
    term = copy.partition.replica.published()[0].epoch
    try:
        return max(promise.read(copy.partition.path).term, term)
    except ForeignDirectoryError:
        return max(0, term)


def _load_problem(copy: Copy) -> EmbedlogError | None:
    try:
        copy.renewed().partition.replica.published()
    except EmbedlogError as problem:
        return problem
    return None


def _is_damage(problem: EmbedlogError) -> bool:
    return isinstance(problem, DAMAGE) or (
        isinstance(problem, StorageError) and problem.errno == errno.ENOENT
    )
