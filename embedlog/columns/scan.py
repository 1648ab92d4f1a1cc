"""Contains `Scan`: a bounded part of a topic that can be read as Arrow data or records any number
of times.

- The bounds are fixed when the scan is created: records that are appended later are not part of it.
- Each iteration begins at the start and is lazy: data is read on demand, and memory is bounded.
- Bounds are filters: offsets outside of the log are ignored; records that retention deletes after
  the scan was created are an error. So are records that are lost or cannot be reached then. A topic
  that was deleted and created again is an error, too: it has the name, but another id.
- Only `schema`, iteration and `to_arrow` need pyarrow; any Arrow consumer takes the scan itself
  through the C stream interface.
- The progress of a reading is counted in offsets, after each chunk: the number of records is not
  known before the end.
- The iterators of records and batches say how to get one item, where a list or a record was
  expected. A loop runs on their generator, so it costs the same as without them.
- The pieces of a partition for parallel workers (`Split`) are contiguous and cover the whole scan.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, NoReturn, TypeVar, overload

from embedlog._native import _rows
from embedlog._native._rows import Record
from embedlog.columns.arrow_export import ALL_COLUMNS, Layout, schema_of
from embedlog.columns.batch import Batch, records_of
from embedlog.columns.chunks import ChunkSource
from embedlog.columns.deserialization import Deserializers
from embedlog.columns.patterns import SearchPattern
from embedlog.columns.scan_bounds import OffsetBound, ScanBounds, Time
from embedlog.columns.search import Search
from embedlog.config import keywords, other_clients
from embedlog.descriptions.display import tables
from embedlog.errors import (
    ConfigError,
    EmbedlogError,
    MissingExtraError,
    UnknownTopicOrPartitionError,
)
from embedlog.format.record_columns import OFFSET_MAX, OFFSET_MIN, Decoded, Window
from embedlog.format.visibility import Isolation, end_offset

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

    from embedlog.config.callables import Deserializer
    from embedlog.config.client import K, V
    from embedlog.engine.engine import Engine
    from embedlog.partition.interfaces import LogPartition, ReadableLog
    from embedlog.topic import Topic

# a chunk costs as much overhead as half a MiB; decoded, with keys and values, it fits into 16 MiB
CHUNK_BYTES = 5 << 20

SHOWN = 10  # records in a notebook
BOUNDS_SHOWN = 5  # partitions in the repr

GRADUAL_OFFSETS_MAX = 1 << 17  # about a chunk of small records

# offsets that a reading has passed, all offsets of the scan
Progress = Callable[[int, int], object]
Item = TypeVar("Item")

SPLIT_BYTES = 64 << 20  # about half a second of decoding


@keywords.checked
class Scan(metaclass=other_clients.Hinting):
    """Records of some partitions of a topic between bounds; created by `log.scan`.

    `for record in scan.records()` reads records. The scan itself is data for Arrow:
    `for batch in scan` gives pyarrow RecordBatches.

    A reading returns all records up to the fixed end, or raises. OffsetOutOfRangeError: some were
    deleted or lost meanwhile. LeaderNotAvailableError: no replica of a set shows them within
    `lock.timeout.ms`.

    **Threads:** many threads may read a Scan; each iterator or stream belongs to one at a time.

    Examples:
        >>> scan = log.scan("events", start_time=t0, columns=["offset"])        # doctest: +SKIP
        >>> polars.from_arrow(scan)                                             # doctest: +SKIP
    """

    def __init__(
        self,
        engine: Engine,
        topic: str,
        bounds: ScanBounds,
        rack: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        topic_now = engine.topic(topic)
        limits = bounds.within(topic, list(topic_now.usable_numbers))
        limits.check_order()
        self._topic = topic
        self._topic_id = topic_now.topic_id
        self._isolation_level = bounds.isolation_level
        self._engine = engine
        self._rack = rack
        self._progress = progress
        self._columns = limits.columns
        self._start_ms = limits.start_ms
        self._end_ms = limits.end_ms
        self._bounds = {
            number: self._pin_offsets(self._open_partition(topic_now, number), start, end)
            for number, (start, end) in limits.offsets.items()
        }

    def narrowed(
        self,
        *,
        partitions: int | Iterable[int] | None = None,
        start_offset: OffsetBound = None,
        end_offset: OffsetBound = None,
        start_time: Time | None = None,
        end_time: Time | None = None,
        columns: Iterable[str] | None = None,
    ) -> Scan:
        """A scan of a part of this one with the same fixed bounds: a new bound can only exclude.
        Raises as `log.scan` does.
        """
        bounds = ScanBounds(
            partitions=partitions,
            start_offset=start_offset,
            end_offset=end_offset,
            start_time=start_time,
            end_time=end_time,
            columns=self.columns if columns is None else columns,
        )
        limits = bounds.within(self.topic, list(self._bounds))
        scan = object.__new__(Scan)
        scan.__dict__.update(self.__dict__)
        scan._columns = limits.columns
        scan._start_ms = max(self._start_ms, limits.start_ms)
        scan._end_ms = min(self._end_ms, limits.end_ms)
        scan._bounds = {}
        topic = self._check_topic() if scan.times != self.times else None
        for number, (start, end) in limits.offsets.items():
            first, last = self._bounds[number]
            first = max(first, start or 0)
            if end is not None:
                last = min(last, end)
            last = max(first, last)
            scan._bounds[number] = (first, last)
            if topic is None:
                continue
            partition = self._open_partition(topic, number)
            if first >= partition.bounds().log_start:  # else the loss of records would be no error
                scan._bounds[number] = scan._narrow_by_time(partition, first, last)
        return scan

    def _pin_offsets(
        self, partition: ReadableLog, start: int | None, end: int | None
    ) -> tuple[int, int]:
        """First offset and end offset within the current log."""
        bounds = partition.bounds()
        first = bounds.log_start if start is None else max(start, bounds.log_start)
        last = end_offset(bounds, self.isolation_level)
        if end is not None:
            last = min(end, last)
        return self._narrow_by_time(partition, int(first), int(max(first, last)))

    def _await_bounds(self, number: int, end: int) -> tuple[int, int]:
        """First offset and end offset of a partition now, after a wait for the records below `end`,
        which were seen before.

        If its end is below that, they are lost. Raises LeaderNotAvailableError,
        UnknownTopicOrPartitionError.
        """
        partition = self._open_partition(self._check_topic(), number)
        bounds = partition.awaited_bounds(end, self.isolation_level)
        return bounds.log_start, end_offset(bounds, self.isolation_level)

    def _epoch_before(self, number: int, offset: int) -> int:
        """The leader epoch of the record before `offset` in a partition; -1 if it is not known.
        Raises LeaderNotAvailableError, UnknownTopicOrPartitionError.
        """
        partition = self._open_partition(self._check_topic(), number)
        if offset <= 0:
            return -1
        epoch, _ = partition.epoch_end(partition.bounds().epoch)
        while epoch > 0:
            earlier_epoch, earlier_end = partition.epoch_end(epoch - 1)
            if earlier_epoch < 0 or earlier_end < offset:
                break
            epoch = earlier_epoch
        return epoch

    def _epoch_end(self, number: int, epoch: int) -> tuple[int, int]:
        """As `Partition.epoch_end`: where the log no longer has the records of a reader in this
        epoch. Raises LeaderNotAvailableError, UnknownTopicOrPartitionError.
        """
        return self._open_partition(self._check_topic(), number).epoch_end(epoch)

    def _narrow_by_time(self, partition: ReadableLog, first: int, last: int) -> tuple[int, int]:
        """The part of these offsets that contains all records between the times, by the indexes."""
        if self._start_ms > 0 and first < last:
            start = partition.offset_for_time(self._start_ms, self.isolation_level)
            first = last if start is None else min(last, max(first, int(start.offset)))
        if self._end_ms < OFFSET_MAX and first < last:
            last = partition.end_by_time(first, last, self._end_ms)
        return first, last

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self._topic

    @property
    def topic_id(self) -> str:
        """The id of the topic at the creation of the scan; a topic that was deleted and created
        again has another one.
        """
        return self._topic_id

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that are read, in their order."""
        return self._columns

    @property
    def isolation_level(self) -> Isolation:
        """`read_uncommitted`, the default, or `read_committed`."""
        return self._isolation_level

    @property
    def bounds(self) -> dict[int, tuple[int, int]]:
        """First offset and end offset of each partition."""
        return dict(self._bounds)

    @property
    def times(self) -> tuple[int | None, int | None]:
        """The bounds by time in milliseconds; None is no bound."""
        start_ms = None if self._start_ms == OFFSET_MIN else self._start_ms
        end_ms = None if self._end_ms == OFFSET_MAX else self._end_ms
        return start_ms, end_ms

    def splits(self, max_bytes: int = SPLIT_BYTES) -> list[Split]:
        """The scan in pieces of about `max_bytes` of the log at most, split between batches:
        together they are the whole scan.

        A worker reads a piece by
        `log.scan(topic, partitions=piece.partition, start_offset=…, end_offset=…)`, with the same
        times. Raises ClosedError, UnknownTopicOrPartitionError.
        """
        if type(max_bytes) is not int or max_bytes < 1:
            raise ConfigError(
                "max_bytes", expected="a positive number of bytes", found=repr(max_bytes)
            )
        partitions = self._open_partitions()
        pieces: list[Split] = []
        for number, (start, end) in self._bounds.items():
            points = partitions[number].split_points(start, end, max_bytes)
            for piece_end, size_bytes in points:
                pieces.append(Split(number, start, piece_end, size_bytes))
                start = piece_end
        return pieces

    def __repr__(self) -> str:
        bounds = str(dict(islice(self._bounds.items(), BOUNDS_SHOWN)))
        if len(self._bounds) > BOUNDS_SHOWN:
            bounds += f" (the first {BOUNDS_SHOWN} of {len(self._bounds)})"
        return f"Scan({self.topic!r}, bounds={bounds}, columns={list(self.columns)})"

    # ---- objects ----

    @overload
    def records(
        self, *, key_deserializer: None = None, value_deserializer: None = None
    ) -> Iterator[Record[bytes, bytes]]: ...
    @overload
    def records(
        self, *, key_deserializer: Deserializer[K], value_deserializer: None = None
    ) -> Iterator[Record[K, bytes]]: ...
    @overload
    def records(
        self, *, key_deserializer: None = None, value_deserializer: Deserializer[V]
    ) -> Iterator[Record[bytes, V]]: ...
    @overload
    def records(
        self, *, key_deserializer: Deserializer[K], value_deserializer: Deserializer[V]
    ) -> Iterator[Record[K, V]]: ...
    def records(
        self,
        *,
        key_deserializer: Deserializer[Any] | None = None,
        value_deserializer: Deserializer[Any] | None = None,
    ) -> Iterator[Record[Any, Any]]:
        """The records as objects with all their fields, in the order of the partitions; pyarrow is
        not needed.

        Deserializers are callables of bytes, as those of a consumer; they are not called for None.
        An exception of one is the cause of the SerializationError that the iterator raises: it
        names topic, partition, offset and field, and ends the iteration.
        """
        deserializers = Deserializers(key_deserializer, value_deserializer)
        return RecordIterator(
            self._records(deserializers.record if deserializers.is_needed else None)
        )

    def _records(
        self, deserialize: Callable[[Record[bytes, bytes]], Record[Any, Any]] | None
    ) -> Generator[Record[Any, Any], None, None]:
        for number, decoded in self._decode_chunks(ALL_COLUMNS):
            records = records_of(self.topic, number, decoded)
            if deserialize is None:
                yield from records
            else:
                yield from map(deserialize, records)

    def decoded(
        self,
        *,
        key_deserializer: Deserializer[Any] | None = None,
        value_deserializer: Deserializer[Any] | None = None,
        key_type: pyarrow.DataType | None = None,
        value_type: pyarrow.DataType | None = None,
    ) -> Iterator[pyarrow.RecordBatch]:
        """RecordBatches of the columns of the scan, whose keys and values are those of
        deserializers, for example of schemas.

        Deserializers are those of `records`. The types of what they return are the given ones, or
        found in the first batch: dictionaries become structs, so that
        `pyarrow.Table.from_batches(scan.decoded(…)).flatten()` has a column for each field. Raises
        SerializationError, MissingExtraError without pyarrow, and pyarrow's errors for an object of
        another type.
        """
        arrow = _pyarrow()
        deserializers = Deserializers(key_deserializer, value_deserializer)
        types = {"key": key_type, "value": value_type}
        deserialized_columns: list[str] = []
        if "key" in self.columns and key_deserializer is not None:
            deserialized_columns.append("key")
        if "value" in self.columns and value_deserializer is not None:
            deserialized_columns.append("value")
        for number, decoded in self._decode_chunks(ALL_COLUMNS):
            batch = arrow.RecordBatch._import_from_c_capsule(
                _rows.arrow_schema(schema_of(self.columns)),
                _rows.arrow_array(Layout(self.topic, number, self.columns).describe_rows(decoded)),
            )
            records: list[Record[Any, Any]] = []
            if deserialized_columns:
                encoded_records = records_of(self.topic, number, decoded)
                records = [deserializers.record(record) for record in encoded_records]
            for name in deserialized_columns:
                column = arrow.array([getattr(record, name) for record in records], types[name])
                types[name] = column.type
                batch = batch.set_column(self.columns.index(name), name, column)
            yield batch

    def batches(self) -> Iterator[Batch]:
        """The columns of the scan as numpy arrays, in the order of the partitions: chunks of about
        5 MiB of the log.

        A second thread reads and decodes the next chunks; pyarrow is not needed.
        """
        return BatchIterator(
            Batch(self.topic, number, decoded, self.columns)
            for number, decoded in self._decode_chunks(self.columns)
        )

    def head(self, count: int = 10) -> list[Record[bytes, bytes]]:
        """The first records, in the order of `records`. Only the data before them is read."""
        if type(count) is not int or count < 0:
            raise ConfigError("count", expected="a number of records", found=repr(count))
        return list(islice(self.records(), count))

    def tail(self, count: int = 10) -> list[Record[bytes, bytes]]:
        """The last records, in the order of `records`. Only the data after them is read."""
        return list(self.ending(count).records())

    def ending(self, count: int) -> Scan:
        """A scan of the last `count` records of this one, in the order of `records`; of all, if
        there are fewer.

        The offsets of the last records are read for it: those of transactions and compacted topics
        are not consecutive.
        """
        if type(count) is not int or count < 0:
            raise ConfigError("count", expected="a number of records", found=repr(count))
        starts = {number: end for number, (_, end) in self._bounds.items()}
        missing_count = count
        for number, (first, end) in sorted(self._bounds.items(), reverse=True):
            width = missing_count
            while missing_count and first < end:
                start = max(first, end - width)
                part = self.narrowed(partitions=number, start_offset=start)
                offsets: list[int] = []
                for _, decoded in part._read_chunks(("offset",)):
                    assert decoded.offsets is not None
                    offsets += decoded.offsets.tolist()
                is_enough = len(offsets) >= missing_count
                if is_enough or start == first:
                    starts[number] = offsets[-missing_count] if is_enough else first
                    missing_count = max(0, missing_count - len(offsets))
                    break
                width *= 4
        return self.narrowed(start_offset=starts)

    def gradually(self, offsets: int = 128) -> Iterator[Scan]:
        """The scan as consecutive scans, which together are the whole one. Who needs few records
        reads little.

        The first one has `offsets` offsets of the first partition, each further one four times as
        many; the last one has the rest. A partition of at most twice as many is not divided: both
        parts would read the blocks at their border.
        """
        if type(offsets) is not int or offsets < 1:
            raise ConfigError(
                "offsets", expected="a positive number of offsets", found=repr(offsets)
            )
        numbers = sorted(self._bounds)
        for index, number in enumerate(numbers):
            first, end = self._bounds[number]
            is_short = end - first <= 2 * offsets
            while first < end and offsets < GRADUAL_OFFSETS_MAX:
                part_end = end if is_short else min(end, first + offsets)
                yield self.narrowed(partitions=number, start_offset=first, end_offset=part_end)
                first = part_end
                offsets = 4 * offsets
            if offsets >= GRADUAL_OFFSETS_MAX:
                yield self.narrowed(partitions=numbers[index:], start_offset={number: first})
                return

    @property
    def num_rows(self) -> int:
        """The number of records. It is counted by a read of the whole scan: offsets alone do not
        show it.

        Records are decoded only where a bound lies within a batch, or to report the progress.
        """
        if self._progress is not None:
            return sum(decoded.count for _, decoded in self._decode_chunks(("offset",)))
        source = self._open_source(("offset",))
        record_count = 0
        while (piece_count := source.count()) is not None:
            self._engine.check_open()
            record_count += piece_count
        return record_count

    def search(
        self,
        pattern: SearchPattern,
        *,
        columns: Iterable[str] = ("key", "value"),
        invert: bool = False,
    ) -> Search:
        """The records whose key or value contains `pattern`: bytes, or a compiled regular
        expression for bytes or text.

        `columns` are the searched ones: key, value, headers (names and values). `invert` selects
        the records without a match. Each row is searched alone. The result is iterable and has
        `count()`. Raises ConfigError.
        """
        return Search(self.topic, self._open_source, pattern, columns, invert)

    def _repr_html_(self) -> str:
        head = ("partition", "offset", "time (UTC)", "key", "value", "headers")
        try:
            records = self.head(SHOWN + 1)
        except EmbedlogError as error:
            # a closed log, removed records, damage: its text is shown, not a traceback of this
            # method
            return tables.make_table(f"scan of {self.topic}: {tables.show(error)}", (), [])
        caption = f"scan of {self.topic}"
        if len(records) > SHOWN:
            caption += f", the first {SHOWN} records"
        rows = [
            (
                record.partition,
                record.offset,
                tables.format_time(record.timestamp_ms),
                record.key,
                record.value,
                record.headers,
            )
            for record in records[:SHOWN]
        ]
        return tables.make_short_table(caption, head, rows)

    # ---- pyarrow ----

    @property
    def schema(self) -> pyarrow.Schema:
        """The pyarrow schema. Raises MissingExtraError without pyarrow."""
        return _pyarrow_schema(_pyarrow(), self.columns)

    def __iter__(self) -> Iterator[pyarrow.RecordBatch]:
        """pyarrow RecordBatches. Raises MissingExtraError without pyarrow."""
        batch_of = _pyarrow().RecordBatch._import_from_c_capsule
        for rows in self._rows():
            yield batch_of(_rows.arrow_schema(schema_of(self.columns)), _rows.arrow_array(rows))

    def to_arrow(self) -> pyarrow.Table:
        """All records as one pyarrow Table. Raises MissingExtraError without pyarrow."""
        batches = list(self)
        return _pyarrow().Table.from_batches(batches, schema=None if batches else self.schema)

    def to_pandas(self) -> pandas.DataFrame:
        """All records as a pandas DataFrame, keys and values as bytes. Raises MissingExtraError
        without pandas or pyarrow.
        """
        table = self.to_arrow()
        try:
            return table.to_pandas()
        except ImportError as missing:
            raise MissingExtraError("DataFrames need pandas", extra="pandas") from missing

    def to_polars(self) -> polars.DataFrame:
        """All records as a polars DataFrame, keys and values as bytes. Raises MissingExtraError
        without polars.
        """
        try:
            import polars
        except ImportError as missing:
            raise MissingExtraError("DataFrames of polars need polars", extra="polars") from missing
        return polars.DataFrame(self)

    # ---- any consumer of Arrow data ----

    def __arrow_c_schema__(self) -> object:
        return _rows.arrow_schema(schema_of(self.columns))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """A new Arrow C stream. A requested schema is ignored: the consumer may cast."""
        rows = self._rows()
        return _rows.arrow_array_stream(schema_of(self.columns), lambda: next(rows, None))

    # ---- reading ----

    def _rows(self) -> Iterator[Any]:
        """Descriptions of record batches."""
        layouts = {number: Layout(self.topic, number, self.columns) for number in self._bounds}
        for number, decoded in self._decode_chunks(self.columns):
            yield layouts[number].describe_rows(decoded)

    def _open_partitions(self) -> dict[int, ReadableLog]:
        """The partitions of the scan, with one lookup of the topic. Raises
        UnknownTopicOrPartitionError.
        """
        topic = self._check_topic()
        partitions: dict[int, ReadableLog] = {}
        for number in self._bounds:
            partition = self._open_partition(topic, number)
            if self._rack is None:
                partitions[number] = partition
            else:
                partitions[number] = self._engine.near(partition, self._rack)
        return partitions

    def _check_topic(self) -> Topic:
        """The topic, if it is the one of the creation of the scan. Raises
        UnknownTopicOrPartitionError.
        """
        self._engine.check_open()
        topic = self._engine.topic(self.topic)
        if topic.topic_id != self.topic_id:
            raise self._recreation_error(topic)
        return topic

    def _open_partition(self, topic: Topic, number: int) -> LogPartition:
        """A partition of the topic of the scan: another thread may replace the open ones after the
        lookup of the topic.
        """
        partition = self._engine.partition_of(topic, number)
        if partition.topic_id_bytes != topic.id_bytes:
            raise self._recreation_error(self._engine.topic(self.topic))
        return partition

    def _recreation_error(self, new_topic: Topic) -> UnknownTopicOrPartitionError:
        problem = f"topic {self.topic} was deleted, and created again with another id"
        return UnknownTopicOrPartitionError(
            problem, expected=self.topic_id, found=new_topic.topic_id
        )

    def _open_source(self, columns: tuple[str, ...]) -> ChunkSource:
        """The chunks of the scan, for one reader. Raises ClosedError,
        UnknownTopicOrPartitionError.
        """
        windows = {
            number: Window(start, end, self._start_ms, self._end_ms)
            for number, (start, end) in self._bounds.items()
        }
        return ChunkSource(
            self._open_partitions(),
            windows,
            isolation=self.isolation_level,
            columns=columns,
            max_bytes=CHUNK_BYTES,
        )

    def _decode_chunks(self, columns: tuple[str, ...]) -> Iterator[tuple[int, Decoded]]:
        """Decoded chunks with records, and the number of their partition."""
        if self._progress is None:
            return self._read_chunks(columns)
        return self._report_progress(tuple(dict.fromkeys((*columns, "offset"))), self._progress)

    def _report_progress(
        self, columns: tuple[str, ...], progress: Progress
    ) -> Iterator[tuple[int, Decoded]]:
        """The same with reports of the progress."""
        total = sum(last - first for first, last in self._bounds.values())
        passed = dict.fromkeys(self._bounds, 0)
        progress(0, total)
        for number, decoded in self._read_chunks(columns):
            yield number, decoded
            assert decoded.offsets is not None
            passed[number] = int(decoded.offsets[-1]) + 1 - self._bounds[number][0]
            progress(sum(passed.values()), total)
        progress(total, total)

    def _read_chunks(self, columns: tuple[str, ...]) -> Iterator[tuple[int, Decoded]]:
        source = self._open_source(columns)
        pieces = source.decode_points() if source.has_few_offsets() else source.decode_ahead()
        while True:
            self._engine.check_open()  # before the wait: in a forked child no thread would end it
            decodings = next(pieces, None)
            if decodings is None:
                return
            number, decoded, remaining = decodings
            del decodings
            while True:
                if decoded is not None and decoded.count:
                    yield number, decoded
                del decoded  # free its memory before the next one is requested
                if remaining is None:
                    break
                number, decoded, remaining = source.decode_rest(remaining)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a scan cannot be pickled: make it in the worker, embedlog.open(path).scan(…)"
        )


