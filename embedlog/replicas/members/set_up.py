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
from embedlog.replicas.members.membership import CheckedSet, FoundDirectory, Member, Membership
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
    run_at: Call = call_here,
) -> CheckedSet:
    """Check the given directories, and make those of a new set its members, before they are opened.

    `run_at` makes the calls about one directory of a set that exists. Raises ReplicaSetError, and
    the errors of `check_set`; LockTimeoutError if a directory is being opened or closed.
    """
    _check_paths(paths, racks)
    checked = members.check_set(paths, run_at=run_at)
    if checked.is_registered:
        _check_other_racks(checked, racks)
        _check_no_broker(paths, run_at)
        return checked
    for path in paths:
        location.enter(path, read_only=False, create=create, mode=mode)
    with open_locks(paths, deadline_ns, mode):
        checked = members.check_set(paths)  # another process may have been faster
        if checked.is_registered or all(map(_is_prepared, checked.directories)):
            return checked
        _check_complete(checked)
        plan = _plan(checked, racks or [None] * len(paths))
        for directory, own in plan:
            if directory.membership is None:
                members.write(directory.path, own, mode)
        for directory, own in plan:
            meta = directory.meta
            if meta is None or meta.directory_id is None:
                others = {} if meta is None else meta.others
                meta = MetaProperties(1, own.cluster_id, own.node, own.own.directory_id, others)
                write_meta(directory.path, meta, mode)
        return members.check_set(paths)


def check_to_read(
    paths: Sequence[Path], racks: Sequence[str | None] | None = None, run_at: Call = call_here
) -> CheckedSet:
    """Check directories that are opened to be read. Raises the errors of `check_set`."""
    _check_paths(paths, racks)
    return members.check_set(paths, alone=True, run_at=run_at)


def renew(directory: Path, own: Membership, mode: int, *, alone: bool = False) -> Membership:
    """Draw a new registration id. REQUIRES the open lock of the directory, and no other process in
    it.
    """
    renewed = own._replace(registration_id=uuid.uuid4(), alone=own.alone or alone)
    return members.write(directory, renewed, mode)


