"""Administration: the verbs that make, describe, change and remove topics.

TOPICADMIN-1  everything is checked before anything is written: a call that raises for its arguments has changed nothing
TOPICADMIN-2  what changes topics holds the directory lock, looks at the file again, and first finishes what others left half done
TOPICADMIN-3  a partition is retired under its append lock: whoever held its descriptors finds DELETED before it can append
TOPICADMIN-4  a creation or growth that fails on the way is taken back; if that fails too, the next change finishes it
"""

from __future__ import annotations

import contextlib
import logging
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from embedlog import _logging
from embedlog._native import system
from embedlog.config import keywords
from embedlog.config.options import by_field, dotted
from embedlog.config.topic import LogConfig, TopicConfig, parse
from embedlog.config.typed_options import TopicOptions
from embedlog.coordination import topic_directories
from embedlog.errors import (
    EmbedlogError,
    ForeignDirectoryError,
    InvalidPartitionsError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    TopicExistsError,
)
from embedlog.partition import retention
from embedlog.storage import file_names, files, locks
from embedlog.storage.control_page import map_page
from embedlog.storage.identity import new_id
from embedlog.topic import Topic, TopicRegistry, check_collision, check_name, is_internal
from embedlog.types import NewTopic, PartitionDescription, TopicDescription, TopicPartition, by_partition

if TYPE_CHECKING:
    from embedlog.partition.partition import Partition

SETTLING_S = 0.1  # how long a change of one topic waits for the locks of another that was left half deleted

_logger = logging.getLogger("embedlog")


