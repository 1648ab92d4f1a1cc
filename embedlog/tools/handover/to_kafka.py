"""Gives a closed log directory to a broker: identity, metadata of its topics, and a configuration
file.

- One renamed file gives the broker its topics: a snapshot of the metadata log after its present
  end. Before it the directory is embedlog's, and a repetition completes what follows.
- Ids that exist stay: those of the cluster, the node, the directories and the topics.
- A partition has no leader in the snapshot, and the largest leader epoch of its log: the broker
  elects itself in the next one.
- The next producer id of the broker is above every one in the directory that a broker has assigned.
  Ids of embedlog are 2^62 and above, so they do not count. A broker takes ids in blocks of a
  thousand, and may have assigned the rest of the last block.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from embedlog.config.topic import LogConfig
from embedlog.coordination.closed_directory import find_last_use, hold
from embedlog.coordination.topic_directories import scan_directories
from embedlog.errors import ForeignDirectoryError, StateError, UnsupportedFormatError
from embedlog.format.producer_state import ProducerState
from embedlog.format.wire import LONG
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
from embedlog.tools.dump.batches import read_batches
from embedlog.tools.dump.segments import records_of
from embedlog.tools.handover import metadata_image, metadata_log, server_properties, settings
from embedlog.tools.handover.held_directory import check, identity
from embedlog.tools.handover.metadata_image import Image, TopicState
from embedlog.tools.handover.metadata_log import MetadataLog
from embedlog.tools.handover.metadata_records import (
    NO_LEADER,
    TOPIC_SETTINGS,
    PartitionRecord,
    ProducerIds,
)
from embedlog.tools.handover.server_properties import Addresses
from embedlog.topic import Topic, TopicRegistry

# The features of a new cluster of Kafka 4.0. `kafka-features upgrade` raises them.
FEATURES: Final = {"metadata.version": 25, "group.version": 1, "transaction.version": 2}
# metadata.version of versions 1 and 2 of a partition
_DIRECTORIES_SINCE = 17
_ELR_SINCE = 23
# producer ids that a broker takes at once
_ID_BLOCK: Final = 1000

_OWN_IDS_FROM: Final = 2**62
_TRANSACTIONS_TOPIC: Final = "__transaction_state"
_AFTER_VERSION = 2  # bytes of a record's value before the producer id


@dataclass(frozen=True)
class HandoverPlan:
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
    if find_last_use(path).broker_wrote:
        raise ForeignDirectoryError(
            "a broker has used the directory: take it back first, by `embedlog handover "
            "from-kafka`",
            path=path,
        )


def plan(
    path: Path, metadata: Path | None, addresses: Addresses, given: Mapping[str, str]
) -> HandoverPlan:
    """The handover of a directory as it is now; nothing is written."""
    check(path)
    path = files.absolute(path)
    metadata_path = files.absolute(metadata or path)
    meta = identity(path)
    _check_metadata(metadata_path, meta)
    registry = TopicRegistry(path)
    registry.load()
    topics = {topic.name: topic for topic in registry.all()}
    for topic in topics.values():
        _check_topic(path, topic)
    unknown_directories = scan_directories(path).unknown
    if unknown_directories:
        raise ForeignDirectoryError(
            "a broker does not start beside a directory that is no partition: move it",
            path=unknown_directories[0],
        )
    image, log = metadata_image.read(metadata_path)
    if log.voter_count > 1:
        raise ForeignDirectoryError(
            "the cluster has other controllers",
            path=metadata_path,
            expected="1 voter",
            found=log.voter_count,
        )
    outcomes: list[settings.Setting] = []
    for topic in topics.values():
        outcomes += settings.for_broker(topic.name, topic.config)
    if server_properties.read(path) and log.end > log.snapshot_end:
        outcomes += settings.not_taken_back(topics.values(), image)
    partition_counts = {topic.name: topic.partitions for topic in topics.values()}
    raft_version = log.raft.get(metadata_log.RAFT_VERSION, b"\0\0\0\0")
    properties = server_properties.properties(
        path,
        metadata_path,
        node=meta.node_id,
        partitions=partition_counts,
        addresses=addresses,
        dynamic=int.from_bytes(raft_version[2:4], "big") > 0,
        given=given,
    )
    broker_names = dict.fromkeys([*settings.broker_defaults(), *given])
    broker_settings = [settings.Setting(None, name, properties[name]) for name in broker_names]
    return HandoverPlan(
        path,
        metadata_path,
        meta,
        topics=partition_counts,
        properties=properties,
        settings=[*broker_settings, *outcomes],
        image=_image_of(path, meta, topics, image),
        log=log,
    )


def hand_over(
    path: Path, metadata: Path | None, addresses: Addresses, given: Mapping[str, str]
) -> HandoverPlan:
    """Give the directory to a broker. REQUIRES that embedlog has closed it in order. Raises
    StateError, DirectoryInUseError.
    """
    check(path)
    with hold(path) as use:
        if use.broker_wrote or not use.clean or mark_owner(path) is None:
            raise StateError(
                "the directory was not closed in order by embedlog: repeat the handover", path=path
            )
        handover = plan(path, metadata, addresses, given)
        mode = LogConfig().file_mode
        broker = handover.image.brokers.get(handover.meta.node_id)
        # otherwise the broker counts as crashed
        if broker is not None and read_clean_mark(path) != broker.epoch:
            write_clean_mark(path, broker.epoch, mode, incarnation=mark_owner(path))
        _write_metadata(handover, mode)
        server_properties.write(handover.directory, handover.properties, mode)
    return handover


def _write_metadata(handover: HandoverPlan, mode: int) -> None:
    """The identity of the metadata directory, then the snapshot, whose rename gives the broker its
    topics.
    """
    log_directory = handover.metadata / metadata_log.NAME
    for directory in (handover.metadata, log_directory):
        if files.mkdir(directory, files.directory_mode(mode), exist_ok=True):
            files.sync_directory(directory.parent)
    if read_meta(handover.metadata) is None:
        meta = handover.meta._replace(directory_id=new_id(), others={})
        write_meta(handover.metadata, meta, mode)
    version = _partition_version(handover)
    epoch = max(handover.log.epoch, 1)
    data = metadata_log.snapshot(
        handover.image.values(version), handover.log.raft, epoch, time.time_ns() // 1_000_000
    )
    name = metadata_log.snapshot_name(handover.log.end + 1, epoch)
    files.write_atomically(log_directory / name, data, mode)


def _partition_version(handover: HandoverPlan) -> int:
    level = handover.image.features["metadata.version"]
    if level < _DIRECTORIES_SINCE:
        raise UnsupportedFormatError(
            "the metadata.version of the cluster: raise it with kafka-features",
            path=handover.metadata,
            expected="3.7 or newer",
            found=level,
        )
    return 2 if level >= _ELR_SINCE else 1


# ---- checks --------------------------------------------------------------------------------------


def _check_metadata(metadata_path: Path, meta: MetaProperties) -> None:
    metadata_meta = read_meta(metadata_path)
    if metadata_meta is None:
        return
    if (metadata_meta.cluster_id, metadata_meta.node_id) != (meta.cluster_id, meta.node_id):
        raise ForeignDirectoryError(
            "the metadata directory belongs to another cluster or node",
            path=metadata_path,
            expected=f"cluster.id {meta.cluster_id}, node.id {meta.node_id}",
            found=f"cluster.id {metadata_meta.cluster_id}, node.id {metadata_meta.node_id}",
        )


def _check_topic(path: Path, topic: Topic) -> None:
    if topic.only:
        raise ForeignDirectoryError(
            f"other brokers have partitions of topic {topic.name}",
            path=path,
            expected=f"0 to {topic.partitions - 1}",
            found=",".join(map(str, topic.only[:8])),
        )
    if not topic.is_finished:
        raise StateError(
            f"a change of topic {topic.name} is not complete: repeat the handover", path=path
        )


# ---- the image -----------------------------------------------------------------------------------


def _image_of(
    path: Path, meta: MetaProperties, topics: Mapping[str, Topic], current: Image
) -> Image:
    """The cluster with the topics of the directory; all other records are those of the known
    cluster.
    """
    brokers = sorted(set(current.brokers) - {meta.node_id})
    if brokers:
        raise ForeignDirectoryError(
            "the cluster has other brokers", path=path, expected=meta.node_id, found=brokers
        )
    directories = scan_directories(path).live
    other_settings = {
        (kind, resource): config
        for (kind, resource), config in current.settings.items()
        if kind != TOPIC_SETTINGS
    }
    image = replace(current, topics={}, settings=other_settings)
    image.features = current.features or dict(FEATURES)
    for topic in topics.values():
        earlier_topic = current.topics.get(topic.topic_id)
        state = TopicState(topic.name, topic.topic_id)
        image.topics[topic.topic_id] = state
        for number in range(topic.partitions):
            directory = directories.get(topic.name, {}).get(number)
            if directory is None:
                directory = path / file_names.partition_name(topic.name, number)
            epoch = read_epochs(directory / file_names.EPOCHS).latest_epoch
            earlier = None
            if earlier_topic is not None:
                earlier = earlier_topic.partitions.get(number)
            state.partitions[number] = _leaderless_partition(
                meta, topic.topic_id, number, epoch, earlier
            )
        topic_settings = settings.carried(settings.for_broker(topic.name, topic.config))
        if topic_settings:
            image.settings[TOPIC_SETTINGS, topic.name] = topic_settings
    known_id = 0
    broker_epoch = 0
    if current.producer_ids is not None:
        known_id = current.producer_ids.following
        broker_epoch = current.producer_ids.broker_epoch
    next_id = _find_next_producer_id(directories, known_id)
    if next_id:
        image.producer_ids = ProducerIds(meta.node_id, broker_epoch, next_id)
    return image


def _leaderless_partition(
    meta: MetaProperties, topic_id: str, number: int, epoch: int, earlier: PartitionRecord | None
) -> PartitionRecord:
    """A partition without a leader, with the largest leader epoch of its log."""
    node = meta.node_id
    partition = PartitionRecord(
        topic_id,
        number,
        replicas=(node,),
        isr=(node,),
        leader=NO_LEADER,
        leader_epoch=max(epoch, 0),
        partition_epoch=0,
        directories=(meta.directory_id or "",),
    )
    if earlier is None:
        return partition
    return replace(
        partition,
        leader_epoch=max(epoch, earlier.leader_epoch),
        partition_epoch=earlier.partition_epoch + 1,
    )


BLOCKS_TAKEN: Final = 2  # by a broker: the present one, and the next one in advance


def _find_next_producer_id(partitions: Mapping[str, Mapping[int, Path]], known_id: int) -> int:
    """The first producer id that no broker has assigned, as far as these directories of partitions
    show; 0: no broker has assigned any. `known_id`: the one that the metadata has.
    """
    broker_ids = [
        producer_id
        for producer_id in _find_producer_ids(partitions)
        if 0 <= producer_id < _OWN_IDS_FROM
    ]
    if not broker_ids:
        return max(known_id, 0)
    return max(known_id, (max(broker_ids) // _ID_BLOCK + BLOCKS_TAKEN) * _ID_BLOCK)


def _find_producer_ids(partitions: Mapping[str, Mapping[int, Path]]) -> Iterator[int]:
    """The ids in the newest snapshot of each partition, and in the records of transactional ids."""
    for topic, numbers in partitions.items():
        for directory in numbers.values():
            names = files.listing(directory)
            snapshots = file_names.bases(names, file_names.SNAPSHOT)
            if snapshots:
                path = directory / file_names.file_name(snapshots[-1], file_names.SNAPSHOT)
                data = files.read_bytes(path) or b""
                yield from ProducerState.decode(data, snapshots[-1], path).producers
            if topic == _TRANSACTIONS_TOPIC:
                for base in file_names.bases(names):
                    path = directory / file_names.file_name(base, file_names.LOG)
                    yield from _read_transactional_ids(path)


def _read_transactional_ids(path: Path) -> Iterator[int]:
    """The producer ids in records of transactional ids, whose first field they are in every
    version.
    """
    with files.opened(path) as fd:
        for batch in read_batches(fd, path):
            if batch.is_control or not batch.is_valid:
                continue
            for record in records_of(batch):
                if record.value is not None and len(record.value) >= _AFTER_VERSION + LONG.size:
                    yield LONG.unpack_from(record.value, _AFTER_VERSION)[0]
