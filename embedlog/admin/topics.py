"""Administration of topics: create, describe, change and delete.

All arguments are checked before anything is written: a call that raises for them has changed
nothing. A creation or growth that fails is undone; if that fails too, the next change completes it.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from embedlog.config.options import by_field, dotted
from embedlog.config.topic import TopicConfig, parse
from embedlog.coordination import topic_directories
from embedlog.errors import (
    EmbedlogError,
    ForeignDirectoryError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    TopicExistsError,
    TopicMismatchError,
)
from embedlog.storage import file_names, files
from embedlog.storage.identity import new_id
from embedlog.topic import Topic, check_collision, check_count, check_name, is_internal
from embedlog.types import NewTopic, TopicPartition, by_partition

if TYPE_CHECKING:
    from embedlog.config.typed_options import TopicOptions
    from embedlog.descriptions.topics import TopicDescription
    from embedlog.engine.engine import Engine
    from embedlog.partition.interfaces import LogPartition

_logger = logging.getLogger("embedlog")


class TopicAdmin:
    """The administration of topics of one open directory. **Threads**: any; **processes**: the
    directory lock orders them.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._directory = engine.home
        self._registry = engine.registry

    # ---- reads -----------------------------------------------------------------------------------

    def names(self, include_internal: bool = False) -> list[str]:
        """As `Log.topics`."""
        return self._engine.topic_names(include_internal)

    def describe(self, name: str, *, available_only: bool = False) -> TopicDescription:
        """As `Log.describe_topic`."""
        # late: to create a topic needs none
        from embedlog.descriptions.topics import PartitionDescription, TopicDescription

        self._engine.check_open()
        topic = self._engine.topic(check_name(name))
        partitions = [
            self._engine.partition(name, number)
            for number in topic.numbers
            if number < topic.partitions
        ]
        descriptions = []
        for partition in partitions:
            if available_only and not self._engine.is_led(partition):
                continue
            try:
                described = PartitionDescription(
                    partition.number,
                    str(partition.path),
                    *partition.bounds(),
                    size_bytes=partition.size_bytes(),
                )
            except LeaderNotAvailableError:
                if not available_only:
                    raise
            else:
                descriptions.append(described)
        return TopicDescription(
            name, topic.topic_id, tuple(descriptions), topic.config, is_internal(name)
        )

    # ---- creation --------------------------------------------------------------------------------

    def create(self, topic: NewTopic, settings: TopicOptions, exist_ok: bool) -> bool:
        """As `Log.create_topic`, with its settings by name in a mapping of their own."""
        self._engine.check_writable()
        planned = self._plan(topic, settings)
        counts = {topic.name: topic.partitions}
        created = self._create([planned], exist_ok)
        if not created:
            self._check_existing([planned], counts)
        return bool(created)

    def create_all(self, topics: Iterable[str | NewTopic], exist_ok: bool = False) -> list[str]:
        """As `Log.create_topics`."""
        self._engine.check_writable()
        if isinstance(topics, (str, NewTopic)):
            raise TypeError(f"topics are given as a list of names or NewTopics: [{topics!r}]")
        if isinstance(topics, Mapping):
            raise TypeError(
                "topics are given as a list of names or of embedlog.NewTopic(name, partitions, "
                "config), not as a mapping"
            )
        new_topics = [
            entry if isinstance(entry, NewTopic) else NewTopic(_name_of(entry)) for entry in topics
        ]
        planned = [self._plan(new_topic, {}) for new_topic in new_topics]
        before: dict[str, str] = {}  # name by name without the difference of . and _
        for topic in planned:
            plain = topic.name.replace(".", "_")
            if before.get(plain) == topic.name:
                raise TopicExistsError(f"the topic {topic.name!r} is given twice")
            check_collision(topic.name, [before.setdefault(plain, topic.name)])
        counts = {new_topic.name: new_topic.partitions for new_topic in new_topics}
        if exist_ok:
            self._check_existing(planned, counts)  # before anything is created
        created = self._create(planned, exist_ok)
        # of other processes, meanwhile
        self._check_existing([topic for topic in planned if topic.name not in created], counts)
        return created

    def _plan(self, new: NewTopic, settings: Mapping[str, Any]) -> Topic:
        """The topic to create, after all checks that do not depend on existing topics."""
        check_name(new.name)
        _refuse_internal(new.name)
        count = _check_count(
            self._engine.config.num_partitions if new.partitions is None else new.partitions
        )
        count = check_count(self._check_replicas(new, count))
        topic_directories.check_lengths(new.name, count)
        overrides = parse(TopicConfig, new.config, **settings).overrides()
        self._engine.config.check_topic_config(overrides)  # together with the log's defaults
        return Topic(new.name, new_id(), count, overrides, "creating")

    def _check_replicas(self, new: NewTopic, count: int) -> int:
        """The number of partitions, after the replicas were checked: one directory holds one copy
        of each.
        """
        if new.replication_factor not in (None, -1, 1):
            raise InvalidReplicationFactorError(
                f"the topic {new.name!r} with several replicas: open a list of directories for "
                "that",
                expected="1, in one directory",
                found=new.replication_factor,
            )
        if new.assignment is not None:
            raise InvalidReplicaAssignmentError(
                f"the topic {new.name!r} with an assignment: open a list of directories for that",
                found=dict(new.assignment),
            )
        return count

    def _create(self, planned: list[Topic], exist_ok: bool) -> list[str]:
        if exist_ok and all(self._is_live(topic.name) for topic in planned):
            return []  # without the directory lock, which other processes may hold for long
        with self._directory.topic_changes.begin():
            topics = [topic for topic in planned if not (exist_ok and self._is_live(topic.name))]
            for topic in topics:
                self._check_absent(topic.name, topic.partitions)
            try:
                self._registry.put(*topics)
                self._directory.topic_changes.finish_creations(topics)
                for topic in topics:
                    _logger.info(
                        "created topic %s: %d partitions, settings %s",
                        topic.name,
                        topic.partitions,
                        dict(topic.config),
                    )
            except EmbedlogError:
                for topic in topics:
                    self._take_back(topic)
                raise
        return [topic.name for topic in topics]

    def _check_existing(self, planned: Iterable[Topic], counts: Mapping[str, int | None]) -> None:
        """Compare the topics that exist with what was given for them. Raises TopicMismatchError.

        A setting that was not given contradicts nothing, and neither do more partitions:
        `create_partitions` may have added some.
        """
        self._registry.refresh()
        for topic in planned:
            existing = self._registry.get(topic.name)
            if existing is None or existing.state != "live":
                continue
            current_config = self._engine.config.topic_config(existing.config).as_kafka()
            differences: dict[str, tuple[Any, Any]] = {
                key: (value, current_config.get(key))
                for key, value in topic.config.items()
                if current_config.get(key) != value
            }
            count = counts[topic.name]
            if count is not None and count > existing.partitions:
                differences["partitions"] = (count, existing.partitions)
            if differences:
                message = f"topic {topic.name!r} exists and contradicts the call"
                raise TopicMismatchError(
                    message, path=self._directory.path, differences=differences
                )

    def _is_live(self, name: str) -> bool:
        self._registry.refresh()
        topic = self._registry.get(name)
        return topic is not None and topic.state == "live"

    def _check_absent(self, name: str, count: int) -> None:
        self._check_free(name)
        for number in range(count):
            path = self._directory.path / file_names.partition_name(name, number)
            if files.exists(path):
                raise ForeignDirectoryError(
                    "a foreign file has the name of the partition's directory", path=path
                )

    def _check_free(self, name: str) -> None:
        """Raises TopicExistsError, and InvalidTopicError for a name that collides."""
        if self._registry.get(name) is not None:
            raise TopicExistsError(
                f"topic {name!r} exists already; exist_ok=True accepts that",
                path=self._directory.path,
            )
        check_collision(name, self._registry.every_name())

    def _take_back(self, topic: Topic) -> None:
        """Undo a failed creation; this may fail as well, for example on a full disk.

        The registry is changed first: it may show the topic as live already, and a live topic must
        have its directories.
        """
        try:
            self._registry.refresh()
            if self._registry.get(topic.name) is not None:
                self._registry.put(topic._replace(state="deleting"))
                topic_directories.finish_deletion(
                    self._directory.path, self._registry, topic, mode=self._engine.config.file_mode
                )
        except EmbedlogError as problem:
            _logger.warning(
                "topic %s is partly created, and undoing that failed: %s", topic.name, problem
            )

    def grow(self, name: str, total_count: int) -> None:
        """As `Log.create_partitions`."""
        self._engine.check_writable()
        check_name(name)
        _refuse_internal(name)
        count = _check_count(total_count)
        topic_directories.check_lengths(name, count)
        with self._directory.topic_changes.begin():
            topic = self._registry.live(name)
            if count <= topic.partitions:
                expected = f"more than the present {topic.partitions}"
                raise InvalidPartitionsError(
                    f"partitions of {name!r} can only be added", expected=expected, found=count
                )
            try:
                self._registry.put(topic._replace(growing=count))
                self._directory.topic_changes.finish_creation(self._registry.live(name))
            except EmbedlogError:
                self._take_back_growth(topic, count)
                raise

    def _take_back_growth(self, topic: Topic, count: int) -> None:
        """Undo a growth.

        The registry is changed first: if that fails, it still lists partitions that must have their
        directories.
        """
        try:
            self._registry.put(topic)
            for number in range(topic.partitions, count):
                topic_directories.retire_partition(self._directory.path, topic, number)
        except EmbedlogError as problem:
            _logger.warning(
                "the growth of topic %s is incomplete, and undoing it failed: %s",
                topic.name,
                problem,
            )

    # ---- changes ---------------------------------------------------------------------------------

    def alter(
        self, name: str, config: Mapping[str, Any] | None = None, **settings: Unpack[TopicOptions]
    ) -> None:
        """As `Log.alter_topic`."""
        self._engine.check_writable()
        check_name(name)
        if config is None and not settings:
            raise TypeError(
                "settings of a topic are given as a mapping or as keywords, not NoneType"
            )
        values = by_field(TopicConfig, config, settings)
        reset_names = {dotted(key) for key, value in values.items() if value is None}
        new_values = {key: value for key, value in values.items() if value is not None}
        new_overrides = parse(TopicConfig, new_values).overrides()
        with self._directory.topic_changes.begin():
            topic = self._registry.live(name)
            overrides = {**topic.config, **new_overrides}
            for reset_name in reset_names:
                overrides.pop(reset_name, None)
            self._engine.config.check_topic_config(overrides)
            if overrides != topic.config:
                self._registry.put(topic._replace(config=overrides))
                _logger.info("topic %s has the settings %s", name, overrides)
        self._directory.topic_changes.await_appends(name, topic.numbers)

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """As `Log.delete_records`."""
        self._engine.check_writable()
        checked = {
            tp: _whole_number_of(offset, "an offset")
            for tp, offset in by_partition("offsets", offsets).items()
        }
        return self._raise_starts(
            {tp: (self._find_deletable(tp, offset), offset) for tp, offset in checked.items()}
        )

    def _raise_starts(
        self, targets: Mapping[TopicPartition, tuple[LogPartition, int]]
    ) -> dict[TopicPartition, int]:
        with self._directory.topic_changes.begin():
            return {
                tp: partition.delete_records(offset) for tp, (partition, offset) in targets.items()
            }

    def _find_deletable(self, tp: TopicPartition, offset: int) -> LogPartition:
        partition = self._engine.partition(check_name(tp.topic), tp.partition)
        _refuse_internal(tp.topic)
        if "delete" not in partition.config.cleanup_policy:
            raise PolicyViolationError(
                f"records of {tp.topic} cannot be deleted",
                expected="cleanup.policy with delete",
                found=",".join(partition.config.cleanup_policy),
            )
        end = partition.bounds().high_watermark
        if not -1 <= offset <= end:
            raise OffsetOutOfRangeError(
                f"cannot delete records of {tp.topic}-{tp.partition}",
                path=partition.path,
                expected=f"-1, or 0 to {end}",
                found=offset,
            )
        return partition

    # ---- deletion --------------------------------------------------------------------------------

    def delete(self, name: str) -> None:
        """As `Log.delete_topic`."""
        self._engine.check_writable()
        check_name(name)
        _refuse_internal(name)
        with self._directory.topic_changes.begin():
            topic = self._registry.live(name)._replace(state="deleting", growing=0)
            self._registry.put(topic)
            _logger.info("deleting topic %s with %d partitions", topic.name, topic.partitions)
            self._directory.topic_changes.finish_deletion(
                topic, self._engine.config.lock_timeout_ms / 1000
            )


def _refuse_internal(name: str) -> None:
    if is_internal(name):
        raise InvalidTopicError(f"{name} is one of the log's own topics")


def _whole_number_of(value: object, noun: str) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{noun} is an int, not a bool")
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{noun} is an int, not {type(value).__name__}") from None


def _check_count(value: object) -> int:
    return check_count(_whole_number_of(value, "a number of partitions"))


def _name_of(name: object) -> Any:
    """A name, which is checked later. Raises TypeError for the NewTopic of another package."""
    if type(name).__name__ == NewTopic.__name__:
        raise TypeError(
            "a topic is embedlog.NewTopic(name, partitions, config), not "
            f"{type(name).__module__}.NewTopic"
        )
    return name
