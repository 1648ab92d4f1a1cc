"""The first set-up of a set of directories, and new registration ids (`docs/protocol.md`, QUORUM-1,
REPLICA-12, REPLICA-19).

- Every step is under the open locks of all given directories, taken in the order of their paths.
- A directory with partitions, or in use by a process, is not made a member.
- The plan comes before the identity in every directory. A repeat takes the numbers and ids of any
  plan that it finds.
- A directory that is the only member of its set is always opened as a set. A process that writes
  without the decisions and one that uses them are never in a directory at once.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from embedlog._native import system, waits
from embedlog._native.scope import Guard, scope, stack
from embedlog.errors import DirectoryInUseError, ReplicaSetError, StorageError
from embedlog.replicas.members import membership as members
from embedlog.replicas.members.directory_workers import Call, call_here
from embedlog.replicas.members.membership import CheckedSet, Found, Member, Membership
from embedlog.storage import file_names, files, location, locks
from embedlog.storage.identity import MetaProperties, new_id, write_meta

BROKER_S: Final = 2  # an opening or closing process holds the lock exclusively for a shorter time
PAUSE_S: Final = 0.005
EXCLUSIVE: Final = 2  # as `system.lock_probe` returns it


def prepare_set(
    paths: Sequence[Path],
    *,
    deadline_ns: int,
    racks: Sequence[str | None] | None = None,
    create: bool = True,
    mode: int = 0o666,
    at: Call = call_here,
) -> CheckedSet:
    """Check the given directories, and make those of a new set its members, before they are opened.

    `at` makes the calls about one directory of a set that exists. Raises ReplicaSetError, and the
    errors of `check_set`; LockTimeoutError if a directory is being opened or closed.
    """
    _check_paths(paths, racks)
    if (checked := members.check_set(paths, at=at)).is_registered:
        _check_other_racks(checked, racks)
        _check_no_broker(paths, at)
        return checked
    for path in paths:
        location.enter(path, read_only=False, create=create, mode=mode)
    with open_locks(paths, deadline_ns, mode):
        checked = members.check_set(paths)  # another process may have been faster
        if checked.is_registered or all(_is_prepared(each) for each in checked.found):
            return checked
        _check_complete(checked)
        plan = _plan(checked, racks or [None] * len(paths))
        for each, own in plan:
            if each.membership is None:
                members.write(each.path, own, mode)
        for each, own in plan:
            if each.meta is None or each.meta.directory_id is None:
                others = each.meta.others if each.meta is not None else {}
                write_meta(
                    each.path,
                    MetaProperties(1, own.cluster_id, own.node, own.own.directory_id, others),
                    mode,
                )
        return members.check_set(paths)


def check_to_read(
    paths: Sequence[Path], racks: Sequence[str | None] | None = None, at: Call = call_here
) -> CheckedSet:
    """Check directories that are opened to be read. Raises the errors of `check_set`."""
    _check_paths(paths, racks)
    return members.check_set(paths, alone=True, at=at)


def renew(directory: Path, found: Membership, mode: int, *, alone: bool = False) -> Membership:
    """Draw a new registration id. REQUIRES the open lock of the directory, and no other process in
    it.
    """
    return members.write(
        directory, found._replace(registration_id=uuid.uuid4(), alone=found.alone or alone), mode
    )


def begin_opening(
    directory: Path,
    found: Membership,
    mode: int,
    *,
    fresh: bool,
    created_ns: int | None = None,
    alone: bool = False,
) -> Membership:
    """Draw the id of an opening, and a new registration id unless the directory is `fresh`.

    `created_ns`: the birth time of the directory. REQUIRES the open lock of the directory, and no
    other process in it.
    """
    new = found.with_opening(uuid.uuid4(), created_ns)
    return (
        members.write(directory, new, mode) if fresh else renew(directory, new, mode, alone=alone)
    )


def enter_alone(directory: Path, *, alone: bool, deadline_ns: int, mode: int = 0o666) -> bool:
    """Check, before one directory is opened for writing, that it belongs to no larger set
    (REPLICA-19).

    With `alone` it may: it gets a new registration id, so that the set does not take it for
    complete. Returns False for the only member of a set, which is opened as a set. Raises
    ReplicaSetError, and DirectoryInUseError if processes use the directory as a part of its set.
    """
    if not files.exists(directory / file_names.REPLICAS):
        return True
    with open_locks([directory], deadline_ns, mode):
        found = members.read(directory)
        if found is None:
            return True
        if len(found.members) == 1:
            return False
        if not alone:
            members.check_alone(directory, found)
        elif not is_used(directory):
            renew(directory, found, mode, alone=True)
        elif not found.alone:
            raise DirectoryInUseError(
                "processes use the directory as a part of its set", path=directory
            )
    return True


@scope
def open_locks(paths: Iterable[Path], deadline_ns: int, mode: int) -> Iterator[None]:
    """Hold the open locks of these directories. Raises LockTimeoutError."""
    with stack() as held:
        for name in sorted(os.fspath(path / file_names.OPEN_LOCK) for path in paths):
            lock = locks.LockFile(name, mode)
            held.enter(Guard(lock.close))
            held.enter(lock.hold(deadline_ns))
        yield


def _check_paths(paths: Sequence[Path], racks: Sequence[str | None] | None) -> None:
    if not 0 < len(paths) <= waits.DIRECTORIES_MAX:
        raise ReplicaSetError(
            "the number of directories of a set",
            expected=f"1 to {waits.DIRECTORIES_MAX}",
            found=len(paths),
        )
    if racks is not None and len(racks) != len(paths):
        raise ReplicaSetError(
            "racks", expected=f"one for each of {len(paths)} directories", found=len(racks)
        )
    if racks is not None and not all(
        rack is None or (type(rack) is str and rack) for rack in racks
    ):
        raise TypeError(f"racks are texts or None, not {list(racks)!r:.100}")
    if racks is not None and 0 < sum(rack is None for rack in racks) < len(racks):
        raise ReplicaSetError(
            "racks", expected="one for every directory, or none", found=list(racks)
        )
    for path, rack in zip(paths, racks or [None] * len(paths), strict=True):
        check_texts(path, rack)


def check_texts(path: Path, rack: str | None) -> None:
    """Check that the files of a set can have the path and the rack of a member. Raises
    ReplicaSetError.
    """
    for what, text in (("path", os.fspath(path)), ("rack", rack or "")):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ReplicaSetError(
                f"the {what} of a member must be valid UTF-8", path=path, found=ascii(text)[:100]
            ) from None


def _check_other_racks(checked: CheckedSet, racks: Sequence[str | None] | None) -> None:
    """Raises ReplicaSetError if members that are not given would be the only ones with a rack, or
    without one.
    """
    every = checked.membership
    given = {each.membership.node for each in checked.found if each.membership is not None}
    others = (
        [each for each in every.members if each.node not in given and each.replicas]
        if every is not None
        else []
    )
    # another member may be there
    paths = {os.fspath(each.path) for each in checked.found if each.membership is None}
    for each in others if racks else ():
        if each.path not in paths and (each.rack is None) != (
            racks is not None and racks[0] is None
        ):
            raise ReplicaSetError(
                "either all directories of a set have a rack, or none: give racks for all of them",
                paths=[each.path],
                found=each.rack,
                expected="a rack" if each.rack is None else "no rack",
            )


def _is_prepared(each: Found) -> bool:
    return (
        each.membership is not None and each.meta is not None and each.meta.directory_id is not None
    )


def _check_complete(checked: CheckedSet) -> None:
    """All directories of a new set are there, unused, and empty; an interrupted set-up is repeated
    with the same ones.
    """
    for each in checked.found:
        if each.problem is not None:
            raise each.problem
        if is_used(each.path):
            raise DirectoryInUseError("processes use the directory without a set", path=each.path)
        partitions = [
            name for name in files.directories(each.path) if file_names.parse_partition_name(name)
        ]
        if each.membership is None and partitions:
            raise ReplicaSetError(
                "the directory is a log of its own: open it alone, and add each further directory "
                "by log.add_directory(path)",
                path=each.path,
                found=f"{len(partitions)} partitions",
                paths=[os.fspath(each.path)],
            )
    if checked.membership is not None and len(checked.membership.members) != len(checked.found):
        raise ReplicaSetError(
            "the set-up of these directories was interrupted: repeat it with the same ones",
            paths=[member.path for member in checked.membership.members],
        )


def _plan(checked: CheckedSet, racks: Sequence[str | None]) -> list[tuple[Found, Membership]]:
    """Each directory with its members: those of a plan that was found, else new ones."""
    found = checked.found
    known = checked.membership
    chosen = _assigned(found, known.members) if known is not None else _numbered(found, racks)
    cluster_id = known.cluster_id if known is not None else _cluster_of(found)
    every = tuple(sorted(chosen, key=lambda member: member.node))
    return [
        (each, each.membership or Membership(cluster_id, member.node, uuid.uuid4(), every))
        for each, member in zip(found, chosen, strict=True)
    ]


def _cluster_of(found: Sequence[Found]) -> str:
    return (
        next(
            (
                each.meta.cluster_id
                for each in found
                if each.meta is not None and each.meta.cluster_id
            ),
            "",
        )
        or new_id()
    )


def _numbered(found: Sequence[Found], racks: Sequence[str | None]) -> list[Member]:
    """New members. A directory that was opened before, and is empty, keeps its number."""
    taken = {each.meta.node_id for each in found if each.meta is not None}
    free = (node for node in range(1, 2 * members.MEMBERS_MAX) if node not in taken)
    chosen = []
    for each, rack in zip(found, racks, strict=True):
        node = next(free) if each.meta is None else each.meta.node_id
        known = each.meta.directory_id if each.meta is not None else None
        chosen.append(Member(node, known or new_id(), os.fspath(each.path), rack))
    return chosen


def _assigned(found: Sequence[Found], planned: Sequence[Member]) -> list[Member]:
    """The planned member for each directory: by its own file, by its path, else the next free
    one.
    """
    chosen: list[Member | None] = []
    for each in found:
        own = each.membership.own.node if each.membership is not None else None
        path = os.fspath(each.path)
        chosen.append(
            next(
                (
                    member
                    for member in planned
                    if own == member.node or (own is None and path == member.path)
                ),
                None,
            )
        )
    used = {member.node for member in chosen if member is not None}
    free = iter([member for member in planned if member.node not in used])
    return [
        member or next(free)._replace(path=os.fspath(each.path))
        for each, member in zip(found, chosen, strict=True)
    ]


def _check_no_broker(paths: Iterable[Path], at: Call = call_here) -> None:
    """Raises DirectoryInUseError, before any directory is changed, if a broker holds one of
    them.
    """
    deadline_ns = files.deadline_after(BROKER_S)
    for path in paths:
        lock = path / file_names.BROKER_LOCK
        with contextlib.suppress(StorageError):  # its opening shows the problem
            while at(path, partial(_probed, lock)) == EXCLUSIVE:
                if system.boot_ns() >= deadline_ns:
                    raise DirectoryInUseError(
                        "the directory is held exclusively: a Kafka broker is running on it",
                        path=lock,
                    )
                time.sleep(PAUSE_S)


def _probed(lock: Path) -> int:
    if not files.exists(lock):
        return 0
    with files.opened(lock) as fd:
        return system.lock_probe(fd)


def is_used(directory: Path) -> bool:
    """Whether a process holds `.lock`. REQUIRES the open lock."""
    return _probed(directory / file_names.BROKER_LOCK) > 0
