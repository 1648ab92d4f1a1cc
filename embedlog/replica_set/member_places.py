"""This module finds the directory of a member that this process has not opened (`docs/protocol.md`, QUORUM-1).

MEMBERPLACE-1  a given path with the directory of the member is used before its recorded path
MEMBERPLACE-2  a directory at a recorded path is used only if its own file has another member at the place where it is open here.
    Otherwise it belongs to the set from which the open directories were copied, or the set was moved: the path must be given
MEMBERPLACE-3  a place is the same by its path, or by device and inode: links and bind mounts lead to the same directory
MEMBERPLACE-4  a member that was added after the opening is used by its recorded path: the open directories have the decision.
    All directories that this process opened may have left the set since then
MEMBERPLACE-5  in any case it must be of the set of the open directories (SETMEMBER-6)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from embedlog.errors import ReplicaSetError
from embedlog.replica_set import member_directories
from embedlog.replica_set import membership as members
from embedlog.replica_set.member_directories import Opened
from embedlog.replica_set.membership import Found, Member


class MemberPlaces:
    """The places of the members of an open set. Threads: as `SetMembers`."""

    def __init__(self, given: Iterable[Path]) -> None:
        """`given`: the paths that the caller of the opening names."""
        self._given = tuple(given)
        self._first: set[int] | None = None  # the members at the opening; None during it

    def is_given(self, path: Path) -> bool:
        return path in self._given

    def end_opening(self, nodes: Iterable[int]) -> None:
        """The opening knows these members; others are added later (MEMBERPLACE-4)."""
        self._first = set(nodes)

    def find(self, member: Member, opened: Sequence[Opened], earlier: Path | None = None) -> Path:
        """The directory of a member, beside those that are open; `earlier` is the path at which this process had it open.

        Raises the reason for which it is away.
        """
        others = [each for each in opened if each.node != member.node]
        found = members.found_in(earlier) if earlier is not None else self._given_as(member, others)
        if found is None:
            found = members.found_in(Path(member.path))
            own = member_directories.present(found, member)
            known = [(each.entered.membership, each.path) for each in others]
            if (self._first is None or member.node in self._first) and not members.is_beside(own, known):
                raise ReplicaSetError(
                    "the directory is recorded beside others than those that are open: give its path if it belongs to them",
                    path=found.path, expected=[str(path) for _, path in known], found=own.others_paths, paths=[member.path],
                )  # fmt: skip
        member_directories.present(found, member)
        members.check_one_set([*(Found(each.path, membership=each.entered.membership) for each in others), found])
        return found.path

    def _given_as(self, member: Member, opened: Sequence[Opened]) -> Found | None:
        """The given directory that is this member (MEMBERPLACE-1)."""
        used = {each.path for each in opened}
        for path in self._given:
            if path not in used:
                found = members.found_in(path)
                own = found.membership.own if found.membership is not None else None
                if own is not None and (own.node, own.directory_id) == (member.node, member.directory_id):
                    return found
        return None
