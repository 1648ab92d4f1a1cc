"""Imports one file into a topic exactly once.

- A transaction contains rows and their end position, as the committed offset of a group of this
  file and topic.
- The group is exempt from expiry, and is deleted with its topic: the import of a file into a new
  topic begins again.
- The transactional id of a file and topic fences an earlier import that still runs.
- The first rows are read before anything is made: a file that is refused leaves no group and no
  transactional id.
- A second run compares the first bytes of the file: another file of the same name is refused.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from embedlog import (
    ConfigError,
    GroupMetadata,
    InvalidRecordError,
    Log,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
)
from embedlog.tools.cli.transfer.readers import Rows, read_rows

TRANSACTION_BYTES = 32 << 20
TRANSACTION_TIMEOUT_MS = 900_000  # Kafka's maximum
NAME_CHARACTERS = 1000  # of the file, in the metadata of the offset
HEAD_BYTES = 4096
PARTIAL = "partial "
COMPLETE = "complete "

_METADATA = re.compile(r"(?:partial|complete) ([0-9]{1,9}) ([0-9a-f]{16}|-) ")


@dataclass(frozen=True)
class ImportSource:
    """A file with rows. `identity`: the same at each run; None for an input that cannot be
    continued.
    """

    path: str
    layout: str
    identity: str | None
    unchanging: bool = False  # complete once it was imported to its end


@dataclass(frozen=True)
class ImportTarget:
    """The topic of an import. `keep`: rows go to the partitions that they name; otherwise to
    `partition`, or by key.
    """

    topic: str
    partition: int | None = None
    keep: bool = True


def import_file(
    log: Log,
    source: ImportSource,
    target: ImportTarget,
    file: BinaryIO,
    advance: Callable[[int], None],
) -> int:
    """Import the rows that are not imported yet; returns their number. `advance` is called with the
    bytes of each group.

    Raises InvalidRecordError for a damaged file, after the complete groups before the damage;
    ConfigError for another file.
    """
    if source.identity is not None:
        return _import_exactly_once(log, source, target, file, advance)
    count = 0
    with log.producer() as producer:
        for rows in read_rows(source.layout, file, source.path, 0):
            _send(producer, rows, source, target)
            count += rows.count
            advance(rows.size_bytes)
    return count


def _import_exactly_once(
    log: Log,
    source: ImportSource,
    target: ImportTarget,
    file: BinaryIO,
    advance: Callable[[int], None],
) -> int:
    group_id = group_of(source, target)
    tp = TopicPartition(target.topic, 0)
    committed = log.group_offsets(group_id).get(tp)
    if committed is not None and source.unchanging and committed.metadata.startswith(COMPLETE):
        return 0
    is_new = committed is None and group_id not in log.groups()
    if is_new:
        all_rows = read_rows(source.layout, file, source.path, 0)
        new_head = _Head.of(file, "", source)
        first_rows = [*itertools.islice(all_rows, 1)]
    log.keep_group(group_id)
    with log.producer(
        transactional_id=group_id, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
    ) as producer:
        producer.init_transactions()  # completes the transaction of a killed import
        committed = log.group_offsets(group_id).get(tp)
        first = 0 if committed is None else committed.offset
        if is_new and committed is None:
            head = new_head
            remaining_rows: Iterator[Rows] = itertools.chain(first_rows, all_rows)
        else:
            if is_new:  # another process has imported the file meanwhile
                file.seek(0)
            head = _Head.of(file, "" if committed is None else committed.metadata, source)
            remaining_rows = read_rows(source.layout, file, source.path, first)
        position = first
        for transaction in _group_by_transaction(remaining_rows):
            with producer.transaction():
                for rows in transaction:
                    _send(producer, rows, source, target)
                    position += rows.count
                    advance(rows.size_bytes)
                _commit(producer, group_id, tp, OffsetAndMetadata(position, head.text(PARTIAL)))
        with producer.transaction():
            _commit(producer, group_id, tp, OffsetAndMetadata(position, head.text(COMPLETE)))
    return position - first


@dataclass(frozen=True)
class _Head:
    """The first bytes of a file, by which another file of the same name is recognized."""

    size: int
    digest: str
    path: str

    @classmethod
    def of(cls, file: BinaryIO, metadata: str, source: ImportSource) -> _Head:
        """The head of a file. Raises ConfigError if the metadata of an earlier import names another
        one.
        """
        if not file.seekable():
            return cls(0, "-", source.path)
        match = _METADATA.match(metadata)
        start = file.tell()
        data = file.read(HEAD_BYTES if match is None else min(int(match[1]), HEAD_BYTES))
        file.seek(start)
        head = cls(len(data), hashlib.sha256(data).hexdigest()[:16], source.path)
        if match is None or match[2] == "-":
            return head
        if (int(match[1]), match[2]) != (head.size, head.digest):
            raise ConfigError(
                f"{source.path} is not the file that was imported by this name",
                expected="the same first bytes, or another --id",
                found="other bytes",
            )
        return head

    def text(self, state: str) -> str:
        """The metadata of the committed offset, with PARTIAL or COMPLETE in front."""
        name = self.path[-NAME_CHARACTERS:].encode("utf-8", "replace").decode()
        return f"{state}{self.size} {self.digest} {name}"


def group_of(source: ImportSource, target: ImportTarget) -> str:
    """The group of a file and a topic, which is also their transactional id."""
    text = f"{target.topic}\0{source.identity}"
    return f"import-{hashlib.sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()[:24]}"


def _group_by_transaction(groups: Iterator[Rows]) -> Iterator[list[Rows]]:
    """The rows in groups of about TRANSACTION_BYTES."""
    transaction: list[Rows] = []
    size = 0
    for group in groups:
        transaction.append(group)
        size += group.size_bytes
        if size >= TRANSACTION_BYTES:
            yield transaction
            transaction = []
            size = 0
    if transaction:
        yield transaction


def _send(
    producer: Producer[bytes, bytes], rows: Rows, source: ImportSource, target: ImportTarget
) -> None:
    try:
        rows.send(producer, target.topic, target.partition, target.keep)
    except TypeError as problem:  # a column of another type
        raise InvalidRecordError(str(problem), path=source.path) from problem


def _commit(
    producer: Producer[bytes, bytes], group: str, tp: TopicPartition, offset: OffsetAndMetadata
) -> None:
    producer.send_offsets_to_transaction({tp: offset}, GroupMetadata(group))
