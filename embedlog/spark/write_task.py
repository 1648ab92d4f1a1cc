"""Checks the rows of a write task and stages them in a file.

- The columns are those of Spark's Kafka sink: `value`, and optionally `key`, `headers`, `topic`,
  `partition`, and with the option also `timestamp`; other columns are ignored.
- Errors of a single row are raised here, with its task and number: no topic, a negative partition,
  a header without a key, a time before 1970. Limits that depend on the topic are recorded (`Facts`)
  and checked before the first byte goes to the log.
- Each batch of a file contains one topic, in the order of the rows; batches have about
  `PIECE_BYTES`.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from typing import Any

import embedlog
from embedlog.spark.read_options import COLUMNS
from embedlog.spark.staging import Staged, StagingArea, TopicRows

SINK_COLUMNS = ("key", "value", "headers", "topic", "partition", "timestamp")
STRING_OR_BINARY = ("string", "binary")
KINDS = {
    "key": STRING_OR_BINARY,
    "value": STRING_OR_BINARY,
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("headers",),
    "timestamp": ("timestamp",),
}
PIECE_BYTES = 8 << 20
PIECE_ROWS = 1 << 17
RECORD_OVERHEAD = 61 + 21  # of a record alone in its batch, without key, value and headers
HEADER_OVERHEAD = 10
TOPIC = b"topic"


def sink_columns(
    struct: Any, *, topic: str, headers: bool, timestamp: bool = False
) -> dict[str, int]:
    """The positions of the sink's columns in the rows. Raises ConfigError for an unsuitable
    schema.
    """
    column_numbers: dict[str, int] = {}
    for at, field in enumerate(struct.fields):
        name = field.name.lower()
        if name not in SINK_COLUMNS or (name == "timestamp" and not timestamp):
            continue
        if name in column_numbers:
            raise embedlog.ConfigError(
                f"schema: two columns {name}", expected="one", found=field.name
            )
        _check_kind(name, field.dataType)
        column_numbers[name] = at
    names = ", ".join(field.name for field in struct.fields) or "no columns"
    if "value" not in column_numbers:
        raise embedlog.ConfigError(
            "schema: no column value", expected=", ".join(SINK_COLUMNS), found=names
        )
    if "topic" not in column_numbers and not topic:
        raise embedlog.ConfigError(
            "schema: the topic is missing: set the option topic or add a column topic", found=names
        )
    if topic:
        column_numbers.pop("topic", None)
    if not headers:
        column_numbers.pop("headers", None)
    return column_numbers


def _check_kind(name: str, kind: Any) -> None:
    text = kind.simpleString()
    if name == "headers":
        entry = getattr(kind, "elementType", None)
        fields = getattr(entry, "fields", ())
        pair = [(field.name, field.dataType.simpleString()) for field in fields]
        if pair != [("key", "string"), ("value", "binary")]:
            raise embedlog.ConfigError(
                f"schema: the type of {name}", expected=COLUMNS["headers"], found=text
            )
    elif text not in KINDS[name] and not (
        text.startswith(("varchar(", "char(")) and "string" in KINDS[name]
    ):
        hint = f"; convert it in the query, such as CAST({name} AS {KINDS[name][0].upper()})"
        raise embedlog.ConfigError(
            f"schema: the type of {name}{hint}", expected=" or ".join(KINDS[name]), found=text
        )


class WriteTask:
    """One attempt at one task of a write. Used once."""

    def __init__(
        self,
        area: StagingArea,
        column_numbers: dict[str, int],
        topic: str,
        *,
        task: int,
        query: str = "",
        batch: int = -1,
        transactional_id: str = "",
    ) -> None:
        self._area = area
        self._column_numbers = column_numbers
        self._topic = topic
        self._task = task
        self._query = query
        self._batch = batch
        self._owner = query or transactional_id
        self._facts: dict[str, TopicRows] = {}
        self._rows = 0

    def stage(self, batches: Iterable[Any]) -> Staged:
        """Write the rows, if there are any, to a staged file. Raises InvalidRecordError,
        StorageError.
        """
        rows = (batch for batch in batches if batch.num_rows)
        first = next(iter(rows), None)
        if first is None:
            return self._make_staged("", 0)
        with self._area.file(self._batch, self._task, self._owner) as (file, path):
            self._write(file, _chain(first, rows))
            size = file.tell()
        return self._make_staged(path, size)

    def _make_staged(self, path: str, size: int) -> Staged:
        return Staged(
            path,
            size,
            rows=self._rows,
            task=self._task,
            host=socket.gethostname(),
            query=self._query,
            batch=self._batch,
            area=self._area.path,
            topics=self._facts,
        )

    def _write(self, file: Any, batches: Iterator[Any]) -> None:
        import pyarrow

        writer = None
        for piece in _join_batches(map(self._project, batches)):
            for topic, part, rows in self._by_topic(piece):
                self._inspect(topic, part, rows)
                if writer is None:
                    writer = pyarrow.ipc.new_file(file, part.schema)
                writer.write_batch(part, custom_metadata={TOPIC: topic.encode()})
            self._rows += piece.num_rows
        if writer is not None:
            writer.close()
        file.flush()

    def _project(self, batch: Any) -> Any:
        import pyarrow

        names = [name for name in SINK_COLUMNS if name in self._column_numbers]
        return pyarrow.RecordBatch.from_arrays(
            [batch.column(self._column_numbers[name]) for name in names], names=names
        )

    # ---- checks of rows --------------------------------------------------------------------------

    def _by_topic(self, piece: Any) -> Iterator[tuple[str, Any, Any]]:
        """Each topic's rows and their numbers in the piece; None means all rows."""
        if self._topic:
            yield self._topic, piece, None
            return
        import pyarrow.compute as pc

        topics = piece.column("topic")
        if topics.null_count:
            row = self._rows + pc.index(pc.is_null(topics), True).as_py()
            raise embedlog.InvalidRecordError(
                f"{self._describe_row(row)}: the column topic is null, and there is no option topic"
            )
        others = piece.drop_columns(["topic"])
        names = pc.unique(topics).to_pylist()
        for name in names:
            if len(names) == 1:
                yield name, others, None
            else:
                mask = pc.equal(topics, name)
                yield name, others.filter(mask), pc.indices_nonzero(mask)

    def _describe_row(self, row: int) -> str:
        return f"row {row} of task {self._task}"

    def _inspect(self, topic: str, part: Any, rows: Any) -> None:
        """Record the limits that these rows require of their topic. Raises InvalidRecordError."""
        facts = self._facts.setdefault(topic, TopicRows())
        numbers = _Numbers(self._rows, rows)
        facts.rows += part.num_rows
        facts.size += part.nbytes
        names = part.schema.names
        self._inspect_keys(facts, part, names, numbers)
        if "headers" in names:
            self._check_headers(topic, part.column("headers"), numbers)
        if "partition" in names:
            self._inspect_partitions(facts, topic, part.column("partition"), numbers)
        if "timestamp" in names:
            self._check_timestamps(topic, part.column("timestamp"), numbers)
        _inspect_sizes(facts, part, names, numbers)

    @staticmethod
    def _inspect_keys(facts: TopicRows, part: Any, names: list[str], numbers: _Numbers) -> None:
        if facts.keyless_row >= 0:
            return
        if "key" not in names:
            facts.keyless_row = numbers[0]
        elif part.column("key").null_count:
            import pyarrow.compute as pc

            facts.keyless_row = numbers[pc.index(pc.is_null(part.column("key")), True).as_py()]

    def _check_headers(self, topic: str, lists: Any, numbers: _Numbers) -> None:
        import pyarrow.compute as pc

        entries = lists.flatten()
        keys = pc.struct_field(entries, 0)
        if keys.null_count:
            at = pc.index(pc.is_null(keys), True).as_py()
            row = numbers[pc.list_parent_indices(lists)[at].as_py()]
            raise embedlog.InvalidRecordError(
                f"{self._describe_row(row)}: a header has no key, topic {topic}"
            )

    def _inspect_partitions(
        self, facts: TopicRows, topic: str, column: Any, numbers: _Numbers
    ) -> None:
        import pyarrow.compute as pc

        bounds = pc.min_max(column).as_py()
        if bounds["min"] is None:
            return
        if bounds["min"] < 0:
            row = numbers[pc.index(column, bounds["min"]).as_py()]
            raise embedlog.UnknownTopicOrPartitionError(
                f"{self._describe_row(row)}: topic {topic} has no partition {bounds['min']}",
                expected="0 or more, or null",
            )
        if bounds["max"] > facts.partition:
            facts.partition = bounds["max"]
            facts.partition_row = numbers[pc.index(column, bounds["max"]).as_py()]

    def _check_timestamps(self, topic: str, column: Any, numbers: _Numbers) -> None:
        import pyarrow.compute as pc

        earliest = pc.min(column)
        if earliest.is_valid and earliest.value < 0:
            row = numbers[pc.index(column, earliest).as_py()]
            raise embedlog.InvalidTimestampError(
                f"{self._describe_row(row)}: a time that no record of topic {topic} can have",
                expected="1970 or later, or null",
                found=str(earliest),
            )


