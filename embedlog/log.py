"""The public `Log`: one open directory, its administration, and its producers and consumers; and `open`.

LOG-1  a method creates one object with the engine, or calls one part; the work is done in the modules of the parts
LOG-2  clients of a log are closed with it: a producer's buffered records are appended, a consumer's wait is ended
LOG-3  the asyncio clients are imported on first use: `import embedlog` does not import asyncio
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, Unpack, overload

from embedlog.admin import backup
from embedlog.admin.administration import Administration
from embedlog.admin.groups import GroupAdmin
from embedlog.admin.housekeeper import Housekeeper
from embedlog.admin.replica_administration import ReplicaAdministration
from embedlog.admin.replica_housekeeper import ReplicaHousekeeper
from embedlog.admin.replicated_topics import ReplicatedTopicAdmin
from embedlog.admin.topics import TopicAdmin
from embedlog.columns.scan import Scan
from embedlog.columns.scan_bounds import OffsetBound, ScanBounds
from embedlog.config import keywords
from embedlog.config.client import ConsumerConfig, Deserializer, K, ProducerConfig, Serializer, V
from embedlog.config.options import parse
from embedlog.config.topic import LogConfig
from embedlog.config.typed_options import ConsumerOptions, LogOptions, ProducerOptions
from embedlog.consumer.consumer import Consumer
from embedlog.display import tables
from embedlog.engine import Engine
from embedlog.errors import StorageError
from embedlog.format.visibility import READ_UNCOMMITTED, Isolation
from embedlog.producer.producer import Producer
from embedlog.replica import ReplicatedEngine, open_directory
from embedlog.storage import location

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from embedlog.aio.consumer import AsyncConsumer
    from embedlog.aio.producer import AsyncProducer

    KeyOrBytes = TypeVar("KeyOrBytes", default=bytes)  # the type of a deserializer; bytes without one
    ValueOrBytes = TypeVar("ValueOrBytes", default=bytes)

__all__ = ["Log", "open"]


@keywords.checked
class Log(Administration, ReplicaAdministration):
    """One open log directory; made by `embedlog.open`. A context manager; `close` is idempotent.

    **Threads:** every method may be called from any thread. **Processes:** any number may open the same directory. A handle
    belongs to the process that opened it, cannot be pickled, and raises in a forked child.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        read_only: bool = False,
        create: bool = True,
        alone: bool = False,
        racks: Sequence[str | None] | None = None,
        config: Mapping[str, Any] | None = None,
        **settings: Unpack[LogOptions],
    ) -> None:
        parsed = parse(LogConfig, config, **settings)
        engine: Engine
        if isinstance(path, Sequence) and not isinstance(path, str | bytes):
            places = [location.checked(each) for each in path]
            engine = ReplicatedEngine(places, read_only=read_only, create=create, config=parsed, racks=racks)
        else:
            if racks is not None:
                raise TypeError("racks belong to a list of directories, one for each")
            engine = open_directory(location.checked(path), read_only=read_only, create=create, alone=alone, config=parsed)
        try:
            self._use(engine)
        except BaseException:
            engine.close()
            raise

    def _use(self, engine: Engine) -> None:
        """Serve this engine from now on. REQUIRES that the caller closes it after an error."""
        self._housekeeper: Housekeeper | None = None
        self.__dict__.pop("_describer", None)
        self.path, self.read_only, self.config = engine.path, engine.read_only, engine.config
        self._engine = engine
        self._topics = ReplicatedTopicAdmin(engine) if isinstance(engine, ReplicatedEngine) else TopicAdmin(engine)
        self._groups = GroupAdmin(engine)
        if not self.read_only:
            self._housekeeper = ReplicaHousekeeper(engine) if isinstance(engine, ReplicatedEngine) else Housekeeper(engine)
            if self.config.housekeeping:
                self._housekeeper.start()

    # ---- clients ---------------------------------------------------------------------------------

    # fmt: off
    @overload
    def producer(
        self, config: None = None, *, key_serializer: None = None, value_serializer: None = None,
        **options: Unpack[ProducerOptions],
    ) -> Producer[bytes, bytes]: ...
    @overload
    def producer(
        self, config: None = None, *, key_serializer: Serializer[K], value_serializer: None = None,
        **options: Unpack[ProducerOptions],
    ) -> Producer[K, bytes]: ...
    @overload
    def producer(
        self, config: None = None, *, key_serializer: None = None, value_serializer: Serializer[V],
        **options: Unpack[ProducerOptions],
    ) -> Producer[bytes, V]: ...
    @overload
    def producer(
        self, config: None = None, *, key_serializer: Serializer[K], value_serializer: Serializer[V],
        **options: Unpack[ProducerOptions],
    ) -> Producer[K, V]: ...
    @overload
    def producer(
        self, config: Mapping[str, Any] | None, *, key_serializer: Serializer[Any] | None = None,
        value_serializer: Serializer[Any] | None = None, **options: Unpack[ProducerOptions],
    ) -> Producer[Any, Any]: ...
    # fmt: on
    def producer(self, config: Mapping[str, Any] | None = None, **options: Any) -> Producer[Any, Any]:
        """A producer, with Kafka's producer settings (docs/configuration.md): `config` is a mapping, keywords have underscores.

        Raises ConfigError, ReadOnlyError, ClosedError.
        """
        self._engine.check_writable()
        made: Producer[Any, Any] = Producer(self._engine, parse(ProducerConfig, config, **options))
        self._engine.children.add(made)
        return made

    # fmt: off
    @overload
    def consumer(
        self, *topics: str, group_id: str | None = None, config: None = None,
        key_deserializer: Deserializer[KeyOrBytes] | None = None, value_deserializer: Deserializer[ValueOrBytes] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer[KeyOrBytes, ValueOrBytes]: ...
    @overload
    def consumer(
        self, *topics: str, group_id: str | None = None, config: Mapping[str, Any] | None,
        key_deserializer: Deserializer[Any] | None = None, value_deserializer: Deserializer[Any] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer[Any, Any]: ...
    # fmt: on
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

    # fmt: off
    @overload
    def async_producer(
        self, config: None = None, *, key_serializer: None = None, value_serializer: None = None,
        **options: Unpack[ProducerOptions],
    ) -> AsyncProducer[bytes, bytes]: ...
    @overload
    def async_producer(
        self, config: None = None, *, key_serializer: Serializer[K], value_serializer: None = None,
        **options: Unpack[ProducerOptions],
    ) -> AsyncProducer[K, bytes]: ...
    @overload
    def async_producer(
        self, config: None = None, *, key_serializer: None = None, value_serializer: Serializer[V],
        **options: Unpack[ProducerOptions],
    ) -> AsyncProducer[bytes, V]: ...
    @overload
    def async_producer(
        self, config: None = None, *, key_serializer: Serializer[K], value_serializer: Serializer[V],
        **options: Unpack[ProducerOptions],
    ) -> AsyncProducer[K, V]: ...
    @overload
    def async_producer(
        self, config: Mapping[str, Any] | None, *, key_serializer: Serializer[Any] | None = None,
        value_serializer: Serializer[Any] | None = None, **options: Unpack[ProducerOptions],
    ) -> AsyncProducer[Any, Any]: ...
    # fmt: on
    def async_producer(self, config: Mapping[str, Any] | None = None, **options: Any) -> AsyncProducer[Any, Any]:
        """The producer for asyncio, to be used in `async with`. Raises ConfigError, ReadOnlyError, ClosedError."""
        from embedlog.aio.producer import AsyncProducer

        self._engine.check_open()
        return AsyncProducer(self._engine, parse(ProducerConfig, config, **options))

    # fmt: off
    @overload
    def async_consumer(
        self, *topics: str, group_id: str | None = None, config: None = None,
        key_deserializer: Deserializer[KeyOrBytes] | None = None, value_deserializer: Deserializer[ValueOrBytes] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> AsyncConsumer[KeyOrBytes, ValueOrBytes]: ...
    @overload
    def async_consumer(
        self, *topics: str, group_id: str | None = None, config: Mapping[str, Any] | None,
        key_deserializer: Deserializer[Any] | None = None, value_deserializer: Deserializer[Any] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> AsyncConsumer[Any, Any]: ...
    # fmt: on
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
        client_rack: str | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> Scan:
        """The present records of `topic` between the bounds, to be read any number of times: as records, or as columns.

        Starts are inclusive, ends exclusive. An offset is one for all partitions, or a mapping of TopicPartition, or of their
        numbers; a partition without an entry is not bounded. Times are ms or aware datetimes. `client_rack`: as for a consumer.
        `progress(offsets passed, all offsets)` is called in each reading, after each chunk; its exception ends the reading.
        Raises UnknownTopicOrPartitionError (also for a bound of a partition that is not read), ConfigError (a start after its
        end), OffsetOutOfRangeError, InvalidTimestampError, ClosedError.
        """
        self._engine.check_open()
        bounds = ScanBounds(
            partitions=partitions, start_offset=start_offset, end_offset=end_offset, start_time=start_time, end_time=end_time,
            columns=columns, isolation_level=isolation_level,
        )  # fmt: skip
        if client_rack is not None and type(client_rack) is not str:
            raise TypeError(f"a rack is a text, not {type(client_rack).__name__}")
        return Scan(self._engine, topic, bounds, client_rack, progress)

    def backup(self, destination: str | os.PathLike[str], *, progress: Callable[[int, int], object] | None = None) -> None:
        """Copy all published records to a directory that is absent or empty; other processes continue meanwhile.

        The copy is a closed log directory in Kafka's form, on stable storage, with its own identity. Every batch is checked
        during the copy. `progress(bytes copied, total bytes)` is called repeatedly; its exception ends the backup. After an error
        nothing of the copy is left. Raises ForeignDirectoryError for a destination that is not empty, CorruptRecordError,
        StorageError, ClosedError.
        """
        self._engine.check_open()
        backup.backup(self._engine, destination, progress)

    # ---- durability and close --------------------------------------------------------------------

    def flush(self, topic: str | None = None) -> None:
        """Sync all published records to stable storage. Raises DurabilityError."""
        self._engine.flush(topic)

    def durable_offset(self, topic: str, partition: int) -> int:
        """Records below this offset are on stable storage."""
        return self._engine.partition(topic, partition).durable_offset

    def housekeep(self, *, due_only: bool = False) -> None:
        """Do one round of retention, expiry and removal of old files in this thread.

        `due_only`: only due tasks that no other process does, which are usually none; for programs that open the log briefly.
        """
        self._engine.check_writable()
        if self._housekeeper is not None:
            self._housekeeper.once(due_only=due_only)

    def close(self) -> None:
        """Close the directory; the last process shuts it down cleanly. Idempotent.

        Raises DurabilityError if that sync fails, and in the end DeliveryError if producers that it closed have lost records.
        """
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._engine.children.reported(kind):
            self.close()

    def __repr__(self) -> str:
        closed = " closed" if self._engine.closed else ""
        return f"<embedlog.Log {str(self.path)!r}{' read-only' if self.read_only else ''}{closed}>"

    def _repr_html_(self) -> str:
        if self._engine.closed:
            return tables.table(repr(self), (), [])
        names = self.topics()
        found = [self.describe_topic(name) for name in names[: tables.ROWS_SHOWN]]
        rows = [
            (each.name, each.partition_count, sum(part.high_watermark - part.log_start_offset for part in each.partitions),
             sum(part.size_bytes for part in each.partitions))
            for each in found
        ]  # fmt: skip
        more = f", the first {len(found)} of {len(names)} topics" if len(found) < len(names) else ""
        return tables.shortened(repr(self) + more, ("topic", "partitions", "offsets", "bytes"), rows)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Log cannot be pickled: call embedlog.open(path) in the worker")


def _names(topics: tuple[Any, ...]) -> tuple[str, ...]:
    """Check the topics of a consumer, which are separate arguments."""
    for each in topics:
        if isinstance(each, Mapping):
            raise TypeError("give topics first, and settings as config={…}: consumer('a', 'b', config={…})")
        if isinstance(each, (list, tuple, set, frozenset)):
            raise TypeError(
                f"topics are separate arguments, not in a {type(each).__name__}: consumer('a', 'b'), consumer(*names)"
            )
    return topics


def _consumer_config(group_id: str | None, config: Mapping[str, Any] | None, options: Mapping[str, Any]) -> ConsumerConfig:
    return parse(ConsumerConfig, config, **options, **({} if group_id is None else {"group_id": group_id}))


def open(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    read_only: bool = False,
    create: bool = True,
    alone: bool = False,
    racks: Sequence[str | None] | None = None,
    config: Mapping[str, Any] | None = None,
    **settings: Unpack[LogOptions],
) -> Log:
    """Open a log directory, and create it if it is absent; any number of processes may open it.

    `read_only` takes no lock and needs no write permission; it follows other processes. `create=False` refuses an absent path.
    A list of directories is a set with replicas; those that are missing or fail are away. `racks` has a label for each. One
    directory of a set is written only if `alone`. `config` has Kafka's names (docs/configuration.md); keywords use "_".

    Raises DirectoryInUseError if a broker uses it, ForeignDirectoryError, UnsupportedFormatError, UnsupportedFilesystemError,
    ReplicaSetError, ConfigError, StorageError.
    """
    try:
        return Log(path, read_only=read_only, create=create, alone=alone, racks=racks, config=config, **settings)
    except StorageError as error:
        if read_only or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        hint = " (read_only=True needs no write permission)"
        raise StorageError(error.message + hint, errno=error.errno, path=error.path, position=error.position) from error
