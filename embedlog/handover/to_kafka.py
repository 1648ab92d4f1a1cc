"""Gives a closed log directory to a broker: identity, metadata of its topics, and a configuration
file.

TOKAFKA-1  one renamed file gives the broker its topics: a snapshot of the metadata log after its
    present end. Before it the directory is embedlog's, and a repetition completes what follows
TOKAFKA-2  ids that exist stay: those of the cluster, the node, the directories and the topics
TOKAFKA-3  a partition has no leader in the snapshot, and the largest leader epoch of its log: the
    broker elects itself in the next one
TOKAFKA-4  the next producer id of the broker is above every one in the directory that a broker has
    assigned
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from embedlog.config.topic import LogConfig
from embedlog.coordination.closed_directory import held, last_use
from embedlog.coordination.topic_directories import scan_directories
from embedlog.errors import ForeignDirectoryError, StateError, UnsupportedFormatError
from embedlog.handover import (
    metadata_image,
    metadata_log,
    producer_ids,
    server_properties,
    settings,
)
from embedlog.handover.held_directory import check, identity
from embedlog.handover.metadata_image import Image, TopicState
from embedlog.handover.metadata_log import MetadataLog
from embedlog.handover.metadata_records import NO_LEADER, TOPIC_SETTINGS, Partition, ProducerIds
from embedlog.handover.server_properties import Addresses
from embedlog.storage import file_names, files
from embedlog.storage.checkpoints import read_epochs
from embedlog.storage.identity import (
    MetaProperties,
    mark_owner,
    new_id,
    read_clean_mark,
    read_meta,
    write_clean_mark,
    write_meta,
)
from embedlog.topic import Topic, TopicRegistry

# The features of a new cluster of Kafka 4.0. `kafka-features upgrade` raises them.
FEATURES: Final = {"metadata.version": 25, "group.version": 1, "transaction.version": 2}
# metadata.version of versions 1 and 2 of a partition
_DIRECTORIES_SINCE = 17
_ELR_SINCE = 23


@dataclass(frozen=True)
class Plan:
    """A handover: the broker's topics as {name: partitions}, its configuration file, and the
    outcomes of all settings.
    """

    directory: Path
    metadata: Path
    meta: MetaProperties
    topics: dict[str, int]
    properties: dict[str, str]
    settings: list[settings.Setting]
    image: Image = field(repr=False)
    log: MetadataLog = field(repr=False)

    @property
    def properties_path(self) -> Path:
        """The configuration file of the broker."""
        return self.directory / file_names.SERVER_PROPERTIES


def check_last_use(path: Path) -> None:
    """Raises ForeignDirectoryError if a broker used the directory last: its metadata are not in
    embedlog's files yet.
    """
    check(path)
    if last_use(path).by_broker:
        raise ForeignDirectoryError(
            "a broker has used the directory: take it back first, by `embedlog handover "
            "from-kafka`",
            path=path,
        )


def plan(path: Path, metadata: Path | None, addresses: Addresses, given: Mapping[str, str]) -> Plan:
    """The handover of a directory as it is now; nothing is written."""
    check(path)
    path = files.absolute(path)
    where = files.absolute(metadata or path)
    meta = identity(path)
    _check_metadata(where, meta)
    registry = TopicRegistry(path)
    registry.load()
    topics = {topic.name: topic for topic in registry.all()}
    for topic in topics.values():
        _check_topic(path, topic)
    if strange := scan_directories(path).unknown:
        raise ForeignDirectoryError(
            "a broker does not start beside a directory that is no partition: move it",
            path=strange[0],
        )
    image, log = metadata_image.read(where)
    if log.voter_count > 1:
        raise ForeignDirectoryError(
            "the cluster has other controllers",
            path=where,
            expected="1 voter",
            found=log.voter_count,
        )
    outcomes = [
        each for topic in topics.values() for each in settings.for_broker(topic.name, topic.config)
    ]
    if server_properties.read(path) and log.end > log.snapshot_end:
        outcomes += settings.not_taken_back(topics.values(), image)
    counts = {topic.name: topic.partitions for topic in topics.values()}
    dynamic = int.from_bytes(log.raft.get(metadata_log.RAFT_VERSION, b"\0\0\0\0")[2:4], "big") > 0
    values = server_properties.properties(
        path, where, meta.node_id, counts, addresses, dynamic=dynamic, given=given
    )
    own = [
        settings.Setting(None, name, values[name]) for name in [*settings.broker_defaults(), *given]
    ]
    return Plan(
        path,
        where,
        meta,
        counts,
        values,
        [*dict.fromkeys(own), *outcomes],
        _image_of(path, meta, topics, image),
        log,
    )


def hand_over(
    path: Path, metadata: Path | None, addresses: Addresses, given: Mapping[str, str]
) -> Plan:
    """Give the directory to a broker. REQUIRES that embedlog has closed it in order. Raises
    StateError, DirectoryInUseError.
    """
    check(path)
    with held(path) as use:
        if use.by_broker or not use.clean or mark_owner(path) is None:
            raise StateError(
                "the directory was not closed in order by embedlog: repeat the handover", path=path
            )
        made = plan(path, metadata, addresses, given)
        mode = LogConfig().file_mode
        broker = made.image.brokers.get(made.meta.node_id)
        # otherwise the broker counts as crashed
        if broker is not None and read_clean_mark(path) != broker.epoch:
            write_clean_mark(path, broker.epoch, mode, incarnation=mark_owner(path))
        _write_metadata(made, mode)
        server_properties.write(made.directory, made.properties, mode)
    return made


def _write_metadata(made: Plan, mode: int) -> None:
    """The identity of the metadata directory, then the snapshot (TOKAFKA-1)."""
    place = made.metadata / metadata_log.NAME
    for each in (made.metadata, place):
        if files.mkdir(each, files.directory_mode(mode), exist_ok=True):
            files.sync_directory(each.parent)
    if read_meta(made.metadata) is None:
        write_meta(made.metadata, made.meta._replace(directory_id=new_id(), others={}), mode)
    version = _partition_version(made)
    epoch = max(made.log.epoch, 1)
    data = metadata_log.snapshot(
        made.image.values(version), made.log.raft, epoch, time.time_ns() // 1_000_000
    )
    files.write_atomically(place / metadata_log.snapshot_name(made.log.end + 1, epoch), data, mode)


def _partition_version(made: Plan) -> int:
    level = made.image.features["metadata.version"]
    if level < _DIRECTORIES_SINCE:
        raise UnsupportedFormatError(
            "the metadata.version of the cluster: raise it with kafka-features",
            path=made.metadata,
            expected="3.7 or newer",
            found=level,
        )
    return 2 if level >= _ELR_SINCE else 1


# ---- checks --------------------------------------------------------------------------------------


def _check_metadata(where: Path, meta: MetaProperties) -> None:
    found = read_meta(where)
    if found is not None and (found.cluster_id, found.node_id) != (meta.cluster_id, meta.node_id):
        raise ForeignDirectoryError(
            "the metadata directory belongs to another cluster or node",
            path=where,
            expected=f"cluster.id {meta.cluster_id}, node.id {meta.node_id}",
            found=f"cluster.id {found.cluster_id}, node.id {found.node_id}",
        )


def _check_topic(path: Path, topic: Topic) -> None:
    if topic.only:
        raise ForeignDirectoryError(
            f"other brokers have partitions of topic {topic.name}",
            path=path,
            expected=f"0 to {topic.partitions - 1}",
            found=",".join(map(str, topic.only[:8])),
        )
    if not topic.finished:
        raise StateError(
            f"a change of topic {topic.name} is not complete: repeat the handover", path=path
        )


# ---- the image -----------------------------------------------------------------------------------


def _image_of(path: Path, meta: MetaProperties, topics: Mapping[str, Topic], known: Image) -> Image:
    """The cluster with the topics of the directory; all other records are those of the known
    cluster.
    """
    brokers = sorted(set(known.brokers) - {meta.node_id})
    if brokers:
        raise ForeignDirectoryError(
            "the cluster has other brokers", path=path, expected=meta.node_id, found=brokers
        )
    found = scan_directories(path).live
    image = replace(
        known,
        topics={},
        settings={
            each: known.settings[each] for each in known.settings if each[0] != TOPIC_SETTINGS
        },
    )
    image.features = known.features or dict(FEATURES)
    for topic in topics.values():
        before = known.topics.get(topic.topic_id)
        state = image.topics[topic.topic_id] = TopicState(topic.name, topic.topic_id)
        for number in range(topic.partitions):
            there = found.get(topic.name, {}).get(
                number, path / file_names.partition_name(topic.name, number)
            )
            epoch = read_epochs(there / file_names.EPOCHS).latest_epoch
            earlier = before.partitions.get(number) if before else None
            state.partitions[number] = _partition(meta, topic.topic_id, number, epoch, earlier)
        own = settings.carried(settings.for_broker(topic.name, topic.config))
        if own:
            image.settings[TOPIC_SETTINGS, topic.name] = own
    following = producer_ids.following(
        path, found, known.producer_ids.following if known.producer_ids else 0
    )
    if following:
        epoch = known.producer_ids.broker_epoch if known.producer_ids else 0
        image.producer_ids = ProducerIds(meta.node_id, epoch, following)
    return image


def _partition(
    meta: MetaProperties, topic_id: str, number: int, epoch: int, known: Partition | None
) -> Partition:
    """A partition without a leader (TOKAFKA-3)."""
    node = meta.node_id
    directory = meta.directory_id or ""
    made = Partition(topic_id, number, (node,), (node,), NO_LEADER, max(epoch, 0), 0, (directory,))
    if known is None:
        return made
    return replace(
        made, leader_epoch=max(epoch, known.leader_epoch), partition_epoch=known.partition_epoch + 1
    )
