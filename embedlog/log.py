"""The public `Log`: one open directory, its administration, and its producers and consumers; and `open`.

LOG-1  a verb makes one object and hands it the engine, or calls one part; the work is done in the modules of the parts
LOG-2  what a log has made is closed with it: what a producer still holds is appended, a wait of a consumer is ended
LOG-3  the asyncio clients are imported on first use: `import embedlog` does without asyncio
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, Unpack, overload

from embedlog.admin import backup
from embedlog.admin.groups import GroupAdmin, Scope
from embedlog.admin.housekeeper import Housekeeper
from embedlog.admin.topics import TopicAdmin
from embedlog.columns.scan import OffsetBound, Scan
from embedlog.config import keywords
from embedlog.config.client import ConsumerConfig, Deserializer, ProducerConfig, Serializer
from embedlog.config.options import parse
from embedlog.config.topic import LogConfig
from embedlog.config.typed_options import ConsumerOptions, LogOptions, ProducerOptions, TopicOptions
from embedlog.consumer.consumer import Consumer
from embedlog.engine import Engine
from embedlog.errors import StorageError
from embedlog.format.visibility import READ_UNCOMMITTED, Isolation
from embedlog.producer.producer import Producer
from embedlog.storage import location
from embedlog.types import GroupDescription, NewTopic, OffsetAndMetadata, TopicDescription, TopicPartition

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from embedlog.aio.consumer import AsyncConsumer
    from embedlog.aio.producer import AsyncProducer

    KeyOrBytes = TypeVar("KeyOrBytes", default=bytes)  # the type of a serializer or deserializer; bytes without one
    ValueOrBytes = TypeVar("ValueOrBytes", default=bytes)

__all__ = ["Log", "open"]


@keywords.checked
class Log:
    """One open log directory; made by `embedlog.open`. A context manager; `close` is idempotent.

    **Threads:** every method may be called from any thread. **Processes:** any number may open the same directory; a handle
    belongs to the one that opened it, it cannot be pickled, and in a forked child it refuses.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        create: bool = True,
        config: Mapping[str, Any] | None = None,
        **settings: Unpack[LogOptions],
    ) -> None:
        where = location.checked(path)
        engine = Engine(where, read_only=read_only, create=create, config=parse(LogConfig, config, **settings))
        self.path, self.read_only, self.config = engine.path, engine.read_only, engine.config
        self._engine = engine
        self._topics, self._groups = TopicAdmin(engine), GroupAdmin(engine)
        self._housekeeper = None if read_only else Housekeeper(engine)
        if self._housekeeper is not None:
            engine.attach(self._housekeeper)
            if self.config.housekeeping:
                self._housekeeper.start()

    # ---- clients ---------------------------------------------------------------------------------

    @overload
    def producer(
        self,
        config: None = None,
        *,
        key_serializer: Serializer[KeyOrBytes] | None = None,
        value_serializer: Serializer[ValueOrBytes] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> Producer[KeyOrBytes, ValueOrBytes]: ...
    @overload
    def producer(
        self,
        config: Mapping[str, Any] | None,
        *,
        key_serializer: Serializer[Any] | None = None,
        value_serializer: Serializer[Any] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> Producer[Any, Any]: ...
    def producer(self, config: Mapping[str, Any] | None = None, **options: Any) -> Producer[Any, Any]:
        """A producer, with Kafka's producer settings (docs/configuration.md): `config` is a mapping, keywords have underscores.

        Raises ConfigError, ReadOnlyError, ClosedError.
        """
        self._engine.check_writable()
        made: Producer[Any, Any] = Producer(self._engine, parse(ProducerConfig, config, **options))
        self._engine.children.add(made)
        return made

    @overload
    def consumer(
        self,
        *topics: str,
        group_id: str | None = None,
        config: None = None,
        key_deserializer: Deserializer[KeyOrBytes] | None = None,
        value_deserializer: Deserializer[ValueOrBytes] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer[KeyOrBytes, ValueOrBytes]: ...
    @overload
    def consumer(
        self,
        *topics: str,
        group_id: str | None = None,
        config: Mapping[str, Any] | None,
        key_deserializer: Deserializer[Any] | None = None,
        value_deserializer: Deserializer[Any] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer[Any, Any]: ...
    def consumer(
        self, *topics: str, group_id: str | None = None, config: Mapping[str, Any] | None = None, **options: Any
    ) -> Consumer[Any, Any]:
        """A consumer of all partitions of `topics`, new ones noticed; without topics, of what it is given by `assign`.

        With a group id, a member of that group: the partitions are shared among all members, in any process. Settings are
        Kafka's for consumers: `config` is a mapping, keywords have underscores.
        Raises ConfigError, UnknownTopicOrPartitionError, ClosedError.
        """
        self._engine.check_open()
        made: Consumer[Any, Any] = Consumer(self._engine, _names(topics), _consumer_config(group_id, config, options))
        self._engine.children.add(made)
        return made

    @overload
    def async_producer(
        self,
        config: None = None,
        *,
        key_serializer: Serializer[KeyOrBytes] | None = None,
        value_serializer: Serializer[ValueOrBytes] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> AsyncProducer[KeyOrBytes, ValueOrBytes]: ...
    @overload
    def async_producer(
        self,
        config: Mapping[str, Any] | None,
        *,
        key_serializer: Serializer[Any] | None = None,
        value_serializer: Serializer[Any] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> AsyncProducer[Any, Any]: ...
    def async_producer(self, config: Mapping[str, Any] | None = None, **options: Any) -> AsyncProducer[Any, Any]:
        """The producer for asyncio, to be used in `async with`. Raises ConfigError, ReadOnlyError, ClosedError."""
        from embedlog.aio.producer import AsyncProducer

        self._engine.check_open()
        return AsyncProducer(self._engine, parse(ProducerConfig, config, **options))

    @overload
    def async_consumer(
        self,
        *topics: str,
        group_id: str | None = None,
        config: None = None,
        key_deserializer: Deserializer[KeyOrBytes] | None = None,
        value_deserializer: Deserializer[ValueOrBytes] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> AsyncConsumer[KeyOrBytes, ValueOrBytes]: ...
    @overload
    def async_consumer(
        self,
        *topics: str,
        group_id: str | None = None,
        config: Mapping[str, Any] | None,
        key_deserializer: Deserializer[Any] | None = None,
        value_deserializer: Deserializer[Any] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> AsyncConsumer[Any, Any]: ...
    def async_consumer(
        self, *topics: str, group_id: str | None = None, config: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncConsumer[Any, Any]:
        """The consumer for asyncio, to be used in `async with`. Raises ConfigError, ClosedError."""
        from embedlog.aio.consumer import AsyncConsumer

        self._engine.check_open()
        return AsyncConsumer(self._engine, _names(topics), _consumer_config(group_id, config, options))

    def scan(
        self,
        topic: str,
        *,
        partitions: int | Iterable[int] | None = None,
        start_offset: OffsetBound = None,
        end_offset: OffsetBound = None,
        start_time: int | datetime | None = None,
        end_time: int | datetime | None = None,
        columns: Iterable[str] | None = None,
        isolation_level: Isolation = READ_UNCOMMITTED,
    ) -> Scan:
        """What `topic` holds now between the bounds, to be read any number of times: as records, or as columns.

        Starts are inclusive, ends exclusive. An offset is one for all partitions, or a mapping of TopicPartition, or of their
        numbers; what has none is not bounded. Times are ms or aware datetimes. Raises UnknownTopicOrPartitionError (a bound of
        what is not read, too), ConfigError (a start behind its end), OffsetOutOfRangeError, InvalidTimestampError, ClosedError.
        """
        self._engine.check_open()
        return Scan(
            self._engine,
            topic,
            partitions=partitions,
            start_offset=start_offset,
            end_offset=end_offset,
            start_time=start_time,
            end_time=end_time,
            columns=columns,
            isolation_level=isolation_level,
        )

    def backup(self, destination: str | os.PathLike[str], *, progress: Callable[[int, int], object] | None = None) -> None:
        """Copies everything that is published now to a directory that is absent or empty; others go on working meanwhile.

        The copy is a closed log directory in Kafka's form, on stable storage, with an identity of its own. Every batch is
        checked on the way. `progress(bytes copied, bytes in all)` is called as it goes on; what it raises ends the backup.
        After an error nothing of the copy is left.
        Raises ForeignDirectoryError for a destination that holds something, CorruptRecordError, StorageError, ClosedError.
        """
        self._engine.check_open()
        backup.backup(self._engine, destination, progress)

    # ---- topics ----------------------------------------------------------------------------------

    def topics(self, include_internal: bool = False) -> list[str]:
        """Names of all topics, sorted; those of the log itself (`__consumer_offsets`, …) only if asked for."""
        return self._topics.names(include_internal)

    def describe_topic(self, name: str) -> TopicDescription:
        """A topic's identity, partitions and own settings as they are now. Raises UnknownTopicOrPartitionError."""
        return self._topics.describe(name)

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
        return self._topics.create(name, partitions, config, exist_ok=exist_ok, **settings)

    def create_topics(self, topics: Iterable[str | NewTopic], exist_ok: bool = False) -> list[str]:
        """Make several topics, given by name or as NewTopic(name, partitions, config); returns the names of those made.

        All are checked before anything is written. If one fails on the way, those made before it are taken back; what a crash
        leaves half made is finished by the next process. Otherwise as `create_topic`.
        """
        return self._topics.create_all(topics, exist_ok)

    def create_partitions(self, name: str, total_count: int) -> None:
        """Raise the number of partitions to `total_count`; never lower. Keys then belong to other partitions than before.

        Raises UnknownTopicOrPartitionError, InvalidPartitionsError.
        """
        self._topics.grow(name, total_count)

    def alter_topic(self, name: str, config: Mapping[str, Any] | None = None, **settings: Unpack[TopicOptions]) -> None:
        """Set settings of a topic; the value None takes one back, so that the log's default holds again. Others stay.

        `config` is a mapping of Kafka's names, keywords have underscores.

        Raises UnknownTopicOrPartitionError, ConfigError; then nothing has changed.
        """
        self._topics.alter(name, config, **settings)

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records below an offset of each partition (-1: all that can be read); returns the new log starts.

        It is on disk when this returns; files go with the next round of housekeeping. An offset below the log start changes
        nothing. Raises OffsetOutOfRangeError, PolicyViolationError (a topic that is only compacted), InvalidTopicError,
        UnknownTopicOrPartitionError; then nothing is deleted anywhere. Raises DurabilityError if what stays cannot be synced:
        a start ahead of what is on disk could not be kept; partitions named before that one have theirs.
        """
        return self._topics.delete_records(offsets)

    def delete_topic(self, name: str) -> None:
        """Remove a topic and its records; a new topic of the same name may be made at once.

        Files go after `file.delete.delay.ms`. Raises UnknownTopicOrPartitionError, InvalidTopicError, LockTimeoutError (another
        process is stuck in an append: the topic can no longer be used, and the next change finishes the deletion).
        """
        self._topics.delete(name)

    # ---- groups ----------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """The ids of all groups, sorted: those that somebody has joined, and those with nothing but committed offsets."""
        return self._groups.names()

    def describe_group(self, group_id: str) -> GroupDescription:
        """State, members, and what is committed, read and still to be read of each partition. Raises GroupNotFoundError."""
        return self._groups.describe(group_id)

    def group_offsets(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a group has committed, by partition; empty if there is no such group."""
        return self._groups.offsets(group_id)

    def keep_group(self, group_id: str) -> None:
        """Let what a group has committed never expire: for a program that remembers by it what it has done; nobody can join it.

        The group need not exist. Raises InconsistentGroupProtocolError for one that consumers have joined, InvalidGroupIdError.
        """
        self._groups.keep(group_id)

    def reset_group_offsets(
        self, group_id: str, topics: Scope = None, *, to: Any, dry_run: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Commit other offsets for a group that has no members; returns them. With `dry_run` nothing is written.

        `topics`: a topic, a TopicPartition, several of either, or None for every partition that the group has committed. `to` is
        "earliest", "latest" or "current"; an offset; an aware datetime, or a timedelta back from now, for the first record since
        then; `{"shift": n}`, or `{"offset": n}`, `{"time": ms}`, `{"duration": "PT1H"}`; or `{TopicPartition: offset}`. What lies
        outside of the log is moved to its nearer end, with a warning in the program's log. The group need not exist.

        Raises GroupNotEmptyError; GroupNotFoundError if there is nothing to reset; NoOffsetForPartitionError for a shift where
        nothing is committed; UnknownTopicOrPartitionError, ConfigError, InvalidGroupIdError. Then nothing has changed.
        """
        return self._groups.reset_offsets(group_id, topics, to=to, dry_run=dry_run)

    def delete_group(self, group_id: str) -> None:
        """Forget a group and all that it has committed. Raises GroupNotEmptyError, GroupNotFoundError."""
        self._groups.delete(group_id)

    def delete_group_offsets(self, group_id: str, tps: Iterable[TopicPartition]) -> None:
        """Forget what a group has committed for these partitions; where that is nothing, nothing changes.

        Raises GroupSubscribedError if its members read one of the topics, GroupNotEmptyError if they are no consumers,
        GroupNotFoundError; then nothing has changed.
        """
        self._groups.delete_offsets(group_id, tps)

    def remove_group_members(self, group_id: str, instance_ids: Collection[str] | None = None) -> None:
        """Take the places of these static members away at once, instead of when their sessions end; None: those of all members.

        Who lives, and polls, joins anew; what it has not committed by then it cannot commit any more. Raises GroupNotFoundError,
        UnknownMemberError if one of the instances is not there, InconsistentGroupProtocolError; then nothing has changed.
        """
        self._groups.remove_members(group_id, instance_ids)

    # ---- durability and closing ------------------------------------------------------------------

    def flush(self, topic: str | None = None) -> None:
        """Put everything that is published now on stable storage. Raises DurabilityError."""
        self._engine.flush(topic)

    def durable_offset(self, topic: str, partition: int) -> int:
        """Records below this offset are on stable storage."""
        return self._engine.partition(topic, partition).durable_offset

    def housekeep(self, *, due_only: bool = False) -> None:
        """One round of retention, expiry and removal of old files, now, in this thread.

        `due_only`: what is due and nobody else is at, which mostly is nothing; for programs that are never open for long.
        """
        self._engine.check_writable()
        if self._housekeeper is not None:
            self._housekeeper.once(due_only=due_only)

    def close(self) -> None:
        """Leave the directory; the last process out closes it in order. Idempotent.

        Raises DurabilityError if that sync fails, and in the end DeliveryError if producers that it closed have lost records.
        """
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._engine.children.heard(kind):
            self.close()

    def __repr__(self) -> str:
        closed = " closed" if self._engine.closed else ""
        return f"<embedlog.Log {str(self.path)!r}{' read-only' if self.read_only else ''}{closed}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Log cannot be pickled: call embedlog.open(path) in the worker")


def _names(topics: tuple[Any, ...]) -> tuple[str, ...]:
    """The topics of a consumer, each given by itself."""
    for each in topics:
        if isinstance(each, Mapping):
            raise TypeError("topics come first, settings are config={…}: consumer('a', 'b', config={…})")
        if isinstance(each, (list, tuple, set, frozenset)):
            raise TypeError(f"topics are given one by one, not in a {type(each).__name__}: consumer('a', 'b'), consumer(*names)")
    return topics


def _consumer_config(group_id: str | None, config: Mapping[str, Any] | None, options: Mapping[str, Any]) -> ConsumerConfig:
    return parse(ConsumerConfig, config, **options, **({} if group_id is None else {"group_id": group_id}))


def open(
    path: str | os.PathLike[str],
    *,
    read_only: bool = False,
    create: bool = True,
    config: Mapping[str, Any] | None = None,
    **settings: Unpack[LogOptions],
) -> Log:
    """Opens a log directory, which is made if it is not there; any number of processes may.

    `read_only` writes nothing, takes no lock and needs no permission to write; it follows what others append. `create=False`
    refuses a path where nothing is. Settings of the log (docs/configuration.md): `config` is a mapping of Kafka's names,
    keywords have underscores.

    Raises DirectoryInUseError where a broker is in, ForeignDirectoryError, UnsupportedFormatError, UnsupportedFilesystemError,
    ConfigError, StorageError.
    """
    try:
        return Log(path, read_only=read_only, create=create, config=config, **settings)
    except StorageError as error:
        if read_only or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        message = f"{error.message} (read_only=True needs no permission to write)"
        raise StorageError(message, errno=error.errno, path=error.path, position=error.position) from error
