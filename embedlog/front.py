"""The public face of an open log: one directory, and the verbs that start everything else.

F1  each verb makes one object and hands it the log; what the verbs do is written in their own rooms
F2  what a log has made is closed with it: what a producer still holds is appended, what a consumer waits for is ended
F3  the asyncio twins are looked up when they are asked for: `import embedlog` does without asyncio
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import FunctionType
from typing import TYPE_CHECKING, Any, Unpack

from embedlog import backup, log
from embedlog.admin import Admin
from embedlog.config import ConsumerConfig, ProducerConfig, parse
from embedlog.consumer import Consumer
from embedlog.group_admin import GroupAdmin
from embedlog.isolation import READ_UNCOMMITTED
from embedlog.producer import Producer
from embedlog.scan import Scan
from embedlog.typed_options import LogOptions

if TYPE_CHECKING:
    from embedlog.aio_consumer import AsyncConsumer
    from embedlog.aio_producer import AsyncProducer

__all__ = ["Log", "open"]


class Log(log.Log):
    """One open log directory; made by `embedlog.open`. A context manager; `close` is idempotent.

    **Threads:** every method may be called from any thread. **Processes:** any number may open the same directory; a handle
    belongs to the one that opened it, it cannot be pickled, and in a forked child it refuses.
    """

    def producer(self, config: Mapping[str, Any] | None = None, **options: Any) -> Producer:
        """A producer, with Kafka's producer settings (docs/configuration.md): `config` is a mapping, keywords have underscores.

        Raises ConfigError, ReadOnlyError, ClosedError.
        """
        self._check_writable()
        made = Producer(self, parse(ProducerConfig, config, **options))
        self._children.add(made)
        return made

    def consumer(
        self, *topics: str, group_id: str | None = None, config: Mapping[str, Any] | None = None, **options: Any
    ) -> Consumer:
        """A consumer of all partitions of `topics`, new ones noticed; without topics, of what it is given by `assign`.

        With a group id, a member of that group: the partitions are shared among all members, in any process. Settings are
        Kafka's for consumers: `config` is a mapping, keywords have underscores.
        Raises ConfigError, UnknownTopicOrPartitionError, ClosedError.
        """
        self._check_open()
        made = Consumer(self, _names(topics), _consumer_config(group_id, config, options))
        self._children.add(made)
        return made

    def async_producer(self, config: Mapping[str, Any] | None = None, **options: Any) -> AsyncProducer:
        """The producer for asyncio, to be used in `async with`. Raises ConfigError, ReadOnlyError, ClosedError."""
        from embedlog.aio_producer import AsyncProducer

        self._check_open()
        return AsyncProducer(self, parse(ProducerConfig, config, **options))

    def async_consumer(
        self, *topics: str, group_id: str | None = None, config: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncConsumer:
        """The consumer for asyncio, to be used in `async with`. Raises ConfigError, ClosedError."""
        from embedlog.aio_consumer import AsyncConsumer

        self._check_open()
        return AsyncConsumer(self, _names(topics), _consumer_config(group_id, config, options))

    def scan(
        self,
        topic: str,
        *,
        partitions: int | Iterable[int] | None = None,
        start_offset: int | Mapping[int, int] | None = None,
        end_offset: int | Mapping[int, int] | None = None,
        start_time: int | datetime | None = None,
        end_time: int | datetime | None = None,
        columns: Iterable[str] | None = None,
        isolation_level: str = READ_UNCOMMITTED,
    ) -> Scan:
        """What `topic` holds now between the bounds, to be read any number of times: as records, or as columns.

        Starts are inclusive, ends exclusive; offsets are numbers, or one for each partition; times are ms or aware datetimes.
        Raises UnknownTopicOrPartitionError, ConfigError, ClosedError.
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
            _verb.__qualname__ = f"Log.{_name}"


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
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"the path of a log directory is a str or an os.PathLike, not {type(path).__name__}")
    return Log(path, read_only=read_only, create=create, config=config, **settings)
