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
from embedlog.replicas.members.membership import FoundDirectory
from embedlog.replicas.members.open_directories import ReopenedError, is_of_storage
from embedlog.replicas.members.registration import EnteredDirectory, Opening
from embedlog.replicas.members.set_directory import SetDirectory
from embedlog.storage import file_names, files
from embedlog.storage.identity import id_bytes, read_clean_mark

if TYPE_CHECKING:
    from embedlog.engine.log_directory import LogDirectory
    from embedlog.replicas.members.membership import Member, Membership


class MakeDirectory(Protocol):
    """Makes the object of a directory of the set. `reading`: nothing in it is changed or locked,
    also by a process that writes.
    """

    def __call__(self, path: Path, *, reading: bool = False) -> LogDirectory: ...


class OpenMember(NamedTuple):
    """A member directory that this process has opened, with its copy of the decision log."""

    entered: EnteredDirectory
    directory: SetDirectory
    copy: Copy

    @property
    def node(self) -> int:
        return self.directory.node

    @property
    def path(self) -> Path:
        return self.entered.path

    def set_marked_epoch(self, broker_epoch: int) -> None:
        """Set the broker epoch that the clean mark of the directory gets; -1: none."""
        self.directory.log_directory.directory.broker_epoch = broker_epoch


def is_away(problem: EmbedlogError) -> bool:
    """Whether a directory with this error at its opening is away."""
    return is_of_storage(problem) and not isinstance(problem, DirectoryInUseError)


def check_present(directory: FoundDirectory, expected: Member | None = None) -> Membership:
    """The members that a found directory has recorded. Raises the reason for which it is away."""
    if directory.problem is not None:
        raise directory.problem
    if directory.membership is None:
        if directory.meta is None:
            raise StorageError(
                "there is no directory of the set: its disk may be absent",
                errno=errno.ENOENT,
                path=directory.path,
            )
        raise StorageError(
            "the directory does not belong to the set", errno=errno.ENOENT, path=directory.path
        )
    own = directory.membership.own
    if expected is not None and (own.node, own.directory_id) != (
        expected.node,
        expected.directory_id,
    ):
        raise ReplicaSetError(
            "another directory is in the place of a member",
            path=directory.path,
            expected=f"node {expected.node}, directory id {expected.directory_id}",
            found=f"node {own.node}, directory id {own.directory_id}",
            paths=[str(directory.path)],
        )
    return directory.membership


def enter(make: MakeDirectory, path: Path, *, again: bool = False) -> OpenMember:
    """Open a member directory with its copy of the decision log. Raises the errors of
    `LogDirectory.enter`.

    `again`: this process has opened the directory before, and removed its clean mark. A mark then
    belongs to an old copy.
    """
    log_directory = make(path)
    entered: list[EnteredDirectory] = []
    _set_steps(log_directory, entered, again=again)
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
        is_registered = own.registration_id == own.registered_id
        log_directory.directory.broker_epoch = own.broker_epoch if is_registered else -1
        directory = SetDirectory(own.node, log_directory)
        is_new_member = own.registered_id is None and not (own.alone or own.replaces)
        copy = Copy(
            own.node,
            directory.open_decision_log(is_new_member=is_new_member),
            log_directory.config.file_mode,
            wake_followers=log_directory.touch,
            find_partition=directory.reopen_decision_log,
            directory=UUID(bytes=id_bytes(own.own.directory_id)),
            openings=own.openings,
        )
        undo.pop_all()
    return OpenMember(entered[0], directory, copy)


def with_rack(opened: OpenMember, rack: str | None) -> OpenMember:
    """The directory with another rack, which its registration stores."""
    membership = opened.entered.membership
    every = tuple(
        member._replace(rack=rack) if member.node == membership.node else member
        for member in membership.members
    )
    entered = opened.entered._replace(membership=membership._replace(members=every))
    return opened._replace(entered=entered)


def _set_steps(directory: LogDirectory, entered: list[EnteredDirectory], *, again: bool) -> None:
    """Set the steps of the opening at which the registration id is kept or drawn."""
    mark_epoch = -1  # the broker epoch of the clean mark, before the opening removes it

    def describe_opening(first: bool) -> Opening:
        state = directory.directory
        return Opening(
            directory.path,
            first,
            clean=state.clean and not again,
            mark_epoch=mark_epoch,
            broker_wrote=state.broker_wrote,
            created_ns=state.created_ns(),
        )

    def begin() -> None:
        nonlocal mark_epoch
        epoch = read_clean_mark(directory.path)
        mark_epoch = -1 if epoch is None else epoch
        registration.stand_for(describe_opening(first=True), directory.config.file_mode)

    def prepare(first: bool) -> None:
        if directory.read_only:
            own = members.read(directory.path)
            if own is not None:
                entered.append(EnteredDirectory(directory.path, own, own.registration_id))
            return
        entry = registration.enter(describe_opening(first), directory.config.file_mode)
        if entry is None:
            return
        if first:
            entry = entry._replace(note_outcome=directory.directory.know_registration)
        entered.append(entry)

    directory.directory.in_set = True
    directory.directory.beginning = begin
    directory.preparing = prepare


