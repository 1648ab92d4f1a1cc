"""Imports one file into a topic exactly once.

IMPORT-1  a transaction contains rows and their end position, as the committed offset of a group of
    this file and topic
IMPORT-2  the group is exempt from expiry, and is deleted with its topic: the import of a file into
    a new topic begins again
IMPORT-3  the transactional id of a file and topic fences an earlier import that still runs
IMPORT-4  the first rows are read before anything is made: a file that is refused leaves no group
    and no transactional id
IMPORT-5  a second run compares the first bytes of the file: another file of the same name is
    refused
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
from embedlog.cli.transfer.readers import Rows, rows_of

TRANSACTION_BYTES = 32 << 20
TRANSACTION_TIMEOUT_MS = 900_000  # Kafka's maximum
NAME_CHARACTERS = 1000  # of the file, in the metadata of the offset
HEAD_BYTES = 4096
PARTIAL = "partial "
COMPLETE = "complete "

_METADATA = re.compile(r"(?:partial|complete) ([0-9]{1,9}) ([0-9a-f]{16}|-) ")


@dataclass(frozen=True)
class Source:
    """A file with rows. `identity`: the same at each run; None for an input that cannot be
    continued.
    """

    path: str
    layout: str
    identity: str | None
    unchanging: bool = False  # complete once it was imported to its end


@dataclass(frozen=True)
class Target:
    """The topic of an import. `keep`: rows go to the partitions that they name; otherwise to
    `partition`, or by key.
    """

    topic: str
    partition: int | None = None
    keep: bool = True


def import_file(
    log: Log, source: Source, target: Target, file: BinaryIO, advance: Callable[[int], None]
) -> int:
    """Import the rows that are not imported yet; returns their number. `advance` is called with the
    bytes of each group.

    Raises InvalidRecordError for a damaged file, after the complete groups before the damage;
    ConfigError for another file.
    """
    if source.identity is not None:
        return _exactly_once(log, source, target, file, advance)
    count = 0
    with log.producer() as producer:
        for rows in rows_of(source.layout, file, source.path, 0):
            _send(producer, rows, source, target)
            count += rows.count
            advance(rows.size_bytes)
    return count


def _exactly_once(
    log: Log, source: Source, target: Target, file: BinaryIO, advance: Callable[[int], None]
) -> int:
    group = group_of(source, target)
    place = TopicPartition(target.topic, 0)
    found = log.group_offsets(group).get(place)
    if found is not None and source.unchanging and found.metadata.startswith(COMPLETE):
        return 0
    begun: list[Rows] = []
    rest: Iterator[Rows] = iter(())
    is_new = found is None and group not in log.groups()
    if is_new:
        rest = rows_of(source.layout, file, source.path, 0)
        start = _Head.of(file, "", source)
        begun = [*itertools.islice(rest, 1)]
    log.keep_group(group)
    with log.producer(
        transactional_id=group, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
    ) as producer:
        producer.init_transactions()  # completes the transaction of a killed import
        found = log.group_offsets(group).get(place)
        first = position = 0 if found is None else found.offset
        if is_new and found is None:
            head = start
            rows_left: Iterator[Rows] = itertools.chain(begun, rest)
        else:
            if is_new:  # another process has imported the file meanwhile
                file.seek(0)
            head = _Head.of(file, "" if found is None else found.metadata, source)
            rows_left = rows_of(source.layout, file, source.path, first)
        for rows in _transactions(rows_left):
            with producer.transaction():
                for each in rows:
                    _send(producer, each, source, target)
                    position += each.count
                    advance(each.size_bytes)
                _commit(producer, group, place, OffsetAndMetadata(position, head.text(PARTIAL)))
        with producer.transaction():
            _commit(producer, group, place, OffsetAndMetadata(position, head.text(COMPLETE)))
    return position - first


@dataclass(frozen=True)
class _Head:
    """The first bytes of a file, by which another file of the same name is recognized
    (IMPORT-5).
    """

    size: int
    digest: str
    path: str

    @classmethod
    def of(cls, file: BinaryIO, metadata: str, source: Source) -> _Head:
        """The head of a file. Raises ConfigError if the metadata of an earlier import names another
        one.
        """
        if not file.seekable():
            return cls(0, "-", source.path)
        match = _METADATA.match(metadata)
        start = file.tell()
        data = file.read(HEAD_BYTES if match is None else min(int(match[1]), HEAD_BYTES))
        file.seek(start)
        found = cls(len(data), hashlib.sha256(data).hexdigest()[:16], source.path)
        if (
            match is not None
            and match[2] != "-"
            and (int(match[1]), match[2]) != (found.size, found.digest)
        ):
            raise ConfigError(
                f"{source.path} is not the file that was imported by this name",
                expected="the same first bytes, or another --id",
                found="other bytes",
            )
        return found

    def text(self, state: str) -> str:
        name = self.path[-NAME_CHARACTERS:].encode("utf-8", "replace").decode()
        return f"{state}{self.size} {self.digest} {name}"


def group_of(source: Source, target: Target) -> str:
    """The group of a file and a topic, which is also their transactional id."""
    text = f"{target.topic}\0{source.identity}"
    return f"import-{hashlib.sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()[:24]}"


def _transactions(rows: Iterator[Rows]) -> Iterator[list[Rows]]:
    """The rows in groups of about TRANSACTION_BYTES."""
    taken: list[Rows] = []
    size = 0
    for each in rows:
        taken.append(each)
        size += each.size_bytes
        if size >= TRANSACTION_BYTES:
            yield taken
            taken = []
            size = 0
    if taken:
        yield taken


def _send(producer: Producer[bytes, bytes], rows: Rows, source: Source, target: Target) -> None:
    try:
        rows.send(producer, target.topic, target.partition, target.keep)
    except TypeError as problem:  # a column of another type
        raise InvalidRecordError(str(problem), path=source.path) from problem


def _commit(
    producer: Producer[bytes, bytes], group: str, place: TopicPartition, offset: OffsetAndMetadata
) -> None:
    producer.send_offsets_to_transaction({place: offset}, GroupMetadata(group))
