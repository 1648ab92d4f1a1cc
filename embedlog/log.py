"""The public `Log`: one open directory, its administration, and its producers and consumers; and
`open`.

- A method creates one object with the engine, or calls one part; the work is done in the modules of
  the parts.
- Clients of a log are closed with it: a producer's buffered records are appended, a consumer's wait
  is ended.
- Clients, scans and the modules of sets are imported on first use: opening a log takes less time
  than their imports.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, Unpack, cast, overload

from embedlog.admin.administration import Administration
from embedlog.admin.directory_engine import open_directory
from embedlog.admin.housekeeper import Housekeeper
from embedlog.admin.replica_administration import ReplicaAdministration
from embedlog.admin.topics import TopicAdmin
from embedlog.config import keywords, other_clients
from embedlog.config.options import parse
from embedlog.config.topic import LogConfig
from embedlog.engine.engine import Engine
from embedlog.errors import ForeignDirectoryError, StorageError
from embedlog.format.visibility import READ_UNCOMMITTED, Isolation
from embedlog.hooks.callbacks import Progress, Work
from embedlog.storage import identity, location

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow
    from typing_extensions import TypeVar

    from embedlog._native._rows import Record
    from embedlog.admin.replica_housekeeper import ReplicaHousekeeper
    from embedlog.aio.consumer import AsyncConsumer
    from embedlog.aio.producer import AsyncProducer
    from embedlog.columns.scan import Scan
    from embedlog.columns.scan_bounds import OffsetBound
    from embedlog.config.callables import Deserializer, Serializer
    from embedlog.config.client import ConsumerConfig, K, ProducerConfig, V
    from embedlog.config.typed_options import ConsumerOptions, LogOptions, ProducerOptions
    from embedlog.consumer.consumer import Consumer
    from embedlog.integrity.report import CheckReport
    from embedlog.producer.producer import Producer
    from embedlog.replica import ReplicatedEngine

    # the type of a deserializer; bytes without one
    KeyOrBytes = TypeVar("KeyOrBytes", default=bytes)
    ValueOrBytes = TypeVar("ValueOrBytes", default=bytes)

__all__ = ["Log", "check", "open", "repair"]


@keywords.checked
class Log(Administration, ReplicaAdministration, metaclass=other_clients.Hinting):
    """One open log directory; made by `embedlog.open`. A context manager; `close` is idempotent.

    **Threads:** every method may be called from any thread. **Processes:** any number may open the
    same directory. A handle belongs to the process that opened it, cannot be pickled, and raises in
    a forked child.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        read_only: bool = False,
        create: bool = True,
        alone: bool = False,
        racks: Sequence[str | None] | None = None,
        restored: bool = False,
        progress: Progress | None = None,
        config: Mapping[str, Any] | None = None,
        **settings: Unpack[LogOptions],
    ) -> None:
        parsed = parse(LogConfig, config, **settings)
        engine: Engine
        if isinstance(path, Sequence) and not isinstance(path, str | bytes):
            from embedlog.replica import ReplicatedEngine

            paths = [location.check_path(path_of_one) for path_of_one in path]
            if restored and read_only:
                raise TypeError("restored begins the set again, which read_only forbids")
            engine = ReplicatedEngine(
                paths,
                read_only=read_only,
                create=create,
                config=parsed,
                racks=racks,
                restored=restored,
                progress=progress,
            )
        else:
            if racks is not None:
                raise TypeError("racks belong to a list of directories, one for each")
            if restored:
                raise TypeError("restored belongs to a list of directories: all of a set")
            engine = open_directory(
                location.check_path(path),
                read_only=read_only,
                create=create,
                alone=alone,
                config=parsed,
                progress=progress,
            )
        try:
            self._use(engine)
        except BaseException:
            engine.close()
            raise

    def _use(self, engine: Engine) -> None:
        """Serve this engine from now on. REQUIRES that the caller closes it after an error."""
        self._housekeeper: Housekeeper | None = None
        self.__dict__.pop("_describer", None)
        self.path = engine.path
        self.read_only = engine.read_only
        self.config = engine.config
        self._engine = engine
        self._topics = _replicated_topics(engine) if engine.replicated else TopicAdmin(engine)
        if not self.read_only:
            self._housekeeper = (
                _replica_housekeeper(engine) if engine.replicated else Housekeeper(engine)
            )
            if self.config.housekeeping:
                self._housekeeper.start()

    # ---- clients ---------------------------------------------------------------------------------

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
    def producer(
        self, config: Mapping[str, Any] | None = None, **options: Any
    ) -> Producer[Any, Any]:
        """A producer, with Kafka's producer settings (docs/configuration.md): `config` is a
        mapping, keywords have underscores.

        Raises ConfigError, ReadOnlyError, ClosedError, and MissingExtraError if `compression.type`
        is snappy without its package.
        """
        from embedlog.producer.producer import Producer

        self._engine.check_writable()
        producer: Producer[Any, Any] = Producer(self._engine, _producer_config(config, options))
        self._engine.children.add(producer)
        return producer

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
        self,
        *topics: str,
        group_id: str | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Consumer[Any, Any]:
        """A consumer of all partitions of `topics`, new ones noticed; without topics, of what it is
        given by `assign`.

        With a group id, a member of that group: the partitions are shared among all members, in any
        process. Settings are Kafka's for consumers: `config` is a mapping, keywords have
        underscores. Raises ConfigError, UnknownTopicOrPartitionError, ClosedError.
        """
        from embedlog.consumer.consumer import Consumer

        self._engine.check_open()
        consumer: Consumer[Any, Any] = Consumer(
            self._engine, _check_topics(topics), _consumer_config(group_id, config, options)
        )
        self._engine.children.add(consumer)
        return consumer

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
    def async_producer(
        self, config: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncProducer[Any, Any]:
        """The producer for asyncio, to be used in `async with`. Raises as `producer` does."""
        from embedlog.aio.producer import AsyncProducer

        self._engine.check_open()
        return AsyncProducer(self._engine, _producer_config(config, options))

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
        self,
        *topics: str,
        group_id: str | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncConsumer[Any, Any]:
        """The consumer for asyncio, to be used in `async with`. Raises ConfigError, ClosedError."""
        from embedlog.aio.consumer import AsyncConsumer

        self._engine.check_open()
        return AsyncConsumer(
            self._engine, _check_topics(topics), _consumer_config(group_id, config, options)
        )

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
        """The current records of `topic` between the bounds, to be read any number of times: as
        records, or as columns.

        Starts are inclusive, ends exclusive. An offset is one for all partitions, or a mapping of
        TopicPartition, or of their numbers; a partition without an entry is not bounded. Times are
        ms or aware datetimes. `client_rack`: as for a consumer. A start below the log start is
        moved up to it, and an end above the log end down to it; `Scan.bounds` has the result. A
        start above the log end is no error: the scan is empty, and its bounds are (start, start).
        `progress(offsets passed, all offsets)` is called in each reading, after each chunk; its
        exception ends the reading. Raises UnknownTopicOrPartitionError (also for a bound of a
        partition that is not read), ConfigError (a start after its end), OffsetOutOfRangeError (a
        negative offset), InvalidTimestampError, ClosedError.
        """
        from embedlog.columns.scan import Scan
        from embedlog.columns.scan_bounds import ScanBounds

        self._engine.check_open()
        bounds = ScanBounds(
            partitions=partitions,
            start_offset=start_offset,
            end_offset=end_offset,
            start_time=start_time,
            end_time=end_time,
            columns=columns,
            isolation_level=isolation_level,
        )
        if client_rack is not None and type(client_rack) is not str:
            raise TypeError(f"a rack is a text, not {type(client_rack).__name__}")
        return Scan(self._engine, topic, bounds, client_rack, progress)

    def sql(self, query: str, **bounds: Any) -> pyarrow.Table:
        """The rows of an SQL query over the topics, each of which is a table of its name, as a
        pyarrow Table.

        `bounds` are the other arguments of `scan`. For several queries
        `embedlog.duckdb.register(log)` is faster: it gives a connection with these tables. Raises
        MissingExtraError without duckdb or pyarrow, as `scan` does, and DuckDB's errors.

        Examples:
            >>> log.sql('select count(*) from events')                      # doctest: +SKIP
        """
        self._engine.check_open()
        # an integration is above this module
        table: pyarrow.Table = import_module("embedlog.duckdb").sql(self, query, **bounds)
        return table

    def last_record(
        self, topic: str, partition: int, *, isolation_level: Isolation = READ_UNCOMMITTED
    ) -> Record[bytes, bytes] | None:
        """The record with the highest offset of a partition, or None if it has none; with
        "read_committed", of committed ones.

        It is below the high watermark. Markers of transactions and offsets that compaction removed
        are passed over. The read is that of the last batch; it grows with the size of the aborted
        data after the record, not with the log. Raises UnknownTopicOrPartitionError, ConfigError,
        CorruptRecordError, ClosedError.
        """
        from embedlog.columns.last_record import find_last_record

        return find_last_record(
            self._engine.partition(topic, partition), topic, partition, isolation_level
        )

    def backup(
        self,
        destination: str | os.PathLike[str],
        *,
        progress: Callable[[int, int], object] | None = None,
    ) -> None:
        """Copy all committed records to a directory that is absent or empty; other processes
        continue meanwhile.

        The copy is a closed log directory in Kafka's form, on stable storage, with its own
        identity. Every batch is checked during the copy; in a set it is that of the leader.
        `progress(bytes copied, total bytes)` is called repeatedly; its exception ends the backup.
        After an error nothing of the copy is left. Raises ForeignDirectoryError for a destination
        that is not empty, CorruptRecordError, StorageError, ClosedError, LeaderNotAvailableError.
        """
        from embedlog.admin import backup

        self._engine.check_open()
        backup.backup(self._engine, destination, progress)

    @property
    def identity(self) -> str:
        """The text that distinguishes this log from others: the `directory.id` of its directory; of
        a set its `cluster.id`.

        A copy by `backup` has another one. A directory that only a Kafka before 3.7 has opened has
        its `cluster.id`. Raises ClosedError, StorageError.
        """
        self._engine.check_open()
        if self._engine.replicated:
            return cast("ReplicatedEngine", self._engine).set.decisions.counted_state().cluster_id
        meta = identity.read_meta(self._engine.path)
        identity_text = None if meta is None else meta.directory_id or meta.cluster_id
        if not identity_text:
            raise ForeignDirectoryError(
                "the directory has no identity: open it for writing once, which adds one to "
                "meta.properties",
                path=self._engine.path,
            )
        return identity_text

    # ---- durability and close --------------------------------------------------------------------

    def flush(self, topic: str | None = None) -> None:
        """Sync all published records to stable storage. Raises DurabilityError."""
        self._engine.flush(topic)

    def durable_offset(self, topic: str, partition: int) -> int:
        """Records below this offset are on stable storage."""
        return self._engine.partition(topic, partition).durable_offset

    def housekeep(
        self, *, due_only: bool = False, progress: Callable[[int, int], object] | None = None
    ) -> None:
        """Do one round of retention, expiry, removal of old files and compaction in this thread.

        `due_only`: only due tasks that no other process does, which are usually none; for programs
        that open the log briefly. `progress(bytes done, bytes known so far)` is called during
        compaction; what it raises ends the round.
        """
        self._engine.check_writable()
        if self._housekeeper is not None:
            self._housekeeper.once(due_only=due_only, work=Work(progress))

    def close(self) -> None:
        """Close the directory; the last process shuts it down cleanly. Idempotent.

        Threads: each call returns after the log is closed, also by another thread. Raises
        DurabilityError if that sync fails, in the end DeliveryError if producers that it closed
        have lost records, and LockTimeoutError if the close of another thread takes longer than
        `lock.timeout.ms`.
        """
        self._engine.close()

    if not TYPE_CHECKING:  # the protocol of asynchronous clients; type checkers should refuse it

        def __aenter__(self) -> NoReturn:
            raise TypeError(
                "a Log supports `with`; log.async_producer(…) and log.async_consumer(…) support "
                "`async with`"
            )

        __aexit__ = __aenter__

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._engine.children.log_if_leaving(kind):
            self.close()

    def __repr__(self) -> str:
        closed = " closed" if self._engine.closed else ""
        return f"<embedlog.Log {str(self.path)!r}{' read-only' if self.read_only else ''}{closed}>"

    def _repr_html_(self) -> str:
        from embedlog.descriptions.topics import table_of  # late: for notebooks only

        return table_of(
            repr(self), [] if self._engine.closed else self.topics(), self.describe_topic
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Log cannot be pickled: call embedlog.open(path) in the worker")


def _replicated_topics(engine: Engine) -> TopicAdmin:
    from embedlog.admin.replicated_topics import ReplicatedTopicAdmin

    return ReplicatedTopicAdmin(cast("ReplicatedEngine", engine))


def _replica_housekeeper(engine: Engine) -> ReplicaHousekeeper:
    from embedlog.admin.replica_housekeeper import ReplicaHousekeeper

    return ReplicaHousekeeper(cast("ReplicatedEngine", engine))


def _check_topics(topics: tuple[Any, ...]) -> tuple[str, ...]:
    """Check the topics of a consumer, which are separate arguments."""
    for topic in topics:
        if isinstance(topic, Mapping):
            raise TypeError(
                "give topics first, and settings as config={…}: consumer('a', 'b', config={…})"
            )
        if isinstance(topic, (list, tuple, set, frozenset)):
            raise TypeError(
                f"topics are separate arguments, not in a {type(topic).__name__}: consumer('a', "
                "'b'), consumer(*names)"
            )
    return topics


def _producer_config(
    config: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> ProducerConfig:
    from embedlog.config.client import ProducerConfig
    from embedlog.format import compression

    parsed = parse(ProducerConfig, config, **options)
    compression.check_installed(parsed.compression_type)
    return parsed


def _consumer_config(
    group_id: str | None, config: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> ConsumerConfig:
    from embedlog.config.client import ConsumerConfig

    return parse(
        ConsumerConfig, config, **options, **({} if group_id is None else {"group_id": group_id})
    )


@keywords.checked_call
def open(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    read_only: bool = False,
    create: bool = True,
    alone: bool = False,
    racks: Sequence[str | None] | None = None,
    restored: bool = False,
    progress: Callable[[int, int], object] | None = None,
    config: Mapping[str, Any] | None = None,
    **settings: Unpack[LogOptions],
) -> Log:
    """Open a log directory, and create it if it is absent; any number of processes may open it.

    `read_only` takes no lock and needs no write permission; it follows other processes.
    `create=False` refuses an absent path. A list of directories is a set with replicas; those that
    are missing or fail are away. `racks` has a label for each. One directory of a set is written
    only if `alone`. `restored` begins a set again whose directories were all put back from copies
    (docs/replicas.md). `config` has Kafka's names (docs/configuration.md); keywords use "_".
    `progress(bytes done, bytes known so far)` is called in each load of a partition from its files,
    as in a recovery. A partition is loaded by the call that uses it first; what `progress` raises
    ends that call.

    Raises DirectoryInUseError if a broker uses it, ForeignDirectoryError, UnsupportedFormatError,
    UnsupportedFilesystemError, ReplicaSetError, ConfigError, StorageError.
    """
    try:
        return Log(
            path,
            read_only=read_only,
            create=create,
            alone=alone,
            racks=racks,
            restored=restored,
            progress=progress,
            config=config,
            **settings,
        )
    except StorageError as error:
        if read_only or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        hint = " (read_only=True needs no write permission)"
        raise StorageError(
            error.message + hint, errno=error.errno, path=error.path, position=error.position
        ) from error


def check(
    path: str | os.PathLike[str], *, progress: Callable[[int, int], object] | None = None
) -> CheckReport:
    """Check one log directory, also one that cannot be opened: as `Log.check`, by path. Nothing is
    changed.

    Raises DirectoryInUseError if a broker uses it, StorageError if there is no such directory.
    """
    from embedlog.admin import log_check

    return log_check.check_path(path, progress)


def repair(
    path: str | os.PathLike[str], *, progress: Callable[[int, int], object] | None = None
) -> CheckReport:
    """Repair one log directory that no process has open: `repaired` names the changes, `findings`
    what is left.

    Damaged bytes are cut out of segments and kept in files `embedlog.cut-BASE-POSITION`; no good
    batch is removed, and no offset is used again. Damaged indexes, snapshots, epochs and
    checkpoints are made again from the log. An interrupted repair is completed by the next one. A
    set repairs itself from its replicas: `Log.check(repair=True)`. Raises DirectoryInUseError,
    ReplicaSetError for a directory of a set, StorageError.
    """
    from embedlog.admin import directory_repair

    return directory_repair.repair_path(path, progress)
