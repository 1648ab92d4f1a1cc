"""Takes a directory back from a stopped broker: topics, ids, partition counts and settings, as its
metadata log has them.

FROMKAFKA-1  the topics' file is replaced once, with all changes. Before it, partitions of unknown
    topics are set aside as a broker does it; a repetition finds them set aside
FROMKAFKA-2  directories of a broker only: if embedlog opened the directory after the broker, its
    topics are newer
FROMKAFKA-3  partitions that the broker did not make yet are made by the next opening (TOPIC-3)
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from embedlog.config.topic import LogConfig
from embedlog.coordination.closed_directory import held
from embedlog.coordination.topic_directories import scan_directories
from embedlog.errors import CorruptRecordError, ForeignDirectoryError, StateError
from embedlog.handover import metadata_image, server_properties, settings
from embedlog.handover.held_directory import check, identity
from embedlog.handover.metadata_image import Image, TopicState
from embedlog.storage import file_names, files
from embedlog.storage.identity import MetaProperties, read_meta, read_topic_id
from embedlog.topic import RESERVED_TOPICS, Topic, TopicRegistry

_KINDS: Final = {
    10: "delegation tokens",
    11: "SCRAM credentials",
    14: "quotas",
    18: "access control entries",
}


@dataclass(frozen=True)
class Taken:
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


def plan(path: Path, metadata: Path | None) -> Taken:
    """The handover back of a directory as it is now; nothing is written."""
    check(path)
    path = files.absolute(path)
    where = metadata_place(path, metadata)
    meta = identity(path)
    image = _image(where, meta)
    registry = TopicRegistry(path)
    registry.load()
    before = {topic.name: topic for topic in registry.all()}
    present = [topic for topic in image.topics.values() if topic.name not in RESERVED_TOPICS]
    places = _places(path)
    outcomes: list[settings.Setting] = []
    changed = []
    for topic in present:
        found, of_topic = _topic(topic, places.get(topic.name, {}), before.get(topic.name), image)
        changed.append(found)
        outcomes += of_topic
    ids = {topic.name: topic.topic_id for topic in present}
    aside = [
        name
        for topic, numbers in places.items()
        for name, topic_id in numbers.values()
        # without an id it is given that of the name, as by a broker
        if topic not in ids or topic_id not in (ids[topic], None)
    ]
    return Taken(
        path,
        where,
        meta,
        {topic.name: len(topic.partitions) for topic in present},
        created=sorted(
            each.name
            for each in changed
            if each.topic_id != getattr(before.get(each.name), "topic_id", "")
        ),
        deleted=sorted(name for name, topic in before.items() if ids.get(name) != topic.topic_id),
        set_aside=sorted(aside),
        settings=[*settings.of_brokers(image), *outcomes],
        lost=sorted({_KINDS[value[1]] for value in image.others if value[1] in _KINDS}),
        clean=False,
        changed=tuple(changed),
    )


def take_back(path: Path, metadata: Path | None) -> Taken:
    """Take the directory back. Raises StateError if no broker has used it since embedlog,
    DirectoryInUseError if one runs.
    """
    check(path)
    with held(path) as use:
        if not use.by_broker:
            finish(path)
            raise StateError(
                "no broker has used the directory since embedlog closed it: there is nothing to "
                "take back",
                path=path,
            )
        found = plan(path, metadata)
        mode = LogConfig().file_mode
        for name in found.set_aside:
            topic, _, number = name.rpartition("-")
            files.rename(
                found.directory / name,
                found.directory / f"{topic[:200]}-{number}.{uuid.uuid4().hex}-stray",
            )
        if found.set_aside:
            files.sync_directory(found.directory)
        registry = TopicRegistry(found.directory, mode)
        registry.load()
        kept = {topic.name for topic in found.changed}
        registry.change(
            found.changed, [topic.name for topic in registry.all() if topic.name not in kept]
        )
    return replace(found, clean=use.clean)


def finish(path: Path) -> None:
    """Remove the broker's configuration file: the directory is embedlog's again
    (SERVERPROPERTIES-1).
    """
    if files.unlink(path / file_names.SERVER_PROPERTIES, missing_ok=True):
        files.sync_directory(path)


def metadata_place(path: Path, given: Path | None) -> Path:
    """The metadata directory: the given one, that of the configuration file, or the log directory
    itself.
    """
    return files.absolute(given or server_properties.read(path).get("metadata.log.dir") or path)


# ---- the image -----------------------------------------------------------------------------------


def _image(where: Path, meta: MetaProperties) -> Image:
    found = read_meta(where)
    image, log = metadata_image.read(where)
    if found is None or not log:
        raise ForeignDirectoryError(
            "no metadata log: name the broker's metadata.log.dir by --metadata-dir", path=where
        )
    if (found.cluster_id, found.node_id) != (meta.cluster_id, meta.node_id):
        raise ForeignDirectoryError(
            "the metadata log belongs to another cluster or node",
            path=where,
            expected=f"cluster.id {meta.cluster_id}, node.id {meta.node_id}",
            found=f"cluster.id {found.cluster_id}, node.id {found.node_id}",
        )
    others = sorted(set(image.brokers) - {meta.node_id})
    if others:
        raise ForeignDirectoryError(
            "the cluster has other brokers", path=where, expected=meta.node_id, found=others
        )
    broker = image.brokers.get(meta.node_id)
    directories = sorted(set(broker.directories) - {meta.directory_id or ""}) if broker else []
    if directories:
        raise ForeignDirectoryError(
            "the broker has other log directories",
            path=where,
            expected=f"only {meta.directory_id}",
            found=", ".join(directories),
        )
    return image


def _topic(
    topic: TopicState,
    places: Mapping[int, tuple[str, str | None]],
    before: Topic | None,
    image: Image,
) -> tuple[Topic, list[settings.Setting]]:
    """The topic as embedlog keeps it, and the outcomes of its settings."""
    numbers = sorted(topic.partitions)
    if numbers != list(range(len(numbers))) or not numbers:
        raise CorruptRecordError(
            f"partitions of topic {topic.name} in the metadata log", found=numbers[:8]
        )
    same = before if before is not None and before.topic_id == topic.topic_id else None
    config, outcomes = settings.from_broker(
        topic.name, image.settings_of(topic.name), same.config if same else {}
    )
    complete = all(number in places and places[number][1] == topic.topic_id for number in numbers)
    made = same or Topic(topic.name, topic.topic_id, len(numbers))
    state = "live" if complete else "creating"
    return made._replace(
        partitions=len(numbers), config=config, state=state, growing=0, only=()
    ), outcomes


def _places(path: Path) -> dict[str, dict[int, tuple[str, str | None]]]:
    """By topic and number, the directories of partitions and the topic ids in them."""
    live = scan_directories(path).live
    return {
        topic: {number: (place.name, read_topic_id(place)) for number, place in numbers.items()}
        for topic, numbers in live.items()
    }