class Split(NamedTuple):
    """One piece: offsets `start_offset` up to `end_offset` (exclusive) of a partition, about
    `size_bytes` in the log.
    """

    partition: int
    start_offset: int
    end_offset: int
    size_bytes: int


class _Iteration(Iterator[Item], Generic[Item], metaclass=other_clients.Hinting):
    """An iterator over what a generator makes. Threads: one, as for a generator."""

    __slots__ = ("_items",)
    _use: ClassVar[str]
    _fields: ClassVar[tuple[str, ...]]

    def __init__(self, items: Generator[Item, None, None]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Item]:
        return self._items

    def __next__(self) -> Item:
        return next(self._items)

    def close(self) -> None:
        """End the reading before its end."""
        self._items.close()

    if not TYPE_CHECKING:  # type checkers refuse other names themselves

        def __getattr__(self, name: str) -> NoReturn:
            hint = f" of one item: {self._use}" if name in self._fields else ""
            raise AttributeError(
                f"{type(self).__name__!r} is an iterator without {name!r}{hint}",
                name=name,
                obj=self,
            )


class RecordIterator(_Iteration[Record[Any, Any]]):
    """The records of a scan."""

    __slots__ = ()
    _use = "for record in scan.records(), next(scan.records()), or the list scan.head(n)"
    _fields = tuple(name for name in dir(Record) if not name.startswith("_"))


class BatchIterator(_Iteration[Batch]):
    """The batches of a scan."""

    __slots__ = ()
    _use = "for batch in scan.batches(), or next(scan.batches())"
    _fields = tuple(name for name in dir(Batch) if not name.startswith("_"))


other_clients.refuse_as_container(RecordIterator, RecordIterator._use)
other_clients.refuse_as_container(BatchIterator, BatchIterator._use)


@lru_cache(maxsize=64)
def _pyarrow_schema(pyarrow: Any, columns: tuple[str, ...]) -> Any:
    """A schema never changes, and making one is a large part of a scan of one record."""
    return pyarrow.Schema._import_from_c_capsule(_rows.arrow_schema(schema_of(columns)))


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as missing:
        raise MissingExtraError(
            "Arrow tables need pyarrow; records() and __arrow_c_stream__ do not", extra="arrow"
        ) from missing
    return pyarrow
