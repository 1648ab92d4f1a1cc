"""This module begins copies of the decision log again that cannot be loaded, or whose directory is missing.

COPYRENEWAL-1  a majority without the copy is brought to one log first. Without such a majority the copy is left as it is: it
    may be the only one with the newest record
COPYRENEWAL-2  the new copy is incomplete before it has its name: it counts for no majority until it is level (PROMISE-3)
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from embedlog import _logging
from embedlog.errors import (
    CorruptRecordError,
    EmbedlogError,
    ForeignDirectoryError,
    StorageError,
    UnknownTopicOrPartitionError,
)

if TYPE_CHECKING:
    from embedlog.replica_set.decisions.copies import Copy
    from embedlog.replica_set.decisions.decision_log import DecisionLog

logger = logging.getLogger("embedlog")

DAMAGE = (CorruptRecordError, ForeignDirectoryError, UnknownTopicOrPartitionError)


class CopyDirectory(Protocol):
    """A directory with a copy of the decision log."""

    def check_place(self) -> None: ...
    def renew_decision_log(self) -> bool: ...


def damaged_copies(decisions: DecisionLog, copies: Mapping[int, Copy]) -> dict[int, EmbedlogError]:
    """The copies that the last decision, or a look at their pages, found damaged or missing. No file is read otherwise."""
    found = {node: decisions.failures().get(node) or _load_problem(copy) for node, copy in copies.items()}
    return {node: problem for node, problem in found.items() if problem is not None and _is_damage(problem)}


def renew_copy(
    decisions: DecisionLog, directory: CopyDirectory, copy: Copy, problem: EmbedlogError, deadline: Callable[[], int]
) -> None:
    """Begin a damaged copy again. A failure is logged, and the next call tries again."""
    try:
        directory.check_place()  # else the directory fails, not its copy
        _renew(decisions, directory, copy, problem, deadline)
    except EmbedlogError as found:
        what = f"the decision log in {copy.partition.path} is damaged, and not copied again yet"
        _logging.report(logger, logging.WARNING, what, what, found)


def _renew(
    decisions: DecisionLog, directory: CopyDirectory, copy: Copy, problem: EmbedlogError, deadline: Callable[[], int]
) -> None:
    decisions.detach(copy.node, problem)
    try:
        decisions.level(deadline())
        if directory.renew_decision_log():
            logger.warning("the decision log in %s is copied again: %s", copy.partition.path, problem)
    finally:
        decisions.attach(copy)  # which opens the new partition
    decisions.level(deadline())


def _load_problem(copy: Copy) -> EmbedlogError | None:
    try:
        copy.renewed().partition.replica.published()
    except EmbedlogError as problem:
        return problem
    return None


def _is_damage(problem: EmbedlogError) -> bool:
    return isinstance(problem, DAMAGE) or (isinstance(problem, StorageError) and problem.errno == errno.ENOENT)
