"""Checks the rows of a write task and stages them in a file.

SPARKWRITETASK-1  the columns are those of Spark's Kafka sink: `value`, and optionally `key`,
    `headers`, `topic`, `partition`, and with the option also `timestamp`; other columns are ignored
SPARKWRITETASK-2  errors of a single row are raised here, with its task and number: no topic, a
    negative partition, a header without a key, a time before 1970. Limits that depend on the topic
    are recorded (`Facts`) and checked before the first byte goes to the log
SPARKWRITETASK-3  each batch of a file contains one topic, in the order of the rows; batches have
    about `PIECE_BYTES`
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from typing import Any

import embedlog
from embedlog.spark.read_options import COLUMNS
from embedlog.spark.staging import Facts, Staged, StagingArea

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
    places: dict[str, int] = {}
    for at, field in enumerate(struct.fields):
        name = field.name.lower()
        if name not in SINK_COLUMNS or (name == "timestamp" and not timestamp):
            continue
        if name in places:
            raise embedlog.ConfigError(
                f"schema: two columns {name}", expected="one", found=field.name
            )
        _check_kind(name, field.dataType)
        places[name] = at
    found = ", ".join(field.name for field in struct.fields) or "no columns"
    if "value" not in places:
        raise embedlog.ConfigError(
            "schema: no column value", expected=", ".join(SINK_COLUMNS), found=found
        )
    if "topic" not in places and not topic:
        raise embedlog.ConfigError(
            "schema: the topic is missing: set the option topic or add a column topic", found=found
        )
    if topic:
        places.pop("topic", None)
    if not headers:
        places.pop("headers", None)
    return places


def _check_kind(name: str, kind: Any) -> None:
    text = kind.simpleString()
    if name == "headers":
        entry = getattr(kind, "elementType", None)
        pair = [(each.name, each.dataType.simpleString()) for each in getattr(entry, "fields", ())]
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


class Task:
    """One attempt at one task of a write. Used once."""

    def __init__(
        self,
        area: StagingArea,
        places: dict[str, int],
        topic: str,
        *,
        task: int,
        query: str = "",
        batch: int = -1,
        transactional_id: str = "",
    ) -> None:
        self._area = area
        self._places = places
        self._topic = topic
        self._task = task
        self._query = query
        self._batch = batch
        self._owner = query or transactional_id
        self._facts: dict[str, Facts] = {}
        self._rows = 0

    def stage(self, batches: Iterable[Any]) -> Staged:
        """Write the rows, if there are any, to a staged file. Raises InvalidRecordError,
        StorageError.
        """
        rows = (batch for batch in batches if batch.num_rows)
        first = next(iter(rows), None)
        if first is None:
            return self._staged("", 0)
        with self._area.file(self._batch, self._task, self._owner) as (file, path):
            self._write(file, _chained(first, rows))
            size = file.tell()
        return self._staged(path, size)

    def _staged(self, path: str, size: int) -> Staged:
        host = socket.gethostname()
        return Staged(
            path,
            size,
            self._rows,
            self._task,
            host,
            self._query,
            self._batch,
            self._area.path,
            self._facts,
        )

    def _write(self, file: Any, batches: Iterator[Any]) -> None:
        import pyarrow

        writer = None
        for piece in _joined(map(self._projected, batches)):
            for topic, part, rows in self._by_topic(piece):
                self._inspect(topic, part, rows)
                if writer is None:
                    writer = pyarrow.ipc.new_file(file, part.schema)
                writer.write_batch(part, custom_metadata={TOPIC: topic.encode()})
            self._rows += piece.num_rows
        if writer is not None:
            writer.close()
        file.flush()

    def _projected(self, batch: Any) -> Any:
        import pyarrow

        names = [name for name in SINK_COLUMNS if name in self._places]
        return pyarrow.RecordBatch.from_arrays(
            [batch.column(self._places[name]) for name in names], names=names
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
                f"{self._place(row)}: the column topic is null, and there is no option topic"
            )
        others = piece.drop_columns(["topic"])
        names = pc.unique(topics).to_pylist()
        for name in names:
            if len(names) == 1:
                yield name, others, None
            else:
                mask = pc.equal(topics, name)
                yield name, others.filter(mask), pc.indices_nonzero(mask)

    def _place(self, row: int) -> str:
        return f"row {row} of task {self._task}"

    def _inspect(self, topic: str, part: Any, rows: Any) -> None:
        """Record the limits that these rows require of their topic. Raises InvalidRecordError."""
        facts = self._facts.setdefault(topic, Facts())
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
    def _inspect_keys(facts: Facts, part: Any, names: list[str], numbers: _Numbers) -> None:
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
                f"{self._place(row)}: a header has no key, topic {topic}"
            )

    def _inspect_partitions(self, facts: Facts, topic: str, column: Any, numbers: _Numbers) -> None:
        import pyarrow.compute as pc

        bounds = pc.min_max(column).as_py()
        if bounds["min"] is None:
            return
        if bounds["min"] < 0:
            row = numbers[pc.index(column, bounds["min"]).as_py()]
            raise embedlog.UnknownTopicOrPartitionError(
                f"{self._place(row)}: topic {topic} has no partition {bounds['min']}",
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
                f"{self._place(row)}: a time that no record of topic {topic} can have",
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


def _inspect_sizes(facts: Facts, part: Any, names: list[str], numbers: _Numbers) -> None:
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
    most = (
        RECORD_OVERHEAD
        + sum(pc.max(each).as_py() for each in lengths)
        + (0 if lists is None else lists.nbytes)
    )
    if most <= facts.largest:
        return
    sizes = [each.cast("int64") for each in lengths] + (
        [] if lists is None else [_header_sizes(lists)]
    )
    total = sizes[0]
    for each in sizes[1:]:
        total = pc.add(total, each)
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
    each = numpy.full(len(entries), HEADER_OVERHEAD, dtype=numpy.int64)
    for child in (0, 1):
        each += pc.fill_null(pc.binary_length(pc.struct_field(entries, child)), 0).to_numpy(
            zero_copy_only=False
        )
    sums = numpy.zeros(len(lists), dtype=numpy.int64)
    numpy.add.at(sums, pc.list_parent_indices(lists).to_numpy(zero_copy_only=False), each)
    return pyarrow.array(sums)


def _chained(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _joined(batches: Iterator[Any]) -> Iterator[Any]:
    """Join small batches to about `PIECE_BYTES`: few large batches compress better and cost less to
    send.
    """
    import pyarrow

    held: list[Any] = []
    rows = size = 0
    for batch in batches:
        if held and (size + batch.nbytes > PIECE_BYTES or rows + batch.num_rows > PIECE_ROWS):
            yield held[0] if len(held) == 1 else pyarrow.concat_batches(held)
            held = []
            rows = 0
            size = 0
        held.append(batch)
        rows = rows + batch.num_rows
        size = size + batch.nbytes
    if held:
        yield held[0] if len(held) == 1 else pyarrow.concat_batches(held)
