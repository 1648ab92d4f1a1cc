"""Takes a directory back from a stopped broker: topics, ids, partition counts and settings, as its
metadata log has them.

- The topics' file is replaced once, with all changes. Before it, partitions of unknown topics are
  set aside as a broker does it; a repetition finds them set aside.
- Directories of a broker only: if embedlog opened the directory after the broker, its topics are
  newer.
- Partitions that the broker did not make yet are made by the next opening.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from embedlog.config.topic import LogConfig
from embedlog.coordination.closed_directory import hold
from embedlog.coordination.topic_directories import scan_directories
from embedlog.errors import CorruptRecordError, ForeignDirectoryError, StateError
from embedlog.storage import file_names, files
from embedlog.storage.identity import MetaProperties, read_meta, read_topic_id
from embedlog.tools.handover import metadata_image, server_properties, settings
from embedlog.tools.handover.held_directory import check, identity
from embedlog.tools.handover.metadata_image import Image, TopicState
from embedlog.topic import RESERVED_TOPICS, Topic, TopicRegistry

_KINDS: Final = {
    10: "delegation tokens",
    11: "SCRAM credentials",
    14: "quotas",
    18: "access control entries",
}


@dataclass(frozen=True)
class TakenDirectory:
    """A handover back. `created` and `deleted`: topics that changed at the broker. `set_aside`:
    directories without a topic.
    """

    directory: Path
    metadata: Path
    meta: MetaProperties
    topics: dict[str, int]
    created: list[str]
    deleted: list[str]
    set_aside: list[str]
    settings: list[settings.Setting]
    lost: list[str]  # further contents of the metadata that embedlog has not
    clean: bool
    changed: tuple[Topic, ...] = ()


def plan(path: Path, metadata: Path | None) -> TakenDirectory:
    """The handover back of a directory as it is now; nothing is written."""
    check(path)
    path = files.absolute(path)
    metadata_path = metadata_path_of(path, metadata)
    meta = identity(path)
    image = _read_image(metadata_path, meta)
    registry = TopicRegistry(path)
    registry.load()
    earlier_topics = {topic.name: topic for topic in registry.all()}
    broker_topics = [topic for topic in image.topics.values() if topic.name not in RESERVED_TOPICS]
    partition_directories = _find_partitions(path)
    outcomes: list[settings.Setting] = []
    changed = []
    for broker_topic in broker_topics:
        name = broker_topic.name
        topic, topic_outcomes = _take_topic(
            broker_topic, partition_directories.get(name, {}), earlier_topics.get(name), image
        )
        changed.append(topic)
        outcomes += topic_outcomes
    ids = {topic.name: topic.topic_id for topic in broker_topics}
    earlier_ids = {topic.name: topic.topic_id for topic in earlier_topics.values()}
    strays = [
        directory
        for name, numbers in partition_directories.items()
        for directory, topic_id in numbers.values()
        # without an id it is given that of the name, as by a broker
        if name not in ids or topic_id not in (ids[name], None)
    ]
    return TakenDirectory(
        path,
        metadata_path,
        meta,
        topics={topic.name: len(topic.partitions) for topic in broker_topics},
        created=sorted(name for name, topic_id in ids.items() if earlier_ids.get(name) != topic_id),
        deleted=sorted(name for name, topic_id in earlier_ids.items() if ids.get(name) != topic_id),
        set_aside=sorted(strays),
        settings=[*settings.of_brokers(image), *outcomes],
        lost=sorted({_KINDS[value[1]] for value in image.others if value[1] in _KINDS}),
        clean=False,
        changed=tuple(changed),
    )


def take_back(path: Path, metadata: Path | None) -> TakenDirectory:
    """Take the directory back. Raises StateError if no broker has used it since embedlog,
    DirectoryInUseError if one runs.
    """
    check(path)
    with hold(path) as use:
        if not use.broker_wrote:
            finish(path)
            raise StateError(
                "no broker has used the directory since embedlog closed it: there is nothing to "
                "take back",
                path=path,
            )
        taken = plan(path, metadata)
        mode = LogConfig().file_mode
        for name in taken.set_aside:
            topic, _, number = name.rpartition("-")
            stray_name = f"{topic[:200]}-{number}.{uuid.uuid4().hex}-stray"
            files.rename(taken.directory / name, taken.directory / stray_name)
        if taken.set_aside:
            files.sync_directory(taken.directory)
        registry = TopicRegistry(taken.directory, mode)
        registry.load()
        names = {topic.name for topic in taken.changed}
        deleted = [topic.name for topic in registry.all() if topic.name not in names]
        registry.change(taken.changed, deleted)
    return replace(taken, clean=use.clean)


def finish(path: Path) -> None:
    """Remove the broker's configuration file: the directory is embedlog's again."""
    if files.unlink(path / file_names.SERVER_PROPERTIES, missing_ok=True):
        files.sync_directory(path)


def metadata_path_of(path: Path, metadata: Path | None) -> Path:
    """The metadata directory: the given one, that of the configuration file, or the log directory
    itself.
    """
    return files.absolute(metadata or server_properties.read(path).get("metadata.log.dir") or path)


# ---- the image -----------------------------------------------------------------------------------


def _read_image(metadata_path: Path, meta: MetaProperties) -> Image:
    metadata_meta = read_meta(metadata_path)
    image, log = metadata_image.read(metadata_path)
    if metadata_meta is None or not log:
        raise ForeignDirectoryError(
            "no metadata log: name the broker's metadata.log.dir by --metadata-dir",
            path=metadata_path,
        )
    if (metadata_meta.cluster_id, metadata_meta.node_id) != (meta.cluster_id, meta.node_id):
        raise ForeignDirectoryError(
            "the metadata log belongs to another cluster or node",
            path=metadata_path,
            expected=f"cluster.id {meta.cluster_id}, node.id {meta.node_id}",
            found=f"cluster.id {metadata_meta.cluster_id}, node.id {metadata_meta.node_id}",
        )
    other_brokers = sorted(set(image.brokers) - {meta.node_id})
    if other_brokers:
        raise ForeignDirectoryError(
            "the cluster has other brokers",
            path=metadata_path,
            expected=meta.node_id,
            found=other_brokers,
        )
    broker = image.brokers.get(meta.node_id)
    other_directories: list[str] = []
    if broker is not None:
        other_directories = sorted(set(broker.directories) - {meta.directory_id or ""})
    if other_directories:
        raise ForeignDirectoryError(
            "the broker has other log directories",
            path=metadata_path,
            expected=f"only {meta.directory_id}",
            found=", ".join(other_directories),
        )
    return image


def _take_topic(
    topic: TopicState,
    partition_directories: Mapping[int, tuple[str, str | None]],
    earlier: Topic | None,
    image: Image,
) -> tuple[Topic, list[settings.Setting]]:
    """The topic as embedlog keeps it, and the outcomes of its settings."""
    numbers = sorted(topic.partitions)
    if numbers != list(range(len(numbers))) or not numbers:
        raise CorruptRecordError(
            f"partitions of topic {topic.name} in the metadata log", found=numbers[:8]
        )
    if earlier is None or earlier.topic_id != topic.topic_id:
        earlier = Topic(topic.name, topic.topic_id, len(numbers))
    config, outcomes = settings.from_broker(
        topic.name, image.settings_of(topic.name), earlier.config
    )
    is_complete = all(
        number in partition_directories and partition_directories[number][1] == topic.topic_id
        for number in numbers
    )
    taken = earlier._replace(
        partitions=len(numbers),
        config=config,
        state="live" if is_complete else "creating",
        growing=0,
        only=(),
    )
    return taken, outcomes


def _find_partitions(path: Path) -> dict[str, dict[int, tuple[str, str | None]]]:
    """By topic and number, the directories of partitions and the topic ids in them."""
    live = scan_directories(path).live
    return {
        topic: {
            number: (directory.name, read_topic_id(directory))
            for number, directory in numbers.items()
        }
        for topic, numbers in live.items()
    }
