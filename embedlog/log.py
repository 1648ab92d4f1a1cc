"""The public face of an open log: one directory, and the verbs that start everything else.

F1  each verb makes one object and hands it the log; what the verbs do is written in their own rooms
F2  what a log has made is closed with it: what a producer still holds is appended, what a consumer waits for is ended
F3  the asyncio twins are looked up when they are asked for: `import embedlog` does without asyncio
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import FunctionType
from typing import TYPE_CHECKING, Any, Unpack, overload

from embedlog import engine
from embedlog.admin import backup
from embedlog.admin.groups import GroupAdmin
from embedlog.admin.topics import Admin
from embedlog.columns.scan import OffsetBound, Scan
from embedlog.config import keywords
from embedlog.config.client import ConsumerConfig, Deserializer, K, ProducerConfig, Serializer, V
from embedlog.config.options import parse
from embedlog.config.typed_options import ConsumerOptions, LogOptions, ProducerOptions
from embedlog.consumer.consumer import Consumer
from embedlog.errors import StorageError
from embedlog.format.visibility import READ_UNCOMMITTED, Isolation
from embedlog.producer.producer import Producer

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from embedlog.aio.consumer import AsyncConsumer
    from embedlog.aio.producer import AsyncProducer

    KeyOrBytes = TypeVar("KeyOrBytes", default=bytes)  # what a deserializer makes, or bytes where there is none
    ValueOrBytes = TypeVar("ValueOrBytes", default=bytes)

__all__ = ["Log", "open"]


@keywords.checked
class Log(engine.Log):
    """One open log directory; made by `embedlog.open`. A context manager; `close` is idempotent.

    **Threads:** every method may be called from any thread. **Processes:** any number may open the same directory; a handle
    belongs to the one that opened it, it cannot be pickled, and in a forked child it refuses.
    """

    @overload
    def producer(
        self,
        config: None = None,
        *,
        key_serializer: None = None,
        value_serializer: None = None,
        **options: Unpack[ProducerOptions],
    ) -> Producer[bytes, bytes]: ...
    @overload
    def producer(
        self,
        config: None = None,
        *,
        key_serializer: Serializer[K],
        value_serializer: None = None,
        **options: Unpack[ProducerOptions],
    ) -> Producer[K, bytes]: ...
    @overload
    def producer(
        self,
        config: None = None,
        *,
        key_serializer: None = None,
        value_serializer: Serializer[V],
        **options: Unpack[ProducerOptions],
    ) -> Producer[bytes, V]: ...
    @overload
    def producer(
        self,
        config: None = None,
        *,
        key_serializer: Serializer[K],
        value_serializer: Serializer[V],
        **options: Unpack[ProducerOptions],
    ) -> Producer[K, V]: ...
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
        self._check_writable()
        made: Producer[Any, Any] = Producer(self, parse(ProducerConfig, config, **options))
        self._children.add(made)
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
        self._check_open()
        made: Consumer[Any, Any] = Consumer(self, _names(topics), _consumer_config(group_id, config, options))
        self._children.add(made)
        return made

    @overload
    def async_producer(
        self,
        config: None = None,
        *,
        key_serializer: None = None,
        value_serializer: None = None,
        **options: Unpack[ProducerOptions],
    ) -> AsyncProducer[bytes, bytes]: ...
    @overload
    def async_producer(
        self,
        config: None = None,
        *,
        key_serializer: Serializer[K],
        value_serializer: None = None,
        **options: Unpack[ProducerOptions],
    ) -> AsyncProducer[K, bytes]: ...
    @overload
    def async_producer(
        self,
        config: None = None,
        *,
        key_serializer: None = None,
        value_serializer: Serializer[V],
        **options: Unpack[ProducerOptions],
    ) -> AsyncProducer[bytes, V]: ...
    @overload
    def async_producer(
        self,
        config: None = None,
        *,
        key_serializer: Serializer[K],
        value_serializer: Serializer[V],
        **options: Unpack[ProducerOptions],
    ) -> AsyncProducer[K, V]: ...
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

        self._check_open()
        return AsyncProducer(self, parse(ProducerConfig, config, **options))

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

        self._check_open()
        return AsyncConsumer(self, _names(topics), _consumer_config(group_id, config, options))

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
        self._check_open()
        return Scan(
            self,
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
        self._check_open()
        backup.backup(self, destination, progress)


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


for _mixin in (Admin, GroupAdmin):  # Python's own errors name a call by this: by the class that users know
    for _name, _verb in vars(_mixin).items():
        if isinstance(_verb, FunctionType):
            _verb.__qualname__ = getattr(_verb, "__wrapped__", _verb).__qualname__ = f"Log.{_name}"


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