class MemberPlaces:
    """The places of the members of an open set. Threads: as `SetMembers`."""

    def __init__(self, given: Iterable[Path], run_at: Call) -> None:
        """`given`: the paths that the caller of the opening names. `run_at` makes the calls about a
        directory.
        """
        self._given = tuple(given)
        self._run_at = run_at
        self._first: set[int] | None = None  # the members at the opening of the set; None during it

    def is_given(self, path: Path) -> bool:
        return path in self._given

    def end_opening(self, nodes: Iterable[int]) -> None:
        """The opening knows these members; others are added later."""
        self._first = set(nodes)

    def find(
        self,
        member: Member,
        opened: Sequence[OpenMember],
        earlier: Path | None = None,
        registered_id: UUID | None = None,
    ) -> Path:
        """The directory of a member, beside those that are open.

        `earlier` is the path at which this process had it open, `registered_id` its registration id
        in the decisions. Raises the reason for which it is away.
        """
        others = [
            (open_member.entered.membership, open_member.path)
            for open_member in opened
            if open_member.node != member.node
        ]
        directory = self._find_successor(member, others, earlier, registered_id)
        if directory is None:
            if earlier is not None:
                directory = members.inspect_at(earlier, self._run_at)
            else:
                directory = self._find_given(member, others)
        if directory is None:
            directory = self._inspect_recorded(member, others)
        check_present(directory, member)
        members.check_one_set(
            [*(FoundDirectory(path, membership=own) for own, path in others), directory]
        )
        return directory.path

    def _inspect_recorded(
        self, member: Member, others: Sequence[tuple[Membership, Path]]
    ) -> FoundDirectory:
        """The directory at the recorded path of a member. Raises ReplicaSetError if it belongs to
        others than those that are open.
        """
        directory = members.inspect_at(Path(member.path), self._run_at)
        own = check_present(directory, member)
        is_of_the_opening = self._first is None or member.node in self._first
        if is_of_the_opening and not members.is_beside(own, others):
            raise ReplicaSetError(
                "the directory is recorded beside others than those that are open: give its "
                "path if it belongs to them",
                path=directory.path,
                expected=[str(path) for _, path in others],
                found=own.others_paths,
                paths=[member.path],
            )
        return directory

    def _find_successor(
        self,
        member: Member,
        others: Sequence[tuple[Membership, Path]],
        earlier: Path | None,
        registered_id: UUID | None,
    ) -> FoundDirectory | None:
        """The registered directory at the recorded path, if this process had another one open."""
        recorded = Path(member.path)
        if registered_id is None or recorded == earlier:
            return None
        if earlier is not None and self._run_at(
            recorded, partial(members.is_same_directory, recorded, earlier)
        ):
            return None
        directory = members.inspect_at(recorded, self._run_at)
        own = directory.membership
        if (
            own is None
            or own.registration_id != registered_id
            or own.own.directory_id != member.directory_id
        ):
            return None
        if not members.is_beside(own, others):
            return None
        return directory

    def _find_given(
        self, member: Member, others: Sequence[tuple[Membership, Path]]
    ) -> FoundDirectory | None:
        """The given directory that is this member."""
        used = {path for _, path in others}
        for path in self._given:
            if path in used:
                continue
            directory = members.inspect_at(path, self._run_at)
            if directory.membership is None:
                continue
            own = directory.membership.own
            if (own.node, own.directory_id) == (member.node, member.directory_id):
                return directory
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
        if earlier:
            leave_earlier(directory)
        else:
            _release(directory)


def _release(directory: LogDirectory) -> None:
    """Close a directory and give its locks back, also after an interrupt."""
    try:
        with contextlib.suppress(EmbedlogError):
            directory.close()
    finally:
        with contextlib.suppress(EmbedlogError):
            directory.release()


def is_unchanged(opened: OpenMember) -> bool:
    """Whether lock file, control page and registration id are those that this process uses. Raises
    StorageError.
    """
    directory = opened.directory.log_directory.directory
    own = check_present(members.inspect(opened.path))
    if own.registration_id != opened.entered.membership.registration_id:
        return False
    if not directory.holds_lock():
        return False
    page = directory.page
    return page is not None and _is_mapped(page, opened.path / file_names.CONTROL)


def _is_mapped(page: system.Page, path: Path) -> bool:
    """Whether a store into the page reaches the file with this name: after a new mount the numbers
    of the file may be equal.
    """
    page.touch_topics()
    with files.opened(path, files.READ) as fd:
        page_of_file = system.Page(fd, False, page.locked)
    try:
        return (
            page_of_file.incarnation() == page.incarnation()
            and page_of_file.topics() == page.topics()
        )
    finally:
        page_of_file.close()
