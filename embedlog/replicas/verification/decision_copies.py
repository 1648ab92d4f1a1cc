"""This module checks the copies of the decision log, and makes damaged ones again.

- Every record of a copy is read with all checks. The copies are not compared with each other: a
  decision brings them to one log. A `ReplicaDifference` of a copy is always damage.
- A copy in a directory that fails is not checked: the directory is described with its problem.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedlog.descriptions.replicas import RepairedReplica, ReplicaDifference
from embedlog.errors import NotEnoughDirectoriesError, StorageError
from embedlog.replicas.decisions.copy_renewal import CopyDamage, find_damage
from embedlog.replicas.rules.records import LOG

if TYPE_CHECKING:
    from embedlog.replicas.members.member_directories import OpenMember
    from embedlog.replicas.members.set_members import SetMembers


class DecisionCopies:
    """The copies of the decision log of an open set. Threads: any."""

    def __init__(self, members: SetMembers) -> None:
        self._members = members

    def find_differences(self) -> list[ReplicaDifference]:
        """The damage of each copy in a usable directory."""
        differences = []
        for opened in self._members.open_members():
            damage = self._find_damage(opened)
            if damage is not None:
                path = damage.problem.path or opened.copy.partition.path
                difference = ReplicaDifference(
                    topic=LOG,
                    partition=0,
                    node=opened.node,
                    kind="damaged",
                    path=str(path),
                    first_offset=damage.first,
                    end_offset=damage.end,
                    message=damage.problem.message,
                )
                differences.append(difference)
        return differences

    def repair(self, difference: ReplicaDifference) -> RepairedReplica | None:
        """Copy a damaged copy again; None if it is in order meanwhile. Raises
        NotEnoughDirectoriesError, LockTimeoutError, StorageError.
        """
        damage = None
        for opened in self._members.open_members():
            if opened.node == difference.node:
                damage = self._find_damage(opened)
        if damage is None:
            return None
        others = [node for node in self._members.decisions.nodes if node != difference.node]
        if not others:
            raise NotEnoughDirectoriesError(
                "no other copy of the decision log is open", path=difference.path
            )
        if not self._members.renew_copy(difference.node, damage.problem):
            raise StorageError("the directory left the set meanwhile", path=difference.path)
        # all others that answered had one log then, of which the first one was copied
        failures = self._members.decisions.failures()
        source = min([node for node in others if node not in failures] or others)
        return RepairedReplica(
            topic=LOG,
            partition=0,
            node=difference.node,
            source=source,
            path=difference.path,
            first_offset=0,
            end_offset=damage.end,
        )

    def _find_damage(self, opened: OpenMember) -> CopyDamage | None:
        """The damage of a copy. A directory that is not usable has none; one whose storage fails here, or
        is missing, is failed by this call and has none.
        """
        directories = self._members.directories
        if directories.get(opened.node) is None:
            return None
        try:
            damage = find_damage(opened.copy)
            loss = None if damage is None else directories.loss_of(opened.node)
        except StorageError as problem:
            directories.fail(opened.node, problem)
            return None
        if loss is not None:
            directories.fail(opened.node, loss)
            return None
        return damage
