"""This module gives the place of a lost directory in its set to a directory that begins empty.

A majority of the voters has all decisions without the lost directory first. The copy of the
decision log in the new directory is incomplete until it is level, so it does not vote before that.

The new directory has the node and the directory id of the lost one, no opening of it, and the mark
`replaces`. So one decision registers it as a directory that holds nothing, and its replicas are
copied.

The file of members is the last one that is written. A call that was interrupted is repeated.
Content that is in the place is renamed, in one step.
"""

from __future__ import annotations

import errno
import logging
import os
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

from embedlog.errors import DirectoryInUseError, ReplicaSetError, StorageError
from embedlog.replicas.members import membership as members
from embedlog.replicas.members import registration, set_up
from embedlog.replicas.members.membership import Membership
from embedlog.storage import file_names, files, location
from embedlog.storage.identity import MetaProperties, id_text, write_meta

if TYPE_CHECKING:
    from embedlog.config.topic import LogConfig
    from embedlog.replicas.members.set_members import SetMembers
    from embedlog.replicas.rules.state import State

logger = logging.getLogger("embedlog")

NAMES_SHOWN: Final = 5
MOUNT_POINT: Final = frozenset({errno.EBUSY, errno.EXDEV, errno.EACCES, errno.EPERM, errno.EROFS})
UNUSED: Final = frozenset(
    {"lost+found", file_names.BROKER_LOCK, file_names.OPEN_LOCK, file_names.META_PROPERTIES}
)


def replace(
    set_members: SetMembers, config: LogConfig, node: int, path: Path, *, force: bool
) -> None:
    """Make a directory the one of a node that is away. Content of the place is kept beside it.

    Raises ReplicaSetError if the directory of the node answers, if only it has records and not
    `force`, and for the directory of another member; NotEnoughDirectoriesError,
    DirectoryInUseError, StorageError. Nothing is changed then.
    """
    set_members.tend(by_hand=True)
    deadline_ns = files.deadline_after(config.lock_timeout_ms / 1000)
    state = set_members.decisions.settle(deadline_ns)
    set_up.check_texts(path, None)
    _check_lost(set_members, state, node)
    set_members.leave_failed(node)
    _check_place(set_members, state, node, path)
    if not force:
        _check_records(state, node)
    location.enter(path, read_only=False, create=True, mode=config.file_mode)
    _keep_content(path, config.file_mode, deadline_ns)
    with set_up.open_locks([path], deadline_ns, config.file_mode):
        _prepare(set_members, state, node, path, config.file_mode)
    set_members.replace(node, path, deadline_ns)
    logger.warning(
        "the directory %s replaces that of node %d, %s: its replicas are copied",
        path,
        node,
        state.nodes[node].path,
    )


def _check_lost(set_members: SetMembers, state: State, node: int) -> None:
    if node not in state.nodes:
        raise ReplicaSetError(
            "no directory of the set has this number",
            expected=f"one of {sorted(state.nodes)}",
            found=node,
        )
    member = set_members.directories.member(node)
    if member is not None and member.problem is None and member.directory is not None:
        text = (
            f"the directory of node {node} answers: to move it, use add_directory(new path), then "
            f"retire_directory({node});"
            " to mend its replicas, use repair()"
        )
        raise ReplicaSetError(text, paths=[state.nodes[node].path])


def _check_place(set_members: SetMembers, state: State, node: int, path: Path) -> None:
    """Raises ReplicaSetError if the path is that of another member, DirectoryInUseError if
    processes use what is there.
    """
    for member_node, registered in state.nodes.items():
        if member_node == node:
            continue
        if registered.path == os.fspath(path) or members.is_same_directory(
            Path(registered.path), path
        ):
            raise ReplicaSetError(
                f"the path is that of node {member_node}",
                paths=[os.fspath(path)],
                expected="a path of its own",
            )
    own = members.inspect(path).membership
    if (
        own is not None
        and own.cluster_id == state.cluster_id
        and own.node != node
        and own.node in state.nodes
    ):
        raise ReplicaSetError(
            f"the directory is that of node {own.node}",
            paths=[os.fspath(path)],
            expected=node,
            found=own.node,
        )
    if set_up.is_used(path):
        raise DirectoryInUseError("processes use the directory", path=path)


def _check_records(state: State, node: int) -> None:
    """Raises ReplicaSetError if partitions have no other replica with all their records."""
    alone = [
        f"{state.topics[topic_uuid].name}-{number}"
        for (topic_uuid, number), partition in sorted(state.partitions.items())
        if node in partition.replicas and not ({*partition.isr, *partition.elr} - {node})
    ]
    if alone:
        names = ", ".join(alone[:NAMES_SHOWN])
        if len(alone) > NAMES_SHOWN:
            names += ", …"
        raise ReplicaSetError(
            f"only the directory of node {node} has all records of {names}: bring it back, or "
            "give them up by force=True",
            paths=[state.nodes[node].path],
            expected="another replica in sync",
            found=f"{len(alone)} partitions without one",
        )


def _keep_content(path: Path, mode: int, deadline_ns: int) -> None:
    """Make the place empty, unless an interrupted call has prepared it."""
    if all(name in UNUSED or name.endswith(files.TEMPORARY) for name in files.listing(path)):
        return  # an empty file system, or the first steps of a preparation
    own = members.inspect(path).membership
    if own is not None and own.replaces and not own.openings:
        return
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    kept_path = path.with_name(f"{path.name}.replaced-{moment}")
    try:
        files.rename(path, kept_path)
    except StorageError as problem:
        if problem.errno in MOUNT_POINT:
            text = "the directory has content, and cannot be renamed: move its content away"
            raise ReplicaSetError(text, paths=[os.fspath(path)], found=str(problem)) from problem
        raise
    files.mkdir(path, files.directory_mode(mode))
    files.sync_directory(path.parent)
    logger.warning("the content of %s is kept in %s", path, kept_path)


def _prepare(set_members: SetMembers, state: State, node: int, path: Path, mode: int) -> None:
    """Write identity and members into the empty directory. REQUIRES its open lock."""
    registered = state.nodes[node]
    directory_id = id_text(registered.directory.bytes)
    recorded = set_members.open_members()[0].entered.membership
    every = tuple(
        member._replace(path=os.fspath(path)) if member.node == node else member
        for member in registration.members_of(state, recorded)
    )
    own = Membership(
        state.cluster_id,
        node,
        uuid.uuid4(),
        every,
        cluster_generation=state.generation,
        replaces=True,
    )
    write_meta(path, MetaProperties(1, state.cluster_id, node, directory_id, {}), mode)
    # the last one: an opening takes a directory with both files only
    members.write(path, own, mode)
