"""This module finds copies of the decision log that are damaged or missing, and begins them again.

A majority without the copy is brought to one log first. Without such a majority the copy is left as
it is: it may be the only one with the newest record.

The new copy is incomplete before it has its name, or before its log is cut. It counts for no
majority until it is level. The promise of a cut copy does not fall.
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
from embedlog.replicas.members.open_directories import LOAD_ERRORS

if TYPE_CHECKING:
    from embedlog.replicas.decisions.copies import Copy
    from embedlog.replicas.decisions.decision_log import DecisionLog

logger = logging.getLogger("embedlog")


CHECKS: Final = 10  # of one copy, as long as it is cut meanwhile


class CopyDirectory(Protocol):
    """A directory with a copy of the decision log."""

    def check_place(self) -> None: ...
    def renew_decision_log(self) -> bool: ...


class CopyDamage(NamedTuple):
    """CopyDamage in a copy: its records from an offset on cannot be read."""

    first: int
    end: int
    problem: EmbedlogError


def find_damaged_copies(
    decisions: DecisionLog, copies: Mapping[int, Copy]
) -> dict[int, EmbedlogError]:
    """The copies that the last decision, or a look at their pages, found damaged or missing. No
    file is read otherwise.
    """
    damage: dict[int, EmbedlogError] = {}
    for node, copy in copies.items():
        problem = decisions.failures().get(node) or _find_load_problem(copy)
        if problem is not None and _is_damage(problem):
            damage[node] = problem
    return damage


def find_damage(copy: Copy) -> CopyDamage | None:
    """The damage in the records of a copy, which are all read. Raises other errors of the
    directory.

    No lock is taken: a copy that is cut meanwhile is checked again.
    """
    try:
        log = copy.reopen().partition.replica
        log.published()  # a partition that is not loaded yet is loaded
    except EmbedlogError as problem:
        if not _is_damage(problem):
            raise
        return CopyDamage(0, 0, problem)
    for _ in range(CHECKS):
        now, _ = log.published()
        offset = now.log_start
        try:
            promise.read(copy.partition.path)
            while True:
                missing_path = log.missing_segment(offset)
                if missing_path is not None:
                    raise CorruptRecordError("the segment is missing", path=missing_path)
                if offset >= now.log_end:
                    return None
                offset = log.read(offset, CHUNK_BYTES, now.log_end).next_offset
        except EmbedlogError as problem:
            if log.published()[0].generation == now.generation:
                if not _is_damage(problem):
                    raise
                return CopyDamage(offset, now.log_end, problem)
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
        if directory.renew_decision_log() or _cut_copy(copy, deadline()):
            logger.warning(
                "the decision log in %s is copied again: %s", copy.partition.path, problem
            )
    finally:
        decisions.attach(copy)  # which opens the new partition
    decisions.level(deadline())


def _cut_copy(copy: Copy, deadline_ns: int) -> bool:
    """Begin a loaded copy again in its place; False if it is in order.

    Other processes that have its page follow the cut. A copy that is not loaded is set aside
    instead.
    """
    open_copy = copy.reopen()
    if not _is_unusable(open_copy, deadline_ns) and find_damage(open_copy) is None:
        return False
    partition = open_copy.partition

    def write_incomplete() -> None:
        incomplete = Promise(_read_promised_term(open_copy), incomplete=True)
        promise.write(partition.path, incomplete, open_copy.mode)
        system.point("renew-noted")

    partition.replica.restart(0, deadline_ns, write_incomplete)
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


def _read_promised_term(copy: Copy) -> int:
    """The highest promised term; that of the page, which is its epoch, if the promise cannot be
    read.
    """
    term = copy.partition.replica.published()[0].epoch
    try:
        return max(promise.read(copy.partition.path).term, term)
    except ForeignDirectoryError:
        return max(0, term)


def _find_load_problem(copy: Copy) -> EmbedlogError | None:
    try:
        copy.reopen().partition.replica.published()
    except EmbedlogError as problem:
        return problem
    return None


def _is_damage(problem: EmbedlogError) -> bool:
    return isinstance(problem, LOAD_ERRORS) or (
        isinstance(problem, StorageError) and problem.errno == errno.ENOENT
    )