class _Numbers:
    """The task-wide numbers of the rows of a part."""

    def __init__(self, first: int, rows: Any) -> None:
        self._first = first
        self._rows = rows

    def __getitem__(self, at: int) -> int:
        return self._first + (at if self._rows is None else int(self._rows[at].as_py()))


def _inspect_sizes(facts: TopicRows, part: Any, names: list[str], numbers: _Numbers) -> None:
    """Update the largest record; compute sizes per row only if the sum of the column maxima is
    larger.
    """
    import pyarrow.compute as pc

    lengths = [
        pc.fill_null(pc.binary_length(part.column(name)), 0)
        for name in ("key", "value")
        if name in names
    ]
    lists = part.column("headers") if "headers" in names else None
    upper_bound = RECORD_OVERHEAD + sum(pc.max(column).as_py() for column in lengths)
    if lists is not None:
        upper_bound += lists.nbytes
    if upper_bound <= facts.largest:
        return
    sizes = [column.cast("int64") for column in lengths]
    if lists is not None:
        sizes.append(_header_sizes(lists))
    total = sizes[0]
    for column in sizes[1:]:
        total = pc.add(total, column)
    largest = pc.max(total).as_py()
    if largest + RECORD_OVERHEAD > facts.largest:
        facts.largest = largest + RECORD_OVERHEAD
        facts.largest_row = numbers[pc.index(total, largest).as_py()]


