"""Checks all files of an open log.

LOGCHECK-1  a partition is checked as published at one moment. If its segments change meanwhile, it
    is checked again
LOGCHECK-2  of a set each directory is checked, and the replicas are compared. A directory that does
    not answer is a finding, and so is a partition without a leader
LOGCHECK-3  a partition that cannot be loaded is checked with what its files say; the reason is a
    finding, too
LOGCHECK-4  files that are in order are also read as a reader reads them, from the first batch of
    each segment. A refusal is a finding
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from embedlog import index
from embedlog.admin.directory_engine import open_directory
from embedlog.config.options import parse
from embedlog.config.topic import LogConfig
from embedlog.coordination import topic_directories
from embedlog.descriptions.replicas import ReplicaDifference
from embedlog.errors import (
    CorruptRecordError,
    DirectoryInUseError,
    EmbedlogError,
    ForeignDirectoryError,
    LeaderNotAvailableError,
    LockTimeoutError,
    OffsetOutOfRangeError,
    StateError,
    StorageError,
    UnknownTopicOrPartitionError,
    UnsupportedFormatError,
)
from embedlog.format import aborted_transactions
from embedlog.integrity.directory_check import (
    ClosedDirectory,
    Count,
    PartitionPlace,
    Progress,
    Total,
    check_closed,
    check_partition,
    check_root,
    find_lost_topics,
    is_outdated,
    missing_partition,
    size_of,
)
from embedlog.integrity.partition_check import PartitionFacts
from embedlog.integrity.report import CheckReport, Finding
from embedlog.storage import file_names, files, identity, interval_digests, location
from embedlog.storage.manifest import Manifest, SegmentInfo
from embedlog.topic import Topic, TopicRegistry

if TYPE_CHECKING:
    from embedlog.engine import Engine
    from embedlog.log_directory import LogDirectory
    from embedlog.partition.partition import Partition
    from embedlog.replica_description import DirectoryDescription
    from embedlog.types import TopicPartition

# of a partition whose segments are replaced during its check; small partitions are tried longer
TRIES: Final = 20
PATIENCE_S: Final = 5.0


def check(
    engine: Engine, of_set: Sequence[Finding] = (), progress: Progress | None = None
) -> CheckReport:
    """Check all directories of an open log; `of_set` are the findings of `findings_of_set`. Raises
    ClosedError.
    """
    total = Total()
    places = [
        (directory, place)
        for directory in list(engine.directories)
        for place in _places(directory, total)
    ]
    count = Count(sum(size_of(place.path) for _, place in places), progress)
    for directory, members in groupby(places, key=lambda each: each[0]):
        one = Total()
        for _, place in members:
            engine.check_open()
            _check(directory, place, count, one)
        one.findings += check_root(directory.path, one.ends, partial(_end_now, directory))
        total.merge(one)
    total.findings += of_set
    return total.report()


def findings_of_set(
    differences: Iterable[ReplicaDifference],
    directories: Iterable[DirectoryDescription],
    unled: Mapping[TopicPartition, LeaderNotAvailableError],
) -> list[Finding]:
    """The findings of a set as a whole (LOGCHECK-2)."""
    away = [each for each in directories if not each.answers]
    return [
        *(
            Finding("away", each.path, f"node {each.node} is {each.state}: {each.reason}")
            for each in away
        ),
        *(
            Finding("leader", file_names.partition_name(*tp), str(problem), None, None, None, *tp)
            for tp, problem in unled.items()
        ),
        *map(_of_difference, differences),
    ]


def _of_difference(each: ReplicaDifference) -> Finding:
    return Finding(
        "replica",
        str(each.path),
        f"node {each.node}: {each.message}",
        None,
        None,
        None,
        each.topic,
        each.partition,
        each.first_offset,
        each.end_offset,
    )


def _end_now(directory: LogDirectory, topic: str, number: int) -> int:
    """The present log end of a partition, 0 if it has none any more."""
    try:
        return directory.partition(topic, number).bounds().log_end
    except EmbedlogError:
        return 0


def _places(directory: LogDirectory, total: Total) -> Iterator[PartitionPlace]:
    """The partitions of a directory; those that are missing are findings. Topics may be created and
    deleted meanwhile.
    """
    directory.refresh_topics()
    there = topic_directories.scan_directories(directory.path).live
    written = TopicRegistry(directory.path)
    written.load()  # a reader's registry prefers what the directories say
    total.findings += find_lost_topics(written)
    recorded = {topic.name for topic in written.all()}
    topics = {
        topic.name: topic for registry in (directory.registry, written) for topic in registry.all()
    }
    for topic in topics.values():
        if not topic.finished:
            continue
        compacted = "compact" in directory.settings_of(topic).get("cleanup.policy", "")
        for number in topic.here:
            path = directory.path / file_names.partition_name(topic.name, number)
            if number in there.get(topic.name, {}):
                identified = topic.name in recorded or files.exists(
                    path / file_names.PARTITION_METADATA
                )
                yield PartitionPlace(
                    path, topic.name, number, topic.topic_id, compacted, compacted, identified
                )
            elif not files.is_directory(path) and _is_wanted(directory, topic, number):
                total.findings.append(missing_partition(path, topic.name, number))


def _is_wanted(directory: LogDirectory, topic: Topic, number: int) -> bool:
    """Whether the file of topics still has the partition, and its directory is still missing."""
    written = TopicRegistry(directory.path)
    written.load()
    now = (
        written.get(topic.name)
        if files.exists(written.path)
        else directory.registry.get(topic.name)
    )
    same = (
        now is not None and now.topic_id == topic.topic_id and now.finished and number in now.here
    )
    return same and not files.is_directory(
        directory.path / file_names.partition_name(topic.name, number)
    )


def _check(directory: LogDirectory, place: PartitionPlace, count: Count, total: Total) -> None:
    """Check one partition (LOGCHECK-1, LOGCHECK-3)."""
    try:
        partition = directory.partition(place.topic, place.number)
        known = _known(directory, partition, place)
        tries = 0
        begin_s = time.monotonic()
        while True:
            tries += 1
            one = Total()
            check_partition(known, count, one)
            after = known if one.report().good else _known(directory, partition, place)
            is_settled = after.segments == known.segments
            if is_settled or (tries >= TRIES and time.monotonic() - begin_s >= PATIENCE_S):
                break
            known = after
        if not is_settled:
            one = Total()
            message = f"its segments were replaced during each of {tries} checks"
            one.findings.append(_unsettled(place, message))
        if not one.report().damaged:
            one.findings += _unreadable(partition, known)
    except LockTimeoutError as problem:
        one = Total()
        one.findings.append(_unsettled(place, problem.message))
    except (
        CorruptRecordError,
        ForeignDirectoryError,
        StateError,
        StorageError,
        UnsupportedFormatError,
    ) as problem:
        one = Total()
        context = directory.context
        closed = ClosedDirectory(directory.path)
        known = closed.facts_of(place)
        check_partition(
            replace(known, clean=context.clean, foreign=known.foreign or context.foreign),
            count,
            one,
        )
        is_explained = isinstance(problem, StateError) and any(
            finding.kind == "interrupted" for finding in one.findings
        )
        if not one.report().damaged and not is_explained:
            one.findings.append(
                Finding.of("partition", place.path, problem, place.topic, place.number)
            )
    total.merge(one)


def _unsettled(place: PartitionPlace, message: str) -> Finding:
    return Finding(
        "unsettled",
        str(place.path),
        message,
        topic=place.topic,
        partition=place.number,
    )


def _unreadable(partition: Partition, known: PartitionFacts) -> list[Finding]:
    """A finding if a reader refuses the first batch of a segment (LOGCHECK-4)."""
    for info in known.segments or ():
        offset = max(info.base, known.log_start)
        if offset >= min(info.next_offset, partition.bounds().high_watermark):
            continue
        try:
            partition.fetch(offset, max_bytes=1)
        except (OffsetOutOfRangeError, UnknownTopicOrPartitionError):
            return []  # its records were deleted meanwhile
        except LockTimeoutError:
            raise  # its segments are being replaced
        except EmbedlogError as problem:
            found = Finding.of("unreadable", known.directory, problem, known.topic, known.number)
            return [found._replace(first_offset=offset, end_offset=info.next_offset)]
    return []


def _known(directory: LogDirectory, partition: Partition, place: PartitionPlace) -> PartitionFacts:
    """A partition as it is published now."""
    now, present = partition.present()
    segments = tuple(present)
    cleaned = directory.context.cleaned
    compacted = place.compacted or bool(cleaned and cleaned.of(place.topic, place.number))
    # a reader's load hides what disagrees with the files
    if partition.loaded is not None and place.topic_id is not None:
        manifest = Manifest(place.path, identity.id_bytes(place.topic_id))
        manifest.refresh()
        noted = [
            *manifest.segments.values(),
            *([manifest.closed] if manifest.closed is not None else []),
        ]
        sizes = {(each.base, each.size, each.next_offset): each for each in noted}
        segments = tuple(
            _noted(place.path, each, sizes.get((each.base, each.size, each.next_offset)))
            for each in segments
        )
        if not directory.context.clean:
            segments = (*segments[:-1], _written(place.path, segments[-1]))
    foreign = directory.context.foreign or is_outdated(place, directory.context.visit)
    return PartitionFacts(
        place.path,
        place.topic,
        place.number,
        place.topic_id,
        place.gaps_allowed,
        clean=partition.loaded is None or directory.context.clean,
        foreign=foreign,
        log_start=now.log_start,
        compacted=compacted,
        identified=place.identified,
        segments=segments,
        log_end=now.log_end,
    )


def _noted(path: Path, loaded: SegmentInfo, noted: SegmentInfo | None) -> SegmentInfo:
    """The description in the manifest, unless the index was made again since and is complete
    without the last entry.
    """
    if noted is None or loaded.time_entries == noted.time_entries:
        return loaded if noted is None else noted
    facts = files.facts_of(file_names.segment_path(path, loaded.base, file_names.TIME_INDEX))
    entries, rest = divmod(0 if facts is None else facts.size, index.TIME_ENTRY.size)
    made_again = loaded.time_entries == entries and not rest and noted.time_entries <= entries + 1
    return loaded if made_again else noted


def _written(path: Path, loaded: SegmentInfo) -> SegmentInfo:
    """The active segment with the entries of its caches that are in the files: the append that a
    crash has interrupted writes the others after the log.
    """

    def count(suffix: str, entry_bytes: int) -> int:
        facts = files.facts_of(file_names.segment_path(path, loaded.base, suffix))
        return 0 if facts is None else facts.size // entry_bytes

    index_entries = min(loaded.index_entries, count(file_names.INDEX, index.OFFSET_ENTRY.size))
    if loaded.digested:
        digest_count = count(file_names.DIGESTS, interval_digests.RECORD_BYTES)
        index_entries = min(index_entries, digest_count)
    transaction_count = count(file_names.TRANSACTION_INDEX, aborted_transactions.ENTRY_SIZE)
    if transaction_count < loaded.transaction_entries:
        loaded = loaded._replace(transaction_entries=transaction_count, transaction_digest=0)
    return loaded._replace(index_entries=index_entries)


def check_path(path: str | os.PathLike[str], progress: Progress | None = None) -> CheckReport:
    """Check one directory by its path; one that cannot be opened is checked with what its files
    say.

    Other processes may use it meanwhile. Raises DirectoryInUseError if a broker does, StorageError
    if there is no such directory.
    """
    place = location.checked(path)
    try:
        engine = open_directory(place, read_only=True, create=False, config=parse(LogConfig, None))
    except DirectoryInUseError:
        raise
    except EmbedlogError as problem:
        if not files.is_directory(place):
            raise
        found = check_closed(place, progress)
        return (
            found
            if found.damaged
            else replace(found, findings=(Finding.of("directory", place, problem), *found.findings))
        )
    try:
        return check(engine, progress=progress)
    finally:
        engine.close()
