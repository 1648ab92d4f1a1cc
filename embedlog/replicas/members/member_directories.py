"""This module finds and opens the member directories of a set in this process, and classifies the
errors of their opening.

- A directory whose opening fails by its storage is away, and changes nothing for the others. Errors
  of this process and of the structure of the set are raised.
- A directory is opened only if its own files name it as the expected member. An empty directory in
  its place, or another one, is away.
- A failed opening leaves no lock and no descriptor.
- A member whose lock file was removed or replaced fails, and nothing is made in its place: it may
  be an empty mount point.
- A given path with the directory of the member is used before its recorded path.
- A directory at a recorded path is used only if its own file has another member at the place where
  it is open. Otherwise it belongs to the set from which the open directories were copied, or the
  set was moved: the path must be given.
- A place is the same by its path, or by device and inode: links and bind mounts lead to the same
  directory.
- A member that was added after the opening is used by its recorded path: the open directories have
  the decision. All directories that this process opened may have left the set since then.
- In any case it must be of the set of the open directories.
- A member whose place was given to another directory has two: the lost one may return. The one with
  the registered id, at the recorded path, is used before a given path and those of earlier
  openings.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol
from uuid import UUID

from embedlog._native import system
from embedlog.errors import DirectoryInUseError, EmbedlogError, ReplicaSetError, StorageError
from embedlog.replicas.decisions.copies import Copy
from embedlog.replicas.members import membership as members
from embedlog.replicas.members import registration
from embedlog.replicas.members.directory_workers import Call
from embedlog.replicas.members.membership import Found
from embedlog.replicas.members.open_directories import ReopenedError, is_of_storage
from embedlog.replicas.members.registration import Entered, Opening
from embedlog.replicas.members.set_directory import SetDirectory
from embedlog.storage import file_names, files
from embedlog.storage.identity import id_bytes, read_clean_mark

if TYPE_CHECKING:
    from embedlog.log_directory import LogDirectory
    from embedlog.replicas.members.membership import Member, Membership


class MakeDirectory(Protocol):
    """Makes the object of a directory of the set. `reading`: nothing in it is changed or locked,
    also by a process that writes.
    """

    def __call__(self, path: Path, *, reading: bool = False) -> LogDirectory: ...


class Opened(NamedTuple):
    """A member directory that this process has opened, with its copy of the decision log."""

    entered: Entered
    directory: SetDirectory
    copy: Copy

    @property
    def node(self) -> int:
        return self.directory.node

    @property
    def path(self) -> Path:
        return self.entered.path


def is_away(problem: EmbedlogError) -> bool:
    """Whether a directory with this error at its opening is away."""
    return is_of_storage(problem) and not isinstance(problem, DirectoryInUseError)


def present(found: Found, expected: Member | None = None) -> Membership:
    """The members that a found directory has recorded. Raises the reason for which it is away."""
    if found.problem is not None:
        raise found.problem
    if found.membership is None:
        if found.meta is None:
            raise StorageError(
                "there is no directory of the set: its disk may be absent",
                errno=errno.ENOENT,
                path=found.path,
            )
        raise StorageError(
            "the directory does not belong to the set", errno=errno.ENOENT, path=found.path
        )
    own = found.membership.own
    if expected is not None and (own.node, own.directory_id) != (
        expected.node,
        expected.directory_id,
    ):
        raise ReplicaSetError(
            "another directory is in the place of a member",
            path=found.path,
            expected=f"node {expected.node}, directory id {expected.directory_id}",
            found=f"node {own.node}, directory id {own.directory_id}",
            paths=[str(found.path)],
        )
    return found.membership


def enter(make: MakeDirectory, path: Path, *, again: bool = False) -> Opened:
    """Open a member directory with its copy of the decision log. Raises the errors of
    `LogDirectory.enter`.

    `again`: this process has opened the directory before, and removed its clean mark. A mark then
    belongs to an old copy.
    """
    log_directory = make(path)
    entered: list[Entered] = []
    _note(log_directory, entered, again=again)
    with contextlib.ExitStack() as undo:
        undo.callback(log_directory.release)
        log_directory.enter()
        undo.callback(log_directory.close)
        if not entered:
            raise StorageError("the file of the members disappeared", errno=errno.ENOENT, path=path)
        own = entered[0].membership
        # a lost directory fails
        log_directory.context.reacquire = log_directory.directory.check_lock
        log_directory.context.node_slot = 0  # it belongs to a set; the registration names the slot
        registered = own.registration_id == own.registered_id
        log_directory.directory.broker_epoch = own.broker_epoch if registered else -1
        directory = SetDirectory(own.node, log_directory)
        is_new_member = own.registered_id is None and not (own.alone or own.replaces)
        found = directory.decision_log(is_new_member=is_new_member)
        mode = log_directory.config.file_mode
        copy = Copy(
            own.node,
            found,
            mode,
            log_directory.touch,
            directory.present_decision_log,
            UUID(bytes=id_bytes(own.own.directory_id)),
            own.openings,
        )
        undo.pop_all()
    return Opened(entered[0], directory, copy)


def with_rack(opened: Opened, rack: str | None) -> Opened:
    """The directory with another rack, which its registration stores."""
    own = opened.entered.membership
    every = tuple(
        member._replace(rack=rack) if member.node == own.node else member for member in own.members
    )
    return opened._replace(entered=opened.entered._replace(membership=own._replace(members=every)))


def _note(directory: LogDirectory, entered: list[Entered], *, again: bool) -> None:
    """Set the steps of the opening at which the registration id is kept or drawn."""
    marks: list[int] = []

    def opening(first: bool) -> Opening:
        opened = directory.directory
        return Opening(
            directory.path,
            first,
            opened.clean and not again,
            marks[-1] if marks else -1,
            opened.foreign,
            opened.created_ns(),
        )

    def beginning() -> None:
        marks.append(epoch if (epoch := read_clean_mark(directory.path)) is not None else -1)
        registration.stand_for(opening(first=True), directory.config.file_mode)

    def preparing(first: bool) -> None:
        if directory.read_only:
            found = members.read(directory.path)
            result = (
                None if found is None else Entered(directory.path, found, found.registration_id)
            )
        else:
            result = registration.enter(opening(first), directory.config.file_mode)
            if result is not None and first:
                result = result._replace(outcome=directory.directory.know_registration)
        if result is not None:
            entered.append(result)

    directory.directory.in_set = True
    directory.directory.beginning = beginning
    directory.preparing = preparing


class MemberPlaces:
    """The places of the members of an open set. Threads: as `SetMembers`."""

    def __init__(self, given: Iterable[Path], at: Call) -> None:
        """`given`: the paths that the caller of the opening names. `at` makes the calls about a
        directory.
        """
        self._given = tuple(given)
        self._at = at
        self._first: set[int] | None = None  # the members at the opening; None during it

    def is_given(self, path: Path) -> bool:
        return path in self._given

    def end_opening(self, nodes: Iterable[int]) -> None:
        """The opening knows these members; others are added later."""
        self._first = set(nodes)

    def find(
        self,
        member: Member,
        opened: Sequence[Opened],
        earlier: Path | None = None,
        registered_id: UUID | None = None,
    ) -> Path:
        """The directory of a member, beside those that are open.

        `earlier` is the path at which this process had it open, `registered_id` its registration id
        in the decisions. Raises the reason for which it is away.
        """
        others = [each for each in opened if each.node != member.node]
        known = [(each.entered.membership, each.path) for each in others]
        found = self._successor(member, known, earlier, registered_id)
        if found is None:
            found = (
                members.found_at(earlier, self._at)
                if earlier is not None
                else self._given_as(member, others)
            )
        if found is None:
            found = members.found_at(Path(member.path), self._at)
            own = present(found, member)
            if (self._first is None or member.node in self._first) and not members.is_beside(
                own, known
            ):
                raise ReplicaSetError(
                    "the directory is recorded beside others than those that are open: give its "
                    "path if it belongs to them",
                    path=found.path,
                    expected=[str(path) for _, path in known],
                    found=own.others_paths,
                    paths=[member.path],
                )
        present(found, member)
        members.check_one_set(
            [*(Found(each.path, membership=each.entered.membership) for each in others), found]
        )
        return found.path

    def _successor(
        self,
        member: Member,
        opened: Sequence[tuple[Membership, Path]],
        earlier: Path | None,
        registered_id: UUID | None,
    ) -> Found | None:
        """The registered directory at the recorded path, if this process had another one open."""
        recorded = Path(member.path)
        if registered_id is None or recorded == earlier:
            return None
        if earlier is not None and self._at(recorded, partial(members.is_same, recorded, earlier)):
            return None
        found = members.found_at(recorded, self._at)
        own = found.membership
        if (
            own is None
            or own.registration_id != registered_id
            or own.own.directory_id != member.directory_id
        ):
            return None
        return found if members.is_beside(own, opened) else None

    def _given_as(self, member: Member, opened: Sequence[Opened]) -> Found | None:
        """The given directory that is this member."""
        used = {each.path for each in opened}
        for path in self._given:
            if path not in used:
                found = members.found_at(path, self._at)
                own = found.membership.own if found.membership is not None else None
                if own is not None and (own.node, own.directory_id) == (
                    member.node,
                    member.directory_id,
                ):
                    return found
        return None


def leave_earlier(directory: LogDirectory) -> None:
    """Give back an earlier opening of a directory that is opened again; its objects raise
    ReopenedError from now on.
    """

    def check_open() -> None:
        raise ReopenedError("the directory was opened again", path=directory.path)

    directory.check_open = directory.context.check_open = check_open
    _release(directory)


def leave_in_order(directory: LogDirectory, *, earlier: bool = False) -> None:
    """Leave a directory in order, if it does not fail, and give it back in any case. `earlier`: its
    objects are used further.
    """
    try:
        with contextlib.suppress(EmbedlogError):
            directory.leave()
    finally:
        (leave_earlier if earlier else _release)(directory)


def _release(directory: LogDirectory) -> None:
    """Close a directory and give its locks back, also after an interrupt."""
    try:
        with contextlib.suppress(EmbedlogError):
            directory.close()
    finally:
        with contextlib.suppress(EmbedlogError):
            directory.release()


def is_unchanged(opened: Opened) -> bool:
    """Whether lock file, control page and registration id are those that this process uses. Raises
    StorageError.
    """
    directory = opened.directory.log_directory.directory
    own = present(members.found_in(opened.path))
    if (
        own.registration_id != opened.entered.membership.registration_id
        or not directory.holds_lock()
    ):
        return False
    page = directory.page
    return page is not None and _is_mapped(page, opened.path / file_names.CONTROL)


def _is_mapped(page: system.Page, path: Path) -> bool:
    """Whether a store into the page reaches the file with this name: after a new mount the numbers
    of the file may be equal.
    """
    page.touch_topics()
    with files.opened(path, files.READ) as fd:
        now = system.Page(fd, False, page.locked)
    try:
        return now.incarnation() == page.incarnation() and now.topics() == page.topics()
    finally:
        now.close()