def _header_sizes(lists: Any) -> Any:
    """Bytes of each row's headers."""
    import numpy
    import pyarrow
    import pyarrow.compute as pc

    entries = lists.flatten()
    header_sizes = numpy.full(len(entries), HEADER_OVERHEAD, dtype=numpy.int64)
    for child in (0, 1):
        lengths = pc.fill_null(pc.binary_length(pc.struct_field(entries, child)), 0)
        header_sizes += lengths.to_numpy(zero_copy_only=False)
    sums = numpy.zeros(len(lists), dtype=numpy.int64)
    rows = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
    numpy.add.at(sums, rows, header_sizes)
    return pyarrow.array(sums)


def _chain(first: Any, following: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from following


def _join_batches(batches: Iterator[Any]) -> Iterator[Any]:
    """Join small batches to about `PIECE_BYTES`: few large batches compress better and cost less to
    send.
    """
    import pyarrow

    group: list[Any] = []
    rows = 0
    size = 0
    for batch in batches:
        is_full = size + batch.nbytes > PIECE_BYTES or rows + batch.num_rows > PIECE_ROWS
        if group and is_full:
            yield group[0] if len(group) == 1 else pyarrow.concat_batches(group)
            group = []
            rows = 0
            size = 0
        group.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
    if group:
        yield group[0] if len(group) == 1 else pyarrow.concat_batches(group)
