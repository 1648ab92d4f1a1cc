"""This module checks the copies of the decision log, and makes damaged ones again.

DECISIONCOPIES-1  every record of a copy is read with all checks. The copies are not compared: a
    decision brings them to one log
DECISIONCOPIES-2  a copy in a directory that fails is not checked: the directory is described with
    its problem
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedlog.descriptions.replicas import RepairedReplica, ReplicaDifference
from embedlog.errors import NotEnoughDirectoriesError, StorageError
from embedlog.replicas.decisions.copy_renewal import CopyDamage, find_damage
from embedlog.replicas.rules.records import LOG

if TYPE_CHECKING:
    from embedlog.replicas.members.member_directories import Opened
    from embedlog.replicas.members.set_members import SetMembers


class DecisionCopies:
    """The copies of the decision log of an open set. Threads: any."""

    def __init__(self, members: SetMembers) -> None:
        self._members = members

    def differences(self) -> list[ReplicaDifference]:
        """The damage of each copy in a usable directory."""
        found = []
        for opened in self._members.opened():
            damage = self._damage(opened)
            if damage is not None:
                path = damage.problem.path or opened.copy.partition.path
                text = damage.problem.message
                found.append(
                    ReplicaDifference(
                        LOG, 0, opened.node, "damaged", str(path), damage.first, damage.end, text
                    )
                )
        return found

    def repair(self, difference: ReplicaDifference) -> RepairedReplica | None:
        """Copy a damaged copy again; None if it is in order meanwhile. Raises
        NotEnoughDirectoriesError, LockTimeoutError, StorageError.
        """
        opened = next(
            (each for each in self._members.opened() if each.node == difference.node), None
        )
        damage = None if opened is None else self._damage(opened)
        if damage is None:
            return None
        sources = [node for node in self._members.decisions.nodes if node != difference.node]
        if not sources:
            raise NotEnoughDirectoriesError(
                "no other copy of the decision log is open", path=difference.path
            )
        self._members.renew_copy(difference.node, damage.problem)
        return RepairedReplica(LOG, 0, difference.node, sources[0], difference.path, 0, damage.end)

    def _damage(self, opened: Opened) -> CopyDamage | None:
        """The damage of a copy. A directory that fails, or is missing, has none
        (DECISIONCOPIES-2).
        """
        directories = self._members.directories
        if directories.get(opened.node) is None:
            return None
        try:
            found = find_damage(opened.copy)
            problem = None if found is None else directories.missing(opened.node)
        except StorageError as failure:
            found = None
            problem = failure
        if problem is not None:
            directories.fail(opened.node, problem)
        return found if problem is None else None