@keywords.checked
class Admin:
    """The verbs, for `Log` to inherit. **Threads**: any; **processes**: the directory lock orders them."""

    config: LogConfig
    path: Path
    _registry: TopicRegistry
    _home: Any  # of the log's partitions
    _groups: Any

    if TYPE_CHECKING:  # what `Log` brings along

        def _check_open(self) -> None: ...
        def _check_writable(self) -> None: ...
        def _directory_lock(self) -> contextlib.AbstractContextManager[None]: ...
        def _topic(self, name: str) -> Topic: ...
        def _topics(self) -> list[str]: ...
        def _partition(self, name: str, number: int) -> Partition: ...
        def _refresh_partitions(self) -> None: ...
        def _finish_creation(self, topic: Topic) -> Topic: ...

    # ---- asking ----------------------------------------------------------------------------------

    def topics(self, include_internal: bool = False) -> list[str]:
        """Names of all topics, sorted; those of the log itself (`__consumer_offsets`, …) only if asked for."""
        self._check_open()
        return [name for name in self._topics() if include_internal or not is_internal(name)]

    def describe_topic(self, name: str) -> TopicDescription:
        """A topic's identity, partitions and own settings as they are now. Raises UnknownTopicOrPartitionError."""
        self._check_open()
        topic = self._topic(check_name(name))
        here = [self._describe(self._partition(name, number)) for number in topic.numbers if number < topic.partitions]
        return TopicDescription(name, topic.topic_id, tuple(here), topic.config, is_internal(name))

    @staticmethod
    def _describe(partition: Partition) -> PartitionDescription:
        bounds = partition.bounds()
        size = sum(info.size for info in partition.segments.all(partition.published()))
        return PartitionDescription(partition.number, str(partition.path), *bounds, size_bytes=size)

    # ---- making ----------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        exist_ok: bool = False,
        **settings: Unpack[TopicOptions],
    ) -> bool:
        """Make a topic; it is on disk, and every process can use it, when this returns. Returns whether it was made.

        `partitions` is `num.partitions` of the log if not given. Settings of this topic by Kafka's names: `config` is a mapping,
        keywords have underscores. With `exist_ok` a topic of this name that is there already is right, and stays as it is,
        whatever its partitions and settings are (`describe_topic`).
        Raises InvalidTopicError, TopicExistsError, InvalidPartitionsError, ConfigError; ForeignDirectoryError if a partition's
        directory is there already.
        """
        self._check_writable()
        return bool(self._create([self._planned(NewTopic(name, partitions, config), settings)], exist_ok))

    def create_topics(self, topics: Iterable[str | NewTopic], exist_ok: bool = False) -> list[str]:
        """Make several topics, given by name or as NewTopic(name, partitions, config); returns the names of those made.

        All are checked before anything is written. If one fails on the way, those made before it are taken back; what a crash
        leaves half made is finished by the next process. Otherwise as `create_topic`.
        """
        self._check_writable()
        if isinstance(topics, (str, NewTopic)):
            raise TypeError(f"topics are given as a list of names or NewTopics: [{topics!r}]")
        planned = [self._planned(each if isinstance(each, NewTopic) else NewTopic(each), {}) for each in topics]
        for number, topic in enumerate(planned):
            before = [each.name for each in planned[:number]]
            if topic.name in before:
                raise TopicExistsError(f"the topic {topic.name!r} is to be created twice")
            check_collision(topic.name, before)
        return self._create(planned, exist_ok)

    def _planned(self, new: NewTopic, settings: Mapping[str, Any]) -> Topic:
        """The topic as it shall be, checked in all that can be checked without a look at those that are there."""
        check_name(new.name)
        _refuse_internal(new.name)
        count = self.config.num_partitions if new.partitions is None else _count(new.partitions)
        topic_directories.check_lengths(new.name, count)
        overrides = parse(TopicConfig, new.config, **settings).overrides()
        self.config.topic_config(overrides)  # together with the log's defaults
        return Topic(new.name, new_id(), count, overrides, "creating")

    def _create(self, planned: list[Topic], exist_ok: bool) -> list[str]:
        if exist_ok and all(self._is_live(topic.name) for topic in planned):
            return []  # without the directory lock, which another process may hold for long
        with self._changing():
            topics = [topic for topic in planned if not (exist_ok and self._is_live(topic.name))]
            for topic in topics:
                self._check_absent(topic.name, topic.partitions)
            try:
                self._registry.put(*topics)
                for topic in topics:
                    self._finish_creation(topic)
                    _logger.info("created topic %s: %d partitions, settings %s", topic.name, topic.partitions, dict(topic.config))
            except EmbedlogError:
                for topic in topics:
                    self._take_back(topic)
                raise
        return [topic.name for topic in topics]

    def _is_live(self, name: str) -> bool:
        self._registry.refresh()
        found = self._registry.get(name)
        return found is not None and found.state == "live"

    def _make_internal(self, name: str, partitions: int, config: Mapping[str, Any]) -> None:
        """Make one of the log's own topics, unless somebody else has done so in the meantime."""
        self._check_writable()
        overrides = parse(TopicConfig, config).overrides()
        with self._changing():
            if self._registry.get(name) is None:
                topic = Topic(name, new_id(), partitions, overrides, "creating")
                self._registry.put(topic)
                self._finish_creation(topic)

    def _check_absent(self, name: str, count: int) -> None:
        if self._registry.get(name) is not None:
            raise TopicExistsError(f"there is a topic {name!r} already; with exist_ok=True that is right", path=self.path)
        check_collision(name, [topic.name for topic in self._registry.all()])
        for number in range(count):
            path = self.path / topic_directories.partition_name(name, number)
            if files.exists(path):
                raise ForeignDirectoryError("something that is not this log's lies where a partition would", path=path)

    def _take_back(self, topic: Topic) -> None:
        """Undo a creation that failed; the disk may be full, so this may fail as well.

        The registry first: it may call the topic live already, and what it goes on to promise must have its directories.
        """
        try:
            self._registry.refresh()
            if self._registry.get(topic.name) is not None:
                self._registry.put(replace(topic, state="deleting"))
                topic_directories.finish_deletion(self.path, self._registry, topic, mode=self.config.file_mode)
        except EmbedlogError as problem:
            _logger.warning("topic %s is half created and could not be taken back: %s", topic.name, problem)

    def create_partitions(self, name: str, total_count: int) -> None:
        """Raise the number of partitions to `total_count`; never lower. Keys then belong to other partitions than before.

        Raises UnknownTopicOrPartitionError, InvalidPartitionsError.
        """
        self._check_writable()
        check_name(name)
        _refuse_internal(name)
        count = _count(total_count)
        topic_directories.check_lengths(name, count)
        with self._changing():
            topic = self._registry.live(name)
            if count <= topic.partitions:
                expected = f"more than the {topic.partitions} there are"
                raise InvalidPartitionsError(f"partitions of {name!r} can only be added", expected=expected, found=count)
            try:
                self._registry.put(replace(topic, growing=count))
                self._finish_creation(self._registry.live(name))
            except EmbedlogError:
                self._take_back_growth(topic, count)
                raise

    def _take_back_growth(self, topic: Topic, count: int) -> None:
        """The registry first: what it goes on to promise, perhaps because it cannot be written, must have its directories."""
        try:
            self._registry.put(topic)
            for number in range(topic.partitions, count):
                topic_directories.retire_partition(self.path, topic, number)
        except EmbedlogError as problem:
            _logger.warning("topic %s has grown by half and this could not be taken back: %s", topic.name, problem)

    # ---- changing --------------------------------------------------------------------------------

    def alter_topic(self, name: str, config: Mapping[str, Any] | None = None, **settings: Unpack[TopicOptions]) -> None:
        """Set settings of a topic; the value None takes one back, so that the log's default holds again. Others stay.

        `config` is a mapping of Kafka's names, keywords have underscores.

        Raises UnknownTopicOrPartitionError, ConfigError; then nothing has changed.
        """
        self._check_writable()
        check_name(name)
        if config is None and not settings:
            raise TypeError("settings of a topic are given as a mapping or as keywords, not NoneType")
        given = by_field(TopicConfig, config, settings)
        taken_back = {dotted(key) for key, value in given.items() if value is None}
        new = parse(TopicConfig, {key: value for key, value in given.items() if value is not None}).overrides()
        with self._changing():
            topic = self._registry.live(name)
            overrides = {key: text for key, text in {**topic.config, **new}.items() if key not in taken_back}
            self.config.topic_config(overrides)
            if overrides != topic.config:
                self._registry.put(replace(topic, config=overrides))
                _logger.info("topic %s has the settings %s", name, overrides)

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records below an offset of each partition (-1: all that can be read); returns the new log starts.

        It is on disk when this returns; files go with the next round of housekeeping. An offset below the log start changes
        nothing. Raises OffsetOutOfRangeError, PolicyViolationError (a topic that is only compacted), InvalidTopicError,
        UnknownTopicOrPartitionError; then nothing is deleted anywhere. Raises DurabilityError if what stays cannot be synced:
        a start ahead of what is on disk could not be kept; partitions named before that one have theirs.
        """
        self._check_writable()
        checked = {tp: _whole_number(offset, "an offset") for tp, offset in by_partition("offsets", offsets).items()}
        targets = {tp: self._deletable(tp, offset) for tp, offset in checked.items()}
        with self._changing():
            return {tp: retention.delete_records(partition, checked[tp]) for tp, partition in targets.items()}

    def _deletable(self, tp: TopicPartition, offset: int) -> Partition:
        partition = self._partition(check_name(tp.topic), tp.partition)
        _refuse_internal(tp.topic)
        if "delete" not in partition.config.cleanup_policy:
            raise PolicyViolationError(
                f"records of {tp.topic} cannot be deleted", expected="cleanup.policy with delete",
                found=",".join(partition.config.cleanup_policy),
            )  # fmt: skip
        end = partition.bounds().high_watermark
        if not -1 <= offset <= end:
            raise OffsetOutOfRangeError(
                f"cannot delete records of {tp.topic}-{tp.partition}", path=partition.path, expected=f"-1, or 0 to {end}",
                found=offset,
            )  # fmt: skip
        return partition

    # ---- removing --------------------------------------------------------------------------------

    def delete_topic(self, name: str) -> None:
        """Remove a topic and its records; a new topic of the same name may be made at once.

        Files go after `file.delete.delay.ms`. Raises UnknownTopicOrPartitionError, InvalidTopicError, LockTimeoutError (another
        process is stuck in an append: the topic can no longer be used, and the next change finishes the deletion).
        """
        self._check_writable()
        check_name(name)
        _refuse_internal(name)
        with self._changing():
            topic = replace(self._registry.live(name), state="deleting", growing=0)
            self._registry.put(topic)
            _logger.info("deleting topic %s with %d partitions", topic.name, topic.partitions)
            self._finish_deletion(topic, self.config.lock_timeout_ms / 1000)

    def _finish_deletion(self, topic: Topic, timeout_s: float) -> None:
        deadline_ns = files.deadline_after(timeout_s)

        def retire(number: int, path: Path) -> None:
            mark_deleted(path, self._home.directory_page, deadline_ns, self.config.file_mode, self._home.locked)

        def forget() -> None:
            self._groups.forget_topic(topic.name, deadline_ns)

        topic_directories.finish_deletion(self.path, self._registry, topic, retire, self.config.file_mode, forget)

    # ---- what all changes have in common -----------------------------------------------------------

    @contextlib.contextmanager
    def _changing(self, settling_s: float = SETTLING_S) -> Iterator[None]:
        """The directory lock, with the file of topics read and what was left half done finished (TOPICADMIN-2)."""
        with self._directory_lock():
            try:
                self._registry.refresh()
                self._settle_topics_locked(settling_s)
                yield
            finally:
                self._refresh_partitions()

    def _settle_topics_locked(self, settling_s: float) -> None:
        """Finish creations, growths and deletions whose process died. REQUIRES the directory lock.

        One that cannot be finished now, such as a deletion behind a frozen appender, does not hinder other topics.
        """
        for topic in self._registry.unfinished():
            try:
                if topic.state == "deleting":
                    self._finish_deletion(topic, settling_s)
                else:
                    self._finish_creation(topic)
            except EmbedlogError as problem:
                what = f"topic {topic.name} is half {topic.state} and stays so for now"
                _logging.report(_logger, logging.WARNING, (self.path, "unfinished", topic.name), what, problem)


def mark_deleted(
    path: Path, directory_page: system.Page | None, deadline_ns: int, mode: int = 0o666, locked: bool = False
) -> None:
    """Set DELETED on a partition's page, under its append lock, and wake who waits for records there."""
    lock = locks.LockFile(path / file_names.LOCK, mode)
    try:
        lock.lock(deadline_ns)
        _set_deleted_locked(path, directory_page, locked)
    finally:
        lock.close()  # with its descriptor the lock goes too


def _set_deleted_locked(path: Path, directory_page: system.Page | None, locked: bool) -> None:
    mapped = map_page(path / file_names.PAGE, writable=True, locked=locked)
    if mapped is None:  # never opened since its directory was made, or since a broker had it
        return
    try:
        mapped.page.set(system.WORD_FLAGS, mapped.page.word(system.WORD_FLAGS) | system.FLAG_DELETED)
        now = mapped.page.read()
        if now is not None:
            mapped.page.publish(now._replace(generation=(now.generation + 2) % 2**32), directory_page)
    finally:
        mapped.close()


def _refuse_internal(name: str) -> None:
    if is_internal(name):
        raise InvalidTopicError(f"{name} is one of the log's own topics")


def _whole_number(value: object, what: str) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{what} is an int, not a bool")
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{what} is an int, not {type(value).__name__}") from None


def _count(value: object) -> int:
    count = _whole_number(value, "a number of partitions")
    if not 1 <= count <= 2**31 - 1:
        raise InvalidPartitionsError("number of partitions", expected="1 to 2147483647", found=count)
    return count
