"""Finds, creates and retires the directories of topics, and recovers topics that a broker changed.

- Creation: `creating` in the registry, then directories and partition.metadata, then all of them
  and the parent synced, then `live`. These syncs are in no order among themselves: before `live` an
  interruption repeats the creation.
- Deletion: `deleting` in the registry, then each directory renamed, the parent synced, the
  checkpoints' lines, the committed offsets of groups, then the entry.
- Both can be repeated from any point; the topic id in partition.metadata, not the name, identifies
  the owner of a directory.
- A retired directory keeps its files for `file.delete.delay.ms` after its renaming.
- A directory whose name does not parse is left unchanged: a broker would not start with it. One
  that is named as a partition, and has only files that no partition has, is left unchanged too,
  unless the registry has that partition.
- A partition that is a symbolic link is refused unless `follow.links` allows it: nothing is written
  or removed at its target.
- Only files with the names of a partition are removed. A retired directory with other names keeps
  these and stays.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from embedlog.errors import ForeignDirectoryError, InvalidPartitionsError, StorageError
from embedlog.storage import checkpoints, file_names, files
from embedlog.storage.identity import id_of_name, new_id, read_topic_id, write_topic_id
from embedlog.telemetry import log_messages
from embedlog.topic import RESERVED_TOPICS, Topic

if TYPE_CHECKING:
    from embedlog.topic import TopicRegistry

_logger = logging.getLogger("embedlog")

DIRECTORY_NAME_LENGTH_MAX = 255
SIDE_BY_SIDE = 8  # partitions that are created in parallel
FEW_PARTITIONS = 2  # whose directories are synced together, beside the file of topics

_SET_ASIDE = re.compile(r"(\S+)-(\S+)\.(\S+)-(delete|future|stray)")
_NOT_TOPICS = ("remote-log-index-cache",)
_NAMES_SHOWN = 5  # in a message


class Directories(NamedTuple):
    """The content of a log directory, by the forms of Kafka's names; `unknown` is everything else.

    `lookalikes`: named as a partition, but no partition; they are in `unknown` too.
    """

    live: Mapping[str, Mapping[int, Path]] = MappingProxyType({})
    deleted: tuple[Path, ...] = ()
    future: tuple[Path, ...] = ()
    stray: tuple[Path, ...] = ()
    unknown: tuple[Path, ...] = ()
    lookalikes: tuple[Path, ...] = ()


def check_link(path: Path, follow_links: bool) -> None:
    """Raises ForeignDirectoryError for a partition that is a symbolic link, unless links are
    followed.
    """
    if not follow_links and files.is_link(path):
        raise ForeignDirectoryError(
            "the partition is a symbolic link, perhaps to files outside of the log: mount its "
            "disk here, or allow links by"
            " follow.links=true",
            path=path,
            expected="a directory",
            found="a symbolic link",
        )


def scan_directories(
    path: Path,
    registered_topics: Mapping[str, Topic] = MappingProxyType({}),
    *,
    follow_links: bool = False,
) -> Directories:
    """Classify all directories in a log directory; no file is opened. Raises StorageError.

    The partitions of `registered_topics` are not listed: that costs time, and one that lost its
    files must be missed. A link is listed only if links are followed; otherwise it is refused where
    it is used.
    """
    live: dict[str, dict[int, Path]] = {}
    aside: dict[str, list[Path]] = {
        "delete": [],
        "future": [],
        "stray": [],
        "unknown": [],
        "lookalike": [],
    }
    registered = {
        name: frozenset(topic.numbers) if topic.only else topic.numbers
        for name, topic in registered_topics.items()
    }
    for name in files.directories(path):
        parsed = file_names.parse_partition_name(name)
        match = _SET_ASIDE.fullmatch(name)
        if parsed is not None and parsed[0] not in RESERVED_TOPICS:
            topic, number = parsed
            is_registered = number in registered.get(topic, ())
            if is_registered or find_unknown_name(path / name, follow_links) is None:
                live.setdefault(topic, {})[number] = path / name
            else:
                aside["unknown"].append(path / name)
                aside["lookalike"].append(path / name)
        elif parsed is None and name not in _NOT_TOPICS:
            kind = match[4] if match else "unknown"
            aside[kind].append(path / name)
    return Directories(live, *(tuple(names) for names in aside.values()))


def find_unknown_name(path: Path, follow_links: bool = False) -> str | None:
    """A name in a directory that is no partition; None for a partition, and for a directory that is
    empty or was renamed.

    A crash between the creation of a directory and that of its first file leaves it empty.
    """
    if not follow_links and files.is_link(path):
        return None
    try:
        names = files.listing(path)
    except StorageError as problem:
        if problem.errno != errno.ENOENT:
            raise
        return None  # another process deletes the topic
    return names[0] if names and not any(map(file_names.is_of_partition, names)) else None


def warn_of_lookalikes(directories: Directories) -> None:
    """Name the directories that look like partitions, and are none."""
    for path in directories.lookalikes:
        _logger.warning(
            "%s is no partition, although its name is that of one: it has %s, and no file of a "
            "partition. It is left unchanged,"
            " and a broker would take it for a topic: move it",
            path,
            find_unknown_name(path, follow_links=True),
        )


def find_partition_numbers(path: Path, topic: str) -> list[int]:
    """The partitions of one topic, by the names of directories alone."""
    parsed = (file_names.parse_partition_name(name) for name in files.directories(path))
    return sorted(
        name_and_number[1]
        for name_and_number in parsed
        if name_and_number is not None and name_and_number[0] == topic
    )


# ---- creation ------------------------------------------------------------------------------------


def check_lengths(name: str, partitions: int) -> None:
    """Raises InvalidPartitionsError if the name of the last partition's directory would be too
    long.
    """
    longest = file_names.partition_name(name, partitions - 1)
    if len(longest) > DIRECTORY_NAME_LENGTH_MAX:
        expected = f"a directory name of {DIRECTORY_NAME_LENGTH_MAX} characters or fewer"
        raise InvalidPartitionsError(
            f"too many partitions for the length of the name {name}",
            expected=expected,
            found=len(longest),
        )


def finish_creation(
    directory: Path,
    registry: TopicRegistry,
    topic: Topic,
    mode: int = 0o666,
    *,
    follow_links: bool = False,
) -> Topic:
    """As `finish_creations`, of one topic."""
    return finish_creations(directory, registry, [topic], mode, follow_links=follow_links)[0]


def finish_creations(
    directory: Path,
    registry: TopicRegistry,
    topics: Sequence[Topic],
    mode: int = 0o666,
    *,
    follow_links: bool = False,
) -> list[Topic]:
    """Create the missing parts of `creating` or growing topics, from any state.

    The registry has the topics already; it is written once for all. **Threads and processes**: the
    caller holds the directory lock.
    """
    unsynced = _make_partitions(directory, topics, mode, follow_links)
    live = [_make_live(topic) for topic in topics]
    registry.put(*live, beside=[directory, *unsynced])
    return live


def _make_live(topic: Topic) -> Topic:
    only = tuple(topic.numbers) if topic.only else ()
    return topic._replace(
        state="live", partitions=max(topic.partitions, topic.growing), growing=0, only=only
    )


def _make_partitions(
    directory: Path, topics: Sequence[Topic], mode: int, follow_links: bool
) -> list[Path]:
    """Create the directories; those that are not synced yet.

    A few are left to one sync of all. Many are made in parallel, each with its sync: a disk commits
    concurrent syncs together.
    """
    topic_partitions = [(topic, number) for topic in topics for number in topic.numbers]
    are_few = len(topic_partitions) <= FEW_PARTITIONS

    def make(topic_and_number: tuple[Topic, int]) -> Path:
        return make_partition(
            directory, *topic_and_number, mode, follow_links=follow_links, named=not are_few
        )

    if are_few:
        return [make(topic_and_number) for topic_and_number in topic_partitions]
    from concurrent.futures import ThreadPoolExecutor  # slow to import, and seldom needed

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for _ in pool.map(make, topic_partitions):
            continue
    return []


def make_partition(
    directory: Path,
    topic: Topic,
    number: int,
    mode: int = 0o666,
    *,
    follow_links: bool = False,
    named: bool = True,
) -> Path:
    """Create the directory of one partition, with its partition.metadata; the parent is not synced
    yet.

    With `named` false neither is the directory itself.

    Raises ForeignDirectoryError if the directory exists and belongs to a topic with another id, or
    is no partition.
    """
    path = directory / file_names.partition_name(topic.name, number)
    if not files.mkdir(path, files.directory_mode(mode), exist_ok=True):
        check_link(path, follow_links)
        name = find_unknown_name(path, follow_links)
        if name is not None:
            problem = "a directory of this name exists, and is no partition: move it"
            raise ForeignDirectoryError(
                problem, path=path, expected="files of a partition, or none", found=name
            )
    topic_id = read_topic_id(path)
    if topic_id is None:
        write_topic_id(path, topic.topic_id, mode, named=named)
    elif topic_id != topic.topic_id:
        expected = f"topic id {topic.topic_id}"
        raise ForeignDirectoryError(
            "the directory belongs to another topic", path=path, expected=expected, found=topic_id
        )
    return path


def make_prepared(
    directory: Path,
    topic: Topic,
    number: int,
    prepare: Callable[[Path], object] | None = None,
    mode: int = 0o666,
) -> None:
    """Create the directory of one partition under the name of a retired one, and rename it after
    `prepare` has written to it.

    The parent is not synced yet. The rest of an interruption is removed as a retired partition.
    """
    path = directory / retired_name(topic.name, number, os.urandom(16).hex())
    files.mkdir(path, files.directory_mode(mode))
    write_topic_id(path, topic.topic_id, mode)
    if prepare is not None:
        prepare(path)
    files.sync_directory(path)
    files.rename(path, directory / file_names.partition_name(topic.name, number))


# ---- deletion ------------------------------------------------------------------------------------


def retired_name(topic: str, number: int, unique: str) -> str:
    """`<topic>-<number>.<unique>-delete`, the topic cut so that the name has at most 255
    characters.
    """
    suffix = f"-{number}.{unique}-delete"
    return topic[: DIRECTORY_NAME_LENGTH_MAX - len(suffix)] + suffix


def finish_deletion(
    directory: Path,
    registry: TopicRegistry,
    topic: Topic,
    retire: Callable[[int, Path], None] | None = None,
    mode: int = 0o666,
    forget: Callable[[], None] | None = None,
) -> None:
    """Rename the rest of a `deleting` topic, then remove it from checkpoints and memory.

    `retire(number, path)` is called before each renaming: it takes the partition's append lock and
    sets its DELETED flag. It is needed unless the directory is held exclusively. `forget` is called
    last, and is needed unless the topic was never live. **Threads and processes**: the caller holds
    the directory lock.
    """
    for number in find_partition_numbers(directory, topic.name):
        retire_partition(directory, topic, number, retire)
    files.sync_directory(directory)
    _forget_offsets(directory, lambda key: key[0] == topic.name, mode)
    if forget is not None:
        forget()
    registry.remove(topic.name)


def set_aside(
    directory: Path, topic: Topic, number: int, mode: int = 0o666, *, damaged: bool = False
) -> None:
    """Remove one partition from the checkpoints, and rename it. REQUIRES the directory lock, and
    that its DELETED flag is set.

    `damaged`: no process can load it, and its topic id may be unreadable or another one.
    """
    _forget_offsets(directory, lambda key: key == (topic.name, number), mode)
    path = directory / file_names.partition_name(topic.name, number)
    if not damaged:
        retire_partition(directory, topic, number)
    elif files.is_directory(path):
        files.rename(path, directory / retired_name(topic.name, number, os.urandom(16).hex()))
    files.sync_directory(directory)


def _forget_offsets(
    directory: Path, forgotten: Callable[[tuple[str, int]], bool], mode: int
) -> None:
    for name in (
        file_names.RECOVERY_POINTS,
        file_names.LOG_STARTS,
        file_names.HIGH_WATERMARKS,
        file_names.CLEANER,
    ):
        path = directory / name
        offsets = checkpoints.read_offsets(path)
        checkpoints.update(path, {key: None for key in offsets if forgotten(key)}, mode)


def retire_partition(
    directory: Path, topic: Topic, number: int, retire: Callable[[int, Path], None] | None = None
) -> None:
    """Rename one partition's directory if it exists and belongs to this topic; the parent is not
    synced yet.
    """
    path = directory / file_names.partition_name(topic.name, number)
    if not files.is_directory(path):
        return  # renamed already
    topic_id = read_topic_id(path)
    if topic_id not in (topic.topic_id, None):
        return  # a newer topic of this name that a broker created
    if topic_id is None and find_unknown_name(path, follow_links=True) is not None:
        return
    if retire is not None:
        retire(number, path)
    files.rename(path, directory / retired_name(topic.name, number, os.urandom(16).hex()))


def purge_retired(
    directory: Path, now_ms: int, delay_ms: int, *, follow_links: bool = False
) -> list[Path]:
    """Remove retired directories after their delay; returns them. `now_ms` is the wall clock.

    Readers with open files continue. A directory that cannot be removed is reported and tried again
    the next time. So is one that keeps other names. Of a link only the name is removed. With
    followed links the files are removed too; the directory stays.
    """
    removed = []
    for path in scan_directories(directory).deleted:
        try:
            # The renaming changed the directory's ctime; its mtime changes only with the files
            # inside.
            facts = files.lstat(path)
            if facts is None or now_ms - facts.changed_ms < delay_ms:
                continue
            is_link = files.is_link(path)
            unknown_names = _remove_files(path) if follow_links or not is_link else []
            if unknown_names and not is_link:
                listed = ", ".join(unknown_names[:_NAMES_SHOWN])
                if len(unknown_names) > _NAMES_SHOWN:
                    listed += ", …"
                raise StorageError(
                    f"it has names that no partition has ({listed}): move them",
                    errno=errno.ENOTEMPTY,
                    path=path,
                )
            if is_link:
                files.unlink(path)
            else:
                files.rmdir(path)
            removed.append(path)
        except OSError as problem:
            # another housekeeper, of an older embedlog, removed it
            if problem.errno != errno.ENOENT:
                log_messages.report(
                    _logger, logging.WARNING, path, "a deleted topic's directory stays", problem
                )
    return removed


def _remove_files(path: Path) -> list[str]:
    """Remove the files of a retired partition; the names that are left."""
    unknown_names = []
    folders = set(files.directories(path))
    for name in files.listing(path):
        if name in folders or not file_names.is_of_partition(name):
            unknown_names.append(name)
        else:
            files.unlink(path / name, missing_ok=True)
    return unknown_names


# ---- recovery of topics ---------------------------------------------------------------------------


class RegistryChanges(NamedTuple):
    """The changes of the registry that the directories require."""

    topics: tuple[Topic, ...] = ()
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.topics or self.removed)


def find_registry_changes(
    topics_before: Mapping[str, Topic],
    directories: Directories,
    *,
    broker_wrote: bool,
    reading: bool = False,
) -> RegistryChanges:
    """Compare registry and directories: topics, partitions and identities that only the directories
    contain.

    `broker_wrote`: a broker used the directory since embedlog's last close. Only then a topic
    without directories counts as deleted, and one with another id as a new topic of the same name.
    Otherwise such a topic is left unchanged, and its partitions report the loss. `reading`: nothing
    will be written, so a topic without an id, as brokers before 2.8 created them, gets one derived
    from its name. Raises ForeignDirectoryError if the partitions of a topic have different ids.
    """
    topics = []
    for name, numbers in directories.live.items():
        topic = topics_before.get(name)
        if topic is None or (broker_wrote and topic.state != "creating"):
            new_topic = _topic_of_directories(name, topic, numbers, reading)
        elif topic.state == "live":
            new_topic = _grow(topic, numbers)
        else:
            continue
        if new_topic != topic:
            topics.append(new_topic)
    removed = [
        name
        for name, topic in topics_before.items()
        if broker_wrote and topic.state == "live" and name not in directories.live
    ]
    return RegistryChanges(tuple(topics), tuple(removed))


def _topic_of_directories(
    name: str, topic: Topic | None, numbers: Mapping[int, Path], reading: bool
) -> Topic:
    """The topic according to its directories, with its known settings if it is still the same
    topic.
    """
    ids = {number: read_topic_id(path) for number, path in numbers.items()}
    distinct = sorted({stored for stored in ids.values() if stored is not None})
    if len(distinct) > 1:
        number = next(number for number, stored in ids.items() if stored == distinct[1])
        problem = "the partitions of a topic have different ids"
        raise ForeignDirectoryError(
            problem, path=numbers[number], expected=distinct[0], found=distinct[1]
        )
    if distinct:
        topic_id = distinct[0]
    elif topic is not None:
        topic_id = topic.topic_id
    else:
        topic_id = id_of_name(name) if reading else new_id()
    if topic is not None and topic.topic_id == topic_id:
        return topic if topic.state == "deleting" else _grow(topic, numbers)
    state = "live" if reading or all(ids.values()) else "creating"  # missing ids must be written
    return _with_numbers(Topic(name, topic_id, max(numbers) + 1, state=state), numbers)


def _grow(topic: Topic, numbers: Mapping[int, Path]) -> Topic:
    if max(numbers) < max(topic.partitions, topic.growing):
        local_numbers = {*topic.only, *(number for number in numbers if number < topic.partitions)}
        if not topic.only or len(local_numbers) <= len(topic.only):
            return topic
        return topic._replace(only=_local_numbers(topic.partitions, local_numbers))
    return _with_numbers(topic._replace(partitions=max(numbers) + 1, growing=0), numbers)


def _with_numbers(topic: Topic, numbers: Mapping[int, Path]) -> Topic:
    return topic._replace(only=_local_numbers(topic.partitions, numbers))


def _local_numbers(partitions: int, numbers: Collection[int]) -> tuple[int, ...]:
    """The value of `Topic.only` for these local numbers."""
    return () if len(numbers) == partitions == max(numbers) + 1 else tuple(sorted(numbers))
