"""This module makes a log of one directory the first and only member of a new set, with its topics,
epochs and settings (`docs/protocol.md`, REPLICA-28).

- No process has the directory open meanwhile. From the file of members on, every process opens it
  as a set.
- The first decision of the set has all topics of the directory, with their ids and settings. The
  directory is the only replica of each partition. A stop before that decision leaves the file of
  members, and the next opening decides.
- The leader epoch of a partition is one above the last epoch of its log: the set begins its own
  epochs.
- A copy of the decisions of an earlier set is removed first, so that none of them counts again.
  Before that the directory gets another id, since files of the earlier set name the old one.
- A topic of which the directory holds some partitions only is refused: a set has all partitions of
  its topics.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from embedlog.errors import DirectoryInUseError, ReplicaSetError
from embedlog.replicas.members import membership as members
from embedlog.replicas.members import set_up
from embedlog.replicas.members.membership import FoundDirectory, Member, Membership
from embedlog.replicas.members.set_directory import SetDirectory
from embedlog.replicas.rules.events import HeldTopic
from embedlog.replicas.rules.records import LOG
from embedlog.storage import checkpoints, file_names, files, location, lock_holders
from embedlog.storage.identity import ensure_meta, new_id, write_meta

if TYPE_CHECKING:
    from embedlog.engine.log_directory import LogDirectory

NO_NODE = -1


def prepare(directory: LogDirectory, new: Path, rack: str | None) -> None:
    """Check an open log before it becomes a set with the new directory; forget an earlier set.

    Raises ReplicaSetError, StorageError, DirectoryInUseError if another process has the log open.
    """
    if rack is not None:
        raise ReplicaSetError(
            "the first directory has no rack: add the directory without one, and open the set "
            "with racks",
            paths=[str(new)],
        )
    members.check_doubles([directory.path, new])
    for path in (directory.path, new):
        set_up.check_texts(path, None)
    held_topics(directory)
    if files.lstat(new) is not None:
        location.enter(new, read_only=False, create=False, mode=directory.config.file_mode)
    check_new(
        members.inspect(new), ensure_meta(directory.path, directory.config.file_mode).cluster_id
    )
    directory.directory.check_only_process()
    directory.refresh_topics()
    earlier = directory.registry.get(LOG)
    if earlier is not None:
        meta = ensure_meta(directory.path, directory.config.file_mode)
        write_meta(directory.path, meta._replace(directory_id=new_id()), directory.config.file_mode)
        SetDirectory(NO_NODE, directory).retire(LOG, UUID(bytes=earlier.id_bytes))


def begin(path: Path, *, deadline_ns: int, mode: int = 0o666) -> None:
    """Make a closed log a set of one. Raises DirectoryInUseError, LockTimeoutError,
    StorageError.
    """
    with set_up.open_locks([path], deadline_ns, mode):
        if set_up.is_used(path):
            raise lock_holders.in_use_error(
                "a process opened the log before it became a set", path / file_names.BROKER_LOCK
            )
        if members.read(path) is None:
            meta = ensure_meta(path, mode)
            if meta.directory_id is None:
                raise AssertionError("an ensured identity has a directory id")
            own = Member(meta.node_id, meta.directory_id, os.fspath(path))
            members.write(
                path, Membership(meta.cluster_id, meta.node_id, uuid.uuid4(), (own,)), mode
            )


def held_topics(directory: LogDirectory) -> tuple[HeldTopic, ...]:
    """The topics of an open directory, for the first decision of its set. Raises ReplicaSetError,
    StorageError.
    """
    topics = []
    for topic in directory.registry.all():
        if topic.name == LOG or not topic.is_finished:
            continue
        if len(topic.usable_numbers) < topic.partitions:
            raise ReplicaSetError(
                f"the directory has some partitions of the topic {topic.name!r} only",
                expected=f"0 to {topic.partitions - 1}",
                found=str(list(topic.usable_numbers))[:100],
                paths=[os.fspath(directory.path)],
            )
        epochs = list[int]()
        for number in topic.usable_numbers:
            path = directory.path / file_names.partition_name(topic.name, number)
            epochs.append(checkpoints.read_epochs(path / file_names.EPOCHS).latest_epoch + 1)
        topic_uuid = UUID(bytes=topic.id_bytes)
        topics.append(HeldTopic(topic.name, topic_uuid, tuple(epochs), dict(topic.config)))
    return tuple(topics)


def check_new(directory: FoundDirectory, cluster_id: str) -> None:
    """Check that a directory can be added to the set with this cluster id: it is empty, unused, and
    of no other set.
    """
    path = directory.path
    if directory.problem is not None:
        raise directory.problem
    if set_up.is_used(path):
        raise DirectoryInUseError("processes use the directory", path=path)
    membership = directory.membership
    ids = set[str]()
    if directory.meta is not None and directory.meta.cluster_id:
        ids.add(directory.meta.cluster_id)
    if membership is not None and membership.cluster_id:
        ids.add(membership.cluster_id)
    if membership is not None and (ids != {cluster_id} or membership.registered_id is not None):
        raise ReplicaSetError(
            "the directory belongs to another set, or has left this one: add an empty directory",
            path=path,
            expected=cluster_id,
            found=" and ".join(sorted(ids)),
            paths=[os.fspath(path)],
        )
    names = files.directories(path) if files.is_directory(path) else ()
    partitions = [name for name in names if file_names.parse_partition_name(name)]
    if partitions and membership is None:
        raise ReplicaSetError(
            "the directory is a log of its own: add an empty directory",
            path=path,
            found=f"{len(partitions)} partitions",
            paths=[os.fspath(path)],
        )