def begin_opening(
    directory: Path,
    own: Membership,
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
    opened = own.with_opening(uuid.uuid4(), created_ns)
    if fresh:
        return members.write(directory, opened, mode)
    return renew(directory, opened, mode, alone=alone)


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
        own = members.read(directory)
        if own is None:
            return True
        if len(own.members) == 1:
            return False
        if not alone:
            members.check_alone(directory, own)
        elif not is_used(directory):
            renew(directory, own, mode, alone=True)
        elif not own.alone:
            raise DirectoryInUseError(
                "processes use the directory as a part of its set", path=directory
            )
    return True


@scope
def open_locks(paths: Iterable[Path], deadline_ns: int, mode: int) -> Iterator[None]:
    """Hold the open locks of these directories. Raises LockTimeoutError."""
    with stack() as guards:
        for name in sorted(os.fspath(path / file_names.OPEN_LOCK) for path in paths):
            lock = locks.LockFile(name, mode)
            guards.enter(Guard(lock.close))
            guards.enter(lock.hold(deadline_ns))
        yield


def _check_paths(paths: Sequence[Path], racks: Sequence[str | None] | None) -> None:
    if not 0 < len(paths) <= waits.DIRECTORIES_MAX:
        raise ReplicaSetError(
            "the number of directories of a set",
            expected=f"1 to {waits.DIRECTORIES_MAX}",
            found=len(paths),
        )
    if racks is not None:
        _check_racks(paths, racks)
    for path, rack in zip(paths, racks or [None] * len(paths), strict=True):
        check_texts(path, rack)


def _check_racks(paths: Sequence[Path], racks: Sequence[str | None]) -> None:
    if len(racks) != len(paths):
        raise ReplicaSetError(
            "racks", expected=f"one for each of {len(paths)} directories", found=len(racks)
        )
    if not all(rack is None or (type(rack) is str and rack) for rack in racks):
        raise TypeError(f"racks are texts or None, not {list(racks)!r:.100}")
    if 0 < sum(rack is None for rack in racks) < len(racks):
        raise ReplicaSetError(
            "racks", expected="one for every directory, or none", found=list(racks)
        )


def check_texts(path: Path, rack: str | None) -> None:
    """Check that the files of a set can have the path and the rack of a member. Raises
    ReplicaSetError.
    """
    for name, text in (("path", os.fspath(path)), ("rack", rack or "")):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ReplicaSetError(
                f"the {name} of a member must be valid UTF-8", path=path, found=ascii(text)[:100]
            ) from None


def _check_other_racks(checked: CheckedSet, racks: Sequence[str | None] | None) -> None:
    """Raises ReplicaSetError if members that are not given would be the only ones with a rack, or
    without one.
    """
    if not racks or checked.membership is None:
        return
    given_nodes = set[int]()
    unknown_paths = set[str]()  # another member may be there
    for directory in checked.directories:
        if directory.membership is not None:
            given_nodes.add(directory.membership.node)
        else:
            unknown_paths.add(os.fspath(directory.path))
    gives_no_rack = racks[0] is None
    for member in checked.membership.members:
        if member.node in given_nodes or not member.replicas or member.path in unknown_paths:
            continue
        if (member.rack is None) != gives_no_rack:
            raise ReplicaSetError(
                "either all directories of a set have a rack, or none: give racks for all of them",
                paths=[member.path],
                found=member.rack,
                expected="a rack" if member.rack is None else "no rack",
            )


def _is_prepared(directory: FoundDirectory) -> bool:
    return (
        directory.membership is not None
        and directory.meta is not None
        and directory.meta.directory_id is not None
    )


def _check_complete(checked: CheckedSet) -> None:
    """All directories of a new set are there, unused, and empty; an interrupted set-up is repeated
    with the same ones.
    """
    for directory in checked.directories:
        path = directory.path
        if directory.problem is not None:
            raise directory.problem
        if is_used(path):
            raise DirectoryInUseError("processes use the directory without a set", path=path)
        partitions = [
            name for name in files.directories(path) if file_names.parse_partition_name(name)
        ]
        if directory.membership is None and partitions:
            raise ReplicaSetError(
                "the directory is a log of its own: open it alone, and add each further directory "
                "by log.add_directory(path)",
                path=path,
                found=f"{len(partitions)} partitions",
                paths=[os.fspath(path)],
            )
    if checked.membership is None:
        return
    planned = checked.membership.members
    if len(planned) != len(checked.directories):
        raise ReplicaSetError(
            "the set-up of these directories was interrupted: repeat it with the same ones",
            paths=[member.path for member in planned],
        )


def _plan(
    checked: CheckedSet, racks: Sequence[str | None]
) -> list[tuple[FoundDirectory, Membership]]:
    """Each directory with its members: those of a plan that was found, else new ones."""
    directories = checked.directories
    if checked.membership is not None:
        cluster_id = checked.membership.cluster_id
        chosen = _assign_members(directories, checked.membership.members)
    else:
        cluster_id = _cluster_id_of(directories)
        chosen = _make_members(directories, racks)
    every = tuple(sorted(chosen, key=lambda member: member.node))
    return [
        (
            directory,
            directory.membership or Membership(cluster_id, member.node, uuid.uuid4(), every),
        )
        for directory, member in zip(directories, chosen, strict=True)
    ]


def _cluster_id_of(directories: Sequence[FoundDirectory]) -> str:
    """The cluster id of the first directory that has one, else a new one."""
    for directory in directories:
        if directory.meta is not None and directory.meta.cluster_id:
            return directory.meta.cluster_id
    return new_id()


def _make_members(
    directories: Sequence[FoundDirectory], racks: Sequence[str | None]
) -> list[Member]:
    """New members. A directory that was opened before, and is empty, keeps its number."""
    used = {directory.meta.node_id for directory in directories if directory.meta is not None}
    free = (node for node in range(1, 2 * members.MEMBERS_MAX) if node not in used)
    chosen = []
    for directory, rack in zip(directories, racks, strict=True):
        if directory.meta is None:
            node = next(free)
            directory_id = new_id()
        else:
            node = directory.meta.node_id
            directory_id = directory.meta.directory_id or new_id()
        chosen.append(Member(node, directory_id, os.fspath(directory.path), rack))
    return chosen


def _assign_members(
    directories: Sequence[FoundDirectory], planned: Sequence[Member]
) -> list[Member]:
    """The planned member for each directory: by its own file, by its path, else the next free
    one.
    """
    by_node = {member.node: member for member in planned}
    by_path = {member.path: member for member in reversed(planned)}
    chosen: list[Member | None] = []
    for directory in directories:
        if directory.membership is not None:
            chosen.append(by_node.get(directory.membership.node))
        else:
            chosen.append(by_path.get(os.fspath(directory.path)))
    used = {member.node for member in chosen if member is not None}
    free = iter([member for member in planned if member.node not in used])
    return [
        member or next(free)._replace(path=os.fspath(directory.path))
        for directory, member in zip(directories, chosen, strict=True)
    ]


def _check_no_broker(paths: Iterable[Path], run_at: Call = call_here) -> None:
    """Raises DirectoryInUseError, before any directory is changed, if a broker holds one of
    them.
    """
    deadline_ns = files.deadline_after(BROKER_S)
    for path in paths:
        lock = path / file_names.BROKER_LOCK
        with contextlib.suppress(StorageError):  # its opening shows the problem
            while run_at(path, partial(_probe_lock, lock)) == EXCLUSIVE:
                if system.boot_ns() >= deadline_ns:
                    raise DirectoryInUseError(
                        "the directory is held exclusively: a Kafka broker is running on it",
                        path=lock,
                    )
                time.sleep(PAUSE_S)


def _probe_lock(lock: Path) -> int:
    """As `system.lock_probe`; 0 without the file."""
    if not files.exists(lock):
        return 0
    with files.opened(lock) as fd:
        return system.lock_probe(fd)


def is_used(directory: Path) -> bool:
    """Whether a process holds `.lock`. REQUIRES the open lock."""
    return _probe_lock(directory / file_names.BROKER_LOCK) > 0
